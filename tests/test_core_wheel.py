"""The core alone: a wheel without any neighbour runs the demo, and a worker that serves a thread."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

NEIGHBOURS = ("batches", "judges", "suites", "calibration", "monitors", "integrations")
"""The neighbours' folders; those who stand above all of them are `TOP`."""

LEAVES, TOP = ("transcripts", "stats"), ("testing.py", "promptfoo_grader.py", "pytest_plugin.py", "langchain.py", "docent.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with a wheel of the core, beside the packages that gradeloop needs."""
    folder = tmp_path_factory.mktemp("core")
    source = folder / "source"
    for name in ("src", "workflows", "activities", "examples", "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("worker.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    settings = (ROOT / "pyproject.toml").read_text()
    entry_points = r'\[project\.entry-points\."gradeloop\.extensions"\]\n(.+\n)+'
    (source / "pyproject.toml").write_text(re.sub(entry_points, "", settings.replace('gradeloop = "gradeloop.pytest_plugin"\n', "")))
    for name in (*NEIGHBOURS, *LEAVES):
        for place in ("src/gradeloop", "workflows", "activities"):
            shutil.rmtree(source / place / name, ignore_errors=True)
    for name in TOP:
        (source / "src/gradeloop" / name).unlink()
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)], check=True, capture_output=True
    )
    shutil.rmtree(source)
    venv.create(folder / "environment")
    (own,) = folder.glob("environment/lib/python*/site-packages")
    (own / "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    (wheel,) = folder.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    subprocess.run([*pip, "--target", str(own), str(wheel)], check=True, capture_output=True)
    for program in ("temporal", "monty"):
        (folder / "environment/bin" / program).symlink_to(Path(sysconfig.get_path("scripts")) / program)
    return folder / "environment/bin/python"


class Terminal:
    """Runs `gradeloop` in a folder."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self._python = folder, python
        named = ("GRADELOOP_", "OPENAI_", "ANTHROPIC_", "PYTHON", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(named)}
        self._env = {**kept, "GRADELOOP_STATE_DIR": str(folder / "state"), "COLUMNS": "200"}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._python), "-c", "from gradeloop.cli.main import main; main()", *arguments]
        return subprocess.run(command, cwd=self.folder, env=self._env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def gradeloop(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """Return the core's command line."""
    terminal = Terminal(tmp_path_factory.mktemp("project"), python)
    yield terminal
    terminal("dev", "stop")


def test_the_folders_that_are_left_out_are_those_of_the_extensions() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["gradeloop.extensions"]

    assert set(named) == set(NEIGHBOURS) - {"judges"}  # which belong to the neighbour `batches`


def test_it_has_no_command_of_a_neighbour(gradeloop: Terminal) -> None:
    shown = gradeloop("--help").stdout

    assert "  run  " in shown
    assert "  report  " in shown
    assert "  eval  " not in shown
    assert "No such command 'eval'" in gradeloop("eval").stderr


def test_the_demo_runs(gradeloop: Terminal) -> None:
    done = gradeloop("demo")

    assert done.returncode == 0, done.stderr
    assert "satisfied" in done.stdout


def test_a_worker_serves_a_thread_which_has_a_page(gradeloop: Terminal) -> None:
    rubric = {"criteria": [{"description": "it shouts", "check": {"tool": "regex_check", "arguments": {"pattern": "^[A-Z]+$"}}}]}
    (gradeloop.folder / "task.json").write_text(
        json.dumps({"prompt": "Greet us.", "generator": {"model": "scripted:g"}, "rubric": rubric, "scripted": "script.yaml"})
    )
    (gradeloop.folder / "script.yaml").write_text(
        "replies: [{role: generator, iteration: 0, text: hello}, {role: generator, iteration: 1, text: HELLO}]"
    )

    done = gradeloop("run", "task.json", "--json")
    page = gradeloop("report", "-o", "page.html")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "satisfied"
    assert page.returncode == 0, page.stderr
    assert "HELLO" in (gradeloop.folder / "page.html").read_text()


def test_schemas_and_doctor_say_what_the_core_has(gradeloop: Terminal) -> None:
    schemas = json.loads(gradeloop("schema").stdout)

    assert {"ThreadRequest", "RunResult", "Task"} <= set(schemas)
    assert not {"BatchRequest", "Suite", "JudgingRequest"} & set(schemas)
    assert "sandbox" in gradeloop("doctor").stdout
