"""Where telemetry goes: metrics to an endpoint that Prometheus scrapes, or by OTLP to a collector, as traces do."""

import logging
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from temporalio.runtime import OpenTelemetryConfig, PrometheusConfig

from gradeloop.errors import InvalidRequest
from gradeloop.exit_codes import before_leaving
from gradeloop.telemetry.health import parse_address
from gradeloop.telemetry.metrics import METRICS
from gradeloop.telemetry.traces import end_tracing, provider_of_program, start_tracing, trace_with, traces_content, tracing

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
    """Return the protocol of OTLP: `http/protobuf`, as OpenTelemetry's default is, or `grpc`.

    Raises:
        InvalidRequest: It is neither.
    """
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
        InvalidRequest: It is no URL.
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
        logger.warning("traces go by http/protobuf alone; name an endpoint for them in %s, or set OTEL_TRACES_EXPORTER=none", OTLP_TRACES)
        return False
    try:
        from gradeloop.telemetry.otlp_spans import SpanSender

        start_tracing(SpanSender(endpoint=url, headers=otlp_headers(environ)), content=traces_content(environ))
    except ModuleNotFoundError:
        logger.warning("%s is set, but traces need a package; run: pip install 'gradeloop[telemetry]'", OTLP)
        return False
    before_leaving(end_tracing)
    return True
