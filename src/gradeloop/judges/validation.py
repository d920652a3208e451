"""An output held against its schema, by the `jsonschema` library; patterns are RE2's, so that they end in time."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator, validators  # type: ignore[import-untyped]  # it has no types
from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]

from gradeloop.patterns import compiled

WORDS = 300
"""Of each problem."""

PROBLEMS = 20


def problems_of(schema: Mapping[str, Any], output: object) -> Iterator[str]:
    """Yield what does not fit, in the validator's own words, each with its place."""
    found = _validator()(dict(schema), format_checker=_formats()).iter_errors(output)
    for count, error in enumerate(sorted(found, key=lambda each: [str(part) for part in each.absolute_path])):
        if count == PROBLEMS:
            yield "and more"
            return
        yield f"{error.json_path}: {error.message[:WORDS]}"


@cache
def _validator() -> Any:  # noqa: ANN401 - a class that the library makes
    return validators.extend(Draft202012Validator, {"pattern": _pattern})


@cache
def _formats() -> Any:  # noqa: ANN401 - the library's own
    return Draft202012Validator.FORMAT_CHECKER


def _pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401 - the library's own
    if validator.is_type(instance, "string") and not compiled(pattern).search(instance):
        yield ValidationError(f"{instance[:100]!r} does not match {pattern[:100]!r}")
