"""The progress of a batch: a live view on a terminal, plain lines in a pipe."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gradeloop.batches.case_result import BatchSummary, CaseResult
from gradeloop.batches.ending import counts
from gradeloop.batches.pace import Pace, span
from gradeloop.printable import counted, one_line
from gradeloop.screen import CTRL_C, LEAST_ROOM
from gradeloop.terminal_table import case_line

LATEST = 5
"""Cases that did not pass and are shown below the bar."""

LINES_BESIDE = 8
"""Lines of the terminal that stay free for the bar, the counts and what was printed before."""

BAR = 40
TENTHS = 10
SILENCE_SECONDS = 30.0
"""The longest silence in a pipe while cases end: a longer one looks like a hang."""

MOST_LINES = 1_000
"""The most cases that a pipe lists: CI servers cut long logs, and the result of the batch comes last."""


class Board:
    """Shows the progress of a batch: cases done, cost, time left, and the cases that did not pass."""

    def __init__(self, console: Console, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._total = total
        self._clock = clock
        self._pace = Pace(clock)
        self._summary: BatchSummary | None = None
        self._running = 0
        self._latest: deque[CaseResult] = deque(maxlen=LATEST)
        self._listed = 0
        self._printed = (clock(), 0)
        moves = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True) if moves else None

    def update(self, summary: BatchSummary, running: int) -> None:
        """Show the progress of the batch, and how many cases are running."""
        first = self._summary is None
        self._summary, self._running = summary, running
        self._pace.observe(summary.done, moving=summary.status == "running")
        if self._live is not None:
            self._live.start()
        elif first:
            self._printed = (self._clock(), summary.done)
        elif self._is_news(summary):
            self._printed = (self._clock(), summary.done)
            done = f"{self._done(summary)} done: {', '.join(_ended(summary))}"
            self._console.print(Text("; ".join([done, *self._parts(summary)])), soft_wrap=True)

    def finished(self, result: CaseResult) -> None:
        """Show a case that ended without passing."""
        if result.status == "passed":
            return
        if self._live is not None:
            self._latest.append(result)
            return
        self._listed += 1
        if self._listed <= MOST_LINES:
            self._console.print(case_line(result), soft_wrap=True)
        elif self._listed == MOST_LINES + 1:
            self._console.print(Text("further cases that did not pass are not listed here", "dim"), soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def _is_news(self, summary: BatchSummary) -> bool:
        when, done = self._printed
        if summary.done == done or not summary.open:
            return False
        tenth = summary.done * TENTHS // max(self._total, 1) > done * TENTHS // max(self._total, 1)
        return tenth or self._clock() - when >= SILENCE_SECONDS

    def _render(self) -> RenderableType:
        if self._summary is None:
            return Text("")
        room = max(self._console.width - CTRL_C, LEAST_ROOM)
        lines = _packed([*_ended(self._summary), *self._parts(self._summary)], room)
        shown = max(min(LATEST, self._console.height - LINES_BESIDE), 0)
        latest = [case_line(result) for result in list(self._latest)[-shown:]] if shown else []
        for line in latest:
            line.truncate(room, overflow="ellipsis")
        return Group(self._bar(self._summary, room), *lines, *latest)

    def _bar(self, summary: BatchSummary, room: int) -> RenderableType:
        beside = Text(f"{self._done(summary)} done")
        bar = ProgressBar(total=max(self._total, 1), completed=summary.done, width=min(BAR, max(room - beside.cell_len - 1, 1)))
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(bar, beside)
        return line

    def _done(self, summary: BatchSummary) -> str:
        return f"{summary.done:,} of {self._total:,}"

    def _parts(self, summary: BatchSummary) -> Iterator[str]:
        """Yield the counts of running, queued and cached cases, the cost, the slowdowns and the time left."""
        queued = max(summary.open - self._running, 0)
        yield from [f"{self._running:,} running"] if self._running else []
        yield from [f"{queued:,} queued"] if queued else []
        yield from [f"{summary.cached:,} cached"] if summary.cached else []
        yield from _spending(summary)
        if summary.throttled:
            by = f" by {one_line(summary.throttled_by)}" if summary.throttled_by else ""
            yield f"throttled {counted(summary.throttled, 'time')}{by}"
        if summary.status == "running":
            left = self._pace.seconds_left(summary.open)
            yield from [f"{span(left)} left"] if left is not None and summary.open else []
        else:
            yield f"{summary.status}: {one_line(summary.reason)}" if summary.reason else summary.status


def _ended(summary: BatchSummary) -> list[str]:
    return [count for count in counts(summary) if not count.endswith(" not run")]


def _spending(summary: BatchSummary) -> Iterator[str]:
    """Yield the tokens and dollars spent, and the budget for either."""
    usage, budget = summary.usage, summary.budget
    tokens = f" of {budget.max_tokens:,}" if budget and budget.max_tokens is not None else ""
    dollars = f" of ${budget.max_cost_usd:.2f}" if budget and budget.max_cost_usd is not None else ""
    if usage.tokens or tokens:
        yield f"{usage.tokens:,}{tokens} tokens"
    if usage.cost_usd or dollars:
        yield f"${usage.cost_usd or 0:.4f}{dollars}"


def _packed(parts: Sequence[str], room: int) -> list[Text]:
    """Return the parts as lines, with as many on a line as fit."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(part) + 3 <= room:
            lines[-1].append(f" · {part}")
        else:
            lines.append(Text(part))
    for line in lines:
        line.truncate(room, overflow="ellipsis")
    return lines
