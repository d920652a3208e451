"""The pieces of streamed replies, as providers send them, joined to the replies that they make."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gradeloop.contract.transcript import AgentRun
from gradeloop.text import clip, objects_in
from gradeloop.transcripts.assemble import run_of_each
from gradeloop.transcripts.formats import Format
from gradeloop.transcripts.formats.training_sets import parse_reply
from gradeloop.transcripts.json_access import Json, UnreadableMessage, dict_of, first_of, inside, list_at, require_rows, structured, without
from gradeloop.transcripts.parts import without_ciphertext


@dataclass
class _Stream:
    """The pieces of one reply, with their places in the file."""

    id: str
    pieces: list[tuple[int, dict[str, Json]]] = field(default_factory=list)


def _recognise(value: Json) -> str | None:
    """Return why a list holds the pieces of streams: of one provider, and more than the replies that they make."""
    rows = value if isinstance(value, list) else []
    if not rows or not all(isinstance(row, dict) for row in rows):
        return None
    return next((why for why, (applies, _) in _PROVIDERS.items() if applies(rows)), None)


def _parse(value: Json, name: str) -> Iterator[AgentRun | UnreadableMessage]:
    """Yield the run of each reply that the pieces make; of several also why one cannot be read."""
    rows = require_rows(value)
    why = _recognise(rows)
    _, join = _PROVIDERS[str(why)]
    yield from run_of_each(_streams_of(rows), name, lambda stream, own: _run_of(join(stream), own))


def _run_of(reply: dict[str, Json], name: str) -> AgentRun:
    try:
        (run,) = parse_reply(reply, name)
    except UnreadableMessage as error:  # its path is that of the joined reply, which stands nowhere
        raise UnreadableMessage(f"the reply that the pieces make cannot be read: {error}") from None
    return run


# A file may hold several replies, whose pieces arrived in turns. An id tells them apart wherever there is
# one; pieces without belong to the newest stream, until a piece has ended it and the next one speaks again.
# What only reports usage opens none, since it may come behind the end.
def _streams_of(rows: Sequence[dict[str, Json]]) -> list[_Stream]:
    """Return the streams: pieces of one id, behind what opens one, or behind the piece that ends the one before."""
    named: dict[str, _Stream] = {}
    streams: list[_Stream] = []
    for at, row in enumerate(rows):
        own = first_of(row, *_IDS) if str(row.get("type")) not in _EVENTS else None
        known = named.get(str(own)) if own is not None else None
        opens = str(row.get("type")) in _OPENING or (own is not None and known is None and bool(streams) and bool(streams[-1].id))
        speaks = own is None and (row.get("candidates") or row.get("choices") or ("error" in row and "type" not in row))  # not only usage
        if known is None and (opens or not streams or (speaks and any(_finish_of(piece) for _, piece in streams[-1].pieces))):
            known = _Stream(str(own or ""))
            streams.append(known)
        stream = known or streams[-1]
        if own is not None:
            stream.id = str(own)
            named[stream.id] = stream
        stream.pieces.append((at, row))
    return streams


_IDS = ("responseId", "response_id", "id")
_OPENING = {"message_start", "response.created"}


def _finish_of(row: dict[str, Json]) -> Json:
    """Return why a piece says that the reply ended; None where it does not."""
    choices = (*objects_in(row.get("candidates")), *objects_in(row.get("choices")))
    return next((found for choice in choices if (found := first_of(choice, "finishReason", "finish_reason"))), None)


def _are_geminis(rows: list[dict[str, Json]]) -> bool:
    """Return whether rows are pieces of Gemini's: one of them goes on with the reply of the one before it."""
    known = all({"candidates", "usageMetadata", "usage_metadata", "promptFeedback", "error"} & set(row) for row in rows)
    return known and not any("contents" in row for row in rows) and any(_goes_on(before, row) for before, row in pairwise(rows))


def _goes_on(before: dict[str, Json], row: dict[str, Json]) -> bool:
    """Return whether a piece belongs to the reply of the one before it: by its id; without one, where that has not ended."""
    own = first_of(row, *_IDS)
    if own is not None:
        return bool(own == first_of(before, *_IDS))
    return isinstance(before.get("candidates"), list) and not _finish_of(before)


