"""Batches that end once their answer is known: what is asked, what is not, and the same case after a kill, a resume, and in any order."""

import random
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.batches.answer import answer_of, gate_exit_code, results_line
from gradeloop.batches.contract import BatchRequest, BatchSummary
from gradeloop.batches.reader import BatchReader
from gradeloop.batches.store import BatchStore
from gradeloop.stats.decided import EarlyAnswer, EarlyGate
from gradeloop.store.engine import Store
from gradeloop.store.tables import table
from tests.rig.batches import batching, breaks, case, fails, passes
from tests.rig.stored_batches import put_batch
from tests.rig.stores import ON_EITHER

UNTIL = {"until_decided": {"risk": 0.05}, "pass_rate": 0.8, "at_once": 5}


def checked(name: str, *, good: bool) -> dict[str, Any]:
    """Return a case that a check decides."""
    check = {"tool": "text_check", "arguments": {"kind": "contains", "value": "good"}}
    rubric = {"criteria": [{"id": "c1", "description": "good", "check": check}]}
    return case(name, rubric=rubric, output="good" if good else "bad") | {"grader": None}


def suite(total: int, failing: int, seed: int = 1) -> list[dict[str, Any]]:
    said = [True] * (total - failing) + [False] * failing
    random.Random(seed).shuffle(said)
    return [checked(f"c{at}", good=good) for at, good in enumerate(said)]


def expected(cases: list[dict[str, Any]], wanted: float = 0.8) -> EarlyAnswer | None:
    gate = EarlyGate(len(cases), wanted)
    for one in cases:
        gate.take("passed" if one["output"] == "good" else "failed")
    return gate.decision


@pytest.mark.slow
@ON_EITHER
@pytest.mark.parametrize(("failing", "word"), [(3, "PASSED"), (150, "FAILED")])
async def test_a_batch_ends_once_its_answer_is_known(client: Client, tmp_path: Path, url: str, failing: int, word: str) -> None:
    cases = suite(300, failing)
    async with batching(client, tmp_path, url=url) as batches:
        summary, results = await batches.run(cases, **UNTIL)
        with batches.reader.snapshot(summary.batch_id) as found:
            reasons = {one.error for one in found.results() if one.status == "queued"}
    known = expected(cases)

    assert known is not None
    assert (summary.status, summary.decision, summary.reason) == ("finished", known, None)
    assert known.asked <= summary.done < 300
    assert answer_of(summary).text == f"{word} after {known.asked} of 300"
    assert answer_of(summary).words == "at most a 5% chance that asking all would say otherwise"
    assert gate_exit_code(summary) == (0 if word == "PASSED" else 1)
    assert f"{summary.open} not asked of 300" in results_line(summary)
    assert {one.error for one in results if one.status == "queued"} == {"not run"}
    assert reasons == {f"not asked: the answer was known after {known.asked} cases"}


@pytest.mark.slow
async def test_the_rest_is_asked_where_a_person_wants_it_and_then_the_answer_is_exact(client: Client, tmp_path: Path) -> None:
    cases = suite(100, 3)
    async with batching(client, tmp_path) as batches:
        early, _ = await batches.run(cases, batch_id=f"rest-{tmp_path.name}", **UNTIL)
        whole = await (await batches.start(early.batch_id, 100, again="errors", pass_rate=0.8)).result()

    assert (early.open > 0, whole.open, whole.decision) == (True, 0, None)
    assert (whole.passed, whole.failed, answer_of(whole).text) == (97, 3, "PASSED 97% of 80%")


@pytest.mark.slow
async def test_a_case_that_has_not_ended_holds_its_place(client: Client, tmp_path: Path) -> None:
    """The first case fails in the end; those behind it that passed before do not count until then, and not many are begun."""
    first = case("slow", output="slow")
    cases = [first, *suite(99, 0)]
    async with batching(client, tmp_path, fails("slow", delay=1.0)) as batches:
        summary, _ = await batches.run(cases, **UNTIL)
    gate = EarlyGate(100, 0.8)
    gate.take("failed")
    for _ in range(99):
        gate.take("passed")

    assert summary.decision == gate.decision
    assert gate.decision is not None
    assert summary.done <= gate.decision.asked + 10  # five ahead, and five in flight


@pytest.mark.slow
async def test_an_error_is_held_against_either_answer(client: Client, tmp_path: Path) -> None:
    cases = [case("broken", output="broken"), *suite(99, 0)]
    async with batching(client, tmp_path, breaks("broken")) as batches:
        summary, _ = await batches.run(cases, allow_errors=0.1, **UNTIL)
        strict = summary.model_copy(update={"allow_errors": 0.0})
    gate = EarlyGate(100, 0.8)
    gate.take("neither")
    for _ in range(99):
        gate.take("passed")

    assert (summary.errors, summary.decision) == (1, gate.decision)
    assert (gate_exit_code(summary), gate_exit_code(strict)) == (0, 3)
    assert answer_of(strict).text == "INCONCLUSIVE: 1 error"


