"""Rubrics converted from promptfoo's assertions and Mastra's scorers."""

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue, ValidationError

from gradeloop.contract.criterion import PromptMessage, PromptSlot
from gradeloop.contract.rubric import Rubric, without_marker
from gradeloop.errors import InvalidRequest, explain
from gradeloop.files.roots import FileScope
from gradeloop.files.rubric import inline_files
from gradeloop.files.yaml import Location, read_placed
from gradeloop.suites.assertions import AssertionList, located
from gradeloop.suites.fields import as_list, as_object, refuse_others
from gradeloop.suites.promptfoo_tests import variable_combinations
from gradeloop.text import clip

Source = Literal["promptfoo", "mastra"]


def convert_file(path: Path, source: Source | None, test: int, outside: Sequence[Path] = ()) -> Rubric:
    """Convert a file of promptfoo or Mastra into a rubric.

    Raises:
        InvalidRequest: The file cannot be read, is of neither, or has something without a counterpart.
    """
    if not path.is_file():
        raise InvalidRequest(f"the file {str(path)!r} does not exist; name one")
    raw, placed = read_placed(path, "the file", aliases=True)
    value = inline_files(raw, FileScope.of(path, outside), Location(f"the file {str(path)!r}", (), placed))
    return from_promptfoo(value, test=test) if (source or _detect(value)) == "promptfoo" else from_mastra(value)


def _detect(value: JsonValue) -> Source:
    items = value if isinstance(value, list) else [value]
    keys = {key for item in items if isinstance(item, dict) for key in item}
    if keys & {"assert", "tests", "type", "defaultTest"}:
        return "promptfoo"
    if keys & {"criteria", "scorers", "description"}:
        return "mastra"
    raise InvalidRequest("the file is neither promptfoo's (tests, assert) nor Mastra's (criteria, scorers); say whose with --from")


_TEST_KEYS = {"assert", "vars", "options", "threshold", "description"}


def from_promptfoo(value: JsonValue, *, test: int = 0) -> Rubric:
    """Convert the assertions of a test into a rubric, its `vars` filled in.

    Every assertion is one criterion, however many lines its `value` has, answered as `{reason, pass, score}` in a call of its own, or
    decided by a check. Without a threshold of the test all must pass, but those of weight 0; with one the mean of the scores alone decides.

    Args:
        value: A configuration, a test, a list of assertions, or an assertion.
        test: The number of the configuration's test, from 0; one whose variables are lists counts as the tests that these make.

    Raises:
        InvalidRequest: Something has no counterpart; the message names it.
    """
    raw, default = _select_test(value, test)
    options = {**as_object(default.get("options"), "defaultTest.options"), **as_object(raw.get("options"), "options")}
    assertions = [*as_list(default.get("assert"), "defaultTest.assert"), *as_list(raw.get("assert"), "assert")]
    threshold = default.get("threshold") if raw.get("threshold") is None else raw["threshold"]
    if not isinstance(threshold, int | float | None):
        raise InvalidRequest(f"threshold is {threshold!r}; write a number from 0 to 1")
    variables = {**as_object(default.get("vars"), "defaultTest.vars"), **as_object(raw.get("vars"), "vars")}
    name = raw.get("description")
    built = AssertionList(located(assertions, Location(path=("assert",))), options, threshold, name if isinstance(name, str) else None)
    try:
        return built.rubric(variables, Location())
    except InvalidRequest as error:
        raise InvalidRequest(f"the assertions make no rubric: {error}") from None


def _select_test(value: JsonValue, number: int) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """Return the selected test, and the configuration's `defaultTest`."""
    if isinstance(value, list):
        return {"assert": value}, {}
    fields = as_object(value, "the file")
    if "type" in fields:
        return {"assert": [fields]}, {}
    if "tests" not in fields:
        refuse_others(fields, _TEST_KEYS, Location("the test"))
        return fields, {}
    default = as_object(fields.get("defaultTest"), "defaultTest")
    written = [as_object(raw, f"tests[{at}]") for at, raw in enumerate(as_list(fields["tests"], "tests"))]
    tests = [expanded for raw in written for expanded in _expand(raw, default)]
    if not 0 <= number < len(tests):
        raise InvalidRequest(f"test {number} is not there; they run from 0 to {len(tests) - 1}")
    return tests[number], default


