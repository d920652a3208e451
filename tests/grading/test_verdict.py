"""A verdict is read strictly: whatever a grader writes is a complete verdict or malformed, never something in between."""

import json
import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from gradeloop.contract.evaluation import Malformed, Verdict
from gradeloop.contract.messages import Message
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.answer_form import AnswerForm, asked_first, keys_of, most_criteria, verdict_schema
from gradeloop.grading.scoring import CallGroup, GraderAnswer, PassFindings, aggregate, call_groups, result_of
from gradeloop.grading.verdicts import GraderConversation, parse_remote_verdict, parse_verdict
from tests.rig.threads import row, verdict

RUBRIC = Rubric.model_validate("- three lines\n- spring")
ASKED = ("c1", "c2")
PASS, FAIL = row("c1"), row("c2", "line 2 is about winter")
FULL = AnswerForm()


def group_of(rubric: Rubric) -> CallGroup:
    """Return the rubric's only call group."""
    return call_groups(rubric)[0]


def reading(answer: object, rubric: Rubric = RUBRIC, asked: tuple[str, ...] = ASKED, tag: str | None = None) -> Verdict | Malformed:
    """Read an answer, written as JSON unless it is text."""
    return parse_verdict(answer if isinstance(answer, str) else json.dumps(answer), group_of(rubric), asked, tag=tag)


def problems(answer: object, rubric: Rubric = RUBRIC, asked: tuple[str, ...] = ASKED) -> str:
    """Return what is wrong with an answer."""
    malformed = reading(answer, rubric, asked)
    assert isinstance(malformed, Malformed), malformed
    return "; ".join(malformed.problems)


def changed(**fields: object) -> dict[str, Any]:
    """Return a verdict whose first row has other fields."""
    return verdict({"c1": PASS["c1"] | fields}, row("c2"))


def test_a_complete_verdict_is_read_by_the_places_of_its_keys() -> None:
    read_back = reading(verdict(PASS, FAIL))

    assert isinstance(read_back, Verdict)
    assert json.loads(read_back.model_dump_json()) == {
        "criteria": [
            {"id": "c1", "reason": "looked at c1", "passed": True, "gap": None},
            {"id": "c2", "reason": "looked at c2", "passed": False, "gap": "line 2 is about winter"},
        ],
        "explanation": "so it is",
        "result": "needs_revision",
    }


def test_the_order_of_the_rows_is_free() -> None:
    assert isinstance(reading(verdict(FAIL, PASS)), Verdict)


def test_a_gap_on_a_pass_is_dropped_and_a_fail_without_one_takes_its_reason() -> None:
    read_back = reading(verdict({"c1": PASS["c1"] | {"gap": "could be better"}}, {"c2": FAIL["c2"] | {"gap": " "}}))

    assert isinstance(read_back, Verdict)
    assert [row.gap for row in read_back.criteria] == [None, "looked at c2"]


def test_what_stands_beside_the_rows_may_be_left_out() -> None:
    rows = verdict(PASS, FAIL)

    read_back = reading({key: rows[key] for key in ("k1", "k2")})

    assert isinstance(read_back, Verdict)
    assert read_back.explanation == ""
    judgement = aggregate(RUBRIC, PassFindings(answers={(0, 0): GraderAnswer(judge="j", verdict=read_back)}))
    assert judgement.explanation == "1 of 2 criteria pass. Not passed: c2."


def test_what_is_not_one_json_object_is_malformed(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("", "the answer is not one JSON object: it starts with ''"),
        ("{}", "no row for k1, k2"),
        ("[]", "it starts with '[]'"),
        ("null", "it starts with 'null'"),
        ("satisfied", "it starts with 'satisfied'"),
        ("{", "the answer is not one JSON object: "),
        ('{"k1": ' + "[" * 100_000, "the answer is not one JSON object: "),
        ('{"k1": ' + "9" * 5000 + "}", "the answer is not one JSON object: "),
        ('{"score": NaN}', "NaN is not JSON"),
        ('{"score": -Infinity}', "-Infinity is not JSON"),
        ('{"k1": {}, "k1": {}}', "the key 'k1' appears twice"),
        ('{"k1": {"passed": true, "passed": false}}', "the key 'passed' appears twice"),
        ("{'unjudgeable': ''}", "the answer is not one JSON object: "),
        ('{"unjudgeable": "",}', "the answer is not one JSON object: "),
        ('{"unjudgeable": "\\ud800"}', "a text in it holds half of a surrogate pair"),
    ]
    for text, why in rows:
        with subtests.test(text=text):
            assert why in problems(text)


