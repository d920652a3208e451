"""What a page says first: passed or not, what failed, and what to do next."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from gradeloop.batches.compare.comparison import BatchSource, ComparedCase, Comparison, compare_batches
from gradeloop.batches.outputs import Outputs
from gradeloop.batches.pages.collection_page import labels_of
from gradeloop.batches.pages.diff_page import ShownCase, output_pairs
from gradeloop.batches.pages.read_batch import BatchReport, batch_page, head_of, report_of_file
from gradeloop.contract.evaluation import CriterionRow, DraftInQuestion, Evaluation, PendingCall, WaitingCriterion, WaitingFor
from gradeloop.contract.messages import FEEDBACK_SOURCE, Message
from gradeloop.contract.rubric import Rubric
from gradeloop.reports.model import RunReport, SchemaVerdict
from gradeloop.reports.run_page import failing_rows, run_answer, run_next_step, run_page
from gradeloop.text import headline
from gradeloop.web.site import SteeredPage
from tests.rig.batch_results import case, summary_of

DRAFTS = (
    Message(role="user", content="Write a sign."),
    Message(role="assistant", content="Closed."),
    Message(role="user", content="Say when it opens.", source=FEEDBACK_SOURCE),
    Message(role="assistant", content="Closed. ```open()```"),
)


def evaluation(draft: int, *failing: str) -> Evaluation:
    rows = [
        CriterionRow(
            id=name, name=f"the text of {name}", passed=name not in failing, reason="r", gap="mend it" if name in failing else None
        )
        for name in ("when", "short")
    ]
    return Evaluation(
        status="running",
        grading_run_id="g",
        iteration=draft // 2,
        draft=draft,
        result="needs_revision",
        criteria=tuple(rows),
        explanation="",
    )


def failed(best: int) -> RunReport:
    return RunReport(
        name="sign",
        kind="thread",
        verdict="failed",
        word="max_iterations_reached",
        thread_id="sign",
        messages=DRAFTS,
        evaluations=(evaluation(1, "when"), evaluation(3, "when", "short")),
        best=best,
    )


def test_a_failed_thread_names_the_criteria_of_its_best_draft_with_their_words_and_gaps() -> None:
    report = failed(best=1)
    page = run_page(report)
    head = page[page.index('<p class="answer failed">') : page.index("<h2>Criteria</h2>")]

    assert [row.id for row in failing_rows(report)] == ["when"]
    assert 'FAILED: not met: <span dir="auto">the text of when</span> <span class="id">when</span></p>' in head
    assert "the text of when" in head
    assert "mend it" in head
    assert "the text of short" not in head
    assert '<a href="#r-m1">Read the best draft</a>' in head


def test_where_the_best_draft_is_not_known_the_last_one_says_what_failed() -> None:
    assert [row.id for row in failing_rows(failed(best=2))] == ["when", "short"]


@pytest.mark.parametrize(
    ("word", "verdict", "line"),
    [
        ("interrupted", "none", "Next: gradeloop resume sign"),
        ("satisfied", "passed", ""),
        ("running", "running", ""),
        ("max_iterations_reached", "failed", "Next: mend the task or the rubric, and run it as a new thread with gradeloop run TASK.yaml"),
        ("grader_error", "error", "Next: mend what the error names, and run it as a new thread with gradeloop run TASK.yaml"),
    ],
)
def test_a_thread_that_did_not_pass_says_what_comes_next(word: str, verdict: str, line: str) -> None:
    report = failed(best=1).model_copy(update={"word": word, "verdict": verdict})
    case_of_a_batch = report.model_copy(update={"kind": "case"})
    found = re.findall(r'<p class="next">(.*?)</p>', run_page(report))

    assert [" ".join(re.sub("<[^>]+>", "", each).split()) for each in found] == ([line] if line else [])
    assert word == "interrupted" or run_next_step(case_of_a_batch) is None


def test_changes_of_a_draft_with_fenced_code_are_monospaced() -> None:
    page = run_page(failed(best=1))

    assert '<div class="text mono" dir="auto" tabindex="0" role="region" aria-label="Changes of message 3">' in page


@pytest.mark.parametrize(
    ("before", "now", "marked"), [("closed on Sunday", "closed on Monday", True), ("closed on Sunday", "We love you", False)]
)
def test_outputs_that_have_nothing_in_common_are_shown_without_marks(before: str, now: str, marked: bool, compared: Comparison) -> None:
    (pair,) = output_pairs(compared, {"a": ShownCase(before, "")}, {"a": ShownCase(now, "Opening hours · question: When?")})

    assert pair.asked == "Opening hours · question: When?"
    assert any(piece.kind == "removed" for piece in pair.a) is marked
    assert any(piece.kind == "added" for piece in pair.b) is marked


def test_a_thread_says_what_was_asked_under_its_name_folded_where_it_is_long() -> None:
    page = run_page(failed(best=1))
    many = (DRAFTS[0].model_copy(update={"content": "Write a sign. " * 60}), *DRAFTS[1:])
    long = run_page(failed(best=1).model_copy(update={"messages": many}))

    assert page.index("<h1>sign</h1>") < page.index('<p class="task" dir="auto">Write a sign.</p>') < page.index('<p class="answer')
    assert long.index('<details class="task" id="r-task"><summary dir="auto">Write a sign. Write') < long.index('<p class="answer')
    assert long.count("Write a sign. " * 60) == 2


def test_a_thread_that_waits_says_what_was_asked_before_it_asks_a_person() -> None:
    waiting = WaitingFor(grading_run_id="g", iteration=0, criteria=(WaitingCriterion(id="legal", name="no promise"),))
    page = run_page(failed(best=1).model_copy(update={"waiting_for": waiting, "verdict": "waiting", "word": "waiting"}))

    assert page.index('<p class="task" dir="auto">Write a sign.</p>') < page.index(
        'WAITING FOR A PERSON: does this hold? <span dir="auto">no promise</span> <span class="id">legal</span></p>'
    )


def first_line(page: str) -> str:
    (line,) = re.findall(r'<p class="answer [^>]*>(.*?)</p>', page)
    return re.sub("<[^>]+>", "", line)


def test_a_first_line_says_once_that_several_criteria_are_not_met_or_asked_about_and_what_must_not_hold_does() -> None:
    both = failed(best=3)
    must_not = Rubric.model_validate({"criteria": [{"id": "when", "description": "It is rude", "negate": True}]})
    asked = tuple(WaitingCriterion(id=name, name=f"the text of {name}") for name in ("legal", "tone"))
    call = PendingCall(call="c", tool="send_mail", arguments={}, role="grader")
    waiting = WaitingFor(grading_run_id="g", iteration=0, criteria=asked, calls=(call,))

    assert first_line(run_page(both)) == "FAILED: not met: the text of when when; the text of short short"
    assert first_line(run_page(both.model_copy(update={"rubric": must_not}))) == (
        "FAILED: must not hold: the text of when when; not met: the text of short short"
    )
    assert first_line(run_page(both.model_copy(update={"waiting_for": waiting, "verdict": "waiting"}))) == (
        "WAITING FOR A PERSON: does this hold? the text of legal legal; the text of tone tone; may the grader call send_mail?"
    )


def test_a_first_line_has_three_criteria_at_most_each_in_short() -> None:
    names = [(f"c{number}", "It is " + "very " * 40 + "long") for number in range(5)]
    waiting = WaitingFor(grading_run_id="g", iteration=0, criteria=tuple(WaitingCriterion(id=name, name=text) for name, text in names))
    answer = run_answer(failed(best=1).model_copy(update={"waiting_for": waiting, "verdict": "waiting", "word": "waiting"}))

    assert [part.id for part in answer.parts] == ["c0", "c1", "c2"]
    assert all(len(part.words) <= 91 and part.words.endswith("…") for part in answer.parts)
    assert answer.more == 2


def rejecting() -> RunReport:
    """Return a thread whose first draft a person rejected, and whose second one waits."""
    rejected = CriterionRow(id="legal", name="no promise", passed=False, reason="", gap="it promises <b>a refund</b>", by="human")
    first = evaluation(1).model_copy(update={"criteria": (*evaluation(1).criteria, rejected)})
    draft = DraftInQuestion(index=3, text="Closed.", rows=evaluation(3, "short").criteria, previous=1)
    waiting = WaitingFor(grading_run_id="g", iteration=1, criteria=(WaitingCriterion(id="legal", name="no promise"),), draft=draft)
    update = {"evaluations": (first,), "waiting_for": waiting, "verdict": "waiting", "word": "waiting", "best": None}
    return failed(best=1).model_copy(update=update)


def test_a_draft_that_waits_has_a_column_of_its_own_and_an_earlier_no_stands_where_a_person_decides() -> None:
    page = run_page(rejecting())
    live = run_page(rejecting(), live=SteeredPage(token="t", path="/p", thread="/p", status="waiting", open=True, tag=""))
    strip = page[page.index("<h2>Criteria</h2>") : page.index('<p class="legend"')]
    no = "<b>Draft 1 was rejected because:</b> it promises &lt;b&gt;a refund&lt;/b&gt;"

    assert '<a href="#r-m3">2<span class="sr"> iteration</span></a> <span class="badge waiting">waits</span>' in strip
    assert strip.count('<td class="asked">') == 4
    assert strip.count('title="waits"') == 1
    assert page.count(no) == 1
    assert live.index("Does this hold?") < live.index(no) < live.index("Approve</button>")


@pytest.mark.parametrize("live", [None, SteeredPage(token="t", path="/p", thread="/p", status="waiting", open=True, tag="")])
def test_what_waits_stands_directly_below_the_first_line_and_counts_the_draft_under_way(live: SteeredPage | None) -> None:
    page = run_page(rejecting().model_copy(update={"about": {"generator": "a", "started": "b"}}), live=live)
    head = page[page.index('<p class="answer') : page.index("<h2>Waiting for a person</h2>")]

    assert '<span class="fact">iteration 2</span>' in head
    assert "1 iteration" not in head
    assert "<dl" not in head
    assert page.index("Draft 1 was rejected because") < page.index("<h2>Criteria</h2>") < page.index('<dl class="facts">')


@pytest.mark.parametrize("status", ["satisfied", None])
def test_a_closed_thread_says_so_in_place_of_an_empty_card(status: str | None) -> None:
    live = SteeredPage.model_validate({"token": "t", "path": "/p", "thread": "/p", "status": status, "open": False, "tag": ""})
    page = run_page(failed(best=1), live=live)

    assert "<p>This thread is closed.</p>" in page
    assert "This case has a thread" not in page
    assert " hidden>" not in page[page.index('<section class="panel steering"') :][:200]


def test_a_thread_of_several_turns_says_what_was_asked_last() -> None:
    again = (*DRAFTS, Message(role="user", content="Now in French."), Message(role="assistant", content="Fermé."))

    assert '<p class="task" dir="auto">Now in French.</p>' in run_page(failed(best=1).model_copy(update={"messages": again}))


def test_a_batch_that_failed_leads_to_its_first_failed_case_and_names_the_next_step() -> None:
    results = [case(0), case(1, "error"), case(2, "failed", id="50% & more"), case(3, "failed")]
    page = batch_page(BatchReport(head_of(summary_of(results, pass_rate=0.9, allow_errors=0.5)), [(None, result) for result in results]))

    assert '<p class="answer failed" id="answer"><a href="#case-50%25%20%26%20more">FAILED 33.3% of 90%</a></p>' in page
    assert 'Next: read <a href="#case-50%25%20%26%20more" dir="auto">50% &amp; more</a>, mend the prompt or the rubric' in page
    assert "<code>gradeloop diff batch-1</code>" in page


def test_a_batch_that_passed_leaves_nothing_to_do_and_says_how_a_change_is_compared() -> None:
    page = batch_page(BatchReport(head_of(summary_of([case(0)])), [(None, case(0))]))

    assert '<p class="answer passed" id="answer">PASSED</p>' in page
    assert "Nothing is left to do. After a change, run the suite again, then <code>gradeloop diff batch-1</code></p>" in page


def test_a_file_of_results_names_itself_and_no_batch_that_the_store_does_not_have(tmp_path: Path) -> None:
    results = [case(0), case(1, "failed")]
    Outputs([tmp_path / "r.json"]).close(summary_of(results), lambda: iter(results))
    page = batch_page(report_of_file(tmp_path / "r.json"))

    assert 'Next: read <a href="#case-case-1" dir="auto">case-1</a>, mend the prompt or the rubric' in page
    assert f"<code>gradeloop diff {tmp_path}/r.json</code>" in page
    assert "gradeloop diff batch-1" not in page


def said(output: dict[str, JsonValue], labels: tuple[str, ...] | None) -> RunReport:
    """Return a judgement with this output."""
    verdict = SchemaVerdict(rubric_id="r", rubric_version=1, output=output, labels=labels)
    return RunReport(name="run", kind="judgement", verdict="none", word="judged", judged=verdict)


def test_what_a_judge_writes_is_no_label_however_short_it_is() -> None:
    output: dict[str, JsonValue] = {"label": "honest", "explanation": "So it is.", "right": True, "word": "yes"}

    assert labels_of(said(output, ("label", "right"))) == (("label", "honest"), ("right", "true"))
    assert [name for name, _ in labels_of(said(output, None))] == ["label", "right", "word"]


@pytest.fixture
def compared() -> Comparison:
    passed = ComparedCase("a", 0, "passed", 1.0, ())
    return compare_batches(*(BatchSource(name, [case]) for name, case in (("A", passed), ("B", replace(passed, status="failed")))))


@pytest.mark.parametrize(("text", "line"), [("a\nb", "a b"), ("abcdef", "abcdef"), ("abcdefg", "abcdef…"), ("abcde  xyz", "abcde…")])
def test_a_headline_is_one_line_and_says_where_it_goes_on(text: str, line: str) -> None:
    assert headline(text, 6) == line
