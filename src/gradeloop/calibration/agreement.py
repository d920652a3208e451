"""The agreement of a judge with people's labels."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Literal

from pydantic import Field, JsonValue

from gradeloop.batches.answer import failure_reason
from gradeloop.batches.ratings import verdicts_of_people
from gradeloop.batches.reader import BatchReader
from gradeloop.calibration.figures import Kinds, measure
from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult, parse_judge
from gradeloop.judges.judgements import (
    ComparedKey,
    Judgements,
    Label,
    LabelSet,
    Stability,
    comparable,
    comparable_value,
    compared_keys,
    label_schema,
    measure_stability,
)
from gradeloop.judges.pass_rule import PassRule, refuse_two_values
from gradeloop.judges.schema import value_at
from gradeloop.stats.correction import CorrectedRate, JudgeError, hold_verdicts
from gradeloop.stats.intervals import Estimate, wilson
from gradeloop.stats.reliability import Band, EffectiveVotes, Rated, choose_band, cohen_kappa, effective_votes
from gradeloop.text import canonical_json, objects_in


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
    """The agreement of people with one another on runs that several of them labelled, and of the judge with them on the same runs."""

    raters: int
    runs: int
    human: dict[str, Estimate]
    """`accuracy`, the share of pairs of people who agree, and `kappa`."""
    judge: dict[str, Estimate]
    """The same of the judge and each person."""
    difference: Estimate
    """The judge's accuracy minus that of people; above 0, the judge agrees with people more than they do with one another."""


class MeasuredPassRate(Strict):
    """The pass rate as the judge says, and corrected for its error on the labels."""

    passed: int
    runs: int
    """The runs that were judged and have no label; all judged ones where all have."""
    raw: Estimate
    corrected: CorrectedRate | None
    """None where the labels allow no correction: a class has none, or the judge does not beat chance."""
    error: JudgeError


