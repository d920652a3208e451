"""Rubrics made of promptfoo's and Mastra's."""

import io
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue, ValidationError

from gradeloop.contract.criterion import PromptSlot
from gradeloop.contract.rubric import Rubric, without_marker
from gradeloop.errors import InvalidRequest, explain
from gradeloop.files.rubric import inline_files
from gradeloop.files.yaml import Location, read_yaml
from gradeloop.suites.assertions import AssertionList, as_list, as_object, located, refuse_others
from gradeloop.text import clip

_TEST = {"assert", "vars", "options", "threshold", "description"}


def from_promptfoo(value: JsonValue, *, test: int = 0) -> Rubric:
    """Return a test's assertions as a rubric, its `vars` filled in.

    Every assertion is one criterion, however many lines its `value` has, answered as `{reason, pass, score}` in a call of its own, or
    decided by a check. Without a threshold of the test all must pass, but those of weight 0; with one the mean of the scores alone decides.

    Args:
        value: A configuration, a test, a list of assertions, or one.
        test: Which of a configuration's tests, from 0.

    Raises:
        InvalidRequest: Something has no counterpart; the message names it.
    """
    whole, default = _test_of(value, test)
    options = {**as_object(default.get("options"), "defaultTest.options"), **as_object(whole.get("options"), "options")}
    told = [*as_list(default.get("assert"), "defaultTest.assert"), *as_list(whole.get("assert"), "assert")]
    threshold = whole.get("threshold", default.get("threshold"))
    if not isinstance(threshold, int | float | None):
        raise InvalidRequest(f"threshold is {threshold!r}; write a number from 0 to 1")
    variables = {**as_object(default.get("vars"), "defaultTest.vars"), **as_object(whole.get("vars"), "vars")}
    name = whole.get("description")
    asserted = AssertionList(located(told, Location(path=("assert",))), options, threshold, name if isinstance(name, str) else None)
    try:
        return asserted.rubric(variables, Location())
    except InvalidRequest as error:
        raise InvalidRequest(f"the assertions make no rubric: {error}") from None


def _test_of(value: JsonValue, number: int) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """Return the test that is meant, and what a configuration says of all of them."""
    if isinstance(value, list):
        return {"assert": value}, {}
    told = as_object(value, "the file")
    if "type" in told:
        return {"assert": [told]}, {}
    if "tests" not in told:
        refuse_others(told, _TEST, Location("the test"))
        return told, {}
    tests = as_list(told["tests"], "tests")
    if not 0 <= number < len(tests):
        raise InvalidRequest(f"test {number} is not there; they run from 0 to {len(tests) - 1}")
    return as_object(tests[number], f"tests[{number}]"), as_object(told.get("defaultTest"), "defaultTest")


_OF_A_SCORER = {"criteria", "id", "name", "description"}
_OF_A_GATE = {"scorers", "strategy", "parallel"}


def from_mastra(value: JsonValue) -> Rubric:
    """Return a scorer, or the scorers of `isTaskComplete`, as a rubric that scores 1 where it is met, else 0.

    Required is what does not say `required: false`; where nothing is required, all is. A scorer without criteria asks no model and
    scores 1. Unlike Mastra's, a marker is one only where white space follows: `3.5 stars` stays.

    Args:
        value: `{criteria}`, or `{scorers, strategy}`; criteria are a text, a line each, or a list of `{id?, description, required?}`.

    Raises:
        InvalidRequest: Something has no counterpart; the message names it.
    """
    if not isinstance(value, dict):
        value = {"criteria": value}
    raw: dict[str, Any] = {"scoring": "binary"}
    if "scorers" in value:
        raw |= _gate(value)
    else:
        _refuse_others(value, _OF_A_SCORER, "the scorer")
        raw["criteria"] = _criteria(value.get("criteria"), "criteria")
    try:
        return Rubric.model_validate(raw)
    except ValidationError as error:
        raise InvalidRequest(f"the scorers make no rubric: {explain(error)}") from None


