"""The page about judges matches the code: its examples run, its fields, limits and commands are the code's."""

import asyncio
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types
from temporalio.client import Client

from gradeloop import testing
from gradeloop.cli.main import app
from gradeloop.cli.schemas import json_schemas
from gradeloop.contract import transcript
from gradeloop.contract.rubric import RUBRIC_BYTES
from gradeloop.files.yaml import read_yaml
from gradeloop.grading.prompts import TRANSCRIPT_BUDGET
from gradeloop.grading.verdicts import REPAIRS
from gradeloop.judges import answers as answer
from gradeloop.judges import contract as schema_judge
from gradeloop.judges import contract as template
from gradeloop.judges import schema as output_schema
from gradeloop.judges import schema as schema_bounds
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import CriteriaJudge, JudgeResult, SchemaJudge, parse_judge
from gradeloop.temporal.server import ServerInfo
from tests.docs.test_docs import Block, blocks, rows
from tests.rig.judging import MATCH, answers
from tests.rig.threads import serving

PAGE = Path(__file__).parents[2] / "docs" / "judging.md"


def block(language: str, about: str = "") -> Block:
    """Return the one block that is meant."""
    (found,) = (block for block in blocks(PAGE) if (block.language, block.about) == (language, about))
    return found


def test_the_two_kinds_of_judge_are_what_they_are_called() -> None:
    assert isinstance(parse_judge(read_yaml(block("yaml", "criteria").text, "the example")), CriteriaJudge)
    assert isinstance(parse_judge(read_yaml(block("yaml", "schema").text, "the example")), SchemaJudge)
    assert parse_judge(read_yaml(block("yaml", "unsure").text, "the example")).abstain == {"label": 0.8}


@pytest.mark.parametrize("name", ["AgentRun", "JudgingRequest"])
def test_the_examples_keep_the_printed_schemas(name: str) -> None:
    assert list(Draft202012Validator(json_schemas(name)).iter_errors(json.loads(block("json", name).text))) == []


async def test_the_example_judges_the_example(client: Client) -> None:
    judge: Any = read_yaml(block("yaml", "schema").text, "the example")
    run = json.loads(block("json", "AgentRun").text)
    said = [answers(MATCH, at) for at in range(3)]
    async with serving(client, *said) as served:
        result = await Judge(judge | {"judge_model": "scripted:judge"}, client, task_queue=served.task_queue)(run)

    assert (result.output, result.agent_run_id) == (MATCH, "paris-1")
    assert result.result_metadata["citation_counts"] == {"cited": 1, "verified": 1}


async def test_the_python_example_runs(
    client: Client, temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "service.py"
    text = block("python").text.replace("anthropic:claude-haiku-4-5", "scripted:judge").replace('"paris-1"', '"paris-in-the-docs"')
    script.write_text(text)
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    async with serving(client, answers(MATCH), task_queue="gradeloop"):
        process = await asyncio.create_subprocess_exec(sys.executable, str(script), stdout=asyncio.subprocess.PIPE)
        out, _ = await asyncio.wait_for(process.communicate(), 240)

    assert (process.returncode, out.decode().splitlines()) == (0, ["DIRECT_RESULT match", "france 2"])


def test_the_example_of_a_test_calls_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asserted: dict[str, Any] = {}
    signature = inspect.signature(testing.assert_rubric)
    monkeypatch.setattr(testing, "assert_rubric", lambda *given, **more: asserted.update(signature.bind(*given, **more).arguments))
    names: dict[str, Any] = {"my_agent": lambda question: f"{question} Paris."}

    exec(block("python", "tests").text, names)
    names["test_the_answer_names_the_capital"]()

    assert asserted["output"] == "What is the capital of France? Paris."
    assert all(f"`{name}`" in PAGE.read_text() for name in ("JudgeFailed", "AssertionError", "tools", "scripted"))


def test_the_fields_of_a_schema_judge_are_the_models() -> None:
    named = {name for row in rows(PAGE, "A judge") for name in re.findall(r"`(\w+)`", row[0])}

    assert named == set(SchemaJudge.model_fields)


def test_the_fields_of_a_result_are_the_models() -> None:
    assert all(f"`{name}`" in PAGE.read_text() for name in JudgeResult.model_fields)


def test_the_keywords_and_formats_of_schemas_are_the_codes() -> None:
    section = PAGE.read_text().split("### Output schemas")[1].split("### ")[0]

    keywords = {key for keys in output_schema.TYPES.values() for key in keys}
    assert {name for name in keywords if f"`{name}" not in section} == set()
    assert all(f"`{name}`" in section for name in (*schema_bounds.FORMATS, *output_schema.TYPES))
    assert f"up to {output_schema.DEPTH} deep" in section
    assert all(f"`<{name}>`" in PAGE.read_text() for name in schema_judge.REASONING)


def test_the_limits_are_the_codes() -> None:
    documented = {row[0]: row[1] for row in rows(PAGE, "Limits")}

    assert documented == {
        "a run, as JSON": f"{transcript.RUN_BYTES // 1024:,} KiB; {transcript.STORED_RUN_BYTES // 1024**2} MiB with external storage",
        "messages of a transcript, transcripts of a run": f"{transcript.RUN_MESSAGES:,}, {transcript.TRANSCRIPTS:,}",
        "what a judge is shown of it": f"{TRANSCRIPT_BUDGET:,} characters",
        "a `rubric_text`, an `output_schema`": f"{RUBRIC_BYTES // 1024} KiB each",
        "all `prompt_templates`": f"{template.TEMPLATE_CHARACTERS:,} characters",
        "rollouts": f"{schema_judge.MAX_ROLLOUTS}",
        "an answer, as JSON": f"{answer.ANSWER_BYTES // 1024} KiB",
        "turns to repair an answer": f"{REPAIRS}",
    }
    assert output_schema.SCHEMA_BYTES == RUBRIC_BYTES


def test_the_commands_are_the_command_lines() -> None:
    group: Any = typer.main.get_command(app)
    group.load_all()
    named = {re.split(r"[A-Z]", name)[0].strip() for row in rows(PAGE, "The store") for name in re.findall(r"`([^`]+)`", row[0])}

    assert named == {"judge", "agreement", *(f"registry {name}" for name in group.commands["registry"].commands)}
