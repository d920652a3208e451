"""A storm: many threads in several turns, while workers and the server are killed again and again.

Run it with `python -m benchmarks.storm`; `tests/workflows/test_storm.py` runs a small one. Workers and server are real processes, the
provider is a counting server in this one.
"""

import argparse
import asyncio
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from gradeloop.client.client import GradingClient
from gradeloop.contract.evaluation import Evaluation, Event
from gradeloop.contract.thread import RunResult
from gradeloop.errors import GradeloopError, ServerUnreachable
from gradeloop.exit_codes import leave
from tests.rig.counting_server import CountingServer
from tests.rig.crash_worker import Engine, WorkerProcess, engine_in
from workflows.grading_thread import GradingThreadWorkflow

QUEUE = "storm"
END_SECONDS = 120.0
"""How long the last turns may take once nobody kills any more."""


@dataclass(frozen=True)
class Plan:
    """How hard it blows."""

    threads: int = 200
    seconds: float = 90.0
    workers: int = 2
    seed: int = 1
    calm: tuple[float, float] = (5.0, 9.0)
    """Seconds between two kills, at least and at most."""
    server_share: float = 0.3
    """How many of the kills hit the server."""
    delay: float = 1.0
    """Seconds that each model call takes."""
    rubric_share: float = 0.25
    """How many of the turns get another rubric on their way."""


@dataclass
class Diary:
    """What the caller of one thread was told."""

    thread: str
    results: dict[str, RunResult] = field(default_factory=dict)
    """By key."""
    rubrics: list[str] = field(default_factory=list)
    """Supplied and acknowledged."""
    uncertain: int = 0
    """Rubrics of which the caller does not know whether they came in."""
    repeated: int = 0
    """Turns that the caller had to ask for again, with the same key."""


@dataclass
class Report:
    """What the storm did, and what was found after it."""

    plan: Plan
    kills: Counter[str]
    seconds: float
    diaries: list[Diary]
    calls: int
    extra: int
    faults: list[str] = field(default_factory=list)
    """What is not as it should be, each as a sentence."""

    @property
    def extra_share(self) -> float:
        """The calls that were made again, as a part of those that were needed."""
        return self.extra / max(self.calls - self.extra, 1)

    def __str__(self) -> str:
        turns = sum(len(diary.results) for diary in self.diaries)
        rubrics, uncertain = sum(len(diary.rubrics) for diary in self.diaries), sum(diary.uncertain for diary in self.diaries)
        killed = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        return (
            f"{self.plan.threads} threads, {turns} turns, {rubrics} rubrics supplied ({uncertain} not acknowledged), "
            f"{sum(diary.repeated for diary in self.diaries)} turns asked for again; killed: {killed}; {self.seconds:.0f} s; "
            f"{self.calls} provider calls, {self.extra} of them extra ({self.extra_share:.1%}); {len(self.faults)} faults"
        )


