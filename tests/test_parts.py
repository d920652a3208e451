"""A run in parts: each test file belongs to one process, the same in every run, and all are run once."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.parts import OTHERS, SECONDS, parts
from tests.slow_choice import ROOT


def test_each_file_belongs_to_one_process_and_none_has_much_more_than_another() -> None:
    seconds = tomllib.loads(SECONDS.read_text())
    files = [f"tests/test_{at}.py" for at in range(50)] + list(seconds)
    groups = parts(reversed(files), seconds, 4)
    totals = [sum(seconds.get(name, OTHERS) for name in group) for group in groups]

    assert sorted(name for group in groups for name in group) == sorted(files)
    assert groups == parts(files, seconds, 4)
    assert max(totals) - min(totals) <= max(seconds.values())


def test_seconds_are_of_files_that_are_there() -> None:
    assert [name for name in tomllib.loads(SECONDS.read_text()) if not (ROOT / name).is_file()] == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of three test files, of which each notes that it is imported, and one fails."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (folder := tmp_path / "tests").mkdir()
    for name in "abc":
        line = f"from pathlib import Path\nPath({str(tmp_path)!r}, 'imported').open('a').write('{name}')\n"
        (folder / f"test_{name}.py").write_text(f"{line}\n\ndef test_one():\n    pass\n\n\ndef test_two():\n    assert {name!r} != 'c'\n")
    return folder


def run(folder: Path, *places: str) -> "subprocess.CompletedProcess[str]":
    """Run tests in two parts."""
    flags = ["-p", "tests.parts", "--dist", "each", "--numprocesses", "2", "-c", str(folder.parent / "pytest.ini")]
    given = [place if place.startswith("-") else str(folder / place) for place in places]
    command = [sys.executable, "-m", "pytest", *flags, *given]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("places", [("",), ("test_a.py", "test_b.py", "test_c.py::test_one", "test_c.py::test_two")])
def test_a_run_in_parts_runs_each_test_once_and_imports_no_file_twice(folder: Path, places: tuple[str, ...]) -> None:
    done = run(folder, *places)

    assert sorted((folder.parent / "imported").read_text()) == ["a", "b", "c"]
    assert "1 failed, 5 passed" in done.stdout
    assert "[100%]" in done.stdout
    assert done.returncode == 1


@pytest.mark.slow
def test_a_file_that_is_not_there_is_named_before_anything_runs(folder: Path) -> None:
    done = run(folder, "test_a.py", "test_d.py")

    assert f"file or directory not found: {folder / 'test_d.py'}" in done.stderr
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert not (folder.parent / "imported").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "told"),
    [
        ("import ctypes; ctypes.string_at(0)", ["Segmentation fault", ", line 6 in test_one", "gw0 was ended by SIGSEGV"]),
        ("import os; os.kill(os.getpid(), 9)", ["gw0 was ended by SIGKILL"]),
        ("import os; os._exit(5)", ["gw0 left with exit code 5"]),
    ],
)
def test_the_summary_says_how_a_process_died_and_where(folder: Path, act: str, told: list[str]) -> None:
    file = folder / "test_a.py"
    file.write_text(file.read_text().replace("pass", act, 1))
    done = run(folder, "--max-worker-restart=0", "")
    summary = done.stdout.split("= a process of the tests =", 1)[-1]

    assert re.search(".*".join(map(re.escape, told)), summary, re.DOTALL), summary
    assert "crashed while running" in done.stdout
    assert done.returncode != 0
