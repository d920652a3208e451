"""Batches on a terminal and in a pipe: the live view, the table of results, the list of batches, everything about a case."""

import io
import re
import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from gradeloop.batches.cli.batch_view import LATEST, BatchProgressView, Throughput, batch_table, case_lines, span
from gradeloop.batches.cli.results_table import result_lines
from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.batches.pages.read_batch import BatchReport, batch_page, head_of
from gradeloop.cli.render import table as tables_of
from gradeloop.cli.render.table import Column
from gradeloop.contract.evaluation import Override, Quote, Vote
from gradeloop.contract.messages import Usage
from gradeloop.text import money
from tests.rig.batch_results import HOSTILE, case, cases, row, summary_of

STATUSES = ("passed", "failed", "error", "waiting", "queued")
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Clock:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def console(width: int = 80, height: int = 24, *, terminal: bool = True, colours: bool = False) -> Console:
    """Return a console whose output can be read."""
    return Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=terminal,
        color_system="truecolor" if colours else None,
        highlight=False,
        markup=False,
        emoji=False,
        _environ={"TERM": "xterm"},
    )


def shown(parts: Iterable[RenderableType], width: int = 80, *, colours: bool = False) -> str:
    """Return what a console makes of some parts."""
    on = console(width, colours=colours)
    with on.capture() as captured:
        for part in parts:
            on.print(part)
    return captured.get()


def rendered(board: BatchProgressView) -> list[str]:
    """Return the lines of a live view."""
    with board._console.capture() as captured:
        board._console.print(board._render())
    return [line.rstrip() for line in captured.get().splitlines()]


def plain(board: BatchProgressView) -> list[str]:
    """Return the lines that a board wrote into a pipe."""
    assert isinstance(board._console.file, io.StringIO)
    return board._console.file.getvalue().splitlines()


def standing(passed: int = 0, failed: int = 0, errors: int = 0, *, total: int = 200, **facts: Any) -> BatchSummary:
    """Return where a running batch stands."""
    ended = {"passed": passed, "failed": failed, "errors": errors, "total": total, "status": "running"}
    return summary_of([], **(ended | facts))


def test_the_live_view_tells_what_is_done_runs_waits_and_costs() -> None:
    facts: dict[str, Any] = {
        "cached": 3,
        "waiting": 1,
        "throttled": 2,
        "throttled_by": "anthropic",
        "budget": {"max_cost_usd": 2, "max_tokens": 5_000_000},
    }
    board = BatchProgressView(console(100), 200, clock=Clock())
    board.update(standing(80, 12, 3, usage={"input": 1_234_000, "output": 567, "calls": 9, "cost_usd": 0.4321}, **facts), 16)
    lines = rendered(board)
    board.close()

    assert lines[0].endswith("95 of 200 done")
    assert lines[1:] == [
        "80 passed · 12 failed · 3 errors · 1 waiting · 16 running · 88 queued · 3 cached",
        "1,234,567 of 5,000,000 tokens · $0.4321 of $2.00 · throttled 2 times by anthropic",
    ]


def test_the_live_view_says_which_rate_limit_is_waited_for() -> None:
    board = BatchProgressView(console(100), 200, clock=Clock())
    board.note_wait("waiting for openai:gpt-6-luna's rate limit, 40 s")
    board.update(standing(80), 16)
    lines = rendered(board)
    board.close()

    assert any("waiting for openai:gpt-6-luna's rate limit, 40 s" in line for line in lines)


def test_a_pipe_says_once_a_minute_what_a_batch_waits_for_where_no_case_ends() -> None:
    clock = Clock()
    board = BatchProgressView(console(100, terminal=False), 200, clock=clock)
    for wait in (None, "m has not answered for 40 s", "m has not answered for 1 min", "m has written about 9 tokens in 2 min", None):
        board.note_wait(wait)
        board.update(standing(0), 2)
        clock.now += 30

    assert plain(board) == [
        "0 of 200 done; 2 running; 198 queued; m has not answered for 1 min",
        "0 of 200 done; 2 running; 198 queued",
    ]


