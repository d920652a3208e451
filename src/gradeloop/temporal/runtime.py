"""The process's Temporal runtime and exporters, its clients and their end before the interpreter's, and the settings of a namespace.

The SDK hands every answer to Python from threads of its own. One that asks for the interpreter while that ends aborts the process, or
waits for ever; so the threads are ended first: with the last client that is closed, and at the latest when Python begins to end.
"""

import asyncio
import atexit
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    OpenTelemetryConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.service import RPCError, ServiceClient

from gradeloop.contract.thread import SEARCH_ATTRIBUTES
from gradeloop.errors import InvalidRequest, WorkerFailed
from gradeloop.exit_codes import before_leaving
from gradeloop.telemetry.health import parse_address
from gradeloop.telemetry.metrics import METRICS, record_on
from gradeloop.telemetry.traces import end_tracing, provider_of_program, start_tracing, trace_with, traces_content, tracing
from gradeloop.temporal.process import end_all

if TYPE_CHECKING:
    from gradeloop.temporal.trace_interceptor import ContextInterceptor

OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"
OTLP_TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
OTLP_METRICS = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
OTLP_PERIOD = "OTEL_METRIC_EXPORT_INTERVAL"
OTLP_MILLISECONDS = "15000"
"""A quarter of OpenTelemetry's own default, as often as Prometheus scrapes."""

_GRPC = "grpc"

logger = logging.getLogger(__name__)


def metrics_exporter(address: str | None, environ: Mapping[str, str]) -> PrometheusConfig | OpenTelemetryConfig | None:
    """Return the exporter of a worker's metrics, its SDK's and ours; None where nobody asked for one.

    Args:
        address: HOST:PORT of the endpoint that Prometheus scrapes, at `/metrics`; it comes before OTLP.
        environ: OpenTelemetry's own variables: endpoint, headers and protocol of OTLP, and `OTEL_SDK_DISABLED`.

    Raises:
        InvalidRequest: The address, the protocol or the endpoint is malformed.
    """
    buckets = {metric.name: metric.buckets for metric in METRICS if metric.buckets}
    if address:
        parse_address(address, "metrics_address")
        return PrometheusConfig(address, counters_total_suffix=True, durations_as_seconds=True, histogram_bucket_overrides=buckets)
    url, is_http = otlp_endpoint(environ, OTLP_METRICS, "v1/metrics"), otlp_protocol(environ) != _GRPC
    if url is None or environ.get("OTEL_METRICS_EXPORTER", "otlp").strip() == "none":
        return None
    return OpenTelemetryConfig(
        url=url,
        headers=otlp_headers(environ),
        metric_periodicity=_period(environ),
        durations_as_seconds=True,
        http=is_http,
        histogram_bucket_overrides=buckets,
    )


def _period(environ: Mapping[str, str]) -> timedelta:
    named = environ.get(OTLP_PERIOD, "").strip() or OTLP_MILLISECONDS
    if not re.fullmatch(r"[1-9]\d{0,8}", named):
        raise InvalidRequest(f"{OTLP_PERIOD} is {named!r}; write milliseconds, for example {OTLP_MILLISECONDS}")
    return timedelta(milliseconds=int(named))


def otlp_protocol(environ: Mapping[str, str]) -> str:
    """Return the protocol of OTLP: `http/protobuf`, as OpenTelemetry's default is, or `grpc`. Raise InvalidRequest where it is neither."""
    named = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip() or "http/protobuf"
    if named not in {_GRPC, "http/protobuf"}:
        raise InvalidRequest(f"OTEL_EXPORTER_OTLP_PROTOCOL is {named!r}; write http/protobuf or grpc")
    return named


def otlp_endpoint(environ: Mapping[str, str], own: str, path: str) -> str | None:
    """Return the URL that one kind of telemetry is sent to by OTLP; None where none is named.

    Args:
        environ: OpenTelemetry's own variables.
        own: The variable of this kind, whose URL is taken as it is.
        path: What is added to the URL of all kinds, where it is sent by HTTP.

    Raises:
        InvalidRequest: It is not a URL.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    name = own if environ.get(own, "").strip() else OTLP
    url = environ.get(name, "").strip()
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"{name} is {url!r}; write a URL, for example http://127.0.0.1:4318")
    return url if name == own or otlp_protocol(environ) == _GRPC else f"{url.rstrip('/')}/{path}"


def otlp_headers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that go with OTLP, a collector's key say."""
    pairs = (pair.partition("=") for pair in environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",") if "=" in pair)
    return {name.strip(): value.strip() for name, _, value in pairs}


