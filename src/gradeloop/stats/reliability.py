"""The agreement of raters: Cohen's kappa, Gwet's AC1, Krippendorff's alpha, and F1 of a value or of sets.

A coefficient is 1 for full agreement and 0 for that of chance; it is None where it is undefined, since all values are the same, or there
is none.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, TypeVar

from gradeloop.stats.intervals import ROUNDING

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


def weighted_kappa(counts: Counts[float]) -> float | None:
    """Return Cohen's kappa of numbers, or of the positions of ordered categories: a disagreement counts by the square of its distance.

    Source: Cohen 1968, https://doi.org/10.1037/h0026256; the weighted sums are written as moments.
    """
    total = sum(counts.values())
    if not total:
        return None
    first = sum(one * count for (one, _), count in counts.items()) / total
    second = sum(other * count for (_, other), count in counts.items()) / total
    observed = sum((one - other) ** 2 * count for (one, other), count in counts.items()) / total
    spread = sum(((one - first) ** 2 + (other - second) ** 2) * count for (one, other), count in counts.items()) / total
    expected = spread + (first - second) ** 2
    return None if expected <= 0 else 1 - observed / expected


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


Level = Literal["nominal", "ordinal", "interval"]


def weighted_alpha(units: Iterable[tuple[Sequence[float], int]], level: Level) -> float | None:
    """Return Krippendorff's alpha of units that occur several times, in floating point, which is fast enough to draw by.

    The coefficient is that of Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011).

    Args:
        units: The values that raters gave to each unit, and how often such a unit occurs; categories as numbers of any order.
        level: What their distance is: equal or not, by how many values lie between them, or squared.
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
        observed = sum(weight * (len(values) ** 2 - _equal_pairs(values)) / (len(values) - 1) for values, weight in paired)
        expected: float = count**2 - sum(total**2 for total in totals.values())
        return 1 - (count - 1) * observed / expected
    places = _float_ranks(totals) if level == "ordinal" else {value: value for value in totals}
    middle = sum(places[value] * total for value, total in totals.items()) / count
    expected = 2 * count * sum((places[value] - middle) ** 2 * total for value, total in totals.items())
    observed = 0.0
    for values, weight in paired:
        moved = [places[value] - middle for value in values]
        observed += 2 * weight * (len(moved) * sum(place * place for place in moved) - sum(moved) ** 2) / (len(moved) - 1)
    return 1 - (count - 1) * observed / expected


def _equal_pairs(values: Sequence[float]) -> int:
    if len(values) == 2:  # noqa: PLR2004 - judge and one label, nearly always
        return 4 if values[0] == values[1] else 2
    return sum(count**2 for count in Counter(values).values())


def _float_ranks(totals: Mapping[float, int]) -> dict[float, float]:
    ordered = sorted(totals.items())
    return {value: below - total / 2 for (value, total), below in zip(ordered, accumulate(total for _, total in ordered), strict=True)}


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
