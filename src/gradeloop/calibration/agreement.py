"""The agreement of a judge with people's labels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Literal

from pydantic import Field, JsonValue

from gradeloop.calibration.figures import Figure, Rated, comparable_value, measure
from gradeloop.calibration.judgements import Judgements
from gradeloop.calibration.labels import ComparedKey, Label, LabelSet, comparable, compared_keys
from gradeloop.calibration.stability import Stability, measure_band, measure_panel, measure_stability
from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult
from gradeloop.judges.pass_rule import PassRule, refuse_two_values
from gradeloop.judges.schema import value_at
from gradeloop.stats.bootstrap import bootstrap
from gradeloop.stats.correction import CorrectedRate, JudgeError, corrected_rate
from gradeloop.stats.intervals import wilson
from gradeloop.stats.panel import EffectiveVotes
from gradeloop.stats.reliability import cohen_kappa
from gradeloop.stats.selective import Band
from gradeloop.text import canonical_json


class Disagreement(Strict):
    """One key of one run on which judge and person disagree."""

    agent_run_id: str
    key: str
    label: JsonValue
    judge: JsonValue
    by: str
    label_reason: str
    judge_reason: str


class HumanCeiling(Strict):
    """How people agree with one another on runs that several of them labelled, and the judge with them on the same runs."""

    raters: int
    runs: int
    human: dict[str, Figure]
    """`accuracy`, the share of pairs of people who agree, and `kappa`."""
    judge: dict[str, Figure]
    """The same of the judge and each person."""
    difference: Figure
    """The judge's accuracy minus that of people; above 0, the judge agrees with people more than they do with one another."""


class MeasuredPassRate(Strict):
    """How many runs pass: as the judge says, and corrected for its error on the labels."""

    passed: int
    runs: int
    """The runs that were judged and have no label; all judged ones where all have."""
    raw: Figure
    corrected: CorrectedRate | None
    """None where the labels allow no correction: a class has none, or the judge is no better than chance."""
    error: JudgeError


class KeyAgreement(Strict):
    """The agreement on one key."""

    key: str
    kind: Literal["category", "ordered", "number", "set"]
    labels: int
    """How many labels have the key."""
    runs: int
    """How many runs these are of."""
    answered: int
    """How many of those runs have a value of the judge."""
    positive: JsonValue = None
    figures: dict[str, Figure]
    """The figures by name: coverage, accuracy (of what was answered), accuracy_all (the unanswered count as wrong), kappa and others."""
    rates: dict[str, dict[str, Figure]] = Field(default_factory=dict)
    """The rates of every value against the others, by the value as JSON, where there are more than two."""
    confusion: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Counts by the label's value, then by the judge's; both as JSON, so that `true` is no text."""
    ceiling: HumanCeiling | None = None
    pass_rate: MeasuredPassRate | None = None
    panel: EffectiveVotes | None = None
    """What the votes of one judgement are worth; None where it has one vote."""
    band: Band | None = None
    """The verdicts that the judge may give alone; None without a risk, or where no share of votes can be trusted with it."""


class Agreement(Strict):
    """The agreement of a judge's results with labels."""

    labels: int
    judged: int
    """How many labels have a run with an output of the judge."""
    missing: tuple[str, ...]
    """The runs with a label and no output: not judged, or without an answer."""
    stale: tuple[str, ...] = ()
    """Those of them that were judged when they had another content."""
    risk: float | None = None
    """The error rate that a verdict of the band may have, where one was asked for."""
    keys: tuple[KeyAgreement, ...]
    stability: tuple[Stability, ...] = ()
    """How often repeated judgements differ, by key; empty where none was repeated."""
    disagreements: tuple[Disagreement, ...]


