"""What a tool returned to the grader, bounded."""

import hashlib
from typing import Any

from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, from_json, to_json

from gradeloop.evaluation import CheckOutcome
from gradeloop.printable import clip, shortened
from gradeloop.strict import Recorded, Sparse
from gradeloop.transcript import Message

EVIDENCE_BYTES = 64 * 1024
"""What is kept of a tool's output: head and tail; 25 such results stay below one 2 MiB payload."""


CHECK_FALSE = "the check returned false"
"""The gap of a check that says no more than that."""


GRADED_BYTES = 1024 * 1024
"""Of what a grader's function returns: half of the 2 MiB that one Temporal payload may have."""


class Evidence(Recorded):
    """A tool's result, as text for the model and as the history keeps it."""

    call: str
    """The id of the tool call that it answers."""
    text: str
    failed: bool = False
    """True where the tool raised or timed out: the text is then the error."""
    bytes: Sparse[int | None] = None
    """Size of the whole output, where only head and tail were kept."""
    sha256: Sparse[str | None] = None
    """Of the whole output, where only head and tail were kept."""

    outcome: Sparse[CheckOutcome | None] = None
    """Where the tool served as a check."""
    value: Sparse[JsonValue] = None
    """Where the tool served as a grader: what it returned."""

    def message(self, tool: str) -> Message:
        """Return the message that gives the result back to the model."""
        return Message(role="tool", name=tool, tool_call_id=self.call, content=self.text)


def evidence_of(call: str, value: Any, *, failed: bool = False) -> Evidence:  # noqa: ANN401 - whatever a tool returns
    """Return a tool's value as evidence: text as it is, all else as JSON, head and tail where it is too large."""
    text = value if isinstance(value, str) else _json(value)
    raw = text.encode(errors="replace")
    if len(raw) <= EVIDENCE_BYTES:
        return Evidence(call=call, text=raw.decode(), failed=failed)
    half = EVIDENCE_BYTES // 2 - 100
    head, tail = raw[:half].decode(errors="ignore"), raw[-half:].decode(errors="ignore")
    cut = f"{head}\n[… the middle of {len(raw)} bytes left out …]\n{tail}"
    return Evidence(call=call, text=cut, failed=failed, bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())


def uncertain(tool: str, operation: str) -> str:
    """Say that nobody knows whether a tool ran that must not run twice."""
    return f"uncertain: {tool} was begun and its end is not known; it may have had its effect, and is not run again ({operation})"


def graded(call: str, value: Any) -> Evidence:  # noqa: ANN401 - whatever a grader's function returns
    """Return what a function that judges returned, whole.

    Raises:
        TypeError: It is no JSON, or more than a mebibyte of it.
    """
    text = _json(value)
    if len(text) > GRADED_BYTES:
        raise TypeError(f"the function returned {len(text)} bytes as JSON, {GRADED_BYTES} at most")
    return Evidence(call=call, text="", value=from_json(text))


def _json(value: Any) -> str:  # noqa: ANN401 - whatever a tool returns
    _refuse_bytes(value)
    try:
        return to_json(value).decode()
    except (PydanticSerializationError, UnicodeDecodeError, ValueError) as error:
        raise TypeError(f"the tool returned {type(value).__name__}, which is not JSON: {error}") from None


def _refuse_bytes(value: Any) -> None:  # noqa: ANN401 - whatever a tool returns
    """Raise where a tool returned bytes, which are no evidence that a model reads, or a container of them, one deep."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for each in (value, *parts):
        if isinstance(each, bytes | bytearray | memoryview):
            raise TypeError(f"the tool returned {len(each)} bytes of binary data; return text, or JSON")


def check_outcome(value: Any) -> CheckOutcome:  # noqa: ANN401 - whatever a check returns
    """Read a check's value: `true`, `false`, or an object with `ok`, the rest of which is the gap.

    Raises:
        TypeError: It is neither; that is the checker's error, never a grade.
    """
    if isinstance(value, bool):
        return CheckOutcome(passed=value, gap=None if value else CHECK_FALSE)
    if isinstance(value, dict) and isinstance(value.get("ok"), bool):
        rest = {key: item for key, item in value.items() if key != "ok"}
        if value["ok"]:
            return CheckOutcome(passed=True)
        return CheckOutcome(passed=False, gap=shortened(_told(rest)) or CHECK_FALSE)
    raise TypeError(f"a check returns true, false or an object with 'ok': true or false; this one returned {clip(repr(value))}")


def _told(rest: dict[str, Any]) -> str:
    """Return the rest of a failing check in words: `key: value`, without the JSON around it."""
    return "; ".join(f"{key}: {item if isinstance(item, str) else _json(item)}" for key, item in rest.items())
