"""A run in which each process imports test files of its own: `pytest -p tests.parts --dist each --numprocesses N`.

Elsewhere every process of pytest-xdist imports all files, and each again writes what their assertions become, for minutes of CPU in a fresh
clone. Here a file belongs to the process that has least to do, by the seconds in tests/quick_seconds.toml: which process runs a test is no
question of luck. `python -m tests.parts FILE` records the seconds of a run from its JUnit file.

A process that dies takes its tests with it: the summary says how it ended, and what its threads did then.
"""

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import EachScheduling  # type: ignore[import-untyped]  # it has no types

from tests.slow_choice import ROOT, seconds_of

SECONDS = ROOT / "tests/quick_seconds.toml"
LEAST = 3.0
"""Seconds from which on a file is recorded; of others only the number is known."""
OTHERS = 1.0

SESSION = pytest.StashKey[pytest.Session]()
STACKS = pytest.StashKey["tempfile.TemporaryDirectory[str]"]()
ENDS = pytest.StashKey[list[str]]()

PATIENCE = 10.0
"""Seconds that a process has to end once its connection has."""


def parts(files: Iterable[str], seconds: Mapping[str, float], count: int) -> list[list[str]]:
    """Return so many groups of files that take about as long as each other: the longest files first, each to the group with least."""
    groups, totals = [list[str]() for _ in range(count)], [0.0] * count
    for name in sorted(files, key=lambda name: (-seconds.get(name, OTHERS), name)):
        least = totals.index(min(totals))
        groups[least].append(name)
        totals[least] += seconds.get(name, OTHERS)
    return groups


def named(config: pytest.Config) -> dict[str, list[str]]:
    """Return what a run is about: the name of each test file, with the arguments that stand for it.

    Raises:
        UsageError: An argument names no file and no folder.
    """
    ignored = {config.rootpath / path for path in config.getoption("ignore") or ()}
    found: dict[str, list[str]] = {}
    for argument in config.args:
        file, chosen, test = argument.partition("::")
        place = config.invocation_params.dir / file
        if not place.exists():
            raise pytest.UsageError(f"file or directory not found: {argument}")
        for path in sorted(place.rglob("test_*.py")) if place.is_dir() else [place]:
            if path not in ignored:
                found.setdefault(os.path.relpath(path, config.rootpath), []).append(f"{path}{chosen}{test}")
    return found


@pytest.hookimpl(trylast=True)  # after pytest has chosen standard error for the stacks
def pytest_configure(config: pytest.Config) -> None:
    """Leave to a process of a parallel run the files that are its own, and have it note where it dies."""
    files = named(config)
    if (given := getattr(config, "workerinput", None)) is not None:
        groups = parts(files, tomllib.loads(SECONDS.read_text()), given["workercount"])
        config.args = [argument for name in groups[int(given["workerid"].removeprefix("gw"))] for argument in files[name]]
        faulthandler.enable(os.open(given["stacks"], os.O_WRONLY | os.O_CREAT, 0o600))
    else:
        config.stash[STACKS], config.stash[ENDS] = tempfile.TemporaryDirectory(), []


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what the processes noted."""
    if STACKS in config.stash:
        config.stash[STACKS].cleanup()


def pytest_configure_node(node: Any) -> None:
    """Tell a process where it notes what its threads do when it dies."""
    node.workerinput["stacks"] = str(Path(node.config.stash[STACKS].name, node.gateway.id))


def pytest_testnodedown(node: Any, error: object) -> None:
    """Note how a process ended that had more to do."""
    if error is None:
        return
    end = "lives, though its connection has ended"
    with suppress(subprocess.TimeoutExpired):
        code = node.gateway._io.popen.wait(PATIENCE)
        end = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
    file = Path(node.workerinput["stacks"])
    threads = file.read_text(errors="replace").split("\n\n") if file.exists() else []
    threads.sort(key=lambda thread: thread.startswith("Current thread"))  # a log may be cut off at its beginning
    node.config.stash[ENDS].append("\n\n".join([*threads, f"{node.gateway.id} {end}"]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how processes ended."""
    for end in config.stash.get(ENDS, []):
        terminalreporter.section("a process of the tests")
        terminalreporter.write_line(end)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Set aside all that a process has loaded, as a worker does, and search less often for what may go: a fourteenth of its CPU."""
    if hasattr(session.config, "workerinput"):
        gc.freeze()
        gc.set_threshold(50_000)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember the session, whose number of tests is shown."""
    session.config.stash[SESSION] = session


class Parts(EachScheduling):  # type: ignore[misc]
    """Each process runs all that it has; what is shown is a share of all tests, and not of those of one process."""

    def schedule(self) -> None:
        """Begin."""
        self.config.stash[SESSION].testscollected = sum(map(len, self.node2collection.values()))
        super().schedule()


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Parts:
    """Return the scheduler of a run in parts."""
    return Parts(config, log)


def main() -> None:
    """Record the seconds of a run."""
    found = sorted((name, seconds) for name, seconds in seconds_of(Path(sys.argv[1])).items() if seconds >= LEAST)
    head = "# Seconds of the quick tests of each file that takes some: `python -m tests.parts FILE`.\n"
    SECONDS.write_text(head + "".join(f'"{name}" = {seconds:.1f}\n' for name, seconds in found))


if __name__ == "__main__":
    main()
