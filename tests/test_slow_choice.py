"""Which slow tests one run takes: a row for every place that has some, and no part of the product without one."""

from pathlib import Path

import pytest

from tests import slow_choice
from tests.house_counts import modules
from tests.slow_choice import (
    ALL,
    ALWAYS,
    BEFORE,
    EVERYTHING,
    LIMIT,
    ROOT,
    SHARE,
    STANDS_ON,
    affordable,
    chosen,
    recorded,
    slow_files,
    within,
)


def places_with_slow_tests() -> set[str]:
    """Return the folders below tests/, and the files in it and in lab/tests/, that have slow tests or properties."""
    files = [path.relative_to(ROOT) for folder in ALL for path in (ROOT / folder).rglob("test_*.py")]
    return {
        str(path if path.parent.name == "tests" else Path(*path.parts[:2]))
        for path in files
        if "mark.slow" in (text := (ROOT / path).read_text()) or "from hypothesis" in text
    }


def test_every_place_with_slow_tests_has_a_row() -> None:
    assert places_with_slow_tests() <= set(STANDS_ON) | {"tests/test_slow_choice.py"}
    assert not [place for place in STANDS_ON if not (ROOT / place).exists()]


def test_a_change_of_any_module_chooses_slow_tests() -> None:
    always = len(ALWAYS)
    files = [str(path.relative_to(ROOT)) for path in modules().values()]
    covered = tuple(part for parts in STANDS_ON.values() for part in parts)

    assert not [path for path in files if not path.startswith(covered)]
    assert len(chosen([files[0]])) > always


@pytest.mark.parametrize(
    ("changed", "some", "none"),
    [
        ("workflows/stop_rule.py", {"tests/workflows", "tests/races"}, {"tests/transcripts", "tests/web"}),
        ("docs/tools/README.md", {"tests/docs"}, {"tests/workflows", "tests/cli"}),
        ("src/gradeloop/stats/intervals.py", {"tests/stats", "tests/calibration"}, {"tests/sandbox"}),
        ("rig/otlp.py", {"tests/monitors", "tests/web"}, {"tests/stats", "tests/races"}),
        (
            "lab/storm/plan.py",
            {"lab/tests/test_storm.py", "lab/tests/test_programs.py"},
            {"tests/monitors", "lab/tests/test_otlp_storm.py"},
        ),
        ("tests/rig/poison.py", {"tests/monitors", "tests/rig"}, {"tests/stats", "tests/races"}),
        ("src/gradeloop/web/static/live.js", {"tests/web"}, {"tests/monitors"}),
        ("CHANGELOG.md", set(), set(STANDS_ON) - {"tests/test_mutations.py", "tests/test_wheel.py"}),
    ],
)
def test_a_change_chooses_its_own_folder_and_what_imports_it(changed: str, some: set[str], none: set[str]) -> None:
    found = set(chosen([changed]))

    assert some <= found
    assert not none & found
    assert {"tests/test_mutations.py", "tests/test_wheel.py"} <= found
    assert any(place.startswith("tests/workflows") for place in found)
    assert any(place.startswith("tests/sandbox") for place in found)


@pytest.mark.parametrize("changed", EVERYTHING)
def test_a_change_of_what_all_tests_stand_on_chooses_all(changed: str) -> None:
    assert chosen([changed, "docs/cli.md"]) == list(ALL)


def test_no_place_is_named_twice() -> None:
    found = chosen(str(path.relative_to(ROOT)) for path in modules().values())

    assert len(found) == len(set(found))
    assert not [place for place in found if any(place.startswith(f"{other}/") for other in found)]


def test_every_file_with_slow_tests_has_its_seconds() -> None:
    assert set(recorded()) == slow_files(), "run all slow tests with --junitxml=FILE, then `python -m tests.slow_choice --record FILE`"


@pytest.mark.parametrize("draw", ["a", "b", "c"])
def test_one_run_takes_a_share_of_all_seconds_and_says_what_it_leaves_out(draw: str) -> None:
    seconds = recorded()
    taken, out = within(ALL, [], seconds, draw)
    files = [place for place in taken if "::" not in place]

    assert sum(seconds[name] for name in files) <= SHARE * sum(seconds.values())
    assert set(files) | set(out) == slow_files()
    assert not set(files) & set(out)
    assert {place.partition("::")[0] for place in ALWAYS} <= {place.partition("::")[0] for place in taken}


def test_a_slower_host_takes_fewer_and_one_without_time_those_of_always() -> None:
    seconds = recorded()
    slow = (BEFORE + LIMIT) / 2
    taken = [within(ALL, [], seconds, "a", spent)[0] for spent in (None, 1.0, slow, LIMIT, 2 * LIMIT)]

    assert taken[0] == taken[1]
    assert len(taken[1]) > len(taken[2]) > len(ALWAYS)
    assert taken[3] == taken[4] == list(ALWAYS)
    assert affordable(seconds.values(), slow) * slow / BEFORE / 2 == pytest.approx(LIMIT - slow)


def test_tests_that_changed_come_first_and_each_commit_draws_others() -> None:
    seconds = recorded()
    left_out = within(ALL, [], seconds, "a")[1]
    changed = min(left_out, key=seconds.__getitem__)

    assert changed in within(ALL, [changed], seconds, "a")[0]
    assert within(ALL, [], seconds, "a") != within(ALL, [], seconds, "b")
    assert not set(slow_files()) - set().union(*(within(ALL, [], seconds, str(draw))[0] for draw in range(40)))


def test_a_recording_counts_the_tests_of_classes_and_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_choice, "SECONDS_OF_EACH", tmp_path / "seconds.toml")
    rows = [("tests.stats.test_drift", 1.25), ("tests.stats.test_drift", 2), ("tests.sandbox.test_sandboxes.TestAttacks", 3)]
    tests = "".join(f'<testcase classname="{name}" name="t" time="{seconds}"/>' for name, seconds in rows)
    (tmp_path / "junit.xml").write_text(f"<testsuites><testsuite>{tests}</testsuite></testsuites>")

    slow_choice.main(["--record", str(tmp_path / "junit.xml")])

    assert (recorded()["tests/stats/test_drift.py"], recorded()["tests/sandbox/test_sandboxes.py"]) == (3.2, 3.0)


def test_where_nobody_can_say_what_changed_any_may_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(slow_choice, "git", lambda *_arguments: "")

    slow_choice.main([])

    printed = capsys.readouterr()
    assert set(printed.out.split()) == set(within(ALL, [], recorded(), "")[0])
    assert printed.err.startswith("slow tests that are not run: ")
