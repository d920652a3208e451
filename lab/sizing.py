"""What a thousand calls cost on four workers in three roles: `python -m lab.sizing`.

One worker for workflows, two for model calls and batches, one for evidence, one server and one store on this machine; the models are
servers in this process, whose own work is not counted. Processor time is what the kernel counted for each process.
"""

import argparse
import asyncio
import os
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.client import Client

from gradeloop.client.client import GradingClient
from gradeloop.exit_codes import leave
from lab.batch_storm import CaseJudge, suite_of
from lab.batch_storm import Plan as BatchPlan
from rig.counting_server import CountingServer
from rig.processes import Engine, WorkerProcess, engine_in

QUEUE = "sizing"
WORKERS = ("loop", "models", "models", "evidence")
TICKS = os.sysconf("SC_CLK_TCK")
DAYS = (1_000_000, 10_000_000, 100_000_000)
"""Gradings a day that the figures are extrapolated to."""


@dataclass
class Report:
    """What was measured of one kind of work."""

    kind: str
    gradings: int
    """Verdicts that were asked for: five calls of models and one of a tool make two in a thread, one call makes one in a batch."""
    calls: int
    seconds: float
    cpu: dict[str, float] = field(default_factory=dict)
    """Seconds of processor time by role, the server's and the store's files beside them."""
    history: float = 0.0
    """Bytes of history a grading."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows of the store by table."""
    store_bytes: int = 0
    by_worker: dict[str, int] = field(default_factory=dict)
    """Calls by the worker that made them."""

    def lines(self) -> list[str]:
        """Return the lines that a page shows of it."""
        per = 1000 / self.calls
        found = [f"{self.kind}: {self.gradings} gradings, {self.calls} calls in {self.seconds:.0f} s; calls by worker: {self.by_worker}"]
        found += [f"  {role}: {seconds * per:.1f} s of processor a 1,000 calls" for role, seconds in self.cpu.items()]
        found += [f"  history: {self.history:,.0f} bytes a grading; store: {sum(self.rows.values()) / self.gradings:.1f} rows, "]
        found[-1] += f"{self.store_bytes / self.gradings:,.0f} bytes a grading"
        for gradings in DAYS:
            cores = {role: seconds / self.gradings * gradings / 86_400 for role, seconds in self.cpu.items()}
            shown = ", ".join(f"{role} {found:.1f}" for role, found in cores.items())
            found.append(f"  {gradings:,} a day: {gradings * self.history / 1e9:,.0f} GB of history; cores at an even rate: {shown}")
        return found


@dataclass
class Stand:
    """The processes of a measurement."""

    engine: Engine
    client: Client
    workers: list[tuple[str, WorkerProcess]]
    store: Path

    def cpu(self) -> dict[str, float]:
        """Return the processor time so far by role."""
        counted = dict.fromkeys(WORKERS, 0.0)
        for role, worker in self.workers:
            counted[role] += _cpu(worker.process.pid if worker.process else 0)
        counted["server"] = _cpu(self.engine.server.pid if self.engine.server else 0)
        return counted

    def used_since(self, before: dict[str, float]) -> dict[str, float]:
        """Return the processor time by role since then."""
        return {role: seconds - before[role] for role, seconds in self.cpu().items()}

    def memory(self) -> dict[str, int]:
        """Return the most memory that a process of each role has had, in MiB."""
        most: dict[str, int] = {}
        for role, worker in self.workers:
            most[role] = max(most.get(role, 0), _memory(worker.process.pid if worker.process else 0))
        return most | {"server": _memory(self.engine.server.pid if self.engine.server else 0)}


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) / TICKS