def measure_agreement(
    judge: JudgeConfig,
    labels: LabelSet,
    judgements: Judgements,
    *,
    ordered: Sequence[str] = (),
    passes: Sequence[str] = (),
    risk: float | None = None,
) -> Agreement:
    """Measure how far a judge agrees with labels; a run without an answer is unanswered, and counts in coverage.

    Args:
        judge: The judge.
        labels: What people say.
        judgements: What the judge says of these runs.
        ordered: Enums whose values are written from least to most.
        passes: The value that passes, by key, as KEY=VALUE; by default what the judge's own `pass_if` says.
        risk: The error rate below which a band of trusted verdicts is chosen; None for no band.

    Raises:
        InvalidRequest: No labelled run was judged, no key can be compared, or nothing says which value of a key passes.
    """
    if not any(label.agent_run_id in judgements.by_run for label in labels.labels):
        stale = f"; {len(judgements.stale)} were judged when they had another content" if judgements.stale else ""
        raise InvalidRequest(f"none of the labelled runs has a judgement{stale}; judge them first, or check the ids (agent_run_id)")
    keys, disagreements = [], []
    positive = PassRule(judge, passes, labels.label_schema).values
    compared = compared_keys(labels.label_schema, ordered, positive)
    for key in compared:
        rows = [label for label in labels.labels if value_at(label.label_value, key.path) is not None]
        if rows:
            if key.positive is None and not positive:
                refuse_two_values(key.name, key.values)
            keys.append(_measure_key(judge, key, rows, judgements, risk))
            disagreements += _disagreements(judge, key, rows, judgements)
    if not keys:
        raise InvalidRequest("the labels and the judge's outputs have no key in common that can be compared")
    missing = tuple(dict.fromkeys(row.agent_run_id for row in labels.labels if judgements.verdict(row.agent_run_id) is None))
    return Agreement(
        labels=len(labels.labels),
        judged=sum(label.agent_run_id not in missing for label in labels.labels),
        missing=missing,
        stale=tuple(run for run in judgements.stale if run in missing),
        risk=risk,
        keys=tuple(keys),
        stability=measure_stability(judge, judgements, compared),
        disagreements=tuple(disagreements),
    )


def judged_value(judge: JudgeConfig, key: ComparedKey, result: JudgeResult | None) -> JsonValue:
    """Return what a judgement says for a key; None without an answer."""
    return None if result is None else value_at(comparable(judge, result.output), key.path)


def _measure_key(judge: JudgeConfig, key: ComparedKey, labels: Sequence[Label], judgements: Judgements, risk: float | None) -> KeyAgreement:
    by_run: dict[str, list[Label]] = {}
    for label in labels:
        by_run.setdefault(label.agent_run_id, []).append(label)
    judged = {run: judged_value(judge, key, judgements.verdict(run)) for run in by_run}
    rated = [_rated(key, judged[run], rows) for run, rows in by_run.items()]
    said = {run: [value_at(label.label_value, key.path) for label in rows] for run, rows in by_run.items()}
    confusion: dict[str, dict[str, int]] = {}
    for label in labels if key.kind in {"category", "ordered"} else ():
        if (value := judged[label.agent_run_id]) is not None:
            row = confusion.setdefault(canonical_json(value_at(label.label_value, key.path)), {})
            row[canonical_json(value)] = row.get(canonical_json(value), 0) + 1
    return KeyAgreement(
        key=key.name,
        kind=key.kind,
        labels=len(labels),
        runs=len(by_run),
        answered=sum(row.judged is not None for row in rated),
        positive=key.positive,
        figures=measure(key, rated),
        rates=_rates_by_value(key, rated),
        confusion=confusion,
        ceiling=human_ceiling(rated, len({label.created_by for label in labels})) if key.kind != "set" else None,
        pass_rate=_pass_rate(judge, key, by_run, judgements),
        panel=measure_panel(judge, key, judgements, {run: values[0] for run, values in said.items()}),
        band=None if risk is None else measure_band(judge, key, judgements, said, risk),
    )


def _rated(key: ComparedKey, judged: JsonValue, labels: Sequence[Label]) -> Rated:
    values = [comparable_value(key.kind, value_at(label.label_value, key.path)) for label in labels]
    said = None if judged is None else comparable_value(key.kind, judged)
    return Rated(said, tuple(sorted(values, key=str)))


MANY_VALUES = range(3, 21)
"""How many values a key has whose values have rates of their own: with two, the rates of one say all."""


def _rates_by_value(key: ComparedKey, rated: Sequence[Rated]) -> dict[str, dict[str, Figure]]:
    """Return the rates of each value against all others, where there are more than two."""
    if key.kind not in {"category", "ordered"} or len(key.values) not in MANY_VALUES:
        return {}
    rates: dict[str, dict[str, Figure]] = {}
    for value in key.values:
        figures = measure(ComparedKey(key.path, "category", key.values, value), rated, replicates=1000)
        rates[canonical_json(value)] = {name: figures[name] for name in ("tpr", "tnr", "precision", "recall", "f1")}
    return rates


