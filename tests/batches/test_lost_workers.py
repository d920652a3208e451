"""A call that kills its worker: it is found, ends as `worker_lost`, and takes nothing along; a worker that was told to stop is no loss."""

import asyncio
import json
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from temporalio.client import Client

from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.client.client import GradingClient
from gradeloop.contract.thread import RunResult
from gradeloop.store.engine import Store
from gradeloop.store.tables import table
from rig.processes import Engine, WorkerProcess, engine_in
from tests.rig.batches import Batches, case
from tests.rig.threads import SECONDS, Models, Served, verdict_text

QUEUE = "lost"

FUNNIEST = {"kind": "select-best", "value": "the funniest"}

WIDE = "import sys, worker; from activities.calls import limiter; limiter.FIRST_WINDOW = 256; sys.exit(worker.main())"
"""A worker that has made so many calls already that it may make 200 at once."""

pytestmark = pytest.mark.slow


@dataclass
class Judge:
    """A model over HTTP that kills whoever asks it about a poisoned case, as the memory limit would."""

    poisoned: frozenset[tuple[str, int]] = frozenset()
    """The models and the cases about which they must not be asked."""
    delay: float = 0.3
    held: int = 0
    """The calls in flight until which all are held, before anything is answered or killed."""
    holds: bool = False
    """Whether no call is answered."""
    asked: Counter[int] = field(default_factory=Counter)
    """The calls, by case."""
    killed: set[int] = field(default_factory=set)
    """The processes of workers that were killed."""
    in_flight: int = 0
    beside_the_last: int = 0
    """The calls in flight beside the last one that was poisoned."""
    kill: Callable[[], int] = int
    """Kills the worker, and returns its process."""
    says: Callable[[str, str], str] = lambda _model, _text: verdict_text()
    """Returns the answer of a model to a request."""

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a call, or kill its worker."""
        text = (await request.read()).decode()
        model, found = str(json.loads(text)["model"]), re.search(r"case number (\d+)", text)
        number = int(found[1]) if found else -1
        self.asked[number] += 1
        self.in_flight += 1
        try:
            while self.in_flight < self.held or self.holds:
                await asyncio.sleep(0.05)
            self.held = 0
            if (model, number) in self.poisoned:
                self.killed.add(self.kill())
                self.beside_the_last = self.in_flight - 1
                await asyncio.sleep(SECONDS)
            await asyncio.sleep(self.delay)
        finally:
            self.in_flight -= 1
        choice = {"index": 0, "message": {"role": "assistant", "content": self.says(model, text)}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return web.json_response({"id": "r", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage})


@dataclass
class Stage:
    """A server, a store, a judge, and a worker that a supervisor starts again whenever it ends."""

    engine: Engine
    client: Client
    judge: Judge
    url: str
    worker: WorkerProcess
    batches: Batches

    def model(self, name: str = "judge") -> dict[str, Any]:
        """Return a model of the server."""
        return {"model": {"id": f"openai_compatible:{name}", "config": {"base_url": f"{self.url}/v1", "structured_output": True}}}

    async def supervise(self) -> None:
        """Start the worker again whenever it is gone."""
        while True:
            await self.worker.ended()
            await self.worker.start()

    async def run(self, cases: int, **fields: Any) -> tuple[BatchSummary, dict[int, CaseResult]]:
        """Run a batch of so many cases to its end, with fields of their own."""
        given = [case(f"c{number}", f"I am case number {number}.", **{"grader": self.model(), **fields}) for number in range(cases)]
        return await self.run_cases(given)

    async def run_cases(self, given: Sequence[Mapping[str, Any]]) -> tuple[BatchSummary, dict[int, CaseResult]]:
        """Run a batch of these cases to its end."""
        cases = len(given)
        async with asyncio.timeout(550):
            summary, results = await self.batches.run(given, batch_id=f"lost-{cases}", at_once=cases)
        return summary, dict(enumerate(results))

    async def run_threads(self, *numbers: int) -> dict[int, RunResult]:
        """Run threads to their ends."""
        models: dict[str, Any] = {"generator": self.model("writer"), "grader": self.model()}
        grading = GradingClient(self.client, task_queue=QUEUE)
        async with asyncio.timeout(550):
            start = {"rubric": "- it is good", "max_iterations": 1} | models
            runs = (grading.invoke(f"thread-{number}", f"Be case number {number}.", start=start) for number in numbers)
            return dict(zip(numbers, await asyncio.gather(*runs), strict=True))

    async def until_calls_know_the_stop(self, count: int) -> None:
        """Wait until the heartbeats of so many calls say that they are lost with a worker that was told to stop."""
        known = 0
        async with asyncio.timeout(SECONDS):
            while known < count:
                known = 0
                await asyncio.sleep(0.2)
                async for found in self.client.list_workflows("ExecutionStatus = 'Running'"):
                    description = await self.client.get_workflow_handle(found.id, run_id=found.run_id).describe()
                    for call in description.raw_description.pending_activities:
                        details: list[Any] = await self.client.data_converter.decode(call.heartbeat_details.payloads)
                        known += any(isinstance(detail, dict) and detail.get("over") for detail in details)

    async def left(self) -> int:
        """Return how many workers have told the store that they stop."""
        workers = table("workers")
        rows = await self.batches.store.read(lambda connection: connection.execute(workers.select()).mappings().all())
        return sum(row["left"] for row in rows)


def kill(worker: WorkerProcess) -> int:
    """Kill a worker's process, and return its id."""
    worker.signal(signal.SIGKILL)
    return worker.process.pid if worker.process is not None else 0


