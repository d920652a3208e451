"""How well one rater finds what another one says: rates of a confusion matrix, sets, numbers and ranks."""

import math
from collections.abc import Collection, Hashable, Mapping
from typing import NamedTuple

from gradeloop.stats.reliability import Rating


class Rates(NamedTuple):
    """The rates of one value, the positive one, against all others; None where nothing is there to divide by."""

    accuracy: float | None
    tpr: float | None
    """True positive rate, sensitivity, recall: the share of labelled positives that the judge finds."""
    tnr: float | None
    """True negative rate, specificity: the share of labelled negatives that the judge leaves."""
    precision: float | None
    recall: float | None
    f1: float | None


def binary_rates(counts: Mapping[tuple[Rating, Rating], float], positive: Rating) -> Rates:
    """Return the rates of a confusion matrix, with one value as the positive one.

    Args:
        counts: How often the label was the one value and the judge's the other.
        positive: The value that counts as positive.
    """
    total = sum(counts.values())
    same = sum(count for (label, judged), count in counts.items() if label == judged)
    cells = {(True, True): 0.0, (True, False): 0.0, (False, True): 0.0, (False, False): 0.0}
    for (label, judged), count in counts.items():
        cells[label == positive, judged == positive] += count
    hits, missed, alarms, left = cells[True, True], cells[True, False], cells[False, True], cells[False, False]
    return Rates(
        accuracy=_share(same, total),
        tpr=_share(hits, hits + missed),
        tnr=_share(left, left + alarms),
        precision=_share(hits, hits + alarms),
        recall=_share(hits, hits + missed),
        f1=_share(2 * hits, 2 * hits + alarms + missed),
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def set_f1(label: Collection[Hashable], judged: Collection[Hashable]) -> float:
    """Return the F1 of two sets, 0 to 1; two empty ones agree."""
    one, other = set(label), set(judged)
    return 2 * len(one & other) / (len(one) + len(other)) if one or other else 1.0


def spearman(counts: Mapping[tuple[float, float], float]) -> float | None:
    """Return Spearman's rank correlation, -1 to 1; ties share the mean of their ranks.

    Args:
        counts: How often each pair of numbers occurs.

    Returns:
        None where it is undefined, since one of the two never varies.

    Source: Spearman 1904, https://doi.org/10.2307/1412159.
    """
    first: dict[float, float] = {}
    second: dict[float, float] = {}
    for (one, other), count in counts.items():
        first[one] = first.get(one, 0.0) + count
        second[other] = second.get(other, 0.0) + count
    ranks, others = _centred_ranks(first), _centred_ranks(second)
    spread = math.fsum(ranks[value] ** 2 * count for value, count in first.items())
    other_spread = math.fsum(others[value] ** 2 * count for value, count in second.items())
    if spread <= 0 or other_spread <= 0:
        return None
    together = math.fsum(ranks[one] * others[other] * count for (one, other), count in counts.items())
    return max(-1.0, min(1.0, together / math.sqrt(spread * other_spread)))


def _centred_ranks(counts: Mapping[float, float]) -> dict[float, float]:
    """Return the mean rank of every value minus the mean of all ranks."""
    middle = sum(counts.values()) / 2
    ranks: dict[float, float] = {}
    below = 0.0
    for value in sorted(counts):
        ranks[value] = below + counts[value] / 2 - middle
        below += counts[value]
    return ranks
