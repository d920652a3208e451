"""`eval --until decided`: the order by its seed, what is asked and what is told, the rest, and the flags that exclude one another."""

import json
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.rig.cli import CommandLine, Done, ended
from tests.rig.threads import row, verdict

TOTAL = 120


@pytest.fixture
def gradeloop(commands: CommandLine, tmp_path: Path) -> CommandLine:
    """Return the command in a folder of the test's own, with a suite of which three cases fail."""
    rows = "".join(f"q{at},{'wrong' if at in {20, 60, 90} else 'right'}\n" for at in range(TOTAL))
    (tmp_path / "rows.csv").write_text(f"id,answer\n{rows}")
    (tmp_path / "promptfooconfig.yaml").write_text(SUITE)
    return replace(commands, folder=tmp_path)


SUITE = """
prompts: ["{{answer}}"]
providers: [echo]
tests: rows.csv
defaultTest:
  assert: [{type: contains, value: right}]
"""


def ran(gradeloop: CommandLine, *flags: str) -> Done:
    return gradeloop("eval", "--pass-rate", "0.8", "--until", "decided", *flags)


def results(gradeloop: CommandLine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gradeloop("batches", "export", "latest").out)
    return found


def test_a_suite_ends_once_its_answer_is_known_and_the_rest_is_asked_on_demand(gradeloop: CommandLine) -> None:
    early = ran(gradeloop, "--seed", "1", "-j", "2", "-o", "junit.xml", "-o", "summary.md", "-o", "early.promptfoo.json")
    found = results(gradeloop)
    queued = [case for case in found["cases"] if case["status"] == "queued"]
    batch = found["summary"]["batch_id"]
    known = found["summary"]["decision"]

    assert early.code == 0
    assert known["answer"] == "passed"
    assert f"PASSED after {known['asked']} of {TOTAL}: at most a 5% chance that asking all would say otherwise" in early.out
    assert f"{len(queued)} not asked of {TOTAL}" in early.out
    assert f"next: gradeloop eval --resume {batch} --all" in early.err
    assert {case["error"] for case in queued} == {f"not asked: the answer was known after {known['asked']} cases"}
    assert (gradeloop.folder / "junit.xml").read_text().count('<skipped message="not asked: ') == len(queued)
    there = json.loads((gradeloop.folder / "early.promptfoo.json").read_text())["results"]
    assert (len(there["results"]), there["stats"]["errors"]) == (TOTAL - len(queued), 0)
    summary = (gradeloop.folder / "summary.md").read_text()
    assert ("PASSED after" in summary, summary.count("| not run |")) == (True, 0)

    again = gradeloop("eval", "--resume", "latest")
    assert (again.code, "its answer is known; --all asks the rest, too" in again.err) == (0, True)
    assert results(gradeloop)["summary"]["decision"] == known
    other = gradeloop("eval", "--attach", "latest", "--pass-rate", "0.99")
    assert (other.code, f"INCONCLUSIVE: {len(queued)} not run" in other.out) == (3, True)
    same = gradeloop("eval", "--attach", "latest", "--pass-rate", "0.8")
    assert (same.code, "PASSED after" in same.out) == (0, True)
    errors = gradeloop("eval", "--attach", "latest", "--retry", "errors")
    assert (errors.code, "its answer is known; --all asks the rest, too" in errors.err) == (0, True)
    assert results(gradeloop)["cases"] == found["cases"]
    unfair = gradeloop("eval", "--attach", "latest", "--retry", "failures")
    assert (unfair.code, "ended early; ask the rest with its failures: add --all" in unfair.err) == (2, True)
    gradeloop("batches", "export", batch, "-o", "early.json")
    whole = gradeloop("eval", "--resume", "latest", "--all")
    assert (whole.code, whole.out.splitlines()[-2]) == (0, "PASSED 97.5% of 80%")
    assert "decision" not in results(gradeloop)["summary"]
    compared = gradeloop("diff", batch, "early.json", "--fail-on", "any")
    assert (compared.code, "NOW WITHOUT A VERDICT" in compared.out) == (3, False), compared.out + compared.err
    assert f"ended once its answer was known: {len(queued)} of {TOTAL} cases were not asked" in compared.out + compared.err


