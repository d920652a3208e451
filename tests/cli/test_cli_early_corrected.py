"""`eval --until decided --labels FILE --gate corrected`: cases with labels come first, and the corrected answer ends the batch."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.rig.cli import CommandLine, Done

pytestmark = pytest.mark.slow

TOTAL, LABELLED = 300, 80

SUITE = """
prompts: ["{{answer}}"]
providers: [echo]
tests: rows.csv
defaultTest:
  assert: [{type: contains, value: right}]
"""


@pytest.fixture
def gradeloop(commands: CommandLine, tmp_path: Path) -> CommandLine:
    """Return the command in a folder of the test's own, with labels of the last cases, of which the judge has one in ten wrong."""
    chance = random.Random(2)
    answers = [f"{'right' if chance.random() < 0.85 else 'wrong'} {at}" for at in range(TOTAL)]
    rows = "".join(f"q{at},{answer}\n" for at, answer in enumerate(answers))
    (tmp_path / "rows.csv").write_text(f"id,answer\n{rows}")
    (tmp_path / "promptfooconfig.yaml").write_text(SUITE)
    found = replace(commands, folder=tmp_path)
    ids = {row["output"]: row["id"] for row in lines(found)}
    labels = []
    for answer in answers[-LABELLED:]:
        passed = answer.startswith("right") == (chance.random() < 0.9)
        labels.append({"agent_run_id": ids[answer], "label_value": {"status": "passed" if passed else "failed"}, "output": answer})
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    return found


def lines(gradeloop: CommandLine) -> list[dict[str, Any]]:
    return gradeloop("eval", "--json", "--description", "another").lines


def ran(gradeloop: CommandLine, *flags: str) -> Done:
    return gradeloop("eval", "--labels", "labels.jsonl", "--gate", "corrected", *flags)


def test_the_corrected_answer_ends_the_batch_and_is_that_of_all(gradeloop: CommandLine) -> None:
    early = ran(gradeloop, "--pass-rate", "0.4", "--until", "decided", "--seed", "3")
    cases = json.loads(gradeloop("batches", "export", "latest").out)["cases"]
    labelled = {json.loads(line)["agent_run_id"] for line in (gradeloop.folder / "labels.jsonl").read_text().splitlines()}
    again = gradeloop("eval", "--attach", "latest", "--labels", "labels.jsonl", "--gate", "corrected")
    whole = gradeloop("eval", "--resume", "latest", "--all", "--labels", "labels.jsonl", "--gate", "corrected")

    assert early.code == again.code == whole.code == 0, early.err
    assert "PASSED after " in early.out
    assert "corrected pass rate: " in early.out
    assert {case["id"] for case in cases[:LABELLED]} == labelled
    assert any(case["status"] == "queued" for case in cases)
    assert "PASSED after " in again.out
    assert "corrected of 40%" in whole.out


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--labels", "labels.jsonl"), "--until decided --labels FILE needs --gate corrected"),
        (("--labels", "labels.jsonl", "--gate", "corrected", "--preview"), "which has no --preview"),
    ],
)
def test_labels_that_do_not_decide_are_refused(gradeloop: CommandLine, flags: tuple[str, ...], problem: str) -> None:
    done = gradeloop("eval", "--until", "decided", "--pass-rate", "0.5", *flags)

    assert (done.code, problem in done.err) == (2, True), done.err


def test_all_is_asked_where_labels_correct_the_rate_of_repeated_cases(gradeloop: CommandLine) -> None:
    done = ran(gradeloop, "--pass-rate", "0.4", "--until", "decided", "--repeat", "2")

    assert "all cases are asked, since labels correct a rate of repeated cases" in done.out
    assert "PASSED after" not in done.out


def test_all_is_asked_where_the_labels_do_not_fit_into_the_request_of_a_batch(gradeloop: CommandLine) -> None:
    with (gradeloop.folder / "labels.jsonl").open("a") as labels:
        labels.writelines(
            f'\n{{"agent_run_id": "other-{at}", "label_value": {{"status": "passed"}}, "output": "x"}}' for at in range(9_000)
        )

    done = ran(gradeloop, "--pass-rate", "0.4", "--until", "decided")

    assert "all cases are asked, since the labels take more than 1 MB" in done.out
    assert "corrected" in done.out
