"""Endpoints with names on the command line: a folder's settings, a worker of its own, and what is refused before one is started."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.providers.test_protocols import STORY, TOOLS
from tests.rig.cli import CommandLine
from tests.rig.model_server import KEY, serving


def written(gradeloop: CommandLine, name: str, provider: str) -> str:
    """Write a task for an endpoint's models, and return the file's name."""
    (gradeloop.folder / "tools.py").write_text(TOOLS)
    config = {"structured_output": True}
    task = {
        "prompt": "Write two lines about spring.",
        "rubric": "- it has two lines\n- the theme is spring",
        "generator": {"model": {"id": f"{provider}:writer", "config": config}},
        "grader": {"model": {"id": f"{provider}:judge", "config": config}, "tools": ["count_lines"]},
        "tools": "tools.py",
    }
    (gradeloop.folder / name).write_text(json.dumps(task))
    return name


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["anthropic", "openai_chat", "openai_responses"])
async def test_a_task_runs_at_an_endpoint_of_the_folders_settings(commands: CommandLine, protocol: str) -> None:
    task, settings = written(commands, f"{protocol}.yaml", "house"), commands.folder / f"{protocol}.toml"
    (commands.folder / "house.key").write_text(f"{KEY}\n")
    async with serving(STORY) as server:
        address = server.url if protocol == "anthropic" else f"{server.url}/v1"
        settings.write_text(
            f'[providers.house]\nprotocol = "{protocol}"\nbase_url = "{address}"\nkey = "./house.key"\nbody = {{ tier = "x" }}\n'
        )
        done = await asyncio.to_thread(commands, "run", task, "--json", GRADELOOP_CONFIG=str(settings))

    assert done.code == 0, done.err
    assert done.result["output"] == "spring is\nhere"
    assert {(asked["model"], asked["tier"]) for asked in server.requests} == {("writer", "x"), ("judge", "x")}
    assert KEY not in done.out + done.err


async def test_an_endpoint_of_a_folder_that_nobody_trusts_is_unknown(commands: CommandLine, tmp_path: Path) -> None:
    task = written(commands, "untrusted.yaml", "hearth")
    (commands.folder / "gradeloop.toml").write_text('[providers.hearth]\nprotocol = "openai_chat"\nbase_url = "http://127.0.0.1:9/v1"\n')
    try:
        done = await asyncio.to_thread(commands, "run", task, "--json")
    finally:
        (commands.folder / "gradeloop.toml").unlink()

    assert done.code == 2
    assert "is not trusted, so these of its settings do not count: providers" in done.err
    assert "generator.model: 'hearth:writer': unknown provider 'hearth'." in done.err


async def test_run_eval_and_judge_refuse_an_unknown_provider_before_a_worker_is_started(commands: CommandLine) -> None:
    task = written(commands, "unknown.yaml", "groqq")
    suite = {"prompts": ["Say {{ x }}"], "tests": [{"id": "a", "vars": {"x": "y"}}], "rubric": "- x"}
    suite |= {"generators": ["groqq:m"], "grader": "groqq:m"}
    (commands.folder / "unknown-suite.yaml").write_text(json.dumps(suite))
    (commands.folder / "judge.yaml").write_text(json.dumps({"rubric_text": "It is good.", "judge_model": "groqq:m"}))
    run = {"id": "r", "transcripts": [{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}]}
    (commands.folder / "run.json").write_text(json.dumps(run))
    before = workers(commands)

    for command in (["run", task], ["eval", "unknown-suite.yaml"], ["judge", "judge.yaml", "run.json"]):
        done = await asyncio.to_thread(commands, *command)
        assert (done.code, "unknown provider 'groqq'. Did you mean 'groq'?" in done.err) == (2, True), (command, done.err)
    assert workers(commands) == before


def workers(commands: CommandLine) -> set[str]:
    """Return the workers that commands have started."""
    return {path.stem for path in (commands.state / "workers").glob("*")}
