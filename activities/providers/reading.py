"""A reply's body off the wire: JSON or a stream of events, in full or not at all."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Protocol

from pydantic_core import from_json

from activities.failures import ModelFault
from activities.providers.model import CONNECT_TIMEOUT, IDLE_TIMEOUT, LONGEST
from activities.providers.wire import JsonObject, json_object, reported

if TYPE_CHECKING:
    import httpx2


def waiting(*, streamed: bool) -> "httpx2.Timeout":
    """Return how long to wait for the next bytes: a stream that says nothing hangs, any other reply comes at its end."""
    import httpx2  # with the SDKs

    return httpx2.Timeout(LONGEST, read=IDLE_TIMEOUT if streamed else LONGEST, connect=CONNECT_TIMEOUT)


class Assembly(Protocol):
    """Puts the events of a stream together to what the same call returns without streaming."""

    def add(self, event: JsonObject) -> None:
        """Take the next event in.

        Raises:
            ModelFault: It reports an error.
        """
        ...

    def body(self) -> JsonObject | None:
        """Return the whole reply; None where its end has not come."""
        ...


async def reply_body(response: "httpx2.Response", assembly: Assembly) -> JsonObject:
    """Read a reply, streamed or not: servers that know no streams answer with one JSON object.

    Raises:
        ModelFault: It is no JSON, too large, reports an error, or ends early.
    """
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        return json_object(await response.aread())
    async for event in _events(response):
        if event.get("error") and "choices" not in event and event.get("type") in (None, "error"):
            raise reported(event["error"], status=200)
        assembly.add(event)
    body = assembly.body()
    if body is None:
        raise ModelFault("malformed_response", "the stream ended before the reply was complete")
    return body


async def _events(response: "httpx2.Response") -> AsyncIterator[JsonObject]:
    """Yield the data of each server-sent event; `[DONE]` and comments say nothing."""
    data: list[str] = []
    async for line in _lines(response):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            if (event := _event("\n".join(data))) is not None:
                yield event
            data = []
    if data and (event := _event("\n".join(data))) is not None:  # some servers leave the last blank line out
        yield event


async def _lines(response: "httpx2.Response") -> AsyncIterator[str]:
    """Split at line feeds alone: what a text holds besides, U+2028 among them, is no end of a line here."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _event(data: str) -> JsonObject | None:
    if data.strip() in ("", "[DONE]"):
        return None
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise ModelFault("malformed_response", f"an event of the stream is no JSON ({error}); it begins {data[:80]!r}") from None
    if not isinstance(value, dict):
        raise ModelFault("malformed_response", f"an event of the stream is no object: {data[:80]!r}")
    return value
