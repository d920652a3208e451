"""Every setting that the tables refuse or let through, against a server that refuses as the vendors' documents say."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from activities.providers import Providers, openai_chat, openai_responses
from activities.providers.environment import Environment, settings_complaint
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault, ModelRequest, Step
from gradeloop.settings.catalog import Capability, capability_of, lacks_place_for_thinking
from tests.rig.provider_server import call_openrouter_at
from tests.rig.vendor_rules import RuledVendors, ruled_vendors, rules_of

CLAUDES = (
    "claude-opus-5-5", "claude-fable-5", "claude-fable-5-1", "claude-mythos-5", "claude-sonnet-5-5", "claude-haiku-5-5",
    "claude-haiku-5-5-20261007", "claude-opus-5", "claude-sonnet-5", "claude-opus-4-8", "claude-opus-4-7", "claude-opus-4-6",
    "claude-sonnet-4-6", "claude-opus-4-5-20251101", "claude-sonnet-4-5", "claude-haiku-4-5-20251001", "claude-opus-4-1-20250805",
)  # fmt: skip
GPTS = (
    "gpt-4.1", "gpt-4.1-mini-2025-04-14", "gpt-4o", "gpt-4o-mini", "gpt-4o-2024-05-13", "ft:gpt-4o-mini-2024-07-18:acme::a1",
    "ft:gpt-4.1-mini-2025-04-14:acme::a1", "chatgpt-4o-latest", "gpt-4", "gpt-4-turbo", "gpt-4-turbo-2024-04-09", "gpt-3.5-turbo",
    "gpt-3.5-turbo-0125", "o1", "o3", "o3-mini", "o4-mini", "gpt-5", "gpt-5-2025-08-07", "gpt-5-mini", "gpt-5-nano", "gpt-5-pro",
    "gpt-5.1", "gpt-5.2", "gpt-5.2-pro", "gpt-5.3-codex", "gpt-5.4", "gpt-5.4-2026-03-05", "gpt-5.4-mini", "gpt-5.4-nano", "gpt-5.4-pro",
    "gpt-5.5", "gpt-5.6", "gpt-5.6-sol", "gpt-5.6-terra", "gpt-5.6-luna", "gpt-6-sol", "gpt-6-luna", "gpt-6-luna-2026-09-22",
    "gpt-6-astra", "gpt-6.1-sol", "gpt-6.1-terra", "gpt-6.2-astra", "gpt-6.2-sol",
)  # fmt: skip
GEMINIS = (
    "gemini-2.0-flash", "gemini-2.5-pro", "gemini-2.5-flash", "gemini-2.5-flash-lite", "gemini-3-pro-preview", "gemini-3.1-pro-preview",
    "gemini-3-flash-preview", "gemini-3.1-flash-lite", "gemini-3.5-flash", "gemini-3.5-flash-lite", "gemini-3.6-flash",
    "gemini-3.7-flash", "gemini-3.8-flash", "gemini-4-argon",
)  # fmt: skip
COMPATIBLE = ("gpt-4o", "openai/gpt-5-mini", "gpt-5.4", "gpt-6-luna", "o3", "mistral-small-latest", "qwen3")
MODELS = (
    *(f"anthropic:{name}" for name in CLAUDES),
    *(f"openai:{name}" for name in GPTS),
    *(f"google_genai:{name}" for name in GEMINIS),
    *(f"openai_compatible:{name}" for name in COMPATIBLE),
)
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.3},
    *({"reasoning_effort": effort} for effort in EFFORTS),
    *({"reasoning_effort": effort, "temperature": 0.3} for effort in ("none", "low")),
    *({"thinking": kind} for kind in ("adaptive", "between_tools", "disabled", 1, 600, 1024, 2048, 30_000, 40_000)),
    *({"thinking": "disabled", "reasoning_effort": effort} for effort in ("high", "xhigh", "max")),
    *({"thinking": "between_tools", "reasoning_effort": effort} for effort in ("high", "xhigh", "max")),
    *({"thinking": 2048, "max_tokens": tokens} for tokens in (1000, 2048, 4096)),
    *({"max_tokens": tokens} for tokens in (1000, 4096, 4097, 8192, 8193, 16_384, 16_385, 32_000, 32_001, 32_768, 32_769)),
    *({"max_tokens": tokens} for tokens in (64_000, 64_001, 65_536, 65_537, 100_000, 100_001, 128_000, 128_001, 272_000, 272_001)),
)

OUR_OWN = {"anthropic": {"none", "minimal"}, "google_genai": {"none", "xhigh", "max"}}
"""Efforts that the protocol itself has no word for."""


@pytest.fixture(scope="module")
def known() -> dict[str, str | None]:
    """Return how vendors have refused bodies."""
    return {}


@pytest.fixture
async def vendors(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RuledVendors]:
    """Serve the vendors; the SDKs' requests, of which there are thousands, need no connection."""
    async with ruled_vendors() as served:
        monkeypatch.setattr("activities.providers.http.http_client", served.client)
        yield served


def asked(spec: ModelSpec) -> ModelRequest:
    """Return a short call of a model."""
    return ModelRequest(spec, Step(role="grader"), (Message(role="user", content="hi"),))


async def refusal(providers: Providers, spec: ModelSpec) -> str | None:
    """Return how the vendor refuses a model's settings; None where it answers."""
    try:
        await providers.complete(asked(spec))
    except ModelFault as fault:
        if fault.kind != "bad_request":
            raise
        return str(fault)
    return None


