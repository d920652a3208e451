"""A verdict is read strictly: whatever a grader writes is a complete verdict or malformed, never something in between."""

import json
import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from gradeloop.contract.evaluation import Malformed, Verdict, verdict_schema
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.scoring import CallGroup, GraderAnswer, PassFindings, aggregate, call_groups, result_of
from gradeloop.grading.verdicts import parse_remote_verdict, parse_verdict
from tests.rig.threads import row, verdict

RUBRIC = Rubric.model_validate("- three lines\n- spring")
ASKED = ("c1", "c2")
PASS, FAIL = row("c1"), row("c2", "line 2 is about winter")


def group_of(rubric: Rubric) -> CallGroup:
    """Return the rubric's only call group."""
    return call_groups(rubric)[0]


def reading(answer: object, rubric: Rubric = RUBRIC, asked: tuple[str, ...] = ASKED) -> Verdict | Malformed:
    """Read an answer, written as JSON unless it is text."""
    return parse_verdict(answer if isinstance(answer, str) else json.dumps(answer), group_of(rubric), asked)


def problems(answer: object, rubric: Rubric = RUBRIC, asked: tuple[str, ...] = ASKED) -> str:
    """Return what is wrong with an answer."""
    malformed = reading(answer, rubric, asked)
    assert isinstance(malformed, Malformed), malformed
    return "; ".join(malformed.problems)


def test_a_complete_verdict_is_read_as_it_stands() -> None:
    read_back = reading(verdict(PASS, FAIL))

    assert isinstance(read_back, Verdict)
    assert json.loads(read_back.model_dump_json()) == verdict(PASS, FAIL)


def test_white_space_around_the_object_is_nothing() -> None:
    assert isinstance(reading(f"\n\t {json.dumps(verdict(PASS, FAIL))} \n"), Verdict)


def test_the_order_of_the_rows_is_free() -> None:
    assert isinstance(reading(verdict(FAIL, PASS)), Verdict)


def test_a_gap_on_a_pass_is_dropped() -> None:
    read_back = reading(verdict(PASS | {"gap": "could be better"}, row("c2")))

    assert isinstance(read_back, Verdict)
    assert read_back.criteria[0].gap is None


def test_what_is_not_one_json_object_is_malformed(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("", "the answer is not one JSON object: it starts with ''"),
        ("{}", "criteria: Field required; explanation: Field required; result: Field required"),
        ("[]", "it starts with '[]'"),
        ("null", "it starts with 'null'"),
        ("satisfied", "it starts with 'satisfied'"),
        ("{", "the answer is not one JSON object: "),
        ('{"criteria": ' + "[" * 100_000, "the answer is not one JSON object: maximum recursion depth"),
        ('{"result": ' + "9" * 5000 + "}", "the answer is not one JSON object: "),
        ('{"score": NaN}', "NaN is not JSON"),
        ('{"score": -Infinity}', "-Infinity is not JSON"),
        ('{"result": "satisfied", "result": "satisfied"}', "the key 'result' appears twice"),
        ('{"criteria": [{"id": "c1", "id": "c2"}]}', "the key 'id' appears twice"),
        ("{'result': 'satisfied'}", "the answer is not one JSON object: "),
        ('{"result": "satisfied",}', "the answer is not one JSON object: "),
        ('{"result": "\\ud800", "criteria": [], "explanation": ""}', "a text in it holds half of a surrogate pair"),
    ]
    for text, why in rows:
        with subtests.test(text=text):
            assert why in problems(text)


GOOD = json.dumps(verdict(row("c1"), row("c2")))


@pytest.mark.parametrize(
    "around", ["Here it is: {}", "```json\n{}\n```", "{}\nI hope this helps.", "{}{}", "<think>x</think>{}", "\ufeff{}"]
)
def test_prose_or_a_fence_around_a_good_verdict_is_malformed(around: str) -> None:
    assert isinstance(reading(GOOD), Verdict)
    assert "the answer is not one JSON object" in problems(around.replace("{}", GOOD))


def test_nothing_is_coerced_and_nothing_is_added_in_a_row(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"passed": "true"}, "criteria[0].passed"),
        ({"passed": 1}, "criteria[0].passed"),
        ({"passed": None}, "criteria[0].passed"),
        ({"id": 1}, "criteria[0].id"),
        ({"gap": False}, "criteria[0].gap"),
        ({"reason": None}, "criteria[0].reason"),
        ({"reason": ["x"]}, "criteria[0].reason"),
        ({"score": 1}, "unknown key 'score'"),
        ({"__class__": "x"}, "unknown key '__class__'"),
    ]
    for change, where in rows:
        with subtests.test(change=change):
            assert where in problems(verdict(PASS | change, row("c2")))