@asynccontextmanager
async def staged(folder: Path, judge: Judge) -> AsyncIterator[Stage]:
    """Run a server, a judge and a worker."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", judge.answer)
    store = Store(f"sqlite:///{folder / 'results.db'}")
    async with TestServer(app) as server, engine_in(folder) as engine:
        url, client = str(server.make_url("")).rstrip("/"), await engine.client()
        variables = {"GRADELOOP_STORE": f"sqlite:///{folder / 'results.db'}", "GRADELOOP_MAX_CONCURRENT_ACTIVITIES": "250"}
        worker = WorkerProcess(engine, QUEUE, url, variables=variables)
        worker._command[1:2] = ["-c", WIDE]
        judge.kill = lambda: kill(worker)
        await worker.start()
        stage = Stage(engine, client, judge, url, worker, Batches(client, Served(client, QUEUE, Models([])), store))
        try:
            yield stage
        finally:
            worker.kill()
            store.close()


@asynccontextmanager
async def supervised(stage: Stage) -> AsyncIterator[None]:
    """Start the stage's worker again whenever it is killed."""
    supervisor = asyncio.create_task(stage.supervise())
    yield
    supervisor.cancel()
    with suppress(asyncio.CancelledError):
        await supervisor


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("cases", "poisoned"), [(12, {7}), (12, {3, 7}), (200, {77})], ids=["one", "two", "of two hundred"])
async def test_a_case_that_kills_its_worker_ends_as_an_error_and_takes_no_other_along(
    tmp_path: Path, cases: int, poisoned: set[int]
) -> None:
    judge = Judge(frozenset(("judge", number) for number in poisoned), held=cases)
    async with staged(tmp_path, judge) as stage, supervised(stage):
        summary, results = await stage.run(cases)

    lost = {number for number, result in results.items() if result.status == "error"}
    paid = Counter(judge.asked[number] for number in results if number not in poisoned)
    assert lost == poisoned
    assert all((results[number].error or "").split("worker_lost: ")[1].startswith("3 workers were lost") for number in lost)
    assert summary.passed == cases - len(poisoned)
    assert max(paid) <= 3
    assert sum(count for times, count in paid.items() if times > 2) <= 9 * len(poisoned)
    assert judge.beside_the_last == 0
    assert len(judge.killed) <= 2 + 2 * len(poisoned)
    assert summary.usage.attempts >= judge.asked.total()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["vote", "draft", "escalation", "comparison"])