GOOD = json.dumps(verdict(row("c1"), row("c2")))


@pytest.mark.parametrize(
    "frame",
    [
        "{}",
        "\n\t {} \n",
        "```json\n{}\n```",
        "```\n{}\n```",
        '<think>It is {fine}, {"k1": 1}.</think>\n{}',
        "no opening tag, as some servers write it</think>{}",
        "<thinking>x</thinking>\n```json\n{}\n```",
        "<TAG>{}</TAG>",
        "```json\n<TAG>\n{}\n</TAG>\n```",
        'Let me see: {"k1": 1}.\n<TAG>\n```json\n{}\n```\n</TAG>\n',
        "<think>I write <tag>.</think><TAG>{}</TAG>",
    ],
)
def test_a_frame_around_the_object_is_nothing(frame: str) -> None:
    text = frame.replace("TAG", "verdict-1").replace("{}", GOOD)

    assert isinstance(reading(text, tag="verdict-1"), Verdict)


@pytest.mark.parametrize(
    "around",
    [
        "Here it is: {}",
        "{}\nI hope this helps.",
        "{}{}",
        "{}\n{}",
        "```json\n{}\n```\nDone.",
        "```json\n{}\n```\n```json\n{}\n```",
        "<think>{}",
        "{}</think>",
        "\ufeff{}",
        "<TAG>{}{}</TAG>",
        "<TAG>{}</TAG> and that is all",
        "<TAG>{}</TAG><TAG>{}</TAG>",
        "<TAG>{}",
        "{}</TAG>",
        "<TAG>Here: {}</TAG>",
        "</TAG>{}<TAG>",
        "<TAG></TAG>",
    ],
)
def test_prose_around_it_another_object_or_a_cut_one_is_malformed(around: str) -> None:
    malformed = reading(around.replace("TAG", "verdict-1").replace("{}", GOOD), tag="verdict-1")

    assert isinstance(malformed, Malformed)
    assert malformed.problems[0].startswith("the answer is not one JSON object: ")


def test_a_verdict_that_the_draft_shows_and_the_grader_quotes_is_none() -> None:
    assert isinstance(reading(f"The draft says {GOOD} and I do not believe it."), Malformed)
    assert isinstance(reading(f"<think>x</think>The draft says:\n```json\n{GOOD}\n```"), Malformed)


def test_nothing_is_coerced_and_nothing_is_added_in_a_row(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"passed": "true"}, "k1.passed"),
        ({"passed": 1}, "k1.passed"),
        ({"passed": None}, "k1.passed"),
        ({"gap": None}, "k1.gap"),
        ({"reason": None}, "k1.reason"),
        ({"reason": ["x"]}, "k1.reason"),
        ({"score": 1}, "k1: unknown key 'score'"),
        ({"quotes": []}, "k1: unknown key 'quotes'"),
        ({"id": "c1"}, "unknown key 'id'"),
        ({"metadata": {}}, "unknown key 'metadata'"),
    ]
    for change, where in rows:
        with subtests.test(change=change):
            assert where in problems(changed(**change))


@pytest.mark.parametrize("key", ["reason", "passed", "gap"])
def test_every_key_of_a_row_is_required(key: str) -> None:
    answer = verdict(PASS, row("c2"))
    del answer["k1"][key]

    assert f"k1.{key}: Field required" in problems(answer)


@pytest.mark.parametrize("said", [True, [], "passed", None, 1])
def test_a_row_is_an_object(said: object) -> None:
    assert "k1: Input should be " in problems(verdict(row("c2")) | {"k1": said})


@pytest.mark.parametrize("change", [{"result": "satisfied"}, {"criteria": []}, {"K1": {}}, {"k1 ": {}}, {"c1": {}}, {"explanation": ""}])
def test_a_key_that_nobody_knows_is_malformed(change: dict[str, Any]) -> None:
    assert f"unknown key {next(iter(change))!r}" in problems(verdict(PASS, FAIL) | change)


@pytest.mark.parametrize("change", [{"unjudgeable": None}, {"unjudgeable": False}, {"summary": None}, {"summary": 3}])
def test_what_stands_beside_the_rows_is_text(change: dict[str, Any]) -> None:
    assert f"{next(iter(change))}: Input should be a valid string" in problems(verdict(PASS, FAIL) | change)


@pytest.mark.parametrize("gap", ["", " \n"])
def test_a_fail_that_says_nothing_at_all_is_malformed(gap: str) -> None:
    assert "k1 fails without a gap or a reason; say what is missing" in problems(changed(passed=False, gap=gap, reason=" "))


