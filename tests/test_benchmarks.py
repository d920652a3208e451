"""The benchmark compares like with like, and prints the table that its page shows."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types
import pytest
from temporalio.client import Client

from benchmarks import all_rows, overhead
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


def left_in(folder: Path) -> list[str]:
    """Return the commands of the processes whose environment or command names a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(folder) in " ".join([*process.cmdline(), *process.environ().values()]) and process.pid != os.getpid():
                found.append(" ".join(process.cmdline()))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the environment of another process is Linux's to tell")
@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["overhead", "--runs", "100000"], signal.SIGTERM),
        (["overhead", "--runs", "100000"], signal.SIGINT),
        (["all_rows", "--rows", "bare", "--rounds", "100000"], signal.SIGTERM),
    ],
)
def test_a_benchmark_that_is_stopped_leaves_no_process_behind(words: list[str], sent: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]]
    running = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while sum("benchmarks.subjects" in line for line in left_in(tmp_path)) < len(SUBJECTS) and time.monotonic() < deadline:
        time.sleep(0.2)
    began = left_in(tmp_path)
    running.send_signal(sent)
    _, said = running.communicate(timeout=120)

    assert any("server start-dev" in line for line in began), began
    assert running.returncode not in {0, None}
    assert "Traceback" not in said
    assert left_in(tmp_path) == []


def test_what_a_part_of_the_table_sets_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = list[str]()

    async def part(_: all_rows.Amount) -> list[all_rows.Row]:
        assert "GRADELOOP_STORE" not in os.environ
        os.environ["GRADELOOP_STORE"] = f"sqlite:///{os.environ['GRADELOOP_STATE_DIR']}/results.db"
        folders.append(os.environ["GRADELOOP_STORE"])
        return []

    monkeypatch.delenv("GRADELOOP_STORE", raising=False)
    monkeypatch.setattr(all_rows, "PARTS", {"one": part, "other": part})

    assert all_rows.measured(["one", "other"], all_rows.Amount(1, 1), 1) == ([], {})
    assert len(set(folders)) == 2


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

    upserts = 2
    assert int(events[0]) == int(events[1]) + upserts
    assert int(events[1]) == 3 + 6 * ACTIVITIES + 2


async def test_the_bare_worker_has_every_setting_of_ours(client: Client) -> None:
    ours, bare = (worker_of(client, subject).config() for subject in SUBJECTS.values())
    own = {"task_queue", "workflows", "activities"}

    differing = {name for name in ours if ours[name] != bare[name]}  # type: ignore[literal-required]  # the keys are its own
    assert differing - {"workflow_runner"} == own
    assert type(ours["workflow_runner"]) is type(bare["workflow_runner"])
