"""What got worse from one batch to another: aligned by id, told from errors and from noise, counted by criterion."""

from collections.abc import Sequence
from math import comb
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from gradeloop.batches.cases import build_result
from gradeloop.batches.cli.batches import ROWS, comparison_lines
from gradeloop.batches.compare.comparison import (
    GAP_CHARACTERS,
    OUTCOMES,
    BatchSource,
    CaseComparison,
    ComparedCase,
    Comparison,
    ComparisonGate,
    Cost,
    compare_batches,
    compared_case,
    group_runs,
    total_cost,
)
from gradeloop.batches.compare.wording import p_value, points, side_result
from gradeloop.batches.contract import BatchStatus, BatchSummary, Case, CaseResult
from gradeloop.batches.pages.diff_page import MOST_SAME, comparison_page
from gradeloop.errors import InvalidRequest
from gradeloop.stats.intervals import Interval, difference, mcnemar, paired_difference, wilson
from tests.rig.batch_results import HOSTILE, case, row
from tests.rig.batches import case as asked

OVERRIDE = {"passed": False, "why": "it is not", "by": "ann", "time": "2026-01-02T03:04:05Z"}


def source(
    *results: CaseResult, name: str = "a", suite: str | None = None, status: BatchStatus | None = None, notes: tuple[str, ...] = ()
) -> BatchSource:
    known = None
    if suite or status:
        known = BatchSummary(batch_id=name, name=suite, created="2026-01-02", status=status or "finished", total=len(results))
    return BatchSource(name, tuple(compared_case(result) for result in results), known, notes)


def between(a: Sequence[CaseResult], b: Sequence[CaseResult], **facts: Any) -> Comparison:
    return compare_batches(source(*a, **facts), source(*b, name="b"))


def only(found: Comparison) -> CaseComparison:
    (only,) = found.cases
    return only


def runs(name: str, passed: int, count: int, **facts: Any) -> list[CaseResult]:
    """Return repetitions of a case, as a suite names them."""
    return [case(at, "passed" if at < passed else "failed", id=f"{name}/{at + 1}", repeat=at, **facts) for at in range(count)]


def printed_at(found: Comparison, width: int = 100) -> str:
    """Return what a terminal of that width shows."""
    console = Console(width=width, highlight=False, markup=False, emoji=False, force_terminal=False)
    with console.capture() as shown:
        for line in comparison_lines(found, width):
            console.print(line, soft_wrap=not hasattr(line, "columns"))
    return shown.get()


def rounded(interval: Interval) -> tuple[float, float]:
    return round(interval.low, 4), round(interval.high, 4)


@pytest.mark.parametrize(
    ("passed", "count", "bounds"),
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))],
)
def test_a_rate_has_the_interval_that_newcombe_1998_prints_for_wilson(passed: int, count: int, bounds: tuple[float, float]) -> None:
    assert rounded(wilson(passed, count)) == bounds
    assert rounded(wilson(count - passed, count)) == tuple(round(1 - bound, 4) for bound in reversed(bounds))


METHOD_10 = [
    ((56, 70, 48, 80), (0.0524, 0.3339)),
    ((9, 10, 3, 10), (0.1705, 0.8090)),
    ((6, 7, 2, 7), (0.0582, 0.8062)),
    ((5, 56, 0, 29), (-0.0381, 0.1926)),
    ((0, 10, 0, 20), (-0.1611, 0.2775)),
    ((10, 10, 0, 20), (0.6791, 1.0)),
]


def test_a_difference_has_the_interval_of_newcombes_method_10(subtests: pytest.Subtests) -> None:
    for table, bounds in METHOD_10:
        with subtests.test(str(table)):
            assert rounded(difference(*table)) == bounds


@pytest.mark.parametrize(
    ("table", "bounds"),
    [
        ((36, 12, 2, 0), (0.0569, 0.3404)),
        ((59, 6, 16, 80), (-0.1186, -0.0046)),  # Cavo et al. 2012, as the R package contingencytables computes it
        ((1, 1, 7, 12), (-0.5069, -0.0256)),  # Bentur et al. 2009
    ],
)
def test_a_difference_of_pairs_has_the_interval_of_newcombes_paired_method(
    table: tuple[int, int, int, int], bounds: tuple[float, float]
) -> None:
    pairs = [pair for count, pair in zip(table, [(1, 1), (1, 0), (0, 1), (0, 0)], strict=True) for pair in [pair] * count]

    assert rounded(paired_difference([one for one, _ in pairs], [other for _, other in pairs])) == bounds


