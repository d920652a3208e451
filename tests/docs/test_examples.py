"""Every example runs: the service as a service would, the tasks through the command line."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from activities.providers.scripted import Script
from examples.find_duplicates.tools import TESTS, run_test_suite
from gradeloop.contract.messages import code_of
from gradeloop.contract.thread import TASK_QUEUE
from gradeloop.files.yaml import read_yaml
from gradeloop.temporal.connect import Connection
from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import MODEL, Reply, ScriptedModels, worker
from tests.rig.cli import CommandLine

EXAMPLES = Path(__file__).parents[2] / "examples"


async def ask(server: ServerInfo, verdicts: list[Reply]) -> tuple[int | None, str, str]:
    """Run the service beside a scripted worker; return its exit code and what it printed."""
    models = ScriptedModels(["Sorry to hear that.", "Bring it in: we replace the chain today."], verdicts)
    connection = Connection(server.address, "default", embedded=False)
    async with worker(models, server=connection, queue=TASK_QUEUE):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLES / "service.py"), MODEL),
            env={**os.environ, "TEMPORAL_ADDRESS": server.address},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_service_gives_the_answer_that_meets_its_rubric(temporal_server: ServerInfo) -> None:
    code, out, err = await ask(temporal_server, [{"c1": "no next step is named"}, {}])

    assert code == 0, err
    assert out.splitlines() == ["iteration 1: needs_revision", "iteration 2: satisfied", "Bring it in: we replace the chain today."], err


async def test_the_service_raises_where_its_rubric_cannot_be_judged(temporal_server: ServerInfo) -> None:
    failed: Reply = {"criteria": [], "explanation": "There is no answer to judge.", "result": "failed"}

    code, _, err = await ask(temporal_server, [failed])

    assert code != 0
    assert "ended failed: There is no answer to judge." in err


def test_the_duplicates_suite_fails_the_first_scripted_draft_on_unhashable_items_and_passes_the_second() -> None:
    first, second = (row.text for row in Script.read(EXAMPLES / "find_duplicates" / "replies.yaml").replies if row.role == "generator")

    assert list(run_test_suite(code_of(first or ""))) == ["ok", "test_unhashable"]
    assert run_test_suite(code_of(second or "")) == {"ok": True}


def test_the_duplicates_suite_names_each_test_that_fails() -> None:
    found = run_test_suite("def find_duplicates(lst):\n    return lst")

    assert found["ok"] is False
    assert set(found) - {"ok"} <= set(TESTS)
    assert "test_none" in found


@pytest.mark.parametrize("name", ["find_duplicates", "haiku"])
def test_an_example_says_what_it_is_in_its_first_line(name: str) -> None:
    path = EXAMPLES / name / "task.yaml"

    assert path.read_text().startswith("# ")
    assert isinstance(read_yaml(path, "the example"), dict)


def test_the_suites_come_to_what_they_are_written_for(commands: CommandLine) -> None:
    gradeloop = replace(commands, folder=EXAMPLES)
    support, greetings = gradeloop("eval", "suite/suite.yaml"), gradeloop("eval", "promptfoo/promptfooconfig.yaml")

    assert (support.code, greetings.code) == (0, 1), support.err + greetings.err
    assert "Results: 3 passed, 3 failed of 6 (50% of 6 judged, 50% wanted)" in support.out
    assert "Results: 2 passed, 1 failed of 3 (66.7% of 3 judged, 100% wanted)" in greetings.out
