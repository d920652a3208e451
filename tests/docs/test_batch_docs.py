"""The page about batches matches the code: its flags, commands, limits, codes and examples are the code's."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types
from temporalio.client import Client

from gradeloop import exit_codes
from gradeloop.batches import contract, reader, store
from gradeloop.batches.contract import CASE_BYTES, BatchRequest, CaseStatus, Upload
from gradeloop.batches.outputs import SUFFIXES
from gradeloop.cli.main import app
from gradeloop.cli.schemas import json_schemas
from gradeloop.settings.worker import WorkerSettings
from tests.docs.test_docs import Block, blocks, rows
from tests.rig.batches import batching, passes
from workflows import grading_batch
from workflows import grading_batch as batch_shard
from workflows import grading_batch as case_calls

PAGE = Path(__file__).parents[2] / "docs" / "batches.md"
TEXT = PAGE.read_text()


def block(about: str) -> Block:
    """Return the one block that is meant."""
    (found,) = (block for block in blocks(PAGE) if block.about == about)
    return found


def commands() -> dict[str, Any]:
    """Return the commands by their names, those of groups with both."""
    top: Any = typer.main.get_command(app)
    top.load_all()
    inner: dict[str, Any] = {
        f"{name} {line}": command for name, group in top.commands.items() for line, command in getattr(group, "commands", {}).items()
    }
    return {**top.commands, **inner}


def test_every_flag_of_the_command_is_documented_and_no_other() -> None:
    documented = set(re.findall(r"`(--[\w-]+)`", " ".join(row[0] for row in rows(PAGE, "Running a suite"))))
    flags = {flag for param in commands()["eval"].params for flag in (*param.opts, *param.secondary_opts) if flag.startswith("--")}

    assert documented == flags - {"--help"}


def test_the_commands_that_are_named_are_there() -> None:
    named = set(re.findall(r"`(?:gradeloop )?(batches \w+)", TEXT)) | {"eval"}

    assert named <= commands().keys()
    assert {name for name in commands() if name.startswith("batches ")} <= named


def test_the_statuses_are_those_of_a_case() -> None:
    documented = {name for row in rows(PAGE, "Status of a case") for name in re.findall(r"`(\w+)`", row[0])}

    assert documented == set(CaseStatus.__args__)  # type: ignore[attr-defined]  # a Literal has them


def test_the_codes_are_those_of_departures() -> None:
    documented = {int(row[0]) for row in rows(PAGE, "Exit codes")}
    names = ("SATISFIED", "CAPPED", "BAD_INPUT", "NO_VERDICT", "UNREACHABLE", "STOPPED")

    assert documented == {getattr(exit_codes, name) for name in names}


def test_the_files_are_those_that_are_written() -> None:
    assert {row[0].strip("`") for row in rows(PAGE, "Results in files")} == set(SUFFIXES)


def test_the_limits_are_the_codes() -> None:
    documented = {row[0]: row[1] for row in rows(PAGE, "Limits")}

    assert documented == {
        "cases of a batch": f"{contract.MAX_CASES:,}",
        "a case, as JSON": f"{CASE_BYTES // 1024**2} MiB",
        "cases of a shard": f"{store.SHARD_CASES}",
        "calls in flight": f"{BatchRequest.model_fields['at_once'].metadata[1].le:,}",
        "threads and judgements of cases, open at once in a shard": f"{case_calls.CHILDREN}, those that wait for people too",
        "a shard's history": f"{batch_shard.HISTORY_BYTES // 1024**2} MiB, {batch_shard.HISTORY_EVENTS:,} events",
    }
    assert f"{grading_batch.SHARE:.0%}".replace("%", " %") in TEXT
    assert f"by default when more than half of the finished cases are errors, counted from the {reader.ERROR_RATE_FROM}th on" in TEXT
    assert BatchRequest(batch_id="x", total=1).max_error_rate == 0.5
    assert f"the priority {contract.BATCH_PRIORITY.level}, behind those of threads (3)" in TEXT
    assert f"with `{case_calls.SHARD_LOST}` where a shard is lost {['', '', '', 'three', 'four'][grading_batch.LOST + 1]} times" in TEXT
    defaults = BatchRequest(batch_id="x", total=1)
    assert (
        f"calls in flight, {defaults.at_once} by default; retries per call after a transient error, {defaults.retries} by default" in TEXT
    )
    assert WorkerSettings().max_concurrent_activities * grading_batch.SHARE > defaults.at_once


@pytest.mark.parametrize("name", ["Upload", "BatchRequest"])
def test_the_examples_keep_the_printed_schemas(name: str) -> None:
    assert list(Draft202012Validator(json_schemas(name)).iter_errors(json.loads(block(name).text))) == []


async def test_the_examples_run(client: Client, tmp_path: Path) -> None:
    upload, request = json.loads(block("Upload").text), json.loads(block("BatchRequest").text)
    for case in upload["cases"]:
        case["grader"]["model"] = "scripted:judge"
    async with batching(client, tmp_path, passes()) as batches:
        queue, mapping = batches.served.task_queue, dict[str, Any]
        stored = await client.execute_workflow("StoreCases", upload, id="cases-of-17", task_queue=queue, result_type=int)
        summary = await client.execute_workflow("GradingBatch", request, id=request["batch_id"], task_queue=queue, result_type=mapping)

    assert stored == len(Upload.model_validate(upload).cases)
    assert (summary["status"], summary["passed"]) == ("finished", 1)
