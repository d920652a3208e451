"""Mastra's rubric scorers as a rubric: `criteria` as they are, several scorers with `all` or `any`.

Facts of its shapes and of what they come to: @mastra/evals 1.10.2, `createRubricScorer`, and @mastra/core 1.71.0, `isTaskComplete`.
"""

from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.errors import InvalidRequest, explain
from gradeloop.printable import clip
from gradeloop.rubric import Rubric
from gradeloop.rubric_text import without_marker

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