def _are_chats(rows: list[dict[str, Json]]) -> bool:
    pieces = [row for row in rows if "error" not in row or "choices" in row]
    return bool(pieces) and all(
        row.get("object") == "chat.completion.chunk"
        or (isinstance(row.get("choices"), list) and any("delta" in choice for choice in objects_in(row["choices"])))
        for row in pieces
    )


def _are_responses(rows: list[dict[str, Json]]) -> bool:
    kinds = [str(row.get("type")) for row in rows]
    return kinds[0].startswith("response.") and all(kind.startswith("response.") or kind in {"error", "keepalive"} for kind in kinds)


_ANTHROPIC = {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}
_EVENTS = {*_ANTHROPIC, "ping", "error"}


def _are_anthropics(rows: list[dict[str, Json]]) -> bool:
    kinds = {str(row.get("type")) for row in rows}
    return str(rows[0].get("type")) in {"message_start", "ping"} and kinds <= _EVENTS and "message_start" in kinds


def _index_of(row: dict[str, Json], place: int = 0) -> int:
    """Return the index of a candidate, choice, call or block; where there is none, the given place."""
    found = row.get("index")
    if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
        raise UnreadableMessage(f"index is {clip(str(found))}; write a number", "index")
    return place if found is None else found


def _join_gemini(stream: _Stream) -> dict[str, Json]:
    """Return the reply of Gemini's pieces: texts that follow each other are one, thoughts apart; usage is the last one's."""
    candidates: dict[int, dict[str, Json]] = {}
    reply: dict[str, Json] = {}
    for at, row in stream.pieces:
        reply |= without(row, "candidates", "sdkHttpResponse", "sdk_http_response")
        with inside(at):
            for number, candidate in enumerate(require_rows(row.get("candidates"), "candidates")):
                with inside("candidates", number):
                    _add_candidate(candidates.setdefault(_index_of(candidate), {"parts": []}), candidate)
    whole: list[Json] = [
        {**without(one, "parts"), "content": {"role": "model", "parts": _finished(one["parts"])}} for _, one in sorted(candidates.items())
    ]
    return {**reply, **({"candidates": whole} if whole else {})}


def _add_candidate(known: dict[str, Json], candidate: dict[str, Json]) -> None:
    content = candidate.get("content")
    if not isinstance(content, (dict, type(None))):
        raise UnreadableMessage(f"{clip(str(content))} is not an object; write one", "content")
    with inside("content"):
        for part in require_rows(dict_of(content).get("parts"), "parts"):
            _add_part(known["parts"], without(without_ciphertext(part)))
    for key, value in without(candidate, "content", "index").items():
        known[key] = _merged(known.get(key), value)


def _add_part(parts: list[dict[str, Json]], part: dict[str, Json]) -> None:
    """Add a part: a text goes on with the one before it, a call with the arguments that were to come."""
    last = parts[-1] if parts else {}
    call, before = (dict_of(first_of(one, "functionCall", "function_call")) for one in (part, last))
    if isinstance(part.get("text"), str) and isinstance(last.get("text"), str) and bool(part.get("thought")) == bool(last.get("thought")):
        last |= {**part, "text": last["text"] + part["text"]}
    elif call and not call.get("name") and first_of(before, "willContinue", "will_continue"):
        pieces = [*list_at(before, _partial(before)), *list_at(call, _partial(call))]
        goes_on = {"willContinue": first_of(call, "willContinue", "will_continue")}
        parts[-1] = {"functionCall": {**without(before, "will_continue"), "partialArgs": pieces, **goes_on}}
    elif set(part) - {"thought"}:
        parts.append(dict(part))


def _partial(call: dict[str, Json]) -> str:
    return "partial_args" if "partial_args" in call else "partialArgs"


