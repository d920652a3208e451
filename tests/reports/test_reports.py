"""What a page shows, apart from the browser: differences, marks, strips, rows, numbers, and a document that stands alone."""

import base64
import hashlib
import json
import re
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeloop.batches.answer import CriterionCounts
from gradeloop.batches.column_table import ColumnTable
from gradeloop.batches.contract import Case, CaseResult
from gradeloop.batches.pages.collection_page import (
    CaseRow,
    Packer,
    PageHeader,
    PageRow,
    by_test,
    collection_page,
    filters,
    histogram,
    row_of,
    with_differences,
)
from gradeloop.batches.pages.judgement_page import judgement_head, judgement_page
from gradeloop.batches.pages.read_batch import (
    BatchReport,
    batch_page,
    entries,
    head_of,
    past_batches,
    read_case_report,
    thread_of,
    with_thread,
)
from gradeloop.contract.evaluation import Quote
from gradeloop.contract.messages import Message, ToolCall, Usage
from gradeloop.grading.changes import Changes, changes
from gradeloop.reports.html import data, seconds, shown, when
from gradeloop.reports.model import RunReport
from gradeloop.reports.run_page import Highlight, Quoted, RunView, run_page, segments
from gradeloop.text import percent
from tests.rig.batch_results import case, row, summary_of
from tests.rig.stories import judged, mended

WORDS = st.text(st.sampled_from("ab \n,.é"), max_size=60)


def changes_of(before: str, after: str) -> Changes:
    """Return what changed, which is told of drafts of any usual length."""
    found = changes(before, after)
    assert found is not None
    return found


@given(WORDS, WORDS)
def test_a_difference_holds_both_drafts(before: str, after: str) -> None:
    pieces = changes_of(before, after).pieces

    assert "".join(piece.text for piece in pieces if piece.kind in {"same", "removed"}) == before
    assert "".join(piece.text for piece in pieces if piece.kind in {"same", "added"}) == after


def test_a_difference_is_told_in_words() -> None:
    found = changes_of("we open at nine", "we open at ten or later")

    assert [(piece.kind, piece.text) for piece in found.pieces] == [("same", "we open at "), ("removed", "nine"), ("added", "ten or later")]
    assert (found.added, found.removed) == (3, 1)


def test_what_stays_between_two_changes_is_left_out_where_it_is_long() -> None:
    middle = "and so it goes on. " * 100
    found = changes_of(f"one {middle}two", f"three {middle}four")

    assert [piece.kind for piece in found.pieces] == ["removed", "added", "same", "left_out", "same", "removed", "added"]
    assert "unchanged characters" in found.pieces[3].text


def test_drafts_that_are_too_long_are_not_compared_and_long_ones_by_lines() -> None:
    assert changes("x" * 600_000, "y" * 600_000) is None
    long = "".join(f"line {number} of many words here\n" for number in range(4_000))

    assert changes_of(long, long.replace("line 17 ", "line x ")).added > 1
    assert changes_of(long, long).none


def test_marks_may_overlap_and_each_keeps_its_anchor() -> None:
    found = segments("abcdef", [Highlight("one", 1, 4), Highlight("two", 2, 6)])

    assert [(item.text, item.marked, item.names) for item in found] == [
        ("a", False, ()),
        ("b", True, ("one",)),
        ("cd", True, ("two",)),
        ("ef", True, ()),
    ]
    assert segments("abc", [Highlight("beyond", 2, 9), Highlight("empty", 1, 1)])[0].text == "abc"


LONG = "The warranty covers the chain for two years from the day on which the bike was bought."