@pytest.mark.parametrize("key", ["id", "reason", "passed", "gap"])
def test_every_key_of_a_row_is_required(key: str) -> None:
    rows = [{name: value for name, value in row("c1").items() if name != key}, row("c2")]

    assert f"criteria[0].{key}: Field required" in problems({"criteria": rows, "explanation": "", "result": "satisfied"})


@pytest.mark.parametrize("result", ["Satisfied", "pass", True, None, "grader_error", "max_iterations_reached"])
def test_a_grader_may_say_three_results_and_no_other(result: object) -> None:
    assert "result: " in problems(verdict(PASS, row("c2"), result=result))


@pytest.mark.parametrize("gap", [None, "", " \n"])
def test_a_fail_without_a_gap_is_malformed(gap: str | None) -> None:
    assert "'c2' fails without a gap; say what is missing" in problems(verdict(PASS, FAIL | {"gap": gap}))


@pytest.mark.parametrize("stranger", [row("c9"), row("c9", "a gap"), row("c9") | {"passed": False, "score": 7}])
def test_a_row_that_nobody_asked_for_is_dropped_whatever_it_says(stranger: dict[str, Any]) -> None:
    read_back = reading(verdict(PASS, stranger, FAIL, result="needs_revision"))

    assert isinstance(read_back, Verdict)
    assert [row.id for row in read_back.criteria] == ["c1", "c2"]
    assert (read_back.result, read_back.dropped) == ("needs_revision", ("'c9'",))


def test_rows_that_nobody_asked_for_stand_for_none_that_is_missing() -> None:
    assert problems(verdict(PASS, row("c9"), row("C2"))) == "no row for c2; nobody asked for 'c9', 'C2'; the ids are c1, c2"


@pytest.mark.parametrize("note", [["c9"], [], None])
def test_a_grader_cannot_write_the_note_on_dropped_rows(note: object) -> None:
    assert "dropped" in problems(verdict(PASS, FAIL) | {"dropped": note})


def test_a_row_that_is_repeated_letter_by_letter_counts_once() -> None:
    read_back = reading(verdict(PASS, PASS, FAIL))

    assert isinstance(read_back, Verdict)
    assert [row.id for row in read_back.criteria] == ["c1", "c2"]


@pytest.mark.parametrize("more", [[PASS] * 500, [row(f"s{at}") for at in range(500)]], ids=["repeated", "strangers"])
def test_an_answer_of_500_rows_is_malformed(more: list[dict[str, Any]]) -> None:
    assert problems(verdict(*more, FAIL)) == "there are 501 rows, 14 at most; give one row for each of c1, c2"
    remote = {"criteria": [{"id": "c1", "passed": True}] * 500}
    (told,) = cast("Malformed", parse_remote_verdict(remote, group_of(Rubric.model_validate({"criteria": ["a"]})))).problems
    assert told == "there are 500 rows, 12 at most; give one row for each of c1"


@pytest.mark.parametrize("other", [row("c1", "it has two"), row("c1", reason="There are three.")])
def test_two_different_rows_for_one_criterion_are_malformed(other: dict[str, Any]) -> None:
    assert "c1 is answered twice, and not alike" in problems(verdict(PASS, other, FAIL))


def later(*answers: object, rubric: Rubric = RUBRIC) -> Verdict | Malformed:
    """Read the last of several answers of one conversation."""
    *earlier, last = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
    return parse_verdict(last, group_of(rubric), earlier=earlier)


def gaps(read_back: Verdict | Malformed) -> dict[str, str | None]:
    """Return the gaps of a verdict by criterion."""
    assert isinstance(read_back, Verdict), read_back
    return {row.id: row.gap for row in read_back.criteria}


def test_rows_come_together_from_several_answers() -> None:
    read_back = later(verdict(PASS, explanation="Three lines."), verdict(FAIL, explanation="It is winter."))

    assert gaps(read_back) == {"c1": None, "c2": "line 2 is about winter"}
    assert isinstance(read_back, Verdict)
    assert (read_back.explanation, read_back.result) == ("Three lines. It is winter.", "needs_revision")


