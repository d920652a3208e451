"""Every exchange with a model on file, without keys; played back, the run is the same without a model."""

import asyncio
import json
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.providers.scripted import Script
from activities.tools.registry import ToolRegistry
from gradeloop.contract.messages import Usage
from gradeloop.contract.thread import RunResult
from gradeloop.settings.worker import WorkerSettings
from tests.providers.test_protocols import STORY, TOOLS, outcome_of, reached, task
from tests.rig.cli import CommandLine
from tests.rig.model_server import KEY, serving
from tests.rig.threads import Models, draft, grade, request, row, wants
from worker import build

SECRET = "sk-canary-0123456789"


def look() -> str:
    """Look."""
    return f"seen, with {SECRET}"


async def recorded(client: Client, file: Path, models: Models) -> RunResult:
    """Run a thread on a worker that writes its exchanges down."""
    queue = f"recording-{file.parent.name}"
    argument = request("- good")
    argument["grader"] |= {"tools": ["look"]}
    settings = WorkerSettings(task_queue=queue, record=file)
    async with build(client, models, ToolRegistry([look]), settings):
        result: RunResult = await client.execute_workflow("GradingThread", argument, id=queue, task_queue=queue, result_type=RunResult)
    return result


@pytest.mark.slow
async def test_what_was_said_is_on_file_and_can_be_played(client: Client, tmp_path: Path) -> None:
    replies = [draft(text="two\nlines"), wants("grader", "look"), grade(0, row("c1", "more"), step=1), draft(1), grade(1)]
    models = Models(replies, {"OPENAI_API_KEY": SECRET})
    models.fail_first("generator", kind="overloaded", usage=Usage(attempts=1))

    first = await recorded(client, tmp_path / "said.yaml", models)
    played = Script.read(tmp_path / "said.yaml")
    again = Models([json.loads(row.model_dump_json(exclude_none=True)) for row in played.replies], {})
    (tmp_path / "again").mkdir()
    second = await recorded(client, tmp_path / "again" / "said.yaml", again)

    for result in (first, second):
        assert (result.status, result.output, result.iterations) == ("satisfied", "draft 1", 2)
    assert [[row.gap for row in evaluation.criteria] for evaluation in second.evaluations] == [["more"], [None]]
    assert [(row.role, row.iteration, row.step) for row in played.replies] == [
        ("generator", 0, 0),
        ("grader", 0, 0),
        ("grader", 0, 1),
        ("generator", 1, 0),
        ("grader", 1, 0),
    ]
    assert [error.kind for error in played.replies[0].failed_before] == ["overloaded"]


async def test_the_file_shows_what_was_asked_and_no_key(client: Client, tmp_path: Path) -> None:
    models = Models([draft(text=f"my key is {SECRET}"), wants("grader", "look"), grade(0, step=1)], {"OPENAI_API_KEY": SECRET})

    await recorded(client, tmp_path / "said.yaml", models)

    text = (tmp_path / "said.yaml").read_text()
    assert SECRET not in text
    assert "my key is [key]" in text
    asked = Script.read(tmp_path / "said.yaml").replies[1].asked
    assert asked is not None
    assert asked["model"] == "scripted:judge"
    assert "it is" not in str(asked["tools"])


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command in a folder with a file of tools."""
    (commands.folder / "tools.py").write_text(TOOLS)
    return commands


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["openai", pytest.param("openai_compatible", marks=pytest.mark.slow)])
async def test_a_run_on_a_real_protocol_is_played_back_without_key_or_server(gradeloop: CommandLine, provider: str) -> None:
    async with serving(STORY) as server:
        config, variables = reached(provider, server.url)
        name, file = task(gradeloop, provider, config), f"{provider}-said.yaml"
        first = await asyncio.to_thread(gradeloop, "run", name, "--json", "--record", file, **variables)
    assert len(server.requests) == 6

    second = gradeloop("run", name, "--json", "--replay", file)

    assert outcome_of(second)["messages"] == outcome_of(first)["messages"]
    assert outcome_of(second)["rows"] == outcome_of(first)["rows"]
    assert second.result["evaluations"][0]["grader"] == f"scripted:{provider}:judge"
    assert KEY not in (gradeloop.folder / file).read_text()


def test_a_recording_is_not_overwritten_and_not_mixed_with_models(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "there.yaml").write_text("replies: []")
    (gradeloop.folder / "task.yaml").write_text("prompt: p\nrubric: '- a'\n")

    over = gradeloop("run", "task.yaml", "--record", "there.yaml", OPENAI_API_KEY="k")
    both = gradeloop("run", "task.yaml", "--replay", "there.yaml", "--model", "openai:gpt-5")
    gone = gradeloop("run", "task.yaml", "--replay", "gone.yaml")

    assert (over.code, both.code, gone.code) == (2, 2, 2)
    assert over.err.strip() == "gradeloop: --record: 'there.yaml' exists already; name another file, or remove it"
    assert "leave --record, --model and --grader out" in both.err
    assert "'gone.yaml' does not exist" in gone.err
