"""The connection between a worker and its server, for tests that break it."""

import asyncio


class Wire:
    """A connection between a worker and its server that can be cut, or let through in one direction alone."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._links: set[asyncio.Task[None]] = set()
        self._down = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self.address = ""

    async def mend(self) -> None:
        """Take connections: at a free port first, later at the same."""
        host, _, port = self.address.rpartition(":")
        self._down.set()
        self._listener = await asyncio.start_server(self._link, host or "127.0.0.1", int(port or 0))
        self.address = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def cut(self) -> None:
        """Drop all connections and take no further ones."""
        if self._listener is not None:
            self._listener.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    def deafen(self) -> None:
        """Let the worker speak, but hear nothing any more."""
        self._down.clear()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._links.add(task)
            task.add_done_callback(self._links.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass(reader, far_writer, None))
                    both.create_task(self._pass(far_reader, writer, self._down))
            finally:
                far_writer.close()
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowed: asyncio.Event | None) -> None:
        while chunk := await reader.read(65536):
            if allowed is not None:
                await allowed.wait()
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError
