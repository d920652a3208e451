"""The codec server: decrypts for a person's browser what Temporal's web UI shows, for those alone who know its token."""

import hmac
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from google.protobuf.json_format import MessageToDict, Parse, ParseError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio.api.common.v1 import Payloads
from temporalio.converter import PayloadCodec

from gradeloop.errors import PayloadUnreadable
from gradeloop.web.guard import Guard, RequestRefused, has_bearer

BODY_BYTES = 64 * 1024 * 1024
"""The most bytes of a request: sixteen payloads of the largest size that a server takes."""


def codec_application(codec: PayloadCodec, token: str, origins: Sequence[str], port: int, *, any_host: bool) -> Guard:
    """Return the application: `POST /encode` and `POST /decode`, as Temporal's UI and its command line call them.

    Args:
        codec: What encrypts and decrypts.
        token: Whoever calls must send it, as `Authorization: Bearer`, or as the first part of the path: the UI of a development server
            sends no such header.
        origins: The addresses of the UIs whose pages may call, such as `http://127.0.0.1:8233`.
        port: The port of the server.
        any_host: Whether any name may address the server.
    """

    async def convert(request: Request) -> Response:
        try:
            payloads = Parse(await request.body(), Payloads()).payloads
        except (ParseError, UnicodeDecodeError):
            return _refused(HTTPStatus.BAD_REQUEST, 'the body is no JSON of payloads; send {"payloads": [{"metadata": {}, "data": ""}]}')
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
