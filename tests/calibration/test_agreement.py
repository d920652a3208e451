"""Labels and agreement: the figures are those of published examples; labels keep the judge's schema."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.calibration.agreement import LabelSet, alpha, kappa, measure_agreement, read_labels
from gradeloop.errors import InvalidRequest
from gradeloop.judges.answers import build_consensus
from gradeloop.judges.contract import JudgeConfig, JudgeResult, parse_judge
from gradeloop.stats.intervals import wilson
from tests.rig.judging import FRANCE


def test_cohens_kappa_is_that_of_the_published_example() -> None:
    """50 grant proposals, two readers: 20 both yes, 5 and 10 split, 15 both no; kappa 0.40 (Wikipedia, "Cohen's kappa", simple example)."""
    pairs = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15

    assert kappa(pairs) == pytest.approx(0.4)


KRIPPENDORFF = {
    "A": [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    "B": [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    "C": [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    "D": [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
}
"""Four observers, twelve units, any number of values missing (Krippendorff, "Computing Krippendorff's Alpha-Reliability", 2011)."""


@pytest.mark.parametrize(("numeric", "published"), [(False, 0.743), (True, 0.849)])
def test_krippendorffs_alpha_is_that_of_the_published_example(numeric: bool, published: float) -> None:
    ratings: Any = [
        (rater, f"unit {at}", value) for rater, values in KRIPPENDORFF.items() for at, value in enumerate(values) if value is not None
    ]

    assert alpha(ratings, numeric=numeric) == pytest.approx(published, abs=0.0005)


def test_alpha_is_exact_at_any_size_of_numbers() -> None:
    def rated(*pairs: tuple[float, float]) -> Any:
        return [(rater, str(at), value) for at, pair in enumerate(pairs) for rater, value in zip("xy", pair, strict=True)]

    small = rated((1, 2), (4, 4), (9, 7))
    assert alpha(rated((0.1, 0.1), (0.3, 0.3), (0.7, 0.7)), numeric=True) == 1.0
    assert alpha([(rater, unit, value * 10**200) for rater, unit, value in small], numeric=True) == alpha(small, numeric=True)
    assert alpha([(rater, unit, float(value)) for rater, unit, value in small], numeric=False) == alpha(small, numeric=False)
    assert alpha(rated((1, True), (0, False)), numeric=False) == 0.0


def test_1_and_1_0_are_one_value_and_true_is_another(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"stars": {"type": "number", "enum": [1, 2.0]}}}
    judge = parse_judge(FRANCE | {"output_schema": schema})
    labels = labelled(tmp_path, label("a", stars=1), label("b", stars=2), label("c", stars=1.0), judge=judge)

    found = measure_agreement(judge, labels, [result("a", stars=1.0), result("b", stars=2.0), result("c", stars=1)])
    voted = build_consensus(schema, [{"stars": 2}, {"stars": 1}, {"stars": 1.0}])

    (key,) = found.keys
    assert (key.accuracy, key.kappa, key.alpha, found.disagreements) == (1.0, 1.0, 1.0, ())
    assert key.confusion == {"1": {"1": 2}, "2": {"2": 1}}
    assert (voted.output, voted.ties, voted.keys["stars"].distribution[0].count) == ({"stars": 1}, (), 2)
    with pytest.raises(InvalidRequest, match=r"enum has '1(\.0)?' twice"):
        parse_judge(FRANCE | {"output_schema": {"type": "object", "properties": {"x": {"type": "number", "enum": [1, 1.0]}}}})


@pytest.mark.parametrize(("count", "total"), [(0, 5), (1, 5), (3, 5), (5, 5), (7, 25), (1, 1), (0, 1)])
def test_wilsons_interval_is_scipys(count: int, total: int) -> None:
    from scipy.stats import binomtest  # type: ignore[import-untyped]  # it has no types

    expected = binomtest(count, total).proportion_ci(method="wilson")
    interval = wilson(count, total)

    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_what_is_not_defined_is_not_given() -> None:
    assert kappa([("a", "a"), ("a", "a")]) is None
    assert alpha([("x", "1", "a"), ("y", "1", "a")], numeric=False) is None
    assert alpha([("x", "1", "a"), ("y", "2", "b")], numeric=False) is None


SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "enum": ["match", "no match"]},
        "sure": {"type": "boolean"},
        "score": {"type": "integer", "minimum": 1, "maximum": 5},
        "why": {"type": "string"},
    },
    "required": ["label"],
}
JUDGE = parse_judge(FRANCE | {"output_schema": SCHEMA})
CRITERIA = parse_judge({"rubric": "- names it\n- is brief"})


def result(run: str, judge: JudgeConfig = JUDGE, **output: Any) -> JudgeResult:
    """Return a judgement of a run."""
    fields = {"id": f"judging-{run}", "agent_run_id": run, "rubric_id": "r", "rubric_version": 1}
    return JudgeResult.model_validate(fields | {"output": output, "result_type": "DIRECT_RESULT" if output else "FAILURE"})


def labelled(folder: Path, *rows: object, judge: JudgeConfig = JUDGE) -> LabelSet:
    """Write labels and read them."""
    path = folder / "labels.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return read_labels(path, judge)


def label(run: str, by: str = "ann", reason: str = "", **value: Any) -> dict[str, Any]:
    """Return a label's line."""
    return {"agent_run_id": run, "label_value": value, "created_by": by, "reason": reason}


