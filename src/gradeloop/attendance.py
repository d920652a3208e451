"""A thread followed with a hand on it: Ctrl-C interrupts it, and a worker that is killed meanwhile is started again."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from gradeloop.client import GradingClient
from gradeloop.connection import Connection
from gradeloop.contracts import RunResult
from gradeloop.errors import GradeloopError
from gradeloop.follow import follow
from gradeloop.screen import Screen
from gradeloop.worker_process import OURS, looked_after

STOP_SECONDS = 15.0
"""How long an interrupted run may take to stop: above the 2 seconds in which a call learns of it."""


@dataclass(frozen=True)
class Ending:
    """How a followed run ended for the terminal."""

    thread_id: str
    how: Literal["ended", "interrupted", "stopped", "detached", "left"]
    """`stopped` is `interrupted` by this terminal's own Ctrl-C; `left` goes on without us, as `detached` was asked to."""
    result: RunResult | None = None


async def attend(
    client: GradingClient, thread_id: str, screen: Screen, connection: Connection, *, after: int = 0, interrupts: bool = True
) -> Ending:
    """Show a thread to its end; Ctrl-C interrupts it, or leaves it running, and a second one leaves at once."""
    following = asyncio.create_task(_served(client, thread_id, screen, connection, after))
    try:
        with ctrl_c() as pressed:
            screen.opened(thread_id, connection.ui)
            await _first_of(following, pressed.get())
            pressing = not following.done()
            if pressing and interrupts:
                print("interrupting; press Ctrl-C again to leave at once", file=sys.stderr)  # noqa: T201 - said while the screen is live
                await _first_of(_stopped(client, thread_id, following), pressed.get())
        if not following.done():
            return Ending(thread_id, "left")
        result = await following
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await following
        screen.close()
    if result is None:
        return Ending(thread_id, "stopped" if pressing else "interrupted")
    screen.ended(result)
    return Ending(thread_id, "ended", result)


async def _stopped(client: GradingClient, thread_id: str, following: "asyncio.Task[RunResult | None]") -> None:
    """Interrupt the run and see it stop."""
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS):
            with suppress(GradeloopError):  # it has just ended, or the server is gone, which following it tells
                await client.interrupt(thread_id)
            await asyncio.wait([following])


async def _served(client: GradingClient, thread_id: str, screen: Screen, connection: Connection, after: int) -> RunResult | None:
    """Follow the thread, and start its worker again should it be killed meanwhile."""
    following = asyncio.create_task(follow(client, thread_id, screen, after=after))
    looking_after = asyncio.create_task(_looked_after(client, thread_id, connection))
    try:
        await asyncio.wait([following, looking_after], return_when=asyncio.FIRST_COMPLETED)
        if not following.done():
            looking_after.result()
        return await following
    finally:
        for task in (following, looking_after):
            task.cancel()
        await asyncio.wait([following, looking_after])


async def _looked_after(client: GradingClient, thread_id: str, connection: Connection) -> None:
    """Start the thread's worker again whenever it is gone; end at once where the worker is none of ours."""
    task_queue = await client.task_queue_of(thread_id)
    if OURS.fullmatch(task_queue):
        await looked_after(task_queue, connection)


async def _first_of(*work: Awaitable[object]) -> None:
    """Wait until one of them is done, whatever it came to."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks[1:]:
            task.cancel()


@contextmanager
def ctrl_c() -> "Iterator[asyncio.Queue[None]]":
    """Count Ctrl-C in a queue instead of ending the program."""
    loop, pressed = asyncio.get_running_loop(), asyncio.Queue[None]()
    loop.add_signal_handler(signal.SIGINT, pressed.put_nowait, None)
    try:
        yield pressed
    finally:
        loop.remove_signal_handler(signal.SIGINT)
