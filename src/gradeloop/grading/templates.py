"""Templates in a rubric's texts and a suite's prompts, filled from `vars`; what is judged is never a template.

Jinja2 parses them, and an interpreter of ours fills them: expressions, `if`, and loops over a variable that are not nested, on JSON
alone. It counts its work and its output, so that the same template ends at the same place on every machine, and in every replay.
"""

import html
import json
import re
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, ValidationError

from gradeloop.contract.criterion import OwnPrompt, PromptMessage, PromptSlot
from gradeloop.contract.rubric import RUBRIC_BYTES, Rubric
from gradeloop.errors import InvalidRequest, explain

if TYPE_CHECKING:
    from jinja2 import Environment, nodes

VARS_BYTES = 64 * 1024
"""The largest variables of a request, as JSON."""

FILTERS = (
    *("abs", "capitalize", "default", "dump", "escape", "first", "float", "int", "join", "last", "length", "list", "load", "lower"),
    *("replace", "reverse", "round", "safe", "sort", "string", "striptags", "sum", "title", "tojson", "trim", "truncate", "upper"),
    *("urlencode", "wordcount"),
)
"""The filters of Jinja2 that templates have; `load`, promptfoo's, which reads a text as JSON; and `dump`, Nunjucks', which writes it."""

STEPS = 20_000_000
"""Steps that the templates of a suite's text or rubric may take, about a second; each reads or makes a value or character."""

REQUEST_STEPS = STEPS // 10
"""The most steps that the templates of a request's rubric may take. A thread fills it in a workflow task, in which several requests may
be admitted, and which the SDK ends as a deadlock after two seconds."""

NODE_STEPS = 40
"""The steps of evaluating a node of a template, which takes as long as reading so many characters."""

VALUE_STEPS = 5
"""The steps of a value, beside its characters."""

FILTERED_CHARACTERS = 1024 * 1024
"""The most characters that `replace`, and `dump` and `tojson` with an indent, may make."""

LARGEST = 330
"""The largest indent of JSON, and the largest precision of `round`: no float has more digits, and more would fill the memory."""

INTEGER_BITS = 16 * 1024
"""The largest integer: Python writes none of more digits than these make."""

NESTED = 100
"""The deepest nesting of a template: of its tags, and of an expression's parts."""

EXPRESSIONS = 5000
"""The most expressions of one template, so that it is parsed in a fraction of a second."""


@dataclass
class Work:
    """The steps that the templates of a text or rubric have taken together."""

    limit: int = STEPS
    steps: int = 0

    def charge(self, steps: int) -> None:
        """Count steps that are about to be taken; raise where they are too many."""
        self.steps += steps
        if self.steps > self.limit:
            raise _Unfit(f": filling it takes more than {self.limit} steps; filter, compare and repeat less of the variables")


def fill(rubric: Rubric | None, variables: Mapping[str, JsonValue] | None) -> Rubric | None:
    """Return the rubric of a request with its variables filled in; unchanged where the request has no variables.

    Raises:
        InvalidRequest: A template is invalid or names an unknown variable, or the variables are too large.
    """
    if variables is None:
        return rubric
    try:
        size = len(json.dumps(dict(variables), ensure_ascii=False).encode(errors="replace"))
        if size > VARS_BYTES:
            raise InvalidRequest(f"vars: {size} bytes as JSON, {VARS_BYTES} at most; put what is large into the conversation")
        return None if rubric is None else fill_rubric(rubric, variables, work=Work(REQUEST_STEPS))
    except ValidationError as error:
        raise InvalidRequest(f"with its variables filled in, the rubric is none: {explain(error)}") from None
    except RecursionError:
        raise InvalidRequest("vars: nested too deeply; flatten them") from None


