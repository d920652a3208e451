"""Rows of data sets: ShareGPT, OpenAI's batches and fine-tuning files, HealthBench, JudgeBench, and pairs of prompt and completion."""

import json
from collections.abc import Iterator

from gradeloop.contract.transcript import AgentRun, RunMessage
from gradeloop.text import clip
from gradeloop.transcripts.message_forms import build_message, parse_messages
from gradeloop.transcripts.parts import read_call, text_of
from gradeloop.transcripts.runs import exchange, id_of, read_side, run_of
from gradeloop.transcripts.unreadable import Json, UnreadableMessage, dict_of, first_of, inside, list_at, require_rows, rows_of, without

_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "system": "system",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
_CALLS = {"function_call", "tool_call"}


def recognise_sharegpt(value: Json) -> str | None:
    """Return why a value is a conversation of ShareGPT."""
    rows = rows_of(first_of(value, "conversations", "conversation", "messages")) if isinstance(value, dict) else []
    return "conversations of from and value" if rows and all("from" in row and "value" in row for row in rows[:20]) else None


def parse_sharegpt(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a conversation.

    Raises:
        UnreadableMessage: A turn is by nobody who is known.
    """
    key = next(key for key in ("conversations", "conversation", "messages") if value.get(key))
    system = text_of(first_of(value, "system", "system_prompt"))
    messages = [RunMessage(role="system", content=system)] if system else []
    for at, row in enumerate(value[key]):
        with inside(key, at):
            messages.append(_turn(dict_of(row), at))
    yield run_of(id_of(value, name), messages, without(value, key, "id", "system", "system_prompt"))


def _turn(row: dict[str, Json], at: int) -> RunMessage:
    speaker, said = str(row.get("from")), row.get("value")
    if speaker in _CALLS:
        parsed: Json = said
        if isinstance(said, str):
            try:
                parsed = json.loads(said)
            except ValueError:
                parsed = None
        call = dict_of(parsed)
        return build_message(
            "assistant", [read_call(f"call_{at}", call.get("name") or speaker, first_of(call, "arguments", "parameters") or said)]
        )
    role = _SPEAKERS.get(speaker)
    if role is None:
        raise UnreadableMessage(f"the speaker is {clip(speaker)}; known: {', '.join([*_SPEAKERS, *sorted(_CALLS)])}", "from")
    more = without(row, "from", "value")
    return RunMessage.model_validate({"role": role, "content": text_of(said), "metadata": more})


def recognise_batch(value: Json) -> str | None:
    """Return why a value is a row of a batch: of its input or output, OpenAI's or Anthropic's."""
    if not isinstance(value, dict) or "custom_id" not in value:
        return None
    if "response" in value or "error" in value:
        return "a row of a batch's output: custom_id and response"
    if isinstance(value.get("result"), dict):
        return "a row of a batch's results: custom_id and result"
    body = first_of(value, "body", "params")
    return "a row of a batch's input: custom_id and body" if isinstance(body, dict) else None


def parse_batch(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a batch's row.

    Raises:
        UnreadableMessage: The request failed, so that nothing was said.
    """
    run_id, response, result = id_of(value, name, "custom_id"), dict_of(value.get("response")), dict_of(value.get("result"))
    error = value.get("error") or dict_of(response.get("body")).get("error") or result.get("error")
    status = response.get("status_code", 200)
    if error or status != 200 or str(result.get("type")) in {"errored", "canceled", "expired"}:  # noqa: PLR2004 - HTTP's OK
        inner = dict_of(error)
        why = text_of(first_of(inner, "message") or dict_of(inner.get("error")).get("message") or error or result.get("type") or status)
        raise UnreadableMessage(
            f"the request {run_id!r} failed, so that nothing was said: {clip(why)}", "error" if value.get("error") else "response"
        )
    body = response.get("body") or result.get("message") or first_of(value, "body", "params")
    messages = _body(dict_of(body))
    yield run_of(run_id, messages, without(dict_of(body), "choices", "output", "content", "messages", "input", "system", "instructions"))


def _body(body: dict[str, Json]) -> list[RunMessage]:
    """Return the messages of a request or a reply of any provider's API."""
    system = first_of(body, "system", "instructions")
    before = parse_messages([{"role": "system", "content": system}]) if system else []
    if isinstance(body.get("messages"), list):
        return [*before, *parse_messages(body["messages"])]
    if isinstance(body.get("choices"), list):
        return [*before, *read_choices(body["choices"])]
    given = read_side(body.get("input"), "user", "input")
    if isinstance(body.get("output"), list):
        return [*before, *given, *parse_messages(body["output"])]
    if isinstance(body.get("content"), list):
        return [*before, *parse_messages([{"role": "assistant", "content": body["content"]}])]
    return [*before, *given] or [*before, *read_side(body, "assistant", "output")]


def read_choices(choices: Json) -> list[RunMessage]:
    """Return the answers among which a reply of Chat Completions gives a choice; several are messages one after the other."""
    messages: list[RunMessage] = []
    for at, choice in enumerate(require_rows(choices, "choices")):
        with inside("choices", at):
            said = choice.get("message")
            ended = {"finish_reason": choice["finish_reason"]} if choice.get("finish_reason") not in (None, "stop", "tool_calls") else {}
            made = parse_messages([said]) if isinstance(said, dict) else read_side(choice.get("text"), "assistant", "text")
            messages += [message.model_copy(update={"metadata": {**message.metadata, **ended}}) if ended else message for message in made]
    return messages


def recognise_preference(value: Json) -> str | None:
    """Return why a value is a pair of answers of which one is preferred, or one of JudgeBench."""
    if not isinstance(value, dict):
        return None
    if {"response_A", "response_B"} <= set(value):
        return "a pair of JudgeBench: question, response_A and response_B"
    if "preferred_output" in value and "non_preferred_output" in value:
        return "a row for preference tuning: input, preferred_output and non_preferred_output"
    if "chosen" in value and "rejected" in value:
        return "a pair: chosen and rejected"
    return None


_SIDES = {
    "A": ("response_A", "A"),
    "B": ("response_B", "B"),
    "preferred": ("preferred_output", "preferred"),
    "non_preferred": ("non_preferred_output", "non_preferred"),
    "chosen": ("chosen", "chosen"),
    "rejected": ("rejected", "rejected"),
}


def parse_preference(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield a run for each of the two answers.

    Raises:
        UnreadableMessage: An answer cannot be read.
    """
    given = first_of(value, "question", "input", "prompt")
    base = id_of(value, name, "pair_id", *("id", "prompt_id"))
    answers = {side: key for side, (key, _) in _SIDES.items() if key in value}
    kept = without(value, *(key for key, _ in _SIDES.values()), "question", "input", "prompt")
    for side, key in answers.items():
        with inside(key):
            asked = read_side(given, "user", "input")
            said = read_side(value[key], "assistant", "output")
            repeats = len(said) > 1 and said[0].role != "assistant"  # the pair repeats the conversation before it
            run = run_of(f"{base}-{side}", said if repeats else [*asked, *said], {**kept, "side": side})
        yield run


def recognise_pair(value: Json) -> str | None:
    """Return why a value is a prompt with its completion, or a conversation of HealthBench."""
    if not isinstance(value, dict) or "prompt" not in value or "messages" in value:
        return None
    if "prompt_id" in value:
        return "a conversation of HealthBench: prompt and prompt_id"
    answer = next((key for key in _ANSWERS if key in value), None)
    return f"a pair: prompt and {answer}" if answer else None


_ANSWERS = ("completion", "response", "answer", "output")


def parse_pair(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a prompt and its completion, each a text or messages.

    Raises:
        UnreadableMessage: One of them cannot be read.
    """
    key = next((key for key in _ANSWERS if key in value), "completion")
    with inside("prompt"):
        asked = read_side(value["prompt"], "user", "input")
    with inside(key):
        said = read_side(value.get(key), "assistant", "output")
    metadata = without(value, "prompt", key, "id")
    yield run_of(id_of(value, name, "id", "prompt_id"), [*asked, *said], metadata)


def recognise_reply(value: Json) -> str | None:
    """Return why a value is a reply of a provider's API, or a conversation of Gemini's."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("choices"), list):
        return "a reply of Chat Completions: choices"
    if value.get("object") == "response" and isinstance(value.get("output"), list):
        return "a reply of Responses: object is response"
    if (
        value.get("type") == "message"
        and isinstance(value.get("content"), list)
        and value.get("role") == "assistant"
        and "stop_reason" in value
    ):
        return "a reply of Anthropic's Messages: type is message"
    if isinstance(value.get("contents"), list) or isinstance(value.get("candidates"), list):
        return "a conversation of Gemini: contents or candidates"
    return None


def parse_reply(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a reply, with its request where that is beside it.

    Raises:
        UnreadableMessage: A message cannot be read.
    """
    metadata = {key: value[key] for key in ("model", "modelVersion", "stop_reason", "usage") if value.get(key)}
    run_id = id_of(value, name, "id", "responseId")
    if "contents" in value or "candidates" in value:
        system = first_of(value, "systemInstruction", "system_instruction")
        config = dict_of(first_of(value, "config", "generationConfig"))
        more = first_of(config, "systemInstruction", "system_instruction")
        before = [*_gemini_system(system), *(_gemini_system(more) if more != system else [])]
        yield run_of(run_id, [*before, *_gemini_turns(value)], metadata)
        return
    if isinstance(value.get("choices"), list):
        request = [*exchange(value.get("messages"), None)]
        yield run_of(run_id, [*request, *read_choices(value["choices"])], metadata)
        return
    messages = _body(value)
    error = dict_of(value.get("error"))
    if error and not messages:
        raise UnreadableMessage(f"the reply is an error: {clip(text_of(error.get('message') or error))}", "error")
    yield run_of(run_id, messages, metadata | ({"error": error} if error else {}))


def _gemini_system(content: Json) -> list[RunMessage]:
    """Return the message of a system instruction: a text, parts, or an object with parts."""
    if content in (None, "", {}, []):
        return []
    with inside("systemInstruction"):
        return parse_messages([{"role": "system", "content": _gemini_parts(content)}])


def _gemini_parts(content: Json) -> Json:
    """Return the parts of a content of Gemini's.

    Raises:
        UnreadableMessage: It is neither a text, nor a part, nor a list of parts, nor an object with them.
    """
    if isinstance(content, dict) and "parts" in content:
        parts = content["parts"]
        return [parts] if isinstance(parts, dict) else parts
    if isinstance(content, dict):
        return [content]
    if not isinstance(content, (str, list)):
        raise UnreadableMessage(f"{clip(str(content))} is no content; write a text, or an object with parts")
    return content


def _gemini_turns(value: dict[str, Json]) -> Iterator[RunMessage]:
    turns = [("contents", at, turn) for at, turn in enumerate(list_at(value, "contents"))]
    turns += [("candidates", at, _candidate(turn, at)) for at, turn in enumerate(list_at(value, "candidates"))]
    for key, at, turn in turns:
        with inside(key, at):
            if not isinstance(turn, (dict, str)):
                raise UnreadableMessage(f"{clip(str(turn))} is no turn; write an object with role and parts, or a text")
            said = turn if isinstance(turn, dict) else {"role": "user", "parts": [{"text": turn}]}
            role = str(said.get("role") or "user")
            parts = _gemini_parts(said) if said.get("parts") is not None else None
            results = [part for part in rows_of(parts) if "functionResponse" in part or "function_response" in part]
            yield from parse_messages([{"role": "user" if results or role == "function" else role, "content": parts}])


def _candidate(turn: Json, at: int) -> Json:
    """Return the turn that a candidate is.

    Raises:
        UnreadableMessage: It is none, or its content is none.
    """
    for value, path in ((turn, ()), (dict_of(turn).get("content") or {}, ("content",))):
        if not isinstance(value, dict):
            raise UnreadableMessage(f"{clip(str(value))} is no object; write one", "candidates", at, *path)
    return {"role": "model", **(turn.get("content") or {})}