class Storm:
    """Drives the threads and kills what serves them."""

    def __init__(self, plan: Plan, engine: Engine, models: CountingServer, client: GradingClient) -> None:
        self._plan = plan
        self._engine = engine
        self._models = models
        self._client = client
        self._dice = random.Random(plan.seed)
        self._workers = [WorkerProcess(engine, QUEUE, models.url, name=f"worker-{number}") for number in range(plan.workers)]
        self._kills: Counter[str] = Counter()
        self._over = asyncio.Event()

    async def run(self) -> Report:
        """Blow, wait for the last turn, and look at what is left."""
        await asyncio.gather(*(worker.start() for worker in self._workers))
        began = time.monotonic()
        diaries = [Diary(f"thread-{number}") for number in range(self._plan.threads)]
        callers = [asyncio.create_task(self._call(diary, random.Random(f"{self._plan.seed}/{diary.thread}"))) for diary in diaries]
        try:
            await self._blow()
            await asyncio.wait(callers, timeout=END_SECONDS)
            for caller in callers:
                caller.cancel()
            ends = await asyncio.gather(*callers, return_exceptions=True)
            seconds = time.monotonic() - began
            report = Report(self._plan, self._kills, seconds, diaries, len(self._models.calls), self._models.extra())
            report.faults += [f"{diary.thread}: {end!r}" for diary, end in zip(diaries, ends, strict=True) if end is not None]
            for diary in diaries:
                report.faults += await self._faults(diary)
        finally:
            for worker in self._workers:
                worker.kill()
        return report

    async def _blow(self) -> None:
        """Kill a worker or the server now and then; each is started again at once."""
        end = time.monotonic() + self._plan.seconds
        restarts: set[asyncio.Task[object]] = set()
        while (calm := self._dice.uniform(*self._plan.calm)) < end - time.monotonic():
            await asyncio.sleep(calm)
            if self._dice.random() < self._plan.server_share:
                self._kills["server"] += 1
                self._engine.kill()
                await self._engine.start()
            else:
                worker = self._dice.choice(self._workers)
                self._kills["worker"] += 1
                worker.kill()
                restarts.add(asyncio.create_task(worker.start()))
        await asyncio.sleep(max(end - time.monotonic(), 0))
        self._over.set()
        await asyncio.gather(*restarts)

    async def _call(self, diary: Diary, dice: random.Random) -> None:
        """Ask one turn after the other until the storm is over, now and then with another rubric on the way; at last close the thread."""
        await asyncio.sleep(dice.uniform(0, 3))
        turn = 0
        while turn == 0 or not self._over.is_set():
            asked = asyncio.create_task(self._turn(diary, turn))
            if dice.random() < self._plan.rubric_share and turn:
                await asyncio.sleep(dice.uniform(0, 2 * self._plan.delay))
                await self._supply(diary, turn)
            await asked
            turn += 1
            await asyncio.sleep(dice.uniform(0, self._plan.delay))

    async def _turn(self, diary: Diary, turn: int) -> None:
        key = f"{diary.thread}/{turn}"
        start = self._models.request(diary.thread, idle_timeout=3600)
        while key not in diary.results:
            try:
                diary.results[key] = await self._client.invoke(diary.thread, f"turn {turn}", key=key, start=start)
            except ServerUnreachable:
                diary.repeated += 1
                await asyncio.sleep(1)

    async def _supply(self, diary: Diary, turn: int) -> None:
        rubric = f"- it is good in turn {turn}"
        try:
            await self._client.supply_rubric(diary.thread, rubric)
            diary.rubrics.append(rubric)
        except ServerUnreachable:
            diary.uncertain += 1

    async def _faults(self, diary: Diary) -> list[str]:
        """Compare what the thread holds with what its caller was told."""
        events = [event async for event in _paged(self._client, diary.thread)]
        evaluations = (await self._client.evaluations(diary.thread)).items
        said = Counter(message.content for message in (await self._client.messages(diary.thread)).items if message.source is None)
        supplied = sum(event.type == "rubric_supplied" for event in events)
        known = len(diary.rubrics)
        faults = [
            f"{key} ended as {result.status}: {result.error}" for key, result in diary.results.items() if result.status != "satisfied"
        ]
        faults += [f"turn {turn} is there {said[f'turn {turn}']} times" for turn in range(len(diary.results)) if said[f"turn {turn}"] != 1]
        faults += [f"{supplied} rubrics came in, {known} were acknowledged"] if not known <= supplied <= known + diary.uncertain else []
        faults += ["events are missing or doubled"] if [event.seq for event in events] != list(range(1, len(events) + 1)) else []
        faults += _doubled(evaluations) + await self._not_the_same_again(diary) + await self._replayed(diary.thread)
        return [f"{diary.thread}: {fault}" for fault in faults]

    async def _not_the_same_again(self, diary: Diary) -> list[str]:
        """Ask for the last turn again: the same key is the same turn."""
        key, result = list(diary.results.items())[-1]
        try:
            again = await self._client.invoke(diary.thread, f"turn {len(diary.results) - 1}", key=key)
        except GradeloopError as error:
            return [f"{key} again: {error}"]
        return [] if again.grading_run_id == result.grading_run_id else [f"{key} again was another run"]

    async def _replayed(self, thread: str) -> list[str]:
        """Replay the thread's history: one that does not would be stuck at the next restart of its worker."""
        client = self._client.temporal
        replayer = Replayer(
            workflows=[GradingThreadWorkflow], workflow_runner=UnsandboxedWorkflowRunner(), data_converter=client.data_converter
        )
        outcome = await replayer.replay_workflow(await client.get_workflow_handle(thread).fetch_history(), raise_on_replay_failure=False)
        return [f"its history does not replay: {outcome.replay_failure}"] if outcome.replay_failure else []


async def _paged(client: GradingClient, thread: str) -> AsyncIterator[Event]:
    after: int | None = 0
    while after is not None:
        page = await client.events(thread, after=after)
        for event in page.items:
            yield event
        after = page.next


def _doubled(evaluations: tuple[Evaluation, ...]) -> list[str]:
    places = Counter((evaluation.grading_run_id, evaluation.iteration) for evaluation in evaluations)
    return [f"{count} evaluations of iteration {iteration} of {run}" for (run, iteration), count in places.items() if count > 1]


@asynccontextmanager
async def storm(plan: Plan, folder: Path) -> AsyncIterator[Storm]:
    """Prepare a storm over an embedded server in a folder."""
    models = CountingServer(delay=plan.delay)
    await models.start()
    try:
        async with engine_in(folder) as engine:
            yield Storm(plan, engine, models, GradingClient(await engine.client(), task_queue=QUEUE))
    finally:
        await models.close()


async def main() -> int:
    """Run a storm and print its report."""
    logging.basicConfig(level=logging.ERROR)
    parser = argparse.ArgumentParser(description="Kill workers and the server under many threads, and look whether anything is lost.")
    parser.add_argument("--threads", type=int, default=Plan.threads)
    parser.add_argument("--seconds", type=float, default=Plan.seconds)
    parser.add_argument("--workers", type=int, default=Plan.workers)
    parser.add_argument("--seed", type=int, default=Plan.seed)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradeloop-storm-") as folder:
        async with storm(Plan(**vars(given)), Path(folder)) as prepared:
            report = await prepared.run()
    print(report)
    print("\n".join(report.faults))
    return 1 if report.faults else 0


if __name__ == "__main__":
    leave(asyncio.run(main()))
