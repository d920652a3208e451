"""OTLP on the wire: requests of traces and logs, in protobuf and JSON, read span by span; and the answers to them."""

import hashlib
import json
import math
import re
import threading
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict, MessageToJson
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gradeloop.errors import InvalidRequest
from gradeloop.monitors.received import ReceivedSpan
from gradeloop.text import NESTING_DEPTH, clip, depth, encodable, one_line
from gradeloop.transcripts.formats.spans import CONVENTIONS, attributes_of
from gradeloop.transcripts.json_access import ODD_SHAPES, dict_of, require_rows

T = TypeVar("T")
Signal = Literal["traces", "logs"]
Encoding = Literal["protobuf", "json"]

CONTENT_TYPES: dict[str, Encoding] = {"application/x-protobuf": "protobuf", "application/json": "json"}

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_SPAN_ID = re.compile(r"(?!0{16})[0-9a-f]{16}")
_WITHOUT = frozenset({"attributes", "events", "resource", "links"})
_NO_UTF8 = re.compile("[\udc80-\udcff]")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[][{}]|[^][{}"]+')

CUT_AT = 500
"""The nesting of JSON at which a value is cut out where Python's reader gives up: far beyond what a span may have."""

_JSON = json.JSONDecoder(parse_int=lambda digits: int(digits) if len(digits) <= CUT_AT else math.inf)
"""Reads a body; an integer of more digits than Python reads is refused with its span, as any number that is not finite."""


_Record = tuple[str, dict[str, Any] | InvalidRequest]
"""The id of a record's trace, and the record as a row, or why it cannot be read."""


class OtlpRequest(NamedTuple):
    """What a request holds."""

    spans: tuple[ReceivedSpan, ...]
    """The spans of models and tools, and the log records that belong to them."""
    others: int
    """Spans and records of other things, which are passed over."""
    rejected: int
    """Records without the id of a trace or of a span, and those that cannot be read."""
    why: str = ""
    """The reason for the first of them."""
    marks: tuple[ReceivedSpan, ...] = ()
    """Marks in the traces of rejected spans, in place of those."""


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


ROW_ITEMS = 20
"""The items that a span or record counts: it takes as long to read as so many attributes."""

_budget = threading.local()
"""The items that the request of this thread may still hold."""


def _spend(items: int) -> None:
    _budget.left -= items
    if _budget.left < 0:
        raise InvalidRequest("the request holds too many items; export fewer spans at once, or raise receiver.max_request_mib")


def _spend_inner(message: Message) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None:
            items = [value] if isinstance(value, Message) else value
            _spend(len(items))
            for item in items:
                _spend_inner(item)


def read_request(body: bytes, signal: Signal, encoding: Encoding, items: int = 1_600_000) -> OtlpRequest:
    """Return the spans or log records of a request, each read on its own; all of its objects and lists are at most so many items.

    Raises:
        InvalidRequest: The body is no such request.
    """
    _budget.left = items
    spans, others, whys, marks = list[ReceivedSpan](), 0, list[str](), list[ReceivedSpan]()
    kind = "span" if signal == "traces" else "log record"
    for trace_id, row in (_of_protobuf if encoding == "protobuf" else _of_json)(body, signal):
        _spend(ROW_ITEMS)
        found = row if isinstance(row, InvalidRequest) else _attempt(_received, row, kind)
        if isinstance(found, ReceivedSpan):
            spans.append(found)
        elif found is None:
            others += 1
        else:
            whys.append(f"a {kind} is refused: {found}")
            if _TRACE_ID.fullmatch(trace_id):
                marks.append(ReceivedSpan.refused(trace_id, f"of the trace, {whys[-1]}"))
    return OtlpRequest(tuple(spans), others, len(whys), whys[0] if whys else "", tuple(marks))


def _attempt(read: Callable[..., T], *arguments: Any) -> T | InvalidRequest:  # noqa: ANN401 - what it reads
    """Return what is read, or why it cannot be, whatever somebody sends."""
    try:
        return read(*arguments)
    except (*ODD_SHAPES, DecodeError) as error:
        return error if isinstance(error, InvalidRequest) else InvalidRequest(f"it is no OTLP: {one_line(str(error))}; correct it")


def _is_of_models(row: Mapping[str, Any]) -> bool:
    """Return whether a span or record is of a model, a tool or an agent, by its attributes and events."""
    names = (*row["attributes"], *(event["name"] for event in row.get("events", ())), row.get("eventName") or "")
    return any(name.startswith(CONVENTIONS) for name in names) or str(row["attributes"].get("event.name")).startswith(CONVENTIONS)


def _received(row: dict[str, Any], kind: str) -> ReceivedSpan | None:
    """Return a row as it is kept; None for one of other things.

    Raises:
        InvalidRequest: It has no place, or cannot be kept as it is.
    """
    if not _is_of_models(row):
        return None
    if not _TRACE_ID.fullmatch(row["traceId"]):
        raise InvalidRequest("it has no valid traceId, so that it belongs to no run; export within a trace")
    if kind == "span" and not _SPAN_ID.fullmatch(row["spanId"]):
        raise InvalidRequest("it has no valid spanId; send 8 bytes that are not all 0")
    row |= {key: _nanoseconds(key, row[key]) for key in _TIMES if row.get(key)}
    if depth(row) > NESTING_DEPTH:
        raise InvalidRequest(f"it is nested more than {NESTING_DEPTH} deep; flatten its attributes")
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if _NO_UTF8.search(text):
        raise InvalidRequest("a text in it is no UTF-8; send UTF-8")
    text = encodable(text)
    key = row["spanId"] if kind == "span" else f"log-{hashlib.sha256(text.encode()).hexdigest()[:56]}"
    return ReceivedSpan(row["traceId"], key, min(row.get("endTimeUnixNano") or 0, 2**63 - 1), text)


def _nanoseconds(key: str, value: Any) -> int:  # noqa: ANN401 - JSON of any shape
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        found = -1
    if not 0 <= found < 2**64:
        raise InvalidRequest(f"{key} is {clip(str(value))}; send nanoseconds since 1970, from 0 to 2**64 - 1")
    return found


def _of_json(body: bytes, signal: Signal) -> Iterator[_Record]:
    """Yield the records of a request in OTLP's JSON, whose ids are hexadecimal."""
    _spend(body.count(b"{") + body.count(b"["))
    try:
        text = body.decode("utf-8-sig", "surrogateescape")
        try:
            value = _JSON.decode(text)
        except RecursionError:
            value = _JSON.decode(_shallow(text))
    except (ValueError, RecursionError):
        raise InvalidRequest("the body is no JSON; send OTLP in JSON, or protobuf with its Content-Type") from None
    resources, scopes, records = _KEYS[signal]
    if not isinstance(value, dict) or not isinstance(value.get(resources, []), list):
        raise InvalidRequest(f"the body is no OTLP request: an object with {resources}, a list")
    for resource in value.get(resources) or ():
        described = _attempt(lambda resource=resource: attributes_of((resource.get("resource") or {}).get("attributes")))
        for scope in _items(resource, scopes):
            for record in _items(scope, records):
                yield str(dict_of(record).get("traceId")).lower(), _attempt(_row, record, described)


_KEYS = {"traces": ("resourceSpans", "scopeSpans", "spans"), "logs": ("resourceLogs", "scopeLogs", "logRecords")}


def _shallow(text: str) -> str:
    """Return JSON with NaN, which no span may have, in place of what is nested too deeply for Python's reader."""
    level, kept = 0, list[str]()
    for token in _TOKEN.findall(text):
        level += token in {"[", "{"}
        if level < CUT_AT:
            kept.append(token)
        elif level == CUT_AT and token in {"]", "}"}:
            kept.append("NaN")
        level -= token in {"]", "}"}
    return "".join(kept)


def _items(holder: Any, key: str) -> list[Any]:  # noqa: ANN401 - JSON of any shape
    """Return the items of a list; what is no list, or has none, is the one item, which is then refused."""
    found = holder.get(key) if isinstance(holder, dict) else holder
    return found if isinstance(found, list) else [] if found is None else [found]


def _row(record: Any, described: dict[str, Any] | InvalidRequest) -> dict[str, Any]:  # noqa: ANN401 - JSON of any shape
    """Return a record in OTLP's JSON as a row, with what its resource says."""
    if isinstance(described, InvalidRequest):
        raise described
    if not isinstance(record, dict):
        raise InvalidRequest(f"{clip(str(record))} is none; send an object")
    row = {key: value for key, value in record.items() if key not in _WITHOUT}
    row |= {"traceId": str(record.get("traceId") or "").lower(), "spanId": str(record.get("spanId") or "").lower()}
    row["attributes"] = attributes_of(record.get("attributes"))
    events = require_rows(record.get("events"), "events")
    if events:
        row["events"] = [{"name": str(event.get("name")), "attributes": attributes_of(event.get("attributes"))} for event in events]
    return row | ({"resource": described} if described else {})


_TIMES = ("startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "observedTimeUnixNano")


def _of_protobuf(body: bytes, signal: Signal) -> Iterator[_Record]:
    """Yield the records of a request, each parsed alone by the numbers of OTLP's fields: a text that is no UTF-8 spoils no other."""
    kind, trace_id = (Span, 1) if signal == "traces" else (LogRecord, 9)

    def read(record: bytes, described: dict[str, Any] | InvalidRequest) -> dict[str, Any]:
        found = kind.FromString(record)
        _spend_inner(found)
        row = MessageToDict(found, use_integers_for_enums=True)
        return _row(row | {key: b64decode(row[key]).hex() for key in ("traceId", "spanId", "parentSpanId") if key in row}, described)

    for resource in _fields(body, 1):
        if resource is body:
            raise InvalidRequest("the body is no OTLP request in protobuf; send one, or JSON with its Content-Type")
        about = b"".join(_fields(resource, 1))
        described = _attempt(lambda about=about: attributes_of(MessageToDict(Resource.FromString(about)).get("attributes")))
        for scope in _fields(resource, 2):
            for record in _fields(scope, 2):
                yield b"".join(_fields(record, trace_id)).hex(), _attempt(read, record, described)


def _fields(message: bytes, number: int) -> list[bytes]:
    """Return the fields of this number that a message has, unparsed; the message itself where it has none that can be told apart."""
    try:
        found: Any = UnknownFieldSet(Empty.FromString(message))
    except DecodeError:
        return [message]
    _spend(len(found))
    return [one.data for one in found if (one.field_number, one.wire_type) == (number, 2)]


def answer(signal: Signal, encoding: Encoding, rejected: int, why: str) -> bytes:
    """Return the answer to a request that is taken, with how many of its spans are not, and why."""
    response: Any = ExportTraceServiceResponse() if signal == "traces" else ExportLogsServiceResponse()
    if rejected:
        response.partial_success.error_message = why
        setattr(response.partial_success, "rejected_spans" if signal == "traces" else "rejected_log_records", rejected)
    return MessageToJson(response, indent=None).encode() if encoding == "json" else bytes(response.SerializeToString())


def refusal(encoding: Encoding, code: int, why: str) -> bytes:
    """Return the body of a refusal: a `google.rpc.Status`, which is, in bytes, a partial success of the same number and text.

    Args:
        encoding: How the request was written.
        code: One of gRPC's codes.
        why: Why.
    """
    if encoding == "json":
        return json.dumps({"code": code, "message": why}).encode()
    return bytes(ExportTracePartialSuccess(rejected_spans=code, error_message=why).SerializeToString())
