"""The gate that knows the judge's error: its lower bound decides, too few labels decide nothing, and it is seldom wrong."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from gradeloop.batches.answer import gate_lines
from gradeloop.batches.gate import rated_judgements
from gradeloop.judges.contract import JudgeResult, parse_judge
from gradeloop.judges.judgements import Label
from gradeloop.stats.bootstrap import binomial
from gradeloop.stats.correction import GatedRate, hold_verdicts
from gradeloop.stats.reliability import Rated
from tests.rig.judging import FRANCE

JUDGE = parse_judge(FRANCE)
RULE = [(("label",), "match")]


def said(run: str, passed: bool | None) -> JudgeResult:
    output: dict[str, Any] = {} if passed is None else {"label": "match" if passed else "no match", "explanation": "x"}
    kind = "FAILURE" if passed is None else "DIRECT_RESULT"
    fields = {"id": run, "agent_run_id": run, "rubric_id": "r", "rubric_version": 1, "output": output, "result_type": kind}
    return JudgeResult.model_validate(fields)


def labelled(run: str, passed: bool, by: str = "ann") -> Label:
    return Label(agent_run_id=run, label_value={"label": "match" if passed else "no match"}, created_by=by)


def gate_rate(
    labels: Sequence[Label], results: Sequence[JudgeResult], stored: Sequence[JudgeResult] = (), threshold: float | None = None
) -> GatedRate:
    rows, known = rated_judgements(JUDGE, RULE, labels, results, stored)
    return hold_verdicts(rows, threshold, known)


def gated(good: tuple[int, int], bad: tuple[int, int], rate: tuple[int, int], threshold: float | None) -> GatedRate:
    """Return the decision: of good and bad runs how many the judge got right, of the others how many it passed."""
    labels = [labelled(f"g{at}", True) for at in range(good[1])] + [labelled(f"b{at}", False) for at in range(bad[1])]
    earlier = [said(f"g{at}", at < good[0]) for at in range(good[1])] + [said(f"b{at}", at >= bad[0]) for at in range(bad[1])]
    return gate_rate(labels, [said(f"r{at}", at < rate[0]) for at in range(rate[1])], earlier, threshold)


def test_a_lenient_judges_rate_is_corrected_downwards_and_fails_where_the_raw_one_passes() -> None:
    found = gated((392, 400), (200, 400), (850, 1000), 0.82)

    assert found.corrected is not None
    assert found.corrected.raw == 0.85
    assert found.corrected.value == pytest.approx((0.85 + 0.5 - 1) / (0.98 + 0.5 - 1))
    assert found.decision == "failed"
    assert gate_lines(found)[0].endswith("85.0% as the judge says; by 800 labels with a verdict")


def test_the_lower_bound_has_to_reach_the_threshold() -> None:
    assert gated((95, 100), (95, 100), (900, 1000), 0.85).decision == "passed"
    assert gated((95, 100), (95, 100), (900, 1000), 0.93).decision == "inconclusive"
    assert gated((95, 100), (95, 100), (900, 1000), None).decision is None


def test_what_was_judged_before_comes_in_the_order_of_the_labels_in_every_process() -> None:
    passed = [at % 3 == 0 for at in range(40)]
    labels = [labelled(f"r{at}", passed=True) for at in range(40)]
    stored = [said(f"r{at}", passed[at]) for at in reversed(range(40))]

    assert [row.judged for row in rated_judgements(JUDGE, RULE, labels, [], stored)[1]] == passed


def test_too_few_labels_decide_nothing_and_say_how_many_would() -> None:
    found = gated((9, 10), (9, 10), (800, 1000), 0.8)

    assert found.decision == "inconclusive"
    assert found.wanted is not None
    assert 20 < found.wanted < 500
    assert f"about {found.wanted} labels would decide" in gate_lines(found)[1]


def test_labels_of_one_kind_correct_nothing() -> None:
    found = gated((9, 10), (0, 0), (800, 1000), 0.8)

    assert (found.corrected, found.decision) == (None, "inconclusive")


def test_a_failure_is_no_verdict_and_people_who_are_split_say_nothing() -> None:
    labels = [labelled("a", True), labelled("b", True), labelled("b", False, "bob"), labelled("c", False)]
    results = [said("a", None), said("b", True), said("c", False), said("d", True), said("e", None)]

    found = gate_rate(labels, results)

    assert (found.passed, found.runs) == (1, 1)
    assert (found.error.passed, found.error.failed, found.error.failed_found) == (0, 1, 1)


def test_where_all_results_are_labelled_all_of_them_are_the_rate() -> None:
    found = gate_rate([labelled("a", True), labelled("b", False)], [said("a", True), said("b", False)])

    assert (found.passed, found.runs) == (1, 2)


@pytest.mark.parametrize("truth", [0.7, 0.8])
def test_a_gate_is_seldom_wrong(truth: float) -> None:
    """1,000 measurements of a judge right on 90 % of good and 80 % of bad runs: at most 5 % decide against the truth."""
    generator, wrong = random.Random(9), 0
    for _ in range(1000):
        good, bad = (binomial(generator, 100, share) for share in (0.9, 0.8))
        passed = binomial(generator, 500, truth * 0.9 + (1 - truth) * 0.2)
        wrong += _decision(good, bad, passed) == ("passed" if truth < 0.75 else "failed")

    assert wrong <= 50


def _decision(good: int, bad: int, passed: int) -> str | None:
    from gradeloop.stats.correction import JudgeError, corrected_rate

    found = corrected_rate(passed, 500, JudgeError(passed=100, passed_found=good, failed=100, failed_found=bad))
    assert found is not None
    return "passed" if found.low >= 0.75 else "failed" if found.high < 0.75 else None


def items(generator: random.Random, count: int, times: int, truth: float) -> list[tuple[bool, list[bool]]]:
    """Return whether each item passes, and what a judge says of it so often: right on nearly all runs of one, or on few."""
    found = []
    for _ in range(count):
        good, right = generator.random() < truth, 0.3 if generator.random() < 0.2 else 0.98
        found.append((good, [(generator.random() < right) == good for _ in range(times)]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_corrected_rate_is_over_items_where_several_runs_share_one(clusters: bool) -> None:
    """1,000 measurements of 20 items of a kind with 10 runs each, and of 50 without labels: the interval holds the truth in 95 %."""
    generator, held = random.Random(4), 0
    for _ in range(1000):
        labelled = [*items(generator, 20, 10, 1.0), *items(generator, 20, 10, 0.0)]
        rows = [
            Rated(said, (good,) if at < 40 else (), f"item {at}" if clusters else "")
            for at, (good, verdicts) in enumerate([*labelled, *items(generator, 50, 10, 0.7)])
            for said in verdicts
        ]
        found = hold_verdicts(rows, None).corrected
        held += found is not None and found.low <= 0.7 <= found.high

    assert (held >= 940) if clusters else (held < 700)


def test_runs_of_one_case_are_worth_less_and_stay_so_at_another_threshold() -> None:
    rows = [Rated(at % 10 > 1, (), f"case {at // 10}") for at in range(500)]
    rows += [Rated(good == (item % 8 > 0), (good,), f"{good} {item}") for good in (True, False) for item in range(40) for _ in range(10)]
    alone = [row._replace(cluster="") for row in rows]

    found, as_runs = hold_verdicts(rows, 0.82), hold_verdicts(alone, 0.82)

    assert found.corrected is not None
    assert as_runs.corrected is not None
    assert found.corrected.value == as_runs.corrected.value
    assert (as_runs.decision, found.decision) == ("passed", "inconclusive")
    assert found.wanted is not None
    assert found.wanted > 800
    assert found.held_against(0.82) == found
    assert found.held_against(0.5).corrected == found.corrected
