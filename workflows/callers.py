"""Whoever waits for a turn: how each of them is answered, whatever ends the turn or the thread."""

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows.admission import ROLLING, Admission
from workflows.run_result import not_begun, result_of
from workflows.thread_state import Outcome, Thread

with workflow.unsafe.imports_passed_through():
    from gradeloop.contracts import RunResult


class Callers:
    """The update handlers that wait."""

    def __init__(self, thread: Thread, admission: Admission) -> None:
        self._thread = thread
        self._admission = admission
        self._dropped: set[str] = set()
        self.rolling = False
        """True when the thread is about to go on in a new run of the workflow: callers are asked to come again."""
        self.failure: ApplicationError | None = None
        """Why the thread fails: the worker refused it."""

    async def settled(self, key: str, *, attached: bool = False) -> RunResult:
        """Wait for the turn of a key and return its result; where `attached`, one that waits for a person is waited for too.

        Raises:
            ApplicationError: `ThreadRolling`, or the thread's own failure.
        """

        def ended(key: str) -> Outcome | None:
            outcome = self._admission.ended(key)
            return None if outcome and attached and outcome.status == "waiting" and not self._thread.closing else outcome

        self._dropped.discard(key)
        await workflow.wait_condition(lambda: ended(key) is not None or key in self._dropped or self.rolling)
        if self.failure is not None:
            raise ApplicationError(self.failure.message, type=self.failure.type, non_retryable=True)
        if outcome := ended(key):
            return result_of(self._thread, outcome)
        if key in self._dropped:
            return not_begun(self._thread)
        raise ApplicationError(ROLLING, type="ThreadRolling")

    def drop_queue(self) -> None:
        """Have the queued turns end, as interrupted ones of which nothing was recorded."""
        self._dropped.update(key for turn in self._thread.queue for key in turn.keys)
        self._thread.queue.clear()
