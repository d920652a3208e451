"""Whether JSON fits a JSON Schema (draft 2020-12); decided by the `jsonschema` library, within bounds."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from gradeloop.patterns import compiled
from gradeloop.strict_json import depth, no_constant

STEPS = 200_000
"""Keywords looked at in one check: a schema that refers to itself over and over ends here rather than never."""

DEPTH = 200
ERRORS = 20
JSON_BYTES = 1024 * 1024


def read_json(text: str) -> Any:  # noqa: ANN401 - JSON of any shape
    """Read a text as JSON, within bounds.

    Raises:
        ValueError: It is none, or too large or too deep to be looked at.
    """
    if len(text.encode(errors="replace")) > JSON_BYTES:
        raise ValueError(f"the JSON has more than {JSON_BYTES} bytes")
    try:
        value = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {str(error)[:200]}") from None
    if (deep := depth(value)) > DEPTH:
        raise ValueError(f"the JSON is nested {deep} deep, {DEPTH} at most")
    return value


def refuse_unfit(schema: dict[str, Any]) -> None:
    """Raise ValueError where a schema is none, or none that is checked in bounded time."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]

    told = json.dumps(schema)
    if '"patternProperties"' in told and '"unevaluatedProperties"' in told:
        raise ValueError("the schema has both patternProperties and unevaluatedProperties; use additionalProperties instead")
    if depth(schema) > DEPTH:
        raise ValueError(f"the schema is nested more than {DEPTH} deep")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"the schema is none: {error.json_path}: {error.message[:300]}") from None


def schema_errors(schema: dict[str, Any], value: object) -> Iterator[str]:
    """Yield what does not fit, `ERRORS` sentences at most.

    Raises:
        ValueError: The schema takes too long, or refers to what is not in it; that is no word on the value.
    """
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    validator = _bounded()(schema, registry=Registry())
    try:
        for count, error in enumerate(validator.iter_errors(value)):
            if count == ERRORS:
                yield "and more"
                return
            yield f"{error.json_path}: {error.message[:300]}"
    except Unresolvable as error:
        raise ValueError(f"the schema refers to {error.ref!r}, which is not in it") from None
    except RecursionError:
        raise ValueError("the schema refers to itself without end") from None


def _bounded() -> Any:  # noqa: ANN401 - a class that the library makes
    """Return a validator of its own count, whose patterns end in time."""
    from jsonschema import Draft202012Validator, validators

    left = [STEPS]

    def counted(keyword: Callable[..., Any]) -> Callable[..., Any]:
        def look(validator: Any, value: Any, instance: Any, schema: Any) -> Any:  # noqa: ANN401 - the library's own
            left[0] -= 1
            if left[0] < 0:
                raise ValueError(f"the check takes more than {STEPS} steps; simplify the schema")
            return keyword(validator, value, instance, schema)

        return look

    own = {
        **Draft202012Validator.VALIDATORS,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional,
        "uniqueItems": _unique,
    }
    return validators.extend(Draft202012Validator, {name: counted(keyword) for name, keyword in own.items()})


def _pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401 - the library's own
    from jsonschema.exceptions import ValidationError

    if validator.is_type(instance, "string") and not compiled(pattern).search(instance):
        yield ValidationError(f"{instance[:100]!r} does not match {pattern[:100]!r}")


def _pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for key, value in instance.items():
            if compiled(pattern).search(key):
                yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def _additional(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:  # noqa: ANN401 - the library's own
    from jsonschema.exceptions import ValidationError

    if not validator.is_type(instance, "object"):
        return
    patterns = [compiled(pattern) for pattern in schema.get("patternProperties", {})]
    known = schema.get("properties", {})
    for key, value in instance.items():
        if key in known or any(pattern.search(key) for pattern in patterns):
            continue
        if wanted is False:
            yield ValidationError(f"{key!r} is not among the properties", path=[key])
        elif validator.is_type(wanted, "object"):
            yield from validator.descend(value, wanted, path=key)


def _unique(validator: Any, wanted: bool, instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401 - the library's own
    from jsonschema.exceptions import ValidationError

    if wanted and validator.is_type(instance, "array"):
        seen = {json.dumps(each, sort_keys=True) for each in instance}
        if len(seen) < len(instance):
            yield ValidationError("the array has the same item twice")
