"""A batch in the terminal: its progress, its results, its cases."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from gradeloop.batches.answer import (
    ANSWER_STYLES,
    OPTIONAL,
    STATUS_LABELS,
    answer_of,
    failure_reason,
    next_step,
    summary_counts,
    words_by_column,
)
from gradeloop.batches.column_table import ColumnTable
from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.batches.ratings import remarks
from gradeloop.batches.trends import SuiteBatch
from gradeloop.cli.render.run import CTRL_C, LEAST_ROOM, WAIT_SECONDS
from gradeloop.cli.render.table import WHY_CHARACTERS, WIDE, Column, mark, table, usage_line
from gradeloop.contract.evaluation import CriterionRow, Quote
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.changes import changes
from gradeloop.grading.quotes import fold
from gradeloop.grading.verdicts import contradiction
from gradeloop.reports.html import seconds
from gradeloop.text import counted, encodable, money, one_line, printable

WINDOW_SECONDS = 60.0
"""The window over which throughput is measured: a minute, so that it follows a provider that slows down."""

LEAST_CASES = 5
"""The fewest cases over which throughput is measured, even if they ended before the window."""

LEAST_SECONDS = 3.0
"""The shortest time over which throughput is measured."""


class _Sample(NamedTuple):
    when: float
    done: int


class Throughput:
    """The rate at which cases ended lately, and the time that is left at that rate."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[_Sample] = deque()

    def observe(self, done: int, *, moving: bool) -> None:
        """Record how many cases have ended; after a pause, or if cases are run again, the measurement begins anew."""
        now = self._clock()
        if not moving or (self._samples and done < self._samples[-1].done):
            self._samples.clear()
        if moving and (not self._samples or done > self._samples[-1].done):
            self._samples.append(_Sample(now, done))
        while len(self._samples) > 1 and self._has_enough_without_first(now):
            self._samples.popleft()

    def seconds_left(self, cases: int) -> float | None:
        """Return how long that many more cases take; None if that is not known yet."""
        if len(self._samples) < 2:  # noqa: PLR2004 - two make a distance
            return None
        first, last = self._samples[0], self._samples[-1]
        elapsed, ended = self._clock() - first.when, last.done - first.done
        return None if elapsed < LEAST_SECONDS or ended < LEAST_CASES else cases * elapsed / ended

    def _has_enough_without_first(self, now: float) -> bool:
        second = self._samples[1]
        return now - second.when >= WINDOW_SECONDS and self._samples[-1].done - second.done >= LEAST_CASES


