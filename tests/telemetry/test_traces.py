"""Traces: one from the client's call to the provider's request, by OpenTelemetry's GenAI conventions, without content, once."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_current_span
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from gradeloop.client.client import GradingClient
from gradeloop.telemetry.traces import end_tracing, trace_with, tracing
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.runtime import tracing_interceptors
from gradeloop.temporal.server import ServerInfo
from gradeloop.temporal.trace_interceptor import CONTEXT
from tests.rig.batches import batching, case, fails, passes
from tests.telemetry.test_metrics import named, recorded
from tests.temporal.test_worker import started, until_ready
from tests.workflows.test_replay import recorded as recorded_history
from workflows.grading_thread import GradingThreadWorkflow

WRITTEN = "what-the-user-wrote"
DRAFTED = "what-the-model-wrote"
EXPLAINED = "what-the-grader-explained"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Trace this process as a program with a provider of its own does, and return what keeps the spans."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace_with(provider, content=False)
    yield exporter
    end_tracing()


class Collector:
    """Keeps what is sent by OTLP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.url = ""

    async def collect(self, request: web.Request) -> web.Response:
        """Keep the spans of a request."""
        sent = ExportTraceServiceRequest.FromString(await request.read()) if request.path == "/v1/traces" else ExportTraceServiceRequest()
        self.spans += [span for one in sent.resource_spans for scope in one.scope_spans for span in scope.spans]
        return web.Response(content_type="application/x-protobuf")

    def named(self, name: str) -> list[Any]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """Run a collector."""
    collector, app = Collector(), web.Application(client_max_size=2**26)
    app.router.add_post("/{tail:.*}", collector.collect)
    server = TestServer(app)
    await server.start_server()
    collector.url = f"http://127.0.0.1:{server.port}"
    yield collector
    await server.close()


@asynccontextmanager
async def modelling(seen: list[str]) -> AsyncIterator[str]:
    """Run a provider that drafts and judges, and notes the trace of every request."""

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("traceparent", ""))
        body = await request.json()
        verdict = {"k1": {"reason": EXPLAINED, "passed": True, "gap": ""}, "unjudgeable": "", "summary": EXPLAINED}
        said = DRAFTED if body["model"] == "writer" else json.dumps(verdict)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
        usage = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice], "usage": usage}
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    server = TestServer(app)
    await server.start_server()
    yield f"http://127.0.0.1:{server.port}/v1"
    await server.close()


