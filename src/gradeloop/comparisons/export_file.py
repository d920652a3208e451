"""The files that `gradeloop eval -o` writes, read back case by case: what a comparison needs of them, and nothing of the outputs."""

import json
from collections.abc import Iterator
from dataclasses import replace
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue, ValidationError

from gradeloop.batches.case_result import SCHEMA
from gradeloop.comparisons.batch_source import BatchSource, total_cost
from gradeloop.comparisons.compared_case import ComparedCase, compared_case
from gradeloop.comparisons.comparison import Cost
from gradeloop.comparisons.exported_case import ExportedCase, ExportedSummary, ExportHead
from gradeloop.errors import InvalidRequest, explain
from gradeloop.printable import clip, counted

CURE = "write it with: gradeloop batches export BATCH -o results.json"
_FAMILY, _, _NUMBER = SCHEMA.rpartition("/")
_BOM = b"\xef\xbb\xbf"


class _Found(NamedTuple):
    """A case, and where it stands in words."""

    place: str
    case: ExportedCase


def read_export(path: Path) -> BatchSource:
    """Return the batch of a file; what it is, its first line tells.

    Raises:
        InvalidRequest: It cannot be read, or holds no results; the message names file, line and cure.
    """
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except FileNotFoundError:
        raise InvalidRequest(f"there is no file {clip(str(path), 200)}; name one, or a batch of the store by its id") from None
    except OSError as error:
        raise InvalidRequest(f"{clip(str(path), 200)} cannot be read: {error.strerror}") from None


def _read(path: Path, file: BufferedReader) -> BatchSource:
    first = file.readline().removeprefix(_BOM)
    if not first.strip():
        raise InvalidRequest(f"{path}, line 1: it is empty; {CURE}")
    head = _json(first)
    _refuse_other_schema(head, f"{path}, line 1")
    if isinstance(head, dict) and "status" in head:
        return _source(path, None, _lines(path, chain([first], file)))
    return _document(path, first, file)


def _lines(path: Path, lines: Iterator[bytes]) -> Iterator[_Found]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"{path}, line {number}"
            yield _Found(place, _case(line, place))


def _document(path: Path, first: bytes, file: BufferedReader) -> BatchSource:
    """Return a document: a line a case, as it is written, is not held as a whole; what another program laid out is."""
    head = [first, *(file.readline() for _ in range(3))]
    if head[3].strip() == b'"cases":[':
        whole = _json(b"".join(head) + b"]}")
        if whole is not None:
            return _source(path, _checked(path, whole), _listed(path, file))
    rest = file.read()
    whole = _json(b"".join(head) + rest)
    _refuse_other_schema(whole, f"{path}, line 1")
    if not isinstance(whole, dict) or not isinstance(cases := whole.get("cases"), list):
        raise InvalidRequest(f"{path}, line {_odd_line(b''.join(head) + rest)}: it holds no results of a batch; {CURE}")
    found = ((f"{path}, cases[{at}]", each) for at, each in enumerate(cases))
    return _source(path, _checked(path, whole), (_Found(place, _case(json.dumps(each).encode(), place)) for place, each in found))


def _listed(path: Path, file: BufferedReader) -> Iterator[_Found]:
    """Yield the cases of a document from its fifth line on."""
    number = 4
    for number, line in enumerate(file, 5):
        text = line.strip()
        if text == b"]}":
            return
        place = f"{path}, line {number}"
        yield _Found(place, _case(text.removesuffix(b","), place))
    raise InvalidRequest(f"{path}, line {number}: its end is missing, so cases may be, too; {CURE}")


def _checked(path: Path, whole: JsonValue) -> ExportedSummary:
    _refuse_other_schema(whole, f"{path}, line 1")
    try:
        return ExportHead.model_validate(whole).summary
    except ValidationError as error:
        raise InvalidRequest(f"{path}, line 1: it holds no results of a batch: {explain(error)}; {CURE}") from None


def _case(text: bytes, place: str) -> ExportedCase:
    try:
        found = ExportedCase.model_validate_json(text)
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


def _source(path: Path, summary: ExportedSummary | None, found: Iterator[_Found]) -> BatchSource:
    """Return the batch; where a case is there twice, as in files that were put together, its last line counts."""
    cases: dict[str, ComparedCase] = {}
    costs: dict[str, Cost] = {}
    lines = 0
    for lines, each in enumerate(found, 1):  # noqa: B007 - counted to the end
        cases[each.case.id] = compared_case(each.case)
        costs[each.case.id] = each.case.usage.cost
    twice = lines - len(cases)
    notes = (f"{path}: {counted(twice, 'line')} of cases that come again; the last one of each counts",) if twice else ()
    alone = BatchSource(source=str(path), cases=tuple(cases.values()), cost=total_cost(costs.values()), notes=notes)
    if summary is None:
        return alone
    return replace(
        alone,
        batch_id=summary.batch_id,
        suite=summary.name,
        created=summary.created,
        status=summary.status,
        cost=summary.usage.cost,
    )
