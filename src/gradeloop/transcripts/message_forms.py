"""Messages in the shapes that providers and frameworks write, items of OpenAI's Responses and Pydantic AI's, read as messages of a run."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from gradeloop.contract.messages import ToolCall
from gradeloop.contract.transcript import ErrorPart, OtherPart, ReasoningPart, RunMessage, RunPart, TextPart, ToolCallPart, ToolResultPart
from gradeloop.text import clip, objects_in, rows_are
from gradeloop.transcripts.json_access import (
    Json,
    UnreadableMessage,
    dict_of,
    first_of,
    flag_at,
    inside,
    json_within,
    object_at,
    require_rows,
    without,
)
from gradeloop.transcripts.parts import (
    CIPHERTEXT,
    ReadPart,
    parts_in,
    read_call,
    read_content,
    read_file,
    read_hosted_call,
    read_result,
    text_of,
    without_ciphertext,
)

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool", "function": "tool"}
"""The roles of messages, and those of a run that they are read as."""

OTHER_ROLES = {
    "human": "user",
    **dict.fromkeys(("ai", "AIMessageChunk", "model", "gpt", "chatbot", "bot", "agent"), "assistant"),
    "data": "system",
    **dict.fromkeys(("ipython", "observation", "tool_response"), "tool"),
}
"""Further names that frameworks have for the roles."""

_READ = {
    *("role", "content", "parts", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "metadata", "function", "error"),
    *("id", "status", "function_call", "source", "refusal", "invalid", "type", "audio", "thinking_blocks", "toolInvocations"),
    *("reasoning_details", "is_error", "invalid_tool_calls", "object", "thinking", "files", "experimental_attachments"),
    *CIPHERTEXT,
}
"""The keys of a message that are read; all others become metadata."""


def parse_messages(value: Json) -> list[RunMessage]:
    """Parse a list of messages, or of the items of OpenAI's Responses; an UnreadableMessage's path leads to what is none."""
    if not isinstance(value, list):
        raise UnreadableMessage(f"{clip(str(value))} is not a list of messages")
    messages: list[RunMessage] = []
    for at, item in enumerate(value):
        with inside(at):
            found = list(parse_message(item))
        if is_pydantic_ai(item):  # each of its requests has the instructions again
            found = [message for message in found if not (message.metadata.get("instructions") and message in messages)]
        messages += found
    return messages


def read_rows(rows: Json, read: Callable[[dict[str, Json]], Iterable[RunMessage]], *path: int | str) -> list[RunMessage]:
    """Return the messages of the objects of a list, each read by itself; the path of an error leads to the object."""
    messages: list[RunMessage] = []
    for at, row in enumerate(require_rows(rows, *path)):
        with inside(*path, at):
            messages += read(row)
    return messages


def messages_at(value: dict[str, Json], key: str) -> list[RunMessage]:
    """Parse the messages at a key; the path of an error begins with it."""
    with inside(key):
        return parse_messages(value[key])


def is_message(value: object) -> bool:
    """Return whether a value is a message, or an item of OpenAI's Responses."""
    if not isinstance(value, Mapping):
        return False
    known = ("role" in value and "messages" not in value) or is_item(value) or is_langchain(value)
    return known or any(is_of(value) for is_of, _ in _RESHAPED)


_LANGCHAIN = {
    kind: role
    for name, role in (("Human", "user"), ("AI", "assistant"), ("System", "system"), ("Tool", "tool"), ("Function", "tool"))
    for kind in (name.lower(), f"{name}Message", f"{name}MessageChunk")
}
"""LangChain's classes and types of messages, and the roles that they are read as; `chat` has a role of its own."""


def is_langchain(value: Mapping[str, object]) -> bool:
    """Return whether a value is a message as LangChain dumps it: `{type, data}`, `{type, content}`, or a constructor."""
    if "role" in value:
        return False
    if value.get("lc") is not None and isinstance(path := value.get("id"), list) and path:
        return str(path[-1]).removesuffix("Chunk").endswith("Message")
    return str(value.get("type")) in {*_LANGCHAIN, "chat", "remove"} and (isinstance(value.get("data"), dict) or "content" in value)