def human_ceiling(rated: Sequence[Rated], raters: int) -> HumanCeiling | None:
    """Return how people agree with one another, and the judge with them on the same runs."""
    shared = Counter(row for row in rated if len(row.labels) > 1 and row.judged is not None)
    if not shared:
        return None
    kinds, counts = list(shared), list(shared.values())

    def figures(draw: Sequence[int]) -> list[float | None]:
        human: Counter[tuple[object, object]] = Counter()
        judge: Counter[tuple[object, object]] = Counter()
        for row, count in zip(kinds, draw, strict=True):
            for pair in permutations(row.labels, 2) if count else ():
                human[pair] += count
            for label in row.labels if count else ():
                judge[label, row.judged] += count
        shares = [sum(count for (one, other), count in cells.items() if one == other) / cells.total() for cells in (human, judge)]
        return [shares[0], cohen_kappa(human), shares[1], cohen_kappa(judge), shares[1] - shares[0]]

    values, intervals = figures(counts), bootstrap(counts, figures)
    runs = sum(counts)
    made = [
        Figure(value=value, low=interval and interval.low, high=interval and interval.high, of=runs)
        for value, interval in zip(values, intervals, strict=True)
    ]
    for at in (0, 2):
        if (share := values[at]) is not None:
            interval = wilson(share * runs, runs)
            made[at] = Figure(value=share, low=interval.low, high=interval.high, of=runs)
    return HumanCeiling(
        raters=raters,
        runs=runs,
        human={"accuracy": made[0], "kappa": made[1]},
        judge={"accuracy": made[2], "kappa": made[3]},
        difference=made[4],
    )


def judge_error(pairs: Sequence[tuple[bool, bool]]) -> JudgeError:
    """Return how often a judge was right on runs that people passed and failed: a pair is a label and a verdict."""
    counts = Counter(pairs)
    good, bad = counts[True, True] + counts[True, False], counts[False, True] + counts[False, False]
    return JudgeError(passed=good, passed_found=counts[True, True], failed=bad, failed_found=counts[False, False])


def _pass_rate(
    judge: JudgeConfig, key: ComparedKey, labels: Mapping[str, Sequence[Label]], judgements: Judgements
) -> MeasuredPassRate | None:
    """Return the pass rate of the judged runs, corrected for the judge's error on the labelled ones."""
    if key.positive is None:
        return None
    positive = canonical_json(key.positive)
    values = {run: judged_value(judge, key, judgements.verdict(run)) for run in judgements.by_run}
    verdicts = {run: canonical_json(value) == positive for run, value in values.items() if value is not None}
    pairs = []
    for run, rows in labels.items():
        votes = [canonical_json(value_at(label.label_value, key.path)) == positive for label in rows]
        if run in verdicts and 2 * sum(votes) != len(votes):  # people who are split say nothing
            pairs.append((2 * sum(votes) > len(votes), verdicts[run]))
    counted = [passed for run, passed in verdicts.items() if run not in labels] or list(verdicts.values())
    if not counted:
        return None
    error, passed = judge_error(pairs), sum(counted)
    interval = wilson(passed, len(counted))
    return MeasuredPassRate(
        passed=passed,
        runs=len(counted),
        raw=Figure(value=passed / len(counted), low=interval.low, high=interval.high, of=len(counted)),
        corrected=corrected_rate(passed, len(counted), error),
        error=error,
    )


def _disagreements(judge: JudgeConfig, key: ComparedKey, labels: Sequence[Label], judgements: Judgements) -> list[Disagreement]:
    found = []
    for label in labels:
        result = judgements.verdict(label.agent_run_id)
        judged, said = judged_value(judge, key, result), value_at(label.label_value, key.path)
        if result is None or judged is None or comparable_value(key.kind, judged) == comparable_value(key.kind, said):
            continue
        found.append(
            Disagreement(
                agent_run_id=label.agent_run_id,
                key=key.name,
                label=said,
                judge=judged,
                by=label.created_by,
                label_reason=label.reason,
                judge_reason=judge_reason(judge, key.path, result.output),
            )
        )
    return found


def judge_reason(judge: JudgeConfig, path: tuple[str, ...], output: Mapping[str, JsonValue]) -> str:
    """Return the judge's reason: the criterion's, the explanation, or the first text that is no choice."""
    rows = output.get("criteria")
    if isinstance(judge, CriteriaJudge) and path[0] in {"criteria", "scores"} and isinstance(rows, list):
        return next((str(row.get("reason") or "") for row in rows if isinstance(row, dict) and row.get("id") == path[-1]), "")
    texts = [name for name, inner in judge.output_schema["properties"].items() if inner["type"] == "string" and "enum" not in inner]
    return next((str(output[name]) for name in ("explanation", *texts) if output.get(name)), "")
