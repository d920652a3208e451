"""The storm itself: it starts everything, kills what serves the threads again and again, waits for the end, and looks at what is left."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from temporalio.worker import Replayer

from gradeloop.client.client import GradingClient
from gradeloop.temporal.histories import quoted
from lab.storm.caller import Caller, Surroundings
from lab.storm.checks import ThreadRecord, faults_of
from lab.storm.client_process import ClientProcess
from lab.storm.diary import Diary, rubric_of
from lab.storm.payments import Payments, look_at, wrong_usage
from lab.storm.plan import KILLS, Kill, KillKind, Plan
from lab.storm.provider import FaultyProvider
from lab.storm.script import rubric_text
from rig.processes import Engine, WorkerProcess, engine_in
from workflows import RUNNER
from workflows.grading_thread import GradingThreadWorkflow
from workflows.visibility import TenantAttribute

QUEUE = "storm"


@dataclass
class Report:
    """What the storm did, and what was found after it."""

    plan: Plan
    kills: list[Kill]
    seconds: float
    end_seconds: float
    """How long the last turns took once nobody killed any more."""
    diaries: list[Diary]
    payments: Payments
    evaluations: int = 0
    histories: int = 0
    """Runs of workflows whose histories were replayed."""
    faults: list[str] = field(default_factory=list)
    """What is not as it should be, each as a sentence."""

    @property
    def events(self) -> Counter[str]:
        """What happened to the threads, by kind."""
        return sum((diary.events for diary in self.diaries), Counter())

    def __str__(self) -> str:
        paid, turns = self.payments, [turn for diary in self.diaries for turn in diary.turns]
        refused = {name: count for name, count in paid.faults.items() if name not in {"answered", "hung up"}}
        return "\n".join(
            (
                f"{self.plan.threads} threads, {len(turns)} turns, {self.evaluations} evaluations",
                f"{self.seconds:.0f} s, the last {self.end_seconds:.0f} s of them in calm",
                f"kills: {_listed(Counter(kill.kind for kill in self.kills))}",
                f"events: {_listed(self.events)}; {sum(turn.overtaken for turn in turns)} turns overtaken by a later one",
                f"calls: {paid.made}, answered {paid.answered}, given up {paid.faults['hung up']}; faults: {_listed(Counter(refused))}",
                f"bill: {paid.sold} replies, {paid.counted} of them counted; the others were on their way at a kill or a stop",
                f"answered calls made again: {paid.repeated.total()} ({_listed(paid.repeated)})",
                f"longest time from such an answer to the kill: {paid.unrecorded:.1f} s",
                f"longest recovery of a call: {paid.recovery:.1f} s; {self.histories} histories replayed; {len(self.faults)} faults",
            )
        )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


class Storm:
    """Drives the threads and kills what serves them."""

    def __init__(self, plan: Plan, engine: Engine, provider: FaultyProvider, client: GradingClient) -> None:
        self._plan = plan
        self._engine = engine
        self._provider = provider
        self._client = client
        self._dice = random.Random(plan.seed)
        names = [f"worker-{number}" for number in range(plan.workers)]
        self._workers = {name: WorkerProcess(engine, QUEUE, provider.url, name=name, grace=plan.grace) for name in names}
        self._processes = [ClientProcess(engine, QUEUE) for _ in range(plan.clients)]
        self._kills: list[Kill] = []
        self._restarts: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    async def run(self) -> Report:
        """Blow, wait for the last turns, and look at what is left."""
        await asyncio.gather(*(worker.start() for worker in self._workers.values()), *(process.start() for process in self._processes))
        began = time.monotonic()
        diaries = [Diary(f"thread-{number}", rubrics=[rubric_of(rubric_text(2, 0))]) for number in range(self._plan.threads)]
        for diary in diaries:
            diary.rubrics[0].acknowledged = True
        meddling: list[asyncio.Task[None]] = []
        around = Surroundings(self._plan, self._client, self._processes, self._over)
        threads = {diary.thread: Caller(diary, self._start_of(diary), around) for diary in diaries}
        callers = [asyncio.create_task(caller.run()) for caller in threads.values()]
        turns = cycle((True, False))  # every second one is left alone, whichever thread's it is
        self._provider.on_empty = lambda thread: (
            meddling.append(asyncio.create_task(threads[thread].interrupt_in_pause())) if next(turns) else None
        )
        try:
            await self._blow()
            calm = time.monotonic()
            await asyncio.wait(callers, timeout=self._plan.end_seconds)
            ended = time.monotonic()
            for caller in (*callers, *meddling):
                caller.cancel()
            ends = await asyncio.gather(*callers, return_exceptions=True)
            payments = look_at(self._provider.calls, self._kills, diaries)
            report = Report(self._plan, self._kills, ended - began, ended - calm, diaries, payments)
            report.faults += [f"{diary.thread}: {end!r}" for diary, end in zip(diaries, ends, strict=True) if end is not None]
            report.faults += payments.unexplained
            await self._look(report)
        finally:
            for worker in self._workers.values():
                worker.kill()
            for process in self._processes:
                await process.kill()
        return report

    def _start_of(self, diary: Diary) -> dict[str, object]:
        return self._provider.request(diary.thread, rubric=diary.rubrics[0].text, idle_timeout=3600)

    async def _blow(self) -> None:
        """Kill something now and then, of every kind at least once; whatever was killed is started again at once."""
        end = time.monotonic() + self._plan.seconds
        deck: list[KillKind] = []
        while (calm := self._dice.uniform(*self._plan.calm)) < end - time.monotonic() or len(self._kills) < len(KILLS):
            await asyncio.sleep(calm)
            deck = deck or self._dice.sample(KILLS, len(KILLS))
            await self._kill(deck.pop())
        await asyncio.sleep(max(end - time.monotonic(), 0))
        await asyncio.gather(*self._restarts)
        self._over.set()

    async def _kill(self, kind: KillKind) -> None:
        name = self._dice.choice(list(self._workers))
        kill = Kill(kind, name if kind in {"worker killed", "worker drained"} else None, time.monotonic(), time.monotonic())
        self._kills.append(kill)
        match kind:
            case "server killed":
                await self._engine.restart()
            case "provider away":
                self._provider.away = True
                await asyncio.sleep(self._plan.away)
                self._provider.away = False
            case "client killed":
                process = self._dice.choice(self._processes)
                await process.kill()
                await process.start()
            case "worker killed":
                self._workers[name].kill()
                self._restart(name)
            case "worker drained":
                await self._workers[name].drain()
                self._restart(name)
        kill.ended = time.monotonic()

    def _restart(self, name: str) -> None:
        async def start() -> None:
            await self._workers[name].start()

        self._restarts.add(asyncio.create_task(start()))

    async def _look(self, report: Report) -> None:
        """Compare every thread with its diary, and replay all its histories."""
        client = self._client.temporal
        replayer = Replayer(
            workflows=[GradingThreadWorkflow],
            workflow_runner=RUNNER,
            data_converter=client.data_converter,
            interceptors=[TenantAttribute(registered=True)],
        )
        for diary in report.diaries:
            record = await ThreadRecord.read(self._client, diary.thread)
            report.evaluations += len(record.evaluations)
            report.faults += faults_of(diary, record)
            sold = [call for call in self._provider.calls if call.thread == diary.thread and call.sold]
            report.payments.counted += record.state.usage.calls
            report.faults += wrong_usage(diary, record.state.usage, sold, self._kills, record.answers)
            async for run in client.list_workflows(f"WorkflowId = {quoted(diary.thread)}"):
                history = await client.get_workflow_handle(diary.thread, run_id=run.run_id).fetch_history()
                outcome = await replayer.replay_workflow(history, raise_on_replay_failure=False)
                report.histories += 1
                if outcome.replay_failure:
                    report.faults.append(f"{diary.thread}: the history of its run {run.run_id} does not replay: {outcome.replay_failure}")


@asynccontextmanager
async def storm(plan: Plan, folder: Path) -> AsyncIterator[Storm]:
    """Prepare a storm over an embedded server in a folder."""
    provider = FaultyProvider(delay=plan.delay, fault_share=plan.fault_share, seed=plan.seed)
    await provider.start()
    try:
        async with engine_in(folder) as engine:
            yield Storm(plan, engine, provider, GradingClient(await engine.client(), task_queue=QUEUE))
    finally:
        await provider.close()
