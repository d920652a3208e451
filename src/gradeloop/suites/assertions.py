"""The types of promptfoo's assertions, one row each, and the assertions of a test as a rubric of ours and as named metrics."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from gradeloop.batches.draft_checks import CALL_CHECK, COMPARISON_CHECK, without_comparisons
from gradeloop.contract.base import CodeText
from gradeloop.contract.criterion import Criterion
from gradeloop.contract.named_metrics import MetricShare
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location, explained_at, read_yaml
from gradeloop.grading.checks import CHECKS, TEXT_CHECK, kinds_of, valid_kind
from gradeloop.grading.code_checks import CODE_CHECK, parse_code_check
from gradeloop.grading.templates import fill_rubric, fill_text, fill_value
from gradeloop.suites.chats import read_chat
from gradeloop.suites.code_files import is_code_file, is_function, parse_transform, refuse_code
from gradeloop.suites.findings import Keys, as_list, as_object, refuse_others
from gradeloop.suites.providers import parse_provider
from gradeloop.text import clip, did_you_mean, distinct, one_line

PROMPT_CRITERION = "What the rubricPrompt asks for"
"""The criterion of an assertion with a prompt and no value."""

_NEGATED = "not-"


@dataclass(frozen=True)
class AssertionType:
    """A row of the table of types: all that is known here of one of promptfoo's."""

    name: str
    build: Callable[["Assertion"], dict[str, Any]] | None = None
    """Makes the criterion of an assertion; None where the type is refused, or is a kind of check."""
    own_keys: tuple[str, ...] = ()
    """The keys of an assertion beside `type`, `value`, `weight` and `metric`."""
    threshold: float | None = None
    """The threshold of an assertion that names none, as in promptfoo."""
    cell_threshold: float | None = None
    """The threshold where a cell of CSV names none, as in promptfoo."""
    spellings: tuple[str, ...] = ()
    """Other names of it, those of cells of CSV among them."""
    negatable: bool = True
    """Whether it has a `not-` form, and may begin a cell of CSV."""
    refused: str = ""
    """Why it has no counterpart, and what is written instead."""
    description: str = "{value}"
    """The criterion of a type that a model judges; `{value}` is the assertion's own text."""
    question: str = ""
    """The grader's instructions, in which `score` and `pass` are explained; empty for those of every criterion."""
    shows: tuple[str, ...] = ()
    """The variables that the grader is shown besides the output."""
    optional: tuple[str, ...] = ()
    """Those that it is shown where the test has them."""
    asked: bool = False
    """Whether the grader is shown what was asked."""

    @property
    def keys(self) -> Keys:
        """The keys of an assertion."""
        refused = {} if "rubricPrompt" in self.own_keys or self.build is not _compared else {"rubricPrompt": "leave it out"}
        return Keys(frozenset({"type", "value", "weight", "metric", *self.own_keys}), refused)


def find_type(name: str) -> AssertionType | None:
    """Return the row of a type, negated or not; None of a name that has none, or no negation."""
    plain = name.removeprefix(_NEGATED)
    row = TYPES.get(plain, AssertionType(plain))
    if row.build is None and (kind := CHECKS.rows.get(plain)):
        keys = ("threshold",) if kind.tool == CALL_CHECK else ("transform", *(["threshold"] if kind.threshold is not None else ()))
        row = replace(row, build=_checked, own_keys=keys, threshold=kind.threshold)
    return row if (row.build or row.refused) and (row.negatable or plain == name) else None


def assertion_types() -> Iterator[AssertionType]:
    """Yield the rows of all types: those that models judge first, those of checks, which extensions may add, last."""
    kinds = (*kinds_of(CALL_CHECK), *kinds_of(TEXT_CHECK))
    yield from (row for name in dict.fromkeys((*(row.name for row in _ROWS if row.name not in kinds), *kinds)) if (row := find_type(name)))


