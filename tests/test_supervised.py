"""A test run that is interrupted leaves no process and no temporary file behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house_counts import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux alone")

RUN = """
import subprocess, sys, tempfile, time
def test_it(tmp_path_factory):
    starts = "import subprocess; print(subprocess.Popen(['sleep', '600'], stdout=2, start_new_session=True).pid)"
    left = subprocess.run([sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True, check=True).stdout
    kept = tempfile.mkdtemp()
    with open({notes!r}, "w") as notes:
        notes.write(left.strip() + " " + kept + "\\n")
    {then}
"""


def has_ended(pid: int) -> bool:
    """Return whether no process has that pid."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def start(folder: Path, then: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a run of one test, which leaves a process and a folder; return it, and the pipe in which it says which."""
    notes = folder / "notes"
    os.mkfifo(notes)
    (folder / "test_it.py").write_text(RUN.format(notes=str(notes), then=then))
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder), str(folder / "test_it.py")]
    command = [sys.executable, "-m", "tests.supervised", "-m", "pytest", *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True), notes


@pytest.mark.slow
@pytest.mark.parametrize("to_group", [True, False], ids=["Ctrl-C", "terminated"])
def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path, to_group: bool) -> None:
    run, notes = start(tmp_path, "time.sleep(600)")
    left, kept = notes.read_text().split()

    if to_group:
        os.killpg(run.pid, signal.SIGINT)
    else:
        run.terminate()

    assert run.wait() == 2
    assert has_ended(int(left))
    assert not Path(kept).exists()


@pytest.mark.slow
@pytest.mark.parametrize(("then", "code"), [("pass", 0), ("assert False", 1)])
def test_a_run_keeps_its_exit_code(tmp_path: Path, then: str, code: int) -> None:
    run, notes = start(tmp_path, f"subprocess.run(['kill', left.strip()])\n    {then}")
    kept = notes.read_text().split()[1]

    assert run.wait() == code
    assert not Path(kept).exists()