def test_agreement_is_told_key_by_key_with_a_table_and_both_reasons(tmp_path: Path) -> None:
    labels = labelled(
        tmp_path,
        label("a", label="match", sure=True, score=4),
        label("b", label="match", score=2, reason="it says Paris"),
        label("c", label="no match"),
        label("d", label="no match"),
    )
    results = [
        result("a", label="match", sure=True, score=5, why="Paris"),
        result("b", label="no match", score=2, why="nothing"),
        result("c", label="no match"),
        result("d"),
    ]

    found = measure_agreement(JUDGE, labels, results)

    assert (found.labels, found.judged, found.missing) == (4, 3, ("d",))
    first, sure, score = found.keys
    assert (first.key, first.pairs) == ("label", 3)
    assert first.accuracy == pytest.approx(2 / 3)
    assert first.kappa == pytest.approx(0.4)
    assert first.confusion == {'"match"': {'"match"': 1, '"no match"': 1}, '"no match"': {'"no match"': 1}}
    assert (sure.key, sure.pairs, sure.accuracy, sure.kappa) == ("sure", 1, 1.0, None)
    assert (score.key, score.kappa, score.mean_error, score.confusion) == ("score", None, 0.5, {})
    odd = found.disagreements[0]
    assert (odd.agent_run_id, odd.label, odd.judge, odd.label_reason, odd.judge_reason) == (
        "b",
        "match",
        "no match",
        "it says Paris",
        "nothing",
    )


def test_criteria_are_labelled_by_their_ids(tmp_path: Path) -> None:
    labels = labelled(tmp_path, label("a", criteria={"c1": True, "c2": False}, result="needs_revision"), judge=CRITERIA)
    rows = [{"id": "c1", "name": "n", "passed": True, "reason": "x"}, {"id": "c2", "name": "b", "passed": True, "reason": "short enough"}]

    found = measure_agreement(CRITERIA, labels, [result("a", result="satisfied", score=1.0, criteria=rows, explanation="e")])

    assert [(key.key, key.accuracy) for key in found.keys] == [("result", 0.0), ("criteria.c1", 1.0), ("criteria.c2", 0.0)]
    assert [disagreement.judge_reason for disagreement in found.disagreements] == ["e", "short enough"]


def test_several_people_are_several_raters(tmp_path: Path) -> None:
    labels = labelled(tmp_path, *(label(run, by, label="match") for run in "ab" for by in ("ann", "bob")))

    found = measure_agreement(JUDGE, labels, [result("a", label="match"), result("b", label="no match")])

    assert found.keys[0].pairs == 4
    assert found.keys[0].alpha is not None


def test_labels_may_have_a_schema_of_their_own(tmp_path: Path) -> None:
    own = {"type": "object", "properties": {"sure": {"type": "boolean"}}}

    assert labelled(tmp_path, {"label_schema": own}, label("a", sure=True)).labels[0].label_value == {"sure": True}
    with pytest.raises(InvalidRequest, match=r"line 1: label_schema.properties.x.type is missing"):
        labelled(tmp_path, {"label_schema": {"type": "object", "properties": {"x": {}}}})


def test_docents_labels_are_read_as_they_are(tmp_path: Path) -> None:
    label = {
        "id": "1",
        "label_set_id": "2",
        "agent_run_id": "a",
        "label_value": {"label": "match"},
        "created_by": None,
        "creator_email": None,
    }

    assert labelled(tmp_path, label | {"created_at": None}).labels[0].created_by == "label"


