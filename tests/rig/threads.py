"""Threads as the tests build them: a request, what the models say, a worker that serves both on the real server, and what came of it."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from typing import Any, Literal
from uuid import uuid4

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowHistory
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker
from temporalio.workflow import ActivityConfig

import worker
from activities.calls import attempts
from activities.providers import Providers
from activities.providers.environment import Environment
from activities.providers.scripted import Script
from activities.tools.base import UNTRIED, ToolContext
from activities.tools.registry import ToolRegistry
from gradeloop.client.client import GradingClient
from gradeloop.contract.evaluation import Event
from gradeloop.contract.messages import Message, ToolCall, Usage
from gradeloop.contract.provider import FailureKind, ModelFault, ModelReply, ModelRequest, Step
from gradeloop.contract.thread import RunResult
from gradeloop.sandbox.choice import SandboxChoice
from gradeloop.settings.worker import WorkerSettings
from gradeloop.store.engine import Store
from workflows import activity_calls, tool_calls
from workflows.batches import grading_batch
from workflows.grading_thread import GradingThreadWorkflow
from workflows.visibility import TenantAttribute

WRITER, JUDGE = "scripted:writer", "scripted:judge"

SECONDS = 240.0
"""How long a test waits for something that should take a moment."""

CANCEL_SECONDS = 0.05
"""How soon a call of a test hears that it is cancelled."""

Role = Literal["generator", "grader"]
Reply = dict[str, Any]
Answer = str | tuple[ToolCall, ...]
Thread = WorkflowHandle[Any, RunResult]


def request(rubric: object = None, *messages: object, **more: Any) -> dict[str, Any]:
    """Return the workflow's argument as a service writes it; one task unless `messages` are given."""
    given = list(messages) or [{"role": "user", "content": "Write a haiku about spring."}]
    judge = {"grader": {"model": JUDGE}, "rubric": rubric} if rubric is not None else {}
    return {"messages": given, "generator": {"model": WRITER}} | judge | more


def start(**changed: Any) -> dict[str, Any]:
    """Return what a thread is started with by a client: two models, one criterion, and a minute to idle."""
    plain: dict[str, Any] = {
        "generator": {"model": WRITER},
        "grader": {"model": JUDGE},
        "rubric": "- it is good",
        "idle_timeout": 60,
    }
    return {name: value for name, value in (plain | changed).items() if value is not ...}


def a_thread() -> str:
    """Return the id of a new thread."""
    return f"turns-{uuid4()}"


async def a_namespace(client: Client) -> Client:
    """Return a client of a new namespace, which has none of our search attributes."""
    namespace, retention = f"older-{uuid4()}", Duration(seconds=86_400)
    request = RegisterNamespaceRequest(namespace=namespace, workflow_execution_retention_period=retention)
    await client.workflow_service.register_namespace(request)
    older = Client(**client.config() | {"namespace": namespace})
    async with asyncio.timeout(SECONDS):
        while True:
            with suppress(RPCError):  # the server has not read its new namespace yet
                await older.start_workflow("Nothing", id="first", task_queue="nobody")
                await older.get_workflow_handle("first").terminate()
                return older
            await asyncio.sleep(0.1)


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
    """Return the row of a criterion, a pass, or a fail with its gap, under the criterion's id."""
    return {name: {"reason": f"looked at {name}", "passed": gap is None, "gap": gap or ""} | more}


def verdict(*rows: Mapping[str, Any], summary: str = "so it is", unjudgeable: str = "") -> dict[str, Any]:
    """Return a grader's answer: the row of `c2` under `k2`, and that of another id under its place among the rows."""
    named = [(name, fields) for row in rows for name, fields in row.items()]
    keyed = {
        f"k{name[1:]}" if re.fullmatch(r"c[1-9][0-9]*", name) else f"k{at}": dict(fields) for at, (name, fields) in enumerate(named, 1)
    }
    return keyed | {"unjudgeable": unjudgeable, "summary": summary}


def grade(iteration: int = 0, *rows: Mapping[str, Any], step: int = 0, **more: Any) -> Reply:
    """Return the grader's verdict at an iteration: `c1` passes unless `rows` say otherwise."""
    return {"role": "grader", "iteration": iteration, "step": step, "verdict": verdict(*(rows or (row("c1"),)), **more)}


def verdict_text(passed: bool = True, *ids: str) -> str:
    """Write the verdict of a grader in which every criterion fares alike."""
    return json.dumps(verdict(*(row(name, None if passed else "more") for name in ids or ("c1",))))


