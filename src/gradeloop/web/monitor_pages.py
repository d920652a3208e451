"""The pages `/monitors` and `/monitors/NAME`: what monitors have found, as it changes."""

from starlette.requests import Request
from starlette.responses import Response

from gradeloop.errors import GradeloopError
from gradeloop.monitors.client import MonitorSchedule, MonitorSchedules
from gradeloop.reports.monitor_page import PAGE_TICKS, monitor_page, monitors_page
from gradeloop.web.site import Site, SteeredPage, answer, case_path, is_known, main_of, monitor_path, read_id, tag_of, unchanged


class MonitorPages:
    """The pages of monitors."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def list(self, request: Request) -> Response:
        """Answer with all monitors."""
        found = await self._site.monitors.summaries()
        page = monitors_page(found, monitor_path, live=SteeredPage(token=self._site.token, path="/monitors", open=True))

        async def html() -> str:
            return page

        return await answer(request, tag_of(main_of(page)), html)

    async def show(self, request: Request) -> Response:
        """Answer with a monitor's page; its ticks are read only where one is new or settled."""
        name = read_id(request.path_params["monitor"])
        path, mark = monitor_path(name), await self._site.monitors.mark(name)
        schedule, problem = await self._schedule(name)
        tag = tag_of(mark, "" if schedule is None else schedule.model_dump_json(), problem)
        if is_known(request, tag):
            return unchanged(tag)
        live = SteeredPage(token=self._site.token, path=path, open=True, tag=tag)
        found = await self._site.monitors.summary(name, ticks=PAGE_TICKS)

        async def html() -> str:
            return monitor_page(found, schedule, problem, case_path, live=live)

        return await answer(request, tag, html)

    async def _schedule(self, name: str) -> tuple[MonitorSchedule | None, str]:
        """Return a monitor's schedule, and why it cannot be read; empty where it can."""
        try:
            return await MonitorSchedules(self._site.client.temporal).find(name), ""
        except GradeloopError as error:
            return None, f"the schedule cannot be read now: {error}"
