"""The Temporal server to use, the client for it, whose credentials may change, and the storage of large payloads."""

import asyncio
import dataclasses
import hashlib
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import unquote, urlsplit

from temporalio.api.common.v1 import Payload
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter, pydantic_data_converter
from temporalio.converter import (
    DataConverter,
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from temporalio.envconfig import ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable
from gradeloop.settings.paths import state_folder
from gradeloop.settings.worker import load_connect_config
from gradeloop.temporal.codec import EncryptedFailures, EncryptionCodec, KeyRing, is_required, load_ring
from gradeloop.temporal.runtime import open_client, reconnect
from gradeloop.temporal.server import NAMESPACE, ensure_server, running_server

logger = logging.getLogger(__name__)

VARIABLE = "GRADELOOP_STORAGE"
THRESHOLD = 256 * 1024
"""The size from which payloads are stored outside: below every limit of the server, above the payloads of an ordinary run."""


class SharedPayloadConverter(PydanticPayloadConverter):
    """The pydantic converter, created once a process: with external storage the SDK asks for a new one at every call."""

    _instance: ClassVar[Self | None] = None

    def __new__(cls) -> Self:
        """Return the one instance, whose caches of types are warm."""
        cls._instance = cls._instance or super().__new__(cls)
        return cls._instance

    def __init__(self) -> None:
        if not hasattr(self, "converters"):
            super().__init__()


class LocalFolder(StorageDriver):
    """Payloads as files named by their sha256, for servers and workers on one machine; `forget` and `store prune` delete them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def name(self) -> str:
        """Return the driver's name in claims."""
        return "gradeloop.local_folder"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:  # noqa: ARG002 - the driver's interface
        """Write each payload to its file, whole or not at all."""
        return [StorageDriverClaim(claim_data={"sha256": await asyncio.to_thread(self._write, payload)}) for payload in payloads]

    async def retrieve(self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]) -> list[Payload]:  # noqa: ARG002 - the driver's interface
        """Read each payload back."""
        return [await asyncio.to_thread(self._read, claim.claim_data["sha256"]) for claim in claims]

    def _write(self, payload: Payload) -> str:
        raw = payload.SerializeToString(deterministic=True)
        name = hashlib.sha256(raw).hexdigest()
        file = self._file(name)
        try:
            os.utime(file)  # it is in use again: whoever removes what no history names leaves it
        except FileNotFoundError:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = file.with_suffix(f".{os.getpid()}.{id(payload)}")
            draft.write_bytes(raw)
            draft.replace(file)
        return name

    def _read(self, name: str) -> Payload:
        if not name.isalnum():
            raise ValueError(f"{name!r} names no stored payload")
        raw = self._file(name).read_bytes()
        if hashlib.sha256(raw).hexdigest() != name:
            raise ValueError(f"the stored payload {name} is damaged")
        return Payload.FromString(raw)

    def _file(self, name: str) -> Path:
        return self._folder / name[:2] / name


async def build_converter(url: str | None, ring: KeyRing | None = None) -> DataConverter:
    """Build the data converter of clients and workers, with external storage if `url` names one.

    Args:
        url: `file:///folder`, `s3://bucket` or `gs://bucket`; the buckets' credentials come from the environment.
        ring: The keys with which payloads are encrypted, before they are stored anywhere, and the texts of failures with them.

    Raises:
        InvalidRequest: The URL is none of these, or its package is not installed.
    """
    converter = pydantic_data_converter
    if ring is not None:
        converter = dataclasses.replace(
            converter,
            payload_codec=EncryptionCodec(ring, required=is_required()),
            failure_converter_class=EncryptedFailures,
        )
    if not url:
        return converter
    driver = await _build_driver(url)
    return dataclasses.replace(
        converter,
        payload_converter_class=SharedPayloadConverter,
        external_storage=ExternalStorage(drivers=[driver], payload_size_threshold=THRESHOLD),
    )


