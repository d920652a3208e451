"""What counts as one in a rubric: a criterion, or a group of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from gradeloop.criterion import Criterion, Weight
from gradeloop.strict import Sparse, Strict

TOLERANCE = 1e-9
"""By which a score may miss its threshold: sums of decimal weights are not exact."""


def _of_a_score(value: float) -> float:
    if not 0 <= value <= 1:
        hint = f"; write {value / 100:g}" if 1 < value <= 100 else ""  # noqa: PLR2004 - per cent
        raise ValueError(f"{value:g} is outside of 0 to 1, between which the score runs{hint}")
    return value


Threshold = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_of_a_score)]


class Group(Strict):
    """Criteria that count as one."""

    group: Annotated[str, Field(min_length=1, max_length=200)]
    """Its name."""
    required: bool = True
    weight: Weight = Field(default=1.0, exclude_if=lambda value: value == 1.0)
    """In the rubric's score, in which the group's mean counts as one."""
    threshold: Sparse[Threshold | None] = None
    """With it the group's mean alone decides, instead of its required criteria."""


@dataclass(frozen=True)
class Mark:
    """What a criterion came to, turned round already where it is negated."""

    passed: bool
    share: float
    """Of the score, 0 to 1."""


@dataclass(frozen=True)
class Unit:
    """What counts as one: a criterion, or a group with its name."""

    members: tuple[Criterion, ...]
    required: bool
    weight: float
    threshold: float | None = None
    name: str | None = None

    def share(self, marks: Mapping[str, Mark]) -> float | None:
        """Return its part of the score; None where none of it was graded."""
        return mean((1.0 if self.name is None else each.weight, marks[each.id].share) for each in self.members if each.id in marks)

    def holds(self, marks: Mapping[str, Mark]) -> bool:
        """Return whether it passes: by its mean where it has a threshold, else by its required criteria."""
        if self.threshold is not None:
            share = self.share(marks)
            return share is not None and share >= self.threshold - TOLERANCE
        return all(each.id in marks and marks[each.id].passed for each in self.deciding)

    @property
    def deciding(self) -> tuple[Criterion, ...]:
        """The criteria that must pass for it to pass: the required ones, or all where none is."""
        return tuple(each for each in self.members if each.required) or self.members


def units(criteria: Sequence[Criterion], groups: Sequence[Group]) -> tuple[Unit, ...]:
    """Return what counts as one, in the order of the criteria."""
    named = {group.group: group for group in groups}
    found: dict[tuple[str, str], Unit] = {}
    for criterion in criteria:
        group = named.get(criterion.group or "")
        if group is None:
            found["criterion", criterion.id] = Unit((criterion,), criterion.required, criterion.weight)
        elif ("group", group.group) not in found:
            members = tuple(each for each in criteria if each.group == group.group)
            found["group", group.group] = Unit(members, group.required, group.weight, group.threshold, group.group)
    return tuple(found.values())


def mean(shares: Iterable[tuple[float, float]]) -> float | None:
    """Return the mean of (weight, share) pairs; None where nothing has weight."""
    weighed = list(shares)
    total = sum(weight for weight, _ in weighed)
    return sum(weight * share for weight, share in weighed) / total if total else None
