"""promptfoo's `llm-rubric` assertions as a rubric; what has no counterpart is refused by name.

Facts of its shapes and of what they come to: promptfoo 0.123.1, `src/assertions` and `src/matchers`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.default_model import MISTRAL_URL
from gradeloop.errors import InvalidRequest, explain
from gradeloop.rubric import Rubric
from gradeloop.strict import clip
from gradeloop.templates import fill

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
)
"""The beginnings of its provider ids, ours, and where they are served; the longer one of two first."""

KINDS = {"llm-rubric": False, "not-llm-rubric": True}

_SETTINGS = {"temperature": "temperature", "max_tokens": "max_tokens", "reasoning_effort": "reasoning_effort", "seed": "seed"}
_WITHOUT_EFFECT = {"showThinking"}


def from_promptfoo(value: JsonValue, *, test: int = 0) -> Rubric:
    """Return a test's assertions as a rubric, its `vars` filled in.

    Every assertion is one criterion, however many lines its `value` has, answered as `{reason, pass, score}` in a call of its own. Without
    a threshold of the test all must pass, but those of weight 0; with one the mean of the scores alone decides.

    Args:
        value: A configuration, a test, a list of assertions, or one.
        test: Which of a configuration's tests, from 0.

    Raises:
        InvalidRequest: Something has no counterpart; the message names it.
    """
    whole, default = _test_of(value, test)
    options = {**_object(default.get("options"), "defaultTest.options"), **_object(whole.get("options"), "options")}
    asserted = [*_list(default.get("assert"), "defaultTest.assert"), *_list(whole.get("assert"), "assert")]
    threshold = whole.get("threshold", default.get("threshold"))
    raw: dict[str, Any] = {"criteria": [_criterion(each, f"assert[{at}]", options) for at, each in enumerate(asserted)]}
    raw |= {"name": whole["description"]} if isinstance(whole.get("description"), str) else {}
    raw |= {"gate": "none", "threshold": threshold} if threshold is not None else {}
    variables = {**_object(default.get("vars"), "defaultTest.vars"), **_object(whole.get("vars"), "vars")}
    try:
        read = Rubric.model_validate(raw)
    except ValidationError as error:
        raise InvalidRequest(f"the assertions make no rubric: {explain(error)}") from None
    return fill(read, variables) or read if variables else read


def _test_of(value: JsonValue, number: int) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """Return the test that is meant, and what a configuration says of all of them."""
    if isinstance(value, list):
        return {"assert": value}, {}
    told = _object(value, "the file")
    if "type" in told:
        return {"assert": [told]}, {}
    if "tests" not in told:
        _refuse_others(told, {"assert", "vars", "options", "threshold", "description"}, "the test")
        return told, {}
    tests = _list(told["tests"], "tests")
    if not 0 <= number < len(tests):
        raise InvalidRequest(f"test {number} is not there; they run from 0 to {len(tests) - 1}")
    return _object(tests[number], f"tests[{number}]"), _object(told.get("defaultTest"), "defaultTest")


def _criterion(value: JsonValue, where: str, options: Mapping[str, JsonValue]) -> dict[str, Any]:
    told = _object(value, where)
    kind = told.get("type")
    if kind == "assert-set":
        return _group(told, where, options)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidRequest(
            f"{where}: the type {clip(str(kind))} has no counterpart; write it as a check, a function of the worker's tools"
        )
    _refuse_others(told, {"type", "value", "threshold", "provider", "rubricPrompt", "weight", "metric"}, where)
    weight = told.get("weight", 1)
    scale: dict[str, Any] = {"min": 0, "max": 1} | ({"threshold": told["threshold"]} if "threshold" in told else {})
    criterion: dict[str, Any] = {"description": told.get("value"), "form": "pass_score", "score": scale}
    criterion |= {"negate": True} if KINDS[kind] else {}
    criterion |= {"weight": weight} if weight != 1 else {}
    criterion |= {"required": False} if weight == 0 else {}
    criterion |= {"id": told["metric"]} if "metric" in told else {}
    provider, prompt = told.get("provider", options.get("provider")), told.get("rubricPrompt", options.get("rubricPrompt"))
    criterion |= {"grader": model_of(provider, where)} if provider is not None else {}
    return criterion | ({"prompt": prompt} if prompt is not None else {})


def _group(told: Mapping[str, JsonValue], where: str, options: Mapping[str, JsonValue]) -> dict[str, Any]:
    _refuse_others(told, {"type", "assert", "threshold", "weight", "metric"}, where)
    members = [_criterion(each, f"{where}.assert[{at}]", options) for at, each in enumerate(_list(told.get("assert"), f"{where}.assert"))]
    group: dict[str, Any] = {"group": told.get("metric", where), "criteria": members}
    group |= {name: told[name] for name in ("threshold", "weight") if name in told}
    return group | ({"required": False} if told.get("weight") == 0 else {})


def model_of(provider: JsonValue, where: str) -> dict[str, Any]:
    """Return a provider as promptfoo names it, `"openai:chat:gpt-5-mini"` or `{id, config}`, as a model.

    Raises:
        InvalidRequest: We have no counterpart of it, or of a setting.
    """
    told = {"id": provider} if isinstance(provider, str) else _object(provider, f"{where}.provider")
    name, config = str(told.get("id")), _object(told.get("config"), f"{where}.provider.config")
    found = next((row for row in MODELS if name.startswith(row[0])), None)
    if found is None:
        known = ", ".join(dict.fromkeys(row[0] for row in MODELS))
        raise InvalidRequest(f"{where}.provider: {clip(name)} has no counterpart; those that have begin with {known}")
    settings = dict(_settings(config, found[2], where))
    return {"id": f"{found[1]}{name.removeprefix(found[0])}"} | ({"config": settings} if settings else {})


def _settings(config: Mapping[str, JsonValue], served: str | None, where: str) -> Iterator[tuple[str, JsonValue]]:
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


def _refuse_others(told: Mapping[str, JsonValue], known: set[str], where: str) -> None:
    if odd := sorted(set(told) - known):
        raise InvalidRequest(f"{where}: {clip(odd[0])} has no counterpart; leave it out. Known: {', '.join(sorted(known))}.")


def _object(value: JsonValue, where: str) -> dict[str, JsonValue]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be an object")
    return value


def _list(value: JsonValue, where: str) -> list[JsonValue]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be a list")
    return value