async def _build_driver(url: str) -> StorageDriver:
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return LocalFolder(Path(unquote(parts.path)))
    if parts.scheme in {"s3", "gs"} and parts.netloc and parts.path in {"", "/"}:
        try:
            return await (_build_s3_driver(parts.netloc) if parts.scheme == "s3" else _build_gcs_driver(parts.netloc))
        except ImportError as error:
            package = "aioboto3" if parts.scheme == "s3" else "gcloud-aio-storage"
            raise InvalidRequest(
                f"{VARIABLE}={url} needs a package that is not installed ({error.name}); run: pip install {package}"
            ) from None
    raise InvalidRequest(f"{VARIABLE}={url!r} names no storage; write file:///folder, s3://bucket or gs://bucket")


async def _build_s3_driver(bucket: str) -> StorageDriver:
    import aioboto3  # type: ignore[import-not-found,unused-ignore]  # an optional package
    from temporalio.contrib.aws.s3driver import S3StorageDriver
    from temporalio.contrib.aws.s3driver.aioboto3 import new_aioboto3_client

    client = await aioboto3.Session().client("s3").__aenter__()
    return S3StorageDriver(new_aioboto3_client(client), bucket)


async def _build_gcs_driver(bucket: str) -> StorageDriver:
    from gcloud.aio.storage import Storage  # type: ignore[import-not-found,unused-ignore]  # an optional package
    from temporalio.contrib.gcp.gcsdriver import GCSStorageDriver
    from temporalio.contrib.gcp.gcsdriver.gcloud_aio import new_gcloud_aio_client

    return GCSStorageDriver(new_gcloud_aio_client(Storage()), bucket)


CONNECT_SECONDS = 10.0

LOOK_SECONDS = 10.0
"""The pause between two looks at the files of credentials: they are small, and a certificate is renewed hours before it ends."""

CURE = "start that server, correct TEMPORAL_ADDRESS (or its profile), or unset it to use the embedded one"

REFUSED = {RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED}


@dataclass(frozen=True)
class Connection:
    """A Temporal server and namespace, and the credentials for it."""

    address: str
    namespace: str
    embedded: bool
    options: ClientConnectConfig = field(default_factory=ClientConnectConfig, repr=False, hash=False)
    """TLS, API key and gRPC metadata; no repr shows them."""


async def find() -> Connection:
    """Return the server that Temporal's environment or profile names, else the embedded one, started if it does not run.

    Raises:
        InvalidRequest: The environment or the profile is malformed.
        ServerUnreachable: The embedded server is missing or does not start.
    """
    options = load_connect_config()
    address = options.pop("target_host", None)
    namespace = options.pop("namespace", NAMESPACE)
    if address is None:
        _refuse_half_configured(namespace, options)
        server = await ensure_server()
        return Connection(server.address, NAMESPACE, embedded=True)
    if not re.fullmatch(r"[^\s/]+:\d+", address):
        raise InvalidRequest(f"Temporal's address {address!r} is malformed; write host:port, for example '127.0.0.1:7233'")
    return Connection(address, namespace, embedded=False, options=options)


async def connect(connection: Connection, seconds: float = CONNECT_SECONDS) -> Client:
    """Return a client that reached the server and its namespace within `seconds`.

    Raises:
        InvalidRequest: The storage of large payloads, or the keys that encrypt them, cannot be used.
        ServerUnreachable: No Temporal server answers, or it refuses the credentials.
    """
    silence = f"No Temporal server answers at {connection.address!r}"
    try:
        async with asyncio.timeout(seconds):
            return await _dial(connection)
    except GradeloopError:
        raise  # a storage or a folder that cannot be used, which says so itself
    except TimeoutError as error:
        if connection.embedded and running_server() is not None:
            await ensure_server()  # which says how long it takes
            return await connect(connection, seconds)
        raise ServerUnreachable(f"{silence} within {seconds:.0f} s; {_cure(connection)}") from error
    except (RuntimeError, ValueError) as error:
        if status := re.search(r"status: (40[13] [A-Z]\w+)", str(error)):  # a proxy's answer, in a page that is no gRPC
            raise ServerUnreachable(_refused(connection, status[1])) from error
        raise ServerUnreachable(f"{silence}{_transport_reason(error)}; {_cure(connection)}") from error
    except RPCError as error:
        raise ServerUnreachable(_refusal(connection, error)) from error


