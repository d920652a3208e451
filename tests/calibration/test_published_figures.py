"""The figures that authors of public sets publish of judges come out of those judges' own decisions."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from gradeloop.calibration.check_report import Answered, CheckReport, ask_about, report_check
from gradeloop.calibration.cli.measure import report_lines
from gradeloop.calibration.labelled_sets import LabelledSet, read_labelled_set
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import JudgeResult, SchemaJudge, parse_judge

JUDGE = parse_judge({"rubric_text": "which is better", "judge_model": "openai:m"})
WINNERS = {"A>B": "A", "B>A": "B", "A=B": "tie"}

Decisions = Mapping[tuple[str, str, str], int]
"""How often a pair has this label and these decisions, the second with both answers swapped; `-` where none was found."""

# Counted in the outputs that JudgeBench (ScalerLab, ICLR 2025) publishes beside its figures.
O1_MINI: Decisions = {
    ("A>B", "A=B", "A=B"): 2,
    ("A>B", "A=B", "A>B"): 4,
    ("A>B", "A=B", "B>A"): 7,
    ("A>B", "A>B", "A=B"): 4,
    ("A>B", "A>B", "A>B"): 29,
    ("A>B", "A>B", "B>A"): 111,
    ("A>B", "B>A", "A>B"): 22,
    ("A>B", "B>A", "B>A"): 14,
    ("B>A", "A=B", "A=B"): 3,
    ("B>A", "A=B", "A>B"): 8,
    ("B>A", "A=B", "B>A"): 3,
    ("B>A", "A>B", "A>B"): 29,
    ("B>A", "A>B", "B>A"): 10,
    ("B>A", "B>A", "A=B"): 8,
    ("B>A", "B>A", "A>B"): 92,
    ("B>A", "B>A", "B>A"): 4,
}
CLAUDE_3_HAIKU: Decisions = {
    ("A>B", "A=B", "A=B"): 26,
    ("A>B", "A=B", "A>B"): 15,
    ("A>B", "A=B", "B>A"): 7,
    ("A>B", "A=B", "-"): 2,
    ("A>B", "A>B", "A=B"): 14,
    ("A>B", "A>B", "A>B"): 19,
    ("A>B", "A>B", "B>A"): 22,
    ("A>B", "B>A", "A=B"): 6,
    ("A>B", "B>A", "A>B"): 23,
    ("A>B", "B>A", "B>A"): 5,
    ("A>B", "-", "A=B"): 1,
    ("A>B", "-", "A>B"): 2,
    ("A>B", "-", "B>A"): 1,
    ("B>A", "A=B", "A=B"): 28,
    ("B>A", "A=B", "A>B"): 17,
    ("B>A", "A=B", "B>A"): 6,
    ("B>A", "A>B", "A=B"): 6,
    ("B>A", "A>B", "A>B"): 18,
    ("B>A", "A>B", "B>A"): 20,
    ("B>A", "B>A", "A=B"): 7,
    ("B>A", "B>A", "A>B"): 16,
    ("B>A", "B>A", "B>A"): 2,
    ("B>A", "-", "A=B"): 3,
    ("B>A", "-", "A>B"): 3,
    ("B>A", "-", "B>A"): 1,
}


def checked(folder: Path, decisions: Decisions) -> CheckReport:
    """Return the report of a judge that decided so on a set of JudgeBench's shape."""
    rows, said = [], dict[str, tuple[str, str]]()
    for at, (label, *given) in enumerate(Counter(decisions).elements()):
        rows.append({"pair_id": f"p{at}", "question": f"q{at}", "response_A": "one", "response_B": "other", "label": label})
        said[f"p{at}"] = (given[0], given[1])
    file = folder / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    labelled, answers = read_labelled_set(file), []
    for question in ask_about(JUDGE, labelled):
        winner = WINNERS.get(said[question.item.id][question.order == "BA"])
        fields = {"id": question.run.id, "agent_run_id": question.run.id, "rubric_id": "r", "rubric_version": 1, "model": "openai:m"}
        output = (
            {"output": {"winner": winner, "explanation": ""}, "result_type": "DIRECT_RESULT"}
            if winner
            else {"output": {}, "result_type": "FAILURE"}
        )
        answers.append(Answered(question, JudgeResult.model_validate(fields | output)))
    return report_check(JUDGE, labelled, answers, replicates=50)