@given(st.integers(0, 60), st.integers(0, 60))
def test_chance_is_the_exact_binomial_test(fell: int, rose: int) -> None:
    count = fell + rose
    exact = min(1.0, 2 * sum(comb(count, number) for number in range(min(fell, rose) + 1)) / 2**count)

    assert mcnemar(fell, rose) == pytest.approx(exact, rel=1e-9)


def test_chance_is_what_books_print_and_the_p_value_has_two_digits() -> None:
    assert mcnemar(12, 5) == pytest.approx(0.1435, abs=5e-5)
    assert mcnemar(59, 121) == pytest.approx(4.434e-6, rel=1e-3)
    assert mcnemar(0, 100_000) == 0
    assert [p_value(value) for value in (1.0, 0.73, 0.0391, 0.00021, 4e-6)] == [
        "p = 1",
        "p = 0.73",
        "p = 0.039",
        "p = 0.00021",
        "p < 0.0001",
    ]
    assert [points(value) for value in (-0.031, 0.0001, -0.0001, 0.5)] == ["-3.1", "±0.0", "±0.0", "+50.0"]


WORST_RATES = [(2, 0.0626), *((count, 0.04) for count in range(3, 13))]


def test_a_case_that_did_not_change_is_rarely_called_regressed(subtests: pytest.Subtests) -> None:
    for count, worst in WORST_RATES:
        with subtests.test(str(count)):
            called = [(a, b) for a in range(count + 1) for b in range(count + 1) if difference(b, count, a, count).high < 0]

            for percent in range(1, 100):
                rate = percent / 100
                odds = [comb(count, number) * rate**number * (1 - rate) ** (count - number) for number in range(count + 1)]
                assert sum(odds[a] * odds[b] for a, b in called) <= worst


CHANGES = [
    ("passed", "failed", "regressed"),
    ("failed", "passed", "improved"),
    ("passed", "passed", "same"),
    ("failed", "failed", "same"),
    ("passed", "error", "lost"),
    ("failed", "error", "lost"),
    ("passed", "queued", "lost"),
    ("passed", "unsure", "unsure"),
    ("failed", "unsure", "unsure"),
    ("unsure", "passed", "decided"),
    ("unsure", "failed", "decided"),
    ("unsure", "unsure", "unjudged"),
    ("error", "unsure", "unjudged"),
    ("error", "passed", "gained"),
    ("waiting", "failed", "gained"),
    ("error", "error", "unjudged"),
]


def test_a_pass_that_became_a_fail_regressed_and_an_error_is_no_verdict(subtests: pytest.Subtests) -> None:
    for a, b, outcome in CHANGES:
        with subtests.test(outcome):
            found = between([case(0, a)], [case(0, b)])

            assert only(found).outcome == outcome
            assert found.findings(ComparisonGate.REGRESSIONS) == (outcome == "regressed")
            assert found.findings(ComparisonGate.ERRORS) == (outcome == "lost")
            assert found.findings(ComparisonGate.UNSURE) == (b == "unsure" != a)


def test_a_score_that_moved_under_the_same_verdict_is_told_and_no_regression() -> None:
    found = between(
        [case(0, score=0.9), case(1, score=0.8), case(2, score=0.3)],
        [case(0, score=0.7), case(1, score=0.8 + 1e-12), case(2, score=0.3 + 1e-6)],
    )

    assert [case.score_change for case in found.cases] == ["down", None, "up"]
    assert {case.outcome for case in found.cases} == {"same"}
    assert "scores under the same verdict: 1 down, 1 up; largest drop: case-0 0.90 -> 0.70" in printed_at(found)
    assert not found.findings(ComparisonGate.ANY)


def undecided(index: int, **facts: Any) -> CaseResult:
    """Return a case on whose second criterion one of three votes disagrees."""
    votes = [{"grader": "scripted:judge", "passed": value} for value in (True, True, False)]
    return case(index, "unsure", criteria=(row("c1"), row("c2", votes=votes)), unsure=("c2",), **facts)


