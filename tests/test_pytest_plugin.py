"""The pytest plugin in somebody's test run: verdicts as passes and failures, at the end, in JUnit files, recorded and replayed."""

import asyncio
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from gradeloop.testing import MODEL, ScriptedModels
from tests.docs.runner import block_of
from tests.rig.kit import Kit

PLUGIN = [] if entry_points(group="pytest11", name="gradeloop") else ["-p", "gradeloop.pytest_plugin"]
"""What loads the plugin where gradeloop is not installed as a package."""

TESTS = """
import pytest

pytestmark = pytest.mark.rubric("- names the capital\\n- is brief", request="Capital of France, in FOLDER?")


def test_good(grade):
    assert grade("It is called Paris.").output["result"] == "satisfied"


def test_bad(grade):
    grade("Paris, and much more.")


def test_several(grade):
    assert len(grade.all(["Paris!", "It is Paris."])) == 2
"""


class Run:
    """Somebody's test run in a folder, with a scripted worker that judges."""

    def __init__(self, folder: Path, environment: dict[str, str], models: ScriptedModels) -> None:
        self.folder = folder
        self.models = models
        self._environment = environment

    async def __call__(self, *arguments: str, judge: bool = True) -> tuple[int, str]:
        """Run pytest with the plugin; return its exit code and what it printed."""
        command = [sys.executable, "-m", "pytest", "-q", *PLUGIN, "-p", "no:cacheprovider", *arguments]
        grader = ["--gradeloop-grader", MODEL] if judge else []
        environment = {**os.environ, **(self._environment if judge else {"TEMPORAL_ADDRESS": "127.0.0.1:1"})}
        done = await asyncio.to_thread(
            subprocess.run, [*command, *grader], cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def run(kit: Kit, tmp_path: Path) -> Run:
    (tmp_path / "test_answers.py").write_text(TESTS.replace("FOLDER", tmp_path.name))
    kit.models.script(verdicts=lambda call: {"k2": "it has 4 words"} if "more" in (call.draft or "") else {})
    return Run(tmp_path, {"TEMPORAL_ADDRESS": kit.server.address, "GRADELOOP_TASK_QUEUE": kit.process.queue}, kit.models)


def verdicts_of(junit: Path) -> dict[str, list[Any]]:
    cases = ET.parse(junit).getroot().iter("testcase")
    return {str(case.get("name")): [json.loads(str(p.get("value"))) for p in case.iter("property")] for case in cases}


@pytest.mark.slow
async def test_verdicts_are_passes_and_failures_recorded_and_replayed_without_a_server(run: Run) -> None:
    code, out = await run("--gradeloop-record", "verdicts.jsonl", "--junitxml", "junit.xml")
    asked = len(run.models.calls)
    again, replayed = await run("--gradeloop-replay", "verdicts.jsonl", judge=False)

    assert (code, asked, len(run.models.calls)) == (1, 4, 4), out
    assert "3 of 4 outputs meet their rubric" in out
    assert "needs_revision 0.50  test_answers.py::test_bad\n    ✗ c2: it has 4 words" in out
    assert "✗ c2: is brief" in out
    assert {name: [row["result"] for row in rows] for name, rows in verdicts_of(run.folder / "junit.xml").items()} == {
        "test_good": ["satisfied"],
        "test_bad": ["needs_revision"],
        "test_several": ["satisfied", "satisfied"],
    }
    assert again == 1
    assert "3 of 4 outputs meet their rubric" in replayed
    assert "2 passed" in replayed


@pytest.mark.slow
async def test_the_processes_of_xdist_share_worker_and_recording(run: Run) -> None:
    code, out = await run("-n", "2", "--gradeloop-record", "verdicts.jsonl")

    assert code == 1, out
    assert "3 of 4 outputs meet their rubric" in out
    assert len({json.loads(line)["key"] for line in (run.folder / "verdicts.jsonl").read_text().splitlines()}) == 4


@pytest.mark.slow
async def test_an_output_that_was_not_recorded_fails_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "test_answers.py").write_text(TESTS)
    (tmp_path / "empty.jsonl").touch()
    run = Run(tmp_path, {}, ScriptedModels())

    code, out = await run("--gradeloop-replay", "empty.jsonl", "-k", "good", judge=False)

    assert code == 1
    assert "1 of 1 verdicts are not in empty.jsonl; record them with --gradeloop-record empty.jsonl" in out


@pytest.mark.slow
async def test_the_test_on_the_page_about_testing_passes(run: Run) -> None:
    (run.folder / "test_answers.py").write_text(block_of("docs/testing.md", "python fixture").text)

    code, out = await run()

    assert code == 0, out
    assert "3 of 3 outputs meet their rubric" in out


@pytest.mark.slow
def test_a_run_that_grades_nothing_loads_nothing_of_gradeloop_but_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\ndef test_it():\n    names = ('gradeloop', 'pydantic', 'temporalio')\n"
        "    print('LOADED', sorted(n for n in sys.modules if n.startswith(names)))\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        *PLUGIN,
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:langsmith_plugin",
        "test_plain.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)

    assert "LOADED ['gradeloop', 'gradeloop.pytest_plugin']" in done.stdout, done.stdout
