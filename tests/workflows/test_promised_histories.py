"""The histories that a release promised to replay are there, byte for byte: `python -m tests.workflows.test_promised_histories VERSION`."""

import hashlib
import sys
from importlib.metadata import version
from pathlib import Path

from tests.house_counts import ROOT

HISTORIES = ROOT / "tests/histories"
PROMISED = HISTORIES / "promised.txt"
"""A line for each history that a release promised: the version, the sha256 and the path."""
FIRST = (0, 2)
"""The first version that promises anything."""


def sums() -> dict[Path, str]:
    """Return the sha256 of each history by its path; `test_replay.py` replays all of them."""
    return {path.relative_to(HISTORIES): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(HISTORIES.rglob("*.json"))}


def promises() -> list[list[str]]:
    """Return what was promised, line by line."""
    return [line.split(" ") for line in PROMISED.read_text().splitlines()] if PROMISED.exists() else []


def test_the_histories_that_releases_promised_are_kept_as_they_were_recorded() -> None:
    now = sums()

    broken = [f"{release}: {name}" for release, found, name in promises() if now.get(Path(name)) != found]

    assert bool(promises()) == (tuple(map(int, version("gradeloop").split(".")[:2])) >= FIRST), "a release promises its histories"
    assert not broken, f"restore them, and change workflows by `workflow.patched`: {broken}"


def main(release: str) -> None:
    """Add what a release promises: all histories of today that no earlier one did."""
    known = {name for _, _, name in promises()}
    lines = [f"{release} {found} {name}\n" for name, found in sums().items() if str(name) not in known]
    with PROMISED.open("a") as file:
        file.write("".join(lines))


if __name__ == "__main__":
    main(sys.argv[1])
