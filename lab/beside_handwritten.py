"""gradeloop beside the same three programs written by hand (`handwritten/`): the rows `handwritten` of `make bench-all`.

Both sides make real HTTP calls through the same SDK to one server, which answers at once or after 200 ms; they take turns, and have to come
to the same verdicts with the same number of calls. Each worker is a process of its own.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from pydantic import TypeAdapter
from temporalio.client import Client

from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import BatchRequest, Case
from gradeloop.batches.judge_many import RunVerdict, judge_many
from gradeloop.batches.reader import BatchReader
from gradeloop.contract.thread import WORKFLOW, RunResult
from gradeloop.contract.transcript import AgentRun
from gradeloop.judges.client import Judge
from gradeloop.store.engine import Store
from lab.handwritten.batch import Batch, CaseVerdict, GradedBatch
from lab.handwritten.judgement import JudgedRun, JudgedRuns, Judging, Judgings, Run
from lab.handwritten.loop import GradedDraft, Outcome, Task
from lab.handwritten.model_call import Message
from lab.handwritten.worker import QUEUE, READY, connect
from lab.measure import Bench, Cost
from lab.mock_judge import counts, judging
from lab.replies import CRITERIA, TASK
from lab.subjects import Subject
from rig.processes import Engine, WorkerProcess, engine_in

MODEL = "gpt-5"
OUR_QUEUE = "beside-handwritten"
RUNS, CONCURRENCY = 200, 50
"""Gradings, judgements and, of each, the calls in flight: as many as `gradeloop eval` has by default."""

DRAFTS = f"{TASK} [draft]"
RUBRIC = [CRITERIA[0], f"{CRITERIA[1]} [needs Draft 2]", CRITERIA[2]]
"""The third draft passes."""
ITERATIONS = 3

OUTPUT_RUBRIC = "It says which run it is."
QUESTION = "The agent says which run it is."


class Side(Protocol):
    """One of the two, on a worker that serves."""

    bench: Bench

    async def draft(self) -> tuple[str, list[bool]]:
        """Run the loop once; return the draft, and whether each iteration's passed."""

    async def grade(self, outputs: Sequence[str]) -> list[bool]:
        """Grade outputs as a batch; return whether each passes."""

    async def judge(self, runs: Sequence[str]) -> list[str]:
        """Judge finished runs, each given as what its agent says; return the labels."""

    async def judge_one(self, run: str) -> str:
        """Judge one finished run; return the label."""


class Ours:
    """gradeloop.

    Args:
        client: Connected as every part of gradeloop is.
        queue: What the worker serves.
        store: What the worker writes to.
        worker: The worker's process id.
        server: The Temporal server's.
    """

    def __init__(self, client: Client, queue: str, store: Store, worker: int, server: int) -> None:
        model = {"model": f"openai:{MODEL}"}
        request = {
            "messages": [{"role": "user", "content": DRAFTS}],
            "rubric": "\n".join(f"- {criterion}" for criterion in RUBRIC),
            "generator": model,
            "grader": model,
            "max_iterations": ITERATIONS,
        }
        self.bench = Bench(Subject("gradeloop", WORKFLOW, [request], queue), client, worker, server)
        self._store = store
        self._judge = Judge(
            {"rubric_text": QUESTION, "judge_model": f"openai:{MODEL}", "output_parsing_mode": "CONSTRAINED_DECODING"},
            client,
            task_queue=queue,
        )

    async def draft(self) -> tuple[str, list[bool]]:
        """See `Side`."""
        handle = self.bench.client.get_workflow_handle(await self.bench.run(), result_type=RunResult)
        result = await handle.result()
        return str(result.output), [evaluation.result == "satisfied" for evaluation in result.evaluations]

    async def grade(self, outputs: Sequence[str]) -> list[bool]:
        """See `Side`."""
        batches, name = BatchClient(self.bench.client, self.bench.subject.task_queue), f"beside-{uuid4()}"
        shared: dict[str, Any] = {"rubric": f"- {OUTPUT_RUBRIC}", "grader": {"model": f"openai:{MODEL}"}}
        cases = [Case.model_validate(shared | {"id": f"case-{at}", "output": output}) for at, output in enumerate(outputs)]
        await batches.upload(name, cases)
        await batches.start(BatchRequest(batch_id=name, total=len(cases), at_once=CONCURRENCY, cache=False))
        await batches.result(name)
        return [result.status == "passed" for result in await asyncio.to_thread(lambda: list(BatchReader(self._store).results(name)))]

    async def judge(self, runs: Sequence[str]) -> list[str]:
        """See `Side`."""
        found: list[RunVerdict] = []
        await judge_many(self._judge, [_agent_run(said) for said in runs], found.append, concurrency=CONCURRENCY, store=self._store)
        return [str(one.result.output["label"]) for one in sorted(found)]

    async def judge_one(self, run: str) -> str:
        """See `Side`."""
        return str((await self._judge(_agent_run(run))).output["label"])