def test_a_verdict_that_became_unsure_is_counted_and_named_apart_from_errors() -> None:
    found = between([case(0), case(1, "failed"), case(2), undecided(3)], [undecided(0), undecided(1), case(2, "error"), case(3)])
    text = printed_at(found, 120)

    assert found.counts == {"lost": 1, "unsure": 2, "decided": 1}
    assert text.startswith(
        "NOTHING COMPARED, 1 NOW WITHOUT A VERDICT, 2 UNSURE\n1 verdict -> error, 2 verdict -> unsure, 1 unsure -> verdict of 4 cases"
    )
    assert "unsure of c2: 2 of 3 votes pass it" in text.partition("2 verdict -> unsure\n")[2]
    assert "case-3" in text.partition("1 unsure -> verdict\n")[2]
    assert [found.findings(gate) for gate in ComparisonGate] == [0, 1, 2, 0, 3]
    assert (found.a.statuses["unsure"], found.b.statuses["unsure"]) == (1, 2)


def test_repetitions_that_became_unsure_are_no_errors() -> None:
    now = [*runs("refund", 3, 3), *(undecided(at, id=f"refund/{at + 1}", repeat=at) for at in (3, 4))]
    found = between(runs("refund", 5, 5), now)
    all_of_them = between(runs("refund", 5, 5), [undecided(at, id=f"refund/{at + 1}", repeat=at) for at in range(5)])

    assert only(found).outcome == "same"
    assert [found.findings(gate) for gate in ComparisonGate] == [0, 0, 1, 0, 1]
    assert only(found).b is not None
    assert side_result(only(found).b) == "3/3 passed, 2 unsure"
    assert only(all_of_them).outcome == "unsure"


def test_what_one_batch_lacks_is_listed_and_held_against_b_by_any_alone() -> None:
    found = between([case(0), case(1)], [case(1), case(2)])

    assert {case.id: case.outcome for case in found.cases} == {"case-0": "removed", "case-1": "same", "case-2": "added"}
    assert [found.findings(gate) for gate in ComparisonGate] == [0, 0, 0, 0, 1]
    assert "1 only in A: case-0" in printed_at(found)
    assert "1 only in B: case-2" in printed_at(found)


