"""The report of style: no shape of English that is not wanted becomes more frequent."""

import ast

import pytest

from tests.house_counts import docstrings
from tests.style_counts import NOT_IMPERATIVE, OPENINGS, SHAPES, WORDS, counts, records, sentences

CLASS = 'class A:\n    """A."""\n\n    on: bool\n    """Whether it is on."""\n    name: str\n    """Whether it has a name."""\n'


def test_no_shape_is_more_frequent_than_its_record_and_what_fell_is_recorded() -> None:
    now, known = counts(), records()

    now.pop("commit_subjects")  # reported only: whoever merges may write a subject that nobody here can change
    risen = {shape: (known.get(shape, 0), count) for shape, count in now.items() if count > known.get(shape, 0)}
    assert not risen, f"say it as STYLE does (python -m tests.style_counts --list SHAPE): {risen}"
    fallen = {shape: (known[shape], count) for shape, count in now.items() if count < known[shape] - 20}
    assert not fallen, f"record them by python -m tests.style_counts --write: {fallen}"


def test_whether_opens_the_docstring_of_a_boolean_and_of_nothing_else() -> None:
    told = [(bool(OPENINGS.match(text)), boolean) for text, boolean in docstrings(ast.parse(CLASS))]

    assert told == [(False, False), (True, True), (True, False)]


@pytest.mark.parametrize(
    ("shape", "text", "hits"),
    [
        ("is_no", "it is no text", 1),
        ("is_no", "it is no longer open", 0),
        ("alone", "by the model alone.", 1),
        ("alone", "a file that stands alone in it", 1),
        ("idiom", "what is said of it", 1),
        ("idiom", "it does what is left", 1),
        ("idiom", "it names what is left out", 0),
    ],
)
def test_a_shape_is_found_where_it_stands(shape: str, text: str, hits: int) -> None:
    assert len(SHAPES[shape].findall(text)) == hits


def test_cells_items_and_full_stops_end_a_sentence_and_code_is_one_word() -> None:
    text = "# Title\n\nOne `a b c` two. Three [four five](six.md)\nsix.\n\n| a b | c |\n|---|---|\n- item one\n- item two\n"

    assert [len(one.split()) for one in sentences(text) if one.strip("|- ")] == [1, 3, 4, 2, 1, 2, 2]
    assert WORDS == 25


@pytest.mark.parametrize(
    ("subject", "wanted"),
    [
        ("Move the check into worker.py", True),
        ("Pass the key", True),
        ("Whether a worker is alone is asked by worker.py", False),
        ("Adds a key", False),
        ("Added a key", False),
        ("A key is added", False),
        ("docs: add a key", False),
        ("Need a key", True),
        ("Bring the key", True),
    ],
)
def test_a_subject_is_an_imperative(subject: str, wanted: bool) -> None:
    assert (NOT_IMPERATIVE.match(subject) is None) is wanted
