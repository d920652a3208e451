"""Where the batches of a comparison come from: the store, or files that were exported."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BufferedReader
from itertools import chain
from pathlib import Path
from sys import intern
from typing import Generic, TypeVar

from pydantic import Field, JsonValue, ValidationError

from gradeloop.batches.contract import SCHEMA, BatchStatus, BatchSummary, CaseResult, CaseStatus
from gradeloop.batches.reader import BatchReader
from gradeloop.contract.base import RECORDED, Recorded, Strict
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.contract.messages import Usage
from gradeloop.errors import InvalidRequest, explain
from gradeloop.text import clip, counted, did_you_mean

CURE = "write it with: gradeloop batches export BATCH -o results.json"
_FAMILY, _, _NUMBER = SCHEMA.rpartition("/")
_BOM = b"\xef\xbb\xbf"

Kept = TypeVar("Kept")


class ExportedCase(CaseResult):
    """A case of a file."""

    schema_name: str = Field(default=SCHEMA, alias="schema")


class _ExportHead(Recorded):
    """What comes before the cases of a `.json` file."""

    schema_name: str = Field(alias="schema")
    summary: BatchSummary


@dataclass(frozen=True)
class Export(Generic[Kept]):
    """What a file holds."""

    summary: BatchSummary | None
    """None where the file has a line a case and nothing else."""
    cases: tuple[Kept, ...]
    notes: tuple[str, ...]


def read_export(path: Path, keep: Callable[[CaseResult], Kept]) -> Export[Kept]:
    """Return the batch of a file, whose kind its first line shows.

    Args:
        path: The file.
        keep: Returns what to keep of a case, so that a large file need not fit into memory.

    Raises:
        InvalidRequest: It cannot be read, or holds no results; the message names file, line and cure.
    """
    try:
        with path.open("rb") as file:
            return _read_batch(path, file, keep)
    except FileNotFoundError:
        raise InvalidRequest(f"there is no file {clip(str(path), 200)}; name one, or a batch of the store by its id") from None
    except OSError as error:
        raise InvalidRequest(f"{clip(str(path), 200)} cannot be read: {error.strerror}") from None


def _read_batch(path: Path, file: BufferedReader, keep: Callable[[CaseResult], Kept]) -> Export[Kept]:
    first = file.readline().removeprefix(_BOM)
    if not first.strip():
        raise InvalidRequest(f"{path}, line 1: it is empty; {CURE}")
    head = _json(first)
    _refuse_other_schema(head, f"{path}, line 1")
    if isinstance(head, dict) and "status" in head:
        lines = enumerate(chain([first], file), 1)
        return _export(path, None, (_case(line, f"{path}, line {number}") for number, line in lines if line.strip()), keep)
    return _document(path, first, file, keep)


def _document(path: Path, first: bytes, file: BufferedReader, keep: Callable[[CaseResult], Kept]) -> Export[Kept]:
    """Return a document: a line a case, as it is written, is not held as a whole; what another program laid out is."""
    head = [first, *(file.readline() for _ in range(3))]
    if head[3].strip() == b'"cases":[':
        whole = _json(b"".join(head) + b"]}")
        if whole is not None:
            return _export(path, _checked(path, whole), _listed(path, file), keep)
    rest = file.read()
    whole = _json(b"".join(head) + rest)
    _refuse_other_schema(whole, f"{path}, line 1")
    if not isinstance(whole, dict) or not isinstance(cases := whole.get("cases"), list):
        raise InvalidRequest(f"{path}, line {_odd_line(b''.join(head) + rest)}: it holds no results of a batch; {CURE}")
    found = (_case(json.dumps(case).encode(), f"{path}, cases[{at}]") for at, case in enumerate(cases))
    return _export(path, _checked(path, whole), found, keep)


def _listed(path: Path, file: BufferedReader) -> Iterator[ExportedCase]:
    """Yield the cases of a document from its fifth line on."""
    number = 4
    for number, line in enumerate(file, 5):
        text = line.strip()
        if text == b"]}":
            return
        yield _case(text.removesuffix(b","), f"{path}, line {number}")
    raise InvalidRequest(f"{path}, line {number}: its end is missing, so cases may be, too; {CURE}")


def _checked(path: Path, whole: JsonValue) -> BatchSummary:
    _refuse_other_schema(whole, f"{path}, line 1")
    try:
        return _ExportHead.model_validate(whole, context=RECORDED).summary
    except ValidationError as error:
        raise InvalidRequest(f"{path}, line 1: it holds no results of a batch: {explain(error)}; {CURE}") from None


def _case(text: bytes, place: str) -> ExportedCase:
    try:
        found = ExportedCase.model_validate_json(text, context=RECORDED)
    except ValidationError as error:
        _refuse_other_schema(_json(text), place)
        raise InvalidRequest(f"{place}: it is no case of a batch: {explain(error)}; {CURE}") from None
    if found.schema_name != SCHEMA:
        _refuse_other_schema({"schema": found.schema_name}, place)
    return found


def _refuse_other_schema(value: JsonValue, place: str) -> None:
    named = value.get("schema") if isinstance(value, dict) else None
    if named is None or named == SCHEMA:
        return
    family, _, number = str(named).rpartition("/")
    newer = family == _FAMILY and number.isdecimal() and int(number) > int(_NUMBER)
    cure = "install a newer gradeloop" if newer else CURE
    raise InvalidRequest(f"{place}: it is of {clip(str(named))}, this gradeloop reads {SCHEMA}; {cure}")


def _json(text: bytes) -> JsonValue:
    """Return a value; None where it is no JSON."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def _odd_line(text: bytes) -> int:
    """Return the line where the text stops being JSON; 1 where it is JSON of something else."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.lineno
    except (ValueError, RecursionError):
        pass
    return 1


def _export(path: Path, summary: BatchSummary | None, found: Iterator[ExportedCase], keep: Callable[[CaseResult], Kept]) -> Export[Kept]:
    """Return the batch; where a case is there twice, as in files that were put together, its last line counts."""
    cases: dict[str, Kept] = {}
    lines = 0
    for lines, case in enumerate(found, 1):  # noqa: B007 - counted to the end
        cases[case.id] = keep(case)
    twice = lines - len(cases)
    notes = (f"{path}: {counted(twice, 'line')} of cases that come again; the last one of each counts",) if twice else ()
    return Export(summary, tuple(cases.values()), notes)


GAP_CHARACTERS = 300
"""Kept of what is said against a criterion: 100,000 cases fit into memory, and a table shows less."""


@dataclass(frozen=True, slots=True)
class ComparedVerdict:
    """A verdict on a criterion."""

    id: str
    name: str
    passed: bool | None
    """As a person says who overrode it; None where nobody gave a verdict."""
    overridden: bool = False
    gap: str = ""


@dataclass(frozen=True, slots=True)
class ComparedCase:
    """One run of a case."""

    id: str
    repeat: int
    status: CaseStatus
    score: float | None
    verdicts: tuple[ComparedVerdict, ...]
    error: str = ""

    @property
    def judged(self) -> bool:
        """Whether there is a verdict: an error is none."""
        return self.status in {"passed", "failed"}


def compared_case(result: CaseResult) -> ComparedCase:
    """Return what a comparison keeps of a result."""
    verdicts = tuple(_verdict(row) for row in result.criteria)
    return ComparedCase(result.id, result.repeat, result.status, result.score, verdicts, _cut(result.error))


def _verdict(row: CriterionRow) -> ComparedVerdict:
    said = row.override
    if said is not None:
        return ComparedVerdict(intern(row.id), intern(row.name), said.passed, overridden=True, gap="" if said.passed else _cut(said.why))
    passed = None if row.unverified else row.passed
    return (
        _passing(row.id, row.name) if passed else ComparedVerdict(intern(row.id), intern(row.name), passed, gap=_cut(row.gap or row.reason))
    )


@lru_cache(maxsize=10_000)
def _passing(name: str, text: str) -> ComparedVerdict:
    """Return the pass of a criterion, which most cases share."""
    return ComparedVerdict(intern(name), intern(text), passed=True)


def _cut(text: str | None) -> str:
    """Return the beginning of what is said against a case or a criterion."""
    whole = text or ""
    return whole if len(whole) <= GAP_CHARACTERS else f"{whole[: GAP_CHARACTERS - 1]}…"


class Cost(Strict):
    """The tokens and the cost of a batch."""

    tokens: int = 0
    """In and out."""
    cost_usd: float | None = None
    """None where it is not known, or nothing was called."""


@dataclass(frozen=True)
class BatchSource:
    """A batch as it was read."""

    source: str
    cases: Sequence[ComparedCase]
    batch_id: str | None = None
    suite: str | None = None
    created: str | None = None
    status: BatchStatus | None = None
    cost: Cost = field(default_factory=Cost)
    notes: tuple[str, ...] = ()


def total_cost(parts: Iterable[Cost]) -> Cost:
    """Return the sum; a part whose cost is not known makes it unknown, but for one that used nothing."""
    tokens, dollars, unknown = 0, 0.0, False
    for part in parts:
        tokens += part.tokens
        dollars += part.cost_usd or 0.0
        unknown |= part.cost_usd is None and part.tokens > 0
    return Cost(tokens=tokens, cost_usd=None if unknown or not tokens else dollars)


SUFFIXES = (".json", ".jsonl")
"""Of the files that have all of a case; CSV and JUnit leave out what its criteria came to."""

_OTHERS = (".csv", ".xml", ".html")
_NEWEST = re.compile(r"latest(?:~(\d{1,4}))?")


def load_batch(named: str, reader: Callable[[], BatchReader]) -> BatchSource:
    """Return a batch by its id, as `latest` or `latest~N`, the Nth before the newest, or from a file.

    A name with a slash or with a file's suffix is a file's: ids have no slash.

    Args:
        named: As the user wrote it.
        reader: The store's batches, asked for only where it takes a store.

    Raises:
        InvalidRequest: It is neither, or the file holds no results; the message names file, line and cure.
        StoreUnavailable: The store cannot be used.
    """
    suffix = Path(named).suffix.lower()
    if suffix in SUFFIXES or "/" in named:
        return read_batch_file(Path(named))
    if suffix in _OTHERS:
        hint = "write its results to a .json or .jsonl file: gradeloop batches export BATCH -o results.json"
        raise InvalidRequest(f"{clip(named)}: a {suffix} file has no results by criterion; {hint}")
    return _stored(named, reader())


def read_batch_file(path: Path) -> BatchSource:
    """Return the batch of a file that `gradeloop eval -o` wrote.

    Raises:
        InvalidRequest: It cannot be read, or holds no results; the message names file, line and cure.
    """
    found = read_export(path, lambda result: (compared_case(result), _cost(result.usage)))
    cases, costs = [case for case, _ in found.cases], [cost for _, cost in found.cases]
    if found.summary is None:
        return BatchSource(source=str(path), cases=cases, cost=total_cost(costs), notes=found.notes)
    return _summarized(str(path), cases, found.summary, found.notes)


def _stored(named: str, reader: BatchReader) -> BatchSource:
    summary = asyncio.run(_summary(named, reader))
    return _summarized(summary.batch_id, [compared_case(result) for result in reader.results(summary.batch_id)], summary)


def _summarized(source: str, cases: Sequence[ComparedCase], summary: BatchSummary, notes: tuple[str, ...] = ()) -> BatchSource:
    return BatchSource(source, cases, summary.batch_id, summary.name, summary.created, summary.status, _cost(summary.usage), notes)


def _cost(usage: Usage) -> Cost:
    return Cost(tokens=usage.tokens, cost_usd=usage.cost_usd)


async def _summary(named: str, reader: BatchReader) -> BatchSummary:
    asked = _NEWEST.fullmatch(named)
    if asked is None:
        return await reader.summary(named)
    before = int(asked[1] or 0)
    found = await reader.summaries(before + 1)
    if len(found) <= before:
        known = did_you_mean(named, [each.batch_id for each in found[:20]]) if found else ""
        raise InvalidRequest(f"there is no batch {clip(named)}: the store has {len(found) or 'none'}.{known}")
    return found[before]
