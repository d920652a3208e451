"""`gradeloop dev`: the embedded server, its UI and a worker for services that are being written."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from gradeloop.contracts import TASK_QUEUE
from gradeloop.embedded import ensure_server, running_server, stop_server
from gradeloop.errors import WorkerFailed
from gradeloop.state_folder import Resident, state_folder
from gradeloop.worker_process import application_folder

WORKER_GRACE = 5.0
"""Seconds for a background worker to end; its calls go on with the next one."""


async def develop(tools: tuple[Path, ...], scripted: Path | None, console: Console) -> int:
    """Serve the queue `gradeloop` in the foreground until Ctrl-C; a server that was not there before ends with it."""
    found = running_server() is not None
    server = await ensure_server()
    console.print(f"Temporal  {server.address}   (export TEMPORAL_ADDRESS={server.address})\nUI        {server.ui}\nQueue     {TASK_QUEUE}")
    flags = [flag for path in tools for flag in ("--tools", str(path))] + (["--scripted", str(scripted)] if scripted else [])
    command = [sys.executable, str(application_folder() / "worker.py"), "--task-queue", TASK_QUEUE, *flags]
    environment = {**os.environ, "TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": "default"}
    worker = await asyncio.create_subprocess_exec(*command, env=environment, start_new_session=True)
    try:
        return await _until_stopped(worker)
    finally:
        if not found:
            await stop_server()


async def _until_stopped(worker: asyncio.subprocess.Process) -> int:
    """Wait for the worker; Ctrl-C lets it finish its calls in flight, a second one does not."""
    pressed = iter((worker.terminate, worker.kill))

    def stop() -> None:
        with suppress(ProcessLookupError):
            next(pressed, worker.kill)()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return await worker.wait()


async def stop_all() -> str:
    """End the background workers and the embedded server; say what was ended."""
    workers = 0
    for record in (state_folder() / "workers").glob("*.json"):
        workers += await Resident(record.parent, record.stem, WorkerFailed).stop(WORKER_GRACE)
    server = await stop_server()
    told = f"{workers} worker{'' if workers == 1 else 's'}"
    return f"ended the embedded server and {told}" if server else f"no embedded server was running; ended {told}"
