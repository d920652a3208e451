"""Judgements as Markdown, for the summary of a CI run: the same answer as on their page, then those that did not pass, first."""

from collections.abc import Sequence

from gradeloop.batches.markdown import escaped, table_head, table_row, with_room
from gradeloop.files.output import MARKDOWN_MARK
from gradeloop.reports.collection_page import CaseRow, Entry, Head, label_counts, row_of, rows_in_order
from gradeloop.reports.model import RunReport, Verdict

SIGNS: dict[Verdict, str] = {"passed": "✅", "failed": "❌", "error": "⚠️", "unsure": "⚠️", "none": "⚪"}
"""The sign before each answer, since Markdown has no colours."""


def judgement_markdown(head: Head, reports: Sequence[RunReport]) -> str:
    """Return the answer, what comes next, and a table of judgements, those that did not pass first, in 64 KiB at most."""
    numbers = ", ".join(f"{tile.value} {tile.label}" for tile in head.tiles)
    parts = [
        f"{MARKDOWN_MARK}\n\n# {escaped(head.name)}\n\n{SIGNS.get(head.verdict, '⏳')} **{escaped(head.answer)}**\n\n{escaped(numbers)}\n\n"
    ]
    parts += [f"{escaped(head.words)}\n\n"] if head.words else []
    parts += [f"{escaped(name)}: {escaped(fact)}\n\n" for name, fact in head.about.items() if name == "passes"]
    parts += [f"{escaped(note)}\n\n" for note in head.notes]
    if head.next is not None:
        words = " ".join(filter(None, (head.next.why, "Next:", head.next.words)))
        parts.append(f"{escaped(words)} <code>{escaped(head.next.command)}</code>{escaped(head.next.after)}\n\n")
    rows = rows_in_order([row_of(number, Entry(report, report.name)) for number, report in enumerate(reports)])
    labels = list(label_counts(row.labels for row in rows))
    head_row = table_head(("run", "result", *map(escaped, labels), "what it says"))
    return with_room("".join(parts), head_row, (_line(row, labels) for row in rows), len(rows), "more judgement", "the page has all")


def _line(row: CaseRow, labels: Sequence[str]) -> str:
    own = dict(row.labels)
    why = f"{row.worst}: {row.why}" if row.worst else row.why
    return table_row((row.id, row.word.replace("_", " "), *(own.get(name, "") for name in labels), why))
