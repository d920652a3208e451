"""Metrics: what a worker exports for Prometheus and by OTLP, with bounded labels, and nothing where nobody asked."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from temporalio.client import Client
from temporalio.runtime import BufferedMetricUpdate, MetricBuffer, OpenTelemetryConfig, PrometheusConfig, Runtime, TelemetryConfig

from activities.calls.limiter import CallLimiter
from activities.calls.paid_call import count_failure, count_reply, count_wait
from activities.providers import Providers
from activities.providers.environment import Environment
from activities.providers.scripted import Script
from activities.tools.registry import ToolRegistry
from gradeloop.client.client import GradingClient
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelRequest, Step
from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.sandbox.monty import Monty
from gradeloop.settings.worker import WorkerSettings
from gradeloop.store.engine import Store
from gradeloop.telemetry import metrics
from gradeloop.telemetry.metrics import METRICS, MODELS_SHOWN, VERDICTS, record_on
from gradeloop.temporal.runtime import metrics_exporter
from gradeloop.temporal.server import ServerInfo
from gradeloop.temporal.worker_process import sample_once
from tests.rig.cli import draft, verdict
from tests.telemetry.test_health import free_port
from tests.temporal.test_worker import started, until_ready
from worker import build

REPLIES = {"replies": [draft("a draft", usage={"input": 7, "output": 3}), verdict(gap="too short"), draft("a better draft", 1), verdict(1)]}

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@contextmanager
def recorded() -> Iterator[MetricBuffer]:
    """Record on a real meter of the SDK, whose updates are kept."""
    buffer = MetricBuffer(100_000)
    runtime = Runtime(telemetry=TelemetryConfig(metrics=buffer, attach_service_name=False))
    record_on(runtime.metric_meter)
    try:
        yield buffer
    finally:
        record_on(None)


def named(updates: Any, name: str) -> list[BufferedMetricUpdate]:
    return [update for update in updates if update.metric.name == name]


def request(model: str = "openai:gpt-6", role: str = "generator") -> ModelRequest:
    return ModelRequest(spec=ModelSpec(id=model), step=Step.model_validate({"role": role}), messages=())


def test_ten_thousand_odd_names_of_models_are_a_bounded_number_of_series() -> None:
    with recorded() as buffer:
        for number in range(10_000):
            count_reply(request(f'openai:model-{number}\n"{"x" * 300}'), Usage(calls=1, attempts=1, input=1))
        calls = named(buffer.retrieve_updates(), "gradeloop_model_calls")
    series = {tuple(sorted(update.attributes.items())) for update in calls}

    assert sum(update.value for update in calls) == 10_000
    assert len(series) == MODELS_SHOWN + 1
    assert all(len(str(value)) <= metrics.LABEL_CHARACTERS and "\n" not in str(value) for row in series for _, value in row)


def test_a_failed_request_is_counted_by_kind_and_a_graders_last_one_as_its_error() -> None:
    with recorded() as buffer:
        count_failure(request(role="grader"), "server", Usage(attempts=1, seconds=2), final=False)
        count_failure(request(role="grader"), "auth", None, final=True)
        count_failure(request(role="generator"), "auth", None, final=True)
        count_wait(request(), 2.5)
        updates = buffer.retrieve_updates()

    assert [update.attributes["kind"] for update in named(updates, "gradeloop_model_errors")] == ["server", "auth", "auth"]
    assert len(named(updates, "gradeloop_model_retries")) == 1
    assert [update.attributes["kind"] for update in named(updates, "gradeloop_grader_errors")] == ["auth"]
    assert [update.value for update in named(updates, "gradeloop_model_wait_seconds")] == [2.5]


async def test_limiter_sandbox_and_store_say_how_they_are(tmp_path: Path) -> None:
    with recorded() as buffer:
        turn = await CallLimiter().limiter("openai", "https://x", "gpt-6").enter("c", 0, 40)
        Monty().run("1 + 1")
        await Store(f"sqlite:///{tmp_path / 'results.db'}").read(lambda _: None)
        updates = buffer.retrieve_updates()

    assert turn.limiter is not None
    assert {update.metric.name: update.value for update in updates}["gradeloop_limiter_in_flight"] == 1
    assert [update.attributes["status"] for update in named(updates, "gradeloop_sandbox_runs")] == ["ok"]
    assert [update.attributes["outcome"] for update in named(updates, "gradeloop_store_seconds")] == ["ok"]


def test_labels_that_a_metric_does_not_have_are_a_mistake() -> None:
    with recorded(), pytest.raises(ValueError, match="gradeloop_verdicts has the labels"):
        VERDICTS.record(verdict="satisfied")


def test_every_metric_has_one_name_of_prometheus_and_a_description() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS) > 20
    for metric in METRICS:
        assert re.fullmatch(r"gradeloop_[a-z]+(_[a-z]+)*", metric.name)
        assert not metric.name.endswith("_total")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert metric.description


def test_without_an_exporter_nothing_is_loaded_that_the_package_does_not_load() -> None:
    script = (
        "import sys; import gradeloop; from gradeloop.telemetry.metrics import VERDICTS; VERDICTS.record(result='x');"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus', 'temporalio'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_address_comes_before_otlp_and_otlp_has_the_standards_own_variables() -> None:
    address = "OTEL_EXPORTER_OTLP_ENDPOINT"
    otlp = {address: "http://127.0.0.1:4318/", "OTEL_EXPORTER_OTLP_HEADERS": "api-key=abc, x=y"}
    by_http, by_grpc = metrics_exporter(None, otlp), metrics_exporter(None, {**otlp, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})

    assert metrics_exporter(None, {}) is None
    assert metrics_exporter(None, {**otlp, "OTEL_SDK_DISABLED": "true"}) is None
    assert metrics_exporter(None, {**otlp, "OTEL_METRICS_EXPORTER": "none"}) is None
    assert isinstance(metrics_exporter("127.0.0.1:9464", otlp), PrometheusConfig)
    assert isinstance(by_http, OpenTelemetryConfig)
    assert isinstance(by_grpc, OpenTelemetryConfig)
    assert (by_http.url, by_http.http, by_http.headers) == ("http://127.0.0.1:4318/v1/metrics", True, {"api-key": "abc", "x": "y"})
    assert (by_grpc.url, by_grpc.http) == ("http://127.0.0.1:4318/", False)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT is 'localhost:4318'; write a URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_METRIC_EXPORT_INTERVAL": "soon"}, "write milliseconds"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "write http/protobuf or grpc"),
    ],
)
def test_a_malformed_variable_of_otlp_is_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        metrics_exporter(None, variables)


def parsed(text: str) -> Series:
    """Return the series of Prometheus's text by name and labels."""
    found: Series = {}
    for name, labels, value in re.findall(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$", text, flags=re.MULTILINE):
        found[name, tuple(re.findall(r'(\w+)="([^"]*)"', labels))] = float(value)
    return found


def total(series: Series, name: str, **labels: str) -> float:
    return sum(value for (found, have), value in series.items() if found == name and labels.items() <= dict(have).items())


@asynccontextmanager
async def run_once(server: ServerInfo, client: Client, folder: Path, *flags: str, **variables: str) -> AsyncIterator[None]:
    """Run one thread on a worker of its own, which runs on while the block does."""
    (folder / "replies.yaml").write_text(json.dumps(REPLIES))
    queue, ready = f"seen-{uuid4()}", folder / "ready"
    store = Store(f"sqlite:///{folder / 'results.db'}")
    await store.read(lambda _: None)
    store.close()
    known = ("--task-queue", queue, "--ready-file", str(ready), "--scripted", str(folder / "replies.yaml"))
    process = await started(server, *known, *flags, GRADELOOP_STORE=f"sqlite:///{folder / 'results.db'}", **variables)
    assert (await until_ready(ready))["ok"] is True
    thread = {
        "messages": [{"role": "user", "content": "write"}],
        "rubric": "- it is good",
        "generator": {"model": "scripted:x"},
        "grader": {"model": "scripted:y"},
    }
    try:
        result = await GradingClient(client, task_queue=queue).result(await GradingClient(client, task_queue=queue).start(thread))
        assert result.status == "satisfied"
        yield
    finally:
        process.terminate()
        await asyncio.wait_for(process.communicate(), 240)


@pytest.mark.slow
async def test_prometheus_scrapes_the_sdks_metrics_and_ours(client: Client, temporal_server: ServerInfo, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    running = run_once(temporal_server, client, tmp_path, "--metrics-address", address)
    async with running, httpx2.AsyncClient(trust_env=False) as http, asyncio.timeout(240):
        while total(series := parsed((await http.get(f"http://{address}/metrics")).text), "gradeloop_store_bytes") == 0:
            await asyncio.sleep(0.1)

    assert total(series, "gradeloop_verdicts_total", result="needs_revision") == 1
    assert total(series, "gradeloop_verdicts_total", result="satisfied") == 1
    assert total(series, "gradeloop_runs_total", status="satisfied", reason="none") == 1
    assert total(series, "gradeloop_run_iterations_sum") == 2
    assert total(series, "gradeloop_model_calls_total", provider="scripted", role="grader", outcome="ok") == 2
    assert total(series, "gradeloop_tokens_total", type="input") >= 7
    assert ("gradeloop_queue_backlog", (("type", "activity"),)) in series
    assert total(series, "gradeloop_limiter_window", model="x") >= 64
    assert total(series, "temporal_activity_succeed_endtoend_latency_count") >= 4
    assert any(name == "temporal_worker_task_slots_used" for name, _ in series)
    assert total(series, "gradeloop_worker_slots", type="activity") == 200


@pytest.mark.slow
async def test_an_address_that_is_taken_ends_the_worker_with_a_sentence(temporal_server: ServerInfo, tmp_path: Path) -> None:
    server = TestServer(web.Application())
    await server.start_server()
    process = await started(temporal_server, "--task-queue", f"taken-{uuid4()}", "--metrics-address", f"127.0.0.1:{server.port}")
    _, log = await asyncio.wait_for(process.communicate(), 240)
    await server.close()

    assert process.returncode == 2
    assert "choose another metrics_address" in log.decode()
    assert "Traceback" not in log.decode()


@pytest.mark.slow
async def test_a_collector_receives_the_same_by_otlp(client: Client, temporal_server: ServerInfo, tmp_path: Path) -> None:
    received = bytearray()

    async def collect(asked: web.Request) -> web.Response:
        body = await asked.read()
        if asked.path == "/v1/metrics":  # the same endpoint is sent traces
            received.extend(body)
        return web.Response(content_type="application/x-protobuf")

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/{tail:.*}", collect)
    collector = TestServer(app)
    await collector.start_server()
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}", "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    async with run_once(temporal_server, client, tmp_path, **variables), asyncio.timeout(240):
        while not (b"gradeloop_verdicts" in received and b"satisfied" in received):
            await asyncio.sleep(0.1)
    await collector.close()

    assert b"temporal_workflow_completed" in received or b"temporal_worker_start" in received


async def test_a_grader_whose_key_is_refused_is_counted_as_the_alerts_read_it(client: Client) -> None:
    script = Script.model_validate({"replies": [draft("a draft"), {"role": "grader", "error": {"kind": "auth", "message": "no"}}]})
    settings = WorkerSettings(task_queue=f"faults-{uuid4()}")
    thread = {
        "messages": [{"role": "user", "content": "write"}],
        "rubric": "- it is good",
        "generator": {"model": "scripted:x"},
        "grader": {"model": "scripted:y"},
    }
    with recorded() as buffer:
        async with build(client, Providers(Environment(), script), ToolRegistry(), settings):
            result = await GradingClient(client, task_queue=settings.task_queue).result(
                await GradingClient(client, task_queue=settings.task_queue).start(thread)
            )
        updates = buffer.retrieve_updates()

    assert result.status == "grader_error"
    assert [update.attributes for update in named(updates, "gradeloop_model_errors")] == [
        {"provider": "scripted", "model": "y", "kind": "auth"}
    ]
    assert [update.attributes["kind"] for update in named(updates, "gradeloop_grader_errors")] == ["auth"]
    assert [update.attributes["result"] for update in named(updates, "gradeloop_verdicts")] == ["grader_error"]
    assert [update.attributes["status"] for update in named(updates, "gradeloop_runs")] == ["grader_error"]


async def test_a_queue_that_nobody_serves_has_a_backlog_and_a_store_without_its_folder_fails(client: Client, tmp_path: Path) -> None:
    queue, store = f"nobody-{uuid4()}", Store(f"sqlite:///{tmp_path / 'gone' / 'results.db'}")
    handles = [await client.start_workflow("GradingThread", id=f"{queue}-{at}", task_queue=queue) for at in range(3)]
    with recorded() as buffer:
        async with asyncio.timeout(240):
            waiting: list[BufferedMetricUpdate] = []
            while not [update for update in waiting if update.value == 3]:
                await sample_once(client, queue, None)
                waiting += named(buffer.retrieve_updates(), "gradeloop_queue_backlog")
                await asyncio.sleep(0.2)
        with pytest.raises(StoreUnavailable):
            await store.read(lambda _: None)
        failed = named(buffer.retrieve_updates(), "gradeloop_store_seconds")
    for handle in handles:
        await handle.terminate()

    assert {update.attributes["type"] for update in waiting if update.value == 3} == {"workflow"}
    assert [update.attributes["outcome"] for update in failed] == ["error"]