def test_the_live_view_shows_the_latest_cases_without_a_pass_in_words() -> None:
    board = BatchProgressView(console(60), 200, clock=Clock())
    board.update(standing(), 4)
    for index in range(10):
        board.finished(case(index, STATUSES[index % 2]))
    board.finished(case(10, "error"))
    lines = rendered(board)
    board.close()

    assert lines[-LATEST:] == [
        "failed  case-3  c2: it says nothing",
        "failed  case-5  c2: it says nothing",
        "failed  case-7  c2: it says nothing",
        "failed  case-9  c2: it says nothing",
        "error  case-10  the provider says 529",
    ]


@given(st.integers(20, 120), st.integers(1, 40), st.integers(0, 100_000), st.booleans())
def test_the_live_view_fits_every_terminal(width: int, height: int, passed: int, paused: bool) -> None:
    status: dict[str, Any] = {"status": "paused", "reason": HOSTILE * 3} if paused else {}
    board = BatchProgressView(console(width, height), 300_000, clock=Clock())
    board._summary = standing(passed, passed, passed, total=300_000, throttled=passed, throttled_by=HOSTILE, **status)
    for index in range(8):
        board.finished(case(index, "error", id=HOSTILE, error=HOSTILE))
    lines = rendered(board)

    assert max(cell_len(line) for line in lines) <= max(width, 20)
    assert not UNPRINTABLE.search("".join(lines))


def test_a_low_terminal_has_room_for_the_counts_alone() -> None:
    board = BatchProgressView(console(80, height=9), 10, clock=Clock())
    board._summary = standing(1, total=10)
    for index in range(3):
        board.finished(case(index, "failed"))

    assert [line[:6] for line in rendered(board)[2:]] == ["failed"]


def test_a_terminal_is_left_as_it_was() -> None:
    board = BatchProgressView(console(), 10, clock=Clock())
    board.update(standing(total=10), 1)
    board.close()
    assert isinstance(board._console.file, io.StringIO)
    text = board._console.file.getvalue()

    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert not board._console.is_alt_screen


def test_a_board_that_nothing_was_told_to_leaves_nothing_behind() -> None:
    board = BatchProgressView(console(), 10)
    board.close()

    assert plain(board) == []


def test_a_pipe_has_a_line_for_every_case() -> None:
    board = BatchProgressView(console(terminal=False), 5_000, clock=Clock())
    for index in range(1_500):
        board.finished(case(index, "failed" if index == 7 else "passed"))
        board.update(standing(index, total=5_000), 4)
    board.close()
    lines = plain(board)

    assert (len(lines), lines[0], lines[7]) == (1_500, "passed  case-0", "failed  case-7  c2: it says nothing")
    assert not any("\x1b" in line for line in lines)


def test_a_pipe_hears_something_every_minute_while_no_case_ends() -> None:
    clock = Clock()
    board = BatchProgressView(console(terminal=False), 1_000, clock=clock)
    for second in range(200):
        if second < 30:
            board.finished(case(second, "passed"))
        board.update(standing(30, total=1_000), 1)
        clock.now += 1

    assert [line.split(":")[0] for line in plain(board)[30:]] == ["30 of 1,000 done", "30 of 1,000 done"]


@given(cases())
def test_whatever_was_said_a_line_in_a_pipe_stays_one_line(results: list[CaseResult]) -> None:
    board = BatchProgressView(console(terminal=False), 10, clock=Clock())
    for result in results:
        board.finished(result)

    assert len(plain(board)) == len(results)
    assert not UNPRINTABLE.search("".join(plain(board)))


