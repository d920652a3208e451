"""`gradeloop eval` beside promptfoo and Mastra: 200 outputs that are there already, each judged by one criterion: `make bench-batches`.

The same mock judge for all, which takes 200 ms, 50 calls at once, no cache. The sides take turns. A peer is a process of its own from its
start to its end; a second figure leaves out what one case alone costs it, which is its start.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Protocol

import psutil  # type: ignore[import-untyped]  # it ships no types
from rich.console import Console
from rich.table import Table

from gradeloop.exit_codes import leave
from lab.mock_judge import SECONDS, counts, judging
from lab.peer.promptfoo_suite import promptfoo, suite
from lab.peer.watched import watched
from rig.node_peers import MASTRA, peer
from rig.processes import Engine, WorkerProcess, engine_in

RUNS, CONCURRENCY, ROUNDS = 200, 50, 5
QUEUE = "bench-batches"
RUBRIC = "It says which run it is."
QUIET = {"NODE_NO_WARNINGS": "1"}


@dataclass(frozen=True)
class Measured:
    """One round of one side."""

    wall: float
    """Seconds of the whole command, from its start to its end."""
    judged: float
    """Seconds from the judge's first call to its last answer."""
    cpu: float
    """Seconds of CPU, of all of the side's processes."""
    megabytes: float
    """The most that they held."""
    failed: int
    calls: int
    at_once: int
    """Calls in flight, at most."""
    start: float = 0.0
    """Seconds of CPU of the same with one case."""


class Side(Protocol):
    """Something that judges all outputs."""

    @property
    def name(self) -> str:
        """What the table calls it."""

    async def round(self, runs: int = RUNS) -> Measured:
        """Judge so many outputs."""


def outputs(count: int) -> list[str]:
    """Return what is judged: about 1,700 characters each."""
    return [f"I am run number {at}. " * 80 for at in range(count)]


@dataclass(frozen=True)
class Promptfoo:
    """`promptfoo eval` with the provider `echo`."""

    judge: str
    folder: Path
    name: str = "promptfoo"

    async def round(self, runs: int = RUNS) -> Measured:
        """Run the suite."""
        config = suite(self.folder, outputs(runs), RUBRIC)
        told = await asyncio.to_thread(promptfoo(self.judge, self.folder).evaluate, config, "--max-concurrency", str(CONCURRENCY))
        asked, process = counts(self.judge), told.process
        return Measured(process.seconds, asked.seconds, process.cpu, process.megabytes, told.failed, asked.calls, asked.at_once)


@dataclass(frozen=True)
class Mastra:
    """One `createRubricScorer`, run on every output."""

    judge: str
    folder: Path
    name: str = "Mastra"

    async def round(self, runs: int = RUNS) -> Measured:
        """Run the script."""
        there, script = peer(MASTRA), Path(__file__).parent / "peer" / "mastra_rubric.mjs"
        command = [str(there.node), str(script), str(there.modules), self.judge, str(runs), str(CONCURRENCY)]
        process = (await asyncio.to_thread(watched, command, there.environment({**os.environ, **QUIET}), self.folder)).must(0)
        failed = int(json.loads(process.output.strip().splitlines()[-1])["failed"])
        asked = counts(self.judge)
        return Measured(process.seconds, asked.seconds, process.cpu, process.megabytes, failed, asked.calls, asked.at_once)


