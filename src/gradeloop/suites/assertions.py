"""Assertions and provider ids of promptfoo, as criteria and models of ours."""

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
from gradeloop.suites.chats import read_chat
from gradeloop.suites.fields import as_list, as_object, refuse_others
from gradeloop.text import clip, did_you_mean

PREFIXES: tuple[tuple[str, str, str | None], ...] = (
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
"""Prefixes of promptfoo's provider ids, the prefix of ours, and the URL; the longer of two first, and our own last."""

_SETTINGS = {"temperature": "temperature", "max_tokens": "max_tokens", "reasoning_effort": "reasoning_effort", "seed": "seed"}
_WITHOUT_EFFECT = {"showThinking"}


def parse_provider(provider: JsonValue, where: str | Location) -> dict[str, Any]:
    """Parse a provider of promptfoo, `"openai:chat:gpt-5-mini"` or `{id, config}`, into a model.

    Raises:
        InvalidRequest: The provider or one of its settings has no counterpart.
    """
    fields = {"id": provider} if isinstance(provider, str) else as_object(provider, f"{where}.provider")
    name, config = str(fields.get("id")), as_object(fields.get("config"), f"{where}.provider.config")
    for theirs, ours, served in PREFIXES:
        if name.startswith(theirs):
            settings = dict(_settings(config, served, where))
            return {"id": f"{ours}{name.removeprefix(theirs)}"} | ({"config": settings} if settings else {})
    known = ", ".join(dict.fromkeys(theirs for theirs, _, _ in PREFIXES))
    raise InvalidRequest(f"{where}.provider: {clip(name)} has no counterpart; known ids begin with {known}")


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


JUDGED_TYPES = {"llm-rubric": False, "not-llm-rubric": True}
"""The types that a model judges, and whether the verdict is negated."""

PROMPT_CRITERION = "What the rubricPrompt asks for"
"""The criterion of an assertion with a prompt and no value."""

_TYPES = (*JUDGED_TYPES, "assert-set", *KINDS, *(f"not-{kind}" for kind in KINDS))


@dataclass(frozen=True)
class AssertionList:
    """The assertions of a test, with the options that apply to all of them."""

    assertions: tuple[tuple[JsonValue, Location], ...]
    options: Mapping[str, JsonValue]
    """`provider` and `rubricPrompt` for assertions without their own."""
    threshold: float | None = None
    name: str | None = None

    def rubric(self, variables: Mapping[str, JsonValue], where: Location) -> Rubric:
        """Build a rubric with one criterion for every assertion, the variables filled in.

        Without a threshold all must pass, but those of weight 0; with one the mean of the scores alone decides.

        Raises:
            InvalidRequest: An assertion has no counterpart, is invalid, or names a variable that is not there.
        """
        criteria = [_criterion(value, spot, self.options, variables) for value, spot in self.assertions]
        raw: dict[str, Any] = {"criteria": list(_with_ids(criteria))}
        raw |= {"name": self.name} if self.name else {}
        raw |= {"gate": "none", "threshold": self.threshold} if self.threshold is not None else {}
        spots = [spot for value, where in self.assertions for spot in _spots(value, where)]
        fields = {"description": "value", "prompt": "rubricPrompt"}
        try:
            return fill_rubric(Rubric.model_validate(raw), variables, lambda at, field: str(spots[at].at(fields[field])))
        except ValidationError as error:
            raise located_error(error, where) from None


def _spots(value: JsonValue, where: Location) -> Iterator[Location]:
    """Yield the place of each criterion that an assertion makes: its own, or those of its members."""
    members = value.get("assert") if isinstance(value, dict) and value.get("type") == "assert-set" else None
    yield from (spot for _, spot in located(members, where.at("assert"))) if isinstance(members, list) else (where,)


def located(values: Sequence[JsonValue], where: Location) -> tuple[tuple[JsonValue, Location], ...]:
    """Return every assertion of a list with its place."""
    return tuple((value, where.at(at)) for at, value in enumerate(values))


def _criterion(value: JsonValue, where: Location, options: Mapping[str, JsonValue], variables: Mapping[str, JsonValue]) -> dict[str, Any]:
    fields = as_object(value, where)
    kind = fields.get("type")
    if kind == "assert-set":
        return _group(fields, where, options, variables)
    if not isinstance(kind, str) or kind not in _TYPES:
        raise InvalidRequest(
            f"{where}: the type {clip(str(kind))} has no counterpart; write it as a check, a function of the worker's tools."
            f"{did_you_mean(str(kind).removeprefix('not-'), ['llm-rubric', 'assert-set', *KINDS])}"
        )
    criterion = _judged(fields, kind, where, options) if kind in JUDGED_TYPES else _checked(fields, kind, where, variables)
    weight = fields.get("weight", 1)
    criterion |= {"weight": weight} if weight != 1 else {}
    criterion |= {"required": False} if weight == 0 else {}
    return criterion | ({"id": fields["metric"]} if fields.get("metric") is not None else {})


def _judged(fields: Mapping[str, JsonValue], kind: str, where: Location, options: Mapping[str, JsonValue]) -> dict[str, Any]:
    refuse_others(fields, {"type", "value", "threshold", "provider", "rubricPrompt", "weight", "metric"}, where)
    prompt = fields.get("rubricPrompt", options.get("rubricPrompt"))
    if fields.get("value") is None and prompt is None:
        raise InvalidRequest(f"{where}: the assertion has no value; write what must hold")
    scale: dict[str, Any] = {"min": 0, "max": 1} | ({"threshold": fields["threshold"]} if "threshold" in fields else {})
    criterion: dict[str, Any] = {"description": fields.get("value", PROMPT_CRITERION), "form": "pass_score", "score": scale}
    criterion |= {"negate": True} if JUDGED_TYPES[kind] else {}
    provider = fields.get("provider", options.get("provider"))
    criterion |= {"grader": parse_provider(provider, where)} if provider is not None else {}
    chat = read_chat(prompt, where.at("rubricPrompt")) if isinstance(prompt, str) else None
    return criterion | ({"prompt": chat or prompt} if prompt is not None else {})


def _checked(fields: Mapping[str, JsonValue], kind: str, where: Location, variables: Mapping[str, JsonValue]) -> dict[str, Any]:
    refuse_others(fields, {"type", "value", "weight", "metric"}, where)
    negate, plain = kind.startswith("not-"), kind.removeprefix("not-")
    arguments: dict[str, JsonValue] = {"kind": plain} | ({"negate": True} if negate else {})
    if fields.get("value") is not None:
        arguments["value"] = fill_value(fields["value"], variables, str(where))
    if plain.endswith("-json") and isinstance(arguments.get("value"), str):
        arguments["value"] = read_yaml(str(arguments["value"]), f"{where}: the schema")
    try:
        validate_text_check(arguments)
    except ValueError as error:
        raise InvalidRequest(f"{where.at('value')}: {error}") from None
    return {"description": describe_text_check(arguments), "check": {"tool": "text_check", "arguments": arguments}}


def _group(
    fields: Mapping[str, JsonValue], where: Location, options: Mapping[str, JsonValue], variables: Mapping[str, JsonValue]
) -> dict[str, Any]:
    refuse_others(fields, {"type", "assert", "threshold", "weight", "metric"}, where)
    inner = where.at("assert")
    members = [_criterion(member, spot, options, variables) for member, spot in located(as_list(fields.get("assert"), inner), inner)]
    group: dict[str, Any] = {"group": fields.get("metric", f"assert[{where.path[-1]}]"), "criteria": members}
    group |= {name: fields[name] for name in ("threshold", "weight") if name in fields}
    return group | ({"required": False} if fields.get("weight") == 0 else {})


def _with_ids(criteria: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn metrics, which may be any text and the same for several criteria, into ids."""
    used: set[str] = set()
    for member in (member for criterion in criteria for member in criterion.get("criteria", [criterion])):
        if "id" in member:
            plain = re.sub(r"[^\w.-]+", "-", str(member["id"]), flags=re.ASCII).strip("-")[:56]
            plain = plain if plain[:1].isalpha() else f"m-{plain}".rstrip("-")
            count = next(number for number in range(1, len(used) + 2) if (plain if number == 1 else f"{plain}-{number}") not in used)
            member["id"] = plain if count == 1 else f"{plain}-{count}"
            used.add(member["id"])
    return criteria
