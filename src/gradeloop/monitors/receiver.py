"""The OTLP receiver: takes traces and logs over HTTP, keeps them before it says so, and puts silent traces together."""

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import re
import socket
import threading
import zlib
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
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
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.monitors.received import KeptSpans, ReceivedLoad, ReceivedSpan, ReceivedSpans
from gradeloop.settings.secrets import remember_secret, scrubbed
from gradeloop.settings.worker import ReceiverSettings
from gradeloop.store.engine import Store
from gradeloop.telemetry.health import HealthChecks
from gradeloop.telemetry.metrics import RECEIVED_RUNS, RECEIVED_SPANS, RECEIVER_ANSWERS, RECEIVER_OPEN
from gradeloop.temporal.process import beside
from gradeloop.text import NESTING_DEPTH, clip, depth, encodable, one_line
from gradeloop.transcripts.formats.spans import CONVENTIONS, attributes_of
from gradeloop.transcripts.json_access import ODD_SHAPES, dict_of, require_rows
from gradeloop.web.guard import Guard, RequestRefused, has_bearer, open_socket
from gradeloop.web.serving import health_routes, serving_app

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

TOO_DEEP = f"it is nested more than {NESTING_DEPTH} deep; flatten its attributes"

_JSON = json.JSONDecoder(parse_int=lambda digits: int(digits) if len(digits) <= CUT_AT else math.inf)
"""Reads a body; an integer of more digits than Python reads is refused with its span, as any number that is not finite."""


_Record = tuple[str, dict[str, Any] | InvalidRequest]
"""The id of a record's trace, and the record as a row, or why it cannot be read."""


class OtlpRequest(NamedTuple):
    """Content of a request."""

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
    """Return a body uncompressed; None if larger than `most`. Raise InvalidRequest if it is damaged, or compressed otherwise."""
    if encoding in {"", "identity"}:
        return body if len(body) <= most else None
    if encoding not in {"gzip", "deflate"}:
        raise InvalidRequest(f"the body is compressed by {encoding!r}; send gzip, deflate or none")
    unpacker = zlib.decompressobj(wbits=47)  # gzip or zlib, as its header says
    try:
        found = unpacker.decompress(body, most + 1)
    except zlib.error:
        raise InvalidRequest(f"the body is not valid {encoding}; send what Content-Encoding says") from None
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
        InvalidRequest: The body is not such a request.
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
    """Return the records of a request, or why they cannot be read."""
    try:
        return read(*arguments)
    except RecursionError:
        return InvalidRequest(TOO_DEEP)
    except (*ODD_SHAPES, DecodeError) as error:
        return error if isinstance(error, InvalidRequest) else InvalidRequest(f"it is not OTLP: {one_line(str(error))}; correct it")


def _is_of_models(row: Mapping[str, Any]) -> bool:
    """Return whether a span or record is of a model, a tool or an agent, by its attributes and events."""
    names = (*row["attributes"], *(event["name"] for event in row.get("events", ())), row.get("eventName") or "")
    return any(name.startswith(CONVENTIONS) for name in names) or str(row["attributes"].get("event.name")).startswith(CONVENTIONS)


def _received(row: dict[str, Any], kind: str) -> ReceivedSpan | None:
    """Return a row as it is kept; None for one of other things. Raise InvalidRequest where it has no place, or cannot be kept as it is."""
    if not _is_of_models(row):
        return None
    if not _TRACE_ID.fullmatch(row["traceId"]):
        raise InvalidRequest("it has no valid traceId, so that it belongs to no run; export within a trace")
    if kind == "span" and not _SPAN_ID.fullmatch(row["spanId"]):
        raise InvalidRequest("it has no valid spanId; send 8 bytes that are not all 0")
    row |= {key: _nanoseconds(key, row[key]) for key in _TIMES if row.get(key)}
    if depth(row) > NESTING_DEPTH:
        raise InvalidRequest(TOO_DEEP)
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if _NO_UTF8.search(text):
        raise InvalidRequest("a text in it is not UTF-8; send UTF-8")
    text = encodable(text)
    # A log record has no id of its own. The sum of its content stands for one, so that a record that an exporter
    # sends again is known.
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
    # The brackets are counted before anything is parsed. A body of a few megabytes may hold millions of empty
    # items, which take a minute to read.
    _spend(body.count(b"{") + body.count(b"["))
    try:
        text = body.decode("utf-8-sig", "surrogateescape")
        try:
            value = _JSON.decode(text)
        except RecursionError:
            value = _JSON.decode(_shallow(text))
    except (ValueError, RecursionError):
        raise InvalidRequest("the body is not JSON; send OTLP in JSON, or protobuf with its Content-Type") from None
    resources, scopes, records = _KEYS[signal]
    if not isinstance(value, dict) or not isinstance(value.get(resources, []), list):
        raise InvalidRequest(f"the body is not an OTLP request: an object with {resources}, a list")
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
    """Return the items of a list; what is not a list, or has none, is the one item, which is then refused."""
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
    """Yield the records of a request, each parsed by the numbers of OTLP's fields: text that is not UTF-8 spoils only its own."""
    kind, trace_id = (Span, 1) if signal == "traces" else (LogRecord, 9)

    def read(record: bytes, described: dict[str, Any] | InvalidRequest) -> dict[str, Any]:
        found = kind.FromString(record)
        _spend_inner(found)
        row = MessageToDict(found, use_integers_for_enums=True)
        return _row(row | {key: b64decode(row[key]).hex() for key in ("traceId", "spanId", "parentSpanId") if key in row}, described)

    for resource in _fields(body, 1):
        if resource is body:
            raise InvalidRequest("the body is not an OTLP request in protobuf; send one, or JSON with its Content-Type")
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
    """Return the body of a refusal: a `google.rpc.Status`, which is, in bytes, a partial success of the same number and text."""
    if encoding == "json":
        return json.dumps({"code": code, "message": why}).encode()
    return bytes(ExportTracePartialSuccess(rejected_spans=code, error_message=why).SerializeToString())