def _plain(value: dict[str, Json]) -> dict[str, Json]:
    """Return LangChain's message as one with a role."""
    if value.get("lc") is not None:
        kind, inner = str(value["id"][-1]), dict_of(value.get("kwargs"))
    else:
        kind, inner = str(value.get("type")), dict_of(value.get("data")) or value
    role = _LANGCHAIN.get(kind) or str(inner.get("role") or kind)
    return {**without(_with_extra(inner), "type", "example", "lc", "kwargs"), "role": role}


def _with_extra(inner: dict[str, Json]) -> dict[str, Json]:
    """Return a message with what LangChain keeps beside it, its `additional_kwargs`, where others have that."""
    extra = dict_of(inner.get("additional_kwargs"))
    moved = {key: extra[key] for key in ("refusal", "audio") if extra.get(key)}
    calls = {} if inner.get("tool_calls") or inner.get("invalid_tool_calls") else {key: extra[key] for key in _EXTRA_CALLS if key in extra}
    reasoning = extra.get("reasoning_content") or text_of(dict_of(extra.get("reasoning")).get("summary") or None)
    thought = {"reasoning_content": reasoning} if reasoning else {}
    left = without(extra, *moved, *_EXTRA_CALLS, "reasoning_content", "reasoning", "tool_outputs")
    more = {"additional_kwargs": left} if left else {}
    return {**without(inner, "additional_kwargs"), **calls, **thought, **moved, **more}


_EXTRA_CALLS = ("tool_calls", "function_call")


def is_item(value: Mapping[str, object]) -> bool:
    """Return whether a value is an item of OpenAI's Responses that has no role."""
    kind = str(value.get("type"))
    return "role" not in value and (kind in _ITEMS or kind.endswith(("_call", "_call_output")) or kind in _OTHER_ITEMS)


def _unknown_item(value: dict[str, Json]) -> RunMessage | None:
    """Return an item of a type that is not known yet as its JSON, and so LangGraph's order to take a message out; None for others."""
    kind = value.get("type")
    path = value.get("id") if value.get("lc") is not None else None
    if kind == "remove" or (isinstance(path, list) and path[-1:] == ["RemoveMessage"]):
        return build_message("system", [OtherPart(kind="remove", value=without(value, "type"))])
    known = is_item(value) or is_langchain(value) or "tool_messages" in value or "content" in value
    if known or not isinstance(kind, str):
        return None
    return build_message("assistant", [OtherPart(kind=kind, value=without_ciphertext(without(value, "type")))])


