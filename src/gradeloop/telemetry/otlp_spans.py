"""Spans as OTLP's protobuf, at a fraction of what OpenTelemetry's encoder costs, which builds Python objects for every attribute.

Most attributes of a worker's spans come again and again; their bytes are kept. What is rare (links, lists, limits that cut something) is
left to OpenTelemetry's encoder: messages of protobuf that stand one after the other are one.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import pack
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Event, ReadableSpan

KEPT_CHARACTERS = 256
"""The longest text whose bytes are kept: names and ids, no prompts."""

KEPT_ATTRIBUTES = 4_096

PLAIN = frozenset({str, bool, int, float})

_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200
"""Flags of a span: whether its parent is in another process is known, and is so."""


class SpanSender(OTLPSpanExporter):
    """OpenTelemetry's exporter, with its connection, headers, certificates, compression and retries, and this encoder."""

    def export(self, spans: "Sequence[ReadableSpan]") -> SpanExportResult:
        """Send spans; by OpenTelemetry's own encoder where its client is not the one that is known here."""
        client = getattr(self, "_client", None)
        if self._shutdown or client is None:
            return super().export(spans)
        return SpanExportResult.SUCCESS if client.export(encode(spans)).success else SpanExportResult.FAILURE


def encode(spans: "Sequence[ReadableSpan]") -> bytes:
    """Return the bytes of an `ExportTraceServiceRequest`."""
    groups: dict[tuple[int, int], list[ReadableSpan]] = {}
    for span in spans:
        groups.setdefault((id(span.resource), id(span.instrumentation_scope)), []).append(span)
    return b"".join(_resource_spans(group) for group in groups.values())


def _resource_spans(spans: "Sequence[ReadableSpan]") -> bytes:
    """Return spans of one resource and scope as `resource_spans` of a request."""
    resource, scope = spans[0].resource, spans[0].instrumentation_scope
    if resource.schema_url or scope is None or scope.schema_url or scope.attributes:
        return _by_opentelemetry(spans)
    try:
        described = _attributes(1, resource.attributes)
    except _Rare:
        return _by_opentelemetry(spans)
    written, rare = [], []
    for span in spans:
        try:
            written.append(_message(2, _span(span)))
        except _Rare:
            rare.append(span)
    within = _message(1, _text(1, scope.name) + _text(2, scope.version or "")) + b"".join(written)
    return _message(1, _message(1, described) + _message(2, within)) + (_by_opentelemetry(rare) if rare else b"")


def _by_opentelemetry(spans: "Sequence[ReadableSpan]") -> bytes:
    return encode_spans(spans).SerializeToString()


class _Rare(Exception):
    """A span has what is not written here."""


def _span(span: "ReadableSpan") -> bytes:
    context, parent, status, events = span.context, span.parent, span.status, span.events
    if context is None or context.trace_state or span.links or span.dropped_attributes or span.dropped_events or span.dropped_links:
        raise _Rare
    flags = _HAS_IS_REMOTE | (_IS_REMOTE if parent and parent.is_remote else 0)
    code = b"" if status.is_unset else b"\x18" + _varint(status.status_code.value)
    return b"".join(
        (
            b"\x0a\x10" + context.trace_id.to_bytes(16) + b"\x12\x08" + context.span_id.to_bytes(8),
            b"\x22\x08" + parent.span_id.to_bytes(8) if parent else b"",
            _text(5, span.name),
            b"\x30" + _varint(span.kind.value + 1),
            pack("<BQBQ", 0x39, span.start_time or 0, 0x41, span.end_time or 0),
            _attributes(9, span.attributes),
            *(_message(11, _event(event)) for event in events),
            _message(15, _text(2, status.description or "") + code),
            pack("<BBI", 0x85, 0x01, flags),
        )
    )


def _event(event: "Event") -> bytes:
    if event.dropped_attributes:
        raise _Rare
    return b"\x09" + pack("<Q", event.timestamp) + _text(2, event.name) + _attributes(3, event.attributes)


def _attributes(number: int, attributes: Mapping[str, Any] | None) -> bytes:
    """Return attributes as fields of the number.

    Raises:
        _Rare: One is a list, or whatever else an attribute may be.
    """
    written = []
    for key, value in attributes.items() if attributes else ():
        kind = type(value)
        if kind not in PLAIN:
            raise _Rare
        write = _attribute if kind is str and len(value) > KEPT_CHARACTERS else _kept_attribute
        written.append(write(number, key, value, kind))
    return b"".join(written)


def _attribute(number: int, key: str, value: str | bool | float, kind: type) -> bytes:
    """Return an attribute; `kind` tells 1, 1.0 and True apart where bytes are kept."""
    if kind is str:
        written = b"\x0a" + _sized(str(value).encode())
    elif kind is bool:
        written = b"\x10\x01" if value else b"\x10\x00"
    elif kind is int:
        written = b"\x18" + _varint(int(value))
    else:
        written = b"\x21" + pack("<d", value)
    return _message(number, _text(1, key) + _message(2, written))


_kept_attribute = lru_cache(KEPT_ATTRIBUTES)(_attribute)


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _sized(content)


def _text(number: int, text: str) -> bytes:
    """Return a text as a field; one that is empty is the field's default, and not written."""
    return _message(number, text.encode()) if text else b""


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _varint(number: int) -> bytes:
    if 0 <= number < 0x80:  # noqa: PLR2004 - what one byte holds
        return _BYTES[number]
    rest, written = number & 0xFFFFFFFFFFFFFFFF, bytearray()
    while rest >= 0x80:  # noqa: PLR2004
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


_BYTES = tuple(bytes([number]) for number in range(0x80))
