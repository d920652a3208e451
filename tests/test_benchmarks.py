"""The benchmark compares like with like, and prints the table that its page shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from temporalio.client import Client

from benchmarks import overhead
from benchmarks.bare import ACTIVITIES
from benchmarks.subjects import SUBJECTS, worker_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
SMALL = ["--latencies", "3", "--many", "5", "--runs", "10", "--rounds", "1"]


@pytest.fixture(scope="module")
def printed() -> str:
    """Return what a small run prints."""
    command = [sys.executable, "-m", "benchmarks.overhead", *SMALL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)

    assert done.returncode == 0, done.stderr
    return done.stdout


def table_of(text: str) -> dict[str, list[str]]:
    """Return the rows of figures of a bare workflow's table by their names."""
    lines = [re.split(r"\s*\|\s*|\s{2,}", line.strip("| \n")) for line in text.splitlines()]
    return {row[0]: row[1:] for row in lines if len(row) == 4 and re.fullmatch(r"[\d.,]+", row[1])}


@pytest.mark.slow
def test_the_pages_table_has_the_rows_that_the_benchmark_prints(printed: str) -> None:
    page = table_of(PAGE.read_text())
    shown = table_of(printed.replace("5 at once", f"{overhead.Plan().many} at once"))

    assert len(shown) == 7
    assert list(page) == list(shown)


def test_the_pages_ratios_are_those_of_its_figures() -> None:
    for name, row in table_of(PAGE.read_text()).items():
        ours, bare, ratio = (float(cell.replace(",", "")) for cell in row)
        expected = bare / ours if name.startswith("runs") else ours / bare

        assert ratio == pytest.approx(expected, abs=0.02), name


@pytest.mark.slow
def test_both_subjects_have_as_many_activities(printed: str) -> None:
    events = table_of(printed)["history, events"]

    upserts, changes = 2, 2  # each of them is a marker and an upsert
    assert int(events[0]) == int(events[1]) + upserts + 2 * changes
    assert int(events[1]) == 3 + 6 * ACTIVITIES + 2


async def test_the_bare_worker_has_every_setting_of_ours(client: Client) -> None:
    ours, bare = (worker_of(client, subject).config() for subject in SUBJECTS.values())
    own = {"task_queue", "workflows", "activities"}

    differing = {name for name in ours if ours[name] != bare[name]}  # type: ignore[literal-required]  # the keys are its own
    assert differing - {"workflow_runner"} == own
    assert type(ours["workflow_runner"]) is type(bare["workflow_runner"])