def parse_message(value: Json) -> Iterator[RunMessage]:
    """Yield the messages that one message or item is read as: a user's message with tool results is several.

    Raises:
        UnreadableMessage: It is not a message; the error's path leads to what is wrong.
    """
    if not isinstance(value, dict):
        raise UnreadableMessage(f"{clip(str(value))} is not a message; write an object with role and content")
    # Other shapes are first made into messages with roles, so that content, calls and results are read in one
    # place. An item of a type that is not known yet is kept as its JSON. Providers add types, and a refusal would
    # make whole runs unreadable.
    if (other := next((messages_of for is_of, messages_of in _RESHAPED if is_of(value)), None)) is not None:
        yield from _reshaped(other(value))
        return
    if "role" not in value and (kept := _unknown_item(value)) is not None:
        yield kept
        return
    if is_langchain(value) or isinstance(value.get("additional_kwargs"), dict):
        inner = dict_of(value.get("data")) or dict_of(value.get("kwargs")) or value  # and calls of hosted tools that Responses answered
        hosted = require_rows(dict_of(inner.get("additional_kwargs")).get("tool_outputs"), "additional_kwargs", "tool_outputs")
        yield from parse_messages(hosted)
        value = _plain(value) if is_langchain(value) else _with_extra(value)
    if is_item(value):
        yield from _parse_item(value)
        return
    if "tool_messages" in value:  # tau2's results of several calls
        yield from messages_at(value, "tool_messages")
        return
    role = _role_of(value)
    blocks = _content_of(value)
    name = value.get("name") or value.get("function")
    fields: dict[str, Json] = {"name": name if isinstance(name, str) else None, "metadata": _metadata(value, blocks)}
    calls = _calls_of(value, {part.call for block in blocks for part in block.parts if isinstance(part, ToolCallPart)})
    # Calls of another role are refused, since judges would take them for the agent's. Only tau2's user has tools,
    # too, and its calls say so by `requestor`.
    if calls and role != "assistant" and not (role == "user" and "requestor" in dict_of(value["tool_calls"][0])):
        raise UnreadableMessage(f"tool_calls belong to role 'assistant', not {role!r}")
    if role == "tool":
        yield _tool_message(value, blocks, fields)
        return
    errors = _errors_of(value)
    groups = [list(block.parts) for block in blocks]
    if role == "user":
        yield from _split_results(groups, [*calls, *errors], fields)
    else:
        parts = [*_reasoning_of(value, blocks), *(part for group in groups for part in group), *_said_elsewhere(value), *calls, *errors]
        yield build_message(role, parts, **fields)


def _role_of(value: dict[str, Json]) -> str:
    """Return the role of a run as which a message's role is read; raise UnreadableMessage if it is unknown."""
    written = str(value.get("role"))
    role = ROLES.get(written) or OTHER_ROLES.get(written) or ROLES.get(written.lower()) or OTHER_ROLES.get(written.lower())
    if role is None:
        raise UnreadableMessage(f"the role is {clip(written)}; known: {', '.join(ROLES)}", *(["role"] if "role" in value else []))
    return role


_Reshaped = Iterator[tuple[tuple[str | int, ...], dict[str, Json]]]


def _reshaped(messages: _Reshaped) -> Iterator[RunMessage]:
    """Yield the messages that messages with roles are, given the path of what each is made of."""
    for path, message in messages:
        try:
            yield from parse_message(message)
        except UnreadableMessage as error:
            raise UnreadableMessage(str(error), *path, *(error.path[1:] if path == ("parts",) else ())) from None


def _content_of(value: dict[str, Json]) -> list[ReadPart]:
    parts = json_within(value.get("parts"))  # a text, as a table of a database has them
    if not isinstance(parts, list) and value.get("parts") not in (None, "", {}):
        raise UnreadableMessage(f"parts is {clip(str(value['parts']))}; write a list", "parts")
    if isinstance(parts, list) and (parts or not value.get("content")):
        blocks = read_content(parts, "parts")
        return [*_beside_parts(value.get("content"), blocks), *blocks]
    attached = [{"type": "file", **dict_of(item)} for item in value.get("experimental_attachments") or ()]
    return [*read_content(value.get("content")), *read_content(attached)]


def _beside_parts(content: Json, blocks: list[ReadPart]) -> list[ReadPart]:
    """Return what a message's content says beside its parts; Vercel's older messages have the texts of the parts in both."""
    texts = [part.text for block in blocks for part in block.parts if isinstance(part, TextPart)]
    said = {"".join("".join(joined).split()) for joined in (texts, *([text] for text in texts))}
    return [
        block
        for block in read_content(content)
        if not all(isinstance(part, TextPart) and (not part.text or "".join(part.text.split()) in said) for part in block.parts)
    ]


