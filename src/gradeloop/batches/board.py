"""A batch while it runs: one live view on a terminal, in a pipe plain lines."""

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
from gradeloop.batches.wording import VERDICTS, why
from gradeloop.printable import counted, one_line
from gradeloop.screen import CTRL_C, LEAST_ROOM

LATEST = 5
"""Cases without a pass that are shown below the bar."""

LINES_BESIDE = 8
"""Of a terminal's height these are left to the bar, the counts and what was told before."""

BAR = 40
TENTHS = 10
SILENCE_SECONDS = 30.0
"""In a pipe a line comes at least this often while cases end, so that nobody takes the batch for hung."""

MOST_LINES = 1_000
"""Of cases without a pass, in a pipe: servers cut long logs, and with them what the batch came to."""

_TOLD_CHARACTERS = 200


class Board:
    """Shows how a batch goes: what is done, what it costs, how long it will take, and which cases did not pass."""

    def __init__(self, console: Console, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._total = total
        self._clock = clock
        self._pace = Pace(clock)
        self._summary: BatchSummary | None = None
        self._running = 0
        self._latest: deque[CaseResult] = deque(maxlen=LATEST)
        self._listed = 0
        self._told = (clock(), 0)
        moves = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True) if moves else None

    def update(self, summary: BatchSummary, running: int) -> None:
        """Show where the batch stands, and how many cases are being judged at this moment."""
        first = self._summary is None
        self._summary, self._running = summary, running
        self._pace.observe(summary.done, moving=summary.status == "running")
        if self._live is not None:
            self._live.start()
        elif first:
            self._told = (self._clock(), summary.done)
        elif self._is_news(summary):
            self._told = (self._clock(), summary.done)
            told = f"{self._done(summary)} done: {', '.join(_ended(summary))}"
            self._console.print(Text("; ".join([told, *self._parts(summary)])), soft_wrap=True)

    def finished(self, result: CaseResult) -> None:
        """Show a case that has ended, unless it passed."""
        if result.status == "passed":
            return
        if self._live is not None:
            self._latest.append(result)
            return
        self._listed += 1
        if self._listed <= MOST_LINES:
            self._console.print(_case_line(result), soft_wrap=True)
        elif self._listed == MOST_LINES + 1:
            self._console.print(Text("more cases without a pass are not listed here", "dim"), soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def _is_news(self, summary: BatchSummary) -> bool:
        when, done = self._told
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
        latest = [_case_line(result) for result in list(self._latest)[-shown:]] if shown else []
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
        """Yield what else is known of the batch, a part each."""
        queued = max(summary.open - self._running, 0)
        yield from [f"{self._running:,} running"] if self._running else []
        yield from [f"{queued:,} queued"] if queued else []
        yield from [f"{summary.cached:,} cached"] if summary.cached else []
        yield from _spending(summary)
        if summary.throttled:
            by = f" by {one_line(summary.throttled_by)}" if summary.throttled_by else ""
            yield f"slowed down {counted(summary.throttled, 'time')}{by}"
        if summary.status == "running":
            left = self._pace.seconds_left(summary.open)
            yield from [f"{span(left)} left"] if left is not None and summary.open else []
        else:
            yield f"{summary.status}: {one_line(summary.reason)}" if summary.reason else summary.status


def _ended(summary: BatchSummary) -> list[str]:
    return [each for each in counts(summary) if not each.endswith(" not run")]


def _spending(summary: BatchSummary) -> Iterator[str]:
    """Yield the tokens and dollars that were spent, of how many."""
    usage, budget = summary.usage, summary.budget
    tokens = f" of {budget.max_tokens:,}" if budget and budget.max_tokens is not None else ""
    dollars = f" of ${budget.max_cost_usd:.2f}" if budget and budget.max_cost_usd is not None else ""
    if usage.tokens or tokens:
        yield f"{usage.tokens:,}{tokens} tokens"
    if usage.cost_usd or dollars:
        yield f"${usage.cost_usd or 0:.4f}{dollars}"


def _case_line(result: CaseResult) -> Text:
    word, style = VERDICTS[result.status]
    told = why(result)[:_TOLD_CHARACTERS]
    return Text().append(word, style).append(f"  {one_line(result.id)}", "bold").append(f"  {told}" if told else "")


def _packed(parts: Sequence[str], room: int) -> list[Text]:
    """Return the parts as lines, as many to a line as fit."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(part) + 3 <= room:
            lines[-1].append(f" · {part}")
        else:
            lines.append(Text(part))
    for line in lines:
        line.truncate(room, overflow="ellipsis")
    return lines
