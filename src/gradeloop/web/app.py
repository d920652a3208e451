"""The live page as an ASGI application, and the port that it is served on."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from gradeloop.errors import GradeloopError, InvalidRequest
from gradeloop.web.guard import Guard
from gradeloop.web.pages import BatchPages, Index, ThreadPages
from gradeloop.web.site import Site, refused

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send


VARIABLE = "GRADELOOP_PAGE_PORT"
HOST = "127.0.0.1"
DEFAULT = 8244
"""Beside Temporal's own 8233; always the same, so that a page that is open finds the next `gradeloop dev` again."""

_PORTS = 65536


def asked_port(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the port that the environment names; None where it names none.

    Raises:
        InvalidRequest: It is no port.
    """
    named = environment.get(VARIABLE, "").strip()
    if not named:
        return None
    if not named.isdecimal() or len(named) > len(str(_PORTS)) or int(named) >= _PORTS:
        raise InvalidRequest(f"{VARIABLE} is {named!r}; write a port from 1 to {_PORTS - 1}, or 0 for a free one")
    return int(named)


def listening(asked: int | None) -> socket.socket:
    """Return a socket that listens on this machine's own address alone.

    Raises:
        InvalidRequest: The port that was asked for is taken.
    """
    if asked is not None:
        try:
            return _bound(asked)
        except OSError as error:
            raise InvalidRequest(
                f"{VARIABLE} is {asked}, a port that cannot be opened ({error.strerror}); choose another, or unset it"
            ) from None
    try:
        return _bound(DEFAULT)
    except OSError:
        return _bound(0)


def _bound(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what is left of closed connections holds no port
        found.bind((HOST, port))
        found.listen(128)
    except OSError:
        found.close()
        raise
    return found


GRACE_SECONDS = 1
"""For answers that are under way when the page ends."""

TOKEN_BYTES = 32

logger = logging.getLogger(__name__)


def new_token() -> str:
    """Return a token that nobody guesses."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@contextlib.asynccontextmanager
async def live_page(site: Site, listening: socket.socket) -> AsyncIterator[str]:
    """Serve the pages of a site on a listening socket, and yield their address."""
    port = listening.getsockname()[1]
    server = _Server(_config(Guard(_by_raw_path(application(site)), port, site.token)))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        listening.close()
        await site.close()


def application(site: Site) -> Starlette:
    """Return the pages and what can be said from them, without their guard."""
    index, threads, batches = Index(site), ThreadPages(site), BatchPages(site)
    routes = [
        Route("/", index.show, methods=["GET"]),
        Route("/threads/{thread:path}/{action}", threads.act, methods=["POST"]),
        Route("/threads/{thread:path}", threads.show, methods=["GET"]),
        Route("/batches/{batch}/pause", batches.pause, methods=["POST"]),
        Route("/batches/{batch}/cases/{case:path}", batches.show_case, methods=["GET"]),
        Route("/batches/{batch}", batches.show, methods=["GET"]),
    ]

    async def failed(request: "Request", error: Exception) -> "Response":
        if not isinstance(error, (GradeloopError, HTTPException)):
            logger.error("the live page failed at %s", request.url.path, exc_info=error)
        return refused(request, error, site.token)

    made = Starlette(routes=routes, exception_handlers={GradeloopError: failed, HTTPException: failed, Exception: failed})
    made.router.redirect_slashes = False
    return made


def _by_raw_path(app: "ASGIApp") -> "ASGIApp":
    """Have paths be read as they were sent, so that a `/` that belongs to an id is none that divides."""

    async def routed(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await app({**scope, "path": scope["raw_path"].decode("latin-1")}, receive, send)

    return routed


def _config(app: "ASGIApp") -> uvicorn.Config:
    """Return uvicorn's settings: quiet, since what fails is logged by us, and without anything that believes a header."""
    return uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="off",
        http="h11",
        ws="none",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


class _Server(uvicorn.Server):
    """Leaves the signals to the program that it is a part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
