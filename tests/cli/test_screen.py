"""A run in words and on a terminal: what each line says, and what fits."""

import io
import json

import pytest
from rich.console import Console
from rich.text import Text

from activities.errors import PERMANENT
from gradeloop.cli.render.run import (
    JsonScreen,
    LiveScreen,
    PlainScreen,
    evaluations_table,
    event_line,
    phase_line,
    print_line,
    row_lines,
    rubric_lines,
    state_lines,
    summary,
)
from gradeloop.cli.render.table import Column, Line, criterion_line, line_width, show_lines, table
from gradeloop.contract.evaluation import CriterionRow, Evaluation, Event
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import RunResult, ThreadState
from gradeloop.text import duration, one_line, printable

WHEN = "2026-01-02T03:04:05.000+00:00"


def console(width: int = 80, *, terminal: bool = False) -> Console:
    """Return a console whose output can be read."""
    return Console(file=io.StringIO(), width=width, height=20, force_terminal=terminal, color_system=None, highlight=False, markup=False)


def shown(on: Console) -> str:
    """Return what a console was given."""
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


def event(kind: str, **facts: object) -> Event:
    return Event.model_validate({"seq": 1, "type": kind, "time": WHEN, "iteration": 0} | facts)


def evaluation(*passed: bool, status: str = "running", **facts: object) -> Evaluation:
    rows = [
        {"id": f"c{at}", "name": f"criterion {at}", "passed": ok, "reason": "r", "gap": None if ok else f"gap {at}"}
        for at, ok in enumerate(passed, 1)
    ]
    fields = {"grading_run_id": "r", "iteration": 0, "status": status, "explanation": "Read.", "criteria": rows, "draft": 1}
    fields |= {"result": "satisfied" if all(passed) else "needs_revision", "score": sum(passed) / max(len(passed), 1)}
    return Evaluation.model_validate(fields | facts)


def result_of(*evaluations: Evaluation, **facts: object) -> RunResult:
    fields = {"thread_id": "t", "grading_run_id": "r", "status": "satisfied", "iterations": len(evaluations), "score": 1.0, "error": None}
    fields |= {"output": "the draft", "best_iteration": 0, "last_output": "the draft", "messages": (), "messages_truncated": False}
    fields |= {"evaluations": evaluations, "usage": Usage(input=1200, output=34, calls=1)}
    return RunResult.model_validate(fields | facts)


PHASES = [
    (event("run_started"), "iteration 1: drafting"),
    (event("rubric_evaluation_start"), "iteration 1: grading"),
    (event("tool_called", tool="search", role="generator"), "iteration 1: drafting, with search"),
    (event("tool_called", tool="search", role="grader"), "iteration 1: grading, with search"),
    (event("tool_called", tool="suite", role="check"), "iteration 1: grading, with suite"),
    (event("rubric_evaluation_end", status="running"), "iteration 2: revising"),
    (event("rubric_evaluation_end", status="satisfied"), "iteration 1: graded"),
    (event("rubric_evaluation_end", status="max_iterations_reached"), "iteration 1: graded"),
    (event("resumed"), "iteration 1: resuming"),
    (event("message", index=0), None),
    (event("run_ended"), None),
]


def test_the_phase_names_what_goes_on_after_an_event(subtests: pytest.Subtests) -> None:
    for expected, phase in PHASES:
        with subtests.test(phase):
            line = phase_line(expected)

            assert (line.plain if line else None) == phase


def test_a_line_tells_of_a_draft_a_tool_and_a_grade() -> None:
    draft = event_line(event("message", index=1), Message(role="assistant", content="four"), None)
    check = event_line(event("tool_called", tool="suite", role="check"), None, None)
    graded = event_line(event("rubric_evaluation_end"), None, evaluation(True, False))

    assert [line.plain for line in (draft, check, graded) if line] == [
        "iteration 1: draft, 4 characters",
        "iteration 1: the check suite",
        "iteration 1: needs_revision, 1 of 2 pass  Read.",
    ]


