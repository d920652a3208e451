"""How what a thread costs grows: threads that are open and idle, turns of one thread, criteria, characters of a message.

    python -m lab.growth idle turns criteria message

One server and one worker in a process of its own; the models are scripted and answer at once. Processor time and memory are what the
kernel counts for each process, bytes of history what the server says. Times are the median of a size, processor time is the mean.
"""

import argparse
import asyncio
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil  # type: ignore[import-untyped]  # it ships no types
from rich.console import Console
from rich.table import Table

from activities.providers import Providers
from activities.providers.environment import Environment
from activities.providers.scripted import Script
from activities.tools.registry import ToolRegistry
from gradeloop.client.client import GradingClient
from gradeloop.contract.thread import RunResult
from gradeloop.exit_codes import leave
from gradeloop.settings.worker import WorkerSettings
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo, ensure_server, stop_server
from lab.replies import READY
from worker import build

QUEUE = "growth"
SERVE = "--serve"
MIB = 2**20
CONCURRENCY = 20
AGAIN = 5
"""Runs that a size of criteria or of a message is measured with."""
WOKEN = 50
"""Threads that get another turn at each size."""
STILL_SECONDS = 10.0

IDLE = (1, 100, 1_000, 2_000, 4_000, 10_000)
TURNS = (1, 10, 100, 200, 500, 1_000)
CRITERIA = (1, 3, 10, 30, 100)
KIBIBYTES = (1, 16, 64, 256, 1_023)

MODELS = {"generator": {"model": "scripted:draft"}, "grader": {"model": "scripted:judge"}}


def script(turns: int, criteria: int) -> Script:
    """Return the replies of so many turns, each accepted at once by so many criteria."""
    rows = {f"k{at}": {"reason": "As read.", "passed": True, "gap": ""} for at in range(1, criteria + 1)}
    verdict = {**rows, "unjudgeable": "", "summary": "Read line by line."}
    drafts = [{"role": "generator", "run": run, "text": f"Draft of turn {run}."} for run in range(turns)]
    verdicts = [{"role": "grader", "run": run, "verdict": verdict} for run in range(turns)]
    return Script.model_validate({"replies": [*drafts, *verdicts]})


def rubric(criteria: int) -> str:
    """Return a rubric of so many criteria."""
    return "\n".join(f"- the text says what step {at} of the plan is for" for at in range(1, criteria + 1))


async def serve(address: str, turns: int, criteria: int, cached: int) -> None:
    """Serve until SIGTERM."""
    client = await connect(Connection(address, "default", embedded=True))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    settings = WorkerSettings(task_queue=QUEUE, max_cached_workflows=cached)
    async with build(client, Providers(Environment(), script(turns, criteria)), ToolRegistry(), settings):
        print(READY, flush=True)
        await stopped.wait()


@dataclass(frozen=True)
class Spent:
    """What something took."""

    seconds: float
    worker: float
    """Seconds of processor time."""
    server: float


@dataclass
class Stand:
    """A server, its worker and a client of both."""

    client: GradingClient
    processes: tuple[psutil.Process, psutil.Process]
    """The worker's and the server's."""

    def resident(self) -> tuple[float, float]:
        """Return the MiB of memory of worker and server."""
        worker, server = (process.memory_info().rss / MIB for process in self.processes)
        return worker, server

    async def spent(self, work: Awaitable[object]) -> Spent:
        """Return what a work took."""
        began, before = time.perf_counter(), [_cpu(process) for process in self.processes]
        await work
        seconds = time.perf_counter() - began
        worker, server = (_cpu(process) - was for process, was in zip(self.processes, before, strict=True))
        return Spent(seconds, worker, server)

    async def history_bytes(self, thread_id: str) -> int:
        """Return the bytes of a thread's history since its workflow last began anew."""
        described = await self.client.temporal.get_workflow_handle(thread_id).describe()
        return int(described.raw_description.workflow_execution_info.history_size_bytes)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@asynccontextmanager