@dataclass(frozen=True)
class Assertion:
    """An assertion of one test, and what its criterion is made with."""

    row: AssertionType
    fields: Mapping[str, JsonValue]
    """Its fields; a key without a value is absent, as in promptfoo."""
    where: Location
    options: Mapping[str, JsonValue]
    """`provider` and `rubricPrompt` for assertions without their own."""
    variables: Mapping[str, JsonValue]
    """The test's variables."""
    allow_code: bool
    """Whether the user of the suite has allowed its code to run."""

    @property
    def negation(self) -> dict[str, JsonValue]:
        """The field that negates a criterion, or a check among its arguments."""
        return {"negate": True} if str(self.fields["type"]).startswith(_NEGATED) else {}

    def filled(self, value: JsonValue, *keys: str) -> JsonValue:
        """Return a value with the test's variables; `keys` are its place."""
        return fill_value(value, self.variables, str(self.where.at(*keys) if keys else self.where))

    def given(self, key: str) -> dict[str, JsonValue]:
        """Return a field as the argument of a check; nothing where it is not given."""
        return {key: self.fields[key]} if key in self.fields else {}

    def criterion(self) -> dict[str, Any]:
        """Return the criterion, without its weight and its name.

        Raises:
            InvalidRequest: The type has no counterpart, the assertion is invalid, or it is code that its user has not allowed.
        """
        value = self.fields.get("value")
        if self.row.build is None:
            raise InvalidRequest(f"{self.where}: the type {clip(str(self.fields['type']))} has no counterpart; {self.row.refused}")
        if isinstance(value, dict) and is_code_file(value) and self.row.build is not _coded:
            name = clip(str(value["file"]))
            raise InvalidRequest(f"{self.where.at('value')}: {name} is code, which makes no value here; write the value out")
        refuse_others(self.fields, self.row.keys.read, self.where)
        criterion = self.row.build(self)
        for key in ("transform", "contextTransform"):
            if key in self.fields:
                if not self.allow_code:
                    raise refuse_code(self.where.at(key), f"the {key}")
                code = parse_transform(self.fields[key], "get_transform", self.where.at(key))
                code = code if key == "transform" else _with_context(code, 2 if "transform" in self.options else 1)
                criterion.get("check", criterion)["transform"] = code.model_dump()
        return criterion


_OF_JAVASCRIPT = """((output, context) => {{
  const made = (({parser}))(context.outputs.at(-{at}), context);
  if (typeof made !== "string" && !Array.isArray(made)) throw new Error("contextTransform returned no text");
  return {{ answer: output, context: Array.isArray(made) ? made.join("\\n\\n") : made }};
}})"""
_OF_PYTHON = """
def with_context(output, context):
    made = {parser}(context["outputs"][-{at}], context)
    if not isinstance(made, str | list):
        raise ValueError("contextTransform returned no text")
    return {{"answer": output, "context": made if isinstance(made, str) else "\\n\\n".join(made)}}
"""


def _with_context(code: CodeText, at: int) -> CodeText:
    """Return code that makes `{answer, context}` of an output; its function finds the context in the output before the test's transform.

    Args:
        code: The function.
        at: The place of that output among those before and after each transform, from the last.
    """
    if code.language == "python":
        around = _OF_PYTHON.format(parser=code.function, at=at)
        return code.model_copy(update={"code": f"{code.code}\n{around}", "function": "with_context"})
    if code.file:
        around = _OF_JAVASCRIPT.format(parser=f"module.exports{'.' + code.function if code.function else ''}", at=at)
        return code.model_copy(update={"code": f"{code.code}\n;module.exports = ((module) => {around})({{...module}});", "function": ""})
    text = code.code.strip()
    body = (
        text if is_function(text) else f"(output, context) => {{ {text} }}" if _RETURNS.search(text) else f"(output, context) => ({text})"
    )
    return code.model_copy(update={"code": f"return {_OF_JAVASCRIPT.format(parser=body, at=at)}(output, context);"})


_RETURNS = re.compile(r"\breturn\b")