WIRES = {"openai": openai_responses.wire_request, "openai_compatible": openai_chat.wire_request}


async def known_refusal(providers: Providers, spec: ModelSpec, known: dict[str, str | None]) -> str | None:
    """Return how the vendor refuses a model's settings, from `known` where a model of the same rules was sent the same body."""
    if spec.provider not in WIRES:
        return await refusal(providers, spec)
    body = WIRES[spec.provider](asked(spec)) | {"model": "", "prompt_cache_key": ""}
    key = f"{rules_of(spec.provider, spec.model)} {capability_of(spec).stream} {body}"
    if key not in known:
        known[key] = await refusal(providers, spec)
    return known[key]


@pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")  # the SDK's word on models that end this month
@pytest.mark.parametrize("model", MODELS)
async def test_the_tables_refuse_what_the_vendor_refuses_and_nothing_else(
    vendors: RuledVendors, known: dict[str, str | None], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    providers = Providers(Environment.read(vendors.environment))
    monkeypatch.setattr("activities.providers.settings_complaint", lambda _: None)  # so that refused settings reach the vendor, too
    wrong = []
    for config in SETTINGS:
        spec = ModelSpec.model_validate({"id": model, "config": config})
        ours = settings_complaint(spec)
        if ours and config.get("reasoning_effort") in OUR_OWN.get(spec.provider, ()):
            continue
        with monkeypatch.context() as patch:
            if spec.config.max_tokens:
                patch.setattr("activities.providers.base.capability_of", lambda _: Capability())  # nothing is lowered on its way
            theirs = await known_refusal(providers, spec, known)
        if (ours is None) != (theirs is None) and not is_unsettled(spec, theirs):
            wrong.append(f"{config}: we say {ours!r}, the vendor says {theirs!r}")
    await providers.aclose()

    assert not wrong, "\n".join(wrong)


def is_unsettled(spec: ModelSpec, theirs: str | None) -> bool:
    """Tell whether our table refuses a setting for which the protocol has no field, so that the request went without it."""
    lacks_place = lacks_place_for_thinking(spec) or spec.config.thinking == "between_tools" or spec.provider == "openai"
    return spec.config.thinking is not None and lacks_place and theirs is None


@pytest.mark.parametrize(
    ("model", "config", "sent"),
    [
        ("anthropic:claude-haiku-4-5", {"thinking": 2048, "max_tokens": 1000}, 3048),
        ("anthropic:claude-haiku-4-5", {"thinking": 2048, "max_tokens": 2048}, 4096),
        ("anthropic:claude-haiku-4-5", {"thinking": 2048, "max_tokens": 4096}, 4096),
        ("anthropic:claude-haiku-4-5", {"thinking": 20_000}, 36_384),
        ("anthropic:claude-haiku-4-5", {"thinking": 60_000, "max_tokens": 8000}, 64_000),
        ("anthropic:claude-99", {"thinking": 60_000, "max_tokens": 8000}, 68_000),
    ],
)
async def test_a_budget_that_would_fill_the_completion_is_added_to_it(
    vendors: RuledVendors, model: str, config: dict[str, Any], sent: int
) -> None:
    providers = Providers(Environment.read(vendors.environment))

    assert await refusal(providers, ModelSpec.model_validate({"id": model, "config": config})) is None
    assert vendors.asked[-1]["max_tokens"] == sent
    await providers.aclose()


ALL = {"temperature": 0.2, "reasoning_effort": "high", "thinking": 4096}


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        (
            "anthropic:claude-99",
            {
                "temperature": 0.2,
                "output_config": {"effort": "high"},
                "thinking": {"type": "enabled", "budget_tokens": 4096},
            },
        ),
        ("openai:gpt-99", {"temperature": 0.2, "reasoning": {"effort": "high"}}),
        (
            "openai_compatible:llama-99",
            {"temperature": 0.2, "reasoning_effort": "high", "thinking": {"type": "enabled", "budget_tokens": 4096}},
        ),
        ("google_genai:gemini-9", {"temperature": 0.2, "thinkingConfig": {"thinkingLevel": "HIGH"}}),
    ],
)
async def test_the_settings_of_an_unknown_model_are_passed_on(vendors: RuledVendors, model: str, sent: dict[str, Any]) -> None:
    providers = Providers(Environment.read(vendors.environment))

    assert await refusal(providers, ModelSpec.model_validate({"id": model, "config": ALL})) is None

    asked = vendors.asked[-1].get("generationConfig", vendors.asked[-1])
    assert {name: asked.get(name) for name in sent} == sent
    assert not vendors.refused
    await providers.aclose()


async def test_openrouter_gets_its_own_setting_of_thinking(vendors: RuledVendors, monkeypatch: pytest.MonkeyPatch) -> None:
    call_openrouter_at(f"{vendors.url}/v1", monkeypatch)
    providers = Providers(Environment.read(vendors.environment))
    for thinking, sent in {2048: {"max_tokens": 2048}, "adaptive": {"enabled": True}, "disabled": {"enabled": False}}.items():
        spec = ModelSpec.model_validate({"id": "openrouter:anthropic/claude-haiku-5.5", "config": {"thinking": thinking}})

        assert await refusal(providers, spec) is None
        assert vendors.asked[-1]["reasoning"] == sent
    await providers.aclose()