def _memory(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


async def measure(threads: int, cases: int, folder: Path) -> tuple[list[Report], dict[str, int]]:
    """Run threads, then a batch, and return what each took, and the memory of the processes."""
    models, judge = CountingServer(), CaseJudge(0.0)
    await models.start()
    address, store = await judge.start(), folder / "results.db"
    async with engine_in(folder) as engine:
        client, workers = await engine.client(), list[tuple[str, WorkerProcess]]()
        try:
            for at, role in enumerate(WORKERS):
                variables = {"GRADELOOP_ROLE": role, "GRADELOOP_BASE_URLS": f"{models.url},{address}"}
                variables |= {"GRADELOOP_STORE": f"sqlite:///{store}"} if role == "models" else {}
                workers.append((role, await WorkerProcess(engine, QUEUE, models.url, name=f"{role}-{at}", variables=variables).start()))
            stand = Stand(engine, client, workers, store)
            reports = [await _threads(threads, stand, models), await _batch(cases, stand, judge, address)]
            return reports, stand.memory()
        finally:
            for _, worker in workers:
                worker.kill()
            await models.close()
            await judge.close()


async def _threads(count: int, stand: Stand, models: CountingServer) -> Report:
    """Run threads whose second draft is good, and whose grader looks at evidence once."""
    places, grading = asyncio.Semaphore(20), GradingClient(stand.client, task_queue=QUEUE)

    async def one(name: str) -> None:
        models.wishes[f"{name} grader 0"] = [("look", f"{name}/left")]
        grader = {"model": models.model("grader", name), "tools": ["look"]}
        asked = [{"role": "user", "content": "write " * 100}]
        async with places:
            await grading.result(await grading.start({**models.request(name), "grader": grader, "messages": asked}, thread_id=name))

    before, began = stand.cpu(), time.monotonic()
    async with asyncio.TaskGroup() as group:
        for at in range(count):
            group.create_task(one(f"thread-{at}"))
    seconds, used = time.monotonic() - began, stand.used_since(before)
    calls = [call for call in models.calls if not call.name.startswith("evidence")]
    report = Report("threads", 2 * count, len(calls), seconds, used)
    report.history = await _history(stand.client, "GradingThread") / report.gradings
    report.by_worker = dict(Counter(call.worker for call in calls))
    return report


async def _batch(count: int, stand: Stand, judge: CaseJudge, address: str) -> Report:
    """Grade cases that have their outputs, one call each."""
    suite = suite_of(BatchPlan(cases=count, at_once=50), address, stand.engine.folder)
    own = {"TEMPORAL_ADDRESS": stand.engine.address, "GRADELOOP_STORE": f"sqlite:///{stand.store}", "GRADELOOP_TASK_QUEUE": QUEUE}
    own["GRADELOOP_STATE_DIR"] = str(stand.engine.folder)
    before, began = stand.cpu(), time.monotonic()
    command = [str(Path(sys.executable).parent / "gradeloop"), "eval", str(suite)]
    running = await asyncio.create_subprocess_exec(*command, env=os.environ | own, stdout=asyncio.subprocess.DEVNULL)
    await running.wait()
    seconds, used = time.monotonic() - began, stand.used_since(before)
    report = Report("a batch", count, len(judge.calls), seconds, used)
    report.history = sum([await _history(stand.client, kind) for kind in ("GradingBatch", "BatchShard", "StoreCases")]) / count
    with closing(sqlite3.connect(stand.store)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        counts = {name: int(database.execute(f"SELECT count(*) FROM {name}").fetchone()[0]) for name in names}
        report.rows = {name: rows for name, rows in counts.items() if rows >= count // 2}
        pages, size = (int(database.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "page_size"))
    report.store_bytes = pages * size
    return report


async def _history(client: Client, kind: str) -> int:
    """Return the bytes of all histories of a type of workflow."""
    found = 0
    async for workflow in client.list_workflows(f"TaskQueue = '{QUEUE}' AND WorkflowType = '{kind}'"):
        described = await client.get_workflow_handle(workflow.id, run_id=workflow.run_id).describe()
        found += described.raw_description.workflow_execution_info.history_size_bytes
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument("--cases", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reports, memory = asyncio.run(measure(arguments.threads, arguments.cases, Path(folder)))
    for report in reports:
        print("\n".join(report.lines()))
    print("most memory of a process, MiB:", memory)
    leave(0)


if __name__ == "__main__":
    main()
