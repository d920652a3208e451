"""gradeloop's judges beside Docent's, the bare SDK, and the engine's own floor: `make bench-judges`.

The same runs before the same provider, which takes 200 ms: 200 judgements, 50 at once. The sides take turns, each in processes of its
own; of gradeloop that is the caller, the worker and the Temporal server.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil  # type: ignore[import-untyped]  # it ships no types
from aiohttp import web
from rich.console import Console
from rich.table import Table

from gradeloop.batches.judge_many import RunVerdict, judge_many
from gradeloop.contract.transcript import AgentRun
from gradeloop.exit_codes import leave
from gradeloop.judges.client import Judge
from gradeloop.store.engine import STORE_FILE, Store
from lab import bare_judging
from lab.peer.venv import DOCENT, peer_python
from lab.served_app import served
from rig.processes import Engine, WorkerProcess, engine_in

RUNS, CONCURRENCY, SECONDS, ROUNDS = 200, 50, 0.2, 5
QUEUE = "bench-judges"
SAID = 'It is.\n<response>{"label": "match", "explanation": "It says so [T0B1]."}</response>'
MEBI = 1024 * 1024


@dataclass(frozen=True)
class Measured:
    """One round of one side."""

    wall: float
    cpu: float
    """Seconds of CPU, of all processes but the provider and, of gradeloop, the Temporal server."""
    megabytes: float
    failed: int
    server_cpu: float = 0.0


def provider(said: str = SAID) -> web.Application:
    """Return a server that answers as the Responses API does, after 200 ms."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(SECONDS)
        content = [{"type": "output_text", "text": said, "annotations": []}]
        output = [{"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": content}]
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15} | details
        told = {"id": "r", "object": "response", "created_at": 1, "status": "completed", "model": "m", "output": output, "usage": usage}
        return web.json_response(told | {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []})

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/responses", answer)
    return app


async def scripted(python: Path | str, script: str, url: str) -> Measured:
    """Measure a side that is a script of its own."""
    command = [str(python), script, url, str(RUNS), str(CONCURRENCY)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=dict(os.environ))
    out, _ = await process.communicate()
    told: dict[str, Any] = json.loads(out.decode().strip().splitlines()[-1])
    return Measured(told["wall"], told["cpu"], told["megabytes"], told["failed"])


class Served:
    """A side with a worker process, on an embedded server that all such sides share."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def measured(self, worker: int, work: Awaitable[int]) -> Measured:
        """Do the work, which says how many judgements failed, and return what it took of caller, worker and server."""
        if self.engine.server is None:
            raise RuntimeError("the server was not started")
        served, server = psutil.Process(worker), psutil.Process(self.engine.server.pid)
        before = (_cpu(served), _cpu(server), time.process_time(), time.perf_counter())
        failed = await work
        wall, cpu = time.perf_counter() - before[3], _cpu(served) - before[0] + time.process_time() - before[2]
        megabytes = (served.memory_info().rss + psutil.Process().memory_info().rss) / MEBI
        return Measured(wall, cpu, megabytes, failed, _cpu(server) - before[1])


class Ours(Served):
    """gradeloop."""

    def __init__(self, engine: Engine, url: str) -> None:
        super().__init__(engine)
        self._worker = WorkerProcess(engine, QUEUE, url)
        self._round = 0

    async def start(self) -> None:
        """Start the worker, and judge one run, so that everything is loaded."""
        await self._worker.start()
        model = {"provider": "openai", "model_name": "gpt-5"}
        rubric = {"rubric_text": "Say whether the run is good.", "judge_model": model}
        self._judge = Judge(rubric, await self.engine.client(), task_queue=QUEUE)
        self._store = Store(f"sqlite:///{self.engine.folder / STORE_FILE}")
        await self._judge(runs_of("warm", 1)[0])

    async def round(self) -> Measured:
        """Judge all runs, under new ids."""
        self._round += 1
        runs = runs_of(f"round-{self._round}", RUNS)

        async def work() -> int:
            judged: list[RunVerdict] = []
            await judge_many(self._judge, runs, judged.append, concurrency=CONCURRENCY, store=self._store)
            return sum(row.result.failed for row in judged)

        return await self.measured(self._worker.process.pid if self._worker.process else 0, work())

    def stop(self) -> None:
        """End the worker."""
        self._worker.kill()


class Floor(Served):
    """A bare workflow of one activity: what the engine itself takes."""

    _worker: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the worker."""
        command = [sys.executable, "-m", "lab.bare_judging", self.engine.address]
        self._worker = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert self._worker.stdout
        await self._worker.stdout.readline()
        self._client = await self.engine.client()

    async def round(self) -> Measured:
        """Run as many workflows, as many at once."""
        gate, name = asyncio.Semaphore(CONCURRENCY), f"{time.time_ns()}"

        async def one(at: int) -> None:
            async with gate:
                run = f"I am run number {at}. " * 80
                await self._client.execute_workflow(bare_judging.WORKFLOW, run, id=f"{name}-{at}", task_queue=bare_judging.QUEUE)

        async def work() -> int:
            await asyncio.gather(*map(one, range(RUNS)))
            return 0

        return await self.measured(self._worker.pid if self._worker else 0, work())

    def stop(self) -> None:
        """End the worker."""
        if self._worker is not None and self._worker.returncode is None:
            self._worker.kill()


