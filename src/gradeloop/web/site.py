"""Shared parts of the pages of `gradeloop dev`: the client, the store, addresses, and answers with tags for what changed."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from pydantic import JsonValue
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from gradeloop.client.call_waits import CallWait
from gradeloop.client.client import GradingClient
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, StoreUnavailable, ThreadClosed, ThreadNotFound, WorkerFailed
from gradeloop.reports.html import Live, batch_path, document
from gradeloop.settings.paths import user_name
from gradeloop.store.engine import Store
from gradeloop.temporal.connect import Connection, wake_worker
from gradeloop.temporal.process import end_all


class SteeredPage(Live):
    """A page that people act on, and the state of what it shows."""

    thread: str | None = None
    """The path of the thread that is shown, or that a case ran as."""
    status: str | None = None
    """The thread's status: idle, running, waiting or interrupted; None where this page takes no action."""
    open: bool = False
    """False where nothing changes by itself any more: the thread is closed, the batch has ended."""
    tag: str = ""
    """The tag of what is shown, for the first look for changes."""
    batch: str | None = None
    """The batch of a case that is shown."""
    attempt: int | None = None
    """The attempt of that case, which people may rate; None where it has not ended."""

    @property
    def batch_path(self) -> str | None:
        """The path of that batch's page."""
        return batch_path(self.batch) if self.batch is not None else None


OPENING, CLOSING = "<main ", "</main>"
"""The ends of the part that changes. Text of people and models is escaped, so neither can come from it."""

