"""A gate that knows the judge's error: a pass rate, corrected by labels, against a threshold."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import JsonValue

from gradeloop.calibration.agreement import judge_error
from gradeloop.calibration.labels import Label, comparable
from gradeloop.contract.base import Strict
from gradeloop.grading.checks import canonical_json
from gradeloop.judges.contract import JudgeConfig, JudgeResult
from gradeloop.judges.schema import value_at
from gradeloop.stats.correction import CorrectedRate, JudgeError, corrected_rate, labels_wanted

Rule = Sequence[tuple[tuple[str, ...], JsonValue]]
"""What passes: the value of every key, by its path."""


class GatedRate(Strict):
    """A pass rate beside the one corrected for the judge's error, and what follows for a threshold."""

    passed: int
    runs: int
    corrected: CorrectedRate | None
    error: JudgeError
    threshold: float | None
    decision: Literal["passed", "failed", "inconclusive"] | None
    """Passed where the interval's lower bound reaches the threshold, failed where its upper bound does not; None without a threshold."""
    wanted: int | None = None
    """How many labels in all would decide, where the decision is inconclusive; None where no number of labels would."""


def gate_rate(
    judge: JudgeConfig,
    rule: Rule,
    labels: Sequence[Label],
    results: Sequence[JudgeResult],
    earlier: Mapping[str, JudgeResult],
    threshold: float | None = None,
) -> GatedRate:
    """Return the pass rate of results, corrected by what the judge said of labelled runs.

    Args:
        judge: The judge.
        rule: What passes, of a label and of an output alike; a label that lacks a key of it says nothing.
        labels: What people say; of several labels of a run, most of them decide.
        results: The results whose rate is asked for; those with a label measure the error instead, unless all have one.
        earlier: What the judge said before of labelled runs that are not among the results, by the run's id.
        threshold: The least rate, 0 to 1; None to decide nothing.
    """
    people: dict[str, list[bool]] = {}
    for label in labels:
        if (said := _passes(rule, label.label_value)) is not None:
            people.setdefault(label.agent_run_id, []).append(said)
    verdicts = {result.agent_run_id: said for result in results if (said := _verdict(judge, rule, result)) is not None}
    known = {run: said for run, result in earlier.items() if (said := _verdict(judge, rule, result)) is not None} | verdicts
    pairs = [(2 * sum(votes) > len(votes), known[run]) for run, votes in people.items() if run in known and 2 * sum(votes) != len(votes)]
    counted = [said for run, said in verdicts.items() if run not in people] or list(verdicts.values())
    error, passed = judge_error(pairs), sum(counted)
    rate = corrected_rate(passed, len(counted), error)
    found = GatedRate(passed=passed, runs=len(counted), corrected=rate, error=error, threshold=threshold, decision=None)
    return found if threshold is None else _decided(found, rate, threshold)


def _decided(found: GatedRate, rate: CorrectedRate | None, threshold: float) -> GatedRate:
    if rate is not None and rate.low >= threshold:
        return found.model_copy(update={"decision": "passed"})
    if rate is not None and rate.high < threshold:
        return found.model_copy(update={"decision": "failed"})
    wanted = labels_wanted(found.passed, found.runs, found.error, threshold)
    return found.model_copy(update={"decision": "inconclusive", "wanted": wanted})


def _passes(rule: Rule, output: Mapping[str, JsonValue]) -> bool | None:
    """Return whether an output or a label passes; None where it lacks a value that the rule asks for."""
    values = [(value_at(dict(output), path), wanted) for path, wanted in rule]
    return (
        None if any(value is None for value, _ in values) else all(canonical_json(value) == canonical_json(want) for value, want in values)
    )


def _verdict(judge: JudgeConfig, rule: Rule, result: JudgeResult) -> bool | None:
    return None if result.failed or result.unsure else _passes(rule, comparable(judge, result.output))


def gate_lines(found: GatedRate) -> list[str]:
    """Return what a person reads: the rate as the judge says, the corrected one, and the decision."""
    if not found.runs:
        return ["corrected pass rate: nothing was judged"]
    labels = found.error.passed + found.error.failed
    raw = f"{found.passed / found.runs:.1%} as the judge says"
    if found.corrected is None:
        lines = [f"corrected pass rate: unknown ({raw}); {labels} labels with a verdict, both kinds are needed, better than chance"]
    else:
        rate = found.corrected
        lines = [f"corrected pass rate: {rate.value:.1%} ({rate.low:.1%} to {rate.high:.1%}), {raw}; by {labels} labels with a verdict"]
    if found.decision == "inconclusive":
        cure = "no number of labels would decide; judge more runs" if found.wanted is None else f"about {found.wanted} labels would decide"
        lines.append(f"inconclusive at {found.threshold:.1%}: {cure}")
    return lines
