"""The server and the worker that a door of this process stands on, and the functions of this process that they call."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from pydantic import BaseModel, JsonValue
from temporalio import activity

from gradeloop.client.client import GradingClient
from gradeloop.client.loop_thread import LoopThread
from gradeloop.generators import call_in, worker_of
from gradeloop.settings.endpoints import loopback_servers, own_names, refuse_unservable
from gradeloop.settings.trust import find_config_file
from gradeloop.temporal.connect import Connection, WorkerSpec, connect, ensure_worker, find, keep_worker_alive
from gradeloop.temporal.process import done_beside, end_all
from gradeloop.temporal.runtime import close_client


class Standing(NamedTuple):
    """The client, the worker's queue and the task that serve the calls of one event loop until it ends."""

    client: GradingClient
    queue: str
    """Task queue of the worker that grades."""
    connection: Connection
    task: "asyncio.Task[None]"


@dataclass(frozen=True, eq=False)
class Standings:
    """One standing for each event loop: it is made by the loop's first call, and ends with the loop."""

    request: BaseModel
    """All models that the worker is going to call."""
    connection: Connection | None = None
    served: Callable[[Connection, asyncio.AbstractEventLoop], Coroutine[Any, Any, None]] | None = None
    """Serves this process's own functions, which run in the event loop of the callers, as long as the standing."""
    spec: WorkerSpec = field(default_factory=WorkerSpec)
    _known: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[Standing]] = field(default_factory=WeakKeyDictionary, init=False)

    async def get(self) -> Standing:
        """Return the standing of this event loop, which its first call makes."""
        running = asyncio.get_running_loop()
        # The future is stored before anything is awaited, so calls that begin together share one standing. It
        # is shielded, since the caller that began it may be cancelled while others wait for it, too; one that
        # failed or has ended is made anew.
        if (known := self._known.get(running)) is None or (known.done() and (known.exception() or known.result().task.done())):
            known = self._known[running] = asyncio.ensure_future(self._stand())
        return await asyncio.shield(known)

    async def close(self) -> None:
        """End what serves the calls of this event loop; the next call begins anew."""
        if (known := self._known.pop(asyncio.get_running_loop(), None)) is not None:
            await end_all([(await known).task])

    async def _stand(self) -> Standing:
        connection, named = self.connection or await find(), os.environ.get("GRADELOOP_TASK_QUEUE")
        config = find_config_file((), os.environ)
        spec = replace(self.spec, config=config, local_servers=loopback_servers(self.request))
        if not named:
            refuse_unservable(self.request, os.environ, scripted=spec.scripted is not None, endpoints=own_names(os.environ, config))
        temporal = await connect(connection)
        queue = named or await ensure_worker(spec, connection)
        client = GradingClient(temporal, task_queue=queue)
        callers = asyncio.get_running_loop()

        async def stand() -> None:
            try:
                if self.served is None:
                    await asyncio.sleep(inf)
                else:
                    await done_beside(self.served(connection, callers), keep_worker_alive(queue, connection))
            finally:
                await client.close()
                await close_client(temporal)

        return Standing(client, queue, connection, asyncio.create_task(stand()))


async def serve_beside(connection: Connection, queue: str, activities: Sequence[Callable[..., Any]], *, at_once: int) -> None:
    """Serve activities from a thread with an event loop of its own until this is cancelled; calls in flight are cancelled then.

    The end of an event loop cancels all its tasks at once, a worker's own among them, which would then wait for each other for ever.
    """
    thread, stop = LoopThread(), asyncio.Event()

    async def work() -> None:
        client = await connect(connection)
        try:
            async with worker_of(client, queue, activities, at_once=at_once, grace=0):
                await stop.wait()
        finally:
            await close_client(client)

    async def end() -> None:
        stop.set()

    working = thread.submit(work())

    def finish() -> None:
        thread.submit(end())
        wait([working])
        thread.stop()

    try:
        await asyncio.shield(asyncio.wrap_future(working))
    finally:
        ending = asyncio.get_running_loop().run_in_executor(None, finish)
        while not ending.done():  # the end of a loop cancels this, and whoever waits for this does so once more
            with suppress(asyncio.CancelledError):
                await asyncio.wait({ending})


def remote_tool(name: str, description: str, parameters: JsonValue, queue: str) -> dict[str, JsonValue]:
    """Return a tool that this process serves, as a request has it."""
    about: dict[str, JsonValue] = {"name": name, "description": description[:4_000], "parameters": parameters}
    return about | {"activity": f"tool {name}", "task_queue": queue}


def served_tool(
    name: str, call: Callable[[Mapping[str, Any]], Coroutine[Any, Any, Any]], callers: asyncio.AbstractEventLoop | None
) -> Callable[[Mapping[str, Any]], Awaitable[Any]]:
    """Return the activity of a tool that this process serves, given a function of the arguments, and the event loop that it runs in."""

    @activity.defn(name=f"tool {name}")
    async def run(asked: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever the function returns
        return await call_in(callers, call(asked["arguments"]))

    return run
