"""The OTLP receiver: what is acknowledged is in the store once, whoever sends it, in whatever form, and however often."""

import asyncio
import gzip
import json
import logging
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from gradeloop.errors import InvalidRequest
from gradeloop.monitors import receiver as receivers
from gradeloop.monitors.received import REFUSED, ReceivedRun
from gradeloop.monitors.receiver import open_receiver, read_request
from gradeloop.monitors.tables import remove_received
from gradeloop.settings.worker import ReceiverSettings
from gradeloop.store.tables import table
from rig.otlp import JSON, PROTOBUF, Receiving, chat, receiver, request_of, span_of, trace_id
from tests.rig.threads import SECONDS

SECRET = "the customer's own words"


def texts(run: ReceivedRun) -> list[Any]:
    assert run.run is not None
    return [message.content for transcript in run.run.transcripts for message in transcript.messages]


async def settled(found: Receiving) -> list[ReceivedRun]:
    await asyncio.sleep(0.15)
    return await found.runs()


def in_json(name: str, **more: Any) -> dict[str, Any]:
    """Return a request in OTLP's JSON, with one call."""
    attributes = {
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}],
        "gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": "Hello"}]}],
    }
    span = {
        "traceId": trace_id(name).upper(),
        "spanId": "00000000000000ab",
        "name": "chat",
        "startTimeUnixNano": "1700000000000000000",
        "endTimeUnixNano": "1700000001000000000",
        "attributes": [{"key": key, "value": {"stringValue": json.dumps(value)}} for key, value in attributes.items()],
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span | more]}]}]}


async def test_a_silent_trace_is_a_run_with_what_its_spans_say(url: str) -> None:
    async with receiver(url) as found:
        first = await found.send(request_of(chat("a", at=1), **{"deployment.environment.name": "prod"}))
        await found.send(request_of(chat("a", "Rome.", asked="And of Italy?", at=2, **{"customer.tier": "paid"})))
        (run,) = await settled(found)

    assert (first.status_code, first.content) == (200, ExportTraceServiceResponse().SerializeToString())
    assert run.run is not None
    assert (run.run.id, run.run.metadata["service.name"], run.run.metadata["customer.tier"]) == (trace_id("a"), "shop", "paid")
    assert run.run.metadata["deployment.environment.name"] == "prod"
    assert "telemetry.sdk.name" not in run.run.metadata
    assert texts(run) == ["The capital of France?", "Paris.", "And of Italy?", "Rome."]


async def test_json_and_compressed_bodies_are_read(tmp_path: Path) -> None:
    async with receiver(f"sqlite:///{tmp_path}/s.db") as found:
        plain = await found.send(json.dumps(in_json("json")).encode(), headers=JSON)
        packed = await found.send(gzip.compress(request_of(chat("gzip"))), headers=PROTOBUF | {"content-encoding": "gzip"})
        deflated = await found.send(zlib.compress(request_of(chat("deflate"))), headers=PROTOBUF | {"content-encoding": "deflate"})
        runs = await settled(found)

    assert (plain.status_code, plain.json(), packed.status_code, deflated.status_code) == (200, {}, 200, 200)
    assert {run.run.id for run in runs if run.run} == {trace_id(name) for name in ("json", "gzip", "deflate")}


async def test_what_is_sent_again_is_there_once(url: str) -> None:
    async with receiver(url) as found:
        body = request_of(chat("a"), chat("b"))
        await asyncio.gather(*(found.send(body) for _ in range(5)))
        first = await settled(found)
        await found.send(body)
        again = await settled(found)

    assert len(first) == 2
    assert again == first


async def test_of_two_versions_of_a_span_the_one_that_ended_later_counts(tmp_path: Path) -> None:
    unfinished, finished = chat("a", "Par", span="one"), chat("a", "Paris.", span="one")
    finished.end_time_unix_nano += 5
    async with receiver(f"sqlite:///{tmp_path}/s.db") as found:
        for span in (unfinished, finished, unfinished):
            await found.send(request_of(span))
        (run,) = await settled(found)

    assert texts(run)[-1] == "Paris."


async def test_a_late_span_completes_the_run_of_its_trace_and_one_after_that_is_refused(url: str) -> None:
    async with receiver(url, late=0.5) as found:
        await found.send(request_of(chat("a", at=1)))
        (before,) = await settled(found)
        late = await found.send(request_of(chat("a", "Rome.", asked="And of Italy?", at=2)))
        (after,) = await settled(found)
        await asyncio.sleep(0.6)
        await found.spans.clean()
        duplicate = await found.send(request_of(chat("a", at=1)))
        too_late = ExportTraceServiceResponse.FromString((await found.send(request_of(chat("a", at=3)))).content)
        (still,) = await settled(found)

    assert (late.status_code, before.number, after.number) == (200, after.number, still.number)
    assert (len(texts(before)), len(texts(after)), still) == (2, 4, after)
    assert too_late.partial_success.rejected_spans == 1
    assert "the trace has settled" in too_late.partial_success.error_message
    assert duplicate.status_code == 200


