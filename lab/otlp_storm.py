"""Runs over OTLP while receiver, worker and server are killed: `python -m lab.otlp_storm --runs 100000 --rate 500`.

All are real processes on one SQLite store; the judge is a server in this process, which counts what is paid for. An exporter sends each
request until it is acknowledged, as OpenTelemetry's do. `lab/tests/test_otlp_storm.py` runs a small one.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx2
import psutil  # type: ignore[import-untyped]  # it has no types
from aiohttp import web
from aiohttp.test_utils import TestServer
from sqlalchemy import Connection, Select, func, select
from temporalio.client import Client, WorkflowFailureError
from temporalio.service import RPCError

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import ServerUnreachable
from gradeloop.exit_codes import leave
from gradeloop.monitors.contract import MonitorDefinition, Monitoring, MonitorTick
from gradeloop.monitors.overview import MonitorReader
from gradeloop.monitors.ticks import choose
from gradeloop.store.engine import STORE_FILE, Store
from gradeloop.store.tables import table
from gradeloop.temporal.connect import application_folder
from rig.otlp import PROTOBUF, chat, request_of, trace_id
from rig.processes import Engine, WorkerProcess, engine_in

QUEUE, MONITOR = "otlp-storm", "storm"
RECORDED_SECONDS = 5.0
"""An answer that came so shortly before a kill may not have been recorded yet."""

STARTED_SECONDS = 300.0
"""In which a worker must have started, on a machine that is busy with the storm."""

MEMORY_SECONDS = 5.0
"""Between two values of a process's memory as it is printed."""

MIB = 1024 * 1024


@dataclass(frozen=True)
class Plan:
    """How many, how fast, and how hard it blows."""

    runs: int = 100_000
    rate: float = 500.0
    """Runs a second."""
    in_request: int = 50
    share: float = 0.01
    kills: int = 5
    """Kills of the receiver and of the worker."""
    server_kills: int = 2
    settle: float = 3.0
    delay: float = 0.05
    """Seconds that a call of the judge takes."""
    longest: float = 1800.0


@dataclass
class Report:
    """What came of it."""

    faults: list[str] = field(default_factory=list)
    acknowledged: int = 0
    sending_seconds: float = 0.0
    seconds: float = 0.0
    sent_again: int = 0
    """Requests that were sent more than once."""
    stored: int = 0
    sampled: int = 0
    judged: int = 0
    calls: int = 0
    in_flight: int = 0
    """Calls that were paid for twice, since they were in flight when a process was killed."""
    ticks: int = 0
    kills: int = 0
    server_kills: int = 0
    receiver_mib: list[int] = field(default_factory=list)
    """The highest memory of each receiver."""
    worker_mib: list[int] = field(default_factory=list)
    receiver_memory: list[list[int]] = field(default_factory=list)
    """The memory of each receiver as its time went on, in MiB, one value in each `MEMORY_SECONDS`."""
    worker_memory: list[list[int]] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    """Runs that were acknowledged and not yet read by the monitor, at the same times."""
    receiver_cpu_seconds: float = 0.0
    worker_cpu_seconds: float = 0.0


@dataclass
class Paid:
    """A call of the judge."""

    name: str
    began: float
    answered: float | None = None


