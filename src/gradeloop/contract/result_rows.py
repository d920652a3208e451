"""Results as rows for a DataFrame, and as a table for a notebook: what models and people wrote is escaped."""

import html
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from gradeloop.contract.evaluation import CriterionRow

Row = dict[str, JsonValue]

CELL_CHARACTERS = 500
"""The most characters of a cell in a notebook; a row has all of them."""


def criterion_rows(criteria: Sequence[CriterionRow], about: Mapping[str, JsonValue]) -> list[Row]:
    """Return a row for every criterion, with what they have in common first; a criterion without a verdict has None for `passed`."""
    return [
        dict(about)
        | {
            "criterion": row.id,
            "description": row.name,
            "passed": None if row.unverified else row.passed,
            "criterion_score": row.score,
            "by": row.by,
            "grader": row.grader,
            "reason": row.reason,
            "gap": row.gap,
            "overridden": row.override.passed if row.override else None,
        }
        for row in criteria
    ]


def html_table(title: str, rows: Sequence[Row]) -> str:
    """Return rows as a table with a title; columns in which nothing stands are left out."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if any(row.get(name) is not None for row in rows)]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(_cell(row.get(name)) for name in names)}</tr>" for row in rows)
    return f"<p><b>{html.escape(title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: JsonValue) -> str:
    text = {None: "", True: "✓", False: "✗"}[value] if value is None or isinstance(value, bool) else str(value)
    shown = text if len(text) <= CELL_CHARACTERS else f"{text[:CELL_CHARACTERS]}…"
    return f'<td style="text-align:left;vertical-align:top;white-space:pre-wrap">{html.escape(shown)}</td>'
