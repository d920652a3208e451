"""The types of promptfoo's assertions, one row each, and the assertions of a test as a rubric of ours and as named metrics."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import JsonValue

from gradeloop.batches.draft_checks import CALL_CHECK, COMPARISON_CHECK, without_comparisons
from gradeloop.contract.criterion import PromptSlot, split_at_slots
from gradeloop.contract.named_metrics import MetricShare
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location, explained_at, read_yaml
from gradeloop.grading.checks import CHECKS, TEXT_CHECK, kinds_of, valid_kind
from gradeloop.grading.code_checks import CODE_CHECK, parse_code_check
from gradeloop.grading.templates import fill_rubric, fill_text, fill_value
from gradeloop.suites.chats import read_chat
from gradeloop.suites.code_files import is_code_file, parse_transform, refuse_code
from gradeloop.suites.providers import parse_provider
from gradeloop.suites.unsupported import Keys, as_list, as_object, promptfoo_table, refuse_others
from gradeloop.text import clip, did_you_mean, distinct, one_line

PROMPT_CRITERION = "What the rubricPrompt asks for"
"""The criterion of an assertion with a prompt and no value."""

_NEGATED = "not-"


@dataclass(frozen=True)
class AssertionType:
    """A row of the table of types in `promptfoo_tables.toml`: all that is known here of one of promptfoo's."""

    name: str
    build: Callable[["Assertion"], dict[str, Any]] | None = None
    """Makes the criterion of an assertion; None where the type is refused, or is a kind of check."""
    own_keys: Sequence[str] = ()
    threshold: float | None = None
    cell_threshold: float | None = None
    spellings: Sequence[str] = ()
    negatable: bool = True
    """Whether it has a `not-` form, and may begin a cell of CSV."""
    refused: str = ""
    description: str = "{value}"
    question: str = ""
    """Empty for the instructions of every criterion."""
    shows: Sequence[str] = ()
    optional: Sequence[str] = ()
    asked: bool = False
    categories: Mapping[str, float] = field(default_factory=dict)

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
    kinds = dict.fromkeys((*kinds_of(CALL_CHECK), *kinds_of(TEXT_CHECK)))
    names = dict.fromkeys(row.name for row in TYPES.values() if row.name not in kinds)
    yield from (row for name in (*names, *kinds) if (row := find_type(name)))


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
            InvalidRequest: The type is not supported, the assertion is invalid, or it is code that its user has not allowed.
        """
        value = self.fields.get("value")
        if isinstance(value, dict) and is_code_file(value) and self.row.build is not _coded:
            name = clip(str(value["file"]))
            raise InvalidRequest(f"{self.where.at('value')}: {name} is code, which makes no value here; write the value out")
        refuse_others(self.fields, self.row.keys.read, self.where)
        criterion = self.row.build(self) if self.row.build else {}
        for key in ("transform", "contextTransform"):
            if key in self.fields:
                if not self.allow_code:
                    raise refuse_code(self.where.at(key), f"the {key}")
                code = parse_transform(self.fields[key], "get_transform", self.where.at(key))
                back = {} if key == "transform" else {"finds_context": 2 if "transform" in self.options else 1}
                criterion.get("check", criterion)["transform"] = code.model_dump() | back
        return criterion


def _judged(one: Assertion) -> dict[str, Any]:
    """Return the criterion of a type that a model judges."""
    row, value, prompt = one.row, one.fields.get("value"), one.fields.get("rubricPrompt", one.options.get("rubricPrompt"))
    if isinstance(value, list):
        value = "\n".join(f"- {item}" for item in value)
    if isinstance(prompt, str):
        prompt = read_chat(prompt, one.where.at("rubricPrompt")) or prompt
    written = json.dumps(prompt, ensure_ascii=False)
    scores = one.options.get("factuality")
    categories = row.categories if "category" in written or scores else {}
    if prompt is not None:
        # The names of promptfoo's own prompts are replaced in the JSON of the whole prompt, a text or a chat,
        # so that each string in it is reached. A variable of the test that has such a name comes first, as it
        # does there.
        prompt = json.loads(_NAME.sub(lambda name: _SLOTS[name[1]] if name[1] not in one.variables else name[0], written))
        prompt = [_spoken(message) for message in prompt] if isinstance(prompt, list) else prompt
    if row.question:
        description = _description(row, value, one, own=prompt is not None)
        named = f"The categories: {', '.join(map(': '.join, zip('ABCDE', categories, strict=False)))}." if categories else ""
        prompt = _prompt(row, one, named) if prompt is None else prompt
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
        **({"categories": dict(zip("ABCDE", {**categories, **as_object(scores, one.where)}.values(), strict=False))} if categories else {}),
    }


_SLOTS = {
    **dict.fromkeys(("completion", "answer"), "{{ output }}"),
    **dict.fromkeys(("ideal", "criteria", "groundTruth"), "{{ rubric }}"),
    "input": "{{ transcript }}",
}
"""Our slots by the names that they have in prompts for some of promptfoo's types."""

