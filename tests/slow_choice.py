"""Choose the slow tests of one run of `.ci/run`: `python -m tests.slow_choice` prints files for pytest.

All slow tests take longer than a slow host has time for. A run takes those of the folders that changed since the last release, or
within the last 48 hours where there is none, and of what imports them. It always takes the table of faults, the wheel, the crash tests
and one sandbox. Together they take at most a share of the seconds of all, which tests/slow_seconds.toml records: the files that changed
themselves come first, then those that the newest commit draws, so that each has its turn. What is left out is printed to stderr.
`--spent SECONDS` says how long the steps before took: a slow host takes fewer, and at the least those that always run.

`python -m tests.slow_choice --record FILE`, with the JUnit file of a run of all slow tests, records their seconds.
"""

import argparse
import ast
import hashlib
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.house_counts import arrows, imported, modules, trees

ROOT = Path(__file__).parent.parent
SECONDS_OF_EACH = ROOT / "tests/slow_seconds.toml"
RECENT = timedelta(hours=48)
SHARE = 0.24
"""Of the seconds of all slow tests: a run of all takes 50 minutes on a slow host."""

BEFORE = 2600.0
"""Seconds, about, of checks, quick tests and real model on the host of the recorded seconds, where two slow tests run at once."""
LIMIT = 4500.0
"""Seconds of a whole run that no chosen test goes beyond: whoever waits for it gives up after 90 minutes."""

ATTACKS = "tests/sandbox/test_sandboxes.py::TestAttacks::"
ALWAYS = (
    "tests/test_mutations.py",
    "tests/test_wheel.py",
    "tests/workflows/test_crash.py",
    *(
        f"{ATTACKS}test_{name}[landlock]"
        for name in ("nobody_was_reached_and_nothing_is_left", "the_event_loop_goes_on", "the_right_one_was_chosen")
    ),
)

RUNNING = ("workflows/", "activities/", "worker.py", "src/gradeloop/client/", "src/gradeloop/temporal/")
"""The parts of the product that run threads and judgements."""

