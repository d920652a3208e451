"""A real PostgreSQL of our own, which can be ended at once and started again, and a wire to it that falls silent or is slow."""

import asyncio
import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import psycopg


class NoPostgresqlError(Exception):
    """PostgreSQL is not installed."""


class Postgresql:
    """A server on loopback that trusts everybody; nothing of it is synced to the disk."""

    def __init__(self) -> None:
        found = shutil.which("initdb") or next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None)
        if found is None:
            raise NoPostgresqlError("PostgreSQL is not installed (Debian, Ubuntu: apt install postgresql)")
        self._binaries = Path(found).resolve().parent
        self._user = "postgres" if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="gradeloop-postgresql-"))  # every other run of pytest shuts its own folders to others
        if self._user:
            shutil.chown(self._folder, self._user)
        self._port = free_port()
        self._run("initdb", "-U", "gradeloop", "-A", "trust", "--no-sync")

    @property
    def url(self) -> str:
        """The server's URL, without a database."""
        return f"postgresql://gradeloop@127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server, and return once it answers."""
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._folder} -c fsync=off"
        self._run("pg_ctl", "-l", str(self._folder / "log"), "-w", "-o", f"{options} -c max_connections=300", "start")

    def kill(self) -> None:
        """End the server at once, without a word to its clients."""
        self._run("pg_ctl", "-m", "immediate", "stop")

    def create(self, name: str) -> str:
        """Make an empty database, and return its URL."""
        with psycopg.connect(f"{self.url}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"{self.url}/{name}"

    def remove(self) -> None:
        """Remove all files."""
        shutil.rmtree(self._folder)

    def _run(self, program: str, *arguments: str) -> None:
        """Run a program as another user where this one is root, whom PostgreSQL refuses."""
        command = [str(self._binaries / program), "-D", str(self._folder / "data"), *arguments]
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd="/", timeout=60)


def free_port() -> int:
    """Return a free port that no connection is given by the system, which would take it before the server does."""
    for port in random.sample(range(15_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("there is no free port from 15000 to 32000")


@contextmanager
def postgresql() -> Iterator[Postgresql]:
    """Run a server while the block runs.

    Raises:
        NoPostgresqlError: It is not installed.
    """
    server = Postgresql()
    server.start()
    try:
        yield server
    finally:
        with suppress(subprocess.CalledProcessError):  # it is down already
            server.kill()
        server.remove()


class Wire:
    """Passes bytes to a server and back: late, or not at all, as a network does that is far or broken.

    Args:
        url: The server's URL.
        delay: Seconds by which each way to the server is late.
    """

    def __init__(self, url: str, delay: float = 0.0) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 5432
        self._delay = delay
        self._muted: set[asyncio.StreamWriter] = set()
        self._links: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}  # asyncio itself would let a silent one be collected, open
        self.round_trips = 0
        """Parts that were sent to the server, each behind an answer."""
        self.refuses = False
        """Whether a new connection is closed at once."""

    def mute(self) -> None:
        """Have all connections that are open swallow what they are sent, and answer nothing, for ever."""
        self._muted.update(self._links)

    def cut(self) -> None:
        """End all connections."""
        for link in list(self._links):
            link.close()

    async def end(self) -> None:
        """End all connections, silent ones too, and wait until they are closed."""
        self.refuses = True
        for link in self._links.values():
            link.cancel()
        await asyncio.gather(*self._links.values(), return_exceptions=True)

    async def serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        """Serve a client."""
        task = asyncio.current_task()
        if self.refuses or task is None:
            answers.close()
            return
        self._links[answers] = task
        try:
            with suppress(OSError, asyncio.CancelledError):  # nobody is there, or the wire is taken away
                await self._pass_all(client, answers)
        finally:
            self._links.pop(answers)
            self._muted.discard(answers)
            answers.close()

    async def _pass_all(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        server, requests = await asyncio.open_connection(self._host, self._port)
        turn = {"answered": True}

        async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, *, asks: bool) -> None:
            with suppress(ConnectionError):
                while chunk := await source.read(65536):
                    if asks and turn["answered"]:
                        self.round_trips += 1
                    turn["answered"] = not asks
                    if asks and self._delay:
                        await asyncio.sleep(self._delay)
                    if answers not in self._muted:
                        target.write(chunk)
                        await target.drain()
            if answers not in self._muted:
                target.close()

        try:
            await asyncio.gather(pass_on(client, requests, asks=True), pass_on(server, answers, asks=False))
        finally:
            requests.close()


AnyWire = TypeVar("AnyWire", bound=Wire)


def wire_to(url: str, delay: float = 0.0) -> AbstractAsyncContextManager[tuple[Wire, str]]:
    """Stand before the PostgreSQL of a URL, and return the wire with the URL that leads through it."""
    return standing_before(url, Wire(url, delay))


@asynccontextmanager
async def standing_before(url: str, wire: AnyWire) -> AsyncIterator[tuple[AnyWire, str]]:
    """Have a wire stand before the PostgreSQL of a URL, and return it with the URL that leads through it."""
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield wire, url.replace(f":{urlsplit(url).port}", f":{port}", 1)
    finally:
        server.close()
        await wire.end()
