"""Batches on a fleet while everything fails at random: `python -m lab.fleet_storm --minutes 60`.

Workers, server, PostgreSQL and commands are real processes, the judge is a server in this one that counts what is asked of it. Each
batch has a case whose call kills the worker that makes it, as the limit of memory does. What else fails, one thing after the other, is
in `FAULTS`. Two workers have clocks that are ten minutes wrong. One worker is left alone but for what it
shares with the others: its memory is watched.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil  # type: ignore[import-untyped]  # it ships no types
from aiohttp import web
from aiohttp.test_utils import TestServer

from gradeloop.batches.contract import BatchSummary
from gradeloop.batches.reader import BatchReader
from gradeloop.errors import StoreUnavailable
from gradeloop.exit_codes import leave
from gradeloop.store.engine import Store
from rig.postgresql import Postgresql, Wire, postgresql, wire_to
from rig.processes import Engine, WorkerProcess, engine_in

QUEUE = "fleet-storm"
WRONG_CLOCK = "import time; right = time.time; time.time = lambda: right() + {seconds}"
"""A `sitecustomize.py`; libfaketime would have Python's own `time.sleep` fail."""

SAMPLE_SECONDS = 15.0


@dataclass(frozen=True)
class Plan:
    """How many, and how hard it blows."""

    minutes: float = 60.0
    """New batches begin for so long."""
    workers: int = 4
    slots: int = 20
    batches: int = 2
    """Batches at once."""
    cases: int = 200
    at_once: int = 50
    poison: int = 7
    """The case of each batch whose call kills its worker; -1 for none."""
    delay: float = 1.0
    """Seconds that each model call takes."""
    pause: tuple[float, float] = (4.0, 15.0)
    """Seconds between two faults, at least and at most."""
    outage: float = 10.0
    """Seconds that something which is not killed stays broken."""
    only: str = ""
    """Part of the names of the faults that are made."""
    seed: int = 1
    longest: float = 1200.0
    """Seconds after which a batch counts as stuck."""


@dataclass
class Report:
    """What came of it."""

    made: Counter[str] = field(default_factory=Counter)
    """How often each fault was made."""
    problems: list[str] = field(default_factory=list)
    batches: int = 0
    cases: int = 0
    requests: int = 0
    """Requests that the provider got."""
    counted: int = 0
    """Attempts that the batches counted."""
    calls: int = 0
    """Replies that the batches counted."""
    paid: Counter[int] = field(default_factory=Counter)
    """How many cases were answered so many times."""
    deaths: int = 0
    """Workers that a poisonous case killed."""
    innocent: int = 0
    """Cases that ended as the poisonous ones do, since their worker was killed by another fault while they were made alone."""
    memory: list[float] = field(default_factory=list)
    """MB of the worker that is left alone, over time."""


@dataclass
class Asked:
    """A request for a case."""

    batch: str
    case: int
    worker: str
    answered: bool = False


class Judge:
    """A provider whose verdict depends on the case alone, who may be away, and whom one case of each batch kills."""

    def __init__(self, delay: float, poison: int) -> None:
        self.requests: list[Asked] = []
        self.status = 200
        self.on_poison: Callable[[str], None] = lambda _: None
        self._delay, self._poison = delay, poison
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._server = TestServer(app)

    async def start(self) -> str:
        """Listen, and return the address."""
        await self._server.start_server()
        return str(self._server.make_url("")).rstrip("/")

    async def close(self) -> None:
        """Answer nobody any more."""
        await self._server.close()

    async def _answer(self, request: web.Request) -> web.Response:
        found = re.search(r"case number (\d+) of ([\w-]+)", (await request.read()).decode())
        if found is None:
            return web.json_response({"error": {"message": "no case"}}, status=400)
        case = int(found[1])
        asked = Asked(found[2], case, request.headers["authorization"].removeprefix("Bearer "))
        self.requests.append(asked)
        if case == self._poison:
            self.on_poison(asked.worker)
            await asyncio.sleep(3600)
        await asyncio.sleep(self._delay)
        if self.status != 200:
            return web.json_response({"error": {"message": "not now"}}, status=self.status, headers={"retry-after": "1"})
        asked.answered = True
        row = {"reason": f"so is case {case}", "passed": is_good(case), "gap": "" if is_good(case) else "it is not"}
        said = json.dumps({"k1": row, "unjudgeable": "", "summary": "so it is"})
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return web.json_response({"id": "r", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage})


