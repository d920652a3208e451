"""Messages of Pydantic AI, requests and responses with parts, as messages with roles."""

from collections.abc import Callable, Iterator, Mapping

from gradeloop.transcripts.unreadable import Json, dict_of, inside, require_rows, rows_of, without


def is_pydantic_ai(value: object) -> bool:
    """Return whether a value is a message of Pydantic AI: `kind` is request or response, and its parts have a `part_kind`."""
    if not isinstance(value, Mapping) or value.get("kind") not in ("request", "response") or "role" in value:
        return False
    parts = value.get("parts")
    return isinstance(parts, list) and all(isinstance(part, Mapping) and "part_kind" in part for part in parts)


def messages_of_pydantic_ai(value: dict[str, Json]) -> Iterator[tuple[tuple[str | int, ...], dict[str, Json]]]:
    """Yield the messages with roles that a message of Pydantic AI is, and the path of each: of a request each part, a response as one.

    Raises:
        UnreadableMessage: A part is no object.
    """
    about = without(value, "parts", "kind", "instructions")
    rows = require_rows(value["parts"], "parts")
    if value["kind"] == "response":
        yield ("parts",), {"role": "assistant", "content": [_said(part) for part in rows], "metadata": about}
        return
    if value.get("instructions"):
        yield ("instructions",), {"role": "system", "content": value["instructions"], "metadata": {"instructions": True}}
    for at, part in enumerate(rows):
        with inside("parts", at):
            yield ("parts", at), _asked(part)


def _asked(part: dict[str, Json]) -> dict[str, Json]:
    """Return the message that a part of a request is."""
    kind, content = str(part["part_kind"]), part.get("content")
    if kind in {"system-prompt", "instruction"}:
        return {"role": "system", "content": content}
    if kind == "user-prompt":
        return {"role": "user", "content": [*map(_item, content)] if isinstance(content, list) else content}
    if kind in {"tool-return", "retry-prompt"} and part.get("tool_name"):
        return {"role": "tool", "content": [_result(part)], "metadata": without(part, *_RESULT_READ)}
    if kind in {"retry-prompt", "retry-feedback"}:
        said = content if isinstance(content, str) else [{"type": kind, "content": content}]
        return {"role": "user", "content": said, "metadata": {"part_kind": kind, **without({"retry": part.get("retry")})}}
    return {"role": "system", "content": [_said(part)]}


_RESULT_READ = ("part_kind", "tool_name", "tool_call_id", "content", "timestamp", "content_file_digests", "tool_kind")


def _result(part: dict[str, Json]) -> dict[str, Json]:
    content = part.get("content")
    shown = [*map(_item, content)] if isinstance(content, list) and any("kind" in item for item in rows_of(content)) else content
    failed = part["part_kind"] == "retry-prompt" or part.get("outcome") in ("failed", "retried", "denied", "interrupted")
    result = {"type": "tool-result", "toolCallId": part.get("tool_call_id"), "toolName": part.get("tool_name"), "isError": failed}
    return {**result, "output": _item(shown) if isinstance(shown, dict) and "kind" in shown and "media_type" in shown else shown}


_READ: dict[str, Callable[[dict[str, Json]], dict[str, Json]]] = {
    "text": lambda part: {"type": "text", "text": part.get("content")},
    "thinking": lambda part: {"type": "thinking", "thinking": part.get("content")},
    **dict.fromkeys(
        ("tool-call", "builtin-tool-call"),
        lambda part: {"type": "tool_call", "id": part.get("tool_call_id"), "name": part.get("tool_name"), "arguments": part.get("args")},
    ),
    **dict.fromkeys(("tool-return", "builtin-tool-return"), _result),
    "file": lambda part: _item(part.get("content")),
    "speech": lambda part: (
        {"type": "audio", **_item(part["audio"]), "transcript": part.get("transcript")}
        if isinstance(part.get("audio"), dict)
        else {"type": "text", "text": part.get("transcript")}
    ),
}


def _said(part: dict[str, Json]) -> dict[str, Json]:
    """Return a part of a response in a shape that is read everywhere; one that is not known with its kind as its type."""
    kind = str(part["part_kind"])
    read = _READ.get(kind)
    return read(part) if read is not None else {"type": kind, **without(part, "part_kind", "timestamp")}


def _item(value: Json) -> Json:
    """Return an item of a content: a text, a file, or a mark."""
    kind = dict_of(value).get("kind")
    if not isinstance(kind, str):
        return value
    if kind == "text-content":
        return {"type": "text", "text": value.get("content")}
    if kind == "binary" or "url" in value or "file_id" in value:
        media = {"data": value.get("data"), "url": value.get("url"), "file_id": value.get("file_id"), "mediaType": value.get("media_type")}
        named = {"image-url": "image", "audio-url": "audio", "video-url": "video", "document-url": "document"}.get(kind, "file")
        return {"type": named, **without(media)}
    return {"type": kind, **without(value, "kind")}
