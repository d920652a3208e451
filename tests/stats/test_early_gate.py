"""The gate that ends early: exact where it can be, wrong as rarely as it says, and the same whatever is asked after it knows."""

import math
import random
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeloop.stats.decided import EarlyGate, Kind, share_asked

SUITES = 2_000
"""The suites that are simulated; lab/early_gate.py has more."""


def answer_of(gate: EarlyGate) -> str | None:
    return None if gate.decision is None else gate.decision.answer


@pytest.mark.parametrize("wanted", [0.0, 0.3, 0.5, 0.75, 1.0])
def test_over_all_orders_of_a_small_suite_it_is_wrong_as_rarely_as_it_says(wanted: float) -> None:
    """Every order of nine cases is as likely as any other, so that the share of wrong answers is exact."""
    for passing, risk in product(range(10), (0.05, 0.2, 0.4)):
        orders = [said for said in product((True, False), repeat=9) if sum(said) == passing]
        truth, wrong = "passed" if passing >= math.ceil(wanted * 9) else "failed", 0
        for said in orders:
            gate = EarlyGate(9, wanted, risk)
            for one in said:
                gate.take("passed" if one else "failed")
            wrong += answer_of(gate) not in {None, truth}
        assert Fraction(wrong, len(orders)) <= Fraction(risk), (passing, risk)


@given(st.integers(1, 40), st.floats(0, 1), st.data())
def test_what_is_certain_is_said_at_once_and_never_otherwise(total: int, wanted: float, data: st.DataObject) -> None:
    """With no risk to speak of, only what the rest cannot change any more is said."""
    said: list[Kind] = data.draw(st.lists(st.sampled_from(("passed", "failed", "neither")), min_size=total, max_size=total))
    gate = EarlyGate(total, wanted, 1e-300)
    for kind in said:
        gate.take(kind)
    reached = [(said.count("passed") + more) / total >= wanted - 1e-9 for more in (0, said.count("neither"))]

    assert answer_of(gate) in ({"passed"} if all(reached) else {"failed"} if not any(reached) else {None, "passed", "failed"})
    assert not (answer_of(gate) == "passed" and not reached[0])
    assert not (answer_of(gate) == "failed" and reached[1])


def test_nothing_changes_what_is_decided() -> None:
    gate = EarlyGate(500, 0.9)
    for _ in range(100):
        gate.take("passed")
    known = gate.decision
    for _ in range(400):
        gate.take("failed")

    assert known is not None
    assert gate.decision == known
    assert known.asked < 100


@pytest.mark.slow
@pytest.mark.parametrize(("passing", "truth"), [(89, "failed"), (90, "passed")])
def test_at_the_wanted_rate_it_is_wrong_in_one_of_twenty_suites_at_most(passing: int, truth: str) -> None:
    generator, said = random.Random(truth), [True] * passing + [False] * (100 - passing)
    wrong = 0
    for _ in range(SUITES):
        generator.shuffle(said)
        gate = EarlyGate(100, 0.9)
        for one in said:
            gate.take("passed" if one else "failed")
        wrong += answer_of(gate) not in {None, truth}

    assert wrong / SUITES <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / SUITES)


@pytest.mark.slow
def test_less_is_asked_the_clearer_the_answer_is() -> None:
    shares = [share_asked(500, 0.9, rate) for rate in (0.97, 0.93, 0.9)]

    assert shares == sorted(shares)
    assert (shares[0] < 0.2, shares[1] < 0.55) == (True, True)


@pytest.mark.parametrize("total", [1, 19, 20, 21, 117, 500])
def test_where_nothing_may_fail_one_failure_is_missed_at_most_as_rarely_as_it_says(total: int) -> None:
    """The one failing case stands at each place equally often, so that the share of missed ones is exact; with more it is smaller."""
    missed = 0
    for place in range(total):
        gate = EarlyGate(total, 1.0)
        for at in range(total):
            gate.take("failed" if at == place else "passed")
        missed += answer_of(gate) == "passed"

    assert (total - 1) // 20 <= missed <= total // 20