def failing_until(iteration: int) -> Callable[[Step, int], Answer]:
    """Return a grader that fails every draft before that iteration."""
    return lambda step, _: verdict_text(step.iteration >= iteration)


@dataclass
class Gate:
    """A model call that waits: it says that it has begun, and goes on when the gate opens."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def pass_through(self) -> None:
        """Say so, and wait."""
        self.reached.set()
        await self.opened.wait()


class Models(Providers):
    """Models that answer from a script, or by a function for their role; they count their calls, and can wait and fail."""

    def __init__(self, replies: Sequence[Reply] = (), environment: Mapping[str, str] | None = None) -> None:
        super().__init__(Environment.read(environment or {}), Script.model_validate({"replies": replies}))
        self.requests: list[ModelRequest] = []
        self.most_at_once = 0
        """The most calls that were here at the same time."""
        self._here = 0
        self.answers: dict[Role, Callable[[Step, int], Answer]] = {}
        """What answers in the script's place, of the call's address and its number, by role."""
        self._gates: dict[Step, Gate] = {}
        self._role_gates: dict[Role, asyncio.Event] = {}
        self._faults: dict[Role, list[ModelFault]] = {}
        self._changed = asyncio.Event()

    def fail_first(self, role: Role, *, times: int = 1, kind: FailureKind, usage: Usage, raisable: bool = False) -> None:
        """Have the role's next calls fail."""
        self._faults[role] = [ModelFault(kind, "as it was told to", usage=usage, raisable=raisable) for _ in range(times)]

    def gate(self, role: str, iteration: int = 0, step: int = 0, group: int = 0) -> Gate:
        """Have the calls at this address wait from now on."""
        place = {"role": role, "iteration": iteration, "step": step, "group": group}
        return self._gates.setdefault(Step.model_validate(place), Gate())

    def hold(self, *roles: Role) -> None:
        """Have the calls of these roles wait from now on."""
        for role in roles:
            self._role_gates.setdefault(role, asyncio.Event())

    def hold_second(self, role: Role) -> None:
        """Have the second call of a role wait, and those after it."""
        answer = self.answers[role]

        def answer_and_hold(step: Step, number: int) -> Answer:
            if number == 1:
                self.hold(role)
            return answer(step, number)

        self.answers[role] = answer_and_hold

    def release(self, *roles: Role) -> None:
        """Let all calls of these roles pass, by default of all roles."""
        for role in roles or tuple(self._role_gates):
            if gate := self._role_gates.pop(role, None):
                gate.set()

    def requests_of(self, role: Role) -> list[ModelRequest]:
        """Return the calls of a role, in order."""
        return [request for request in self.requests if request.step.role == role]

    def count(self, role: Role) -> int:
        """Return how many calls were begun, and so paid for."""
        return len(self.requests_of(role))

    def steps(self, role: Role) -> list[tuple[int, int]]:
        """Return run and iteration of each call."""
        return [(request.step.run, request.step.iteration) for request in self.requests_of(role)]

    async def called(self, role: Role, count: int = 1) -> None:
        """Wait until so many calls of a role were begun."""
        async with asyncio.timeout(SECONDS):
            while self.count(role) < count:
                self._changed.clear()
                await self._changed.wait()

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer as `answers` or the script says, after the gates."""
        self._here += 1
        self.most_at_once = max(self.most_at_once, self._here)
        try:
            return await self._complete(request)
        finally:
            self._here -= 1

    async def _complete(self, request: ModelRequest) -> ModelReply:
        role: Role = request.step.role
        self.requests.append(request)
        number = self.count(role)
        self._changed.set()
        if role_gate := self._role_gates.get(role):
            await role_gate.wait()
        if gate := self._gates.get(request.step):
            await gate.pass_through()
        if faults := self._faults.get(role):
            raise faults.pop(0)
        if role not in self.answers:
            return await super().complete(request)
        answer = self.answers[role](request.step, number)
        message = Message(role="assistant", content=answer) if isinstance(answer, str) else Message(role="assistant", tool_calls=answer)
        return ModelReply(message, Usage(input=10, output=5, calls=1))


def answering() -> Models:
    """Return models that always answer: the generator with a numbered draft, the grader with a pass."""
    models = Models()
    models.answers = {"generator": lambda _, number: f"draft {number}", "grader": lambda _step, _number: verdict_text()}
    return models


class Served:
    """A worker's task queue, a client of it, its models and its tools."""

    def __init__(self, temporal: Client, task_queue: str, models: Models, tools: ToolRegistry | None = None) -> None:
        self.temporal = temporal
        self.task_queue = task_queue
        self.models = models
        self.tools = tools or ToolRegistry()
        self.client = GradingClient(temporal, task_queue=task_queue)

    def handle(self, thread_id: str) -> WorkflowHandle[Any, Any]:
        """Return Temporal's own handle of a thread."""
        return self.temporal.get_workflow_handle(thread_id)

    async def start(self, argument: object, **options: Any) -> Thread:
        """Start a thread."""
        name = options.pop("id", f"thread-{uuid4()}")
        queue = self.task_queue
        return await self.temporal.start_workflow("GradingThread", argument, id=name, task_queue=queue, result_type=RunResult, **options)

    async def run(self, argument: object) -> RunResult:
        """Start a thread and return its result."""
        return await (await self.start(argument)).result()

    async def refusal(self, argument: object, kind: str = "InvalidRequest") -> str:
        """Start a thread that is refused for good, and return why."""
        return await refusal(await self.start(argument), kind)

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

    async def contents(self, thread_id: str) -> list[str]:
        """Return the contents of all messages, the feedback as its author's name."""
        page = await self.client.messages(thread_id)
        return [message.name or message.content for message in page.items]


