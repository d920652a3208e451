"""Batches that end once the answer of the rate that labels correct is known: that of asking all, wrong as rarely as it says."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.batches.answer import answer_of, gate_exit_code
from gradeloop.batches.gate import gate_batch
from gradeloop.judges.judgements import Label
from gradeloop.stats.correction import JudgeError, corrected_rate, deciding_passes
from gradeloop.stats.decided import EarlyGate
from tests.rig.batches import Batches, batching, case

TOTAL, LABELLED = 400, 100


def decision(passed: int, runs: int, error: JudgeError, threshold: float) -> str | None:
    rate = corrected_rate(passed, runs, error)
    return None if rate is None or rate.low < threshold <= rate.high else "passed" if rate.low >= threshold else "failed"


def test_the_bounds_are_where_the_answer_of_all_changes() -> None:
    chance = random.Random(5)
    for _ in range(40):
        good, bad, runs = (chance.randint(0, 80) for _ in range(3))
        found, left = (math.ceil(chance.uniform(0.5, 1) * count) for count in (good, bad))
        error = JudgeError(passed=good, passed_found=found, failed=bad, failed_found=left)
        threshold = chance.uniform(0.1, 0.99)
        least, most = deciding_passes(runs, error, threshold)
        said = [decision(passed, runs, error, threshold) for passed in range(runs + 1)]
        expected = ["failed" if passed <= most else "passed" if passed >= least else None for passed in range(runs + 1)]

        assert most < least
        assert said == expected, (error, threshold)


@pytest.mark.slow
@pytest.mark.parametrize("passing", [70, 79, 80, 85, 89, 90, 95])
def test_between_its_bounds_either_answer_is_as_rare_as_the_risk(passing: int) -> None:
    chance, bounds, wrong = random.Random(passing), (90, 79), 0
    truth = "passed" if passing >= bounds[0] else "failed" if passing <= bounds[1] else None
    said = [True] * passing + [False] * (100 - passing)
    for _ in range(2_000):
        chance.shuffle(said)
        gate = EarlyGate(100, 0.5, bounds=bounds)
        for one in said:
            gate.take("passed" if one else "failed")
        wrong += gate.decision is not None and gate.decision.answer != truth
        assert gate.decision is not None or truth is None or gate.seen == 100

    assert wrong <= 2_000 * 0.05


def checked(at: int, *, good: bool) -> dict[str, Any]:
    """Return a case whose check is the judge."""
    check = {"tool": "text_check", "arguments": {"kind": "contains", "value": "good"}}
    rubric = {"criteria": [{"id": "c1", "description": "good", "check": check}]}
    return case(f"c{at}", rubric=rubric, output=f"{'good' if good else 'bad'} {at}") | {"grader": None}


def suite(rate: float, chance: random.Random) -> list[dict[str, Any]]:
    """Return a suite with labelled cases before all others, which pass at a rate; the judge is right in nine of ten."""
    return [checked(at, good=chance.random() < rate) for at in range(TOTAL)]


def labels(cases: Sequence[dict[str, Any]], chance: random.Random) -> list[Label]:
    """Return what people say of the first outputs, whose judge errs in one of ten."""
    rows = []
    for one in cases[:LABELLED]:
        passed = one["output"].startswith("good") == (chance.random() < 0.9)
        rows.append(Label(agent_run_id=one["id"], label_value={"status": "passed" if passed else "failed"}, output=one["output"]))
    return rows


async def run(batches: Batches, cases: list[dict[str, Any]], said: list[Label], threshold: float, **more: Any) -> Any:
    until = {"until_decided": {"first": LABELLED}, "labels": [label.model_dump() for label in said]} if more.pop("early", True) else {}
    summary, _ = await batches.run(cases, pass_rate=threshold, name="corrected", **until, **more)
    return summary


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "threshold", "word"), [(0.85, 0.4, "PASSED"), pytest.param(0.4, 0.75, "FAILED", marks=pytest.mark.slow)])
async def test_it_ends_early_with_the_answer_of_all(client: Client, tmp_path: Path, rate: float, threshold: float, word: str) -> None:
    chance = random.Random(8)
    cases = suite(rate, chance)
    said = labels(cases, chance)
    async with batching(client, tmp_path) as batches:
        early = await run(batches, cases, said, threshold, at_once=10)
        whole = await run(batches, cases, said, threshold, early=False)
        exact = await gate_batch(batches.reader, whole, said, threshold)

    assert early.decision is not None
    assert early.decision.corrected
    assert LABELLED < early.decision.asked <= early.done < TOTAL
    assert exact.decision == early.decision.answer
    assert answer_of(early).text == f"{word} after {early.decision.asked} of {TOTAL}"
    assert gate_exit_code(early) == (0 if word == "PASSED" else 1)


@pytest.mark.slow
async def test_all_are_asked_where_the_answer_of_all_is_none(client: Client, tmp_path: Path) -> None:
    chance = random.Random(9)
    cases = suite(0.7, chance)
    said = labels(cases, chance)
    async with batching(client, tmp_path) as batches:
        summary = await run(batches, cases, said, 0.65)
        exact = await gate_batch(batches.reader, summary, said, 0.65)

    assert exact.decision == "inconclusive"
    assert (summary.open, summary.decision) == (0, None)


@pytest.mark.slow
async def test_a_label_of_another_output_measures_nothing_and_its_case_is_a_part_of_the_rate(client: Client, tmp_path: Path) -> None:
    chance = random.Random(10)
    cases = suite(0.9, chance)
    said = [label.model_copy(update={"output": "another"}) for label in labels(cases, chance)]
    async with batching(client, tmp_path) as batches:
        summary = await run(batches, cases, said, 0.6)

    assert (summary.open, summary.decision) == (0, None)  # nothing corrects, so that nothing decides
