"""A suite that was read, and what the command line says of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gradeloop.batches.case import Case
from gradeloop.errors import InvalidRequest, explain
from gradeloop.printable import clip
from gradeloop.request import Grader
from gradeloop.suites.fields import GraderSetting
from gradeloop.suites.plan import Plan
from gradeloop.suites.suite import SuiteSettings

MAX_CASES = 100_000
"""Of one batch: some hours of judging even with a hundred cases in flight; what is more is several batches."""

_NAMED = 10
"""Ids that a refusal lists."""


@dataclass(frozen=True)
class SuiteFlags:
    """What the command line says, before the file."""

    grader: str | None = None
    """Instead of the file's, but for what names a judge of its own."""
    only: tuple[str, ...] = ()
    """Patterns with `*`, `?` and `[...]` on the cases' ids, or parts of them."""
    first: int | None = None
    loop: bool | None = None
    repeat: int | None = None
    tools: tuple[Path, ...] = ()
    scripted: Path | None = None


@dataclass(frozen=True)
class Suite:
    """A suite, its cases still to be read."""

    name: str | None
    path: Path
    settings: SuiteSettings
    tools: tuple[Path, ...]
    scripted: Path | None
    outputs: tuple[Path, ...]
    """Where promptfoo would have written its results."""
    told: tuple[str, ...]
    """What was passed over while it was read."""
    plan: Plan
    flags: SuiteFlags = SuiteFlags()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was decided for the user; of the default models once the cases have been gone through."""
        return (*self.told, *dict.fromkeys(self.plan.roles.notes))

    def cases(self) -> Iterator[Case]:
        """Yield the cases in order, each time anew.

        Raises:
            InvalidRequest: A test is wrong, there are none, or too many.
        """
        for count, case in enumerate(self._selected(), 1):
            if count > MAX_CASES:
                cure = "make several suites of it, or take the first of them with --first"
                raise InvalidRequest(f"the suite {str(self.path)!r} has more than {MAX_CASES} cases; {cure}")
            yield case
            if count == self.flags.first:
                return

    def _selected(self) -> Iterator[Case]:
        seen: list[str] = []
        selected = total = 0
        for case in self.plan.cases():
            total += 1
            if not self.flags.only or any(_means(pattern, case.id) for pattern in self.flags.only):
                selected += 1
                yield case
            elif len(seen) < _NAMED:
                seen.append(case.id)
        if not selected:
            more = f" and {total - len(seen)} more" if total > len(seen) else ""
            patterns = ", ".join(clip(pattern) for pattern in self.flags.only)
            raise InvalidRequest(f"--only: {patterns} selects no case of {str(self.path)!r}; there are {', '.join(seen)}{more}")


def _means(pattern: str, name: str) -> bool:
    return pattern in name or fnmatchcase(name, pattern)


def grader_of(flag: str | None) -> Grader | None:
    """Return the grader that a flag names.

    Raises:
        InvalidRequest: It names no model.
    """
    try:
        return None if flag is None else TypeAdapter(GraderSetting).validate_python(flag)
    except ValidationError as error:
        raise InvalidRequest(f"--grader: {explain(error)}") from None
