"""A function of one's own inside a loop: what it drafts is graded, and it is called again until an independent judge agrees."""

import asyncio
import functools
import hashlib
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import uuid4

from pydantic import JsonValue, TypeAdapter, validate_call
from pydantic.errors import PydanticUserError

from gradeloop.client.client import GradingClient, Messages, OnEvaluation
from gradeloop.client.watch import DetailedEvent
from gradeloop.contract.evaluation import Evaluation
from gradeloop.contract.messages import FEEDBACK_SOURCE, Message
from gradeloop.contract.model_spec import Budget, ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import InvokeRequest, RunResult, ThreadRequest, parse_request, parse_update
from gradeloop.errors import GradeloopError, InvalidRequest, ThreadNotFound
from gradeloop.generators import Draft, generator
from gradeloop.integrations.standing import Standing, Standings, remote_tool, serve_beside, served_tool
from gradeloop.temporal.connect import Connection, is_dead, wake_worker
from gradeloop.temporal.process import end_all

DRAFTS_AT_ONCE = 100
"""The most drafts of one process at once; a loop has as many calls as its program makes."""

LOST_SECONDS = 60.0
"""Seconds without a heartbeat after which a function's process is lost; a thread of its own sends them, also while the function blocks."""

Tool = str | Mapping[str, JsonValue] | Callable[..., Awaitable[Any]]
"""The name of a worker's tool, the definition of a remote one, or an async function with annotations and a docstring."""


