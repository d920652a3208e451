"""`{{ name }}` in a rubric's texts and a suite's prompts, filled from `vars`; what is judged is never a template.

Jinja2 in its immutable sandbox, of which only what ends soon is taken: expressions, `if`, and loops over the variables, none
inside another. Nothing is called, so no template can run for long or make what it was not given.
"""

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from jinja2 import StrictUndefined, TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import JsonValue, ValidationError

from gradeloop.contract.criterion import OwnPrompt, PromptMessage, PromptSlot
from gradeloop.contract.rubric import RUBRIC_BYTES, Rubric
from gradeloop.errors import InvalidRequest, explain

VARS_BYTES = 64 * 1024
"""Of the request's variables as JSON."""

FILTERS = ("capitalize", "default", "first", "int", "join", "last", "length", "lower", "round", "title", "tojson", "trim", "upper")
"""Of Jinja2's, those whose result is no longer than what they are given."""

_NODES = (
    *("Template", "Output", "TemplateData", "Name", "Getattr", "Getitem", "Const", "Filter", "If", "For", "Compare", "Operand"),
    *("Not", "And", "Or", "CondExpr", "Test", "Keyword"),
)


def fill(rubric: Rubric | None, variables: Mapping[str, JsonValue] | None) -> Rubric | None:
    """Return a rubric with variables in its texts; as it is where there are none.

    Raises:
        InvalidRequest: It names one that is not there, or they are too large.
    """
    if variables is None:
        return rubric
    try:
        refuse_large_vars(variables)
        return None if rubric is None else fill_rubric(rubric, variables)
    except ValidationError as error:
        raise InvalidRequest(f"with its variables filled in, the rubric is none: {explain(error)}") from None
    except RecursionError:
        raise InvalidRequest("vars: nested too deeply; flatten them") from None


def fill_rubric(rubric: Rubric, variables: Mapping[str, JsonValue]) -> Rubric:
    """Return the rubric with the variables in its texts.

    Raises:
        InvalidRequest: A template is none, or names a variable that is not there; it says where.
    """
    raw = rubric.model_dump(mode="json")
    for name in ("name", "instructions"):
        if raw.get(name):
            raw[name] = _text(raw[name], variables, name)
    for at, criterion in enumerate(raw["criteria"]):
        criterion["description"] = _value(criterion["description"], variables, f"criteria[{at}].description")
    for line in raw.get("context", ()):
        line["text"] = _text(line["text"], variables, "context")
    told = Rubric.model_validate(raw)
    prompt = _prompt(rubric.prompt, variables, "prompt")
    criteria = tuple(
        each.model_copy(update={"prompt": _prompt(each.prompt, variables, f"criteria[{at}].prompt")})
        for at, each in enumerate(told.criteria)
    )
    return told.model_copy(update={"prompt": prompt, "criteria": criteria})


def refuse_large_vars(variables: Mapping[str, JsonValue]) -> None:
    """Raise InvalidRequest where the variables are too large."""
    size = len(json.dumps(dict(variables), ensure_ascii=False).encode(errors="replace"))
    if size > VARS_BYTES:
        raise InvalidRequest(f"vars: {size} bytes as JSON, {VARS_BYTES} at most; put what is large into the conversation")


def _prompt(own: OwnPrompt | None, variables: Mapping[str, JsonValue], where: str) -> OwnPrompt | None:
    """Fill the text between the places; the places stay, and no value can make one."""
    if own is None:
        return None
    messages = []
    for message in own.messages:
        parts = tuple(part if isinstance(part, PromptSlot) else _text(part, variables, where) for part in message.parts)
        messages.append(PromptMessage(role=message.role, parts=parts))
    return OwnPrompt(messages=tuple(messages))


def _value(value: Any, variables: Mapping[str, JsonValue], where: str) -> Any:  # noqa: ANN401 - JSON of any shape
    if isinstance(value, str):
        return _text(value, variables, where)
    if isinstance(value, dict):
        return {key: _value(item, variables, f"{where}.{key}") for key, item in value.items()}
    return [_value(item, variables, where) for item in value] if isinstance(value, list) else value


def is_template(text: str) -> bool:
    """Tell whether a text, or JSON, has something to fill in."""
    return any(mark in text for mark in ("{{", "{%", "{#"))