@pytest.mark.parametrize("stranger", [PASS["c1"], FAIL["c2"], {"passed": False, "score": 7}, None])
def test_a_row_that_nobody_asked_for_is_dropped_whatever_it_says(stranger: object) -> None:
    read_back = reading(verdict(PASS, FAIL) | {"k9": stranger})

    assert isinstance(read_back, Verdict)
    assert [row.id for row in read_back.criteria] == ["c1", "c2"]
    assert (read_back.result, read_back.dropped) == ("needs_revision", ("'k9'",))


def test_rows_that_nobody_asked_for_stand_for_none_that_is_missing() -> None:
    assert problems(verdict(PASS) | {"k9": {}, "k02": {}}) == "no row for k2; nobody asked for 'k9', 'k02', but for k1, k2"


def test_unjudgeable_counts_whatever_the_rows_say() -> None:
    for answer in (verdict(PASS, FAIL, unjudgeable="It is about nothing."), {"unjudgeable": "It is about nothing.", "k1": 3}):
        read_back = reading(answer)

        assert isinstance(read_back, Verdict)
        assert (read_back.result, read_back.explanation, read_back.criteria) == ("failed", "It is about nothing.", ())


def later(*answers: object, rubric: Rubric = RUBRIC) -> Verdict | Malformed:
    """Read the last of several answers of one conversation."""
    *earlier, last = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
    return parse_verdict(last, group_of(rubric), earlier=earlier)


def gaps(read_back: Verdict | Malformed) -> dict[str, str | None]:
    """Return the gaps of a verdict by criterion."""
    assert isinstance(read_back, Verdict), read_back
    return {row.id: row.gap for row in read_back.criteria}


def test_rows_come_together_from_several_answers() -> None:
    read_back = later(verdict(PASS, summary="Three lines."), verdict(FAIL, summary="It is winter."))

    assert gaps(read_back) == {"c1": None, "c2": "line 2 is about winter"}
    assert isinstance(read_back, Verdict)
    assert (read_back.explanation, read_back.result) == ("Three lines. It is winter.", "needs_revision")


def test_the_newest_row_of_a_criterion_counts() -> None:
    read_back = later(verdict(row("c1", "it has two"), summary="Too short."), verdict(PASS, row("c2"), summary="I miscounted."))

    assert gaps(read_back) == {"c1": None, "c2": None}
    assert isinstance(read_back, Verdict)
    assert (read_back.explanation, read_back.result) == ("I miscounted.", "satisfied")


@pytest.mark.parametrize("between", ["prose", verdict({"c1": {"passed": False}}), f"{GOOD} {GOOD}"])
def test_a_malformed_answer_gives_no_rows_and_takes_none_away(between: object) -> None:
    assert gaps(later(verdict(PASS), between, verdict(FAIL))) == {"c1": None, "c2": "line 2 is about winter"}


def test_what_is_still_missing_after_several_answers_is_said_with_all_rows() -> None:
    three = Rubric.model_validate("- a\n- b\n- c")

    malformed = later(verdict(row("c1"), row("c8")), verdict(row("c3", "no"), row("c9")), rubric=three)

    assert isinstance(malformed, Malformed)
    assert malformed.missing == ("c2",)
    assert [row.id for row in malformed.rows] == ["c1", "c3"]
    assert malformed.dropped == ("'k8'", "'k9'")


def test_missing_rows_beside_another_fault_are_no_case_of_missing_rows_alone() -> None:
    malformed = reading(verdict({"c1": {"reason": "", "passed": False, "gap": ""}}))

    assert isinstance(malformed, Malformed)
    assert (malformed.missing, malformed.rows) == ((), ())
    assert malformed.problems == ("k1 fails without a gap or a reason; say what is missing", "no row for k2")


