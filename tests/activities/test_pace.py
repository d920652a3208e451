"""The pace of a model's calls: what a long `Retry-After` means to those who wait."""

import pytest

from activities.calls.pace import MANY_WAIT, Pace

NOW = 1_800_000_000.0


def refused(retry_after: float | None) -> Pace:
    """Return the pace after five calls were accepted and one was refused."""
    pace = Pace()
    for _ in range(5):
        pace = pace.take(NOW - 1, 1, None)[0].accept(NOW - 0.5, NOW - 1)
    return pace.take(NOW - 1, 1, None)[0].refuse(NOW, NOW - 0.1, retry_after)


def test_whoever_waits_comes_back_when_one_call_looks_whether_a_long_pause_is_meant() -> None:
    pace = refused(20)
    assert pace.wait(NOW, 0, MANY_WAIT, None) == pytest.approx(2)
    assert pace.wait(NOW, 3, MANY_WAIT, None) == pytest.approx(2 + 3 / 10)
    assert pace.wait(NOW, 0, MANY_WAIT - 1, None) == pytest.approx(20)


def test_those_behind_the_call_that_looks_come_again_soon() -> None:
    pace, waited = refused(20).take(NOW + 2, MANY_WAIT, None)
    assert waited == 0.0
    assert pace.take(NOW + 2, MANY_WAIT, None)[1] == pytest.approx(18)
    assert pace.wait(NOW + 2, 0, MANY_WAIT, None) == pytest.approx(2)


def test_a_pause_that_is_meant_is_waited_for_to_the_end() -> None:
    pace = refused(20).take(NOW + 2, MANY_WAIT, None)[0].refuse(NOW + 2.1, NOW + 2, 17.9)
    assert pace.wait(NOW + 3, 0, MANY_WAIT, None) == pytest.approx(17)
    again = pace.take(NOW + 20, MANY_WAIT, None)[0].refuse(NOW + 21, NOW + 20, 20)
    assert again.wait(NOW + 21, 0, MANY_WAIT, None) == pytest.approx(20)


def test_a_pause_that_is_not_meant_is_over_for_everybody() -> None:
    pace = refused(20).take(NOW + 2, MANY_WAIT, None)[0].accept(NOW + 2.1, NOW + 2)
    assert pace.wait(NOW + 2.2, 0, MANY_WAIT, None) < 0.5
