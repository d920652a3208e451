"""The parts of messages, in the shapes of all providers and frameworks, read as typed records.

A part of an unknown type is kept as a record of type `other` with its JSON; nothing is left out but ciphertext and signatures.
"""

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from pydantic import JsonValue

from gradeloop.contract.transcript import ErrorPart, FilePart, OtherPart, ReasoningPart, RunPart, TextPart, ToolCallPart, ToolResultPart
from gradeloop.text import clip, strict_json
from gradeloop.transcripts.json_access import Json, UnreadableMessage, dict_of, first_of, flag_at, inside, without

CIPHERTEXT = ("signature", "encrypted_content", "thoughtSignature", "thought_signature", "encryptedContent", "google_thought_signature")
"""Keys whose values mean something only to their provider: they are left out."""

_MEANINGLESS = {*CIPHERTEXT, "cache_control", "type", "id", "index", "status", "state", "sessionID", "messageID"}
"""Keys of parts that say nothing about the run beside what is read of them."""

_DATA_URL = re.compile(r"data:(?P<media>[^;,]*)(?P<base64>;base64)?,", re.ASCII)

_CONTENTS = ("image_url", "input_audio", "audio", "video", "video_url", "image", "image_file", "document", "file", "source", "data")
"""The keys that may hold what a file is, one of them in every part that is a file."""

_UNTELLING = {"text-plain", "file", "blob", "uri", "media", "file-data", "file-url", "file-id"}
"""Types of parts that do not say what the file is."""


class ReadPart(NamedTuple):
    """The records that one part of a message is read as."""

    parts: tuple[RunPart, ...]
    unread: dict[str, JsonValue]
    """Keys of the part that no record shows, kept as metadata of the message."""


def read_content(content: Json, key: str = "content") -> list[ReadPart]:
    """Read a content at its key: a text, a part, or a list of both; an UnreadableMessage's path leads to anything else."""
    if content is None:
        return []
    if isinstance(content, str):
        return [ReadPart((TextPart(text=content),), {})]
    if isinstance(content, dict) and ("type" in content or "text" in content or any(_camel(key) in _GEMINI_READERS for key in content)):
        content = [content]
    if not isinstance(content, list):
        raise UnreadableMessage(f"the content is {clip(str(content))}; write text, or a list of parts", "content")
    found = []
    for at, part in enumerate(content):
        with inside(key, at):
            found.append(_read_part(part))
    return found


def parts_in(content: Json) -> list[RunPart]:
    """Return the parts of a message's content."""
    return [part for block in read_content(content) for part in block.parts]


def _hosted(part: dict[str, Json]) -> ReadPart:
    """Read OpenTelemetry's call of a tool that the provider runs, or its response: what it holds stands under its type's name."""
    kind = str(part["type"])
    inner = part.get(kind)
    if kind == "server_tool_call" and inner is not None:
        given = without(inner, "type") if isinstance(inner, dict) else inner
        return ReadPart((read_call(part.get("id"), part.get("name"), given),), _unread(part, "name", kind))
    return _call(part) if kind == "server_tool_call" else _result({**without(part, kind), "content": inner} if inner is not None else part)


def _read_part(part: Json) -> ReadPart:
    if isinstance(part, str):
        return ReadPart((TextPart(text=part),), {})
    if not isinstance(part, dict):
        raise UnreadableMessage(f"{clip(str(part))} is not part of a message")
    if not isinstance(kind := part.get("type"), str):
        return _read_untyped(part)
    return (_PARTS.get(kind) or _by_ending(kind) or _kept)(part)


def _by_ending(kind: str) -> Callable[[dict[str, Json]], ReadPart] | None:
    if kind.endswith("_tool_result"):  # web_search_tool_result, code_execution_tool_result, ...
        return _result
    if kind.endswith("tool_use"):  # server_tool_use, mcp_tool_use
        return _call
    if kind in {"function_call", "custom_tool_call"}:  # LangChain's content of an answer of OpenAI's Responses
        return lambda part: _call({**part, "id": part.get("call_id") or part.get("id")})
    if kind.endswith("_call"):
        return lambda part: ReadPart(tuple(read_hosted_call(part)), {})
    if kind.startswith("tool-") and kind not in ("tool-approval-request", "tool-approval-response"):  # Vercel's tool-NAME
        return _vercel_tool
    return None


