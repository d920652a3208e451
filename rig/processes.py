"""Processes that can be killed: an embedded server on a database of its own, and workers that run worker.py."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from gradeloop.temporal import server
from gradeloop.temporal.connect import Connection, application_folder, connect
from gradeloop.temporal.server import ServerInfo, ensure_server, stop_server

SECONDS = 150.0
"""How long a process may take to start or to end."""

TOOLS = '''
import os
from urllib.request import ProxyHandler, build_opener


def look(where: str) -> str:
    """Look somewhere."""
    with build_opener(ProxyHandler({})).open(os.environ["EVIDENCE_URL"] + "/evidence/" + where) as reply:
        return reply.read().decode()
'''
"""An evidence tool whose calls the counting server counts; the grader names the thread and the place."""


class Engine:
    """An embedded server on a database of its own, killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: ServerInfo | None = None

    async def start(self) -> None:
        """Start the server, or find it running."""
        with self._here():
            self.server = await ensure_server()

    def kill(self) -> None:
        """End the server at once, without a word."""
        if self.server is not None:
            os.killpg(self.server.pid, signal.SIGKILL)

    async def restart(self) -> None:
        """End the server at once, without a word, and start it again as soon as it is gone."""
        self.kill()
        with self._here():
            async with asyncio.timeout(SECONDS):
                while server.running_server() is not None:
                    await asyncio.sleep(0.02)
        await self.start()

    async def stop(self) -> None:
        """End the server if it runs."""
        with self._here() as patch:
            patch.setattr(server, "STOP_SECONDS", 0.0)
            await stop_server()

    async def client(self) -> Client:
        """Connect as every part of gradeloop does."""
        with self._here():
            return await connect(Connection(self.address, "default", embedded=True))

    @property
    def address(self) -> str:
        """Where it listens."""
        if self.server is None:
            raise RuntimeError("the server was not started")
        return self.server.address

    @contextlib.contextmanager
    def _here(self) -> Iterator[pytest.MonkeyPatch]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GRADELOOP_STATE_DIR", str(self.folder))
            yield patch


class WorkerProcess:
    """A process that runs worker.py for one queue.

    Args:
        engine: Its server.
        task_queue: Its queue.
        models: The counting server's URL.
        name: What the counting server knows it by.
        address: Where it finds its server; the server itself by default.
        grace: Seconds that a graceful stop waits for calls in flight; as worker.py has it by default.
        variables: Further variables of its environment.
        application: The folder with its worker.py; the checkout's by default.
    """

    def __init__(
        self,
        engine: Engine,
        task_queue: str,
        models: str,
        *,
        name: str = "one",
        address: str | None = None,
        grace: float | None = None,
        variables: Mapping[str, str] | None = None,
        application: Path | None = None,
    ) -> None:
        self._engine = engine
        self._task_queue = task_queue
        self._ready = engine.folder / f"{task_queue}-{uuid4()}.ready"
        tools = engine.folder / "evidence_tools.py"
        tools.write_text(TOOLS)
        self._command = [sys.executable, str((application or application_folder()) / "worker.py"), "--task-queue", task_queue]
        self._command += [] if grace is None else ["--drain-seconds", str(grace)]
        self._command += ["--tools", str(tools), "--ready-file", str(self._ready)]
        self._environment = os.environ | {
            "TEMPORAL_ADDRESS": address or engine.address,
            "GRADELOOP_STATE_DIR": str(engine.folder),
            "GRADELOOP_STORAGE": (engine.folder / "payloads").as_uri(),
            "GRADELOOP_BASE_URLS": models,
            "OPENAI_BASE_URL": f"{models}/v1",
            "OPENAI_API_KEY": name,
            "EVIDENCE_URL": models,
            **(variables or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the worker writes."""
        return self._engine.folder / f"{self._task_queue}.log"

    async def start(self, seconds: float = SECONDS) -> "WorkerProcess":
        """Start the process and return once it serves its queue; one that cannot start is started again."""
        async with asyncio.timeout(seconds):
            while not await self._served():
                await asyncio.sleep(0.2)
        return self

    async def _served(self) -> bool:
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        while not self._ready.exists():
            if self.process.poll() is not None:
                return False
            await asyncio.sleep(0.02)
        served = bool(json.loads(self._ready.read_bytes())["ok"])
        if not served:
            self.process.wait()
        return served

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End the process at once, without a word."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    async def drain(self) -> None:
        """Tell the process to stop, and return once it has given its calls in flight their time and is gone."""
        self.signal(signal.SIGTERM)
        await self.ended()

    async def ended(self) -> int:
        """Wait for the process to end and return its exit code."""
        async with asyncio.timeout(SECONDS):
            while self.process is not None and self.process.poll() is None:
                await asyncio.sleep(0.02)
        return self.process.returncode if self.process else 0


@asynccontextmanager
async def engine_in(folder: Path) -> AsyncIterator[Engine]:
    """Run an embedded server in a folder, whatever becomes of it meanwhile."""
    engine = Engine(folder)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