STATUSES: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (ThreadNotFound, HTTPStatus.NOT_FOUND),
    (ThreadClosed, HTTPStatus.CONFLICT),
    (ServerUnreachable, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (WorkerFailed, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""The status codes of errors; any other error of ours is a bad request."""


def tag_of(*parts: str) -> str:
    """Return the tag of what a page shows, as its ETag header has it."""
    return f'"{hashlib.sha256(chr(0).join(parts).encode(errors="replace")).hexdigest()[:32]}"'


def is_known(request: Request, tag: str) -> bool:
    """True where the browser shows this already."""
    return request.headers.get("if-none-match") == tag


def unchanged(tag: str) -> Response:
    """Answer that nothing has changed."""
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})


WAIT_HEADER = "Gradeloop-Wait"
"""The header that says what calls wait for; the page's script shows it, since it changes every second and the page does not."""

SHOWN_CHARACTERS = 300
"""The characters of a draft that is being written in the header: 9 bytes each at most."""


def with_wait(response: Response, waits: Sequence[CallWait]) -> Response:
    """Return a response that says, beside its page, what calls wait for."""
    if waits:
        response.headers[WAIT_HEADER] = quote(" … ".join(filter(None, (waits[0].text, waits[0].draft[-SHOWN_CHARACTERS:]))))
    return response


async def answer(request: Request, tag: str, html: Callable[[], Awaitable[str]]) -> Response:
    """Answer with a document, or only its changing part if asked, unless it is shown already."""
    return unchanged(tag) if is_known(request, tag) else answer_page(request, await html(), tag)


def answer_page(request: Request, page: str, tag: str = "") -> Response:
    """Answer with a document that is made already, as `answer` does; without a tag, that of its changing part."""
    tag = tag or tag_of(main_of(page))
    if is_known(request, tag):
        return unchanged(tag)
    return HTMLResponse(main_of(page) if _wants_part(request) else page, headers={"ETag": tag})


def main_of(html: str) -> str:
    """Return the part of a document that changes."""
    return html[html.index(OPENING) : html.index(CLOSING) + len(CLOSING)]


def refused(request: Request, error: Exception, token: str) -> Response:
    """Answer with an error: as a page to a browser, and as JSON to a script."""
    message, status = _message_and_status(error)
    if request.method == "GET" and status == HTTPStatus.BAD_REQUEST:
        status = HTTPStatus.NOT_FOUND  # all that can be wrong with a GET is the name of what it asks for
    if request.method != "GET" or _wants_part(request):
        return JSONResponse({"error": message}, status)
    live = SteeredPage(token=token, path=request.url.path)
    html = document(
        "live_error.html",
        title="gradeloop",
        live=live,
        message=message,
        missing=status == HTTPStatus.NOT_FOUND,
    )
    return HTMLResponse(html, status)


def _message_and_status(error: Exception) -> tuple[str, HTTPStatus]:
    if isinstance(error, HTTPException):
        status = HTTPStatus(error.status_code)
        return "page not found; start at /" if status == HTTPStatus.NOT_FOUND else error.detail, status
    if isinstance(error, GradeloopError):
        return str(error), next((status for kind, status in STATUSES if isinstance(error, kind)), HTTPStatus.BAD_REQUEST)
    return "gradeloop failed; its terminal shows the error", HTTPStatus.INTERNAL_SERVER_ERROR


def _wants_part(request: Request) -> bool:
    return "part" in request.query_params


REMEMBERED = 512
"""The most pages of which it is remembered what they showed; far above what people have open."""


@dataclass(frozen=True)
class ShownPage:
    """Content of a page at the last look."""

    mark: str
    """Stands for what the page is made from, and is cheap to read."""
    tag: str
    """The tag of what it showed."""
    again: float = 0.0
    """The loop's time before which the page is not read again: what takes long to read is read less often."""


@dataclass(frozen=True)
class IndexSection:
    """Section of an extension on the page at `/`."""

    html: str
    waiting: int = 0
    """Number of its cases that wait for a person."""
    owners: tuple[str, ...] = ()
    """The ids of what it lists, by which threads of theirs begin, so that none counts twice."""


@dataclass(frozen=True)
class LivePages:
    """The pages of an extension."""

    routes: Sequence[Route]
    section: Callable[[str], Awaitable[IndexSection]]
    """Makes its section of the page at `/` from the words of a search, empty without one; empty HTML where there is nothing to show."""
    rank: int = 0
    """The place of the section: lower ones come first, and all before the threads."""


@dataclass
class Site:
    """One `gradeloop dev`, as its pages see it."""

    client: GradingClient
    connection: Connection
    store: Store
    token: str
    """A secret of this process; whatever changes anything has to bring it along."""
    user_header: str = ""
    """The header in which a proxy names the person; empty for this machine's user."""
    ui: str | None = None
    """The address of Temporal's own UI; None where there is none."""
    _shown: dict[str, ShownPage] = field(default_factory=dict)
    _tasks: "set[asyncio.Task[Any]]" = field(default_factory=set)

    def signed(self, request: Request, body: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Return a decision with the person of this request; raise InvalidRequest where the body names one, or the proxy does not."""
        if "by" in body:
            raise InvalidRequest("by: the server of this page says who decides; leave the field out")
        if not self.user_header:
            return {**body, "by": user_name()}
        named = [value.strip() for value in request.headers.getlist(self.user_header)]
        if len(named) != 1 or not named[0]:
            raise InvalidRequest(f"the header {self.user_header} names no person, or several; come through the proxy that sets it")
        return {**body, "by": named[0].encode("latin-1").decode(errors="replace")}

    def shown(self, path: str) -> ShownPage | None:
        """Return what a page showed last; None where that is not remembered."""
        return self._shown.get(path)

    def remember(self, path: str, shown: ShownPage) -> None:
        """Remember what a page shows, and forget the page that was remembered longest ago where there are too many."""
        self._shown.pop(path, None)
        self._shown[path] = shown
        if len(self._shown) > REMEMBERED:
            self._shown.pop(next(iter(self._shown)))

    def forget(self, path: str) -> None:
        """Have the next look at a page read it anew."""
        self._shown.pop(path, None)

    async def wake(self, thread_id: str) -> None:
        """Start the worker of a thread that `gradeloop run` began, where it has ended.

        Raises:
            GradeloopError: There is no such thread, or its worker does not start.
        """
        await wake_worker(await self.client.task_queue_of(thread_id), self.connection)

    def begin(self, work: "Coroutine[Any, Any, Any]") -> "asyncio.Task[Any]":
        """Start work that goes on after its request was answered, until the site closes; its starter reads what it raises."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # which asyncio would log as never retrieved

    async def close(self) -> None:
        """Cancel the work that is not done; the runs that it waits for go on."""
        await end_all(self._tasks)


async def in_time(work: "Coroutine[Any, Any, object]", seconds: float, message: str) -> None:
    """Do work within a time; raise ServerUnreachable with this message where it took longer."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        raise ServerUnreachable(message) from None
