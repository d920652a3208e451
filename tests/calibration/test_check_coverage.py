"""1,000 simulated checks of a judge of known error report intervals that cover the truth in about 95 %, within a binomial bound."""

import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from scipy.stats import binom  # type: ignore[import-untyped]  # it has no types

from gradeloop.calibration.check_report import Answered, ask_about, report_check
from gradeloop.calibration.labelled_sets import Item, LabelledSet, read_labelled_set
from gradeloop.judges.contract import JudgeResult, parse_judge
from gradeloop.stats.bootstrap import binomial
from gradeloop.stats.correction import hold_verdicts
from gradeloop.stats.reliability import Rated
from tests.rig.judging import FRANCE

CHECKS = 1000
ITEMS = 200
FURTHER_RUNS = 1000
"""Runs without labels, whose pass rate each check corrects."""

SENSITIVITY, SPECIFICITY, ANSWERED = 0.9, 0.8, 0.95

REPLICATES = 300
"""Draws of one bootstrap: 1,000 checks with the 10,000 that the command makes would take a quarter of an hour."""

FEWEST, MOST = (int(binom.ppf(tail, CHECKS, 0.95)) for tail in (0.001, 0.999))
"""927 and 970: the hits of an interval that covers with probability 0.95 are below, and above, in one simulation of 1,000 each."""

JUDGE = parse_judge(FRANCE | {"pass_if": {"label": "match"}})


def true_figures(rate: float) -> dict[str, float]:
    """Return what a check would report of endlessly many items: the definitions, written out for two values."""
    good, bad = rate, 1 - rate
    both_pass, both_fail = good * SENSITIVITY, bad * SPECIFICITY
    judged = both_pass + bad * (1 - SPECIFICITY)
    accuracy = both_pass + both_fail
    by_chance = good * judged + bad * (1 - judged)
    passed_by_either = (good + judged) / 2  # the share of all ratings, which alpha and AC1 take chance from
    alike = passed_by_either**2 + (1 - passed_by_either) ** 2
    return {
        "coverage": ANSWERED,
        "accuracy": accuracy,
        "accuracy_all": accuracy * ANSWERED,
        "tpr": SENSITIVITY,
        "tnr": SPECIFICITY,
        "precision": both_pass / judged,
        "recall": SENSITIVITY,
        "f1": 2 * both_pass / (good + judged),
        "macro_f1": (2 * both_pass / (good + judged) + 2 * both_fail / (2 - good - judged)) / 2,
        "kappa": (accuracy - by_chance) / (1 - by_chance),
        "alpha": (accuracy - alike) / (1 - alike),
        "ac1": (accuracy - (1 - alike)) / alike,
        "corrected rate": rate,
    }


class SimulatedItem(NamedTuple):
    """An item that people label in one way, with every answer that the judge may give."""

    item: Item
    passed: Answered
    failed: Answered
    silent: Answered


def simulated_items(folder: Path) -> dict[bool, list[SimulatedItem]]:
    """Return as many items as a check has of either label, from a file that the command would read."""
    rows = "".join(f"{label} {at},Q?,answer {at},{label}\n" for label in ("yes", "no") for at in range(ITEMS))
    (folder / "labels.csv").write_text(f"id,prompt,output,label\n{rows}")
    labelled = read_labelled_set(folder / "labels.csv")
    found: dict[bool, list[SimulatedItem]] = {True: [], False: []}
    for question in ask_about(JUDGE, labelled):
        fields = {"id": question.run.id, "agent_run_id": question.run.id, "rubric_id": "r", "rubric_version": 1, "model": "scripted:judge"}
        answers = [
            Answered(question, JudgeResult.model_validate(fields | {"output": output, "result_type": kind}))
            for output, kind in (({"label": "match"}, "DIRECT_RESULT"), ({"label": "no match"}, "DIRECT_RESULT"), ({}, "FAILURE"))
        ]
        found[question.item.annotations[0].value is True].append(SimulatedItem(question.item, *answers))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_intervals_of_a_check_cover_the_truth_in_95_of_100_checks(rate: float, tmp_path: Path) -> None:
    generator, items, truth = random.Random(21), simulated_items(tmp_path), true_figures(rate)
    covered = Counter[str]()

    for _ in range(CHECKS):
        labels = [generator.random() < rate for _ in range(ITEMS)]
        asked = [items[label][at] for at, label in enumerate(labels)]
        verdicts = [generator.random() < (SENSITIVITY if label else 1 - SPECIFICITY) for label in labels]
        answered = [generator.random() < ANSWERED for _ in labels]
        answers = [
            (row.passed if verdict else row.failed) if known else row.silent
            for row, verdict, known in zip(asked, verdicts, answered, strict=True)
        ]
        labelled = LabelledSet(name="simulated", why="", form="verdict", official="macro_f1", items=tuple(row.item for row in asked))

        found = report_check(JUDGE, labelled, answers, replicates=REPLICATES).figures
        rows = [Rated(said, (label,)) for label, said, known in zip(labels, verdicts, answered, strict=True) if known]
        further = binomial(generator, FURTHER_RUNS, rate * SENSITIVITY + (1 - rate) * (1 - SPECIFICITY))
        corrected = hold_verdicts([*rows, *(Rated(at < further) for at in range(FURTHER_RUNS))], None).corrected
        intervals = {name: (figure.low, figure.high) for name, figure in found.items()}
        intervals["corrected rate"] = (corrected.low, corrected.high) if corrected else (None, None)

        assert set(intervals) == set(truth)
        for name, (low, high) in intervals.items():
            covered[name] += low is not None and high is not None and low <= truth[name] <= high

    assert {name: hits for name, hits in covered.items() if not FEWEST <= hits <= MOST} == {}
