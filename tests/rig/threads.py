"""Threads as the tests build them: a request, what the models say, and a worker that serves both on the real server."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowHistory
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities import model_call as heartbeat
from activities.errors import Kind, ModelFault
from activities.providers import Providers
from activities.providers.base import ModelReply, ModelRequest, Step
from activities.providers.environment import Environment
from activities.providers.scripted import Script
from activities.tools.base import UNTRIED, ToolContext
from activities.tools.registry import ToolRegistry
from gradeloop.contract.messages import Usage
from gradeloop.contract.thread import RunResult
from gradeloop.sandbox.choice import SandboxChoice
from gradeloop.settings.worker import WorkerSettings
from gradeloop.store.engine import Store
from worker import build

WRITER, JUDGE = "scripted:writer", "scripted:judge"

_REAL_BEAT = heartbeat._beat

Reply = dict[str, Any]
Thread = WorkflowHandle[Any, RunResult]


def request(rubric: object = None, *messages: object, **more: Any) -> dict[str, Any]:
    """Return the workflow's argument as a service writes it; one task unless `messages` are given."""
    given = list(messages) or [{"role": "user", "content": "Write a haiku about spring."}]
    judge = {"grader": {"model": JUDGE}, "rubric": rubric} if rubric is not None else {}
    return {"messages": given, "generator": {"model": WRITER}} | judge | more


def draft(iteration: int = 0, text: str = "", *, step: int = 0, **more: Any) -> Reply:
    """Return the generator's answer at an iteration."""
    return {"role": "generator", "iteration": iteration, "step": step, "text": text or f"draft {iteration}"} | more


def wants(role: str, *calls: object, iteration: int = 0, step: int = 0) -> Reply:
    """Return a model turn that calls tools: a name, or a name with arguments."""
    made = [{"name": call} if isinstance(call, str) else call for call in calls]
    return {"role": role, "iteration": iteration, "step": step, "tool_calls": made}


def says(text: str, iteration: int = 0, *, step: int = 0) -> Reply:
    """Return the grader's answer, letter by letter."""
    return {"role": "grader", "iteration": iteration, "step": step, "text": text}


