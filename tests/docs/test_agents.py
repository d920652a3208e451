"""The agents of `examples/agents` draft through their frameworks, each where its framework is installed; no provider is called."""

import asyncio
import importlib.util
import os
import sys
from pathlib import Path

import pytest

from gradeloop.temporal.connect import Connection
from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import MODEL, ScriptedModels, worker
from tests.conftest import ROOT
from tests.rig.model_server import Reply
from tests.rig.model_streams import model_streams

FRAMEWORKS = {"langgraph": "langchain_openai", "pydantic_ai": "pydantic_ai", "openai_agents": "agents", "claude": "claude_agent_sdk"}

FIRST, SECOND = "Never on Fridays.", "Deploy on Tuesday: who would mend it on Saturday?"


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_agent_drafts_again_on_feedback(temporal_server: ServerInfo, framework: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(FRAMEWORKS[framework]) is None:
        pytest.skip(f"{FRAMEWORKS[framework]} is not installed")
    models = ScriptedModels([FIRST, SECOND], [{"c1": "say what to do"}, {}])
    server = Connection(temporal_server.address, "default", embedded=False)
    with model_streams(lambda _, asked: Reply(SECOND if "say what to do" in asked else FIRST)) as anthropic:
        async with worker(models, server=server) as served:
            environment = {
                "TEMPORAL_ADDRESS": server.address,
                "OPENAI_BASE_URL": models.url,
                "OPENAI_API_KEY": "none",
                "ANTHROPIC_BASE_URL": anthropic,
                "ANTHROPIC_API_KEY": "none",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "HOME": str(tmp_path),
            }
            agent = await asyncio.create_subprocess_exec(
                sys.executable, str(ROOT / f"examples/agents/{framework}_agent.py"), env={**os.environ, **environment}
            )
            try:
                result = await served.client.run(
                    {
                        "messages": [{"role": "user", "content": "Explain why we never deploy on a Friday."}],
                        "rubric": "- it says what to do instead",
                        "generator": {"activity": "generate", "task_queue": "agents"},
                        "grader": {"model": MODEL},
                    }
                )
            finally:
                agent.terminate()
                await agent.wait()

    assert (result.status, result.output) == ("satisfied", SECOND), result.error