class Storm:
    """One storm."""

    def __init__(self, plan: Plan, folder: Path, engine: Engine, models: str, calls: list[Paid]) -> None:
        self._plan, self._folder, self._engine, self._models, self.calls = plan, folder, engine, models, calls
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._port = int(found.getsockname()[1])
        self.store = Store(f"sqlite:///{folder / STORE_FILE}")
        self.report = Report()
        self._acknowledged = 0
        self._receiver: subprocess.Popen[bytes] | None = None
        self._worker: WorkerProcess | None = None
        self._kills: list[float] = []
        self._ended = asyncio.Event()
        self._peaks: dict[int, int] = {}
        self._cpu: dict[tuple[str, int], float] = {}

    async def run(self) -> Report:
        """Send everything through the kills, and look at what is there."""
        plan, began = self._plan, time.monotonic()
        self._start_receiver()
        self._worker = await WorkerProcess(self._engine, QUEUE, self._models).start(STARTED_SECONDS)
        config = {"base_url": f"{self._models}/v1", "structured_output": True}
        judge = {"rubric": "- it is good", "grader": {"model": {"id": "openai_compatible:judge", "config": config}}}
        definition = {"name": MONITOR, "source": {"kind": "otlp"}, "judge": judge, "sample": plan.share, "drift": False}
        self._definition = MonitorDefinition.model_validate(definition)
        await MonitorReader(self.store).create(self._definition)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            ticking = group.create_task(self._tick())
            killing = group.create_task(self._kill())
            await self._send()
            self.report.sending_seconds = time.monotonic() - began
            await killing
            await self._until_all_is_judged()
            self._ended.set()
            await ticking
            watching.cancel()
        self.report.seconds = time.monotonic() - began
        await self._look()
        return self.report

    def _start_receiver(self) -> None:
        settings = {"ADDRESS": f"127.0.0.1:{self._port}", "SETTLE": str(self._plan.settle)}
        environment = {**os.environ, "GRADELOOP_STORE": f"sqlite:///{self._folder / STORE_FILE}"}
        environment |= {f"GRADELOOP_RECEIVER__{name}": value for name, value in settings.items()}
        command = [sys.executable, str(application_folder() / "worker.py"), "--role", "receiver"]
        with (self._folder / "receiver.log").open("ab") as log:
            self._receiver = subprocess.Popen(command, env=environment, stderr=log, stdout=log)

    async def _send(self) -> None:
        """Send at the plan's rate; each request until it is acknowledged."""
        plan, began = self._plan, time.monotonic()
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as http, asyncio.TaskGroup() as group:
            for first in range(0, plan.runs, plan.in_request):
                await asyncio.sleep(began + first / plan.rate - time.monotonic())
                group.create_task(self._export(http, range(first, min(first + plan.in_request, plan.runs))))

    async def _export(self, http: httpx2.AsyncClient, numbers: range) -> None:
        body = request_of(*(chat(f"run-{at}", f"This is run number {at}. " + "It is good. " * 20) for at in numbers))
        for tried in range(10_000):
            with contextlib.suppress(httpx2.HTTPError):
                answer = await http.post(f"http://127.0.0.1:{self._port}/v1/traces", content=body, headers=PROTOBUF)
                if answer.status_code == 200:
                    self._acknowledged += len(numbers)
                    self.report.sent_again += tried > 0
                    return
                if answer.status_code not in {429, 503}:
                    self.report.faults.append(f"an exporter was answered {answer.status_code}")
            await asyncio.sleep(min(0.2 * 2**tried, 2.0))

    async def _kill(self) -> None:
        """Kill receiver and worker now and then, and start them again; the server at other times."""
        plan, steps = self._plan, self._plan.kills + self._plan.server_kills
        servers = {round((at + 1) * steps / (plan.server_kills + 1)) for at in range(plan.server_kills)}
        for step in range(1, steps + 1):
            while self._acknowledged < step * plan.runs // (steps + 1):  # noqa: ASYNC110 - many exporters count it up
                await asyncio.sleep(0.05)
            self._kills.append(time.monotonic())
            if step in servers:
                await self._engine.restart()
                self.report.server_kills += 1
                continue
            if self._receiver is not None and self._worker is not None:
                self._receiver.kill()
                self._worker.kill()
                self._receiver.wait()
                self._start_receiver()
                self._worker = await WorkerProcess(self._engine, QUEUE, self._models).start(STARTED_SECONDS)
                self.report.kills += 1

    async def _tick(self) -> None:
        """Run one tick after the other, as a schedule does that never waits."""
        client: Client | None = None
        while not self._ended.is_set():
            try:
                client = client or await self._engine.client()
                tick, name = MonitorTick(monitor=MONITOR), f"monitor/{MONITOR}-{uuid4()}"
                await client.execute_workflow(Monitoring.run, tick, id=name, task_queue=QUEUE)
            except (RPCError, RuntimeError, WorkflowFailureError, OSError, ServerUnreachable) as error:
                client = None
                if isinstance(error, WorkflowFailureError):
                    self.report.faults.append(f"a tick failed: {error.cause}")
                await asyncio.sleep(0.5)
            else:
                self.report.ticks += 1
                await asyncio.sleep(0.2)

    async def _watch(self) -> None:
        """Note memory and processor time of each process: its highest memory, and how that went."""
        report, noted = self.report, -MEMORY_SECONDS
        while True:
            due = time.monotonic() - noted >= MEMORY_SECONDS
            noted = time.monotonic() if due else noted
            worker = None if self._worker is None or self._worker.process is None else self._worker.process.pid
            self._note(
                "receiver", None if self._receiver is None else self._receiver.pid, report.receiver_mib, report.receiver_memory, due=due
            )
            self._note("worker", worker, report.worker_mib, report.worker_memory, due=due)
            report.receiver_cpu_seconds = sum(spent for (kind, _), spent in self._cpu.items() if kind == "receiver")
            report.worker_cpu_seconds = sum(spent for (kind, _), spent in self._cpu.items() if kind == "worker")
            if due:
                report.behind.append(self._acknowledged - (await self.store.read(_progress))[0])
                print(
                    f"{self._acknowledged} acknowledged, {report.behind[-1]} not read yet, kills {report.kills}",
                    file=sys.stderr,
                    flush=True,
                )
            await asyncio.sleep(0.25)

    def _note(self, kind: str, pid: int | None, peaks: list[int], memory: list[list[int]], *, due: bool) -> None:
        if pid is None:
            return
        with contextlib.suppress(psutil.Error):
            seen = psutil.Process(pid)
            size, spent = seen.memory_info().rss // MIB, seen.cpu_times()
            if new := pid not in self._peaks:
                peaks.append(size)
                memory.append([])
            if due or new:
                memory[-1].append(size)
            self._peaks[pid] = peaks[-1] = max(size, self._peaks.get(pid, 0))
            self._cpu[kind, pid] = spent.user + spent.system

    async def _until_all_is_judged(self) -> None:
        while True:
            read, waiting = await self.store.read(_progress)
            if read >= self._plan.runs and not waiting:
                return
            await asyncio.sleep(0.5)

    async def _look(self) -> None:
        """Compare what is there with what was acknowledged and paid for."""
        plan, report = self._plan, self.report
        report.acknowledged, report.calls = self._acknowledged, len(self.calls)
        wanted = {trace_id(f"run-{at}"): at for at in range(plan.runs)}
        rule: dict[str, str] = {}
        for run in self._stored():
            if run.id not in wanted or run.id in rule:
                report.faults.append(f"the run {run.id} is there twice, or nobody sent it")
            rule[run.id] = choose(self._definition, run, run.sha256())
        report.stored = len(rule)
        report.faults += [f"{len(wanted) - len(rule)} acknowledged runs are not in the store"] * (len(rule) != len(wanted))
        rows = await self.store.read(_rows_of_runs)
        found = {run_id: (why, verdict) for run_id, why, verdict in rows}
        report.faults += ["the monitor has a run twice"] * (len(found) != len(rows))
        report.faults += [f"{name} is {why}, the rule says {rule.get(name)}" for name, (why, _) in found.items() if rule.get(name) != why][
            :5
        ]
        report.sampled = sum(why == "sampled" for why, _ in found.values())
        judged = {wanted[name] for name, (_, verdict) in found.items() if verdict in {"passed", "failed"}}
        report.judged = len(judged)
        counted = Counter(call.name for call in self.calls)
        report.in_flight = sum(counted.values()) - len(counted)
        report.faults += [f"{report.sampled - report.judged} sampled runs have no verdict"] * (report.sampled != report.judged)
        report.faults += ["what was paid for is not what was judged"] * (set(counted) != {str(at) for at in judged})
        for name in (name for name, count in counted.items() if count > 1):
            first = min((call for call in self.calls if call.name == name), key=lambda call: call.began)
            if not any(first.began <= kill <= (first.answered or kill) + RECORDED_SECONDS for kill in self._kills):
                report.faults.append(f"run {name} was paid for twice, and was not in flight when a process was killed")

    def _stored(self) -> Iterator[AgentRun]:
        after = 0
        while page := self.store.do(lambda connection, after=after: connection.execute(_page(after)).all()):  # type: ignore[misc]  # bound
            yield from (AgentRun.model_validate_json(text) for _, text in page)
            after = page[-1][0]

    def stop(self) -> None:
        """End the processes."""
        if self._worker is not None:
            self._worker.kill()
        if self._receiver is not None:
            self._receiver.kill()
            self._receiver.wait()
        self.store.close()


