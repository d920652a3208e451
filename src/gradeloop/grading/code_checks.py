"""Assertions in code: what their functions are given, and what their answers mean."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, JsonValue, ValidationError
from pydantic_core import to_json

from gradeloop.contract.base import CodeText, OmitEmpty
from gradeloop.contract.evaluation import CHECK_FALSE, CheckOutcome
from gradeloop.contract.messages import CallForm, Message, ToolCall
from gradeloop.errors import explain
from gradeloop.sandbox.code_calls import CodeCall, CodeResult
from gradeloop.text import clip, read_json, shortened, whole_characters

CODE_CHECK = "code_check"
"""The tool that runs an assertion in code."""

_PASS = ("pass", "pass_")
_COMPONENTS = ("componentResults", "component_results")


class CodeCheck(CodeText):
    """The arguments of an assertion in code."""

    threshold: OmitEmpty[Annotated[float, Field(allow_inf_nan=False)] | None] = None
    """The lowest score that passes; without it a number above 0 does."""
    negate: OmitEmpty[bool] = False
    context: OmitEmpty[dict[str, JsonValue]] = Field(default_factory=dict)
    """The `context` that the function is given: `vars`, `prompt` and more."""


def parse_code_check(arguments: Mapping[str, JsonValue]) -> CodeCheck:
    """Parse the arguments of an assertion in code; raise ValueError, which names the argument, where they are invalid."""
    try:
        return CodeCheck.model_validate(dict(arguments))
    except ValidationError as error:
        raise ValueError(explain(error)) from None


def code_call(code: CodeText, output: JsonValue, context: Mapping[str, JsonValue]) -> CodeCall:
    """Return the call of a function with an output and its context."""
    given: dict[str, JsonValue] = {**context, "config": code.config if code.config is not None else {}}
    return CodeCall(code.language, code.code, (output, given), ("output", "context"), code.file, code.function)


def read_assertion(result: CodeResult, check: CodeCheck) -> CheckOutcome:
    """Read what an assertion's function returned: a truth value, a score, or `{pass, score, reason, componentResults}`.

    A score counts as it is, above 1 and below 0, too, as promptfoo counts it.

    Raises:
        ValueError: It raised something, or returned anything else; that says nothing about the output.
    """
    if result.error is not None:
        raise ValueError(result.error)
    passed, share, reason = _graded(result.value, check.threshold)
    if check.negate:
        passed, share, reason = not passed, 1 - share, f"it must not hold: {reason}" if reason else "it must not hold"
    gap = None if passed else shortened(whole_characters(reason)) or CHECK_FALSE
    return CheckOutcome(passed=passed, gap=gap, share=None if share == float(passed) else share)


def _graded(value: JsonValue, threshold: float | None) -> tuple[bool, float, str]:
    """Return whether a value passes, its score, and its reason."""
    if isinstance(value, bool):
        return value, float(value), ""
    if isinstance(value, int | float):
        score, why = _number(value, "it"), "" if threshold is None else f", below {threshold:g}"
        passed = score > 0 if threshold is None else score >= threshold
        return passed, score, "" if passed else f"its score is {score:g}{why}"
    if isinstance(value, dict):
        return _result(value, threshold)
    raise ValueError(f"it returned {clip(str(value))}; return true or false, a number, or an object with pass, score and reason")


def _result(value: Mapping[str, JsonValue], threshold: float | None) -> tuple[bool, float, str]:
    passed = next((value[name] for name in _PASS if name in value), None)
    if not isinstance(passed, bool):
        raise ValueError(f"it returned an object whose pass is {clip(str(passed))}; give pass as true or false")  # noqa: TRY004 - whatever is wrong is a ValueError
    score = float(passed) if value.get("score") is None else _number(value["score"], "score")
    reason = value.get("reason")
    texts = [reason] if isinstance(reason, str) and reason else []
    components = next((value[name] for name in _COMPONENTS if name in value), None)
    texts += _failing(components) if isinstance(components, list) else []
    if passed and threshold is not None and score < threshold:
        passed = False
        texts.append(f"its score is {score:g}, below {threshold:g}")
    return passed, score, "; ".join(dict.fromkeys(texts))


def _failing(components: Sequence[JsonValue]) -> list[str]:
    """Return the reasons of the components that do not pass."""
    failing = (part for part in components if isinstance(part, dict) and not any(part.get(name) is True for name in _PASS))
    return [str(part["reason"]) for part in failing if isinstance(part.get("reason"), str)]


def _number(value: Any, what: str) -> float:  # noqa: ANN401 - JSON of any shape
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{what} is {clip(str(value))}; a score is a number")
    return float(value)


def read_text(result: CodeResult) -> JsonValue:
    """Return what a transform's function returned; raise ValueError where it raised something, or returned nothing."""
    if result.error is not None:
        raise ValueError(result.error)
    if result.value is None:
        raise ValueError("it returned nothing; return the text, or JSON")
    return result.value


