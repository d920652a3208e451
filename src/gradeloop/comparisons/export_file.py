"""The files that `gradeloop eval -o` writes, read back case by case; keys that a later version added are ignored."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import Field, JsonValue, ValidationError

from gradeloop.batches.case_result import SCHEMA, BatchSummary, CaseResult
from gradeloop.errors import InvalidRequest, explain
from gradeloop.printable import clip, counted
from gradeloop.strict import RECORDED, Recorded

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