def runs_of(name: str, count: int) -> list[AgentRun]:
    """Return runs of ids of their own."""
    said = [{"role": "user", "content": "Which run are you?"}]
    contents = [f"I am run number {at} of {name}. " * 80 for at in range(count)]
    return [
        AgentRun.model_validate({"id": f"{name}-{at}", "transcripts": [{"messages": [*said, {"role": "assistant", "content": content}]}]})
        for at, content in enumerate(contents)
    ]


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def measure(url: str, rounds: int, folder: Path, docent: Path | None) -> dict[str, list[Measured]]:
    """Measure all sides, in turns.

    Args:
        url: The provider's address.
        rounds: Rounds of all sides.
        folder: Where server and store keep their files.
        docent: The Python that Docent is installed in; None leaves it out.
    """
    here = Path(__file__).parent
    found: dict[str, list[Measured]] = {"gradeloop": [], "a bare workflow": [], "Docent": [], "bare SDK": []}
    async with engine_in(folder) as engine:
        ours, floor = Ours(engine, url), Floor(engine)
        await ours.start()
        try:
            await floor.start()
            for _ in range(rounds):
                found["bare SDK"].append(await scripted(sys.executable, str(here / "bare_judges.py"), url))
                if docent is not None:
                    found["Docent"].append(await scripted(docent, str(here / "peer" / "docent_judges.py"), url))
                found["a bare workflow"].append(await floor.round())
                found["gradeloop"].append(await ours.round())
        finally:
            ours.stop()
            floor.stop()
    return found


def show(found: dict[str, list[Measured]]) -> None:
    """Print the medians of all rounds."""
    table = Table(title=f"{RUNS} judgements, {SECONDS * 1000:.0f} ms provider, {CONCURRENCY} at once; medians of the rounds")
    for heading in ("", "wall, s", "CPU a call, ms", "MiB", "failed", "server CPU a call, ms"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, rounds in found.items():
        figures = [median(getattr(each, field) for each in rounds) for field in ("wall", "cpu", "megabytes", "failed", "server_cpu")]
        wall, cpu, megabytes, failed, server = figures
        told = f"{server / RUNS * 1000:.1f}" if server else ""
        table.add_row(name, f"{wall:.2f}", f"{cpu / RUNS * 1000:.1f}", f"{megabytes:.0f}", f"{failed:.0f}", told)
    Console().print(table)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    with served(provider) as url, tempfile.TemporaryDirectory() as folder:
        show(asyncio.run(measure(url, rounds, Path(folder), peer_python(DOCENT))))
    leave(0)


if __name__ == "__main__":
    main()
