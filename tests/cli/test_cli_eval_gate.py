"""`gradeloop eval --labels`: the pass rate corrected for the judge's error, on the terminal, in files and in the exit code."""

import json
from typing import Any

import pytest

from tests.cli.test_cli_eval import batch_of
from tests.cli.test_cli_eval import suite as written
from tests.rig.batches import breaks, fails, passes
from tests.rig.cli import CommandLine

LENIENT = [passes("good"), passes("lucky"), breaks("odd"), fails("bad")]
"""A judge that passes what is good, and half of what is not."""


def suite(gradeloop: CommandLine, outputs: list[str], name: str, **more: Any) -> str:
    """Write a suite of these outputs that the lenient judge judges, and return the file's name."""
    return written(gradeloop, name, LENIENT, outputs, **more)


LABELLED = [*(f"good {at}" for at in range(60)), *(f"lucky {at}" for at in range(60, 90)), *(f"bad {at}" for at in range(90, 120))]
OTHERS = [*(f"good anew {at}" for at in range(90)), *(f"lucky anew {at}" for at in range(30)), *(f"bad anew {at}" for at in range(30))]


def labels(gradeloop: CommandLine, outputs: list[str], name: str = "labels.jsonl") -> str:
    """Write what a person says of outputs, of which the good ones are good, and return the file's name."""
    rows = [
        {"agent_run_id": f"case-{at}", "label_value": {"status": "passed" if "good" in output else "failed"}, "output": output}
        for at, output in enumerate(outputs)
    ]
    (gradeloop.folder / name).write_text("\n".join(map(json.dumps, rows)))
    return name


@pytest.mark.slow
def test_labels_of_earlier_outputs_correct_the_rate_and_decide(gradeloop: CommandLine) -> None:
    """The judge passes 80 % of new outputs, and half of the bad ones that people labelled in an earlier batch: 60 % are good."""
    gradeloop("eval", suite(gradeloop, LABELLED, "lenient"))
    said = ("--labels", labels(gradeloop, LABELLED))
    name = suite(gradeloop, OTHERS, "lenient")

    raw = gradeloop("eval", name, "--pass-rate", "0.78", *said)
    batch = batch_of(raw)
    outputs = ("-o", "gate.md", "-o", "gate.html", "-o", "gate.json")
    corrected = gradeloop("eval", "--attach", batch, *said, "--gate", "corrected", *outputs)
    again, shown = gradeloop("eval", "--attach", batch), gradeloop("batches", "show", batch)
    lower = gradeloop("eval", "--attach", batch, "--pass-rate", "0.6")
    back = gradeloop("eval", "--attach", batch, "--pass-rate", "0.6", "--gate", "raw")

    rate = "corrected pass rate: 60.0% (42.2% to 76.5%), 80.0% as the judge says; by 120 labels with a verdict"
    answer = "FAILED 60.0% (42.2% to 76.5%) corrected of 78%"
    assert (raw.code, "PASSED 80% of 78%" in raw.out, rate in raw.out) == (0, True, True), raw.out
    assert (corrected.code, again.code) == (1, 1), corrected.err
    assert [text for done in (corrected, again, shown) for text in (answer, rate) if text not in done.out] == []
    page, summary = (gradeloop.folder / "gate.html").read_text(), (gradeloop.folder / "gate.md").read_text()
    assert answer in page
    assert all("corrected pass rate: 60.0%" in text for text in (page, summary))
    assert json.loads((gradeloop.folder / "gate.json").read_text())["summary"]["corrected"]["decision"] == "failed"
    assert lower.code == 3
    assert "INCONCLUSIVE: 60.0% (42.2% to 76.5%) corrected of 60%, no number of labels would decide; judge more runs" in lower.out
    assert (back.code, "PASSED 80% of 60%" in back.out, rate in back.out) == (0, True, True)


def test_a_label_counts_for_its_output_and_its_question_alone(gradeloop: CommandLine) -> None:
    """Labels of outputs that nobody judged, or that were judged by another rubric, correct nothing, and so decide nothing."""
    first = suite(gradeloop, ["good one", "bad one", "lucky one"], "strict")
    said = ("--labels", labels(gradeloop, ["good one", "bad one", "good unseen"], "few.jsonl"), "--gate", "corrected", "--pass-rate", "0.5")
    known = gradeloop("eval", first, *said)
    edited = gradeloop("eval", suite(gradeloop, ["good two", "bad two"], "strict", rubric="- it is fine"), *said)

    assert "by 2 labels with a verdict" in known.out
    assert edited.code == 3, edited.err
    assert "corrected pass rate: unknown (50.0% as the judge says); 0 labels with a verdict, both kinds are needed" in edited.out
    assert "INCONCLUSIVE: unknown corrected of 50%" in edited.out


def test_errors_come_before_the_corrected_rate(gradeloop: CommandLine) -> None:
    said = ("--labels", labels(gradeloop, ["good one", "bad one"], "two.jsonl"), "--gate", "corrected", "--pass-rate", "0.1")

    done = gradeloop("eval", suite(gradeloop, ["good one", "bad one", "odd one"], "errors"), *said)

    assert (done.code, "INCONCLUSIVE: 1 error" in done.out) == (3, True), done.err


@pytest.mark.slow
def test_a_batch_that_runs_again_loses_its_corrected_rate(gradeloop: CommandLine) -> None:
    said = ("--labels", labels(gradeloop, ["good one", "bad one"], "two.jsonl"), "--pass-rate", "0.1", "--allow-errors", "1")
    done = gradeloop("eval", suite(gradeloop, ["good one", "bad one", "odd one"], "again"), *said)

    retried = gradeloop("retry", batch_of(done))

    assert "corrected pass rate: 50.0% (0.0% to 100.0%)" in done.out
    assert retried.code == 0, retried.err
    assert "corrected pass rate" not in retried.out


MISTAKES = [
    (None, ("--gate", "corrected", "--pass-rate", "0.5"), "--gate corrected needs --labels FILE, by which it corrects"),
    ({}, ("--gate", "corrected"), "--pass-rate SHARE below 1, or the suite's pass_rate, against which it decides"),
    ({}, ("--detach",), "--labels corrects the results of a batch that has ended; leave --detach out"),
    ({"output": None}, (), "the label of 'case-0' by 'label' has no output; add the text that was labelled"),
    ({"label_value": {"status": "good"}}, (), "line 1: label_value status: 'good' is not one of ['passed', 'failed']"),
    ({"label_value": {"result": "passed"}}, (), "line 1: label_value has 'result'"),
]


def test_a_mistake_is_refused_before_anything_is_judged(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for line, flags, words in MISTAKES:
        with subtests.test(words):
            label = {"agent_run_id": "case-0", "label_value": {"status": "passed"}, "output": "good one"}
            (gradeloop.folder / "wrong.jsonl").write_text(json.dumps(label | (line or {})))
            given = ("--labels", "wrong.jsonl") if line is not None else ()

            done = gradeloop("eval", suite(gradeloop, ["good one"], "mistake"), *given, *flags)

            assert (done.code, words in done.err, "Traceback" in done.err) == (2, True, False), done.err
