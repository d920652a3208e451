"""A worker that ends itself: its queue has had no open workflow for a while, or its server is gone."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError

POLL_SECONDS = 5.0

LOST_SERVER_SECONDS = 600.0
"""A worker that ends itself when idle also does so when its server has been gone for so long."""


@dataclass(frozen=True)
class Watch:
    """What is watched: a task queue, and the file that says that it is served."""

    client: Client
    task_queue: str
    ready_file: Path | None

    async def until_idle(self, seconds: float, stopped: asyncio.Event) -> None:
        """Set `stopped` once the queue has been idle for so many seconds."""
        clock = asyncio.get_running_loop().time
        busy = heard = clock()
        while not stopped.is_set():
            await asyncio.sleep(min(POLL_SECONDS, seconds / 2))
            count = await self._open_workflows()
            heard = heard if count is None else clock()
            busy = busy if count == 0 else clock()
            if clock() - heard > LOST_SERVER_SECONDS or (clock() - busy > seconds and await self._still_idle()):
                stopped.set()

    async def _still_idle(self) -> bool:
        """Withdraw the ready file, so that nobody counts on this worker any more, and look once again."""
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)
        idle = await self._open_workflows() == 0
        if not idle:
            ready(self.ready_file)
        return idle

    async def _open_workflows(self) -> int | None:
        try:
            return (await self.client.count_workflows(f"TaskQueue = '{self.task_queue}' AND ExecutionStatus = 'Running'")).count
        except RPCError:
            return None


def ready(file: Path | None, error: Exception | None = None) -> None:
    """Tell whoever started this worker, in the file that they named, that it serves, or why it cannot."""
    if file is not None:
        told = {"ok": True} if error is None else {"ok": False, "error": str(error), "kind": type(error).__name__}
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(told))
        partial.replace(file)