LOOK_SECONDS = 1.0
"""Seconds between two checks for silent traces."""

CLEAN_SECONDS = 60.0
"""Seconds between two removals of what is old."""

REQUESTS = 64
"""Requests that are taken at the same time; more are told to come again."""

BYTES_OF_ITEM = 10
"""The fewest bytes that a value of a request has on average: of empty spans 16 MiB are 8 million, and reading them takes a minute."""

KEPT_AT_ONCE = 1000
"""Spans that are written in one transaction."""

READ_AT_ONCE = 4
"""Bodies that are unpacked, read and written at the same time: a body takes several times its size meanwhile."""

_CODES = {400: 3, 413: 3, 415: 3, 401: 7, 403: 7, 405: 7, 421: 7, 429: 8, 408: 14, 503: 14}
"""The codes of gRPC that the statuses of refusals have."""

logger = logging.getLogger("gradeloop.receiver")


class OtlpReceiver:
    """Answers exporters; `work` puts traces together beside that."""

    def __init__(self, store: Store, settings: ReceiverSettings, token: str | None) -> None:
        self._spans = ReceivedSpans(store, settings)
        self._settings = settings
        self._token = token
        self._checks = HealthChecks({"store": store.ping}, scrubbed)
        self._slots = asyncio.Semaphore(READ_AT_ONCE)
        self._requests = 0
        self._load = ReceivedLoad(0, 0)

    def application(self, port: int) -> Guard:
        """Return the application behind its guard: `POST /v1/traces` and `/v1/logs`, `GET /healthz` and `/readyz`."""
        app = Router(
            routes=[
                Route("/v1/traces", self._answering("traces"), methods=["POST"]),
                Route("/v1/logs", self._answering("logs"), methods=["POST"]),
                *health_routes(self._checks),
            ],
            redirect_slashes=False,
        )
        most = self._settings.max_request_mib * 1024 * 1024
        return Guard(app, port, any_host=self._token is not None, admit=self._admit, refused=_refused, body_bytes=most)

    def _answering(self, signal: Signal) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            kind = _kind(request.headers)
            self._requests += 1
            try:
                body = await self._take(await request.body(), request.headers.get("content-encoding", ""), signal, CONTENT_TYPES[kind])
            finally:
                self._requests -= 1
            RECEIVER_ANSWERS.record(status="200")
            return Response(body, media_type=kind)

        return respond

    async def _take(self, body: bytes, compressed: str, signal: Signal, encoding: Encoding) -> bytes:
        """Keep what a request holds, and return the answer; raise RequestRefused where nothing of it is acknowledged."""
        async with self._slots:
            read = await self._read(body, compressed.strip().lower(), signal, encoding)
            # The marks of refused spans come before the other spans. If the store or the process ended between
            # the two, a trace without its marks would be put together as if nothing were missing of it.
            await self._keep(read.marks)
            kept = await self._keep(read.spans)
        rejected = read.rejected + kept.rejected
        for outcome, count in {"kept": kept.kept, "known": kept.known, "passed_over": read.others, "rejected": rejected}.items():
            if count:
                RECEIVED_SPANS.record(count, outcome=outcome)
        if rejected:
            logger.warning("%d of a request's %s are rejected; its answer says why", rejected, "spans" if signal == "traces" else "records")
        return answer(signal, encoding, rejected, read.why or kept.why)

    def _admit(self, method: str, _path: str, headers: Mapping[str, str]) -> None:
        """Refuse a request where its body need not be read for that; whoever asks for the health may."""
        if method == "GET":
            return
        if self._token is not None and not has_bearer(headers, self._token):
            raise RequestRefused(401, "send the receiver's token, as Authorization: Bearer TOKEN")
        if _kind(headers) not in CONTENT_TYPES:
            raise RequestRefused(415, f"send Content-Type: {' or '.join(CONTENT_TYPES)}")
        if self._requests >= REQUESTS:
            raise RequestRefused(429, "too many requests at once; try again", 1)
        if self._load.open >= self._settings.max_open_traces:
            why = f"{self._load.open} traces have not settled; try again, or raise receiver.max_open_traces"
            raise RequestRefused(429, why, max(1, min(30, round(self._settings.settle))))
        if self._load.runs >= self._settings.max_runs:
            raise RequestRefused(429, "the store has as many runs as receiver.max_runs allows; prune it, or raise that", 60)

    async def _read(self, body: bytes, compressed: str, signal: Signal, encoding: Encoding) -> OtlpRequest:
        """Return what a body holds; a thread reads it."""
        most = self._settings.max_request_mib * 1024 * 1024

        def read() -> OtlpRequest | None:
            plain = unpacked(body, compressed, most)
            return None if plain is None else read_request(plain, signal, encoding, most // BYTES_OF_ITEM)

        try:
            found = await asyncio.to_thread(read)
        except InvalidRequest as error:
            raise RequestRefused(400, str(error)) from None
        if found is None:
            raise RequestRefused(413, f"the body is larger than {most} bytes; shorten it")
        return found

    async def _keep(self, spans: Sequence[ReceivedSpan]) -> KeptSpans:
        """Write spans; what is written is committed before anything is acknowledged, and known when it comes again."""
        total = KeptSpans()
        for first in range(0, len(spans), KEPT_AT_ONCE):
            try:
                kept = await self._spans.keep(spans[first : first + KEPT_AT_ONCE])
            except Exception as error:  # noqa: BLE001
                # Whatever it is: the exporter has the spans still, and what the database says of them is nobody's to read.
                why = str(error) if isinstance(error, StoreUnavailable) else type(error).__name__
                logger.warning("spans cannot be kept, so exporters are told to try again: %s", why)
                raise RequestRefused(503, "the store cannot be used now; try again", 5) from None
            total = total.plus(kept)
        return total

    async def work(self) -> None:
        """Put silent traces together and remove what is old, until this is cancelled; a store that is away is waited for."""
        cleaned = -CLEAN_SECONDS
        while True:
            now = asyncio.get_running_loop().time()
            try:
                assembled = await self._spans.assemble_silent()
                self._load = await self._spans.load()
                if now - cleaned >= CLEAN_SECONDS:
                    await self._spans.clean()
                    cleaned = now
            except Exception as error:  # noqa: BLE001 - whatever it is, exporters are answered, and it is tried again
                why = str(error) if isinstance(error, StoreUnavailable) else type(error).__name__
                logger.warning("traces are not put together now, and it is tried again: %s", why)
            else:
                RECEIVER_OPEN.record(self._load.open)
                for outcome, count in assembled._asdict().items():
                    if count:
                        RECEIVED_RUNS.record(count, outcome=outcome)
            await asyncio.sleep(LOOK_SECONDS)


def _kind(headers: Mapping[str, str]) -> str:
    """Return the type of a request's body."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _refused(headers: Mapping[str, str], refused: RequestRefused) -> tuple[str, bytes]:
    """Return the type and the body of a refusal's answer: a `google.rpc.Status`, written as the request was."""
    RECEIVER_ANSWERS.record(status=str(refused.status))
    kind = found if (found := _kind(headers)) in CONTENT_TYPES else "application/json"
    return kind, refusal(CONTENT_TYPES[kind], _CODES[refused.status], refused.why)


def open_receiver(settings: ReceiverSettings, environment: Mapping[str, str]) -> Callable[[Store], AbstractAsyncContextManager[str]]:
    """Open the receiver's door, and return what receives into a store while its block runs, and yields the address.

    Raises:
        InvalidRequest: The address cannot be opened, or is open to other machines without a token.
    """
    if token := settings.read_token(environment):
        remember_secret(token)
    return partial(receiving, settings=settings, token=token, listening=open_socket(settings.address, "receiver.address"))


@contextlib.asynccontextmanager
async def receiving(store: Store, settings: ReceiverSettings, token: str | None, listening: socket.socket) -> AsyncIterator[str]:
    """Receive while the block runs, and yield the receiver's address."""
    receiver = OtlpReceiver(store, settings, token)
    host, port = listening.getsockname()[:2]
    async with serving_app(receiver.application(port), listening), beside(receiver.work()):
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
