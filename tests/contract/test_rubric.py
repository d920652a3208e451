"""A rubric reads the same everywhere: text becomes criteria with ids, an object says the same, and edges are refused in words."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gradeloop.contract.criterion import Check
from gradeloop.contract.rubric import MAX_CRITERIA, RUBRIC_BYTES, Rubric
from gradeloop.errors import explain
from gradeloop.grading.scoring import call_groups


def parsed(text: object) -> list[str]:
    """Return the criteria's texts."""
    return [criterion.text for criterion in Rubric.model_validate(text).criteria]


def refused(value: object) -> str:
    """Return why the rubric is refused."""
    with pytest.raises(ValidationError) as caught:
        Rubric.model_validate(value)
    return explain(caught.value)


def test_a_marker_before_white_space_is_stripped(subtests: pytest.Subtests) -> None:
    for marker in ("-", "*", "•", "+", "1.", "12.", "1)", "a)", "B)", "- [ ]", "- [x]", "- [X]", "* [ ]", "1. [ ]", "-\t", "-  "):
        with subtests.test(marker=marker):
            assert parsed(f"{marker} three lines") == ["three lines"]


def test_what_only_looks_like_a_marker_stays_whole(subtests: pytest.Subtests) -> None:
    for line in (
        "3.5 stars or more",
        "-5 degrees",
        "**Bold** x",
        "*emphasis* first",
        "+1 for style",
        "1.Nothing between",
        "a)bc",
        "ab) two letters",
        "•bullet",
        "[ ] a box alone",
        "#hashtag",
        "100%",
        "a. no list marker",
    ):
        with subtests.test(line=line):
            assert parsed(line) == [line]


def test_each_line_is_a_criterion_with_an_id_in_order() -> None:
    rubric = Rubric.model_validate("- three lines\n- 5-7-5 syllables\n\nthe theme is spring\n")

    assert [(criterion.id, criterion.description) for criterion in rubric.criteria] == [
        ("c1", "three lines"),
        ("c2", "5-7-5 syllables"),
        ("c3", "the theme is spring"),
    ]


def test_an_unmarked_line_indented_under_a_marked_one_continues_it() -> None:
    assert parsed("- one\n  goes on\n\tand on:\n- two") == ["one goes on and on:", "two"]


def test_an_indented_marker_is_a_criterion_of_its_own() -> None:
    assert parsed("- one\n  - one and a half\n    goes on\n  1) more") == ["one", "one and a half goes on", "more"]


def test_an_indented_line_under_an_unmarked_one_is_a_criterion_of_its_own() -> None:
    assert parsed("one\n  two") == ["one", "two"]


def test_a_heading_ends_what_a_marked_line_may_continue() -> None:
    assert parsed("- one\n# Form\n  two") == ["one", "two"]


def test_headings_and_introducing_lines_are_context_at_their_place() -> None:
    rubric = Rubric.model_validate("# Form\nIt must have:\n- three lines\n## Content\n- spring\nThat is all:")

    assert [(part.before, part.text) for part in rubric.context] == [
        (0, "# Form"),
        (0, "It must have:"),
        (1, "## Content"),
        (2, "That is all:"),
    ]
    assert [criterion.id for criterion in rubric.criteria] == ["c1", "c2"]


def test_lines_without_a_letter_or_digit_are_drawing() -> None:
    assert parsed("---\n- one\n***\n- [ ]\n=====\n- two") == ["one", "two"]


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_a_criterion() -> None:
    assert parsed("\ufeff- one\r\n- two\r\n") == ["one", "two"]


@pytest.mark.parametrize("text", [" ", "\n\n", "\t", "# Only\n## headings", "Only an introduction:", "---"])
def test_text_without_a_criterion_is_refused(text: str) -> None:
    assert refused(text) == "the rubric has no criterion, only white space or headings; write one a line, or '' to clear it"


@pytest.mark.parametrize("value", ["", {"criteria": []}])
def test_an_empty_rubric_is_cleared(value: object) -> None:
    assert Rubric.model_validate(value).cleared


def test_an_object_says_the_same_as_its_text() -> None:
    text = Rubric.model_validate("- three lines\n- spring")

    assert text == Rubric.model_validate({"criteria": ["three lines", {"description": "spring"}]})
    assert text.sha256() == Rubric.model_validate(json.loads(text.model_dump_json())).sha256()


def test_trailing_white_space_makes_no_other_rubric() -> None:
    assert Rubric.model_validate("- one \n\n- two\n\n").sha256() == Rubric.model_validate("- one\n- two").sha256()