def row(name: str, gap: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a verdict's row: a pass, or a fail with its gap."""
    return {"id": name, "reason": f"looked at {name}", "passed": gap is None, "gap": gap} | more


def verdict(*rows: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a verdict whose result agrees with its rows."""
    result = "satisfied" if all(each["passed"] for each in rows) else "needs_revision"
    return {"criteria": list(rows), "explanation": "so it is", "result": result} | more


def grade(iteration: int = 0, *rows: Mapping[str, Any], step: int = 0, **more: Any) -> Reply:
    """Return the grader's verdict at an iteration: `c1` passes unless `rows` say otherwise."""
    return {"role": "grader", "iteration": iteration, "step": step, "verdict": verdict(*(rows or (row("c1"),)), **more)}


@dataclass
class Gate:
    """A model call that waits: it tells that it has begun, and goes on when it is let."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def pass_through(self) -> None:
        """Tell, and wait."""
        self.reached.set()
        await self.opened.wait()


class Models(Providers):
    """The scripted provider, which keeps what it was asked and holds calls that have a gate."""

    def __init__(self, replies: Sequence[Reply], environment: Mapping[str, str]) -> None:
        super().__init__(Environment.read(environment), Script.model_validate({"replies": replies}))
        self.asked: list[ModelRequest] = []
        self._gates: dict[Step, Gate] = {}
        self._faults: dict[str, list[ModelFault]] = {}

    def fail_first(self, role: str, *, times: int = 1, kind: Kind, usage: Usage, raisable: bool = False) -> None:
        """Have the role's next calls fail."""
        self._faults[role] = [ModelFault(kind, "as it was told to", usage=usage, raisable=raisable) for _ in range(times)]

    def gate(self, role: str, iteration: int = 0, step: int = 0, group: int = 0) -> Gate:
        """Hold the calls at this address from now on."""
        place = {"role": role, "iteration": iteration, "step": step, "group": group}
        return self._gates.setdefault(Step.model_validate(place), Gate())

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer from the script."""
        self.asked.append(request)
        if gate := self._gates.get(request.step):
            await gate.pass_through()
        if faults := self._faults.get(request.step.role):
            raise faults.pop(0)
        return await super().complete(request)

    def of(self, role: str) -> list[ModelRequest]:
        """Return the calls that a role was asked for, in order."""
        return [each for each in self.asked if each.step.role == role]


@dataclass(frozen=True)
class Desk:
    """A worker's task queue, and what its models were asked."""

    client: Client
    models: Models
    queue: str
    toolbox: ToolRegistry

    async def start(self, argument: object, **options: Any) -> Thread:
        """Start a thread."""
        name = options.pop("id", f"thread-{uuid4()}")
        return await self.client.start_workflow("GradingThread", argument, id=name, task_queue=self.queue, result_type=RunResult, **options)

    async def run(self, argument: object) -> RunResult:
        """Start a thread and return its result."""
        return await (await self.start(argument)).result()

    async def refusal(self, argument: object, kind: str = "InvalidRequest") -> str:
        """Start a thread that is refused for good, and return why."""
        return await refusal(await self.start(argument), kind)


async def refusal(thread: Thread, kind: str = "InvalidRequest") -> str:
    """Return why the thread was refused."""
    with pytest.raises(WorkflowFailureError) as caught:
        await asyncio.wait_for(thread.result(), 10)
    error = caught.value.cause
    assert isinstance(error, ApplicationError), error
    assert (error.type, error.non_retryable) == (kind, True)
    return error.message


class BriskWorker(Worker):
    """A worker that hears of a cancelled call at once, not with the next of its rare heartbeats."""

    def __init__(self, client: Client, **options: Any) -> None:
        super().__init__(client, **(options | {"max_heartbeat_throttle_interval": timedelta(milliseconds=50)}))


@asynccontextmanager
async def serving(
    client: Client,
    *replies: Reply,
    tools: Sequence[Callable[..., Any]] = (),
    environment: Mapping[str, str] | None = None,
    sandboxes: SandboxChoice = UNTRIED,
    queue: str | None = None,
    store: Store | None = None,
) -> AsyncIterator[Desk]:
    """Serve a task queue of one's own with these replies, tools and sandboxes."""
    models, queue = Models(replies, environment or {}), queue or f"queue-{uuid4()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.Worker", BriskWorker)
        patch.setattr("activities.model_call._beat", partial(_beat, 0.05))
        toolbox = ToolRegistry(tools, ToolContext(WorkerSettings(), sandboxes))
        async with build(client, models, toolbox, WorkerSettings(task_queue=queue), search_attributes=True, store=store):
            yield Desk(client, models, queue, toolbox)
    await models.aclose()


async def _beat(often: float, pulse: heartbeat.Heartbeat, _seconds: float) -> None:
    await _REAL_BEAT(pulse, often)


async def outcome(client: Client, argument: object, *replies: Reply, tools: Sequence[Callable[..., Any]] = ()) -> RunResult:
    """Run one thread to its end."""
    async with serving(client, *replies, tools=tools) as desk:
        return await desk.run(argument)


async def page(thread: Thread, query: str, after: int = 0, limit: int = 1000) -> dict[str, Any]:
    """Return a page as plain JSON."""
    answer: dict[str, Any] = await thread.query(query, args=[after, limit], result_type=dict[str, Any])
    return answer


async def until(thread: Thread, status: str) -> dict[str, Any]:
    """Return the thread's state once it has this status."""
    for _ in range(250):
        state: dict[str, Any] = await thread.query("state", result_type=dict[str, Any])
        if state["status"] == status:
            return state
        await asyncio.sleep(0.02)
    raise AssertionError(f"never {status}")


@dataclass(frozen=True)
class Scheduled:
    """An activity as the history shows it."""

    type: str
    summary: str
    payload: dict[str, Any]
    size: int


async def story(thread: Thread) -> list[Scheduled]:
    """Return the activities that a thread scheduled, in order."""
    return scheduled(await thread.fetch_history())


def scheduled(history: WorkflowHistory) -> list[Scheduled]:
    """Return the activities of a history, in order."""
    found = []
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            told = event.activity_task_scheduled_event_attributes
            payload = told.input.payloads[0].data
            summary = json.loads(event.user_metadata.summary.data)
            found.append(Scheduled(told.activity_type.name, summary, json.loads(payload), len(payload)))
    return found
