"""promptfoo's assertions as criteria of ours, and its names of models."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location, located_error, read_yaml
from gradeloop.grading.checks import KINDS, describe_text_check, validate_text_check
from gradeloop.grading.templates import fill_rubric, fill_value
from gradeloop.settings.default_model import MISTRAL_URL
from gradeloop.text import clip, did_you_mean

MODELS: tuple[tuple[str, str, str | None], ...] = (
    ("openai:chat:", "openai:", None),
    ("openai:responses:", "openai:", None),
    ("openai:", "openai:", None),
    ("anthropic:messages:", "anthropic:", None),
    ("anthropic:", "anthropic:", None),
    ("google:", "google_genai:", None),
    ("openrouter:", "openrouter:", None),
    ("mistral:", "openai_compatible:", MISTRAL_URL),
    ("azure:chat:", "openai_compatible:", "azure"),
    ("azure:", "openai_compatible:", "azure"),
    *((f"{name}:", f"{name}:", None) for name in ("google_genai", "openai_compatible", "scripted")),
)
"""The beginnings of its provider ids, ours, and where they are served; the longer one of two first, and our own last."""

_SETTINGS = {"temperature": "temperature", "max_tokens": "max_tokens", "reasoning_effort": "reasoning_effort", "seed": "seed"}
_WITHOUT_EFFECT = {"showThinking"}


def parse_provider(provider: JsonValue, where: str | Location) -> dict[str, Any]:
    """Return a provider as promptfoo names it, `"openai:chat:gpt-5-mini"` or `{id, config}`, as a model.

    Raises:
        InvalidRequest: We have no counterpart of it, or of a setting.
    """
    told = {"id": provider} if isinstance(provider, str) else as_object(provider, f"{where}.provider")
    name, config = str(told.get("id")), as_object(told.get("config"), f"{where}.provider.config")
    found = next((row for row in MODELS if name.startswith(row[0])), None)
    if found is None:
        known = ", ".join(dict.fromkeys(row[0] for row in MODELS))
        raise InvalidRequest(f"{where}.provider: {clip(name)} has no counterpart; those that have begin with {known}")
    settings = dict(_settings(config, found[2], where))
    return {"id": f"{found[1]}{name.removeprefix(found[0])}"} | ({"config": settings} if settings else {})


def _settings(config: Mapping[str, JsonValue], served: str | None, where: str | Location) -> Iterator[tuple[str, JsonValue]]:
    host = config.get("apiHost")
    if served == "azure" and not isinstance(host, str):
        raise InvalidRequest(f"{where}.provider: config.apiHost is missing; name the host of the Azure resource")
    if served:
        yield "base_url", f"https://{host}/openai/v1" if served == "azure" else served
    for key, value in config.items():
        if key in _SETTINGS:
            yield _SETTINGS[key], value
        elif key not in _WITHOUT_EFFECT and not (served == "azure" and key == "apiHost"):
            raise InvalidRequest(f"{where}.provider: config.{key} has no counterpart; leave it out, or put it into the model's `extra`")


def as_object(value: JsonValue, where: str | Location) -> dict[str, JsonValue]:
    """Return an object; an empty one for null.

    Raises:
        InvalidRequest: It is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be an object")
    return value


def as_list(value: JsonValue, where: str | Location) -> list[JsonValue]:
    """Return a list; an empty one for null.

    Raises:
        InvalidRequest: It is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be a list")
    return value


def refuse_others(told: Mapping[str, JsonValue], known: set[str], where: Location) -> None:
    """Raise InvalidRequest where an object has a key that has no counterpart."""
    if odd := sorted(set(told) - known):
        names = ", ".join(sorted(known))
        raise InvalidRequest(f"{where.describe(odd[0])}: {clip(odd[0])} has no counterpart; leave it out. Known: {names}.")


JUDGED_TYPES = {"llm-rubric": False, "not-llm-rubric": True}

BY_PROMPT = "What the rubricPrompt asks for"
"""The criterion of an assertion that has a prompt, and no value."""

_NAMES = (*JUDGED_TYPES, "assert-set", *KINDS, *(f"not-{kind}" for kind in KINDS))


@dataclass(frozen=True)
class AssertionList:
    """A test's assertions, with what holds for all of them."""

    assertions: tuple[tuple[JsonValue, Location], ...]
    options: Mapping[str, JsonValue]
    """`provider` and `rubricPrompt` of those without one of their own."""
    threshold: float | None = None
    name: str | None = None

    def rubric(self, variables: Mapping[str, JsonValue], where: Location) -> Rubric:
        """Return them as a rubric, each one criterion, the variables filled in.

        Without a threshold all must pass, but those of weight 0; with one the mean of the scores alone decides.

        Raises:
            InvalidRequest: One has no counterpart, cannot be used, or names a variable that is not there.
        """
        criteria = [_criterion(value, spot, self.options, variables) for value, spot in self.assertions]
        raw: dict[str, Any] = {"criteria": list(_named(criteria))}
        raw |= {"name": self.name} if self.name else {}
        raw |= {"gate": "none", "threshold": self.threshold} if self.threshold is not None else {}
        try:
            return fill_rubric(Rubric.model_validate(raw), variables)
        except ValidationError as error:
            raise located_error(error, where) from None


