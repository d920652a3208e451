"""Graded through the fault server: whatever a provider does, a fault never ends as a verdict, and a permanent one is asked once."""

import asyncio
import importlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from temporalio.client import Client

from activities.errors import RETRYABLE, failure
from activities.providers import Providers
from activities.providers.environment import Environment
from activities.tools.registry import ToolRegistry
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault, ModelReply, ModelRequest, Step
from gradeloop.contract.thread import RunResult
from gradeloop.settings.worker import WorkerSettings
from tests.rig.provider_server import PROTOCOLS, Cut, Handler, ProviderServer, Received, raw_body, recordings, send
from worker import build

pytestmark = pytest.mark.storm


async def stalled(_: web.Request) -> web.StreamResponse:
    """Say nothing."""
    await asyncio.sleep(3600)
    return web.Response()


async def dropped(request: web.Request) -> web.StreamResponse:
    """Drop the connection."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def dropped_within(request: web.Request) -> web.StreamResponse:
    """Drop the connection within a body."""
    response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "1000"})
    await response.prepare(request)
    await response.write(b'{"id":')
    await dropped(request)
    return response


TRANSPORT: dict[str, tuple[str, Handler | Cut]] = {
    "page": ("malformed_response", raw_body(b"<html>gateway</html>", "text/html")),
    "empty": ("malformed_response", raw_body(b"")),
    "half": ("malformed_response", raw_body(b'{"id": "x", "choices": [{"ind')),
    "bad_gateway": ("server", raw_body(b"<html>bad</html>", "text/html", 502)),
    "late": ("timeout", stalled),
    "no_reply": ("connection", dropped),
    "half_and_gone": ("connection", dropped_within),
    "stream_ends": ("malformed_response", "ends"),
    "stream_drops": ("connection", "drops"),
    "stream_hangs": ("timeout", "hangs"),
}
"""Faults that are none of a protocol's: the failure each is, and the answer, or what becomes of a stream after its first event."""


def faults_of(provider: str) -> dict[str, str]:
    """Return the failure that each fault of a provider is."""
    documented = {name: str(fault.kind) for name, fault in recordings(provider).faults.items()}
    return documented | {name: kind for name, (kind, _) in TRANSPORT.items()}


async def misbehave(request: web.Request) -> web.StreamResponse:
    """Answer as the name of the model says: `ok` with a good verdict, else with that fault."""
    received = Received(request.path, {}, await request.read())
    own, answer = recordings(received.provider), TRANSPORT[received.model][1] if received.model in TRANSPORT else None
    if callable(answer):
        return await answer(request)
    if received.model in own.faults:
        return await send(request, own.faults[received.model])
    return await send(request, own.exchanges["verdict"][0], answer)


def asked(provider: str, mode: str) -> ModelRequest:
    """Return a call of the model that misbehaves in that way; the compatible one is streamed as a named one would be."""
    spec = ModelSpec.model_validate({"id": f"{provider}:{mode}", "config": {"structured_output": True}})
    return ModelRequest(spec, Step(role="grader"), (Message(role="user", content="hi"),))


@pytest.fixture(scope="module", autouse=True)
def sdks() -> None:
    """Import the SDKs, which takes longer than the deadline here."""
    for name in ("anthropic", "openai", "google.genai"):
        importlib.import_module(name)


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("mode", TRANSPORT)
async def test_a_fault_of_the_transport_has_its_name(
    provider: ProviderServer, name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented faults are those of test_providers_recordings.py."""
    if TRANSPORT[mode][0] == "timeout":
        monkeypatch.setattr("activities.providers.base.CALL_SECONDS", 1.0)
    provider.answer = misbehave
    with pytest.raises(ModelFault) as caught:
        await provider.providers.complete(asked(name, mode))

    error = failure(caught.value, model="m")
    assert (error.type, error.next_retry_delay) == (TRANSPORT[mode][0], None)
    assert error.non_retryable == (error.type not in RETRYABLE)
    assert len(provider.received) == 1


class Mixed(Providers):
    """Calls of which some go to a model that misbehaves."""

    def __init__(self, server: ProviderServer, provider: str, share: float) -> None:
        super().__init__(Environment.read(server.environ))
        self._provider = provider
        self._share = share
        self._dice = random.Random(20261120)
        self.drawn: dict[str, list[str]] = {}
        """What each thread's grader met, by the thread's task."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer for the generator; send the grader's call to a mode that the dice choose."""
        if request.step.role == "generator":
            return ModelReply(Message(role="assistant", content="a draft"))
        mode = self._dice.choice(list(faults_of(self._provider))) if self._dice.random() < self._share else "ok"
        self.drawn.setdefault(request.messages[0].content.split("task-")[1][:8], []).append(mode)
        spec = asked(self._provider, mode).spec
        return await super().complete(replace(request, spec=spec))


@asynccontextmanager
async def mixed(client: Client, server: ProviderServer, provider: str) -> AsyncIterator[tuple[Mixed, str]]:
    """Serve a queue whose grader misbehaves three times in ten, and waits for nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("activities.errors.RETRY_AFTER_CAP", 0.01)
        patch.setattr("activities.providers.base.CALL_SECONDS", 0.5)
        models, queue = Mixed(server, provider, 0.3), f"queue-{uuid4()}"
        async with build(client, models, ToolRegistry(), WorkerSettings(task_queue=queue)):
            yield models, queue
        await models.aclose()


def request(name: str) -> dict[str, Any]:
    """Return a task with one criterion, which the fault server's good answer passes."""
    judge = {"model": "scripted:judge"}
    said = [{"role": "user", "content": f"task-{name}"}]
    return {"messages": said, "rubric": "- good", "generator": {"model": "scripted:g"}, "grader": {"model": judge["model"]}}


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_of_seventy_five_grades_with_three_faults_in_ten_none_is_decided_by_a_fault(
    client: Client, provider: ProviderServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four protocols, 300 grades in all."""
    monkeypatch.setattr(Mixed, "check", lambda *_: None)
    provider.answer = misbehave
    async with mixed(client, provider, name) as (models, queue):
        names = [f"{at:08d}" for at in range(75)]
        started = [
            client.execute_workflow("GradingThread", request(task), id=f"{queue}-{task}", task_queue=queue, result_type=RunResult)
            for task in names
        ]
        results: list[RunResult] = await asyncio.gather(*started)

    permanent = {mode for mode, kind in faults_of(name).items() if kind not in RETRYABLE}
    for task, result in zip(names, results, strict=True):
        met = models.drawn[task]
        assert (met[-1] == "ok") == (result.status == "satisfied"), (met, result.status, result.evaluations)
        assert result.status in {"satisfied", "grader_error"}
        at = next((at for at, mode in enumerate(met) if mode in permanent and mode != "cut"), None)
        assert at in (None, len(met) - 1), f"asked again after a permanent fault: {met}"
        assert len(result.evaluations) == 1
    assert sum(mode != "ok" for met in models.drawn.values() for mode in met) > 15