_NAME = re.compile(rf"\{{\{{\s*({'|'.join(_SLOTS)})\s*\}}\}}")


def _spoken(message: JsonValue) -> JsonValue:
    """Return a message of a prompt; what is judged stands in none of the system's."""
    slots = split_at_slots(str(message.get("content"))) if isinstance(message, dict) and message.get("role") == "system" else ()
    return {**message, "role": "user"} if isinstance(message, dict) and any(isinstance(slot, PromptSlot) for slot in slots) else message


def _scale(one: Assertion) -> dict[str, JsonValue]:
    threshold = one.fields.get("threshold", one.row.threshold)
    return {"min": 0, "max": 1} | ({"threshold": threshold} if threshold is not None else {})


def _description(row: AssertionType, value: JsonValue, one: Assertion, *, own: bool) -> JsonValue:
    """Return the criterion; what its type is about rides in it, so that the grader sees it behind the criterion's fence.

    Raises:
        InvalidRequest: The assertion lacks its value, or its test a variable that its type is about.
    """
    text = value if isinstance(value, str) else ""
    if "{value}" in row.description and not text.strip():
        raise InvalidRequest(f"{one.where}: the assertion has no value; write what {one.row.name} compares the output with")
    made = {"context"} if "contextTransform" in one.fields else set()
    if missing := next((shown for shown in row.shows if shown not in {*one.variables, *made}), None):
        raise InvalidRequest(f"{one.where}: {one.row.name} is about the variable {missing}, which the test does not have; give it in vars")
    text = row.description.replace("{value}", text)
    shown = [name for name in (*row.optional, *row.shows) if name in one.variables and name not in made]
    return text if own or not shown else {"criterion": text, **{name: f"{{{{ {name} }}}}" for name in shown}}


def _prompt(row: AssertionType, one: Assertion, more: str) -> JsonValue:
    """Return the grader's prompt: the instructions, the criterion, and what is judged."""
    if "contextTransform" in one.fields:
        parts = ["The criterion:\n{{ rubric }}", "The context:\n{{ output.context }}", "The answer:\n{{ output.answer }}"]
        return [{"role": "user", "content": "\n\n".join([row.question, *parts])}]
    about = f", with {' and '.join(row.shows)}" if row.shows else ""
    shown = "The conversation, with the answer as its last record:\n{{ transcript }}" if row.asked else "The answer:\n{{ output }}"
    parts = [row.question, more, f"The criterion{about}:\n{{{{ rubric }}}}", shown]
    return [{"role": "user", "content": "\n\n".join(filter(None, parts))}]


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


# A description is filled as a template later on. The author's code may hold braces of its own, and so must
# not be read as one.
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
        raise InvalidRequest(f"{place}: {clip(str(value))} is not code; write an expression over output, or name a file")
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


def _similar(one: Assertion) -> dict[str, Any]:
    """Return the criterion; its texts are filled with the rubric's, once, since what a variable holds is data."""
    value = one.fields.get("value")
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InvalidRequest(f"{one.where.at('value')}: {clip(str(value))} is not a string; write what the output must be similar to")
    return {
        "description": {"similar_to": texts} if len(texts) > 1 else texts[0],
        "form": "similar",
        "grader": _embedder(one.fields.get("provider"), one.options.get("provider"), one.where),
        "score": _scale(one),
        **one.negation,
    }


