"""What an agreement measures beside accuracy: silence, staleness, several people, repetition, panels, and the corrected pass rate."""

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import krippendorff
import numpy as np
import pytest
from scipy.stats import spearmanr  # type: ignore[import-untyped]
from sklearn import metrics  # type: ignore[import-untyped]

from gradeloop.calibration.agreement import Agreement, measure_agreement
from gradeloop.calibration.figures import NumberFigures, measure
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import JudgeConfig, JudgeResult, judging_id, parse_judge
from gradeloop.judges.judgements import ComparedKey, Label, LabelSet, label_schema, refuse_foreign_results, select_judgements
from gradeloop.stats.reliability import Rated
from tests.rig.judging import FRANCE, PARIS

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "enum": ["match", "no match"]},
        "grade": {"type": "string", "enum": ["poor", "fair", "good"]},
        "score": {"type": "integer", "minimum": 1, "maximum": 5},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["label"],
}
JUDGE = parse_judge(FRANCE | {"output_schema": SCHEMA, "pass_if": {"label": "match"}})


def said(run: str, repeat: int = 0, *, judge: JudgeConfig = JUDGE, metadata: Any = None, content: str = "", **output: Any) -> JudgeResult:
    """Return a judgement of a run; without an output, a failure."""
    return JudgeResult(
        id=f"judging-{run}-{repeat}-{content}",
        agent_run_id=run,
        rubric_id=judge.rubric_id,
        rubric_version=1,
        output=output,
        result_type="DIRECT_RESULT" if output else "FAILURE",
        result_metadata=metadata or {},
        judge_sha256=judge.sha256(),
        run_sha256=content or None,
    )


def labels(*rows: tuple[str, dict[str, Any]] | tuple[str, dict[str, Any], str], judge: JudgeConfig = JUDGE) -> LabelSet:
    """Return labels: run, value, and perhaps the person."""
    made = [Label(agent_run_id=row[0], label_value=row[1], created_by=row[2] if len(row) > 2 else "ann") for row in rows]
    return LabelSet(label_schema=label_schema(judge), labels=tuple(made))


def measured(found: LabelSet, *results: JudgeResult, judge: JudgeConfig = JUDGE, **options: Any) -> Agreement:
    return measure_agreement(judge, found, select_judgements(judge, results), **options)


def match(yes: bool) -> dict[str, Any]:
    return {"label": "match" if yes else "no match"}


@pytest.mark.slow
def test_people_who_label_different_keys_of_a_run_do_not_contradict_one_another() -> None:
    people = labels(("r0", match(True), "ann"), ("r0", {"tags": ["a"]}, "bob"), ("r1", match(True), "ann"), ("r1", match(False), "bob"))

    assert measured(people, *(said(run, **match(True)) for run in ("r0", "r1"))).contradictory == ("r1",)


def test_a_judge_that_is_silent_on_what_is_hard_is_not_perfect() -> None:
    found = measured(
        labels(*((f"r{at}", match(True)) for at in range(10))), *(said(f"r{at}", **(match(True) if at < 3 else {})) for at in range(10))
    )

    figures = found.keys[0].figures
    assert figures["coverage"].value == 0.3
    assert figures["accuracy"].value == 1.0
    assert figures["accuracy_all"].value == 0.3
    assert figures["accuracy"].low == pytest.approx(0.438, abs=0.001)
    assert (found.judged, len(found.missing)) == (3, 7)


def test_a_judge_that_says_nothing_at_all_has_no_agreement() -> None:
    found = measured(labels(("a", match(True)), ("b", match(False))), said("a"), said("b"))

    figures = found.keys[0].figures
    assert (figures["coverage"].value, figures["accuracy"].value, figures["accuracy_all"].value) == (0.0, None, 0.0)
    assert figures["kappa"].value is None


def test_a_key_that_the_judge_leaves_out_is_unanswered() -> None:
    found = measured(labels(("a", {"score": 3}), ("b", {"score": 4})), said("a", label="match", score=3), said("b", label="match"))

    assert (found.keys[0].key, found.keys[0].runs, found.keys[0].answered) == ("score", 2, 1)


def run_of(text: str) -> AgentRun:
    return AgentRun.model_validate(PARIS | {"id": "paris", "transcripts": [{"messages": [{"role": "assistant", "content": text}]}]})