@pytest.mark.parametrize(
    ("decisions", "pairs", "published"),
    [pytest.param(O1_MINI, 350, 65.71, id="o1-mini"), pytest.param(CLAUDE_3_HAIKU, 270, 32.22, id="claude-3-haiku")],
)
def test_judge_bench_counts_a_pair_as_right_where_right_decisions_outnumber_wrong_ones(
    decisions: Decisions, pairs: int, published: float, tmp_path: Path
) -> None:
    report = checked(tmp_path, decisions)
    figure = report.figures[report.official]

    assert (report.items, report.labelled_set, report.official) == (pairs, "JudgeBench", "net_accuracy")
    assert figure.value is not None
    assert round(100 * figure.value, 2) == published
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low < figure.value < figure.high


def test_health_bench_has_the_mean_of_the_f1_of_both_values(tmp_path: Path) -> None:
    pairs = Counter({(True, True): 144, (True, False): 16, (False, False): 36, (False, True): 4})
    rows, said = [], []
    for at, (label, verdict) in enumerate(pairs.elements()):
        rows.append({"prompt": f"q{at}", "completion": f"c{at}", "rubric": "polite", "binary_labels": [label], "completion_id": f"c{at}"})
        said.append(verdict)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    labelled = read_labelled_set(tmp_path / "rows.jsonl")
    answers = [
        Answered(
            question,
            JudgeResult(
                id=f"j{at}",
                agent_run_id=question.run.id,
                rubric_id="r",
                rubric_version=1,
                output={"passed": verdict, "explanation": "x"},
                result_type="DIRECT_RESULT",
            ),
        )
        for at, (question, verdict) in enumerate(zip(ask_about(JUDGE, labelled), said, strict=True))
    ]

    report = report_check(JUDGE, labelled, answers, replicates=50)

    passed, failed = 2 * 144 / (2 * 144 + 16 + 4), 2 * 36 / (2 * 36 + 16 + 4)
    assert report.official == "macro_f1"
    assert report.figures["f1"].value == pytest.approx(passed)
    assert report.figures["macro_f1"].value == pytest.approx((passed + failed) / 2)


def test_llm_bar_has_the_mean_accuracy_of_both_orders(tmp_path: Path) -> None:
    rows = [{"input": f"q{at}", "output_1": "one", "output_2": "other", "label": 1} for at in range(4)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    labelled = read_labelled_set(tmp_path / "rows.json")
    winners = {"AB": ["A", "A", "B", "A"], "BA": ["B", "A", "A", "B"]}  # right three times of four, and two times
    answers = [
        Answered(
            question,
            JudgeResult(
                id=question.run.id,
                agent_run_id=question.run.id,
                rubric_id="r",
                rubric_version=1,
                output={"winner": winners[question.order][int(question.item.id) - 1], "explanation": ""},
                result_type="DIRECT_RESULT",
            ),
        )
        for question in ask_about(JUDGE, labelled)
    ]

    report = report_check(JUDGE, labelled, answers, replicates=50)

    assert report.official == "order_accuracy"
    assert report.figures["order_accuracy"].value == 5 / 8
    assert report.figures["consistency"].value == 3 / 4


def rows_of(folder: Path, labels: list[float]) -> LabelledSet:
    """Return a labelled set of one's own, with these scores."""
    rows = [{"prompt": f"q{at}", "output": f"a{at}", "label": label} for at, label in enumerate(labels)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return read_labelled_set(folder / "rows.jsonl")


def scored(folder: Path, labels: list[float], schema: dict[str, object], scores: list[float]) -> CheckReport:
    """Return the report of a judge with scores of its own on labelled rows."""
    judge = parse_judge({"rubric_text": "how good", "judge_model": "openai:m", "output_schema": schema})
    labelled = rows_of(folder, labels)
    answers = []
    for question, score in zip(ask_about(judge, labelled), scores, strict=True):
        fields = {"id": question.run.id, "agent_run_id": question.run.id, "rubric_id": "r", "rubric_version": 1}
        answers.append(
            Answered(question, JudgeResult.model_validate(fields | {"output": {"score": score}, "result_type": "DIRECT_RESULT"}))
        )
    return report_check(judge, labelled, answers, replicates=50)


def own(**bounds: object) -> dict[str, object]:
    return {"type": "object", "properties": {"score": {"type": "number"} | bounds}, "required": ["score"]}


def test_a_judge_from_1_to_5_is_held_against_labels_from_0_to_100_on_their_scale(tmp_path: Path) -> None:
    labels: list[float] = [100, 75, 50, 25, 0, 100, 0, 50]

    report = scored(tmp_path, labels, own(minimum=1, maximum=5), [label / 25 + 1 for label in labels])

    assert report.official == "spearman"
    assert [report.figures[name].value for name in ("weighted_kappa", "spearman", "mean_error")] == pytest.approx([1.0, 1.0, 0.0])


def test_a_judge_whose_scores_have_no_bounds_cannot_be_put_on_the_labels_scale(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="score of the judge has no minimum and maximum, and the labels are on a scale of 0 to 100"):
        scored(tmp_path, [95.0, 10.0], own(), [5, 1])


def test_labels_on_no_usual_scale_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="the labels are -3 to 250, which is on no usual scale"):
        scored(tmp_path, [-3.0, 250.0], own(minimum=1, maximum=5), [1, 5])


def test_a_limit_does_not_change_the_scale(tmp_path: Path) -> None:
    labelled = rows_of(tmp_path, [2.0, 95.0])
    (question,) = ask_about(JUDGE, labelled.model_copy(update={"items": labelled.items[:1]}))

    assert isinstance(question.judge, SchemaJudge)
    assert question.judge.output_schema["properties"]["score"]["maximum"] == 100


def test_the_skills_of_flask_are_on_its_own_scale(tmp_path: Path) -> None:
    rows = [{"instruction": "q", "response": "a", "score": {"readability": 1.0}}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))

    assert read_labelled_set(tmp_path / "rows.jsonl").scale == (1, 5)