def storage_url(connection: Connection) -> str | None:
    """Return the URL of the storage for large payloads: GRADELOOP_STORAGE, or a folder beside the embedded server's database."""
    if named := os.environ.get(VARIABLE):
        return named
    return (state_folder() / "payloads").as_uri() if is_embedded(connection) else None


def is_embedded(connection: Connection) -> bool:
    """Return whether the server is the embedded one, even if the environment names its address."""
    return connection.embedded or ((server := running_server()) is not None and server.address == connection.address)


async def _dial(connection: Connection) -> Client:
    converter = await build_converter(storage_url(connection), load_ring())
    options = {**connection.options, "namespace": connection.namespace, "data_converter": converter}
    client = await open_client(connection.address, **options)
    await check_server(client)
    return client


async def check_server(client: Client) -> None:
    """Ask the server for the client's namespace.

    Raises:
        RPCError: The server refuses, or is away.
    """
    await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))


def _refuse_half_configured(namespace: str, options: ClientConnectConfig) -> None:
    given = [f"namespace {namespace!r}"] if namespace != NAMESPACE else []
    if given := [*given, *sorted(options)]:
        raise InvalidRequest(
            f"Temporal's environment or profile gives {', '.join(given)} but no address; "
            "set TEMPORAL_ADDRESS, or unset them to use the embedded server"
        )


def _cure(connection: Connection) -> str:
    return "end it with `gradeloop dev stop` and try again" if connection.embedded else CURE


def _transport_reason(error: Exception) -> str:
    """Return the operating system's message out of the transport's nested report."""
    messages: list[str] = re.findall(r'(?:message|error): "([^"]+)"', str(error))
    return f" ({messages[-1][0].lower()}{messages[-1][1:]})" if messages else ""


def _refusal(connection: Connection, error: RPCError) -> str:
    if error.status == RPCStatusCode.NOT_FOUND:
        return (
            f"The Temporal server at {connection.address!r} has no namespace {connection.namespace!r}; "
            f"create it (temporal operator namespace create -n {connection.namespace}) or correct TEMPORAL_NAMESPACE"
        )
    if error.status in REFUSED:
        return _refused(connection, error.message)
    return f"The Temporal server at {connection.address!r} does not answer ({error.message}); {_cure(connection)}"


def _refused(connection: Connection, why: str) -> str:
    return (
        f"The Temporal server at {connection.address!r} refuses the credentials for namespace {connection.namespace!r} "
        f"({why}); correct TEMPORAL_API_KEY, TEMPORAL_TLS_* or the profile"
    )


async def follow_credentials(client: Client, connection: Connection, moved: Callable[[], None], seconds: float = LOOK_SECONDS) -> None:
    """Connect the client anew whenever its certificates or its API key have changed, which the SDK reads once; never returns.

    Calls in flight end on the connection that they began on. What cannot be read or does not connect is tried again: files are renewed
    one after the other.

    Args:
        client: What `connect` returned for the connection.
        connection: The server, and what it was connected with.
        moved: Has the client's worker use its new connection.
        seconds: The pause between two looks.
    """
    in_use, reported = connection.options, ""
    while True:
        await asyncio.sleep(seconds)
        try:
            found = load_connect_config()
            found.pop("target_host", None)
            found.pop("namespace", None)
            if found != in_use:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await reconnect(client, connection.address, moved, **{**found, "namespace": connection.namespace})
                in_use, reported = found, ""
                logger.info("connected to %s anew, with the credentials as they are now", connection.address)
        except (InvalidRequest, RuntimeError, ValueError, TimeoutError, RPCError) as error:
            if reported != (reported := type(error).__name__):  # said once, and not at every look
                logger.warning("the new credentials for %s cannot be used yet (%s); the last ones count", connection.address, error)