def build_message(
    role: str, parts: Sequence[RunPart], *, name: str | None = None, metadata: dict[str, JsonValue] | None = None
) -> RunMessage:
    """Return a message of these parts: a plain one where content, reasoning and tool calls can say them in their order."""
    said = [part for part in parts if not (isinstance(part, TextPart) and not part.text)]
    common: dict[str, Json] = {"role": role, "name": name, "metadata": metadata or {}}
    ranks = [_RANKS.get(type(part), 3) for part in said]
    # The plain form says reasoning, text and calls, always in this order. Where the model spoke after a call,
    # or between two thoughts, only parts keep what came first, and judges read the run in that order.
    plain = role != "tool" and ranks == sorted(ranks) and 3 not in ranks and (role == "assistant" or set(ranks) <= {1})  # noqa: PLR2004 - ranks
    if plain and not any(getattr(part, "refusal", False) or getattr(part, "redacted", False) for part in said):
        reasoning = "\n".join(part.text for part in said if isinstance(part, ReasoningPart))
        content = "\n".join(part.text for part in said if isinstance(part, TextPart))
        calls = tuple(
            ToolCall(id=part.call, name=part.name, arguments=part.arguments, invalid=part.invalid)
            for part in said
            if isinstance(part, ToolCallPart)
        )
        return RunMessage.model_validate(common | {"content": content, "reasoning": reasoning or None, "tool_calls": calls})
    if role == "tool" and len(said) == 1 and isinstance(result := said[0], ToolResultPart):
        common |= {"content": result.text, "tool_call_id": result.call, "is_error": result.is_error, "name": result.name or name}
        return RunMessage.model_validate(common)
    return RunMessage.model_validate(common | {"parts": tuple(said)})


_RANKS: dict[type, int] = {ReasoningPart: 0, TextPart: 1, ToolCallPart: 2}
"""The order of parts in a plain message."""


def _split_results(groups: list[list[RunPart]], more: list[RunPart], fields: dict[str, Json]) -> Iterator[RunMessage]:
    """Yield the parts of a user's message, each tool result among them as a message of its own, where Anthropic has them."""
    rest: list[RunPart] = []
    results = 0
    for group in groups:
        if group and isinstance(group[0], ToolResultPart):
            if rest:
                yield build_message("user", rest, **fields)
                rest = []
            results += 1
            yield build_message("tool", group, metadata=fields["metadata"] if len(groups) == 1 else None)
        else:
            rest += group
    if rest or more or not results:
        yield build_message("user", [*rest, *more], **fields)


def _tool_message(value: dict[str, Json], blocks: list[ReadPart], fields: dict[str, Json]) -> RunMessage:
    identifier = first_of(value, "tool_call_id", "call_id") or (value.get("id") if "requestor" in value else None)
    error = value.get("error")
    failed = bool(error) or flag_at(value, "is_error") or value.get("status") == "error"
    parts = [part for block in blocks for part in block.parts]
    own = any(block.parts and isinstance(block.parts[0], ToolResultPart) for block in blocks)
    if not own:  # else the parts are results themselves, as Gemini, Vercel and OpenTelemetry write them
        content, texts = value.get("content"), [part.text for part in parts if isinstance(part, TextPart)]
        rest = [part for part in parts if not isinstance(part, TextPart)]
        text = content if isinstance(content, str) else "\n".join(texts)
        parts = [ToolResultPart(call=str(identifier or "unknown"), name=fields["name"], text=text, is_error=failed), *rest]
    if error and not isinstance(error, bool):
        parts = [*parts, *_errors_of(value)]
    if len(parts) == 1 and not own and identifier is None:  # a plain message, whose call is not known
        return RunMessage.model_validate({"role": "tool", "content": parts[0].text, "is_error": failed, **fields})  # type: ignore[union-attr]  # a result
    return build_message("tool", parts, **fields)


def _errors_of(value: dict[str, Json]) -> list[RunPart]:
    """Return the error that stands beside a message's content, as Inspect, Docent and others write a tool's."""
    error = value.get("error")
    if not error or isinstance(error, bool):
        return []
    fields = dict_of(error)
    kind = first_of(fields, "type", "code", "name")
    text = text_of(first_of(fields, "message", "text") if fields else error) or text_of(error)
    return [ErrorPart(name=kind if isinstance(kind, str) else None, text=text)]


