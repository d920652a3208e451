"""What a request has to be before the live page looks at it: to this very address, from this very page, and small."""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


BODY_BYTES = 1536 * 1024
"""Above the largest rubric that a thread takes, and below what would hurt to hold."""

TOKEN_HEADER = "x-gradeloop-token"  # noqa: S105 - a header's name

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The frame of every answer. A document's own policy, which names its scripts by their hashes, holds beside it: both must agree."""

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
    """Why a request is not looked at."""

    status: int
    why: str


@dataclass(frozen=True)
class Guard:
    """ASGI middleware around everything that the live page serves."""

    app: "ASGIApp"
    port: int
    token: str

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer a request that may be answered, and refuse every other one."""
        if scope["type"] != "http":
            return
        body = b""
        refusal = self.refusal(scope["method"], _single(scope["headers"]))
        if refusal is None and scope["method"] == "POST":
            body, refusal = await _body(receive)
        guarded = _Guarded(send)
        if refusal:
            await guarded.refuse(refusal)
        else:
            await self.app(scope, _given(body, receive), guarded)

    def refusal(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request with these headers is refused; None where it is not.

        Args:
            method: GET, POST or another.
            headers: By name in lower case; one that was sent twice has both values, and so equals nothing.
        """
        host = headers.get("host", "")
        if host not in {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}:
            return Refusal(421, f"this page is served at http://127.0.0.1:{self.port}; open that address")
        if method == "GET":
            return _unseen(headers)
        if method == "POST":
            return self._unheard(headers, f"http://{host}")
        return Refusal(405, "only GET and POST are allowed")

    def _unheard(self, headers: Mapping[str, str], origin: str) -> Refusal | None:
        """Say why a request that changes something is refused."""
        if headers.get("origin", origin) != origin or headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return Refusal(403, "the request came from another site; send it from the page itself")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return Refusal(415, "the body must be JSON, with the header Content-Type: application/json")
        if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self.token.encode()):
            return Refusal(403, "this page is from an earlier `gradeloop dev`; reload it")
        length = headers.get("content-length", "0")
        return _too_large() if not length.isdecimal() or len(length) > len(str(BODY_BYTES)) or int(length) > BODY_BYTES else None


def _unseen(headers: Mapping[str, str]) -> Refusal | None:
    """Say why a reading is refused: another site may link here, and neither frame, load nor fetch.

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


async def _body(receive: "Receive") -> tuple[bytes, Refusal | None]:
    """Read a request's body, and no more of it than it may have, whatever it says of its length."""
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


def _given(body: bytes, receive: "Receive") -> "Receive":
    """Return what hands the body over, and then whatever else comes."""
    unread = [body]

    async def give() -> "Message":
        return {"type": "http.request", "body": unread.pop(), "more_body": False} if unread else await receive()

    return give


class _Guarded:
    """Sends answers with the headers that every one of them has."""

    def __init__(self, send: "Send") -> None:
        self._send = send

    async def __call__(self, message: "Message") -> None:
        if message["type"] == "http.response.start":
            ours = {name for name, _ in _RAW_HEADERS}
            kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in ours]
            message = {**message, "headers": [*kept, *_RAW_HEADERS]}
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with a sentence, and have the connection end: a body may still be on its way."""
        body = json.dumps({"error": refusal.why}).encode()
        named = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close", "allow": "GET, POST"}
        headers = [(name.encode(), value.encode()) for name, value in named.items()]
        await self({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await self({"type": "http.response.body", "body": body})
