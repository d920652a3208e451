"""A thread's history, followed by long polls: it says when a query may find something new, and when the thread has closed."""

import asyncio

from temporalio.api.enums.v1 import EventType
from temporalio.service import RPCError

from gradeloop.client.thread import ThreadHandle

RECORDED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
"""The event after which a query may say something else than before: what a query says is what workflow tasks recorded."""

ENDS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
}
"""The last events of a workflow's run."""

LOST_SECONDS = 1.0
"""The pause after a poll that failed; meanwhile a watcher asks by query."""


class HistoryPoll:
    """Follows one thread's history through the runs of its workflow; `follow` is its task, and the others ask it."""

    def __init__(self, thread: ThreadHandle) -> None:
        self.closed = False
        """Whether the thread has closed."""
        self._thread = thread
        self._changed = asyncio.Event()
        self._run_id: str | None = None
        self._seen = 0
        """The id of the last event that was seen of this run."""

    async def wait(self, seconds: float) -> None:
        """Wait until a query may find something new, the thread has closed, or so many seconds have passed."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
        finally:
            self._changed.clear()

    async def follow(self) -> None:
        """Follow the history until the thread closes."""
        try:
            while not self.closed:
                try:
                    await self._follow_run()
                except RPCError:
                    self._changed.set()
                    await asyncio.sleep(LOST_SECONDS)
        finally:
            self._changed.set()

    async def _follow_run(self) -> None:
        """Follow the workflow's last run to its end; what is recorded already is paged over, since one query says it all."""
        description = await self._thread.workflow().describe()
        if description.run_id != self._run_id:
            self._run_id, self._seen = description.run_id, 0
        self._changed.set()
        known = max(self._seen, description.history_length)
        async for event in self._thread.workflow(self._run_id).fetch_history_events(wait_new_event=True):
            self._seen = max(self._seen, event.event_id)
            if event.event_type in ENDS:
                self.closed = event.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
            if event.event_type in ENDS or (event.event_type == RECORDED and event.event_id > known):
                self._changed.set()
