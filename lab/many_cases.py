"""A large batch from the terminal: how fast it goes, what it holds, how long its histories are: `python -m lab.many_cases`.

The judge takes 200 ms. With `--stored` the cases are read and stored, the batch is started, left, and paused. `--workers 4` shares the
batch among four workers on this machine.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it ships no types
from temporalio.client import Client

from gradeloop.exit_codes import leave
from lab.mock_judge import judging
from rig.processes import Engine, WorkerProcess, engine_in

QUEUE = "many-cases"
MEBI = 1024 * 1024
OWN = "WorkflowType = 'BatchShard' OR WorkflowType = 'GradingBatch' OR WorkflowType = 'StoreCases'"


class Watched:
    """What a command takes, and what the workers (all of them, but the largest one's memory) and the server take meanwhile."""

    def __init__(self, workers: Sequence[int], server: int) -> None:
        self._resident = {"worker": [psutil.Process(worker) for worker in workers], "server": [psutil.Process(server)]}
        self._before = {name: sum(map(_cpu, processes)) for name, processes in self._resident.items()}
        self.seconds = 0.0
        self.peaks: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    async def run(self, *command: str, environment: dict[str, str]) -> int:
        """Run a command to its end and return its exit code."""
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.DEVNULL)
        watched = self._resident | {"command": [psutil.Process(process.pid)]}
        ending = asyncio.create_task(process.wait())
        while not ending.done():
            for name, each in watched.items():
                with suppress(psutil.Error):
                    self.peaks[name] = max(self.peaks.get(name, 0.0), *(one.memory_info().rss / MEBI for one in each))
                    self.cpu[name] = sum(map(_cpu, each)) - self._before.get(name, 0.0)
            await asyncio.wait([ending], timeout=0.2)
        self.seconds = time.perf_counter() - began
        return ending.result()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def suite_of(folder: Path, count: int, at_once: int) -> Path:
    """Write the suite and its cases."""
    rows = (f"c{at},{f'I am run number {at}. ' * 80}" for at in range(count))
    (folder / "cases.csv").write_text("\n".join(["id,output", *rows]))
    told = {"name": "many", "grader": "openai:gpt-5", "rubric": "- It says which run it is.", "tests": "cases.csv", "concurrency": at_once}
    (folder / "suite.yaml").write_text(json.dumps(told))
    return folder / "suite.yaml"


async def longest(client: Client) -> float:
    """Return the size of the largest history, in MB."""
    sizes = [0]
    async for workflow in client.list_workflows(OWN):
        found = await client.get_workflow_handle(workflow.id, run_id=workflow.run_id).describe()
        sizes.append(found.raw_description.workflow_execution_info.history_size_bytes)
    return max(sizes) / 1e6


@dataclass(frozen=True)
class Measured:
    """What a batch took."""

    code: int
    seconds: float
    peaks: dict[str, float]
    """MiB by process: command, worker, server."""
    cpu: dict[str, float]
    """Seconds of CPU by process."""
    history: float
    """MB of the largest history."""


async def measure(judge: str, folder: Path, count: int, at_once: int, *, stored: bool = False, workers: int = 1) -> Measured:
    """Run the batch on so many workers, or store it alone."""
    os.environ["GRADELOOP_STORE"] = f"sqlite:///{folder / 'results.db'}"  # of the worker and the command
    async with engine_in(folder) as engine:
        serving = [WorkerProcess(engine, QUEUE, judge, name=f"worker-{at}") for at in range(workers)]
        try:
            for worker in serving:
                await worker.start()
            suite = suite_of(folder, count, at_once)
            own = {"TEMPORAL_ADDRESS": engine.address, "GRADELOOP_TASK_QUEUE": QUEUE, "OPENAI_API_KEY": "mock"}
            environment = os.environ | own | {"GRADELOOP_STATE_DIR": str(folder)}
            gradeloop, server = str(Path(sys.executable).parent / "gradeloop"), _server(engine)
            watched = Watched([worker.process.pid for worker in serving if worker.process], server)
            left = ["--detach"] if stored else ["-o", str(folder / "out.json")]
            code = await watched.run(gradeloop, "eval", str(suite), *left, environment=environment)
            if stored:
                await Watched([os.getpid()], server).run(gradeloop, "batches", "pause", "latest", environment=environment)
            return Measured(code, watched.seconds, watched.peaks, watched.cpu, await longest(await engine.client()))
        finally:
            for worker in serving:
                worker.kill()


def _server(engine: Engine) -> int:
    if engine.server is None:
        raise RuntimeError("the server was not started")
    return engine.server.pid


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=160)
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    told = parser.parse_args()
    with judging() as judge, tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(judge, Path(folder), told.cases, told.at_once, stored=told.stored, workers=told.workers))
    peaks = ", ".join(f"{name} {size:.0f}" for name, size in sorted(found.peaks.items()))
    cpu = ", ".join(f"{name} {seconds / told.cases * 1000:.1f}" for name, seconds in sorted(found.cpu.items()))
    rate = f"{found.seconds:.1f} s, {told.cases / found.seconds:.0f} a second"
    print(f"{told.cases:,} cases {'stored' if told.stored else 'judged'} in {rate}, {told.workers} workers; exit {found.code}")
    print(f"peaks, MiB: {peaks}; CPU a case, ms: {cpu}; the largest history {found.history:.2f} MB")
    leave(0)


if __name__ == "__main__":
    main()
