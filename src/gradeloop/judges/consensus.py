"""What several answers come to: a majority by key, medians of numbers, in the order of the rollouts and of nothing else."""

import json
import math
from collections.abc import Mapping, Sequence
from statistics import median, median_low
from typing import Any, Literal

from pydantic import JsonValue

from gradeloop.judges.schema_shape import Key, keys_of, put, value_at
from gradeloop.judges.validation import problems_of
from gradeloop.strict import Recorded, Sparse

Z = 1.959963984540054
"""Of a normal distribution's central 95 per cent."""


class Share(Recorded):
    """How often a value was given."""

    value: JsonValue
    count: int
    share: float
    low: float
    """Of Wilson's 95 % interval (Wilson 1927), as `high`."""
    high: float


class Tallied(Recorded):
    """What was said about one key."""

    how: Literal["vote", "median"]
    value: JsonValue
    """What the output has; None where no answer had the key."""
    n: int
    """Answers that had it."""
    distribution: tuple[Share, ...] = ()
    """Of a vote, the most frequent value first, values of one count in the order of the rollouts."""
    low: Sparse[float | None] = None
    """Of a median, the least value, and `high` the most."""
    high: Sparse[float | None] = None
    tied: Sparse[bool] = False
    """True where another value was given as often; the one of the earlier rollout counts."""


class Consensus(Recorded):
    """One output out of several."""

    output: dict[str, JsonValue]
    from_rollout: int
    """Position of the answer whose texts the output has: the first of those that agree most."""
    keys: dict[str, Tallied]
    composed: Sparse[bool] = False
    """True where no single answer says all that the output does."""

    @property
    def ties(self) -> tuple[str, ...]:
        """The keys that were tied."""
        return tuple(name for name, each in self.keys.items() if each.tied)


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share, `count` out of `total`."""
    if not total:
        return 0.0, 1.0
    share = count / total
    centre = share + Z * Z / (2 * total)
    spread = Z * math.sqrt(share * (1 - share) / total + Z * Z / (4 * total * total))
    scale = 1 + Z * Z / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def consensus(schema: Mapping[str, Any], outputs: Sequence[dict[str, JsonValue]]) -> Consensus:
    """Return what answers, in the order of their rollouts, come to.

    Args:
        schema: Which of their keys are voted on, and which have a median.
        outputs: At least one, each valid.
    """
    keys = keys_of(schema)
    told = {key.name: _tallied(key, [value_at(output, key.path) for output in outputs]) for key in keys}
    agreeing = [sum(_same(value_at(output, key.path), told[key.name].value) for key in keys) for output in outputs]
    first = agreeing.index(max(agreeing))
    output = outputs[first]
    for key in keys:
        value = told[key.name].value
        if value is None or value_at(output, key.path) is None or _same(value_at(output, key.path), value):
            continue
        output = _with(schema, output, key, value, outputs)
    told = {key.name: told[key.name].model_copy(update={"value": value_at(output, key.path)}) for key in keys}
    return Consensus(output=output, from_rollout=first, keys=told, composed=output != outputs[first])


def _with(
    schema: Mapping[str, Any], output: dict[str, JsonValue], key: Key, value: JsonValue, outputs: Sequence[dict[str, JsonValue]]
) -> dict[str, JsonValue]:
    """Return the output with a key's value; a median between two values that breaks a bound gives way to the lower of them."""
    changed = put(output, key.path, value)
    if key.how == "median" and list(problems_of(schema, changed)):
        return put(output, key.path, median_low(_numbers([value_at(each, key.path) for each in outputs])))
    return changed


def _numbers(values: Sequence[JsonValue]) -> list[float]:
    return [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]


def _tallied(key: Key, values: Sequence[JsonValue]) -> Tallied:
    if key.how == "median":
        numbers = _numbers(values)
        middle = (median_low(numbers) if key.integer else median(numbers)) if numbers else None
        return Tallied(how="median", value=middle, n=len(numbers), low=min(numbers, default=None), high=max(numbers, default=None))
    given = [each for each in values if each is not None]
    counts: dict[str, int] = {}
    for each in given:
        counts[json.dumps(each)] = counts.get(json.dumps(each), 0) + 1
    ranked = sorted(counts.items(), key=lambda item: -item[1])  # stable: of equal counts, the earlier rollout's value
    shares = tuple(_share(json.loads(value), count, len(given)) for value, count in ranked)
    tied = len(shares) > 1 and shares[0].count == shares[1].count
    return Tallied(how="vote", value=shares[0].value if shares else None, n=len(given), distribution=shares, tied=tied)


def _share(value: JsonValue, count: int, total: int) -> Share:
    low, high = wilson(count, total)
    return Share(value=value, count=count, share=count / total, low=low, high=high)


def _same(one: JsonValue, other: JsonValue) -> bool:
    return json.dumps(one) == json.dumps(other)
