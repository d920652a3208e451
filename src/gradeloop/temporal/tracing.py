"""The SDK's tracing interceptor, for clients and workers of a process that is traced."""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gradeloop.exit_codes import before_leaving
from gradeloop.telemetry.traces import end_tracing, provider_of_program, start_tracing, trace_with, traces_content, tracing
from gradeloop.temporal.exporters import OTLP, otlp_endpoint, otlp_headers, otlp_protocol

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from gradeloop.temporal.trace_interceptor import ContextInterceptor

OTLP_TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"

logger = logging.getLogger(__name__)


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
    if otlp_protocol(environ) == "grpc" and not environ.get(OTLP_TRACES, "").strip():
        logger.warning("traces go by http/protobuf alone; name an endpoint for them in %s, or set OTEL_TRACES_EXPORTER=none", OTLP_TRACES)
        return False
    try:
        start_tracing(_exporter(url, otlp_headers(environ)), content=traces_content(environ))
    except ModuleNotFoundError:
        logger.warning("%s is set, but traces need a package; run: pip install 'gradeloop[telemetry]'", OTLP)
        return False
    before_leaving(end_tracing)
    return True


def _exporter(url: str, headers: dict[str, str]) -> "SpanExporter":
    from gradeloop.telemetry.otlp_spans import SpanSender

    return SpanSender(endpoint=url, headers=headers)
