"""A batch as Markdown, for the summary of a CI run or a comment on a pull request: the answer first, then the worst cases."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from gradeloop.batches.answer import (
    NOT_ASKED,
    OPTIONAL,
    STATUS_LABELS,
    BatchAnswer,
    CriterionCounts,
    answer_of,
    failure_reason,
    gate_lines,
    next_step,
    results_line,
    score_text,
    words_by_column,
)
from gradeloop.batches.column_table import ColumnTable, MetricFigure, column_rows
from gradeloop.batches.contract import BatchSummary, CaseResult, CaseStatus
from gradeloop.files.output import MARKDOWN_MARK
from gradeloop.text import counted, encodable, one_line, shortened

MOST_BYTES = 64 * 1024
"""The most bytes of a summary: comments on pull requests hold 65,536 characters."""

ROOM_BYTES = 512
"""Bytes that stay free for the last line, which counts the rows left out."""

OUTPUT_CHARACTERS = 500
"""The most characters of an output in a row."""

CRITERIA = 10
"""The criteria that are listed as failing most often."""

ORDER: tuple[CaseStatus, ...] = ("failed", "error", "unsure", "waiting", "queued", "ungraded", "passed")
"""The statuses in the order in which cases are listed."""

SIGNS = {"PASSED": "✅", "FAILED": "❌", "INCONCLUSIVE": "⚠️", "UNGRADED": "⚪", "RUNNING": "⏳", "PAUSED": "⏸️", "STOPPED": "⏹️"}
"""The sign before each answer, since Markdown has no colours."""


@dataclass(frozen=True)
class RegressedCase:
    """A case that regressed from the baseline."""

    id: str
    before: str
    after: str
    why: str


@dataclass(frozen=True)
class Baseline:
    """The comparison of a batch with an earlier one."""

    name: str
    sentence: str
    """The change in one sentence, with its interval."""
    regressed: tuple[RegressedCase, ...] = ()


@dataclass(frozen=True)
class BatchStory:
    """Facts that only the command knows which ends a batch: the answer by its flags, and the baseline."""

    answer: BatchAnswer
    baseline: Baseline | None = None


class MarkdownFile:
    """Writes the answer, what failed, the regressions, and a table of cases, the worst first, in 64 KiB at most."""

    def __init__(self, file: TextIO, summary: BatchSummary, table: ColumnTable, said: BatchStory | None = None) -> None:
        self._file, self._table = file, table
        self._summary = summary
        self._baseline = said.baseline if said else None
        self._answer = said.answer if said else answer_of(summary)
        self._rows: dict[CaseStatus, list[str]] = {status: [] for status in ORDER}
        self._bytes: Counter[CaseStatus] = Counter()
        self._total = 0
        self._criteria = CriterionCounts()

    def write(self, result: CaseResult) -> None:
        """Take the next case; one that an early end did not ask is in the counts only."""
        if (result.error or "").startswith(NOT_ASKED):
            return
        self._total += 1
        self._criteria.take(result.criteria, result.optional)
        if self._bytes[result.status] < MOST_BYTES:
            output = shortened(result.output or "", OUTPUT_CHARACTERS)
            texts = (result.id, result.label or "", STATUS_LABELS[result.status][0], score_text(result), failure_reason(result), output)
            line = table_row(texts)
            self._rows[result.status].append(line)
            self._bytes[result.status] += len(line.encode())

    def end(self, metrics: Sequence[MetricFigure] = ()) -> None:
        """Write all of it."""
        name = escaped(self._summary.name or self._summary.batch_id)
        first = f"{SIGNS[self._answer.word]} **{escaped(self._answer.text)}**"
        columns = self._table.columns()
        lines = [*words_by_column(self._table, self._summary), results_line(self._summary)]
        lines += gate_lines(self._summary.corrected) if self._summary.corrected else ()
        results = "".join(f"{escaped(line)}\n\n" for line in lines)
        step = next_step(self._summary, self._answer)
        following = f"Next: <code>{escaped(step)}</code>\n\n" if step else ""
        by_column, figures = column_rows(columns), [(figure.name, figure.column, figure.text) for figure in metrics]
        parts = [
            f"{MARKDOWN_MARK}\n\n# {name}\n\n{first}\n\n{results}",
            following,
            _listed("", [*by_column[0]] if by_column else [], [[*row.values()] for row in by_column], "more column"),
            self._failed(),
            _listed("**Metrics**\n\n", ("metric", "of", "value"), figures, "more figure"),
        ]
        parts += [_compared(self._baseline)] if self._baseline else []
        rows = (line for status in ORDER for line in self._rows[status])
        head = table_head(("case", "generator", "verdict", "score", "why", "output"))
        self._file.write(with_room("".join(parts), head, rows, self._total, "more case", "the other files of results have all"))

    def _failed(self) -> str:
        worst = self._criteria.worst(CRITERIA)
        rows = [(f"{one.id}{OPTIONAL if one.optional else ''}", one.name, f"{one.failed:,} of {one.judged:,}") for one in worst]
        return _listed("**Criteria by how often they failed**\n\n", ("criterion", "text", "not passed"), rows)


LISTED = 40
"""The most rows of a table above that of the cases: their texts leave room for the cases."""


def _listed(title: str, names: Sequence[str], rows: Sequence[Sequence[str]], noun: str = "more row", after: str = "") -> str:
    """Return a table under a title, the first of its rows and how many more there are; nothing without rows."""
    rest = f"\nand {counted(len(rows) - LISTED, noun)}{after}\n" if len(rows) > LISTED else ""
    return f"{title}{table_head(names)}{''.join(map(table_row, rows[:LISTED]))}{rest}\n" if rows else ""


def _compared(baseline: Baseline) -> str:
    head = f"**Compared with {escaped(baseline.name)}**: {escaped(baseline.sentence)}\n\n"
    rows = [(case.id, case.before, case.after, shortened(case.why, OUTPUT_CHARACTERS)) for case in baseline.regressed]
    listed = _listed(head, ("regressed case", "before", "now", "why"), rows, "more case", " that regressed")
    return listed or f"{head}No case regressed.\n\n"


def table_head(names: Sequence[str]) -> str:
    """Return the first two lines of a table."""
    return f"| {' | '.join(names)} |\n|{' --- |' * len(names)}\n"


def with_room(text: str, head: str, rows: Iterable[str], total: int, noun: str, where: str) -> str:
    """Return a text with a table behind it: as many rows as there is room for, the number of the others, and where these are."""
    room, written = MOST_BYTES - ROOM_BYTES - len(f"{text}{head}".encode()), list[str]()
    for row in rows:
        room -= len(row.encode())
        if room < 0:
            break
        written.append(row)
    rest = total - len(written)
    return "".join((text, head, *written, f"\nand {counted(rest, noun)}; {where}\n" if rest else ""))


CELL_CHARACTERS = 1_500
"""The most characters of a cell, so that one case cannot take the room of all."""


def table_row(texts: Sequence[str]) -> str:
    """Return a line of a table, each cell escaped and in short."""
    return f"| {' | '.join(escaped(shortened(text, CELL_CHARACTERS)) for text in texts)} |\n"


_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|!~&@])")


def escaped(text: str) -> str:
    """Return a text on one line that Markdown shows as it is, links, pictures, mentions and HTML too."""
    return _MARKDOWN.sub(r"\\\1", one_line(encodable(text))).replace("://", "\\://")
