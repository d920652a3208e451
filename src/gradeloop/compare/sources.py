"""The batches of a comparison, read from the store or from exported files."""

import asyncio
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BufferedReader
from itertools import chain
from pathlib import Path
from sys import intern
from typing import Generic, TypeVar

from pydantic import Field, JsonValue, ValidationError

from gradeloop.batches.answer import unsure_reason
from gradeloop.batches.contract import SCHEMA, BatchStatus, BatchSummary, CaseResult, CaseStatus
from gradeloop.batches.reader import BatchReader
from gradeloop.contract.base import RECORDED, Recorded, Strict
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.contract.messages import Usage
from gradeloop.errors import InvalidRequest, explain
from gradeloop.text import clip, counted, did_you_mean, one_line, shortened

CURE = "write it with: gradeloop batches export BATCH -o results.json"
_FAMILY, _, _NUMBER = SCHEMA.rpartition("/")
_BOM = b"\xef\xbb\xbf"

Kept = TypeVar("Kept")


GAP_CHARACTERS = 300
"""The most characters of a gap that are kept: 100,000 cases fit into memory, and a table shows less."""


@dataclass(frozen=True, slots=True)
class ComparedVerdict:
    """A verdict on a criterion."""

    id: str
    name: str
    passed: bool | None
    """The grader's verdict, or that of the person who overrode it; None where there is no verdict."""
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
        """Whether the run has a verdict; an error is not one."""
        return self.status in {"passed", "failed"}


def compared_case(result: CaseResult) -> ComparedCase:
    """Return the part of a result that a comparison needs."""
    verdicts = tuple(_verdict(row) for row in result.criteria)
    error = unsure_reason(result) if result.status == "unsure" else result.error
    return ComparedCase(result.id, result.repeat, result.status, result.score, verdicts, _cut(error))


def _verdict(row: CriterionRow) -> ComparedVerdict:
    if (override := row.override) is not None:
        gap = "" if override.passed else _cut(override.why)
        return ComparedVerdict(intern(row.id), intern(row.name), override.passed, overridden=True, gap=gap)
    passed = None if row.unverified else row.passed
    if passed:
        return _passing(row.id, row.name)
    return ComparedVerdict(intern(row.id), intern(row.name), passed, gap=_cut(row.gap or row.reason))


@lru_cache(maxsize=10_000)
def _passing(name: str, text: str) -> ComparedVerdict:
    """Return the passing verdict on a criterion, one object for all cases that pass it."""
    return ComparedVerdict(intern(name), intern(text), passed=True)


def _cut(text: str | None) -> str:
    """Return the beginning of an error or a gap."""
    whole = text or ""
    return whole if len(whole) <= GAP_CHARACTERS else f"{whole[: GAP_CHARACTERS - 1]}…"


class Cost(Strict):
    """The tokens and the cost of a batch."""

    tokens: int | None = 0
    """Input and output tokens; None where the server of some call does not report them."""
    cost_usd: float | None = None
    """None where the price or the tokens of some call are unknown, or no model was called."""


@dataclass(frozen=True)
class BatchSource:
    """A batch to compare."""

    source: str
    cases: Sequence[ComparedCase]
    batch_id: str | None = None
    suite: str | None = None
    created: str | None = None
    status: BatchStatus | None = None
    cost: Cost = field(default_factory=Cost)
    notes: tuple[str, ...] = ()


def total_cost(parts: Iterable[Cost]) -> Cost:
    """Return the sum; it is unknown where a part that used tokens has no known cost."""
    tokens, dollars, unreported, unknown = 0, 0.0, False, False
    for part in parts:
        tokens += part.tokens or 0
        dollars += part.cost_usd or 0.0
        unreported |= part.tokens is None
        unknown |= part.cost_usd is None and part.tokens != 0
    return Cost(tokens=None if unreported else tokens, cost_usd=None if unknown or not (tokens or unreported) else dollars)


SUFFIXES = (".json", ".jsonl")
"""The files that `diff` reads; CSV and JUnit have no results by criterion."""

_INCOMPLETE_SUFFIXES = (".csv", ".xml", ".html")
_LATEST = re.compile(r"latest(?:~(\d{1,4}))?")