def test_the_newest_row_of_a_criterion_counts() -> None:
    read_back = later(verdict(row("c1", "it has two"), explanation="Too short."), verdict(PASS, row("c2"), explanation="I miscounted."))

    assert gaps(read_back) == {"c1": None, "c2": None}
    assert isinstance(read_back, Verdict)
    assert (read_back.explanation, read_back.result) == ("I miscounted.", "satisfied")


@pytest.mark.parametrize("between", ["prose", verdict(row("c1", "")), verdict(row("c1", "one"), row("c1", "two"))])
def test_a_malformed_answer_gives_no_rows_and_takes_none_away(between: object) -> None:
    assert gaps(later(verdict(PASS), between, verdict(FAIL))) == {"c1": None, "c2": "line 2 is about winter"}


def test_what_is_still_missing_after_several_answers_is_said_with_all_rows() -> None:
    three = Rubric.model_validate("- a\n- b\n- c")

    malformed = later(verdict(row("c1"), row("c8")), verdict(row("c3", "no"), row("c9")), rubric=three)

    assert isinstance(malformed, Malformed)
    assert malformed.missing == ("c2",)
    assert [row.id for row in malformed.rows] == ["c1", "c3"]
    assert malformed.dropped == ("'c8'", "'c9'")


@pytest.mark.parametrize("result", ["satisfied", "needs_revision"])
def test_the_result_of_an_answer_about_some_rows_may_sum_up_these_or_all(result: str) -> None:
    read_back = later(verdict(row("c1", "two")), verdict(row("c2"), result=result))

    assert isinstance(read_back, Verdict)
    assert read_back.result == "needs_revision"


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([verdict(PASS), verdict(row("c2"), result="needs_revision")], "the result is 'needs_revision', but the rows say 'satisfied'"),
        ([verdict(PASS), verdict(FAIL, result="satisfied")], "the result is 'satisfied', but the rows say 'needs_revision'"),
        ([verdict(row("c1", "two"), result="satisfied")], "the result is 'satisfied', but the rows say 'needs_revision'; no row for c2"),
    ],
)
def test_a_result_that_agrees_with_neither_is_malformed(answers: list[object], why: str) -> None:
    malformed = later(*answers)

    assert isinstance(malformed, Malformed)
    assert ("; ".join(malformed.problems), malformed.missing) == (why, ())


def test_failed_counts_whatever_came_before_it() -> None:
    read_back = later(verdict(PASS, explanation="Three lines."), verdict(result="failed", explanation="It is about nothing."))

    assert isinstance(read_back, Verdict)
    assert (read_back.result, read_back.explanation) == ("failed", "It is about nothing.")


@pytest.mark.parametrize(
    ("rows", "result", "due"), [([PASS, FAIL], "satisfied", "needs_revision"), ([PASS, row("c2")], "needs_revision", "satisfied")]
)
def test_a_result_that_contradicts_its_rows_is_malformed(rows: list[dict[str, Any]], result: str, due: str) -> None:
    assert problems(verdict(*rows, result=result)) == f"the result is {result!r}, but the rows say {due!r}"


@pytest.mark.parametrize("result", ["satisfied", "needs_revision"])
def test_the_result_is_ignored_where_the_rubric_is_not_plain(result: str) -> None:
    optional = Rubric.model_validate({"criteria": ["three lines", {"description": "spring", "required": False}]})

    assert isinstance(reading(verdict(PASS, FAIL, result=result), optional), Verdict)


def test_missing_rows_alone_are_told_apart_and_the_others_kept() -> None:
    malformed = reading(verdict(PASS))

    assert isinstance(malformed, Malformed)
    assert (malformed.problems, malformed.missing) == (("no row for c2",), ("c2",))
    assert [row.id for row in malformed.rows] == ["c1"]


def test_missing_rows_beside_another_fault_are_no_case_of_missing_rows_alone() -> None:
    malformed = reading(verdict(PASS | {"passed": False}))

    assert isinstance(malformed, Malformed)
    assert (malformed.missing, malformed.rows) == ((), ())
    assert malformed.problems == ("'c1' fails without a gap; say what is missing", "no row for c2")


def test_failed_may_leave_rows_out_but_must_say_why() -> None:
    assert isinstance(reading(verdict(result="failed")), Verdict)
    assert "the explanation is blank" in problems(verdict(result="failed", explanation=" "))