def test_what_is_told_of_a_hostile_answer_stays_short() -> None:
    strangers = {f"k{at}": "x" * 50 for at in range(3, 2000)}
    unknown = {"x" * 5000 + str(at): 1 for at in range(2000)}

    assert len(problems(verdict() | strangers)) < 1_000
    assert len(problems(verdict() | unknown)) < 20_000
    assert len(problems(verdict({"c1": {"y" * 5000 + str(at): 1 for at in range(2000)}}))) < 20_000
    assert len(problems('{"' + "k" * 100_000 + '": 1, "' + "k" * 100_000 + '": 1}')) < 1_000


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"criteria": [{"id": "c1", "passed": True}, {"id": "c1", "passed": False}]}, "c1 is answered twice, and not alike"),
        ({"criteria": [{"id": "c1", "passed": False}]}, "c1 fails without a gap or a reason; say what is missing"),
        ({"criteria": [], "result": "failed"}, "the result is 'failed' and the explanation is blank; say why the rubric cannot be judged"),
        ({"criteria": [{"id": "c2", "passed": True}]}, "no row for c1; nobody asked for 'c2', but for c1"),
    ],
)
def test_a_remote_graders_answer_names_criteria_by_their_ids(answer: object, told: str) -> None:
    malformed = parse_remote_verdict(answer, group_of(Rubric.model_validate({"criteria": ["a"]})))

    assert "; ".join(cast("Malformed", malformed).problems) == told


MIXED = Rubric.model_validate(
    {
        "criteria": [
            {"id": "tone", "description": "friendly"},
            {"id": "worth", "description": "useful", "score": {"min": 0, "max": 10}},
            {"id": "source", "description": "has a source", "quotes": True},
        ]
    }
)


@pytest.mark.parametrize("bounds", ["none", "lists", "all"])
@pytest.mark.parametrize("profile", ["full", "short"])
def test_the_schema_takes_what_is_read_and_demands_every_property(bounds: Any, profile: Any) -> None:
    group = group_of(MIXED)
    schema = verdict_schema(group, group.ids, AnswerForm(bounds=bounds, profile=profile))
    check, written = Draft202012Validator(schema), json.dumps(schema)
    rows = {
        "k1": {"reason": "r", "passed": True, "gap": ""},
        "k2": {"reason": "r", "score": 3, "passed": True, "gap": ""},
        "k3": {"quotes": [{"record": 0, "quote": "q"}], "reason": "r", "passed": False, "gap": "g"},
    }
    answer = rows | ({"unjudgeable": "", "summary": "s"} if profile == "full" else {})

    assert check.is_valid(answer)
    assert isinstance(reading(answer, MIXED, group.ids), Verdict)
    for path in (["k1"], ["k1", "gap"], ["k2", "score"], ["k3", "quotes"]):
        cut = json.loads(json.dumps(answer))
        where = cut if len(path) == 1 else cut[path[0]]
        del where[path[-1]]
        assert not check.is_valid(cut)
        assert isinstance(reading(cut, MIXED, group.ids), Malformed)
    assert list(schema["properties"]) == list(answer) == schema["required"]
    assert list(schema["properties"]["k2"]["properties"]) == ["reason", "score", "passed", "gap"]
    assert not re.search(r"anyOf|null|pattern|default|enum", written)
    assert ("maxItems" in written, "maxLength" in written) == (bounds != "none", bounds == "all")
    assert re.search("tone|worth|source", written) is None


def test_equal_shapes_share_one_schema_whatever_their_ids_are() -> None:
    one, other = (Rubric.model_validate({"criteria": [{"id": f"{name}{at}", "description": name} for at in range(3)]}) for name in "xy")

    assert verdict_schema(group_of(one), group_of(one).ids, FULL) == verdict_schema(group_of(other), group_of(other).ids, FULL)


IDS = st.lists(st.from_regex(r"[a-z]{1,3}[0-9]", fullmatch=True), min_size=2, max_size=12, unique=True)


@given(IDS, st.sets(st.integers(0, 11)), st.data())
def test_a_key_means_the_criterion_at_its_place_in_every_subset_and_repair(ids: list[str], checked: set[int], data: st.DataObject) -> None:
    criteria = [{"id": name, "description": name} | ({"check": "look"} if at in checked else {}) for at, name in enumerate(ids)]
    if not (asked := [name for at, name in enumerate(ids) if at not in checked]):
        return
    group = group_of(Rubric.model_validate({"criteria": criteria}))
    failing = data.draw(st.sets(st.sampled_from(asked)))
    first = data.draw(st.sets(st.sampled_from(asked)))
    rows = {f"k{at}": {"reason": name, "passed": name not in failing, "gap": ""} for at, name in enumerate(asked, 1)}
    parts = [{key: rows[key] for key in rows if (asked[int(key[1:]) - 1] in first) == early} for early in (True, False)]

    answers = [json.dumps(part | {"unjudgeable": ""}) for part in parts]
    read_back = parse_verdict(answers[1], group, earlier=answers[:1])

    assert gaps(read_back) == {name: name if name in failing else None for name in asked}
    assert keys_of(group.ids) == {f"k{at}": name for at, name in enumerate(asked, 1)}


