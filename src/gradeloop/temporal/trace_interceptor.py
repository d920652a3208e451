"""Traces through Temporal: the SDK's spans of clients, the same of activities, and of a workflow only what those do not tell.

The SDK's own interceptor adds a span without duration for each activity that a workflow starts, beside that of the activity, and one for
its end; they were a third of all spans, each of which costs a worker processor time. Here the caller's context is handed on as it came,
and so is read once for all activities of a workflow.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

from opentelemetry import context as contexts
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, FailureError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ContinueAsNewInput,
    ExecuteActivityInput,
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

KEPT_CONTEXTS = 4_096
"""Contexts of callers that are kept, so that those of a workflow's activities are read once."""

Headers = Mapping[str, Payload]


class ContextInterceptor(TracingInterceptor):
    """Traces clients as the SDK does, activities by the same spans, and workflows by those of `TracedWorkflow`."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Return what traces an activity."""
        return TracedActivity(next, self.tracer)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # type: ignore[override]  # noqa: A002, ARG002 - the SDK's names; its own class is a sibling
        """Return what traces a workflow."""
        return TracedWorkflow


class TracedActivity(ActivityInboundInterceptor):
    """Runs an activity in a span, named and filled as the SDK's own; its four nested context managers are one step here."""

    def __init__(self, following: ActivityInboundInterceptor, tracer: Tracer) -> None:
        super().__init__(following)
        self._tracer = tracer

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        """Run an activity in its caller's trace."""
        info, caller = activity.info(), _read_context(input.headers)
        ids = {"temporalActivityID": info.activity_id, "temporalWorkflowID": info.workflow_id, "temporalRunID": info.workflow_run_id}
        attributes = {name: value for name, value in ids.items() if value}
        span = self._tracer.start_span(f"RunActivity:{info.activity_type}", caller, kind=SpanKind.SERVER, attributes=attributes)
        entered = contexts.attach(set_span_in_context(span, caller))
        try:
            return await super().execute_activity(input)
        except Exception as error:
            if span.is_recording():
                span.record_exception(error)
                if not isinstance(error, ApplicationError) or error.category != ApplicationErrorCategory.BENIGN:
                    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            raise
        finally:
            contexts.detach(entered)
            span.end()


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
    return contexts.Context() if carried is None else _context_of(carried.data)


@lru_cache(KEPT_CONTEXTS)
def _context_of(carried: bytes) -> contexts.Context:
    """Return the context that a header carries as JSON; an empty one where it is none."""
    try:
        carrier = json.loads(carried)
    except ValueError:
        carrier = None
    return _PROPAGATOR.extract(carrier, contexts.Context()) if isinstance(carrier, dict) else contexts.Context()


def _enter() -> None:
    """Enter the workflow's context; its asyncio task, whose own copy of the context this is, ends with it."""
    contexts.attach(_read_context(workflow.info().headers))


def _add_span(name: str, kind: SpanKind, *, sender: Headers | None = None, error: FailureError | None = None) -> None:
    """Add a span without duration, unless a replay asks for it again, or nobody began the trace.

    `sender`: the headers of whoever sent the signal or update, whose span it links to.
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
