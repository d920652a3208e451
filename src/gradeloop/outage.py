"""A server that is gone: how long a call that waits for something rides it out."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.service import RPCError, RPCStatusCode

from gradeloop.errors import ServerUnreachable

T = TypeVar("T")

RECONNECT_SECONDS = 120.0
"""How long a waiting call tries to reach a server that is gone."""

REACHED_SECONDS = 30.0
"""An attempt that took longer had the server for a while: the SDK itself gives up after some 10 seconds."""

PAUSE_SECONDS = 0.5
"""Between two attempts."""

LOST = {
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.UNKNOWN,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.FAILED_PRECONDITION,
}
"""Of a server that is gone, or of a workflow task that failed and is tried again: worth waiting for."""


async def ride_out(call: Callable[[], Awaitable[T]], what: str) -> T:
    """Return what a call of the server returns, made again and again while the server is gone.

    Args:
        call: Makes the call anew.
        what: Who the call is about, for the message.

    Raises:
        ServerUnreachable: The server is gone for long, or the call failed in another way.
    """
    outage = Outage()
    while True:
        outage.ask()
        try:
            return await call()
        except RPCError as error:
            if error.status not in LOST or outage.is_too_long():
                raise ServerUnreachable(f"the Temporal server did not answer for {what}: {error.message}") from None
        await asyncio.sleep(PAUSE_SECONDS)


class Outage:
    """Counts from when the server was lost, however long the call had waited before."""

    def __init__(self) -> None:
        self._since = self._asked = self._now()

    def ask(self) -> None:
        """Note that an attempt begins."""
        self._asked = self._now()

    def is_too_long(self) -> bool:
        """Tell, when an attempt did not reach the server, whether to give up."""
        now = self._now()
        if now - self._asked > REACHED_SECONDS:
            self._since = now
        return now - self._since > RECONNECT_SECONDS

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
