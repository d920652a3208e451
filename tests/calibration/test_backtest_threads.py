"""A backtest of real threads on a real server: it is what a rerun does, its preview is the bill, and a second one costs nothing."""

import asyncio
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.calibration.cli.backtest import (
    ENDS,
    Backtest,
    BacktestOptions,
    Story,
    _price,
    backtest_lines,
    backtest_page,
    run_backtest,
    similar_stories,
    story_of,
)
from gradeloop.calibration.cli.measure import AskFlags
from gradeloop.client.client import GradingClient
from gradeloop.contract.provider import Step
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Grader
from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.store.engine import Store, own_store
from gradeloop.store.tables import table
from gradeloop.temporal.server import ServerInfo
from tests.rig.threads import SECONDS, Models, Served, serving, start

THREADS = 20
OLD = [{"id": "c1", "description": "it is kind"}, {"id": "c2", "description": "it is short"}, {"id": "c3", "description": "it is new"}]
NEW = [*OLD[:2], {"id": "c3", "description": "it is wholly new"}]


def chance(*parts: object) -> float:
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16) / 2**32


class World(Models):
    """Models whose drafts follow from the feedback, and whose verdicts follow from the draft and the criterion's text."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = {"generator": self._draft, "grader": self._verdict}

    def _draft(self, _: Step, __: int) -> str:
        asked = self.requests_of("generator")[-1].messages
        return f"draft {chance(asked[0].content, asked[-1].content):.9f}"

    def _verdict(self, _: Step, __: int) -> str:
        asked = self.requests_of("grader")[-1]
        shown = "\n".join(message.content for message in asked.messages)
        draft = re.findall(r"draft 0\.\d{9}", shown)[-1]
        texts = re.findall(r"^- \[k\d+\] (.+)$", f"{asked.system}\n{shown}", re.MULTILINE)
        rows = {f"k{at}": self._row(text, draft) for at, text in enumerate(texts, 1)}
        return json.dumps(rows | {"unjudgeable": "", "summary": "so it is"})

    @staticmethod
    def _row(text: str, draft: str) -> dict[str, Any]:
        passed = chance(text, draft) < 0.7
        return {"reason": "looked", "passed": passed, "gap": "" if passed else f"lacks {text}"}


@pytest.fixture
async def served(client: Client, temporal_server: ServerInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv("GRADELOOP_STORE", f"sqlite:///{tmp_path}/store.db")
    monkeypatch.setenv("GRADELOOP_TENANT", f"tenant-{chance(str(tmp_path)):.6f}")  # other tests' threads are on this server, too
    async with serving(client, models=World(), store=Store(f"sqlite:///{tmp_path}/store.db")) as one:
        monkeypatch.setenv("GRADELOOP_TASK_QUEUE", one.task_queue)
        yield one


def rubric(folder: Path, criteria: object, name: str = "v2") -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"criteria": criteria}))
    return path


def backtest_of(path: Path, **facts: Any) -> BacktestOptions:
    """Return the options of a backtest of this test's own threads."""
    return BacktestOptions(path, tenant=os.environ["GRADELOOP_TENANT"], **facts)


