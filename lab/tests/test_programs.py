"""Every program runs; the first compares like with like."""

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

from lab.bare import ACTIVITIES
from lab.subjects import SUBJECTS, worker_of
from rig.browser import executable

LAB = Path(__file__).parent.parent
ROOT = LAB.parent
SMALL = ["--latencies", "3", "--many", "5", "--runs", "10", "--rounds", "1"]

pytestmark = pytest.mark.slow

SMALLEST = {
    "alarms": ["--series", "2", "--runs", "20"],
    "backtests": ["--threads", "4"],
    "coverage": ["--simulations", "2"],
    "early_gate": ["--simulations", "2"],
    "failover": ["--times", "1"],
    "fleet": ["--workers", "1"],
    "forgetting": ["--threads", "60", "--tenant", "20", "--older", "10"],
    "growth": ["idle", "--most", "2"],
    "large_report": ["--cases", "20", "--runs", "1"],
    "many_cases": ["--cases", "20", "--at-once", "5"],
    "overhead": SMALL,
    "promptfoo_corpus": ["examples/promptfoo"],
    "repairs": ["--gradings", "16"],
    "routes": [],
    "sandboxes": [],
    "sizing": ["--threads", "2", "--cases", "4"],
    "starting": ["--rounds", "1"],
    "transports": ["--calls", "5", "--rounds", "1"],
    "watched": ["--latencies", "1", "--many", "2", "--runs", "2", "--rounds", "1"],
}
"""Programs that need nobody else, with the arguments of their smallest run."""

HELPED = {
    *("agent_files", "batches", "beside_deepagents", "beside_promptfoo", "forms", "forms_beside", "inspect_logs", "judges"),
    *("otlp_emitters", "promptfoo_prompts"),
    *("batch_storm", "fleet_storm", "judging_storm", "operate", "otlp_storm", "rolling_deploy", "storm", "store_deploys"),
    *("all_rows", "live_alerts", "many_criteria", "provider_layer", "rate_limits", "round_trips", "span_cost"),
}
"""Programs that are asked for their help: they need peers' packages, have a test of their own, take minutes, or a quick machine."""

SERVED = {"bare_judging", "ours", "subjects"}
"""Processes that other programs start."""


def printed_by(program: str, *arguments: str) -> str:
    """Run a program, which has to succeed, and return what it prints."""
    command = [sys.executable, "-m", f"lab.{program}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def printed() -> str:
    """Return what a small run of the first program prints."""
    return printed_by("overhead", *SMALL)


@pytest.mark.timeout(450)
@pytest.mark.parametrize("program", sorted(SMALLEST.keys() - {"overhead"}))
def test_a_program_runs_with_its_smallest_sizes(program: str) -> None:
    if program == "large_report" and executable() is None:
        pytest.skip("Chromium is not installed (Debian, Ubuntu: apt install chromium)")

    assert printed_by(program, *SMALLEST[program])


@pytest.mark.parametrize("program", sorted(HELPED))
def test_a_program_that_needs_more_prints_its_help(program: str) -> None:
    assert printed_by(program, "--help").startswith("usage:")


def left_in(folder: Path) -> list[str]:
    """Return the commands of the processes whose environment or command names a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(folder) in " ".join([*process.cmdline(), *process.environ().values()]) and process.pid != os.getpid():
                found.append(" ".join(process.cmdline()))
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the environment of another process is Linux's to tell")
@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["overhead", "--runs", "100000"], signal.SIGINT),
        (["all_rows", "--rows", "bare", "--rounds", "100000"], signal.SIGTERM),
    ],
)
def test_a_benchmark_that_is_stopped_leaves_no_process_behind(words: list[str], sent: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"lab.{words[0]}", *words[1:]]
    running = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while sum("lab.subjects" in line for line in left_in(tmp_path)) < len(SUBJECTS) and time.monotonic() < deadline:
        time.sleep(0.2)
    began = left_in(tmp_path)
    running.send_signal(sent)
    _, said = running.communicate(timeout=120)

    assert any("server start-dev" in line for line in began), began
    assert running.returncode not in {0, None}
    assert "Traceback" not in said
    assert left_in(tmp_path) == []


def table_of(text: str) -> dict[str, list[str]]:
    """Return the rows of figures of a bare workflow's table by their names."""
    lines = [re.split(r"\s*\|\s*|\s{2,}", line.strip("| \n")) for line in text.splitlines()]
    return {row[0]: row[1:] for row in lines if len(row) == 4 and re.fullmatch(r"[\d.,]+", row[1])}


def test_both_subjects_have_as_many_activities(printed: str) -> None:
    events = table_of(printed)["history, events"]

    upserts = 2
    assert int(events[0]) == int(events[1]) + upserts
    assert int(events[1]) == 3 + 6 * ACTIVITIES + 2


async def test_the_bare_worker_has_every_setting_of_ours(client: Client) -> None:
    ours, bare = (worker_of(client, subject).config() for subject in SUBJECTS.values())
    own = {"task_queue", "workflows", "activities", "plugins"}

    differing = {name for name in ours if ours[name] != bare[name]}  # type: ignore[literal-required]  # the keys are its own
    assert differing - {"workflow_runner", "interceptors"} == own
    assert [*map(type, ours["interceptors"])] == [*map(type, bare["interceptors"])]
    assert type(ours["workflow_runner"]) is type(bare["workflow_runner"])