async def test_spans_of_other_things_are_passed_over_and_those_without_a_place_are_rejected(tmp_path: Path) -> None:
    homeless = chat("b")
    homeless.trace_id = b""
    async with receiver(f"sqlite:///{tmp_path}/s.db") as found:
        other = span_of("a", "GET /", {"http.request.method": "GET"}, span="http")
        answer = await found.send(request_of(chat("a"), other, homeless))
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        in_text = await found.send(json.dumps(in_json("c", spanId="")).encode(), headers=JSON)
        kept = await found.store.read(lambda connection: connection.execute(table("received_spans").select()).all())

    assert (partial.rejected_spans, "no valid traceId" in partial.error_message) == (1, True)
    assert in_text.json()["partialSuccess"]["rejectedSpans"] == "1"
    assert [row.trace_id for row in kept if row.span_id != REFUSED] == [trace_id("a")]
    assert [row.trace_id for row in kept if row.span_id == REFUSED] == [trace_id("c")]


async def test_a_trace_without_content_is_unreadable_with_the_cure_and_one_without_calls_is_no_run(tmp_path: Path) -> None:
    empty = span_of("a", "chat gpt", {"gen_ai.operation.name": "chat"}, span="a")
    embeds = span_of("b", "embeddings", {"gen_ai.operation.name": "embeddings"}, span="b")
    async with receiver(f"sqlite:///{tmp_path}/s.db") as found:
        await found.send(request_of(empty, embeds))
        (run,) = await settled(found)

    assert run.run is None
    assert "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT" in (run.problem or "")


REFUSALS = [
    (b"\xff\xff", PROTOBUF, 400, "not an OTLP request in protobuf"),
    (b"{", JSON, 400, "not JSON"),
    (b"[]", JSON, 400, "not an OTLP request"),
    (b"[" * 100_000, JSON, 400, "not JSON"),
    (b"{}", {"content-type": "text/plain"}, 415, "application/x-protobuf or application/json"),
    (b"nonsense", PROTOBUF | {"content-encoding": "gzip"}, 400, "not valid gzip"),
    (gzip.compress(b"{}", mtime=0)[:-4], JSON | {"content-encoding": "gzip"}, 400, "ends within its gzip"),
    (b"{}", JSON | {"content-encoding": "br"}, 400, "compressed by 'br'"),
    (b" " * (1024 * 1024 + 1), JSON, 413, "larger than 1048576 bytes"),
    (gzip.compress(b" " * (1024 * 1024 + 1), mtime=0), JSON | {"content-encoding": "gzip"}, 413, "larger than 1048576 bytes"),
    (b"{}", JSON | {"host": "evil.example"}, 421, "for this machine"),
    (b"{}", JSON | {"origin": "https://evil.example"}, 403, "a page in a browser"),
]


async def test_what_cannot_be_taken_is_refused_with_why(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for body, headers, status, why in REFUSALS:
        with subtests.test(why):
            async with receiver(f"sqlite:///{tmp_path}/s.db", max_request_mib=1) as found:
                answer = await found.send(body, headers=headers)

            assert (answer.status_code, why in answer.text) == (status, True), answer.text


async def test_a_full_receiver_tells_exporters_when_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "LOOK_SECONDS", 0.05)

    async with receiver(f"sqlite:///{tmp_path}/s.db", max_open_traces=2, settle=25) as found:

        async def answered(status: int) -> httpx2.Response:
            while (answer := await found.send(request_of(chat("c")))).status_code != status:
                await asyncio.sleep(0.05)  # it counts them every now and then
            return answer

        await found.send(request_of(chat("a"), chat("b")))
        async with asyncio.timeout(SECONDS):
            full = await answered(429)
            silent_for_long = table("received_traces").update().values(heard=0)
            await found.store.write(lambda connection: connection.execute(silent_for_long))
            await answered(200)

    assert full.headers["retry-after"] == "25"


async def test_a_trace_takes_so_many_spans(tmp_path: Path) -> None:
    async with receiver(f"sqlite:///{tmp_path}/s.db", max_spans=2) as found:
        answer = await found.send(request_of(*(chat("a", f"answer {at}", at=at) for at in range(1, 5))))
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success

    assert (partial.rejected_spans, "receiver.max_spans" in partial.error_message) == (2, True)


async def test_nothing_is_acknowledged_while_the_store_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    with caplog.at_level(logging.DEBUG):
        async with receiver(f"sqlite:///{folder}/s.db") as found:
            await found.send(request_of(chat("a")))
            found.store.close()
            folder.rename(tmp_path / "away")
            away = await found.send(request_of(chat("b", SECRET)))
            ready = await found.http.get(f"{found.url}/readyz")
            (tmp_path / "away").rename(folder)
            back = await found.send(request_of(chat("b", SECRET)))
            runs = await settled(found)

    assert (away.status_code, away.headers["retry-after"], ready.status_code, back.status_code) == (503, "5", 503, 200)
    assert len(runs) == 2
    assert SECRET not in caplog.text


