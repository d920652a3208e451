"""The client of threads: start, invoke, watch, decide and read them on one Temporal namespace."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, overload
from uuid import uuid4

from pydantic import JsonValue
from temporalio.client import Client

from gradeloop.client.call_waits import call_waits
from gradeloop.client.listing import ListedBatch, ListedThread, Since, batches, resolved, threads
from gradeloop.client.thread import OWNER, InvokeCall, ThreadHandle, fork_request
from gradeloop.client.waiting import WaitingThread, waiting_threads
from gradeloop.client.watch import PATIENCE_SECONDS, DetailedEvent, Until, watch_events, with_details
from gradeloop.contract.base import Page
from gradeloop.contract.evaluation import Evaluation, Event
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import Budget, ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import (
    TASK_QUEUE,
    WORKFLOW,
    ApproveRequest,
    DecideRequest,
    DenyRequest,
    GivenPrompt,
    Interruption,
    InvokeRequest,
    OverrideRequest,
    ResumeRequest,
    RunResult,
    SuppliedRubric,
    ThreadRequest,
    ThreadState,
    parse_request,
    parse_update,
    refuse_oversize,
)
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, ThreadNotFound
from gradeloop.grading.templates import fill
from gradeloop.settings.worker import with_tenant
from gradeloop.temporal.connect import Connection, connect, find, wake_worker
from gradeloop.temporal.process import beside, end_all
from gradeloop.temporal.runtime import close_client

CALLBACK_SECONDS = 0.2
"""The pause between two queries for the evaluations that a callback gets."""

OnEvaluation = Callable[[Evaluation], Awaitable[None] | None]
Messages = str | Sequence[Message | Mapping[str, Any]]

logger = logging.getLogger("gradeloop")


class GradingClient:
    """Threads on one Temporal namespace: `async with GradingClient.connect() as client: print(await client.state("haiku-1"))`.

    A client that connected itself closes its connection too; one that was given a Temporal client leaves that open.
    """

    def __init__(self, client: Client, *, task_queue: str = TASK_QUEUE) -> None:
        self._temporal: Client | None = client
        self._task_queue = task_queue
        self._watching = set[asyncio.Task[None]]()
        self._connected_itself = False

    @property
    def temporal(self) -> Client:
        """The Temporal client.

        Raises:
            InvalidRequest: This client was closed.
        """
        if self._temporal is None:
            raise InvalidRequest("this client is closed; connect another one with GradingClient.connect()")
        return self._temporal

    @classmethod
    def connect(cls, connection: Connection | None = None, *, task_queue: str = TASK_QUEUE) -> "Connecting":
        """Connect to the server of Temporal's environment or profile, else to the embedded one.

        The answer is awaited, `client = await GradingClient.connect()`, or entered, `async with GradingClient.connect() as client:`.

        Raises:
            ServerUnreachable: Nobody answers.
        """
        return Connecting(connection, task_queue)

    async def close(self, thread_id: None = None) -> None:
        """Close this client: watchers see the end of their thread, calls in flight end, and further ones are refused. Threads continue.

        Raises:
            InvalidRequest: A thread's id is given, which `close_thread` takes.
        """
        if thread_id is not None:
            raise InvalidRequest(f"close() closes this client; to close the thread {thread_id!r}, call close_thread({thread_id!r})")
        temporal, self._temporal = self._temporal, None
        await end_all(self._watching)
        if temporal is not None and self._connected_itself:
            await close_client(temporal)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def start(self, request: ThreadRequest | Mapping[str, Any], *, thread_id: str | None = None, owner: str | None = None) -> str:
        """Start a thread and return its id; the server keeps its owner's name for `owner_of`.

        Raises:
            InvalidRequest: The request is refused, or a thread of that id exists.
        """
        request = request if isinstance(request, ThreadRequest) else parse_request(dict(request))
        request = request.model_copy(update={"priority": with_tenant(request.priority)})
        refuse_oversize(request.messages)
        fill(request.rubric, request.vars)  # a variable that is not there is refused here, too
        if not request.messages and not request.idle_timeout and request.checkpoint is None:
            raise InvalidRequest("messages is empty; give the task as one message of role 'user'")
        handle = self._thread(thread_id or f"thread-{uuid4()}")
        await handle.start(request, owner)
        return handle.thread_id

    async def invoke(  # noqa: PLR0913 - one parameter a setting
        self,
        thread_id: str,
        messages: Messages = (),
        *,
        rubric: Rubric | str | Mapping[str, Any] | None = None,
        max_iterations: int | None = None,
        budget: Budget | Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        key: str | None = None,
        start: ThreadRequest | Mapping[str, Any] | None = None,
        on_evaluation: OnEvaluation | None = None,
    ) -> RunResult:
        """Do one turn of a thread and return its result, like calling a checkpointed agent.

        A thread that was closed, cancelled or terminated goes on from its checkpoint. A lost connection, a new run of the
        workflow and a restart of worker or server are waited through.

        Args:
            thread_id: The thread's id.
            messages: A text, or messages. Without any, an interrupted run is resumed, or the last draft is graded again.
            rubric: A new rubric; the sticky one stays by default, `""` clears it.
            max_iterations: The most iterations of the run that this turn opens.
            budget: The thread's budget from now on; it is unchanged by default.
            variables: The values of `{{ name }}` in rubrics from now on; the thread's own `vars` by default.
            key: Makes the call idempotent: the same key again attaches to the turn, or returns its result.
            start: The request that starts the thread where there is none of that id; its messages must be empty.
            on_evaluation: Called once with a copy of each evaluation of this turn; what it raises is logged and has no effect.

        Raises:
            InvalidRequest: The turn is refused.
            ThreadNotFound: There is no such thread, and no `start`.
        """
        sent = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        settings = {"rubric": rubric, "max_iterations": max_iterations, "budget": budget, "vars": variables, "key": key}
        turn = parse_update(InvokeRequest, {"messages": sent} | {name: value for name, value in settings.items() if value is not None})
        request = parse_request(dict(start)) if isinstance(start, Mapping) else start
        request = request and request.model_copy(update={"priority": with_tenant(request.priority)})
        if request is not None:
            fill(request.rubric, request.vars)
        handle = self._thread(thread_id)
        work = handle.invoke(InvokeCall(turn, request, named=key is not None))
        return await (work if on_evaluation is None else _with_callbacks(self, thread_id, on_evaluation, work))

    async def resume(
        self,
        thread_id: str,
        *,
        budget: Budget | Mapping[str, Any] | None = None,
        model: ModelSpec | Mapping[str, Any] | str | None = None,
        grader: ModelSpec | Mapping[str, Any] | str | None = None,
    ) -> RunResult:
        """Resume the interrupted run, even of a closed thread, and return its result.

        Args:
            thread_id: The thread's id.
            budget: The thread's budget from now on; a run that its budget stopped needs a larger one.
            model: The model that drafts from now on; the thread's own by default.
            grader: The model that judges from now on; the thread's own by default.

        Raises:
            InvalidRequest: Nothing is interrupted in this thread, its budget is used up, or it has no model to replace.
        """
        return await self._thread(thread_id).resume(parse_update(ResumeRequest, {"budget": budget, "model": model, "grader": grader}))

    async def fork(  # noqa: PLR0913 - one parameter a setting
        self,
        thread_id: str,
        iteration: int | None = None,
        *,
        grading_run_id: str | None = None,
        fork_id: str | None = None,
        rubric: Rubric | str | Mapping[str, Any] | None = None,
        model: ModelSpec | Mapping[str, Any] | str | None = None,
        grader: ModelSpec | Mapping[str, Any] | str | None = None,
        system_prompt: str | None = None,
        max_iterations: int | None = None,
    ) -> str:
        """Start a new thread from an iteration of this one, which stays as it is, and return the new thread's id.

        With the same rubric and grader, the fork gives the generator the feedback that the draft got. Otherwise, or where the run ended
        with that draft, it judges the draft anew. What is not given is as in the old thread, which may be closed.

        Args:
            thread_id: The old thread's id.
            iteration: The iteration of the draft, from 0, from which the fork counts on; the last one by default.
            grading_run_id: The run of the iteration; the last one by default.
            fork_id: The new thread's id; made up by default.
            rubric: The rubric that judges the fork's drafts.
            model: The model that drafts.
            grader: The model that judges.
            system_prompt: The generator's system prompt.
            max_iterations: The most iterations, those before the fork included.

        Raises:
            InvalidRequest: There is no such iteration, or the thread has no model to replace.
        """
        given = parse_update(ResumeRequest, {"model": model, "grader": grader})
        thread: Any = (await self.checkpoint(thread_id))["thread"]
        places = [(one["grading_run_id"], one["iteration"]) for one in thread["evaluations"]]
        own = {number: at for at, (run_id, number) in enumerate(places) if run_id == (grading_run_id or places[-1][0])}
        iteration = max(own, default=None) if iteration is None else iteration
        if iteration not in own:
            known = f"it has {min(own) + 1} to {max(own) + 1}" if own else "nothing was judged in it"
            raise InvalidRequest(f"{thread_id}: the run has no draft {'' if iteration is None else iteration + 1}; {known}")
        checkpoint, settings = await self.checkpoint(thread_id, own[iteration]), {"rubric": rubric, "max_iterations": max_iterations}
        request = fork_request(checkpoint, given, system_prompt, settings)
        fork = ThreadHandle(self.temporal, fork_id or f"{thread_id}-fork-{uuid4().hex[:8]}", await self.task_queue_of(thread_id))
        await fork.start(request, await self.owner_of(thread_id))
        return fork.thread_id

    async def forks(self, thread_id: str) -> tuple[str, ...]:
        """Return the ids of a thread's forks, the newest first; none where the namespace has no search attributes."""
        with contextlib.suppress(ServerUnreachable):
            return tuple([fork.thread_id async for fork in threads(self.temporal, fork_of=thread_id, limit=100)])
        return ()

    async def result(self, thread_id: str) -> RunResult:
        """Wait for the thread to complete and return the result of its last turn.

        Raises:
            InvalidRequest: The worker refused the thread.
            ThreadClosed: It was cancelled, terminated or timed out.
        """
        return await self._thread(thread_id).result()

    async def supply_rubric(self, thread_id: str, rubric: Rubric | str | Mapping[str, Any]) -> SuppliedRubric | None:
        """Give the thread a new rubric, also in the middle of a run, and return which one stands and which run it is about.

        Where no worker answers, a signal with the rubric waits for one, and the answer is None.

        Raises:
            InvalidRequest: The rubric is refused.
            ThreadClosed: The thread is closed.
        """
        read = parse_update(InvokeRequest, {"rubric": rubric}).rubric
        return await self._thread(thread_id).steer("supply_rubric", SuppliedRubric, read)

    async def decide(
        self,
        thread_id: str,
        criterion: str,
        passed: bool,
        *,
        by: str,
        gap: str | None = None,
        grading_run_id: str | None = None,
        iteration: int | None = None,
    ) -> None:
        """Pass or fail a criterion that waits for a person; after the last one the run continues.

        Raises:
            InvalidRequest: No such criterion waits (any more), or a fail has no gap.
        """
        if grading_run_id is None or iteration is None:
            waiting = (await self.state(thread_id)).waiting_for
            if waiting is None:
                raise InvalidRequest(f"{thread_id}: nothing waits for a person in this thread")
            grading_run_id, iteration = waiting.grading_run_id, waiting.iteration
        fields = {"grading_run_id": grading_run_id, "iteration": iteration, "criterion": criterion, "passed": passed, "gap": gap, "by": by}
        await self._thread(thread_id).decide(parse_update(DecideRequest, fields))

    async def approve(self, thread_id: str, call: str | None = None, *, by: str) -> None:
        """Approve a tool call that waits for a person, by its id in `waiting_for`, or the only one; after the last one the run continues.

        Raises:
            InvalidRequest: No such call waits (any more).
        """
        call = call or await self._thread(thread_id).only_call()
        await self._thread(thread_id).approve(parse_update(ApproveRequest, {"call": call, "by": by}))

    async def deny(self, thread_id: str, call: str | None = None, *, why: str, by: str) -> None:
        """Deny a tool call that waits for a person, by its id or the only one; the model that made it gets the name and the reason.

        Raises:
            InvalidRequest: No such call waits (any more).
        """
        call = call or await self._thread(thread_id).only_call()
        await self._thread(thread_id).deny(parse_update(DenyRequest, {"call": call, "why": why, "by": by}))

    async def override(
        self,
        thread_id: str,
        criterion: str,
        passed: bool,
        *,
        why: str,
        by: str,
        grading_run_id: str | None = None,
        iteration: int | None = None,
    ) -> Evaluation:
        """Save a person's verdict beside the grader's, in the last evaluation by default, and return the evaluation.

        A closed thread is started from its checkpoint for it, and closed again.

        Raises:
            InvalidRequest: There is no such verdict.
        """
        if grading_run_id is None or iteration is None:
            total = (await self.evaluations(thread_id, after=10**9)).total
            last = (await self.evaluations(thread_id, after=max(total - 1, 0))).items
            if not last:
                raise InvalidRequest(f"{thread_id}: nothing was judged in this thread")
            grading_run_id, iteration = last[0].grading_run_id, last[0].iteration
        fields = {"grading_run_id": grading_run_id, "iteration": iteration, "criterion": criterion, "passed": passed, "why": why, "by": by}
        return await self._thread(thread_id).override(parse_update(OverrideRequest, fields))

    async def interrupt(self, thread_id: str) -> Interruption | None:
        """Stop the calls in flight, and return what was stopped once it has; the run can be resumed.

        Where no worker answers, a signal waits for one, and the answer is None.

        Raises:
            ThreadClosed: The thread is closed.
        """
        return await self._thread(thread_id).steer("interrupt", Interruption)

    async def close_thread(self, thread_id: str) -> None:
        """Close the thread: it refuses new turns, serves the queued ones, and completes."""
        await self._thread(thread_id).signal("close")

    async def cancel(self, thread_id: str) -> None:
        """Cancel the thread's workflow: the calls in flight stop, and its checkpoint stays readable."""
        await self._thread(thread_id).cancel()

    async def task_queue_of(self, thread_id: str) -> str:
        """Return the task queue on which the thread is served; raise ThreadNotFound where the id is that of a batch, say."""
        found = await self._thread(thread_id).describe()
        if found.workflow_type != WORKFLOW:
            raise ThreadNotFound(f"{thread_id!r} is not a thread but a workflow of the type {found.workflow_type}")
        return found.task_queue

    async def owner_of(self, thread_id: str) -> str | None:
        """Return the owner that the thread was started with; None where it has none."""
        owner = await (await self._thread(thread_id).describe()).memo_value(OWNER, None)
        return owner if isinstance(owner, str) else None

    async def last_result(self, thread_id: str) -> RunResult | None:
        """Return the result of the thread's last turn, also of an open thread; None where none has ended."""
        answer = await self._thread(thread_id).query("result")
        return RunResult.model_validate(answer) if answer else None

    @overload
    def watch(
        self, thread_id: str, *, after: int = 0, details: Literal[True], until: Until = ..., patience: float = ..., drafts: bool = False
    ) -> AsyncGenerator[DetailedEvent]: ...

    @overload
    def watch(
        self, thread_id: str, *, after: int = 0, details: bool = False, until: Until = ..., patience: float = ..., drafts: bool = False
    ) -> AsyncGenerator[Event]: ...

    async def watch(
        self,
        thread_id: str,
        *,
        after: int = 0,
        details: bool = False,
        until: Until = "closed",
        patience: float = PATIENCE_SECONDS,
        drafts: bool = False,
    ) -> AsyncGenerator[Event]:
        """Yield the thread's events with a `seq` above `after`, once and in order.

        A watcher waits at the server for the thread's history to grow, and asks the thread's worker only then.

        Args:
            thread_id: The thread's id.
            after: The last `seq` that is known already.
            details: Whether each event comes with its message or evaluation, as a `DetailedEvent`.
            until: `closed` watches until the thread closes; `turn` until no turn runs or waits for its place, also where a person is
                asked, and at least one event was yielded.
            patience: Seconds for which a server or worker may be gone.
            drafts: Whether events `drafting` say about every second how far a draft has come, where its provider streams. Pieces may be
                lost, and the worker is asked as often; the draft is the message that follows.
        """
        thread, watching = self._thread(thread_id), self._watching
        watched = watch_events(
            thread, after=after, until=until, patience=patience, watching=watching, is_over=lambda: self._temporal is None, drafts=drafts
        )
        async with contextlib.aclosing(watched) as pages:
            async for page in pages:
                for event in await with_details(thread, page) if details else page:
                    yield event

    def threads(
        self, *, status: str | None = None, since: Since = None, tenant: str | None = None, limit: int = 100
    ) -> AsyncIterator[ListedThread]:
        """Yield the threads of the namespace, the newest first.

        Args:
            status: A status, to list only its threads.
            since: The earliest start: a time, or how long ago.
            tenant: A tenant, to list only its threads.
            limit: The most threads to yield.

        Raises:
            InvalidRequest: There is no such status.
            ServerUnreachable: The server does not answer.
        """
        return threads(self.temporal, status=status, since=since, tenant=tenant, limit=limit)

    def batches(self, *, since: Since = None, limit: int = 100) -> AsyncIterator[ListedBatch]:
        """Yield the batches of the namespace, the newest first.

        Args:
            since: The earliest start: a time, or how long ago.
            limit: The most batches to yield.

        Raises:
            ServerUnreachable: The server does not answer.
        """
        return batches(self.temporal, since=since, limit=limit)

    async def waiting(self, *, limit: int = 100) -> list[WaitingThread]:
        """Return the threads that wait for a person, with what they ask, those that wait longest first.

        A thread whose worker does not answer is among them, with its `problem` in the place of what it asks.

        Args:
            limit: The most threads to return.

        Raises:
            ServerUnreachable: The server does not answer.
        """
        return await waiting_threads(self.temporal, limit=limit)

    async def state(self, thread_id: str) -> ThreadState:
        """Return the thread's state: status, criteria, open calls, and what its model call waits for."""
        thread = self._thread(thread_id)
        state = ThreadState.model_validate(await thread.query("state"))
        if state.status != "running":
            return state
        waits = await call_waits(self.temporal, await thread.describe())
        return state.model_copy(update={"call_wait": waits[0].text, "draft": waits[0].draft or None}) if waits else state

    async def events(self, thread_id: str, *, after: int = 0, limit: int = 1000) -> Page[Event]:
        """Return a page of the events with a `seq` above `after`."""
        return Page[Event].model_validate(await self._thread(thread_id).query("events", after, limit))

    async def evaluations(self, thread_id: str, *, after: int = 0, limit: int = 1000) -> Page[Evaluation]:
        """Return a page of the evaluations from index `after`."""
        return Page[Evaluation].model_validate(await self._thread(thread_id).query("evaluations", after, limit))

    async def messages(self, thread_id: str, *, after: int = 0, limit: int = 1000) -> Page[Message]:
        """Return a page of the messages from index `after`."""
        return Page[Message].model_validate(await self._thread(thread_id).query("messages", after, limit))

    async def prompt(self, thread_id: str, evaluation: int, *, group: int = 0) -> GivenPrompt | None:
        """Return the prompt of an evaluation's grader, by the evaluation's index; None where its rubric has expired."""
        answer = await self._thread(thread_id).query("prompt", evaluation, group)
        return GivenPrompt.model_validate(answer) if answer else None

    async def checkpoint(self, thread_id: str, evaluation: int | None = None) -> dict[str, JsonValue]:
        """Return all that a new start needs to continue the thread, on another server too, or to fork it off at an evaluation's index."""
        return await self._thread(thread_id).query("checkpoint", *(() if evaluation is None else (evaluation,)))

    def _thread(self, thread_id: str) -> ThreadHandle:
        return ThreadHandle(self.temporal, thread_id, self._task_queue)