def test_the_time_left_follows_the_pace_of_the_last_minute() -> None:
    clock = Clock()
    pace = Throughput(clock)
    seen = []
    for second in range(301):
        pace.observe(second * 10 if second <= 120 else 1_200 + (second - 120), moving=True)
        seen.append(pace.seconds_left(600))
        clock.now += 1

    assert seen[:3] == [None, None, None]
    assert seen[100] == pytest.approx(60, rel=0.02)
    assert 60 < (seen[150] or 0) < 600
    assert seen[300] == pytest.approx(600, rel=0.02)


def test_slow_cases_have_a_pace_too() -> None:
    clock = Clock()
    pace = Throughput(clock)
    for done in range(8):
        pace.observe(done, moving=True)
        clock.now += 180

    assert pace.seconds_left(10) == pytest.approx(10 * 180 * 6 / 5, rel=0.2)


def test_nothing_is_promised_at_the_start_while_paused_or_when_cases_run_again() -> None:
    clock = Clock()
    pace = Throughput(clock)
    pace.observe(50, moving=True)
    assert pace.seconds_left(10) is None
    clock.now += 10
    pace.observe(60, moving=True)
    assert pace.seconds_left(10) == 10
    pace.observe(60, moving=False)
    assert pace.seconds_left(10) is None
    pace.observe(60, moving=True)
    clock.now += 10
    pace.observe(70, moving=True)
    assert pace.seconds_left(10) == 10
    pace.observe(40, moving=True)

    assert pace.seconds_left(10) is None


def test_the_live_view_has_no_time_left_when_paused() -> None:
    clock = Clock()
    board = BatchProgressView(console(), 200, clock=clock)
    board.update(standing(0), 4)
    clock.now += 10
    board.update(standing(100), 4)
    moving = rendered(board)
    board.update(standing(100, status="paused", reason="the budget is used up"), 0)
    paused = rendered(board)
    board.close()

    assert moving[-1].endswith("4 running · 96 queued · 0:10 left")
    assert paused[-1].endswith("100 queued · paused: the budget is used up")


@pytest.mark.parametrize(("seconds", "expected"), [(0, "0:00"), (59.6, "1:00"), (3_599, "59:59"), (3_600, "1:00:00"), (90_061, "25:01:01")])
def test_a_time_is_told_as_a_clock_shows_it(seconds: float, expected: str) -> None:
    assert span(seconds) == expected


def table(results: Sequence[CaseResult], width: int = 80, *, colours: bool = False) -> list[str]:
    """Return the lines of a table of results."""
    return [line.rstrip() for line in shown(result_lines(iter(results), width), width, colours=colours).splitlines()]


def test_the_table_says_in_words_what_each_case_of_a_small_batch_came_to() -> None:
    assert table([case(index, status) for index, status in enumerate(STATUSES)]) == [
        "case    verdict  score  output       why                       cost",
        "case-0  passed    1.00  the draft 0                         $0.0010",
        "case-1  failed    0.50  the draft 1  c2: it says nothing    $0.0010",
        "case-2  error                        the provider says 529  $0.0010",
        "case-3  waiting                                             $0.0010",
        "case-4  not run                                             $0.0010",
    ]


def test_the_table_says_it_in_colour_too() -> None:
    lines = table([case(index, status) for index, status in enumerate(STATUSES)], colours=True)

    expected = ["\x1b[32mpassed", "\x1b[31mfailed", "\x1b[1;33merror", "\x1b[33mwaiting", "\x1b[2mnot run"]

    assert [style in line for style, line in zip(expected, lines[1:], strict=True)] == [True] * 5


def test_the_table_has_a_column_for_each_generator_side_by_side_where_there_are_several() -> None:
    one = table([case(index, label="a") for index in range(2)])
    statuses = ("failed", "passed", "passed", "failed")
    several = table([case(at, status, id=f"t{at // 2}/{'ab'[at % 2]}", label="ab"[at % 2]) for at, status in enumerate(statuses)])

    assert one[0].split() == ["case", "verdict", "score", "output", "cost"]
    assert several == [
        "case  a                                     b",
        "",
        "t0    failed 0.50  the draft 0              passed 1.00  the draft 1",
        "      c2: it says nothing",
        "",
        "t1    passed 1.00  the draft 2              failed 0.50  the draft 3",
        "                                            c2: it says nothing",
    ]


