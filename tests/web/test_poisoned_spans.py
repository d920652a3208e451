"""One bad span is refused by name, with its trace; its neighbours are kept, settle and are read, on both databases."""

import asyncio
import json
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from sqlalchemy import create_engine, text

from gradeloop.monitors.received import ReceivedRun, ReceivedSpan
from rig.otlp import JSON, PROTOBUF, Receiving, chat, receiver, request_of, span_of, trace_id
from tests.rig.poison import HOMELESS, JSON_SPANS, nested_request, span


def between(bad: bytes, *names: str) -> bytes:
    """Return a request in which a bad span stands between good ones."""
    good = [span(name).encode() for name in names]
    return b'{"resourceSpans": [{"scopeSpans": [{"spans": [%b]}]}]}' % b", ".join([good[0], bad, *good[1:]])


async def settled(found: Receiving) -> dict[str, ReceivedRun | str]:
    """Return the runs, or why they cannot be read, by the ids of their traces."""
    await asyncio.sleep(0.15)
    return {one.run.id if one.run else "bad": one.problem or one for one in await found.runs()}


async def test_a_bad_span_in_json_is_refused_with_its_trace_and_the_others_are_kept(url: str, subtests: pytest.Subtests) -> None:
    good = set[str]()
    async with receiver(url) as found:
        for name, (bad, why) in JSON_SPANS.items():
            names = [f"{name}, {at}" for at in range(3)]
            good |= {trace_id(one) for one in names}
            with subtests.test(name):
                answer = await found.send(between(bad.replace(trace_id("bad").encode(), trace_id(name).encode()), *names), headers=JSON)

                partial = answer.json()["partialSuccess"]
                assert (answer.status_code, partial["rejectedSpans"], why in partial["errorMessage"]) == (200, "1", True), partial
        await asyncio.sleep(0.15)
        runs = await found.runs()

    assert {one.run.id for one in runs if one.run} == good
    problems = [one.problem or "" for one in runs if one.run is None]
    assert len(problems) == len(JSON_SPANS)
    assert [why for _, why in JSON_SPANS.values() if not any(why in problem for problem in problems)] == []


async def test_what_is_no_span_is_refused_and_the_others_are_kept(url: str, subtests: pytest.Subtests) -> None:
    async with receiver(url) as found:
        for name, bad in HOMELESS.items():
            with subtests.test(name):
                answer = await found.send(between(bad, f"{name}, a", f"{name}, z"), headers=JSON)

                assert (answer.status_code, answer.json()["partialSuccess"]["rejectedSpans"]) == (200, "1")
        runs = await settled(found)

    assert runs.keys() == {trace_id(f"{name}, {end}") for name in HOMELESS for end in "az"}


async def test_a_bad_part_of_a_request_stops_no_other(url: str, subtests: pytest.Subtests) -> None:
    odd: dict[str, Any] = {
        "a resource": 7,
        "a scope": {"scopeSpans": "x"},
        "attributes of a resource": {"resource": {"attributes": [7]}, "scopeSpans": [{"spans": [json.loads(span("bad"))]}]},
    }
    async with receiver(url) as found:
        for place, bad in odd.items():
            good = {"scopeSpans": [{"spans": [json.loads(span(place))]}]}
            with subtests.test(place):
                answer = await found.send(json.dumps({"resourceSpans": [bad, good]}).encode(), headers=JSON)
                runs = await settled(found)

                assert (answer.status_code, answer.json()["partialSuccess"]["rejectedSpans"]) == (200, "1")
                assert trace_id(place) in runs
                assert ("bad" in runs) == (place == "attributes of a resource")


def _no_utf8(bad: Span) -> bytes:
    bad.name = "ch@t"
    return request_of(chat("a"), bad, chat("z")).replace(b"ch@t", b"ch\xfft")


def _too_deep(bad: Span) -> bytes:
    return nested_request(*(one.SerializeToString() for one in (chat("a"), chat("z"), bad)))


