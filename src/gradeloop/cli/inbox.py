"""The command `inbox`: what waits for a person, oldest first, each as a card with the commands that decide it, unsure cases, and labels."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import typer
from rich.rule import Rule
from rich.text import Text

from gradeloop.batches.reader import BatchReader
from gradeloop.batches.undecided import UndecidedBatch, undecided_batches
from gradeloop.cli.commands import Json, Limit
from gradeloop.cli.render.run import decision_commands, question_lines, rejection_lines
from gradeloop.cli.render.table import show_lines
from gradeloop.client.waiting import WaitingThread, waiting_threads
from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.monitors.labelling import MonitorLabels, WaitingLabels
from gradeloop.settings.paths import user_name
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import connect, find
from gradeloop.text import counted, duration, one_line

app = typer.Typer(rich_markup_mode=None)


@app.command()
def inbox(*, limit: Limit = 20, as_json: Json = False) -> None:
    """Show what waits for a person, oldest first."""

    async def read() -> tuple[list[WaitingThread], Iterator[Text | Rule]]:
        found = await waiting_threads(await connect(await find()), limit=limit)
        undecided, labels = ([], []) if as_json else await _of_the_store()
        return found, inbox_lines(found, datetime.now(UTC), undecided, labels)

    found, lines = asyncio.run(read())
    show_lines([thread.model_dump(mode="json") for thread in found], lines, as_json=as_json)


async def _of_the_store() -> tuple[list[UndecidedBatch], list[WaitingLabels]]:
    """Return the batches with unsure cases, and the monitors with runs to label; none where there is no store here: threads need none."""
    with contextlib.suppress(InvalidRequest, StoreUnavailable):
        store = own_store()
        return await undecided_batches(BatchReader(store)), await MonitorLabels(store).waiting(user_name())
    return [], []


def inbox_lines(
    waiting: list[WaitingThread], now: datetime, undecided: Sequence[UndecidedBatch] = (), labels: Sequence[WaitingLabels] = ()
) -> Iterator[Text | Rule]:
    """Yield a card for each thread: its task, since when it waits, the draft with its verdicts and changes, the commands that decide.

    Batches with unsure cases come after them, and monitors with runs to label, each with the command that shows them.
    """
    if not waiting and not undecided and not labels:
        yield Text("nothing waits for a person")
    if waiting:
        yield from _thread_lines(waiting, now)
    if undecided:
        yield from _undecided_lines(undecided)
    if labels:
        yield Text(f"{counted(sum(one.runs for one in labels), 'run')} of monitors to label", "bold yellow")
    for one in labels:
        yield Text(f"  {one.monitor}: {counted(one.runs, 'run')}; label them: gradeloop monitor label {one.monitor}")


def _undecided_lines(undecided: Sequence[UndecidedBatch]) -> Iterator[Text | Rule]:
    yield Text(f"{sum(batch.total for batch in undecided):,} unsure in batches: votes disagree, and no judge decides", "bold yellow")
    for batch in undecided:
        yield Rule(style="dim")
        yield Text(one_line(batch.name or batch.batch_id), "bold").append(f"  {one_line(batch.batch_id)}", "dim")
        for case in batch.cases:
            yield Text(f"  {one_line(case.id)}: ").append(one_line(case.why), "yellow")
            if case.output:
                yield Text(f"    {one_line(case.output)}", "dim")
        if batch.total > len(batch.cases):
            yield Text(f"  and {batch.total - len(batch.cases):,} more", "dim")
        yield Text(f"  read them: gradeloop report {batch.batch_id} --open")


def _thread_lines(waiting: Sequence[WaitingThread], now: datetime) -> Iterator[Text | Rule]:
    yield Text(f"{len(waiting):,} waiting for a person, oldest first", "bold yellow")
    for thread in waiting:
        yield Rule(style="dim")
        since = duration(max((now - thread.since).total_seconds(), 0.0))
        yield Text(one_line(thread.task or thread.thread_id), "bold").append(f"  waiting for {since}  {one_line(thread.thread_id)}", "dim")
        if thread.problem:
            yield Text(f"  {one_line(thread.problem)}", "bold yellow")
        if thread.waiting_for:
            yield from question_lines(thread.waiting_for, thread.waiting_for.draft.text if thread.waiting_for.draft else None)
            yield from rejection_lines(thread.rejections)
            yield from decision_commands(thread.thread_id, thread.waiting_for)