def test_generators_that_have_no_room_side_by_side_have_a_row_a_case() -> None:
    lines = table([case(index, id=f"t/{name}", label=name) for index, name in enumerate("abcde")])

    assert lines[0].split() == ["case", "generator", "verdict", "score", "output", "cost"]
    assert [line.split()[:3] for line in lines[1:]] == [[f"t/{name}", name, "passed"] for name in "abcde"]


def test_repetitions_of_several_generators_are_rows_of_their_own() -> None:
    results = [case(at, id=f"t/{name}/{count}", label=name, repeat=count - 1) for at, (name, count) in enumerate(product("ab", (1, 2)))]

    assert [line.split()[0] for line in table(results)[1:] if line] == ["t/1", "t/2"]


def test_a_long_output_is_cut_where_the_flag_says() -> None:
    lines = shown(result_lines([case(0, output="x" * 100)], 120, 10), 120).splitlines()

    assert f"{'x' * 9}…" in lines[1]
    assert "x" * 10 not in lines[1]


def test_of_a_large_batch_the_table_shows_what_did_not_pass_and_sums_up_the_rest() -> None:
    lines = table([case(index, "failed" if index in {60, 70} else STATUSES[(index % 2) * 4]) for index in range(80)])

    assert [line.split()[0] for line in lines[1:-1]] == ["case-60", "case-70"]
    assert lines[-1] == "and 78 more: 38 passed, 40 not run"


def test_of_more_than_fifty_bad_cases_the_first_fifty_are_shown() -> None:
    lines = table([case(index, STATUSES[1 + index % 2]) for index in range(120)])

    assert len(lines) == 52
    assert lines[-1] == "and 70 more: 35 failed, 35 errors"


def test_where_all_passed_a_large_batch_needs_no_table() -> None:
    assert table([case(index) for index in range(51)]) == ["51 passed"]
    assert table([]) == []


@given(cases(), st.sampled_from([40, 60, 80, 120]))
def test_whatever_was_said_a_row_is_one_line_that_fits(results: list[CaseResult], width: int) -> None:
    lines = shown(result_lines([result.model_copy(update={"label": None}) for result in results], width), width).splitlines()

    assert len(lines) == (len(results) + 1 if results else 0)
    assert all(cell_len(line) <= width for line in lines)
    assert not UNPRINTABLE.search("".join(lines))


@given(cases(), st.sampled_from([40, 60, 80, 120]))
def test_whatever_was_said_generators_side_by_side_fit(results: list[CaseResult], width: int) -> None:
    lines = shown(result_lines(results, width), width).splitlines()

    assert all(cell_len(line) <= width for line in lines)
    assert not UNPRINTABLE.search("".join(lines))


@pytest.mark.slow
def test_the_table_of_many_results_does_not_hold_them() -> None:
    one = case(0, "failed")
    many = (one.model_copy(update={"output": f"{index}" * 2_000, "id": f"case-{index}"}) for index in range(20_000))
    tracemalloc.start()
    try:
        parts = list(result_lines(many, 80))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert len(parts) == 2
    assert peak < 2_000_000


def test_batches_are_listed_a_row_each() -> None:
    batches = [
        standing(180, 12, 1, batch_id="b-1", usage={"calls": 1, "cost_usd": 0.5}),
        standing(batch_id="b-2", name="[red]two", total=3, status="stopped", created="not a time"),
    ]
    wide = [line.rstrip() for line in shown([batch_table(batches, 120)], 120).splitlines()]
    narrow = shown([batch_table(batches, 40)], 40).splitlines()

    assert wide[0].split() == ["batch", "suite", "created", "answer", "cases", "cost"]
    assert wide[1].startswith("b-1    suite     2026-01-0")
    assert wide[1].endswith("RUNNING 193 of 200  180 passed, 12 failed, 1 error, 7 not run of 200  $0.5000")
    assert wide[2] == "b-2    [red]two  not a time           STOPPED             3 not run of 3"
    assert narrow[0].split() == ["batch", "answer", "cases"]
    assert max(cell_len(line) for line in narrow) <= 40


