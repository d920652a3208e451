"""The pages of a batch and of its cases, and the one thing that can be said to it."""

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gradeloop.batches.case import Case
from gradeloop.batches.case_result import CaseResult
from gradeloop.errors import GradeloopError
from gradeloop.live.addresses import batch_path, case_path, read_id, thread_path
from gradeloop.live.answers import answer, knows, tag_of, unchanged
from gradeloop.live.site import Shown, Site
from gradeloop.live.steered import Steered
from gradeloop.reports.batch_report import batch_page, batch_report
from gradeloop.reports.case_stories import case_story, thread_of, with_thread
from gradeloop.reports.pages import run_page
from gradeloop.reports.run_story import RunStory
from gradeloop.reports.thread_story import thread_story

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
        live = Steered(token=self._site.token, path=path, open=summary.status == "running", tag=tag)

        async def html() -> str:
            report = await batch_report(self._site.batches, batch_id)
            return await asyncio.to_thread(batch_page, report, live=live)

        answered = await answer(request, tag, html)
        self._site.remember(path, Shown(tag, tag, clock() + REST * (clock() - began)))
        return answered

    async def show_case(self, request: Request) -> Response:
        """Answer with the page of a case; of one that is a thread of its own, with the thread's story."""
        batch_id, case_id = read_id(request.path_params["batch"]), read_id(request.path_params["case"])
        case, result = await self._site.batches.told_case(batch_id, case_id)
        tag = tag_of(result.model_dump_json())
        own = thread_of(result, batch_id)
        path, thread = case_path(batch_id, case_id), thread_path(own) if own else None
        unsettled = result.status in {"queued", "waiting"}
        live = Steered(token=self._site.token, path=path, thread=thread, open=unsettled, tag=tag)

        async def html() -> str:
            return await asyncio.to_thread(run_page, await self._case_story(result, case, own), live=live)

        return await answer(request, tag, html)

    async def pause(self, request: Request) -> Response:
        """Have a batch begin no further case."""
        await self._site.batch_client.pause(read_id(request.path_params["batch"]))
        return JSONResponse({"ok": True})

    async def _case_story(self, result: CaseResult, case: Case, thread_id: str | None) -> RunStory:
        story = case_story(result, case)
        if thread_id is None:
            return story
        try:
            await self._site.wake(thread_id)
            return with_thread(result, await thread_story(self._site.client, thread_id))
        except GradeloopError as error:
            return story.model_copy(update={"notes": (*story.notes, f"the thread cannot be read now: {error}")})