def _reasoning_of(value: dict[str, Json], blocks: list[ReadPart]) -> list[RunPart]:
    """Return the reasoning that stands beside a message's content, unless the content has it too."""
    said = {part.text for block in blocks for part in block.parts if isinstance(part, ReasoningPart)}
    text = text_of(value.get("reasoning") or value.get("reasoning_content") or value.get("thinking"))
    found: list[RunPart] = [ReasoningPart(text=text)] if text and text not in said else []
    for key in ("thinking_blocks", "reasoning_details"):  # LiteLLM's and OpenRouter's, beside the same as text
        for block in value.get(key) or () if isinstance(value.get(key), list) else ():
            kind = str(dict_of(block).get("type"))
            inner = text_of(first_of(dict_of(block), "thinking", "text", "summary"))
            if kind in {"redacted_thinking", "reasoning.encrypted"} and not text and not said:
                found.append(ReasoningPart(redacted=True))
            elif inner and inner not in text and inner not in said:
                found.append(ReasoningPart(text=inner))
    return found


def _said_elsewhere(value: dict[str, Json]) -> list[RunPart]:
    """Return what OpenAI's Chat writes beside the content: a refusal, and the recording of an answer with its transcript."""
    found: list[RunPart] = []
    if isinstance(value.get("refusal"), str) and value["refusal"]:
        found.append(TextPart(text=value["refusal"], refusal=True))
    if isinstance(audio := value.get("audio"), dict):
        found.append(read_file(audio.get("data"), name=audio.get("id"), media_type="audio", text=text_of(audio.get("transcript"))))
    return found


def _calls_of(value: dict[str, Json], seen: set[str]) -> list[RunPart]:
    """Return the tool calls that stand beside a message's content, those that the content has too left out."""
    tool_calls = value.get("tool_calls") or []
    if not isinstance(tool_calls, list):
        raise UnreadableMessage(f"tool_calls is {clip(str(tool_calls))}; write a list", "tool_calls")
    found: list[RunPart] = []
    for at, call in enumerate(tool_calls):
        with inside("tool_calls", at):
            found += [part for part in parse_call(call, at) if not (isinstance(part, ToolCallPart) and part.call in seen)]
    if isinstance(value.get("function_call"), dict):
        found += parse_call({"id": "call", "function": value["function_call"]}, 0)
    for at, call in enumerate(value.get("invalid_tool_calls") or () if isinstance(value.get("invalid_tool_calls"), list) else ()):
        fields = dict_of(call)
        found.append(read_call(fields.get("id"), fields.get("name") or "unknown", fields.get("args"), at))
        found += [ErrorPart(name="parse_error", text=text_of(fields["error"]))] if fields.get("error") else []
    for at, invocation in enumerate(value.get("toolInvocations") or () if isinstance(value.get("toolInvocations"), list) else ()):
        parts = parts_in([{"type": "tool-invocation", "toolInvocation": invocation}])
        found += [part for part in parts if getattr(part, "call", at) not in seen]
    return found


def parse_call(value: Json, at: int) -> list[RunPart]:
    """Return a tool call as OpenAI, LangChain, Inspect or Docent write it; raise UnreadableMessage where it is none, or has no tool."""
    if not isinstance(value, dict):
        raise UnreadableMessage(f"{clip(str(value))} is not a tool call")
    inner = next((value[key] for key in ("function", "custom") if isinstance(value.get(key), dict)), value)
    name = first_of(inner, "name", "tool_name", "function_name") or value.get("function") or value.get("name")
    arguments = next((inner[key] for key in ("arguments", "args", "input", "parameters") if inner.get(key) is not None), None)
    call = read_call(first_of(value, "id", "call_id", "tool_call_id"), name, arguments, at)
    error = value.get("parse_error")
    return [call, ErrorPart(name="parse_error", text=text_of(error))] if error else [call]


