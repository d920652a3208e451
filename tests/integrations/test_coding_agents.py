"""Claude Code and Codex themselves, set up by docs/agents.md word by word, call gradeloop; CONTRIBUTING.md says how to have them."""

import asyncio
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gradeloop.integrations.agent_session import AgentSession, SessionLimits, SessionModels
from gradeloop.integrations.mcp_server import serving_http
from gradeloop.temporal.connect import Connection
from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import ScriptedModels, WorkerProcess, worker
from tests.conftest import ROOT
from tests.docs.runner import block_of
from tests.rig.model_server import JsonObject, Reply
from tests.rig.model_streams import model_streams
from tests.test_house import BIN

AGENTS = Path(os.environ.get("GRADELOOP_AGENTS", "none")) / ".bin"
"""The folder of the programs `claude` and `codex`."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not AGENTS.is_dir(), reason="GRADELOOP_AGENTS names no folder node_modules with Claude Code and Codex"),
]

DOCS = "docs/agents.md"
GRADE = "mcp__gradeloop__grade"
PASSED = r"\"result\":\"satisfied\""
"""What the answer of `grade` to a text that passes has, inside of an agent's request."""

MOST_REQUESTS = 8
"""After as many an agent goes in circles."""

GAP = "name the month, May"

DOCUMENTED_URL = "http://127.0.0.1:8246/mcp"

TOKEN = "a-token-of-sixteen-or-more"


@dataclass
class Conversation:
    """A model that grades a text, mends it by the gap and grades it again, and a judge that wants a month."""

    asked: list[str] = field(default_factory=list)
    """The requests of the agent, as text."""

    def __call__(self, request: JsonObject, text: str) -> Reply:
        tools = {tool.get("name"): tool for tool in request.get("tools", ())}
        if not tools:
            return judge(text)
        self.asked.append(text)
        if len(self.asked) > MOST_REQUESTS:
            return Reply("It goes in circles.")
        if PASSED in text:
            return Reply("It passes.")
        if not {GRADE, "mcp__gradeloop"} & set(tools) and f'"tool_name":"{GRADE}"' not in text:
            return find_grade(tools, text)
        output = "Frogs in May." if GAP in text else "Frogs."
        return Reply(calls=((GRADE, {"output": output, "rubric": "- names the month"}),))


def find_grade(tools: Collection[str], text: str) -> Reply:
    """Call what an agent offers to find a tool that it does not offer yet; without any, say so."""
    if "ToolSearch" in tools and GRADE in text:
        return Reply(calls=(("ToolSearch", {"query": f"select:{GRADE}", "max_results": 5}),))
    if "WaitForMcpServers" in tools:
        return Reply(calls=(("WaitForMcpServers", {}),))
    return Reply("There is no gradeloop.")


def judge(text: str) -> Reply:
    """Answer as a judge does, whose judged text is in the request."""
    row: JsonObject = {"reason": "It says May.", "passed": True, "gap": ""}
    if "Frogs in May." not in text and "def test_" not in text:
        row = {"reason": "No month.", "passed": False, "gap": GAP}
    return Reply(json.dumps({"k1": row, "unjudgeable": ""}))


@dataclass
class Desk:
    """A folder with a repository, and the variables of a person who works there."""

    folder: Path
    variables: dict[str, str]
    conversation: Conversation

    async def run(self, *command: str) -> str:
        """Run a command in the repository, and return what it says."""
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.folder,
            env=self.variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 120)
        assert process.returncode == 0, said.decode()
        return said.decode()

    async def claude(self, *options: str) -> str:
        """Have Claude Code do something."""
        return await self.run("claude", "-p", "Write a line, and grade it until it passes.", *options)

    async def codex(self) -> str:
        """Have Codex do something."""
        return await self.run("codex", "exec", "--strict-config", "--skip-git-repo-check", "Write a line, and grade it until it passes.")

    def configure_codex(self, documented_table: str) -> None:
        """Write the configuration of Codex: where its model is, and what the page says."""
        url = f"{self.variables['ANTHROPIC_BASE_URL']}/v1"
        provider = f'name = "scripted"\nbase_url = "{url}"\nwire_api = "responses"\nenv_key = "OPENAI_API_KEY"\n'
        folder = Path(self.variables["HOME"]) / ".codex"
        folder.mkdir()
        written = f'model = "scripted"\nmodel_provider = "scripted"\n\n[model_providers.scripted]\n{provider}\n{documented_table}'
        (folder / "config.toml").write_text(written)


@pytest.fixture(scope="module")
def conversation() -> Conversation:
    return Conversation()


@pytest.fixture(scope="module")
def streams(conversation: Conversation) -> Iterator[str]:
    with model_streams(conversation) as url:
        yield url


@pytest.fixture(scope="module")
async def served(temporal_server: ServerInfo, streams: str) -> AsyncIterator[WorkerProcess]:
    connection = Connection(temporal_server.address, "default", embedded=False)
    reached = {"ANTHROPIC_BASE_URL": streams, "OPENAI_BASE_URL": f"{streams}/v1", "ANTHROPIC_API_KEY": "none", "OPENAI_API_KEY": "none"}
    async with worker(ScriptedModels(), server=connection, environment=reached) as process:
        yield process


