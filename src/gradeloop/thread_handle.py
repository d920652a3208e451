"""One thread on the server: started, asked, signalled, waited for."""

import asyncio
from datetime import timedelta
from typing import Any

from pydantic import JsonValue
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.contracts import GradingThread, RunResult
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, ThreadClosed
from gradeloop.outage import ride_out
from gradeloop.outcomes import ended, failure
from gradeloop.request import ThreadRequest

OUT_OF_STEP = "TMPRL1100"
"""In the words of a worker whose copy of the workflow and the history part: seen after a worker's death, and gone with the next task."""

POLL_SECONDS = 0.2

QUERY_SECONDS = 20.0
"""A query needs a live worker on the thread's queue; longer than a worker's start."""

ASKED_SECONDS = 5.0
"""After which a query is asked anew: one that meets the end of a workflow's run, or a worker's, is sometimes never answered."""

SILENT = {RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}


class ThreadHandle:
    """A thread by its id."""

    def __init__(self, client: Client, thread_id: str, task_queue: str) -> None:
        self.client = client
        self.task_queue = task_queue
        self.thread_id = thread_id

    def handle(self, run_id: str | None = None) -> WorkflowHandle[Any, RunResult]:
        """Return Temporal's handle of the thread's last run, or of the one named."""
        return self.client.get_workflow_handle_for(GradingThread.run, self.thread_id, run_id=run_id)

    async def start(self, request: ThreadRequest) -> None:
        """Start the thread; refused where one of its id exists."""
        try:
            await self.client.start_workflow(
                GradingThread.run,
                request,
                id=self.thread_id,
                task_queue=self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
        except WorkflowAlreadyStartedError:
            raise InvalidRequest(f"a thread {self.thread_id!r} exists already; choose another id, or invoke it") from None
        except RPCError as error:
            raise failure(error, self.thread_id) from None

    async def query(self, name: str, *arguments: object, run_id: str | None = None) -> dict[str, JsonValue]:
        """Ask the thread; a closed one answers too, as long as its history is kept and a worker serves its queue."""
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                return await self._answer(name, arguments, run_id)
        except WorkflowQueryFailedError as error:
            raise InvalidRequest(f"{self.thread_id}: {error}") from None
        except TimeoutError:
            raise ServerUnreachable(f"no worker answers for the thread {self.thread_id!r}; start one on its task queue") from None
        except RPCError as error:
            raise failure(error, self.thread_id) from None

    async def _answer(self, name: str, arguments: tuple[object, ...], run_id: str | None) -> dict[str, JsonValue]:
        """Return the answer; a worker that has lost step with the history begins at its start, and is asked again, as a silent one is."""
        while True:
            try:
                answer: dict[str, JsonValue] = await self.handle(run_id).query(
                    name, args=list(arguments), result_type=dict[str, JsonValue], rpc_timeout=timedelta(seconds=ASKED_SECONDS)
                )
            except RPCError as error:
                if error.status not in SILENT:
                    raise
            except WorkflowQueryFailedError as error:
                if OUT_OF_STEP not in str(error):
                    raise
                await asyncio.sleep(POLL_SECONDS)
            else:
                return answer

    async def signal(self, name: str, *arguments: object) -> None:
        """Signal the thread.

        Raises:
            ThreadClosed: It is closed.
        """
        try:
            await self.handle().signal(name, args=list(arguments))
        except RPCError as error:
            raise await self.gone(error) from None

    async def cancel(self) -> None:
        """Cancel the thread's workflow."""
        try:
            await self.handle().cancel()
        except RPCError as error:
            raise await self.gone(error) from None

    async def describe(self) -> WorkflowExecutionDescription:
        """Return the server's description of the thread's last run."""
        try:
            return await self.handle().describe()
        except RPCError as error:
            raise failure(error, self.thread_id) from None

    async def result(self) -> RunResult:
        """Wait for the thread to complete, through restarts of the server, and return its last turn's result."""

        async def wait() -> RunResult:
            try:
                return await self.handle().result()
            except WorkflowFailureError as error:
                raise ended(error, self.thread_id) from None
            except RPCError as error:
                if error.status == RPCStatusCode.NOT_FOUND:
                    raise failure(error, self.thread_id) from None
                raise

        return await ride_out(wait, repr(self.thread_id))

    async def closed(self) -> None:
        """Return when the thread closes, however it does."""
        try:
            await self.result()
        except (InvalidRequest, ThreadClosed):
            return

    async def gone(self, error: RPCError) -> GradeloopError:
        """Tell a closed thread from one that never was."""
        if error.status != RPCStatusCode.NOT_FOUND:
            return failure(error, self.thread_id)
        await self.describe()
        return ThreadClosed(f"the thread {self.thread_id!r} is closed")