def test_batches_that_share_nothing_are_refused_with_the_probable_reason() -> None:
    labelled = [case(0, id="refund/gpt"), case(1, id="refund/claude")]
    for a, b, words in (
        ([case(0, id="refund")], labelled, "the ids of b end in labels"),
        (labelled, [case(0, id="refund")], "the ids of a end in labels"),
        ([case(0)], [case(1)], "the id of a test without an `id` is derived from its description, vars and messages"),
        ([], [case(0)], "a has no cases"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            between(a, b)
    with pytest.raises(
        InvalidRequest, match="no case in common: a has 'case-0', b has 'case-1'; they come from different suites, 'one' and 'other'"
    ):
        compare_batches(source(case(0), suite="one"), source(case(1), name="b", suite="other"))


def test_repetitions_are_one_row_with_the_rate_of_their_judged_runs() -> None:
    a = [*runs("refund", 5, 5), case(9, id="other/1")]
    b = [*runs("refund", 1, 4), case(4, "error", id="refund/5", repeat=4), case(9, id="other/1")]
    found = between(a, b)

    row = {case.id: case for case in found.cases}["refund"]
    assert [case.id for case in found.cases] == ["refund", "other/1"]
    assert row.outcome == "regressed"
    assert row.a
    assert row.b
    assert (row.a.passed, row.a.judged, row.b.passed, row.b.judged, row.b.runs) == (5, 5, 1, 4, 5)
    assert row.difference
    assert row.difference == difference(1, 4, 5, 5)
    assert row.silenced
    assert "1/4 passed, 1 without a verdict" in printed_at(found)


def test_a_lower_rate_that_chance_explains_is_the_same_within_noise() -> None:
    found = between(runs("refund", 5, 5), runs("refund", 3, 5))

    assert only(found).outcome == "same"
    assert only(found).noise
    assert not found.findings(ComparisonGate.ANY)
    assert "1 changed within noise: refund 5/5 passed -> 3/5 passed" in printed_at(found)


def test_a_case_run_once_is_aligned_with_one_that_is_repeated() -> None:
    assert only(between([case(0, id="refund")], runs("refund", 0, 5))).outcome == "regressed"
    assert only(between([case(0, id="refund")], runs("refund", 2, 5))).outcome == "same"
    assert only(between(runs("refund", 2, 2), [case(0, "failed", id="refund")])).outcome == "same"


REPETITIONS = [
    ([("a/1", 0), ("a/2", 1)], {"a": 2}),
    ([("a/2", 1)], {"a": 1}),
    ([("a/1", 0)], {"a/1": 1}),
    ([("a/1", 0), ("a/2", 0)], {"a/1": 1, "a/2": 1}),
    ([("a/1", 0), ("a/2", 1), ("a/1/1", 0)], {"a": 2, "a/1/1": 1}),
    ([("a/1/1", 0), ("a/1/2", 1), ("a/1", 0)], {"a/1/1": 1, "a/1/2": 1, "a/1": 1}),
    ([("a", 0), ("a/2", 1)], {"a": 1, "a/2": 1}),
    ([("/1", 0), ("/2", 1), ("b/3", 1)], {"/1": 1, "/2": 1, "b/3": 1}),
]


def test_only_what_is_a_repetition_is_taken_for_one(subtests: pytest.Subtests) -> None:
    for ids, names in REPETITIONS:
        with subtests.test(str(ids)):
            cases = [ComparedCase(name, repeat, "passed", None, ()) for name, repeat in ids]

            assert {name: len(case) for name, case in group_runs(cases).items()} == names


IDS = st.tuples(st.sampled_from(["a", "b", "a/1", "a/2", "a/1/1", "a/1/2", "b/2", "b/3", "/1", "c"]), st.integers(0, 2))


@given(st.lists(IDS, unique_by=lambda item: item[0], max_size=10))
def test_every_run_is_accounted_for_exactly_once(drawn: list[tuple[str, int]]) -> None:
    grouped = group_runs([ComparedCase(name, repeat, "passed", None, ()) for name, repeat in drawn])

    assert sorted(run.id for runs in grouped.values() for run in runs) == sorted(name for name, _ in drawn)
    assert all(grouped.values())


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["passed", "failed", "unsure", "error", "queued"])), max_size=10), st.data())
def test_the_counts_are_those_of_the_cases_and_a_diff_with_itself_is_empty(drawn: list[tuple[int, str]], data: st.DataObject) -> None:
    a = [case(at, status) for at, status in dict(drawn).items()] or [case(0)]
    b = [case(item.index, data.draw(st.sampled_from(["passed", "failed", "unsure", "error"]))) for item in a]
    found, itself = between(a, b), between(a, a)

    assert sum(found.counts.values()) == len(found.cases) == len(a)
    assert [OUTCOMES.index(case.outcome) for case in found.cases] == sorted(OUTCOMES.index(case.outcome) for case in found.cases)
    assert set(itself.counts) <= {"same", "unjudged"}
    assert not any(itself.findings(gate) for gate in ComparisonGate)


def test_criteria_are_counted_over_all_cases_the_worst_first() -> None:
    def judged(index: int, *passed: bool) -> CaseResult:
        return case(index, "passed", criteria=tuple(row(f"c{at}", passed=value) for at, value in enumerate(passed)))

    found = between(
        [judged(0, True, True, False), judged(1, True, True, False)], [judged(0, True, False, True), judged(1, False, False, False)]
    )

    assert [(criterion.id, criterion.counts.get("regressed", 0), criterion.counts.get("improved", 0)) for criterion in found.criteria] == [
        ("c1", 2, 0), ("c0", 1, 0), ("c2", 0, 1),
    ]  # fmt: skip
    assert (found.criteria[0].a.passed, found.criteria[0].b.passed, found.criteria[0].b.judged) == (2, 0, 2)
    assert [found.findings(gate) for gate in ComparisonGate] == [0, 0, 0, 2, 2]
    changed = {case.id: [(change.id, change.outcome) for change in case.changes] for case in found.cases}
    assert changed["case-1"] == [("c0", "regressed"), ("c1", "regressed")]
    assert found.cases[0].changes[0].b
    assert found.cases[0].changes[0].b.gap == "it says nothing"