def tracing_interceptors(environ: Mapping[str, str] = os.environ) -> "list[ContextInterceptor]":
    """Return the interceptor that carries traces, where this process is traced; it is from now on, if the environment names an endpoint.

    A program that has a tracer provider of its own is traced by that.

    Raises:
        InvalidRequest: A variable of OpenTelemetry is malformed.
    """
    if tracing() is None and not _start(environ):
        return []
    from gradeloop.temporal.trace_interceptor import ContextInterceptor

    known = tracing()
    return [ContextInterceptor(known.tracer)] if known is not None else []


def _start(environ: Mapping[str, str]) -> bool:
    """Begin to trace this process, if anybody wants that and its packages are there."""
    if (own := provider_of_program()) is not None:
        trace_with(own, content=traces_content(environ))
        return True
    url = otlp_endpoint(environ, OTLP_TRACES, "v1/traces")
    if url is None or environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() == "none":
        return False
    if otlp_protocol(environ) == _GRPC and not environ.get(OTLP_TRACES, "").strip():
        logger.warning("traces go only by http/protobuf; name an endpoint for them in %s, or set OTEL_TRACES_EXPORTER=none", OTLP_TRACES)
        return False
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        start_tracing(OTLPSpanExporter(endpoint=url, headers=otlp_headers(environ)), content=traces_content(environ))
    except ModuleNotFoundError:
        logger.warning("%s is set, but traces need a package; run: pip install 'gradeloop[telemetry]'", OTLP)
        return False
    before_leaving(end_tracing)
    return True


RELEASE_SECONDS = 5.0
"""Seconds that a thread of the SDK may take to let go of a connection; it needs the interpreter once, and takes microseconds."""

Response = TypeVar("Response", bound=Message)


class ClosableService(ServiceClient):
    """A service client that can be closed: its calls in flight end, and nothing of it runs on."""

    def __init__(self, inner: ServiceClient) -> None:
        super().__init__(inner.config)
        self._inner: ServiceClient | None = inner
        self._calls = set[asyncio.Task[Any]]()
        _open.add(self)

    @property
    def worker_service_client(self) -> Any:  # noqa: ANN401 - the SDK's own class, which it does not export
        """The SDK's own client, which a worker polls with."""
        return self._connected().worker_service_client

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        """Replace the metadata of the calls to come."""
        self._connected().update_rpc_metadata(metadata)

    def update_api_key(self, api_key: str | None) -> None:
        """Replace the API key of the calls to come."""
        self._connected().update_api_key(api_key)

    def replace(self, newer: ServiceClient, moved: Callable[[], None]) -> None:
        """Send the calls to come over another connection, and drop the one before once `moved` has taken a worker from it."""
        older, self._inner = self._connected(), newer
        moved()
        self._release(older)
        _open.add(self)

    async def close(self) -> None:
        """Cancel the calls in flight, wait for their end, and disconnect; the runtime ends with its last client."""
        inner, self._inner = self._inner, None
        await end_all(self._calls)
        self._release(inner)
        _end_unused_runtime()

    def disconnect(self) -> None:
        """Disconnect where no event loop runs any more, and so no call."""
        inner, self._inner = self._inner, None
        self._release(inner)

    def _connected(self) -> ServiceClient:
        if self._inner is None:
            raise InvalidRequest("this client is closed; connect another one with GradingClient.connect()")
        return self._inner

    def _release(self, inner: ServiceClient | None) -> None:
        """Drop the connection itself: the SDK's objects around it live on, in circles of references and in the tracebacks of errors."""
        _open.discard(self)
        bridge = vars(inner).get("_bridge_client") if inner is not None else None
        if bridge is None:
            return
        connection, new = bridge._ref, object()  # noqa: SLF001 - the SDK has no method that disconnects
        bridge._ref = None  # noqa: SLF001 - as above
        # The SDK's thread that brought the connection may not have let go of it yet, and would end the runtime from within.
        deadline = time.monotonic() + RELEASE_SECONDS
        while sys.getrefcount(connection) > sys.getrefcount(new) and time.monotonic() < deadline:
            time.sleep(0.0005)

    async def _rpc_call(
        self,
        rpc: str,
        req: Message,
        resp_type: type[Response],
        *,
        service: str,
        retry: bool,
        metadata: Mapping[str, str | bytes],
        timeout: timedelta | None,  # noqa: ASYNC109 - the SDK's signature
    ) -> Response:
        sending = self._connected()._rpc_call(  # noqa: SLF001 - the method that every service client overrides
            rpc, req, resp_type, service=service, retry=retry, metadata=metadata, timeout=timeout
        )
        call = asyncio.ensure_future(sending)
        self._calls.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            # Two things cancel a call: `close()` cancels the call's own task, and a caller may be cancelled
            # itself. Only the first becomes an error in words; to swallow the second would break every timeout
            # around a call.
            caller = asyncio.current_task()
            if self._inner is None and call.cancelled() and not (caller and caller.cancelling()):  # by `close()`
                raise InvalidRequest("this client was closed while a call was in flight; its thread continues") from None
            raise
        finally:
            self._calls.discard(call)


