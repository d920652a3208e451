"""A worker that answered a query on events ahead of their workflow task does that task again, from the history.

After a worker's death a query may reach another worker before the workflow task does, with a history that ends in events of that task.
The SDK applies them for the query, and what else the task brings afterwards; a replay applies all of it at once, in another order, and
finds another history. Such a thread would be stuck for ever. (A relative: https://github.com/temporalio/sdk-python/issues/1591)
"""

from temporalio import workflow


class RanAheadError(Exception):
    """Fails the workflow task, not the workflow: its next attempt starts from the history, and nothing is lost."""


class RunAhead:
    """Notes where each activation stands, by the time of its workflow task and the length of its history."""

    def __init__(self) -> None:
        self._time = 0.0
        self._length = 0
        self._ahead = False

    async def guard(self) -> None:
        """Look at every activation, for as long as the workflow lives."""
        await workflow.wait_condition(self._look)

    def _look(self) -> bool:
        """Fail a task that follows events which were applied without one: the history grew, and the task's time stayed the same."""
        now, length = workflow.time(), workflow.info().get_current_history_length()
        if now != self._time:
            if self._ahead and not workflow.unsafe.is_replaying():
                raise RanAheadError("events of this workflow task were applied for a query before; it starts again from the history")
            self._ahead = False
        elif length != self._length and not workflow.unsafe.is_replaying():
            self._ahead = True
        self._time, self._length = now, length
        return False
