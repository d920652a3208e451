"""Rows of data sets and evaluations: ShareGPT, batches, fine-tuning, HealthBench, JudgeBench, lm-eval, DeepEval, prompt and completion."""

import re
from collections.abc import Iterator

from gradeloop.contract.transcript import AgentRun, ReasoningPart, RunMessage, ToolCallPart
from gradeloop.text import clip, objects_in, rows_are
from gradeloop.transcripts.assemble import ANSWERS, QUESTIONS, error_message, exchange, id_of, other_message, read_side, run_of, with_answer
from gradeloop.transcripts.formats import Format
from gradeloop.transcripts.json_access import Json, UnreadableMessage, dict_of, first_of, inside, list_at, require_rows, structured, without
from gradeloop.transcripts.message_forms import build_message, is_message, parse_messages, read_rows
from gradeloop.transcripts.parts import read_call, read_result, text_of

_SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model", "ai", "bot", "assistant_response"), "assistant"),
    "system": "system",
    **dict.fromkeys(("observation", "tool", "function_response", "tool_response"), "tool"),
}
_CALLS = {"function_call", "tool_call"}


def _recognise_sharegpt(value: Json) -> str | None:
    """Return why a value is a conversation of ShareGPT."""
    if isinstance(value, list):
        return "a list of from and value" if value and are_turns(value) else None
    if not isinstance(value, dict) or any(side in value for side in ("chosen", "rejected")):
        return None
    key = next((key for key in _TURNS if isinstance(value.get(key), list) and value[key]), None)
    if key is not None and are_turns(value[key]):
        return f"{key} of from and value"
    if key in {"conversations", "conversation"} and "messages" not in value and all(is_message(row) for row in value[key]):
        return f"{key} of role and content"
    return None


_TURNS = ("conversations", "conversation", "messages", "items")


def are_turns(rows: list[Json]) -> bool:
    """Return whether rows are turns of a conversation of ShareGPT's."""
    return all(isinstance(row, dict) and "role" not in row and "from" in row and ("value" in row or "text" in row) for row in rows[:20])


