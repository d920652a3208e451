"""What a worker refuses of a model's settings before anybody is called: what would come back as a 400 in the middle of a run."""

from activities.providers.capabilities import Capability, capability, catalogue
from gradeloop.modelspec import ModelSpec

OURS = frozenset(
    {
        "model", "messages", "input", "contents", "system", "instructions", "systeminstruction", "tools", "tool_choice", "toolconfig",
        "stream", "stream_options", "response_format", "text", "output_config", "generationconfig", "store", "include", "max_tokens",
        "max_completion_tokens", "max_output_tokens", "n", "api_key", "apikey", "key", "authorization", "headers", "extra_headers",
        "prompt_cache_key", "cache_control",
    }
)  # fmt: skip
"""What a request's `extra` may not set: it is ours, or it is a secret."""


def settings_complaint(spec: ModelSpec) -> str | None:
    """Say which setting the model does not take, and what it does; None where all is well."""
    config, takes = spec.config, capability(spec)
    known = f"by the table of {catalogue().as_of}"
    if config.temperature is not None and not takes.temperature:
        return f"temperature {config.temperature:g} cannot be set for {spec.id!r} ({known}); leave it out"
    if config.seed is not None and not takes.seed:
        return f"seed {config.seed} cannot be set for {spec.id!r} ({known}); leave it out"
    if config.reasoning_effort is not None and config.reasoning_effort not in takes.efforts:
        efforts = ", ".join(takes.efforts) or "none"
        return f"reasoning_effort {config.reasoning_effort!r} is unknown to {spec.id!r} ({known}). Known: {efforts}."
    if config.max_tokens is not None and takes.max_output is not None and config.max_tokens > takes.max_output:
        return f"max_tokens {config.max_tokens} is above what {spec.id!r} writes, {takes.max_output} ({known}); lower it"
    return _thinking_complaint(spec, takes, known) or _extra_complaint(spec)


def _thinking_complaint(spec: ModelSpec, takes: Capability, known: str) -> str | None:
    asked = spec.config.thinking
    if asked is None or (asked if isinstance(asked, str) else "budget") in takes.thinking:
        return None
    ways = ", ".join("a number of tokens" if way == "budget" else way for way in takes.thinking)
    return f"thinking {asked!r} cannot be set for {spec.id!r} ({known}). It takes: {ways or 'none; use reasoning_effort'}."


def _extra_complaint(spec: ModelSpec) -> str | None:
    taken = sorted(name for name in spec.config.extra if name.lower() in OURS)
    if not taken:
        return None
    return f"extra.{taken[0]} of {spec.id!r} is not for a request to set; leave it out, or use the setting of its own"
