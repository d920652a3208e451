"""The first page: the newest threads and batches, with their status."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from gradeloop.batches.case_result import BatchSummary
from gradeloop.errors import GradeloopError
from gradeloop.listing import Listed, threads
from gradeloop.live.addresses import batch_path, thread_path
from gradeloop.live.answers import answer, main_of, tag_of
from gradeloop.live.site import Site
from gradeloop.live.steered import Steered
from gradeloop.reports.document import document

THREADS, BATCHES = 50, 20
"""How many are listed; `gradeloop list` and `gradeloop batches list` know the rest."""


@dataclass(frozen=True)
class ThreadLink:
    """A thread in the list."""

    path: str
    thread: Listed


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
            live=Steered(token=self._site.token, path="/", open=True),
            threads=found,
            batches=batches,
            problems=problems,
            ui=self._site.connection.ui,
        )

    async def _threads(self, problems: list[str]) -> Sequence[ThreadLink]:
        try:
            return [ThreadLink(thread_path(each.thread_id), each) async for each in threads(self._site.client.temporal, limit=THREADS)]
        except GradeloopError as error:
            problems.append(str(error))
            return ()

    async def _batches(self, problems: list[str]) -> Sequence[BatchLink]:
        try:
            return [BatchLink(batch_path(each.batch_id), each) for each in await self._site.batches.summaries(BATCHES)]
        except GradeloopError as error:
            problems.append(str(error))
            return ()
