"""The worth of a panel's votes, the flip rate of repeated judgements, and the share of votes from which on a judge may decide."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import combinations_with_replacement
from operator import mul

from gradeloop.stats.bootstrap import bootstrap
from gradeloop.stats.intervals import CONFIDENCE, ROUNDING, Figures, at_most, upper_bound


class EffectiveVotes(Figures):
    """The number of independent votes that a panel's votes are worth."""

    votes: int
    effective: float
    """Independent votes that the panel is worth, 1 to `votes`."""
    correlation: float
    """The mean correlation of two judges."""
    low: float
    """The lower end of the 95 % interval of `effective`."""
    high: float
    """Its upper end."""
    runs: int


LEAST_RUNS = 20
"""The least runs for a result: a correlation of fewer may be anything."""


def effective_votes(rows: Sequence[Sequence[float]]) -> EffectiveVotes | None:
    """Return how many independent votes the votes of a panel are worth: Kish's effective sample size of correlated votes.

    Args:
        rows: For each run, what every judge said as a number, in the same order of judges; with labels, 1 where the judge was wrong.

    Returns:
        None with fewer than two judges or 20 runs, or where no pair of judges varies.

    Source: "Nine Judges, Two Effective Votes", https://arxiv.org/abs/2605.29800; Kish 1965, the design effect.
    """
    if len(rows) < LEAST_RUNS or len(rows[0]) < 2:  # noqa: PLR2004 - one judge has no other
        return None
    kinds, votes = Counter(tuple(row) for row in rows), len(rows[0])
    pairs = list(combinations_with_replacement(range(votes), 2))
    columns = [[row[at] for row in kinds] for at in range(votes)]
    products = [list(map(mul, columns[one], columns[other])) for one, other in pairs]

    def figures(draw: Sequence[int]) -> list[float | None]:
        means = [sum(map(mul, draw, column)) / len(rows) for column in columns]
        spreads = {
            pair: sum(map(mul, draw, row)) / len(rows) - means[pair[0]] * means[pair[1]] for pair, row in zip(pairs, products, strict=True)
        }
        own = [spreads[at, at] if spreads[at, at] > ROUNDING else 0.0 for at in range(votes)]
        known = [spreads[one, other] / math.sqrt(own[one] * own[other]) for one, other in pairs if one < other and own[one] and own[other]]
        correlation = math.fsum(known) / len(known) if known else None
        return [correlation, None if correlation is None else votes / (1 + (votes - 1) * max(correlation, 0.0))]

    counts = list(kinds.values())
    correlation, effective = figures(counts)
    if correlation is None or effective is None:
        return None
    _, interval = bootstrap(counts, figures, replicates=1_000)
    low, high = (interval.low, interval.high) if interval else (1.0, float(votes))
    return EffectiveVotes(votes=votes, effective=effective, correlation=correlation, low=low, high=high, runs=len(rows))


def flip_rate(values: Sequence[Hashable]) -> float | None:
    """Return the share of pairs of repeated judgements that differ, 0 to 1; None with fewer than two."""
    count = len(values)
    if count < 2:  # noqa: PLR2004 - a flip wants two
        return None
    same = sum(times * (times - 1) for times in Counter(values).values())
    return 1 - same / (count * (count - 1))


class Band(Figures):
    """The verdicts that a judge may give without a person: those at least this confident."""

    threshold: float
    """The lowest confidence that decides; what is below it is unsure."""
    risk: float
    """The error rate that was asked for, of the verdicts that decide."""
    error: float
    """The share of errors among the labelled verdicts that decide."""
    bound: float
    """The upper bound of that error, at 95 % for all thresholds together."""
    coverage: float
    """The share of labelled verdicts that decide."""
    labels: int


def is_below(share: float, threshold: float) -> bool:
    """Return whether a share of votes is too small to decide; what rounding takes from it does not count."""
    return share < threshold - 1e-9


LEVELS = 20
"""The most thresholds that are tried; more of them would widen every bound."""


def choose_band(verdicts: Sequence[tuple[float, bool]], risk: float) -> Band | None:
    """Return the band that decides most while its error stays below a risk, with 95 % certainty.

    Every threshold is tested by the exact binomial bound of its error, divided among all thresholds that are tried.

    Args:
        verdicts: The confidence of each labelled verdict, and whether it was right.
        risk: The error rate to stay below, above 0 and below 1.

    Returns:
        None where no threshold can be trusted with so few labels.

    Source: Geifman and El-Yaniv 2017, "Selective Classification for Deep Neural Networks", https://arxiv.org/abs/1705.08500.
    """
    # The thresholds are tried from the lowest on, and the first that passes decides most. Each is tested at its
    # share of the 5 %. If all were tested at the whole 5 %, one of twenty would pass by chance, and that one
    # would be chosen.
    levels = sorted({confidence for confidence, _ in verdicts})
    tried = [levels[len(levels) * at // LEVELS] for at in range(LEVELS)] if len(levels) > LEVELS else levels
    for threshold in tried:
        decided = [right for confidence, right in verdicts if confidence >= threshold]
        errors = len(decided) - sum(decided)
        level = (1 - CONFIDENCE) / len(tried)
        if errors < len(decided) and at_most(errors, len(decided), risk) <= level:
            return Band(
                threshold=threshold,
                risk=risk,
                error=errors / len(decided),
                bound=upper_bound(errors, len(decided), level),
                coverage=len(decided) / len(verdicts),
                labels=len(verdicts),
            )
    return None
