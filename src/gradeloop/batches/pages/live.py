"""Batches on the live page: what is listed of them, each with its cases, and what people do with them."""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gradeloop.batches.answer import ANSWER_COLOURS, answer_of, next_step
from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import MONITOR_PREFIX, BatchRequest, BatchSummary, Case, CaseResult, CaseStatus
from gradeloop.batches.pages.judgement_page import live_next
from gradeloop.batches.pages.read_batch import case_steps, read_case_report, stored_batch_page, thread_of, with_thread
from gradeloop.batches.pages.read_judgement import registered_name
from gradeloop.batches.reader import BatchReader
from gradeloop.client.call_waits import waits_below
from gradeloop.errors import GradeloopError, InvalidRequest
from gradeloop.reports.html import batch_path, case_path, part, read_id, thread_path
from gradeloop.reports.model import RunReport
from gradeloop.reports.read_thread import read_thread_report
from gradeloop.reports.run_page import failure_steps, run_page
from gradeloop.reports.what_failed import MOST as MOST_NAMED
from gradeloop.reports.what_failed import Failure, failure_of
from gradeloop.temporal.connect import OURS, ensure_worker_of
from gradeloop.web.pages import ACTION_SECONDS
from gradeloop.web.site import (
    IndexSection,
    LivePages,
    ShownPage,
    Site,
    SteeredPage,
    answer,
    in_time,
    is_known,
    tag_of,
    unchanged,
    with_wait,
)

BATCHES = 20
"""The most that are listed; `gradeloop batches list` lists the rest."""

REST = 9.0
"""A batch is not read again for this many times the seconds that reading it took: reading ten thousand cases takes more than a second."""