def test_an_interruption_says_why() -> None:
    lines = {reason: event_line(event("interrupted", reason=reason), None, None) for reason in ("person", "budget", "outage")}

    assert {reason: line.plain if line else None for reason, line in lines.items()} == {
        "person": "interrupted",
        "budget": "interrupted: its budget allows no further call",
        "outage": "interrupted: a provider is away; resume once it answers",
    }


STEPS = [
    ("person", None, "resume it with: gradeloop resume t"),
    ("failure", "server: HTTP 500: x", "resume it with: gradeloop resume t"),
    *(
        (reason, f"{kind}: x", "once that is mended, or add --model or --grader with another model: gradeloop resume t")
        for reason, kind in (("outage", "outage"), ("failure", "auth"), ("failure", "quota_exhausted"))
    ),
    *(
        ("failure", f"{kind}: HTTP 400: x", "resume it with another model: gradeloop resume t --model PROVIDER:MODEL")
        for kind in PERMANENT
        if kind not in {"auth", "quota_exhausted"}
    ),
]


def test_the_state_of_an_interrupted_thread_says_what_failed_and_what_comes_next(subtests: pytest.Subtests) -> None:
    for reason, error, step in STEPS:
        with subtests.test(str(error)):
            nothing = dict.fromkeys(("grading_run_id", "phase", "iteration", "rubric", "rubric_sha256", "waiting_for"))
            facts: dict[str, object] = {"status": "interrupted", "reason": reason, "error": error, "usage": {}, "queued": 0}

            said = [line.plain for line in state_lines("t", ThreadState.model_validate(nothing | facts)) if isinstance(line, Text)]

            assert said[-1].endswith(step)
            assert (f"  {error}" in said) is (error is not None)


def test_the_draft_in_question_stands_above_the_question_and_no_other_draft_does() -> None:
    row = {"id": "c1", "name": "three lines", "passed": True, "reason": "r"}
    changed = [{"kind": "removed", "text": "a cat"}, {"kind": "added", "text": "the dog"}, {"kind": "same", "text": " sat"}]
    question = {"index": 3, "text": "the dog sat", "rows": [row], "previous": 1, "changes": changed}
    waiting = {"grading_run_id": "r", "iteration": 1, "criteria": [{"id": "promise", "name": "Promises nothing"}], "draft": question}
    facts = {"status": "waiting", "output": "the dog sat", "best_iteration": None, "score": None, "waiting_for": waiting}
    screen = console()

    PlainScreen(screen).show_result(result_of(evaluation(False), **facts))
    nothing = dict.fromkeys(("phase", "rubric", "rubric_sha256"))
    state = nothing | {"status": "waiting", "grading_run_id": "r", "iteration": 1, "usage": {}, "queued": 0, "waiting_for": waiting}
    for line in state_lines("t", ThreadState.model_validate(state)):
        screen.print(line)

    asked = [
        "the dog sat",
        "[-a cat-]{+the dog+} sat",
        "✓ c1  three lines",
        "gradeloop decide t promise --pass   or --fail; does this hold? Promises nothing",
    ]
    lines = [line.rstrip() for line in shown(screen).splitlines() if not line.startswith("─")]
    assert lines[-4:] == asked
    assert [line for line in lines if line in asked] == asked + asked
    assert "draft in question, iteration 2" in shown(screen)
    assert "best draft" not in shown(screen)


@pytest.mark.parametrize(
    ("usage", "line"),
    [
        ({"input": 9, "output": 1, "calls": 1}, "  the budget is used up: 10 of 10 tokens are used; resume with a larger one"),
        (
            {"input": None, "output": None, "calls": 1},
            "  the budget cannot be checked: a model's server does not report the tokens of its calls; use another model, or no budget",
        ),
    ],
)
def test_the_state_of_a_thread_that_its_budget_stopped_says_why(usage: dict[str, object], line: str) -> None:
    nothing = dict.fromkeys(("grading_run_id", "phase", "iteration", "rubric", "rubric_sha256", "waiting_for"))
    about = {"status": "interrupted", "reason": "budget", "usage": usage, "budget": {"max_tokens": 10}, "queued": 0}

    lines = [part.plain for part in state_lines("t", ThreadState.model_validate(nothing | about)) if isinstance(part, Text)]

    assert lines[-1] == line
    assert ("tokens not reported" in lines[-2]) is (usage["input"] is None)


