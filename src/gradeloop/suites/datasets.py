"""Tests read from CSV, JSON, JSONL and YAML files, row by row, with the place of every row."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from pydantic import JsonValue

from gradeloop.batches.contract import CASE_BYTES
from gradeloop.errors import InvalidRequest
from gradeloop.files.roots import FileScope
from gradeloop.files.yaml import Location, explained_at, read_placed
from gradeloop.suites.code_files import FILE
from gradeloop.suites.suite import SuiteTest, is_file
from gradeloop.text import clip, did_you_mean, leading_json

SPECIAL = ("id", "description", "output", "rubric", "threshold")
"""Columns of CSV that are fields of the test; all others are variables."""

SPECIAL_IN_JSON = (*SPECIAL, "messages", "assert")
"""Keys that are fields of the test in a row of JSONL, JSON or YAML without `vars`; all others are variables."""

SUFFIXES = (".csv", ".jsonl", ".json", ".yaml", ".yml")


@dataclass(frozen=True)
class DatasetRow:
    """A row of a dataset, and its place."""

    value: dict[str, JsonValue]
    spot: Location
    table: bool = False
    """Whether the row is of CSV, so that all its values are text."""


@dataclass(frozen=True)
class LocatedTest:
    """A test, and its place."""

    test: SuiteTest
    spot: Location
    recorded: bool = False
    """Whether the test is a row of a dataset, so that its messages are data, no templates."""
    left_out: tuple[str, ...] = ()
    """The parts of the test that are not supported and are left out, so that it never passes."""
    runs: bool = True
    """Whether it runs at all; one that was left out whole is only reported."""
    prompts: tuple[str, ...] | None = None
    """The labels of the prompts that it runs with, with `*` for any text; None for all."""
    providers: tuple[str, ...] | None = None
    """The labels of the generators that it runs with, in the same way."""
    repeat: int | None = None
    """The number of its runs, instead of the suite's."""
    around: tuple[str, str] = ("", "")
    """The texts before and after its prompts."""
    late: Mapping[str, JsonValue] = field(default_factory=dict)
    """The marks of outputs that tests before it store, by the names of their variables."""
    stores: str = ""
    """The name of the mark under which later tests find its output; empty where none does."""
    conversation: JsonValue = None
    """The conversation that it is a turn of."""
    talks: bool = True
    """Whether its prompts are shown the turns before it."""
    serially: bool = False
    """Whether it runs after the last test before it that does."""


def find_files(name: str, scope: FileScope, where: Location) -> list[Path]:
    """Find the files that a suite names: one, or all that a pattern with `*` matches, in order.

    Raises:
        InvalidRequest: There is no such file, its suffix is not known, or it leads out of the suite's folders.
    """
    paths = match_files(name, scope, where)
    for path in paths:
        if path.suffix.lower() not in SUFFIXES:
            raise InvalidRequest(f"{where}: {clip(name)} is not a dataset.{did_you_mean(path.suffix, list(SUFFIXES))}")
    if not paths or not all(path.is_file() for path in paths):
        raise InvalidRequest(f"{where}: the dataset {clip(name)} does not exist; name a file, relative to the suite's folder")
    return paths


def match_files(name: str, scope: FileScope, where: Location) -> list[Path]:
    """Return the file of a name, with or without `file://`, or those that a pattern matches, in order.

    Raises:
        InvalidRequest: It leads out of the suite's folders; the one before its first `*` is checked before any is searched.
    """
    pattern = name.removeprefix(FILE)
    if "*" not in pattern or Path(pattern).is_absolute():
        return [scope.find(pattern, where)]
    # A pattern is searched only below a folder that was checked first: the search itself would otherwise look
    # into folders that the suite may not read, and a `..` behind a `*` could lead anywhere. What is found is
    # checked again, since a link may lead out.
    parts = Path(pattern).parts
    fixed = list(takewhile(lambda part: "*" not in part, parts))
    if ".." in parts[len(fixed) :]:
        raise InvalidRequest(f"{where}: {clip(pattern)} has '..' after a '*'; name the folder before it")
    scope.check(scope.folder.joinpath(*fixed), pattern, where)
    return [scope.check(path, path.name, where) for path in sorted(scope.folder.glob(pattern))]


def read_rows(path: Path) -> Iterator[DatasetRow]:
    """Yield the rows of a dataset; raise InvalidRequest, which names the line, where it has none, or is not of its suffix's format."""
    where, suffix = f"the dataset {str(path)!r}", path.suffix.lower()
    rows = _yaml_rows(path, where) if suffix in {".yaml", ".yml"} else _numbered_rows(path, suffix, where)
    first = next(rows, None)
    if first is None:
        raise InvalidRequest(f"{where} has no rows; write the tests first")
    yield first
    yield from rows


def _numbered_rows(path: Path, suffix: str, where: str) -> Iterator[DatasetRow]:
    readers: dict[str, Callable[[Path, str], Iterator[tuple[int, Mapping[str, JsonValue]]]]]
    readers = {".csv": read_csv, ".jsonl": read_jsonl, ".json": read_json}
    for line, value in readers[suffix](path, where):
        yield DatasetRow(dict(value), Location(f"{where}, line {line}"), table=suffix == ".csv")


