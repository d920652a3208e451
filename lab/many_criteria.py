"""A rubric of 100 criteria, a call each: wall time beside that of the calls alone, and the history: `make bench-criteria`."""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from math import ceil
from uuid import uuid4

from rich.console import Console
from rich.table import Table
from temporalio.client import Client

from activities.providers import Providers
from activities.providers.environment import Environment
from activities.providers.scripted import Script
from activities.tools.registry import ToolRegistry
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.provider import ModelReply, ModelRequest
from gradeloop.contract.thread import RunResult
from gradeloop.exit_codes import leave
from gradeloop.settings.worker import WorkerSettings
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ensure_server, stop_server
from worker import build

CRITERIA = 100

CALL_SECONDS = 2.0
"""Of every model call: about what a small hosted model takes for one verdict."""

CONCURRENCY = 25


class Slow(Providers):
    """Models that take their time and pass everything."""

    def __init__(self) -> None:
        super().__init__(Environment.read({}), Script(replies=()))

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Draft at once, judge after a while."""
        text = "a draft"
        if request.step.role == "grader":
            await asyncio.sleep(CALL_SECONDS)
            row = {"reason": "It is there.", "passed": True, "gap": ""}
            text = json.dumps({"k1": row, "unjudgeable": "", "summary": "It is there."})
        return ModelReply(message=Message(role="assistant", content=text), usage=Usage(calls=1, attempts=1))


async def measured(client: Client, said: str, concurrency: int) -> tuple[float, int]:
    """Return the seconds of one run, and the bytes of its history."""
    settings = WorkerSettings(task_queue=f"queue-{uuid4()}", max_concurrent_activities=concurrency)
    rubric = {"mode": "per_criterion", "criteria": [f"criterion {number}" for number in range(1, CRITERIA + 1)]}
    model = {"model": "scripted:slow"}
    argument = {"messages": [{"role": "user", "content": said}], "rubric": rubric, "generator": model, "grader": model}
    async with build(client, Slow(), ToolRegistry(), settings, search_attributes=True):
        began = time.perf_counter()
        handle = await client.start_workflow(
            "GradingThread", argument, id=f"thread-{uuid4()}", task_queue=settings.task_queue, result_type=RunResult
        )
        result = await handle.result()
        seconds = time.perf_counter() - began
        history = await handle.fetch_history()
    if result.status != "satisfied":
        raise RuntimeError(f"the run ended {result.status}: {result.evaluations[-1].explanation}")
    return seconds, sum(event.ByteSize() for event in history.events)


async def bench() -> Table:
    """Measure a short and a long transcript, at two concurrencies."""
    shown = Table(
        "100 criteria, a call of 2 s each", "seconds", "the calls alone", "ratio", "history, bytes", box=None, padding=(0, 3, 0, 0)
    )
    with tempfile.TemporaryDirectory(prefix="gradeloop-bench-") as folder:
        os.environ["GRADELOOP_STATE_DIR"] = folder
        server = await ensure_server()
        try:
            client = await connect(Connection(server.address, "default", embedded=True))
            for name, said in (("a short request", "hello"), ("a request of 1 MiB", "x" * (1024 * 1024 - 100))):
                for concurrency in (CONCURRENCY, CRITERIA):
                    seconds, size = await measured(client, said, concurrency)
                    alone = ceil(CRITERIA / concurrency) * CALL_SECONDS
                    shown.add_row(f"{name}, {concurrency} at once", f"{seconds:.1f}", f"{alone:.1f}", f"{seconds / alone:.2f}", f"{size:,}")
        finally:
            await stop_server()
    return shown


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    Console(highlight=False, width=110).print(asyncio.run(bench()))
    sys.stdout.flush()
    leave(0)


if __name__ == "__main__":
    main()
