"""How a batch ends: its exit code, and the line that sums it up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeloop.batches.answer import gate_exit_code, rate_of, results_line
from gradeloop.batches.contract import BatchSummary
from gradeloop.contract.messages import Usage


def summary(passed: int = 0, failed: int = 0, errors: int = 0, **facts: Any) -> BatchSummary:
    """Return a batch all of whose cases have ended, unless it says otherwise."""
    fields: dict[str, Any] = {"batch_id": "b", "created": "2026-01-02T03:04:05Z", "status": "finished", "total": passed + failed + errors}
    return BatchSummary.model_validate(fields | {"passed": passed, "failed": failed, "errors": errors} | facts)


def test_the_exit_code_says_whether_all_was_judged_and_then_whether_enough_passed(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, BatchSummary, dict[str, float]]] = [
        (0, summary(10), {}),
        (1, summary(9, 1), {}),
        (0, summary(9, 1), {"pass_rate": 0.9}),
        (0, summary(9, 1, pass_rate=0.9), {}),
        (1, summary(9, 1, pass_rate=0.9), {"pass_rate": 0.91}),
        (0, summary(9, 1, pass_rate=0.9), {"pass_rate": 0.0}),
        (1, summary(0, 10), {"pass_rate": 0.5}),
        (0, summary(0, 10), {"pass_rate": 0.0}),
        (3, summary(9, 0, 1), {}),
        (3, summary(9, 0, 1), {"pass_rate": 0.1}),
        (0, summary(9, 0, 1), {"allow_errors": 0.1}),
        (3, summary(8, 0, 2), {"allow_errors": 0.1}),
        (1, summary(8, 1, 1), {"allow_errors": 0.1}),
        (0, summary(8, 1, 1), {"allow_errors": 0.1, "pass_rate": 8 / 9}),
        (0, summary(7, 0, 3), {"allow_errors": 0.3}),
        (3, summary(0, 0, 10), {"allow_errors": 1.0}),
        (3, summary(), {}),
        (3, summary(), {"pass_rate": 0.0}),
        (3, summary(9, total=10), {}),
        (3, summary(9, total=10), {"allow_errors": 1.0, "pass_rate": 0.0}),
        (3, summary(9, waiting=1, total=10), {}),
        (3, summary(10, status="paused"), {}),
        (3, summary(10, status="stopped"), {}),
        (3, summary(9, total=10, status="running"), {}),
        (0, summary(10, status="running"), {}),
    ]
    for code, batch, flags in rows:
        with subtests.test(code=code):
            assert gate_exit_code(batch, **flags) == code


@given(st.integers(1, 2_000), st.data())
def test_a_rate_that_is_exactly_the_wanted_one_is_enough_and_one_case_less_is_not(total: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(1, total))

    assert gate_exit_code(summary(passed, total - passed), pass_rate=passed / total) == 0
    assert gate_exit_code(summary(passed - 1, total - passed + 1), pass_rate=passed / total) == 1


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_tolerated_errors_change_nothing_about_the_rate(passed: int, failed: int, errors: int) -> None:
    assert rate_of(summary(passed, failed, errors)) == rate_of(summary(passed, failed))


def test_the_line_tells_of_everything_that_there_is() -> None:
    usage = Usage(input=1_234_000, output=567, calls=9, cost_usd=0.4321)
    batch = summary(
        180, 12, 3, total=200, pass_rate=0.9, cached=41, usage=usage, status="paused", reason="the budget is used up:\n200 of 200"
    )

    assert results_line(batch) == (
        "Results: 180 passed, 12 failed, 3 errors, 5 not run of 200 (93.8% of 192 judged, 90% wanted); 41 cached; "
        "1,234,567 tokens, $0.4321; paused: the budget is used up: 200 of 200"
    )


@pytest.mark.parametrize(
    ("line", "batch"),
    [
        ("Results: 1 passed of 1 (100% of 1 judged, 100% wanted)", summary(1)),
        ("Results: 1 error of 1", summary(0, 0, 1)),
        ("Results: 1 waiting, 2 not run of 3", summary(waiting=1, total=3)),
        ("Results: none of 0", summary()),
        ("Results: 2 passed of 2 (100% of 2 judged, 100% wanted); 1 token; stopped", summary(2, usage=Usage(input=1), status="stopped")),
    ],
)
def test_the_line_says_nothing_of_what_there_is_none(line: str, batch: BatchSummary) -> None:
    assert results_line(batch) == line


@pytest.mark.parametrize(
    ("expected", "batch", "wanted"),
    [
        ("99.999% of 100,000 judged, 100% wanted", summary(99_999, 1), 1.0),
        ("0.001% of 100,000 judged, 90% wanted", summary(1, 99_999), 0.9),
        ("89.996% of 100,000 judged, 90% wanted", summary(89_996, 10_004), 0.9),
        ("66.7% of 3 judged, 66.666% wanted", summary(2, 1), 0.66666),
        ("90% of 10 judged, 90% wanted", summary(9, 1), 0.9),
    ],
)
def test_a_rate_is_never_rounded_to_the_other_side_of_its_limit(expected: str, batch: BatchSummary, wanted: float) -> None:
    assert f"({expected})" in results_line(batch, pass_rate=wanted)


def test_the_line_names_the_rate_that_the_exit_code_goes_by() -> None:
    assert "90% wanted" in results_line(summary(9, 1, pass_rate=0.5), pass_rate=0.9)