def load_batch(named: str, reader: Callable[[], BatchReader]) -> BatchSource:
    """Load a batch by its id, as `latest` or `latest~N`, the Nth before the newest, or from a file.

    A name with a slash or with a file's suffix is a file: ids have no slash.

    Args:
        named: The name as the user wrote it.
        reader: Opens the store's batches; called only for a batch of the store.

    Raises:
        InvalidRequest: There is no such batch or file, or the file holds no results; the message names file, line and cure.
        StoreUnavailable: The store cannot be used.
    """
    if is_batch_file(named):
        return read_batch_file(Path(named))
    if (suffix := Path(named).suffix.lower()) in _INCOMPLETE_SUFFIXES:
        hint = "write its results to a .json or .jsonl file: gradeloop batches export BATCH -o results.json"
        raise InvalidRequest(f"{clip(named)}: a {suffix} file has no results by criterion; {hint}")
    batches = reader()
    with batches.snapshot(asyncio.run(_batch_id(named, batches))) as found:
        return stored_source(found.summary, found.results())


def is_batch_file(named: str) -> bool:
    """Return whether a batch's name means a file, which need not exist: it has a slash, or a file's suffix."""
    return Path(named).suffix.lower() in SUFFIXES or "/" in named


OUTPUT_CHARACTERS = 20_000
"""The most characters of an output that a comparison shows."""


@dataclass(frozen=True)
class ShownCase:
    """What a comparison shows of a case beside its verdict."""

    output: str
    asked: str
    """The case's description and variables, in one line; empty where it has neither."""


ASKED_CHARACTERS = 400
"""The most characters of what was asked."""


def read_outputs(named: str, ids: Collection[str], reader: Callable[[], BatchReader]) -> dict[str, ShownCase]:
    """Return the outputs of some cases of a batch that `load_batch` reads, by the cases' ids; of a repeated case, that of its first run."""
    found: dict[str, ShownCase] = {}

    def keep(result: CaseResult) -> None:
        name = result.id if result.id in ids else result.id.removesuffix(f"/{result.repeat + 1}")
        if name in ids and result.output is not None:
            found.setdefault(name, ShownCase(shortened(result.output, OUTPUT_CHARACTERS), _asked(result)))

    if is_batch_file(named):
        read_export(Path(named), keep)
        return found
    batches = reader()
    with batches.snapshot(asyncio.run(_batch_id(named, batches))) as batch:
        for result in batch.results():
            keep(result)
    return found


def _asked(result: CaseResult) -> str:
    """Return what a case asks: its description and its variables, where they are texts or numbers, each text once."""
    known = {name: one_line(str(value)) for name, value in result.vars.items() if isinstance(value, str | int | float)}
    about = one_line(result.description or "")
    about = "" if any(about in value for value in known.values()) else about
    values = [f"{name}: {value}" for name, value in known.items() if not value or value not in about]
    return shortened(" · ".join([*([about] if about else []), *values]), ASKED_CHARACTERS)


def stored_source(summary: BatchSummary, results: Iterable[CaseResult]) -> BatchSource:
    """Return a batch of the store, its results gone through once."""
    return _build_source(summary.batch_id, [compared_case(result) for result in results], summary)


def read_batch_file(path: Path) -> BatchSource:
    """Read the batch in a file that `gradeloop eval -o` wrote.

    Raises:
        InvalidRequest: The file cannot be read, or holds no results; the message names file, line and cure.
    """
    export = read_export(path, lambda result: (compared_case(result), _cost(result.usage)))
    cases, costs = [case for case, _ in export.cases], [cost for _, cost in export.cases]
    if export.summary is None:
        return BatchSource(source=str(path), cases=cases, cost=total_cost(costs), notes=export.notes)
    return _build_source(str(path), cases, export.summary, export.notes)


def _build_source(source: str, cases: Sequence[ComparedCase], summary: BatchSummary, notes: tuple[str, ...] = ()) -> BatchSource:
    return BatchSource(source, cases, summary.batch_id, summary.name, summary.created, summary.status, _cost(summary.usage), notes)


def _cost(usage: Usage) -> Cost:
    return Cost(tokens=usage.tokens, cost_usd=usage.cost_usd)


async def _batch_id(named: str, reader: BatchReader) -> str:
    latest = _LATEST.fullmatch(named)
    if latest is None:
        return named
    before = int(latest[1] or 0)
    summaries = await reader.summaries(before + 1)
    if len(summaries) <= before:
        known = did_you_mean(named, [summary.batch_id for summary in summaries[:20]]) if summaries else ""
        raise InvalidRequest(f"there is no batch {clip(named)}: the store has {len(summaries) or 'none'}.{known}")
    return summaries[before].batch_id


class ExportedCase(CaseResult):
    """A case in a file of results."""

    schema_name: str = Field(default=SCHEMA, alias="schema")


class _ExportHead(Recorded):
    """The members of a `.json` file before its cases."""

    schema_name: str = Field(alias="schema")
    summary: BatchSummary