def fill_rubric(
    rubric: Rubric, variables: Mapping[str, JsonValue], describe: Callable[[int, str], str] | None = None, work: Work | None = None
) -> Rubric:
    """Return the rubric with the variables filled into its texts.

    `describe`: returns how a message names a field of a criterion, by the criterion's position: `criteria[0].description` by default.
    `work`: the steps that all its texts share; those of a suite's rubric by default.

    Raises:
        InvalidRequest: A template is invalid or names an unknown variable; the message names the field.
    """
    raw, work = rubric.model_dump(mode="json"), work or Work()
    place = describe or (lambda at, field: f"criteria[{at}].{field}")
    raw |= {name: fill_value(raw[name], variables, name, work) for name in ("name", "instructions") if name in raw}
    for at, criterion in enumerate(raw["criteria"]):
        criterion["description"] = fill_value(criterion["description"], variables, place(at, "description"), work)
    for line in raw.get("context", ()):
        line["text"] = fill_text(line["text"], variables, "context", work=work)
    filled = Rubric.model_validate(raw)
    prompt = _fill_prompt(rubric.prompt, variables, "prompt", work)
    criteria = tuple(
        criterion.model_copy(update={"prompt": _fill_prompt(criterion.prompt, variables, place(at, "prompt"), work)})
        for at, criterion in enumerate(filled.criteria)
    )
    return filled.model_copy(update={"prompt": prompt, "criteria": criteria})


def fill_value(value: JsonValue, variables: Mapping[str, JsonValue], where: str, work: Work | None = None) -> JsonValue:
    """Return JSON with its texts filled as by `fill_text`; keys are never templates."""
    work = work or Work()
    if isinstance(value, str):
        return fill_text(value, variables, where, work=work)
    if isinstance(value, dict):
        return {key: fill_value(item, variables, f"{where}.{key}", work) for key, item in value.items()}
    return [fill_value(item, variables, where, work) for item in value] if isinstance(value, list) else value


def fill_text(
    text: str,
    variables: Mapping[str, JsonValue],
    where: str,
    limit: int = RUBRIC_BYTES,
    empty: Collection[str] = (),
    work: Work | None = None,
) -> str:
    """Return the text with the variables filled in.

    `limit`: the most characters of the filled text.
    `empty`: the names of variables that are not there, and whose place, and that of whatever they should have, stays empty.
    `work`: the steps that are left to this text and those that share them; its own by default.

    Raises:
        InvalidRequest: The template is invalid, names an unknown variable or takes too long; the message begins with `where`.
    """
    if not is_template(text):
        return text
    from jinja2 import ChainableUndefined, TemplateError, UndefinedError  # 40 ms, which a command without templates does without

    try:
        values = {**variables, **{name: ChainableUndefined(name=name) for name in empty}}
        filling = _Filling(values, work or Work(), limit)
        filling.write(_parse(text).body)
        return "".join(filling.parts)
    except _Unfit as error:
        raise InvalidRequest(f"{where}{error}") from None
    except TemplateError as error:
        message, cure = str(error.message), "correct the template, or leave vars out so that text is literal"
        if "is undefined" in message or "has no" in message:
            cure = f"the variables are: {', '.join(sorted(variables)) or 'none'}"
        raise (UnknownVariable if isinstance(error, UndefinedError) else InvalidRequest)(f"{where}: {message}; {cure}") from None
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidRequest(f"{where}: the template cannot be filled: {error}; correct it") from None
    except (RecursionError, MemoryError):
        raise InvalidRequest(f"{where}: the template is nested too deeply; flatten it") from None


class LateText(str):
    """A text with marks of what is not known before a case runs; templates may put it out, and not read it."""

    __slots__ = ()


_LATE = re.compile("\ue020([01])([^\ue020\ue021]*)\ue021")
"""A mark: whether what it stands for is written inside of a JSON string, and its name."""


def late_mark(name: str) -> LateText:
    """Return the mark of what has this name."""
    return LateText(f"\ue0200{name}\ue021")


def late_names(text: str) -> list[str]:
    """Return the names of the marks in a text, each once."""
    return list(dict.fromkeys(found[2] for found in _LATE.finditer(text)))


def in_json(text: str, *, inside: bool) -> str:
    """Return a text whose marks stand inside of JSON strings, or of the texts that these hold."""
    return _LATE.sub(lambda found: f"\ue020{int(inside)}{found[2]}\ue021", text)


