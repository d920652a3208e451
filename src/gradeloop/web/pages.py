"""The pages: the index, a thread, a batch."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from gradeloop.batches.contract import BatchSummary, Case, CaseResult
from gradeloop.client.listing import ListedThread, threads
from gradeloop.client.thread import error_of_rpc
from gradeloop.contract.thread import ThreadState
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable
from gradeloop.reports.html import document
from gradeloop.reports.model import RunReport
from gradeloop.reports.read_batch import batch_page, batch_report, read_case_report, thread_of, with_thread
from gradeloop.reports.read_thread import read_thread_report
from gradeloop.reports.run_page import run_page
from gradeloop.web.actions import act
from gradeloop.web.site import (
    ShownPage,
    Site,
    SteeredPage,
    answer,
    batch_path,
    case_path,
    knows,
    main_of,
    read_id,
    tag_of,
    thread_path,
    unchanged,
)

THREADS, BATCHES = 50, 20
"""How many are listed; `gradeloop list` and `gradeloop batches list` know the rest."""


@dataclass(frozen=True)
class ThreadLink:
    """A thread in the list."""

    path: str
    thread: ListedThread


@dataclass(frozen=True)
class BatchLink:
    """A batch in the list."""

    path: str
    batch: BatchSummary


class Index:
    """The page at `/`."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Answer with the lists."""
        html = await self._html()

        async def made() -> str:
            return html

        return await answer(request, tag_of(main_of(html)), made)

    async def _html(self) -> str:
        problems: list[str] = []
        found, batches = await self._threads(problems), await self._batches(problems)
        return document(
            "live_index.html",
            title="gradeloop dev",
            scripts=("live.js",),
            styles=("live.css",),
            live=SteeredPage(token=self._site.token, path="/", open=True),
            threads=found,
            batches=batches,
            problems=problems,
            ui=self._site.connection.ui,
        )

    async def _threads(self, problems: list[str]) -> Sequence[ThreadLink]:
        try:
            return [
                ThreadLink(thread_path(thread.thread_id), thread) async for thread in threads(self._site.client.temporal, limit=THREADS)
            ]
        except GradeloopError as error:
            problems.append(str(error))
            return ()

    async def _batches(self, problems: list[str]) -> Sequence[BatchLink]:
        try:
            return [BatchLink(batch_path(summary.batch_id), summary) for summary in await self._site.batches.summaries(BATCHES)]
        except GradeloopError as error:
            problems.append(str(error))
            return ()


WORKER_SECONDS = 5.0
"""How long a page waits for the thread's worker before it says that none answers; it goes on asking by itself."""


@dataclass(frozen=True)
class ThreadOnServer:
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
        self._site.remember(path, ShownPage(outside.mark, tag))
        live = SteeredPage(token=self._site.token, path=path, thread=path, status=state.status, open=outside.open, tag=tag)

        async def html() -> str:
            return await asyncio.to_thread(run_page, await read_thread_report(self._site.client, thread_id), live=live)

        return await answer(request, tag, html)

    async def act(self, request: Request) -> Response:
        """Take what a person says to a thread."""
        await act(self._site, read_id(request.path_params["thread"]), request.path_params["action"], await body_of(request))
        return JSONResponse({"ok": True})

    async def _outside(self, thread_id: str) -> ThreadOnServer:
        try:
            found = await self._site.client.temporal.get_workflow_handle(thread_id).describe()
        except RPCError as error:
            raise error_of_rpc(error, thread_id) from None
        mark = f"{found.run_id} {found.history_length} {found.status}"
        return ThreadOnServer(mark, found.status == WorkflowExecutionStatus.RUNNING, found.task_queue)

    async def _standing(self, thread_id: str, outside: ThreadOnServer) -> tuple[ThreadState, str]:
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


REST = 9.0
"""How many times as long as it took to read a batch it is let be: ten thousand cases are no second's work."""


class BatchPages:
    """The pages of batches."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Answer with a batch's page; its cases are read only where something has come of one."""
        batch_id = read_id(request.path_params["batch"])
        path, clock = batch_path(batch_id), asyncio.get_running_loop().time
        shown, began = self._site.shown(path), clock()
        if shown and clock() < shown.again and knows(request, shown.tag):
            return unchanged(shown.tag)
        summary = await self._site.batches.summary(batch_id)
        tag = tag_of(summary.model_dump_json())
        live = SteeredPage(token=self._site.token, path=path, open=summary.status == "running", tag=tag)

        async def html() -> str:
            report = await batch_report(self._site.batches, batch_id)
            return await asyncio.to_thread(batch_page, report, live=live)

        answered = await answer(request, tag, html)
        self._site.remember(path, ShownPage(tag, tag, clock() + REST * (clock() - began)))
        return answered

    async def show_case(self, request: Request) -> Response:
        """Answer with the page of a case; of one that is a thread of its own, with the thread's story."""
        batch_id, case_id = read_id(request.path_params["batch"]), read_id(request.path_params["case"])
        case, result = await self._site.batches.case(batch_id, case_id)
        tag = tag_of(result.model_dump_json())
        own = thread_of(result, batch_id)
        path, thread = case_path(batch_id, case_id), thread_path(own) if own else None
        unsettled = result.status in {"queued", "waiting"}
        live = SteeredPage(token=self._site.token, path=path, thread=thread, open=unsettled, tag=tag)

        async def html() -> str:
            return await asyncio.to_thread(run_page, await self._case_story(result, case, own), live=live)

        return await answer(request, tag, html)

    async def pause(self, request: Request) -> Response:
        """Have a batch begin no further case."""
        await self._site.batch_client.pause(read_id(request.path_params["batch"]))
        return JSONResponse({"ok": True})

    async def _case_story(self, result: CaseResult, case: Case, thread_id: str | None) -> RunReport:
        story = read_case_report(result, case)
        if thread_id is None:
            return story
        try:
            await self._site.wake(thread_id)
            return with_thread(result, await read_thread_report(self._site.client, thread_id))
        except GradeloopError as error:
            return story.model_copy(update={"notes": (*story.notes, f"the thread cannot be read now: {error}")})
