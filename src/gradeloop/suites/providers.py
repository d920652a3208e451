"""Provider ids and settings of promptfoo, as models of ours."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location
from gradeloop.settings.default_model import MISTRAL_URL
from gradeloop.suites.declared import DECLARED_KEYS, DraftSettings
from gradeloop.suites.fields import as_object
from gradeloop.text import clip

SYSTEM_KEYS = ("systemInstruction", "system_instruction", "instructions", "systemPrompt", "system")
_OWN_KEYS = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "google_genai": "GEMINI_API_KEY",
}
"""The variable that each provider takes its key from anyway."""


@dataclass
class ProviderSettings:
    """What a provider's `config` comes to."""

    config: dict[str, JsonValue] = field(default_factory=dict)
    """The model's settings by our names."""
    extra: dict[str, JsonValue] = field(default_factory=dict)
    """The settings that go into the request's body unchanged."""
    system: str | None = None
    """The system prompt."""
    draft: DraftSettings = field(default_factory=DraftSettings)
    """The functions that the answer may call, and its form."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Keys that change the answer and have no counterpart, each with why."""
    ignored: list[str] = field(default_factory=list)
    """Keys that have no effect here."""


@dataclass(frozen=True)
class ProviderModel:
    """A model with its settings, as a provider of promptfoo names it."""

    id: str
    settings: ProviderSettings

    def spec(self) -> dict[str, Any]:
        """Return the model as a request has it."""
        config = self.settings.config | ({"extra": self.settings.extra} if self.settings.extra else {})
        return {"id": self.id} | ({"config": config} if config else {})


def parse_provider(provider: JsonValue, where: str | Location) -> dict[str, Any]:
    """Parse a provider of promptfoo, `"openai:chat:gpt-5-mini"` or `{id, config}`, into a model.

    Raises:
        InvalidRequest: The provider or one of its settings has no counterpart.
    """
    found = read_provider(provider, where)
    if found.settings.system is not None:
        raise InvalidRequest(f"{where}.provider: a judge takes no system prompt from its config; write it into the rubricPrompt")
    if asked := next(iter(found.settings.draft.fields(found.id)), None):
        raise InvalidRequest(f"{where}: a judge answers in a form of its own; leave the settings of {asked} out")
    for key, why in found.settings.left_out:
        raise InvalidRequest(f"{where}.provider: config.{key} {why}")
    return found.spec()


def read_provider(provider: JsonValue, where: str | Location) -> ProviderModel:
    """Read a provider with all that its config comes to.

    Raises:
        InvalidRequest: It is none of a chat, or its config names an address or a key.
    """
    fields = {"id": provider} if isinstance(provider, str) else as_object(provider, f"{where}.provider")
    fields = as_object(fields["text"], where) if "id" not in fields and isinstance(fields.get("text"), dict) else fields
    fields = {"id": fields["text"]} if "id" not in fields and isinstance(fields.get("text"), str) else fields
    name = str(fields.get("id"))
    prefix, ours = _prefix(name, f"{where}.provider")
    model = name.removeprefix("vertex:") if prefix.startswith("vertex:") else name[len(prefix) :]
    config = as_object(fields.get("config"), f"{where}.provider.config")
    settings = ProviderSettings()
    base_url = _base_url(config, ours, f"{where}.provider")
    rest = {key: value for key, value in config.items() if key not in {"apiBaseUrl", "apiHost"}}
    _refuse_endpoint(rest, ours, f"{where}.provider")
    if ours == "sagemaker":  # its model's own form of a reply, which the endpoint reads
        settings.ignored += [key for key in ("responseFormat",) if key in rest]
        rest.pop("responseFormat", None)
    _read_settings(rest, settings, google=ours == "google_genai")
    if ours == "mistral" and not base_url:
        base_url = MISTRAL_URL
    if base_url:
        settings.config["base_url"] = base_url
        return ProviderModel(f"openai_compatible:{model}", settings)
    return ProviderModel(f"{ours}:{model}", settings)


def not_a_chat(name: str) -> str | None:
    """Return what a provider is that is none of a chat; None for one that is, as far as its name says."""
    kinds = _names()["not_chats"]
    parts = name.split(":")
    found = [kinds[part] for part in (parts[:2] if len(parts) > 1 else parts) if part in kinds]
    return str(found[0]) if found else None


def _prefix(name: str, where: str) -> tuple[str, str]:
    kind = not_a_chat(name)
    if kind is not None:
        raise InvalidRequest(f"{where}: {clip(name)} is {kind}, none of a chat; leave it out, or serve it as an activity")
    prefixes = _names()["prefixes"]
    found = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default=None)
    if found is None or (not name[len(found) :].strip() and not found.startswith("vertex:")):
        known = ", ".join(sorted({prefix.partition(":")[0] for prefix in prefixes}))
        raise InvalidRequest(f"{where}: {clip(name)} has no counterpart; known ids begin with {known}")
    return found, str(prefixes[found])