@pytest.mark.parametrize("cost", [None, 0.0, 0.5])
def test_no_table_has_an_empty_column_for_the_cost(cost: float | None) -> None:
    usage = Usage(calls=1, input=3, output=4, cost_usd=cost)
    results = [case(at, "failed", label=label, usage=usage) for at, label in enumerate("ab")]
    html = batch_page(BatchReport(head_of(summary_of(results)), [(None, result) for result in results]))
    tables = {
        "batches": shown([batch_table([standing(1, usage=usage)], 120)], 120),
        "results": shown(result_lines([case(0, usage=usage)], 200), 200),
        "any other": shown([tables_of.table([Column("tick", ["1"]), Column("cost", [money(cost)])])], 120),
        # the style sheet hides the column of a table that is no-cost
        "page": re.sub(r'<(style|script).*?</\1>|<table class="[^"]* no-cost.*?</thead>', "", html, flags=re.DOTALL),
    }

    assert {name for name, text in tables.items() if re.search(r"(?<!-)\bcost\b", text, re.IGNORECASE)} == (set(tables) if cost else set())


def test_everything_about_a_case_is_told() -> None:
    quotes = (
        Quote(record=1, quote="no\nspring", quote_verified=False),
        Quote(record=1, quote="it did thaw", quote_verified=False, quote_match="near", quote_nearest="it did not thaw"),
    )
    facts = {"quotes": quotes, "score": 0.25, "contested": True}
    votes = (Vote(grader="a", passed=True), Vote(grader="b", passed=None))
    override = Override(passed=True, why="it does", by="ann", time="2026-01-02T03:04:05Z")
    contested = row("c2", passed=False, votes=votes, override=override, **facts)
    rows = (row("c1"), contested, row("c3", passed=False, unverified=True, reason=""))
    result = case(
        3, "failed", criteria=rows, description="about spring", vars={"topic": "spring", "lines": [3]}, label="gpt", grader="openai:x",
        cached=True, iterations=2, attempt=1, explanation="Read it all.", thread_id="batch-1-case-3",
    )  # fmt: skip

    assert [line.rstrip() for line in shown(case_lines(result), 100).splitlines()] == [
        "case-3  failed, score 0.500, from the cache, after 2 iterations, retried 1 time",
        "  about spring",
        "  generator: gpt",
        "  topic: spring",
        "  lines: [3]",
        "  Read it all.",
        "✓ c1  the text of c1",
        "    reason: Read.",
        "✗ c2  the text of c2  (score 0.25)",
        "    gap: it says nothing",
        "    reason: Read.",
        "    message 1: “no spring”  not found",
        "    message 1: “it did thaw”  not found",
        "      the conversation has: it did [-not -]thaw",
        "    votes: a passed, b no verdict",
        "    overridden: passed by ann: it does",
        "? c3  the text of c3",
        "    gap: it says nothing",
        "─" * 46 + " output " + "─" * 46,
        "the draft 3",
        "─" * 100,
        "1 model call of openai:x, 100 tokens in, 20 out, $0.0010, 1.2 s",
        "thread batch-1-case-3  gradeloop watch batch-1-case-3",
    ]


def test_a_long_output_is_cut_and_its_size_told() -> None:
    text = shown(case_lines(case(output="y" * 1024 * 1024, criteria=())))

    assert text.count("y") == 4_000
    assert "… the first 4,000 of 1,048,576 characters; the output files of the batch have all" in " ".join(text.split())


@given(cases())
def test_whatever_was_said_everything_about_a_case_is_harmless(results: list[CaseResult]) -> None:
    for result in results:
        assert not UNPRINTABLE.search(shown(case_lines(result)))
