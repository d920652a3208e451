"""A test of promptfoo's as a rubric; what has no counterpart is refused by name."""

from pydantic import JsonValue

from gradeloop.assertions import Asserted, spotted
from gradeloop.errors import InvalidRequest
from gradeloop.promptfoo_models import as_list, as_object, refuse_others
from gradeloop.rubric import Rubric
from gradeloop.spot import Spot

_TEST = {"assert", "vars", "options", "threshold", "description"}


def from_promptfoo(value: JsonValue, *, test: int = 0) -> Rubric:
    """Return a test's assertions as a rubric, its `vars` filled in.

    Every assertion is one criterion, however many lines its `value` has, answered as `{reason, pass, score}` in a call of its own, or
    decided by a check. Without a threshold of the test all must pass, but those of weight 0; with one the mean of the scores alone decides.

    Args:
        value: A configuration, a test, a list of assertions, or one.
        test: Which of a configuration's tests, from 0.

    Raises:
        InvalidRequest: Something has no counterpart; the message names it.
    """
    whole, default = _test_of(value, test)
    options = {**as_object(default.get("options"), "defaultTest.options"), **as_object(whole.get("options"), "options")}
    told = [*as_list(default.get("assert"), "defaultTest.assert"), *as_list(whole.get("assert"), "assert")]
    threshold = whole.get("threshold", default.get("threshold"))
    if not isinstance(threshold, int | float | None):
        raise InvalidRequest(f"threshold is {threshold!r}; write a number from 0 to 1")
    variables = {**as_object(default.get("vars"), "defaultTest.vars"), **as_object(whole.get("vars"), "vars")}
    name = whole.get("description")
    asserted = Asserted(spotted(told, Spot(path=("assert",))), options, threshold, name if isinstance(name, str) else None)
    try:
        return asserted.rubric(variables, Spot())
    except InvalidRequest as error:
        raise InvalidRequest(f"the assertions make no rubric: {error}") from None


def _test_of(value: JsonValue, number: int) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """Return the test that is meant, and what a configuration says of all of them."""
    if isinstance(value, list):
        return {"assert": value}, {}
    told = as_object(value, "the file")
    if "type" in told:
        return {"assert": [told]}, {}
    if "tests" not in told:
        refuse_others(told, _TEST, Spot("the test"))
        return told, {}
    tests = as_list(told["tests"], "tests")
    if not 0 <= number < len(tests):
        raise InvalidRequest(f"test {number} is not there; they run from 0 to {len(tests) - 1}")
    return as_object(tests[number], f"tests[{number}]"), as_object(told.get("defaultTest"), "defaultTest")