STANDS_ON = {
    "lab/tests/test_alarms.py": ("lab/alarms.py", "src/gradeloop/stats/drift.py", "src/gradeloop/monitors/alerts.py"),
    "lab/tests/test_all_rows.py": ("lab/all_rows.py", "lab/beside_handwritten.py", "docs/benchmarks.md"),
    "lab/tests/test_store_deploys.py": ("lab/store_deploys.py", "src/gradeloop/store"),
    "lab/tests/test_batch_storm.py": ("lab/batch_storm.py", "lab/judging_storm.py"),
    "lab/tests/test_fleet.py": ("lab/fleet.py", "src/gradeloop/admin/capacity.py"),
    "lab/tests/test_cluster_coverage.py": ("lab/coverage.py", "src/gradeloop/calibration/", "src/gradeloop/stats/"),
    "lab/tests/test_handwritten.py": ("lab/handwritten/", "lab/beside_handwritten.py", "lab/mock_judge.py", "lab/scripted_verdict.py"),
    "lab/tests/test_otlp_storm.py": (
        "lab/otlp_storm.py",
        "src/gradeloop/monitors/",
        "src/gradeloop/store/",
        "workflows/monitors/monitoring.py",
    ),
    "lab/tests/test_program_lists.py": ("lab/",),
    "lab/tests/test_programs.py": ("lab/", "docs/benchmarks.md"),
    "lab/tests/test_promptfoo_beside.py": (
        *("lab/beside_promptfoo.py", "lab/promptfoo_tests.py", "lab/promptfoo_differences.py", "lab/scripted_verdict.py"),
        *("src/gradeloop/suites/", "src/gradeloop/grading/text_checks.py"),
    ),
    "lab/tests/test_docent_package.py": ("lab/peer/", "src/gradeloop/integrations/docent.py", "examples/docent_judge/"),
    "lab/tests/test_promptfoo_package.py": ("lab/peer/", "src/gradeloop/suites/"),
    "lab/tests/test_rolling_deploy.py": ("lab/rolling_deploy.py", *RUNNING),
    "lab/tests/test_storm.py": ("lab/storm/", *RUNNING),
    "tests/activities": ("activities/",),
    "tests/admin": ("src/gradeloop/admin/",),
    "tests/batches": ("src/gradeloop/batches/", "src/gradeloop/store/", "workflows/batches/grading_batch.py", "activities/"),
    "tests/calibration": ("src/gradeloop/calibration/", "src/gradeloop/stats/"),
    "tests/client": ("src/gradeloop/client/",),
    "tests/cli": (
        *("src/gradeloop/cli/", "src/gradeloop/files/", "src/gradeloop/exit_codes.py", "examples/"),
        *(f"src/gradeloop/{name}/cli" for name in ("batches", "suites", "calibration", "monitors", "integrations")),
    ),
    "tests/contract": ("src/gradeloop/contract/",),
    "tests/docs": ("docs/", "examples/", "README.md", "deploy/site/", "src/gradeloop/client/", "src/gradeloop/generators.py"),
    "tests/grading": ("src/gradeloop/grading/", "src/gradeloop/text.py"),
    "tests/integrations": ("src/gradeloop/integrations/", "src/gradeloop/promptfoo_grader.py", "examples/mastra_scorer/"),
    "tests/judges": ("src/gradeloop/judges/",),
    "tests/monitors": ("src/gradeloop/monitors/", "workflows/monitors/monitoring.py"),
    "tests/providers": ("activities/providers/",),
    "tests/races": ("workflows/", "src/gradeloop/contract/"),
    "tests/reports": ("src/gradeloop/reports/", "src/gradeloop/batches/pages/"),
    "tests/rig": ("tests/rig/",),
    "tests/sandbox": ("src/gradeloop/sandbox/",),
    "tests/settings": ("src/gradeloop/settings/",),
    "tests/stats": ("src/gradeloop/stats/",),
    "tests/store": ("src/gradeloop/store/",),
    "tests/suites": ("src/gradeloop/suites/",),
    "tests/telemetry": ("src/gradeloop/telemetry/", "deploy/observability/"),
    "tests/temporal": ("src/gradeloop/temporal/", "worker.py"),
    "tests/transcripts": ("src/gradeloop/transcripts/",),
    "tests/web": (
        "src/gradeloop/web/",
        "src/gradeloop/batches/pages/",
        "src/gradeloop/monitors/pages/",
        "src/gradeloop/monitors/receiver.py",
    ),
    "tests/workflows": RUNNING,
    "tests/test_action.py": ("action.yml",),
    "tests/test_assert_rubric.py": ("src/gradeloop/pytest_plugin.py", "src/gradeloop/testing.py"),
    "tests/test_clusters.py": ("deploy/helm/", "deploy/kubernetes/", "rig/helm.py"),
    "tests/test_cost.py": ("tests/cost.py",),
    "tests/test_core_wheel.py": ("src/gradeloop/", "workflows/", "activities/", "worker.py", "pyproject.toml"),
    "tests/test_image.py": ("deploy/", "worker.py"),
    "tests/test_mutations.py": ("tests/mutations.toml",),  # which runs always: any change may take a protection away
    "tests/test_parts.py": ("pyproject.toml",),
    "tests/test_pytest_plugin.py": ("src/gradeloop/pytest_plugin.py", "src/gradeloop/testing.py"),
    "tests/test_public_door.py": ("src/gradeloop/__init__.py", "src/gradeloop/client/"),
    "tests/test_release.py": ("deploy/release/", ".github/"),
    "tests/test_supervised.py": ("tests/supervised.py",),
    "tests/test_testing.py": ("src/gradeloop/testing.py",),
    "tests/test_third_party.py": ("src/gradeloop/extensions.py", "src/gradeloop/contract/provider.py", "docs/extensions.md"),
    "tests/test_wheel.py": ("src/gradeloop/__init__.py", "src/gradeloop/errors.py", "src/gradeloop/extensions.py"),
}
"""The folders and files with slow tests, and which parts of the product each is about."""

ALL = ("tests", "lab/tests")

EVERYTHING = ("requirements-dev.lock", "tests/conftest.py", "rig/fixtures.py")
"""Changes after which all slow tests run."""


