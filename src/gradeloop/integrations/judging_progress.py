"""Progress of judgements, told at a steady pace: how long they take, how many have ended, and what the others wait for."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.client.call_waits import describe_call_wait
from gradeloop.text import counted, duration

PACE_SECONDS = 5.0
"""The time from one notice to the next: clients give a call up that is silent for a minute or less."""

DESCRIBED_SECONDS = 3.0
"""How long the server may take to say what a judgement waits for."""

Report = Callable[[float, str], Awaitable[None]]
"""Takes the seconds since the call began, and where it is in words."""


class JudgingProgress:
    """The judgements of one call that have begun, and those that have ended."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.open: list[str] = []
        """The workflows of those that have begun and not ended."""
        self.ended = 0

    def begin(self, name: str) -> None:
        """Note that a judgement begins."""
        self.open.append(name)

    def end(self, name: str) -> None:
        """Note that a judgement has ended."""
        self.open.remove(name)
        self.ended += 1


@asynccontextmanager
async def reporting(progress: JudgingProgress, client: Client, report: Report | None) -> AsyncIterator[None]:
    """Report while the body runs; a listener that is gone ends that alone.

    Args:
        progress: The judgements.
        client: Of their server.
        report: Who is told; nobody where it is None.
    """
    if report is None:
        yield
        return
    telling = asyncio.create_task(_tell(progress, client, report))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _tell(progress: JudgingProgress, client: Client, report: Report) -> None:
    began, due = time.monotonic(), PACE_SECONDS
    while True:
        await asyncio.sleep(max(0.0, began + due - time.monotonic()))
        waits = await _wait_of(progress.open, client)
        elapsed = round(time.monotonic() - began, 1)
        of = f"{progress.ended} of {counted(progress.total, 'judgement')} made"
        await report(elapsed, "; ".join(filter(None, (duration(elapsed), of, waits))))
        due = max(due + PACE_SECONDS, time.monotonic() - began)


async def _wait_of(names: Sequence[str], client: Client) -> str:
    """Return what the first judgement in flight waits for; empty where none is."""
    if not names:
        return ""
    try:
        async with asyncio.timeout(DESCRIBED_SECONDS):
            description = await client.get_workflow_handle(names[0]).describe()
            return await describe_call_wait(description, client.data_converter.decode)
    except (RPCError, TimeoutError):
        return "the Temporal server does not say what is waited for"
