"""Choose the slow tests of one run of `.ci/run`: `python -m tests.slow_choice` prints places and options for pytest.

All slow tests take longer than a slow host has time for. A run takes those of the folders that changed since the last release, or
within the last 48 hours where there is none, and of what imports them. It always takes the table of faults, the wheel, the crash tests
and one sandbox.
"""

import ast
import subprocess
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

from tests.house_counts import arrows, imported, modules, trees

ROOT = Path(__file__).parent.parent
RECENT = timedelta(hours=48)

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
    "tests/test_core_wheel.py": ("src/gradeloop/", "workflows/", "activities/", "worker.py", "pyproject.toml"),
    "tests/test_image.py": ("deploy/", "worker.py"),
    "tests/test_mutations.py": ("tests/mutations.toml",),  # which runs always: any change may take a protection away
    "tests/test_pytest_plugin.py": ("src/gradeloop/pytest_plugin.py", "src/gradeloop/testing.py"),
    "tests/test_release.py": ("deploy/release/", ".github/"),
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


def main() -> None:
    """Print the places for pytest, all tests where nobody can say what changed."""
    since = last_seen_whole()
    changed = git("diff", "--name-only", since, "HEAD").splitlines() if since else []
    print(*(chosen(changed) if since else ALL))


if __name__ == "__main__":
    main()