PLACES: dict[str, tuple[int, str, Any]] = {
    "word for word": (1, "the chain", "the chain"),
    "white space aside": (1, "warranty covers\nthe   chain", "warranty  covers the chain"),
    "nearly, where it is long": (2, LONG.replace("two years", "two year"), LONG),
    "with its hidden characters as escapes": (3, "in\\u200bvisible", "in\u200bvisible"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_quote_is_found_where_it_was_verified(name: str) -> None:
    record, quote, wanted = PLACES[name]
    texts = ["hello", "The warranty  covers the chain.", f"So: {LONG} Yes.", "an in\u200bvisible word"]
    messages = [Message(role="user", content=text) for text in texts]
    place = Quoted(messages).place(record, quote)

    assert place is not None
    assert place.span is not None
    found = texts[place.message][place.span[0] : place.span[1]]
    assert found == wanted or wanted.startswith(found)


def test_a_quote_that_is_nearly_there_is_shown_as_a_difference() -> None:
    report = mended()
    near = Quote(record=0, quote="it did thaw", quote_verified=False, quote_match="near", quote_nearest="it did not thaw")
    first, *rows = report.evaluations[0].criteria
    evaluation = report.evaluations[0].model_copy(update={"criteria": (first.model_copy(update={"quotes": (near,)}), *rows)})
    page = run_page(report.model_copy(update={"evaluations": (evaluation, *report.evaluations[1:])}))

    assert '<span class="differences">it did <del>not </del>thaw</span>' in page
    assert "not found in the conversation" in page


def test_records_are_those_of_the_grader_so_a_tool_call_is_one_of_its_own() -> None:
    call = ToolCall(id="1", name="look", arguments={"where": "here"})
    messages = [
        Message(role="user", content="look"),
        Message(role="assistant", content="I look", tool_calls=(call,)),
        Message(role="tool", content="found it", tool_call_id="1"),
    ]
    quoted = Quoted(messages)

    assert [(place := quoted.place(record, "x")) and place.message for record in range(5)] == [0, 1, 1, 2, None]
    in_the_call, result = quoted.place(2, "here"), quoted.place(3, "found")
    assert in_the_call is not None
    assert in_the_call.span is None
    assert result is not None
    assert result.span == (0, 5)


def test_a_view_places_verdicts_evidence_and_what_became_of_gaps() -> None:
    report = mended()
    view = RunView(report)
    first = report.evaluations[0].criteria[0]

    assert [view.kind(message) for message in range(4)] == ["said", "draft", "feedback", "draft"]
    assert [view.evaluations(message) for message in range(4)] == [[], [0], [], [1]]
    assert [view.has_previous_draft(message) for message in range(4)] == [False, False, False, True]
    assert view.later(0, first) == "fixed in the next draft"
    assert [[(use.tool, use.criterion) for use in view.tools(at)] for at in range(2)] == [
        [("word_count", "short")],
        [("opening_hours", None)],
    ]
    assert [part.text for part in view.text(1) if part.marked] == ["Your chain is gone."]
    assert view.unplaced == []


def test_evidence_of_a_pass_without_a_verdict_is_not_lost() -> None:
    report = mended()
    view = RunView(report.model_copy(update={"evaluations": report.evaluations[:1]}))

    assert [use.tool for use in view.unplaced] == ["opening_hours"]


def test_a_verdict_on_a_message_that_is_not_at_hand_is_shown_all_the_same() -> None:
    report = mended().model_copy(update={"messages": ()})

    assert RunView(report).unseen == [0, 1]
    assert "It names a step." in run_page(report)


def test_a_story_without_anything_is_a_page() -> None:
    page = run_page(RunReport(name="empty", kind="thread", verdict="none", word="idle"))

    assert "<h1>empty</h1>" in page


def test_citations_become_links_and_unknown_places_do_not() -> None:
    view = RunView(judged())

    parts = {part.text: part for part in dict(view.output)["explanation"]}
    assert parts["T0B1: “grep -r main”"].href == "r-cite0"
    assert (parts["T0B9"].href, parts["T0B9"].verified) == (None, False)
    assert view.doubt == "tied: label"


def test_a_document_lets_in_its_own_styles_and_scripts_and_nothing_else() -> None:
    page = run_page(mended())
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert found is not None
    policy = found[1].replace("&#39;", "'")
    inline = re.findall(r"<(style|script)>(.*?)</\1>", page, flags=re.DOTALL)

    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for _, text in inline:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    assert {kind for kind, _ in inline} == {"style", "script"}
    assert not re.search(r"https?://(?!www\.w3\.org)", page)
    assert " style=" not in page


def test_what_nobody_sees_is_shown() -> None:
    assert shown("a\u202eb\x1b\u200b\ud800\r\nc\td") == "a\\u202eb\\u001b\\u200b\\ud800\nc\td"
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467 سلام"
    assert shown(family) == family


def test_data_in_a_script_cannot_end_it() -> None:
    told_so = str(data({"x": "</script><!--\u2028&"}))

    assert json.loads(told_so) == {"x": "</script><!--\u2028&"}
    assert not set("<>&\u2028") & set(told_so)


def test_packs_hold_every_part_in_its_place_and_stop_where_they_are_full() -> None:
    packer = Packer(most=10**6)
    places = [packer.add(f"<p>{number} \ud800</p>") for number in range(45)]
    packer.close()
    lines = [json.loads(zlib.decompress(base64.b64decode(pack))) for pack in packer.packs]

    assert [lines[pack][at] for pack, at in places] == [f"<p>{number} ?</p>" for number in range(45)]
    full = Packer(most=100)
    for number in range(20):
        full.add(hashlib.sha256(str(number).encode()).hexdigest())
    assert not full.has_room(urgent=True)
    assert packer.has_room(urgent=False)


def test_a_histogram_counts_every_score_once_and_the_whole_ones_apart() -> None:
    bars = histogram([0.0, 0.05, 0.3, 0.99, 1.0, 1.0])

    assert {label: count for label, count in bars.items() if count} == {"0.0": 2, "0.3": 1, "0.9": 1, "1": 2}
    assert list(histogram([]).values()) == [0] * 11


def test_a_histogram_puts_what_code_scored_outside_of_0_to_1_into_its_outer_bars_and_says_so() -> None:
    bars = histogram([-2.0, 0.05, 1.0, 7.5])

    assert {label: count for label, count in bars.items() if count} == {"<0.1": 2, "≥1": 2}


def test_the_worst_criteria_come_first_and_what_has_no_verdict_does_not_count() -> None:
    criteria = CriterionCounts()
    criteria.take([row("c1", passed=False), row("c2", passed=False), row("c3")])
    criteria.take([row("c1", passed=False), row("c2", passed=False, unverified=True), row("c3")])

    assert [(criterion.id, criterion.failed, criterion.judged) for criterion in criteria.worst(5)] == [("c1", 2, 2), ("c2", 1, 1)]


def rows_of(*results: CaseResult) -> list[CaseRow]:
    """Return the rows of a batch's table."""
    table = ColumnTable(summary_of(results), results)
    report = BatchReport(head_of(summary_of(results)), [(None, result) for result in results], columns=table)
    found = [row_of(at, entry) for at, entry in enumerate(entries(report))]
    return with_differences(found)


def test_columns_that_differ_are_marked_and_errors_say_nothing() -> None:
    found = rows_of(
        case(0, "passed", id="a/x", label="x"),
        case(1, "failed", id="a/y", label="y"),
        case(2, "passed", id="b/x", label="x"),
        case(3, "error", id="b/y", label="y"),
    )

    assert [item.test for item in found] == ["a", "a", "b", "b"]
    assert ["differs" in item.flags for item in found] == [True, True, False, False]
    assert filters(found) == [("failed", "failures", 1), ("error", "errors", 1), ("differs", "columns differ", 1)]
    assert {test: list(cells) for test, cells in by_test(found, found).items()} == {"a": [X, Y], "b": [X, Y]}


X, Y = (None, "x"), (None, "y")


def test_a_case_without_room_for_its_texts_still_has_its_verdict_beside_the_others() -> None:
    found = rows_of(case(0, "failed", id="a/x", label="x"), case(1, id="a/y", label="y"), case(2, id="b/y", label="y"))

    assert {test: {key: [row.number for row in cells] for key, cells in by.items()} for test, by in by_test(found[:1], found).items()} == {
        "a": {X: [0], Y: [1]}
    }


def test_nothing_is_compared_where_no_test_was_put_to_two_columns() -> None:
    for results in ([case(0, label="x"), case(1, label="y")], [case(0), case(1)]):
        found = rows_of(*results)
        assert by_test(found, found) == {}


def test_repetitions_share_a_cell() -> None:
    results = [
        case(at, id=f"a/{label}/{count}", label=label, repeat=count - 1) for at, (label, count) in enumerate([("x", 1), ("x", 2), ("y", 1)])
    ]
    specs = [Case.model_validate({"id": result.id, "output": "o", "rubric": "- x", "repeat": result.repeat}) for result in results]
    table = ColumnTable(summary_of(results), results)
    report = BatchReport(head_of(summary_of(results)), list(zip(specs, results, strict=True)), columns=table)

    assert {entry.test for entry in entries(report)} == {"a"}


def test_a_case_that_was_not_run_or_ended_in_an_error_has_no_verdict() -> None:
    error, queued = read_case_report(case(0, "error")), read_case_report(case(1, "queued", error="the budget is used up"))

    assert (error.verdict, error.error, error.evaluations) == ("error", "the provider says 529", ())
    assert (queued.verdict, queued.word, queued.evaluations) == ("none", "not run", ())
    assert queued.notes[-1] == "Not run: the budget is used up"


def test_a_case_with_a_thread_tells_the_threads_whole_story() -> None:
    story = with_thread(case(0, "failed", iterations=2, thread_id="b/1", description="Refunds"), mended())

    assert (story.name, story.kind, story.verdict, story.word) == ("case-0", "case", "failed", "failed")
    assert (story.about["description"], story.about["thread now"]) == ("Refunds", "satisfied")
    assert len(story.evaluations) == 2


def test_a_case_that_waits_for_a_person_is_told_by_its_thread() -> None:
    waiting = case(0, "waiting")
    story = with_thread(waiting, mended().model_copy(update={"verdict": "waiting", "word": "waiting"}))

    assert thread_of(waiting, "batch-1") == "batch-1/case-0"
    assert (story.verdict, story.word, "thread now" in story.about) == ("waiting", "waiting", False)


def test_what_people_said_is_in_the_table() -> None:
    override = {"passed": True, "why": "It does.", "by": "Ada", "time": "2026-01-02T03:04:05Z"}
    found = rows_of(case(0, "failed", criteria=(row("c1"), row("c2", passed=False, override=override))))

    assert "person" in found[0].flags
    assert found[0].worst == ""


def test_a_page_of_too_many_cases_leaves_out_those_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeloop.batches.pages.collection_page.TABLE_BYTES", 1_100)
    results = [case(at, "failed" if at % 4 == 3 else "passed", id=f"{at // 2}/{at % 2}", label=str(at % 2)) for at in range(12)]
    page = batch_page(BatchReport(head_of(summary_of(results)), [(None, result) for result in results]))

    assert "Counted but not listed here: 5 passed; gradeloop batches export batch-1 -o results.csv has all." in page
    assert page.count('<tr id="case-') == 7
    assert len(re.findall('data-f="[^"]*failed', page)) == 3


def test_a_page_that_would_be_too_large_keeps_the_failures_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeloop.batches.pages.collection_page.PACKED_BYTES", 30_000)
    results = [
        case(at, "failed" if at % 50 == 49 else "passed", output=hashlib.sha512(str(at).encode()).hexdigest() * 9) for at in range(400)
    ]
    page = batch_page(BatchReport(head_of(summary_of(results)), [(None, result) for result in results]))
    failed = re.findall(r'<tr id="case-\d+" data-f="failed"([^>]*)>', page)

    assert " rows cannot be opened here, so that the file stays below 20 MB" in page
    assert len(failed) == 8
    assert all("data-p=" in value for value in failed)


def test_one_judgement_is_a_page_and_several_are_a_table() -> None:
    one, two = judged(), judged().model_copy(update={"name": "run-8"})

    assert "<h2>Judgement</h2>" in judgement_page(judgement_head("careful", [one], {}), [one])
    page = judgement_page(judgement_head("careful", [one, two], {"judge": "careful"}), [one, two])
    assert "2 judgements" in page
    assert "of 4 citations found" in page
    assert 'data-l="label=match">match</td>' in page
    assert "[T0B1" not in page.split("<tbody>")[1].split("</tbody>")[0]


def test_a_head_tells_only_what_there_is() -> None:
    head = head_of(summary_of([case(0), case(1, "failed")], usage=Usage()))

    assert [(tile.label, tile.value) for tile in head.tiles] == [
        ("passed", "1"),
        ("failed", "1"),
        ("errors", "0"),
        ("of 2 judged, 100% wanted", "50%"),
    ]


def test_a_collection_of_one_kind_of_thing_names_it() -> None:
    head = PageHeader(name="x", word="", verdict="none", noun="judgement", tiles=(), about={})

    assert "1 judgement<" in collection_page(head, [PageRow(mended(), "x")])


NUMBERS = {0.0: "0%", 1.0: "100%", 0.999: "99.9%", 0.004: "0.4%", 0.5: "50%", None: ""}


@pytest.mark.parametrize("share", NUMBERS)
def test_a_share_is_never_all_or_nothing_where_it_is_not(share: float | None) -> None:
    assert percent(share) == NUMBERS[share]


def test_times_are_read_by_people() -> None:
    assert when("2026-11-22T06:38:32.337+00:00") == "2026-11-22 06:38:32 UTC"
    assert when("yesterday at T noon") == "yesterday at T noon"
    assert [seconds(value) for value in (None, 0.0123, 1.25, 150.0)] == ["", "12 ms", "1.2 s", "2 min 30 s"]


def test_a_batch_begins_with_its_answer_then_what_failed_and_says_what_to_do() -> None:
    results = [case(0), case(1, "error"), case(2, "failed")]
    page = batch_page(BatchReport(head_of(summary_of(results)), [(None, result) for result in results]))
    body = page[page.index("<main") : page.index("</main>")]

    places = [
        body.index(words)
        for words in (
            '<a href="#case-case-1">INCONCLUSIVE: 1 error</a></p>',
            "What failed",
            "the provider says 529",
            "gradeloop eval --retry errors --attach batch-1",
        )
    ]
    assert places == sorted(places)
    assert places[-1] < body.index("<b>1</b><span>passed</span>")
    assert [found[1] for found in re.finditer(r'<span class="name">(case-\d)</span>', body)] == ["case-2", "case-1", "case-0"]


def test_the_batches_of_a_suite_are_a_line_the_oldest_first() -> None:
    now = summary_of([case(0), case(1, "failed")], batch_id="now", created="2026-01-03T00:00:00Z")
    before = summary_of([case(0)], batch_id="before", created="2026-01-02T00:00:00Z")
    other = summary_of([case(0)], batch_id="other", name="letters", created="2026-01-01T00:00:00Z")
    theirs = before.model_copy(update={"batch_id": "theirs", "tenant": "acme"})
    past = past_batches(now, [other, now, before, theirs])

    assert [(batch.batch_id, batch.answer, batch.rate) for batch in past] == [("before", "PASSED", 1.0), ("now", "FAILED 50% of 100%", 0.5)]
    assert past_batches(before, [other, before]) == ()
    page = batch_page(BatchReport(replace(head_of(now), history=past), []))
    assert "oldest first: 100%, 50%" in page
    assert "the batch before: PASSED" in page


def test_a_case_shows_its_rubric_before_any_verdict() -> None:
    page = run_page(mended())

    assert page.index("Rubric: 3 criteria") < page.index('class="evaluation"')
    assert 'class="answer passed">PASSED</p>' in page