def test_unverified_rows_are_no_verdict_and_a_person_counts_before_the_machine() -> None:
    a = case(0, criteria=(row("c1"), row("c2"), row("c3")))
    b = case(0, criteria=(row("c1", passed=False, unverified=True), row("c2", override=OVERRIDE), row("c4")))
    found = between([a], [b])

    assert {change.id: change.outcome for change in only(found).changes} == {
        "c1": "lost",
        "c2": "regressed",
        "c3": "removed",
        "c4": "added",
    }
    assert only(found).outcome == "same"
    second = next(change for change in only(found).changes if change.id == "c2")
    assert second.b
    assert second.b.overridden
    assert second.b.gap == "it is not"
    assert "people overrode 1 verdict on criteria in B; the verdicts on cases stay the grader's" in found.notes


def test_a_criterion_of_several_texts_is_told_by_one_that_regressed() -> None:
    def asked(index: int, text: str, *, passed: bool = True) -> CaseResult:
        return case(index, "passed", criteria=(row("c1", passed=passed).model_copy(update={"name": text}),))

    found = between(
        [asked(0, "it names Sunday"), asked(1, "it answers"), asked(2, "it is kind")],
        [asked(0, "it names Sunday"), asked(1, "it answers", passed=False), asked(2, "it is kind", passed=False)],
    )

    assert [(criterion.name, criterion.texts) for criterion in found.criteria] == [("it answers", 3)]


def test_criteria_of_a_case_without_a_verdict_are_not_compared() -> None:
    found = between([case(0)], [case(0, "error", criteria=(row("c1", passed=False),))])

    assert only(found).changes == ()
    assert found.criteria == ()


def test_a_criterion_that_reads_otherwise_is_compared_and_told() -> None:
    found = between([case(0)], [case(0, criteria=(row("c1"), row("c2", passed=False).model_copy(update={"name": "another thing"})))])

    (change,) = only(found).changes
    assert change.reworded
    assert found.notes == ("criteria with another text in B: c2; their verdicts may not be comparable",)


def test_a_criterion_without_an_id_is_found_by_its_text_and_one_with_another_text_shows_both() -> None:
    def judged(*texts: str, failing: str) -> CaseResult:
        named = [(f"c{number}", text) for number, text in enumerate(texts, 1)]
        return case(0, criteria=tuple(row(name, passed=text != failing).model_copy(update={"name": text}) for name, text in named))

    moved = between([judged("short", "kind", "dry", failing="kind")], [judged("warm", "short", "kind", failing="short")])
    reworded = between([judged("short", "kind", failing="")], [judged("very short", "kind", failing="very short")])

    shown = {found.id: (found.name, dict(found.counts)) for found in moved.criteria}
    assert shown == {
        "c1": ("short", {"regressed": 1}),
        "c2": ("kind", {"improved": 1}),
        "c3": ("dry", {"removed": 1}),
        "c1 of B": ("warm", {"added": 1}),
    }
    assert moved.notes == ()
    assert [found.name for found in reworded.criteria] == ["short -> very short", "kind"]
    twice = between([judged("kind", "kind", failing="kind")], [judged("kind", "kind", failing="")])
    assert [(found.id, dict(found.counts)) for found in twice.criteria] == [("c1", {"improved": 1}), ("c2", {"improved": 1})]


def test_what_has_not_ended_and_other_suites_are_noted() -> None:
    queued = source(case(0), case(1, "queued"), name="nightly", status="running", suite="one")
    found = compare_batches(queued, source(case(0), case(1), name="b", suite="other", notes=("a note",)))

    suites = "A and B come from different suites: 'one' and 'other'"
    assert found.notes == ("nightly is running: 1 of 2 cases have no verdict yet", "a note", suites)


def test_the_whole_is_compared_over_the_cases_judged_in_both() -> None:
    a = [case(at, "passed" if at < 8 else "failed") for at in range(10)]
    b = [case(at, "passed" if at < 3 else "failed") for at in range(9)] + [case(9, "error")]
    found = between(a, b)

    assert found.overall
    assert (found.overall.a.cases, found.overall.fell, found.overall.rose) == (9, 5, 0)
    assert found.overall.by_chance == pytest.approx(2 / 32)
    assert found.overall.difference == pytest.approx(-5 / 9)
    assert found.overall.interval.high < 0
    assert found.a.pass_rate
    assert (found.a.pass_rate.rate, found.a.pass_rate.cases, found.a.statuses) == (0.8, 10, {"passed": 8, "failed": 2})
    assert "5 regressed, 0 improved: too few to tell from chance (McNemar p = 0.062)" in printed_at(found)
    assert between([case(0, "error")], [case(0)]).overall is None