def _finished(parts: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Return parts whose calls have the arguments that their pieces make."""
    found = []
    for part in parts:
        call = dict_of(first_of(part, "functionCall", "function_call"))
        pieces = objects_in(call.get(_partial(call)))
        if pieces:
            arguments: dict[str, Json] = dict(dict_of(call.get("args")))
            for piece in pieces:
                _set_argument(arguments, piece)
            part = {"functionCall": {**without(call, "partialArgs", "partial_args", "willContinue"), "args": arguments}}  # noqa: PLW2901 - whole
        found.append(part)
    return found


_STEPS = re.compile(r"\.([^.\[\]]+)|\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\d+)\]")
_VALUES = ("stringValue", "string_value", "numberValue", "number_value", "boolValue", "bool_value")


def _set_argument(arguments: dict[str, Json], piece: dict[str, Json]) -> None:
    """Set the argument at a piece's `jsonPath`; a text goes on with what is there."""
    path = str(first_of(piece, "jsonPath", "json_path") or "")
    steps = [int(step[4]) if step[4] else next(filter(None, step.groups()), "") for step in _STEPS.finditer(path)]
    # The steps have to make up the whole path. A part of it that the pattern passes over would put the value in
    # another place.
    if not steps or "$" + "".join(step[0] for step in _STEPS.finditer(path)) != path:
        raise UnreadableMessage(f"a piece of a call's arguments has the path {clip(path)}; write one like $.city or $.days[0]")
    value = next((piece[key] for key in _VALUES if piece.get(key) is not None), None)
    place: Json = arguments
    for step, following in pairwise(steps):
        place = _inner(place, step, [] if isinstance(following, int) else {})
    before = _inner(place, steps[-1], None)
    place[steps[-1]] = before + value if isinstance(before, str) and isinstance(value, str) else value


# Only the place just behind a list's end is made: an index may be any number, and a list that long would be
# all memory.
def _inner(place: Json, step: int | str, empty: Json) -> Json:
    """Return what is at a key, or at an index, of a value; it is made where nothing is there."""
    if isinstance(place, list) and isinstance(step, int) and step <= len(place):
        place += [empty] if step == len(place) else []
        return place[step]
    if isinstance(place, dict) and isinstance(step, str):
        return place.setdefault(step, empty)
    raise UnreadableMessage(f"the pieces of a call's arguments do not fit together at {clip(str(step))}")


def _merged(before: Json, value: Json) -> Json:
    """Return what two pieces say of one thing: objects and lists are joined, of anything else the later one counts."""
    if isinstance(before, dict) and isinstance(value, dict):
        return {**before, **{key: _merged(before.get(key), inner) for key, inner in value.items()}}
    if isinstance(before, list) and isinstance(value, list):
        return [*before, *(item for item in value if item not in before)]
    return value


def _join_chat(stream: _Stream) -> dict[str, Json]:
    """Return the reply of Chat Completions' pieces: of each choice the texts and the arguments of its calls, one behind the other."""
    choices: dict[int, dict[str, Json]] = {}
    reply: dict[str, Json] = {}
    for at, row in stream.pieces:
        reply |= without(row, "choices", "object")
        with inside(at):
            for number, choice in enumerate(require_rows(row.get("choices"), "choices")):
                with inside("choices", number):
                    known = choices.setdefault(_index_of(choice), {"message": {"role": "assistant"}})
                    known |= without(choice, "delta", "index")
                    with inside("delta"):
                        _add_delta(known["message"], dict_of(choice.get("delta")))
    if error := reply.pop("error", None):
        choices.setdefault(0, {"message": {"role": "assistant"}})["error"] = error
    for choice in choices.values():
        if calls := choice["message"].get("tool_calls"):
            choice["message"]["tool_calls"] = [calls[key] for key in sorted(calls)]
    return {**reply, "choices": [choice for _, choice in sorted(choices.items())]}


_APPENDED = ("content", "refusal", "reasoning_content", "reasoning")


def _add_delta(message: dict[str, Json], delta: dict[str, Json]) -> None:
    for key, value in without(delta, "tool_calls", "role").items():
        before = message.get(key)
        if key in _APPENDED and not isinstance(value, str):
            raise UnreadableMessage(f"{key} is {clip(str(value))}; write text", key)
        message[key] = before + value if key in _APPENDED and before is not None else _merged(before, value)
    calls = message.setdefault("tool_calls", {}) if delta.get("tool_calls") else {}
    for at, call in enumerate(require_rows(delta.get("tool_calls"), "tool_calls")):
        with inside("tool_calls", at):
            known = calls.setdefault(_index_of(call, at), {"type": "function", "function": {"name": "", "arguments": ""}})
            known |= without(call, "function", "index")
            function = dict_of(call.get("function"))
            written = function.get("arguments") or ""
            if not isinstance(written, str):
                raise UnreadableMessage(f"arguments is {clip(str(written))}; write text", "function", "arguments")
            known["function"]["name"] = known["function"]["name"] or function.get("name") or ""
            known["function"]["arguments"] += written


def _join_responses(stream: _Stream) -> dict[str, Json]:
    """Return the reply of Responses' events: that of the last one, else the items that are done, with an error that says so."""
    ends = ("response.completed", "response.incomplete", "response.failed", "response.done")
    whole = next((dict_of(row["response"]) for _, row in reversed(stream.pieces) if str(row.get("type")) in ends), {})
    error = next((first_of(row, "error", "message") for _, row in stream.pieces if row.get("type") == "error"), None)
    items = [dict_of(row.get("item")) for _, row in stream.pieces if row.get("type") == "response.output_item.done"]
    if whole.get("output"):
        return whole
    begun = next((dict_of(row.get("response")) for _, row in stream.pieces if row.get("type") == "response.created"), {})
    cut = {} if whole else {"error": error if isinstance(error, dict) else {"message": error or "the stream ended before its end"}}
    return {**begun, **whole, "object": "response", "output": items, **cut}


def _join_anthropic(stream: _Stream) -> dict[str, Json]:
    """Return the reply of Anthropic's events."""
    reply: dict[str, Json] = {"type": "message", "role": "assistant", "content": [], "stop_reason": None}
    blocks: dict[int, dict[str, Json]] = {}
    for at, row in stream.pieces:
        kind = str(row.get("type"))
        with inside(at):
            if kind == "message_start":
                reply |= without(dict_of(row.get("message")), "content")
            elif kind == "content_block_start":
                blocks[_index_of(row)] = dict(dict_of(row.get("content_block")))
            elif kind == "content_block_delta":
                _add_to_block(blocks.setdefault(_index_of(row), {"type": "text"}), dict_of(row.get("delta")))
            elif kind == "message_delta":
                reply |= without(dict_of(row.get("delta")))
                reply["usage"] = {**dict_of(reply.get("usage")), **dict_of(row.get("usage"))}
            elif kind == "error":
                reply["error"] = row.get("error")
    return {**reply, "content": [_block(block) for _, block in sorted(blocks.items())]}


_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def _add_to_block(block: dict[str, Json], delta: dict[str, Json]) -> None:
    key = _DELTAS.get(str(delta.get("type")))
    if key is not None:
        block[key] = str(block.get(key) or "") + str(delta.get(key) or "")
    elif delta.get("type") == "citations_delta":
        block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
    elif delta.get("type") != "signature_delta":
        raise UnreadableMessage(f"a piece of the type {clip(str(delta.get('type')))} is not known here; write the whole reply", "delta")


def _block(block: dict[str, Json]) -> dict[str, Json]:
    """Return a block whose input is what its pieces make; one that was cut is kept as it was written."""
    written = block.get("partial_json")
    if not written:
        return without(block, "partial_json") | ({"input": block["input"]} if "input" in block else {})
    return {**without(block, "partial_json"), "input": structured(written)}


_PROVIDERS: dict[str, tuple[Callable[[list[dict[str, Json]]], bool], Callable[[_Stream], dict[str, Json]]]] = {
    "pieces of Chat Completions: choices with delta": (_are_chats, _join_chat),
    "events of Responses: types response.created, response.completed": (_are_responses, _join_responses),
    "events of Anthropic's Messages: types message_start, content_block_delta": (_are_anthropics, _join_anthropic),
    "pieces of Gemini: candidates of one responseId": (_are_geminis, _join_gemini),
}
"""The test for the pieces of each provider, and the function that joins them."""

STREAM = Format("stream of a provider", _recognise, _parse, whole=True)
