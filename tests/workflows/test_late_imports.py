"""A workflow's thread imports nothing: Temporal's SDK interrupts one that takes two seconds, as an import can on a loaded machine.

A module whose import was interrupted can keep its lock for as long as the process lives: every later workflow that needs it waits for ever.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

REPLAY = """
import asyncio, json, sys, threading
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

import worker
from workflows.batches import plugin as batches
from workflows.monitors import plugin as monitors
from gradeloop.exit_codes import leave
from workflows.run_ahead import RecordedTasksRunner

runner = RecordedTasksRunner()
main, seen, replayed = threading.main_thread(), [], 0


class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not main:
            seen.append(name)
        return None


def histories(folder):
    for path in sorted(folder.rglob("*.json")):
        read = json.loads(path.read_text())
        yield from [read] if "events" in read else read.values()


WORKFLOWS = [*worker.WORKFLOWS, *batches.WORKFLOWS, *monitors.WORKFLOWS]


async def recorded():
    for number, history in enumerate(histories(Path(sys.argv[1]))):
        yield WorkflowHistory.from_json(f"recorded-{number}", history)


async def main_():
    global replayed
    sys.meta_path.insert(0, Watch())
    replayer = Replayer(workflows=WORKFLOWS, workflow_runner=runner, data_converter=pydantic_data_converter)
    async with replayer.workflow_replay_iterator(recorded()) as results:
        async for _ in results:
            replayed += 1


asyncio.run(main_())
print(json.dumps({"replayed": replayed, "seen": seen}))
leave(0)  # Python's own tidying can crash on Temporal's threads
"""


@pytest.fixture(scope="module")
def watched() -> dict[str, object]:
    """Replay all recorded histories in a new process, as a worker that has just started, and return what their threads imported."""
    command = [sys.executable, "-c", REPLAY, str(ROOT / "tests/histories")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_workflow_imports_nothing_where_it_runs(watched: dict[str, object]) -> None:
    assert watched["seen"] == []


def test_every_recorded_history_was_watched(watched: dict[str, object]) -> None:
    files = [json.loads(path.read_text()) for path in (ROOT / "tests/histories").rglob("*.json")]

    assert watched["replayed"] == sum(1 if "events" in read else len(read) for read in files) > 60


LOADED = """
import json, sys
import worker
from workflows.batches import plugin as batches
from workflows.monitors import plugin as monitors
from workflows.run_ahead import RecordedTasksRunner

RecordedTasksRunner()
files = {name: found.__file__ for name, found in sys.modules.items() if getattr(found, "__file__", None)}
print(json.dumps({name: file for name, file in files.items() if name.split(".")[0] in ("gradeloop", "workflows")}))
print(json.dumps(sorted(sys.modules)))
"""

ROOMS = ("workflows", "gradeloop.contract", "gradeloop.grading", "gradeloop.judges", "gradeloop.files")
"""Whose functions workflows call."""

CHECKS_RUN = "gradeloop.grading.text_checks"
"""Measures a draft where an activity asks it to; a workflow only checks its arguments, for which it imports nothing."""


def late_imports(file: Path) -> Iterator[str]:
    """Name the modules that a file's functions import."""
    for function in ast.walk(ast.parse(file.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for found in ast.walk(function):
                if isinstance(found, ast.Import):
                    yield from (alias.name for alias in found.names)
                elif isinstance(found, ast.ImportFrom) and found.module:
                    yield found.module


@pytest.mark.slow
def test_what_functions_import_that_a_workflow_calls_is_imported_when_a_worker_starts() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    files, modules = (json.loads(line) for line in done.stdout.splitlines()[-2:])
    looked_at = {name: Path(file) for name, file in files.items() if name.startswith(ROOMS) and name != CHECKS_RUN}

    missing = {f"{name}: {late}" for name, file in looked_at.items() for late in late_imports(file) if late not in modules}

    assert missing == set()
    assert "jsonschema" in {late for file in looked_at.values() for late in late_imports(file)}