def _agent_run(said: str) -> AgentRun:
    messages = [{"role": "user", "content": "Which run are you?"}, {"role": "assistant", "content": said}]
    return AgentRun.model_validate({"id": f"run-{uuid4()}", "transcripts": [{"messages": messages}]})


class Theirs:
    """The programs written by hand.

    Args:
        client: As `handwritten.worker` connects.
        folder: For the files of batches.
        worker: The worker's process id.
        server: The Temporal server's.
    """

    def __init__(self, client: Client, folder: Path, worker: int, server: int) -> None:
        task = Task(text=DRAFTS, rubric=RUBRIC, generator=MODEL, grader=MODEL, max_iterations=ITERATIONS)
        self.bench = Bench(Subject("handwritten", GradedDraft.__name__, [task], QUEUE), client, worker, server)
        self._client = client
        self._folder = folder

    async def draft(self) -> tuple[str, list[bool]]:
        """See `Side`."""
        handle = self._client.get_workflow_handle(await self.bench.run(), result_type=Outcome)
        outcome = await handle.result()
        return outcome.draft, [verdict.satisfied for verdict in outcome.verdicts]

    async def grade(self, outputs: Sequence[str]) -> list[bool]:
        """See `Side`."""
        folder = self._folder / str(uuid4())
        batch = Batch(cases=folder / "cases.jsonl", verdicts=folder, rubric=[OUTPUT_RUBRIC], grader=MODEL, at_once=CONCURRENCY)
        await asyncio.to_thread(_write_cases, batch.cases, outputs)
        await self._client.execute_workflow(GradedBatch.run, batch, id=f"batch-{uuid4()}", task_queue=QUEUE)
        return [case.verdict is not None and case.verdict.satisfied for case in await asyncio.to_thread(_read_pages, folder)]

    async def judge(self, runs: Sequence[str]) -> list[str]:
        """See `Side`."""
        asked = Judgings(runs=[_run(said) for said in runs], question=QUESTION, judge=MODEL, at_once=CONCURRENCY)
        found = await self._client.execute_workflow(JudgedRuns.run, asked, id=f"judgements-{uuid4()}", task_queue=QUEUE)
        return [one.judgement.label if one.judgement else str(one.error) for one in found]

    async def judge_one(self, run: str) -> str:
        """See `Side`."""
        asked = Judging(run=_run(run), question=QUESTION, judge=MODEL)
        return (await self._client.execute_workflow(JudgedRun.run, asked, id=f"judgement-{asked.run.id}", task_queue=QUEUE)).label


def _run(said: str) -> Run:
    messages = [Message(role="user", content="Which run are you?"), Message(role="assistant", content=said)]
    return Run(id=f"run-{uuid4()}", messages=messages)


def _write_cases(file: Path, outputs: Sequence[str]) -> None:
    file.parent.mkdir()
    rows = [json.dumps({"id": f"case-{at}", "output": output}) for at, output in enumerate(outputs)]
    file.write_text("\n".join(rows))


def _read_pages(folder: Path) -> list[CaseVerdict]:
    pages = TypeAdapter(list[CaseVerdict])
    return [case for file in sorted(folder.glob("*.json")) for case in pages.validate_json(file.read_bytes())]


@asynccontextmanager
async def both(engine: Engine, judge: str) -> AsyncIterator[tuple[Ours, Theirs]]:
    """Serve both sides, each from a process of its own.

    Args:
        engine: The Temporal server that they share.
        judge: The URL of the server that answers for the models.
    """
    if engine.server is None:
        raise RuntimeError("the server was not started")
    variables = {"OPENAI_BASE_URL": f"{judge}/v1", "OPENAI_API_KEY": "mock", "GRADELOOP_STORE": f"sqlite:///{engine.folder / 'results.db'}"}
    ours = WorkerProcess(engine, OUR_QUEUE, judge, variables=variables)
    command = [sys.executable, "-m", "lab.handwritten.worker", engine.address]
    theirs = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=os.environ | variables)
    store = Store(variables["GRADELOOP_STORE"])
    try:
        await ours.start()
        if theirs.stdout is None or (await theirs.stdout.readline()).decode().strip() != READY or ours.process is None:
            raise RuntimeError("the worker of the programs written by hand does not start; its words are above")
        yield (
            Ours(await engine.client(), OUR_QUEUE, store, ours.process.pid, engine.server.pid),
            Theirs(await connect(engine.address), engine.folder, theirs.pid, engine.server.pid),
        )
    finally:
        store.close()
        ours.kill()
        if theirs.returncode is None:
            theirs.terminate()
        await theirs.wait()


