"""The assertions of a test in promptfoo's format, as a rubric of ours and as named metrics."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.contract.criterion import Criterion
from gradeloop.contract.named_metrics import MetricShare
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location, located_error
from gradeloop.grading.comparisons import COMPARISON_CHECK, comparisons_of, without_comparisons
from gradeloop.grading.templates import fill_rubric, fill_text
from gradeloop.suites.assertion_types import Assertion
from gradeloop.suites.fields import as_list, as_object, refuse_others

METRIC_CHARACTERS = 200
"""The most characters of a metric's name."""


@dataclass(frozen=True)
class AssertionList:
    """The assertions of a test, with the options that apply to all of them."""

    assertions: tuple[tuple[JsonValue, Location], ...]
    options: Mapping[str, JsonValue]
    """`provider` and `rubricPrompt` for assertions without their own."""
    threshold: float | None = None
    name: str | None = None
    allow_code: bool = False
    """Whether the user of the suite has allowed its code to run."""

    def rubric(self, variables: Mapping[str, JsonValue], where: Location) -> Rubric:
        """Build a rubric with one criterion for every assertion, the variables filled in.

        Without a threshold all must pass, but those of weight 0; with one the mean of the scores alone decides.

        Raises:
            InvalidRequest: An assertion has no counterpart, is invalid, or names a variable that is not there.
        """
        reader = _Reader(self.options, variables, self.allow_code)
        criteria = [reader.criterion(value, spot) for value, spot in self.assertions]
        raw: dict[str, Any] = {"criteria": list(_with_ids(criteria))}
        raw |= {"name": self.name} if self.name else {}
        raw |= {"gate": "none", "threshold": self.threshold} if self.threshold is not None else {}
        spots = [spot for value, where in self.assertions for spot in _spots(value, where)]
        fields = {"description": "value", "prompt": "rubricPrompt"}
        try:
            whole = self._weighed(Rubric.model_validate(raw), where)
            return fill_rubric(whole, variables, lambda at, field: str(spots[at].at(fields[field])))
        except ValidationError as error:
            raise located_error(error, where) from None

    def metrics(self, rubric: Rubric, variables: Mapping[str, JsonValue]) -> tuple[MetricShare, ...]:
        """Return how the criteria of the rubric that `rubric` built count in the metrics that the assertions name.

        As promptfoo has it, an assertion counts with its weight, a set by the mean of its members, whose own metrics count with the set's
        weight, too. A weight of 0, which reports an assertion without asking for it, counts as 1 here.
        """
        ids = iter([criterion.id for criterion in rubric.criteria])
        shares: list[MetricShare] = []
        for value, where in self.assertions:
            fields = as_object(value, where)
            own = _metric(fields, variables, where)
            if fields.get("type") != "assert-set":
                shares += _share(own, next(ids), _weight(fields))
                continue
            members = [
                (as_object(member, spot), spot) for member, spot in located(as_list(fields.get("assert"), where), where.at("assert"))
            ]
            total = sum(_weight(member) for member, _ in members)
            for member, spot in members:
                name, inner = next(ids), _metric(member, variables, spot)
                shares += _share(own, name, _weight(fields) * _weight(member) / total)
                shares += _share(inner if inner != own else None, name, _weight(fields) * _weight(member))
        return tuple(shares)

    def _weighed(self, rubric: Rubric, where: Location) -> Rubric:
        """Return the rubric with the weights of `max-score`, which promptfoo writes by an assertion's type, by its criterion's id.

        Raises:
            InvalidRequest: There is nothing whose scores could be compared.
        """
        checks = [criterion.check for criterion in comparisons_of(rubric) if criterion.check]
        comparing = [check for check in checks if check.arguments["kind"] == "max-score"]
        if comparing and not without_comparisons(rubric).criteria:
            raise InvalidRequest(f"{where}: max-score compares the scores of other assertions, and there are none; add one")
        if not any(check.arguments.get("weights") for check in comparing):
            return rubric
        kinds = [str(value.get("type")) for value, _ in self.assertions if isinstance(value, dict)]
        if "assert-set" in kinds:
            raise InvalidRequest(
                f"{where}: the weights of max-score are by an assertion's type, which an assert-set has several of; leave one out"
            )
        ids = list(zip(kinds, (criterion.id for criterion in rubric.criteria), strict=True))
        return rubric.model_copy(update={"criteria": tuple(_with_weights(criterion, ids) for criterion in rubric.criteria)})