def fill_text(text: str, variables: Mapping[str, JsonValue], where: str, limit: int = RUBRIC_BYTES) -> str:
    """Return a text with the variables in it, of at most `limit` characters.

    Raises:
        InvalidRequest: It is no template, or names a variable that is not there; the message begins with `where`.
    """
    return _text(text, variables, where, limit)


def fill_value(value: JsonValue, variables: Mapping[str, JsonValue], where: str) -> JsonValue:
    """Return JSON with the variables in its texts, as `fill_text` puts them there; its keys stay."""
    filled: JsonValue = _value(value, variables, where)
    return filled


def _text(text: str, variables: Mapping[str, JsonValue], where: str, limit: int = RUBRIC_BYTES) -> str:
    if not is_template(text):
        return text

    try:
        return _joined(_compiled(text).generate(dict(variables)), where, limit)
    except _Unfit as error:
        raise InvalidRequest(f"{where}{error}") from None
    except InvalidRequest:
        raise
    except TemplateError as error:
        raise InvalidRequest(f"{where}: {_told(str(error.message), variables)}") from None
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise InvalidRequest(f"{where}: the template cannot be filled: {error}; correct it") from None
    except (RecursionError, SyntaxError, MemoryError):
        raise InvalidRequest(f"{where}: the template is nested too deeply; flatten it") from None


class _Unfit(Exception):
    """A template has something in it that is not taken; the message goes on where its place ends."""


@lru_cache(maxsize=256)
def _compiled(text: str) -> Any:  # noqa: ANN401 - jinja2's own, made by a class of ours
    """Return a template that was looked through; the next case with the same text has it at once."""
    for node in _environment().parse(text).find_all(nodes.Node):
        _refuse_unbounded(node)
    return _environment().from_string(text)


def _told(message: str, variables: Mapping[str, JsonValue]) -> str:
    if "is undefined" in message or "has no" in message:
        return f"{message}; the variables are: {', '.join(sorted(variables)) or 'none'}"
    return f"{message}; correct the template, or leave vars out so that text is literal"


def _joined(pieces: Any, where: str, limit: int) -> str:  # noqa: ANN401 - jinja2's generator
    told, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise InvalidRequest(f"{where}: filled, it has more than {limit} characters; use less of the variables")
        told.append(piece)
    return "".join(told)


def _refuse_unbounded(node: Any) -> None:  # noqa: ANN401 - jinja2's nodes have no types

    kind = type(node).__name__
    if isinstance(node, nodes.Name) and node.name in {"self", "super"}:
        raise _Unfit(f", line {node.lineno}: {node.name!r} is jinja2's own and undefined here; name one of vars")
    if kind not in _NODES or (isinstance(node, nodes.Filter) and node.name not in FILTERS):
        what = f"the filter {node.name!r}" if isinstance(node, nodes.Filter) else f"{kind.lower()!r}"
        raise _Unfit(f", line {node.lineno}: {what} is not taken in a rubric or prompt; filters are {', '.join(FILTERS)}")
    if isinstance(node, nodes.For) and (any(node.find_all(nodes.For)) or not isinstance(node.iter, nodes.Name | nodes.Getattr)):
        raise _Unfit(f", line {node.lineno}: a loop runs over a variable, and not inside another loop; write it so")


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Plain(ImmutableSandboxedEnvironment):
        """Looks into JSON values alone: a Python attribute of theirs is not there."""

        def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - JSON of any shape
            return self.getitem(obj, attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:  # noqa: ANN401 - JSON of any shape
            if isinstance(obj, StrictUndefined):
                return obj
            try:
                return obj[argument] if isinstance(obj, dict | list) else self.undefined(obj=obj, name=argument)
            except (LookupError, TypeError):
                return self.undefined(obj=obj, name=argument)

    environment = Plain(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, finalize=_shown)
    environment.globals = {}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "sort_keys": False}
    return environment


def _shown(value: Any) -> Any:  # noqa: ANN401 - whatever a variable holds
    """Return a value as a rubric tells it: objects and lists as JSON, `true`, `false` and `null` as JSON writes them."""
    is_plain = isinstance(value, dict | list | bool) or value is None
    return json.dumps(value, ensure_ascii=False) if is_plain else str(value)