@pytest.mark.slow
async def test_a_batch_that_nothing_decides_early_is_asked_whole(client: Client, tmp_path: Path) -> None:
    cases = suite(20, 4)
    async with batching(client, tmp_path) as batches:
        summary, _ = await batches.run(cases, **UNTIL)

    assert summary.open == 0
    assert answer_of(summary).text == "PASSED 80% of 80%"


@pytest.mark.slow
async def test_another_worker_comes_to_the_same_answer_at_the_same_case(client: Client, tmp_path: Path) -> None:
    cases = suite(200, 8)
    async with batching(client, tmp_path) as batches:
        await batches.upload("kept", cases)
        handle = await batches.start("kept", 200, **UNTIL)
        await handle.signal("pause")
        first = await handle.result()
    async with batching(client, tmp_path) as batches:
        ended = await (await batches.start("kept", 200, **UNTIL)).result()

    assert first.status in {"paused", "finished"}
    assert ended.decision == expected(cases)


@pytest.mark.slow
@ON_EITHER
async def test_a_worker_that_dies_before_it_tells_of_an_end_changes_nothing(
    client: Client, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third end is written down, and neither the gate nor Temporal hears of it until the call is made again."""
    store_end, ends = BatchStore.end_case, list[str]()

    async def end_and_die(self: BatchStore, *given: Any, **named: Any) -> str:
        ends.append(await store_end(self, *given, **named))
        if len(ends) % 3 == 0:
            raise ConnectionError("the worker died")
        return ends[-1]

    monkeypatch.setattr(BatchStore, "end_case", end_and_die)
    cases = suite(120, 6)
    async with batching(client, tmp_path, url=url) as batches:
        summary, _ = await batches.run(cases, **UNTIL)

    assert summary.decision == expected(cases)


@pytest.mark.slow
async def test_a_judged_batch_pays_for_what_it_asks_alone(client: Client, tmp_path: Path) -> None:
    cases = [case(f"c{at}") for at in range(100)]
    async with batching(client, tmp_path, passes()) as batches:
        summary, _ = await batches.run(cases, **UNTIL)

    assert summary.decision is not None
    assert summary.usage.calls == summary.done <= summary.decision.asked + 5


async def test_a_gate_that_is_kept_in_the_moment_of_a_decision_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"sqlite:///{tmp_path / 'results.db'}")
    put_batch(store, "b", {"a": "passed", "open": "queued"}, pass_rate=0.8)
    reader, read, decision = BatchReader(store), BatchReader.request, EarlyAnswer(answer="passed", asked=1, risk=0.05, wanted=0.8)

    async def read_and_decide(self: BatchReader, batch_id: str) -> str:
        known = await read(self, batch_id)
        request = BatchRequest.model_validate_json(known)
        if request.decision is None:
            text = request.model_copy(update={"decision": decision}).model_dump_json()
            store.do(lambda connection: connection.execute(table("batches").update().values(request=text)))
        return known

    monkeypatch.setattr(BatchReader, "request", read_and_decide)
    await reader.keep_gate("b", {"allow_errors": 0.1})
    kept = BatchRequest.model_validate_json(await read(reader, "b"))
    store.close()

    assert (kept.decision, kept.allow_errors) == (decision, 0.1)


def test_another_rate_than_the_decided_one_is_inconclusive() -> None:
    decision = EarlyAnswer(answer="passed", asked=30, risk=0.05, wanted=0.8)
    summary = BatchSummary(batch_id="b", created="", status="finished", total=100, passed=30, pass_rate=0.8, decision=decision)

    assert [gate_exit_code(summary, pass_rate=rate) for rate in (None, 0.8, 0.9)] == [0, 0, 3]


def test_a_gate_that_wants_all_to_pass_says_after_how_many_it_knew() -> None:
    decision = EarlyAnswer(answer="passed", asked=57, risk=0.05, wanted=1.0)
    summary = BatchSummary(batch_id="b", created="", status="finished", total=60, passed=57, decision=decision)

    assert answer_of(summary).text == "PASSED after 57 of 60"


def test_the_wire_has_nothing_of_it_where_nobody_asks_for_it() -> None:
    assert not {"until_decided", "decision"} & BatchRequest(batch_id="b", total=1).model_dump().keys()
