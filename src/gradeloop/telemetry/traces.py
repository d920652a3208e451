"""Traces: one from the client's call over workflow and activities to the provider's request, by OpenTelemetry's GenAI conventions.

OpenTelemetry is an extra, `gradeloop[telemetry]`. Without it or an endpoint to send traces to, nothing here loads or does anything.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer, TracerProvider

CONTENT_VARIABLE = "GRADELOOP_TRACE_CONTENT"
"""The variable that, set to 1, puts prompts, replies and explanations into traces."""

SCOPE = "gradeloop"

PROVIDER_NAMES = {
    "google_genai": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""The names of providers in OpenTelemetry's conventions, where they are not ours."""

_QUOTING = frozenset({"exception.message", "exception.stacktrace"})

Attributes = dict[str, Any]


def traces_content(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether traces may quote what models and people wrote."""
    return environ.get(CONTENT_VARIABLE, "").strip() == "1"


@dataclass(frozen=True)
class Tracing:
    """The tracing of this process."""

    tracer: "Tracer"
    content: bool
    end: Callable[[], None]
    """Sends what is not sent yet, and ends."""


_tracing: Tracing | None = None


def tracing() -> Tracing | None:
    """Return the tracing of this process; None where it has none."""
    return _tracing


def start_tracing(exporter: "SpanExporter", *, content: bool) -> Tracing:
    """Trace this process, and send its spans by an exporter; raise ModuleNotFoundError without the extra `telemetry`."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = SdkTracerProvider(resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME") or SCOPE}))
    provider.add_span_processor(BatchSpanProcessor(exporter if content else _without_content(exporter)))
    return trace_with(provider, content=content, end=provider.shutdown)


def trace_with(provider: "TracerProvider", *, content: bool, end: Callable[[], None] = lambda: None) -> Tracing:
    """Trace this process by a provider that it has already."""
    global _tracing  # noqa: PLW0603 - one a process
    _tracing = Tracing(provider.get_tracer(SCOPE), content, end)
    return _tracing


def end_tracing() -> None:
    """Send what is not sent yet, and trace no more."""
    global _tracing
    ended, _tracing = _tracing, None
    if ended is not None:
        ended.end()


def provider_of_program() -> "TracerProvider | None":
    """Return the tracer provider that the program around us has set; None where it has none, or never loaded OpenTelemetry."""
    if "opentelemetry.sdk.trace" not in sys.modules:
        return None
    from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
    from opentelemetry.trace import get_tracer_provider

    found = get_tracer_provider()
    return found if isinstance(found, SdkTracerProvider) else None


def _without_content(exporter: "SpanExporter") -> "SpanExporter":
    """Return an exporter whose spans name errors only by type: their texts may quote what a model wrote."""
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter as Base
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.trace import Status

    def cleaned(span: ReadableSpan) -> ReadableSpan:
        if not span.status.description and not any(_QUOTING & (event.attributes or {}).keys() for event in span.events):
            return span
        events = [Event(event.name, _kept(event.attributes), event.timestamp) for event in span.events]
        return ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=span.attributes,
            events=events,
            links=span.links,
            kind=span.kind,
            status=Status(span.status.status_code),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )

    class WithoutContent(Base):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            """Send spans without what they quote."""
            return exporter.export([cleaned(span) for span in spans])

        def shutdown(self) -> None:
            """End."""
            exporter.shutdown()

    return WithoutContent()


def _kept(attributes: Mapping[str, Any] | None) -> Attributes:
    return {name: value for name, value in (attributes or {}).items() if name not in _QUOTING}


def put_context(headers: MutableMapping[str, str]) -> None:
    """Add the W3C context of the current span to the headers of a request."""
    if _tracing is not None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(headers)


@dataclass(frozen=True)
class ModelCallSpan:
    """The span of a request to a model; where this process is not traced, it is none and does nothing."""

    span: "Span | None" = None

    def answered(self, model: str, tokens: Mapping[str, int | None], written: Callable[[], object]) -> None:
        """Add what a reply cost.

        Args:
            model: The model that answered.
            tokens: Tokens by kind, as the convention names them: `input_tokens`, `output_tokens`, ...
            written: Returns the reply, as JSON-like data; called where content is traced.
        """
        if self.span is None or not self.span.is_recording():
            return
        counts = {f"gen_ai.usage.{name}": count for name, count in tokens.items() if count is not None}
        self.span.set_attributes({"gen_ai.response.model": model, **counts})
        if _tracing is not None and _tracing.content:
            self.span.set_attribute("gen_ai.output.messages", json.dumps(written()))

    def failed(self, kind: str) -> None:
        """Add the kind of failure."""
        if self.span is not None:
            from opentelemetry.trace import StatusCode

            self.span.set_attribute("error.type", kind)
            self.span.set_status(StatusCode.ERROR)


@contextmanager
def model_call(
    operation: str, provider: str, model: str, more: Mapping[str, str | int | float | None], asked: Callable[[], Mapping[str, object]]
) -> Iterator[ModelCallSpan]:
    """Trace a request to a model while the block runs.

    Args:
        operation: `chat` or `embeddings`.
        provider: The provider's name.
        model: The model that is asked.
        more: Further attributes; those that are None are left out.
        asked: Returns the prompt by attribute, as JSON-like data; called where content is traced.
    """
    if _tracing is None:
        yield ModelCallSpan()
        return
    from opentelemetry.context import attach, detach
    from opentelemetry.trace import SpanKind, set_span_in_context

    attributes: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER_NAMES.get(provider, provider),
        "gen_ai.request.model": model,
        **{name: value for name, value in more.items() if value is not None},
    }
    if _tracing.content:
        attributes |= {name: json.dumps(value) for name, value in asked().items()}
    span = _tracing.tracer.start_span(f"{operation} {model}", kind=SpanKind.CLIENT, attributes=attributes)
    entered = attach(set_span_in_context(span))
    try:
        yield ModelCallSpan(span)
    finally:
        detach(entered)
        span.end()


@dataclass(frozen=True)
class EvaluationResult:
    """One result of a grading, as the convention names its parts."""

    name: str
    label: str
    score: float | None
    explanation: str


def trace_evaluation(results: Sequence[EvaluationResult], more: Mapping[str, str | int]) -> None:
    """Add a grading's results to the trace, as events `gen_ai.evaluation.result`; a replay adds nothing.

    `more`: attributes of the span: thread, run and iteration, or batch and case.
    """
    if _tracing is None:
        return
    from temporalio import workflow

    # A worker that lost its cache runs the workflow's code again from its history; each replay would send the
    # same result once more.
    if workflow.in_workflow() and workflow.unsafe.is_replaying():
        return
    now = workflow.time_ns() if workflow.in_workflow() else time.time_ns()
    span = _tracing.tracer.start_span("evaluate", attributes={"gen_ai.operation.name": "evaluate", **more}, start_time=now)
    for result in results if span.is_recording() else ():
        attributes: Attributes = {"gen_ai.evaluation.name": result.name, "gen_ai.evaluation.score.label": result.label}
        if result.score is not None:
            attributes["gen_ai.evaluation.score.value"] = result.score
        if _tracing.content:
            attributes["gen_ai.evaluation.explanation"] = result.explanation
        span.add_event("gen_ai.evaluation.result", attributes, timestamp=now)
    span.end(end_time=now)
