"""Runs judged by several rollouts each, while their worker is killed again and again: `python -m lab.judging_storm`.

Server and worker are real processes, the provider is a server in this one that counts what is paid for.
`lab/tests/test_judging_storm.py` runs a small one. The same runs are judged once more undisturbed, and must come to the same.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from gradeloop.batches.judge_many import RunVerdict, judge_many
from gradeloop.contract.transcript import AgentRun
from gradeloop.exit_codes import leave
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import JudgeResult
from gradeloop.store.engine import STORE_FILE, Store
from rig.processes import WorkerProcess, engine_in
from workflows.batches.grading_batch import BatchShard, GradingBatchWorkflow

QUEUE = "judging-storm"
TELL_SECONDS = 10.0
"""How often a storm says how far it is."""

RECORDED_SECONDS = 2.0
"""An answer that came so shortly before a kill may not have been recorded yet."""


@dataclass(frozen=True)
class Plan:
    """How many, and how hard it blows."""

    runs: int = 500
    rollouts: int = 3
    kills: int = 5
    at_once: int = 60
    delay: float = 0.5
    """Seconds that each model call takes."""
    longest: float = 900.0
    """Seconds after which it is given up, with whatever still runs."""
    calm: bool = True
    """Whether the same is judged once more without kills."""


@dataclass
class Paid:
    """A call that a model was asked."""

    name: str
    began: float
    """When the provider read it, which a busy one does late."""
    ended: float | None = None
    """When it was answered, or its caller hung up."""


@dataclass(frozen=True)
class Kill:
    """The end of a worker."""

    began: float
    ended: float
    """When the next worker served: whatever the provider read until then, the killed one had sent."""

    def may_have_lost(self, call: Paid, recorded: float) -> bool:
        """Return whether this cost the answer of a call: it was under way, or answered less than so many seconds before."""
        return call.began <= self.ended and self.began <= (call.ended or self.began) + recorded


@dataclass
class Report:
    """What came of it."""

    faults: list[str] = field(default_factory=list)
    calls: int = 0
    again: int = 0
    """Calls that were made more than once."""
    in_flight: int = 0
    """Calls that were under way, or answered and perhaps not recorded yet, when the worker was killed."""
    kills: int = 0
    seconds: float = 0.0
    undisturbed: float = 0.0
    """Seconds that the same took without kills."""


class Judges:
    """A provider whose answer depends on the run and the rollout alone, and who counts."""

    def __init__(self, delay: float) -> None:
        self.calls: list[Paid] = []
        self._delay = delay
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._server = TestServer(app)

    async def start(self) -> str:
        """Listen, and return the address."""
        await self._server.start_server()
        return str(self._server.make_url("")).rstrip("/")

    def under_way(self) -> int:
        """Return how many calls are not answered yet."""
        return sum(call.ended is None for call in self.calls)

    async def close(self) -> None:
        """Answer nobody any more."""
        await self._server.close()

    async def _answer(self, request: web.Request) -> web.Response:
        call = Paid(self.named(await request.json()), time.monotonic())
        self.calls.append(call)
        try:
            await asyncio.sleep(self._delay)
        finally:
            call.ended = time.monotonic()
        choice = {"index": 0, "message": {"role": "assistant", "content": json.dumps(self.said(call.name))}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return web.json_response({"id": "r", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage})

    def named(self, body: dict[str, Any]) -> str:
        """Return what a call is told apart by: the run and the rollout."""
        found = re.search(r"run number (\d+)", json.dumps(body["messages"]))
        return f"{found.group(1) if found else '?'}/{body.get('seed')}"

    def said(self, name: str) -> dict[str, Any]:
        """Return the answer to a call."""
        label = "match" if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 else "no match"
        return {"label": label, "explanation": f"as told to {name} [T0B0]"}


def runs_of(count: int, tail: str = "") -> list[AgentRun]:
    """Return so many runs; with another tail they are others, of which the provider says the same."""
    said = [{"role": "user", "content": "Which run are you?"}]
    answers = [{"role": "assistant", "content": f"I am run number {at}. " * 20 + tail} for at in range(count)]
    return [
        AgentRun.model_validate({"id": f"run-{at}", "transcripts": [{"messages": [*said, answer]}]}) for at, answer in enumerate(answers)
    ]


def judge_of(url: str, rollouts: int) -> dict[str, Any]:
    """Return the judge, whose rollouts are told apart by their seeds."""
    model = {"id": "openai_compatible:judge", "config": {"base_url": f"{url}/v1", "structured_output": True, "seed": 100}}
    bound = {"output_parsing_mode": "CONSTRAINED_DECODING", "judge_model": model}
    return bound | {"rubric_text": "Say whether the run is good.", "n_rollouts_per_input": rollouts}


async def storm(plan: Plan, folder: Path, tell: Callable[[str], None] = lambda _: None) -> Report:
    """Judge all runs through the kills, then once more without; `tell` is told now and then how far it is.

    Raises:
        TimeoutError: It took longer than the plan allows.
    """
    judges, report = Judges(plan.delay), Report()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(judges.close)
        url = await judges.start()
        engine = await stack.enter_async_context(engine_in(folder))
        await stack.enter_async_context(asyncio.timeout(plan.longest))
        workers = [WorkerProcess(engine, QUEUE, url)]
        stack.callback(_kill, workers)
        await workers[0].start()
        client = await engine.client()
        judge = Judge(judge_of(url, plan.rollouts), client, task_queue=QUEUE)
        store, disturbed = Store(f"sqlite:///{folder / STORE_FILE}"), list[RunVerdict]()
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            limits: dict[str, Any] = {"concurrency": plan.at_once, "store": store}
            judging = group.create_task(judge_many(judge, runs_of(plan.runs), disturbed.append, **limits))
            telling = group.create_task(_tell(tell, plan, judges, disturbed, began))
            kills = await _killed(plan, lambda: WorkerProcess(engine, QUEUE, url), workers, disturbed, judging, tell)
            await judging
            telling.cancel()
        report.seconds = time.monotonic() - began
        report.kills, report.calls = len(kills), len(judges.calls)
        _look_at_calls(plan, judges.calls, kills, report)
        first = [row.result for row in sorted(disturbed)]
        _look_at_labels(judges, plan, first, report)
        tell(f"judged after {report.seconds:.0f} s, with {report.calls} calls; faults so far: {report.faults or 'none'}")
        if plan.calm:
            began, calm = time.monotonic(), list[RunVerdict]()
            await judge_many(judge, runs_of(plan.runs, "Calmly."), calm.append, **limits)
            report.undisturbed = time.monotonic() - began
            _look_at_results(first, [row.result for row in sorted(calm)], report)
        again: list[RunVerdict] = []
        await judge_many(judge, runs_of(plan.runs), again.append, **limits)
        _look_at_results(first, [row.result for row in sorted(again)], report)
        if len(judges.calls) != report.calls + plan.runs * plan.rollouts * plan.calm:
            report.faults.append(f"{len(judges.calls) - report.calls} calls to judge anew, and to read what was judged")
        history = await client.get_workflow_handle(str(first[0].batch_id)).fetch_history()
        replayer = Replayer(
            workflows=[GradingBatchWorkflow, BatchShard], workflow_runner=UnsandboxedWorkflowRunner(), data_converter=client.data_converter
        )
        await replayer.replay_workflow(history)
    return report


async def _tell(tell: Callable[[str], None], plan: Plan, judges: Judges, judged: list[RunVerdict], began: float) -> None:
    """Say how far it is until this is cancelled."""
    while True:
        await asyncio.sleep(TELL_SECONDS)
        seconds, calls = time.monotonic() - began, len(judges.calls)
        tell(f"{seconds:.0f} s: {len(judged)} of {plan.runs} runs judged, {calls} calls paid, {judges.under_way()} under way")


def _kill(workers: Iterable[WorkerProcess]) -> None:
    for worker in workers:
        worker.kill()


async def _killed(
    plan: Plan,
    following: Callable[[], WorkerProcess],
    workers: list[WorkerProcess],
    judged: list[RunVerdict],
    judging: "asyncio.Task[None]",
    tell: Callable[[str], None],
) -> list[Kill]:
    """Kill the worker whenever another part of the runs is judged, and start the next one, which joins `workers`; return when."""
    kills: list[Kill] = []
    for at in range(plan.kills):
        due = (at + 1) * plan.runs // (plan.kills + 2)
        await _judged_so_many(judged, due, judging)
        began = time.monotonic()
        workers[-1].kill()
        tell(f"kill {at + 1} of {plan.kills}, with {len(judged)} runs judged")
        workers.append(following())
        await workers[-1].start()
        kills.append(Kill(began, time.monotonic()))
    return kills


async def _judged_so_many(judged: list[RunVerdict], due: int, judging: "asyncio.Task[None]") -> None:
    while len(judged) < due and not judging.done():  # noqa: ASYNC110 - results come without a signal
        await asyncio.sleep(0.02)


def _look_at_calls(plan: Plan, calls: list[Paid], kills: list[Kill], report: Report) -> None:
    """Note every call that was paid for twice though it was not in flight when the worker was killed, and every one that is missing."""
    wanted = {f"{at}/{100 + sample}" for at in range(plan.runs) for sample in range(plan.rollouts)}
    counted = Counter(call.name for call in calls)
    report.again = sum(count - 1 for count in counted.values())
    report.in_flight = sum(_in_flight(call, kills) for call in calls)
    if report.again > report.in_flight:
        report.faults.append(f"{report.again} calls were made again, and {report.in_flight} were in flight at a kill")
    report.faults += [f"the call {name} is not one of the plan's" for name in counted if name not in wanted]
    report.faults += [f"nobody asked for {name}" for name in wanted - set(counted)]
    for call in calls:
        later = [other for other in calls if other.name == call.name and other.began > call.began] if counted[call.name] > 1 else []
        if later and not _in_flight(call, kills):
            report.faults.append(paid_again(call, later[0], kills))


def paid_again(call: Paid, again: Paid, kills: list[Kill]) -> str:
    """Say when a call ended, was made again, and what was killed, in seconds from its beginning."""
    times = [f"{at - call.began:+.2f} s" for at in (call.ended or call.began, again.began, *(kill.began for kill in kills))]
    return f"{call.name} ended at {times[0]}, and was paid for again at {times[1]}; the kills: {', '.join(times[2:])}"


def _in_flight(call: Paid, kills: list[Kill]) -> bool:
    return any(kill.may_have_lost(call, RECORDED_SECONDS) for kill in kills)


def _look_at_labels(judges: Judges, plan: Plan, results: list[JudgeResult], report: Report) -> None:
    """Note every run whose verdict is not the one that the most of its answers gave."""
    if len(results) != plan.runs:
        report.faults.append(f"{len(results)} results of {plan.runs} runs")
    for at, result in enumerate(results):
        said = Counter(judges.said(f"{at}/{100 + sample}")["label"] for sample in range(plan.rollouts)).most_common()
        best = [label for label, count in said if count == said[0][1]]
        if result.failed or result.output.get("label") not in best:
            report.faults.append(f"{result.agent_run_id} came to {result.output.get('label')!r}, and not to {' or '.join(best)}")


def _look_at_results(disturbed: list[JudgeResult], calm: list[JudgeResult], report: Report) -> None:
    for one, other in zip(disturbed, calm, strict=True):
        same = one.output == other.output and one.result_metadata == other.result_metadata and not one.failed
        if not same:
            report.faults.append(f"{one.agent_run_id} came to something else than undisturbed")


def main() -> None:
    """Run the whole storm and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=Plan.runs)
    parser.add_argument("--rollouts", type=int, default=Plan.rollouts)
    parser.add_argument("--kills", type=int, default=Plan.kills)
    parser.add_argument("--at-once", type=int, default=Plan.at_once)
    parser.add_argument("--longest", type=float, default=Plan.longest, metavar="SECONDS")
    parser.add_argument("--no-calm", action="store_true", help="Judge them once only: what each must come to is known.")
    parser.add_argument("--folder", type=Path, help="Where server and worker keep their files and logs; a temporary folder by default.")
    parser.add_argument("--delay", type=float, default=Plan.delay, metavar="SECONDS", help="How long the provider takes for each answer.")
    flags = parser.parse_args()
    plan = Plan(flags.runs, flags.rollouts, flags.kills, flags.at_once, flags.delay, flags.longest, calm=not flags.no_calm)
    with tempfile.TemporaryDirectory() as temporary:
        folder = flags.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        report = asyncio.run(storm(plan, folder, lambda said: print(said, file=sys.stderr, flush=True)))
    print(report)
    leave(1 if report.faults else 0)


if __name__ == "__main__":
    main()