def _judged(one: Assertion) -> dict[str, Any]:
    """Return the criterion of a type that a model judges."""
    row, value, prompt = one.row, one.fields.get("value"), one.fields.get("rubricPrompt", one.options.get("rubricPrompt"))
    refuse_others(as_object(one.fields.get("config"), one.where.at("config")), {"windowSize"}, one.where.at("config"))
    if isinstance(prompt, str):
        prompt = read_chat(prompt, one.where.at("rubricPrompt")) or prompt
    if row.question:
        description = _description(row, value, one, own=prompt is not None)
        prompt = _prompt(row, one) if prompt is None else prompt
    elif value is None and prompt is None:
        raise InvalidRequest(f"{one.where}: the assertion has no value; write what must hold")
    else:
        description = PROMPT_CRITERION if value is None else value
    return {
        "description": description,
        "form": "pass_score",
        "score": _scale(one),
        **one.negation,
        **_grader(one),
        **({"prompt": prompt} if prompt is not None else {}),
    }


def _scale(one: Assertion) -> dict[str, JsonValue]:
    threshold = one.fields.get("threshold", one.row.threshold)
    return {"min": 0, "max": 1} | ({"threshold": threshold} if threshold is not None else {})


def _description(row: AssertionType, value: JsonValue, one: Assertion, *, own: bool) -> JsonValue:
    """Return the criterion; what its type is about rides in it, so that the grader sees it behind the criterion's fence.

    Raises:
        InvalidRequest: The assertion lacks its value, or its test a variable that its type is about.
    """
    if isinstance(value, list):
        value = "\n".join(f"- {item}" for item in value)
    text = value if isinstance(value, str) else ""
    if "{value}" in row.description and not text.strip():
        raise InvalidRequest(f"{one.where}: the assertion has no value; write what {one.row.name} compares the output with")
    made = {"context"} if "contextTransform" in one.fields else set()
    if missing := next((shown for shown in row.shows if shown not in {*one.variables, *made}), None):
        raise InvalidRequest(f"{one.where}: {one.row.name} is about the variable {missing}, which the test does not have; give it in vars")
    text = row.description.replace("{value}", text)
    shown = [name for name in (*row.optional, *row.shows) if name in one.variables and name not in made]
    return text if own or not shown else {"criterion": text, **{name: f"{{{{ {name} }}}}" for name in shown}}


def _prompt(row: AssertionType, one: Assertion) -> JsonValue:
    """Return the grader's prompt: the instructions, the criterion, and what is judged."""
    if "contextTransform" in one.fields:
        parts = ["The criterion:\n{{ rubric }}", "The context:\n{{ output.context }}", "The answer:\n{{ output.answer }}"]
        return [{"role": "user", "content": "\n\n".join([row.question, *parts])}]
    about = f", with {' and '.join(row.shows)}" if row.shows else ""
    shown = "The conversation, with the answer as its last record:\n{{ transcript }}" if row.asked else "The answer:\n{{ output }}"
    parts = [row.question, f"The criterion{about}:\n{{{{ rubric }}}}", shown]
    return [{"role": "user", "content": "\n\n".join(parts)}]


def _grader(one: Assertion) -> dict[str, Any]:
    """Return the model that judges, where one is named; of providers by their use it is the one for texts."""
    for provider in (one.fields.get("provider"), one.options.get("provider")):
        chosen = provider.get("text") if isinstance(provider, dict) and "id" not in provider else provider
        if chosen is not None:
            return {"grader": parse_provider(chosen, one.where)}
    return {}


def _checked(one: Assertion) -> dict[str, Any]:
    """Return the criterion of a check of the output's text, or of the call that drafted it."""
    tool, fields = CHECKS.rows[one.row.name].tool, one.fields
    if tool == CALL_CHECK:
        limit = fields.get("value") if one.row.name == "finish-reason" else fields.get("threshold", fields.get("value"))
        return _check(tool, {"kind": one.row.name, "value": one.filled(limit), **one.negation}, one.where)
    given = {key: one.filled(fields[key]) for key in ("value", "threshold") if key in fields}
    if one.row.name.endswith("-json") and isinstance(given.get("value"), str):
        given["value"] = read_yaml(str(given["value"]), f"{one.where}: the schema")
    return _check(tool, {"kind": one.row.name, **one.negation, **given}, one.where.at("value"))


