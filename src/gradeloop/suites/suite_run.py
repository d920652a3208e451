"""A suite as it was read from its file, with the flags that change it."""

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
"""Cases of one batch at most: some hours of judging even with a hundred cases in flight. A larger suite is split into several batches."""

_NAMED = 10
"""How many case ids an error message lists."""


@dataclass(frozen=True)
class SuiteFlags:
    """Flags of `gradeloop eval` that override the suite file."""

    grader: str | None = None
    """The model that replaces the file's grader, except where a test or an assertion names its own."""
    filters: tuple[str, ...] = ()
    """Patterns with `*`, `?` and `[...]` on the cases' ids, or parts of them."""
    limit: int | None = None
    """How many of the selected cases run at most."""
    loop: bool | None = None
    repeat: int | None = None
    tools: tuple[Path, ...] = ()
    scripted: Path | None = None


@dataclass(frozen=True)
class Suite:
    """A suite whose cases are read as they are asked for."""

    name: str | None
    path: Path
    settings: SuiteSettings
    tools: tuple[Path, ...]
    scripted: Path | None
    outputs: tuple[Path, ...]
    """The output files that a promptfoo configuration names."""
    told: tuple[str, ...]
    """Warnings about settings that were ignored."""
    plan: Plan
    flags: SuiteFlags = SuiteFlags()

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings, and the default models that were chosen once all cases have been read."""
        return (*self.told, *dict.fromkeys(self.plan.roles.notes))

    def cases(self) -> Iterator[Case]:
        """Yield the cases in order, each time anew.

        Raises:
            InvalidRequest: A test is wrong, there are none, or too many.
        """
        for count, case in enumerate(self._selected(), 1):
            if count > MAX_CASES:
                cure = "split it into several suites, or run fewer cases with --limit"
                raise InvalidRequest(f"the suite {str(self.path)!r} has more than {MAX_CASES} cases; {cure}")
            yield case
            if count == self.flags.limit:
                return

    def _selected(self) -> Iterator[Case]:
        seen: list[str] = []
        selected = total = 0
        for case in self.plan.cases():
            total += 1
            if not self.flags.filters or any(_means(pattern, case.id) for pattern in self.flags.filters):
                selected += 1
                yield case
            elif len(seen) < _NAMED:
                seen.append(case.id)
        if not selected:
            more = f" and {total - len(seen)} more" if total > len(seen) else ""
            patterns = ", ".join(clip(pattern) for pattern in self.flags.filters)
            raise InvalidRequest(f"--filter: {patterns} matches no case of {str(self.path)!r}; its cases are {', '.join(seen)}{more}")


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
