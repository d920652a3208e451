"""Templates in a rubric's texts and a suite's prompts, filled from `vars`; what is judged is never a template.

They are Jinja2's, in its immutable sandbox, restricted to what ends soon: expressions, `if`, and loops over a variable that are
not nested. Nothing is called, so no template can run for long or make more than its variables hold.
"""

import html
import json
from collections.abc import Callable, Collection, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, ValidationError

from gradeloop.contract.criterion import OwnPrompt, PromptMessage, PromptSlot
from gradeloop.contract.rubric import RUBRIC_BYTES, Rubric
from gradeloop.errors import InvalidRequest, explain

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

VARS_BYTES = 64 * 1024
"""The largest variables of a request, as JSON."""


FILTERS = (
    *("abs", "capitalize", "default", "dump", "escape", "first", "float", "int", "join", "last", "length", "list", "load", "lower"),
    *("replace", "reverse", "round", "safe", "sort", "string", "striptags", "sum", "title", "tojson", "trim", "truncate", "upper"),
    *("urlencode", "wordcount"),
)
"""The filters of Jinja2 whose result is about as long as their input; `load`, promptfoo's, which reads a text as JSON; `dump`, that of
Nunjucks, which writes JSON; and `replace`, whose result is bounded."""

REPLACED_CHARACTERS = 1024 * 1024
"""The most characters that `replace` may make of a text."""


_NODES = (
    *("Template", "Output", "TemplateData", "Name", "Getattr", "Getitem", "Const", "Filter", "If", "For", "Compare", "Operand"),
    *("Not", "And", "Or", "CondExpr", "Test", "Keyword"),
)