@pytest.mark.slow
def test_the_order_is_that_of_its_seed_and_a_new_one_without(gradeloop: CommandLine) -> None:
    orders = []
    for flags in (("--seed", "5"), ("--seed", "5"), ("--seed", "6"), ()):
        ran(gradeloop, *flags)
        orders.append(tuple(case["id"] for case in results(gradeloop)["cases"]))

    assert orders[0] == orders[1]
    assert len(set(orders)) == 3
    assert {frozenset(order) for order in orders} == {frozenset(orders[0])}


def test_a_preview_says_what_share_is_asked_and_runs_nothing(gradeloop: CommandLine) -> None:
    before = gradeloop("batches", "list").out
    shown = ran(gradeloop, "--preview")

    assert (shown.code, gradeloop("batches", "list").out) == (0, before)
    assert shown.out.startswith(f"{TOTAL} cases, 80% wanted; expected to ask ")


ASSERT = "  assert: [{type: contains, value: right}]"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("  assert: [{type: contains, value: right, metric: good}]", "metrics have names"),
        ("  assert: [{type: contains, value: right}, {type: select-best, value: the best}]", "outputs are compared"),
    ],
)
def test_all_is_asked_where_cases_count_together(gradeloop: CommandLine, more: str, why: str) -> None:
    suite = SUITE.replace(ASSERT, more).replace('prompts: ["{{answer}}"]', 'prompts: ["{{answer}}", "{{answer}}!"]')
    (gradeloop.folder / "promptfooconfig.yaml").write_text(suite)
    (gradeloop.folder / "replies.yaml").write_text("replies: []")
    flags = ("--grader", "scripted:judge", "--scripted", "replies.yaml")
    shown = ran(gradeloop, "--preview", *flags)

    assert shown.code == 0, shown.err
    assert shown.out == f"--until decided: all cases are asked, since {why}\n{2 * TOTAL} cases, 80% wanted; all are asked\n"


REFUSED = [
    (("eval", "--risk", "5%"), "--risk, --seed and --preview say how --until decided ends a batch; add it"),
    (("eval", "--all"), "--all asks the rest of a batch that ended early; name the batch with --resume"),
    (("eval", "--until", "decided", "--labels", "x.jsonl"), "--until decided --labels FILE needs --gate corrected"),
    (("eval", "--attach", "latest", "--until", "decided"), "--until and --fail-on need a suite; a batch keeps the order and the gate"),
    (("eval", "--until", "decided", "--risk", "60%", "--preview"), "risk"),
]


@pytest.mark.parametrize(("arguments", "why"), REFUSED)
def test_flags_that_exclude_one_another_are_refused(gradeloop: CommandLine, arguments: tuple[str, ...], why: str) -> None:
    done = gradeloop(*arguments)

    assert (done.code, why in done.err) == (2, True), done.err


def ended_cases(gradeloop: CommandLine) -> int:
    """Return how many cases of all batches have ended."""
    with closing(sqlite3.connect(gradeloop.state / "results.db")) as store:
        return int(store.execute("SELECT count(*) FROM cases WHERE status <> 'queued'").fetchone()[0])


