"""The command `inbox`: what waits for a person, oldest first, each as a card with the commands that decide it."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import typer
from rich.rule import Rule
from rich.text import Text

from gradeloop.cli.commands import Json, Limit
from gradeloop.cli.render.run import decision_commands, question_lines
from gradeloop.cli.render.table import show_lines
from gradeloop.client.waiting import WaitingThread, waiting_threads
from gradeloop.temporal.connect import connect, find
from gradeloop.text import duration, one_line

app = typer.Typer(rich_markup_mode=None)


@app.command()
def inbox(*, limit: Limit = 20, as_json: Json = False) -> None:
    """Show what waits for a person, oldest first."""

    async def read() -> list[WaitingThread]:
        return await waiting_threads(await connect(await find()), limit=limit)

    found = asyncio.run(read())
    show_lines([thread.model_dump(mode="json") for thread in found], inbox_lines(found, datetime.now(UTC)), as_json=as_json)


def inbox_lines(waiting: list[WaitingThread], now: datetime) -> Iterator[Text | Rule]:
    """Yield a card for each thread: its task, since when it waits, the draft with its verdicts and changes, the commands that decide."""
    if not waiting:
        yield Text("nothing waits for a person")
        return
    yield Text(f"{len(waiting):,} waiting for a person, oldest first", "bold yellow")
    for thread in waiting:
        yield Rule(style="dim")
        since = duration(max((now - thread.since).total_seconds(), 0.0))
        yield Text(one_line(thread.task or thread.thread_id), "bold").append(f"  waiting for {since}  {one_line(thread.thread_id)}", "dim")
        if thread.problem:
            yield Text(f"  {one_line(thread.problem)}", "bold yellow")
        if thread.waiting_for:
            yield from question_lines(thread.waiting_for, thread.waiting_for.draft.text if thread.waiting_for.draft else None)
            yield from decision_commands(thread.thread_id, thread.waiting_for)
