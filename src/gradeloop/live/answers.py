"""Answers of the live page: a whole document, the part of it that changes, or the news that nothing has."""

import hashlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from gradeloop.errors import GradeloopError, ServerUnreachable, StoreUnavailable, ThreadClosed, ThreadNotFound, WorkerFailed
from gradeloop.live.steered import Steered
from gradeloop.reports.document import document

OPENING, CLOSING = "<main ", "</main>"
"""Of the part that changes. What people and models wrote is escaped, so neither can come from it."""

STATUSES: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (ThreadNotFound, HTTPStatus.NOT_FOUND),
    (ThreadClosed, HTTPStatus.CONFLICT),
    (ServerUnreachable, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (WorkerFailed, HTTPStatus.SERVICE_UNAVAILABLE),
)


def tag_of(*parts: str) -> str:
    """Return the mark of what a page shows, as a header has it."""
    return f'"{hashlib.sha256(chr(0).join(parts).encode(errors="replace")).hexdigest()[:32]}"'


def knows(request: Request, tag: str) -> bool:
    """Tell whether the one who asks shows this already."""
    return request.headers.get("if-none-match") == tag


def unchanged(tag: str) -> Response:
    """Say that nothing has changed."""
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})


async def answer(request: Request, tag: str, html: Callable[[], Awaitable[str]]) -> Response:
    """Answer with a document, or its changing part where that alone is asked for, unless it is shown already."""
    if knows(request, tag):
        return unchanged(tag)
    whole = await html()
    return HTMLResponse(main_of(whole) if _wants_part(request) else whole, headers={"ETag": tag})


def main_of(html: str) -> str:
    """Return the part of a document that changes."""
    return html[html.index(OPENING) : html.index(CLOSING) + len(CLOSING)]


def refused(request: Request, error: Exception, token: str) -> Response:
    """Say what is wrong: in a page to somebody who opens one, and as JSON to a script."""
    words, status = _told(error)
    if request.method == "GET" and status == HTTPStatus.BAD_REQUEST:
        status = HTTPStatus.NOT_FOUND  # all that can be wrong with a reading is what it names
    if request.method != "GET" or _wants_part(request):
        return JSONResponse({"error": words}, status)
    live = Steered(token=token, path=request.url.path)
    html = document("live_words.html", title="gradeloop", scripts=("live.js",), styles=("live.css",), live=live, words=words)
    return HTMLResponse(html, status)


def _told(error: Exception) -> tuple[str, HTTPStatus]:
    if isinstance(error, HTTPException):
        words = {HTTPStatus.NOT_FOUND: "page not found; start at /"}
        return words.get(HTTPStatus(error.status_code), error.detail), HTTPStatus(error.status_code)
    if isinstance(error, GradeloopError):
        return str(error), next((status for kind, status in STATUSES if isinstance(error, kind)), HTTPStatus.BAD_REQUEST)
    return "gradeloop failed; its terminal shows the error", HTTPStatus.INTERNAL_SERVER_ERROR


def _wants_part(request: Request) -> bool:
    return "part" in request.query_params
