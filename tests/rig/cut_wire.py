"""A PostgreSQL whose connections are cut at a statement that is chosen: before the server gets it, or before its answer comes back."""

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from typing import Literal

from rig.postgresql import Wire, standing_before

SSL_REQUEST = 80877103
STATEMENTS = b"QS"
"""A simple query, and the end of an extended one."""

Cut = Literal["request", "answer"]


class CutWire(Wire):
    """Passes everything between clients and a PostgreSQL, but for one statement."""

    statements: int = 0
    """How many statements were sent since it was armed."""
    at: int = 0
    """The statement at which the connection is cut; 0 for none."""
    _before: Cut = "request"

    def arm(self, at: int, before: Cut = "request") -> None:
        """Count from now on, and cut at a statement."""
        self.statements, self.at, self._before = 0, at, before

    def leave(self) -> None:
        """Cut every connection, and let none through."""
        self.refuses = True
        self.cut()

    async def _pass_all(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        server, requests = await asyncio.open_connection(self._host, self._port)
        back = asyncio.create_task(_copy(server, answers))
        try:
            with suppress(asyncio.IncompleteReadError):
                await self._forward(client, requests, back)
        finally:
            back.cancel()
            requests.close()

    async def _forward(self, client: asyncio.StreamReader, requests: asyncio.StreamWriter, back: "asyncio.Task[None]") -> None:
        begun = False
        while True:
            kind = await client.readexactly(1) if begun else b""
            size = await client.readexactly(4)
            body = await client.readexactly(int.from_bytes(size, "big") - 4)
            begun = begun or int.from_bytes(body[:4], "big") != SSL_REQUEST
            if kind and kind in STATEMENTS:
                self.statements += 1
                if self.statements == self.at:
                    if self._before == "answer":
                        back.cancel()
                        requests.write(kind + size + body)
                        await requests.drain()
                        requests.write_eof()  # once it has done what it was asked, the server ends the connection
                    return
            requests.write(kind + size + body)
            await requests.drain()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await source.read(65536):
            target.write(chunk)
            await target.drain()
    target.close()


def cut_wire(url: str) -> AbstractAsyncContextManager[tuple[CutWire, str]]:
    """Stand before the PostgreSQL of a URL, and return the wire with the URL that leads through it."""
    return standing_before(url, CutWire(url))