def _embedder(own: JsonValue, shared: JsonValue, where: Location) -> dict[str, JsonValue]:
    """Return the embedding model of an assertion: its own, that of its test's options, or the default by the key that is there."""
    prefixes, defaults = (promptfoo_table("embedders")[name] for name in ("prefixes", "defaults"))
    for provider in (own, shared):
        chosen = provider.get("embedding", provider) if isinstance(provider, dict) else provider
        name = chosen.get("id") if isinstance(chosen, dict) else chosen
        if not isinstance(name, str):
            continue
        if found := next((theirs for theirs in prefixes if name.startswith(theirs)), None):
            return {"id": f"{prefixes[found]}{name.removeprefix(found)}"}
        if provider is own:
            known = ", ".join(prefixes)
            raise InvalidRequest(
                f"{where}.provider: {clip(name)} is not an embedding model that is called here; known ids begin with {known}"
            )
    return {"id": next((model for variable, model in defaults.items() if os.environ.get(variable)), next(iter(defaults.values())))}


_BUILDERS = {"judged": _judged, "coded": _coded, "similar": _similar, "compared": _compared}

TYPES: Mapping[str, AssertionType] = {
    spelling: row
    for name, fields in promptfoo_table("types").items()
    for row in [AssertionType(**{**fields, "name": name, "build": _BUILDERS.get(fields.get("build", ""))})]
    for spelling in (name, *row.spellings)
}
"""The types by their names; those that are kinds of checks have a row where more is known of them than `CHECKS` says."""


def _row_of(fields: Mapping[str, JsonValue], where: Location) -> AssertionType:
    """Return the row of an assertion's type; an unsupported one is refused with what is written instead."""
    name = str(fields.get("type"))
    if (row := find_type(name)) is not None and row.build is not None:
        return row
    hint = did_you_mean(name.removeprefix(_NEGATED), ["llm-rubric", "assert-set", *kinds_of(TEXT_CHECK)])
    cure = row.refused if row else f"write it as a check, a function of the worker's tools.{hint}"
    raise InvalidRequest(f"{where}: the type {clip(name)} is not supported; {cure}")


METRIC_CHARACTERS = 200
"""The most characters of a metric's name."""


@dataclass(frozen=True)
class AssertionList:
    """The assertions of a test, with the options that apply to all of them."""

    assertions: tuple[tuple[JsonValue, Location], ...]
    options: Mapping[str, JsonValue]
    """`provider` and `rubricPrompt` for assertions without their own."""
    threshold: float | None = None
    allow_code: bool = False
    """Whether the user of the suite has allowed its code to run."""

    def rubric(self, variables: Mapping[str, JsonValue], where: Location) -> Rubric:
        """Build a rubric with one criterion for every assertion, the variables filled in.

        Without a threshold all must pass, but those of weight 0; with one only the mean of the scores decides.

        Raises:
            InvalidRequest: An assertion is not supported, is invalid, or names a variable that is not there.
        """
        criteria = [self._criterion(value, variables, spot) for value, spot in self.assertions]
        named = [member for criterion in criteria for member in criterion.get("criteria", [criterion]) if "id" in member]
        for member, name in zip(named, distinct(_id_of(str(member["id"])) for member in named), strict=True):
            member["id"] = name
        raw: dict[str, Any] = {"criteria": criteria}
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
        shares: list[tuple[str | None, str, float]] = []
        for value, where in self.assertions:
            fields = as_object(value, where)
            own, weight = _metric(fields, variables, where), _weight(fields)
            if fields.get("type") != "assert-set":
                shares.append((own, next(ids), weight))
                continue
            members = [(as_object(one, spot), spot) for one, spot in located(as_list(fields.get("assert"), where), where.at("assert"))]
            total = sum(_weight(member) for member, _ in members)
            for member, spot in members:
                name, inner = next(ids), _metric(member, variables, spot)
                shares.append((own, name, weight * _weight(member) / total))
                shares.append((inner if inner != own else None, name, weight * _weight(member)))
        return tuple(MetricShare(name=name, criterion=criterion, weight=weight) for name, criterion, weight in shares if name is not None)

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
        kinds = [str(as_object(value, where).get("type")) for value, _ in self.assertions]
        if "assert-set" in kinds:
            problem = "the weights of max-score are by an assertion's type, which an assert-set has several of; leave one out"
            raise InvalidRequest(f"{where}: {problem}")
        raw = rubric.model_dump(mode="json")
        for criterion in raw["criteria"]:
            given = (criterion.get("check") or {}).get("arguments", {})
            if isinstance(given.get("weights"), dict):
                own = zip(kinds, rubric.criteria, strict=True)
                given["weights"] = {one.id: given["weights"][kind] for kind, one in own if kind in given["weights"]}
        return Rubric.model_validate(raw)


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