def located(values: Sequence[JsonValue], where: Location) -> tuple[tuple[JsonValue, Location], ...]:
    """Return each assertion of a list with its place."""
    return tuple((each, where.at(at)) for at, each in enumerate(values))


def _criterion(value: JsonValue, where: Location, options: Mapping[str, JsonValue], variables: Mapping[str, JsonValue]) -> dict[str, Any]:
    told = as_object(value, where)
    kind = told.get("type")
    if kind == "assert-set":
        return _group(told, where, options, variables)
    if not isinstance(kind, str) or kind not in _NAMES:
        raise InvalidRequest(
            f"{where}: the type {clip(str(kind))} has no counterpart; write it as a check, a function of the worker's tools."
            f"{did_you_mean(str(kind).removeprefix('not-'), ['llm-rubric', 'assert-set', *KINDS])}"
        )
    criterion = _judged(told, kind, where, options) if kind in JUDGED_TYPES else _checked(told, kind, where, variables)
    weight = told.get("weight", 1)
    criterion |= {"weight": weight} if weight != 1 else {}
    criterion |= {"required": False} if weight == 0 else {}
    return criterion | ({"id": told["metric"]} if told.get("metric") is not None else {})


def _judged(told: Mapping[str, JsonValue], kind: str, where: Location, options: Mapping[str, JsonValue]) -> dict[str, Any]:
    refuse_others(told, {"type", "value", "threshold", "provider", "rubricPrompt", "weight", "metric"}, where)
    asked = told.get("rubricPrompt", options.get("rubricPrompt"))
    if told.get("value") is None and asked is None:
        raise InvalidRequest(f"{where}: the assertion has no value; write what must hold")
    scale: dict[str, Any] = {"min": 0, "max": 1} | ({"threshold": told["threshold"]} if "threshold" in told else {})
    criterion: dict[str, Any] = {"description": told.get("value", BY_PROMPT), "form": "pass_score", "score": scale}
    criterion |= {"negate": True} if JUDGED_TYPES[kind] else {}
    provider = told.get("provider", options.get("provider"))
    criterion |= {"grader": parse_provider(provider, where)} if provider is not None else {}
    return criterion | ({"prompt": asked} if asked is not None else {})


def _checked(told: Mapping[str, JsonValue], kind: str, where: Location, variables: Mapping[str, JsonValue]) -> dict[str, Any]:
    refuse_others(told, {"type", "value", "weight", "metric"}, where)
    negate, plain = kind.startswith("not-"), kind.removeprefix("not-")
    arguments: dict[str, JsonValue] = {"kind": plain} | ({"negate": True} if negate else {})
    if told.get("value") is not None:
        arguments["value"] = fill_value(told["value"], variables, str(where))
    if plain.endswith("-json") and isinstance(arguments.get("value"), str):
        arguments["value"] = read_yaml(str(arguments["value"]), f"{where}: the schema")
    try:
        validate_text_check(arguments)
    except ValueError as error:
        raise InvalidRequest(f"{where.at('value')}: {error}") from None
    return {"description": describe_text_check(arguments), "check": {"tool": "text_check", "arguments": arguments}}


def _group(
    told: Mapping[str, JsonValue], where: Location, options: Mapping[str, JsonValue], variables: Mapping[str, JsonValue]
) -> dict[str, Any]:
    refuse_others(told, {"type", "assert", "threshold", "weight", "metric"}, where)
    inner = where.at("assert")
    members = [_criterion(each, spot, options, variables) for each, spot in located(as_list(told.get("assert"), inner), inner)]
    group: dict[str, Any] = {"group": told.get("metric", f"assert[{where.path[-1]}]"), "criteria": members}
    group |= {name: told[name] for name in ("threshold", "weight") if name in told}
    return group | ({"required": False} if told.get("weight") == 0 else {})


def _named(criteria: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make ids of metrics, which may be any text and the same for several."""
    used: set[str] = set()
    for each in (member for criterion in criteria for member in criterion.get("criteria", [criterion])):
        if "id" in each:
            plain = re.sub(r"[^\w.-]+", "-", str(each["id"]), flags=re.ASCII).strip("-")[:56]
            plain = plain if plain[:1].isalpha() else f"m-{plain}".rstrip("-")
            count = next(number for number in range(1, len(used) + 2) if (plain if number == 1 else f"{plain}-{number}") not in used)
            each["id"] = plain if count == 1 else f"{plain}-{count}"
            used.add(each["id"])
    return criteria