def _expand(test: dict[str, JsonValue], default: dict[str, JsonValue]) -> Iterator[dict[str, JsonValue]]:
    """Yield the tests that a test makes: one for each combination of its variables that are lists."""
    options = {**as_object(default.get("options"), "defaultTest.options"), **as_object(test.get("options"), "options")}
    variables = {**as_object(default.get("vars"), "defaultTest.vars"), **as_object(test.get("vars"), "vars")}
    for combination in variable_combinations(variables, expands=not options.get("disableVarExpansion")):
        yield {**test, "vars": combination}


_SCORER_KEYS = {"criteria", "id", "name", "description"}
_GATE_KEYS = {"scorers", "strategy", "parallel"}


def from_mastra(value: JsonValue) -> Rubric:
    """Convert a scorer, or the scorers of `isTaskComplete`, into a rubric that scores 1 where it is met, else 0.

    Criteria are required unless they say `required: false`; where none is required, all are. A scorer without criteria asks no model
    and scores 1. Unlike Mastra's, a marker is one only where white space follows: `3.5 stars` stays.

    Args:
        value: `{criteria}`, or `{scorers, strategy}`; criteria are a text with one a line, or a list of `{id?, description, required?}`.

    Raises:
        InvalidRequest: Something has no counterpart; the message names it.
    """
    if not isinstance(value, dict):
        value = {"criteria": value}
    raw: dict[str, Any] = {"scoring": "binary"}
    if "scorers" in value:
        raw |= _gate(value)
    else:
        refuse_others(value, _SCORER_KEYS, Location("the scorer"))
        raw["criteria"] = _criteria(value.get("criteria"), "criteria")
    try:
        return Rubric.model_validate(raw)
    except ValidationError as error:
        raise InvalidRequest(f"the scorers make no rubric: {explain(error)}") from None


def _gate(value: dict[str, JsonValue]) -> dict[str, Any]:
    refuse_others(value, _GATE_KEYS, Location("isTaskComplete"))
    strategy, scorers = value.get("strategy", "all"), value["scorers"]
    if strategy not in {"all", "any"}:
        raise InvalidRequest(f"strategy: {clip(str(strategy))} has no counterpart; write all or any")
    if not isinstance(scorers, list):
        raise InvalidRequest(f"scorers is {clip(str(scorers))}; it must be a list")
    groups = [_scorer(scorer, at) for at, scorer in enumerate(scorers)]
    empty = [group for group in groups if not group["criteria"]]  # each of which scores 1
    criteria = [] if empty and strategy == "any" else [group for group in groups if group["criteria"]]
    return {"gate": "any" if strategy == "any" else "required", "criteria": criteria}


def _scorer(value: JsonValue, at: int) -> dict[str, Any]:
    where = f"scorers[{at}]"
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be an object with criteria")
    refuse_others(value, _SCORER_KEYS, Location(where))
    name = value.get("name") or value.get("id") or f"scorer {at + 1}"
    return {"group": name, "criteria": _criteria(value.get("criteria"), f"{where}.criteria")}


def _criteria(value: JsonValue, where: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str):
        return [without_marker(line.strip()) for line in value.splitlines() if any(map(str.isalnum, line))]
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be a text or a list")
    for at, criterion in enumerate(value):
        if isinstance(criterion, dict):
            refuse_others(criterion, {"id", "description", "required"}, Location(f"{where}[{at}]"))
    return [_required_as_there(criterion) if isinstance(criterion, dict) else criterion for criterion in value]


def _required_as_there(criterion: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a criterion that is optional where it says `required: false`, and by no other value: Mastra compares with `!== false`."""
    return {**criterion, "required": criterion["required"] is not False} if "required" in criterion else criterion


def as_yaml(rubric: Rubric) -> str:
    """Return a rubric as YAML in the short form that a person would write."""
    from ruamel.yaml import YAML

    raw = json.loads(rubric.model_dump_json(exclude_none=True, exclude_defaults=True))
    raw["criteria"] = raw.get("criteria") or []
    for fields, criterion in zip(raw["criteria"], rubric.criteria, strict=True):
        if criterion.prompt:
            fields["prompt"] = _prompt(criterion.prompt.messages)
    if rubric.prompt:
        raw["prompt"] = _prompt(rubric.prompt.messages)
    written = io.StringIO()
    YAML().dump(raw, written)
    return written.getvalue()


def _prompt(messages: tuple[object, ...]) -> JsonValue:
    parsed = [message for message in messages if isinstance(message, PromptMessage)]
    texts = ["".join(part.written if isinstance(part, PromptSlot) else part for part in message.parts) for message in parsed]
    if len(parsed) == 1 and parsed[0].role == "user":
        return texts[0]
    return [{"role": message.role, "content": text} for message, text in zip(parsed, texts, strict=True)]
