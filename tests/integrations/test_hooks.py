"""The hooks of `examples/hooks`, started as Claude Code and git start them."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gradeloop.temporal.connect import Connection
from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import MODEL, ModelCall, Reply, ScriptedModels, WorkerProcess, worker

HOOKS = Path(__file__).parents[2] / "examples" / "hooks"


@pytest.fixture(scope="module")
async def served(temporal_server: ServerInfo) -> AsyncIterator[WorkerProcess]:
    connection = Connection(temporal_server.address, "default", embedded=False)
    async with worker(ScriptedModels(verdicts=has_a_test), server=connection) as process:
        yield process


def has_a_test(call: ModelCall) -> Reply:
    if "nonsense" in (call.draft or ""):
        return "no verdict at all"
    return {} if "+def test_" in (call.draft or "") else {"k1": "add a test"}


@pytest.fixture
def repository(served: WorkerProcess, temporal_server: ServerInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with a rubric and one commit."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv("GRADELOOP_TASK_QUEUE", served.queue)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    (tmp_path / "RUBRIC.md").write_text("- the change comes with a test\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "user.email", "a@example.com")
    git(tmp_path, "config", "user.name", "A")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "rubric")
    return tmp_path


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)


async def stop(folder: Path, **more: Any) -> tuple[int, str]:
    """Return the exit code and the errors of the stop hook."""
    event = {"session_id": "s", "transcript_path": "/none", "cwd": str(folder), "hook_event_name": "Stop", "stop_hook_active": False}
    return await asyncio.to_thread(run_hook, "claude_stop.py", folder, json.dumps(event | more))


def run_hook(name: str, folder: Path, given: str = "") -> tuple[int, str]:
    done = subprocess.run([sys.executable, str(HOOKS / name), MODEL], cwd=folder, input=given, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.slow
async def test_the_agent_goes_on_until_its_change_meets_the_rubric(repository: Path) -> None:
    unchanged = await stop(repository)
    (repository / "new.py").write_text("def double(x): return 2 * x\n")
    without = await stop(repository)
    again = await stop(repository, stop_hook_active=True)
    (repository / "test_new.py").write_text("def test_double(): assert double(2) == 4\n")
    tested = await stop(repository)

    assert unchanged == again == (0, "")
    assert without[0] == 2
    assert "✗ c1: the change comes with a test" in without[1]
    assert "add a test" in without[1]
    assert tested == (0, "")


@pytest.mark.slow
async def test_an_agent_is_not_held_by_a_judge_that_fails(repository: Path) -> None:
    (repository / "new.py").write_text("nonsense\n")

    code, said = await stop(repository)

    assert code == 0
    assert "not graded: there is no verdict" in said


@pytest.mark.slow
async def test_a_commit_is_stopped_that_does_not_meet_the_rubric(repository: Path) -> None:
    (repository / ".git/hooks/pre-commit").write_text(f"#!/bin/sh\nexec '{sys.executable}' '{HOOKS / 'pre_commit.py'}' '{MODEL}'\n")
    (repository / ".git/hooks/pre-commit").chmod(0o755)
    (repository / "new.py").write_text("def triple(x): return 3 * x\n")
    git(repository, "add", ".")
    stopped = await asyncio.to_thread(git, repository, "commit", "-qm", "without")
    (repository / "test_new.py").write_text("def test_triple(): assert triple(2) == 6\n")
    git(repository, "add", ".")
    made = await asyncio.to_thread(git, repository, "commit", "-qm", "with")

    assert stopped.returncode == 1
    assert "add a test" in stopped.stderr
    assert made.returncode == 0, made.stderr
    assert git(repository, "log", "--oneline").stdout.count("\n") == 2


@pytest.mark.parametrize("name", ["claude_stop.py", "pre_commit.py"])
def test_a_hook_is_short(name: str) -> None:
    assert len((HOOKS / name).read_text().splitlines()) < 40
