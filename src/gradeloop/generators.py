"""Serves any async function as the generator of threads: an agent of any framework, called by a worker of its own."""

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from pydantic import JsonValue, TypeAdapter, ValidationError
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from gradeloop.contract.base import Bounded
from gradeloop.contract.messages import MAX_MESSAGES, Message
from gradeloop.contract.provider import DRAFT_CHARACTERS, CallProgress
from gradeloop.errors import InvalidRequest, explain
from gradeloop.temporal.connect import Connection, connect, find
from gradeloop.temporal.runtime import close_client

NAME = "generate"
"""The type of the activity, unless it is named otherwise."""

HEARTBEAT_SECONDS = 1.0
"""The pause between two heartbeats, which bring the news that a draft is not wanted any more."""

STOP_SECONDS = 30.0
"""Seconds that drafts in flight have once the worker shuts down."""

ChatMessage = dict[str, Any]
"""A message as `{"role": ..., "content": ...}`, with `name`, `tool_calls` and `tool_call_id` where it has them."""

Drafted = str | Sequence[Message | Mapping[str, JsonValue]]
Draft = Callable[[list[ChatMessage]], Awaitable[Drafted] | AsyncIterable[str]]
"""An async function of the conversation, which returns a text or the messages to add; or one that yields its text in pieces."""

T = TypeVar("T")

logger = logging.getLogger("gradeloop")

_DRAFTED = TypeAdapter(Annotated[list[Message], Bounded(MAX_MESSAGES)])
_LEFT_OUT = {"source", "vendor", "model", "kind", "about"}


async def serve(
    function: Draft, queue: str, *, name: str = NAME, connection: Connection | None = None, at_once: int = 10, quiet: bool = False
) -> None:
    """Serve a function as the activity of a thread's generator until this is cancelled; drafts in flight then have 30 seconds.

    A thread names it with `"generator": {"activity": "generate", "task_queue": QUEUE}`.

    Args:
        function: Takes the conversation and returns the next draft: a text, or the messages to add; or it yields the draft in pieces.
        queue: The task queue.
        name: The type of the activity.
        connection: The server; that of Temporal's environment or profile by default, else the embedded one.
        at_once: The most drafts at once.
        quiet: Whether nothing is logged when the worker begins.

    Raises:
        InvalidRequest: The function is not async.
        ServerUnreachable: Nobody answers.
    """
    activities = [generator(function, name=name)]
    client = await connect(connection or await find())
    worker = worker_of(client, queue, activities, at_once=at_once)
    if not quiet:
        logger.warning("serving the activity %s on the task queue %s", name, queue)
    try:
        await worker.run()
    finally:
        await close_client(client)


def worker_of(client: Client, queue: str, activities: Sequence[Callable[..., Any]], at_once: int, *, grace: float = STOP_SECONDS) -> Worker:
    """Return a worker of activities that send heartbeats; calls in flight have so many seconds once it is to end."""
    return Worker(
        client,
        task_queue=queue,
        activities=activities,
        max_concurrent_activities=at_once,
        graceful_shutdown_timeout=timedelta(seconds=grace),
        max_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_SECONDS),
        default_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_SECONDS),
    )


def generator(
    function: Draft, *, name: str = NAME, loop: asyncio.AbstractEventLoop | None = None
) -> Callable[[Mapping[str, Any]], Awaitable[JsonValue]]:
    """Return a function as an activity, for a worker that is yours.

    The activity sends heartbeats, is cancelled where its thread is, and refuses what is not a draft with a sentence. Whatever else the
    function raises is tried again, as Temporal does.

    Args:
        function: Takes the conversation and returns the next draft, as in `serve`.
        name: The type of the activity.
        loop: The running event loop, of another thread, that the function is called in; by default the worker's own.

    Raises:
        InvalidRequest: The function is not async, or needs something else than the conversation.
    """
    called = function if inspect.isroutine(function) else type(function).__call__
    if not inspect.iscoroutinefunction(called) and not inspect.isasyncgenfunction(called):
        raise InvalidRequest(f"{function!r} is not an async function; write `async def`, and call what blocks by asyncio.to_thread")
    try:
        inspect.signature(function).bind([])
    except TypeError as error:
        cure = "take only the conversation, and decorate a method where it is bound: gradeloop.loop(...)(agent.draft)"
        raise InvalidRequest(f"{function!r} cannot be called with the conversation ({error}); {cure}") from None

    @activity.defn(name=name)
    async def generate(request: Mapping[str, Any]) -> JsonValue:
        pieces = Progress()
        beating = asyncio.create_task(pieces.report())

        async def write() -> Drafted:
            made = function([_plain(message) for message in request["messages"]])
            return await pieces.join(aiter(made)) if isinstance(made, AsyncIterable) else await made

        try:
            drafted = await call_in(loop, write())
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
        return _wire(drafted)

    return generate


async def call_in(loop: asyncio.AbstractEventLoop | None, work: Coroutine[Any, Any, T]) -> T:
    """Return what work returns that is done in a running event loop of another thread, or in this one."""
    return await (work if loop is None else asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop)))


class Progress:
    """Written part of a draft, which the heartbeats of its call report as those of a model's draft do."""

    def __init__(self) -> None:
        self._since, self._characters, self._draft = time.time(), 0, ""

    async def report(self) -> None:
        """Send heartbeats until this is cancelled."""
        while True:
            progress = CallProgress(since=self._since, attempt=activity.info().attempt, draft=self._draft or None)
            activity.heartbeat(self._characters, None, progress.model_dump(mode="json"))
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def join(self, pieces: AsyncIterator[str]) -> str:
        """Return the pieces as one text."""
        text: list[str] = []
        async for piece in pieces:
            text.append(piece)
            self._characters += len(piece)
            self._draft = (self._draft + piece)[-DRAFT_CHARACTERS:]
        return "".join(text)


def _plain(message: Mapping[str, Any]) -> ChatMessage:
    """Return a message as chat APIs take it: the grader's feedback is a message of the user."""
    return {key: value for key, value in message.items() if key not in _LEFT_OUT and not (key == "name" and message["role"] == "user")}


def _wire(drafted: object) -> JsonValue:
    """Return what a function returned as the contract has it; raise ApplicationError, which is final, where it is not a draft."""
    if isinstance(drafted, str):
        if not drafted.strip():
            raise ApplicationError("the function returned an empty text; return the draft", type="InvalidDraft", non_retryable=True)
        return drafted
    if not isinstance(drafted, Sequence):
        text = f"the function returned {type(drafted).__name__}; return a text, or a list of messages"
        raise ApplicationError(text, type="InvalidDraft", non_retryable=True)
    try:
        messages = _DRAFTED.validate_python(list(drafted))
    except ValidationError as error:
        text = f"the function returned messages that cannot be read: {explain(error)}"
        raise ApplicationError(text, type="InvalidDraft", non_retryable=True) from None
    return {"messages": [message.model_dump(mode="json") for message in messages]}
