"""The page `/inbox`: what waits for a person, oldest first, each as a card on which they decide, unsure cases, and runs to label."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from gradeloop.batches.undecided import UndecidedBatch, undecided_batches
from gradeloop.client.waiting import WaitingThread, waiting_threads
from gradeloop.errors import StoreUnavailable
from gradeloop.monitors.labelling import MonitorLabels, WaitingLabels
from gradeloop.reports.html import document
from gradeloop.reports.run_page import criterion_mark, rows_worst_first
from gradeloop.web.site import Site, SteeredPage, answer, batch_path, case_path, labels_path, main_of, tag_of, thread_path

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
            undecided = await undecided_batches(self._site.batches)
            labels = await MonitorLabels(self._site.batches.store).waiting(None)
            page = inbox_page(waiting, undecided, labels, token=self._site.token)
        except StoreUnavailable as error:
            page = inbox_page(waiting, token=self._site.token, problem=str(error))

        async def html() -> str:
            return page

        return await answer(request, tag_of(main_of(page)), html)


def inbox_page(
    waiting: list[WaitingThread],
    undecided: Sequence[UndecidedBatch] = (),
    labels: Sequence[WaitingLabels] = (),
    *,
    token: str,
    problem: str = "",
) -> str:
    """Return the page of what waits for a person.

    Args:
        waiting: The threads that wait.
        undecided: The batches with unsure cases.
        labels: The monitors with runs to label.
        token: The secret of the site.
        problem: Why batches and monitors cannot be read.
    """
    return document(
        "live_inbox.html",
        title=f"Inbox ({len(waiting)}) · gradeloop" if waiting else "Inbox · gradeloop",
        scripts=("live.js",),
        styles=("live.css",),
        live=SteeredPage(token=token, path="/inbox", open=True),
        waiting=waiting,
        undecided=undecided,
        labels=labels,
        labels_path=labels_path,
        problem=problem,
        batch_path=batch_path,
        case_path=case_path,
        most=CARDS,
        thread_path=thread_path,
        mark_of=criterion_mark,
        worst_first=rows_worst_first,
    )
