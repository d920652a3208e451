"""The page of two batches: the answer, one sentence of statistics, and the outputs of what changed side by side."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from gradeloop.batches.cli.batches import compare_named, comparison_lines, pairs_of
from gradeloop.batches.compare.comparison import load_batch
from gradeloop.batches.compare.wording import baseline_of
from gradeloop.batches.contract import CaseResult
from gradeloop.batches.outputs import Outputs
from gradeloop.batches.pages.diff_page import comparison_page
from tests.cli.test_cli_diff import no_store
from tests.rig.batch_results import case, row, summary_of
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

    assert page.index("REGRESSED") < page.index("Both batches") < page.index("Side by side")
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


def test_a_case_that_became_unsure_is_counted_named_and_shown(tmp_path: Path) -> None:
    votes = [{"grader": "scripted:judge", "passed": value} for value in (True, True, False)]
    unsure = case(0, "unsure", output="the draft 0", criteria=(row("c1", votes=votes),), unsure=("c1",))
    page = page_of(tmp_path, [case(0), case(1)], [unsure, case(1)])
    back = page_of(tmp_path, [unsure, case(1)], [case(0), case(1)])

    assert '<p class="answer unsure">NO REGRESSIONS, 1 UNSURE</p>' in page
    assert '<div class="tile unsure"><b>1</b><span>verdict -&gt; unsure</span></div>' in page
    assert 'data-filter="unsure" aria-pressed="false">verdict -&gt; unsure 1</button>' in page
    assert 'id="pair-0" open>' in page
    assert "unsure of c1: 2 of 3 votes pass it" in page
    assert '<p class="answer passed">NO REGRESSIONS</p>' in back
    assert 'data-filter="decided" aria-pressed="false">unsure -&gt; verdict 1</button>' in back


@pytest.mark.parametrize(
    ("before", "now", "answer"),
    [
        ((1, 1), (0, 1), "1 REGRESSED: too few to tell from chance"),
        ((1,) * 6, (0,) * 6, "6 REGRESSED: more than chance explains"),
        ((1,) * 4 + (0,) * 4, (0,) * 4 + (1,) * 4, "4 REGRESSED, 4 IMPROVED: no more than chance explains"),
        ((0, 1), (1, 1), "NO REGRESSIONS, 1 IMPROVED: too few to tell from chance"),
        ((1, 1), (None, 1), "NO REGRESSIONS, 1 NOW WITHOUT A VERDICT"),
        ((1, 1), (1, 1), "NO REGRESSIONS"),
    ],
)
def test_the_answer_and_the_statistics_agree_on_the_page_in_the_terminal_and_in_markdown(
    tmp_path: Path, before: tuple[int | None, ...], now: tuple[int | None, ...], answer: str
) -> None:
    status: dict[int | None, Any] = {1: "passed", 0: "failed", None: "error"}
    a, b = ([case(at, status[value]) for at, value in enumerate(values)] for values in (before, now))
    page = page_of(tmp_path, a, b)
    names = [str(tmp_path / f"{name}.json") for name in "ab"]
    found = compare_named(*names)
    first = str(next(comparison_lines(found, 120)))
    summary = baseline_of(load_batch(names[0], no_store), load_batch(names[1], no_store))

    assert unescape(re.findall(r'<p class="answer [^>]*>(?:<a[^>]*>)?([^<]*)<', page)[0]) == answer
    assert first == answer
    assert summary.sentence.startswith(answer)
    assert "significant change" not in page + summary.sentence


def test_a_diff_says_what_to_read_and_what_to_run_next(tmp_path: Path) -> None:
    worse = page_of(tmp_path, [case(0), case(1)], [case(0), case(1, "failed")])
    found = compare_named(str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    printed = [str(line) for line in comparison_lines(found, 120)]
    lost = page_of(tmp_path, [case(0), case(1)], [case(0), case(1, "error")])
    better = page_of(tmp_path, [case(0, "failed")], [case(0)])
    command = f"gradeloop diff {tmp_path}/a.json {tmp_path}/b.json"

    assert 'Next: read <a href="#pair-0" dir="auto">case-1</a>; ' in worse
    assert f"mend what regressed, run the suite again, then <code>{command}</code>" in worse
    assert f"\nnext: mend what regressed, run the suite again, then {command}" in printed
    assert f"run its errors again, then <code>{command}</code>" in lost
    assert f"take B for the baseline of later runs with <code>gradeloop eval SUITE --baseline {tmp_path}/b.json</code>" in better


def test_the_heading_is_short_names_and_the_whole_ones_stand_below(tmp_path: Path) -> None:
    page = page_of(tmp_path, [case(0)], [case(0)])
    title = f"{tmp_path}/a.json → {tmp_path}/b.json"

    assert f'<h1 title="{title}">a → b</h1>' in page
    assert f'<p class="muted from">{title}</p>' in page


def test_files_of_one_name_are_told_apart_by_their_folders_in_the_heading(tmp_path: Path) -> None:
    for folder in ("main", "branch"):
        (tmp_path / folder).mkdir()
        Outputs([tmp_path / folder / "results.json"]).close(summary_of([case(0)]), lambda: iter([case(0)]))
    names = [str(tmp_path / folder / "results.json") for folder in ("main", "branch")]
    page = comparison_page(compare_named(*names))

    assert ">main/results → branch/results</h1>" in page


def test_an_output_that_did_not_change_stands_there_once(tmp_path: Path) -> None:
    page = page_of(tmp_path, [case(0, output="the same words")], [case(0, "failed", output="the same words")])

    assert page.count("the same words") == 1
    assert "the judgement alone changed" in page


def test_outputs_of_a_diff_are_escaped(tmp_path: Path) -> None:
    for payload in PAYLOADS[:20]:
        page = page_of(tmp_path, [case(0, output=payload)], [case(0, "failed", output=f"{payload} two")])

        assert payload not in page or "<" not in payload
