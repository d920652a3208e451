"""Formulas over named metrics: arithmetic and nothing else, and no value where there is none."""

import math

import pytest
from pydantic import ValidationError

from gradeloop.contract.named_metrics import DerivedMetric, calculate

NAMES = {"Tone": 4.0, "Facts": 2.0, "__count": 2.0, "e2e": 3.0}


def test_a_formula_is_arithmetic_as_mathjs_has_it(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, float]] = [
        ("Tone * 2", 8),
        ("(Tone + Facts) / __count", 3),
        ("sqrt(max(Tone, 1)) + 2^3", 10),
        ("-Tone^2", -16),
        ("2^3^2", 512),
        ("7 % 4 - +1", 2),
        ("mean(1, 2, 6) + sum(1, 2) + min(4, 5) + abs(-1) + floor(1.9) + ceil(0.1) + round(2.4)", 15),
        ("log(e) + log10(100) + log2(8) + exp(0) + pow(2, 2)", 11),
        ("e2e\n", 3),
        ("pi", math.pi),
    ]
    for formula, value in rows:
        with subtests.test(formula=formula):
            assert calculate(DerivedMetric(name="x", value=formula).value, NAMES) == pytest.approx(value)


def test_a_formula_without_a_finite_result_has_none(subtests: pytest.Subtests) -> None:
    for formula in ("Nobody + 1", "1 / 0", "Tone % 0", "10^400", "1e308 * 10", "sqrt(-1)", "log(0)", "pow(1, 2, 3)", "exp(1000)"):
        with subtests.test(formula=formula):
            assert calculate(DerivedMetric(name="x", value=formula).value, NAMES) is None


def test_what_is_no_arithmetic_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("__import__('os').system('true')", "is none of a formula's parts"),
        ("Tone.__class__", "is none of a formula's parts"),
        ("(lambda: 1)()", "is none of a formula's parts"),
        ("'a' * 10", "is none of a formula's parts"),
        ("[1][0]", "is none of a formula's parts"),
        ("True + 1", "is none of a formula's parts"),
        ("max()", "is none of a formula's parts"),
        ("max(1, key=abs)", "is none of a formula's parts"),
        ("max(*Tone)", "is none of a formula's parts"),
        ("9999**9999 ; 1", "is not a formula"),
        ("Tone > 1 ? 1 : 0", "is not a formula"),
        ("file://metric.js", "is not a formula"),
        ("1 +", "is not a formula"),
        ("-" * 60 + "1", "nested more than 50 deep"),
        ("-" * 990 + "1", "nested more than 50 deep"),
        ("1" * 1_001, "at most 1000 characters"),
    ]
    for formula, said in rows:
        with subtests.test(formula=formula), pytest.raises(ValidationError, match=said):
            DerivedMetric(name="x", value=formula)


def test_a_power_of_powers_takes_no_time_and_no_memory() -> None:
    assert calculate("9^9^9^9^9", {}) is None


def test_parentheses_that_python_cannot_read_are_refused_and_no_fault() -> None:
    with pytest.raises(ValidationError, match="is not a formula"):
        DerivedMetric(name="x", value="(" * 400 + "1" + ")" * 400)
