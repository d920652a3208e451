"""Threads in several turns, as the tests drive them: models that wait at a gate, a worker for them, and what was paid for."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Literal
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Replayer, Worker

from activities.providers import Providers
from activities.providers.base import ModelReply, ModelRequest, Step
from activities.providers.environment import Environment
from activities.providers.scripted import Script
from activities.tools.registry import ToolRegistry
from gradeloop.client.client import GradingClient
from gradeloop.contract.evaluation import Event
from gradeloop.contract.messages import Message, ToolCall, Usage
from gradeloop.contract.thread import RunResult
from gradeloop.settings.worker import WorkerSettings
from worker import build
from workflows import RUNNER
from workflows.grading_thread import GradingThreadWorkflow

Role = Literal["generator", "grader"]
Said = str | tuple[ToolCall, ...]

SECONDS = 30.0
"""How long a test waits for something that should take a moment."""


def verdict(passed: bool = True, *ids: str) -> str:
    """Write the verdict of a grader in which every criterion fares alike."""
    rows = [{"id": name, "reason": "seen", "passed": passed, "gap": None if passed else "more"} for name in ids or ("c1",)]
    return json.dumps({"criteria": rows, "explanation": "so it is", "result": "satisfied" if passed else "needs_revision"})


def failing_until(iteration: int) -> Callable[[Step, int], Said]:
    """Return a grader that fails every draft before that iteration."""
    return lambda step, _: verdict(step.iteration >= iteration)


class Models(Providers):
    """Models that answer at once or wait at a gate; every call that is paid for is counted."""

    def __init__(self) -> None:
        super().__init__(Environment.read({}), Script(replies=()))
        self.requests: list[ModelRequest] = []
        self.answers: dict[Role, Callable[[Step, int], Said]] = {
            "generator": lambda _, number: f"draft {number}",
            "grader": lambda _step, _number: verdict(),
        }
        self._gates: dict[Role, asyncio.Event] = {}
        self._changed = asyncio.Event()

    def hold(self, *roles: Role) -> None:
        """Have the calls of these roles wait from now on."""
        for role in roles:
            self._gates.setdefault(role, asyncio.Event())

    def hold_second(self, role: Role) -> None:
        """Have the second call of a role wait, and those after it."""
        answer = self.answers[role]

        def held(step: Step, number: int) -> Said:
            if number == 1:
                self.hold(role)
            return answer(step, number)

        self.answers[role] = held

    def release(self, *roles: Role) -> None:
        """Let all calls of these roles pass, by default of all roles."""
        for role in roles or tuple(self._gates):
            if gate := self._gates.pop(role, None):
                gate.set()

    def count(self, role: Role) -> int:
        """Return how many calls were begun, and so paid for."""
        return sum(request.step.role == role for request in self.requests)

    def steps(self, role: Role) -> list[tuple[int, int]]:
        """Return run and iteration of each call."""
        return [(request.step.run, request.step.iteration) for request in self.requests if request.step.role == role]

    async def called(self, role: Role, count: int = 1) -> None:
        """Wait until so many calls of a role were begun."""
        async with asyncio.timeout(SECONDS):
            while self.count(role) < count:
                self._changed.clear()
                await self._changed.wait()

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer as `answers` says, after the role's gate."""
        role = request.step.role
        self.requests.append(request)
        number = self.count(role)
        self._changed.set()
        if gate := self._gates.get(role):
            await gate.wait()
        said = self.answers[role](request.step, number)
        message = Message(role="assistant", content=said) if isinstance(said, str) else Message(role="assistant", tool_calls=said)
        return ModelReply(message, Usage(input=10, output=5, calls=1))


class Served:
    """A worker's queue, its client and its models."""

    def __init__(self, client: Client, task_queue: str, models: Models) -> None:
        self.temporal = client
        self.task_queue = task_queue
        self.models = models
        self.client = GradingClient(client, task_queue=task_queue)

    def handle(self, thread_id: str) -> WorkflowHandle[Any, Any]:
        """Return Temporal's own handle of a thread."""
        return self.temporal.get_workflow_handle(thread_id)

    async def until(self, thread_id: str, condition: Callable[[Any], bool]) -> None:
        """Wait until the thread's state meets a condition."""
        async with asyncio.timeout(SECONDS):
            while not condition(await self.client.state(thread_id)):
                await asyncio.sleep(0.02)

    async def begun(
        self, thread_id: str, role: Role, turn: str = "hello", key: str | None = None, **options: Any
    ) -> asyncio.Task[RunResult]:
        """Start a turn and return it when its first call of `role` waits at the gate."""
        self.models.hold(role)
        before = self.models.count(role)
        task = asyncio.create_task(self.client.invoke(thread_id, turn, key=key, start=start(**options)))
        await self.models.called(role, before + 1)
        return task

    async def events(self, thread_id: str) -> list[Event]:
        """Return all events of a thread."""
        events, after = list[Event](), 0
        while page := (await self.client.events(thread_id, after=after)).items:
            events, after = [*events, *page], page[-1].seq
        return events

    async def types(self, thread_id: str) -> list[str]:
        """Return the types of all events but `message`."""
        return [event.type for event in await self.events(thread_id) if event.type != "message"]

    async def said(self, thread_id: str) -> list[str]:
        """Return the contents of all messages, the feedback as its author's name."""
        page = await self.client.messages(thread_id)
        return [message.name or message.content for message in page.items]