@cache
def built_in_tools() -> ToolRegistry:
    """Return the tools of a worker that has none of its own, of which all workers of a run have the same."""
    return ToolRegistry((), ToolContext(WorkerSettings(), UNTRIED))


@asynccontextmanager
async def serving(
    client: Client,
    *replies: Reply,
    models: Models | None = None,
    environment: Mapping[str, str] | None = None,
    task_queue: str = "",
    tools: Sequence[Callable[..., Any]] = (),
    sandboxes: SandboxChoice = UNTRIED,
    store: Store | None = None,
    only: Literal["", "workflows", "activities"] = "",
    quick: bool = True,
    attributes: bool = True,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Run a worker on a queue of its own, the gates of its models open at the end.

    Args:
        client: Of the server.
        replies: What the models say, unless `models` are given.
        models: What it calls; scripted ones by default.
        environment: The variables of the scripted models.
        task_queue: Its queue; a new one by default.
        tools: Its tools, as functions.
        sandboxes: Where its programs run.
        store: Where its results go.
        only: What it serves, if not both.
        attributes: Whether it writes search attributes.
        quick: Whether its calls hear at once that they are cancelled, instead of within seconds.
        settings: Further settings of the worker.
    """
    called, queue = models or Models(replies, environment), task_queue or f"queue-{uuid4()}"
    configured = WorkerSettings(task_queue=queue, **settings)
    plain = not tools and not settings and sandboxes is UNTRIED
    registry = built_in_tools() if plain else ToolRegistry(tools, ToolContext(configured, sandboxes))
    with _quick_calls(only) if quick else nullcontext():
        async with worker.build(client, called, registry, configured, search_attributes=attributes, store=store):
            try:
                yield Served(client, queue, called, registry)
            finally:
                if only != "workflows":
                    called.release()
    if models is None:
        await called.aclose()


OPEN: list[str] = []
"""The parts that the quick workers serve, the newest last."""

HEARTBEAT_SECONDS = attempts.HEARTBEAT_SECONDS


@contextmanager
def _quick_calls(only: str) -> Iterator[None]:
    """Have calls hear at once that they are cancelled while a worker is open; workers end in any order, the last one restores the rest."""
    OPEN.append(only)
    _build_quick_workers()
    try:
        yield
    finally:
        OPEN.remove(only)
        _build_quick_workers()


def _build_quick_workers() -> None:
    worker.Worker = partial(_quick, OPEN[-1]) if OPEN else Worker  # type: ignore[assignment, attr-defined]  # a test's stand-in
    attempts.HEARTBEAT_SECONDS = CANCEL_SECONDS if OPEN else HEARTBEAT_SECONDS


def _quick(only: str, *arguments: Any, **options: Any) -> Worker:
    """Return a worker whose calls hear at once that they are cancelled."""
    left_out = {"workflows", "activities", "plugins"} - {only} if only else set()  # plugins serve both
    options |= {"max_heartbeat_throttle_interval": timedelta(seconds=CANCEL_SECONDS)} | dict.fromkeys(left_out, ())
    return Worker(*arguments, **options)


def gone(options: ActivityConfig) -> ActivityConfig:
    """Return the options of a call whose worker is given up after a second without a heartbeat."""
    return ActivityConfig(**{**options, "heartbeat_timeout": timedelta(seconds=1)})


def fall_silent(patch: pytest.MonkeyPatch) -> None:
    """Have calls send no heartbeats, as those of a worker that is gone: no cancellation reaches them, and the server gives them up."""
    for module in (activity_calls, grading_batch):
        patch.setattr(module, "MODEL_CALL", gone(activity_calls.MODEL_CALL))
    patch.setattr(tool_calls, "TOOL_CALL", gone(activity_calls.TOOL_CALL))
    patch.setattr("activities.calls.attempts._beat", lambda _state, _seconds: None)


@asynccontextmanager
async def at_once(
    client: Client,
    models: Models,
    role: Role,
    happens: Callable[[Served, str], Awaitable[None]],
    *,
    before: Callable[[Served, str], Awaitable[None]] | None = None,
) -> AsyncIterator[tuple[Served, str, RunResult]]:
    """Invoke a thread so that what `happens` and the end of its first call of `role` come in one workflow task; yield its result.

    Args:
        client: The client of the server.
        models: What answers the thread's calls.
        role: The role whose first call waits.
        happens: What is done while no worker serves workflows.
        before: What is done before that, while one does.
    """
    async with serving(client, models=models, only="activities") as calls:
        thread_id, queue = a_thread(), calls.task_queue
        async with serving(client, models=models, task_queue=queue, only="workflows") as served:
            turn = await served.begun(thread_id, role)
            if before is not None:
                await before(served, thread_id)
        await happens(calls, thread_id)
        models.release()
        await ended(client, thread_id)
        async with serving(client, models=models, task_queue=queue, only="workflows") as served:
            yield served, thread_id, await turn


async def outcome(client: Client, argument: object, *replies: Reply, tools: Sequence[Callable[..., Any]] = ()) -> RunResult:
    """Run one thread to its end."""
    async with serving(client, *replies, tools=tools) as served:
        return await served.run(argument)


async def refusal(thread: Thread, kind: str = "InvalidRequest") -> str:
    """Return why the thread was refused."""
    with pytest.raises(WorkflowFailureError) as caught:
        await asyncio.wait_for(thread.result(), SECONDS)
    error = caught.value.cause
    assert isinstance(error, ApplicationError), error
    assert (error.type, error.non_retryable) == (kind, True)
    return error.message


async def page(thread: Thread, query: str, after: int = 0, limit: int = 1000) -> dict[str, Any]:
    """Return a page as plain JSON."""
    answer: dict[str, Any] = await thread.query(query, args=[after, limit], result_type=dict[str, Any])
    return answer


async def until(thread: Thread, status: str) -> dict[str, Any]:
    """Return the thread's state once it has this status."""
    async with asyncio.timeout(SECONDS):
        while True:
            state: dict[str, Any] = await thread.query("state", result_type=dict[str, Any])
            if state["status"] == status:
                return state
            await asyncio.sleep(0.02)


async def ended(client: Client, thread_id: str) -> None:
    """Wait until no call of the thread is under way."""
    handle = client.get_workflow_handle(thread_id)
    async with asyncio.timeout(SECONDS):
        while (await handle.describe()).raw_description.pending_activities:
            await asyncio.sleep(0.02)


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
            activity = event.activity_task_scheduled_event_attributes
            payload = activity.input.payloads[0].data
            summary = json.loads(event.user_metadata.summary.data)
            found.append(Scheduled(activity.activity_type.name, summary, json.loads(payload), len(payload)))
    return found


async def scheduled_types(client: Client, thread_id: str, run_id: str | None = None) -> Counter[str]:
    """Count the activities that a run of a thread's workflow scheduled, by type."""
    return Counter(activity.type for activity in await story(client.get_workflow_handle(thread_id, run_id=run_id)))


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


async def replay(client: Client, thread_id: str) -> None:
    """Replay every run of a thread's chain with the workflow's code as it is, in no sandbox: a worker has none."""
    runner = UnsandboxedWorkflowRunner()
    replayer = Replayer(
        workflows=[GradingThreadWorkflow],
        workflow_runner=runner,
        data_converter=client.data_converter,
        interceptors=[TenantAttribute(registered=True)],
    )
    for run_id in await runs_of(client, thread_id):
        await replayer.replay_workflow(await client.get_workflow_handle(thread_id, run_id=run_id).fetch_history())