def test_the_canonical_form_has_sorted_keys_and_no_spaces_between_them() -> None:
    rubric = Rubric.model_validate({"criteria": [{"id": "é", "description": "x y"} | {"id": "a1"}]})

    assert rubric.canonical() == '{"criteria":[{"description":"x y","id":"a1","required":true}]}'


def test_ids_are_the_authors_or_the_position_and_never_twice() -> None:
    rubric = Rubric.model_validate(
        {"criteria": ["one", {"id": "c3", "description": "two"}, "three", {"id": "tone", "description": "four"}]}
    )

    assert [criterion.id for criterion in rubric.criteria] == ["c1", "c3", "c4", "tone"]


def test_a_mistake_in_an_object_names_field_and_value(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, str]] = [
        ({"criteria": [{"id": "a", "description": "x"}, {"id": "a", "description": "y"}]}, "'a' is used twice"),
        ({"criteria": [{"id": "1a", "description": "x"}]}, "criteria[0].id: '1a' is not a criterion id; start with a letter"),
        ({"criteria": [{"id": "a" * 65, "description": "x"}]}, "64 at most"),
        ({"criteria": [{"description": "  "}]}, "criteria[0].description: the description is empty; say what must hold"),
        ({"criteria": [{}]}, "criteria[0].description: Field required"),
        ({"criteria": [{"descripton": "x"}]}, "unknown key 'descripton'. Did you mean 'description'?"),
        ({"criteria": "one"}, "criteria: 'one' is not a list; write each criterion after '- '"),
        ({"criterea": []}, "unknown key 'criterea'. Did you mean 'criteria'?"),
        ({"criteria": [{"description": "x", "check": ""}]}, "criteria[0].check.tool: "),
        ({"criteria": [{"description": "x", "check": {"tool": "t", "extract": "all"}}]}, "Input should be 'text' or 'code', got 'all'"),
        ({"criteria": [{"description": "x", "required": "perhaps"}]}, "criteria[0].required: "),
        (7, "Input should be"),
        (["one"], "the rubric is a list; write 'criteria:' above it"),
    ]
    for value, why in rows:
        with subtests.test(value=value):
            assert why in refused(value)


def test_a_check_may_be_written_as_a_name() -> None:
    rubric = Rubric.model_validate({"criteria": [{"description": "tests pass", "check": "run_test_suite"}]})

    assert rubric.criteria[0].check == Check(tool="run_test_suite", extract="text")
    assert (rubric.judged, len(rubric.checks()), call_groups(rubric)) == ((), 1, ())


def test_a_hundred_criteria_are_read_and_one_more_is_refused() -> None:
    assert len(parsed("- x\n" * MAX_CRITERIA)) == 100
    assert refused("- x\n" * (MAX_CRITERIA + 1)) == "criteria: 101 criteria, 100 at most; split the rubric over several threads"


@pytest.mark.parametrize("letter", ["x", "é"])
def test_64_kib_of_utf_8_are_read_and_one_byte_more_is_refused(letter: str) -> None:
    size = len(letter.encode())
    text = "- " + letter * ((RUBRIC_BYTES - 2) // size)

    assert len(text.encode()) == RUBRIC_BYTES
    assert parsed(text) == [text[2:]]
    assert "the rubric has 65537 bytes, 65536 at most" in refused(text + "x")


def test_an_object_is_measured_as_json() -> None:
    criterion: dict[str, Any] = {"criteria": [{"description": "x" * RUBRIC_BYTES}]}

    assert "65536 at most; move what is background into the conversation" in refused(criterion)


def test_where_nothing_is_required_all_criteria_gate() -> None:
    some = Rubric.model_validate({"criteria": [{"description": "x", "required": False}, "y"]})
    none = Rubric.model_validate({"criteria": [{"description": value, "required": False} for value in "xy"]})

    assert (some.gating, none.gating) == (frozenset({"c2"}), frozenset({"c1", "c2"}))


@given(st.text(max_size=400))
def test_any_text_is_read_whole_or_refused_in_words(text: str) -> None:
    try:
        rubric = Rubric.model_validate(text)
    except ValidationError:
        assert re.search("the rubric has no criterion|is not a criterion, and some readers of YAML", refused(text))
        return

    assert [criterion.id for criterion in rubric.criteria] == [f"c{number}" for number in range(1, len(rubric.criteria) + 1)]
    assert Rubric.model_validate_json(rubric.canonical()) == rubric
