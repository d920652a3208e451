"""Monitors of what was received: read on from their cursor, narrowed by attributes, judged once."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from temporalio.client import Client

from gradeloop.monitors.contract import MonitorDefinition, OtlpSource
from gradeloop.monitors.files import SourceItem
from gradeloop.monitors.sources import SourceAccess, read_chunks
from gradeloop.store.engine import Store
from gradeloop.temporal.connect import application_folder
from rig.otlp import PROTOBUF, Receiving, chat, receiver, request_of, trace_id
from tests.monitors.test_monitoring import JUDGE, Watched
from tests.rig.batches import batching, fails, passes
from tests.rig.sources import place_since


async def read(source: OtlpSource, store: Store, cursor: str | None = None, until: str | None = None) -> list[SourceItem]:
    return [item async for chunk in read_chunks(source, cursor, SourceAccess(store), until=until) for item, _ in chunk]


def ids(items: list[SourceItem]) -> list[str]:
    return [item.run.id for item in items if item.run is not None]


async def sent(found: Receiving, *names: str, **more: str) -> None:
    await found.send(request_of(*map(chat, names), **more))
    await asyncio.sleep(0.15)
    await found.runs()


async def test_a_source_is_read_on_from_its_cursor_and_narrowed_by_attributes(url: str) -> None:
    async with receiver(url) as found:
        await sent(found, "a", "b")
        first = await read(OtlpSource(), found.store)
        await sent(found, "c", service="bank", env="prod")
        second = await read(OtlpSource(), found.store, first[-1].cursor)
        of_service = await read(OtlpSource(where={"service.name": "bank", "env": "prod"}), found.store)
        of_none = await read(OtlpSource(where={"service.name": "bank", "env": "test"}), found.store)
        since = place_since(OtlpSource(), "2020-01-01", str(first[-1].cursor))
        again = await read(OtlpSource(), found.store, since, until=first[-1].cursor)

    assert set(ids(first)) == set(ids(again)) == {trace_id("a"), trace_id("b")}
    assert (ids(second), ids(of_service), ids(of_none)) == ([trace_id("c")], [trace_id("c")], [])
    assert of_none[-1].cursor == second[-1].cursor


@pytest.mark.slow
async def test_a_monitor_judges_what_was_received_once(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, fails("wrong"), passes()) as batches, receiver(str(batches.store._url)) as found:
        name = f"m-{uuid4().hex[:8]}"
        monitor = Watched(batches, tmp_path, name)
        definition: dict[str, Any] = {"name": name, "source": {"kind": "otlp", "where": {"service.name": "shop"}}, "judge": JUDGE}
        await monitor.reader.create(MonitorDefinition.model_validate(definition))
        await found.send(request_of(chat("a"), chat("b", "wrong")))
        await found.send(request_of(chat("other"), service="bank"))
        await asyncio.sleep(0.15)
        await found.runs()
        first = await monitor.tick()
        await found.send(request_of(chat("a"), chat("c", "Lyon.")))
        await asyncio.sleep(0.15)
        await found.runs()
        second = await monitor.tick()

    assert (first.rate.passed, first.rate.judged, [run.run_id for run in first.failed]) == (1, 2, [trace_id("b")])
    assert (second.rate.passed, second.rate.judged, monitor.calls) == (2, 3, 3)


async def started_receiver(**variables: str) -> asyncio.subprocess.Process:
    """Start a worker of the role, and return it once it is ready."""
    health = _free_port()
    command = [sys.executable, str(application_folder() / "worker.py"), "--role", "receiver"]
    environment = {**os.environ, **variables, "GRADELOOP_HEALTH_ADDRESS": f"127.0.0.1:{health}"}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    async with httpx2.AsyncClient(trust_env=False) as http, asyncio.timeout(240):
        while True:
            try:
                if (await http.get(f"http://127.0.0.1:{health}/readyz")).json()["checks"] == {"store": "ok"}:
                    return process
            except httpx2.HTTPError:
                await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_worker_of_the_role_serves_its_metrics(tmp_path: Path) -> None:
    metrics, port = _free_port(), _free_port()
    variables = {"GRADELOOP_STORE": f"sqlite:///{tmp_path}/s.db", "GRADELOOP_RECEIVER__ADDRESS": f"127.0.0.1:{port}"}
    process = await started_receiver(**variables, GRADELOOP_METRICS_ADDRESS=f"127.0.0.1:{metrics}")
    async with httpx2.AsyncClient(trust_env=False) as http:
        await http.post(f"http://127.0.0.1:{port}/v1/traces", content=request_of(chat("a")), headers=PROTOBUF)
        served = (await http.get(f"http://127.0.0.1:{metrics}/metrics")).text
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 240)

    assert 'gradeloop_received_spans_total{outcome="kept"} 1' in served


@pytest.mark.slow
async def test_a_worker_of_the_role_receives_without_a_temporal_server_and_loses_nothing_when_killed(tmp_path: Path) -> None:
    url, port = f"sqlite:///{tmp_path}/s.db", _free_port()
    settings = {"GRADELOOP_STORE": url, "GRADELOOP_RECEIVER__ADDRESS": f"127.0.0.1:{port}", "GRADELOOP_RECEIVER__SETTLE": "0.3"}
    settings["OPENAI_API_KEY"] = "sk-canary"

    async with httpx2.AsyncClient(trust_env=False) as http:
        first = await started_receiver(**settings)
        answer = await http.post(
            f"http://127.0.0.1:{port}/v1/traces", content=request_of(chat("a", "the canary's words")), headers=PROTOBUF
        )
        first.kill()
        await first.wait()
        second = await started_receiver(**settings)
        await asyncio.sleep(2)
        second.send_signal(signal.SIGTERM)
        log = (await asyncio.wait_for(second.communicate(), 240))[1].decode()
    runs = await read(OtlpSource(), Store(url))

    assert (answer.status_code, ids(runs), second.returncode) == (200, [trace_id("a")], 0)
    assert "OPENAI_API_KEY is set; a worker of role receiver does without it" in log
    assert "canary" not in log
    assert json.loads(str(runs[-1].cursor))[0] == "number"


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