async def listed(served: Served, prefix: str, count: int) -> None:
    """Wait until the server lists so many threads with a status, which it does a moment after they have it."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = [one async for one in served.client.threads(tenant=os.environ["GRADELOOP_TENANT"]) if one.thread_id.startswith(prefix)]
            if sum(one.status in ENDS and not one.open for one in found) == count:
                return
            await asyncio.sleep(0.1)


async def run(served: Served, name: str, criteria: object, number: int) -> Any:
    asked = start(rubric={"criteria": criteria}, idle_timeout=..., max_iterations=4)
    await served.client.invoke(name, f"write {number}", start=asked)
    return await served.client.result(name)


@pytest.mark.slow
async def test_it_is_what_a_rerun_does_and_its_preview_is_the_bill(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = f"world-{chance(str(tmp_path)):.6f}"
    old = [await run(served, f"{prefix}-{at}", OLD, at) for at in range(THREADS)]
    await listed(served, prefix, THREADS)
    path = rubric(tmp_path, NEW)
    before = served.models.count("grader")
    options = backtest_of(path, of=rubric(tmp_path, OLD, "v1"))

    preview = backtest_of(path, of=options.of, asking=AskFlags(preview=True, as_json=True))

    assert await run_backtest(preview) is None
    found = await run_backtest(options)
    assert found is not None
    billed = served.models.count("grader") - before
    again, _ = await run_backtest(options), await run_backtest(preview)
    seen = [json.loads(text) for text in capsys.readouterr().out.split("\n") if text]

    assert (found.threads, found.drafts) == (THREADS, sum(len(one.evaluations) for one in old))
    assert billed == seen[0]["calls"] == found.asked == found.usage.calls == found.drafts
    assert served.models.count("grader") - before == billed
    assert (again, seen[1]["calls"]) == (found, 0)
    new = [await run(served, f"{prefix}-{at}-new", NEW, at) for at in range(THREADS)]
    assert_is_rerun(found, old, new)


def assert_is_rerun(found: Backtest, old: list[Any], new: list[Any]) -> None:
    counts = {"sent_back": 0, "accepted": 0, "same": 0, "diverges": 0, "unknown": 0}
    for was, rerun in zip(old, new, strict=True):
        first, again = was.evaluations[0], rerun.evaluations[0]
        if again.result == "satisfied":
            counts["same" if first.result == "satisfied" else "accepted"] += 1
        else:
            counts["sent_back" if first.result == "satisfied" else "diverges"] += 1
    assert found.ends == counts
    assert min(counts[end] for end in ("sent_back", "accepted", "same", "diverges")) > 0


async def test_people_say_which_rubric_agrees_with_them_more_and_the_page_shows_why(served: Served, tmp_path: Path) -> None:
    prefix = f"people-{chance(str(tmp_path)):.6f}"
    old, new = ([{"id": "c1", "description": prefix, "required": False}, *criteria[1:]] for criteria in (OLD, NEW))
    for at in range(6):
        name = f"{prefix}-{at}"
        ended = await run(served, name, old, at)
        text = ended.messages[1].content if ended.messages else ""
        right = World._row("it is wholly new", text)["passed"]
        await served.client.override(name, "c3", right, why="so it is", by="ann", grading_run_id=ended.grading_run_id, iteration=0)
    await listed(served, prefix, 6)

    found = await run_backtest(backtest_of(rubric(tmp_path, new), of=rubric(tmp_path, old, "v1")))

    assert found is not None
    assert found.agreed is not None
    assert found.agrees_more.of == 6
    assert found.agrees_more.value == pytest.approx(1 - found.agreed)
    lines = [str(line) for line in backtest_lines(found, Path("rubric-v2.md"))]
    page = backtest_page(found, Path("rubric-v2.md"))
    assert any(line.startswith(f"agreement with people: {found.agreed:.1%} of the old verdicts") for line in lines)
    assert lines[-1] == "adopt it: gradeloop run TASK.yaml --rubric rubric-v2.md"
    assert f"gradeloop fork {found.examples[0].name} --rubric rubric-v2.md" in page
    assert all(one.text in page for one in found.examples)


async def test_a_tenants_drafts_are_judged_for_the_tenant_and_forks_are_left_out(served: Served, tmp_path: Path) -> None:
    prefix = f"acme-{chance(str(tmp_path)):.6f}"
    criteria = [{"id": "c1", "description": prefix}]
    asked = start(rubric={"criteria": criteria}, idle_timeout=..., max_iterations=4)
    await served.client.invoke(f"{prefix}-0", "write 0", start=asked)
    await served.client.fork(f"{prefix}-0", 0, fork_id=f"{prefix}-fork")
    await served.client.result(f"{prefix}-fork")
    await listed(served, prefix, 2)
    thread = (await served.client.checkpoint(f"{prefix}-0"))["thread"]

    changed = rubric(tmp_path, [*criteria, {"id": "c2", "description": "it is new"}])
    found = await run_backtest(backtest_of(changed))
    assert isinstance(thread, dict)
    story = story_of(thread, Rubric.model_validate({"criteria": [*criteria, {"id": "c2", "description": "it is new"}]}), None, None)

    assert found is not None
    assert (found.threads, found.left_out["are forks"] >= 1) == (1, True)
    assert story is not None
    assert {one.priority and (one.priority.tenant, one.priority.level) for one in story.requests()} == {(os.environ["GRADELOOP_TENANT"], 4)}
    batches = table("batches")
    rows = await own_store().read(lambda connection: connection.execute(batches.select()).mappings().all())
    assert [json.loads(row["request"])["priority"]["tenant"] for row in rows] == [os.environ["GRADELOOP_TENANT"]]


def test_a_price_that_nobody_knows_is_not_free() -> None:
    assert _price(None) == "what that costs is unknown: a model has no price"
    assert _price(0.0) == "nothing to pay"


async def test_threads_by_another_rubric_are_left_out_and_counted(served: Served, tmp_path: Path) -> None:
    prefix = f"other-{chance(str(tmp_path)):.6f}"
    await run(served, f"{prefix}-0", [{"id": "c9", "description": f"{prefix} alone"}], 0)
    await run(served, f"{prefix}-1", [{"id": "c1", "description": prefix}, {"id": "c2", "description": "it is old"}], 0)
    await listed(served, prefix, 2)

    changed = rubric(tmp_path, [{"id": "c1", "description": prefix}, {"id": "c2", "description": "it is new"}])
    found = await run_backtest(backtest_of(changed))
    closest = await run_backtest(backtest_of(rubric(tmp_path, [{"description": f"{prefix} nowhere"}], "none")))
    served.models.hold("generator")
    await served.client.start(start(), thread_id=f"{prefix}-2")
    while len([one async for one in served.client.threads(tenant=os.environ["GRADELOOP_TENANT"])]) < 3:
        await asyncio.sleep(0.1)
    with pytest.raises(InvalidRequest, match=r"has a run that ended by such a rubric; name theirs with --of; 1 are \w+$"):
        await run_backtest(backtest_of(changed, of=rubric(tmp_path, [{"description": f"{prefix} nowhere"}], "none")))
    human = [{"id": "c1", "description": prefix}, {"id": "c2", "description": "ok", "human": True}]
    with pytest.raises(InvalidRequest, match="rubric: a person decides c2; a judge asks nobody"):
        await run_backtest(backtest_of(rubric(tmp_path, human, "human")))
    with pytest.raises(InvalidRequest, match="--since is 'monday'"):
        await run_backtest(backtest_of(changed, since="monday"))
    served.models.release("generator")

    assert closest is not None
    assert (closest.threads, closest.asked) == (1, closest.drafts)
    assert found is not None
    assert (found.threads, [name for name, row in found.criteria.items() if row.get("asked")]) == (1, ["c2"])
    assert found.left_out["have no run that ended by this rubric"] >= 1


def test_without_a_shared_question_the_rubric_that_reads_most_like_it_is_taken_of_a_few() -> None:
    def stories(*texts: str) -> list[Story]:
        new = Rubric.model_validate("- the last line turns to another place")
        olds = [Rubric.model_validate({"criteria": [{"description": text}]}) for text in texts]
        return [Story(str(at), old, new, {}, Grader(), (), (), None) for at, old in enumerate(olds)]

    few = stories("the last line turns away", "it is polite", "the last line turns away", "it names a source")

    assert [one.thread_id for one in similar_stories(few)] == ["0", "2"]
    assert similar_stories(stories("it is polite", "the last line turns to another place"))[0].thread_id == "1"
    assert similar_stories(stories("a", "b", "c", "the last line turns away")) == []
    assert similar_stories(stories("it is polite", "it names a source")) == []
    assert similar_stories([]) == []


async def test_another_grader_is_asked_for_every_criterion_in_one_call_a_draft(served: Served, tmp_path: Path) -> None:
    prefix = f"grader-{chance(str(tmp_path)):.6f}"
    criteria = [{"id": "c1", "description": prefix}, {"id": "c2", "description": "it is new"}]
    ended = await run(served, f"{prefix}-0", criteria, 0)
    await listed(served, prefix, 1)
    before = served.models.count("grader")

    found = await run_backtest(backtest_of(rubric(tmp_path, criteria), grader="scripted:other"))

    assert found is not None
    assert found.ends["same"] == 1
    assert served.models.count("grader") - before == len(ended.evaluations) == found.asked
    assert {request.spec.id for request in served.models.requests_of("grader")[before:]} == {"scripted:other"}


@pytest.mark.parametrize("silent", [2, 3])
async def test_a_worker_that_answered_once_is_asked_three_times_for_a_thread(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    prefix = f"busy-{chance(str(tmp_path)):.6f}"
    old = [{"id": "c1", "description": prefix}]
    for at in range(3):
        await run(served, f"{prefix}-{at}", old, at)
    await listed(served, prefix, 3)
    read, answered, asked = GradingClient.checkpoint, asyncio.Event(), Counter[str]()

    async def busy(client: GradingClient, name: str) -> dict[str, Any]:
        if name != f"{prefix}-0":
            await answered.wait()
            asked[name] += 1
            if asked[name] <= silent:
                raise ServerUnreachable("no worker answers")
        found = await read(client, name)
        if name == f"{prefix}-0":
            answered.set()
        return found

    monkeypatch.setattr(GradingClient, "checkpoint", busy)
    found = await run_backtest(backtest_of(rubric(tmp_path, old), of=rubric(tmp_path, old, "v1")))

    assert found is not None
    assert (found.threads, found.left_out.get(f"have a worker on {served.task_queue} that is too busy; try again", 0)) == (
        (3, 0) if silent == 2 else (1, 2)
    )


async def test_a_worker_whose_first_answer_does_not_come_is_asked_again_while_it_polls(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, asked, read = f"late-{chance(str(tmp_path)):.6f}", Counter[str](), GradingClient.checkpoint
    old = [{"id": "c1", "description": prefix}]
    await run(served, f"{prefix}-0", old, 0)
    await listed(served, prefix, 1)

    async def late(client: GradingClient, name: str) -> dict[str, Any]:
        asked[name] += 1
        if asked[name] == 1:
            raise ServerUnreachable("no worker answers")
        return await read(client, name)

    monkeypatch.setattr(GradingClient, "checkpoint", late)
    found = await run_backtest(backtest_of(rubric(tmp_path, old), of=rubric(tmp_path, old, "v1")))

    assert found is not None
    assert (found.threads, found.left_out) == (1, {})