def test_an_unknown_cost_makes_the_sum_unknown_and_nothing_does_not() -> None:
    priced, unpriced, free = (ComparedCase("a", 0, "passed", None, (), "", *cost) for cost in ((1, 0.5), (2, None), (0, None)))

    assert total_cost([priced, free]) == Cost(tokens=1, cost_usd=0.5)
    assert total_cost([priced, unpriced]) == Cost(tokens=3)
    assert total_cost([]) == Cost()


def test_a_result_knows_which_repetition_it_is() -> None:
    first, third = (build_result(Case.model_validate(asked("a", repeat=repeat)), "passed") for repeat in (0, 2))

    assert (first.repeat, third.repeat) == (0, 2)
    assert "repeat" not in first.model_dump()
    assert CaseResult.model_validate_json(third.model_dump_json()) == third


def test_what_is_kept_of_a_case_is_bounded_and_shared() -> None:
    long = compared_case(case(0, "failed", output="x" * 10_000, criteria=(row("c1"), row("c2", passed=False, gap="y" * 10_000))))
    other = compared_case(case(1))

    assert len(long.verdicts[1].gap) == GAP_CHARACTERS
    assert long.verdicts[0] is other.verdicts[0]


def test_the_terminal_shows_a_few_of_each_kind_and_says_how_many_more() -> None:
    many = range(ROWS + 5)
    found = between([case(at) for at in many], [case(at, "failed") for at in many])

    assert "and 5 more; --json lists them all" in printed_at(found)
    assert printed_at(found).count("c2 regressed: it says nothing") == ROWS


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_lines_fit_the_terminal_and_what_was_said_cannot_move_its_cursor(width: int) -> None:
    said = {"error": HOSTILE, "criteria": (row("c1", passed=False, gap=HOSTILE).model_copy(update={"name": HOSTILE}),)}
    found = between([case(0), case(1, id=HOSTILE.strip())], [case(0, "failed", **said), case(1, "error", id=HOSTILE.strip(), **said)])
    shown = printed_at(found, width)

    assert not set(shown) & set("\x1b\x07\x00\u202e\u2066\r")
    assert "[red]not markup[/red]" in printed_at(found, 200)
    tables = [line for line in comparison_lines(found, width) if isinstance(line, Table)]
    console = Console(width=1_000, force_terminal=False)
    with console.capture() as drawn:
        console.print(*tables)
    assert len(tables) == 4
    assert max(cell_len(line.rstrip()) for line in drawn.get().splitlines()) <= width


def test_the_json_has_every_case_and_is_read_back_and_kept_by_its_schema() -> None:
    found = between([case(0), *runs("x", 2, 3)], [case(0, "failed"), *runs("x", 0, 3)])
    text = found.model_dump_json()

    assert text.startswith('{"schema":"gradeloop.diff/1"')
    assert Comparison.model_validate_json(text) == found
    Draft202012Validator(Comparison.model_json_schema(mode="serialization")).validate(found.model_dump(mode="json"))


def test_the_page_shows_both_sides_and_nothing_that_was_said_is_markup() -> None:
    said = "<script>alert(1)</script>"
    b = case(0, "failed", criteria=(row("c1"), row("c2", passed=False, gap=said)))
    page = comparison_page(between([case(0), case(1), *runs("x", 5, 5)], [b, case(1, "error", error=said), *runs("x", 3, 5)]))

    assert said not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2
    assert 'data-filter="regressed"' in page
    assert 'data-f="same noise"' in page
    assert " style=" not in page
    assert " onclick=" not in page


@pytest.mark.slow
def test_the_page_leaves_out_what_is_the_same_beyond_what_a_browser_opens_at_once_and_says_so() -> None:
    many = [case(at) for at in range(MOST_SAME + 3)]
    page = comparison_page(between(many, [case(0, "failed"), *many[1:]]))

    assert "2 cases with the same result are not listed here" in page
    assert page.count('<tr id="case-') == MOST_SAME + 1
