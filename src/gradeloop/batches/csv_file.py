"""Results as CSV, for spreadsheets: no cell is ever a formula."""

import csv
import json
import math
import re
from collections.abc import Sequence
from typing import TextIO

from pydantic import JsonValue
from pydantic_core import to_json

from gradeloop.batches.case_result import CaseResult
from gradeloop.batches.json_files import encodable
from gradeloop.batches.survey import MOST_NAMES
from gradeloop.batches.wording import gap_of
from gradeloop.printable import shortened

COLUMNS = (
    *("id", "description", "prompt", "label", "status", "score", "worst_criterion", "worst_gap", "error"),
    *("cost_usd", "tokens", "cached", "attempt", "output"),
)
"""Before the variables, each of which has a column `vars.NAME`."""

CELL_CHARACTERS = 32_700
"""What a cell keeps of a text: spreadsheets hold 32,767 characters, the note on what was cut and a quote included."""

_FORMULA = re.compile(r"'*([\s\x00-\x1f\ufeff\u200b-\u200f\u2060]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n])")
"""How a text begins that a spreadsheet may take for a formula, or that `inert` has quoted already."""


def inert(text: str) -> str:
    """Return a text that no spreadsheet reads as a formula: one that may be is given a quote in front, which `as_said` takes away."""
    return f"'{text}" if _FORMULA.match(text) else text


def as_said(cell: str) -> str:
    """Return the text that `inert` was given."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


class CsvFile:
    """A row a case, after one of headings; more variables than `MOST_NAMES` share the column `vars`, as a JSON object."""

    def __init__(self, file: TextIO, names: Sequence[str]) -> None:
        self._names = names if len(names) <= MOST_NAMES else None
        self._rows = csv.writer(file)
        self._rows.writerow([*COLUMNS, *(["vars"] if self._names is None else [_text(f"vars.{name}") for name in self._names])])

    def write(self, result: CaseResult) -> None:
        """Write the next case."""
        self._rows.writerow([*_cells(result), *self._variables(result.vars)])

    def end(self) -> None:
        """Nothing comes after the last row."""

    def _variables(self, values: dict[str, JsonValue]) -> list[str]:
        if self._names is None:
            return [_value(values) if values else ""]
        return [_value(values[name]) if name in values else "" for name in self._names]


def _cells(result: CaseResult) -> list[str | int | float | None]:
    worst = result.worst
    said = (result.id, result.description, result.prompt, result.label)
    return [
        *(_text(each) for each in said),
        *(result.status, result.score),
        *(_text(worst.id if worst else None), _text(gap_of(worst) if worst else None), _text(result.error)),
        *(result.usage.cost_usd, result.usage.tokens, to_json(result.cached).decode(), result.attempt),
        _text(result.output),
    ]


def _value(value: JsonValue) -> str:
    """Return a text as it is, everything else as JSON; a number, even one below zero, is no formula."""
    if isinstance(value, str):
        return _text(value)
    told = json.dumps(value, ensure_ascii=False)
    return told if isinstance(value, (int, float)) and math.isfinite(value) else _text(told)


def _text(text: str | None) -> str:
    return "" if text is None else inert(shortened(encodable(text), CELL_CHARACTERS))
