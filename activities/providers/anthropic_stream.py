"""A streamed reply of the Messages API, put together from its events."""

from pydantic import JsonValue
from pydantic_core import from_json

from activities.providers.wire import JsonObject, reported

_GROWS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Which field of a block a delta lengthens; it has the same name there and here."""


class MessageAssembly:
    """Merges events to the message that a reply without streaming is."""

    def __init__(self) -> None:
        self._message: JsonObject = {}
        self._blocks: dict[int, JsonObject] = {}
        self._inputs: dict[int, str] = {}
        self._ended = False

    def add(self, event: JsonObject) -> None:
        """Take the next event in; unknown ones say nothing."""
        kind, index = event.get("type"), event.get("index")
        if kind == "error":
            raise reported(event.get("error"), status=200)
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self._message = dict(event["message"])  # type: ignore[arg-type]  # just seen to be one
        elif kind == "content_block_start" and isinstance(index, int) and isinstance(event.get("content_block"), dict):
            self._blocks[index] = dict(event["content_block"])  # type: ignore[arg-type]  # just seen to be one
        elif kind == "content_block_delta" and isinstance(index, int) and isinstance(event.get("delta"), dict):
            self._grow(index, event["delta"])  # type: ignore[arg-type]  # just seen to be one
        elif kind == "message_delta":
            self._finish(event)
        self._ended = self._ended or kind == "message_stop"

    def _grow(self, index: int, delta: JsonObject) -> None:
        block, kind = self._blocks.setdefault(index, {}), str(delta.get("type"))
        if kind == "input_json_delta":
            self._inputs[index] = f"{self._inputs.get(index, '')}{delta.get('partial_json') or ''}"
        elif name := _GROWS.get(kind):
            block[name] = f"{block.get(name) or ''}{delta.get(name) or ''}"
        elif kind == "citations_delta":
            held = block.get("citations")
            block["citations"] = [*(held if isinstance(held, list) else []), delta.get("citation")]

    def _finish(self, event: JsonObject) -> None:
        delta, usage, held = event.get("delta"), event.get("usage"), self._message.get("usage")
        if isinstance(delta, dict):
            self._message |= delta
        if isinstance(usage, dict):
            newest = {name: value for name, value in usage.items() if value is not None}
            self._message["usage"] = {**(held if isinstance(held, dict) else {}), **newest}

    def body(self) -> JsonObject | None:
        """Return the message; None where its last event, or the reason for its end, has not come."""
        if not self._ended and self._message.get("stop_reason") is None:
            return None
        content: list[JsonValue] = [self._blocks[index] | self._input(index) for index in sorted(self._blocks)]
        return self._message | {"content": content}

    def _input(self, index: int) -> JsonObject:
        """Return a tool call's input; one that is no JSON stays as written."""
        text = self._inputs.get(index)
        if not text:
            return {}
        try:
            return {"input": from_json(text, allow_inf_nan=False)}
        except ValueError:
            return {"input": text}
