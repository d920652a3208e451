"""A run as a person sees it: live on a terminal, plain lines in a pipe, JSON lines for a program."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from gradeloop.contracts import RunResult
from gradeloop.criterion import Criterion
from gradeloop.evaluation import CriterionRow, Evaluation
from gradeloop.event import Event
from gradeloop.printable import one_line
from gradeloop.rubric import Rubric
from gradeloop.story import event_line, opening, phase_line, row_lines, summary
from gradeloop.terminal_table import Line, id_width, mark
from gradeloop.transcript import Message
from gradeloop.usage import Usage

LINES_ABOVE = 10
"""Lines of the terminal that stay free for what was printed before."""

LEAST_LINES = 3
CTRL_C = 3
"""Columns for what a terminal itself writes where Ctrl-C is pressed; a line that wrapped there would stay behind."""

LEAST_ROOM = 20
"""The least room for a line, however narrow the terminal."""


class Screen(Protocol):
    """Where a run is shown."""

    def opened(self, thread_id: str, ui: str | None) -> None:
        """Show the thread's id, and the address of Temporal's own page about it."""

    def happened(self, event: Event, message: Message | None, evaluation: Evaluation | None) -> None:
        """Show an event."""

    def ended(self, result: RunResult) -> None:
        """Show the run's result."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class JsonScreen:
    """One JSON object a line, in UTF-8: the events as they are, evaluations and drafts in full, the result last."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def opened(self, thread_id: str, ui: str | None) -> None:
        """See `Screen`."""
        self._line({"type": "thread", "thread_id": thread_id, "ui": ui})

    def happened(self, event: Event, message: Message | None, evaluation: Evaluation | None) -> None:
        """See `Screen`."""
        value = event.model_dump(mode="json")
        value |= {"message": message.model_dump(mode="json")} if message else {}
        value |= {"evaluation": evaluation.model_dump(mode="json")} if evaluation else {}
        self._line(value)

    def ended(self, result: RunResult) -> None:
        """See `Screen`."""
        self._line({"type": "result", **result.model_dump(mode="json")})

    def close(self) -> None:
        """See `Screen`."""

    def _line(self, value: dict[str, Any]) -> None:
        ascii_only = (self._console.encoding or "").lower() not in {"utf-8", "utf8"}
        try:
            self._console.file.write(json.dumps(value, ensure_ascii=ascii_only) + "\n")
            self._console.file.flush()
        except BrokenPipeError:
            self._console.on_broken_pipe()


class PlainScreen:
    """Plain lines: one per event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began: datetime | None = None

    def opened(self, thread_id: str, ui: str | None) -> None:
        """See `Screen`."""
        self._console.print(opening(thread_id, ui), soft_wrap=True)

    def happened(self, event: Event, message: Message | None, evaluation: Evaluation | None) -> None:
        """See `Screen`."""
        when = datetime.fromisoformat(event.time)
        self._began = self._began or when
        line = event_line(event, message, evaluation)
        if line is not None:
            print_line(self._console, Line(Text(f"{(when - self._began).total_seconds():6.1f} s  ", "dim"), line))
        for row in row_lines(evaluation) if evaluation else ():
            print_line(self._console, Line(Text(" " * 10).append_text(row.head), row.body))

    def ended(self, result: RunResult) -> None:
        """See `Screen`."""
        for part in summary(result, self._console.width):
            self._console.print(part, soft_wrap=isinstance(part, Text))

    def close(self) -> None:
        """See `Screen`."""


class LiveScreen(PlainScreen):
    """The plain lines scroll by; below them the criteria change colour while the run goes on."""

    def __init__(self, console: Console, rubric: Rubric | None) -> None:
        super().__init__(console)
        self._criteria = rubric.criteria if rubric else ()
        self._phase = Text("drafting")
        self._rows: dict[str, CriterionRow] = {}
        self._tokens = 0
        self._spinner = Spinner("dots")
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=8, transient=True)

    def opened(self, thread_id: str, ui: str | None) -> None:
        """See `Screen`."""
        super().opened(thread_id, ui)
        self._live.start()

    def happened(self, event: Event, message: Message | None, evaluation: Evaluation | None) -> None:
        """See `Screen`."""
        super().happened(event, message, evaluation)
        self._phase = phase_line(event) or self._phase
        if evaluation is not None:
            self._rows = {row.id: row for row in evaluation.criteria}

    def spent(self, usage: Usage) -> None:
        """Show the tokens that the thread has taken so far."""
        self._tokens = usage.input + usage.output

    def ended(self, result: RunResult) -> None:
        """See `Screen`."""
        self.close()
        super().ended(result)

    def close(self) -> None:
        """See `Screen`."""
        self._live.stop()

    def _render(self) -> RenderableType:
        began = self._began or datetime.now(UTC)
        seconds = max((datetime.now(UTC) - began).total_seconds(), 0)
        tokens = f", {self._tokens:,} tokens" if self._tokens else ""
        self._spinner.update(text=self._phase.copy().append(f"  {seconds:.0f} s{tokens}", "dim"))
        return Group(self._spinner, *self._criterion_lines())

    def _criterion_lines(self) -> Iterator[Text]:
        """Yield the criteria in the room that there is: those that fail before the others, all in the rubric's order."""
        room = max(self._console.height - LINES_ABOVE, LEAST_LINES)
        by_urgency = sorted(self._criteria, key=self._passes)
        shown = {criterion.id for criterion in (by_urgency[:room] if len(by_urgency) > room else by_urgency)}
        width = id_width(criterion.id for criterion in self._criteria)
        yield from (self._criterion_line(criterion, width) for criterion in self._criteria if criterion.id in shown)
        hidden = [criterion for criterion in self._criteria if criterion.id not in shown]
        if hidden:
            passing = sum(self._passes(criterion) for criterion in hidden)
            passed = f", {'all' if passing == len(hidden) else passing} of them pass" if passing else ""
            yield Text(f" … {len(hidden)} more{passed}", "dim")

    def _passes(self, criterion: Criterion) -> bool:
        row = self._rows.get(criterion.id)
        return row is not None and row.passed

    def _criterion_line(self, criterion: Criterion, width: int) -> Text:
        row = self._rows.get(criterion.id)
        sign, style = mark(row)
        head = Text(f" {sign} ", style).append(f"{criterion.id:{width}}  ", "dim")
        room = max(self._console.width - head.cell_len - CTRL_C, LEAST_ROOM)
        body, gap = Text(one_line(criterion.text), style), one_line(row.gap or "") if row else ""
        if gap:
            body.truncate(max(room // 2, room - len(gap) - 2), overflow="ellipsis")
            body.append(f": {gap}", style)
        body.truncate(room, overflow="ellipsis")
        return head.append_text(body)


def print_line(console: Console, line: Line) -> None:
    """Print a line; on a terminal it wraps between words and goes on below its body, in a pipe it stays one line."""
    room = max(console.width - line.head.cell_len, LEAST_ROOM)
    parts = line.body.wrap(console, room) if console.is_terminal else [line.body]
    body = Text("\n" + " " * line.head.cell_len).join(parts)
    console.print(Text().append_text(line.head).append_text(body), soft_wrap=True)