def span(seconds: float) -> str:
    """Return a time as h:mm:ss, or m:ss below an hour."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours:,}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


LATEST = 5
"""The most cases that did not pass and are shown below the bar."""

LINES_BESIDE = 8
"""Lines of the terminal that stay free for the bar, the counts and earlier output."""

BAR = 40


class BatchProgressView:
    """Shows the progress of a batch: cases done, cost, time left, and the cases that did not pass; in a pipe, a line for every case."""

    def __init__(self, console: Console, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._total = total
        self._clock = clock
        self._throughput = Throughput(clock)
        self._summary: BatchSummary | None = None
        self._running = 0
        self._wait: str | None = None
        self._latest: deque[CaseResult] = deque(maxlen=LATEST)
        self._printed = clock()
        moves = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True) if moves else None

    def update(self, summary: BatchSummary, running: int) -> None:
        """Show the progress of the batch, and how many cases are running."""
        self._summary, self._running = summary, running
        self._throughput.observe(summary.done, moving=summary.status == "running")
        if self._live is not None:
            self._live.start()
        elif summary.open and self._clock() - self._printed >= WAIT_SECONDS:
            self._printed = self._clock()
            ended = _ended(summary)
            done = f"{self._done(summary)} done{': ' if ended else ''}{', '.join(ended)}"
            self._console.print(Text("; ".join([done, *self._parts(summary)])), soft_wrap=True)

    def note_wait(self, wait: str | None) -> None:
        """Show from the next update on what calls wait for; None where that is nothing worth saying."""
        self._wait = wait

    def finished(self, result: CaseResult) -> None:
        """Show a case that ended; on a terminal only one that did not pass, since the table comes."""
        if self._live is None:
            self._printed = self._clock()
            self._console.print(case_line(result), soft_wrap=True)
        elif result.status != "passed":
            self._latest.append(result)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

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
        running = min(self._running, summary.open)  # the two are not of the same moment
        queued = summary.open - running
        yield from [f"{running:,} running"] if running else []
        yield from [f"{queued:,} queued"] if queued else []
        yield from [f"{summary.cached:,} cached"] if summary.cached else []
        yield from _spending(summary)
        if summary.throttled:
            by = f" by {one_line(summary.throttled_by)}" if summary.throttled_by else ""
            yield f"throttled {counted(summary.throttled, 'time')}{by}"
        if summary.status == "running" and summary.open and self._wait:
            yield self._wait
        if summary.status == "running":
            left = self._throughput.seconds_left(summary.open)
            yield from [f"{span(left)} left"] if left is not None and summary.open else []
        else:
            yield f"{summary.status}: {one_line(summary.reason)}" if summary.reason else summary.status


def _ended(summary: BatchSummary) -> list[str]:
    return [count for count in summary_counts(summary) if not count.endswith(" not run")]


def _spending(summary: BatchSummary) -> Iterator[str]:
    """Yield the tokens and dollars spent, and the budget for either."""
    usage, budget = summary.usage, summary.budget
    tokens = f" of {budget.max_tokens:,}" if budget and budget.max_tokens is not None else ""
    dollars = f" of ${budget.max_cost_usd:.2f}" if budget and budget.max_cost_usd is not None else ""
    if usage.tokens is None:
        yield "tokens not reported"
    elif usage.tokens or tokens:
        yield f"{usage.tokens:,}{tokens} tokens"
    if usage.cost_usd or dollars:
        yield f"cost unknown{dollars}" if usage.calls and usage.cost_usd is None else f"${usage.cost_usd or 0:.4f}{dollars}"


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


OUTPUT_CHARACTERS = 4_000
VALUE_CHARACTERS = 300


def case_line(result: CaseResult) -> Text:
    """Return a case's status, id, and the reasons why it did not pass and why a hook failed, as a line."""
    word, style = STATUS_LABELS[result.status]
    hook = one_line((result.after_each and result.after_each.error) or "")
    reason = "; ".join(why[:WHY_CHARACTERS] for why in (failure_reason(result), hook) if why)
    return Text().append(word, style).append(f"  {one_line(result.id)}", "bold").append(f"  {reason}" if reason else "")


def case_lines(result: CaseResult, rubric: Rubric | None = None) -> Iterator[Text | Rule]:
    """Yield a case: verdict, error, criteria with their gaps, reasons and quotes, output, cost, thread."""
    yield _verdict(result)
    yield from _about(result)
    if result.error is not None:
        yield Text(f"  {one_line(result.error)}", "bold yellow")
    if result.explanation:
        yield Text(f"  {one_line(result.explanation)}", "dim")
    if result.decided_by:
        yield Text("  decided by: ", "dim").append(one_line(", ".join(result.decided_by)), "red")
    for row in result.criteria:
        yield from _criterion(row, contradiction(row, rubric), optional=row.id in result.optional)
    yield from (Text(f"  {one_line(line)}", "cyan") for line in remarks(result))
    if result.output is not None:
        yield Rule("output", style="dim")
        yield Text(printable(encodable(result.output[:OUTPUT_CHARACTERS])).rstrip())
        if (characters := len(result.output)) > OUTPUT_CHARACTERS:
            rest = f"… the first {OUTPUT_CHARACTERS:,} of {characters:,} characters; the output files of the batch have all"
            yield Text(rest, "dim")
        yield Rule(style="dim")
    yield Text(f"{usage_line(result.usage, result.grader)}, {result.usage.seconds:.1f} s", "dim")
    if result.thread_id:
        thread = one_line(result.thread_id)
        yield Text().append("thread ", "dim").append(thread, "bold").append(f"  gradeloop watch {thread}", "dim")


def _verdict(result: CaseResult) -> Text:
    word, style = STATUS_LABELS[result.status]
    facts = {
        f"score {result.score:.3f}" if result.score is not None else "": result.score is not None,
        "from the cache": result.cached,
        f"after {counted(result.iterations or 0, 'iteration')}": result.iterations is not None,
        f"retried {counted(result.attempt, 'time')}": result.attempt > 0,
    }
    beside = "".join(f", {fact}" for fact, applies in facts.items() if applies)
    return Text().append(one_line(result.id), "bold").append("  ").append(word, style).append(beside)


def _about(result: CaseResult) -> Iterator[Text]:
    """Yield the case's description, prompt, generator and variables."""
    if result.description:
        yield Text(f"  {one_line(result.description)}")
    named = {"prompt": result.prompt, "generator": result.label}
    values = {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for name, value in result.vars.items()}
    for name, value in [*named.items(), *values.items()]:
        if value is not None:
            text = one_line(value)
            cut = f"{text[:VALUE_CHARACTERS]}…" if len(text) > VALUE_CHARACTERS else text
            yield Text().append(f"  {one_line(name)}: ", "dim").append(cut)