@dataclass(frozen=True)
class Export(Generic[Kept]):
    """The batch in a file."""

    summary: BatchSummary | None
    """None for a `.jsonl` file, which has cases alone."""
    cases: tuple[Kept, ...]
    notes: tuple[str, ...]


def read_export(path: Path, keep: Callable[[CaseResult], Kept]) -> Export[Kept]:
    """Read the batch in a `.json` or `.jsonl` file; the first line shows which of them it is.

    Args:
        path: The file.
        keep: Returns what to keep of a case, so that a large file need not fit into memory.

    Raises:
        InvalidRequest: The file cannot be read, or holds no results; the message names file, line and cure.
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
    """Read a `.json` file line by line as gradeloop writes it, or as a whole where another program laid it out."""
    head = [first, *(file.readline() for _ in range(3))]
    if head[3].strip() == b'"cases":[':
        document = _json(b"".join(head) + b"]}")
        if document is not None:
            return _export(path, _summary_of(path, document), _cases_by_line(path, file), keep)
    rest = file.read()
    document = _json(b"".join(head) + rest)
    _refuse_other_schema(document, f"{path}, line 1")
    if not isinstance(document, dict) or not isinstance(cases := document.get("cases"), list):
        raise InvalidRequest(f"{path}, line {_odd_line(b''.join(head) + rest)}: it holds no results of a batch; {CURE}")
    parsed = (_case(json.dumps(case).encode(), f"{path}, cases[{at}]") for at, case in enumerate(cases))
    return _export(path, _summary_of(path, document), parsed, keep)


def _cases_by_line(path: Path, file: BufferedReader) -> Iterator[ExportedCase]:
    """Yield the cases of a `.json` file from its fifth line on."""
    number = 4
    for number, line in enumerate(file, 5):
        text = line.strip()
        if text == b"]}" or (text == b"]," and _ends_with_metrics(file.readline())):
            return
        if text == b"],":
            break
        yield _case(text.removesuffix(b","), f"{path}, line {number}")
    raise InvalidRequest(f"{path}, line {number}: the end of the file is missing, and perhaps cases; {CURE}")


def _ends_with_metrics(line: bytes) -> bool:
    """Tell whether the line after the cases is the last one, with the figures that are calculated from them."""
    return line.startswith(b'"metrics":') and isinstance(_json(b"{" + line.strip()), dict)


def _summary_of(path: Path, document: JsonValue) -> BatchSummary:
    _refuse_other_schema(document, f"{path}, line 1")
    try:
        return _ExportHead.model_validate(document, context=RECORDED).summary
    except ValidationError as error:
        raise InvalidRequest(f"{path}, line 1: it holds no results of a batch: {explain(error)}; {CURE}") from None


def _case(text: bytes, place: str) -> ExportedCase:
    try:
        case = ExportedCase.model_validate_json(text, context=RECORDED)
    except ValidationError as error:
        _refuse_other_schema(_json(text), place)
        raise InvalidRequest(f"{place}: it is no case of a batch: {explain(error)}; {CURE}") from None
    if case.schema_name != SCHEMA:
        _refuse_other_schema({"schema": case.schema_name}, place)
    return case


def _refuse_other_schema(value: JsonValue, place: str) -> None:
    named = value.get("schema") if isinstance(value, dict) else None
    if named is None or named == SCHEMA:
        return
    family, _, number = str(named).rpartition("/")
    newer = family == _FAMILY and number.isdecimal() and int(number) > int(_NUMBER)
    cure = "install a newer gradeloop" if newer else CURE
    raise InvalidRequest(f"{place}: its schema is {clip(str(named))}, this gradeloop reads {SCHEMA}; {cure}")


def _json(text: bytes) -> JsonValue:
    """Parse JSON; return None where the text is no JSON."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def _odd_line(text: bytes) -> int:
    """Return the line where the text stops being JSON; 1 where it is valid JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.lineno
    except (ValueError, RecursionError):
        pass
    return 1


def _export(path: Path, summary: BatchSummary | None, parsed: Iterator[ExportedCase], keep: Callable[[CaseResult], Kept]) -> Export[Kept]:
    """Return the batch; where a case is there twice, as in concatenated files, its last line counts."""
    cases: dict[str, Kept] = {}
    lines = 0
    for lines, case in enumerate(parsed, 1):  # noqa: B007 - counted to the end
        cases[case.id] = keep(case)
    twice = lines - len(cases)
    notes = (f"{path}: {counted(twice, 'line')} of cases that come again; the last one of each counts",) if twice else ()
    return Export(summary, tuple(cases.values()), notes)
