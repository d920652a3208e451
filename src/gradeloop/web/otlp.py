"""OTLP on the wire: requests of traces and logs, in protobuf and JSON, read span by span; and the answers to them."""

import hashlib
import json
import re
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from google.protobuf.message import DecodeError

from gradeloop.errors import InvalidRequest
from gradeloop.monitors.received import ReceivedSpan
from gradeloop.transcripts.formats.spans import CONVENTIONS, attributes_of
from gradeloop.transcripts.unreadable import dict_of, rows_of

if TYPE_CHECKING:
    from google.protobuf.message import Message

Signal = Literal["traces", "logs"]
Encoding = Literal["protobuf", "json"]

CONTENT_TYPES: dict[str, Encoding] = {"application/x-protobuf": "protobuf", "application/json": "json"}

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_SPAN_ID = re.compile(r"(?!0{16})[0-9a-f]{16}")
_WITHOUT = frozenset({"attributes", "events", "resource", "links"})


class OtlpRequest(NamedTuple):
    """What a request holds."""

    spans: tuple[ReceivedSpan, ...]
    """The spans of models and tools, and the log records that belong to them."""
    others: int
    """Spans and records of other things, which are passed over."""
    rejected: int
    """Those that have no place: without the id of a trace or of a span."""
    why: str = ""
    """Why they are rejected."""


def unpacked(body: bytes, encoding: str, most: int) -> bytes | None:
    """Return a body as it was before it was compressed; None where it is larger than `most`.

    Raises:
        InvalidRequest: It is damaged, or compressed otherwise.
    """
    if encoding in {"", "identity"}:
        return body if len(body) <= most else None
    if encoding not in {"gzip", "deflate"}:
        raise InvalidRequest(f"the body is compressed by {encoding!r}; send gzip, deflate or none")
    unpacker = zlib.decompressobj(wbits=47)  # gzip or zlib, as its header says
    try:
        found = unpacker.decompress(body, most + 1)
    except zlib.error:
        raise InvalidRequest(f"the body is no {encoding}; send what Content-Encoding says") from None
    if len(found) > most:
        return None
    if not unpacker.eof:
        raise InvalidRequest(f"the body ends within its {encoding}; send all of it")
    return found


def read_request(body: bytes, signal: Signal, encoding: Encoding) -> OtlpRequest:
    """Return the spans or log records of a request.

    Raises:
        InvalidRequest: The body is no such request.
    """
    rows = (_of_protobuf if encoding == "protobuf" else _of_json)(body, signal)
    spans, others, rejected, why = list[ReceivedSpan](), 0, 0, ""
    for row in rows:
        if not _is_of_models(row):
            others += 1
        elif said := _misplaced(row, signal):
            rejected, why = rejected + 1, why or said
        else:
            spans.append(_received(row, signal))
    return OtlpRequest(tuple(spans), others, rejected, why)


def _is_of_models(row: Mapping[str, Any]) -> bool:
    """Return whether a span or record is of a model, a tool or an agent, by its attributes and events."""
    names = (*row["attributes"], *(event["name"] for event in row.get("events", ())), row.get("eventName") or "")
    return any(name.startswith(CONVENTIONS) for name in names) or str(row["attributes"].get("event.name")).startswith(CONVENTIONS)


def _misplaced(row: Mapping[str, Any], signal: Signal) -> str:
    """Return why a span has no place; nothing where it has one."""
    kind = "span" if signal == "traces" else "log record"
    if not _TRACE_ID.fullmatch(row["traceId"]):
        return f"a {kind} has no valid traceId, so that it belongs to no run; export within a trace"
    if signal == "traces" and not _SPAN_ID.fullmatch(row["spanId"]):
        return "a span has no valid spanId; send 8 bytes that are not all 0"
    return ""


def _received(row: dict[str, Any], signal: Signal) -> ReceivedSpan:
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()
    key = row["spanId"] if signal == "traces" else f"log-{hashlib.sha256(text.encode()).hexdigest()[:56]}"
    return ReceivedSpan(row["traceId"], key, _time(row, "endTimeUnixNano"), text)


def _time(row: Mapping[str, Any], key: str) -> int:
    return min(int(row.get(key) or 0), 2**63 - 1)