def judged(run: AgentRun, repeat: int = 0, *, judge: JudgeConfig = JUDGE, **output: Any) -> JudgeResult:
    """Return a judgement under the id that the server would give it."""
    sha256 = run.sha256()
    return said(run.id, judge=judge, **output).model_copy(update={"id": judging_id(judge, sha256, repeat), "run_sha256": sha256})


def test_a_stale_judgement_does_not_count() -> None:
    """The run was changed after it was judged: what was said of the earlier text is said of another run."""
    before, now = run_of("Lyon."), run_of("Paris.")
    stale = judged(before, label="no match")

    newest = select_judgements(JUDGE, [judged(now, label="match"), stale])
    exact = select_judgements(JUDGE, [stale, judged(now, label="match")], [now])
    only_stale = select_judgements(JUDGE, [stale], [now])

    for found in (newest, exact):
        (kept,) = found.by_run["paris"]
        assert kept.output == {"label": "match"}
    assert (only_stale.by_run, only_stale.stale) == ({}, ("paris",))
    with pytest.raises(InvalidRequest, match="1 were judged when they had another content"):
        measure_agreement(JUDGE, labels(("paris", match(True))), only_stale)


def test_repeats_count_in_their_order_in_whatever_order_they_were_stored() -> None:
    now = run_of("Paris.")
    first, third = judged(now, 0, label="match"), judged(now, 2, label="no match")
    elsewhere = third.model_copy(update={"id": "judging-in-parts"})

    assert select_judgements(JUDGE, [elsewhere, third, first], [now]).by_run == {"paris": (first, third, elsewhere)}


def test_results_of_another_judge_are_refused() -> None:
    other = parse_judge(FRANCE | {"rubric_text": "Another."})

    refuse_foreign_results(Path("r.jsonl"), JUDGE, [said("a", label="match")])
    with pytest.raises(InvalidRequest, match=r"r.jsonl, judgement 2: 'a' was judged by 'rubric-\w+' version 1, .*, and this judge is"):
        refuse_foreign_results(Path("r.jsonl"), JUDGE, [said("a", label="match"), said("a", judge=other, label="match")])
    for sha256 in ("0" * 64, None):  # None: as the workflow wrote it, without the Python judge
        unnamed = said("a", label="match").model_copy(update={"judge_sha256": sha256})
        with pytest.raises(InvalidRequest, match=f"version 1, judge_sha256 {sha256}, and this judge is .* judge_sha256 {JUDGE.sha256()};"):
            refuse_foreign_results(Path("r.jsonl"), JUDGE, [unnamed])


@pytest.mark.slow
def test_people_among_one_another_are_the_ceiling() -> None:
    rows = [(f"r{at}", match(at % 2 == 0), "ann") for at in range(20)] + [
        (f"r{at}", match(at % 2 == 0 or at < 5), "bob") for at in range(20)
    ]

    found = measured(labels(*rows), *(said(f"r{at}", **match(at % 2 == 0)) for at in range(20)))

    ceiling = found.keys[0].ceiling
    assert ceiling is not None
    assert (ceiling.raters, ceiling.runs) == (2, 20)
    assert ceiling.human["accuracy"].value == pytest.approx(0.9)
    assert ceiling.judge["accuracy"].value == pytest.approx(0.95)
    assert ceiling.difference.value == pytest.approx(0.05)
    assert ceiling.difference.low is not None
    assert found.keys[0].figures["accuracy"].of == 20


def test_repetitions_measure_the_judge_against_itself() -> None:
    results = [said(f"r{at}", repeat, **match(at != 0 or repeat % 2 == 0)) for at in range(5) for repeat in range(4)]

    found = measured(labels(("r0", match(True))), *results)

    (row,) = found.stability
    assert (row.key, row.runs, row.judgements) == ("label", 5, 20)
    assert row.flip_rate.value == pytest.approx((4 / 6) / 5)
    assert row.flip_rate.high is not None
    assert [(run.agent_run_id, run.values) for run in row.flipping] == [("r0", ("match", "no match", "match", "no match"))]


