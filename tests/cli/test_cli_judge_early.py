"""`judge --until decided`: fewer runs are judged, the rule of the judge or of `--pass` decides, and the same seed asks nothing again."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.rig.cli import CommandLine, Done
from tests.rig.judging import FRANCE, MATCH, NO_MATCH, answers
from tests.rig.threads import row, verdict

TOTAL, WRONG, LABELLED = 100, {20, 60, 61, 62, 90}, 45


@pytest.fixture
def gradeloop(commands: CommandLine, tmp_path: Path) -> CommandLine:
    """Return the command in a folder of the test's own, with runs of which five do not pass."""
    said = [{"id": f"r{at}", "messages": [{"role": "user", "content": "Which?"}, _answer(at, tmp_path.name)]} for at in range(TOTAL)]
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, said)))
    (tmp_path / "judge.yaml").write_text(json.dumps(FRANCE))
    wrong = NO_MATCH | {"explanation": "It names Rome."}
    by_schema = [answers(wrong, when="is Rome"), answers(MATCH | {"explanation": "It names Paris."})]
    (tmp_path / "replies.yaml").write_text(json.dumps({"replies": by_schema}))
    (tmp_path / "rubric.yaml").write_text("criteria: [It names Paris]")
    by_criteria = [
        {"role": "grader", "sample": at, "verdict": verdict(row("c1", why)), **more}
        for why, more in (("no", {"when": "is Rome"}), (None, {}))
        for at in range(5)
    ]
    (tmp_path / "criteria.yaml").write_text(json.dumps({"replies": by_criteria}))
    return replace(commands, folder=tmp_path)


def _answer(at: int, name: str) -> dict[str, str]:
    return {"role": "assistant", "content": f"{name} {at}: the capital is {'Rome' if at in WRONG else 'Paris'}."}


def judged(
    gradeloop: CommandLine,
    *flags: str,
    judge: str = "judge.yaml",
    replies: str = "replies.yaml",
    rate: str = "0.8",
    until: tuple[str, ...] = ("--until", "decided"),
) -> Done:
    scripted = ("--grader", "scripted:judge", "--scripted", replies)
    return gradeloop("judge", judge, "runs.jsonl", *scripted, "--pass-rate", rate, *until, *flags)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "files"),
    [(("--pass", "label=match"), ("judge.yaml", "replies.yaml")), ((), ("rubric.yaml", "criteria.yaml"))],
    ids=["schema", "criteria"],
)
def test_fewer_runs_are_judged_by_either_kind_of_judge(gradeloop: CommandLine, flags: tuple[str, ...], files: tuple[str, str]) -> None:
    judge, replies = files
    first = judged(gradeloop, "--seed", "4", *flags, judge=judge, replies=replies)
    said = next(line for line in first.out.splitlines() if line.startswith("PASSED after "))
    asked = int(said.split()[2])
    again = judged(gradeloop, "--seed", "4", *flags, "--json", judge=judge, replies=replies)

    assert first.code == again.code == 0, first.err
    assert said == f"PASSED after {asked} of {TOTAL}"
    assert asked <= len(again.lines) < asked + 10
    assert (
        f"at most a 5% chance that asking all would say otherwise; {TOTAL - len(again.lines)} of 100 judgements were not asked" in first.out
    )
    assert f"Results: {len(again.lines)} judged" in first.out
    assert "--until decided: random order, seed 4" in first.out
    assert sum(line["usage"]["calls"] for line in again.lines) == len(again.lines)  # what it had cost


def test_a_gate_that_most_runs_miss_fails_early(gradeloop: CommandLine) -> None:
    done = judged(gradeloop, "--pass", "label=no match")

    assert done.code == 1
    assert "FAILED after " in done.out


@pytest.mark.slow
def test_all_is_judged_after_an_early_end_and_only_the_rest_is_paid_for(gradeloop: CommandLine) -> None:
    early = judged(gradeloop, "--pass", "label=match", "--json")
    whole = gradeloop("judge", "judge.yaml", "runs.jsonl", "--grader", "scripted:judge", "--scripted", "replies.yaml", "--json")
    paid = sum(bool(line["usage"]["calls"]) for line in whole.lines)

    assert len(whole.lines) == TOTAL
    assert paid == TOTAL - len(early.lines)


def write_labels(gradeloop: CommandLine, value: Callable[[bool], dict[str, Any]]) -> None:
    """Write labels of the last runs, with which the judge agrees but for one that it passes."""
    rows = [{"agent_run_id": f"r{at}", "label_value": value(at not in {*WRONG, 98})} for at in range(TOTAL - LABELLED, TOTAL)]
    (gradeloop.folder / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))


CORRECTED = ("--labels", "labels.jsonl", "--gate", "corrected", "--json")