def text_of(value: Json) -> str:
    """Return a value as text: texts as they are, lists of texts and text parts line by line, anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, list) and value and all(_plain_text(item) is not None for item in value):
        return "\n".join(str(_plain_text(item)) for item in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain_text(item: Json) -> str | None:
    """Return the text of a string, or of a part that holds nothing but text; None for anything else."""
    if isinstance(item, str):
        return item
    kinds = {"text", "input_text", "output_text", "summary_text", "reasoning_text"}
    if not isinstance(item, dict) or str(item.get("type", "text")) not in kinds:
        return None
    text = item.get("text")
    return text if isinstance(text, str) and ("type" in item or set(item) == {"text"}) else None


def read_call(identifier: object, name: object, arguments: Json, at: int = 0) -> ToolCallPart:
    """Return a tool call; arguments that are not a JSON object are kept as written. Raise UnreadableMessage where it names no tool."""
    if not isinstance(name, str) or not name:
        raise UnreadableMessage("a tool call names no tool; write its name")
    call = str(identifier or f"call_{at}")
    parsed = arguments
    if isinstance(arguments, str) and arguments:
        try:
            parsed = strict_json(arguments)
        except (ValueError, RecursionError):
            parsed = None
    if arguments in (None, "", {}):
        return ToolCallPart(call=call, name=name)
    if isinstance(parsed, dict):
        return ToolCallPart(call=call, name=name, arguments=parsed)
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCallPart(call=call, name=name, invalid=written)


def read_result(identifier: object, content: Json, *, name: object = None, failed: bool = False) -> tuple[RunPart, ...]:
    """Return a tool's result, and behind it the files and other parts that it returned."""
    call, tool = str(identifier or "unknown"), name if isinstance(name, str) and name else None
    texts: list[str] = []
    rest: list[RunPart] = []
    if isinstance(content, list) and any(isinstance(item, dict) and isinstance(item.get("type"), str) for item in content):
        for part in parts_in(content):
            if isinstance(part, TextPart):
                texts.append(part.text)
            elif isinstance(part, OtherPart):
                texts.append(text_of({"type": part.kind, **dict_of(part.value)} if part.kind != "untyped" else part.value))
            else:
                rest.append(part)
    else:
        texts = [text_of(content)]
    return (ToolResultPart(call=call, name=tool, text="\n".join(texts), is_error=failed), *rest)


_HOSTED_RESULTS = ("output", "outputs", "results", "result")
"""The keys under which a hosted tool's call has what it returned."""


def on_server(part: dict[str, Json], name: Json) -> Json:
    """Return the name of a tool with that of its MCP server before it, where a call names one: `server__tool`."""
    server = first_of(part, "server_name", "server_label", "server")
    return f"{server}__{name}" if isinstance(server, str) and isinstance(name, str) and name else name


def read_hosted_call(item: dict[str, Json]) -> list[RunPart]:
    """Read a call of a tool that the provider runs, with what it returned where that is recorded: a search, code, MCP."""
    name = on_server(item, item.get("name") or str(item.get("type")).removesuffix("_call"))
    call = str(first_of(item, "call_id", "id") or "unknown")
    results = [item[key] for key in _HOSTED_RESULTS if item.get(key) not in (None, "", [])]
    read = {"type", "id", "call_id", "status", "name", "error", "server_label", *_HOSTED_RESULTS}
    given = {key: inner for key, inner in item.items() if key not in read and inner is not None}
    action = given["action"] if set(given) == {"action"} and isinstance(given["action"], dict) else given
    found: list[RunPart] = [read_call(call, name, item["arguments"] if isinstance(item.get("arguments"), str) else action)]
    error = item.get("error")
    if str(item.get("type")) == "image_generation_call" and results:
        found += [ToolResultPart(call=call, name=name), read_file(results[0], media_type="image")]
    elif error or item.get("status") == "failed":
        found += read_result(call, error or "failed", name=name, failed=True)
    elif results:
        found += read_result(call, results[0], name=name)
    return found