def _gate(value: dict[str, JsonValue]) -> dict[str, Any]:
    _refuse_others(value, _OF_A_GATE, "isTaskComplete")
    strategy, scorers = value.get("strategy", "all"), value["scorers"]
    if strategy not in {"all", "any"}:
        raise InvalidRequest(f"strategy: {clip(str(strategy))} has no counterpart; write all or any")
    if not isinstance(scorers, list):
        raise InvalidRequest(f"scorers is {clip(str(scorers))}; it must be a list")
    groups = [_scorer(each, at) for at, each in enumerate(scorers)]
    empty = [group for group in groups if not group["criteria"]]  # each of which scores 1
    asked = [] if empty and strategy == "any" else [group for group in groups if group["criteria"]]
    return {"gate": "any" if strategy == "any" else "required", "criteria": asked}


def _scorer(value: JsonValue, at: int) -> dict[str, Any]:
    where = f"scorers[{at}]"
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be an object with criteria")
    _refuse_others(value, _OF_A_SCORER, where)
    name = value.get("name") or value.get("id") or f"scorer {at + 1}"
    return {"group": name, "criteria": _criteria(value.get("criteria"), f"{where}.criteria")}


def _criteria(value: JsonValue, where: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str):
        return [without_marker(line.strip()) for line in value.splitlines() if any(map(str.isalnum, line))]
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be a text or a list")
    for at, each in enumerate(value):
        if isinstance(each, dict):
            _refuse_others(each, {"id", "description", "required"}, f"{where}[{at}]")
    return value


def _refuse_others(told: dict[str, JsonValue], known: set[str], where: str) -> None:
    if odd := sorted(set(told) - known):
        raise InvalidRequest(f"{where}: {clip(odd[0])} has no counterpart; leave it out. Known: {', '.join(sorted(known))}.")


Source = Literal["promptfoo", "mastra"]


def convert_file(path: Path, source: Source | None, test: int) -> Rubric:
    """Return the rubric that a file of somebody else's makes.

    Raises:
        InvalidRequest: It makes none, or something in it has no counterpart.
    """
    if not path.is_file():
        raise InvalidRequest(f"the file {str(path)!r} does not exist; name one")
    value = inline_files(read_yaml(path, "the file"), path.parent)
    return from_promptfoo(value, test=test) if (source or _source(value)) == "promptfoo" else from_mastra(value)


def _source(value: JsonValue) -> Source:
    keys = (
        set(value)
        if isinstance(value, dict)
        else {key for each in value if isinstance(each, dict) for key in each}
        if isinstance(value, list)
        else set()
    )
    if keys & {"assert", "tests", "type", "defaultTest"}:
        return "promptfoo"
    if keys & {"criteria", "scorers", "description"}:
        return "mastra"
    raise InvalidRequest("the file is neither promptfoo's (tests, assert) nor Mastra's (criteria, scorers); say whose with --from")


def as_yaml(rubric: Rubric) -> str:
    """Return a rubric as a person would write it."""
    from ruamel.yaml import YAML

    raw = json.loads(rubric.model_dump_json(exclude_none=True, exclude_defaults=True))
    raw["criteria"] = raw.get("criteria") or []
    for told, criterion in zip(raw["criteria"], rubric.criteria, strict=True):
        if criterion.prompt:
            told["prompt"] = _prompt(criterion.prompt.messages)
    if rubric.prompt:
        raw["prompt"] = _prompt(rubric.prompt.messages)
    written = io.StringIO()
    YAML().dump(raw, written)
    return written.getvalue()


def _prompt(messages: tuple[object, ...]) -> JsonValue:
    from gradeloop.contract.criterion import PromptMessage

    told = [message for message in messages if isinstance(message, PromptMessage)]
    texts = ["".join(part.written if isinstance(part, PromptSlot) else part for part in each.parts) for each in told]
    if len(told) == 1 and told[0].role == "user":
        return texts[0]
    return [{"role": each.role, "content": text} for each, text in zip(told, texts, strict=True)]