def attributes(span: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


async def graded(server: ServerInfo, folder: Path, **variables: str) -> tuple[Collector, list[str]]:
    """Run a thread on a traced worker, from a traced client; returns the worker's spans, and the contexts that the provider saw."""
    seen: list[str] = []
    async with collecting() as collector, modelling(seen) as url:
        queue, ready = f"traced-{uuid4()}", folder / "ready"
        own = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_METRICS_EXPORTER": "none", "GRADELOOP_BASE_URLS": url, **variables}
        process = await started(server, "--task-queue", queue, "--ready-file", str(ready), **own)
        assert (await until_ready(ready))["ok"] is True
        client = await connect(Connection(server.address, "default", embedded=False))
        config = {"base_url": url, "structured_output": True}
        thread = {
            "messages": [{"role": "user", "content": WRITTEN}],
            "rubric": "- it is good",
            "generator": {"model": {"id": "openai_compatible:writer", "config": config}},
            "grader": {"model": {"id": "openai_compatible:judge", "config": config}},
        }
        try:
            result = await GradingClient(client, task_queue=queue).result(
                await GradingClient(client, task_queue=queue).start(thread, thread_id=f"traced-{queue}")
            )
            assert result.status == "satisfied", result
        finally:
            process.terminate()
            _, log = await asyncio.wait_for(process.communicate(), 240)
        assert process.returncode == 0, log.decode()
    return collector, seen


@pytest.mark.slow
async def test_one_trace_goes_from_the_client_to_the_provider_and_quotes_nothing(
    temporal_server: ServerInfo, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    collector, seen = await graded(temporal_server, tmp_path)
    begun = next(span for span in spans.get_finished_spans() if span.name.startswith("Start"))
    trace = f"{begun.context.trace_id:032x}" if begun.context else ""
    calls = {span.name: span for span in collector.spans if span.name.startswith("chat ")}
    found = attributes(calls["chat judge"])

    assert {span.trace_id.hex() for span in collector.spans} == {trace}
    assert [context.split("-")[1] for context in seen] == [trace, trace]
    assert {context.split("-")[2] for context in seen} == {span.span_id.hex() for span in calls.values()}
    assert Counter(span.name for span in collector.spans) == {
        "RunWorkflow:GradingThread": 1,
        "RunActivity:generate": 1,
        "chat writer": 1,
        "RunActivity:grade": 1,
        "chat judge": 1,
        "evaluate": 1,
    }
    assert {span.span_id for span in collector.named("RunActivity:grade")} == {calls["chat judge"].parent_span_id}
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.provider.name"] == "openai_compatible"
    assert found["gen_ai.request.model"] == "judge"
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (11, 5)
    quoted = repr(collector.spans) + "".join(span.to_json() for span in spans.get_finished_spans())
    assert not [text for text in (WRITTEN, DRAFTED, EXPLAINED) if text in quoted]


@pytest.mark.slow
async def test_evaluations_are_events_and_content_is_there_where_it_was_asked_for(
    temporal_server: ServerInfo, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    collector, _ = await graded(temporal_server, tmp_path, GRADELOOP_TRACE_CONTENT="1")
    (span,) = collector.named("evaluate")
    events = [attributes(event) for event in span.events if event.name == "gen_ai.evaluation.result"]
    written = attributes(collector.named("chat writer")[0])

    assert [(event["gen_ai.evaluation.name"], event["gen_ai.evaluation.score.label"]) for event in events] == [
        ("rubric", "satisfied"),
        ("c1", "passed"),
    ]
    assert [event["gen_ai.evaluation.score.value"] for event in events] == [1.0, 1.0]
    assert all(EXPLAINED in event["gen_ai.evaluation.explanation"] for event in events)
    assert WRITTEN in written["gen_ai.input.messages"]
    assert DRAFTED in written["gen_ai.output.messages"]
    assert "-" in attributes(span)["gradeloop.run"]


async def test_a_case_of_a_batch_is_an_evaluation_of_its_activitys_trace(
    client: Client, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    async with batching(client, tmp_path, passes(), fails("the output of b", gap=EXPLAINED)) as batches:
        await batches.run([case("a"), case("b")])
    found = {span.attributes["gradeloop.case"]: span for span in spans.get_finished_spans() if span.name == "evaluate" and span.attributes}
    events = [dict(event.attributes or {}) for event in found["b"].events]

    assert set(found) == {"a", "b"}
    assert [(event["gen_ai.evaluation.name"], event["gen_ai.evaluation.score.label"]) for event in events] == [
        ("rubric", "failed"),
        ("c1", "failed"),
    ]
    assert EXPLAINED not in found["b"].to_json()


@pytest.mark.parametrize("replaying", [True, False])
async def test_a_replay_emits_nothing_twice(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, replaying: bool) -> None:
    """The second case takes the replay for a first run, which shows that the history has spans to emit."""
    history = recorded_history("capped")
    context = {"traceparent": f"00-{7:032x}-{9:016x}-01"}
    begun = history.events[0].workflow_execution_started_event_attributes
    begun.header.fields[CONTEXT].CopyFrom(PayloadConverter.default.to_payloads([context])[0])
    monkeypatch.setattr(workflow.unsafe, "is_replaying", lambda: replaying)
    with recorded() as buffer:
        replayer = Replayer(
            workflows=[GradingThreadWorkflow],
            workflow_runner=UnsandboxedWorkflowRunner(),
            data_converter=pydantic_data_converter,
            interceptors=tracing_interceptors({}),
        )
        await replayer.replay_workflow(history)
        updates = buffer.retrieve_updates()

    assert bool(named(updates, "gradeloop_verdicts")) is not replaying
    assert bool(named(updates, "gradeloop_runs")) is not replaying
    assert bool(spans.get_finished_spans()) is not replaying


@activity.defn
async def traced_activity() -> str:
    """Return the trace that it runs in."""
    return f"{get_current_span().get_span_context().trace_id:032x}"


@workflow.defn
class Rolls:
    """Calls an activity, takes a signal and an update, goes on as another run, and fails."""

    def __init__(self) -> None:
        self._signalled = False
        self._seen: list[str] = []

    @workflow.run
    async def run(self, seen: list[str]) -> None:
        """Call, wait, go on once, fail."""
        self._seen = [*seen, await workflow.execute_activity(traced_activity, start_to_close_timeout=timedelta(seconds=30))]
        if not seen:
            await workflow.wait_condition(lambda: self._signalled)
            workflow.continue_as_new(self._seen)
        raise ApplicationError("as planned", *self._seen)

    @workflow.signal
    def go_on(self) -> None:
        """Let it go on."""
        self._signalled = True

    @workflow.update
    async def first(self) -> str:
        """Return the first trace."""
        await workflow.wait_condition(lambda: bool(self._seen))
        return self._seen[0]


async def test_a_workflow_hands_its_context_on_and_adds_no_span_that_tells_nothing(client: Client, spans: InMemorySpanExporter) -> None:
    traced = Client(**(client.config() | {"interceptors": tracing_interceptors({})}))
    queue = f"rolls-{uuid4()}"
    async with Worker(
        traced, task_queue=queue, workflows=[Rolls], activities=[traced_activity], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        handle = await traced.start_workflow(Rolls.run, [], id=queue, task_queue=queue)
        trace = await handle.execute_update(Rolls.first)
        await handle.signal(Rolls.go_on)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    found = {span.name: span for span in spans.get_finished_spans()}
    ids = {name: span.context for name, span in found.items() if span.context is not None}
    cause = failed.value.cause

    assert isinstance(cause, ApplicationError)
    assert list(cause.details) == [trace, trace]
    assert Counter(span.name for span in spans.get_finished_spans()) == {
        "StartWorkflow:Rolls": 1,
        "StartWorkflowUpdate:first": 1,
        "SignalWorkflow:go_on": 1,
        "RunWorkflow:Rolls": 2,
        "RunActivity:traced_activity": 2,
        "HandleUpdate:first": 1,
        "HandleSignal:go_on": 1,
        "CompleteWorkflow:Rolls": 1,
    }
    for handled, sent in (("HandleUpdate:first", "StartWorkflowUpdate:first"), ("HandleSignal:go_on", "SignalWorkflow:go_on")):
        assert [link.context.span_id for link in found[handled].links] == [ids[sent].span_id]
        assert f"{ids[handled].trace_id:032x}" == trace
    assert [event.name for event in found["CompleteWorkflow:Rolls"].events] == ["exception"]


@pytest.mark.slow
def test_a_process_that_nobody_traces_has_no_interceptor_and_loads_no_opentelemetry() -> None:
    script = (
        "import sys; from gradeloop.temporal.runtime import tracing_interceptors; from gradeloop.telemetry.traces import put_context\n"
        "headers = {}; put_context(headers)\n"
        "print(tracing_interceptors({}), headers, [name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[] {} []"


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    ],
)
def test_traces_are_sent_where_somebody_asks_for_them_alone(variables: dict[str, str]) -> None:
    assert tracing_interceptors(variables) == []
    assert tracing() is None