@pytest.fixture
def desk(
    served: WorkerProcess, temporal_server: ServerInfo, conversation: Conversation, streams: str, environment: Path, tmp_path: Path
) -> Desk:
    """Return a desk; its `gradeloop` is the real one, which finds the test run's server and worker."""
    conversation.asked.clear()
    (programs := tmp_path / "bin").mkdir()
    (repository := tmp_path / "repository").mkdir()
    (home := tmp_path / "home").mkdir()
    found = {
        "TEMPORAL_ADDRESS": temporal_server.address,
        "GRADELOOP_TASK_QUEUE": served.queue,
        "GRADELOOP_STATE_DIR": str(environment),
        "GRADELOOP_STORE": f"sqlite:///{tmp_path / 'store.db'}",
    }
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in found.items())
    (programs / "gradeloop").write_text(f'#!/bin/sh\n{exports}exec {shlex.quote(str(BIN / "gradeloop"))} "$@"\n')
    (programs / "gradeloop").chmod(0o755)
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    variables = {
        "PATH": f"{programs}:{AGENTS}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": streams,
        "ANTHROPIC_API_KEY": "none",
        "OPENAI_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return Desk(repository, variables, conversation)


def graded_twice(desk: Desk) -> bool:
    """Tell whether both verdicts came into requests of the agent: the gap of the first, and that the second passes."""
    return any(GAP in text for text in desk.conversation.asked) and PASSED in desk.conversation.asked[-1]


async def test_claude_code_grades_and_mends_by_the_repository_s_own_configuration(desk: Desk) -> None:
    (desk.folder / ".mcp.json").write_text(block_of(DOCS, "json", having='"mcpServers"').text)

    said = await desk.claude("--allowedTools", "mcp__gradeloop")

    assert said.strip() == "It passes."
    assert graded_twice(desk)


async def test_claude_code_offers_the_tools_before_it_is_asked_anything(desk: Desk) -> None:
    (desk.folder / ".mcp.json").write_text(block_of(DOCS, "json", having='"mcpServers"').text)

    await desk.claude("--allowedTools", "mcp__gradeloop")
    first = {tool["name"] for tool in json.loads(desk.conversation.asked[0])["tools"]}

    assert GRADE in first


async def test_claude_code_grades_and_mends_once_the_command_was_run(desk: Desk) -> None:
    added = await desk.run("sh", "-c", block_of(DOCS, "sh", having="claude mcp add gradeloop").text)
    listed = await desk.run("claude", "mcp", "list")
    said = await desk.claude("--allowedTools", "mcp__gradeloop")

    assert "Added stdio MCP server gradeloop" in added
    assert "Connected" in listed
    assert said.strip() == "It passes."
    assert graded_twice(desk)


async def test_codex_grades_and_mends_by_its_configuration(desk: Desk) -> None:
    desk.configure_codex(block_of(DOCS, "toml", having="command =").text)

    said = await desk.codex()

    assert "It passes." in said
    assert graded_twice(desk)


@pytest.mark.parametrize("agent", ["claude", "codex"])
async def test_both_grade_and_mend_over_http(
    desk: Desk, agent: str, served: WorkerProcess, temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (
        ("TEMPORAL_ADDRESS", temporal_server.address),
        ("GRADELOOP_TASK_QUEUE", served.queue),
        ("ANTHROPIC_API_KEY", "none"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GRADELOOP_STORE", f"sqlite:///{tmp_path / 'http.db'}")
    desk.variables["GRADELOOP_MCP_TOKEN"] = TOKEN
    session = AgentSession(SessionLimits(), SessionModels())

    async with serving_http(session, socket.create_server(("127.0.0.1", 0)), TOKEN) as url:
        if agent == "claude":
            await desk.run("sh", "-c", block_of(DOCS, "sh", having="claude mcp add --transport http").text.replace(DOCUMENTED_URL, url))
            said = await desk.claude("--allowedTools", "mcp__gradeloop")
        else:
            desk.configure_codex(block_of(DOCS, "toml", having="url =").text.replace(DOCUMENTED_URL, url))
            said = await desk.codex()

    assert "It passes." in said
    assert graded_twice(desk)


async def test_claude_code_goes_on_until_its_change_meets_the_rubric_of_the_stop_hook(
    desk: Desk, served: WorkerProcess, temporal_server: ServerInfo, environment: Path
) -> None:
    """The hook comes back once with what fails."""
    desk.variables |= {
        "TEMPORAL_ADDRESS": temporal_server.address,
        "GRADELOOP_TASK_QUEUE": served.queue,
        "GRADELOOP_STATE_DIR": str(environment),
    }
    (desk.folder / "examples/hooks").mkdir(parents=True)
    (desk.folder / "examples/hooks/claude_stop.py").write_bytes((ROOT / "examples/hooks/claude_stop.py").read_bytes())
    (desk.folder / ".claude").mkdir()
    (desk.folder / ".claude/settings.json").write_text(block_of(DOCS, "json", having='"hooks"').text)
    (desk.folder / "RUBRIC.md").write_text("- names the month\n")

    await desk.claude()
    sent_back = desk.conversation.asked[-1]

    assert len(desk.conversation.asked) == 2
    assert GAP in sent_back
    assert "Mend what fails, leave the rest as it is." in sent_back