class BatchPages:
    """The pages of batches."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._batches = BatchReader(site.store)
        self._failures: dict[str, tuple[str, tuple[Failure, ...]]] = {}
        """The first failures of the batches that were listed last, each with the summary for which they were read."""

    async def section(self) -> IndexSection:
        """Return the newest batches, for the page at `/`."""
        batches = await self._batches.summaries(BATCHES)
        failures = await self._first_failures(batches)
        html = part(
            "live_listed_batches.html",
            batches=[(batch, answer_of(batch)) for batch in batches],
            priced=any(batch.usage.cost_usd for batch in batches),
            awaited=any(batch.waiting for batch in batches),
            colours=ANSWER_COLOURS,
            failures=failures,
            steps={batch.batch_id: _listed_step(batch) for batch in batches},
            case_path=case_path,
            batch_path=batch_path,
        )
        return IndexSection(html, sum(batch.waiting for batch in batches), tuple(batch.batch_id for batch in batches))

    async def _first_failures(self, batches: Sequence[BatchSummary]) -> dict[str, tuple[Failure, ...]]:
        """Return the first failures of each batch that did not pass; its cases are read only where its numbers have changed."""
        read = dict[str, tuple[str, tuple[Failure, ...]]]()
        for batch in batches:
            mark = batch.model_dump_json()
            known = self._failures.get(batch.batch_id)
            read[batch.batch_id] = known if known and known[0] == mark else (mark, await self._failures_of(batch))
        self._failures = read
        return {batch_id: found for batch_id, (_, found) in read.items()}

    async def _failures_of(self, batch: BatchSummary) -> tuple[Failure, ...]:
        word = answer_of(batch).word
        if word == "PASSED" or not (batch.failed or batch.errors):
            return ()
        statuses: tuple[CaseStatus, ...] = ("error", "failed") if word == "INCONCLUSIVE" else ("failed", "error")
        results = list[CaseResult]()
        for status in statuses:
            results += await self._batches.results_of_status(batch.batch_id, status, MOST_NAMED - len(results))
        return tuple(failure_of(read_case_report(result)) for result in results)

    async def show(self, request: Request) -> Response:
        """Answer with a batch's page; its cases are read only where one has a new result."""
        batch_id = read_id(request.path_params["batch"])
        path, clock = batch_path(batch_id), asyncio.get_running_loop().time
        waits = await waits_below(self._site.client.temporal, [batch_id])
        shown, began = self._site.shown(path), clock()
        if shown and clock() < shown.again and is_known(request, shown.tag):
            return with_wait(unchanged(shown.tag), waits)
        summary = await self._batches.summary(batch_id)
        tag = tag_of(summary.model_dump_json())
        live = SteeredPage(token=self._site.token, path=path, open=summary.status == "running", tag=tag)

        async def html() -> str:
            return await stored_batch_page(self._batches, batch_id, live=live)

        answered = await answer(request, tag, html)
        self._site.remember(path, ShownPage(tag, tag, clock() + REST * (clock() - began)))
        return with_wait(answered, waits)

    async def show_case(self, request: Request) -> Response:
        """Answer with the page of a case, with the report of its thread where it has one."""
        batch_id, case_id = read_id(request.path_params["batch"]), read_id(request.path_params["case"])
        case, result = await self._batches.case(batch_id, case_id)
        tag = tag_of(result.model_dump_json())
        thread_id = thread_of(result, batch_id)
        path, thread = case_path(batch_id, case_id), thread_path(thread_id) if thread_id else None
        unsettled = result.status in {"queued", "waiting"}
        live = SteeredPage(token=self._site.token, path=path, thread=thread, open=unsettled, tag=tag, batch=batch_id)

        async def html() -> str:
            failing = await self._batches.failing_ids(batch_id)
            steps = failure_steps(failing, case_id, lambda name: case_path(batch_id, name))
            report = await self._case_report(batch_id, result, case, thread_id)
            return await asyncio.to_thread(run_page, report, live=live, steps=steps)

        waits = await waits_below(self._site.client.temporal, [thread_id] if thread_id and unsettled else [])
        return with_wait(await answer(request, tag, html), waits)

    async def pause(self, request: Request) -> Response:
        """Have a batch begin no further case."""
        await BatchClient(self._site.client.temporal, "").pause(read_id(request.path_params["batch"]))
        return JSONResponse({"ok": True})

    async def resume(self, request: Request) -> Response:
        """Have a batch that is paused or stopped go on: what has not run runs, and its errors again."""
        batch_id = read_id(request.path_params["batch"])
        queue = await BatchClient(self._site.client.temporal, "").queue_of(batch_id)
        if queue is None:
            raise InvalidRequest(f"the server no longer has the batch {batch_id!r}; run the suite again, its verdicts come from the cache")
        task_queue, running = queue
        if running:
            raise InvalidRequest(f"the batch {batch_id!r} is running already")
        if OURS.fullmatch(task_queue):
            await ensure_worker_of(task_queue, self._site.connection)
        known = BatchRequest.model_validate_json(await self._batches.request(batch_id))
        starting = BatchClient(self._site.client.temporal, task_queue).start(known.model_copy(update={"again": "errors"}))
        await in_time(starting, ACTION_SECONDS, f"the server did not start the batch {batch_id!r} within {ACTION_SECONDS:.0f} s; try again")
        self._site.forget(batch_path(batch_id))
        return JSONResponse({"ok": True})

    async def _case_report(self, batch_id: str, result: CaseResult, case: Case, thread_id: str | None) -> RunReport:
        report = read_case_report(result, case)
        if not batch_id.startswith(MONITOR_PREFIX):
            step = case_steps(batch_id).get(report.verdict)
            if result.judgement is not None and case.judging is not None:
                name = await registered_name(result.judgement, self._site.store, judge=case.judging.judge)
                step = live_next(report, name)
            report = report.model_copy(update={"next": step})
        if thread_id is None:
            return report
        try:
            await self._site.wake(thread_id)
            found = with_thread(result, await read_thread_report(self._site.client, thread_id))
            return found.model_copy(update={"next": case_steps(batch_id).get(found.verdict)})
        except GradeloopError as error:
            return report.model_copy(update={"notes": (*report.notes, f"the thread cannot be read now: {error}")})


def _listed_step(batch: BatchSummary) -> str:
    """Return the command that runs the errors of a batch again which nothing else keeps from its end; any other is a link of the page."""
    answer = answer_of(batch)
    return next_step(batch, answer) if answer.word == "INCONCLUSIVE" and batch.errors and not batch.waiting else ""


def live_pages(site: Site) -> LivePages:
    """Return the pages of batches."""
    batches = BatchPages(site)
    routes = [
        Route("/batches/{batch}/pause", batches.pause, methods=["POST"]),
        Route("/batches/{batch}/resume", batches.resume, methods=["POST"]),
        Route("/batches/{batch}/cases/{case:path}", batches.show_case, methods=["GET"]),
        Route("/batches/{batch}", batches.show, methods=["GET"]),
    ]
    return LivePages(routes, batches.section, rank=20)