def read_file(
    data: Json, *, name: object = None, media_type: object = None, text: str = "", url: object = None, kind: str | None = None
) -> FilePart:
    """Return a file; of its content only the size is kept, of a data URL the media type and the size.

    `data`: its content, in base64.
    `kind`: what it is where no media type says it: `image`.
    """
    link, size = url if isinstance(url, str) else None, _decoded_bytes(data) if isinstance(data, str) else 0
    if link and (found := _DATA_URL.match(link)):
        media_type = media_type or found["media"] or None
        size = _decoded_bytes(link[found.end() :]) if found["base64"] else len(link) - found.end()
        link = None
    return FilePart(
        name=name if isinstance(name, str) else None,
        media_type=media_type if isinstance(media_type, str) and media_type else kind,
        url=link,
        bytes=size,
        text=text,
    )


def _decoded_bytes(data: str) -> int:
    """Return the bytes that a text in base64 stands for."""
    return max(len(data) * 3 // 4 - data[-2:].count("="), 0)


def _unread(part: dict[str, Json], *read: str) -> dict[str, JsonValue]:
    return without(part, *read, *_MEANINGLESS)


def _text(part: dict[str, Json]) -> ReadPart:
    refused = part.get("refusal") is True  # Inspect's and Docent's mark of a refusal
    text = first_of(part, "text", "content", *(() if refused else ("refusal",)), "value")
    if text is not None and not isinstance(text, str):
        text = dict_of(text).get("value", text)  # OpenAI's Assistants: {"value": ..., "annotations": [...]}
    read = ("text", "content", "value", *(("refusal",) if refused else ()))
    return ReadPart((TextPart(text=text_of(text), refusal=refused),), _unread(part, *read))


def _reasoning(part: dict[str, Json]) -> ReadPart:
    text = text_of(first_of(part, "thinking", "reasoning", "text", "content"))
    summary = text_of(part.get("summary"))
    hidden = bool(part.get("redacted")) or (not text and not summary)
    shown = summary if hidden and summary else "" if part.get("redacted") is True else text or summary
    read = ("thinking", "reasoning", "text", "content", "redacted", "internal", "providerMetadata", "extras")
    both = bool(summary) and shown == text != summary
    return ReadPart((ReasoningPart(text=shown, redacted=hidden),), _unread(part, *read, *(() if both else ("summary",))))


def _call(part: dict[str, Json]) -> ReadPart:
    if "arguments" in part and ("result" in part or "error" in part):  # Inspect's ContentToolUse: the call, and what it returned
        call = read_call(part.get("id"), part.get("name"), part.get("arguments"))
        failed = part.get("error") not in (None, "")
        result = read_result(part.get("id"), part["error"] if failed else part.get("result"), name=part.get("name"), failed=failed)
        return ReadPart((call, *result), _unread(part, "name", "arguments", "result", "error"))
    arguments = next((part[key] for key in ("input", "args", "arguments") if part.get(key) is not None), None)
    name = on_server(part, first_of(part, "name", "toolName", "tool_name"))
    call = read_call(first_of(part, "id", "tool_call_id", "toolCallId", "call_id"), name, arguments)
    read = ("name", "toolName", "tool_name", "server_name", "input", "args", "arguments", "toolCallId", "tool_call_id", "call_id")
    return ReadPart((call,), _unread(part, *read))


def _result(part: dict[str, Json]) -> ReadPart:
    content = next((part[key] for key in ("content", "output", "result", "response") if part.get(key) is not None), None)
    failed = flag_at(part, "is_error", "isError") or part.get("status") == "error"
    if isinstance(content, dict):
        kind = str(content.get("type"))
        failed = failed or kind.endswith("error") or kind.startswith("error-") or kind == "execution-denied"
        if set(content) <= {"type", "value"} and "value" in content:  # Vercel's {type: text | json | error-text, value}
            content = content["value"]
        elif kind == "text" or kind.endswith(("_result", "error")):
            content = [content]
    parts = read_result(
        first_of(part, "tool_use_id", "toolCallId", "tool_call_id", "call_id", "id"),
        without_ciphertext(content),
        name=first_of(part, "toolName", "name", "tool_name"),
        failed=failed,
    )
    read = ("content", "output", "result", "response", "is_error", "isError", "tool_use_id", "toolCallId", "tool_call_id", "call_id")
    return ReadPart(parts, _unread(part, *read, "toolName", "name", "tool_name"))


def without_ciphertext(value: Json) -> Json:
    """Return a value without signatures and ciphertext, at any depth."""
    if isinstance(value, list):
        return [without_ciphertext(item) for item in value]
    if isinstance(value, dict):
        return {key: without_ciphertext(inner) for key, inner in value.items() if key not in CIPHERTEXT}
    return value


def _media(part: dict[str, Json]) -> ReadPart:
    """Read an image, a sound, a film, a document or a file, as any provider writes it."""
    if isinstance(part.get("image_urls"), list):  # OpenHands
        images = parts_in([{"type": "image", "url": url} for url in part["image_urls"]])
        return ReadPart(tuple(images), _unread(part, "image_urls"))
    # Every provider nests a file in its own way. So the part and what it nests are read as one object, by all
    # names that content, address and type may have. A part in which none of them is found is kept as its JSON,
    # since a judge may need it.
    inner = next((part[key] for key in _CONTENTS if key in part), None)
    source = dict_of(inner) or ({"url": inner} if isinstance(inner, str) and "://" in inner[:20] else {})
    both = {**part, **source}
    text = both.get("data") if both.get("media_type") == "text/plain" and source.get("type") == "text" else None
    keys = ("data", "file_data", "base64", "b64_json", *(["content"] if part.get("type") == "blob" else []))
    data = first_of(both, *keys) if text is None else None
    url = first_of(both, "url", "uri", "file_url", "fileUri", "image_url", "file_uri")
    if url is None and isinstance(inner, str):
        data, url = (None, inner) if inner.startswith("data:") else (inner, None)
    if isinstance(data, str) and data.startswith("data:"):
        data, url = None, data
    kind = str(part.get("type")).removeprefix("input_").removesuffix("_url")
    media = first_of(both, "media_type", "mime_type", "mimeType", "mediaType", "mime", "format")
    shown = first_of(both, "transcript", "text", "context")
    within = parts_in(source.get("content")) if source.get("type") == "content" else []
    if within:
        shown = "\n".join(inner.text for inner in within if isinstance(inner, TextPart))
    said = text if isinstance(text, str) else shown if isinstance(shown, str) else ""
    name = first_of(both, "title", "filename", "file_name", "name", "file_id", "fileId", "document_id", "path")
    if name is None and url is None and data is None and not said and not within:
        return _kept(part)
    file = read_file(data, name=name, media_type=media, text=said, url=url, kind=None if kind in _UNTELLING else kind)
    read = ("title", "filename", "name", "url", "uri", "context", "mimeType", "mediaType", "media_type", "mime_type", "text", "content")
    files = [inner for inner in within if not isinstance(inner, TextPart)]
    return ReadPart((file, *files), _unread(part, *_CONTENTS, *read, "file_id", "file_data", "base64"))


def _search_result(part: dict[str, Json]) -> ReadPart:
    name, url, text = first_of(part, "title"), first_of(part, "source"), text_of(part.get("content"))
    found = FilePart(name=name, media_type="search_result", url=url, text=text)
    return ReadPart((found,), _unread(part, "title", "source", "content", "citations"))


def _vercel_tool(part: dict[str, Json]) -> ReadPart:
    """Read Vercel's `tool-NAME` and `dynamic-tool`: a call, and its result once that is there."""
    inner = dict_of(part.get("toolInvocation")) or part
    name = inner.get("toolName") or str(part.get("type")).removeprefix("tool-")
    call, state = inner.get("toolCallId"), str(inner.get("state"))
    arguments = next((inner[key] for key in ("input", "args", "rawInput") if inner.get(key) is not None), None)
    parts: tuple[RunPart, ...] = (read_call(call, name, arguments),)
    if state in {"output-error", "error"} or inner.get("errorText"):
        parts = (*parts, *read_result(call, inner.get("errorText"), name=name, failed=True))
    elif state == "output-denied" or dict_of(inner.get("approval")).get("approved") is False:
        why = dict_of(inner.get("approval")).get("reason")
        parts = (*parts, *read_result(call, f"denied by the user{f': {why}' if why else ''}", name=name, failed=True))
    elif state in {"output-available", "result"} or "output" in inner:
        parts = (*parts, *read_result(call, inner.get("output", inner.get("result")), name=name))
    read = ("toolCallId", "toolName", "input", "output", "errorText", "args", "result", "toolInvocation", "rawInput")
    return ReadPart(parts, _unread(part, *read))


def _opencode_tool(part: dict[str, Json]) -> ReadPart:
    """Read OpenCode's call of a tool, whose state has what it was given and, once that is there, what it returned."""
    state, call, name = dict_of(part.get("state")), part.get("callID"), part.get("tool")
    output = "error" if state.get("status") == "error" else "output"
    result = read_result(call, state[output], name=name, failed=output == "error") if state.get(output) is not None else ()
    parts = (read_call(call, name, state.get("input")), *result, *parts_in(state.get("attachments")))
    return ReadPart(parts, _unread(state | part, "tool", "callID", "input", "attachments", output))


def _error(part: dict[str, Json]) -> ReadPart:
    error = ErrorPart(name=first_of(part, "code", "name"), text=text_of(first_of(part, "message", "error", "text", "content")))
    return ReadPart((error,), _unread(part, "message", "error", "text", "code"))


def _kept(part: dict[str, Json]) -> ReadPart:
    """Keep a part as it is, without ciphertext and the content of files."""
    return ReadPart((OtherPart(kind=str(part.get("type")), value=_without_base64(without_ciphertext(without(part, "type")))),), {})


def _without_base64(value: Json) -> Json:
    """Return a value with the size of each source in base64 in the place of what that holds."""
    if isinstance(value, list):
        return [_without_base64(item) for item in value]
    if isinstance(value, dict):
        is_source = value.get("type") == "base64" and isinstance(value.get("data"), str)
        counted = {"data": f"{_decoded_bytes(value['data'])} bytes"} if is_source else {}
        return {key: _without_base64(inner) for key, inner in value.items()} | counted
    return value


def _camel(key: str) -> str:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), key)


