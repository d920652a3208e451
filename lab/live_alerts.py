"""Every alert of `deploy/prometheus`, fired once by a fault that is really made: `python -m lab.live_alerts`.

A Prometheus of this machine scrapes a real worker each second and reads the committed rules, whose times are divided by 60 and whose
thresholds are lowered as `LOWERED` says: a fault of a minute then stands for one of an hour. Quiet work must raise nothing; then each
fault is made and healed, and it is told how long after it its alert fired. It needs Debian's `prometheus`, and root for a small disk.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener
from uuid import uuid4

from gradeloop.exit_codes import leave
from gradeloop.temporal.connect import Connection, application_folder
from gradeloop.testing import MODEL, ScriptedModels, WorkerProcess, worker
from gradeloop.web.guard import listening
from rig.processes import engine_in

RULES = Path(__file__).parents[1] / "deploy/prometheus/rules.yaml"
SCALE = 60
LOWERED = {
    "gradeloop_queue_backlog) > 1000": "gradeloop_queue_backlog) > 20",
    "[60s])) > 50": "[60s])) > 3.5",
    "< 2e9": "< 30e6",
    'outcome="error"}[5s]': 'outcome="error"}[60s]',
}
"""What is changed beside the times: a backlog of 20 tasks, 3.5 dollars, 30 MB; a store that is away is tried again after half a minute.

Quiet work costs 1.8 dollars a minute, and a busy machine makes no ten times of it.
"""

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LONGEST = 150.0
"""The seconds within which a fault's alert must fire, and end once it is healed."""

SLOTS = 4
TURN: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Write."}],
    "rubric": "- it is good",
    "generator": {"model": MODEL},
    "grader": {"model": MODEL},
    "max_iterations": 1,
}


def scaled(rules: str) -> str:
    """Return the rules with their times divided and their thresholds lowered."""

    def shorter(found: re.Match[str]) -> str:
        return f"{found[1]}{max(1, int(found[2]) * SECONDS[found[3]] // SCALE)}s"

    text = re.sub(r"(\[|for: |offset )(\d+)([smhd])\b", shorter, rules)
    for old, new in LOWERED.items():
        if old not in text:
            raise SystemExit(f"the rules no longer have {old!r}; correct LOWERED")
        text = text.replace(old, new)
    return text


@dataclass
class Watch:
    """A Prometheus that reads the rules."""

    port: int

    def ask(self, path: str, **parameters: str) -> Any:  # noqa: ANN401 - what Prometheus says
        """Return what Prometheus answers at a path of its API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(parameters)}"
        with build_opener(ProxyHandler({})).open(url, timeout=10) as reply:
            return json.load(reply)["data"]

    def firing(self, state: str = "firing") -> set[str]:
        """Return the alerts that fire now, or are in another state."""
        return {alert["labels"]["alertname"] for alert in self.ask("alerts")["alerts"] if alert["state"] == state}

    async def until(self, test: Callable[[set[str]], bool], seconds: float = LONGEST) -> float:
        """Wait until the alerts pass a test, and return the seconds; the time that is given where they do not."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if test(self.firing()):
                return time.monotonic() - began
            await asyncio.sleep(0.5)
        return seconds