@pytest.mark.slow
def test_a_killed_worker_and_a_command_that_ctrl_c_ended_come_to_the_same_case(gradeloop: CommandLine) -> None:
    votes = [{"role": "grader", "sample": at, "delay": 0.2, "verdict": verdict(row("c1"))} for at in range(3)]
    fails = [vote | {"when": "wrong", "verdict": verdict(row("c1", "no"))} for vote in votes]
    (gradeloop.folder / "replies.yaml").write_text(json.dumps({"replies": [*fails, *votes]}))
    criteria = {"rubric": {"criteria": [{"description": "it is right", "votes": 3}]}}
    tests = [{"id": f"q{at}", "output": f"{'wrong' if at in {20, 60, 90} else 'right'} {at}"} for at in range(TOTAL)]
    fields = {"name": "votes", "grader": "scripted:judge", "scripted": "replies.yaml", "tests": tests} | criteria
    (gradeloop.folder / "suite.yaml").write_text(json.dumps(fields))
    flags = ("--pass-rate", "0.8", "--until", "decided", "--seed", "5", "--no-cache", "-j", "5")
    undisturbed = gradeloop("eval", "suite.yaml", *flags)
    expected = results(gradeloop)
    known, before = expected["summary"]["decision"], ended_cases(gradeloop)

    process = gradeloop.start("eval", "suite.yaml", *flags)
    for more, end in ((5, gradeloop.kill_workers), (12, lambda: process.send_signal(signal.SIGINT))):
        until(lambda least=before + more: ended_cases(gradeloop) >= least)  # type: ignore[misc]  # bound in the loop
        end()
    left = ended(process)
    gradeloop.kill_workers()
    attached = gradeloop("eval", "--attach", "latest")
    found = results(gradeloop)
    asked = {case["id"]: case["status"] for case in found["cases"][: known["asked"]]}

    assert undisturbed.code == attached.code == 0, attached.err
    assert left.code in {0, 130}
    assert found["summary"]["decision"] == known
    assert asked == {case["id"]: case["status"] for case in expected["cases"][: known["asked"]]}
    assert {len([vote for vote in row["votes"] if not vote.get("unasked")]) for row in rows_of(found)} == {2}


def rows_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for case in found["cases"] for row in case["criteria"]]


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, for a minute at most."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


PAIRED = ("eval", "--until", "decided", "--fail-on", "regressions", "--seed", "1", "-j", "2")


def prompted(gradeloop: CommandLine, right: str = "", wrong: str = "") -> None:
    """Write a suite whose prompt has some cases end otherwise: the ids of its cases stay, as they come from their variables."""
    one_of, other = (" or ".join(f"id == '{name}'" for name in (names or "none").split()) for names in (right, wrong))
    prompt = f"{{% if {one_of} %}}right{{% elif {other} %}}wrong{{% else %}}{{{{answer}}}}{{% endif %}}"
    (gradeloop.folder / "promptfooconfig.yaml").write_text(SUITE.replace("{{answer}}", prompt))


def test_a_batch_that_may_not_regress_asks_what_passed_before_until_chance_is_small(gradeloop: CommandLine) -> None:
    before = gradeloop("eval", "--pass-rate", "0.5")
    named = results(gradeloop)["summary"]["batch_id"]
    shown = gradeloop(*PAIRED, "--baseline", named, "--preview")
    early = gradeloop(*PAIRED, "--baseline", named)
    found = results(gradeloop)
    known = found["summary"]["decision"]
    asked = {case["id"] for case in found["cases"][: known["asked"]]}

    assert (before.code, early.code) == (0, 0), early.out + early.err
    assert shown.out == f"{TOTAL} cases, 117 of which passed in {named}; expected to ask 112 if none regresses, 59 if 1 does, 20 if 5 do\n"
    assert (known["answer"], known["asked"], asked & {"q20", "q60", "q90"}) == ("passed", 112, set())
    assert f"PASSED after 112 of {TOTAL} against {named}: at most a 5% chance that a case regressed" in early.out
    assert "wanted" not in early.out
    same = gradeloop("eval", "--attach", "latest")
    assert (same.code, "PASSED after 112" in same.out) == (0, True)
    compared = gradeloop("diff", named, "latest", "--fail-on", "regressions")
    assert (compared.code, compared.out.splitlines()[0]) == (0, "PASSED by --fail-on regressions: NO REGRESSIONS")
    anything = gradeloop("diff", named, "latest", "--fail-on", "any")
    assert (anything.code, anything.out.splitlines()[0]) == (3, "INCONCLUSIVE by --fail-on any: NO REGRESSIONS")
    assert "B has not run " in anything.err