@pytest.mark.slow
def test_votes_that_err_together_are_worth_one() -> None:
    def votes(run: int, *yes: bool) -> JudgeResult:
        return said(
            f"r{run}", metadata={"rollouts": [{"index": at, "output": match(vote)} for at, vote in enumerate(yes)]}, **match(yes[0])
        )

    alike = [votes(at, *([at % 3 > 0] * 3)) for at in range(30)]
    apart = [votes(at, at % 3 > 0, (at + 1) % 3 > 0, (at + 2) % 3 > 0) for at in range(30)]
    people = labels(*((f"r{at}", match(True)) for at in range(30)))

    same, different = (measured(people, *results).keys[0].panel for results in (alike, apart))

    assert same is not None
    assert different is not None
    assert (same.votes, round(same.effective, 6)) == (3, 1.0)
    assert different.effective == 3


@pytest.mark.slow
def test_the_pass_rate_is_corrected_for_the_judges_error() -> None:
    """The judge passes 8 of 10 good runs and 2 of 10 bad ones; of 100 others it passes 50: (0.5 + 0.8 - 1) / 0.6 = 0.5."""
    people = labels(*((f"r{at}", match(at < 10)) for at in range(20)))
    results = [said(f"r{at}", **match(at < 8 or at >= 18)) for at in range(20)] + [said(f"n{at}", **match(at < 50)) for at in range(100)]

    rate = measured(people, *results).keys[0].pass_rate

    assert rate is not None
    assert (rate.passed, rate.runs) == (50, 100)
    assert rate.corrected is not None
    assert rate.corrected.value == pytest.approx(0.5)
    assert rate.corrected.low < 0.35
    assert rate.corrected.high > 0.65


def test_ordered_values_are_weighted_and_lists_are_sets() -> None:
    people = labels(*((f"r{at}", {"grade": ["poor", "fair", "good"][at % 3], "tags": ["a", "b"]}) for at in range(12)))
    results = [said(f"r{at}", label="match", grade=["fair", "fair", "good"][at % 3], tags=["b", "c"]) for at in range(12)]

    grade, tags = measured(people, *results, ordered=("grade",)).keys

    assert (grade.kind, tags.kind) == ("ordered", "set")
    assert grade.figures["weighted_kappa"].value == pytest.approx(2 / 3, abs=0.05)
    assert (grade.figures["weighted_kappa"].value or 0) > (grade.figures["kappa"].value or 0)
    assert set(grade.rates) == {'"poor"', '"fair"', '"good"'}
    assert grade.rates['"poor"']["tpr"].value == 0
    assert tags.figures["set_f1"].value == pytest.approx(0.5)
    with pytest.raises(InvalidRequest, match=r"'grades' is not a key of the labels that can be compared\. Did you mean 'grade'"):
        measured(people, *results, ordered=("grades",))


def test_a_criterions_score_can_be_labelled() -> None:
    judge = parse_judge({"rubric": {"criteria": [{"id": "c1", "description": "names it", "score": {"min": 1, "max": 5}}]}})
    rows = [{"id": "c1", "name": "n", "passed": True, "reason": "x", "score": 4.0}]
    people = labels(("a", {"scores": {"c1": 2}, "criteria": {"c1": True}}), judge=judge)

    found = measured(people, said("a", judge=judge, result="satisfied", criteria=rows, explanation="e"), judge=judge)

    passed, score = found.keys
    assert (score.key, score.figures["mean_error"].value) == ("scores.c1", 2.0)
    assert found.disagreements[0].judge_reason == "x"
    assert passed.figures["accuracy"].value == 1.0


def test_an_interval_without_a_disagreement_is_not_empty() -> None:
    people = labels(*((f"r{at}", match(at % 2 == 0)) for at in range(20)))
    figures = measured(people, *(said(f"r{at}", **match(at % 2 == 0)) for at in range(20))).keys[0].figures

    for name in ("kappa", "alpha", "ac1", "f1"):
        assert figures[name].value == 1.0
        assert figures[name].low == pytest.approx(0.678, abs=0.01)


@pytest.mark.slow
def test_the_same_measurement_twice_is_the_same() -> None:
    people = labels(*((f"r{at}", match(at % 2 == 0)) for at in range(20)))
    results = [said(f"r{at}", **match(at % 3 == 0)) for at in range(20)]

    assert json.dumps(measured(people, *results).model_dump(mode="json")) == json.dumps(measured(people, *results).model_dump(mode="json"))