def _criterion(row: CriterionRow, note: str, *, optional: bool) -> Iterator[Text]:
    """Yield a criterion, then its gap, reason, note, quotes, votes and override."""
    sign, style = mark(row)
    beside = f"{OPTIONAL if optional else ''}{f'  (score {row.score:g})' if row.score is not None else ''}"
    yield Text().append(f"{sign} {one_line(row.id)}  ", style).append(one_line(row.name)).append(beside, "dim")
    for word, text, own in (("gap", row.gap, style), ("reason", row.reason, ""), ("note", note, "yellow")):
        if text:
            yield Text().append(f"    {word}: ", "dim").append(one_line(text), own)
    for quote in row.quotes:
        yield from _quote(quote)
    if row.votes:
        said = ((vote, "not asked" if vote.unasked else _voted(vote.passed)) for vote in row.votes)
        votes = (f"{one_line(vote.grader)} {word}{_in_place(vote.instead_of)}" for vote, word in said)
        yield Text().append("    votes: ", "dim").append(", ".join(votes), "yellow" if row.contested else "")
    if row.instead_of:
        yield Text().append("    judged by: ", "dim").append(f"{one_line(row.grader or '')}{_in_place(row.instead_of)}")
    if row.override is not None:
        word = f"{_voted(row.override.passed)} by {one_line(row.override.by)}: {one_line(row.override.why)}"
        yield Text().append("    overridden: ", "dim").append(word)


def _in_place(model: str | None) -> str:
    """Return whom a fallback stands in for; empty where the grader is none."""
    return f" (instead of {one_line(model)})" if model else ""


def _quote(quote: Quote) -> Iterator[Text]:
    """Yield a quote, and for one that is nearly there, what only the conversation and only the quote say."""
    found = {True: "found", False: "not found", None: ""}[quote.quote_verified]
    line = Text().append(f"    message {quote.record}: ", "dim").append(f"“{one_line(quote.quote)}”", "italic")
    yield line.append(f"  {found}".rstrip(), "dim")
    if quote.quote_nearest is None:
        return
    marks = {"removed": ("[-{}-]", "red"), "added": ("{{+{}+}}", "green")}
    differences = changes(quote.quote_nearest, fold(quote.quote))
    nearest = Text().append("      the conversation has: ", "dim")
    for piece in differences.pieces if differences else ():
        form, style = marks.get(piece.kind, ("{}", ""))
        nearest.append(form.format(printable(piece.text)), style)
    yield nearest


def _voted(passed: bool | None) -> str:
    return {True: "passed", False: "not passed", None: "no verdict"}[passed]


def answer_lines(summary: BatchSummary, table: ColumnTable | None = None) -> Iterator[Text]:
    """Yield the answer of a batch in its colour, the sentences about its columns, and the command that comes next, if any."""
    answer = answer_of(summary)
    yield Text(answer.text, ANSWER_STYLES[answer.word])
    yield from map(Text, words_by_column(table, summary) if table else ())
    if step := next_step(summary, answer):
        yield Text(f"next: {step}", "dim")


def batch_table(summaries: Sequence[BatchSummary], width: int, trend: Sequence[SuiteBatch] = ()) -> Table:
    """Return a row per batch, for a terminal of that width; a trend adds how each of them differs from the one before it."""
    columns = [
        Column("batch", [batch.batch_id for batch in summaries]),
        Column("suite", [batch.name or "" for batch in summaries], wraps=True, wide=True),
        Column("created", [_local_time(batch.created) for batch in summaries], wide=True),
        Column("answer", [Text(answer.text, ANSWER_STYLES[answer.word]) for answer in map(answer_of, summaries)], wraps=True),
        Column("cases", [f"{', '.join(summary_counts(batch)) or 'none'} of {batch.total:,}" for batch in summaries], wraps=True),
        Column("cost", [money(batch.usage.cost_usd) for batch in summaries], "dim", wide=True),
    ]
    if trend:
        columns[4:4] = [
            Column("95 %", [one.rate.texts()[1] for one in trend]),
            Column("since", ["{} fixed, {} new".format(*one.since) if one.since else "" for one in trend], wraps=True),
            Column("latency", [seconds(one.seconds) for one in trend]),
            Column("changed", [", ".join(one.changed) for one in trend]),
        ]
    return table([column for column in columns if width >= WIDE or not column.wide])


def _local_time(created: str) -> str:
    try:
        return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return created
