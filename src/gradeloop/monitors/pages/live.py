"""The pages `/monitors` and `/monitors/NAME`: what monitors have found, as it changes."""

from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gradeloop.contract.base import Strict
from gradeloop.errors import GradeloopError, explained
from gradeloop.monitors.client import MonitorSchedule, MonitorSchedules
from gradeloop.monitors.labelling import MonitorLabels, labels_path, monitor_path
from gradeloop.monitors.overview import MonitorReader
from gradeloop.monitors.pages.page import PAGE_TICKS, labels_page, monitor_page, monitors_page
from gradeloop.reports.html import case_path, part, read_id
from gradeloop.web.pages import read_body
from gradeloop.web.site import IndexSection, LivePages, Site, SteeredPage, answer, is_known, main_of, tag_of, unchanged


class GivenLabel(Strict):
    """The content of the form for a label."""

    run: Annotated[str, Field(min_length=1)]
    """The sha256 of the run."""
    passed: bool
    by: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(max_length=4000)] = ""


class MonitorPages:
    """The pages of monitors."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._monitors = MonitorReader(site.store)

    async def section(self) -> IndexSection:
        """Return the monitors with their open alerts, for the page at `/`."""
        return IndexSection(part("live_listed_monitors.html", monitors=await self._monitors.briefs(), monitor_path=monitor_path))

    async def list(self, request: Request) -> Response:
        """Answer with all monitors."""
        found = await self._monitors.summaries()
        try:
            unserved = await MonitorSchedules(self._site.client.temporal).unserved([one.name for one in found])
        except GradeloopError:  # a monitor's own page says so
            unserved = frozenset()
        page = monitors_page(found, unserved, monitor_path, live=SteeredPage(token=self._site.token, path="/monitors", open=True))

        async def html() -> str:
            return page

        return await answer(request, tag_of(main_of(page)), html)

    async def show(self, request: Request) -> Response:
        """Answer with a monitor's page; its ticks are read only where one is new or settled."""
        name = read_id(request.path_params["monitor"])
        path, mark = monitor_path(name), await self._monitors.mark(name)
        schedule, problem = await self._schedule(name)
        tag = tag_of(mark, "" if schedule is None else schedule.model_dump_json(), problem)
        if is_known(request, tag):
            return unchanged(tag)
        live = SteeredPage(token=self._site.token, path=path, open=True, tag=tag)
        found = await self._monitors.summary(name, ticks=PAGE_TICKS)

        async def html() -> str:
            return monitor_page(found, schedule, problem, case_path, live=live)

        return await answer(request, tag, html)

    async def labels(self, request: Request) -> Response:
        """Answer with the next run of a monitor that nobody has labelled, without what the judge says of it."""
        name = read_id(request.path_params["monitor"])
        task, path = await self._labels.next_task(name, None), labels_path(name)
        page = labels_page(name, task, path, live=SteeredPage(token=self._site.token, path=path, open=True))

        async def html() -> str:
            return page

        return await answer(request, tag_of(main_of(page)), html)

    async def label(self, request: Request) -> Response:
        """Take what a person says of a run."""
        name, body = read_id(request.path_params["monitor"]), self._site.signed(request, await read_body(request))
        with explained():
            given = GivenLabel.model_validate(body)
        await self._labels.give(name, given.run, given.by, passed=given.passed, reason=given.reason)
        return JSONResponse({"ok": True, "by": given.by})

    @property
    def _labels(self) -> MonitorLabels:
        return MonitorLabels(self._site.store)

    async def _schedule(self, name: str) -> tuple[MonitorSchedule | None, str]:
        """Return a monitor's schedule, and why it cannot be read; empty where it can."""
        try:
            return await MonitorSchedules(self._site.client.temporal).find(name), ""
        except GradeloopError as error:
            return None, f"the schedule cannot be read now: {error}"


def live_pages(site: Site) -> LivePages:
    """Return the pages of monitors."""
    monitors = MonitorPages(site)
    routes = [
        Route("/monitors", monitors.list, methods=["GET"]),
        Route("/monitors/{monitor}/labels", monitors.labels, methods=["GET"]),
        Route("/monitors/{monitor}/labels", monitors.label, methods=["POST"]),
        Route("/monitors/{monitor}", monitors.show, methods=["GET"]),
    ]
    return LivePages(routes, monitors.section, rank=10)
