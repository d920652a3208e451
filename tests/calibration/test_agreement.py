"""Labels and agreement: only what was said of these runs counts, and silence is no agreement."""

import json
from itertools import combinations_with_replacement, permutations
from pathlib import Path
from typing import Any

import pytest

from gradeloop.calibration.agreement import Agreement, measure_agreement
from gradeloop.errors import InvalidRequest
from gradeloop.judges.answers import build_consensus
from gradeloop.judges.contract import JudgeConfig, JudgeResult, parse_judge
from gradeloop.judges.judgements import LabelSet, read_case_labels, read_labels, select_judgements
from gradeloop.judges.schema import problems_of, value_at
from tests.rig.judging import FRANCE


def test_1_and_1_0_are_one_value_and_true_is_another(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"stars": {"type": "number", "enum": [1, 2.0]}}}
    judge = parse_judge(FRANCE | {"output_schema": schema, "pass_if": {"stars": 2}})
    labels = labelled(tmp_path, label("a", stars=1), label("b", stars=2), label("c", stars=1.0), judge=judge)

    found = agreed(labels, result("a", stars=1.0), result("b", stars=2.0), result("c", stars=1), judge=judge)
    voted = build_consensus(schema, [{"stars": 2}, {"stars": 1}, {"stars": 1.0}])

    (key,) = found.keys
    assert [key.figures[name].value for name in ("accuracy", "kappa", "alpha")] == [1.0, 1.0, 1.0]
    assert found.disagreements == ()
    assert key.confusion == {"1": {"1": 2}, "2": {"2": 1}}
    assert (voted.output, voted.ties, voted.keys["stars"].distribution[0].count) == ({"stars": 1}, (), 2)
    with pytest.raises(InvalidRequest, match=r"enum has '1(\.0)?' twice"):
        parse_judge(FRANCE | {"output_schema": {"type": "object", "properties": {"x": {"type": "number", "enum": [1, 1.0]}}}})


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
JUDGE = parse_judge(FRANCE | {"output_schema": SCHEMA, "pass_if": {"label": "match"}})
CRITERIA = parse_judge({"rubric": "- names it\n- is brief"})


def result(run: str, judge: JudgeConfig = JUDGE, **output: Any) -> JudgeResult:
    """Return a judgement of a run."""
    fields = {"id": f"judging-{run}-{sorted(output.items())}", "agent_run_id": run, "rubric_id": "r", "rubric_version": 1}
    return JudgeResult.model_validate(fields | {"output": output, "result_type": "DIRECT_RESULT" if output else "FAILURE"})


def labelled(folder: Path, *rows: object, judge: JudgeConfig = JUDGE) -> LabelSet:
    """Write labels and read them."""
    path = folder / "labels.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return read_labels(path, judge)


def label(run: str, by: str = "ann", reason: str = "", **value: Any) -> dict[str, Any]:
    """Return a label's line."""
    return {"agent_run_id": run, "label_value": value, "created_by": by, "reason": reason}


def agreed(labels: LabelSet, *results: JudgeResult, judge: JudgeConfig = JUDGE, **options: Any) -> Agreement:
    """Measure results, the newest first."""
    return measure_agreement(judge, labels, select_judgements(judge, results), **options)


@pytest.mark.slow
def test_agreement_is_told_key_by_key_with_a_table_and_both_reasons(tmp_path: Path) -> None:
    labels = labelled(
        tmp_path,
        label("a", label="match", sure=True, score=4),
        label("b", label="match", score=2, reason="it says Paris"),
        label("c", label="no match"),
        label("d", label="no match"),
    )
    results = (
        result("a", label="match", sure=True, score=5, why="Paris"),
        result("b", label="no match", score=2, why="nothing"),
        result("c", label="no match"),
        result("d"),
    )

    found = agreed(labels, *results)

    assert (found.labels, found.judged, found.missing) == (4, 3, ("d",))
    first, sure, score = found.keys
    assert (first.key, first.runs, first.answered) == ("label", 4, 3)
    assert first.figures["accuracy"].value == pytest.approx(2 / 3)
    assert first.figures["kappa"].value == pytest.approx(0.4)
    assert first.confusion == {'"match"': {'"match"': 1, '"no match"': 1}, '"no match"': {'"no match"': 1}}
    assert (sure.key, sure.runs, sure.figures["accuracy"].value, sure.figures["kappa"].value) == ("sure", 1, 1.0, None)
    assert (score.key, score.kind, score.figures["mean_error"].value, score.confusion) == ("score", "number", 0.5, {})
    odd = found.disagreements[0]
    assert (odd.agent_run_id, odd.label, odd.judge, odd.label_reason, odd.judge_reason) == (
        "b",
        "match",
        "no match",
        "it says Paris",
        "nothing",
    )


