"""A streamed reply of the Chat Completions API, put together from its deltas."""

from pydantic import JsonValue

from activities.providers.wire import JsonObject, objects, reported

_TEXTS = ("content", "refusal", "reasoning", "reasoning_content")


class ChatAssembly:
    """Merges deltas to the one choice of a reply that was not streamed."""

    def __init__(self) -> None:
        self._reply: JsonObject = {}
        self._message: JsonObject = {"role": "assistant"}
        self._calls: dict[int, JsonObject] = {}
        self._reason: JsonValue = None

    def add(self, event: JsonObject) -> None:
        """Take the next chunk in."""
        if event.get("error"):
            raise reported(event["error"], status=200)
        self._reply |= {name: value for name, value in event.items() if name in {"id", "model", "usage"} and value}
        for choice in objects(event.get("choices")):
            if choice.get("error"):
                raise reported(choice["error"], status=200)
            self._reason = choice.get("finish_reason") or self._reason
            delta = choice.get("delta")
            if isinstance(delta, dict):
                self._merge(delta)

    def _merge(self, delta: JsonObject) -> None:
        for name in _TEXTS:
            if isinstance(delta.get(name), str):
                self._message[name] = f"{self._message.get(name) or ''}{delta[name]}"
        if details := objects(delta.get("reasoning_details")):
            self._message["reasoning_details"] = [*objects(self._message.get("reasoning_details")), *details]
        for ordinal, call in enumerate(objects(delta.get("tool_calls"))):
            index = call.get("index")
            self._extend(index if isinstance(index, int) else ordinal, call)

    def _extend(self, index: int, call: JsonObject) -> None:
        held = self._calls.setdefault(index, {"type": "function", "function": {"name": "", "arguments": ""}})
        function, told = held["function"], call.get("function")
        held |= {name: value for name, value in call.items() if name not in {"index", "function"} and value}
        if isinstance(function, dict) and isinstance(told, dict):
            for name in ("name", "arguments"):
                function[name] = f"{function[name]}{told.get(name) or ''}"

    def body(self) -> JsonObject | None:
        """Return the reply; None without the reason for which it ended."""
        if self._reason is None:
            return None
        calls: JsonObject = {"tool_calls": [self._calls[index] for index in sorted(self._calls)]} if self._calls else {}
        return {**self._reply, "choices": [{"index": 0, "message": self._message | calls, "finish_reason": self._reason}]}
