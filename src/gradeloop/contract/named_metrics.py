"""Named metrics of a suite: which criteria's scores are added up under which name, and the formulas over such names."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from gradeloop.contract.base import Strict
from gradeloop.text import clip

FORMULA_CHARACTERS = 1_000
"""The longest formula."""

DEPTH = 50
"""The deepest nesting of a formula."""

COUNT = "__count"
"""The name by which a formula reads the number of cases that were judged."""

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,
}

_FUNCTIONS: dict[str, Callable[..., float]] = {
    "abs": abs,
    "ceil": math.ceil,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "max": lambda *values: max(values),
    "mean": lambda *values: sum(values) / len(values),
    "min": lambda *values: min(values),
    "pow": math.pow,
    "round": round,
    "sqrt": math.sqrt,
    "sum": lambda *values: sum(values),
}
"""Functions of a formula, by the names that mathjs uses too."""

_CONSTANTS = {"pi": math.pi, "e": math.e}


def _parse(formula: str) -> ast.expr:
    """Return a formula's tree; raise ValueError where anything but arithmetic, names and the known functions stands in it."""
    try:
        tree = ast.parse(formula.strip().replace("^", "**"), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(
            f"{clip(formula)} is not a formula; write arithmetic over names, such as (Tone + 2 * Accuracy) / __count"
        ) from None
    _refuse_others(tree, DEPTH)
    return tree


def _refuse_others(node: ast.AST, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"the formula is nested more than {DEPTH} deep; write two metrics of it")
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return
        case ast.Name():
            return
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            _refuse_others(operand, depth - 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            _refuse_others(left, depth - 1)
            _refuse_others(right, depth - 1)
        case ast.Call(func=ast.Name(id=name), args=[_, *_], keywords=[]) if name in _FUNCTIONS:
            for argument in node.args:
                _refuse_others(argument, depth - 1)
        case _:
            known = ", ".join(sorted(_FUNCTIONS))
            raise ValueError(f"{clip(ast.unparse(node))} is none of a formula's parts; use numbers, names, + - * / % ^ and {known}")


def _value(node: ast.AST, names: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return names[name] if name in names else _CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand):
            return -_value(operand, names) if isinstance(op, ast.USub) else _value(operand, names)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return float(_FUNCTIONS[name](*(_value(argument, names) for argument in arguments)))
    raise TypeError(f"no part of a formula: {ast.dump(node)}")


def calculate(formula: str, names: Mapping[str, float]) -> float | None:
    """Return what a formula comes to; None where a name has no value, or there is no finite result, as of a division by zero."""
    try:
        value = _value(_parse(formula), names)
    except (KeyError, ArithmeticError, ValueError, TypeError):
        return None
    return value if math.isfinite(value) else None


def _is_formula(formula: str) -> str:
    _parse(formula)
    return formula


class DerivedMetric(Strict):
    """A figure that is calculated from the named metrics of a batch."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    value: Annotated[str, Field(min_length=1, max_length=FORMULA_CHARACTERS), AfterValidator(_is_formula)]
    """Arithmetic over the sums of named metrics, `__count`, and derived metrics before this one: `(Tone + Accuracy) / __count`."""


class MetricShare(Strict):
    """A criterion whose score counts in a named metric."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """The metric, as the suite writes it."""
    criterion: str
    """The criterion's id."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(default=1.0, exclude_if=lambda value: value == 1)
    """The weight of the score in the metric."""


MOST_SHARES = 1_000
"""The most shares of one case: each of its criteria in a few metrics."""

MOST_DERIVED = 100
"""The most derived metrics of a suite."""

DerivedMetrics = Annotated[tuple[DerivedMetric, ...], Field(max_length=MOST_DERIVED)]
"""The derived metrics of a suite, in the order in which they are calculated."""