@pytest.mark.parametrize(
    ("labels", "low", "high"), [([0.2, 0.9], 0, 1), ([1, 5], 1, 5), ([0, 5], 0, 5), ([7, 3], 1, 7), ([95, 10], 0, 100)]
)
def test_a_judge_without_a_schema_is_asked_on_the_labels_scale(labels: list[float], low: int, high: int, tmp_path: Path) -> None:
    (question, _) = ask_about(JUDGE, rows_of(tmp_path, labels))

    assert isinstance(question.judge, SchemaJudge)
    schema = question.judge.output_schema["properties"]["score"]
    assert (schema["minimum"], schema["maximum"], schema["type"]) == (low, high, "number" if high == 1 else "integer")
    assert f"from {low} (worst) to {high} (best)" in question.judge.rubric_text


def test_items_of_one_prompt_are_a_cluster_and_few_of_them_are_said(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"q{prompt}", "completion": f"c{prompt}.{at}", "rubric": "polite", "binary_labels": [True], "prompt_id": f"p{prompt}"}
        | {"completion_id": f"c{prompt}.{at}"}
        for prompt in range(4)
        for at in range(5)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    labelled = read_labelled_set(tmp_path / "rows.jsonl")
    answers = []
    for at, question in enumerate(ask_about(JUDGE, labelled)):
        fields = {"id": f"j{at}", "agent_run_id": question.run.id, "rubric_id": "r", "rubric_version": 1}
        output = {"passed": not question.item.id.startswith("c3"), "explanation": "x"}
        answers.append(Answered(question, JudgeResult.model_validate(fields | {"output": output, "result_type": "DIRECT_RESULT"})))

    items = tuple(item.model_copy(update={"cluster": ""}) for item in labelled.items)
    alone = report_check(JUDGE, labelled.model_copy(update={"items": items}), answers, replicates=50)
    found = report_check(JUDGE, labelled, answers, replicates=50)

    assert (found.clusters, alone.clusters) == (4, 0)
    wide, narrow = found.figures["accuracy"], alone.figures["accuracy"]
    assert (wide.value, narrow.value) == (0.75, 0.75)
    assert (wide.low or 0) < (narrow.low or 0) - 0.1
    assert "intervals are over 4 clusters; so few say little" in "\n".join(map(str, report_lines(found)))
