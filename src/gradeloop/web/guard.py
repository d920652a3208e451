"""The door of the live page: its port, and the guard that refuses requests to another address, from another site, or too large."""

import asyncio
import contextlib
import hmac
import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradeloop.errors import InvalidRequest

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


VARIABLE = "GRADELOOP_PAGE_PORT"
USER_HEADER = "GRADELOOP_PAGE_USER_HEADER"
HOST = "127.0.0.1"
DEFAULT = 8244
"""A port near Temporal's own 8233; always the same, so that an open page finds the next `gradeloop dev` again."""

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


def asked_user_header(environment: Mapping[str, str] = os.environ) -> str:
    """Return the header in which the environment's proxy names the person; empty where it names none.

    Raises:
        InvalidRequest: It is not a header's name.
    """
    named = environment.get(USER_HEADER, "").strip()
    if named and not re.fullmatch(r"[A-Za-z0-9-]+", named):
        raise InvalidRequest(f"{USER_HEADER} is {named!r}; write a header's name, as X-Forwarded-User")
    return named


def listening(port: int | None) -> socket.socket:
    """Return a socket that listens on this machine's own address alone: on this port, else on the default or a free one.

    Raises:
        InvalidRequest: The named port cannot be opened.
    """
    if port is not None:
        try:
            return _bound(port)
        except OSError as error:
            raise InvalidRequest(
                f"{VARIABLE} is {port}, a port that cannot be opened ({error.strerror}); choose another, or unset it"
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


BODY_BYTES = 1536 * 1024
"""The most bytes of a body: above the largest rubric that a thread takes, and little enough for memory."""

DROP_SECONDS = 1.0
"""How long the body of a request that is refused is waited for."""

TOKEN_HEADER = "x-gradeloop-token"  # noqa: S105 - a header's name

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The policy of every answer. A document's own, which names its scripts by their hashes, applies beside it: both must allow."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


@dataclass(frozen=True)
class Refusal:
    """A request that is refused: the status of the answer, and why."""

    status: int
    why: str


@dataclass(frozen=True)
class Guard:
    """ASGI middleware around everything that the live page serves."""

    app: "ASGIApp"
    port: int
    token: str

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Pass an allowed request on, and refuse every other one."""
        if scope["type"] != "http":
            return
        body = b""
        refusal = self.refusal(scope["method"], _single(scope["headers"]))
        if scope["method"] == "POST":
            if refusal is None:
                body, refusal = await _read_body(receive)
            else:
                await drop_body(receive)
        guarded = _Guarded(send)
        if refusal:
            await guarded.refuse(refusal)
        else:
            await self.app(scope, _replayed(body, receive), guarded)

    def refusal(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request with these headers is refused; None where it is not.

        Args:
            method: GET, POST or another.
            headers: Values by name in lower case; a header that was sent twice has both values, and so equals nothing.
        """
        host = headers.get("host", "")
        if host not in {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}:
            return Refusal(421, f"this page is served at http://127.0.0.1:{self.port}; open that address")
        if method == "GET":
            return _refusal_to_read(headers)
        if method == "POST":
            return self._refusal_to_change(headers, f"http://{host}")
        return Refusal(405, "only GET and POST are allowed")

    def _refusal_to_change(self, headers: Mapping[str, str], origin: str) -> Refusal | None:
        """Return why a request that changes something is refused; None where it is not."""
        if headers.get("origin", origin) != origin or headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return Refusal(403, "the request came from another site; send it from the page itself")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return Refusal(415, "the body must be JSON, with the header Content-Type: application/json")
        if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self.token.encode()):
            return Refusal(403, "this page is from an earlier `gradeloop dev`; reload it")
        length = headers.get("content-length", "0")
        return _too_large() if not length.isdecimal() or len(length) > len(str(BODY_BYTES)) or int(length) > BODY_BYTES else None


def _refusal_to_read(headers: Mapping[str, str]) -> Refusal | None:
    """Return why a GET is refused, if it is: another site may link here, but neither frame, load nor fetch.

    `same-site` is another site too: every port of this machine is.
    """
    if headers.get("sec-fetch-site", "none") in {"same-origin", "none"}:
        return None
    if (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document"):
        return None
    return Refusal(403, "the request came from another site; open the page itself")


def _too_large() -> Refusal:
    return Refusal(413, f"the body is larger than {BODY_BYTES} bytes; shorten it")


def _single(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name; the values of one that was sent twice in one text."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


async def _read_body(receive: "Receive") -> tuple[bytes, Refusal | None]:
    """Read a request's body up to the limit, whatever its header says of the length."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"", Refusal(400, "the request was cut off")
        body += message.get("body", b"")
        if len(body) > BODY_BYTES:
            return b"", _too_large()
        if not message.get("more_body"):
            return body, None


async def drop_body(receive: "Receive") -> None:
    """Read the body of a request that is refused, up to a limit and for a moment.

    A connection that is closed while bytes of the body are on their way is reset, and the answer is lost to the client.
    """
    left = BODY_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DROP_SECONDS):
            while left > 0:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))


def _replayed(body: bytes, receive: "Receive") -> "Receive":
    """Return a receiver that hands over a body that was read, and then whatever else comes."""
    unread = [body]

    async def give() -> "Message":
        return {"type": "http.request", "body": unread.pop(), "more_body": False} if unread else await receive()

    return give


class _Guarded:
    """Sends answers with the headers that every answer has."""

    def __init__(self, send: "Send") -> None:
        self._send = send

    async def __call__(self, message: "Message") -> None:
        if message["type"] == "http.response.start":
            ours = {name for name, _ in _RAW_HEADERS}
            kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in ours]
            message = {**message, "headers": [*kept, *_RAW_HEADERS]}
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with why, and close the connection: a body may still be on its way."""
        body = json.dumps({"error": refusal.why}).encode()
        named = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close", "allow": "GET, POST"}
        headers = [(name.encode(), value.encode()) for name, value in named.items()]
        await self({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await self({"type": "http.response.body", "body": body})
