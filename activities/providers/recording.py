"""Every exchange with the models, written to a file that the scripted provider plays back."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from activities.failures import ModelFault
from activities.providers.model import ModelReply, ModelRequest, Step
from activities.symptoms import scrubbed
from gradeloop.answer import between

HEADER = "Exchanges with models, as `gradeloop run --record` wrote them; `gradeloop run --replay` plays them back."

Fields = dict[str, Any]


class Recording:
    """A file of exchanges, whole after each of them; where the file is removed, a new one begins."""

    def __init__(self, path: Path, secrets: Collection[str]) -> None:
        self._path = path
        self._secrets = secrets
        self._rows: dict[Step, Fields] = {}

    def reply(self, request: ModelRequest, reply: ModelReply) -> None:
        """Write a reply; its step answers with it from now on."""
        message, usage = reply.message, reply.usage
        said: Fields = {"text": _answer(message.content, request.tag)} if message.content.strip() else {}
        if message.tool_calls:
            said["tool_calls"] = [{"name": call.name, "arguments": call.arguments, "id": call.id} for call in message.tool_calls]
        spent = {name: getattr(usage, name) for name in ("input", "cached", "cache_written", "output", "reasoning")}
        self._write(request, said | {"usage": {name: tokens for name, tokens in spent.items() if tokens}})

    def fault(self, request: ModelRequest, fault: ModelFault) -> None:
        """Write a failure; a reply that comes after it at the same step takes its place and names it."""
        facts = {"kind": fault.kind, "message": fault.message, "status": fault.status, "retry_after": fault.retry_after}
        self._write(request, {"error": {name: value for name, value in facts.items() if value}})

    def _write(self, request: ModelRequest, said: Fields) -> None:
        if not self._path.exists():
            self._rows.clear()
        step = request.step
        earlier = self._rows.get(step, {})
        failed = [*earlier.get("failed_before", []), *([earlier["error"]] if "error" in earlier else [])]
        address = {name: value for name, value in step.model_dump().items() if value}
        row = address | said | ({"failed_before": failed} if failed else {}) | {"asked": _asked(request)}
        self._rows[step] = _portable(row, self._secrets)
        from ruamel.yaml import YAML  # a tenth of a second that only recorders pay

        partial, yaml = self._path.with_suffix(f"{self._path.suffix}.partial"), YAML()
        yaml.width = 100_000
        with partial.open("w", encoding="utf-8") as file:
            file.write(f"# {HEADER}\n")
            yaml.dump({"replies": list(self._rows.values())}, file)
        partial.replace(self._path)


def _answer(text: str, tag: str | None) -> str:
    """Return an answer without tags of its own call's: another run has others, and the scripted provider needs none."""
    try:
        return between(text, tag).strip() if tag else text
    except ValueError:
        return text


def _asked(request: ModelRequest) -> Fields:
    messages = [message.model_dump(mode="json", exclude={"vendor"}) for message in request.messages]
    return {"model": request.spec.id, "system": request.system, "messages": messages, "tools": [tool.name for tool in request.tools]}


def _portable(value: Any, secrets: Collection[str]) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return a value without keys, its texts of several lines written as blocks."""
    if isinstance(value, dict):
        return {key: _portable(each, secrets) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(each, secrets) for each in value]
    if not isinstance(value, str):
        return value
    from ruamel.yaml.scalarstring import LiteralScalarString  # as above

    text = scrubbed(value, secrets)
    return LiteralScalarString(text) if "\n" in text.strip("\n") else text