def _read_untyped(part: dict[str, Json]) -> ReadPart:
    """Read a part without a type, which is Gemini's, or a bare text."""
    named = {_camel(key): inner for key, inner in part.items()}
    if isinstance(named.get("text"), str):
        said: RunPart = ReasoningPart(text=named["text"]) if named.get("thought") else TextPart(text=named["text"])
        return ReadPart((said,), _unread(named, "text", "thought"))
    for key, read in _GEMINI_READERS.items():
        if isinstance(inner := named.get(key), dict):
            return ReadPart(read({_camel(name): value for name, value in inner.items()}), {})
    return ReadPart((OtherPart(kind="untyped", value=part),), {})


def _gemini_result(result: dict[str, Json]) -> tuple[RunPart, ...]:
    content = dict_of(result.get("response"))
    only = len(content) == 1 and next(iter(content)) in {"result", "output", "error"}
    shown = next(iter(content.values())) if only else result.get("response")
    parts = read_result(result.get("id") or result.get("name"), shown, name=result.get("name"), failed="error" in content)
    return (*parts, *parts_in(result.get("parts")))


def _gemini_file(file: dict[str, Json]) -> tuple[RunPart, ...]:
    return (read_file(file.get("data"), name=file.get("displayName"), media_type=file.get("mimeType"), url=file.get("fileUri")),)