def begin(command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """Start a process that writes what it says to a file."""
    with log.open("wb") as file:
        return subprocess.Popen(command, env=os.environ | dict(environment or {}), cwd=log.parent, stdout=file, stderr=file)


@asynccontextmanager
async def prometheus(folder: Path, rules: str, *targets: str) -> AsyncIterator[Watch]:
    """Run a Prometheus that knows rules and scrapes targets each second."""
    with listening(0) as free:
        port = int(free.getsockname()[1])
    (folder / "rules.yaml").write_text(rules)
    scrape = [{"job_name": "gradeloop", "static_configs": [{"targets": list(targets)}]}]
    config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": ["rules.yaml"], "scrape_configs": scrape}
    (folder / "prometheus.yaml").write_text(json.dumps(config))
    command = ["prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    process, watch = begin([*command, f"--web.listen-address=127.0.0.1:{port}"], folder / "prometheus.log"), Watch(port)
    try:
        async with asyncio.timeout(60):
            while True:
                with suppress(OSError):
                    watch.firing()
                    break
                await asyncio.sleep(0.2)
        yield watch
    finally:
        process.terminate()
        process.wait(30)


@dataclass
class Work:
    """Threads that are started at a rate, one after the other, until they are told to end."""

    worker: WorkerProcess
    rate: float = 2.0
    ended: int = 0
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    async def begin(self) -> None:
        """Start threads for ever."""
        while True:
            self.start()
            await asyncio.sleep(1 / self.rate)

    def start(self) -> None:
        """Start a thread."""
        task = asyncio.create_task(self._one())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _one(self) -> None:
        with suppress(Exception):  # a fault is what is made here
            await self.worker.client.result(await self.worker.client.start(TURN, thread_id=f"live-{uuid4()}"))
            self.ended += 1


@dataclass
class Fault:
    """A fault, how it is healed, and the alert that must tell it."""

    alert: str
    what: str
    make: Callable[[], Awaitable[None]]
    heal: Callable[[], Awaitable[None]]
    ends: bool = True
    """Whether the alert must end once the fault is healed: the window of some is longer than anyone waits here."""


@dataclass
class Stand:
    """What faults are made of."""

    models: ScriptedModels
    worker: WorkerProcess
    work: Work
    disk: Path
    folder: Path
    environment: dict[str, str]
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def faults(self) -> list[Fault]:
        """Return the faults in their order; the last ones end the worker."""
        return [
            Fault("GradeloopVerdictDrift", "the judge refuses what it took before", self._refuse, self._agree),
            Fault("GradeloopProviderErrors", "every call of the provider fails with HTTP 500", self._break, self._agree),
            Fault("GradeloopGraderErrors", "the judge's answers are no verdicts", self._babble, self._agree),
            Fault("GradeloopBacklog", f"60 threads at {SLOTS} slots, a second a call", self._crowd, self._agree),
            Fault("GradeloopScheduleToStart", "the same", self._crowd, self._agree),
            Fault("GradeloopBudgetBurn", "ten times the threads", self._hurry, self._slow_down),
            Fault("GradeloopStoreFull", "a file fills the store's disk", self._fill, self._empty),
            Fault("GradeloopStoreErrors", "nothing is left on the disk in a batch", self._fill_in_a_batch, self._empty_and_end),
            Fault(
                "GradeloopNonDeterminism",
                "a build with another workflow takes up a waiting thread",
                self._change,
                self._nothing,
                ends=False,
            ),
            Fault("GradeloopWorkerDown", "the worker is killed", self._kill, self._nothing, ends=False),
        ]

    async def _nothing(self) -> None:
        return

    async def _agree(self) -> None:
        self.models.script()

    async def _refuse(self) -> None:
        self.models.script(verdicts=lambda call: dict.fromkeys(call.keys, "no"))

    async def _break(self) -> None:
        self.models.fail(times=100_000, status=500)

    async def _babble(self) -> None:
        self.models.script(verdicts=["well, who can say"])

    async def _crowd(self) -> None:
        def slowly(_: object) -> str:
            time.sleep(1)
            return "A draft."

        self.models.script(drafts=slowly)
        for _ in range(60):
            self.work.start()

    async def _hurry(self) -> None:
        self.work.rate *= 10

    async def _slow_down(self) -> None:
        self.work.rate /= 10

    async def _fill_in_a_batch(self) -> None:
        suite = self.folder / "suite.yaml"
        suite.write_text(json.dumps({"grader": MODEL, "rubric": "- it is good", "tests": [{"output": f"text {at}"} for at in range(5000)]}))
        command = [str(Path(sys.executable).parent / "gradeloop"), "eval", str(suite), "--no-cache"]
        self.processes.append(begin(command, self.folder / "eval.log", self.environment | {"GRADELOOP_TASK_QUEUE": self.worker.queue}))
        await self._until_a_case_has_ended()
        with suppress(OSError), (self.disk / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

    async def _until_a_case_has_ended(self) -> None:
        """Wait until the worker judges: on a full disk the command could store no case, and nobody would write."""
        url, deadline = f"http://{self.environment['GRADELOOP_METRICS_ADDRESS']}/metrics", time.monotonic() + LONGEST
        opener = build_opener(ProxyHandler({}))
        while time.monotonic() < deadline:
            with suppress(OSError):
                if b"\ngradeloop_batch_cases_total{" in await asyncio.to_thread(lambda: opener.open(url, timeout=5).read()):
                    return
            await asyncio.sleep(0.5)
        raise RuntimeError(f"the batch has judged no case within {LONGEST:.0f} s; see {self.folder / 'eval.log'}")

    async def _empty_and_end(self) -> None:
        await self._empty()
        for process in self.processes:
            process.terminate()

    async def _fill(self) -> None:
        free = shutil.disk_usage(self.disk).free
        (self.disk / "filler").write_bytes(b"x" * (free - 10_000_000))

    async def _empty(self) -> None:
        (self.disk / "filler").unlink()

    async def _change(self) -> None:
        gate = self.models.gate("generator")
        self.work.start()
        await gate.reached()
        self.work.rate = 0.001
        await self.worker.kill()
        changed = self.folder / "changed"
        for name in ("workflows", "activities"):
            shutil.copytree(application_folder() / name, changed / name, dirs_exist_ok=True)
        shutil.copy(application_folder() / "worker.py", changed)
        thread = changed / "workflows/grading_thread.py"
        old = "        thread = self._require_thread()\n        if thread.outcomes"
        source = thread.read_text()
        if old not in source:
            raise SystemExit(f"{thread.name} no longer has the place that is changed; correct _change")
        thread.write_text(source.replace(old, f"        await workflow.sleep(1)\n{old}"))
        gate.open()
        command = [sys.executable, str(changed / "worker.py"), "--task-queue", self.worker.queue]
        own = self.environment | {"OPENAI_BASE_URL": self.models.url}
        self.processes.append(begin(command, changed / "log", own))

    async def _kill(self) -> None:
        for process in self.processes:
            process.kill()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a disk of 256 MiB, which only root may."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(folder)], check=False).returncode:
        raise SystemExit("a disk of 256 MiB cannot be mounted; run this as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


async def measure(folder: Path, quiet: float, only: list[str]) -> int:
    """Make every fault, print what told it, and return how many were not told."""
    with listening(0) as free:
        target = f"127.0.0.1:{free.getsockname()[1]}"
    prices = folder / "prices.toml"
    prices.write_text('prices = [{provider = "openai_compatible", models = ".*", input = 500, output = 500}]\n')
    missing = 0
    os.environ["GRADELOOP_STATE_DIR"] = str(folder)  # of the worker that is started here, and of its large payloads
    async with AsyncExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk"))
        engine = await stack.enter_async_context(engine_in(folder))
        server = Connection(engine.address, "default", embedded=True)
        environment = {"GRADELOOP_METRICS_ADDRESS": target, "GRADELOOP_PRICES": str(prices), "GRADELOOP_STATE_DIR": str(folder)}
        environment |= {"GRADELOOP_STORE": f"sqlite:///{disk / 'results.db'}", "GRADELOOP_MAX_CONCURRENT_ACTIVITIES": str(SLOTS)}
        environment |= {"TEMPORAL_ADDRESS": engine.address, "TEMPORAL_NAMESPACE": "default"}
        models = ScriptedModels()
        process = await stack.enter_async_context(worker(models, server=server, environment=environment))
        watch = await stack.enter_async_context(prometheus(folder, scaled(RULES.read_text()), target))
        work = Work(process)
        stand = Stand(models, process, work, disk, folder, environment)
        running = asyncio.create_task(work.begin())
        stack.callback(running.cancel)
        await asyncio.sleep(quiet / 2)
        odd = await watch.until(bool, quiet / 2) < quiet / 2
        print(
            f"{quiet:.0f} s of quiet work, {work.ended} threads: {'FIRED: ' + ', '.join(watch.firing()) if odd else 'no alert'}", flush=True
        )
        missing += odd
        for fault in [fault for fault in stand.faults() if fault.alert in only or not only]:
            await fault.make()
            told = await watch.until(lambda firing, name=fault.alert: name in firing)  # type: ignore[misc]  # a default of its own
            print(f"{fault.alert}: {fault.what}: {f'fired after {told:.0f} s' if told < LONGEST else 'DID NOT FIRE'}", end="", flush=True)
            missing += told >= LONGEST
            await fault.heal()
            if fault.ends:
                gone = await watch.until(lambda firing, name=fault.alert: name not in firing)  # type: ignore[misc]  # as above
                print(f", ended {gone:.0f} s after the fault" if gone < LONGEST else ", DID NOT END", end="")
                missing += gone >= LONGEST
            print(flush=True)
    return missing


def main() -> None:
    """Measure and print; exit 1 where an alert did not tell its fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quiet", type=float, default=120.0, help="Seconds of quiet work first; two minutes give drift its day before.")
    parser.add_argument("--only", nargs="+", default=[], metavar="ALERT", help="Make the faults of these alerts alone.")
    arguments = parser.parse_args()
    if shutil.which("prometheus") is None:
        raise SystemExit("prometheus is not installed (Debian, Ubuntu: apt install prometheus)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        missing = asyncio.run(measure(Path(folder), arguments.quiet, arguments.only))
    leave(1 if missing else 0)


if __name__ == "__main__":
    main()
