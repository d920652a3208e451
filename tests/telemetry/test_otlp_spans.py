"""Spans that are encoded here are byte for byte what OpenTelemetry's encoder says, read back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gradeloop.telemetry.otlp_spans import encode

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans()
ATTRIBUTES = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), TEXTS | NUMBERS, max_size=6)


def spans_of(
    named: str, attributes: dict[str, Any], events: list[dict[str, Any]], *, remote: bool = False, **more: Any
) -> list[ReadableSpan]:
    """Return a span and its child, as the SDK ends them."""
    kept, provider = InMemorySpanExporter(), TracerProvider(resource=Resource({"service.name": "gradeloop", "process.pid": 7}))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("gradeloop")
    caller = NonRecordingSpan(SpanContext(2**127 + 5, 2**63 + 7, is_remote=True, trace_flags=TraceFlags(1)))
    around = trace.set_span_in_context(caller) if remote else None
    with tracer.start_as_current_span(named, around, kind=SpanKind.SERVER), tracer.start_as_current_span("inner", **more) as span:
        span.set_attributes(attributes)
        for at, event in enumerate(events):
            span.add_event("gen_ai.evaluation.result", event, timestamp=at)
    return list(kept.get_finished_spans())


def assert_same(spans: list[ReadableSpan]) -> None:
    read = ExportTraceServiceRequest.FromString(encode(spans))
    wanted = encode_spans(spans)
    found = [span for resource in read.resource_spans for scope in resource.scope_spans for span in scope.spans]
    there = [span for resource in wanted.resource_spans for scope in resource.scope_spans for span in scope.spans]

    assert sorted(found, key=lambda span: span.span_id) == sorted(there, key=lambda span: span.span_id)
    assert {str(resource.resource) for resource in read.resource_spans} == {str(resource.resource) for resource in wanted.resource_spans}
    assert {str(one.scope) for each in read.resource_spans for one in each.scope_spans} == {
        str(one.scope) for each in wanted.resource_spans for one in each.scope_spans
    }


@given(TEXTS, ATTRIBUTES, st.lists(ATTRIBUTES, max_size=3), st.booleans())
def test_whatever_a_span_has_is_read_back_as_opentelemetry_writes_it(
    named: str, attributes: dict[str, Any], events: list[dict[str, Any]], remote: bool
) -> None:
    assert_same(spans_of(named, attributes, events, remote=remote))


def test_one_and_true_and_1_0_are_told_apart_where_bytes_are_kept() -> None:
    assert_same(spans_of("numbers", {"a": 1}, []) + spans_of("numbers", {"a": True}, []) + spans_of("numbers", {"a": 1.0}, []))


@pytest.mark.parametrize(
    ("attributes", "more"),
    [
        ({"list": ["a", "b"]}, {}),
        ({}, {"links": [Link(SpanContext(3, 4, is_remote=True), {"why": "linked"})]}),
        ({f"many{at}": at for at in range(200)}, {}),
    ],
    ids=["a list", "a link", "more attributes than a span may have"],
)
def test_what_is_rare_is_written_too(attributes: dict[str, Any], more: dict[str, Any]) -> None:
    assert_same(spans_of("rare", attributes, [{"list": [1, 2]}], **more))


def test_an_error_has_its_status_and_its_exception() -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    span = provider.get_tracer("gradeloop", "1.2").start_span("fails")
    span.set_status(Status(StatusCode.ERROR, "it went wrong"))
    span.record_exception(ValueError("wrong"))
    span.end()

    assert_same(list(kept.get_finished_spans()))


def test_nothing_is_an_empty_request() -> None:
    assert encode([]) == b""