def _gemini_output(result: dict[str, Json]) -> tuple[RunPart, ...]:
    failed = str(result.get("outcome")) not in {"OUTCOME_OK", "None", "1"}
    return read_result(result.get("id") or "code_execution", result.get("output"), name="code_execution", failed=failed)


def _converse_result(result: dict[str, Json]) -> tuple[RunPart, ...]:
    """Read a result of Bedrock's Converse, whose content is a list of texts, JSON and files."""
    inner = parts_in(result.get("content"))
    texts = [part.text if isinstance(part, TextPart) else text_of(part.value) for part in inner if isinstance(part, (TextPart, OtherPart))]
    files = (part for part in inner if not isinstance(part, (TextPart, OtherPart)))
    return (*read_result(result.get("toolUseId"), "\n".join(texts), failed=result.get("status") == "error"), *files)


def _converse_file(file: dict[str, Json]) -> tuple[RunPart, ...]:
    source = dict_of(file.get("source"))
    url, text = dict_of(source.get("s3Location")).get("uri"), text_of(source.get("text"))
    return (read_file(source.get("bytes"), name=file.get("name"), media_type=file.get("format"), url=url, text=text),)


_GEMINI_READERS: dict[str, Callable[[dict[str, Json]], tuple[RunPart, ...]]] = {
    "functionCall": lambda call: (read_call(call.get("id") or call.get("name"), call.get("name"), call.get("args")),),
    "functionResponse": _gemini_result,
    "toolUse": lambda call: (read_call(call.get("toolUseId"), call.get("name"), call.get("input")),),
    "toolResult": _converse_result,
    "reasoningContent": lambda said: _reasoning(dict_of(said.get("reasoningText")) or {"redacted": True}).parts,
    **dict.fromkeys(("image", "document", "video"), _converse_file),
    "toolCall": lambda call: (read_call(call.get("id") or call.get("toolType"), call.get("toolType"), call.get("args")),),
    "toolResponse": lambda found: read_result(found.get("id") or found.get("toolType"), found.get("response"), name=found.get("toolType")),
    "inlineData": _gemini_file,
    "fileData": _gemini_file,
    "executableCode": lambda code: (read_call(code.get("id") or "code_execution", "code_execution", code.get("code")),),
    "codeExecutionResult": _gemini_output,
}