def _check(tool: str, arguments: dict[str, JsonValue], where: Location) -> dict[str, Any]:
    """Return the criterion of a check, described by its kind."""
    try:
        description = valid_kind(tool, arguments).describe(arguments)
    except ValueError as error:
        raise InvalidRequest(f"{where}: {error}") from None
    return {"description": description, "check": {"tool": tool, "arguments": arguments}}


def _no_template(text: str) -> str:
    return re.sub(r"\{(?=[{%#])", "{ ", text)


def _compared(one: Assertion) -> dict[str, Any]:
    """Return the criterion of an assertion that compares the outputs of a test with one another."""
    arguments: dict[str, JsonValue] = {"kind": one.row.name}
    if one.row.name == "select-best":
        provider = one.fields.get("provider", one.options.get("provider"))
        arguments["value"] = one.filled(one.fields.get("value"))
        arguments |= {"grader": parse_provider(provider, one.where)} if provider is not None else {}
    else:
        value = as_object(one.fields.get("value"), one.where.at("value"))
        refuse_others(value, {"method", "weights", "threshold"}, one.where.at("value"))
        arguments |= {name: item for name, item in value.items() if item is not None} | one.given("threshold")
    criterion = _check(COMPARISON_CHECK, arguments, one.where.at("value"))
    return criterion | {"description": _no_template(criterion["description"])}


def _coded(one: Assertion) -> dict[str, Any]:
    """Return the criterion of an assertion whose value is code."""
    value, place = one.fields.get("value"), one.where.at("value")
    if isinstance(value, dict) and is_code_file(value):
        default = "get_assert" if value.get("language") == "python" else ""
        arguments: dict[str, JsonValue] = {**value, "function": value.get("function") or default}
        shown = f"{value.get('file')}{':' + str(value['function']) if value.get('function') else ''}"
    elif isinstance(value, str) and value.strip():
        code = str(one.filled(value, "value"))
        arguments = {"language": one.row.name, "code": code}
        shown = clip(one_line(code.strip()), 120)
    else:
        raise InvalidRequest(f"{place}: {clip(str(value))} is no code; write an expression over output, or name a file")
    if not one.allow_code:
        raise refuse_code(one.where, f"the {one.row.name} assertion")
    arguments |= one.given("threshold")
    arguments |= {"config": one.filled(one.fields["config"], "config")} if "config" in one.fields else {}
    arguments |= one.negation
    try:
        parse_code_check(arguments)
    except ValueError as error:
        raise InvalidRequest(f"{place}: {error}") from None
    description = _no_template(f"{one.row.name} {'does not hold' if one.negation else 'holds'}: {shown}")
    return {"description": description, "check": {"tool": CODE_CHECK, "arguments": arguments}}


_EMBEDDERS = {
    f"{vendor}:{kind}:": ours
    for vendor, ours in (("openai", "openai:"), ("google", "google_genai:"), ("vertex", "google_genai:"))
    for kind in ("embedding", "embeddings")
}
"""Prefixes of promptfoo's embedding models, and those of ours."""

_DEFAULT_EMBEDDERS = (
    ("OPENAI_API_KEY", "openai:text-embedding-3-large"),
    ("GOOGLE_API_KEY", "google_genai:gemini-embedding-001"),
    ("GEMINI_API_KEY", "google_genai:gemini-embedding-001"),
)
"""The embedding model where none is named, by the key that is there; the first of them is promptfoo's."""


def _similar(one: Assertion) -> dict[str, Any]:
    """Return the criterion; its texts are filled with the rubric's, once, since what a variable holds is data."""
    value = one.fields.get("value")
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InvalidRequest(f"{one.where.at('value')}: {clip(str(value))} is no text; write what the output must be similar to")
    return {
        "description": {"similar_to": texts} if len(texts) > 1 else texts[0],
        "form": "similar",
        "grader": _embedder(one.fields.get("provider"), one.options.get("provider"), one.where),
        "score": _scale(one),
        **one.negation,
    }