def _of_json(body: bytes, signal: Signal) -> Iterator[dict[str, Any]]:
    """Yield the rows of a request in OTLP's JSON, whose ids are hexadecimal."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidRequest("the body is no JSON; send OTLP in JSON, or protobuf with its Content-Type") from None
    resources, scopes, records = _KEYS[signal]
    if not isinstance(value, dict) or not isinstance(value.get(resources, []), list):
        raise InvalidRequest(f"the body is no OTLP request: an object with {resources}, a list")
    try:
        for resource in rows_of(value.get(resources)):
            described = attributes_of(dict_of(resource.get("resource")).get("attributes"))
            for scope in rows_of(resource.get(scopes)):
                for record in rows_of(scope.get(records)):
                    yield _json_row(record, described)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise InvalidRequest(f"the body is no OTLP request: {error}") from None


_KEYS = {"traces": ("resourceSpans", "scopeSpans", "spans"), "logs": ("resourceLogs", "scopeLogs", "logRecords")}


def _json_row(record: Mapping[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    row = {key: value for key, value in record.items() if key not in _WITHOUT}
    row |= {"traceId": str(record.get("traceId") or "").lower(), "spanId": str(record.get("spanId") or "").lower()}
    row |= {key: int(record[key]) for key in _TIMES if record.get(key)}
    row["attributes"] = attributes_of(record.get("attributes"))
    events = rows_of(record.get("events"))
    if events:
        row["events"] = [{"name": str(event.get("name")), "attributes": attributes_of(event.get("attributes"))} for event in events]
    return row | ({"resource": described} if described else {})


_TIMES = ("startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "observedTimeUnixNano")


def _of_protobuf(body: bytes, signal: Signal) -> Iterator[dict[str, Any]]:
    request: Any = _messages(signal)[0]()
    try:
        request.ParseFromString(body)
    except DecodeError:
        raise InvalidRequest("the body is no OTLP request in protobuf; send one, or JSON with its Content-Type") from None
    for resource in request.resource_spans if signal == "traces" else request.resource_logs:
        described = _plain_attributes(resource.resource.attributes)
        more = {"resource": described} if described else {}
        for scope in resource.scope_spans if signal == "traces" else resource.scope_logs:
            for record in scope.spans if signal == "traces" else scope.log_records:
                yield (_span_row if signal == "traces" else _log_row)(record) | more


def _span_row(span: Any) -> dict[str, Any]:  # noqa: ANN401 - a generated message
    row: dict[str, Any] = {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "parentSpanId": span.parent_span_id.hex(),
        "name": span.name,
        "startTimeUnixNano": span.start_time_unix_nano,
        "endTimeUnixNano": span.end_time_unix_nano,
        "attributes": _plain_attributes(span.attributes),
    }
    if span.events:
        row["events"] = [{"name": event.name, "attributes": _plain_attributes(event.attributes)} for event in span.events]
    if span.status.code or span.status.message:
        row["status"] = {"code": span.status.code, "message": span.status.message}
    return row


def _log_row(record: Any) -> dict[str, Any]:  # noqa: ANN401 - a generated message
    return {
        "traceId": record.trace_id.hex(),
        "spanId": record.span_id.hex(),
        "eventName": record.event_name,
        "timeUnixNano": record.time_unix_nano or record.observed_time_unix_nano,
        "attributes": _plain_attributes(record.attributes),
        "body": _plain(record.body),
    }


def _plain_attributes(attributes: Sequence[Any]) -> dict[str, Any]:
    return {attribute.key: _plain(attribute.value) for attribute in attributes}


def _plain(value: Any) -> Any:  # noqa: ANN401 - an AnyValue, and what it holds
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    inner = getattr(value, kind)
    if kind == "array_value":
        return [_plain(item) for item in inner.values]
    if kind == "kvlist_value":
        return _plain_attributes(inner.values)
    return b64encode(inner).decode() if kind == "bytes_value" else inner


def _messages(signal: Signal) -> "tuple[Callable[[], Message], Callable[[], Message]]":
    """Return the messages of a request and its answer."""
    if signal == "traces":
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

        return ExportTraceServiceRequest, ExportTraceServiceResponse
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

    return ExportLogsServiceRequest, ExportLogsServiceResponse


def answer(signal: Signal, encoding: Encoding, rejected: int, why: str) -> bytes:
    """Return the answer to a request that is taken, with how many of its spans are not, and why."""
    name = "rejectedSpans" if signal == "traces" else "rejectedLogRecords"
    if encoding == "json":
        return json.dumps({"partialSuccess": {name: str(rejected), "errorMessage": why}} if rejected else {}).encode()
    response: Any = _messages(signal)[1]()
    if rejected:
        response.partial_success.error_message = why
        setattr(response.partial_success, "rejected_spans" if signal == "traces" else "rejected_log_records", rejected)
    return bytes(response.SerializeToString())


def refusal(encoding: Encoding, code: int, why: str) -> bytes:
    """Return the body of a refusal: a `google.rpc.Status`.

    Args:
        encoding: How the request was written.
        code: One of gRPC's codes, which are below 128.
        why: Why.
    """
    if encoding == "json":
        return json.dumps({"code": code, "message": why}).encode()
    text, length = why.encode(), bytearray()
    rest = len(text)
    while rest > 0x7F:  # noqa: PLR2004 - a varint has seven bits a byte
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((0x08, code, 0x12, *length, rest)) + text
