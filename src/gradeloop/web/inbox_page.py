"""The page `/inbox`: what waits for a person, oldest first, each as a card on which they decide, and the cases that no judge decided."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from gradeloop.batches.undecided import UndecidedBatch, undecided_batches
from gradeloop.client.waiting import WaitingThread, waiting_threads
from gradeloop.errors import StoreUnavailable
from gradeloop.reports.html import document
from gradeloop.reports.run_page import criterion_mark, rows_worst_first
from gradeloop.web.site import Site, SteeredPage, answer, batch_path, case_path, main_of, tag_of, thread_path

CARDS = 20
"""The most cards on the page: each is read from its thread; a decision makes room for the next."""


class InboxPage:
    """The page at `/inbox`."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Answer with the cards."""
        waiting = await waiting_threads(self._site.client.temporal, limit=CARDS)
        try:
            page = inbox_page(waiting, await undecided_batches(self._site.batches), token=self._site.token)
        except StoreUnavailable as error:
            page = inbox_page(waiting, token=self._site.token, problem=str(error))

        async def html() -> str:
            return page

        return await answer(request, tag_of(main_of(page)), html)


def inbox_page(waiting: list[WaitingThread], undecided: Sequence[UndecidedBatch] = (), *, token: str, problem: str = "") -> str:
    """Return the page of what waits for a person.

    Args:
        waiting: The threads that wait.
        undecided: The batches with unsure cases.
        token: The secret of the site.
        problem: Why batches cannot be read.
    """
    return document(
        "live_inbox.html",
        title=f"Inbox ({len(waiting)}) · gradeloop" if waiting else "Inbox · gradeloop",
        scripts=("live.js",),
        styles=("live.css",),
        live=SteeredPage(token=token, path="/inbox", open=True),
        waiting=waiting,
        undecided=undecided,
        problem=problem,
        batch_path=batch_path,
        case_path=case_path,
        most=CARDS,
        thread_path=thread_path,
        mark_of=criterion_mark,
        worst_first=rows_worst_first,
    )
