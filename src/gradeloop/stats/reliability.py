"""The agreement of raters, the flip rate of one, what the votes of a panel are worth, and from which share of them on a judge may decide.

A coefficient is 1 for full agreement and 0 for that of chance; it is None where it is undefined, since all values are the same, or there
is none.
"""

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, combinations_with_replacement
from operator import mul
from typing import Literal, NamedTuple, TypeVar

from gradeloop.stats.bootstrap import bootstrap
from gradeloop.stats.intervals import CONFIDENCE, ROUNDING, Figures, at_most, upper_bound

Rating = TypeVar("Rating", bound=Hashable)

Counts = Mapping[tuple[Rating, Rating], float]
"""Counts of the first rater's value and the second's; fractions are allowed."""

Value = float | str | frozenset[str]
"""A value that can be compared and counted; true and false count as 1 and 0."""


class Rated(NamedTuple):
    """The values of judge and people for one run."""

    judged: Value | None
    """The judge's value; None where the judge gave no answer."""
    labels: tuple[Value, ...] = ()
    cluster: str = ""
    """The prompt, sample or document of the run, which those of one resemble each other by; empty for a run that is one of its own."""


def cohen_kappa(counts: Counts[Rating]) -> float | None:
    """Return Cohen's kappa of two raters, unweighted.

    Source: Cohen 1960, https://doi.org/10.1177/001316446002000104.
    """
    return _beyond(chance_agreement(counts), counts)


def chance_agreement(counts: Counts[Rating]) -> float:
    """Return how often two raters would agree by chance, 0 to 1; 1 without ratings."""
    total, first, second = _marginals(counts)
    return sum(count * second.get(value, 0.0) for value, count in first.items()) / (total * total) if total else 1.0


def gwet_ac1(counts: Counts[Rating], categories: int) -> float | None:
    """Return Gwet's AC1 of two raters, which stays meaningful where nearly all values are the same; None with one category.

    `categories`: how many values the raters could choose from; at least as many as they used count.

    Source: Gwet 2008, https://doi.org/10.1348/000711006X126600.
    """
    return _beyond(gwet_chance(counts, categories), counts)


def gwet_chance(counts: Counts[Rating], categories: int) -> float:
    """Return how often two raters would agree by chance as AC1 has it, 0 to 1; 1 without ratings, or with one category."""
    total, first, second = _marginals(counts)
    used = set(first) | set(second)
    count = max(categories, len(used))
    if not total or count < 2:  # noqa: PLR2004 - one value leaves nothing to agree on
        return 1.0
    shares = [(first.get(value, 0.0) + second.get(value, 0.0)) / (2 * total) for value in used]
    return sum(share * (1 - share) for share in shares) / (count - 1)


def _beyond(chance: float, counts: Counts[Rating]) -> float | None:
    """Return the agreement beyond that of chance, as a share of what chance leaves."""
    same = sum(count for (one, other), count in counts.items() if one == other)
    return None if chance >= 1 - ROUNDING else (same / sum(counts.values()) - chance) / (1 - chance)


def _marginals(counts: Counts[Rating]) -> tuple[float, dict[Rating, float], dict[Rating, float]]:
    """Return the total, and the totals of each rater by value."""
    first: dict[Rating, float] = {}
    second: dict[Rating, float] = {}
    for (one, other), count in counts.items():
        first[one] = first.get(one, 0.0) + count
        second[other] = second.get(other, 0.0) + count
    return sum(counts.values()), first, second


Level = Literal["nominal", "ordinal"]


def weighted_alpha(units: Iterable[tuple[Sequence[float], int]], level: Level) -> float | None:
    """Return Krippendorff's alpha of units that occur several times, in floating point, which is fast enough to draw by.

    The coefficient is that of Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011).

    Args:
        units: The values that raters gave to each unit, and how often such a unit occurs; categories as numbers of any order.
        level: What their distance is: equal or not, or by how many values lie between them.
    """
    paired = [(values, weight) for values, weight in units if len(values) > 1 and weight]
    totals: dict[float, int] = {}
    for values, weight in paired:
        for value in values:
            totals[value] = totals.get(value, 0) + weight
    if len(totals) < 2:  # noqa: PLR2004 - with one value there is no chance disagreement
        return None
    count = sum(totals.values())
    if level == "nominal":
        observed = sum(weight * (len(values) ** 2 - sum(map(values.count, values))) / (len(values) - 1) for values, weight in paired)
        expected: float = count**2 - sum(total**2 for total in totals.values())
        return 1 - (count - 1) * observed / expected
    ordered = sorted(totals.items())
    ends = accumulate(total for _, total in ordered)
    places = {value: end - total / 2 for (value, total), end in zip(ordered, ends, strict=True)}
    middle = sum(places[value] * total for value, total in totals.items()) / count
    expected = 2 * count * sum((places[value] - middle) ** 2 * total for value, total in totals.items())
    observed = 0.0
    for values, weight in paired:
        moved = [places[value] - middle for value in values]
        observed += 2 * weight * (len(moved) * sum(place * place for place in moved) - sum(moved) ** 2) / (len(moved) - 1)
    return 1 - (count - 1) * observed / expected


def f1(counts: Counts[Rating], positive: Rating) -> float | None:
    """Return the F1 of one value, the positive one, against all others; None where neither rater ever says it.

    `counts`: how often the label was the one value and the judge's the other.
    """
    hits = counts.get((positive, positive), 0.0)
    said = sum(count * ((label == positive) + (judged == positive)) for (label, judged), count in counts.items())
    return 2 * hits / said if said else None


def set_f1(label: Collection[Hashable], judged: Collection[Hashable]) -> float:
    """Return the F1 of two sets, 0 to 1; two empty ones agree."""
    one, other = set(label), set(judged)
    return 2 * len(one & other) / (len(one) + len(other)) if one or other else 1.0


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
    # Runs in which all judges said the same are one kind, so a draw is a few counts instead of thousands of
    # rows. The products of each pair of judges do not depend on the draw and are made once. A correlation
    # below 0 counts as 0: a panel is never worth more votes than it has.
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