def _yaml_rows(path: Path, where: str) -> Iterator[DatasetRow]:
    values, placed = read_placed(path, "the dataset", aliases=True)
    if not isinstance(values, list):
        raise InvalidRequest(f"{where} is not a list; write each test after '- '")
    for at, value in enumerate(values):
        spot = Location(where, (at,), placed)
        if not isinstance(value, dict):
            raise InvalidRequest(f"{spot} is {clip(str(value))}; write a mapping of its variables")
        yield DatasetRow(value, spot)


def parse_row(row: DatasetRow) -> LocatedTest:
    """Parse a row into a test: a row with `vars` has the fields of a test, any other has variables beside the special names.

    Raises:
        InvalidRequest: The row is not a test.
    """
    raw = _split_cells(row) if row.table else row.value if isinstance(row.value.get("vars"), dict) else _split_fields(row)
    refuse_file(raw.get("rubric"), row.spot)
    refuse_number(raw.get("output"), row.spot)
    with explained_at(row.spot):
        return LocatedTest(SuiteTest.model_validate(raw), row.spot, recorded=True)


def refuse_number(output: JsonValue, spot: Location) -> None:
    """Raise InvalidRequest where YAML reads an output as a number or another value, which changes its text."""
    if output is not None and not isinstance(output, str):
        raise InvalidRequest(f"{spot.at('output')}: YAML reads {clip(str(output))} as no text; quote it, so that it stays as it is written")


def refuse_file(rubric: JsonValue, spot: Location) -> None:
    """Raise InvalidRequest where a row of data names a file."""
    if is_file(rubric):
        raise InvalidRequest(f"{spot.at('rubric')}: {clip(str(rubric))} is read where the suite itself names it; write the rubric's text")


def _split_cells(row: DatasetRow) -> dict[str, JsonValue]:
    if odd := next((name for name in row.value if name.startswith("__")), None):
        raise InvalidRequest(f"{row.spot}: the column {clip(odd)} is promptfoo's and read only in a promptfooconfig.yaml; rename it")
    raw = {name: row.value[name] for name in SPECIAL if row.value.get(name) or (name == "output" and name in row.value)}
    if "threshold" in raw:
        raw["threshold"] = parse_number(str(raw["threshold"]), row.spot.at("threshold"))
    return {**raw, "vars": {name: value for name, value in row.value.items() if name not in SPECIAL}}


def parse_number(cell: str, spot: Location) -> float:
    """Parse the number in a cell; raise InvalidRequest where the cell is not a number."""
    try:
        return float(cell)
    except ValueError:
        raise InvalidRequest(f"{spot}: {clip(cell)} is not a number; write one from 0 to 1") from None


def _split_fields(row: DatasetRow) -> dict[str, JsonValue]:
    fields = {name: value for name, value in row.value.items() if name in SPECIAL_IN_JSON}
    return {**fields, "vars": {name: value for name, value in row.value.items() if name not in SPECIAL_IN_JSON}}


def read_csv(path: Path, where: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield a CSV file's rows with their lines, from 1, and cells by column; raise InvalidRequest, with line and cure, for another file."""
    csv.field_size_limit(max(csv.field_size_limit(), 2 * CASE_BYTES))
    rows = _records(path, where)
    line, header = next(rows, (1, []))
    names = [name.strip() for name in header]
    _refuse_header(names, f"{where}, line {line}")
    for line, cells in rows:
        if len(cells) != len(names):
            cure = "put a cell that has a comma or a line end in it into quotes"
            raise InvalidRequest(f"{where}, line {line}: the row has {len(cells)} cells, the header {len(names)}; {cure}")
        yield line, dict(zip(names, cells, strict=True))


def _records(path: Path, where: str) -> Iterator[tuple[int, list[str]]]:
    line = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_without_nul(file, where), strict=True)
            for cells in reader:
                if cells:
                    yield line, cells
                line = reader.line_num + 1
    except UnicodeDecodeError:
        raise encoding_error(path, where) from None
    except csv.Error as error:
        cure = "close the quote that opens there, and double every quote inside of a quoted cell"
        raise InvalidRequest(f"{where}, line {line}: {error}; {cure}") from None
    except OSError as error:
        raise InvalidRequest(f"{where} cannot be read: {error.strerror}; name a readable file") from None


def _without_nul(lines: Iterator[str], where: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            raise InvalidRequest(f"{where}, line {number}: there is a NUL byte, as in UTF-16; save the file as UTF-8 text")
        yield line


def encoding_error(path: Path, where: str) -> InvalidRequest:
    """Return the error for a file that is not UTF-8, with the line and the byte."""
    with path.open("rb") as file:
        start = file.read(2)
        if start in {b"\xff\xfe", b"\xfe\xff"}:
            return InvalidRequest(f"{where}, line 1: it begins with the bytes 0x{start.hex()}: UTF-16; save the file as UTF-8")
        file.seek(0)
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                byte = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
                return InvalidRequest(f"{where}, line {number}: {byte} is not UTF-8 (Latin-1 or Windows-1252?); save the file as UTF-8")
    return InvalidRequest(f"{where}: it is not UTF-8 text; save it as UTF-8")


def _refuse_header(names: list[str], where: str) -> None:
    if not names:
        raise InvalidRequest(f"{where}: the file is empty; write the names of the columns into the first line")
    if len(names) == 1 and (other := next((separator for separator in ";\t|" if separator in names[0]), None)):
        raise InvalidRequest(f"{where}: the columns are separated by {other!r}; save the file with commas")
    if "" in names:
        raise InvalidRequest(f"{where}: column {names.index('') + 1} has no name; name it, or remove it")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"{where}: the column {clip(twice)} is there twice; keep one, or rename it")


