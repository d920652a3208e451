"""JSON Schemas and regular expressions of strangers, checked in bounded time."""

import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import re2  # type: ignore[import-untyped]  # it has no types

from gradeloop.text import JSON_DEPTH, canonical_json, clip, depth

PATTERN_CHARACTERS = 10_000
"""The longest regular expression."""


@functools.lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Any:  # noqa: ANN401 - RE2's own type, which its package does not export
    """Compile a pattern by RE2, in linear time; raise ValueError where RE2, which has no look-around or back-references, refuses it."""
    if len(pattern) > PATTERN_CHARACTERS:
        raise ValueError(f"the pattern has {len(pattern)} characters, {PATTERN_CHARACTERS} at most")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        python = " (Python's own would take it; RE2 has neither look-around nor back-references)" if _compiles_in_python(pattern) else ""
        raise ValueError(f"the pattern {pattern[:200]!r} is refused: {reason}{python}") from None


def _compiles_in_python(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


_TOKEN = re.compile(
    r"\\(?:u(?P<code>[0-9A-Fa-f]{4})|c(?P<control>[A-Za-z])|k<(?P<back>\w+)>|.)|\[\^?\]|\[\^?|\(\?<(?![=!])|.",
    re.DOTALL,
)
_SPACE = "\\t\\n\\v\\f\\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_ANYWHERE = {r"\u": "u", r"\c": "c", r"\k": "k"}  # no code follows, so that they are letters
_INSIDE = _ANYWHERE | {r"\s": _SPACE, "[": r"\[", "[^": r"\[^", "[]": r"\[]", "[^]": r"\[^]"}
"""Parts of a pattern in a class of characters, by JavaScript's spelling."""

_OUTSIDE = _ANYWHERE | {
    r"\s": f"[{_SPACE}]",
    r"\S": f"[^{_SPACE}]",
    ".": "[^\\n\\r\u2028\u2029]",
    "(?<": "(?P<",
    "[^]": r"[\s\S]",
    "[]": r"[^\s\S]",
}


def compile_javascript(pattern: str) -> Any:  # noqa: ANN401 - RE2's own type, or Python's: both search
    """Compile a pattern of JavaScript's without flags; one that begins with flags, as `(?i)`, is RE2's.

    What looks around or refers back is matched by Python, which may take for ever: match it where it can be stopped.

    Raises:
        ValueError: Neither takes the pattern.
    """
    if re.match(r"\(\?[a-zA-Z]+\)", pattern):
        return compile_pattern(pattern)
    try:
        return compile_pattern(_translated(pattern, python=False))
    except ValueError as refused:
        if len(pattern) > PATTERN_CHARACTERS:
            raise
        try:
            return re.compile(_translated(pattern, python=True), re.ASCII)
        except (re.error, RecursionError, OverflowError):
            raise refused from None


def _translated(pattern: str, *, python: bool) -> str:
    """Return the pattern in the words of RE2, or of Python."""
    parts, inside = list[str](), False
    # Escapes, white space and classes mean other characters in JavaScript than in RE2 or Python, and `$` is the
    # very end of the text. Only Python's `$` also stands before a last line break, so it becomes `\Z` there.
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if token["code"] or token["control"]:
            parts.append(re.escape(chr(int(token["code"], 16) if token["code"] else ord(token["control"]) % 32)))
        elif token["back"]:
            parts.append(f"(?P={token['back']})")
        elif text == "$" and python and not inside:
            parts.append(r"\Z")
        else:
            parts.append((_INSIDE if inside else _OUTSIDE).get(text, text))
        inside = text in {"[", "[^"} or (inside and not text.endswith("]")) or (inside and text == r"\]")
    return "".join(parts)


STEPS = 200_000
"""The most keywords that one check evaluates: a schema that refers to itself over and over ends here rather than never."""

ERRORS = 20
"""The most errors of one schema check that a message lists."""


def validate_schema(schema: dict[str, Any]) -> None:
    """Raise ValueError where a JSON Schema is invalid, or could not be checked in bounded time."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]

    text = json.dumps(schema)
    if '"patternProperties"' in text and '"unevaluatedProperties"' in text:
        raise ValueError("the schema has both patternProperties and unevaluatedProperties; use additionalProperties instead")
    if depth(schema) > JSON_DEPTH:
        raise ValueError(f"the schema is nested more than {JSON_DEPTH} deep")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"the schema is none: {error.json_path}: {error.message[:300]}") from None


def schema_errors(schema: dict[str, Any], value: object) -> Iterator[str]:
    """Yield at most `ERRORS` misfits; raise ValueError where the schema takes too long, or refers out of itself: the value may fit."""
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


# A schema is a stranger's program: by references to itself it can run for ever, and by a pattern for longer
# than that. So every keyword counts as a step of one budget, and patterns are matched by RE2, whose time
# grows with the text only. The validator's own references are not followed outside of the schema, since
# that would be a request to an address of the stranger's choice.
def _bounded() -> Any:  # noqa: ANN401 - a class that the library makes
    """Return a validator class with a step count of its own and patterns that run in linear time."""
    from jsonschema import Draft202012Validator, validators

    left = [STEPS]

    def counted(keyword: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate(validator: Any, value: Any, instance: Any, schema: Any) -> Any:  # noqa: ANN401 - the library's own
            left[0] -= 1
            if left[0] < 0:
                raise ValueError(f"the check takes more than {STEPS} steps; simplify the schema")
            return keyword(validator, value, instance, schema)

        return evaluate

    own = {
        **Draft202012Validator.VALIDATORS,
        "pattern": match_pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional,
        "uniqueItems": _unique,
        "multipleOf": multiple_of,
    }
    return validators.extend(Draft202012Validator, {name: counted(keyword) for name, keyword in own.items()})


def match_pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401 - the library's own
    """Yield an error where a text does not match a pattern, by RE2."""
    from jsonschema.exceptions import ValidationError

    if validator.is_type(instance, "string") and not compile_pattern(pattern).search(instance):
        yield ValidationError(f"{instance[:100]!r} does not match {pattern[:100]!r}")


def _pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for key, value in instance.items():
            if compile_pattern(pattern).search(key):
                yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def _additional(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:  # noqa: ANN401 - the library's own
    from jsonschema.exceptions import ValidationError

    if not validator.is_type(instance, "object"):
        return
    patterns = [compile_pattern(pattern) for pattern in schema.get("patternProperties", {})]
    known = schema.get("properties", {})
    for key, value in instance.items():
        if key in known or any(pattern.search(key) for pattern in patterns):
            continue
        if wanted is False:
            yield ValidationError(f"{key!r} is not among the properties", path=[key])
        elif validator.is_type(wanted, "object"):
            yield from validator.descend(value, wanted, path=key)


def multiple_of(validator: Any, step: float, instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401 - the library's own
    """Yield an error where a number is not a multiple of `step`, by the digits that JSON has of both; infinity, as of `1e400`, is none."""
    from jsonschema.exceptions import ValidationError

    if not validator.is_type(instance, "number"):
        return
    finite = math.isfinite(step) and (isinstance(instance, int) or math.isfinite(instance))
    if not finite or (Fraction(str(instance)) / Fraction(str(step))).denominator != 1:
        yield ValidationError(f"{clip(str(instance))} is not a multiple of {clip(str(step))}")


def _unique(validator: Any, wanted: bool, instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401 - the library's own
    from jsonschema.exceptions import ValidationError

    if wanted and validator.is_type(instance, "array"):
        seen = {canonical_json(item) for item in instance}
        if len(seen) < len(instance):
            yield ValidationError("the array has the same item twice")
