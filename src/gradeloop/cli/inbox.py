"""The command `inbox`: what waits for a person, oldest first, each as a card with the commands that decide it, unsure cases, and labels."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import typer
from rich.rule import Rule
from rich.text import Text

from gradeloop.cli.commands import Json, Limit
from gradeloop.cli.render.run import decision_commands, question_lines, rejection_lines
from gradeloop.cli.render.table import show_lines
from gradeloop.client.waiting import StoredQuestions, WaitingThread, stored_questions, waiting_threads
from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.settings.paths import user_name
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import connect, find
from gradeloop.text import duration, one_line

app = typer.Typer(rich_markup_mode=None)


@app.command()
def inbox(*, limit: Limit = 20, as_json: Json = False) -> None:
    """Show what waits for a person, oldest first."""

    async def read() -> tuple[list[WaitingThread], Iterator[Text | Rule]]:
        found = await waiting_threads(await connect(await find()), limit=limit)
        questions: list[StoredQuestions] = []
        with contextlib.suppress(InvalidRequest, StoreUnavailable):  # threads need no store
            questions = [] if as_json else await stored_questions(own_store(), user_name())
        return found, inbox_lines(found, datetime.now(UTC), questions)

    found, lines = asyncio.run(read())
    show_lines([thread.model_dump(mode="json") for thread in found], lines, as_json=as_json)


def inbox_lines(waiting: list[WaitingThread], now: datetime, questions: Sequence[StoredQuestions] = ()) -> Iterator[Text | Rule]:
    """Yield a card for each thread: its task, since when it waits, the draft with its verdicts and changes, the commands that decide.

    What extensions ask comes after them, such as unsure cases and runs to label.
    """
    others = [line for asked in questions for line in asked.lines()]
    if waiting:
        yield from _thread_lines(waiting, now)
    elif not others:
        yield Text("nothing waits for a person")
    yield from others


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