def _embedder(own: JsonValue, shared: JsonValue, where: Location) -> dict[str, JsonValue]:
    """Return the embedding model of an assertion: its own, that of its test's options, or the default."""
    for provider in (own, shared):
        chosen = provider.get("embedding", provider) if isinstance(provider, dict) else provider
        fields = chosen if isinstance(chosen, dict) else {"id": chosen}
        name = fields.get("id")
        if not isinstance(name, str):
            continue
        for theirs, ours in _EMBEDDERS.items():
            if name.startswith(theirs):
                return {"id": f"{ours}{name.removeprefix(theirs)}"}
        if name.startswith("scripted:"):
            return {"id": name}
        if provider is own:
            known = ", ".join(_EMBEDDERS)
            raise InvalidRequest(f"{where}.provider: {clip(name)} is no embedding model that is called here; known ids begin with {known}")
    return {"id": next((model for variable, model in _DEFAULT_EMBEDDERS if os.environ.get(variable)), _DEFAULT_EMBEDDERS[0][1])}


_JUDGED_KEYS = ("threshold", "provider", "rubricPrompt", "transform")
_SCORE = "`score` runs from 0 to 1"
_AS_CHECK = "write it as a check, a function of the worker's tools"
_NO_TRACE = "a case has no trace; judge its output"


def _judge(name: str, description: str = "{value}", question: str = "", *keys: str, **more: Any) -> AssertionType:  # noqa: ANN401 - other fields
    return AssertionType(name, _judged, (*_JUDGED_KEYS, *keys), description=description, question=question, **more)


