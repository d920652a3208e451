"""Fallbacks from the command line: in tasks, suites and judges, on file and on the terminal."""

import asyncio
import json
from pathlib import Path

from activities.providers.scripted import Script
from tests.rig.cli import CommandLine
from tests.rig.failing_models import listening
from tests.rig.threads import verdict_text

LISTED = {"id": "openai:gpt-5-mini", "fallback": ["openai_compatible:third"]}
KEYLESS = {"id": "openai:gpt-5-mini", "fallback": ["openai_compatible:third", "anthropic:claude-haiku-4-5"]}

WITHOUT_KEY = "'anthropic:claude-haiku-4-5' needs a key and ANTHROPIC_API_KEY is not set; set it, or name another model"


def written(folder: Path, name: str, fields: object) -> str:
    """Write a file, and return its name."""
    (folder / name).write_text(json.dumps(fields))
    return name


async def test_a_fallback_is_named_on_the_terminal_and_in_a_recording(gradeloop: CommandLine) -> None:
    task = {"prompt": "Write.", "rubric": "- it is good", "generator": {"model": LISTED}, "grader": {"model": LISTED}}
    name = written(gradeloop.folder, "task.yaml", task)
    async with listening() as models:
        models.plan("gpt-5-mini", 404)
        models.plan("third", "a draft of the third", verdict_text())
        reached = {"OPENAI_BASE_URL": models.url, "OPENAI_API_KEY": "sk-0"}
        first = await asyncio.to_thread(gradeloop, "run", name, "--record", "said.yaml", **reached)
    again = gradeloop("run", name, "--json", "--replay", "said.yaml")

    assert first.code == again.code == 0, first.err
    assert "by openai_compatible:third instead of openai:gpt-5-mini" in " ".join(first.out.split() + first.err.split())
    recorded = Script.read(gradeloop.folder / "said.yaml").replies
    assert [row.asked and row.asked["model"] for row in recorded] == ["openai_compatible:third"] * 2
    assert [[error.kind for error in row.failed_before] for row in recorded] == [["not_found"], ["not_found"]]
    assert again.result["output"] == "a draft of the third"


def test_a_fallback_without_a_key_is_refused_before_a_worker_is_started(gradeloop: CommandLine) -> None:
    folder, keys = gradeloop.folder, {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9"}
    task = written(folder, "keyless.yaml", {"prompt": "Write.", "rubric": "- it is good", "grader": {"model": KEYLESS}})
    suite = {"rubric": "- it is good", "grader": KEYLESS, "tests": [{"id": "a", "output": "o"}]}
    judge = {"rubric_text": "Which?", "output_schema": {"type": "object", "properties": {"a": {"type": "string"}}}, "judge_model": KEYLESS}
    runs = folder / "runs.jsonl"
    runs.write_text(json.dumps({"id": "r", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}))

    run = gradeloop("run", task, **keys)
    eval_ = gradeloop("eval", written(folder, "suite.yaml", suite), **keys)
    judged = gradeloop("judge", written(folder, "judge.yaml", judge), "runs.jsonl", **keys)

    assert (run.code, eval_.code, judged.code) == (2, 2, 2)
    assert f"grader.model.fallback[1]: {WITHOUT_KEY}" in run.err
    assert f"grader.model.fallback[1]: {WITHOUT_KEY}" in eval_.err
    assert f".fallback[1]: {WITHOUT_KEY}" in judged.err
