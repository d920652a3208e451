"""CPU seconds of `make test` by folder, servers and workers that tests leave behind included: `python -m tests.cost [PLACE ...]`.

Each folder's tests run by themselves, one folder after another, so that what they start can be told apart. It is a report: CPU seconds
differ from host to host, so a folder is named where it takes 20 % more than its share of all that were measured, and nothing fails.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping

from tests.house_counts import HOUSE, ROOT, Record, allowed, as_toml, records
from tests.supervised import adopt_orphans, end_what_is_left, reaped

MARGIN = 0.2
TABLE = "cpu_seconds"
QUICK = "not slow and not storm and not real"


def cost(place: str) -> tuple[float, int]:
    """Run the quick tests of a place and return their CPU seconds and pytest's exit code."""
    before = reaped()
    command = [sys.executable, "-m", "pytest", "-q", "-m", QUICK, "--numprocesses", "2", "--dist", "loadfile", place]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    end_what_is_left()
    if done.returncode not in (0, 5):
        print(done.stdout[-2000:], file=sys.stderr)
    return reaped() - before, done.returncode


def places() -> list[str]:
    """Return the folders below tests/ that have tests, and its files as one place, `tests/test_*.py`, each by itself."""
    folders = {str(path.relative_to(ROOT).parent) for path in (ROOT / "tests").rglob("test_*.py")}
    return [*sorted({"/".join(folder.split("/")[:2]) for folder in folders if folder != "tests"}), "tests/test_*.py"]


def above(now: Mapping[str, float], recorded: Mapping[str, Record]) -> list[str]:
    """Return a sentence for each folder that takes more than its recorded share of all that were measured both times."""
    shared = [name for name in now if f"{TABLE}.{name}" in recorded]
    before = {name: float(allowed(recorded[f"{TABLE}.{name}"])) for name in shared}
    pace = sum(now[name] for name in shared) / (sum(before.values()) or 1.0)
    return [
        f"{name}: {now[name]:.1f} s of CPU, {before[name] * pace:.1f} would be as before"
        for name in shared
        if now[name] > before[name] * pace * (1 + MARGIN) + 1
    ]


def main() -> int:
    """Measure each place, print it, and name those that cost more than they did."""
    parser = argparse.ArgumentParser(description="CPU seconds of the quick tests by folder.")
    parser.add_argument("places", nargs="*", default=places(), help="folders of tests; all of them where none is named")
    parser.add_argument("--write", action="store_true", help="record the figures in tests/house.toml")
    options = parser.parse_args()
    adopt_orphans()
    now, failed = {}, False
    for place in options.places:
        files = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(place))] if "*" in place else [place]
        measured = [cost(file) for file in files]
        failed = failed or any(code not in (0, 5) for _, code in measured)
        now[place] = sum(seconds for seconds, _ in measured)
        print(f"{place:24} {now[place]:8.1f}", flush=True)
    print(f"{'all':24} {sum(now.values()):8.1f}")
    recorded = records()
    print(*above(now, recorded), sep="\n")
    if options.write:
        HOUSE.write_text(as_toml(recorded | {f"{TABLE}.{place}": round(seconds, 1) for place, seconds in now.items()}))
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
