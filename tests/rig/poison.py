"""Hostile items, each of which stands between two good ones: spans, texts of rows, and files."""

import json
import os
import socket
from pathlib import Path
from typing import Any

from rig.otlp import trace_id

DEEP = 2_000
"""A nesting at which Python's own reader of JSON gives up."""


def said(name: str, text: str = "Hello") -> dict[str, Any]:
    """Return a finished run as a row has it."""
    return {"id": name, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]}


def span(name: str, **more: Any) -> str:
    """Return a call of a model in OTLP's JSON."""
    attributes = {
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}],
        "gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": "Hello"}]}],
    }
    listed = [{"key": key, "value": {"stringValue": json.dumps(value)}} for key, value in attributes.items()]
    return json.dumps({"traceId": trace_id(name), "spanId": "00000000000000ab", "name": "chat", "attributes": listed} | more)


_SPAN = span("bad")
_DEEP_ATTRIBUTE = '"attributes": [{"key": "gen_ai.x", "value": ' + '{"arrayValue":{"values":[' * DEEP + "]}}" * DEEP + "}, "


def _timed(number: str) -> bytes:
    return span("bad", endTimeUnixNano=0).replace('"endTimeUnixNano": 0', f'"endTimeUnixNano": {number}').encode()


JSON_SPANS: dict[str, tuple[bytes, str]] = {
    "a time of 1e400": (_timed("1e400"), "endTimeUnixNano"),
    "a negative time": (span("bad", endTimeUnixNano=-(10**30)).encode(), "endTimeUnixNano is '-1000"),
    "a time beyond 64 bits": (span("bad", endTimeUnixNano=str(2**64)).encode(), "from 0 to 2**64 - 1"),
    "a time of 5,000 digits": (_timed("9" * 5000), "endTimeUnixNano"),
    "a time that is a list": (span("bad", startTimeUnixNano=[1]).encode(), "startTimeUnixNano is '[1]'"),
    "a number that is not finite": (_SPAN.replace('"chat"', '"chat", "flags": Infinity').encode(), "not JSON compliant"),
    "an attribute nested too deeply": (_SPAN.replace('"attributes": [', _DEEP_ATTRIBUTE).encode(), "nested more than"),
    "an event nested deeply": (_SPAN.replace('"chat"', '"chat", "x": ' + "[" * 300 + "]" * 300).encode(), "nested more than 100 deep"),
    "a text that is not UTF-8": (_SPAN.replace('"chat"', '"ch@t"').encode().replace(b"@", b"\xff"), "not UTF-8"),
    "attributes that are a number": (span("bad", attributes=[7]).encode(), "is not an object"),
    "a span id that is none": (span("bad", spanId="x").encode(), "no valid spanId"),
}  # fmt: skip
"""Spans of the trace `bad` that are refused, and a part of the reason."""

HOMELESS: dict[str, bytes] = {"a number": b"7", "a list": b"[[]]", "nothing of a trace": b'{"attributes": [{"key": "gen_ai.x"}]}'}
"""What stands in place of a span without the id of a trace."""


def nested_request(*spans: bytes) -> bytes:
    """Return a request with spans that are serialized; the last one gets an attribute deeper than a parser of protobuf goes."""
    value = b"\x0a\x01x"
    for _ in range(120):
        value = _field(5, _field(1, value))
    deep = spans[-1] + _field(9, _field(1, b"gen_ai.deep") + _field(2, value))
    return _field(1, _field(2, b"".join(_field(2, one) for one in (deep, *spans[:-1]))))


def _field(number: int, content: bytes) -> bytes:
    size, length = bytearray(), len(content)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((number << 3 | 2, *size, length)) + content


LINES: dict[str, bytes] = {
    "NUL in an id": json.dumps(said("a\0b")).encode(),
    "NUL as a byte": b'{"id": "nul", \x00',
    "infinity": b'{"id": "infinite", "messages": [{"role": "assistant", "content": "x"}], "score": 1e400}',
    "NaN": b'{"id": "nan", "messages": [{"role": "assistant", "content": "x"}], "score": NaN}',
    "too deep": b'{"id": "deep", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep": b'{"id": "deeper", "messages": ' + b"[" * 300 + b"]" * 300 + b"}",
    "half a character": b'{"id": "half", "messages": [{"role": "assistant", "content": "\\ud800"}]}',
    "not UTF-8": b'{"id": "latin", "messages": [{"role": "assistant", "content": "\xff"}]}',
    "too many digits": b'{"id": "digits", "messages": [{"role": "assistant", "content": "x"}], "n": ' + b"9" * 5000 + b"}",
    "10 MB that are no run": b'{"id": "long", "x": "' + b"x" * 10_000_000 + b'"}',
    "no object": b"7",
}
"""Lines, or values of a column, that are no run."""


def write_poison(folder: Path) -> set[str]:
    """Write good files with bad ones between them, and return the names of those that cannot be read."""
    for name in ("a", "m", "z"):
        (folder / f"{name}.jsonl").write_text(json.dumps(said(name)) + "\n")
    for at, line in enumerate(LINES.values()):
        (folder / f"bad-{at}.jsonl").write_bytes(line)
    os.mkfifo(folder / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket.json"))
    (folder / "empty.json").write_bytes(b"")
    (folder / f"{'n' * 240}.txt").write_text("an answer in a file with too long a name for a run")
    (Path(os.fsdecode(bytes(folder) + b"/\xff.txt"))).write_text("an answer in a file whose name is not UTF-8")
    (folder / "dangling.jsonl").symlink_to(folder / "nowhere.jsonl")
    return {f"bad-{at}.jsonl" for at in range(len(LINES))} | {"pipe.jsonl", "socket.json", "empty.json", "nnn", ".txt"}
