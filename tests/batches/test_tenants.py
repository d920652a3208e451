"""Tenants of batches and judgements: what one of them has paid for, no other sees."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import Client

from gradeloop.admin.forgetting import Eraser, ForgottenSubject
from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import BatchRequest
from gradeloop.batches.judge_many import Judged, judge_many
from gradeloop.batches.preview import preview_judgements
from gradeloop.contract.thread import Priority, parse_request
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.grading.cache_key import key_of_tenant, tenant_digits
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import JudgingRequest, judging_id
from gradeloop.judges.registry import JudgeRegistry
from tests.rig.batches import batching, case, drafted, passes
from tests.rig.judging import FRANCE, MATCH, PARIS, answers
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
    found: list[Judged] = []
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


async def test_a_run_that_is_judged_in_parts_is_judged_for_each_tenant(client: Client, tmp_path: Path) -> None:
    long = [PARIS["transcripts"][0]["messages"][0], {"role": "assistant", "content": "Paris. " * 160_000}]
    run, found = AgentRun.model_validate({"id": "long", "transcripts": [{"messages": long}]}), list[Judged]()
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
    results: list[Judged] = []
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
