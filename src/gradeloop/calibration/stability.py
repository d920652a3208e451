"""The stability of a judge: how often the same judgement, made again, says something else, and what a panel's votes are worth."""

from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from gradeloop.calibration.figures import Figure, comparable_value
from gradeloop.calibration.judgements import Judgements
from gradeloop.calibration.labels import ComparedKey, comparable
from gradeloop.contract.base import Strict
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig
from gradeloop.judges.schema import objects_in, value_at
from gradeloop.stats.intervals import wilson
from gradeloop.stats.panel import EffectiveVotes, effective_votes, flip_rate
from gradeloop.stats.selective import Band, choose_band

FLIPPING = 10
"""The most runs that are named as flipping."""


class Flipping(Strict):
    """A run on which a judge does not say the same again."""

    agent_run_id: str
    rate: float
    values: tuple[JsonValue, ...]
    """What the judge said, repeat by repeat."""


class Stability(Strict):
    """How often repeated judgements of the same runs differ, for one key."""

    key: str
    runs: int
    """How many runs were judged at least twice."""
    judgements: int
    flip_rate: Figure
    """The probability that two judgements of the same run differ; 1 minus it is the judge's agreement with itself."""
    flipping: tuple[Flipping, ...]
    """The runs that flip most."""


def measure_stability(judge: JudgeConfig, judgements: Judgements, keys: Sequence[ComparedKey]) -> tuple[Stability, ...]:
    """Return how often repeated judgements differ, for each key; empty where no run was judged twice."""
    return tuple(found for key in keys if (found := _measure_key(judge, judgements, key)) is not None)


def _measure_key(judge: JudgeConfig, judgements: Judgements, key: ComparedKey) -> Stability | None:
    rows: list[Flipping] = []
    total = 0
    for run, results in judgements.by_run.items():
        values = [value_at(comparable(judge, result.output), key.path) for result in results if not result.failed]
        given = [value for value in values if value is not None]
        rate = flip_rate([comparable_value(key.kind, value) for value in given])
        if rate is not None:
            rows.append(Flipping(agent_run_id=run, rate=rate, values=tuple(given)))
            total += len(given)
    if not rows:
        return None
    flips = sum(row.rate for row in rows)
    interval = wilson(flips, len(rows))
    worst = sorted((row for row in rows if row.rate), key=lambda row: -row.rate)[:FLIPPING]
    return Stability(
        key=key.name,
        runs=len(rows),
        judgements=total,
        flip_rate=Figure(value=flips / len(rows), low=interval.low, high=interval.high, of=len(rows)),
        flipping=tuple(worst),
    )


def measure_panel(judge: JudgeConfig, key: ComparedKey, judgements: Judgements, labels: Mapping[str, JsonValue]) -> EffectiveVotes | None:
    """Return what the votes within one judgement are worth: rollouts of a schema, graders of a criterion.

    Votes count as right or wrong by the labels: it is errors in common that make them worth less.

    Args:
        judge: The judge.
        key: The key that is voted on.
        judgements: Its judgements.
        labels: What people say of runs, for this key.
    """
    rows: list[list[float]] = []
    for run in judgements.by_run:
        result = judgements.verdict(run)
        votes = [] if result is None else _votes(judge, key, result.output, result.result_metadata)
        label = labels.get(run)
        if label is not None and len(votes) > 1 and None not in votes:
            rows.append([float(comparable_value(key.kind, vote) != comparable_value(key.kind, label)) for vote in votes])
    size = max((len(row) for row in rows), default=0)
    return effective_votes([row for row in rows if len(row) == size])


def _votes(judge: JudgeConfig, key: ComparedKey, output: Mapping[str, JsonValue], metadata: Mapping[str, JsonValue]) -> list[JsonValue]:
    """Return the votes behind a judgement's value."""
    if isinstance(judge, CriteriaJudge):
        named = [row for row in objects_in(output.get("criteria")) if row.get("id") == key.path[-1]]
        return [vote.get("passed") for vote in objects_in(named[0].get("votes"))] if named and key.path[0] == "criteria" else []
    outputs = [rollout.get("output") for rollout in objects_in(metadata.get("rollouts"))]
    return [value_at(given, key.path) if isinstance(given, dict) else None for given in outputs]


def measure_band(
    judge: JudgeConfig, key: ComparedKey, judgements: Judgements, labels: Mapping[str, Sequence[JsonValue]], risk: float
) -> Band | None:
    """Return from which share of votes on the judge may decide alone, so that its error stays below a risk.

    Args:
        judge: The judge.
        key: The key that is decided.
        judgements: Its judgements; votes are those within one, else the repeated judgements of a run.
        labels: What people say of runs, for this key; most of them decide, and people who are split say nothing.
        risk: The error rate to stay below.
    """
    verdicts: list[tuple[float, bool]] = []
    for run, said in labels.items():
        result = judgements.verdict(run)
        value = None if result is None else value_at(comparable(judge, result.output), key.path)
        ((label, count), *others) = Counter(comparable_value(key.kind, one) for one in said).most_common(2)
        if result is None or value is None or (others and others[0][1] == count):
            continue
        votes = [vote for vote in _votes(judge, key, result.output, result.result_metadata) if vote is not None]
        if len(votes) < 2:  # noqa: PLR2004 - one vote is no share
            repeats = [value_at(comparable(judge, row.output), key.path) for row in judgements.by_run[run] if not row.failed]
            votes = [vote for vote in repeats if vote is not None]
        verdict = comparable_value(key.kind, value)
        same = sum(comparable_value(key.kind, vote) == verdict for vote in votes)
        verdicts.append((same / len(votes), verdict == label))
    return choose_band(verdicts, risk) if verdicts else None