async def test_each_kind_of_call_that_kills_its_worker_ends_its_own_cases_alone(tmp_path: Path, kind: str) -> None:
    model = {"draft": "writer", "escalation": "second"}.get(kind, "judge")
    turns = count()

    def says(model: str, text: str) -> str:
        first, *others = map(int, re.findall(r"case number (\d+)", text))
        if kind == "comparison" and others:
            return f'<response>{{"best": "{1 if first < others[0] else 2}", "explanation": "It is."}}</response>'
        if kind == "escalation" and model == "judge" and first == 3:
            return verdict_text(passed=next(turns) % 3 > 0)
        return "I am written." if model == "writer" else verdict_text()

    judge = Judge(frozenset({(model, 3)}), held=2, says=says)
    async with staged(tmp_path, judge) as stage, supervised(stage):
        voted = {"criteria": [{"description": "it is good", "votes": 3}]}
        fields: dict[str, dict[str, Any]] = {
            "vote": {"rubric": voted},
            "draft": {"generator": stage.model("writer")},
            "escalation": {"rubric": voted, "abstain": 0.9, "escalate": stage.model("second")["model"]},
            "comparison": {},
        }
        given = [case(f"c{at}", f"I am case number {at}.", **{"grader": stage.model(), **fields[kind]}) for at in range(6)]
        if kind == "draft":
            given = [one | {"messages": [{"role": "user", "content": f"Be case number {at}."}]} for at, one in enumerate(given)]
        if kind == "comparison":
            chosen = {"id": "best", "description": "the best", "check": {"tool": "comparison_check", "arguments": FUNNIEST}}
            pairs = [("c1", "c2"), ("c1", "c2"), ("c3", "c4"), ("c3", "c4")]
            for one, pair in zip(given[1:5], pairs, strict=True):
                one |= {"rubric": {"criteria": [chosen]}, "compared_with": list(pair)}
        summary, results = await stage.run_cases(given)

    lost = {number: result for number, result in results.items() if "worker_lost: 3 workers were lost" in (result.error or "")}
    others = [result.status for number, result in results.items() if number not in lost]
    assert {result.status for result in lost.values()} == {"unsure" if kind == "escalation" else "error"}
    assert set(lost) == ({3, 4} if kind == "comparison" else {3})
    assert others == (["passed", "passed", "failed", "passed"] if kind == "comparison" else ["passed"] * 5)
    assert summary.status == "finished"
    assert judge.beside_the_last == 0
    assert summary.usage.attempts >= judge.asked.total()


@pytest.mark.timeout(600)
async def test_a_thread_whose_call_kills_its_worker_ends_without_a_verdict(tmp_path: Path) -> None:
    judge = Judge(frozenset({("judge", 3), ("writer", 4)}), held=3)
    async with staged(tmp_path, judge) as stage, supervised(stage):
        results = await stage.run_threads(3, 4, 5)

    graded, drafted, fine = results[3], results[4], results[5]
    assert fine.status == "satisfied"
    assert (graded.status, drafted.status, drafted.reason) == ("grader_error", "interrupted", "failure")
    assert graded.evaluations[-1].explanation.count("worker_lost: 3 workers were lost with this call in flight") == 1
    assert (drafted.error or "").startswith("worker_lost: 3 workers were lost with this call in flight")
    assert (graded.usage.tokens, drafted.usage.tokens, drafted.usage.attempts, drafted.usage.calls) == (15, 0, 3, 0)
    assert judge.beside_the_last == 0


@pytest.mark.timeout(600)
async def test_a_worker_that_was_told_to_stop_is_no_loss(tmp_path: Path) -> None:
    judge = Judge(held=2, holds=True)
    async with staged(tmp_path, judge) as stage:
        running = asyncio.create_task(stage.run(1)), asyncio.create_task(stage.run_threads(7))
        for stop in range(1, 4):
            async with asyncio.timeout(SECONDS):
                while judge.asked.total() < 2 * stop:
                    await asyncio.sleep(0.05)
            stage.worker.signal(signal.SIGTERM)
            await stage.until_calls_know_the_stop(2)
            stopped = await stage.left()
            stage.worker.kill()
            judge.held = 2  # else apart from one another
            await stage.worker.start()
            assert stopped == stop
        judge.holds = False
        (summary, _), threads = await running[0], await running[1]

    assert (summary.passed, threads[7].status) == (1, "satisfied")