def fill_late(value: Any, texts: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return JSON whose marks are filled with the texts of their names."""
    if isinstance(value, dict):
        return {key: fill_late(item, texts) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_late(item, texts) for item in value]
    written = (texts, {name: json.dumps(text, ensure_ascii=False)[1:-1] for name, text in texts.items()})
    return _LATE.sub(lambda found: written[int(found[1])][found[2]], value) if isinstance(value, str) else value


class UnknownVariable(InvalidRequest):
    """A template names a variable that is not there."""


def unknown_variables(text: str, variables: Mapping[str, JsonValue]) -> list[str]:
    """Return the names of the variables that a template names and that are not there, in order; none of an invalid template."""
    from jinja2 import TemplateError, meta

    try:
        return sorted(meta.find_undeclared_variables(_parse(text)) - set(variables))
    except (TemplateError, _Unfit):
        return []


def is_template(text: str) -> bool:
    """Tell whether a text has something to fill in."""
    return any(opening in text for opening in ("{{", "{%", "{#"))


def _fill_prompt(own: OwnPrompt | None, variables: Mapping[str, JsonValue], where: str, work: Work) -> OwnPrompt | None:
    """Fill the text between the slots; the slots stay, and no value can make one."""
    messages = []
    for message in own.messages if own else ():
        parts = tuple(part if isinstance(part, PromptSlot) else fill_text(part, variables, where, work=work) for part in message.parts)
        messages.append(PromptMessage(role=message.role, parts=parts))
    return OwnPrompt(messages=tuple(messages)) if own else None


class _Unfit(Exception):
    """A template uses what is not allowed; the message continues the name of the field."""


@lru_cache(maxsize=256)
def _parse(text: str) -> "nodes.Template":
    """Return what a template that uses only what is allowed says, cached for the next case with the same text."""
    # The tree is walked by a list and its depth is counted. How deep recursion may go depends on the stack that
    # is left, so a template could be taken at one time and refused at another.
    tree: nodes.Template = _parser()(_environment(), text).parse()
    rest: list[tuple[Any, int, bool]] = [(tree, 0, False)]
    while rest:
        node, depth, in_loop = rest.pop()
        kind = type(node).__name__
        called, known = {"Filter": ("filter", FILTERS), "Test": ("test", _environment().tests)}.get(kind, ("", ()))
        if depth > NESTED:
            raise _Unfit(f", line {node.lineno}: the template is nested too deeply; flatten it")
        if (called and node.name not in known) or kind not in {*_KINDS, "Template", "Operand", "Keyword"}:
            what = f"the {called} {node.name!r}" if called else f"{kind.lower()!r}"
            raise _Unfit(f", line {node.lineno}: {what} is not taken in a rubric or prompt; filters are {', '.join(FILTERS)}")
        if kind == "For" and (in_loop or type(node.iter).__name__ not in {"Name", "Getattr"}):
            raise _Unfit(f", line {node.lineno}: a loop runs over a variable, and not inside another loop; write it so")
        rest += [(child, depth + 1, in_loop or kind == "For") for child in reversed(list(node.iter_child_nodes()))]
    return tree


@cache
def _parser() -> Any:  # noqa: ANN401 - a class of Jinja2's, which is imported late
    """Return Jinja2's parser, with bounds on depth and length that do not depend on the stack that is left."""
    from jinja2.parser import Parser

    def bounded(inner: Callable[..., Any]) -> Callable[..., Any]:
        def parse(self: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - Jinja2's own
            self.depth, self.count = self.depth + 1, self.count + 1
            if self.depth > NESTED or self.count > 3 * EXPRESSIONS:
                why = "is nested too deeply; flatten it" if self.depth > NESTED else f"has more than {EXPRESSIONS} expressions; shorten it"
                raise _Unfit(f", line {self.stream.current.lineno}: the template {why}")
            parsed = inner(self, *args, **options)
            self.depth -= 1
            return parsed

        return parse

    recursive = ("parse_condexpr", "parse_not", "parse_unary", "subparse")
    return type("BoundedParser", (Parser,), {"depth": 0, "count": 0} | {name: bounded(getattr(Parser, name)) for name in recursive})


# Jinja2 itself would run a template for as long as it likes, and in a workflow that is a deadlock at one time and none at another. So its
# parser makes the tree, and this interpreter walks it only on JSON. Each node, filter and comparison charges steps before it reads and
# after it makes a value; a step is counted from the sizes of values, never from a clock, so that every replay stops at the same node with
# the same message. A filter that is added to FILTERS must be charged in `call` for whatever it reads more than once, or be bounded itself.
class _Filling:
    """One filling of a template, which counts its steps and its characters."""

    def __init__(self, variables: dict[str, Any], work: Work, limit: int) -> None:
        self.parts: list[str] = []
        self.names = ChainMap({}, variables)
        self._work, self._limit, self._room = work, limit, limit

    def write(self, body: "Iterable[nodes.Node]") -> None:
        """Write statements."""
        for node in body:
            self.value(node)

    def value(self, node: Any) -> Any:  # noqa: ANN401 - a node of any kind, JSON of any shape
        """Return the value of an expression, or None of a statement, which writes."""
        self._work.charge(NODE_STEPS)
        return _KINDS[type(node).__name__](self, node)

    def output(self, node: "nodes.Output") -> None:
        for part in node.nodes:
            value = self.value(part)
            is_json = value is None or isinstance(value, dict | list | bool)
            text = json.dumps(value, ensure_ascii=False) if is_json else str(value)
            self._room -= len(text)
            if self._room < 0:
                raise _Unfit(f": filled, it has more than {self._limit} characters; use less of the variables")
            self.parts.append(text)

    def branch(self, node: "nodes.If") -> None:
        holds = next((one for one in (node, *node.elif_) if self.value(one.test)), None)
        self.write(holds.body if holds else node.else_)

    def loop(self, node: Any) -> None:  # noqa: ANN401 - a loop, whose target is a name
        name, items = node.target.name, []
        for item in _read(self.value(node.iter), node):
            self._work.charge(NODE_STEPS)
            self.names.maps[0] = {name: item}
            if node.test is None or self.value(node.test):
                items.append(item)
        for at, item in enumerate(items):
            place = {"index": at + 1, "index0": at, "first": at == 0, "last": at + 1 == len(items), "length": len(items)}
            self.names.maps[0] = {"loop": place, name: item}
            self.write(node.body)
        self.names.maps[0] = {}
        self.write(() if items else node.else_)

    def choice(self, node: "nodes.CondExpr") -> Any:  # noqa: ANN401 - JSON of any shape
        from jinja2 import Undefined

        chosen = node.expr1 if self.value(node.test) else node.expr2
        return Undefined() if chosen is None else self.value(chosen)

    def compare(self, node: "nodes.Compare") -> bool:
        left = _read(self.value(node.expr), node)
        for operand in node.ops:
            right = _read(self.value(operand.expr), node)
            self._work.charge(_size(left, right))
            test = {"gteq": "ge", "lteq": "le", "notin": "in"}.get(operand.op, operand.op)
            if _environment().call_test(test, left, [right]) == (operand.op == "notin"):
                return False
            left = right
        return True

    def call(self, call: Callable[..., Any], node: Any) -> Any:  # noqa: ANN401 - a filter or a test, JSON of any shape
        """Call what the steps are there for: those of what it reads before, those of what it makes after."""
        value = self.value(node.node)
        if isinstance(value, LateText) and node.name in {"default", "safe"}:
            return value
        value = value if node.name in {"defined", "dump", "tojson"} else _read(value, node)
        given = [*(self.value(one) for one in node.args), *(self.value(node.dyn_args) if node.dyn_args else ())]
        named = {one.key: self.value(one.value) for one in node.kwargs} | (self.value(node.dyn_kwargs) if node.dyn_kwargs else {})
        count, options = len(value) if isinstance(value, str | list | dict) else 1, _size(*given, *named.values())
        anew = count if node.name in {"join", "sort", "sum", "trim"} else 0  # they use their arguments for every item or character
        self._work.charge((_size(value) + options) * (count.bit_length() if node.name == "sort" else 1) + anew * options)
        made = call(node.name, value, given, named)
        made = in_json(made, inside=True) if node.name in {"dump", "tojson"} else made
        self._work.charge(_size(made))
        return made


def _read(value: Any, node: Any) -> Any:  # noqa: ANN401 - JSON of any shape, a node of any kind
    """Return a value that a template reads; raise where it is not known yet."""
    if isinstance(value, LateText):
        raise _Unfit(f", line {node.lineno}: it reads the output of another case, which is not known yet; write {{{{ name }}}} alone")
    return value


def _size(*values: Any) -> int:  # noqa: ANN401 - JSON of any shape
    """Return how many values and characters there are in JSON."""
    rest, size = list(values), 0
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict | list):
            rest += [*value, *(value.values() if isinstance(value, dict) else ())]
        elif isinstance(value, int) and value.bit_length() > INTEGER_BITS:
            raise _Unfit(f": an integer has {value.bit_length()} bits, {INTEGER_BITS} at most; write it as a text")
        size += VALUE_STEPS
    return size


@cache
def _environment() -> "Environment":
    """Return what Jinja2's filters and tests are called in: templates see only JSON values, and no Python attribute of theirs."""
    from jinja2 import ChainableUndefined, Environment, StrictUndefined

    class JsonEnvironment(Environment):
        def getitem(self, obj: Any, argument: Any) -> Any:  # noqa: ANN401 - JSON of any shape
            if isinstance(obj, StrictUndefined | ChainableUndefined):
                return obj
            try:
                return obj[argument] if isinstance(obj, dict | list) else self.undefined(obj=obj, name=argument)
            except (LookupError, TypeError):
                return self.undefined(obj=obj, name=argument)

    environment = JsonEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    theirs = environment.filters
    ours: dict[str, Callable[..., Any]] = {
        "load": _load,
        "dump": _dump,
        "replace": _replace,
        "safe": str,
        "escape": lambda value: html.escape(str(value)),  # a text, and not Jinja2's own type, which would escape what it is joined to
        "reverse": lambda value: value[::-1] if isinstance(value, str) else list(value)[::-1],
        "round": lambda value, precision=0, method="common": theirs["round"](value, max(-LARGEST, min(precision, LARGEST)), method),
        "sum": lambda value, attribute=None, start=0: theirs["sum"](environment, value, attribute, 0 + start),
    }
    environment.filters = theirs | ours
    # Identity is an accident of how a value was read: two equal texts are one object here and two in the replay.
    environment.tests |= {"sameas": lambda value, other: type(value) is type(other) and value == other}
    environment.policies |= {"json.dumps_function": _bounded_json, "json.dumps_kwargs": {}}
    return environment


def _load(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Read a text as JSON."""
    try:
        return json.loads(value)
    except (RecursionError, TypeError) as error:
        raise ValueError(f"what `load` reads is {'no text' if isinstance(error, TypeError) else 'nested too deeply'}") from None


def _dump(value: Any, spaces: int | str | None = None) -> str:  # noqa: ANN401 - JSON of any shape
    """Write JSON as JavaScript's `JSON.stringify` does, indented by 0 to 10."""
    indent = spaces[:10] if isinstance(spaces, str) else max(0, min(spaces or 0, 10))
    return _bounded_json(value, indent or None, (",", ": ") if indent else (",", ":"))


def _bounded_json(value: Any, indent: int | str | None = None, separators: tuple[str, str] | None = None) -> str:  # noqa: ANN401 - JSON
    """Write a value as JSON; with an indent, unless that or the text is too long."""
    if indent is None:
        return json.dumps(value, ensure_ascii=False, separators=separators)
    if (width := len(indent) if isinstance(indent, str) else indent) > LARGEST:
        raise ValueError(f"an indent of {width} is above {LARGEST}; indent by less")
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False, indent=indent, separators=separators).iterencode(value):
        text += piece
        if len(text) > FILTERED_CHARACTERS:
            raise ValueError(f"indented, its JSON has more than {FILTERED_CHARACTERS} characters; indent it by less")
    return text


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:  # noqa: ANN401 - JSON of any shape
    """Replace a text in a value, unless the result is too long."""
    text, old, new = str(value), str(old), str(new)
    if len(text) + text.count(old) * (len(new) - len(old)) > FILTERED_CHARACTERS:
        raise ValueError(f"what `replace` makes has more than {FILTERED_CHARACTERS} characters")
    return text.replace(old, new, -1 if count is None else count)


_KINDS: dict[str, Callable[[_Filling, Any], Any]] = {
    "Output": _Filling.output,
    "If": _Filling.branch,
    "For": _Filling.loop,
    "TemplateData": lambda _, node: node.data,
    "Const": lambda _, node: node.value,
    "Name": lambda filling, node: filling.names.get(node.name, _environment().undefined(name=node.name)),
    "Getattr": lambda filling, node: _environment().getitem(filling.value(node.node), node.attr),
    "Getitem": lambda filling, node: _environment().getitem(filling.value(node.node), filling.value(node.arg)),
    "Not": lambda filling, node: not filling.value(node.node),
    "And": lambda filling, node: filling.value(node.left) and filling.value(node.right),
    "Or": lambda filling, node: filling.value(node.left) or filling.value(node.right),
    "CondExpr": _Filling.choice,
    "Compare": _Filling.compare,
    "Filter": lambda filling, node: filling.call(_environment().call_filter, node),
    "Test": lambda filling, node: filling.call(_environment().call_test, node),
}
"""The nodes of Jinja2 that templates have; a `Template`, `Operand` or `Keyword` is evaluated with the node that it belongs to."""
