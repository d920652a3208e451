"""Tests in files of their own, row by row: CSV, JSONL, JSON, YAML."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, ValidationError

from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip, did_you_mean
from gradeloop.spot import Spot, refused
from gradeloop.suites.csv_rows import csv_rows
from gradeloop.suites.fields import SuiteTest
from gradeloop.suites.json_rows import json_rows, jsonl_rows
from gradeloop.yaml_file import read_placed

SPECIAL = ("id", "description", "output", "rubric", "threshold")
"""Columns that are fields of the test; all others are variables."""

SPECIAL_IN_JSON = (*SPECIAL, "messages", "assert")
"""The same of a row that has no `vars` of its own, in JSONL, JSON and YAML."""

SUFFIXES = (".csv", ".jsonl", ".json", ".yaml", ".yml")

_FILE = "file://"


@dataclass(frozen=True)
class Row:
    """A test as it was read, and where it stands."""

    value: dict[str, JsonValue]
    spot: Spot
    table: bool = False
    """True for a row of CSV: all its values are text."""


@dataclass(frozen=True)
class Tested:
    """A test, and where it stands."""

    test: SuiteTest
    spot: Spot
    recorded: bool = False
    """True for a row of a dataset: its messages are data, no templates."""


def files_of(name: str, folder: Path, where: Spot) -> list[Path]:
    """Return the files that a name in a suite means: one, or those that a pattern with `*` matches, in order.

    Raises:
        InvalidRequest: There is none, or it is of no kind that is read.
    """
    plain = name.removeprefix(_FILE)
    found = sorted(folder.glob(plain)) if "*" in plain and not Path(plain).is_absolute() else [folder / plain]
    for path in found:
        if path.suffix.lower() not in SUFFIXES:
            raise InvalidRequest(f"{where}: {clip(name)} is no dataset.{did_you_mean(path.suffix, list(SUFFIXES))}")
    if not found or not all(path.is_file() for path in found):
        raise InvalidRequest(f"{where}: the dataset {clip(name)} does not exist; name a file, relative to the suite's folder")
    return found


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a dataset.

    Raises:
        InvalidRequest: It has none, or is not what its name says; with the line.
    """
    where = f"the dataset {str(path)!r}"
    rows = _READERS[path.suffix.lower()](path, where)
    first = next(rows, None)
    if first is None:
        raise InvalidRequest(f"{where} has no rows; write the tests first")
    yield first
    yield from rows


def _csv(path: Path, where: str) -> Iterator[Row]:
    for line, cells in csv_rows(path, where):
        yield Row(dict(cells), Spot(f"{where}, line {line}"), table=True)


def _jsonl(path: Path, where: str) -> Iterator[Row]:
    for line, value in jsonl_rows(path, where):
        yield Row(value, Spot(f"{where}, line {line}"))


def _json(path: Path, where: str) -> Iterator[Row]:
    for line, value in json_rows(path, where):
        yield Row(value, Spot(f"{where}, line {line}"))


def _yaml(path: Path, where: str) -> Iterator[Row]:
    values, placed = read_placed(path, "the dataset")
    if not isinstance(values, list):
        raise InvalidRequest(f"{where} is no list; write each test after '- '")
    for at, value in enumerate(values):
        spot = Spot(where, (at,), placed)
        if not isinstance(value, dict):
            raise InvalidRequest(f"{spot} is {clip(str(value))}; write a mapping of its variables")
        yield Row(value, spot)


_READERS: dict[str, Callable[[Path, str], Iterator[Row]]] = {
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".json": _json,
    ".yaml": _yaml,
    ".yml": _yaml,
}


def tested(row: Row) -> Tested:
    """Return a row as a test: a row with `vars` says what a test says, any other is variables beside the special names.

    Raises:
        InvalidRequest: It is none.
    """
    raw = _of_cells(row) if row.table else row.value if isinstance(row.value.get("vars"), dict) else _flat(row)
    refuse_file(raw.get("rubric"), row.spot)
    refuse_number(raw.get("output"), row.spot)
    try:
        return Tested(SuiteTest.model_validate(raw), row.spot, recorded=True)
    except ValidationError as error:
        raise refused(error, row.spot) from None


def refuse_number(output: JsonValue, spot: Spot) -> None:
    """Raise InvalidRequest where YAML has read an output as something else than text, so that it is not as it was written."""
    if output is not None and not isinstance(output, str):
        raise InvalidRequest(f"{spot.at('output')}: YAML reads {clip(str(output))} as no text; quote it, so that it stays as it is written")


def refuse_file(rubric: JsonValue, spot: Spot) -> None:
    """Raise InvalidRequest where a row of data names a file."""
    if isinstance(rubric, str) and rubric.startswith(_FILE):
        raise InvalidRequest(f"{spot.at('rubric')}: {clip(rubric)} is read where the suite itself names it; write the rubric's text")


def _of_cells(row: Row) -> dict[str, JsonValue]:
    if odd := next((name for name in row.value if name.startswith("__")), None):
        raise InvalidRequest(f"{row.spot}: the column {clip(odd)} is promptfoo's and read in a promptfooconfig.yaml alone; rename it")
    raw = {name: row.value[name] for name in SPECIAL if row.value.get(name) or (name == "output" and name in row.value)}
    if "threshold" in raw:
        raw["threshold"] = number_of(str(raw["threshold"]), row.spot.at("threshold"))
    return raw | {"vars": {name: value for name, value in row.value.items() if name not in SPECIAL}}


def number_of(cell: str, spot: Spot) -> float:
    """Return the number in a cell.

    Raises:
        InvalidRequest: There is none.
    """
    try:
        return float(cell)
    except ValueError:
        raise InvalidRequest(f"{spot}: {clip(cell)} is no number; write one from 0 to 1") from None


def _flat(row: Row) -> dict[str, JsonValue]:
    known = {name: value for name, value in row.value.items() if name in SPECIAL_IN_JSON}
    return known | {"vars": {name: value for name, value in row.value.items() if name not in SPECIAL_IN_JSON}}
