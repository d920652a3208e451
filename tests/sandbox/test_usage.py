"""What the processes of a run use together, as the worker sees it, where no control group bounds them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradeloop.sandbox.execution import MIB, Limits
from gradeloop.sandbox.usage import Run, exceeded

FORKS = """
import os, sys, time
for _ in range(5):
    if os.fork() == 0:
        kept = bytearray(os.urandom(1024)) * (40 * 1024)
        print("ready", flush=True)
        time.sleep(60)
time.sleep(60)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start a program with five children of 40 MiB each."""
    process = subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout
    for _ in range(5):
        process.stdout.readline()
    started = Run(process.pid, tmp_path)
    try:
        yield started
    finally:
        for child in started.processes():
            subprocess.run(["kill", "-9", str(child)], check=False)
        process.communicate()


def test_the_processes_of_a_run_are_counted(run: Run) -> None:
    assert exceeded(run, Limits(memory_bytes=1024 * MIB, processes=5)) == "it started more than 5 processes"
    assert exceeded(run, Limits(memory_bytes=1024 * MIB, processes=6)) == ""


def test_the_memory_of_all_processes_is_added_up(run: Run) -> None:
    limits = Limits(memory_bytes=100 * MIB, processes=8)

    assert exceeded(run, limits) == f"MemoryError: its processes use more than {100 * MIB} bytes of memory together"