@pytest.mark.slow
def test_one_case_that_regressed_ends_the_batch_and_the_rest_is_compared_on_demand(gradeloop: CommandLine) -> None:
    gradeloop("eval", "--pass-rate", "0.5", "-o", "main.json")
    prompted(gradeloop, right="q20", wrong="q7 q8")
    early = gradeloop(*PAIRED, "--baseline", "main.json")
    found = results(gradeloop)["summary"]
    batch, known = found["batch_id"], found["decision"]
    unnamed = gradeloop("eval", "--resume", "latest", "--all")
    whole = gradeloop("eval", "--attach", "latest", "--baseline", "main.json", "-o", "whole.md")
    after = results(gradeloop)["summary"]
    again = gradeloop("eval", "--attach", "latest")

    assert (early.code, known["answer"]) == (1, "failed"), early.out + early.err
    assert f"FAILED after {known['asked']} of {TOTAL} against main.json: a case regressed" in early.out
    assert f"next: gradeloop diff main.json {batch}" in early.err
    assert (unnamed.code, whole.code, again.code) == (3, 1, 1), whole.out + whole.err
    assert "INCONCLUSIVE: not compared with main.json" in unnamed.out
    assert f"next: gradeloop eval --attach {batch} --baseline main.json" in unnamed.err
    assert "FAILED against main.json: a case regressed" in whole.out
    assert (after["failed"], after["decision"]["asked"]) == (4, TOTAL)
    assert "FAILED against main.json: a case regressed" in again.out


@pytest.mark.slow
def test_without_an_early_end_all_cases_are_compared(gradeloop: CommandLine) -> None:
    gradeloop("eval", "--pass-rate", "0.5")
    first = results(gradeloop)["summary"]["batch_id"]
    same = gradeloop("eval", "--fail-on", "regressions", "--baseline", "latest", "-o", "same.md")
    prompted(gradeloop, right="q20 q60 q90", wrong="q1")
    worse = gradeloop("eval", "--fail-on", "regressions", "--baseline", first, "--repeat", "1")

    assert (same.code, worse.code) == (0, 1), worse.out + worse.err
    assert f"PASSED against {first}: no case regressed" in same.out
    assert f"PASSED against {first}" in (gradeloop.folder / "same.md").read_text()
    assert f"FAILED against {first}: a case regressed" in worse.out


def test_repeated_cases_are_all_asked_and_compared(gradeloop: CommandLine) -> None:
    gradeloop("eval", "--pass-rate", "0.5", "--limit", "4", "--repeat", "2")
    done = gradeloop(*PAIRED, "--baseline", "latest", "--limit", "4", "--repeat", "2")

    assert (done.code, "all cases are asked, since cases are repeated" in done.out) == (0, True), done.out + done.err
    assert "PASSED against " in done.out


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--fail-on", "regressions"), "--fail-on regressions compares with an earlier batch; name it with --baseline"),
        (("--fail-on", "regressions", "--baseline", "x.json", "--pass-rate", "0.9"), "leave --pass-rate out"),
        (("--fail-on", "regressions", "--baseline", "x.json", "--labels", "x.jsonl"), "leave --labels out"),
        (("--fail-on", "errors", "--baseline", "x.json"), "'errors' is not"),
    ],
)
def test_what_a_comparison_cannot_decide_is_refused(gradeloop: CommandLine, flags: tuple[str, ...], why: str) -> None:
    done = gradeloop("eval", *flags)

    assert (done.code, why in done.err) == (2, True), done.err


def test_a_baseline_in_which_nothing_passed_decides_nothing(gradeloop: CommandLine) -> None:
    gradeloop("eval", "--filter", "q20-")
    done = gradeloop(*PAIRED, "--baseline", "latest")

    assert (done.code, "no case can regress from" in done.err) == (2, True), done.out + done.err


def test_a_baseline_of_other_cases_is_refused_before_anything_is_asked(gradeloop: CommandLine) -> None:
    other = {"index": 0, "id": "other", "status": "passed", "schema": "gradeloop.batch/1"}
    (gradeloop.folder / "other.jsonl").write_text(json.dumps(other) + "\n")
    before = gradeloop("batches", "list").out
    done = gradeloop("eval", "--fail-on", "regressions", "--baseline", "other.jsonl")

    assert (done.code, "no case of the suite is in other.jsonl" in done.err) == (2, True), done.out + done.err
    assert gradeloop("batches", "list").out == before