async def test_another_machine_needs_the_token(tmp_path: Path) -> None:
    address = {"address": "0.0.0.0:0"}
    with pytest.raises(InvalidRequest, match="open to other machines, and no token is asked for"):
        open_receiver(ReceiverSettings.model_validate(address), {})
    with pytest.raises(InvalidRequest, match="names the variable TOKEN, which is not set"):
        open_receiver(ReceiverSettings.model_validate(address | {"token": "TOKEN"}), {})
    async with receiver(f"sqlite:///{tmp_path}/s.db", token="TOKEN", environment={"TOKEN": "s3cret-token"}) as found:
        without = await found.send(request_of(chat("a")))
        wrong = await found.send(request_of(chat("a")), headers=PROTOBUF | {"authorization": "Bearer other"})
        right = await found.send(request_of(chat("a")), headers=PROTOBUF | {"authorization": "Bearer s3cret-token", "host": "otlp:4318"})

    assert (without.status_code, wrong.status_code, right.status_code) == (401, 401, 200)


async def test_several_receivers_share_one_store_and_numbers_only_grow(url: str) -> None:
    async with receiver(url) as one, receiver(url) as two:
        bodies = [request_of(*(chat(f"{part}-{at}") for at in range(20))) for part in range(10)]
        await asyncio.gather(*(found.send(body) for body in bodies for found in (one, two)))
        await asyncio.sleep(0.15)
        first, second = await asyncio.gather(one.runs(), two.runs())
        runs = await one.runs()

    assert len({run.run.id for run in runs if run.run}) == len(runs) == 200
    assert {run.number for run in (*first, *second)} <= {run.number for run in runs}


async def test_what_is_old_goes(url: str) -> None:
    async with receiver(url, late=0) as found:
        await found.send(request_of(chat("a")))
        await settled(found)
        await found.spans.clean()
        spans = await found.store.read(lambda connection: connection.execute(table("received_spans").select()).all())
        again = await found.store.read(lambda connection: remove_received(connection, datetime.now(UTC) + timedelta(seconds=5)))

    assert spans == []
    assert again == {"received_runs": 1, "received_spans": 0, "received_traces": 1}


async def test_a_span_is_kept_through_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    async with receiver(url, settle=60) as found:
        await found.send(request_of(chat("a")))
    async with receiver(url) as found:
        runs = await settled(found)

    assert [run.run.id for run in runs if run.run] == [trace_id("a")]


def _field(number: int, body: bytes) -> bytes:
    """Return a message as a field of protobuf."""
    length, rest = bytearray(), len(body)
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([number << 3 | 2, *length, rest]) + body


JSON_ROWS = b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}]}'
CROWDED: dict[str, Callable[[int], bytes]] = {
    "spans": lambda many: JSON_ROWS % b",".join([b"{}"] * many),
    "fewer spans": lambda many: JSON_ROWS % b",".join([b"{}"] * (many // 10)),
    "attributes": lambda many: JSON_ROWS % b'{"attributes":[%s]}' % b",".join([b"{}"] * many),
    "lists": lambda many: JSON_ROWS % b'{"attributes":[{"key":"a","value":{"arrayValue":{"values":[%s]}}}]}' % b",".join([b"[]"] * many),
    "spans in protobuf": lambda many: _field(1, _field(2, b"\x12\x00" * many)),
    "attributes in protobuf": lambda many: _field(1, _field(2, _field(2, b"\x4a\x00" * many))),
    "values in protobuf": lambda many: _field(1, _field(2, _field(2, _field(9, _field(2, _field(5, b"\x0a\x00" * many)))))),
}
"""Requests with so many empty items."""


@pytest.mark.parametrize("part", [100, pytest.param(1, marks=pytest.mark.slow)])
def test_a_request_of_millions_of_empty_items_costs_a_few_times_as_many_tuples(part: int, subtests: pytest.Subtests) -> None:
    """The whole request, and a hundredth of it with a hundredth of the limit."""
    began = time.process_time()
    made: list[tuple[int, list[int]]] = [(number, []) for number in range(1_000_000 // min(part, 10))]
    as_many = 5 * min(part, 10) * (time.process_time() - began)
    made.clear()
    for name, crowded in CROWDED.items():
        with subtests.test(name):
            body, began = crowded(5_000_000 // part), time.process_time()

            try:
                why = read_request(body, "traces", "protobuf" if "protobuf" in name else "json", 1_600_000 // part).why
            except InvalidRequest as error:
                why = str(error)

            assert "holds too many items; export fewer spans at once, or raise receiver.max_request_mib" in why
            assert time.process_time() - began < 5 * as_many
