"""The public names: frozen, typed, and loaded where they are used."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import gradeloop
from tests.rig.tables import over

PUBLIC = [
    "AgentRun",
    "BatchClient",
    "BatchLost",
    "BatchRequest",
    "BatchSummary",
    "Budget",
    "Case",
    "CaseResult",
    "Connection",
    "Criterion",
    "CriterionRow",
    "DetailedEvent",
    "Evaluation",
    "Event",
    "Generator",
    "GradeloopError",
    "Grader",
    "GradingClient",
    "GradingThread",
    "InvalidRequest",
    "Judge",
    "JudgeConfig",
    "JudgeFailed",
    "JudgeResult",
    "ListedBatch",
    "ListedThread",
    "Message",
    "ModelConfig",
    "ModelSpec",
    "Page",
    "Priority",
    "Rubric",
    "RunMessage",
    "RunResult",
    "RunTooLarge",
    "RunTranscript",
    "ServerUnreachable",
    "StoreUnavailable",
    "SyncGradingClient",
    "ThreadClosed",
    "ThreadNotFound",
    "ThreadRequest",
    "ThreadState",
    "ThreadTooLarge",
    "ToolCall",
    "Usage",
    "WaitingFor",
    "WaitingThread",
    "WorkerFailed",
    "loop",
    "reward",
]

SDKS = {"anthropic", "google.genai", "httpx", "httpx2", "openai", "pydantic", "sqlalchemy", "temporalio", "typer"}

SCRIPT = """
import json, sys, time
before = set(sys.modules)
start = time.process_time()
import gradeloop
seconds = time.process_time() - start
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""


def test_the_public_names_are_these() -> None:
    assert sorted(gradeloop.__all__) == PUBLIC


@over("name", PUBLIC)
def test_a_public_name_is_imported_from_the_package(name: str) -> None:
    scope: dict[str, object] = {}
    exec(f"from gradeloop import {name}", scope)

    assert scope[name] is getattr(gradeloop, name)


def test_a_type_checker_sees_the_names_where_they_are_loaded_from() -> None:
    tree = ast.parse(Path(gradeloop.__file__).read_text())
    imported = {
        alias.name: node.module
        for block in ast.walk(tree)
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert imported == {name: module for module, names in gradeloop._MODULES.items() for name in names.split()}
    assert sorted(imported) == PUBLIC
    for name, module in imported.items():
        assert getattr(importlib.import_module(str(module)), name) is getattr(gradeloop, name)


def test_dir_lists_the_public_names() -> None:
    assert set(PUBLIC) <= set(dir(gradeloop))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("GradeClient", "module 'gradeloop' has no attribute 'GradeClient'; did you mean 'GradingClient'?"),
        ("zebra", "module 'gradeloop' has no attribute 'zebra'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest_one(name: str, message: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(gradeloop, name)

    assert str(caught.value) == message


def test_importing_the_package_loads_no_sdk_and_takes_less_than_a_tenth_of_a_second() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    seconds, loaded = json.loads(done.stdout)

    assert not SDKS & set(loaded)
    assert [name for name in loaded if name.startswith("gradeloop")] == ["gradeloop"]
    assert seconds < 0.1


@pytest.mark.slow
def test_a_rubric_is_read_without_temporal() -> None:
    script = "import sys; from gradeloop import Rubric; sys.exit('temporalio.client' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
