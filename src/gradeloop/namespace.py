"""What gradeloop wants of the embedded server's namespace: a year of retention, and its search attributes."""

import asyncio
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.contracts import SEARCH_ATTRIBUTES

RETENTION = timedelta(days=365)
"""How long a closed thread's checkpoint stays readable."""


async def prepare(client: Client, seconds: float) -> str | None:
    """Return the server's version once the namespace is as it should be; None where it is not yet, or does not answer."""
    try:
        async with asyncio.timeout(seconds):
            await _retain(client)
            return await _version(client) if await _registered(client) else None
    except (RPCError, TimeoutError):
        return None


async def _retain(client: Client) -> None:
    found = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    if found.config.workflow_execution_retention_ttl.ToTimedelta() != RETENTION:
        kept = Duration()
        kept.FromTimedelta(RETENTION)
        config = NamespaceConfig(workflow_execution_retention_ttl=kept)
        await client.workflow_service.update_namespace(UpdateNamespaceRequest(namespace=client.namespace, config=config))


async def _registered(client: Client) -> bool:
    known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    return set(SEARCH_ATTRIBUTES) <= set(known.custom_attributes)


async def _version(client: Client) -> str:
    return (await client.workflow_service.get_system_info(GetSystemInfoRequest())).server_version
