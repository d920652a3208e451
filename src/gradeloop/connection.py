"""Which Temporal server to use, and the client for it."""

import asyncio
import os
import re
from dataclasses import dataclass, field

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.embedded import NAMESPACE, ensure_server, running_server
from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.namespace import client_runtime
from gradeloop.paths import state_folder
from gradeloop.settings_file import configured
from gradeloop.storage import VARIABLE, converter

CONNECT_SECONDS = 10.0

CURE = "start that server, correct TEMPORAL_ADDRESS (or its profile), or unset it to use the embedded one"

REFUSED = {RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED}


@dataclass(frozen=True)
class Connection:
    """A Temporal server and namespace, and what it takes to get in."""

    address: str
    namespace: str
    embedded: bool
    ui: str | None
    """The web UI's address, where we know it."""
    options: ClientConnectConfig = field(default_factory=ClientConnectConfig, repr=False, hash=False)
    """TLS, API key and gRPC metadata, out of sight of every repr."""


async def find() -> Connection:
    """Return the server that Temporal's environment or profile names, else the embedded one, started if need be.

    Raises:
        InvalidRequest: The environment or the profile is malformed.
        ServerUnreachable: The embedded server is missing or does not start.
    """
    options = configured()
    address = options.pop("target_host", None)
    namespace = options.pop("namespace", NAMESPACE)
    if address is None:
        _refuse_half_configured(namespace, options)
        server = await ensure_server()
        return Connection(server.address, NAMESPACE, embedded=True, ui=server.ui)
    if not re.fullmatch(r"[^\s/]+:\d+", address):
        raise InvalidRequest(f"Temporal's address {address!r} is malformed; write host:port, for example '127.0.0.1:7233'")
    return Connection(address, namespace, embedded=False, ui=None, options=options)


async def connect(connection: Connection, seconds: float = CONNECT_SECONDS) -> Client:
    """Return a client that reached the server and its namespace within `seconds`.

    Raises:
        ServerUnreachable: Nobody answers, it is no Temporal server, or it refuses us.
    """
    silence = f"No Temporal server answers at {connection.address!r}"
    try:
        async with asyncio.timeout(seconds):
            return await _dial(connection)
    except TimeoutError as error:
        raise ServerUnreachable(f"{silence} within {seconds:.0f} s; {_cure(connection)}") from error
    except (RuntimeError, ValueError) as error:
        raise ServerUnreachable(f"{silence}{_reason(error)}; {_cure(connection)}") from error
    except RPCError as error:
        raise ServerUnreachable(_refusal(connection, error)) from error


def storage_url(connection: Connection) -> str | None:
    """Return where large payloads go: as GRADELOOP_STORAGE says, or a folder beside the embedded server's database."""
    if named := os.environ.get(VARIABLE):
        return named
    return (state_folder() / "payloads").as_uri() if is_ours(connection) else None


def is_ours(connection: Connection) -> bool:
    """Tell whether the server is the embedded one, by whatever name it was found."""
    return connection.embedded or ((server := running_server()) is not None and server.address == connection.address)


async def _dial(connection: Connection) -> Client:
    client = await Client.connect(
        connection.address,
        namespace=connection.namespace,
        data_converter=await converter(storage_url(connection)),
        runtime=client_runtime(),
        **connection.options,  # type: ignore[misc]  # address and namespace were taken out
    )
    await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=connection.namespace))
    return client


def _refuse_half_configured(namespace: str, options: ClientConnectConfig) -> None:
    given = [f"namespace {namespace!r}"] if namespace != NAMESPACE else []
    if given := [*given, *sorted(options)]:
        raise InvalidRequest(
            f"Temporal's environment or profile gives {', '.join(given)} but no address; "
            "set TEMPORAL_ADDRESS, or unset them to use the embedded server"
        )


def _cure(connection: Connection) -> str:
    return "end it with `gradeloop dev stop` and try again" if connection.embedded else CURE


def _reason(error: Exception) -> str:
    """Pick the operating system's words out of the transport's nested report."""
    words: list[str] = re.findall(r'(?:message|error): "([^"]+)"', str(error))
    return f" ({words[-1][0].lower()}{words[-1][1:]})" if words else ""


def _refusal(connection: Connection, error: RPCError) -> str:
    if error.status == RPCStatusCode.NOT_FOUND:
        return (
            f"The Temporal server at {connection.address!r} has no namespace {connection.namespace!r}; "
            f"create it (temporal operator namespace create -n {connection.namespace}) or correct TEMPORAL_NAMESPACE"
        )
    if error.status in REFUSED:
        return (
            f"The Temporal server at {connection.address!r} refuses the credentials for namespace {connection.namespace!r} "
            f"({error.message}); correct TEMPORAL_API_KEY, TEMPORAL_TLS_* or the profile"
        )
    return f"The Temporal server at {connection.address!r} does not answer ({error.message}); {_cure(connection)}"