def _page(after: int) -> Select[tuple[int, str]]:
    runs = table("received_runs")
    return select(runs.c.number, runs.c.run).where(runs.c.number > after).order_by(runs.c.number).limit(1000)


def _progress(connection: Connection) -> tuple[int, int]:
    runs, ticks = table("monitor_runs"), table("monitor_ticks")
    read = connection.execute(select(func.count()).select_from(runs)).scalar_one()
    waiting = connection.execute(select(func.count()).select_from(runs).where(runs.c.verdict == "unjudged")).scalar_one()
    unsettled = connection.execute(select(func.count()).select_from(ticks).where(ticks.c.settled == 0)).scalar_one()
    return read, waiting + unsettled


def _rows_of_runs(connection: Connection) -> list[tuple[str, str, str | None]]:
    runs = table("monitor_runs")
    return [(row.run_id, row.why, row.verdict) for row in connection.execute(select(runs.c.run_id, runs.c.why, runs.c.verdict))]


async def storm(plan: Plan, folder: Path) -> Report:
    """Send, receive, judge and kill, and return what came of it."""
    calls: list[Paid] = []

    async def answer(request: web.Request) -> web.Response:
        text = json.dumps((await request.json())["messages"])
        found = re.search(r"run number (\d+)", text)
        call = Paid(found[1] if found else "?", time.monotonic())
        calls.append(call)
        await asyncio.sleep(plan.delay)
        call.answered = time.monotonic()
        said = json.dumps({"k1": {"reason": "r", "passed": True, "gap": ""}, "unjudgeable": ""})
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return web.json_response({"id": "r", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage})

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", answer)
    server = TestServer(app)
    await server.start_server()
    try:
        async with engine_in(folder) as engine, asyncio.timeout(plan.longest):
            made = Storm(plan, folder, engine, str(server.make_url("")).rstrip("/"), calls)
            try:
                return await made.run()
            finally:
                made.stop()
    finally:
        await server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=Plan.runs)
    parser.add_argument("--rate", type=float, default=Plan.rate, help="Runs a second.")
    parser.add_argument("--share", type=float, default=Plan.share)
    parser.add_argument("--kills", type=int, default=Plan.kills, help="Kills of receiver and worker.")
    parser.add_argument("--server-kills", type=int, default=Plan.server_kills)
    parser.add_argument("--longest", type=float, default=Plan.longest, help="Seconds after which it is given up.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(storm(Plan(**vars(arguments)), Path(folder)))
    for name, value in vars(report).items():
        print(f"{name:16} {value}")
    leave(1 if report.faults else 0)


if __name__ == "__main__":
    main()
