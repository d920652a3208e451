"""Temporal's web UI behind our guard: its files come from an empty server that runs for them, what it asks from the user's server."""

import asyncio
import contextlib
import hmac
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus

import httpx2
from google.protobuf.json_format import MessageToDict, Parse, ParseError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from temporalio.api.common.v1 import Payloads
from temporalio.converter import PayloadCodec

from gradeloop.errors import PayloadUnreadable
from gradeloop.temporal.server import ServerInfo, free_port, server_environment, ui_command
from gradeloop.web.guard import HEADERS, Guard, RequestRefused, has_bearer
from gradeloop.web.serving import serving_app

PORT = 8233
"""The port of Temporal's own UI."""

SETTINGS = "/api/v1/settings"
"""The paths that the UI's server itself answers, beside files."""

JSON = "application/json+no-payload-shorthand"
"""The form of payloads that the UI reads; the API's own default is another."""

LEASH = """
import subprocess, sys, threading
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=lambda: (sys.stdin.read(), server.kill()), daemon=True).start()
server.wait()
"""
"""Runs a command until it ends, or until whoever started it has: then the pipe to it is closed, however that happened."""


class TemporalUi:
    """Starts the server of the UI's files at the first request, and ends it with the page."""

    def __init__(self, server: ServerInfo) -> None:
        self._server = server
        self._http = httpx2.AsyncClient(trust_env=False, timeout=90)  # the UI waits a minute for new events
        self._starting = asyncio.Lock()
        self._files: tuple[asyncio.subprocess.Process, str] | None = None

    async def answer(self, request: Request) -> Response:
        """Answer with a file of the UI, or with what the user's server says."""
        path = request.url.path
        asks = path.startswith("/api/") and path != SETTINGS
        base = httpx2.URL(self._server.api if asks else await self._address())
        headers = {"Host": self._server.api_host, "Accept": JSON, "Content-Type": JSON} if asks else {}
        target = base.copy_with(raw_path=request.scope["raw_path"] + b"?" + request.scope["query_string"])
        try:
            found = await self._http.request(request.method, target, headers=headers, content=await request.body())
        except httpx2.HTTPError as error:
            raise RequestRefused(503, f"Temporal's server does not answer ({type(error).__name__}); try again") from None
        kept = {name: found.headers[name] for name in ("content-type", "content-security-policy") if name in found.headers}
        return Response(found.content, found.status_code, kept)

    async def _address(self) -> str:
        """Return where the files are, which a server serves from now on."""
        async with self._starting:
            if self._files is None or self._files[0].returncode is not None:
                port = free_port()
                command = [sys.executable, "-I", "-S", "-c", LEASH, *ui_command(port)]
                environment = server_environment(os.environ)
                process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL)
                self._files = process, f"http://127.0.0.1:{port}"
            process, address = self._files
            while process.returncode is None:
                with contextlib.suppress(httpx2.HTTPError):
                    await self._http.get(f"{address}{SETTINGS}")
                    return address
                await asyncio.sleep(0.1)
            raise RequestRefused(503, "Temporal's UI does not start; try again")

    async def close(self) -> None:
        """End the server of the files."""
        await self._http.aclose()
        if self._files is not None:
            process, _ = self._files
            process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
            await process.wait()


@contextlib.asynccontextmanager
async def serving_ui(server: ServerInfo, listening: socket.socket) -> AsyncIterator[str]:
    """Serve Temporal's UI on a listening socket, and yield its address."""
    ui, port = TemporalUi(server), listening.getsockname()[1]
    methods = ("GET", "POST", "PUT", "PATCH", "DELETE")
    app = Router([Route("/{path:path}", ui.answer, methods=methods)], redirect_slashes=False)
    headers = {name: value for name, value in HEADERS.items() if name not in {"Content-Security-Policy", "Cache-Control"}}
    try:
        async with serving_app(Guard(app, port, pages=True, methods=methods, headers=headers), listening):
            yield f"http://127.0.0.1:{port}"
    finally:
        await ui.close()


BODY_BYTES = 64 * 1024 * 1024
"""The most bytes of a request: sixteen payloads of the largest size that a server takes."""


def codec_application(codec: PayloadCodec, token: str, origins: Sequence[str], port: int, *, any_host: bool) -> Guard:
    """Return the application: `POST /encode` and `POST /decode`, as Temporal's UI and its command line call them.

    `token`: whoever calls must send it, as `Authorization: Bearer`, or as the first part of the path: the UI of a development server sends
    no such header.
    `origins`: the addresses of the UIs whose pages may call, such as `http://127.0.0.1:8233`.
    """

    async def convert(request: Request) -> Response:
        try:
            payloads = Parse(await request.body(), Payloads()).payloads
        except (ParseError, UnicodeDecodeError):
            return _refused(HTTPStatus.BAD_REQUEST, 'the body is not JSON of payloads; send {"payloads": [{"metadata": {}, "data": ""}]}')
        try:
            converted = await (codec.encode if request.path_params["action"] == "encode" else codec.decode)(payloads)
        except PayloadUnreadable as error:
            return _refused(HTTPStatus.BAD_REQUEST, str(error))
        return JSONResponse(MessageToDict(Payloads(payloads=converted)), headers={"Cache-Control": "no-store"})

    routes = [Route("/{token}/{action}", convert, methods=["POST"]), Route("/{action}", convert, methods=["POST"])]
    headers = ["content-type", "x-namespace", "authorization"]
    cors = Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["POST"], allow_headers=headers, allow_credentials=True)
    app = Starlette(routes=routes, middleware=[cors])
    app.router.redirect_slashes = False

    def admit(method: str, path: str, headers: Mapping[str, str]) -> None:
        in_path = path.strip("/").rpartition("/")[0]
        if method == "POST" and not (has_bearer(headers, token) or hmac.compare_digest(in_path.encode(), token.encode())):
            raise RequestRefused(403, "the token is missing or another one; see what the codec server printed")

    return Guard(app, port, any_host=any_host, origins=origins, methods=("POST", "OPTIONS"), admit=admit, body_bytes=BODY_BYTES)


def _refused(status: HTTPStatus, why: str) -> Response:
    return JSONResponse({"error": why}, status_code=status)
