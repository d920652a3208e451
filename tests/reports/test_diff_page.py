"""The page of two batches: the answer, one sentence of statistics, and the outputs of what changed side by side."""

from pathlib import Path
from typing import Any

from gradeloop.batches.contract import CaseResult
from gradeloop.batches.outputs import Outputs
from gradeloop.cli.reports import compare_named, pairs_of
from gradeloop.reports.diff_page import comparison_page
from tests.rig.batch_results import case, summary_of
from tests.rig.page_payloads import PAYLOADS


def page_of(folder: Path, before: list[CaseResult], now: list[CaseResult]) -> str:
    """Return the page of two batches, each read from its file."""
    names = []
    for name, results in (("a", before), ("b", now)):
        path = folder / f"{name}.json"
        Outputs([path]).close(summary_of(results), lambda results=results: iter(results))  # type: ignore[misc]
        names.append(str(path))
    found = compare_named(names[0], names[1])
    return comparison_page(found, pairs_of(found, names[0], names[1]))


def test_outputs_stand_side_by_side_with_their_differences_and_regressions_first(tmp_path: Path) -> None:
    before = [case(0, "failed", output="we open at ten"), case(1, output="we open at nine"), case(2)]
    now = [case(0, output="we open at nine"), case(1, "failed", output="we open at ten"), case(2)]
    page = page_of(tmp_path, before, now)

    assert page.index("REGRESSED</p>") < page.index("Side by side") < page.index("Both batches")
    assert page.index("<b>case-1</b>") < page.index("<b>case-0</b>")
    assert "we open at <del>nine</del></div>" in page
    assert "we open at <ins>ten</ins></div>" in page
    assert 'href="#pair-0"' in page


def test_what_was_asked_stands_there_once(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"description": "When do you open?", "vars": {"question": "When do you open?", "day": "Sunday"}}
    page = page_of(tmp_path, [case(0, **facts)], [case(0, "failed", **facts)])

    assert page.count("When do you open?") == 1
    assert "question: When do you open? · day: Sunday" in page


def test_where_nothing_regressed_it_says_so(tmp_path: Path) -> None:
    assert '<p class="answer passed">NO REGRESSIONS</p>' in page_of(tmp_path, [case(0)], [case(0)])


def test_an_output_that_did_not_change_stands_there_once(tmp_path: Path) -> None:
    page = page_of(tmp_path, [case(0, output="the same words")], [case(0, "failed", output="the same words")])

    assert page.count("the same words") == 1
    assert "the judgement alone changed" in page


def test_outputs_of_a_diff_are_escaped(tmp_path: Path) -> None:
    for payload in PAYLOADS[:20]:
        page = page_of(tmp_path, [case(0, output=payload)], [case(0, "failed", output=f"{payload} two")])

        assert payload not in page or "<" not in payload