def a_thread() -> str:
    """Return the id of a new thread."""
    return f"turns-{uuid4()}"


def start(**changed: Any) -> dict[str, Any]:
    """Return what a thread is started with: two models, one criterion, and a minute to idle."""
    plain: dict[str, Any] = {
        "generator": {"model": "scripted:writer"},
        "grader": {"model": "scripted:judge"},
        "rubric": "- it is good",
        "idle_timeout": 60,
    }
    return {name: value for name, value in (plain | changed).items() if value is not ...}


@asynccontextmanager
async def serving(
    client: Client,
    models: Models | None = None,
    *,
    task_queue: str = "",
    tools: Any = (),
    only: str = "",
    quick: bool = True,
    **options: Any,
) -> AsyncIterator[Served]:
    """Run a worker with such models on a queue of its own, its gates open at the end.

    Args:
        client: Of the server.
        models: What it calls; new ones by default.
        task_queue: Its queue; a new one by default.
        tools: Its tools, as functions.
        only: `workflows` or `activities` where it serves no others.
        quick: Whether its calls hear at once that they are stopped, instead of within seconds.
        options: Further settings.
    """
    models, queue = models or Models(), task_queue or f"turns-{uuid4()}"
    with pytest.MonkeyPatch.context() as patch:
        if quick:
            patch.setattr("worker.Worker", partial(_quick, only))
            patch.setattr("activities.model_call.HEARTBEAT_SECONDS", 0.05)
        worker = build(client, models, ToolRegistry(tools), WorkerSettings(task_queue=queue, **options), search_attributes=False)
        async with worker:
            try:
                yield Served(client, queue, models)
            finally:
                if only != "workflows":
                    models.release()


def _quick(only: str, *arguments: Any, **options: Any) -> Worker:
    """Return a worker whose calls hear at once that they are cancelled."""
    left_out = {"workflows", "activities"} - {only} if only else set()
    options |= {"max_heartbeat_throttle_interval": timedelta(milliseconds=50)} | dict.fromkeys(left_out, ())
    return Worker(*arguments, **options)


@asynccontextmanager
async def at_once(
    client: Client, models: Models, role: Role, happens: Callable[[Served, str], Awaitable[None]]
) -> AsyncIterator[tuple[Served, str, RunResult]]:
    """Invoke a thread so that what `happens` and the end of its first call of `role` come in one workflow task; yield its result."""
    async with serving(client, models, only="activities") as calls:
        thread_id = a_thread()
        async with serving(client, models, task_queue=calls.task_queue, only="workflows") as served:
            turn = await served.begun(thread_id, role)
        await happens(calls, thread_id)
        models.release()
        await ended(client, thread_id)
        async with serving(client, models, task_queue=calls.task_queue, only="workflows") as served:
            yield served, thread_id, await turn


async def ended(client: Client, thread_id: str) -> None:
    """Wait until no call of the thread is under way."""
    handle = client.get_workflow_handle(thread_id)
    async with asyncio.timeout(SECONDS):
        while (await handle.describe()).raw_description.pending_activities:
            await asyncio.sleep(0.02)


async def history_length(handle: WorkflowHandle[Any, Any]) -> int:
    """Return how many events the history has, workflow tasks aside: under load the server records one that ended in a refusal."""
    before, now = -1, await _events(handle)
    while now != before:
        await asyncio.sleep(0.1)
        before, now = now, await _events(handle)
    return now


async def _events(handle: WorkflowHandle[Any, Any]) -> int:
    history = await handle.fetch_history()
    return sum(not EventType.Name(event.event_type).startswith("EVENT_TYPE_WORKFLOW_TASK_") for event in history.events)


async def runs_of(client: Client, thread_id: str) -> list[str]:
    """Return the Temporal runs of a thread, as far as a chain of continue-as-new reaches back from the last one, oldest first."""
    run_id, runs = (await client.get_workflow_handle(thread_id).describe()).run_id, list[str]()
    while run_id:
        runs.insert(0, run_id)
        history = await client.get_workflow_handle(thread_id, run_id=run_id).fetch_history()
        run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return runs


async def scheduled(client: Client, thread_id: str, run_id: str | None = None) -> Counter[str]:
    """Count the activities that a run of a thread's workflow scheduled, by type."""
    history = await client.get_workflow_handle(thread_id, run_id=run_id).fetch_history()
    kind = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    return Counter(
        event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events if event.event_type == kind
    )


async def replay(client: Client, thread_id: str) -> None:
    """Replay every run of a thread's chain with the workflow's code as it is."""
    replayer = Replayer(workflows=[GradingThreadWorkflow], workflow_runner=RUNNER, data_converter=client.data_converter)
    for run_id in await runs_of(client, thread_id):
        await replayer.replay_workflow(await client.get_workflow_handle(thread_id, run_id=run_id).fetch_history())
