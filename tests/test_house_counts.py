"""The ratchets themselves: what is counted, what a rise asks for, and that records follow."""

import ast
import tomllib

import pytest

from tests.house_counts import Record, as_toml, comment_lines, grown, imported, outdated, written


@pytest.mark.parametrize(
    ("text", "comments"), [('"""Return a number."""\n', 0), ("# alone\nA = 1  # beside code\nB = '''\n# text\n'''\n    # indented\n", 2)]
)
def test_comments_are_counted_as_they_stand(text: str, comments: int) -> None:
    assert comment_lines(text) == comments


def test_an_import_is_counted_once_in_whatever_form_and_not_for_type_checkers() -> None:
    text = "import a.b\nfrom a import b, c\nfrom a.c import X\nfrom elsewhere import d\nif TYPE_CHECKING:\n    from a.e import Y\n"

    assert set(imported(ast.parse(text), {"a", "a.b", "a.c", "a.e"})) == {"a.b", "a.c"}


def test_a_count_that_rises_needs_a_reason_until_it_is_back_and_keeps_the_newest() -> None:
    before: dict[str, Record] = {"total.lines": 100, "total.modules": 10, "total.comments": 5, "cpu_seconds.cli": 9.5}
    risen = {"total.lines": 110, "total.modules": 9, "total.comments": 5}

    assert grown(risen, before) == ["total.lines is 110, recorded 100"]
    assert grown({"total.lines": 1, "total.modules": 1, "total.comments": 4}, before) == ["total.comments is 4, recorded 5"]
    assert grown({"lines.new": 3}, before) == ["lines.new is 3 and has no record"]
    with pytest.raises(ValueError, match=r"total\.lines went from 100 to 110"):
        written(risen, before, "")

    after = written(risen, before, "a provider came")
    back = written(risen | {"total.lines": 104}, after, "")
    higher = written(risen | {"total.lines": 120}, after, "and another")

    assert after == before | {"total.lines": {"was": 100, "now": 110, "reason": "a provider came"}, "total.modules": 9}
    assert not grown(risen, after)
    assert back["total.lines"] == {"was": 100, "now": 104, "reason": "a provider came"}
    assert higher["total.lines"] == {"was": 100, "now": 120, "reason": "and another"}
    assert written(risen | {"total.lines": 100}, after, "")["total.lines"] == 100
    assert tomllib.loads(as_toml(after))["total"]["lines"] == after["total.lines"]


def test_a_record_without_a_reason_or_far_from_its_count_is_named() -> None:
    recorded: dict[str, Record] = {"total.lines": 1000, "total.gone": 1, "total.modules": {"was": 1, "now": 2, "reason": "so"}}

    assert outdated({"total.lines": 970, "total.modules": 2}, recorded) == [
        "total.gone is recorded and counts nothing",
        "total.lines is 970, recorded 1000",
        "total.modules changed from 1 to 2 without a reason",
    ]
