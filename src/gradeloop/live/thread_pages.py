"""A thread's page, and the actions that people take there."""

import asyncio
import json
from dataclasses import dataclass

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from gradeloop.contracts import ThreadState
from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.live.actions import act
from gradeloop.live.addresses import read_id, thread_path
from gradeloop.live.answers import answer, knows, tag_of, unchanged
from gradeloop.live.site import Shown, Site
from gradeloop.live.steered import Steered
from gradeloop.outcomes import failure
from gradeloop.reports.pages import run_page
from gradeloop.reports.thread_story import thread_story

WORKER_SECONDS = 5.0
"""How long a page waits for the thread's worker before it says that none answers; it goes on asking by itself."""


@dataclass(frozen=True)
class Outside:
    """What the server knows of a thread without asking any worker."""

    mark: str
    """Another one whenever anything happened to the thread."""
    open: bool
    task_queue: str


class ThreadPages:
    """The pages of threads."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Answer with a thread's page; its worker is asked only where something has happened to the thread."""
        thread_id = read_id(request.path_params["thread"])
        path = thread_path(thread_id)
        outside = await self._outside(thread_id)
        shown = self._site.shown(path)
        if shown and shown.mark == outside.mark and knows(request, shown.tag):
            return unchanged(shown.tag)
        await self._site.wake(thread_id)
        state, tag = await self._standing(thread_id, outside)
        self._site.remember(path, Shown(outside.mark, tag))
        live = Steered(token=self._site.token, path=path, thread=path, status=state.status, open=outside.open, tag=tag)

        async def html() -> str:
            return await asyncio.to_thread(run_page, await thread_story(self._site.client, thread_id), live=live)

        return await answer(request, tag, html)

    async def act(self, request: Request) -> Response:
        """Take what a person says to a thread."""
        await act(self._site, read_id(request.path_params["thread"]), request.path_params["action"], await body_of(request))
        return JSONResponse({"ok": True})

    async def _outside(self, thread_id: str) -> Outside:
        try:
            found = await self._site.client.temporal.get_workflow_handle(thread_id).describe()
        except RPCError as error:
            raise failure(error, thread_id) from None
        mark = f"{found.run_id} {found.history_length} {found.status}"
        return Outside(mark, found.status == WorkflowExecutionStatus.RUNNING, found.task_queue)

    async def _standing(self, thread_id: str, outside: Outside) -> tuple[ThreadState, str]:
        """Return where the thread stands, and the tag of what its page shows.

        Raises:
            ServerUnreachable: Its worker has gone.
        """
        client = self._site.client
        try:
            async with asyncio.timeout(WORKER_SECONDS):
                state, events = await asyncio.gather(client.state(thread_id), client.events(thread_id, after=10**9))
        except TimeoutError:
            queue = outside.task_queue
            words = (
                f"no worker answers for the thread {thread_id!r}; start one: gradeloop worker --task-queue {queue}, with the thread's tools"
            )
            raise ServerUnreachable(words) from None
        return state, tag_of(state.model_dump_json(), str(events.total), str(outside.open))


async def body_of(request: Request) -> dict[str, JsonValue]:
    """Return what a script sent; nothing counts as an empty object.

    Raises:
        InvalidRequest: It is no JSON object.
    """
    try:
        body = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object; send one")
    return body