BAD: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "labels.jsonl, line 2: no JSON"),
    "no run": ({"label_value": {}}, "labels.jsonl, line 2: agent_run_id: Field required"),
    "an unknown field": ({"agent_run_id": "b", "label_value": {}, "value": 1}, "line 2: unknown key 'value'."),
    "an unknown key": (label("b", lable="match"), "line 2: label_value has 'lable'. Did you mean 'label'? Known: label, sure, score, why."),
    "an unknown value": (label("b", label="yes"), "line 2: label_value label: 'yes' is not one of ['match', 'no match']"),
    "another type": (label("b", sure="yes"), "line 2: label_value sure: 'yes' is not of type 'boolean'"),
    "out of bounds": (label("b", score=9), "line 2: label_value score: 9 is greater than the maximum of 5"),
    "a second one": (label("a", label="match"), "line 2: a second label for 'a' by 'ann'; keep one, or say who says so in created_by"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_label_that_is_none_is_told_with_its_line(tmp_path: Path, name: str) -> None:
    row, message = BAD[name]

    with pytest.raises(InvalidRequest) as caught:
        labelled(tmp_path, label("a", label="match"), row)

    assert message in str(caught.value)


def test_labels_and_judgements_without_a_run_in_common_are_refused(tmp_path: Path) -> None:
    labels = labelled(tmp_path, label("a", label="match"))

    with pytest.raises(InvalidRequest, match="none of the labelled runs has a judgement; judge them first"):
        measure_agreement(JUDGE, labels, [result("b", label="match"), result("a")])


def outputs(*labels: str, scores: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """Return answers, each with a label and perhaps a score."""
    numbers = scores or (3,) * len(labels)
    return [{"label": name, "score": number, "why": f"rollout {at}"} for at, (name, number) in enumerate(zip(labels, numbers, strict=True))]


def test_a_majority_decides_by_key_and_the_texts_are_those_of_an_answer_that_agrees() -> None:
    found = build_consensus(SCHEMA, outputs("match", "no match", "no match"))

    assert found.output == {"label": "no match", "score": 3, "why": "rollout 1"}
    assert (found.from_rollout, found.ties, found.composed) == (1, (), False)
    assert [(share.value, share.count) for share in found.keys["label"].distribution] == [("no match", 2), ("match", 1)]


def test_a_tie_is_flagged_and_falls_to_the_earlier_rollout() -> None:
    assert build_consensus(SCHEMA, outputs("match", "no match")).output["label"] == "match"
    found = build_consensus(SCHEMA, outputs("no match", "match", "match", "no match"))

    assert (found.output["label"], found.ties) == ("no match", ("label",))


def test_numbers_come_to_their_median_and_whole_ones_stay_whole() -> None:
    found = build_consensus(SCHEMA, outputs("match", "match", "match", "match", scores=(1, 2, 5, 4)))

    assert found.output["score"] == 2
    assert (found.keys["score"].low, found.keys["score"].high, found.keys["score"].n) == (1, 5, 4)


def test_a_median_that_breaks_a_bound_gives_way_to_the_lower_value() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "number", "multipleOf": 1}}}

    assert build_consensus(schema, [{"x": 1}, {"x": 2}]).output == {"x": 1}


def test_an_output_that_no_single_answer_gave_says_so() -> None:
    schema = {"type": "object", "properties": {name: {"type": "boolean"} for name in "abc"}}
    given: list[dict[str, Any]] = [
        {"a": True, "b": True, "c": False},
        {"a": True, "b": False, "c": True},
        {"a": False, "b": True, "c": True},
    ]

    found = build_consensus(schema, given)

    assert found.output == {"a": True, "b": True, "c": True}
    assert found.composed


def test_true_and_one_are_different_votes() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer", "enum": [0, 1]}}}

    assert build_consensus(schema, [{"x": 1}, {"x": 0}, {"x": 0}]).output == {"x": 0}


def test_an_optional_key_is_counted_where_it_was_given() -> None:
    found = build_consensus(SCHEMA, [{"label": "match"}, {"label": "match", "sure": True}, {"label": "match"}])

    assert (found.keys["sure"].n, found.keys["sure"].value) == (1, True)
    assert found.output == {"label": "match", "sure": True}
