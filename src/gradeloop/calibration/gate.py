"""A gate that knows the judge's error: a pass rate, corrected by labels, against a threshold."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from pydantic import JsonValue

from gradeloop.calibration.agreement import judge_error
from gradeloop.calibration.labels import Label, comparable
from gradeloop.grading.checks import canonical_json
from gradeloop.judges.contract import JudgeConfig, JudgeResult
from gradeloop.judges.schema import value_at
from gradeloop.stats.gated_rate import GatedRate, hold_rate

Rule = Sequence[tuple[tuple[str, ...], JsonValue]]
"""What passes: the value of every key, by its path."""


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
        if (said := passes_rule(rule, label.label_value)) is not None:
            people.setdefault(label.agent_run_id, []).append(said)
    verdicts = {result.agent_run_id: said for result in results if (said := _verdict(judge, rule, result)) is not None}
    known = {run: said for run, result in earlier.items() if (said := _verdict(judge, rule, result)) is not None} | verdicts
    return gate_verdicts(people, verdicts, known, threshold)


Named = TypeVar("Named", bound=Hashable)
"""What a run is known by: its id, or its id and what it says."""


def gate_verdicts(
    people: Mapping[Named, Sequence[bool]], verdicts: Mapping[Named, bool], known: Mapping[Named, bool], threshold: float | None
) -> GatedRate:
    """Return the pass rate of verdicts, corrected by those that are known of what people labelled.

    Args:
        people: Whether people say that a labelled run passes; most of them decide, and where they are split they say nothing.
        verdicts: The verdicts whose rate is asked for; those with a label measure the error instead, unless all have one.
        known: These verdicts, and further ones of the same judge that have a label.
        threshold: The least rate, 0 to 1; None to decide nothing.
    """
    pairs = [(2 * sum(votes) > len(votes), known[run]) for run, votes in people.items() if run in known and 2 * sum(votes) != len(votes)]
    counted = [said for run, said in verdicts.items() if run not in people] or list(verdicts.values())
    return hold_rate(sum(counted), len(counted), judge_error(pairs), threshold)


def passes_rule(rule: Rule, output: Mapping[str, JsonValue]) -> bool | None:
    """Return whether an output or a label passes; None where it lacks a value that the rule asks for."""
    values = [(value_at(dict(output), path), wanted) for path, wanted in rule]
    return (
        None if any(value is None for value, _ in values) else all(canonical_json(value) == canonical_json(want) for value, want in values)
    )


def _verdict(judge: JudgeConfig, rule: Rule, result: JudgeResult) -> bool | None:
    return None if result.failed or result.unsure else passes_rule(rule, comparable(judge, result.output))