@pytest.mark.parametrize("count", [24, 25, 60, 100])
def test_a_group_that_no_schema_of_the_dialect_holds_is_asked_for_in_parts(count: int) -> None:
    group = group_of(Rubric.model_validate({"criteria": [f"criterion {at}" for at in range(count)]}))
    form = AnswerForm(properties=100)
    conversation, due, said, parts = GraderConversation(), asked_first(group, form), list[str](), 0
    for _ in range(count):
        schema = verdict_schema(group, due, form)
        assert sum(1 + len(part.get("properties", ())) for part in schema["properties"].values()) <= 100
        keys = [key for key in schema["properties"] if key.startswith("k")]
        text = json.dumps({key: {"reason": key, "passed": key != "k24", "gap": ""} for key in keys} | {"unjudgeable": "", "summary": ""})
        taken = conversation.take(parse_verdict(text, group, due, earlier=said), group.ids, most=most_criteria(group, form))
        parts, said = parts + 1, [*said, text]
        if not isinstance(taken, Message):
            break
        due = conversation.pending
        assert ", ".join(f"k{int(name[1:])}" for name in due) in taken.content

    assert parts == -(-count // 24)
    assert isinstance(conversation.verdict, Verdict)
    assert [(row.id, row.reason, row.passed) for row in conversation.verdict.criteria] == [
        (f"c{at}", f"k{at}", at != 24) for at in range(1, count + 1)
    ]


def rows_for(*keys: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return rows under some of these keys, well-formed ones mostly."""
    passed = st.sampled_from([True, True, True, False, False, "true", 1, None])
    fields = st.fixed_dictionaries({"reason": st.sampled_from(["so", ""]), "passed": passed, "gap": st.sampled_from(["", "a gap"])})
    return st.dictionaries(st.sampled_from(keys), fields, max_size=4)


BESIDE = st.fixed_dictionaries({"unjudgeable": st.sampled_from(["", "", "", "it contradicts itself"])})
ANSWERS = st.tuples(rows_for("k1", "k2", "k3"), BESIDE).map(lambda parts: parts[0] | parts[1])
BEFORE = st.sampled_from(["", "", " ", "ok: ", '{"k1": {},', "<think>hm</think>", "```json\n"])
AFTER = st.sampled_from(["", "", "}", "done", "\n```"])


@given(ANSWERS, BEFORE, AFTER, st.booleans())
def test_nothing_is_satisfied_unless_every_required_criterion_passed(
    answer: dict[str, Any], before: str, after: str, required: bool
) -> None:
    rubric = Rubric.model_validate({"criteria": ["three lines", {"description": "spring", "required": required}]})

    verdict = parse_verdict(before + json.dumps(answer) + after, group_of(rubric), ASKED)

    if isinstance(verdict, Malformed):
        return
    judgement = aggregate(rubric, PassFindings(answers={(0, 0): GraderAnswer(judge="j", verdict=verdict)}))
    passed = {f"c{key[1:]}" for key, row in answer.items() if key != "unjudgeable" and row["passed"] is True}
    assert (result_of(rubric, judgement) == "satisfied") == (rubric.gating <= passed and not answer["unjudgeable"])
    assert (before + after).strip() in {"", "<think>hm</think>", "```json\n\n```"}


THREE = Rubric.model_validate("- a\n- b\n- c")
SAID = st.lists(st.builds(row, st.sampled_from(["c1", "c2", "c3", "c4"]), st.sampled_from([None, "a gap", "another"])), max_size=4)


@given(st.lists(SAID.map(lambda rows: verdict(*rows)), min_size=1, max_size=5))
def test_the_newest_well_formed_row_counts_whatever_answers_came(answers: list[dict[str, Any]]) -> None:
    newest: dict[str, str | None] = {}
    for answer in answers:
        newest |= {f"c{key[1:]}": fields["gap"] or None for key, fields in answer.items() if key in {"k1", "k2", "k3"}}

    read_back = later(*answers, rubric=THREE)

    if isinstance(read_back, Verdict):
        assert {row.id: row.gap for row in read_back.criteria} == newest
    else:
        assert {row.id for row in read_back.rows} == set(newest)
        assert {*read_back.missing, *newest} == ({"c1", "c2", "c3"} if newest else set())


@given(st.text(max_size=60))
def test_any_text_reads_without_an_exception(text: str) -> None:
    assert isinstance(parse_verdict(text, group_of(RUBRIC), ASKED), Malformed)