LINE_BYTES = 8 * 1024 * 1024
"""The longest line of JSONL: six times a case, as escapes may take six bytes for one."""

JSON_BYTES = 32 * 1024 * 1024
"""The largest file with a JSON list, which is read whole."""

OUTPUTS = ("output", "providerOutput")
"""The column of the judged output, in our rows and in promptfoo's."""

_SPACE = re.compile(r"[ \t\r\n]*")


def read_jsonl(path: Path, where: str) -> Iterator[tuple[int, dict[str, JsonValue]]]:
    """Yield a JSONL file's objects with their lines, from 1, but for blank ones; raise InvalidRequest for a line without an object."""
    for number, line in enumerate(_lines(path, where), 1):
        if number == 1 and line[:2] in {b"\xff\xfe", b"\xfe\xff"}:
            raise encoding_error(path, where)
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise encoding_error(path, where) from None
        if text.strip():
            yield number, _row(text, f"{where}, line {number}")


def read_json(path: Path, where: str) -> Iterator[tuple[int, dict[str, JsonValue]]]:
    """Yield the objects of a JSON list in UTF-8, each with its first line; raise InvalidRequest for any other file, or a too large one."""
    text = _whole(path, where)
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise InvalidRequest(f"{where} begins with {clip(text[at : at + 20])}; write a list of rows, or save it as JSONL")
    # The list is read row by row and not at once, so that each row has its line in messages, and an output is
    # kept as it is written (`_as_written`): a number that is read and written again may have other digits,
    # and it is the text that is judged. Lines are counted from the last row on, or a large file would take
    # the square of its length.
    line, counted_to, mark = 1, 0, ","
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        return
    while mark == ",":
        line, counted_to = line + text.count("\n", counted_to, at), at
        try:
            _, end = leading_json(text, at)
        except (ValueError, RecursionError) as error:
            raise _json_error(f"{where}, line {line}", error) from None
        yield line, _row(text[at:end], f"{where}, line {line}")
        at = _skip(text, end)
        mark, at = text[at : at + 1], _skip(text, at + 1)
    if mark != "]" or at != len(text):
        raise InvalidRequest(f"{where}, line {line}: after this row there is {clip(mark + text[at : at + 20])}; write ',' or end the list")


def _lines(path: Path, where: str) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES + 1), b""), 1):
                if len(line) > LINE_BYTES:
                    raise InvalidRequest(f"{where}, line {number} has more than {LINE_BYTES} bytes; write one row a line")
                yield line
    except OSError as error:
        raise InvalidRequest(f"{where} cannot be read: {error.strerror}; name a readable file") from None


def _whole(path: Path, where: str) -> str:
    if path.stat().st_size > JSON_BYTES:
        raise InvalidRequest(f"{where} has more than {JSON_BYTES // 2**20} MiB; write it as JSONL, which is read row by row")
    try:
        return b"".join(_lines(path, where)).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise encoding_error(path, where) from None


def _row(text: str, where: str) -> dict[str, JsonValue]:
    """Parse an object that is the whole text; an `output` that is not a string is kept as it is written."""
    try:
        row, end = leading_json(text, _skip(text, 0))
    except (ValueError, RecursionError) as error:
        raise _json_error(where, error) from None
    if _skip(text, end) != len(text):
        raise InvalidRequest(f"{where}: {clip(text[end : end + 20])} follows the JSON; write one row a line")
    if not isinstance(row, dict):
        raise InvalidRequest(f"{where}: {clip(text.strip())} is not a JSON object; write the row's variables as one")
    for name in OUTPUTS:
        if row.get(name) is not None and not isinstance(row[name], str):
            row[name] = _as_written(text, name)
    return row


def _as_written(text: str, name: str) -> str:
    """Return a member's value as it is written in the text of an object."""
    at = _skip(text, _skip(text, 0) + 1)
    while True:
        key, end = leading_json(text, at)
        start = _skip(text, _skip(text, end) + 1)
        _, end = leading_json(text, start)
        if key == name:
            return text[start:end]
        at = _skip(text, _skip(text, end) + 1)


def _json_error(where: str, error: Exception) -> InvalidRequest:
    if isinstance(error, json.JSONDecodeError):
        return InvalidRequest(f"{where}: no JSON: {error.msg} at character {error.pos + 1}; correct it")
    problem = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return InvalidRequest(f"{where}: no JSON: {problem}; correct it")


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at
