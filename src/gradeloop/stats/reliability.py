"""The agreement of several raters beyond chance."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TypeVar

Value = TypeVar("Value")


def nominal_alpha(units: Iterable[Sequence[str]]) -> float | None:
    """Return Krippendorff's alpha of values that are equal or not, as `interval_alpha` does."""
    return _alpha(units, _unequal_pairs)


def interval_alpha(units: Iterable[Sequence[Fraction]]) -> float | None:
    """Return Krippendorff's alpha of numbers, whose squared distance counts.

    The coefficient is that of Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011); it is computed exactly.

    Args:
        units: The values that raters gave to each unit, as many as there are.

    Returns:
        1 for full agreement, 0 for that of chance; None where it is undefined, since no unit has two values or all are the same.
    """
    return _alpha(units, _squared_distances)


def _alpha(units: Iterable[Sequence[Value]], disagreement: Callable[[Sequence[Value]], Fraction]) -> float | None:
    paired = [values for values in units if len(values) > 1]
    everything = [value for values in paired for value in values]
    expected = disagreement(everything)
    if not expected:
        return None
    observed = sum((disagreement(values) / (len(values) - 1) for values in paired), Fraction(0))
    return float(1 - (len(everything) - 1) * observed / expected)


def _unequal_pairs(values: Sequence[str]) -> Fraction:
    """Return how many ordered pairs of values differ."""
    return Fraction(len(values) ** 2 - sum(count**2 for count in Counter(values).values()))


def _squared_distances(values: Sequence[Fraction]) -> Fraction:
    """Return the sum of the squared distances of all ordered pairs of values."""
    return 2 * (len(values) * sum((value**2 for value in values), Fraction(0)) - sum(values, Fraction(0)) ** 2)