def _base_url(config: Mapping[str, JsonValue], ours: str, where: str) -> str | None:
    """Return the address that a config names, which the worker's settings must allow; None where the provider's own counts."""
    host, url = config.get("apiHost"), config.get("apiBaseUrl")
    if ours == "azure" and isinstance(host, str):
        return f"https://{host}/openai/v1"
    if isinstance(host, str):
        url = f"https://{host}/v1"
    if url is None:
        return None
    if not isinstance(url, str):
        raise InvalidRequest(f"{where}: config.apiBaseUrl is {clip(str(url))}; write the address as text")
    if ours in {"anthropic", "google_genai", "bedrock", "vertex"}:
        raise InvalidRequest(f"{where}: config.apiBaseUrl of {ours} is set by the worker; {_endpoint_cure(ours)}")
    return url.rstrip("/")


def _refuse_endpoint(config: Mapping[str, JsonValue], ours: str, where: str) -> None:
    if config.get("apiKeyEnvar") == _OWN_KEYS.get(ours, f"{ours.upper().replace('-', '_')}_API_KEY"):
        config = {key: value for key, value in config.items() if key != "apiKeyEnvar"}
    if odd := next((key for key in config if key in _names()["of_endpoints"]["names"]), None):
        what = "a key" if "key" in odd.lower() else "how it is called"
        raise InvalidRequest(f"{where}: config.{odd} says {what}, which the worker's settings alone may; {_endpoint_cure(ours)}")


def _endpoint_cure(ours: str) -> str:
    return f"give gradeloop.toml a [providers.NAME] with protocol, base_url, key and headers, and write NAME:model instead of {ours}:model"


def _read_settings(config: Mapping[str, JsonValue], found: ProviderSettings, *, google: bool, path: str = "") -> None:
    names = _names()
    for key, value in config.items():
        if value is None:
            continue
        ours = names["settings"].get(key)
        if ours is not None:
            found.config[ours] = value
        elif key in names["parts"]["names"] and isinstance(value, dict):
            _read_settings(value, found, google=google, path=f"{path}{key}.")
        elif key in names["without_effect"]["names"] or key == "apiKeyEnvar":
            found.ignored.append(f"{path}{key}")
        elif _reads_by_meaning(key, value, found, path):
            continue
        elif key in names["left_out"]["names"] or (google and path):
            found.left_out.append((f"{path}{key}", "has no counterpart; leave it out, or serve the provider as an activity"))
        elif key == "extra" and isinstance(value, dict):
            found.extra |= value
        else:
            found.extra[key] = value


def _reads_by_meaning(key: str, value: JsonValue, found: ProviderSettings, path: str) -> bool:
    """Read a setting of several spellings; tell whether it is one."""
    if key in DECLARED_KEYS:
        found.left_out += [(f"{path}{key}", why) for why in found.draft.read(key, value)]
    elif key in SYSTEM_KEYS:
        _read_system(value, key, found)
    elif key in _THINKING:
        _read_thinking(key, value, found)
    else:
        return False
    return True


_THINKING = ("reasoning", "thinking", "thinkingConfig", "thinking_config")


def _read_thinking(key: str, value: JsonValue, found: ProviderSettings) -> None:
    fields = value if isinstance(value, dict) else {"type": value}
    effort = fields.get("effort", fields.get("thinkingLevel"))
    budget = fields.get("budget_tokens", fields.get("thinkingBudget", fields.get("thinking_budget")))
    kind = fields.get("type")
    if isinstance(effort, str):
        found.config["reasoning_effort"] = effort.lower()
    elif isinstance(budget, int):
        found.config["thinking"] = budget if budget > 0 else "disabled" if budget == 0 else "adaptive"
    elif kind in {"disabled", "adaptive"}:
        found.config["thinking"] = kind
    elif set(fields) - {"summary", "includeThoughts", "include_thoughts"}:
        found.left_out.append((key, f"is {clip(json.dumps(value))}; write a budget of tokens, or an effort"))


def _read_system(value: JsonValue, key: str, found: ProviderSettings) -> None:
    texts = list(_texts(value))
    if texts and not any(text.startswith("file://") for text in texts):
        found.system = "\n".join(texts)
    else:
        found.left_out.append((key, "is no text; write the system prompt as text"))


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        yield from _texts(value.get("parts", value.get("text")))


@cache
def _names() -> dict[str, Any]:
    return tomllib.loads(files("gradeloop.suites").joinpath("provider_names.toml").read_text(encoding="utf-8"))