_CALL_READ = {
    *("id", "call_id", "tool_call_id", "type", "index", "function", "custom", "name", "tool_name", "function_name", "parse_error", "error"),
    *("arguments", "args", "input", "parameters", "requestor", "status"),
    *CIPHERTEXT,
}
"""The keys of a tool call that are read, or say nothing about the run; all others become metadata of its message."""


def _metadata(value: dict[str, Json], blocks: list[ReadPart]) -> dict[str, JsonValue]:
    """Return what no record shows: keys of the message, of its parts, calls and error, and what the run says about it."""
    unread = {key: without_ciphertext(inner) for key, inner in value.items() if key not in _READ and inner is not None}
    parts: list[JsonValue] = [{"part": at, **block.unread} for at, block in enumerate(blocks) if block.unread]
    calls: list[JsonValue] = [
        {"call": first_of(call, "id", "call_id"), **rest}
        for call in objects_in(value.get("tool_calls"))
        if (rest := without(without_ciphertext(call), *_CALL_READ))
    ]
    error = without(dict_of(value.get("error")), "type", "code", "name", "message", "text")
    beside: dict[str, JsonValue] = {"parts": parts, "tool_calls": calls, "error": error}
    if value.get("role") == "user":  # Docent's, of the calls that the message answers
        beside["tool_call_id"] = value.get("tool_call_id")
    return {**unread, **without(beside), **object_at(value, "metadata")}


def _parse_item(item: dict[str, Json]) -> Iterator[RunMessage]:
    """Yield the messages of one item of OpenAI's Responses that has no role."""
    kind = str(item.get("type"))
    if kind in _ITEMS:
        parts = _ITEMS[kind](item)
    elif kind.endswith("_call_output"):
        parts = _output_item(item)
    elif kind.endswith("_call"):
        parts = read_hosted_call(item)
    else:
        parts = [OtherPart(kind=kind, value=without(item, "type", *CIPHERTEXT))]
    if parts and isinstance(parts[0], ToolResultPart):
        yield build_message("tool", parts)
        return
    at = next((number for number, part in enumerate(parts) if isinstance(part, ToolResultPart)), len(parts))
    unfinished = {"status": item["status"]} if item.get("status") not in (None, "completed") else {}
    yield build_message("assistant", parts[:at], metadata=unfinished)
    if parts[at:]:
        yield build_message("tool", parts[at:])


def _output_item(item: dict[str, Json]) -> list[RunPart]:
    output = item.get("output")
    failed = item.get("status") in {"failed", "incomplete"} or dict_of(output).get("success") is False
    if isinstance(output, dict) and isinstance(output.get("type"), str):
        output = [output]
    return [*read_result(first_of(item, "call_id", "id"), output, failed=failed)]


def _reasoning_item(item: dict[str, Json]) -> list[RunPart]:
    text = "\n".join(filter(None, (text_of(item.get(key) or None) for key in ("summary", "content"))))
    return [ReasoningPart(text=text, redacted=not text)]


_ITEMS = {
    **dict.fromkeys(("function_call", "custom_tool_call"), lambda item: parse_call({**item, "id": first_of(item, "call_id", "id")}, 0)),
    **dict.fromkeys(("function_call_output", "custom_tool_call_output"), _output_item),
    "reasoning": _reasoning_item,
}
"""The parsers of the items of OpenAI's Responses that have no role; others end with `_call` or `_call_output`."""

_OTHER_ITEMS = {
    *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "item_reference", "compaction", "compaction_summary"),
    *("ghost_snapshot", "tool_search_output", "program", "program_output"),
}
"""Items that are kept as they are."""


def is_autogen(value: Mapping[str, object]) -> bool:
    """Return whether a value is a message or an event of AutoGen: its `type` is its class, and it has a `source`."""
    known = "source" in value and ("content" in value or "result" in value) and "role" not in value
    return known and re.search("Message|Event", str(value.get("type"))) is not None