def _parse_sharegpt(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a conversation."""
    if isinstance(value, list):
        yield run_of(name, _turns(value))
        return
    key = next(key for key in _TURNS if isinstance(value.get(key), list) and value[key])
    system = text_of(first_of(value, "system", "system_prompt"))
    messages = [RunMessage(role="system", content=system)] if system else []
    with inside(key):
        messages += _turns(value[key]) if are_turns(value[key]) else parse_messages(value[key])
    rest = without(value, key, "id", "system", "system_prompt")
    messages, answer = with_answer(messages, rest)
    yield run_of(id_of(value, name, "id", "conversation_id"), messages, without(rest, answer or ""))


def _turns(rows: list[Json]) -> list[RunMessage]:
    """Return the messages of turns; a result is that of the call before it."""
    messages: list[RunMessage] = []
    for at, row in enumerate(require_rows(rows)):
        with inside(at):
            messages.append(_turn(row, at))
        before = messages[-2].records()[-1] if len(messages) > 1 else None
        if messages[-1].role == "tool" and isinstance(before, ToolCallPart):
            messages[-1] = messages[-1].model_copy(update={"tool_call_id": before.call})
    return messages


def _turn(row: dict[str, Json], at: int) -> RunMessage:
    speaker, said = str(row.get("from")).lower(), row.get("value", row.get("text"))
    if speaker in _CALLS:
        parsed = structured(said)
        calls = [call for call in (parsed if isinstance(parsed, list) else [parsed]) if dict_of(call).get("name")]
        several = len(calls) > 1
        parts = [
            read_call(f"call_{at}_{number}" if several else f"call_{at}", call["name"], first_of(call, "arguments", "parameters"))
            for number, call in enumerate(calls)
        ]
        return build_message("assistant", parts or [read_call(f"call_{at}", speaker, said)])
    role = _SPEAKERS.get(speaker)
    if role is None:
        raise UnreadableMessage(f"the speaker is {clip(str(row.get('from')))}; known: {', '.join([*_SPEAKERS, *sorted(_CALLS)])}", "from")
    more = without(row, "from", "value", *([] if "value" in row else ["text"]))
    return RunMessage.model_validate({"role": role, "content": text_of(said), "metadata": more})


def _recognise_batch(value: Json) -> str | None:
    """Return why a value is a row of a batch: of its input or output, OpenAI's or Anthropic's."""
    if not isinstance(value, dict):
        return None
    if "custom_id" not in value:
        sides = [key for key in ("request", "response") if isinstance(value.get(key), dict) and _is_body(value[key])]
        if "response" in value and "key" in value and not sides and "prompt" not in value:
            sides = ["error"] if value.get("error") else []
        return f"a call with its {' and '.join(sides)}" if sides else None
    if "response" in value or "error" in value:
        return "a row of a batch's output: custom_id and response"
    if isinstance(value.get("result"), dict):
        return "a row of a batch's results: custom_id and result"
    body = first_of(value, "body", "params")
    return "a row of a batch's input: custom_id and body" if isinstance(body, dict) else None


_REQUEST = ("messages", "input", "contents", "system", "instructions")
"""The keys of a request that may stand beside the response itself."""


def _is_body(value: dict[str, Json]) -> bool:
    """Return whether an object is a request or a reply of a provider's API."""
    return any(isinstance(value.get(key), list) for key in ("messages", "contents", "candidates", "choices", "output", "content")) or (
        "input" in value and "model" in value
    )


def _parse_batch(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a batch's row."""
    run_id, response, result = id_of(value, name, "custom_id", "key", "id"), dict_of(value.get("response")), dict_of(value.get("result"))
    if "custom_id" not in value and (_is_body(response) or ("response" not in value and _is_body(dict_of(value.get("request"))))):
        with inside("request"):
            beside = {key: value[key] for key in _REQUEST if key in value}  # as LiteLLM logs a call
            asked = _api_body(dict_of(value.get("request")) or beside)
        with inside("response"):
            said = _api_body(response)
        yield run_of(run_id, [*asked, *said], without(value, "request", "response", "key", "id", *_REQUEST))
        return
    # A request that failed is refused. Read as a run without an answer, it would be judged as a bad one, though
    # the provider failed and not the model.
    error = value.get("error") or dict_of(response.get("body")).get("error") or result.get("error")
    if "custom_id" not in value:
        error = error or response.get("error") or value.get("status") or "there is no reply"
    status = response.get("status_code", 200)
    if error or str(status) != "200" or str(result.get("type")) in {"errored", "canceled", "expired"}:
        inner = dict_of(error)
        why = text_of(first_of(inner, "message") or dict_of(inner.get("error")).get("message") or error or result.get("type") or status)
        raise UnreadableMessage(
            f"the request {run_id!r} failed, so that nothing was said: {clip(why)}", "error" if value.get("error") else "response"
        )
    body = response.get("body") or result.get("message") or first_of(value, "body", "params")
    messages = _body(dict_of(body))
    yield run_of(run_id, messages, without(dict_of(body), "choices", "output", "content", "messages", "input", "system", "instructions"))


def _api_body(body: dict[str, Json]) -> list[RunMessage]:
    """Return the messages of a request or a reply of any provider's API, Gemini's too; none of one that is not there."""
    if "contents" in body or "candidates" in body:
        return [*_gemini_system(first_of(body, "systemInstruction", "system_instruction")), *_gemini_turns(body)]
    return _body(body) if body else []


def _body(body: dict[str, Json]) -> list[RunMessage]:
    """Return the messages of a request or a reply of any provider's API."""
    system = first_of(body, "system", "instructions")
    before = parse_messages([{"role": "system", "content": system}]) if system else []
    if isinstance(body.get("messages"), list):
        return [*before, *parse_messages(body["messages"])]
    if isinstance(body.get("choices"), list):
        return [*before, *read_choices(body["choices"])]
    given = read_side(first_of(body, "input", "prompt"), "user", "input")
    if isinstance(body.get("output"), list):
        return [*before, *given, *parse_messages(body["output"])]
    if isinstance(body.get("content"), list):
        return [*before, *parse_messages([{"role": "assistant", "content": body["content"]}])]
    return [*before, *given] or [*before, *read_side(body, "assistant", "output")]


def read_choices(choices: Json) -> list[RunMessage]:
    """Return the answers among which a reply of Chat Completions gives a choice; several are messages one after the other."""
    return read_rows(choices, _choice, "choices")


def _choice(choice: dict[str, Json]) -> Iterator[RunMessage]:
    said = choice.get("message")
    if said is None and "delta" in choice:
        raise UnreadableMessage(
            "this is a piece of a stream; write the whole reply, or all pieces in their order as one list or file of lines", "delta"
        )
    ended = {"finish_reason": choice["finish_reason"]} if choice.get("finish_reason") not in (None, "stop", "tool_calls") else {}
    for message in parse_messages([said]) if isinstance(said, dict) else read_side(choice.get("text"), "assistant", "text"):
        yield message.model_copy(update={"metadata": {**message.metadata, **ended}}) if ended else message
    if error := dict_of(choice.get("error")):  # OpenRouter's, of a provider that broke off
        yield error_message(text_of(error.get("message")), text_of(error.get("code")) or None)


def _recognise_preference(value: Json) -> str | None:
    """Return why a value is a pair of answers of which one is preferred, or one of JudgeBench."""
    if not isinstance(value, dict):
        return None
    if {"response_A", "response_B"} <= set(value):
        return "a pair of JudgeBench: question, response_A and response_B"
    if "preferred_output" in value and "non_preferred_output" in value:
        return "a row for preference tuning: input, preferred_output and non_preferred_output"
    if "chosen" in value and "rejected" in value:
        return "a pair: chosen and rejected"
    if "conversation_a" in value and "conversation_b" in value:
        return "a pair of an arena: conversation_a and conversation_b"
    return None


_SIDES = {"A": "response_A", "B": "response_B", "a": "conversation_a", "b": "conversation_b", "chosen": "chosen", "rejected": "rejected"}
_SIDES |= {"preferred": "preferred_output", "non_preferred": "non_preferred_output"}


def _parse_preference(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield a run for each of the two answers."""
    given = first_of(value, *_ASKED)
    base = id_of(value, name, "pair_id", "id", "prompt_id")
    kept = without(value, *_SIDES.values(), *_ASKED, "system")
    for side, key in ((side, key) for side, key in _SIDES.items() if key in value):
        several = value[key] if isinstance(value[key], list) and all(isinstance(item, str) for item in value[key]) else None
        for at, answer in enumerate(several or [value[key]], 1):
            with inside(key):
                asked = [*read_side(value.get("system"), "system", "system"), *_side(given, "user", "input")]
                said = _side(answer, "assistant", "output")
                repeats = len(said) > 1 and said[0].role != "assistant"  # the pair repeats the conversation before it
                number = f"-{at}" if several and len(several) > 1 else ""
                run = run_of(f"{base}-{side}{number}", said if repeats else [*asked, *said], {**kept, "side": side})
            yield run


_ASKED = ("question", "input", "prompt", "conversations")
"""The keys of what the answers of a pair are to."""


def _side(value: Json, role: str, kind: str) -> list[RunMessage]:
    """Return the messages of one side of a pair, which may be turns of ShareGPT's."""
    rows = value if isinstance(value, list) else [value]
    return _turns(rows) if rows and are_turns(rows) else read_side(value, role, kind)


def _recognise_pair(value: Json) -> str | None:
    """Return why a value is a prompt with its completion, or a conversation of HealthBench."""
    if not isinstance(value, dict) or "messages" in value:
        return None
    if "prompt" not in value:
        asked, answer = (next((key for key in keys if isinstance(value.get(key), str)), None) for keys in (QUESTIONS, ANSWERS))
        return f"a pair: {asked} and {answer}" if asked and answer and not {"observations", "traceId"} & set(value) else None
    if "prompt_id" in value:
        return "a conversation of HealthBench: prompt and prompt_id"
    answer = next((key for key in ANSWERS if key in value), None)
    return f"a pair: prompt and {answer}" if answer else None


def _parse_pair(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a prompt and its completion, each a text or messages."""
    if "prompt" in value:
        with inside("prompt"):
            asked = read_side(value["prompt"], "user", "input")
        read = ["prompt"]
    else:
        read = [part for part in (*QUESTIONS, "context", "input") if isinstance(value.get(part), str)]
        asked = [RunMessage(role="user", content="\n\n".join(value[part] for part in read if value[part].strip()))]
    retrieved = [key for key in ("retrieved_contexts", "retrieval_context", "contexts") if isinstance(value.get(key), list)]
    asked, read = [*asked, *(other_message("user", key, value[key]) for key in retrieved)], [*read, *retrieved]
    rest = without(value, *read, "system", "id")
    said, answer = with_answer([], rest, "output")  # a prompt may end with the beginning of it
    messages = [*read_side(value.get("system"), "system", "system"), *asked, *said]
    yield run_of(id_of(value, name, "id", "prompt_id"), messages, without(rest, answer or ""))


def _recognise_reply(value: Json) -> str | None:
    """Return why a value is a reply of a provider's API, or a conversation of Gemini's."""
    if not isinstance(value, dict):
        return None
    lists = {key for key in ("choices", "output", "content", "contents", "candidates") if isinstance(value.get(key), list)}
    is_message_ = value.get("type") == "message" and value.get("role") == "assistant" and "stop_reason" in value
    errs = "message" in dict_of(value.get("error")) and set(value) <= {"error", "type", "request_id", "status"}
    answered = not {"input", "messages", "prompt", *QUESTIONS} & set(value)  # what it answers is not beside it
    known = {
        "a reply of Chat Completions: choices": "choices" in lists,
        "a reply of Responses: object is response": value.get("object") == "response" and "output" in lists,
        "a reply of Responses: output, whose items have types": answered
        and rows_are(value.get("output"), lambda item: is_message(item) and "type" in item),
        "a reply of Anthropic's Messages: type is message": is_message_ and "content" in lists,
        "a conversation of Gemini: contents or candidates": bool(lists & {"contents", "candidates"}),
        "a reply of Gemini: promptFeedback": "blockReason" in dict_of(value.get("promptFeedback")),
        "an error of a provider's API": errs,
    }
    return next((why for why, applies in known.items() if applies), None)


def parse_reply(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a reply, with its request where that is beside it; raise UnreadableMessage where a message cannot be read."""
    metadata = without(value, *_REPLY, "type")
    run_id = id_of(value, name, "id", "responseId", "response_id")
    if "promptFeedback" in value and not value.get("candidates") and not value.get("contents"):
        why = dict_of(value["promptFeedback"]).get("blockReason")
        raise UnreadableMessage(f"the request was blocked, so that nothing was said: {clip(text_of(why))}", "promptFeedback")
    if "contents" in value or "candidates" in value:
        system = first_of(value, "systemInstruction", "system_instruction")
        config = dict_of(first_of(value, "config", "generationConfig"))
        more = first_of(config, "systemInstruction", "system_instruction")
        before = [*_gemini_system(system), *(_gemini_system(more) if more != system else [])]
        yield run_of(run_id, [*before, *_gemini_turns(value), *_error_beside(value)], metadata)
        return
    if isinstance(value.get("choices"), list):
        yield run_of(run_id, [*exchange(value.get("messages"), None), *read_choices(value["choices"])], metadata)
        return
    error = dict_of(value.get("error"))
    messages = _body(value) if any(key in value for key in _REPLY if key != "error") else []
    if error and not messages:
        raise UnreadableMessage(f"the reply is an error: {clip(text_of(error.get('message') or error))}", "error")
    yield run_of(run_id, [*messages, *_error_beside(value)], metadata)


def _error_beside(value: dict[str, Json]) -> list[RunMessage]:
    """Return the error that ended a reply, where it has one beside what it says."""
    error = dict_of(value.get("error"))
    kind = first_of(error, "code", "status", "type")
    return [error_message(text_of(error.get("message") or error), text_of(kind) or None)] if error else []


_REPLY = (
    *("id", "responseId", "response_id", "object", "role", "choices", "output", "content", "messages", "input", "contents", "candidates"),
    *("system", "instructions", "systemInstruction", "system_instruction", "error"),
)
"""The keys of a reply, and of its request, that are read; all others become metadata."""


def _gemini_system(content: Json) -> list[RunMessage]:
    """Return the message of a system instruction: a text, parts, or an object with parts."""
    if content in (None, "", {}, []):
        return []
    with inside("systemInstruction"):
        return parse_messages([{"role": "system", "content": _gemini_parts(content)}])


def _gemini_parts(content: Json) -> Json:
    """Return the parts of a content of Gemini's: a text, a part, a list, or an object with parts. Raise UnreadableMessage for another."""
    if isinstance(content, dict) and "parts" in content:
        parts = content["parts"]
        return [parts] if isinstance(parts, dict) else parts
    if isinstance(content, dict):
        return [content]
    if not isinstance(content, (str, list)):
        raise UnreadableMessage(f"{clip(str(content))} is not content; write a text, or an object with parts")
    return content


def _gemini_turns(value: dict[str, Json]) -> Iterator[RunMessage]:
    turns = [("contents", at, turn) for at, turn in enumerate(list_at(value, "contents"))]
    turns += [("candidates", at, _candidate(turn, at)) for at, turn in enumerate(list_at(value, "candidates"))]
    for key, at, turn in turns:
        with inside(key, at):
            if not isinstance(turn, (dict, str)):
                raise UnreadableMessage(f"{clip(str(turn))} is not a turn; write an object with role and parts, or a text")
            said = turn if isinstance(turn, dict) else {"role": "user", "parts": [{"text": turn}]}
            role = str(said.get("role") or "user")
            parts = _gemini_parts(said) if said.get("parts") is not None else None
            results = [part for part in objects_in(parts) if part.get("functionResponse") or part.get("function_response")]
            said = {"role": "user" if results or role == "function" else role, "content": parts, "metadata": said.get("metadata")}
            yield from parse_messages([said])


def _candidate(turn: Json, at: int) -> Json:
    """Return the turn that a candidate is; raise UnreadableMessage if it or its content is none."""
    for value, path in ((turn, ()), (dict_of(turn).get("content") or {}, ("content",))):
        if not isinstance(value, dict):
            raise UnreadableMessage(f"{clip(str(value))} is not an object; write one", "candidates", at, *path)
    return {"role": "model", **(turn.get("content") or {}), "metadata": without(turn, "content", "index")}


def _recognise_lm_eval(value: Json) -> str | None:
    return "doc_id, arguments and resps" if {"doc_id", "arguments", "resps"} <= set(dict_of(value)) else None


def _parse_lm_eval(value: Json, _: str) -> Iterator[AgentRun]:
    """Yield a run for each answer of a sample, which a task may ask for several times, and read by several filters."""
    requests = [*map(dict_of, dict_of(value["arguments"]).values())]
    answers = [(place, text) for place, said in enumerate(list_at(value, "resps")) for text in (said if isinstance(said, list) else [said])]
    if {place for place, _ in answers} != {place for place, request in enumerate(requests) if isinstance(request.get("arg_1"), dict)}:
        raise UnreadableMessage(
            "the model scored what it was given, and wrote no answer; judge tasks of the type generate_until", "arguments"
        )
    own = f"doc-{value['doc_id']}-{value.get('filter')}".removesuffix("-None").removesuffix("-none")
    for number, (place, text) in enumerate(answers, 1):
        prompt = requests[place].get("arg_0")
        with inside("arguments"):  # a chat's messages are JSON in a list
            asked = exchange(prompt[0], None) if isinstance(prompt, list) and len(prompt) == 1 else read_side(prompt, "user", "prompt")
        metadata = {**without(value, "arguments", "resps", "doc_id"), **without(requests[place], "arg_0")}
        yield run_of(f"{own}-{number}" if len(answers) > 1 else own, [*asked, *read_side(text, "assistant", "output")], metadata)


def _recognise_deepeval(value: Json) -> str | None:
    fields = _snake(dict_of(value))
    if all(isinstance(fields.get(key), str) for key in ("input", "actual_output")) and "messages" not in fields:
        return "a test case: input and actual_output"
    known = "scenario" in fields and rows_are(fields.get("turns"), lambda turn: "role" in turn)
    return "a conversation: turns, and scenario" if known else None


def _snake(value: dict[str, Json]) -> dict[str, Json]:
    """Return an object with its keys in snake case: DeepEval dumps them in either."""
    return {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", key): inner for key, inner in value.items()}


def _parse_deepeval(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a test case; what was retrieved, and which tools were called, stands before the answer."""
    fields = _snake(value)
    answer = {"role": "assistant", "content": fields.get("actual_output"), **{key: fields.get(key) for key in _BEFORE_ANSWER}}
    messages: list[RunMessage] = []
    turns = fields.get("turns") or [{"role": "user", "content": fields.pop("input", None)}, answer]
    for at, turn in enumerate(require_rows(turns, "turns")):
        with inside("turns", at):
            messages += _deepeval_turn(_snake(turn), at)
    yield run_of(id_of(fields, name), messages, without(fields, "id", "turns", "actual_output", *_BEFORE_ANSWER))


_BEFORE_ANSWER = ("retrieval_context", "tools_called", "mcp_tools_called")


def _deepeval_turn(turn: dict[str, Json], at: int) -> Iterator[RunMessage]:
    found = turn.get("retrieval_context") or []
    for item in found if isinstance(found, list) else [found]:
        document = {"type": "document", "text": text_of(dict_of(item).get("context") or item), "title": dict_of(item).get("source")}
        yield from parse_messages([{"role": "system", "content": [document]}])
    for key in _BEFORE_ANSWER[1:]:
        for number, call in enumerate(map(_snake, require_rows(turn.get(key), key))):
            asked = read_call(f"{key}_{at}_{number}", call.get("name"), first_of(call, "input_parameters", "args"))
            thought, output = text_of(call.get("reasoning")), first_of(call, "output", "result")
            more = without(call, "name", "reasoning", "output", "result", "input_parameters", "args")
            yield build_message("assistant", [*([ReasoningPart(text=thought)] if thought else []), asked], metadata=more)
            if output is not None:
                failed = dict_of(output).get("isError") is True
                yield build_message("tool", [*read_result(asked.call, dict_of(output).get("content") or output, failed=failed)])
    yield from parse_messages([without(turn, *_BEFORE_ANSWER)])


BATCH = Format("batch", _recognise_batch, _parse_batch)
DEEPEVAL = Format("DeepEval test case", _recognise_deepeval, _parse_deepeval)
LM_EVAL = Format("lm-eval sample", _recognise_lm_eval, _parse_lm_eval, rows=True)
PAIR = Format("prompt and completion", _recognise_pair, _parse_pair, rows=True)
PREFERENCE = Format("preference pair", _recognise_preference, _parse_preference, rows=True)
REPLY = Format("reply of a provider", _recognise_reply, parse_reply)
SHAREGPT = Format("ShareGPT conversation", _recognise_sharegpt, _parse_sharegpt, rows=True)
