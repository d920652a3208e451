"""How long a model call may take: by its own setting, by the worker's, and for slow models; and what a call that took too long says."""

import asyncio
import json
from importlib import import_module
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError
from temporalio.client import Client

from activities.providers import Providers
from activities.providers.base import IDLE_TIMEOUT, deadline, silence
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import LONGEST_TIMEOUT, ModelSpec
from gradeloop.contract.provider import ModelFault, ModelRequest, Step
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.answer_form import FULL
from gradeloop.grading.cache_key import reuse_key
from gradeloop.grading.scoring import call_groups
from gradeloop.settings.catalog import capability_of
from tests.rig.provider_server import Handler, ProviderServer
from tests.rig.threads import Models, a_thread, serving
from workflows.activity_calls import MODEL_CALL

CLAUDE, GEMINI = "anthropic:claude-opus-5-5", "google_genai:gemini-3.6-flash"


def asked(model: str, **config: Any) -> ModelRequest:
    """Return a call of a model with these settings."""
    spec = ModelSpec.model_validate({"id": model, "config": config})
    return ModelRequest(spec, Step(role="grader"), (Message(role="user", content="hi"),))


@pytest.mark.parametrize(
    ("model", "config", "usual", "seconds"),
    [
        (CLAUDE, {}, None, 540),
        (CLAUDE, {}, 100, 100),
        (CLAUDE, {"timeout": 30}, 100, 30),
        (CLAUDE, {"timeout": 20_000}, None, 20_000),
        (CLAUDE, {"max_tokens": 60_000}, None, 2000),
        (CLAUDE, {"max_tokens": 60_000, "timeout": 700}, None, 700),
        ("openai:o3-pro", {}, None, 3600),
        ("openai:gpt-5.4-pro", {}, 100, 3600),
        ("openai:o4-mini-deep-research", {"timeout": 60}, None, 60),
    ],
)
def test_a_call_has_its_models_time_else_the_workers_and_a_slow_model_an_hour(
    model: str, config: dict[str, Any], usual: float | None, seconds: float
) -> None:
    assert deadline(asked(model, **config), usual) == seconds


def test_a_slow_model_is_streamed_and_may_be_silent_until_its_time_is_over() -> None:
    slow = asked("openai:o3-pro")

    assert capability_of(slow.spec).stream
    assert (silence(slow), silence(asked(CLAUDE)), silence(asked(CLAUDE, timeout=900))) == (LONGEST_TIMEOUT, IDLE_TIMEOUT, LONGEST_TIMEOUT)


def test_a_timeout_above_six_hours_is_refused_and_the_activity_lasts_longer_than_any() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 21600"):
        asked(CLAUDE, timeout=21_601)

    assert MODEL_CALL["start_to_close_timeout"] is not None
    assert MODEL_CALL["start_to_close_timeout"].total_seconds() > 21_600


def test_a_verdict_is_reused_whatever_time_its_call_had() -> None:
    rubric = Rubric.model_validate("- it is good")

    def key(**config: Any) -> str:
        group = call_groups(rubric)[0]
        judge = asked(CLAUDE, **config).spec
        return reuse_key(
            rubric, group, sample=0, judge=judge, instructions=None, tools="", records="", request=0, checks={}, form=FULL
        )  # fmt: skip

    assert key() == key(timeout=60) != key(max_tokens=60)


def stalling(*events: dict[str, Any], begun: asyncio.Event | None = None) -> Handler:
    """Answer with the beginning of a stream that never ends, and say when it is sent."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        if begun is not None:
            begun.set()
        await asyncio.sleep(3600)
        return response

    return answer


STARTED = {
    "type": "message_start",
    "message": {"type": "message", "role": "assistant", "usage": {"input_tokens": 1000, "output_tokens": 3}},
}
CHUNK = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "It"}]}}],
    "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 3},
}


@pytest.mark.parametrize(("model", "event"), [(CLAUDE, STARTED), (GEMINI, CHUNK)])
async def test_a_call_that_took_too_long_says_what_was_paid_and_counts_it(
    provider: ProviderServer, model: str, event: dict[str, Any]
) -> None:
    import_module("anthropic" if model == CLAUDE else "google.genai")  # which takes seconds of the first call on a busy machine

    fault = await provider.fault(model, stalling(event), {"timeout": 3})

    usage = fault.usage
    assert fault.kind == "timeout"
    assert fault.message == (
        "no whole reply within 3 s; 1000 prompt and 3 completion tokens were reported by then, and are counted as paid; "
        "raise config.timeout, if the model needs longer"
    )
    assert usage is not None
    assert (usage.input, usage.output, usage.attempts) == (1000, 3, 1)
    assert (usage.cost_usd or 0) > 0


async def test_a_call_that_reported_nothing_says_that_its_charge_is_not_known(provider: ProviderServer) -> None:
    provider.answer = stalling()
    providers = Providers(Environment.read(provider.environ), call_timeout=0.5)
    with pytest.raises(ModelFault, match="what the provider charges for it is not known") as caught:
        await providers.complete(asked("openai:gpt-5.4"))
    await providers.aclose()

    assert "raise config.timeout of the model, or the worker's call_timeout" in caught.value.message


async def test_a_run_that_is_interrupted_counts_what_its_call_had_cost(provider: ProviderServer, client: Client) -> None:
    begun = asyncio.Event()
    provider.answer = stalling(STARTED, begun=begun)
    models = Models(environment=provider.environ)
    async with serving(client, models=models) as served:
        thread_id = a_thread()
        turn = asyncio.create_task(served.client.invoke(thread_id, "Write.", start={"generator": {"model": CLAUDE}}))
        await begun.wait()
        await asyncio.sleep(0.5)  # until the client has read it
        await served.handle(thread_id).signal("interrupt")
        result = await turn
    await models.aclose()

    assert (result.status, result.reason) == ("interrupted", "person")
    assert (result.usage.input, result.usage.output, result.usage.attempts) == (1000, 3, 1)
