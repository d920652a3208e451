"""No protection is lost: each fault of `mutations.toml`, made in a copy of the product, is caught by the quick test that it names."""

import ast
import math
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parent.parent
FEWEST = 40
CONCURRENCY = 2
"""Tests in copies of the product that run at the same time."""

PARTS = 4
"""Runs without a fault: all in one take longer than a test may on a slow host."""

FAILED = 1
"""Pytest's exit code where a test failed; no other one says that the fault was caught: interrupted, internal, usage, nothing collected."""


@dataclass(frozen=True)
class Fault:
    """A mistake that a programmer could make, and the test that catches it."""

    name: str
    """The fault as behaviour, in a plain sentence."""
    file: str
    find: str
    """A text that the file has once."""
    replace: str
    caught_by: str
    """A quick test as pytest names it: `tests/grading/test_scoring.py::test_a_tie_fails`."""

    def __str__(self) -> str:
        return self.name


FAULTS = [Fault(**row) for row in tomllib.loads(Path(__file__).with_name("mutations.toml").read_text())["fault"]]


def rooms() -> set[str]:
    """Return the folders of the wheel, and what stands beside it."""
    folders = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "src/gradeloop").glob("*/__init__.py")}
    return folders | {"activities", "workflows", "worker.py"}


def named_functions(file: Path) -> set[str]:
    """Return the names of the functions in a file; none where there is no file."""
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_room_has_a_fault() -> None:
    assert len(FAULTS) >= FEWEST
    assert not [room for room in rooms() if not any(fault.file == room or fault.file.startswith(f"{room}/") for fault in FAULTS)]
    assert not [name for name, count in Counter(fault.name for fault in FAULTS).items() if count > 1]


def test_every_fault_is_in_a_text_that_its_file_has_once() -> None:
    counts = {fault.name: (ROOT / fault.file).read_text().count(fault.find) for fault in FAULTS}

    assert not {name: count for name, count in counts.items() if count != 1}
    assert not [fault.name for fault in FAULTS if fault.find == fault.replace]


@pytest.mark.slow
def test_every_fault_names_a_test_that_exists() -> None:
    places = [(ROOT / file, test) for file, _, test in (fault.caught_by.partition("::") for fault in FAULTS)]

    assert not [test for file, test in places if test.partition("[")[0].rpartition("::")[2] not in named_functions(file)]


def link(source: str, target: str) -> str:
    """Make a file in a copy: the same one where the file system can do that."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def run_in_copy(tests: Sequence[str], fault: Fault | None = None) -> subprocess.CompletedProcess[str]:
    """Run quick tests in a copy of the product, in which a fault is made; the working tree stays as it is."""
    with TemporaryDirectory(prefix="gradeloop-fault-") as folder:
        copy = Path(folder, "copy")
        shutil.copytree(ROOT, copy, symlinks=True, copy_function=link, ignore=shutil.ignore_patterns(".*", "build", "dist"))
        if fault is not None:
            file = copy / fault.file
            text = file.read_text().replace(fault.find, fault.replace)
            for old in (file, Path(cache_from_source(str(file)))):  # they are links to the working tree's
                old.unlink(missing_ok=True)
            file.write_text(text)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment["PYTHONPATH"] = str(copy / "src")  # before the working tree's, which an editable install names
        command = [sys.executable, "-m", "pytest", "-m", "not slow and not storm", "-x", "-q", "-p", "no:cacheprovider", *tests]
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


Runs = Callable[[Fault], "Future[subprocess.CompletedProcess[str]]"]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """Run the tests of the faults that were selected, two at a time, and return what returns the run of one."""
    asked = {fault.name for item in request.session.items if (fault := _fault_of(item)) is not None}
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        begun = {fault: pool.submit(run_in_copy, [fault.caught_by], fault) for fault in FAULTS if fault.name in asked}
        yield begun.__getitem__
        pool.shutdown(cancel_futures=True)


def _fault_of(item: pytest.Item) -> Fault | None:
    found = item.callspec.params.get("fault") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    return found if isinstance(found, Fault) else None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_without_a_fault_the_tests_pass(part: int) -> None:
    tests = sorted({fault.caught_by for fault in FAULTS})
    size = math.ceil(len(tests) / PARTS)

    done = run_in_copy(tests[part * size : (part + 1) * size])

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_caught(fault: Fault, runs: Runs) -> None:
    done = runs(fault).result()

    assert done.returncode == FAILED, f"{fault.caught_by} ends with {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