def _messages_of_autogen(value: dict[str, Json]) -> _Reshaped:
    """Yield the messages with roles that one of AutoGen is: calls of tools, their results, a thought, or a text."""
    said: Json = value.get("content", value.get("result"))
    kind, source = value["type"], str(value["source"])
    summed_up = {f"{key}_summed_up": value[key] for key in ("tool_calls", "results") if key in value}  # which their own events say
    about = (
        without(value, "type", "content", "source", "tool_calls", *([] if "content" in value else ["result"]))
        | summed_up
        | {"name": source}
    )
    about["role"] = "user" if source.startswith("user") else "assistant"
    if rows_are(said, lambda item: "call_id" in item):
        yield from (((), {"role": "tool", "tool_call_id": item["call_id"], **without(item, "call_id")}) for item in said)
    elif rows_are(said, lambda item: "arguments" in item):
        yield (), about | {"tool_calls": said}
    elif kind == "MultiModalMessage" and isinstance(said, list):
        yield (), about | {"content": [{"type": "image", **item} if isinstance(item, dict) else item for item in said]}
    elif isinstance(said, str):
        yield (), about | {"reasoning" if kind == "ThoughtEvent" else "content": said}
    else:
        yield (), about | {"content": [{"type": kind, "content": said}]}


def is_pydantic_ai(value: object) -> bool:
    """Return whether a value is a message of Pydantic AI: `kind` is request or response, and its parts have a `part_kind`."""
    if not isinstance(value, Mapping) or value.get("kind") not in ("request", "response") or "role" in value:
        return False
    parts = value.get("parts")
    return isinstance(parts, list) and all(isinstance(part, Mapping) and "part_kind" in part for part in parts)


def messages_of_pydantic_ai(value: dict[str, Json]) -> _Reshaped:
    """Yield the messages with roles that a message of Pydantic AI is, and the path of each: of a request each part, a response as one.

    Raises:
        UnreadableMessage: A part is not an object.
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
        read = ("part_kind", "tool_name", "tool_call_id", "content", "timestamp", "content_file_digests", "tool_kind")
        return {"role": "tool", "content": [_result(part)], "metadata": without(part, *read)}
    if kind in {"retry-prompt", "retry-feedback"}:
        said = content if isinstance(content, str) else [{"type": kind, "content": content}]
        return {"role": "user", "content": said, "metadata": {"part_kind": kind, **without({"retry": part.get("retry")})}}
    return {"role": "system", "content": [_said(part)]}


def _result(part: dict[str, Json]) -> dict[str, Json]:
    content = part.get("content")
    shown = [*map(_item, content)] if isinstance(content, list) and any("kind" in item for item in objects_in(content)) else content
    failed = part["part_kind"] == "retry-prompt" or part.get("outcome") in ("failed", "retried", "denied", "interrupted")
    result = {"type": "tool-result", "toolCallId": part.get("tool_call_id"), "toolName": part.get("tool_name"), "isError": failed}
    return {**result, "output": _item(shown) if isinstance(shown, dict) and "kind" in shown and "media_type" in shown else shown}


_PYDANTIC_AI_PARTS: dict[str, Callable[[dict[str, Json]], dict[str, Json]]] = {
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
    read = _PYDANTIC_AI_PARTS.get(kind)
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


def is_opencode(value: Mapping[str, object]) -> bool:
    """Return whether a value is a message of OpenCode, which has its `parts`, and beside them its `info` with the role."""
    return "parts" in value and "role" in dict_of(value.get("info"))


_RESHAPED: tuple[tuple[Callable[[Mapping[str, object]], bool], Callable[[dict[str, Json]], _Reshaped]], ...] = (
    (is_pydantic_ai, messages_of_pydantic_ai),
    (is_autogen, _messages_of_autogen),
    (is_opencode, lambda value: iter([((), {**value["info"], "parts": value["parts"]})])),
)
"""The messages that are read as others with roles."""