class Gradeloop:
    """`gradeloop eval`, its server and worker there already; their CPU and memory counted with the command's."""

    name = "gradeloop"

    def __init__(self, judge: str, folder: Path, engine: Engine) -> None:
        self._judge = judge
        self._folder = folder
        self._engine = engine
        self._worker = WorkerProcess(engine, QUEUE, judge)

    async def start(self) -> None:
        """Start the worker, and have it load what it needs for its first call."""
        await self._worker.start()
        await self.round(1)

    async def round(self, runs: int = RUNS) -> Measured:
        """Run the suite, past the cache."""
        if self._worker.process is None or self._engine.server is None:
            raise RuntimeError("server and worker were not started")
        rows = [json.dumps({"id": f"case-{at}", "output": output}) for at, output in enumerate(outputs(runs))]
        told = {"grader": "openai:gpt-5", "rubric": f"- {RUBRIC}", "tests": "cases.jsonl", "concurrency": CONCURRENCY, "cache": False}
        await asyncio.to_thread((self._folder / "cases.jsonl").write_text, "\n".join(rows))
        await asyncio.to_thread((self._folder / "suite.yaml").write_text, json.dumps(told))
        own = {"TEMPORAL_ADDRESS": self._engine.address, "GRADELOOP_TASK_QUEUE": QUEUE}
        own |= {"GRADELOOP_STATE_DIR": str(self._engine.folder), "OPENAI_API_KEY": "mock"}
        resident = [psutil.Process(self._worker.process.pid), psutil.Process(self._engine.server.pid)]
        before = sum(_cpu(each) for each in resident)
        command = [
            str(Path(sys.executable).parent / "gradeloop"),
            "eval",
            str(self._folder / "suite.yaml"),
            "-o",
            str(self._folder / "o.json"),
        ]
        process = await asyncio.to_thread(watched, command, os.environ | own, self._folder)
        cpu = process.cpu + sum(_cpu(each) for each in resident) - before
        megabytes = process.megabytes + resident[0].memory_info().rss / 1024**2
        asked = counts(self._judge)
        summary = json.loads(await asyncio.to_thread((self._folder / "o.json").read_text))["summary"]
        failed = runs - summary["passed"]
        return Measured(process.seconds, asked.seconds, cpu, megabytes, failed, asked.calls, asked.at_once)

    def stop(self) -> None:
        """End the worker."""
        self._worker.kill()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def measure(sides: Sequence[Side], rounds: int) -> dict[str, list[Measured]]:
    """Measure all sides in turns, after a round of one case each."""
    starts = {side.name: (await side.round(1)).cpu for side in sides}
    found: dict[str, list[Measured]] = {side.name: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            found[side.name].append(replace(await side.round(), start=starts[side.name]))
    return found


def middle(rounds: Sequence[Measured]) -> Measured:
    """Return the medians of a side's rounds."""
    figures = {field.name: median(getattr(each, field.name) for each in rounds) for field in fields(Measured)}
    return Measured(**figures)


def show(found: dict[str, list[Measured]]) -> Table:
    """Return the medians of all rounds, side by side."""
    table = Table(title=f"{RUNS} outputs, {SECONDS * 1000:.0f} ms judge, {CONCURRENCY} at once; medians of the rounds")
    heads = ("", "wall, s", "of it judging, s", "CPU a grading, ms", "without its start, ms", "MiB", "failed", "calls", "at once")
    for heading in heads:
        table.add_column(heading, justify="right" if heading else "left")
    for name, rounds in found.items():
        told = middle(rounds)
        cpu = [f"{(each / RUNS) * 1000:.1f}" for each in (told.cpu, told.cpu - told.start)]
        counted = [f"{each:.0f}" for each in (told.megabytes, told.failed, told.calls, told.at_once)]
        table.add_row(name, f"{told.wall:.2f}", f"{told.judged:.2f}", *cpu, *counted)
    return table


PEERS: tuple[type[Promptfoo] | type[Mastra], ...] = (Promptfoo, Mastra)


async def contest(
    judge: str, folder: Path, rounds: int, peers: Sequence[type[Promptfoo] | type[Mastra]] = PEERS
) -> dict[str, list[Measured]]:
    """Measure ourselves and peers before one judge."""
    os.environ["GRADELOOP_STORE"] = f"sqlite:///{folder / 'results.db'}"  # of the worker and the command
    async with engine_in(folder) as engine:
        ours = Gradeloop(judge, folder, engine)
        await ours.start()
        try:
            return await measure([ours, *(peer(judge, folder) for peer in peers)], rounds)
        finally:
            ours.stop()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m lab.batches", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="gradeloop-bench-") as folder, judging() as judge:
        found = asyncio.run(contest(judge, Path(folder), rounds))
    Console(width=140).print(show(found))


if __name__ == "__main__":
    main()
    leave(0)
