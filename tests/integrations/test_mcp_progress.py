"""While a provider is away, `grade` and `judge_run` say at a steady pace what they wait for; a cancelled call is no more waited for."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mcp import Client
from temporalio.client import Client as TemporalClient

from gradeloop.integrations import agent_session
from gradeloop.integrations.agent_session import AgentSession, SessionLimits, SessionModels
from gradeloop.integrations.mcp_server import build_server
from gradeloop.temporal.server import ServerInfo
from tests.rig.failing_models import FailingModels, listening, working
from tests.rig.threads import verdict_text

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("collected_here"),
]

PACE = 0.5


@pytest.fixture
async def models() -> AsyncIterator[FailingModels]:
    async with listening() as server:
        yield server


@pytest.fixture(autouse=True)
def environment_of_the_server(temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv("GRADELOOP_STORE", f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.setattr(agent_session, "PACE_SECONDS", PACE)


@asynccontextmanager
async def agent(
    client: TemporalClient, models: FailingModels, monkeypatch: pytest.MonkeyPatch, **limits: Any
) -> AsyncIterator[tuple[Client, AgentSession]]:
    """Connect an agent to a server whose worker calls the models."""
    async with working(client, models, outage_timeout=3600) as served:
        monkeypatch.setenv("GRADELOOP_TASK_QUEUE", served.task_queue)
        session = AgentSession(SessionLimits.model_validate(limits), SessionModels(grader="openai_compatible:judge"))
        async with Client(build_server(session), mode="auto") as connected:
            yield connected, session
        await session.close()


class Noted:
    """What a client is told of a call."""

    def __init__(self) -> None:
        self.told: list[tuple[float, str]] = []
        self.times: list[float] = []

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        self.told.append((progress, message or ""))
        self.times.append(asyncio.get_running_loop().time())


def arguments(tool: str) -> dict[str, Any]:
    text = f"It is May. {uuid4()}"
    if tool == "grade":
        return {"output": text, "rubric": "- names the month"}
    run = {"id": "r", "transcripts": [{"messages": [{"role": "user", "content": "Which?"}, {"role": "assistant", "content": text}]}]}
    return {"run": run, "judge": "- names the month"}


@pytest.mark.parametrize("tool", ["grade", "judge_run"])
async def test_a_call_says_at_a_steady_pace_that_its_provider_is_away(
    client: TemporalClient, models: FailingModels, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    models.plan("judge", 503, 503, 503, verdict_text())
    noted = Noted()
    async with agent(client, models, monkeypatch) as (connected, _):
        result = await connected.call_tool(tool, arguments(tool), progress_callback=noted)

    assert not result.is_error, result.content
    away = [text for _, text in noted.told if "the provider gives no answer" in text]
    said = r"\d+ s; 0 of 1 judgement made; the provider gives no answer, attempt \d: .*HTTP 503, openai_compatible:judge: .*"
    assert away
    assert re.fullmatch(said + r"; asked again in \d+ s; waited for until \d\d:\d\d:\d\d UTC", away[0])
    assert [progress for progress, _ in noted.told] == sorted({progress for progress, _ in noted.told})
    pauses = [later - earlier for earlier, later in zip(noted.times, noted.times[1:], strict=False)]
    assert len(noted.told) >= 5
    assert sorted(pauses)[len(pauses) // 2] < 3 * PACE


@pytest.mark.slow
async def test_a_call_whose_model_takes_its_time_says_so(
    client: TemporalClient, models: FailingModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.plan("judge", verdict_text())
    models.delays["judge"] = [4.0]
    noted = Noted()
    async with agent(client, models, monkeypatch) as (connected, _):
        await connected.call_tool("grade", arguments("grade"), progress_callback=noted)

    assert any(text.endswith("0 of 1 judgement made; a model is asked, and has not answered yet") for _, text in noted.told)


@pytest.mark.slow
async def test_a_cancelled_call_is_told_nothing_more_and_its_judgement_is_read_and_counted_later(
    client: TemporalClient, models: FailingModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.plan("judge", 503, 503, verdict_text())
    noted, asked = Noted(), arguments("grade")
    async with agent(client, models, monkeypatch) as (connected, session):
        calling = asyncio.create_task(connected.call_tool("grade", asked, progress_callback=noted))
        while not noted.told:
            await asyncio.sleep(0.05)
        calling.cancel()
        with suppress(asyncio.CancelledError):
            await calling
        await asyncio.sleep(2 * PACE)  # one that was on its way
        told = len(noted.told)
        listed = await connected.call_tool("list_judges", {})
        async with asyncio.timeout(240):
            while session._judging:
                await asyncio.sleep(0.05)
        counted = set(session._spending.known_usd)
        again = await connected.call_tool("grade", asked)

    assert not listed.is_error
    assert len(noted.told) == told
    assert again.structured_content is not None
    assert (again.structured_content["result"], models.sold) == ("satisfied", 1)
    assert counted == {again.structured_content["judgement_id"]}
