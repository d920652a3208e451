"""Which cases of a suite run: by their tests' descriptions and metadata, their providers, and what an earlier run came to."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import JsonValue

from gradeloop.batches.contract import Case
from gradeloop.errors import InvalidRequest
from gradeloop.suites.datasets import LocatedTest
from gradeloop.text import clip


class PlannedCase(NamedTuple):
    """A case with the test that it was made of."""

    test: LocatedTest
    case: Case
    group: str = ""
    """The test and the repetition, which cases whose outputs are compared have in common."""


@dataclass(frozen=True)
class EarlierCases:
    """The cases of an earlier run that are to run again."""

    source: str
    """The file or batch that names them."""
    ids: frozenset[str] = frozenset()
    variables: tuple[Mapping[str, JsonValue], ...] = ()
    """The variables of tests, where the source knows no ids of ours."""

    def __contains__(self, case: Case) -> bool:
        return case.id in self.ids or case.vars in self.variables


@dataclass(frozen=True)
class CaseFilters:
    """Conditions of which a case must meet all."""

    description: str | None = None
    """A regular expression that is searched in the test's description."""
    metadata: Sequence[str] = ()
    """`KEY=VALUE` pairs: the test's metadata of that name contains the text."""
    providers: str | None = None
    """A regular expression that is searched in the generator's label and its model's id."""
    earlier: tuple[EarlierCases, ...] = ()
    """Runs one of which must name the case."""
    first: int | None = None
    """The most tests whose cases run."""

    def __post_init__(self) -> None:
        """Refuse what is no regular expression or no pair.

        Raises:
            InvalidRequest: The message names the flag and its value.
        """
        for flag, pattern in (("--filter-pattern", self.description), ("--filter-providers", self.providers)):
            try:
                re.compile(pattern or "")
            except re.error as error:
                raise InvalidRequest(f"{flag}: {clip(pattern or '')} is no regular expression: {error}; correct it") from None
        if odd := next((pair for pair in self.metadata if not all(pair.partition("="))), None):
            raise InvalidRequest(f"--filter-metadata: {clip(odd)} is no pair; write KEY=VALUE")

    def __str__(self) -> str:
        return ", ".join(f"{name}: {clip(value)}" for name, value in self._named())

    def select(self, planned: Iterable[PlannedCase]) -> Iterator[PlannedCase]:
        """Yield the cases that meet the conditions, those of the first tests alone."""
        tests, last = 0, None
        for found in planned:
            if not self._admits(found):
                continue
            if found.test.spot is not last:  # the tests that lists in variables make are one
                tests, last = tests + 1, found.test.spot
            if self.first is not None and tests > self.first:
                return
            yield found

    def _admits(self, planned: PlannedCase) -> bool:
        test, case = planned.test.test, planned.case
        if self.description is not None and not (test.description and re.search(self.description, test.description)):
            return False
        if not all(_has(test.metadata, pair) for pair in self.metadata):
            return False
        if self.providers is not None and not any(re.search(self.providers, name) for name in _names(case)):
            return False
        return not self.earlier or any(case in run for run in self.earlier)

    def _named(self) -> Iterator[tuple[str, str]]:
        yield from [("--filter-pattern", self.description)] if self.description is not None else []
        yield from (("--filter-metadata", pair) for pair in self.metadata)
        yield from [("--filter-providers", self.providers)] if self.providers is not None else []
        yield from (("cases of", run.source) for run in self.earlier)


def _has(metadata: Mapping[str, JsonValue], pair: str) -> bool:
    key, _, wanted = pair.partition("=")
    value = metadata.get(key)
    items = value if isinstance(value, list) else [] if value is None else [value]
    return any(wanted in (str(item).lower() if isinstance(item, bool) else str(item)) for item in items)


def _names(case: Case) -> Iterator[str]:
    """Yield the names by which a case's generator is known."""
    yield from [case.label] if case.label else []
    if case.generator is not None and case.generator.model is not None:
        yield case.generator.model.id