class Loop:
    """A function in a loop: `await poet(messages)` is the graded result, and `poet.sync(messages)` where no event loop runs."""

    __name__: str

    def __init__(
        self, function: Draft, request: ThreadRequest, tools: Sequence[Callable[..., Awaitable[Any]]], options: "_Options"
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._tools, self._request, self._options = function, tools, request, options
        self._activities(None)
        self._standings = Standings(request, options.connection, self._serve)

    async def __call__(
        self, messages: Messages = (), *, thread_id: str | None = None, on_evaluation: OnEvaluation | None = None
    ) -> RunResult:
        """Call the function until its draft passes, and return the result, as `GradingClient.invoke` does.

        Cancelling the caller interrupts the run. The next call of the same thread with the same messages resumes it, from another process,
        too; with other messages, or once it has ended, a call is a further turn of the conversation.

        Args:
            messages: A text, or messages. Without any, an interrupted run is resumed, or the last draft is graded again.
            thread_id: The conversation; a new one by default.
            on_evaluation: Called with each evaluation, in the place of the loop's own.

        Raises:
            InvalidRequest: The turn is refused.
            ServerUnreachable: Nobody answers.
        """
        standing, thread_id = await self._standings.get(), thread_id or self._options.thread_id or f"{self.__name__}-{uuid4().hex[:12]}"
        turn = asyncio.ensure_future(self._turn(standing, thread_id, messages, on_evaluation or self._options.on_evaluation))
        try:
            # The function is served by this very process. If that serving fails, the turn would wait for a draft
            # that nobody writes; so both are waited for, and the failure of the serving is raised here.
            await asyncio.wait({turn, standing.task}, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():
                standing.task.result()
            return await turn
        except asyncio.CancelledError:
            await end_all([turn])
            with suppress(GradeloopError):
                await standing.client.interrupt(thread_id)
            raise
        finally:
            await end_all([turn])

    def sync(self, messages: Messages = (), *, thread_id: str | None = None, on_evaluation: OnEvaluation | None = None) -> RunResult:
        """Wait for a call, in a program without an event loop; Ctrl-C interrupts the run.

        Raises:
            InvalidRequest: An event loop runs in this thread, or the turn is refused.
            ServerUnreachable: Nobody answers.
        """
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise InvalidRequest(f"an event loop runs here; write `await {self.__name__}(...)`")
        return asyncio.run(self(messages, thread_id=thread_id, on_evaluation=on_evaluation))

    async def events(self, messages: Messages = (), *, thread_id: str | None = None, drafts: bool = False) -> AsyncIterator[DetailedEvent]:
        """Yield the events of a call as they happen; to leave the iteration early interrupts the run.

        Args:
            messages: A text, or messages, as in a call.
            thread_id: The conversation; a new one by default.
            drafts: Whether events `drafting` say about every second how far a draft has come that the function yields in pieces.

        Raises:
            InvalidRequest: The turn is refused.
            ServerUnreachable: Nobody answers.
        """
        client = (await self._standings.get()).client
        thread_id, seen = thread_id or self._options.thread_id or f"{self.__name__}-{uuid4().hex[:12]}", 0
        with suppress(ThreadNotFound):
            seen = (await client.events(thread_id, after=10**9)).total
        turn = asyncio.ensure_future(self(messages, thread_id=thread_id))
        try:
            while True:
                # Whether the turn has ended is asked before its events are read, so that one more reading follows
                # its end: asked afterwards, the events between the last reading and the end would be lost.
                ended = turn.done()
                with suppress(ThreadNotFound):
                    async with aclosing(client.watch(thread_id, after=seen, details=True, until="turn", drafts=drafts)) as watched:
                        async for event in watched:
                            seen = event.seq
                            yield event
                if ended or (turn.done() and turn.exception() is not None):
                    break
                await asyncio.wait({turn}, timeout=_LOOK_SECONDS)
            await turn
        finally:
            await end_all([turn])

    async def close(self) -> None:
        """End what serves the calls of this event loop, which its end does, too; the next call begins anew."""
        await self._standings.close()

    async def _turn(self, standing: Standing, thread_id: str, messages: Messages, on_evaluation: OnEvaluation | None) -> RunResult:
        """Do a turn, or go on with the same one that was interrupted, or whose caller has gone."""
        client, sent = standing.client, [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        given = parse_update(InvokeRequest, {"messages": sent}).messages
        key, resumes = await self._place(client, thread_id, given)
        await wake_worker(standing.queue, standing.connection)
        if resumes:
            return await client.resume(thread_id)
        return await client.invoke(
            thread_id,
            given,
            rubric=self._request.rubric,
            max_iterations=self._request.max_iterations,
            key=key,
            start=self._request,
            on_evaluation=functools.partial(_tell, self.__name__, on_evaluation),
        )

    # The key makes an equal call of the open turn that turn itself, and every other call a new one: it is the
    # hash of the messages with the place where they begin. Of an open turn that is where its own messages
    # stand, so a program that was restarted finds the turn by sending them once more; of an idle thread it is
    # the end, so the same text sent twice is two turns.
    async def _place(self, client: GradingClient, thread_id: str, given: Sequence[Message]) -> tuple[str | None, bool]:
        """Return the key of a turn, which is that of the thread's open turn if it is the same, and whether that one is to be resumed."""
        if not given:
            return None, False
        total, state, known = 0, None, list[Message]()
        with suppress(ThreadNotFound):
            state, page = await client.state(thread_id), await client.messages(thread_id)
            known = list(page.items)
            while page.next is not None:
                page = await client.messages(thread_id, after=page.next)
                known += page.items
            total = len(known)
        if state is not None and state.status != "idle":
            last = max((at for at, one in enumerate(known) if one.role == "user" and one.source != FEEDBACK_SOURCE), default=-1)
            begins = last - len(given) + 1
            if begins >= 0 and [_said(one) for one in known[begins : last + 1]] == [_said(one) for one in given]:
                if state.status == "interrupted" or await _lost(client, thread_id):
                    return None, True
                total = begins
        said = "\n".join(one.model_dump_json() for one in given)
        return f"loop-{total}-{hashlib.sha256(said.encode()).hexdigest()[:16]}", False

    async def _serve(self, connection: Connection, callers: asyncio.AbstractEventLoop) -> None:
        await serve_beside(connection, self._request.generator.task_queue or "", self._activities(callers), at_once=DRAFTS_AT_ONCE)

    def _activities(self, callers: asyncio.AbstractEventLoop | None) -> list[Callable[..., Any]]:
        drafting = generator(self._function, name=self._request.generator.activity or "", loop=callers)
        return [drafting, *(_served_tool(tool, callers) for tool in self._tools)]


_LOOK_SECONDS = 0.1
"""The pause before a thread that does not exist yet is looked at again."""


class _Options(NamedTuple):
    """Options of a loop beside its thread's request."""

    thread_id: str | None
    on_evaluation: OnEvaluation | None
    connection: Connection | None


def loop(  # noqa: PLR0913 - one parameter a setting
    *,
    rubric: Rubric | str | Mapping[str, Any],
    grader: ModelSpec | str | Mapping[str, Any] | None = None,
    system_prompt: str | None = None,
    tools: Sequence[Tool] = (),
    max_iterations: int = 3,
    budget: Budget | Mapping[str, Any] | None = None,
    thread_id: str | None = None,
    on_evaluation: OnEvaluation | None = None,
    connection: Connection | None = None,
    task_queue: str | None = None,
) -> Callable[[Draft], Loop]:
    r"""Put a loop around an async function of the conversation: it drafts, a judge grades, and it drafts again.

    The server is that of Temporal's environment or profile, else the embedded one, which the first call starts. The function is served on
    a queue of its own by the process that calls it.

    Args:
        rubric: The criteria, as text or object.
        grader: The model that judges; by default the first of a table for which a key is set.
        system_prompt: Grading instructions that replace gradeloop's; the trust boundary and the form of the answer stay.
        tools: The evidence that the grader may ask for: names of the worker's tools, remote ones, or async functions of this program.
        max_iterations: The most drafts of a call.
        budget: The most that a thread may spend on grading.
        thread_id: The conversation of all calls that name none.
        on_evaluation: Called with each evaluation.
        connection: The server, where it is not to be found.
        task_queue: The queue of the function, by default of its file and name: processes that serve one must have the same function.

    Raises:
        InvalidRequest: A setting is refused, or the function is not async.

    Example:
        ```python
        @gradeloop.loop(rubric="- three lines\n- 5-7-5 syllables", grader="openai:gpt-5-mini")
        async def poet(messages):
            return await my_agent.run(messages)

        result = await poet("Write a haiku about spring.")
        ```
    """
    judge = {"system_prompt": system_prompt, "tools": tuple(tools)}
    fields: dict[str, Any] = {
        "rubric": rubric,
        "grader": {"model": grader} | {key: value for key, value in judge.items() if value},
        "max_iterations": max_iterations,
        "budget": budget,
    }
    _request(fields, "draft", "draft")

    def around(function: Draft) -> Loop:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        request = _request(fields, name[:100], task_queue or _queue_of(function, name))
        return Loop(function, request, [tool for tool in tools if callable(tool)], _Options(thread_id, on_evaluation, connection))

    return around


def _request(fields: dict[str, Any], name: str, queue: str) -> ThreadRequest:
    """Return the request of a loop's threads; raise InvalidRequest where a field is refused, or the rubric is empty."""
    grader = {key: [_offered(tool, queue) for tool in value] if key == "tools" else value for key, value in fields["grader"].items()}
    drafts = {"activity": name, "task_queue": queue, "heartbeat_timeout": LOST_SECONDS}
    given = fields | {"grader": grader, "generator": drafts}
    made = parse_request({key: value for key, value in given.items() if value is not None})
    if made.rubric is None or not made.rubric.criteria:
        raise InvalidRequest("rubric is empty; write what must hold, a line for each criterion")
    return made


# A program that was killed leaves its turn waiting for a draft on this queue. Only if the restarted program
# serves the same queue can it go on with the turn; a random name would strand it.
def _queue_of(function: Draft, name: str) -> str:
    """Return a function's own queue, the same in every process that runs the same file; of a notebook's, the folder counts."""
    file = Path(getattr(getattr(function, "__code__", None), "co_filename", ""))
    place = f"{file.resolve() if file.is_file() else Path.cwd()}:{name}"
    return f"loop-{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def _offered(tool: Tool, queue: str) -> JsonValue:
    """Return a tool as a request has it, a function as a remote tool of this process; raise InvalidRequest for an untyped parameter."""
    if not callable(tool):
        return tool if isinstance(tool, str) else dict(tool)
    name = getattr(tool, "__name__", type(tool).__name__)
    if bare := next((one.name for one in inspect.signature(tool).parameters.values() if one.annotation is one.empty), None):
        raise InvalidRequest(f"the tool {name!r}: parameter {bare!r} needs a type annotation")
    if not inspect.iscoroutinefunction(tool):
        raise InvalidRequest(f"the tool {name!r} is not an async function; write `async def`, and call what blocks by asyncio.to_thread")
    try:
        schema = TypeAdapter[Any](cast("Any", tool)).json_schema()
    except PydanticUserError as error:
        raise InvalidRequest(f"the tool {name!r} has a parameter without a JSON Schema: {error.message}") from None
    return remote_tool(name, inspect.getdoc(tool) or name, schema, queue)


def _served_tool(
    tool: Callable[..., Awaitable[Any]], callers: asyncio.AbstractEventLoop | None
) -> Callable[[Mapping[str, Any]], Awaitable[Any]]:
    """Return a tool of this program as an activity."""
    checked = validate_call(tool)

    async def call(arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever the function returns
        return await checked(**arguments)

    return served_tool(getattr(tool, "__name__", type(tool).__name__), call, callers)


async def _lost(client: GradingClient, thread_id: str) -> bool:
    """Interrupt a thread whose draft was being written by a process of this machine that has ended; return whether it was one."""
    found = await client.temporal.get_workflow_handle(thread_id).describe()
    if not any(is_dead(call.last_worker_identity) for call in found.raw_description.pending_activities):
        return False
    await client.interrupt(thread_id)
    while True:
        if (await client.state(thread_id)).status != "running":
            return True
        await asyncio.sleep(_LOOK_SECONDS)


def _said(message: Message) -> tuple[str, str]:
    return message.role, message.content


async def _tell(name: str, callback: OnEvaluation | None, evaluation: Evaluation) -> None:
    """Show a terminal a line of an evaluation, and call back."""
    if sys.stderr.isatty():
        passed = sum(bool(row.passed) for row in evaluation.criteria)
        sys.stderr.write(
            f"{name}: draft {evaluation.iteration}: {evaluation.result}, {passed} of {len(evaluation.criteria)} criteria pass\n"
        )
    answer = callback(evaluation) if callback is not None else None
    if inspect.isawaitable(answer):
        await answer
