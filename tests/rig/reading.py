"""A Temporal client that sends a query again where it is refused as one to be read again, as gradeloop's own readers do."""

from dataclasses import replace
from typing import Any

from temporalio.client import Interceptor, OutboundInterceptor, QueryWorkflowInput

from gradeloop.contract.queries import recorded


class ReadsAgain(Interceptor):
    """The interceptor of a client whose queries are sent again."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the name that the base class gives it
        """Return the client's calls, queries through `recorded`."""
        return _Queries(next)


class _Queries(OutboundInterceptor):
    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002 - as the base class has it
        return await recorded(lambda patience: self.next.query_workflow(replace(input, rpc_timeout=input.rpc_timeout or patience)))