def test_what_is_told_of_a_hostile_answer_stays_short() -> None:
    strangers = [row("x" * 5000) for _ in range(2000)]
    broken = [{"id": "y" * 5000} for _ in range(2000)]

    assert len(problems(verdict(*strangers))) < 20_000
    assert len(problems({"criteria": broken, "explanation": "", "result": "satisfied"})) < 20_000
    assert len(problems('{"' + "k" * 100_000 + '": 1, "' + "k" * 100_000 + '": 1}')) < 1_000


def test_the_schema_takes_what_is_read_and_demands_every_property() -> None:
    schema = verdict_schema()
    check = Draft202012Validator(schema)

    assert check.is_valid(verdict(PASS, FAIL))
    assert not check.is_valid(verdict(PASS | {"score": 1}))
    assert list(schema["properties"]["criteria"]["items"]["properties"]) == ["id", "reason", "passed", "gap"]
    assert not re.search(r"minLength|maxItems|pattern|default", json.dumps(schema))


GAPS = st.sampled_from([None, "", "a gap"])


def rows_for(*ids: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return rows about these ids, well-formed ones mostly."""
    passed = st.sampled_from([True, True, True, False, False, "true", 1, None])
    return st.fixed_dictionaries({"id": st.sampled_from(ids), "reason": st.just("so"), "passed": passed, "gap": GAPS})


ROWS = st.one_of(st.tuples(rows_for("c1"), rows_for("c2")), st.lists(rows_for("c1", "c2", "c3"), max_size=4)).map(list)
ANSWERS = st.fixed_dictionaries(
    {"criteria": ROWS, "explanation": st.sampled_from(["", "why"]), "result": st.sampled_from(["satisfied", "needs_revision", "failed"])}
)
BEFORE, AFTER = st.sampled_from(["", "", " ", "ok: ", '{"criteria": [],']), st.sampled_from(["", "", "}", "done"])


@given(ANSWERS, BEFORE, AFTER, st.booleans())
def test_nothing_is_satisfied_unless_every_required_criterion_passed(
    answer: dict[str, Any], before: str, after: str, required: bool
) -> None:
    rubric = Rubric.model_validate({"criteria": ["three lines", {"description": "spring", "required": required}]})

    verdict = parse_verdict(before + json.dumps(answer) + after, group_of(rubric), ASKED)

    if isinstance(verdict, Malformed):
        return
    judgement = aggregate(rubric, PassFindings(answers={(0, 0): GraderAnswer(judge="j", verdict=verdict)}))
    passed = {criterion["id"] for criterion in answer["criteria"] if criterion["passed"] is True}
    assert (result_of(rubric, judgement) == "satisfied") == (rubric.gating <= passed and answer["result"] != "failed")
    assert before.strip() == after.strip() == ""


THREE = Rubric.model_validate("- a\n- b\n- c")
SAID = st.lists(st.builds(row, st.sampled_from(["c1", "c2", "c3", "c4"]), st.sampled_from([None, "a gap", "another", ""])), max_size=4)


@given(st.lists(SAID.map(lambda rows: verdict(*rows)), min_size=1, max_size=5))
def test_the_newest_well_formed_row_counts_whatever_answers_came(answers: list[dict[str, Any]]) -> None:
    newest: dict[str, dict[str, Any]] = {}
    for answer in answers:
        asked = [row for row in answer["criteria"] if row["id"] != "c4"]
        alike = all(one == other for one in asked for other in asked if one["id"] == other["id"])
        well_formed = alike and all(row["gap"] != "" for row in asked)
        agrees = answer["result"] == "needs_revision" or all(row["passed"] for row in asked)
        rows = newest | {row["id"]: row for row in asked}
        if agrees and len(rows) == len(THREE.criteria) and answer["result"] == "needs_revision":
            agrees = not all(row["passed"] for row in rows.values())
        newest = rows if well_formed and agrees else newest

    read_back = later(*answers, rubric=THREE)

    if isinstance(read_back, Verdict):
        assert {row.id: row.gap for row in read_back.criteria} == {name: row["gap"] for name, row in newest.items()}
    elif read_back.missing:
        assert {row.id for row in read_back.rows} == set(newest)
        assert {*read_back.missing, *newest} == {"c1", "c2", "c3"}


@given(st.text(max_size=60))
def test_any_text_reads_without_an_exception(text: str) -> None:
    assert isinstance(parse_verdict(text, group_of(RUBRIC), ASKED), Malformed)
