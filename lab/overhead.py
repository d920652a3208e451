"""What gradeloop costs beside a bare workflow of six no-op activities: `make bench`.

One server, one script, the subjects in turns, so that whatever else the machine does falls on both.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table
from temporalio.client import Client

from gradeloop.exit_codes import leave
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo, ensure_server, stop_server
from lab.measure import Bench, Cost, History
from lab.subjects import READY, SUBJECTS, Subject

TARGET = 1.3
"""Times the bare workflow, in latency and in runs a second."""

WARM_UP = 20


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    latencies: int = 60
    many: int = 100
    runs: int = 100
    """A round of runs with `many` in flight."""
    rounds: int = 10


@dataclass(frozen=True)
class Measured:
    """Everything about one subject."""

    latencies: list[float]
    costs: list[Cost]
    history: History

    @property
    def p50(self) -> float:
        """Milliseconds of a run alone."""
        return median(self.latencies) * 1000

    @property
    def alone(self) -> float:
        """Runs a second, one after the other."""
        return len(self.latencies) / sum(self.latencies)

    @property
    def together(self) -> float:
        """Runs a second, many in flight."""
        return median(cost.rate for cost in self.costs)

    @property
    def worker_cpu(self) -> float:
        """Milliseconds of CPU of the worker a run, many in flight."""
        return median(cost.worker_cpu / cost.runs for cost in self.costs) * 1000

    @property
    def server_cpu(self) -> float:
        """Milliseconds of CPU of the server a run, many in flight."""
        return median(cost.server_cpu / cost.runs for cost in self.costs) * 1000


async def measure(benches: Sequence[Bench], plan: Plan) -> list[Measured]:
    """Measure the subjects in turns."""
    latencies: list[list[float]] = [[] for _ in benches]
    costs: list[list[Cost]] = [[] for _ in benches]
    for bench in benches:
        await bench.at_once(plan.many, max(WARM_UP, plan.many))
    for _ in range(plan.latencies):
        for bench, seconds in zip(benches, latencies, strict=True):
            seconds.append(await bench.latency())
    for _ in range(plan.rounds):
        for bench, spent in zip(benches, costs, strict=True):
            spent.append(await bench.at_once(plan.many, plan.runs))
    histories = [await bench.history() for bench in benches]
    return [Measured(*each) for each in zip(latencies, costs, histories, strict=True)]


def table(ours: Measured, bare: Measured, plan: Plan) -> Table:
    """Return the figures side by side; a ratio above 1 says that ours costs more."""
    rows: list[tuple[str, Callable[[Measured], float], str]] = [
        ("one run alone, ms (p50)", lambda each: each.p50, ".1f"),
        ("runs a second, one at a time", lambda each: each.alone, ".1f"),
        (f"runs a second, {plan.many} at once", lambda each: each.together, ".1f"),
        ("worker CPU a run, ms", lambda each: each.worker_cpu, ".1f"),
        ("server CPU a run, ms", lambda each: each.server_cpu, ".1f"),
        ("history, events", lambda each: each.history.events, ",.0f"),
        ("history, bytes", lambda each: each.history.bytes, ",.0f"),
    ]
    shown = Table("", "gradeloop", "bare", "ratio", box=None, padding=(0, 3, 0, 0), header_style="dim")
    for name, figure, form in rows:
        here, there = figure(ours), figure(bare)
        ratio = there / here if name.startswith("runs") else here / there
        shown.add_row(name, format(here, form), format(there, form), f"{ratio:.2f}")
    return shown


@asynccontextmanager
async def bench_of(subject: Subject, client: Client, server: ServerInfo, **variables: str) -> AsyncIterator[Bench]:
    """Serve the subject from a process of its own, with some more variables."""
    command = [sys.executable, "-m", "lab.subjects", subject.name, server.address]
    environment = {**os.environ, **variables}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    try:
        if process.stdout is None or (await process.stdout.readline()).decode().strip() != READY:
            raise RuntimeError(f"the worker of {subject.name} does not start; its words are above")
        yield Bench(subject, client, process.pid, server.pid)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def overhead(plan: Plan) -> list[Measured]:
    """Measure both subjects on an embedded server of their own, whose files are thrown away."""
    with tempfile.TemporaryDirectory(prefix="gradeloop-bench-") as folder:
        os.environ["GRADELOOP_STATE_DIR"] = folder
        server = await ensure_server()
        try:
            client = await connect(Connection(server.address, "default", embedded=True))
            async with AsyncExitStack() as stack:
                benches = [await stack.enter_async_context(bench_of(each, client, server)) for each in SUBJECTS.values()]
                return await measure(benches, plan)
        finally:
            await stop_server()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.overhead", description=__doc__)
    for name, number in vars(Plan()).items():
        parser.add_argument(f"--{name}", type=int, default=number, metavar=str(number))
    plan = Plan(**vars(parser.parse_args(arguments)))
    ours, bare = asyncio.run(overhead(plan))
    console = Console(highlight=False, width=100)
    console.print(f"Three iterations of gradeloop beside six no-op activities; aim: {TARGET:g} times the bare workflow")
    console.print(table(ours, bare, plan))


if __name__ == "__main__":
    main()
    leave(0)
