"""A run driven from a terminal: a server and a worker found or started, the thread shown to its end."""

import asyncio
import os
from uuid import uuid4

from rich.console import Console

from gradeloop.attendance import Ending, attend
from gradeloop.budget import Budget
from gradeloop.client import GradingClient, opened
from gradeloop.connection import Connection, connect, find
from gradeloop.rubric import Rubric
from gradeloop.rubric_lines import rubric_lines
from gradeloop.screen import JsonScreen, LiveScreen, PlainScreen, Screen, print_line
from gradeloop.task_file import Task
from gradeloop.templates import fill
from gradeloop.worker_process import ensure_worker


def screen_of(console: Console, rubric: Rubric | None, *, as_json: bool) -> Screen:
    """Return the screen that suits: JSON lines, a live view on a terminal, plain lines elsewhere."""
    if as_json:
        return JsonScreen(console)
    return LiveScreen(console, rubric) if console.is_terminal and not console.is_dumb_terminal else PlainScreen(console)


async def run_task(task: Task, console: Console, *, as_json: bool, detach: bool) -> Ending:
    """Start a task's thread and follow it.

    Raises:
        GradeloopError: With one sentence for the user.
    """
    rubric = fill(task.request.rubric, task.request.vars)
    if not as_json:
        for note in task.notes:
            console.print(note, style="dim", soft_wrap=True)
        show_rubric(console, rubric)
    connection = await find()
    client, thread_id = await _started(task, connection)
    screen = screen_of(console, rubric, as_json=as_json)
    if detach:
        screen.opened(thread_id, connection.ui)
        screen.close()
        return Ending(thread_id, "detached")
    return await attend(client, thread_id, screen, connection)


async def resume_thread(thread_id: str, console: Console, *, budget: Budget | None, as_json: bool) -> Ending:
    """Go on with an interrupted thread and follow it.

    Raises:
        InvalidRequest: Nothing is interrupted in this thread.
    """
    client, thread_id, connection = await opened(thread_id)
    state = await client.state(thread_id)
    seen = (await client.events(thread_id, after=10**9)).total
    going_on = asyncio.create_task(client.resume(thread_id, budget=budget))
    while not going_on.done() and (await client.events(thread_id, after=10**9)).total == seen:
        await asyncio.wait([going_on], timeout=0.05)
    if going_on.done():
        going_on.result()
    if not as_json:
        show_rubric(console, state.rubric)
    screen = screen_of(console, state.rubric, as_json=as_json)
    try:
        return await attend(client, thread_id, screen, connection, after=seen)
    finally:
        going_on.cancel()
        await asyncio.wait([going_on])


async def watch_thread(thread_id: str, console: Console, *, as_json: bool) -> Ending:
    """Show a thread from its first event on; Ctrl-C leaves it running."""
    client, thread_id, connection = await opened(thread_id)
    rubric = (await client.state(thread_id)).rubric
    if not as_json:
        show_rubric(console, rubric)
    screen = screen_of(console, rubric, as_json=as_json)
    return await attend(client, thread_id, screen, connection, interrupts=False)


def show_rubric(console: Console, rubric: Rubric | None) -> None:
    """Print the rubric as it was understood."""
    for line in rubric_lines(rubric) if rubric and not rubric.cleared else ():
        print_line(console, line)


async def _started(task: Task, connection: Connection) -> tuple[GradingClient, str]:
    thread_id = task.thread or f"run-{uuid4().hex[:8]}"
    temporal = await connect(connection)
    served = os.environ.get("GRADELOOP_TASK_QUEUE")
    client = GradingClient(temporal, task_queue=served or await ensure_worker(task.worker, connection))
    await client.start(task.request, thread_id=thread_id)
    if not served:
        await ensure_worker(task.worker, connection)
    return client, thread_id
