"""promptfoo's provider ids and settings, and what they are called here.

Facts of its shapes: promptfoo 0.123.1, `src/providers`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import JsonValue

from gradeloop.default_model import MISTRAL_URL
from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip
from gradeloop.spot import Spot

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


def model_of(provider: JsonValue, where: str | Spot) -> dict[str, Any]:
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


def _settings(config: Mapping[str, JsonValue], served: str | None, where: str | Spot) -> Iterator[tuple[str, JsonValue]]:
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


def as_object(value: JsonValue, where: str | Spot) -> dict[str, JsonValue]:
    """Return an object; an empty one for null.

    Raises:
        InvalidRequest: It is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be an object")
    return value


def as_list(value: JsonValue, where: str | Spot) -> list[JsonValue]:
    """Return a list; an empty one for null.

    Raises:
        InvalidRequest: It is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be a list")
    return value


def refuse_others(told: Mapping[str, JsonValue], known: set[str], where: Spot) -> None:
    """Raise InvalidRequest where an object has a key that has no counterpart."""
    if odd := sorted(set(told) - known):
        names = ", ".join(sorted(known))
        raise InvalidRequest(f"{where.told(odd[0])}: {clip(odd[0])} has no counterpart; leave it out. Known: {names}.")
