"""Batches on the live page: what is listed of them, each with its cases, and what people do with them."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gradeloop.batches.answer import ANSWER_COLOURS, answer_of, next_step, rate_of, summary_counts
from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import MONITOR_PREFIX, BatchRequest, BatchSummary, Case, CaseResult
from gradeloop.batches.pages.judgement_page import live_next
from gradeloop.batches.pages.read_batch import case_steps, read_case_report, stored_batch_page, thread_of, with_thread
from gradeloop.batches.pages.read_judgement import registered_name
from gradeloop.batches.ratings import Rating
from gradeloop.batches.reader import BatchReader
from gradeloop.batches.trends import READ_BATCHES, SAMPLED_CASES, Changes, changes_since, charts_of, group_by_suite, read_trend, suite_of
from gradeloop.client.call_waits import waits_below
from gradeloop.errors import GradeloopError, InvalidRequest, explained
from gradeloop.reports.failure_summary import MOST as MOST_NAMED
from gradeloop.reports.failure_summary import Failure, failure_of
from gradeloop.reports.html import batch_path, case_path, document, part, read_id, thread_path
from gradeloop.reports.model import RunReport
from gradeloop.reports.read_thread import read_thread_report
from gradeloop.reports.run_page import failure_steps, run_page
from gradeloop.temporal.connect import OURS, ensure_worker_of
from gradeloop.web.pages import ACTION_SECONDS, read_body
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

SUITES, LISTED, TREND = 20, 5, 40
"""The most suites that are listed, the batches of each before its newest one, and the batches on the page of its trends."""

SHOWN: Mapping[str, Any] = {"colours": ANSWER_COLOURS, "answer_of": answer_of, "batch_path": batch_path, "suite_of": suite_of}
"""The helpers of both pages of many batches."""

REST = 9.0
"""A batch is not read again for this many times the seconds that reading it took: reading ten thousand cases takes more than a second."""


PAGES = 4
"""The pages that are kept, some megabytes each."""


class BatchPages:
    """The pages of batches."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._batches = BatchReader(site.store)
        self._changes: dict[str, tuple[str, Changes | None]] = {}
        """The changes of the batches that were listed last, each with the numbers for which they were read."""
        self._pages: dict[str, tuple[str, str]] = {}
        """The last pages that were made, by their paths, each with its tag: whoever comes back from a case does not wait again."""

    async def section(self, words: str) -> IndexSection:
        """Return the newest suites, what waits for a person first, each with its newest batches, for the page at `/`."""
        batches = await self._batches.summaries(READ_BATCHES)
        found = sorted(group_by_suite(batches, words), key=lambda suite: not (suite[0].waiting or suite[0].unsure))
        suites = [suite[: LISTED + 1] for suite in found[:SUITES]]
        html = part(
            "live_listed_batches.html",
            suites=[([(batch, answer_of(batch)) for batch in suite], len(whole) - 1) for suite, whole in zip(suites, found, strict=False)],
            more=len(found) - len(suites),
            words=words,
            changes=await self._changes_in(suites),
            failures=await self._first_failures([suite[0] for suite in suites]),
            rate_of=rate_of,
            counts_of=summary_counts,
            step_of=_listed_step,
            case_path=case_path,
            **SHOWN,
        )
        return IndexSection(html, sum(batch.waiting for batch in batches), tuple(batch.batch_id for batch in batches if batch.waiting))

    async def _changes_in(self, suites: Sequence[Sequence[BatchSummary]]) -> dict[str, Changes]:
        """Return what each batch changed since the one before; cases are read only where the numbers of one of them have changed."""
        pairs = [pair for suite in suites for pair in pairwise(suite)]
        marks = {one.batch_id: " ".join(f"{batch.batch_id} {summary_counts(batch)}" for batch in (one, other)) for one, other in pairs}
        known = {name: found for name, found in self._changes.items() if marks.get(name) == found[0]}
        read = await changes_since(self._batches, {one.batch_id: other.batch_id for one, other in pairs if one.batch_id not in known})
        self._changes = known | {name: (mark, read.get(name)) for name, mark in marks.items() if name not in known}
        return {name: found for name, (_, found) in self._changes.items() if found}

    async def _first_failures(self, batches: Sequence[BatchSummary]) -> dict[str, tuple[Failure, ...]]:
        """Return the first failures of each batch that did not pass; an inconclusive one begins with its errors."""
        of_these = {batch.batch_id: answer_of(batch).word for batch in batches if batch.failed or batch.errors}
        results = await self._batches.first_results([*of_these], ("failed", "error"), MOST_NAMED) if of_these else {}
        for name, some in results.items():
            some.sort(key=lambda result: (result.status == "failed") == (of_these[name] == "INCONCLUSIVE"))
        return {name: tuple(failure_of(read_case_report(result)) for result in some[:MOST_NAMED]) for name, some in results.items()}

    async def show_trend(self, request: Request) -> Response:
        """Answer with the newest batches of a batch's suite, beside one another."""
        batch_id = read_id(request.path_params["batch"])
        named = await self._batches.summary(batch_id)
        known = group_by_suite(await self._batches.summaries(READ_BATCHES, named.tenant))
        batches = next((suite for suite in known if batch_id in {one.batch_id for one in suite}), [named])[:TREND]
        tag = tag_of(*(batch.model_dump_json() for batch in batches))
        live = SteeredPage(token=self._site.token, path=f"{batch_path(batch_id)}/trend", open=batches[0].status == "running", tag=tag)

        async def html() -> str:
            found, name = await read_trend(self._batches, batches), suite_of(batches[0])
            charts, title = charts_of(found), f"Trends of {name} · gradeloop"
            return document("live_trend.html", title=title, live=live, name=name, found=found, charts=charts, cases=SAMPLED_CASES, **SHOWN)

        return await answer(request, tag, html)

    async def show(self, request: Request) -> Response:
        """Answer with a batch's page; its cases are read only where one has a new result."""
        batch_id = read_id(request.path_params["batch"])
        path, clock = batch_path(batch_id), asyncio.get_running_loop().time
        waits = await waits_below(self._site.client.temporal, [batch_id])
        # Many tabs ask every second, and to read a batch may take one itself. A page that was just read is not
        # read again for nine times as long, so that all tabs together cost a tenth of the time at most.
        shown, began = self._site.shown(path), clock()
        if shown and clock() < shown.again and is_known(request, shown.tag):
            return with_wait(unchanged(shown.tag), waits)
        summary = await self._batches.summary(batch_id)
        tag = tag_of(summary.model_dump_json(), await self._batches.rated(batch_id))
        live = SteeredPage(token=self._site.token, path=path, open=summary.status == "running", tag=tag)

        async def html() -> str:
            known = self._pages.get(path)
            if known is None or known[0] != tag:
                known = tag, await stored_batch_page(self._batches, batch_id, live=live)
                self._pages = dict([*self._pages.items()][1 - PAGES :]) | {path: known}
            return known[1]

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
        attempt = None if unsettled else result.attempt
        live = SteeredPage(token=self._site.token, path=path, thread=thread, open=unsettled, tag=tag, batch=batch_id, attempt=attempt)

        async def html() -> str:
            failing = await self._batches.failing_ids(batch_id)
            steps = failure_steps(failing, case_id, lambda name: case_path(batch_id, name))
            report = await self._case_report(batch_id, result, case, thread_id)
            return await asyncio.to_thread(run_page, report, live=live, steps=steps)

        waits = await waits_below(self._site.client.temporal, [thread_id] if thread_id and unsettled else [])
        return with_wait(await answer(request, tag, html), waits)

    async def rate(self, request: Request) -> Response:
        """Keep what a person says about a case."""
        batch_id, case_id = read_id(request.path_params["batch"]), read_id(request.path_params["case"])
        body = self._site.signed(request, await read_body(request))
        if "created" in body:
            raise InvalidRequest("created: the store says when a rating was given; leave the field out")
        with explained():
            rating = Rating.model_validate(body)
        await self._batches.rate(batch_id, case_id, rating)
        return JSONResponse({"ok": True, "by": rating.by})

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
        Route("/batches/{batch}/cases/{case:path}", batches.rate, methods=["POST"]),
        Route("/batches/{batch}/trend", batches.show_trend, methods=["GET"]),
        Route("/batches/{batch}", batches.show, methods=["GET"]),
    ]
    return LivePages(routes, batches.section, rank=20)