_ROWS = (
    _judge("llm-rubric", spellings=("grade",)),
    _judge(
        "model-graded-closedqa",
        "The answer meets this: {value}",
        "You decide whether an answer meets one criterion, and nothing else. Think first, in `reason`. `pass` is true only where the "
        "answer meets the criterion as it is written; `score` is then 1, else 0.",
        asked=True,
    ),
    _judge(
        "factuality",
        "It contradicts none of these facts: {value}",
        "You compare the facts of an answer with those of a reference by experts; style, grammar and order play no part. In `reason` name "
        "one case: the answer states a subset of the reference's facts; a superset that agrees with it; the same facts; facts that "
        "contradict it; or differences that do not matter for the facts. `pass` is false where anything contradicts the reference, and "
        "where the answer states none of its facts; else it is true. `score` is 1 where it passes, else 0.",
        spellings=("model-graded-factuality",),
        asked=True,
    ),
    _judge(
        "g-eval",
        "{value}",
        f"You grade an answer by one criterion. In `reason` first write down the steps by which that criterion is assessed, then go "
        f"through them one by one with what is found in the answer. {_SCORE}, in tenths: 0 where nothing of the criterion is met, 1 where "
        "all of it is. `pass` is true, unless nothing of the criterion is met at all.",
        threshold=0.7,
        asked=True,
    ),
    _judge(
        "answer-relevance",
        "The answer is relevant to what was asked",
        f"You grade whether an answer addresses what was asked. In `reason` say which questions the answer does answer, and whether it "
        f"evades. {_SCORE}: the share of the answer that addresses what was asked; 0 where it evades or says that it does not know. "
        "`pass` is false where the score is 0.",
        threshold=0.5,
        cell_threshold=0.75,
        asked=True,
    ),
    _judge(
        "context-recall",
        "The context has all that this says: {value}",
        f"You grade whether a context has what a reference says. In `reason` go through the reference's sentences, and say of each "
        f"whether it follows from the context. {_SCORE}: the share of the sentences that follow from it. `pass` is false where none does. "
        "The answer itself plays no part.",
        "contextTransform",
        shows=("context",),
        threshold=0.5,
        cell_threshold=0.75,
    ),
    _judge(
        "context-relevance",
        "The context is relevant to what was asked",
        f"You grade whether a context is relevant to a question. In `reason` name the sentences of the context that are needed to answer "
        f"the question. {_SCORE}: their share of all sentences of the context. `pass` is false where none is needed. The answer itself "
        "plays no part.",
        "contextTransform",
        shows=("context",),
        optional=("query",),
        threshold=0.5,
        cell_threshold=0.75,
    ),
    _judge(
        "context-faithfulness",
        "The answer claims nothing that the context does not have",
        f"You grade whether an answer is faithful to a context. In `reason` list the claims of the answer, and say of each whether it "
        f"follows from the context. {_SCORE}: the share of the claims that follow from it; 1 where it claims nothing. `pass` is false "
        "where none follows.",
        "contextTransform",
        shows=("context",),
        optional=("query",),
        threshold=0.5,
        cell_threshold=0.75,
    ),
    _judge(
        "conversation-relevance",
        "Every answer of the conversation is relevant to what came before it",
        f"You grade whether the answers of a conversation are relevant to what came before them: those of the conversation that the "
        f"criterion brings along where it does, else that of the output. In `reason` go through the answers, and name those that are not. "
        f"{_SCORE}: the share of the answers that are relevant. `pass` is false where none is.",
        "config",
        optional=("_conversation",),
        threshold=0.5,
        asked=True,
    ),
    AssertionType("javascript", _coded, ("threshold", "config", "transform"), spellings=("fn", "eval")),
    AssertionType("python", _coded, ("threshold", "config", "transform")),
    AssertionType("similar", _similar, ("threshold", "provider", "transform"), 0.75, 0.8, spellings=("similar:cosine",)),
    AssertionType("select-best", _compared, ("provider",), negatable=False),
    AssertionType("max-score", _compared, ("threshold",), negatable=False),
    *(AssertionType(name, cell_threshold=0.75) for name in ("levenshtein", "perplexity", "perplexity-score", "rouge-n")),
    AssertionType("agent-rubric", refused="write an llm-rubric"),
    AssertionType("classifier", refused="no classifier is called here; write an llm-rubric that names the class"),
    AssertionType("gleu", refused="use bleu or rouge-n"),
    AssertionType("guardrails", refused="no provider's guardrails are called here; write an llm-rubric on what they look for"),
    AssertionType("human", negatable=False, refused="a person decides a criterion with `human: true` in a rubric of ours"),
    AssertionType("meteor", refused="it needs WordNet's data; use rouge-n, bleu or similar"),
    AssertionType("moderation", refused="no moderation model is called here; write an llm-rubric that names what must not be there"),
    AssertionType("pi", refused="no such service is called here; write an llm-rubric"),
    AssertionType("ruby", refused="it is code in a language that is not run; write it in JavaScript or Python"),
    AssertionType("search-rubric", refused="write an llm-rubric, and give the grader a tool that searches"),
    *(AssertionType(f"similar:{kind}", refused="use similar, which compares the cosine") for kind in ("dot", "euclidean")),
    AssertionType("skill-used", refused=_AS_CHECK),
    AssertionType("tool-call-f1", refused=_AS_CHECK),
    *(AssertionType(f"trace-{kind}", refused=_NO_TRACE) for kind in ("error-spans", "span-count", "span-duration")),
    *(
        AssertionType(f"trajectory:{kind}", refused=_NO_TRACE)
        for kind in ("goal-success", "step-count", "tool-args-match", "tool-sequence", "tool-used")
    ),
    AssertionType("webhook", refused="no case sends its output anywhere; write the check as a function of the worker's tools"),
)

TYPES: Mapping[str, AssertionType] = {name: row for row in _ROWS for name in (row.name, *row.spellings)}
"""The types by their names; those that are kinds of checks have a row where more is known of them than `CHECKS` says."""


def _row_of(fields: Mapping[str, JsonValue], where: Location) -> AssertionType:
    """Return the row of an assertion's type; one without a counterpart is refused with what is written instead."""
    name = str(fields.get("type"))
    if (row := find_type(name)) is None:
        hint = did_you_mean(name.removeprefix(_NEGATED), ["llm-rubric", "assert-set", *kinds_of(TEXT_CHECK)])
        raise InvalidRequest(f"{where}: the type {clip(name)} has no counterpart; {_AS_CHECK}.{hint}")
    return row


