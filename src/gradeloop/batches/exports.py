"""Batches read by their names: from the store, or from the files that `gradeloop eval -o` wrote."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import Field, JsonValue, ValidationError

from gradeloop.batches.contract import SCHEMA, BatchSummary, CaseResult
from gradeloop.batches.reader import BatchReader
from gradeloop.contract.base import RECORDED, Tolerant
from gradeloop.contract.messages import Usage
from gradeloop.errors import InvalidRequest, explain
from gradeloop.text import clip, counted, did_you_mean

CURE = "write it with: gradeloop batches export BATCH -o results.json"
_FAMILY, _, _NUMBER = SCHEMA.rpartition("/")
_BOM = b"\xef\xbb\xbf"

Kept = TypeVar("Kept")

SUFFIXES = (".json", ".jsonl")
"""The files of results that can be read again; CSV and JUnit have no results by criterion."""

_INCOMPLETE_SUFFIXES = (".csv", ".xml", ".html")
_LATEST = re.compile(r"latest(?:~(\d{1,4}))?")


@dataclass(frozen=True)
class ReadBatch(Generic[Kept]):
    """A batch of the store or of a file, with what was kept of each of its cases."""

    source: str
    """The batch's id, or its file."""
    cases: Sequence[Kept]
    summary: BatchSummary | None = None
    """None for a `.jsonl` file, which has only cases, and for a thread."""
    notes: tuple[str, ...] = ()
    thread: Usage | None = None
    """The usage of the thread whose drafts the cases are."""


def read_batch(named: str, reader: Callable[[], BatchReader], keep: Callable[[CaseResult], Kept]) -> ReadBatch[Kept]:
    """Read a batch by its id, as `latest` or `latest~N`, the Nth before the newest, or from a file.

    A name with a slash or with a file's suffix is a file: ids have no slash.

    Args:
        named: The name as the user wrote it.
        reader: Opens the store's batches; called only for a batch of the store.
        keep: Returns what to keep of a case, so that a large batch need not fit into memory.

    Raises:
        InvalidRequest: There is no such batch or file, or the file holds no results; the message names file, line and cure.
        StoreUnavailable: The store cannot be used.
    """
    if is_batch_file(named):
        return read_export(Path(named), keep)
    if (suffix := Path(named).suffix.lower()) in _INCOMPLETE_SUFFIXES:
        hint = "write its results to a .json or .jsonl file: gradeloop batches export BATCH -o results.json"
        raise InvalidRequest(f"{clip(named)}: a {suffix} file has no results by criterion; {hint}")
    batches = reader()
    with batches.snapshot(asyncio.run(_batch_id(named, batches))) as found:
        return ReadBatch(found.summary.batch_id, [keep(result) for result in found.results()], found.summary)


def is_batch_file(named: str) -> bool:
    """Return whether a batch's name means a file, which need not exist: it has a slash, or a file's suffix."""
    return Path(named).suffix.lower() in SUFFIXES or "/" in named


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


class _ExportHead(Tolerant):
    """The members of a `.json` file before its cases."""

    schema_name: str = Field(alias="schema")
    summary: BatchSummary


def read_export(path: Path, keep: Callable[[CaseResult], Kept]) -> ReadBatch[Kept]:
    """Read the batch in a `.json` or `.jsonl` file; the first line shows which of them it is.

    `keep`: returns what to keep of a case, so that a large file need not fit into memory.

    Raises:
        InvalidRequest: The file cannot be read, or holds no results; the message names file, line and cure.
    """
    cases, lines = dict[str, Kept](), 0
    try:
        with path.open("rb") as file:
            summary, parsed = _open(path, file)
            for lines, case in enumerate(parsed, 1):  # noqa: B007 - counted to the end
                cases[case.id] = keep(case)  # where a case is there twice, as in concatenated files, its last line counts
    except FileNotFoundError:
        raise InvalidRequest(f"there is no file {clip(str(path), 200)}; name one, or a batch of the store by its id") from None
    except OSError as error:
        raise InvalidRequest(f"{clip(str(path), 200)} cannot be read: {error.strerror}") from None
    twice = lines - len(cases)
    notes = (f"{path}: {counted(twice, 'line')} of cases that come again; the last one of each counts",) if twice else ()
    return ReadBatch(str(path), list(cases.values()), summary, notes)


_Opened = tuple[BatchSummary | None, Iterator[ExportedCase]]


def _open(path: Path, file: BufferedReader) -> _Opened:
    first = file.readline().removeprefix(_BOM)
    if not first.strip():
        raise InvalidRequest(f"{path}, line 1: it is empty; {CURE}")
    head = _json(first)
    _refuse_other_schema(head, f"{path}, line 1")
    if isinstance(head, dict) and "status" in head:
        lines = enumerate(chain([first], file), 1)
        return None, (_case(line, f"{path}, line {number}") for number, line in lines if line.strip())
    return _open_document(path, first, file)


def _open_document(path: Path, first: bytes, file: BufferedReader) -> _Opened:
    """Read a `.json` file line by line as gradeloop writes it, or as a whole where another program laid it out."""
    # Our own files have the cases from the fifth line on, one a line, so that a large one is read without
    # being held in memory. Four lines and the end of an object show whether a file is one of these. Another
    # program may have laid the same JSON out otherwise, and then all of it is read at once.
    head = b"".join(lines := [first, *(file.readline() for _ in range(3))])
    if lines[3].strip() == b'"cases":[' and (document := _json(head + b"]}")) is not None:
        return _summary_of(path, document), _cases_by_line(path, file)
    document = _json(whole := head + file.read())
    _refuse_other_schema(document, f"{path}, line 1")
    if not isinstance(document, dict) or not isinstance(cases := document.get("cases"), list):
        raise InvalidRequest(f"{path}, line {_odd_line(whole)}: it holds no results of a batch; {CURE}")
    parsed = (_case(json.dumps(case).encode(), f"{path}, cases[{at}]") for at, case in enumerate(cases))
    return _summary_of(path, document), parsed


def _cases_by_line(path: Path, file: BufferedReader) -> Iterator[ExportedCase]:
    """Yield the cases of a `.json` file from its fifth line on."""
    number = 4
    # A file that was cut, such as by a full disk, has fewer cases and no end. Without the check of the end it
    # would be read as a smaller batch, and its pass rate be believed.
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
        raise InvalidRequest(f"{place}: it is not a case of a batch: {explain(error)}; {CURE}") from None
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
    """Parse JSON; return None where the text is not JSON."""
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
