"""A run in which each process imports test files of its own: `pytest -p tests.parts --dist each --numprocesses N`.

Elsewhere every process of pytest-xdist imports all files, and each again writes what their assertions become, for minutes of CPU in a fresh
clone. Here a file belongs to the process that has least to do, by the seconds in tests/quick_seconds.toml: which process runs a test is no
question of luck. `python -m tests.parts FILE` records the seconds of a run from its JUnit file.
"""

import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from xdist.scheduler import EachScheduling  # type: ignore[import-untyped]  # it has no types

from tests.slow_choice import ROOT, seconds_of

SECONDS = ROOT / "tests/quick_seconds.toml"
LEAST = 3.0
"""Seconds from which on a file is recorded; of others only the number is known."""
OTHERS = 1.0

SESSION = pytest.StashKey[pytest.Session]()


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


def pytest_configure(config: pytest.Config) -> None:
    """Leave to a process of a parallel run the files that are its own."""
    files = named(config)
    if (given := getattr(config, "workerinput", None)) is not None:
        groups = parts(files, tomllib.loads(SECONDS.read_text()), given["workercount"])
        config.args = [argument for name in groups[int(given["workerid"].removeprefix("gw"))] for argument in files[name]]


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
