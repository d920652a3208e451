"""The page `/inbox`: what waits for a person, oldest first, each as a card on which they decide."""

from starlette.requests import Request
from starlette.responses import Response

from gradeloop.client.waiting import WaitingThread, waiting_threads
from gradeloop.reports.html import document
from gradeloop.reports.run_page import criterion_mark, rows_worst_first
from gradeloop.web.site import Site, SteeredPage, answer, main_of, tag_of, thread_path

CARDS = 20
"""The most cards on the page: each is read from its thread; a decision makes room for the next."""


class InboxPage:
    """The page at `/inbox`."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Answer with the cards."""
        waiting = await waiting_threads(self._site.client.temporal, limit=CARDS)
        page = inbox_page(waiting, token=self._site.token)

        async def html() -> str:
            return page

        return await answer(request, tag_of(main_of(page)), html)


def inbox_page(waiting: list[WaitingThread], *, token: str) -> str:
    """Return the page of what waits for a person."""
    return document(
        "live_inbox.html",
        title=f"Inbox ({len(waiting)}) · gradeloop" if waiting else "Inbox · gradeloop",
        scripts=("live.js",),
        styles=("live.css",),
        live=SteeredPage(token=token, path="/inbox", open=True),
        waiting=waiting,
        most=CARDS,
        thread_path=thread_path,
        mark_of=criterion_mark,
        worst_first=rows_worst_first,
    )
