"""Traces through Temporal: the SDK's spans of clients and activities, and of a workflow only what those do not tell.

The SDK's own interceptor adds a span without duration for each activity that a workflow starts, beside that of the activity, and one for
its end; they were a third of all spans, each of which costs a worker processor time. Here the caller's context is handed on as it came.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

from opentelemetry import context as contexts
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace import Link, SpanKind, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.converter import PayloadConverter
from temporalio.exceptions import FailureError
from temporalio.worker import (
    ContinueAsNewInput,
    ExecuteWorkflowInput,
    HandleSignalInput,
    HandleUpdateInput,
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from gradeloop.telemetry.traces import tracing

CONTEXT = "_tracer-data"
"""The header that carries a context; the SDK's interceptors in other programs read and write it, too."""

_PROPAGATOR = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])

Headers = Mapping[str, Payload]


class ContextInterceptor(TracingInterceptor):
    """Traces clients and activities as the SDK does, and workflows by the spans of `TracedWorkflow`."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # type: ignore[override]  # noqa: A002, ARG002 - the SDK's names; its own class is a sibling
        """Return what traces a workflow."""
        return TracedWorkflow


class TracedWorkflow(WorkflowInboundInterceptor):
    """Adds a span for the start of a workflow, for its failure, and for each signal and update; a replay adds none."""

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """Hand the context on to what the workflow starts."""
        super().init(_HandsContextOn(outbound))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        """Run the workflow in its caller's trace."""
        _enter()
        _add_span(f"RunWorkflow:{workflow.info().workflow_type}", SpanKind.SERVER)
        try:
            return await super().execute_workflow(input)
        except FailureError as error:
            _add_span(f"CompleteWorkflow:{workflow.info().workflow_type}", SpanKind.INTERNAL, error=error)
            raise

    async def handle_signal(self, input: HandleSignalInput) -> None:  # noqa: A002 - the SDK's
        """Handle a signal in the workflow's trace."""
        _enter()
        _add_span(f"HandleSignal:{input.signal}", SpanKind.SERVER, sender=input.headers)
        await super().handle_signal(input)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        """Handle an update in the workflow's trace."""
        _enter()
        _add_span(f"HandleUpdate:{input.update}", SpanKind.SERVER, sender=input.headers)
        return await super().handle_update_handler(input)


class _HandsContextOn(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002 - the SDK's
        input.headers = _with_context(input.headers)
        return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
        input.headers = _with_context(input.headers)
        return super().start_local_activity(input)

    async def start_child_workflow(self, input: StartChildWorkflowInput) -> workflow.ChildWorkflowHandle[Any, Any]:  # noqa: A002
        input.headers = _with_context(input.headers)
        return await super().start_child_workflow(input)

    async def signal_child_workflow(self, input: SignalChildWorkflowInput) -> None:  # noqa: A002
        input.headers = _with_context(input.headers)
        await super().signal_child_workflow(input)

    async def signal_external_workflow(self, input: SignalExternalWorkflowInput) -> None:  # noqa: A002
        input.headers = _with_context(input.headers)
        await super().signal_external_workflow(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:  # noqa: A002
        input.headers = _with_context(input.headers)
        super().continue_as_new(input)


def _with_context(headers: Headers) -> Headers:
    """Return headers with the workflow's context, where its caller sent one."""
    carried = workflow.info().headers.get(CONTEXT)
    return headers if carried is None else {**headers, CONTEXT: carried}


def _read_context(headers: Headers) -> contexts.Context:
    """Return the context of headers; an empty one where they have none."""
    carried = headers.get(CONTEXT)
    carrier = PayloadConverter.default.from_payloads([carried])[0] if carried is not None else None
    return _PROPAGATOR.extract(carrier, contexts.Context()) if carrier else contexts.Context()


def _enter() -> None:
    """Enter the workflow's context; its asyncio task, whose own copy of the context this is, ends with it."""
    contexts.attach(_read_context(workflow.info().headers))


def _add_span(name: str, kind: SpanKind, *, sender: Headers | None = None, error: FailureError | None = None) -> None:
    """Add a span without duration, unless a replay asks for it again, or nobody began the trace.

    Args:
        name: The span's name.
        kind: Its kind.
        sender: The headers of whoever sent the signal or update, whose span it links to.
        error: What the workflow failed with.
    """
    known, info = tracing(), workflow.info()
    if known is None or CONTEXT not in info.headers or workflow.unsafe.is_replaying():
        return
    sent = get_current_span(_read_context(sender or {})).get_span_context()
    at = workflow.time_ns()
    span = known.tracer.start_span(
        name,
        kind=kind,
        attributes={"temporalWorkflowID": info.workflow_id, "temporalRunID": info.run_id},
        links=[Link(sent)] if sent.is_valid else [],
        start_time=at,
    )
    if error is not None:
        span.record_exception(error, timestamp=at)
    span.end(end_time=at)
