"""What each test is judged by: its own rubric or assertions, or those that hold for all."""

import json
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.assertions import Asserted, spotted
from gradeloop.errors import InvalidRequest
from gradeloop.rubric import Rubric
from gradeloop.spot import Spot, refused
from gradeloop.suites.datasets import Tested
from gradeloop.suites.fields import Defaults
from gradeloop.templates import filled, is_template

_KEPT = 1000
"""Rubrics that are kept for tests with the same assertions."""


@dataclass(frozen=True)
class CaseRubrics:
    """Makes the rubrics of a suite's tests; equal literal ones are made once."""

    defaults: Defaults
    spot: Spot
    """Where the defaults stand."""
    grader_given: bool = False
    """True: a grader named for this run takes the place of the defaults' provider."""
    _made: dict[str, Rubric] = field(default_factory=dict, repr=False)

    def of(self, tested: Tested, variables: dict[str, JsonValue]) -> Rubric:
        """Return the rubric of a test, the variables filled in."""
        test = tested.test
        own = test.rubric or (self.defaults.rubric if not test.assertions else None)
        if own is None:
            return self._asserted(tested, variables)
        threshold = test.threshold if test.threshold is not None else self.defaults.threshold
        if threshold is not None:
            own = own.model_copy(update={"threshold": threshold})
        return _filled(own, variables, (tested.spot if test.rubric else self.spot).at("rubric"))

    def _asserted(self, tested: Tested, variables: dict[str, JsonValue]) -> Rubric:
        test = tested.test
        told = (*spotted(self.defaults.assertions, self.spot.at("assert")), *spotted(test.assertions, tested.spot.at("assert")))
        if not told:
            raise InvalidRequest(f"{tested.spot}: there is nothing to judge by; give the test a rubric or assert, or the suite's defaults")
        threshold = test.threshold if test.threshold is not None else self.defaults.threshold
        options = self._options(tested)
        key = json.dumps([[value for value, _ in told], options, threshold])
        if key in self._made:
            return self._made[key]
        rubric = Asserted(told, options, threshold).rubric(variables, tested.spot)
        if not is_template(key) and len(self._made) < _KEPT:
            self._made[key] = rubric
        return rubric

    def _options(self, tested: Tested) -> dict[str, Any]:
        default = self.defaults.options.model_dump(by_alias=True, exclude_none=True)
        if self.grader_given:
            default.pop("provider", None)
        return default | tested.test.options.model_dump(by_alias=True, exclude_none=True)


def _filled(rubric: Rubric, variables: dict[str, JsonValue], where: Spot) -> Rubric:
    if rubric.cleared:
        raise InvalidRequest(f"{where}: it is empty; write a criterion a line")
    if not is_template(rubric.model_dump_json()):
        return rubric
    try:
        return filled(rubric, variables)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from None
    except ValidationError as error:
        raise refused(error, where) from None