METRIC_CHARACTERS = 200
"""The most characters of a metric's name."""


@dataclass(frozen=True)
class AssertionList:
    """The assertions of a test, with the options that apply to all of them."""

    assertions: tuple[tuple[JsonValue, Location], ...]
    options: Mapping[str, JsonValue]
    """`provider` and `rubricPrompt` for assertions without their own."""
    threshold: float | None = None
    name: str | None = None
    allow_code: bool = False
    """Whether the user of the suite has allowed its code to run."""

    def rubric(self, variables: Mapping[str, JsonValue], where: Location) -> Rubric:
        """Build a rubric with one criterion for every assertion, the variables filled in.

        Without a threshold all must pass, but those of weight 0; with one the mean of the scores alone decides.

        Raises:
            InvalidRequest: An assertion has no counterpart, is invalid, or names a variable that is not there.
        """
        criteria = [self._criterion(value, variables, spot) for value, spot in self.assertions]
        named = [member for criterion in criteria for member in criterion.get("criteria", [criterion]) if "id" in member]
        for member, name in zip(named, distinct(_id_of(str(member["id"])) for member in named), strict=True):
            member["id"] = name
        raw: dict[str, Any] = {"criteria": criteria}
        raw |= {"name": self.name} if self.name else {}
        raw |= {"gate": "none", "threshold": self.threshold} if self.threshold is not None else {}
        spots = [spot for value, where in self.assertions for spot in _spots(value, where)]
        fields = {"description": "value", "prompt": "rubricPrompt"}
        with explained_at(where):
            whole = self._weighed(Rubric.model_validate(raw), where)
            return fill_rubric(whole, variables, lambda at, field: str(spots[at].at(fields[field])))

    def _criterion(self, value: JsonValue, variables: Mapping[str, JsonValue], where: Location) -> dict[str, Any]:
        """Return the criterion, or the group of criteria, of an assertion; a key without a value is absent, as in promptfoo."""
        fields = {key: item for key, item in as_object(value, where).items() if item is not None}
        weight, metric = fields.get("weight", 1), fields.get("metric")
        if fields.get("type") == "assert-set":
            refuse_others(fields, {"type", "assert", "threshold", "weight", "metric"}, where)
            inner = where.at("assert")
            members = [self._criterion(member, variables, spot) for member, spot in located(as_list(fields.get("assert"), inner), inner)]
            criterion: dict[str, Any] = {"group": fields.get("metric", f"assert[{where.path[-1]}]"), "criteria": members}
            criterion |= {name: fields[name] for name in ("threshold", "weight") if name in fields}
        else:
            criterion = Assertion(_row_of(fields, where), fields, where, self.options, variables, self.allow_code).criterion()
            criterion |= ({"weight": weight} if weight != 1 else {}) | ({"id": metric} if metric is not None else {})
        return criterion | ({"required": False} if weight == 0 else {})

    def metrics(self, rubric: Rubric, variables: Mapping[str, JsonValue]) -> tuple[MetricShare, ...]:
        """Return how the criteria of the rubric that `rubric` built count in the metrics that the assertions name.

        As promptfoo has it, an assertion counts with its weight, a set by the mean of its members, whose own metrics count with the set's
        weight, too. A weight of 0, which reports an assertion without asking for it, counts as 1 here.
        """
        ids = iter([criterion.id for criterion in rubric.criteria])
        shares: list[MetricShare] = []
        for value, where in self.assertions:
            fields = as_object(value, where)
            own = _metric(fields, variables, where)
            if fields.get("type") != "assert-set":
                shares += _share(own, next(ids), _weight(fields))
                continue
            members = [
                (as_object(member, spot), spot) for member, spot in located(as_list(fields.get("assert"), where), where.at("assert"))
            ]
            total = sum(_weight(member) for member, _ in members)
            for member, spot in members:
                name, inner = next(ids), _metric(member, variables, spot)
                shares += _share(own, name, _weight(fields) * _weight(member) / total)
                shares += _share(inner if inner != own else None, name, _weight(fields) * _weight(member))
        return tuple(shares)

    def _weighed(self, rubric: Rubric, where: Location) -> Rubric:
        """Return the rubric with the weights of `max-score`, which promptfoo writes by an assertion's type, by its criterion's id.

        Raises:
            InvalidRequest: There is nothing whose scores could be compared.
        """
        comparing = [check for _, check in rubric.checks(COMPARISON_CHECK) if check.arguments["kind"] == "max-score"]
        if comparing and not without_comparisons(rubric).criteria:
            raise InvalidRequest(f"{where}: max-score compares the scores of other assertions, and there are none; add one")
        if not any(check.arguments.get("weights") for check in comparing):
            return rubric
        kinds = [str(value.get("type")) for value, _ in self.assertions if isinstance(value, dict)]
        if "assert-set" in kinds:
            raise InvalidRequest(
                f"{where}: the weights of max-score are by an assertion's type, which an assert-set has several of; leave one out"
            )
        ids = list(zip(kinds, (criterion.id for criterion in rubric.criteria), strict=True))
        return rubric.model_copy(update={"criteria": tuple(_with_weights(criterion, ids) for criterion in rubric.criteria)})