class KeyAgreement(Strict):
    """The agreement on one key."""

    key: str
    kind: Literal["category", "ordered", "number", "set"]
    labels: int
    """The number of labels that have the key."""
    runs: int
    """The number of runs that they are of."""
    answered: int
    """The number of those runs that have a value of the judge."""
    clusters: int = 0
    """The number of clusters that intervals are over; 0 where each run is one."""
    positive: JsonValue = None
    figures: dict[str, Estimate]
    """The figures by name: coverage, accuracy (of what was answered), accuracy_all (the unanswered count as wrong), kappa and others."""
    rates: dict[str, dict[str, Estimate]] = Field(default_factory=dict)
    """The rates of every value against the others, by the value as JSON, where there are more than two."""
    confusion: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Counts by the label's value, then by the judge's; both as JSON, so that `true` is not a string."""
    ceiling: HumanCeiling | None = None
    pass_rate: MeasuredPassRate | None = None
    panel: EffectiveVotes | None = None
    """The worth of the votes of one judgement; None where it has one vote."""
    band: Band | None = None
    """The verdicts that the judge may give without a person; None without a risk, or if no share of votes is reliable enough."""


class Agreement(Strict):
    """The agreement of a judge's results with labels."""

    labels: int
    judged: int
    """The number of labels whose run has an output of the judge."""
    missing: tuple[str, ...]
    """The runs with a label and no output: not judged, or without an answer."""
    stale: tuple[str, ...] = ()
    """Those of them that were judged when they had another content."""
    contradictory: tuple[str, ...] = ()
    """The runs about which people say different things; each of their labels counts in the figures."""
    risk: float | None = None
    """The error rate that a verdict of the band may have, where one was asked for."""
    keys: tuple[KeyAgreement, ...]
    stability: tuple[Stability, ...] = ()
    """The flip rate of repeated judgements, by key; empty where none was repeated."""
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

    `passes`: the value that passes, by key, as KEY=VALUE; by default what the judge's own `pass_if` says.
    `risk`: the error rate below which a band of trusted verdicts is chosen; None for no band.

    Raises:
        InvalidRequest: No labelled run was judged, no key can be compared, or nothing says which value of a key passes.
    """
    if not any(label.agent_run_id in judgements.by_run for label in labels.labels):
        stale = f"; {len(judgements.stale)} were judged when they had another content" if judgements.stale else ""
        raise InvalidRequest(f"none of the labelled runs has a judgement{stale}; judge them first, or check the ids (agent_run_id)")
    keys = list[_LabelledKey]()
    positive = PassRule(judge, passes, labels.label_schema).values
    compared = compared_keys(labels.label_schema, ordered, positive)
    for key in compared:
        if rows := [label for label in labels.labels if value_at(label.label_value, key.path) is not None]:
            if key.positive is None and not positive:
                refuse_two_values(key.name, key.values)
            keys.append(_LabelledKey(judge, key, rows, judgements))
    if not keys:
        raise InvalidRequest("the labels and the judge's outputs have no key in common that can be compared")
    missing = tuple(dict.fromkeys(row.agent_run_id for row in labels.labels if judgements.verdict(row.agent_run_id) is None))
    return Agreement(
        labels=len(labels.labels),
        judged=sum(label.agent_run_id not in missing for label in labels.labels),
        missing=missing,
        stale=tuple(run for run in judgements.stale if run in missing),
        contradictory=tuple(sorted(set().union(*(key.contradictory() for key in keys)))),
        risk=risk,
        keys=tuple(key.measure(risk) for key in keys),
        stability=measure_stability(judge, judgements, compared),
        disagreements=tuple(one for key in keys for one in key.disagreements()),
    )


VERDICT = {"status": {"type": "string", "enum": ["passed", "failed"]}, "explanation": {"type": "string"}}
"""The properties of what a batch says about a case."""


def measure_ratings(reader: BatchReader, batch_id: str, risk: float | None = None) -> Agreement:
    """Measure how far the verdicts of a batch agree with what people say about its cases: their ratings are the labels.

    Raises:
        InvalidRequest: There is no such batch, or nobody has rated a case of it that has a verdict.
    """
    labels, judged = list[Label](), dict[str, tuple[JudgeResult, ...]]()
    with reader.snapshot(batch_id) as found:
        for case in found.results():
            if case.status in {"passed", "failed"}:
                output: dict[str, JsonValue] = {"status": case.status, "explanation": failure_reason(case)}
                about = {"id": case.id, "agent_run_id": case.id, "rubric_id": found.summary.batch_id, "rubric_version": 1}
                judged[case.id] = (JudgeResult.model_validate(about | {"output": output, "result_type": "DIRECT_RESULT"}),)
            for rating in case.ratings:
                if (passed := verdicts_of_people(case).get(rating.by)) is not None:
                    value: dict[str, JsonValue] = {"status": "passed" if passed else "failed"}
                    more = {"reason": rating.comment, "created_by": rating.by, "cluster": case.base_id}
                    labels.append(Label.model_validate({"agent_run_id": case.id, "label_value": value} | more))
    if not any(label.agent_run_id in judged for label in labels):
        cure = "say on the pages of its cases, in gradeloop dev, whether they pass"
        raise InvalidRequest(f"nobody has rated a case of the batch {batch_id!r} that has a verdict; {cure}")
    judge = parse_judge({"rubric_text": batch_id, "output_schema": {"type": "object", "properties": VERDICT}})
    people = LabelSet(label_schema=label_schema(judge), labels=tuple(labels))
    return measure_agreement(judge, people, Judgements(judged), passes=("status=passed",), risk=risk)


@dataclass(frozen=True)
class _LabelledKey:
    """A key of labels, with what judge and people say for it."""

    judge: JudgeConfig
    key: ComparedKey
    rows: Sequence[Label]
    """The labels that have the key."""
    judgements: Judgements

    @cached_property
    def by_run(self) -> Mapping[str, Sequence[Label]]:
        """The labels by their runs."""
        found: dict[str, list[Label]] = {}
        for label in self.rows:
            found.setdefault(label.agent_run_id, []).append(label)
        return found

    def said(self, label: Label) -> JsonValue:
        """Return what a label says."""
        return value_at(label.label_value, self.key.path)

    def judged(self, result: JudgeResult | None) -> JsonValue:
        """Return what a judgement says; None without an answer."""
        return None if result is None else value_at(comparable(self.judge, result.output), self.key.path)

    def rated(self, run: str) -> Rated:
        """Return what judge and people say of a run, as it is compared."""
        labels = self.by_run.get(run, ())
        cluster = next((label.cluster for label in labels if label.cluster), "")
        return self.key.rated(self.judged(self.judgements.verdict(run)), map(self.said, labels), cluster)

    def contradictory(self) -> set[str]:
        """Return the runs about which people say different things."""
        return {run for run, labels in self.by_run.items() if any(self.said(label) != self.said(labels[0]) for label in labels)}

    def measure(self, risk: float | None) -> KeyAgreement:
        """Return the agreement on the key, with a band of trusted verdicts where there is a risk."""
        key, runs = self.key, Kinds(map(self.rated, self.by_run))
        return KeyAgreement(
            key=key.name,
            kind=key.kind,
            labels=len(self.rows),
            runs=len(self.by_run),
            answered=sum(row.judged is not None for row in runs.rated),
            clusters=len(runs.parts),
            positive=key.positive,
            figures=measure(key, runs),
            rates=_rates_by_value(key, runs),
            confusion=_confusion(runs) if key.kind in {"category", "ordered"} else {},
            ceiling=human_ceiling(runs.rated, len({label.created_by for label in self.rows})) if key.kind != "set" else None,
            pass_rate=None if key.positive is None else self._pass_rate(canonical_json(key.positive)),
            panel=self._panel(),
            band=None if risk is None else self._band(risk),
        )

    def _pass_rate(self, positive: str) -> MeasuredPassRate | None:
        """Return the pass rate of the judged runs, corrected for the judge's error on the labelled ones."""
        rows = [
            Rated(None if judged is None else judged == positive, tuple(label == positive for label in labels), cluster)
            for judged, labels, cluster in map(self.rated, self.judgements.by_run)
        ]
        found = hold_verdicts(rows, None)
        if not found.runs:
            return None
        raw = Estimate.share(found.passed, found.runs)
        return MeasuredPassRate(passed=found.passed, runs=found.runs, raw=raw, corrected=found.corrected, error=found.error)

    def _panel(self) -> EffectiveVotes | None:
        """Return what the votes within one judgement are worth: rollouts of a schema, graders of a criterion.

        Votes count as right or wrong by the labels: it is errors in common that make them worth less.
        """
        rows: list[list[float]] = []
        for run in self.judgements.by_run:
            votes, labels = self._votes(run), self.by_run.get(run)
            if labels and len(votes) > 1 and None not in votes:
                rows.append([float(self._differ(vote, self.said(labels[0]))) for vote in votes])
        size = max(map(len, rows), default=0)
        return effective_votes([row for row in rows if len(row) == size])

    def _votes(self, run: str) -> list[JsonValue]:
        """Return the votes behind the judgement of a run."""
        if (result := self.judgements.verdict(run)) is None:
            return []
        if isinstance(self.judge, CriteriaJudge):
            named = [row for row in objects_in(result.output.get("criteria")) if row.get("id") == self.key.path[-1]]
            return [vote.get("passed") for vote in objects_in(named[0].get("votes"))] if named and self.key.path[0] == "criteria" else []
        return [value_at(rollout.get("output"), self.key.path) for rollout in objects_in(result.result_metadata.get("rollouts"))]

    def _differ(self, one: JsonValue, other: JsonValue) -> bool:
        return comparable_value(self.key.kind, one) != comparable_value(self.key.kind, other)

    def _band(self, risk: float) -> Band | None:
        """Return the share of votes from which on the judge may decide without a person, with an error below a risk.

        Votes are those within one judgement, else the repeated judgements of a run. Of several labels most decide, and people who are
        split say nothing.
        """
        verdicts: list[tuple[float, bool]] = []
        for run in self.by_run:
            judged, labels, _ = self.rated(run)
            ((label, count), *others) = Counter(labels).most_common(2)
            if judged is None or (others and others[0][1] == count):
                continue
            votes = [vote for vote in self._votes(run) if vote is not None]
            if len(votes) < 2:  # noqa: PLR2004 - one vote is not a share
                repeats = [self.judged(row) for row in self.judgements.by_run[run] if not row.failed]
                votes = [vote for vote in repeats if vote is not None]
            same = sum(comparable_value(self.key.kind, vote) == judged for vote in votes)
            verdicts.append((same / len(votes), judged == label))
        return choose_band(verdicts, risk) if verdicts else None

    def disagreements(self) -> Iterator[Disagreement]:
        """Yield the labels that the judge contradicts."""
        for label in self.rows:
            result = self.judgements.verdict(label.agent_run_id)
            judged, said = self.judged(result), self.said(label)
            if result is not None and judged is not None and self._differ(judged, said):
                about = {"agent_run_id": label.agent_run_id, "by": label.created_by, "label_reason": label.reason}
                reason = judge_reason(self.judge, self.key.path, result.output)
                yield Disagreement(key=self.key.name, label=said, judge=judged, judge_reason=reason, **about)