def git(*arguments: str) -> str:
    """Return what git prints; nothing where it fails, as it does outside a repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def last_seen_whole() -> str:
    """Return the commit after which changes count: the last release, or the last commit that is 48 hours older than the newest one."""
    if release := git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"):
        return release
    newest = git("log", "-1", "--format=%cI")
    return git("log", "-1", "--format=%H", f"--before={(datetime.fromisoformat(newest) - RECENT).isoformat()}") if newest else ""


def touched(changed: Iterable[str]) -> set[str]:
    """Return the files that changed, and the modules of the product that import one of them."""
    files = {name: str(path.relative_to(ROOT)) for name, path in modules().items()}
    found = set(changed)
    importers = {name for name, others in arrows(trees()).items() if any(files[other] in found for other in others)}
    return found | {files[name] for name in importers}


@cache
def rig_of(place: str) -> set[str]:
    """Return the files of both rigs that a place's tests import."""
    files = [path.relative_to(ROOT) for folder in ("rig", "tests/rig") for path in (ROOT / folder).glob("*.py")]
    rig = {".".join(file.with_suffix("").parts): str(file) for file in files}
    tests = [ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py")
    return {rig[name] for path in tests for name in imported(ast.parse(path.read_text()), set(rig))}


def chosen(changed: Iterable[str]) -> list[str]:
    """Return the places whose slow tests run after these files changed, with those that always run."""
    changed = set(changed)
    if changed & set(EVERYTHING):
        return list(ALL)
    found = touched(changed)
    places = [
        place for place, parts in STANDS_ON.items() if any(path.startswith((place, *parts)) for path in found) or changed & rig_of(place)
    ]
    return places + [place for place in ALWAYS if not place.startswith(tuple(places))]


def slow_files(folders: Iterable[str] = ALL) -> set[str]:
    """Return the files that have slow tests or properties, below some folders or among some files."""
    paths = [path for folder in folders for path in ([ROOT / folder] if folder.endswith(".py") else (ROOT / folder).rglob("test_*.py"))]
    marks = ("mark.slow", "from hypothesis")
    return {str(path.relative_to(ROOT)) for path in paths if any(mark in path.read_text() for mark in marks)} - {
        "tests/test_slow_choice.py"
    }


def affordable(seconds: Iterable[float], spent: float | None) -> float:
    """Return how many recorded seconds of slow tests a run takes, of a host that spent so long on what comes before them."""
    share = SHARE * sum(seconds)
    return share if spent is None else min(share, 2 * max(0.0, LIMIT - spent) * BEFORE / max(spent, 1.0))


def within(
    places: Sequence[str], changed: Iterable[str], seconds: dict[str, float], draw: str, spent: float | None = None
) -> tuple[list[str], list[str]]:
    """Return what runs of these places, within the share of all seconds, and the files that are left out.

    Args:
        places: Folders, files and single tests; those of `ALWAYS` run in any case.
        changed: The files that changed, of which tests come first.
        seconds: The seconds of each file.
        draw: The commit that decides who is next.
        spent: The seconds of what came before on this host; None where nobody counted.
    """
    always = [place for place in ALWAYS if "::" in place or (ROOT / place).exists()]
    left = affordable(seconds.values(), spent) - sum(seconds.get(place, 0.0) for place in always)
    others = slow_files(place for place in places if "::" not in place) - set(always)
    first = set(changed)
    ranked = sorted(others, key=lambda name: (name not in first, hashlib.sha256(f"{draw} {name}".encode()).digest()))
    taken, out = list(always), list[str]()
    for name in ranked:
        fits = seconds.get(name, 0.0) <= left
        (taken if fits else out).append(name)
        left -= seconds.get(name, 0.0) if fits else 0.0
    return [place for place in taken if place.partition("::")[0] == place or place.partition("::")[0] not in taken], out


def recorded() -> dict[str, float]:
    """Return the seconds of each file with slow tests."""
    return {name: float(seconds) for name, seconds in tomllib.loads(SECONDS_OF_EACH.read_text()).items()}


def seconds_of(junit: Path) -> dict[str, float]:
    """Return the seconds of each file of tests from the JUnit file of a run."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in ET.parse(junit).iter("testcase"):
        module = case.get("classname", "").split(".")
        while module and not (ROOT / "/".join(module)).with_suffix(".py").is_file():
            module.pop()  # a class of tests
        seconds["/".join(module) + ".py"] += float(case.get("time", 0))
    return dict(seconds)


def record(junit: Path) -> None:
    """Record the seconds of a run of the slow tests from its JUnit file."""
    seconds = seconds_of(junit)
    files, mean = sorted(slow_files()), sum(seconds.values()) / (len(seconds) or 1)  # of a file that the run did not reach
    head = "# Seconds of the slow tests of each file, side by side with others: `python -m tests.slow_choice --record FILE`.\n"
    SECONDS_OF_EACH.write_text(head + "".join(f'"{name}" = {seconds.get(name, mean):.1f}\n' for name in files))


def main(words: Sequence[str] | None = None) -> None:
    """Print the files for pytest, of all tests where nobody can say what changed."""
    parser = argparse.ArgumentParser(description="The slow tests of one run.")
    parser.add_argument("--record", type=Path, metavar="FILE", help="a JUnit file of a run of all slow tests, whose seconds are recorded")
    parser.add_argument("--spent", type=float, metavar="SECONDS", help="what came before the slow tests took on this host")
    given = parser.parse_args(words)
    if given.record is not None:
        record(given.record)
        return
    since = last_seen_whole()
    changed = git("diff", "--name-only", since, "HEAD").splitlines() if since else []
    taken, out = within(chosen(changed) if since else ALL, changed, recorded(), git("rev-parse", "HEAD"), given.spent)
    print(*taken)
    print("slow tests that are not run:", *(out or ["none"]), file=sys.stderr)


if __name__ == "__main__":
    main()
