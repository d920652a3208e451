"""The server under all our HTTP doors: quiet, and with a bound on connections and on the time that a request's head may take."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gradeloop.telemetry.health import HealthChecks, report

GRACE_SECONDS = 1
"""The time that answers under way have when a server ends."""

HEAD_SECONDS = 10.0
"""The time in which the first request's head must have come; between requests uvicorn waits 5 s."""

CONNECTIONS = 256
"""Connections that a server has: with several servers in a process far fewer than the 1,024 files that it may open."""


class _BoundedProtocol(H11Protocol):
    """Closes a connection whose request does not come, at once where a new one finds no place.

    A full server closes the connection that has been without a request for longest, so that unfinished heads displace each other and no
    exporter; where all are being answered, the new one is closed.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > CONNECTIONS:
            waiting = [other for other in self.connections if isinstance(other, _BoundedProtocol) and other is not self and other.idle]
            min(waiting, key=lambda other: other.since, default=self).drop()

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()

    def _await_request(self) -> None:
        self.since = self.loop.time()
        self.loop.call_later(HEAD_SECONDS, self._drop_overdue, self.since)

    def _drop_overdue(self, since: float) -> None:
        if self.idle and self.since == since:
            self.drop()

    @property
    def idle(self) -> bool:
        """Whether no request is being read or answered."""
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr] # None before the first request

    def drop(self) -> None:
        """Close the connection now."""
        self.connections.discard(self)
        self.transport.abort()


class QuietServer(uvicorn.Server):
    """A server that leaves the signals to the program around it, logs nothing, and trusts no header."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="critical",
                access_log=False,
                lifespan="off",
                http=_BoundedProtocol,
                ws="none",
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


@contextlib.asynccontextmanager
async def serving_app(app: ASGIApp, listening: socket.socket) -> AsyncIterator[None]:
    """Serve an application on a listening socket, which is closed at the end."""
    server = QuietServer(app)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.gather(running, return_exceptions=True)
        listening.close()


def health_routes(checks: HealthChecks) -> list[Route]:
    """Return the routes of `/healthz` and `/readyz`."""

    async def alive(_request: Request) -> Response:
        return JSONResponse({"ok": True})

    async def ready(_request: Request) -> Response:
        status, document = report(await checks.results())
        return JSONResponse(document, status)

    return [Route("/healthz", alive, methods=["GET"]), Route("/readyz", ready, methods=["GET"])]