@pytest.mark.parametrize("kind", ["schema", pytest.param("criteria", marks=pytest.mark.slow)])
def test_the_corrected_rate_ends_it_where_labels_measure_the_judge(gradeloop: CommandLine, kind: str) -> None:
    files: Any = (
        {"judge": "judge.yaml", "replies": "replies.yaml"} if kind == "schema" else {"judge": "rubric.yaml", "replies": "criteria.yaml"}
    )
    rule = ("--pass", "label=match") if kind == "schema" else ()
    said = ("match", "no match") if kind == "schema" else ("satisfied", "needs_revision")
    write_labels(gradeloop, lambda passed: {"label" if kind == "schema" else "result": said[not passed]})
    early = judged(gradeloop, *rule, *CORRECTED, "--seed", "2", rate="0.3", **files)
    again = judged(gradeloop, *rule, *CORRECTED, "--seed", "2", rate="0.3", **files)
    whole = judged(gradeloop, *rule, *CORRECTED, rate="0.3", until=(), **files)
    missed = judged(gradeloop, "--pass", f"{'label' if rule else 'result'}={said[1]}", *CORRECTED, "-o", "page.html", rate="0.7", **files)

    assert early.code == again.code == whole.code == 0, early.err
    assert (missed.code, "FAILED after " in missed.err) == (1, True), missed.err
    assert "FAILED after " in (gradeloop.folder / "page.html").read_text()
    assert {f"r{at}" for at in range(TOTAL - LABELLED, TOTAL)} < {line["agent_run_id"] for line in early.lines}
    assert LABELLED < len(early.lines) == len(again.lines) < len(whole.lines) == TOTAL
    assert "PASSED after " in early.err
    assert "corrected pass rate: " in early.err
    assert "INCONCLUSIVE" not in early.err


@pytest.mark.slow
def test_labels_of_runs_that_were_judged_before_measure_the_judge_too(gradeloop: CommandLine) -> None:
    write_labels(gradeloop, lambda passed: {"label": "match" if passed else "no match"})
    runs = (gradeloop.folder / "runs.jsonl").read_text().splitlines()
    judged(gradeloop, "--pass", "label=match", rate="0.3", until=())
    (gradeloop.folder / "runs.jsonl").write_text("\n".join(runs[: TOTAL - LABELLED]))
    early = judged(gradeloop, "--pass", "label=match", *CORRECTED, rate="0.3")

    assert early.code == 0, early.err
    assert "PASSED after " in early.err
    assert len(early.lines) < TOTAL - LABELLED


@pytest.mark.slow
def test_rollouts_end_once_they_cannot_change_the_answer(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "voted.json").write_text(json.dumps(FRANCE | {"n_rollouts_per_input": 5}))
    right, wrong = MATCH | {"explanation": "It names Paris."}, NO_MATCH | {"explanation": "It names Rome."}
    said = [answers(wrong, at, when="is Rome") for at in range(5)] + [answers(wrong if at == 1 else right, at) for at in range(5)]
    (gradeloop.folder / "voted_replies.yaml").write_text(json.dumps({"replies": said}))
    files: Any = {"judge": "voted.json", "replies": "voted_replies.yaml"}
    early = judged(gradeloop, "--pass", "label=match", "--json", **files)
    whole = judged(gradeloop, "--pass", "label=match", "--json", until=(), **files)
    outputs = {line["agent_run_id"]: line["output"] for line in whole.lines}

    assert early.code == whole.code == 0, early.err
    assert {(line["output"]["label"], line["usage"]["calls"]) for line in early.lines} <= {("match", 4), ("no match", 3)}
    assert {len(line["result_metadata"]["rollouts"]) for line in whole.lines} == {5}
    assert all(line["output"] == outputs[line["agent_run_id"]] for line in early.lines)


@pytest.mark.slow
def test_votes_on_a_criterion_end_once_they_cannot_change_its_verdict(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "voted.yaml").write_text(json.dumps({"criteria": [{"description": "It names Paris", "votes": 5}]}))
    early = judged(gradeloop, "--json", judge="voted.yaml", replies="criteria.yaml")
    whole = judged(gradeloop, "--json", judge="voted.yaml", replies="criteria.yaml", until=())
    votes = [[vote.get("unasked", False) for vote in line["output"]["criteria"][0]["votes"]] for line in early.lines]

    assert early.code == whole.code == 0, early.err
    assert {sum(row) for row in votes} == {2}
    assert {line["usage"]["calls"] for line in early.lines} == {3}
    paid = sum(line["usage"]["calls"] for line in whole.lines)  # votes in flight at the decision were paid for before
    assert 2 * len(early.lines) <= paid <= 5 * TOTAL - 3 * len(early.lines)
    assert {line["agent_run_id"]: line["output"]["result"] for line in early.lines}.items() <= {
        line["agent_run_id"]: line["output"]["result"] for line in whole.lines
    }.items()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--until", "decided"), "--until decided needs --pass-rate SHARE"),
        (("--until", "decided", "--pass-rate", "0.9", "--labels", "labels.jsonl"), "--until decided --labels FILE needs --gate corrected"),
        (("--until", "decided", "--pass-rate", "0.9", "--no-store"), "--until decided needs --pass-rate SHARE and the store"),
        (("--seed", "3"), "--risk, --seed and --preview say how --until decided ends"),
        (("--until", "decided", "--pass-rate", "0.9", "--risk", "0.5", "--pass", "label=match"), "risk"),
    ],
)
def test_what_cannot_end_early_is_refused_in_a_sentence(gradeloop: CommandLine, flags: tuple[str, ...], problem: str) -> None:
    done = gradeloop("judge", "judge.yaml", "runs.jsonl", "--scripted", "replies.yaml", *flags)

    assert (done.code, problem in done.err) == (2, True), done.err


def test_a_judge_whose_judgements_are_no_cases_is_refused(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "judge.yaml").write_text(json.dumps(FRANCE | {"n_rollouts_per_input": 2, "judge_variant": "multi-reflect"}))
    done = judged(gradeloop, "--pass", "label=match")

    assert (done.code, "or the judge has tools, checks or reflections, so that" in done.err) == (2, True), done.err
