"""A Temporal client that sends a query or an update again where a worker refuses it for the moment, as gradeloop's own client does."""

import asyncio
import time
from dataclasses import replace
from typing import Any

from temporalio.client import Interceptor, OutboundInterceptor, QueryWorkflowInput, StartWorkflowUpdateInput, WorkflowUpdateHandle
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.contract.queries import PAUSE_SECONDS, REFUSED_SECONDS, recorded


class ReadsAgain(Interceptor):
    """The interceptor of a client whose queries and updates are sent again."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the name that the base class gives it
        """Return the client's calls, queries through `recorded`, updates again after a failed workflow task."""
        return _Queries(next)


class _Queries(OutboundInterceptor):
    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002 - as the base class has it
        return await recorded(lambda patience: self.next.query_workflow(replace(input, rpc_timeout=input.rpc_timeout or patience)))

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:  # noqa: A002 - as above
        deadline = time.monotonic() + REFUSED_SECONDS
        while True:
            try:
                return await self.next.start_workflow_update(input)
            except RPCError as error:
                if error.status != RPCStatusCode.FAILED_PRECONDITION or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)