@pytest.mark.slow
def test_criteria_are_labelled_by_their_ids(tmp_path: Path) -> None:
    labels = labelled(tmp_path, label("a", criteria={"c1": True, "c2": False}, result="needs_revision"), judge=CRITERIA)
    rows = [{"id": "c1", "name": "n", "passed": True, "reason": "x"}, {"id": "c2", "name": "b", "passed": True, "reason": "short enough"}]

    found = agreed(labels, result("a", result="satisfied", score=1.0, criteria=rows, explanation="e"), judge=CRITERIA)

    assert [(key.key, key.figures["accuracy"].value) for key in found.keys] == [("result", 0.0), ("criteria.c1", 1.0), ("criteria.c2", 0.0)]
    assert [disagreement.judge_reason for disagreement in found.disagreements] == ["e", "short enough"]


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


def test_a_label_that_is_none_is_told_with_its_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, (row, message) in BAD.items():
        with subtests.test(name=name):
            with pytest.raises(InvalidRequest) as caught:
                labelled(tmp_path, label("a", label="match"), row)

            assert message in str(caught.value)


def test_labels_and_judgements_without_a_run_in_common_are_refused(tmp_path: Path) -> None:
    labels = labelled(tmp_path, label("a", label="match"))

    with pytest.raises(InvalidRequest, match="none of the labelled runs has a judgement; judge them first"):
        agreed(labels, result("b", label="match"))


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


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize(("key", "value"), [("sure", True), ("score", 5)])
def test_one_answer_of_three_does_not_decide_a_key_that_the_others_leave_out(at: int, key: str, value: object) -> None:
    given: list[dict[str, Any]] = [{"label": "match"}, {"label": "match"}, {"label": "match"}]
    given[at][key] = value

    one = build_consensus(SCHEMA, given)
    two = build_consensus(SCHEMA, [*given, given[at]])
    most = build_consensus(SCHEMA, [*given, given[at], given[at]])

    assert (one.output, one.keys[key].n, one.keys[key].value, one.ties) == ({"label": "match"}, 1, None, ())
    assert [share.value for share in one.keys[key].distribution] == ([True] if key == "sure" else [])
    assert (two.output, two.ties) == (given[0], (key,) if key == "sure" else ())
    assert most.output == {"label": "match", key: value}


NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"type": "boolean"},
        "found": {
            "type": "object",
            "properties": {
                "old": {"type": "boolean"},
                "sure": {"type": "string", "enum": ["yes", "no"]},
                "inner": {"type": "object", "properties": {"score": {"type": "integer"}, "why": {"type": "string"}}, "required": ["score"]},
            },
            "required": ["sure"],
        },
    },
    "required": ["kind"],
}


def test_whatever_answers_leave_out_most_of_them_decide_it_and_the_output_keeps_the_schema() -> None:
    inner: tuple[dict[str, Any], ...] = ({}, {"inner": {"score": 1}}, {"inner": {"score": 4, "why": "so"}})
    within: list[dict[str, Any]] = [{"sure": sure} | old | more for sure in ("yes", "no") for old in ({}, {"old": True}) for more in inner]
    answers: list[dict[str, Any]] = [{"kind": True}, *({"kind": True, "found": found} for found in within)]
    paths = [("found", "old"), ("found", "sure"), ("found", "inner", "score")]
    distinct: dict[str, Any] = {}

    for given in combinations_with_replacement(answers, 3):
        for order in set(map(tuple, permutations(range(3)))):
            outputs = [given[at] for at in order]
            found = build_consensus(NESTED, outputs).output
            distinct[json.dumps(found)] = found
            for path in paths:
                having = sum(value_at(output, path) is not None for output in outputs)
                assert (value_at(found, path) is not None) == (having >= 2), (outputs, found, path)
    assert [problem for found in distinct.values() for problem in problems_of(NESTED, found)] == []


def test_labels_on_cases_name_their_output_and_may_be_several_of_one_case(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    rows = [{"agent_run_id": "a", "label_value": {"status": "passed"}, "output": text} for text in ("Paris", "Rome")]
    path.write_text("\n".join(map(json.dumps, rows)))

    assert [label.output for label in read_case_labels(path).labels] == ["Paris", "Rome"]
    with pytest.raises(InvalidRequest, match="a second label for 'a' by 'label'"):
        read_labels(path)
    path.write_text("\n".join(json.dumps(row) for row in ({"label_schema": SCHEMA}, label("a", label="match") | {"output": "Paris"})))
    with pytest.raises(InvalidRequest, match="line 1: labels on the cases of a suite have no label_schema of their own"):
        read_case_labels(path)