def test_a_band_of_votes_keeps_a_stated_risk() -> None:
    """Verdicts of three equal votes are always right, those of two are wrong half of the time: only the first may decide alone."""

    def votes(run: int) -> JudgeResult:
        outputs = [match(True), match(True), match(run % 2 == 0)]
        return said(f"r{run}", metadata={"rollouts": [{"index": at, "output": one} for at, one in enumerate(outputs)]}, **match(True))

    people = labels(*((f"r{at}", match(at % 4 != 1)) for at in range(400)))
    results = [votes(at) for at in range(400)]

    band = measured(people, *results, risk=0.05).keys[0].band
    strict = measured(people, *results, risk=0.001).keys[0].band

    assert band is not None
    assert (band.threshold, band.coverage, band.error) == (1.0, 0.5, 0.0)
    assert band.bound < 0.05
    assert strict is None


def test_repeated_judgements_are_votes_of_a_band_where_there_are_no_others() -> None:
    results = [said(f"r{at}", repeat, **match(at % 2 == 0 or repeat == 0)) for at in range(200) for repeat in range(3)]
    people = labels(*((f"r{at}", match(at % 2 == 0)) for at in range(200)))

    band = measured(people, *results, risk=0.1).keys[0].band

    assert band is not None
    assert (band.threshold, band.coverage) == (1.0, 0.5)


def spearman(pairs: Counter[tuple[float, float]]) -> float | None:
    """Return scipy's rank correlation; None where it is undefined, since one of the two never varies."""
    columns = list(zip(*pairs.elements(), strict=True))
    return float(spearmanr(*columns).statistic) if columns and all(len(set(column)) > 1 for column in columns) else None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_shares_of_a_value_are_scikit_learns() -> None:
    generator, key = random.Random(5), ComparedKey(("passed",), "category", (True, False), True)
    for _ in range(200):
        pairs = [(generator.random() < 0.7, generator.random() < 0.6) for _ in range(generator.randint(3, 40))]
        rated = [Rated(str(judged).lower(), (str(label).lower(),)) for label, judged in pairs]
        labels, judged = zip(*pairs, strict=True)
        precision, recall, f1, _ = metrics.precision_recall_fscore_support(labels, judged, average="binary", zero_division=np.nan)
        specificity = metrics.recall_score(labels, judged, pos_label=False, zero_division=np.nan)

        found = measure(key, rated, replicates=1)

        expected = {"precision": precision, "recall": recall, "tpr": recall, "f1": f1, "tnr": specificity}
        expected |= {"accuracy": metrics.accuracy_score(labels, judged)}
        assert {name: found[name].value for name in expected} == {
            name: None if math.isnan(value) else pytest.approx(value) for name, value in expected.items()
        }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of a rater that never varies
def test_the_figures_of_numbers_are_those_of_other_libraries() -> None:
    """The sums that are made ready for the bootstrap, for 200 random sets and one draw of each, beside scikit-learn and krippendorff."""
    generator = random.Random(4)
    for _ in range(200):
        count = generator.randint(3, 30)
        kinds = [
            (None if generator.random() < 0.1 else float(generator.randint(1, 6)), [float(generator.randint(1, 6)) for _ in range(people)])
            for people in generator.choices((1, 1, 2, 3), k=count)
        ]
        draw = [generator.randint(0, 3) for _ in kinds]
        pairs = Counter[tuple[float, float]]()
        for (judged, given), times in zip(kinds, draw, strict=True):
            pairs.update({(label, judged): times * given.count(label) for label in set(given)} if judged is not None else {})
        first, second = zip(*rows, strict=True) if (rows := list(pairs.elements())) else ((), ())
        units = [
            [*given, *([] if judged is None else [judged])]
            for (judged, given), times in zip(kinds, draw, strict=True)
            for _ in range(times)
        ]
        seen = {value for unit in units if len(unit) > 1 for value in unit}
        table = np.array([unit + [np.nan] * (4 - len(unit)) for unit in units]).T

        found = NumberFigures(kinds)(draw)

        expected = {
            "weighted_kappa": metrics.cohen_kappa_score(first, second, weights="quadratic", labels=range(1, 7))
            if len({*first, *second}) > 1
            else None,
            "alpha": krippendorff.alpha(reliability_data=table, level_of_measurement="interval") if len(seen) > 1 else None,
            "spearman": spearman(pairs),
            "mean_error": metrics.mean_absolute_error(first, second) if first else None,
        }
        assert found == {name: None if value is None else pytest.approx(value, abs=1e-9) for name, value in expected.items()}
        assert NumberFigures(kinds).weighted_kappa(draw) == found["weighted_kappa"]
