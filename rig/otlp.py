"""Spans as exporters send them, and a receiver to send them to."""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import httpx2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from gradeloop.monitors.received import ReceivedRun, ReceivedSpans, read_received
from gradeloop.monitors.receiver import open_receiver
from gradeloop.settings.worker import ReceiverSettings
from gradeloop.store.engine import Store

PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody: for clients that ask `http:` addresses of this machine, so that they do not read its certificates."""


def trace_id(name: str) -> str:
    """Return the id of the trace of this name."""
    return sha256(name.encode()).hexdigest()[:32]


def chat(name: str, said: str = "Paris.", *, asked: str = "The capital of France?", span: str = "", at: int = 1, **more: Any) -> Span:
    """Return a model's call as GenAI's conventions describe it."""
    given = [{"role": "user", "parts": [{"type": "text", "content": asked}]}]
    answered = [{"role": "assistant", "parts": [{"type": "text", "content": said}], "finish_reason": "stop"}]
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-5-mini"}
    attributes |= {"gen_ai.input.messages": json.dumps(given), "gen_ai.output.messages": json.dumps(answered)} | more
    return span_of(name, "chat gpt-5-mini", attributes, span=span or f"{name}/{at}", at=at)


def span_of(name: str, called: str, attributes: Mapping[str, Any], *, span: str, at: int = 1) -> Span:
    """Return a span of the trace of this name."""
    return Span(
        trace_id=bytes.fromhex(trace_id(name)),
        span_id=sha256(span.encode()).digest()[:8],
        name=called,
        start_time_unix_nano=at * 1_000_000,
        end_time_unix_nano=at * 1_000_000 + 1,
        attributes=[KeyValue(key=key, value=AnyValue(string_value=str(value))) for key, value in attributes.items()],
    )


def request_of(*spans: Span, service: str = "shop", **resource: str) -> bytes:
    """Return a request with spans of a service."""
    described = ResourceSpans(scope_spans=[ScopeSpans(spans=spans)])
    for key, value in {"service.name": service, "telemetry.sdk.name": "opentelemetry", **resource}.items():
        described.resource.attributes.append(KeyValue(key=key, value=AnyValue(string_value=value)))
    return ExportTraceServiceRequest(resource_spans=[described]).SerializeToString()


@dataclass(frozen=True)
class Receiving:
    """A receiver that serves, and its store."""

    url: str
    store: Store
    settings: ReceiverSettings
    http: httpx2.AsyncClient

    async def send(self, body: bytes, signal: str = "traces", headers: Mapping[str, str] = PROTOBUF) -> httpx2.Response:
        """Send a request as an exporter does."""
        return await self.http.post(f"{self.url}/v1/{signal}", content=body, headers=dict(headers))

    @property
    def spans(self) -> ReceivedSpans:
        """Statements of the receiver on spans."""
        return ReceivedSpans(self.store, self.settings)

    async def runs(self) -> list[ReceivedRun]:
        """Assemble the silent traces, and return all runs."""
        await self.spans.assemble_silent()
        return await self.store.read(lambda connection: read_received(connection, 0, None, 100_000))


@asynccontextmanager
async def receiver(url: str, *, environment: Mapping[str, str] | None = None, **settings: Any) -> AsyncIterator[Receiving]:
    """Serve a receiver at a free port."""
    chosen = ReceiverSettings.model_validate({"address": "127.0.0.1:0", "settle": 0.1} | settings)
    store = Store(url, durable=True)
    receiving = open_receiver(chosen, environment or {})
    try:
        async with receiving(store) as address, httpx2.AsyncClient(trust_env=False, timeout=240, verify=PLAIN) as http:
            yield Receiving(address, store, chosen, http)
    finally:
        store.close()