class Connecting:
    """A client that connects where it is awaited or entered."""

    def __init__(self, connection: Connection | None, task_queue: str) -> None:
        self._connection = connection
        self._task_queue = task_queue
        self._client: GradingClient | None = None

    def __await__(self) -> Generator[Any, None, GradingClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> GradingClient:
        self._client = await self
        return self._client

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> GradingClient:
        client = GradingClient(await connect(self._connection or await find()), task_queue=self._task_queue)
        client._connected_itself = True  # noqa: SLF001 - this class is the other half of `GradingClient.connect`
        return client


async def open_thread(thread_id: str, *, fresh: bool = False) -> tuple[GradingClient, str, Connection]:
    """Return a client, the thread's id (`latest` resolved), and the connection; its worker serves, its files as they are now if `fresh`."""
    connection = await find()
    client = await GradingClient.connect(connection)
    thread_id = await resolved(client.temporal, thread_id)
    await wake_worker(await client.task_queue_of(thread_id), connection, fresh=fresh)
    return client, thread_id, connection


async def _with_callbacks(client: GradingClient, thread_id: str, callback: OnEvaluation, turn: Coroutine[Any, Any, RunResult]) -> RunResult:
    """Wait for a turn, and call back once for every evaluation that the thread gains meanwhile, for all of them before this returns."""
    reported: set[tuple[str, int]] = set()

    async def report(evaluation: Evaluation) -> None:
        place = (evaluation.grading_run_id, evaluation.iteration)
        if place in reported:
            return
        reported.add(place)
        try:
            answer = callback(evaluation.model_copy(deep=True))
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            logger.exception("on_evaluation raised for iteration %d of %s", evaluation.iteration, thread_id)

    async def follow(after: int) -> None:
        while True:
            await asyncio.sleep(CALLBACK_SECONDS)
            with contextlib.suppress(GradeloopError):
                page = await client.evaluations(thread_id, after=after)
                after += len(page.items)
                for evaluation in page.items:
                    await asyncio.shield(report(evaluation))

    # Evaluations come in two ways, by reading on while the turn runs and with its result. `reported` keeps each
    # from being told twice. A callback that has begun is shielded, since the end of the turn cancels the reading.
    known = 0
    with contextlib.suppress(GradeloopError):
        known = (await client.evaluations(thread_id, after=10**9)).total
    async with beside(follow(known)):
        result = await turn
    for evaluation in result.evaluations:
        await report(evaluation)
    return result