def _metric(fields: Mapping[str, JsonValue], variables: Mapping[str, JsonValue], where: Location) -> str | None:
    """Return the metric that an assertion names, variables filled in where all are there; one that is empty then is none."""
    if fields.get("metric") is None:
        return None
    name = str(fields["metric"])
    with suppress(InvalidRequest):
        name = fill_text(name, variables, str(where.at("metric")))
    return name.strip()[:METRIC_CHARACTERS] or None


def _weight(fields: Mapping[str, JsonValue]) -> float:
    weight = fields.get("weight", 1)
    return float(weight) if isinstance(weight, int | float) and weight > 0 else 1.0


def _share(metric: str | None, criterion: str, weight: float) -> list[MetricShare]:
    return [] if metric is None else [MetricShare(name=metric, criterion=criterion, weight=weight)]


def _with_weights(criterion: Criterion, ids: Sequence[tuple[str, str]]) -> Criterion:
    weights = criterion.check.arguments.get("weights") if criterion.check else None
    if criterion.check is None or criterion.check.tool != COMPARISON_CHECK or not isinstance(weights, dict):
        return criterion
    own: dict[str, JsonValue] = {name: weights[kind] for kind, name in ids if kind in weights}
    arguments = {**criterion.check.arguments, "weights": own}
    return criterion.model_copy(update={"check": criterion.check.model_copy(update={"arguments": arguments})})


def _spots(value: JsonValue, where: Location) -> Iterator[Location]:
    """Yield the place of each criterion that an assertion makes: its own, or those of its members."""
    members = value.get("assert") if isinstance(value, dict) and value.get("type") == "assert-set" else None
    yield from (spot for _, spot in located(members, where.at("assert"))) if isinstance(members, list) else (where,)


def located(values: Sequence[JsonValue], where: Location) -> tuple[tuple[JsonValue, Location], ...]:
    """Return every assertion of a list with its place."""
    return tuple((value, where.at(at)) for at, value in enumerate(values))


@dataclass(frozen=True)
class _Reader:
    """Reads the assertions of one test as criteria."""

    options: Mapping[str, JsonValue]
    variables: Mapping[str, JsonValue]
    allow_code: bool

    def criterion(self, value: JsonValue, where: Location) -> dict[str, Any]:
        """Return the criterion, or the group of criteria, of an assertion; a key without a value is absent, as in promptfoo."""
        fields = {key: item for key, item in as_object(value, where).items() if item is not None}
        kind = str(fields.get("type"))
        if kind == "assert-set":
            return self._group(fields, where)
        criterion = Assertion(kind, fields, where, self.options, self.variables, self.allow_code).criterion()
        weight = fields.get("weight", 1)
        criterion |= {"weight": weight} if weight != 1 else {}
        criterion |= {"required": False} if weight == 0 else {}
        return criterion | ({"id": fields["metric"]} if fields.get("metric") is not None else {})

    def _group(self, fields: Mapping[str, JsonValue], where: Location) -> dict[str, Any]:
        refuse_others(fields, {"type", "assert", "threshold", "weight", "metric"}, where)
        inner = where.at("assert")
        members = [self.criterion(member, spot) for member, spot in located(as_list(fields.get("assert"), inner), inner)]
        group: dict[str, Any] = {"group": fields.get("metric", f"assert[{where.path[-1]}]"), "criteria": members}
        group |= {name: fields[name] for name in ("threshold", "weight") if name in fields}
        return group | ({"required": False} if fields.get("weight") == 0 else {})


def _with_ids(criteria: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn metrics, which may be any text and the same for several criteria, into ids."""
    used: set[str] = set()
    for member in (member for criterion in criteria for member in criterion.get("criteria", [criterion])):
        if "id" in member:
            plain = re.sub(r"[^\w.-]+", "-", str(member["id"]), flags=re.ASCII).strip("-")[:56]
            plain = plain if plain[:1].isalpha() else f"m-{plain}".rstrip("-")
            count = next(number for number in range(1, len(used) + 2) if (plain if number == 1 else f"{plain}-{number}") not in used)
            member["id"] = plain if count == 1 else f"{plain}-{count}"
            used.add(member["id"])
    return criteria
