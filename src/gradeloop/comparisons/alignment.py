"""The cases of two batches beside each other, by id; repetitions of one case are one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradeloop.comparisons.compared_case import ComparedCase


@dataclass(frozen=True, slots=True)
class Pair:
    """The runs of one case in both batches; none where a batch lacks it."""

    id: str
    a: tuple[ComparedCase, ...]
    b: tuple[ComparedCase, ...]


def aligned(a: Sequence[ComparedCase], b: Sequence[ComparedCase]) -> Iterator[Pair]:
    """Yield every case once: those of A in their order, then those that B alone has."""
    ours, theirs = grouped(a), grouped(b)
    for name in dict.fromkeys([*ours, *theirs]):
        yield Pair(name, ours.get(name, ()), theirs.get(name, ()))


def grouped(cases: Sequence[ComparedCase]) -> dict[str, tuple[ComparedCase, ...]]:
    """Return the runs of each case by its id, in their order.

    A suite that runs each case several times ends their ids with `/1`, `/2`. So a case is a repetition where its id ends with its own
    number, and one that is not the first has the same beginning; an id that merely looks like that stays as it is.
    """
    repeated = {base for case in cases if case.repeat and (base := _base(case)) is not None} - {case.id for case in cases}
    found: dict[str, list[ComparedCase]] = {}
    for case in cases:
        base = _base(case)
        found.setdefault(base if base is not None and base in repeated else case.id, []).append(case)
    return {name: tuple(runs) for name, runs in found.items()}


def _base(case: ComparedCase) -> str | None:
    """Return what an id is without the number of its repetition; None where it does not end with it."""
    base, _, number = case.id.rpartition("/")
    return base if base and number == str(case.repeat + 1) else None
