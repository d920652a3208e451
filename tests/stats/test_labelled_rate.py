"""Labels of a sample that was drawn by the judge's verdicts say what people would pass of all runs."""

import numpy as np
import pytest

from gradeloop.stats.correction import LEAST_LABELS, SampleLabels, labelled_rate


def test_each_label_counts_for_the_runs_that_it_stands_for() -> None:
    """Of 900 passed and 100 failed runs 50 each are labelled: without weights the rate would be (45 + 20) / 100."""
    found = labelled_rate(900, 1000, SampleLabels(of_passed=50, right_passes=45, of_failed=50, wrong_fails=20))

    assert found is not None
    assert found.raw == 0.9
    assert found.value == pytest.approx(0.9 * 0.9 + 0.1 * 0.4)
    assert found.low < 0.85 < found.high


@pytest.mark.parametrize(
    ("passed", "labels", "is_known"),
    [
        (90, SampleLabels(of_passed=LEAST_LABELS - 1, of_failed=50), False),
        (90, SampleLabels(of_passed=50, right_passes=50, of_failed=LEAST_LABELS - 1), False),
        (100, SampleLabels(of_passed=LEAST_LABELS, right_passes=LEAST_LABELS), True),
        (0, SampleLabels(of_failed=LEAST_LABELS), True),
    ],
)
def test_too_few_labels_say_nothing_and_a_group_that_there_is_not_needs_none(passed: int, labels: SampleLabels, *, is_known: bool) -> None:
    assert (labelled_rate(passed, 100, labels) is not None) is is_known


def test_no_runs_have_no_rate() -> None:
    assert labelled_rate(0, 0, SampleLabels(of_passed=50, of_failed=50)) is None


@pytest.mark.parametrize(("rate", "good", "bad"), [(0.9, 0.95, 0.3), (0.6, 0.9, 0.1), (0.9, 0.99, 0.5), (0.5, 0.3, 0.7)])
def test_the_interval_holds_the_truth_at_its_level(rate: float, good: float, bad: float) -> None:
    """Series of 400 runs, of which 60 that passed and 60 that failed are labelled where there are as many."""
    numbers, truth, held = np.random.default_rng(1), rate * good + (1 - rate) * bad, 0
    for _ in range(1000):
        passed = int(numbers.binomial(400, rate))
        of_passed, of_failed = min(60, passed), min(60, 400 - passed)
        right, wrong = int(numbers.binomial(of_passed, good)), int(numbers.binomial(of_failed, bad))
        labels = SampleLabels(of_passed=of_passed, right_passes=right, of_failed=of_failed, wrong_fails=wrong)
        found = labelled_rate(passed, 400, labels)
        assert found is not None
        held += found.low <= truth <= found.high

    assert held >= 935
