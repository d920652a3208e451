"""The guard of all our servers: it refuses requests to another address, from another site, too large or slow. And the live page's port."""

import asyncio
import contextlib
import hmac
import json
import os
import re
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradeloop.errors import InvalidRequest
from gradeloop.telemetry.health import is_local_name, parse_address

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


VARIABLE = "GRADELOOP_PAGE_PORT"
USER_HEADER = "GRADELOOP_PAGE_USER_HEADER"
HOST = "127.0.0.1"
DEFAULT = 8244
"""A port near that of Temporal's UI; always the same, so that an open page finds the next `gradeloop dev` again."""

_PORTS = 65536


def asked_port(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the port that the environment names; None where it names none. Raise InvalidRequest where it is not a port."""
    named = environment.get(VARIABLE, "").strip()
    if not named:
        return None
    if not named.isdecimal() or len(named) > len(str(_PORTS)) or int(named) >= _PORTS:
        raise InvalidRequest(f"{VARIABLE} is {named!r}; write a port from 1 to {_PORTS - 1}, or 0 for a free one")
    return int(named)


def asked_user_header(environment: Mapping[str, str] = os.environ) -> str:
    """Return the header in which the environment's proxy names the person, or nothing; raise InvalidRequest where it is not a header."""
    named = environment.get(USER_HEADER, "").strip()
    if named and not re.fullmatch(r"[A-Za-z0-9-]+", named):
        raise InvalidRequest(f"{USER_HEADER} is {named!r}; write a header's name, as X-Forwarded-User")
    return named


def listening(port: int | None, usual: int = DEFAULT) -> socket.socket:
    """Return a socket on this machine's own address, at this, the usual or a free port; raise InvalidRequest for a taken port."""
    if port is not None:
        try:
            return _bound(port)
        except OSError as error:
            raise InvalidRequest(
                f"{VARIABLE} is {port}, a port that cannot be opened ({error.strerror}); choose another, or unset it"
            ) from None
    try:
        return _bound(usual)
    except OSError:
        return _bound(0)


def _bound(port: int) -> socket.socket:
    return socket.create_server((HOST, port))


def open_socket(address: str, name: str) -> socket.socket:
    """Return a socket that listens at HOST:PORT; raise InvalidRequest where the address is malformed, or cannot be opened."""
    host, port = parse_address(address, name)
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InvalidRequest(f"{name} {address!r} cannot be opened ({error.strerror}); choose another") from None


BODY_BYTES = 1536 * 1024
"""The most bytes of a body: above the largest rubric that a thread takes, and little enough for memory."""

BODY_SECONDS = 30.0
"""The time in which a request's body must have come."""

BYTES_IN_FLIGHT = 64 * 1024 * 1024
"""Bytes of bodies that a server has in memory at the same time."""

DROP_SECONDS = 1.0
"""Seconds to wait for the body of a request that is refused."""

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
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


class RequestRefused(Exception):
    """A request that is refused: the status of the answer, why, and the seconds after which it may be sent again."""

    def __init__(self, status: int, why: str, wait: int | None = None) -> None:
        super().__init__(why)
        self.status, self.why, self.wait = status, why, wait


def as_json(_headers: Mapping[str, str], refusal: RequestRefused) -> tuple[str, bytes]:
    """Return the type and the body of a refusal's answer."""
    return "application/json", json.dumps({"error": refusal.why}).encode()


def has_bearer(headers: Mapping[str, str], token: str) -> bool:
    """Return whether a request was sent with the token, as `Authorization: Bearer`."""
    return hmac.compare_digest(headers.get("authorization", "").encode(), f"Bearer {token}".encode())


@dataclass(frozen=True)
class Guard:
    """ASGI middleware around everything that a server of ours serves; the application gets bodies whole."""

    app: "ASGIApp"
    port: int
    any_host: bool = False
    """Whether any name may address the server: another machine's, or a proxy's."""
    pages: bool = False
    """Whether the server has pages, which call it from their own origin; otherwise only programs use it."""
    origins: Collection[str] = ()
    """The origins of others whose pages may call."""
    methods: Collection[str] = ("GET", "POST")
    admit: Callable[[str, str, Mapping[str, str]], None] | None = None
    """Raises `RequestRefused` by method, path and headers, before the body is read."""
    refused: Callable[[Mapping[str, str], RequestRefused], tuple[str, bytes]] = as_json
    """Returns the type and the body of a refusal's answer, by the request's headers."""
    body_bytes: int = BODY_BYTES
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)
    """The headers of every answer."""
    _in_flight: list[int] = field(default_factory=lambda: [0])

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Pass an allowed request on, and refuse every other one."""
        if scope["type"] != "http":
            return
        headers, body = _single(scope["headers"]), bytearray()
        ours = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]

        async def guarded(message: "Message") -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in dict(ours)]
                message = {**message, "headers": [*kept, *ours]}
            await send(message)

        try:
            try:
                self._check(scope["method"], headers)
                if self.admit is not None:
                    self.admit(scope["method"], scope["path"], headers)
                if _declared(headers) > self.body_bytes:
                    raise _too_large(self.body_bytes)
            except RequestRefused:
                await drop_body(receive, scope["method"])
                raise
            await self._read(receive, body)
            await self.app(scope, _replayed(body, receive), guarded)
        except RequestRefused as error:
            await self._refuse(error, headers, guarded)
        finally:
            # The bytes of all bodies in flight have one limit. However a request ends, it gives its own back here, or
            # some that were aborted would shut the server to all others.
            self._in_flight[0] -= len(body)

    def _check(self, method: str, headers: Mapping[str, str]) -> None:
        """Refuse a request to another name, of another method, or from another site.

        Values of headers are by name in lower case; a header that was sent twice has both values, and so equals nothing.

        Raises:
            RequestRefused: It is one.
        """
        # A page of another site can reach this port in two ways. It may send requests here; then the browser
        # names the page's origin, and the request is refused. Or its owner points a name of their own at this
        # address, so that the browser takes both for one site. Then `Host` is that name, and not one of ours.
        host = headers.get("host", "")
        own = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        if not (self.any_host or host in own or (not self.pages and is_local_name(host))):
            raise RequestRefused(421, f"this server is for this machine; address it as http://127.0.0.1:{self.port}")
        if method not in self.methods:
            raise RequestRefused(405, f"only {' and '.join(self.methods)} are allowed")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin in self.origins:
            return
        if not self.pages:
            if origin is not None or site not in {None, "none"}:
                raise RequestRefused(403, "the request comes from a page in a browser; send it from a program")
        elif method != "GET" or origin is not None:
            if origin not in {None, f"http://{host}"} or site not in {None, "same-origin"}:
                raise RequestRefused(403, "the request came from another site; send it from the page itself")
        elif site not in {None, "same-origin", "none"} and not _is_followed_link(headers):
            raise RequestRefused(403, "the request came from another site; open the page itself")

    async def _read(self, receive: "Receive", body: bytearray) -> None:
        """Read a body, whose bytes count as held, up to the limits, whatever its header says of the length.

        Raises:
            RequestRefused: It is too large, too slow or cut off, or the server holds too much already.
        """
        try:
            async with asyncio.timeout(BODY_SECONDS):
                more = True
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise RequestRefused(400, "the request was cut off; send it again")
                    part, more = message.get("body", b""), message.get("more_body", False)
                    if len(body) + len(part) > self.body_bytes:
                        raise _too_large(self.body_bytes)
                    if self._in_flight[0] + len(part) > max(BYTES_IN_FLIGHT, self.body_bytes):
                        raise RequestRefused(429, "too many bytes at once; try again", 1)
                    body += part
                    self._in_flight[0] += len(part)
        except TimeoutError:
            raise RequestRefused(408, f"the body did not come within {BODY_SECONDS:.0f} s; send it again") from None

    async def _refuse(self, refusal: RequestRefused, headers: Mapping[str, str], send: "Send") -> None:
        """Answer with why, and close the connection: a body may still be on its way."""
        kind, body = self.refused(headers, refusal)
        named = {"content-type": kind, "content-length": str(len(body)), "connection": "close", "allow": ", ".join(self.methods)}
        named |= {"www-authenticate": "Bearer"} if refusal.status == 401 else {}  # noqa: PLR2004 - the status of a missing token
        named |= {"retry-after": str(refusal.wait)} if refusal.wait is not None else {}
        pairs = [(name.encode(), value.encode()) for name, value in named.items()]
        await send({"type": "http.response.start", "status": refusal.status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})


def _is_followed_link(headers: Mapping[str, str]) -> bool:
    """Return whether a page was linked to: another site may do that, but neither frame, load nor fetch, and every port is a site."""
    return (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")


def _declared(headers: Mapping[str, str]) -> float:
    """Return the length of the body as the headers give it; infinite where that is not a number."""
    length = headers.get("content-length", "0")
    return int(length) if length.isdecimal() and len(length) < 16 else float("inf")  # noqa: PLR2004 - far above any limit


def _too_large(most: int) -> RequestRefused:
    return RequestRefused(413, f"the body is larger than {most} bytes; shorten it")


def _single(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name; the values of one that was sent twice in one text."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


async def drop_body(receive: "Receive", method: str) -> None:
    """Read the body of a request that is refused, up to a limit and for a moment.

    A connection that is closed while bytes of the body are on their way is reset, and the answer is lost to the client.
    """
    left = BODY_BYTES if method != "GET" else 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DROP_SECONDS):
            while left > 0:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))


def _replayed(body: bytearray, receive: "Receive") -> "Receive":
    """Return a receiver that hands over a body that was read, and then whatever else comes."""
    unread = [body]

    async def give() -> "Message":
        return {"type": "http.request", "body": bytes(unread.pop()), "more_body": False} if unread else await receive()

    return give