@pytest.mark.parametrize("spoil", [_no_utf8, _too_deep])
async def test_a_bad_span_in_protobuf_is_refused_with_its_trace_and_the_others_are_kept(url: str, spoil: Any) -> None:
    async with receiver(url) as found:
        answer = await found.send(spoil(chat("bad")))
        runs = await settled(found)

    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, partial.rejected_spans) == (200, 1)
    assert partial.error_message.startswith("a span is refused: ")
    assert runs.keys() == {trace_id("a"), trace_id("z"), "bad"}
    assert str(runs["bad"]).startswith("of the trace, a span is refused")


async def test_a_bad_log_record_is_refused_and_the_others_are_kept(url: str) -> None:
    said = {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "Hello"}}]}}
    records = [
        {"traceId": trace_id(name), "eventName": "gen_ai.assistant.message", "body": said, "timeUnixNano": at}
        for name, at in (("bad", "-1"), ("a", "1"))
    ]
    body = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()
    async with receiver(url) as found:
        answer = await found.send(body, "logs", JSON)
        runs = await settled(found)

    assert answer.json()["partialSuccess"]["rejectedLogRecords"] == "1"
    assert {trace_id("a"), "bad"} == runs.keys()
    assert "timeUnixNano is '-1'" in str(runs["bad"])


async def test_a_name_with_nul_keeps_no_trace_from_settling(url: str) -> None:
    nul = span_of("nul", "a\0b", {"gen_ai.operation.name": "chat"}, span="nul")
    async with receiver(url) as found:
        first = await found.send(request_of(nul, chat("a")))
        before = await settled(found)
        await found.send(request_of(chat("b", "with \0 in it")))
        after = await settled(found)
        load = await found.spans.load()

    assert (first.status_code, first.content) == (200, b"")
    assert before.keys() == {trace_id("a"), "bad"}
    assert after.keys() == {trace_id("a"), trace_id("b"), "bad"}
    assert "\0" not in str(before["bad"])
    assert load.open == 0


async def test_numbers_that_are_not_finite_are_kept_as_texts(url: str) -> None:
    odd = chat("a")
    odd.attributes.append(KeyValue(key="customer.score", value=AnyValue(double_value=float("nan"))))
    async with receiver(url) as found:
        await found.send(request_of(odd))
        runs = await settled(found)

    run = runs[trace_id("a")]
    assert isinstance(run, ReceivedRun)
    assert run.run is not None
    assert run.run.metadata["customer.score"] == "NaN"


async def test_a_trace_beyond_its_limit_is_no_run_of_fewer_spans(url: str) -> None:
    async with receiver(url, max_spans=2) as found:
        await found.send(request_of(*(chat("bad", f"answer {at}", at=at) for at in range(1, 5)), chat("a")))
        runs = await settled(found)

    assert runs.keys() == {trace_id("a"), "bad"}
    assert "receiver.max_spans" in str(runs["bad"])


async def test_a_value_that_the_store_cannot_hold_is_rejected_alone(url: str) -> None:
    spans = [ReceivedSpan(trace_id(name), "ab" * 8, ended, span(name)) for name, ended in (("a", 1), ("bad", 2**70), ("z", 1))]
    async with receiver(url) as found:
        kept = await found.spans.keep(spans)
        runs = await settled(found)

    assert (kept.kept, kept.rejected, "the store cannot hold" in kept.why) == (2, 1, True)
    assert runs.keys() == {trace_id("a"), trace_id("z"), "bad"}


@pytest.mark.slow
async def test_a_database_without_a_character_refuses_what_has_it_alone(server_url: str) -> None:
    server, name = server_url.rsplit("/", 1)
    engine = create_engine(f"postgresql+psycopg{server.removeprefix('postgresql')}/postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}_latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"))
    engine.dispose()
    bad = chat("bad")
    bad.name = "漢字"
    async with receiver(f"{server_url}_latin") as found:
        answer = await found.send(request_of(chat("a"), bad, chat("z")), headers=PROTOBUF)
        runs = await settled(found)

    assert ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans == 1
    assert runs.keys() == {trace_id("a"), trace_id("z"), "bad"}
