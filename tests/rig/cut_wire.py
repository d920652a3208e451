"""A PostgreSQL whose connections are cut at a statement that is chosen: before the server gets it, or before its answer comes back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

SSL_REQUEST = 80877103
STATEMENTS = b"QS"
"""A simple query, and the end of an extended one."""

Cut = Literal["request", "answer"]


@dataclass
class CutWire:
    """Passes everything between clients and a PostgreSQL, but for one statement."""

    host: str
    port: int
    statements: int = 0
    """How many statements were sent since it was armed."""
    at: int = 0
    """The statement at which the connection is cut; 0 for none."""
    cut: Cut = "request"
    away: bool = False
    """Whether no connection is let through."""
    _links: set[asyncio.StreamWriter] = field(default_factory=set)

    def arm(self, at: int, cut: Cut = "request") -> None:
        """Count from now on, and cut at a statement."""
        self.statements, self.at, self.cut = 0, at, cut

    def leave(self) -> None:
        """Cut every connection, and let none through."""
        self.away = True
        for link in list(self._links):
            link.close()

    async def link(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        """Serve a client."""
        if self.away:
            answers.close()
            return
        server, requests = await asyncio.open_connection(self.host, self.port)
        self._links |= {answers, requests}
        back = asyncio.create_task(_copy(server, answers))
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._forward(client, requests, back)
        finally:
            back.cancel()
            for link in (answers, requests):
                link.close()
                self._links.discard(link)

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
                    if self.cut == "answer":
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


@asynccontextmanager
async def cut_wire(url: str) -> AsyncIterator[tuple[CutWire, str]]:
    """Stand before the PostgreSQL of a URL, and return the wire with the URL that leads through it."""
    parts = urlsplit(url)
    wire = CutWire(parts.hostname or "", parts.port or 5432)
    async with await asyncio.start_server(wire.link, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            yield wire, url.replace(f":{parts.port}", f":{port}", 1)
        finally:
            wire.leave()