async def verdicts(side: Side) -> list[object]:
    """Return what a side says of a loop, a batch of which every third output fails, and runs likewise."""
    texts = [f"I am run {at}. {'' if at % 3 else '[fail]'}" for at in range(10)]
    runs = [f"{text} In judgement." for text in texts]
    return [
        await side.draft(),
        await side.grade(texts),
        await side.judge(runs),
        [await side.judge_one(f"Alone, {run}") for run in runs[:2]],
    ]


@dataclass(frozen=True)
class Step:
    """Something that both sides do in every round."""

    calls: int
    """The requests that it makes."""
    cost: Callable[[Side, str], Awaitable[Cost]]
    """Does it, under a name of its own, and returns what it took."""
    rounds: int = 1_000
    """The most rounds of it."""

    async def measured(self, side: Side, name: str, judge: str) -> Cost:
        """Do it, and return what it took.

        Raises:
            RuntimeError: The side made another number of calls.
        """
        counts(judge)
        cost = await self.cost(side, name)
        if (made := counts(judge).calls) != self.calls:
            raise RuntimeError(f"{side.bench.subject.name} made {made} calls for {name}, and not {self.calls}")
        return cost


def _threads(many: int, runs: int, rounds: int = 1_000) -> Step:
    return Step(runs * 2 * ITERATIONS, lambda side, _: side.bench.at_once(many, runs), rounds)


def _texts(name: str, count: int) -> list[str]:
    return [f"I am run number {at} of {name}. " * 40 for at in range(count)]


async def _one_by_one(side: Side, runs: Sequence[str]) -> None:
    for run in runs:
        await side.judge_one(run)


ALONE = 5
"""Runs of a round that are made one after the other."""

STEPS = {
    "alone": _threads(1, ALONE),
    "20 at once": _threads(20, 40),
    "200 at once": _threads(200, 200, rounds=3),
    "gradings": Step(RUNS, lambda side, name: side.bench.cost(RUNS, lambda: side.grade(_texts(name, RUNS)))),
    "judgements": Step(RUNS, lambda side, name: side.bench.cost(RUNS, lambda: side.judge(_texts(name, RUNS)))),
    "judgement": Step(ALONE, lambda side, name: side.bench.cost(ALONE, lambda: _one_by_one(side, _texts(name, ALONE)))),
}


@dataclass
class Measured:
    """What a side took."""

    costs: dict[str, list[Cost]] = field(default_factory=lambda: {name: [] for name in STEPS})
    """The rounds of each step."""
    history: int = 0
    """Bytes of a thread's history."""


async def contest(seconds: float, rounds: int) -> tuple[Measured, Measured]:
    """Measure gradeloop and the programs written by hand, in turns.

    Args:
        seconds: How long the server takes for a reply.
        rounds: Rounds of every step, but for those that have a limit of their own.

    Raises:
        RuntimeError: The sides do not come to the same verdicts, or do not make the calls of a step.
    """
    measured = (Measured(), Measured())
    with tempfile.TemporaryDirectory(prefix="gradeloop-bench-") as folder, judging(seconds) as judge:
        async with engine_in(Path(folder)) as engine, both(engine, judge) as sides:
            ours, theirs = [await verdicts(side) for side in sides]
            if ours != theirs:
                raise RuntimeError(f"the verdicts differ: {ours} beside {theirs}")
            lanes: list[tuple[Side, Measured]] = list(zip(sides, measured, strict=True))
            for side, _ in lanes:
                await side.bench.at_once(50, 50)
            for number, (name, step) in product(range(rounds), STEPS.items()):
                for side, found in lanes if number < step.rounds else ():
                    found.costs[name].append(await step.measured(side, f"{name} {number}", judge))
            for side, found in lanes:
                found.history = (await side.bench.history()).bytes
    return measured
