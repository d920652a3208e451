"""The live page as an ASGI application, and its server."""

import contextlib
import hmac
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gradeloop.client.waiting import WaitingThread, stored_questions, waiting_threads
from gradeloop.errors import GradeloopError, StoreUnavailable
from gradeloop.extensions import parts
from gradeloop.reports.html import document, thread_path
from gradeloop.reports.run_page import criterion_mark, rows_worst_first
from gradeloop.settings.secrets import scrubbed
from gradeloop.telemetry.health import HealthChecks
from gradeloop.temporal.connect import check_server
from gradeloop.web.guard import Guard, RequestRefused
from gradeloop.web.pages import Index, ThreadPages
from gradeloop.web.serving import health_routes, serving_app
from gradeloop.web.site import LivePages, Site, SteeredPage, answer_page, refused

TOKEN_BYTES = 32

logger = logging.getLogger(__name__)


def new_token() -> str:
    """Return a token that nobody guesses."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@contextlib.asynccontextmanager
async def live_page(site: Site, listening: socket.socket) -> AsyncIterator[str]:
    """Serve the pages of a site on a listening socket, and yield their address."""
    port = listening.getsockname()[1]
    app = Guard(_by_raw_path(application(site)), port, pages=True, admit=_token_check(site.token))
    try:
        async with serving_app(app, listening):
            yield f"http://127.0.0.1:{port}"
    finally:
        await site.close()


# A page of another site can make a browser send a form to this machine, but neither JSON nor a header of
# its own, unless this server allowed it, which it does not. The token besides refuses a page of an earlier
# process, whose state may be another one.
def _token_check(token: str) -> Callable[[str, str, Mapping[str, str]], None]:
    """Return what refuses a request that changes something and is not JSON, or without the token of this process."""

    def admit(method: str, _path: str, headers: Mapping[str, str]) -> None:
        if method != "POST":
            return
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestRefused(415, "the body must be JSON, with the header Content-Type: application/json")
        if not hmac.compare_digest(headers.get("x-gradeloop-token", "").encode(), token.encode()):
            raise RequestRefused(403, "this page is from an earlier `gradeloop dev`; reload it")

    return admit


def application(site: Site) -> Starlette:
    """Return the pages and their actions, without the guard."""
    others: list[LivePages] = [routes(site) for routes in parts(lambda extension: extension.routes)]
    index, threads = Index(site, others), ThreadPages(site)
    checks = HealthChecks({"server": lambda: check_server(site.client.temporal), "store": site.store.ping}, scrubbed)

    routes = [
        Route("/", index.show, methods=["GET"]),
        Route("/inbox", InboxPage(site).show, methods=["GET"]),
        *health_routes(checks),
        Route("/threads/{thread:path}/{action}", threads.act, methods=["POST"]),
        Route("/threads/{thread:path}", threads.show, methods=["GET"]),
        *(route for pages in others for route in pages.routes),
    ]

    async def failed(request: Request, error: Exception) -> Response:
        if not isinstance(error, (GradeloopError, HTTPException)):
            logger.error("the live page failed at %s", request.url.path, exc_info=error)
        return refused(request, error, site.token)

    app = Starlette(routes=routes, exception_handlers={GradeloopError: failed, HTTPException: failed, Exception: failed})
    app.router.redirect_slashes = False
    return app


def _by_raw_path(app: ASGIApp) -> ASGIApp:
    """Return an app that reads paths as they were sent, so that an encoded `/` of an id divides nothing."""

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "path": scope["raw_path"].decode("latin-1")}, receive, send)

    return routed


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
            others = "".join(asked.html() for asked in await stored_questions(self._site.store, None))
            page = inbox_page(waiting, others, token=self._site.token)
        except StoreUnavailable as error:
            page = inbox_page(waiting, token=self._site.token, problem=str(error))
        return answer_page(request, page)


def inbox_page(
    waiting: list[WaitingThread],
    others: str = "",
    *,
    token: str,
    problem: str = "",
) -> str:
    """Return the page of what waits for a person."""
    return document(
        "live_inbox.html",
        title=f"Inbox ({len(waiting)}) · gradeloop" if waiting else "Inbox · gradeloop",
        live=SteeredPage(token=token, path="/inbox", open=True),
        waiting=waiting,
        others=Markup(others),  # noqa: S704 - rendered by templates
        problem=problem,
        most=CARDS,
        thread_path=thread_path,
        mark_of=criterion_mark,
        worst_first=rows_worst_first,
    )