_PARTS: dict[str, Callable[[dict[str, Json]], ReadPart]] = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text", "text_delta"), _text),
    "refusal": lambda part: ReadPart(
        (TextPart(text=text_of(first_of(part, "refusal", "text")), refusal=True),), _unread(part, "refusal", "text")
    ),
    **dict.fromkeys(("thinking", "reasoning", "reasoning_text"), _reasoning),
    "redacted_thinking": lambda part: ReadPart((ReasoningPart(redacted=True),), _unread(part, "data")),
    **dict.fromkeys(("tool_use", "tool_call", "tool-call"), _call),
    **dict.fromkeys(("server_tool_call", "server_tool_call_response"), _hosted),
    **dict.fromkeys(("tool_result", "tool-result", "tool_call_response", "server_tool_result", "mcp_tool_result"), _result),
    **dict.fromkeys(
        (
            *("image", "image_url", "input_image", "computer_screenshot", "audio", "input_audio", "output_audio", "video", "input_video"),
            *("video_url", "media", "image-data", "file-data", "image-url", "file-url", "image-file-id", "file-id", "image_file"),
            *("text-plain", "document", "file", "input_file", "file_url", "blob", "uri", "source-url", "source-document"),
            "container_upload",
        ),
        _media,
    ),
    "search_result": _search_result,
    **dict.fromkeys(("dynamic-tool", "tool-invocation"), _vercel_tool),
    "tool-error": lambda part: ReadPart(
        read_result(part.get("toolCallId"), part.get("error"), name=part.get("toolName"), failed=True),
        _unread(part, "toolCallId", "toolName", "error", "input"),
    ),
    "tool": _opencode_tool,
    "error": _error,
    "source": lambda part: _media(part) if "url" in dict_of(part.get("source")) else _kept(part),
    **dict.fromkeys(("step-start", "step-finish"), lambda part: ReadPart((), _unread(part))),
}
"""The readers of parts by their type; the endings of further types are known too."""
