"""A server that is gone: how long a call that waits for something rides it out."""

import asyncio

RECONNECT_SECONDS = 120.0
"""How long a waiting call tries to reach a server that is gone."""

REACHED_SECONDS = 30.0
"""An attempt that took longer had the server for a while: the SDK itself gives up after some 10 seconds."""


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