def is_good(case: int) -> bool:
    """Say what the judge says of a case."""
    return case % 3 != 0


class Workers:
    """Workers that are started again whenever they end."""

    def __init__(self, plan: Plan, engine: Engine, judge: str, store: str) -> None:
        self._plan, self._engine, self._judge, self._store = plan, engine, judge, store
        self.running: dict[str, WorkerProcess] = {}
        self.ending: set[asyncio.Task[None]] = set()

    async def start(self, name: str) -> None:
        """Start a worker, the second and the third with a wrong clock."""
        own = {"GRADELOOP_STORE": self._store, "GRADELOOP_MAX_CONCURRENT_ACTIVITIES": str(self._plan.slots)}
        if (seconds := {"w1": 600, "w2": -600}.get(name)) is not None:
            clock = self._engine.folder / f"clock-{name}"
            clock.mkdir(exist_ok=True)
            (clock / "sitecustomize.py").write_text(WRONG_CLOCK.format(seconds=seconds))
            own["PYTHONPATH"] = str(clock)
        self.running[name] = await WorkerProcess(self._engine, QUEUE, self._judge, name=name, variables=own).start()

    def kill(self, name: str) -> None:
        """End a worker at once, and start it again."""
        if (worker := self.running.pop(name, None)) is not None:
            worker.kill()
            self._again(self.start(name))

    def drain(self, name: str) -> None:
        """Tell a worker to stop, and start it again beside it, as a rolling deploy does."""
        if (worker := self.running.pop(name, None)) is not None:
            self._again(worker.drain())
            self._again(self.start(name))

    def _again(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = asyncio.ensure_future(work)
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    async def settle(self) -> None:
        """Wait until every worker that was ended is back."""
        while self.ending:
            await asyncio.wait(set(self.ending))

    def end(self) -> None:
        """End them all."""
        for worker in self.running.values():
            worker.kill()


@dataclass
class Faults:
    """What can befall a fleet; each method makes a fault, and mends it."""

    plan: Plan
    dice: random.Random
    engine: Engine
    server: Postgresql
    wire: Wire
    workers: Workers
    judge: Judge
    commands: dict[str, asyncio.subprocess.Process]

    def _one(self) -> str:
        return f"w{self.dice.randrange(1, self.plan.workers)}"

    async def kill_worker(self) -> None:
        """End a worker at once."""
        self.workers.kill(self._one())

    async def drain_worker(self) -> None:
        """Tell a worker to stop."""
        self.workers.drain(self._one())

    async def freeze_worker(self) -> None:
        """Have a worker do nothing for longer than its heartbeats may be late."""
        if (worker := self.workers.running.get(self._one())) is not None:
            worker.signal(signal.SIGSTOP)
            await asyncio.sleep(1.5 * self.plan.outage)
            worker.signal(signal.SIGCONT)

    async def kill_server(self) -> None:
        """End Temporal's server at once."""
        await self.engine.restart()

    async def kill_store(self) -> None:
        """End PostgreSQL at once, for a while."""
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(self.dice.uniform(0, self.plan.outage))
        await asyncio.to_thread(self.server.start)

    async def silence(self) -> None:
        """Have the connections to PostgreSQL fall silent, for ever."""
        self.wire.mute()

    async def refuse(self) -> None:
        """Cut the connections to PostgreSQL, and let none through for a while."""
        self.wire.refuses = True
        self.wire.cut()
        await asyncio.sleep(self.plan.outage)
        self.wire.refuses = False

    async def take_provider_away(self, status: int = 503) -> None:
        """Have the provider refuse every call for a while."""
        self.judge.status = status
        await asyncio.sleep(self.plan.outage)
        self.judge.status = 200

    async def limit_provider(self) -> None:
        """Have the provider refuse every call by rate for a while."""
        await self.take_provider_away(429)

    async def kill_command(self) -> None:
        """End every command at once."""
        for process in self.commands.values():
            with suppress(ProcessLookupError):
                process.kill()


FAULTS: Mapping[str, Callable[[Faults], Awaitable[None]]] = {
    "worker killed": Faults.kill_worker,
    "worker told to stop": Faults.drain_worker,
    "worker frozen": Faults.freeze_worker,
    "server killed": Faults.kill_server,
    "PostgreSQL killed": Faults.kill_store,
    "connections silent": Faults.silence,
    "connections refused": Faults.refuse,
    "provider away": Faults.take_provider_away,
    "provider refuses by rate": Faults.limit_provider,
    "command killed": Faults.kill_command,
}


class Storm:
    """Batches, and what befalls them."""

    def __init__(self, plan: Plan, folder: Path, server: Postgresql) -> None:
        self.plan, self.report = plan, Report()
        self._folder, self._server = folder, server
        self._dice = random.Random(plan.seed)
        self._judge = Judge(plan.delay, plan.poison)
        self._commands: dict[str, asyncio.subprocess.Process] = {}
        self._url = server.create("results")
        self._ends = 0.0

    async def run(self) -> Report:
        """Run batches until the time is over and all have ended, and look at what they came to."""
        judge = await self._judge.start()
        async with wire_to(self._url) as (wire, behind), engine_in(self._folder) as engine:
            workers = Workers(self.plan, engine, judge, behind)
            self._judge.on_poison = lambda name: self._poisoned(workers, name)
            await asyncio.gather(*(workers.start(f"w{at}") for at in range(self.plan.workers)))
            self._ends = time.monotonic() + self.plan.minutes * 60
            faults = Faults(self.plan, self._dice, engine, self._server, wire, workers, self._judge, self._commands)
            blowing = asyncio.create_task(self._blow(faults))
            watching = asyncio.create_task(self._watch(workers))
            rounds = (self._batches(engine, judge, at) for at in range(self.plan.batches))
            try:
                await asyncio.gather(*rounds)
            finally:
                for task in (blowing, watching):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
                await workers.settle()
                workers.end()
        await self._judge.close()
        self._look_at_bill()
        return self.report

    def _poisoned(self, workers: Workers, name: str) -> None:
        self.report.deaths += name in workers.running
        workers.kill(name)

    async def _blow(self, faults: "Faults") -> None:
        """Make one fault after the other, while new batches begin."""
        kinds = [kind for kind in FAULTS if self.plan.only in kind]
        while time.monotonic() < self._ends:
            await asyncio.sleep(self._dice.uniform(*self.plan.pause))
            kind = self._dice.choice(kinds)
            self.report.made[kind] += 1
            await FAULTS[kind](faults)

    async def _watch(self, workers: Workers) -> None:
        """Note the memory of the worker that is left alone."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            worker = workers.running.get("w0")
            if worker is not None and worker.process is not None:
                with suppress(psutil.NoSuchProcess):
                    self.report.memory.append(psutil.Process(worker.process.pid).memory_info().rss / 2**20)

    async def _batches(self, engine: Engine, judge: str, lane: int) -> None:
        """Run one batch after the other."""
        number = 0
        while time.monotonic() < self._ends:
            name = f"storm-{lane}-{number}"
            number += 1
            try:
                async with asyncio.timeout(self.plan.longest):
                    await self._batch(engine, judge, name)
            except TimeoutError:
                self.report.problems.append(f"{name} is stuck: {await self._summary(name)}")
            print(f"{time.strftime('%H:%M:%S')} {name} ended; faults {sum(self.report.made.values())}", flush=True)

    async def _batch(self, engine: Engine, judge: str, name: str) -> None:
        plan, folder = self.plan, self._folder / name
        folder.mkdir()
        rows = [json.dumps({"id": f"case-{at}", "output": f"I am case number {at} of {name}. " * 10}) for at in range(plan.cases)]
        (folder / "cases.jsonl").write_text("\n".join(rows))
        model = {"id": "openai_compatible:judge", "config": {"base_url": f"{judge}/v1", "structured_output": True}}
        told = {"name": name, "grader": model, "rubric": "- it is good", "tests": "cases.jsonl", "concurrency": plan.at_once, "retries": 20}
        (folder / "suite.yaml").write_text(json.dumps(told))
        while await self._command(engine, name, "eval", str(folder / "suite.yaml"), "--detach"):  # noqa: ASYNC110 - the store or the server is away
            await asyncio.sleep(0.5)
        while (summary := await self._summary(name)) is None:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.5)
        while summary.status != "finished":
            again = summary.status in {"paused", "stopped"}
            await self._command(engine, name, "eval", "--resume" if again else "--attach", summary.batch_id)
            summary = await self._summary(name) or summary
        await self._look_at_results(name, summary)

    async def _command(self, engine: Engine, name: str, *arguments: str) -> int:
        """Run a command to its end, however that comes."""
        own = {"TEMPORAL_ADDRESS": engine.address, "GRADELOOP_STORE": self._url, "GRADELOOP_TASK_QUEUE": QUEUE}
        own["GRADELOOP_STATE_DIR"] = str(self._folder)
        with (self._folder / name / "log").open("ab") as log:
            command = [str(Path(sys.executable).parent / "gradeloop"), *arguments]
            process = await asyncio.create_subprocess_exec(*command, env=os.environ | own, stdout=log, stderr=log)
        if "--detach" not in arguments:  # one that is killed as it begins a batch may have begun it
            self._commands[name] = process
        code = await process.wait()
        self._commands.pop(name, None)
        return code

    async def _summary(self, name: str) -> BatchSummary | None:
        """Return what the store says of the batch of a suite, once it has one and answers."""
        while True:
            store = Store(self._url)
            try:
                found = await BatchReader(store).summaries(50)
                return next((summary for summary in found if summary.name == name), None)
            except StoreUnavailable:
                await asyncio.sleep(0.5)
            finally:
                store.close()

    async def _look_at_results(self, name: str, summary: BatchSummary) -> None:
        results = None
        while results is None:
            store = Store(self._url)
            with suppress(StoreUnavailable):
                results = await asyncio.to_thread(lambda: list(BatchReader(store).results(summary.batch_id)))  # noqa: B023 - awaited here
            store.close()
            await asyncio.sleep(0 if results is not None else 0.5)
        for at, result in enumerate(results):
            wanted = "error" if at == self.plan.poison else "passed" if is_good(at) else "failed"
            lost = "worker_lost" in (result.error or "")
            if lost and at != self.plan.poison:  # another fault ended its worker while it was made alone
                self.report.innocent += 1
            elif result.status != wanted or lost != (at == self.plan.poison):
                self.report.problems.append(f"{name}: {result.id} is {result.status}: {result.error}")
        mine = [asked for asked in self._judge.requests if asked.batch == name]
        used, sent = summary.usage, len(mine)
        answers = sum(asked.answered for asked in mine)
        if not used.calls <= answers or not sent <= used.attempts:
            self.report.problems.append(f"{name}: {sent} requests, {answers} answered, and counted as {used}")
        self.report.batches += 1
        self.report.cases += len(results)
        self.report.counted += used.attempts
        self.report.calls += used.calls

    def _look_at_bill(self) -> None:
        times = defaultdict[tuple[str, int], int](int)
        for asked in self._judge.requests:
            times[asked.batch, asked.case] += asked.answered
        self.report.requests = len(self._judge.requests)
        self.report.paid = Counter(count for (_, case), count in times.items() if case != self.plan.poison)
        memory = self.report.memory
        third = len(memory) // 3
        if third > 3 and median(memory[-third:]) > 1.15 * median(memory[third : 2 * third]):
            self.report.problems.append(f"the memory of the worker that is left alone grows: {[round(one) for one in memory]}")


async def storm(plan: Plan, folder: Path) -> Report:
    """Run a storm, and return what came of it."""
    with postgresql() as server:
        return await Storm(plan, folder, server).run()


def main() -> None:
    """Run a storm and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m lab.fleet_storm", description=(__doc__ or "").splitlines()[0])
    for name, default in vars(Plan()).items():
        if isinstance(default, int | float | str):
            parser.add_argument(f"--{name}", type=type(default), default=default, metavar=str(default) or "TEXT")
    plan = Plan(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        report = asyncio.run(storm(plan, Path(folder)))
    for name, value in vars(report).items():
        print(f"{name}: {dict(value) if isinstance(value, Counter) else value}")
    leave(1 if report.problems else 0)


if __name__ == "__main__":
    main()