def fill(rubric: Rubric | None, variables: Mapping[str, JsonValue] | None) -> Rubric | None:
    """Return the rubric of a request with its variables filled in; unchanged where the request has no variables.

    Raises:
        InvalidRequest: A template is invalid or names an unknown variable, or the variables are too large.
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


def fill_rubric(rubric: Rubric, variables: Mapping[str, JsonValue], describe: Callable[[int, str], str] | None = None) -> Rubric:
    """Return the rubric with the variables filled into its texts.

    Args:
        rubric: The rubric.
        variables: The variables by name.
        describe: Returns how a message names a field of a criterion, by the criterion's position: `criteria[0].description` by default.

    Raises:
        InvalidRequest: A template is invalid or names an unknown variable; the message names the field.
    """
    raw = rubric.model_dump(mode="json")
    place = describe or (lambda at, field: f"criteria[{at}].{field}")
    for name in ("name", "instructions"):
        if raw.get(name):
            raw[name] = fill_text(raw[name], variables, name)
    for at, criterion in enumerate(raw["criteria"]):
        criterion["description"] = fill_value(criterion["description"], variables, place(at, "description"))
    for line in raw.get("context", ()):
        line["text"] = fill_text(line["text"], variables, "context")
    filled = Rubric.model_validate(raw)
    prompt = _fill_prompt(rubric.prompt, variables, "prompt")
    criteria = tuple(
        criterion.model_copy(update={"prompt": _fill_prompt(criterion.prompt, variables, place(at, "prompt"))})
        for at, criterion in enumerate(filled.criteria)
    )
    return filled.model_copy(update={"prompt": prompt, "criteria": criteria})


def fill_value(value: JsonValue, variables: Mapping[str, JsonValue], where: str) -> JsonValue:
    """Return JSON with its texts filled as by `fill_text`; keys are never templates."""
    if isinstance(value, str):
        return fill_text(value, variables, where)
    if isinstance(value, dict):
        return {key: fill_value(item, variables, f"{where}.{key}") for key, item in value.items()}
    return [fill_value(item, variables, where) for item in value] if isinstance(value, list) else value


def fill_text(text: str, variables: Mapping[str, JsonValue], where: str, limit: int = RUBRIC_BYTES, empty: Collection[str] = ()) -> str:
    """Return the text with the variables filled in.

    Args:
        text: The template.
        variables: The variables by name.
        where: How a message names the text.
        limit: The most characters of the filled text.
        empty: The names of variables that are not there, and whose place, and that of whatever they should have, stays empty.

    Raises:
        InvalidRequest: The template is invalid or names an unknown variable; the message begins with `where`.
    """
    if not is_template(text):
        return text
    from jinja2 import ChainableUndefined, TemplateError, UndefinedError  # 40 ms, which a command without templates does without

    try:
        values = {**variables, **{name: ChainableUndefined(name=name) for name in empty}}
        return _join(_compile(text).generate(values), where, limit)
    except _Unfit as error:
        raise InvalidRequest(f"{where}{error}") from None
    except UndefinedError as error:
        raise UnknownVariable(f"{where}: {_describe_error(str(error.message), variables)}") from None
    except InvalidRequest:
        raise
    except TemplateError as error:
        raise InvalidRequest(f"{where}: {_describe_error(str(error.message), variables)}") from None
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise InvalidRequest(f"{where}: the template cannot be filled: {error}; correct it") from None
    except (RecursionError, SyntaxError, MemoryError):
        raise InvalidRequest(f"{where}: the template is nested too deeply; flatten it") from None


class UnknownVariable(InvalidRequest):
    """A template names a variable that is not there."""


def unknown_variables(text: str, variables: Mapping[str, JsonValue]) -> list[str]:
    """Return the names of the variables that a template names and that are not there, in order; none of an invalid template."""
    from jinja2 import TemplateError, meta

    try:
        return sorted(meta.find_undeclared_variables(_environment().parse(text)) - set(variables))
    except TemplateError:
        return []


def is_template(text: str) -> bool:
    """Tell whether a text has something to fill in."""
    return any(opening in text for opening in ("{{", "{%", "{#"))


def refuse_large_vars(variables: Mapping[str, JsonValue]) -> None:
    """Raise InvalidRequest where the variables are too large."""
    size = len(json.dumps(dict(variables), ensure_ascii=False).encode(errors="replace"))
    if size > VARS_BYTES:
        raise InvalidRequest(f"vars: {size} bytes as JSON, {VARS_BYTES} at most; put what is large into the conversation")


def _fill_prompt(own: OwnPrompt | None, variables: Mapping[str, JsonValue], where: str) -> OwnPrompt | None:
    """Fill the text between the slots; the slots stay, and no value can make one."""
    if own is None:
        return None
    messages = []
    for message in own.messages:
        parts = tuple(part if isinstance(part, PromptSlot) else fill_text(part, variables, where) for part in message.parts)
        messages.append(PromptMessage(role=message.role, parts=parts))
    return OwnPrompt(messages=tuple(messages))


class _Unfit(Exception):
    """A template uses what is not allowed; the message continues the name of the field."""


@lru_cache(maxsize=256)
def _compile(text: str) -> Any:  # noqa: ANN401 - jinja2's own, made by a class of ours
    """Return a compiled template that uses only what is allowed, cached for the next case with the same text."""
    from jinja2 import nodes

    for node in _environment().parse(text).find_all(nodes.Node):
        _refuse_unbounded(node)
    return _environment().from_string(text)


def _refuse_unbounded(node: Any) -> None:  # noqa: ANN401 - jinja2's nodes have no types
    from jinja2 import nodes

    kind = type(node).__name__
    if isinstance(node, nodes.Name) and node.name in {"self", "super"}:
        raise _Unfit(f", line {node.lineno}: {node.name!r} is jinja2's own and undefined here; name one of vars")
    if kind not in _NODES or (isinstance(node, nodes.Filter) and node.name not in FILTERS):
        what = f"the filter {node.name!r}" if isinstance(node, nodes.Filter) else f"{kind.lower()!r}"
        raise _Unfit(f", line {node.lineno}: {what} is not taken in a rubric or prompt; filters are {', '.join(FILTERS)}")
    if isinstance(node, nodes.For) and (any(node.find_all(nodes.For)) or not isinstance(node.iter, nodes.Name | nodes.Getattr)):
        raise _Unfit(f", line {node.lineno}: a loop runs over a variable, and not inside another loop; write it so")


def _join(pieces: Any, where: str, limit: int) -> str:  # noqa: ANN401 - jinja2's generator
    parts, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise InvalidRequest(f"{where}: filled, it has more than {limit} characters; use less of the variables")
        parts.append(piece)
    return "".join(parts)


def _describe_error(message: str, variables: Mapping[str, JsonValue]) -> str:
    if "is undefined" in message or "has no" in message:
        return f"{message}; the variables are: {', '.join(sorted(variables)) or 'none'}"
    return f"{message}; correct the template, or leave vars out so that text is literal"


@cache
def _environment() -> "ImmutableSandboxedEnvironment":
    from jinja2 import ChainableUndefined, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class JsonEnvironment(ImmutableSandboxedEnvironment):
        """A sandbox in which templates see JSON values alone, and no Python attribute of theirs."""

        def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - JSON of any shape
            return self.getitem(obj, attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:  # noqa: ANN401 - JSON of any shape
            if isinstance(obj, StrictUndefined | ChainableUndefined):
                return obj
            try:
                return obj[argument] if isinstance(obj, dict | list) else self.undefined(obj=obj, name=argument)
            except (LookupError, TypeError):
                return self.undefined(obj=obj, name=argument)

    environment = JsonEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, finalize=_as_text)
    environment.globals = {}
    environment.filters |= {"load": _load, "dump": _dump, "replace": _replace, "safe": str, "escape": _escape}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "sort_keys": False}
    return environment


def _load(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Read a text as JSON."""
    try:
        return json.loads(value)
    except RecursionError:
        raise ValueError("what `load` reads is nested too deeply") from None
    except TypeError:
        raise ValueError("what `load` reads is no text") from None


def _dump(value: Any, spaces: int | None = None) -> str:  # noqa: ANN401 - JSON of any shape
    """Write a value as JSON, as compact as JavaScript does."""
    separators = (",", ": ") if spaces else (",", ":")
    return json.dumps(value, ensure_ascii=False, indent=min(spaces, 8) if spaces else None, separators=separators)


def _replace(value: Any, old: str, new: str) -> str:  # noqa: ANN401 - JSON of any shape
    """Replace a text in a value, unless the result is too long."""
    text = str(value)
    if len(text) + text.count(old) * (len(new) - len(old)) > REPLACED_CHARACTERS:
        raise ValueError(f"what `replace` makes has more than {REPLACED_CHARACTERS} characters")
    return text.replace(old, new)


def _escape(value: Any) -> str:  # noqa: ANN401 - JSON of any shape
    """Escape a value for HTML, as a text and not as Jinja2's own type, which would escape what it is joined to."""
    return html.escape(str(value))


def _as_text(value: Any) -> Any:  # noqa: ANN401 - whatever a variable holds
    """Return a value as text: objects, lists, `true`, `false` and `null` as JSON, anything else by `str`."""
    is_plain = isinstance(value, dict | list | bool) or value is None
    return json.dumps(value, ensure_ascii=False) if is_plain else str(value)
