"""The settings of a namespace: a year of retention on the embedded server, and the search attributes."""

import asyncio
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.contract.thread import SEARCH_ATTRIBUTES
from gradeloop.errors import WorkerFailed
from gradeloop.temporal.runtime import open_client

RETENTION = timedelta(days=365)
"""The time for which a closed thread's checkpoint stays readable."""


async def probe(address: str, namespace: str, seconds: float) -> Client | None:
    """Return a client of the server; None if it does not answer within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            client = await open_client(address, namespace=namespace)
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
    except (RPCError, RuntimeError, TimeoutError):
        return None
    return client


async def prepare(client: Client, seconds: float) -> str | None:
    """Set the namespace up and return the server's version; None if the namespace is not ready yet, or the server does not answer."""
    try:
        async with asyncio.timeout(seconds):
            await _set_retention(client)
            known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
            if not set(SEARCH_ATTRIBUTES) <= set(known.custom_attributes):
                return None
            return (await client.workflow_service.get_system_info(GetSystemInfoRequest())).server_version
    except (RPCError, TimeoutError):
        return None


async def _set_retention(client: Client) -> None:
    found = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    if found.config.workflow_execution_retention_ttl.ToTimedelta() != RETENTION:
        kept = Duration()
        kept.FromTimedelta(RETENTION)
        config = NamespaceConfig(workflow_execution_retention_ttl=kept)
        await client.workflow_service.update_namespace(UpdateNamespaceRequest(namespace=client.namespace, config=config))


async def register_search_attributes(client: Client) -> None:
    """Create the search attributes that the namespace lacks.

    Raises:
        WorkerFailed: The server refuses; the message holds the command to run instead.
    """
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    try:
        known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
        absent = [name for name in SEARCH_ATTRIBUTES if name not in known.custom_attributes]
        if absent:
            wanted = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=dict.fromkeys(absent, keyword))
            await client.operator_service.add_search_attributes(wanted)
    except RPCError as error:
        flags = " ".join(f"--name {name} --type Keyword" for name in SEARCH_ATTRIBUTES)
        command = f"temporal operator search-attribute create --namespace {client.namespace} {flags}"
        on_cloud = " ".join(f"--search-attribute {name}=Keyword" for name in SEARCH_ATTRIBUTES)
        cloud = f"tcld namespace search-attributes add --namespace {client.namespace} {on_cloud}"
        cure = f"run `{command}`, on Temporal Cloud `{cloud}`, or set GRADELOOP_SEARCH_ATTRIBUTES=off"
        raise WorkerFailed(f"the search attributes cannot be registered ({error.message}); {cure}") from None