def shows_variables(value: JsonValue) -> bool:
    """Tell whether the criteria of an assertion hold variables of the test, whatever its text says."""
    fields = value if isinstance(value, dict) else {}
    row, members = find_type(str(fields.get("type"))), fields.get("assert")
    return bool(row and (row.shows or row.optional)) or (isinstance(members, list) and any(map(shows_variables, members)))


def _metric(fields: Mapping[str, JsonValue], variables: Mapping[str, JsonValue], where: Location) -> str | None:
    """Return the metric that an assertion names, variables filled in where all are there; one that is empty then is none."""
    if fields.get("metric") is None:
        return None
    name = str(fields["metric"])
    with suppress(InvalidRequest):
        name = fill_text(name, variables, str(where.at("metric")))
    return name.strip()[:METRIC_CHARACTERS] or None


def _weight(fields: Mapping[str, JsonValue]) -> float:
    weight = fields.get("weight", 1)
    return float(weight) if isinstance(weight, int | float) and weight > 0 else 1.0


def _share(metric: str | None, criterion: str, weight: float) -> list[MetricShare]:
    return [] if metric is None else [MetricShare(name=metric, criterion=criterion, weight=weight)]


def _with_weights(criterion: Criterion, ids: Sequence[tuple[str, str]]) -> Criterion:
    weights = criterion.check.arguments.get("weights") if criterion.check else None
    if criterion.check is None or criterion.check.tool != COMPARISON_CHECK or not isinstance(weights, dict):
        return criterion
    own: dict[str, JsonValue] = {name: weights[kind] for kind, name in ids if kind in weights}
    arguments = {**criterion.check.arguments, "weights": own}
    return criterion.model_copy(update={"check": criterion.check.model_copy(update={"arguments": arguments})})


def _spots(value: JsonValue, where: Location) -> Iterator[Location]:
    """Yield the place of each criterion that an assertion makes: its own, or those of its members."""
    members = value.get("assert") if isinstance(value, dict) and value.get("type") == "assert-set" else None
    yield from (spot for _, spot in located(members, where.at("assert"))) if isinstance(members, list) else (where,)


def located(values: Sequence[JsonValue], where: Location) -> tuple[tuple[JsonValue, Location], ...]:
    """Return every assertion of a list with its place."""
    return tuple((value, where.at(at)) for at, value in enumerate(values))


def _id_of(metric: str) -> str:
    """Return a metric, which may be any text, as the id of a criterion."""
    plain = re.sub(r"[^\w.-]+", "-", metric, flags=re.ASCII).strip("-")[:56]
    return plain if plain[:1].isalpha() else f"m-{plain}".rstrip("-")