def test_a_users_message_and_a_call_for_tools_are_no_lines_of_their_own() -> None:
    calling = Message.model_validate({"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "search", "arguments": {}}]})

    assert event_line(event("message", index=0), Message(role="user", content="hi"), None) is None
    assert event_line(event("message", index=1), calling, None) is None


def test_the_rubric_is_printed_as_it_was_understood() -> None:
    rubric = Rubric.model_validate("# Form\n- three lines\n  and no more\n- about spring\n# The end")

    assert [(line.head + line.body).plain for line in rubric_lines(rubric)] == [
        "Rubric: 2 criteria", "  # Form", "  c1  three lines and no more", "  c2  about spring", "  # The end",
    ]  # fmt: skip


def test_ids_of_different_length_line_up_and_checks_and_optional_ones_say_so() -> None:
    criteria = [{"id": "tests", "description": "pass", "check": "suite"}, {"id": "a", "description": "nice", "required": False}]

    lines = [(line.head + line.body).plain for line in rubric_lines(Rubric.model_validate({"criteria": criteria}))]

    assert lines[1:] == ["  tests  pass  (check: suite)", "  a      nice  (optional)"]


def test_a_failing_criterion_shows_its_gap_and_an_unverified_one_a_question_mark() -> None:
    unverified = CriterionRow(id="c1", name="n", passed=False, reason="", gap="the grader gave no verdict", unverified=True)

    assert criterion_line(evaluation(False).criteria[0]).body.plain == "criterion 1: gap 1"
    assert criterion_line(unverified).head.plain == "? c1  "


def test_many_criteria_that_pass_are_counted_rather_than_listed() -> None:
    many = [(line.head + line.body).plain for line in row_lines(evaluation(*[at != 3 for at in range(1, 13)]))]

    assert many == ["✗ c3   criterion 3: gap 3", "✓ the other 11 criteria pass"]
    assert [(line.head + line.body).plain for line in row_lines(evaluation(*[True] * 12))] == ["✓ all 12 criteria pass"]


def test_the_summary_names_the_best_draft_the_status_and_the_cost() -> None:
    on = console()
    for part in summary(result_of(evaluation(True)), 80):
        on.print(part)

    assert "best draft, iteration 1" in shown(on)
    assert "satisfied after 1 iteration  1 model call, 1,200 tokens in, 34 out" in shown(on)


def test_a_thread_that_waits_says_in_which_iteration() -> None:
    on = console()
    waits = {"grading_run_id": "r", "iteration": 0, "criteria": [{"id": "c1", "name": "it is kind"}]}
    for part in summary(result_of(status="waiting", iterations=0, best_iteration=None, score=None, waiting_for=waits), 80):
        on.print(part)

    assert "waiting in iteration 1  1 model call" in shown(on)


def test_an_ungraded_answer_has_no_table_and_no_iterations() -> None:
    on = console()
    for part in summary(result_of(status=None, grading_run_id=None, iterations=0, best_iteration=None, score=None), 80):
        on.print(part)

    assert " answer " in shown(on)
    assert "ungraded  1 model call" in shown(on)
    assert "iteration" not in shown(on)


@pytest.mark.parametrize(("width", "headings"), [(80, "iteration  result          c1  c2  c3  score"), (40, "iteration  result")])
def test_the_table_has_a_column_a_criterion_where_that_fits(width: int, headings: str) -> None:
    on = console(80)
    on.print(evaluations_table(result_of(evaluation(True, False, True)), width))

    assert shown(on).startswith(headings)
    assert ("not passed" in shown(on)) is (width == 40)


def test_a_long_line_stays_one_line_in_a_pipe_and_hangs_below_its_body_on_a_terminal() -> None:
    line = Line(Text("  c1  "), Text("a criterion that has more words than fit into so narrow a terminal"))
    pipe, terminal = console(40), console(40, terminal=True)
    print_line(pipe, line)
    print_line(terminal, line)

    assert len(shown(pipe).splitlines()) == 1
    assert all(text.startswith(("  c1  a", "      ")) for text in shown(terminal).splitlines())
    assert max(len(text) for text in shown(terminal).splitlines()) <= 40


def test_seconds_are_counted_from_the_first_event_not_from_when_one_began_to_watch() -> None:
    on = console()
    screen = PlainScreen(on)
    screen.show_event(event("run_started"), None, None)
    screen.show_event(event("message", time="2026-01-02T03:04:17.500+00:00", index=1), Message(role="assistant", content="d"), None)

    assert shown(on) == "  12.5 s  iteration 1: draft, 1 character\n"


def test_the_live_view_shows_gaps_beside_the_criteria_and_puts_failing_ones_first_where_not_all_fit() -> None:
    on = console(60, terminal=True)
    rubric = Rubric.model_validate("\n".join(f"- criterion {at}" for at in range(1, 41)))
    screen = LiveScreen(on, rubric)
    screen.show_tokens(Usage(input=1000, output=500))
    screen.show_event(event("rubric_evaluation_end", status="running"), None, evaluation(*[at not in {30, 40} for at in range(1, 41)]))
    with on.capture() as captured:
        on.print(screen._render())
    lines = captured.get().splitlines()

    assert "iteration 2: revising" in lines[0]
    assert "1,500 tokens" in lines[0]
    assert " ✗ c40  criterion 40: gap 40" in lines
    assert " ✗ c30  criterion 30: gap 30" in lines
    assert lines[-1] == " … 30 more, all of them pass"
    assert len(lines) == 12
    assert max(len(line) for line in lines) < 60


def test_the_live_view_shows_criteria_that_are_objects_and_checks_with_arguments() -> None:
    on = console(terminal=True)
    check = {"tool": "word_count", "arguments": {"maximum": 80}}
    rubric = Rubric.model_validate({"criteria": [{"description": {"role": "the tone"}}, {"description": "short", "check": check}]})
    with on.capture() as captured:
        on.print(LiveScreen(on, rubric)._render())

    assert captured.get().splitlines()[1:] == [' · c1  {"role": "the tone"}', " · c2  short"]


def test_a_json_line_is_ascii_where_the_stream_is_not_utf_8() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    JsonScreen(Console(file=stream)).show_thread("春")

    assert json.loads(raw.getvalue()) == {"type": "thread", "thread_id": "春"}
    assert raw.getvalue().isascii()
    stream.close()


def test_a_pipe_gets_ids_and_commands_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    thread, command = f"haiku{'-again' * 20}", f"next: gradeloop show {'long ' * 40}end"

    status = Column("status", ["satisfied"])
    for one in (table([Column("thread", [thread], wraps=True), status]), table([Column("case", [thread], share=5), status], line_width())):
        show_lines(None, [one, command], as_json=False)

        assert capsys.readouterr().out.split("\n")[1:] == [f"{thread}  satisfied", command, ""]


def test_text_is_made_harmless_for_a_terminal() -> None:
    assert printable("a\x1b[31mb\x07\u202ec\td\ne") == "a[31mbc\td\ne"
    assert printable("a\u061cb\u200bc\u2060d\ufeffe\U000e0041f\u00adg") == "abcdefg"
    assert one_line("a\nb\t c\r\nd") == "a b c d"


TIMES = [
    (0, "0 s"),
    (59.4, "59 s"),
    (60, "1 min"),
    (119, "1 min"),
    (7200, "2 h"),
    (7260, "2 h 1 min"),
    (86_400, "1 d"),
    (100_000, "1 d 3 h"),
    (604_800, "7 d"),
]


def test_a_time_is_told_in_its_two_largest_units_above_seconds(subtests: pytest.Subtests) -> None:
    for seconds, text in TIMES:
        with subtests.test(text):
            assert duration(seconds) == text
