"""Below the first line of a page: what failed, by the words of the criteria, with links, and what the figure of the first line means."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gradeloop.batches.answer import answer_of, failure_reason
from gradeloop.batches.cli.batch_view import case_lines
from gradeloop.batches.contract import CaseResult
from gradeloop.batches.outputs import Outputs
from gradeloop.batches.pages.read_batch import BatchReport, batch_page, head_of, report_of_file
from gradeloop.reports.failure_summary import FailureList
from tests.reports.test_diff_page import page_of
from tests.rig.batch_results import HOSTILE, case, row, summary_of
from tests.rig.page_payloads import PAYLOADS
from tests.rig.stories import gated_page, judged, mended


def page(results: list[CaseResult], **facts: Any) -> str:
    """Return the page of a batch with these results."""
    return batch_page(BatchReport(head_of(summary_of(results, **facts)), [(None, result) for result in results]))


def failure_lines(html: str) -> list[str]:
    """Return the heading and the lines of what failed, without markup."""
    block = html[html.index('<h2 class="failed-first">') :]
    lines = re.findall(r"<h2[^>]*>(.*?)</h2>|<li>(.*?)</li>", block[: block.index("</ul>")], re.DOTALL)
    return [" ".join(re.sub("<[^>]+>", " ", head or line).split()) for head, line in lines]


def test_a_batch_names_the_first_three_that_failed_by_the_words_of_their_criteria_and_counts_the_rest() -> None:
    html = page([case(0), *(case(at, "failed") for at in range(1, 6))], pass_rate=0.8)

    assert failure_lines(html) == [
        "What failed",
        *(f"case-{at} not met: the text of c2 c2 it says nothing" for at in (1, 2, 3)),
        "and 2 more: all failures",
    ]
    assert '<a href="#case-case-1" dir="auto">case-1</a>' in html
    assert html.index('id="answer"') < html.index("What failed") < html.index("Next: ")


def test_what_is_not_named_is_counted_by_its_verdict_with_a_filter_that_shows_it() -> None:
    results = [case(0), *(case(at, "failed") for at in range(1, 4)), *(case(at, "error") for at in range(4, 6))]
    of_errors = page([case(0), case(1, "error"), *(case(at, "failed") for at in range(2, 5))])

    assert failure_lines(page(results))[-1] == "and 2 more: all failures"
    assert failure_lines(of_errors)[-1] == "and 1 more: all failures"
    assert 'data-filter="failed" aria-pressed="false">all failures</button>' in of_errors
    assert failure_lines(page([*results, *(case(at, "error") for at in range(6, 9))]))[-1] == "and 5 more: all errors and all failures"


def test_errors_come_first_where_the_answer_is_about_them_and_unsure_cases_only_where_nothing_failed() -> None:
    votes = [{"grader": "scripted:judge", "passed": value} for value in (True, True, False)]
    unsure = case(9, "unsure", output="d", criteria=(row("c1", votes=votes),), unsure=("c1",))
    inconclusive = page([case(0), case(1, "failed"), case(2, "error")])
    undecided = page([case(0), unsure])

    assert failure_lines(inconclusive)[1:] == ["case-2 the provider says 529", "case-1 not met: the text of c2 c2 it says nothing"]
    assert failure_lines(undecided) == ["What is undecided", "case-9 Unsure of c1: 2 of 3 votes pass it"]
    assert 'class="failed-first"' not in page([case(0)])
    assert "Errors and criteria by how often</h2>" in inconclusive
    assert "Errors by how often</h2>" in page([case(0), case(1, "error")])


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"pass_rate": 0.9}, "75% of 4 judged cases passed, 90% wanted"),
        ({"pass_rate": 0.7}, "75% of 4 judged cases passed, 70% wanted"),
    ],
)
def test_the_figure_of_the_first_line_is_said_in_words_below_it(facts: dict[str, Any], words: str) -> None:
    results = [case(0), case(1), case(2), case(3, "failed")]
    html = page(results, **facts)

    assert answer_of(summary_of(results, **facts)).words == words
    assert html.index('id="answer"') < html.index(f'<p class="in-words">{words}</p>') < html.index("What failed")
    assert 'class="in-words"' not in page([case(0)])


def test_judgements_have_a_heading_for_what_failed_and_say_the_rate_in_words() -> None:
    html = gated_page()

    assert failure_lines(html)[0] == "What failed"
    assert "label is no match" in " ".join(failure_lines(html))
    assert '<p class="in-words">33.3% of 3 judged runs passed, 80% wanted</p>' in html
    assert 'class="failed-first"' not in gated_page(None)


def test_a_diff_names_what_got_worse_with_links(tmp_path: Path) -> None:
    html = page_of(tmp_path, [case(0), case(1), case(2)], [case(0), case(1, "failed"), case(2, "error")])
    same = page_of(tmp_path, [case(0)], [case(0)])

    assert failure_lines(html) == [
        "What got worse",
        "case-1 regressed the text of c2 c2 it says nothing",
        "case-2 verdict -&gt; error the provider says 529",
    ]
    assert '<li><a href="#pair-0" dir="auto">case-1</a>' in html
    assert 'class="failed-first"' not in same


def test_a_diff_names_every_criterion_that_regressed(tmp_path: Path) -> None:
    worse = case(0, "failed", criteria=(row("c1", passed=False), row("c2", passed=False)))
    mixed = case(1, "failed", criteria=(row("c1"), row("c2", passed=False)))
    before = [case(0), case(1, criteria=(row("c1", passed=False), row("c2")))]
    html = page_of(tmp_path, before, [worse, mixed])

    assert failure_lines(html)[1:] == [
        "case-0 regressed the text of c1 c1 ; the text of c2 c2 it says nothing",
        "case-1 regressed the text of c2 c2 it says nothing",
    ]
    assert "mend what regressed, run the suite again, then" in html


@pytest.mark.slow
def test_how_often_a_criterion_failed_is_written_as_every_other_number() -> None:
    html = page([*(case(at, "failed") for at in range(1_100)), *(case(at) for at in range(1_100, 1_200))])

    assert "<b>1,100</b> of 1,200 not passed" in html


def test_what_failed_is_escaped() -> None:
    for payload in (*PAYLOADS[:12], HOSTILE):
        rows = (row("c1"), row("c2", passed=False, gap=payload).model_copy(update={"name": payload}))
        html = page([case(0, "failed", id=payload[:150], criteria=rows), case(1, "error", error=payload)])

        assert payload not in html or "<" not in payload


def test_a_run_of_many_errors_keeps_but_three() -> None:
    found = FailureList()
    for number in range(1_000):
        found.take(number, judged().model_copy(update={"verdict": "error", "error": f"error {number}", "name": f"run-{number}"}))
    found.take(1_000, mended())

    assert [failure.name for failure in found.named("failed")] == ["run-0", "run-1", "run-2"]
    assert found.more("failed") == {"error": 997}


def missing(at: int, *failing: str, status: str, **facts: Any) -> CaseResult:
    """Return a case with a required and an optional criterion, of which some are not met."""
    rows = tuple(row(name, passed=name not in failing) for name in ("c1", "c2"))
    decided = ("c1",) if "c1" in failing else ()
    return case(at, status, criteria=rows, decided_by=decided, optional=("c2",), **facts)


def test_an_optional_criterion_has_one_figure_and_a_mark_wherever_a_batch_is_shown(tmp_path: Path) -> None:
    overridden = row("c2", passed=False, override={"passed": True, "why": "it is", "by": "Ada", "time": "2026-11-22T10:00:00+00:00"})
    results = [
        missing(0, "c2", status="passed"),
        missing(1, "c2", status="passed"),
        missing(2, "c1", "c2", status="failed"),
        case(3, criteria=(row("c1"), overridden), decided_by=(), optional=("c2",)),
        case(4, criteria=(row("c1"), row("c2", passed=False, unverified=True)), decided_by=(), optional=("c2",)),
    ]
    paths = [tmp_path / f"out{suffix}" for suffix in (".json", ".md", ".xml")]
    Outputs(paths).close(summary_of(results), lambda: iter(results))
    exported, summary, junit = (path.read_text() for path in paths)
    shown = "\n".join(getattr(line, "plain", "") for line in case_lines(results[2]))

    assert json.loads(exported)["cases"][0]["optional"] == ["c2"]
    for html in (page(results), batch_page(report_of_file(paths[0]))):
        counted = re.sub(r"<[^>]+>|\s+", " ", html[html.index('id="criteria"') : html.index('<div class="tiles">')])
        assert re.findall(r"(c\d) .*? (optional )? *(\d of \d) not passed", " ".join(counted.split())) == [
            ("c1", "", "1 of 5"),
            ("c2", "optional ", "3 of 4"),
        ]
        assert failure_lines(html)[1:] == ["case-2 not met: the text of c1 c1 it says nothing"]
    assert "| c1 | the text of c1 | 1 of 5 |\n| c2 (optional) | the text of c2 | 3 of 4 |" in summary
    assert "c1: the text of c1: it says nothing\nc2: the text of c2: it says nothing (optional)" in junit
    assert "✗ c1  the text of c1\n" in shown
    assert "✗ c2  the text of c2 (optional)\n" in shown
    assert failure_reason(results[2]) == "c1: it says nothing"


def test_a_run_of_which_nobody_says_what_decided_did_not_fail_on_an_optional_criterion() -> None:
    rows = (row("c1", passed=False), row("c2", passed=False))
    unsaid = case(0, "failed", criteria=rows, optional=("c2",))

    assert failure_lines(page([unsaid]))[1:] == ["case-0 not met: the text of c1 c1 it says nothing"]