def read_context(value: JsonValue) -> str:
    """Return the context that a function found: a text, or texts that are put together; anything else raises ValueError."""
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"it returned {clip(str(value))}; return the context as a text, or a list of texts")
    return "\n\n".join(map(str, texts))


def show_calls(message: Message, form: CallForm) -> str:
    """Return the text of a draft; one that calls functions is shown as promptfoo 0.123.1 shows it."""
    if not message.tool_calls:
        return message.content
    if form in _SEPARATORS:
        said = [message.content] if message.content.strip() and form != "bedrock" else []
        return _SEPARATORS[form].join([*said, *(to_json(_shown(call, form)).decode() for call in message.tool_calls)])
    return to_json(_value(message, form)).decode()


_SEPARATORS: dict[CallForm, str] = {"responses": "\n", "anthropic": "\n\n", "bedrock": "\n\n"}
"""The separators between the parts of a reply that is shown as one text."""


def _value(message: Message, form: CallForm) -> JsonValue:
    calls: list[JsonValue] = [_shown(call, form) for call in message.tool_calls]
    if form == "google":
        said: list[JsonValue] = [{"text": message.content}] if message.content.strip() else []
        return [*said, *calls]
    calling: JsonValue = calls[0] if form == "function_call" else calls
    if not message.content.strip():
        return calling
    return {"role": "assistant", "content": message.content, "function_call" if form == "function_call" else "tool_calls": calling}


def _shown(call: ToolCall, form: CallForm) -> JsonValue:
    arguments = call.invalid if call.invalid is not None else to_json(call.arguments).decode()
    if form == "anthropic":
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call)}
    if form == "bedrock":
        return {"toolUseId": call.id, "name": call.name, "input": _object(call)}
    if form == "google":
        return {"functionCall": {"name": call.name, "args": _object(call)}}
    if form == "responses":
        return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments, "status": "completed"}
    function: JsonValue = {"name": call.name, "arguments": arguments}
    return function if form == "function_call" else {"id": call.id, "type": "function", "function": function}


def _object(call: ToolCall) -> JsonValue:
    return dict(call.arguments) if call.invalid is None else call.invalid


def called_value(draft: str, form: CallForm) -> JsonValue:
    """Return the calls that a draft shows as code finds them, parsed; the draft itself where it shows none or is one text."""
    if form in _SEPARATORS:
        return draft
    value = _read(draft)
    return value if _is_calls(value, form) else draft


def calls_functions(draft: str, form: CallForm) -> bool:
    """Tell whether a draft calls functions."""
    if form not in _SEPARATORS:
        return _is_calls(_read(draft), form)
    parts = [part for part in map(_read, draft.split(_SEPARATORS[form])) if isinstance(part, dict)]
    kind = "function_call" if form == "responses" else "tool_use"
    return any("toolUseId" in part if form == "bedrock" else part.get("type") == kind for part in parts)


def _read(text: str) -> JsonValue:
    try:
        value: JsonValue = read_json(text)
    except ValueError:
        return None
    return value


def _is_calls(value: JsonValue, form: CallForm) -> bool:
    if form == "function_call":
        calling = value.get("function_call", value) if isinstance(value, dict) else None
        return isinstance(calling, dict) and {"name", "arguments"} <= set(calling)
    if isinstance(value, dict) and value.get("role") == "assistant":
        value = value.get("tool_calls")
    key = "functionCall" if form == "google" else "function"
    return isinstance(value, list) and any(isinstance(call, dict) and isinstance(call.get(key), dict) for call in value)
