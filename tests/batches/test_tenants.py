"""Tenants of batches and judgements: what one of them has paid for, no other sees."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pytest
from sqlalchemy import text
from temporalio.client import Client

from gradeloop.admin.forgetting import Eraser, ForgottenSubject
from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import BatchRequest
from gradeloop.batches.judge_many import RunVerdict, judge_many
from gradeloop.batches.preview import preview_judgements
from gradeloop.contract.thread import Priority, parse_request, tenant_named, tenant_value
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.grading.cache_key import key_of_tenant, tenant_digits
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import JudgingRequest, judging_id
from gradeloop.judges.registry import JudgeRegistry
from gradeloop.settings.worker import with_tenant
from tests.rig.batches import batching, case, drafted, passes
from tests.rig.cli import CommandLine
from tests.rig.judging import FRANCE, MATCH, PARIS, answers
from tests.rig.tables import over
from tests.rig.threads import request

ODD_NAMES = ("a'b; DROP TABLE verdicts", "%", "_", "a\\b", "ä/β", "tenant", "x" * 64)


async def test_no_tenant_profits_from_the_cached_verdict_of_another(client: Client, tmp_path: Path) -> None:
    calls: list[tuple[str | None, int]] = []
    async with batching(client, tmp_path, passes()) as batches:
        for tenant in (None, "acme", "beta", "acme", None, "beta", "Acme"):
            priority: dict[str, Any] = {"priority": {"level": 4, "tenant": tenant}} if tenant else {}
            summary, _ = await batches.run([case("a")], **priority)
            calls.append((tenant, summary.usage.calls))
        stored = batches.store.do(lambda connection: connection.execute(text("SELECT key, batch_id FROM verdicts")).all())

    assert calls == [(None, 1), ("acme", 1), ("beta", 1), ("acme", 0), (None, 0), ("beta", 0), ("Acme", 1)]
    assert len(stored) == 4
    assert all(batch for _, batch in stored)
    assert sum(key.startswith(tenant_digits("acme")) for key, _ in stored) == 1


TENANTS = (None, "acme", "beta", "acme", None, "beta", "Acme")


@pytest.mark.parametrize("stored", [False, True])
async def test_no_tenant_is_given_the_judgement_of_another(client: Client, tmp_path: Path, stored: bool) -> None:
    found: list[RunVerdict] = []
    paid: list[int] = []
    async with batching(client, tmp_path, answers(MATCH)) as batches:
        for tenant in TENANTS:
            judge = Judge(FRANCE, client, task_queue=batches.served.task_queue, priority=Priority(tenant=tenant))
            run = AgentRun.model_validate(PARIS | {"id": f"{tmp_path.name}/{stored}"})
            await judge_many(judge, [run], found.append, store=batches.store if stored else None)
            paid.append(len(batches.served.models.requests))

    ids = [one.result.id for one in found]
    assert paid == [1, 2, 3, 3, 3, 3, 4]
    assert [ids.index(name) for name in ids] == [0, 1, 2, 1, 0, 2, 6]
    assert len({one.result.batch_id for one in found}) == (4 if stored else 1)


@pytest.mark.slow
async def test_a_run_that_is_judged_in_parts_is_judged_for_each_tenant(client: Client, tmp_path: Path) -> None:
    long = [PARIS["transcripts"][0]["messages"][0], {"role": "assistant", "content": "Paris. " * 160_000}]
    run, found = AgentRun.model_validate({"id": "long", "transcripts": [{"messages": long}]}), list[RunVerdict]()
    async with batching(client, tmp_path, answers(MATCH | {"explanation": "It names Paris."})) as batches:
        for tenant in ("acme", "beta"):
            judge = Judge(FRANCE, client, task_queue=batches.served.task_queue, priority=Priority(tenant=tenant))
            await judge_many(judge, [run], found.append, store=batches.store, chunk=True)

    mine, theirs = (one.result for one in found)
    assert mine.id != theirs.id
    assert mine.usage.calls == theirs.usage.calls > 1


async def test_a_preview_counts_what_is_cached_for_its_own_tenant(client: Client, tmp_path: Path) -> None:
    run, cached = AgentRun.model_validate(PARIS), list[int]()
    async with batching(client, tmp_path, answers(MATCH)) as batches:
        judge = Judge(FRANCE, client, task_queue=batches.served.task_queue, priority=Priority(tenant="acme"))
        await judge_many(judge, [run], lambda _: None, store=batches.store)
        for tenant in ("acme", "beta", None):
            asked = JudgingRequest(judge=judge.config, run=run, priority=Priority(tenant=tenant))
            cached.append((await preview_judgements([("one", [asked])], set(), None, batches.reader)).cached)

    assert cached == [1, 0, 0]


async def test_a_batch_is_neither_followed_nor_resumed_by_another_tenant(client: Client, tmp_path: Path) -> None:
    writes = {"role": "generator", "text": "a poem"}
    async with batching(client, tmp_path, writes, passes()) as batches:
        known = BatchClient(client, batches.served.task_queue)
        asked = {name: BatchRequest(batch_id=tmp_path.name, total=1, priority=Priority(tenant=name)) for name in ("acme", "beta")}
        await batches.upload(tmp_path.name, [drafted("a")])
        batches.served.models.hold("grader")
        await known.start(asked["acme"])
        with pytest.raises(InvalidRequest, match=r"priority.tenant: the batch .* is another tenant's; choose another batch_id"):
            await known.start(asked["beta"])
        batches.served.models.release()
        mine = await known.result(tmp_path.name)
        await known.start(asked["beta"])
        with pytest.raises(InvalidRequest, match=r"priority.tenant: the batch .* is another tenant's; choose another batch_id"):
            await known.result(tmp_path.name)
        await known.start(asked["acme"])
        again = await known.result(tmp_path.name)

    assert (mine.status, mine.passed, again.usage.calls) == ("finished", 1, mine.usage.calls)


async def test_the_judgements_of_a_tenant_go_with_it_and_those_of_others_stay(client: Client, tmp_path: Path) -> None:
    results: list[RunVerdict] = []
    async with batching(client, tmp_path, answers(MATCH)) as batches:
        run, registry = AgentRun.model_validate(PARIS | {"id": tmp_path.name}), JudgeRegistry(batches.store)
        for tenant in ("acme", "beta"):
            judge = Judge(FRANCE, client, task_queue=batches.served.task_queue, priority=Priority(tenant=tenant))
            await judge_many(judge, [run], results.append)
            await registry.save(judge.config, [(results[-1].result, 0)])
        await Eraser(client, batches.store, None).forget(ForgottenSubject(tenant="acme"))
        left = [result.id for result in await registry.judgements(Judge(FRANCE).config)]

    assert left == [results[1].result.id]


def test_ids_without_a_tenant_stay_what_they_were() -> None:
    judge = Judge(FRANCE).config

    assert judging_id(judge, "abc") == judging_id(judge, "abc", priority=Priority(level=1))
    assert judging_id(judge, "abc", priority=Priority(tenant="acme")).startswith(f"judging-{tenant_digits('acme')}")


def test_keys_without_a_tenant_stay_what_they_were() -> None:
    assert key_of_tenant("abc", None) == "abc"


def test_odd_names_of_tenants_have_keys_of_their_own() -> None:
    keys = {key_of_tenant("abc", name) for name in ODD_NAMES}

    assert len(keys) == len(ODD_NAMES)
    assert {len(key) for key in keys} == {64}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("é" * 33, "priority.tenant: a tenant's name has 64 bytes in UTF-8 at most; shorten it"),
        ("a\nb", "priority.tenant: a tenant's name has neither control characters nor white space around it; write it without"),
        ("a\x00", "priority.tenant: a tenant's name has neither control characters nor white space around it; write it without"),
        (" a", "priority.tenant: a tenant's name has neither control characters nor white space around it; write it without"),
    ],
)
def test_a_name_that_cannot_be_kept_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(request(priority={"tenant": name}))

    assert words in str(caught.value)


ODD_VALUES: tuple[Any, ...] = (None, 5, "acme", [{"priority": {"tenant": "acme"}}], {"tenant": 5}, {"tenant": "x" * 65}, {"thread": 5})


@over(
    ("request_", "tenant"),
    [
        ({"priority": {"tenant": "acme"}}, "acme"),
        ({"checkpoint": {"thread": {"priority": {"tenant": "acme"}}}}, "acme"),
        ({"priority": {"tenant": "own"}, "checkpoint": {"thread": {"priority": {"tenant": "acme"}}}}, "own"),
        ({"vars": {"priority": {"tenant": "acme"}}}, None),
        ({"run": {"metadata": {"priority": {"tenant": "acme"}}, "priority": {"tenant": "acme"}}}, None),
        *[({"priority": odd, "checkpoint": odd}, None) for odd in ODD_VALUES],
        *[(odd, None) for odd in ODD_VALUES],
    ],
)
def test_a_tenant_is_named_by_a_requests_own_priority_alone(request_: object, tenant: str | None) -> None:
    assert tenant_named(request_) == tenant


@over("name", [*ODD_NAMES, "acme", "é" * 32])
def test_a_tenant_is_listed_by_a_text_that_a_filter_takes_as_it_is(name: str) -> None:
    assert re.fullmatch(r"[\w.~%-]{1,192}", tenant_value(name), re.ASCII)
    assert unquote(tenant_value(name)) == name


@over(
    ("own", "flag", "variable", "expected"),
    [
        (None, None, "", None),
        ({"level": 1}, None, "", Priority(level=1)),
        ({"level": 1}, None, "env", Priority(level=1, tenant="env")),
        ({"tenant": "own"}, None, "env", Priority(tenant="own")),
        ({"tenant": "own"}, "flag", "env", Priority(tenant="flag")),
        (None, "flag", "", Priority(level=4, tenant="flag")),
    ],
)
def test_a_flag_goes_before_a_request_and_a_request_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, Any] | None, flag: str | None, variable: str, expected: Priority | None
) -> None:
    monkeypatch.setenv("GRADELOOP_TENANT", variable)
    given = Priority.model_validate(own) if own else None

    assert with_tenant(given, flag, level=4) == expected


def test_judges_of_a_process_are_its_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADELOOP_TENANT", "acme")

    assert Judge(FRANCE).priority == Priority(level=4, tenant="acme")
    assert Judge(FRANCE, priority=Priority(tenant="beta")).priority == Priority(tenant="beta")


@over("asked", [["forget", "--yes"], ["list"], ["batches", "list"], ["run", "task.yaml"], ["eval", "suite.yaml"]])
@over("name", ["", "a" * 300, "a\nb"])
def test_a_name_that_no_tenant_has_is_refused_by_every_command(commands: CommandLine, asked: list[str], name: str) -> None:
    """An empty one is most often a variable that is not set, and not whoever has no tenant."""
    refused = commands(*asked, "--tenant", name)

    assert (refused.code, "Invalid value for '--tenant': tenant: " in refused.err) == (2, True), refused.err


@pytest.mark.slow
def test_commands_name_the_tenant_and_list_by_it(commands: CommandLine) -> None:
    acme, beta = f"acme-{uuid4()}", f"beta-{uuid4()}"  # other tests of the process have threads on the server, too
    replies: list[dict[str, Any]] = [{"role": "generator", "text": "a draft"}, passes()]
    (commands.folder / "replies.yaml").write_text(json.dumps({"replies": replies}))
    written = {"grader": "scripted:judge", "scripted": "replies.yaml", "rubric": "- it is good", "tests": [{"id": "a", "output": "good"}]}
    for name, more in (("file", {"priority": {"tenant": acme}}), ("flag", {}), ("other", {"priority": {"tenant": beta}})):
        (commands.folder / f"{name}.yaml").write_text(json.dumps(written | {"name": name} | more))
    (commands.folder / "run.json").write_text(json.dumps(PARIS))
    (commands.folder / "judge.yaml").write_text(json.dumps({"rubric": "- it is good"}))
    task = commands.task("task", replies, rubric="- it is good", priority={"tenant": beta})

    evaluated = [commands("eval", "file.yaml"), commands("eval", "flag.yaml", "--tenant", acme), commands("eval", "other.yaml")]
    ran = [commands("run", task, "--tenant", acme, "--thread", "mine"), commands("run", task, "--thread", "theirs")]
    judged = commands(
        "judge", "judge.yaml", "run.json", "--grader", "scripted:judge", "--scripted", "replies.yaml", "--tenant", acme, "--json"
    )
    bad = commands("eval", "flag.yaml", "--tenant", "a" * 65)
    batches = commands("batches", "list", "--tenant", acme, "--json")
    resumed = commands("eval", "--resume", json.loads(batches.out)[0]["batch_id"], "--tenant", beta)
    threads = commands("list", "--tenant", acme, "--json")

    assert [done.code for done in (*evaluated, *ran)] == [0] * 5, [done.err for done in (*evaluated, *ran)]
    assert [found["name"] for found in json.loads(batches.out)] == ["flag", "file"]
    assert [found["thread_id"] for found in json.loads(threads.out)] == ["mine"]
    assert judged.result["id"].startswith(f"judging-{tenant_digits(acme)}")
    assert (bad.code, "'--tenant': tenant: String should have at most 64 characters" in bad.err) == (2, True), bad.err
    assert (resumed.code, "is another tenant's" in resumed.err) == (2, True)
