"""The model that is used when none is named, and the models that a worker with this environment cannot serve."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import BaseModel

from gradeloop.contract.model_spec import PROVIDERS, ModelConfig, ModelSpec
from gradeloop.errors import InvalidRequest
from gradeloop.grading.grants import named_in
from gradeloop.settings.endpoints import presets_by_name, silent_address, unknown_provider

AS_OF = "2026-11-22"

MISTRAL_URL = "https://api.mistral.ai/v1"


class DefaultRule(NamedTuple):
    """A rule for the default model: it applies when all of its variables are set."""

    variables: tuple[str, ...]
    model: str
    base_url: str | None = None

    @property
    def provider(self) -> str:
        """The provider of its model."""
        return self.model.partition(":")[0]


DEFAULTS: tuple[DefaultRule, ...] = (
    DefaultRule(("OPENAI_API_KEY",), "openai:gpt-6-luna"),
    DefaultRule(("ANTHROPIC_API_KEY",), "anthropic:claude-haiku-5-5"),
    DefaultRule(("GEMINI_API_KEY",), "google_genai:gemini-3.6-flash"),
    DefaultRule(("GOOGLE_API_KEY",), "google_genai:gemini-3.6-flash"),
    DefaultRule(("PALM_API_KEY",), "google_genai:gemini-3.6-flash"),
    DefaultRule(("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_CLOUD_PROJECT"), "google_genai:gemini-3.6-flash"),
    DefaultRule(("MISTRAL_API_KEY",), "openai_compatible:mistral-small-latest", MISTRAL_URL),
    DefaultRule(
        ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_DEPLOYMENT"), "openai_compatible:{AZURE_OPENAI_DEPLOYMENT}", ""
    ),
    DefaultRule(("OPENROUTER_API_KEY",), "openrouter:anthropic/claude-haiku-5.5"),
)
"""Tried in order."""


def missing_key(provider: str, environ: Mapping[str, str]) -> str | None:
    """Return the variable that has to be set before a provider's models can be called; None where none has to be."""
    preset = presets_by_name().get(provider)
    if preset is None or preset.keyless or preset.cloud == "azure" or _is_set(environ, *preset.keys, *preset.projects):
        return None
    return next((rule.variables[0] for rule in DEFAULTS if rule.provider == provider), preset.keys[0])


def keyed_providers(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the providers of every worker that need a key and have one in this environment."""
    presets = [preset for name, preset in presets_by_name().items() if name in PROVIDERS]
    return frozenset(preset.name for preset in presets if _is_set(environ, *preset.keys, *preset.projects))


def _is_set(environ: Mapping[str, str], *names: str) -> bool:
    return any(environ.get(name, "").strip() for name in names)


@dataclass(frozen=True)
class DefaultModel:
    """The default model, and the variable that made it so."""

    spec: ModelSpec
    variable: str


def default_model(environ: Mapping[str, str], keyed: Collection[str] = ()) -> DefaultModel | None:
    """Return the model of the first rule that applies; None if no provider's key is set.

    Args:
        environ: The variables.
        keyed: The providers whose keys the worker's own endpoints name, in a file or another variable.
    """
    for rule in DEFAULTS:
        if rule.provider in keyed and rule.base_url is None:
            return DefaultModel(ModelSpec(id=rule.model), f"the key of providers.{rule.provider}")
        values = {name: environ.get(name, "").strip() for name in rule.variables}
        if all(values.values()) and values.get("GOOGLE_GENAI_USE_VERTEXAI", "true").lower() in {"1", "true"}:
            base_url = f"{values['AZURE_OPENAI_ENDPOINT'].rstrip('/')}/openai/v1" if rule.base_url == "" else rule.base_url
            spec = ModelSpec(id=rule.model.format(**values), config=ModelConfig(base_url=base_url))
            return DefaultModel(spec, rule.variables[0])
    return None


WITHOUT_KEY = (
    "Without a key: a model of your own machine, {flag} ollama:qwen3 once Ollama serves it; or replies of your own, "
    "{flag} scripted:any with 'scripted: FILE' in a task or suite, with --scripted FILE for a judge; `gradeloop demo` shows a whole run"
)
"""What somebody without a key can do, in a sentence."""


def require_default_model(environ: Mapping[str, str], role: str) -> DefaultModel:
    """Return the default model for a role of the command line.

    Raises:
        InvalidRequest: No provider's key is set.
    """
    if found := default_model(environ):
        return found
    names = ", ".join(dict.fromkeys(rule.variables[0] for rule in DEFAULTS))
    flag = "--grader" if role == "grader" else "--model"
    raise InvalidRequest(
        f"{role}.model is missing and no provider key is set; name a model with {flag}, or set one of {names}. "
        f"{WITHOUT_KEY.format(flag=flag)}"
    )


UNNAMED = "scripted:unnamed"
"""The model of a role for which none is named, where nothing is going to be called."""


def refuse_unservable(
    request: BaseModel, environ: Mapping[str, str], *, scripted: bool, endpoints: Collection[str] = (), calls: bool = True, place: str = ""
) -> None:
    """Refuse a request that a worker with this environment would refuse, before one is started.

    Args:
        request: The request; every model in it is looked at.
        environ: The worker's variables.
        scripted: Whether the worker has a file of scripted replies.
        endpoints: The names of the worker's own endpoints.
        calls: Whether models are going to be called, and so need their keys and servers.
        place: What the message begins with.

    Raises:
        InvalidRequest: A model's provider is unknown, or its key, or the file of scripted replies, is missing.
    """
    for model, where in ((named.model, f"{place}{named.where}: {named.value!r}") for named in named_in(request) if named.model):
        provider, is_own = model.provider, model.provider in endpoints
        if complaint := unknown_provider(provider, endpoints):
            raise InvalidRequest(f"{where}: {complaint}")
        if calls and not is_own and (missing := missing_key(provider, environ)):
            raise InvalidRequest(f"{where} needs a key and {missing} is not set; set it, or name another model")
        if provider == "scripted" and not scripted and model.id != UNNAMED:
            raise InvalidRequest(f"{where} needs a file of replies; name it as 'scripted:' in the file, or with --scripted")
        if calls and not is_own and (address := silent_address(provider, environ)):
            start = f"start it (ollama serve; ollama pull {model.model})" if provider == "ollama" else "start the server"
            raise InvalidRequest(f"{where} has no server, as nothing listens at {address}; {start}, or name another model")
