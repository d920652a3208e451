"""Flags of `gradeloop eval` that replace parts of a suite, or select the cases that run."""

import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from gradeloop.batches.contract import Case
from gradeloop.errors import InvalidRequest
from gradeloop.files.roots import FileScope
from gradeloop.settings.paths import holds_private
from gradeloop.suites.code_files import FILE, CodeGrant
from gradeloop.suites.datasets import LocatedTest
from gradeloop.text import clip

TEXT_SUFFIXES = (".txt", ".md", ".j2", ".json", ".jsonl", ".yaml", ".yml", ".csv")


@dataclass(frozen=True)
class Overrides:
    """Parts of a suite that the command line gives instead of its file; files are relative to the folder of the command."""

    prompts: tuple[str, ...] = ()
    """Files of prompts, patterns of such files, or prompts as text."""
    providers: tuple[str, ...] = ()
    """Ids or labels of the suite's generators, or other models."""
    tests: str | None = None
    """A file of tests."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of all tests that do not set them."""

    @property
    def makes_suite(self) -> bool:
        """Whether there is enough for a suite without a file: what is asked, and who answers."""
        return bool(self.prompts and self.providers)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are named, which a suite may read wherever they are."""
        return tuple(path for name in (*self.prompts, *filter(None, [self.tests])) for path in _matching(name))

    def apply(self, value: Mapping[str, JsonValue], *, promptfoo: bool) -> dict[str, JsonValue]:
        """Return a suite's value with the parts that are replaced; raise InvalidRequest where a file does not exist."""
        changed: dict[str, JsonValue] = dict(value)
        if self.prompts:
            changed["prompts"] = [entry for name in self.prompts for entry in _prompts(name)]
        if self.tests is not None:
            path = Path(self.tests.removeprefix(FILE))
            if not path.is_file():
                raise InvalidRequest(f"--tests: the file {clip(self.tests)} does not exist; name a file of tests")
            changed["tests"] = [str(path.resolve())]
        if self.providers:
            key = ("targets" if "targets" in value else "providers") if promptfoo else "generators"
            changed[key] = list(_providers(self.providers, value.get(key)))
        return changed


def overrides(
    prompts: Sequence[str] | None, providers: Sequence[str] | None, tests: str | None, variables: Sequence[str] | None
) -> Overrides:
    """Return what the flags `--prompts`, `--providers`, `--tests` and `--var` give; raise InvalidRequest where a variable is not a pair."""
    if odd := next((pair for pair in variables or () if not all(pair.partition("=")[:2])), None):
        raise InvalidRequest(f"--var: {clip(odd)} is not a pair; write NAME=VALUE")
    return Overrides(tuple(prompts or ()), tuple(providers or ()), tests, dict(pair.split("=", 1) for pair in variables or ()))


def _prompts(name: str) -> list[JsonValue]:
    """Return what the flag names: the files that a name or pattern stands for, or the prompt that it is itself."""
    found = _matching(name)
    if not found and "\n" not in name and " " not in name and Path(name).suffix in TEXT_SUFFIXES:
        raise InvalidRequest(f"--prompts: the file {clip(name)} does not exist; name a file, or write the prompt itself")
    return [f"{FILE}{path}" for path in found] or [name]


def _matching(name: str) -> list[Path]:
    """Return the files that a name or a pattern stands for; none where it is a text."""
    plain = name.removeprefix(FILE)
    try:
        if (path := Path(plain)).is_file():
            return [path.resolve()]
    except (OSError, ValueError):  # too long for a name: it is a text
        return []
    found = sorted(glob.glob(plain))  # noqa: PTH207 - a pattern may begin with / or ..
    return [Path(name).resolve() for name in found if Path(name).is_file()]


def _providers(names: Sequence[str], known: JsonValue) -> Iterator[JsonValue]:
    """Yield the generators of the suite that have these ids or labels, with their settings, and other models by their names."""
    entries = known if isinstance(known, list) else [] if known is None else [known]
    for name in names:
        same = [entry for entry in entries if name in _names_of_entry(entry)]
        ending = [entry for entry in entries if any(other.endswith(f":{name}") for other in _names_of_entry(entry))]
        yield next(iter([*same, *ending]), name)


def _names_of_entry(entry: JsonValue) -> Iterator[str]:
    """Yield the names of a generator: promptfoo's id, ours, or its label."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        model = entry.get("model")
        named = (entry.get("id"), entry.get("label"), model.get("id") if isinstance(model, dict) else model)
        yield from (name for name in named if isinstance(name, str))
        yield from entry if len(entry) == 1 and "id" not in entry else ()


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
        """Raise InvalidRequest, which names the flag, where a value is not a regular expression or not a pair."""
        for flag, pattern in (("--filter-pattern", self.description), ("--filter-providers", self.providers)):
            try:
                re.compile(pattern or "")
            except re.error as error:
                raise InvalidRequest(f"{flag}: {clip(pattern or '')} is not a regular expression: {error}; correct it") from None
        if odd := next((pair for pair in self.metadata if not all(pair.partition("="))), None):
            raise InvalidRequest(f"--filter-metadata: {clip(odd)} is not a pair; write KEY=VALUE")

    def __str__(self) -> str:
        return ", ".join(f"{name}: {clip(value)}" for name, value in self._named())

    def select(self, planned: Iterable[PlannedCase]) -> Iterator[PlannedCase]:
        """Yield the cases that meet the conditions, only those of the first tests."""
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
        if self.providers is not None and not any(re.search(self.providers, name) for name in _names_of_case(case)):
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


def _names_of_case(case: Case) -> Iterator[str]:
    """Yield the names by which a case's generator is known."""
    yield from [case.label] if case.label else []
    if case.generator is not None and case.generator.model is not None:
        yield case.generator.model.id


@dataclass(frozen=True)
class SuiteFlags:
    """Flags of `gradeloop eval` that override the suite file."""

    grader: str | None = None
    """The model that replaces the file's grader, except where a test or an assertion names its own."""
    filters: tuple[str, ...] = ()
    """Patterns with `*`, `?` and `[...]` that case ids match, or parts of case ids."""
    limit: int | None = None
    """The most of the selected cases that run."""
    loop: bool | None = None
    repeat: int | None = None
    tools: tuple[Path, ...] = ()
    scripted: Path | None = None
    allow_code: bool = False
    """Whether code of the suite may run, in the sandbox."""
    imports: tuple[Path, ...] = ()
    """The folders that it may import from besides the suite's own."""
    skip_unsupported: bool = False
    """Whether what is not supported is left out, and its cases are not judged."""
    check: bool = False
    """Whether nothing is going to run, so that no key is needed."""
    select: CaseFilters = CaseFilters()
    """Further conditions on the cases that run."""
    overrides: Overrides = Overrides()
    """Prompts, providers, tests and variables that replace the file's."""

    def grant(self, scope: FileScope) -> CodeGrant:
        """Return whether the code of a suite may run, and what it may import."""
        own, *_ = scope.roots.folders.values()
        return CodeGrant(self.allow_code, (*(() if holds_private(own) else (own,)), *self.imports) if self.allow_code else ())
