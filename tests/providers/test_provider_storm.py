"""Graded through the fault server: whatever a provider does, a fault never ends as a verdict, and a permanent one is asked once."""

import asyncio
import importlib
import importlib.util
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from temporalio.client import Client

from activities.errors import RETRYABLE, ModelFault, failure
from activities.providers import Providers
from activities.providers.base import ModelReply, ModelRequest, Step
from activities.providers.environment import Environment
from activities.tools.registry import ToolRegistry
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.thread import RunResult
from gradeloop.settings.worker import WorkerSettings
from worker import build

pytestmark = [
    pytest.mark.storm,
    pytest.mark.filterwarnings("ignore::aiohttp.web_exceptions.NotAppKeyWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

PROTOCOLS = ("anthropic", "openai", "google_genai", "openai_compatible")

MODES: Mapping[str, tuple[str, float | None]] = {
    "html200": ("malformed_response", None),
    "trunc200": ("malformed_response", None),
    "empty200": ("malformed_response", None),
    "slow": ("timeout", None),
    "drop": ("connection", None),
    "dropmid": ("connection", None),
    "429": ("rate_limited", 6.5),
    "429quota": ("quota_exhausted", None),
    "529": ("overloaded", None),
    "503": ("server", None),
    "500html": ("server", None),
    "400": ("bad_request", None),
    "413": ("context_overflow", None),
    "trunc": ("truncated", None),
    "refuse": ("refused", None),
    "sse_ok": ("malformed_response", None),
    "sse_err": ("", None),
    "sse_drop": ("connection", None),
    "sse_cut": ("malformed_response", None),
    "sse_hang": ("timeout", None),
}
"""What each of the server's modes is, and how long it asks to wait."""

IN_STREAM = {"anthropic": "overloaded", "openai": "server", "google_genai": "server", "openai_compatible": "server"}
"""What the error is that each protocol sends in the middle of a stream."""


@dataclass
class Faults:
    """The fault server, and the environment by which calls go there."""

    url: str
    app: web.Application
    tally: Counter[str] = field(default_factory=Counter)

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables."""
        keys = {"ANTHROPIC_API_KEY": "k-a", "OPENAI_API_KEY": "k-o", "GOOGLE_API_KEY": "k-g"}
        return keys | {"ANTHROPIC_BASE_URL": self.url, "OPENAI_BASE_URL": f"{self.url}/v1", "GOOGLE_GEMINI_BASE_URL": self.url}


@pytest.fixture(scope="module", autouse=True)
def sdks() -> None:
    """Import the SDKs, which takes longer than the deadline here."""
    for name in ("anthropic", "openai", "google.genai"):
        importlib.import_module(name)


@pytest.fixture
async def faults(shared: Path) -> AsyncIterator[Faults]:
    """Run the fault server."""
    spec = importlib.util.spec_from_file_location("fault_mock", shared / "tools" / "fault_mock.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app, runner, url = await module.start()
    yield Faults(url, app)
    await runner.cleanup()


def asked(provider: str, mode: str) -> ModelRequest:
    """Return a call of the model that misbehaves in that way; the compatible one is streamed as a named one would be."""
    spec = ModelSpec.model_validate({"id": f"{provider}:{mode}", "config": {"structured_output": True}})
    return ModelRequest(spec, Step(role="grader"), (Message(role="user", content="hi"),))


@pytest.mark.parametrize("provider", PROTOCOLS)
@pytest.mark.parametrize("mode", MODES)
async def test_a_fault_has_its_name_and_ends_in_time(faults: Faults, provider: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.providers.base.CALL_SECONDS", 1.0)
    kind, wait = MODES[mode]
    providers, started = Providers(Environment.read(faults.environ)), asyncio.get_running_loop().time()
    with pytest.raises(ModelFault) as caught:
        await providers.complete(asked(provider, mode))
    await providers.aclose()

    error = failure(caught.value, model="m")
    asks = 34.07 if wait and provider == "google_genai" else wait
    assert error.type == (kind or IN_STREAM[provider])
    assert error.non_retryable == (error.type not in RETRYABLE)
    assert error.next_retry_delay == (timedelta(seconds=asks) if asks else None)
    assert asyncio.get_running_loop().time() - started < 10
    assert len(faults.app["seen"]) == 1


class Mixed(Providers):
    """Calls of which some go to a model that misbehaves."""

    def __init__(self, faults: Faults, provider: str, share: float) -> None:
        super().__init__(Environment.read(faults.environ))
        self._faults = faults
        self._provider = provider
        self._share = share
        self._dice = random.Random(20261120)
        self.drawn: dict[str, list[str]] = {}
        """What each thread's grader met, by the thread's task."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer for the generator; send the grader's call to a mode that the dice choose."""
        if request.step.role == "generator":
            return ModelReply(Message(role="assistant", content="a draft"))
        mode = self._dice.choice(list(MODES)) if self._dice.random() < self._share else "ok"
        self.drawn.setdefault(request.messages[0].content.split("task-")[1][:8], []).append(mode)
        spec = asked(self._provider, mode).spec
        return await super().complete(replace(request, spec=spec))


@asynccontextmanager
async def mixed(client: Client, faults: Faults, provider: str) -> AsyncIterator[tuple[Mixed, str]]:
    """Serve a queue whose grader misbehaves three times in ten, and waits for nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("activities.errors.RETRY_AFTER_CAP", 0.01)
        patch.setattr("activities.providers.base.CALL_SECONDS", 0.5)
        models, queue = Mixed(faults, provider, 0.3), f"queue-{uuid4()}"
        async with build(client, models, ToolRegistry(), WorkerSettings(task_queue=queue)):
            yield models, queue
        await models.aclose()


def request(name: str) -> dict[str, Any]:
    """Return a task with one criterion, which the fault server's good answer passes."""
    judge = {"model": "scripted:judge"}
    said = [{"role": "user", "content": f"task-{name}"}]
    return {"messages": said, "rubric": "- good", "generator": {"model": "scripted:g"}, "grader": {"model": judge["model"]}}


@pytest.mark.parametrize("provider", PROTOCOLS)
async def test_of_seventy_five_grades_with_three_faults_in_ten_none_is_decided_by_a_fault(
    client: Client, faults: Faults, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four protocols, 300 grades in all."""
    monkeypatch.setattr(Mixed, "check", lambda *_: None)
    async with mixed(client, faults, provider) as (models, queue):
        names = [f"{at:08d}" for at in range(75)]
        started = [
            client.execute_workflow("GradingThread", request(name), id=f"{queue}-{name}", task_queue=queue, result_type=RunResult)
            for name in names
        ]
        results: list[RunResult] = await asyncio.gather(*started)

    permanent = {mode for mode, (kind, _) in MODES.items() if kind and kind not in RETRYABLE}
    for name, result in zip(names, results, strict=True):
        met = models.drawn[name]
        assert (met[-1] == "ok") == (result.status == "satisfied"), (met, result.status, result.evaluations)
        assert result.status in {"satisfied", "grader_error"}
        at = next((at for at, mode in enumerate(met) if mode in permanent and mode != "trunc"), None)
        assert at in (None, len(met) - 1), f"asked again after a permanent fault: {met}"
        assert len(result.evaluations) == 1
    assert sum(mode != "ok" for met in models.drawn.values() for mode in met) > 15