_open: "WeakSet[ClosableService]" = WeakSet()
_runtime: Runtime | None = None
_exporter: PrometheusConfig | OpenTelemetryConfig | None = None


async def open_client(address: str, **options: Any) -> Client:  # noqa: ANN401 - what Client.connect takes
    """Return a client that `close_client` can close, on the process's runtime."""
    client = await Client.connect(address, runtime=client_runtime(), interceptors=tracing_interceptors(), **options)
    config = client.config()
    config["service_client"] = ClosableService(client.service_client)
    return Client(**config)


async def reconnect(client: Client, address: str, moved: Callable[[], None], **options: Any) -> None:  # noqa: ANN401 - as above
    """Have a client of `open_client` use a new connection, made with these options; `moved` tells its worker.

    Raises:
        RuntimeError: The server cannot be reached with them; the connection stays as it was.
    """
    newer = await Client.connect(address, runtime=client_runtime(), **options)
    if isinstance(client.service_client, ClosableService):
        client.service_client.replace(newer.service_client, moved)


async def close_client(client: Client) -> None:
    """Close a client of `open_client`: its calls in flight end, and later ones are refused; any other client stays as it is."""
    if isinstance(client.service_client, ClosableService):
        await client.service_client.close()


def client_runtime() -> Runtime:
    """Return the process's Temporal runtime, whose own log goes to Python's logging: stdout belongs to the command."""
    global _runtime  # noqa: PLW0603 - one runtime a process, which has to end with its last client
    if _runtime is None:
        logger = logging.getLogger("gradeloop.sdk")  # no parent of our own loggers, whose warnings reach the terminal
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
        forwarding = LogForwardingConfig(logger, append_log_fields_to_message=False)  # they quote payloads; our formatters show ids
        log = LoggingConfig(levels, forwarding=forwarding)
        _runtime = _started(TelemetryConfig(logging=log, metrics=_exporter, attach_service_name=False))
        if _exporter is not None:
            record_on(_runtime.metric_meter)
    return _runtime


def export_metrics(exporter: PrometheusConfig | OpenTelemetryConfig | None) -> None:
    """Have the process's runtime export metrics, the SDK's and ours, from its next start on; None has it export none."""
    global _exporter  # noqa: PLW0603 - as above
    _exporter = exporter


def _started(telemetry: TelemetryConfig) -> Runtime:
    try:
        return Runtime(telemetry=telemetry)
    except ValueError as error:
        place = _exporter.bind_address if isinstance(_exporter, PrometheusConfig) else getattr(_exporter, "url", "nowhere")
        raise InvalidRequest(f"metrics cannot be exported at {place}: {error}; choose another metrics_address") from None


def _end_unused_runtime() -> None:
    """End the runtime where no client is open; its threads hand over what they have, and stop."""
    global _runtime  # noqa: PLW0603 - as above
    if not _open and _runtime is not None:
        record_on(None)
        vars(_runtime._core_runtime).update(_ref=None)  # noqa: SLF001 - the SDK has no method that ends a runtime
        _runtime = None


@atexit.register
def _end_runtime() -> None:
    """Disconnect every client and end the runtime; event loops and threads have ended, and the interpreter is still whole."""
    for service in tuple(_open):
        service.disconnect()
    _end_unused_runtime()


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
            if await _add_search_attributes(client):  # the server's own flags reach only a new database
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


async def _add_search_attributes(client: Client) -> list[str]:
    """Create the search attributes that the namespace lacks, and return their names."""
    known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    absent = [name for name in SEARCH_ATTRIBUTES if name not in known.custom_attributes]
    if absent:
        kinds = dict.fromkeys(absent, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD)
        await client.operator_service.add_search_attributes(AddSearchAttributesRequest(namespace=client.namespace, search_attributes=kinds))
    return absent


async def register_search_attributes(client: Client) -> None:
    """Create the search attributes that the namespace lacks.

    Raises:
        WorkerFailed: The server refuses; the message holds the command to run instead.
    """
    try:
        await _add_search_attributes(client)
    except RPCError as error:
        flags = " ".join(f"--name {name} --type Keyword" for name in SEARCH_ATTRIBUTES)
        command = f"temporal operator search-attribute create --namespace {client.namespace} {flags}"
        on_cloud = " ".join(f"--search-attribute {name}=Keyword" for name in SEARCH_ATTRIBUTES)
        cloud = f"tcld namespace search-attributes add --namespace {client.namespace} {on_cloud}"
        cure = f"run `{command}`, on Temporal Cloud `{cloud}`, or set GRADELOOP_SEARCH_ATTRIBUTES=off"
        raise WorkerFailed(f"the search attributes cannot be registered ({error.message}); {cure}") from None