async def stand(server: ServerInfo, *, turns: int = 1, criteria: int = 1, cached: int = 2_000) -> AsyncIterator[Stand]:
    """Serve a number of turns and criteria from a process of its own."""
    command = [sys.executable, "-m", "lab.growth", SERVE, server.address, *map(str, (turns, criteria, cached))]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        if process.stdout is None or (await process.stdout.readline()).decode().strip() != READY:
            raise RuntimeError("the worker does not start; its words are above")
        client = GradingClient(await connect(Connection(server.address, "default", embedded=True)), task_queue=QUEUE)
        yield Stand(client, (psutil.Process(process.pid), psutil.Process(server.pid)))
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def together(calls: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """Make calls, `CONCURRENCY` at a time."""
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(call: Callable[[], Awaitable[object]]) -> None:
        async with gate:
            await call()

    await asyncio.gather(*(one(call) for call in calls))


async def idle(server: ServerInfo, most: int) -> Table:
    """Open threads, let them rest, and give some of them another turn."""
    shown = _table(
        "threads open", "opened, ms each", "worker, MiB", "server, MiB", "at rest, % of a core", "another turn, ms", "worker CPU, ms"
    )
    async with stand(server, turns=len(IDLE) + 1) as here:
        opened = 0
        for size in (size for size in IDLE if size <= most):
            opening = await here.spent(together([_turn(here, f"idle-{at}") for at in range(opened, size)]))
            each, opened = opening.seconds / (size - opened), size
            still = await here.spent(asyncio.sleep(STILL_SECONDS))
            worker, server_memory = here.resident()
            chosen = random.Random(size).sample(range(size), min(WOKEN, size))
            woken = [await here.spent(_turn(here, f"idle-{at}")()) for at in chosen]
            shown.add_row(
                f"{size:,}",
                f"{each * 1000:.1f}",
                f"{worker:.0f}",
                f"{server_memory:.0f}",
                f"{(still.worker + still.server) / STILL_SECONDS:.1%}",
                f"{median(one.seconds for one in woken) * 1000:.1f}",
                f"{sum(one.worker for one in woken) / len(woken) * 1000:.1f}",
            )
    return shown


def _turn(here: Stand, name: str) -> Callable[[], Awaitable[object]]:
    return lambda: here.client.invoke(name, "Write the plan.", start=_request(1))


async def turns(server: ServerInfo, most: int) -> Table:
    """Give one thread turn after turn."""
    shown = _table("turns of a thread", "a turn, ms", "worker CPU, ms", "server CPU, ms", "history of its workflow, KiB")
    sizes = [size for size in TURNS if size <= most]
    async with stand(server, turns=sizes[-1]) as here:
        done = 0
        for size in sizes:
            spent = [await here.spent(_turn(here, "turns")()) for _ in range(done, size)]
            done = size
            shown.add_row(
                f"{size:,}",
                f"{median(one.seconds for one in spent) * 1000:.1f}",
                f"{sum(one.worker for one in spent) / len(spent) * 1000:.1f}",
                f"{sum(one.server for one in spent) / len(spent) * 1000:.1f}",
                f"{await here.history_bytes('turns') / 1024:.1f}",
            )
    return shown


async def criteria(server: ServerInfo, most: int) -> Table:
    """Judge by more and more criteria."""
    shown = _table("criteria", "a run, ms", "worker CPU, ms", "history, bytes", "bytes a criterion")
    for size in (size for size in CRITERIA if size <= most):
        async with stand(server, criteria=size) as here:
            task = _request(size) | {"messages": [{"role": "user", "content": "Write the plan."}], "idle_timeout": 0}
            spent, held = await _again(here, f"criteria-{size}", task)
        shown.add_row(f"{size}", *_figures(spent, held), f"{held / size:,.0f}")
    return shown


async def message(server: ServerInfo, most: int) -> Table:
    """Give a longer and longer task."""
    shown = _table("a message, KiB", "a run, ms", "worker CPU, ms", "history, bytes", "worker CPU a KiB, ms")
    async with stand(server) as here:
        for size in (size for size in KIBIBYTES if size <= most):
            text = "Write the plan. ".ljust(size * 1024, "x")
            task = _request(1) | {"messages": [{"role": "user", "content": text}], "idle_timeout": 0}
            spent, held = await _again(here, f"message-{size}", task)
            cpu = sum(one.worker for one in spent) / len(spent) * 1000
            shown.add_row(f"{size:,}", *_figures(spent, held), f"{cpu / size:.2f}")
    return shown


async def _again(here: Stand, name: str, task: dict[str, Any]) -> tuple[list[Spent], int]:
    """Return what some runs took after a first one, and the bytes of the last one's history."""

    async def run(at: int) -> RunResult:
        return await here.client.result(await here.client.start(task, thread_id=f"{name}-{at}"))

    await run(AGAIN)
    spent = [await here.spent(run(at)) for at in range(AGAIN)]
    return spent, await here.history_bytes(f"{name}-{AGAIN - 1}")


def _figures(spent: Sequence[Spent], held: int) -> tuple[str, str, str]:
    cpu = sum(one.worker for one in spent) / len(spent) * 1000
    return f"{median(one.seconds for one in spent) * 1000:.1f}", f"{cpu:.1f}", f"{held:,}"


def _request(count: int) -> dict[str, Any]:
    """Return what starts a thread that stays open, judged by so many criteria."""
    return {"messages": [], "rubric": rubric(count), "max_iterations": 1, "idle_timeout": 86_400, **MODELS}


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, padding=(0, 3, 0, 0), header_style="dim")


CURVES: dict[str, Callable[[ServerInfo, int], Awaitable[Table]]] = {"idle": idle, "turns": turns, "criteria": criteria, "message": message}


async def measured(curves: Sequence[str], most: int) -> AsyncIterator[Table]:
    """Measure curves, each on a server of its own whose files are thrown away."""
    for name in curves:
        with tempfile.TemporaryDirectory(prefix="gradeloop-bench-") as folder:
            os.environ["GRADELOOP_STATE_DIR"] = str(Path(folder) / "state")
            try:
                yield await CURVES[name](await ensure_server(), most)
            finally:
                await stop_server()


async def show(curves: Sequence[str], most: int) -> None:
    """Print each curve when it is measured."""
    console = Console(highlight=False, width=140)
    async for table in measured(curves, most):
        console.print(table, "")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the curves, or serve."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == [SERVE]:
        logging.basicConfig(level=logging.ERROR)
        asyncio.run(serve(given[1], *map(int, given[2:])))
        return
    parser = argparse.ArgumentParser(prog="python -m lab.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=f"{', '.join(CURVES)}; all by default")
    parser.add_argument("--most", type=int, default=10_000, metavar="10000", help="the largest size of a curve")
    plan = parser.parse_args(given)
    if unknown := [name for name in plan.curves if name not in CURVES]:
        parser.error(f"there is no curve {unknown[0]!r}; there are {', '.join(CURVES)}")
    asyncio.run(show(plan.curves or list(CURVES), plan.most))


if __name__ == "__main__":
    main()
    leave(0)