def _confusion(runs: Kinds) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (label, judged), count in runs.cells(runs.counts).items():
        found.setdefault(str(label), {})[str(judged)] = int(count)
    return found


MANY_VALUES = range(3, 21)
"""The numbers of values for which each value has rates of its own: with two, the rates of one say all."""


def _rates_by_value(key: ComparedKey, runs: Kinds) -> dict[str, dict[str, Estimate]]:
    """Return the rates of each value against all others, where there are more than two."""
    if key.kind not in {"category", "ordered"} or len(key.values) not in MANY_VALUES:
        return {}
    rates: dict[str, dict[str, Estimate]] = {}
    for value in key.values:
        figures = measure(ComparedKey(key.path, "category", key.values, value), runs, replicates=1000)
        rates[canonical_json(value)] = {name: figures[name] for name in ("tpr", "tnr", "precision", "recall", "f1")}
    return rates


def human_ceiling(rated: Iterable[Rated], raters: int) -> HumanCeiling | None:
    """Return how people agree with one another, and the judge with them on the same runs."""
    # People do not agree among themselves, so a judge cannot be expected to agree with them more than that.
    # Both are measured on the same runs, those with several labels. If the judge were measured on all runs, the
    # difference would also be one between runs.
    shared = Kinds(row for row in rated if len(row.labels) > 1 and row.judged is not None)
    if not shared.kinds:
        return None

    def figures(draw: Sequence[int]) -> list[float | None]:
        human, judge = Counter[tuple[object, object]](), shared.cells(draw)
        for row, count in zip(shared.kinds, draw, strict=True):
            for pair in permutations(row.labels, 2) if count else ():
                human[pair] += count
        shares = [sum(count for (one, other), count in cells.items() if one == other) / sum(cells.values()) for cells in (human, judge)]
        return [shares[0], cohen_kappa(human), shares[1], cohen_kappa(judge), shares[1] - shares[0]]

    values, intervals, runs = figures(shared.counts), shared.intervals(figures), len(shared.rated)
    made = [Estimate.within(value, interval, runs) for value, interval in zip(values, intervals, strict=True)]
    for at in (0, 2) if not shared.parts else ():
        if (share := values[at]) is not None:
            made[at] = Estimate.within(share, wilson(share * runs, runs), runs)
    return HumanCeiling(
        raters=raters,
        runs=runs,
        human={"accuracy": made[0], "kappa": made[1]},
        judge={"accuracy": made[2], "kappa": made[3]},
        difference=made[4],
    )


def judge_reason(judge: JudgeConfig, path: tuple[str, ...], output: Mapping[str, JsonValue]) -> str:
    """Return the judge's reason: the criterion's, the explanation, or the first free text."""
    rows = output.get("criteria")
    if isinstance(judge, CriteriaJudge) and path[0] in {"criteria", "scores"} and isinstance(rows, list):
        return next((str(row.get("reason") or "") for row in rows if isinstance(row, dict) and row.get("id") == path[-1]), "")
    texts = [name for name, inner in judge.output_schema["properties"].items() if inner["type"] == "string" and "enum" not in inner]
    return next((str(output[name]) for name in ("explanation", *texts) if output.get(name)), "")
