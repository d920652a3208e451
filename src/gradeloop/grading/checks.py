"""Checks that need no model: texts, regular expressions, JSON and JSON Schemas."""

import csv
import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, get_args

import re2  # type: ignore[import-untyped]  # it has no types
from pydantic import JsonValue

from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.contract.messages import code_of
from gradeloop.grading.text_kinds import CALLS, MEASURES, SENTENCES, SIMPLE, THRESHOLDS, JsonReader, as_number, validate_kind
from gradeloop.text import JSON_DEPTH, canonical_json, clip, depth, did_you_mean, leading_json, read_json, shortened, whole_characters

TextCheckKind = Literal[
    "equals",
    "contains",
    "icontains",
    "contains-all",
    "contains-any",
    "icontains-all",
    "icontains-any",
    "starts-with",
    "regex",
    "is-json",
    "contains-json",
    "levenshtein",
    "rouge-n",
    "bleu",
    "word-count",
    "is-refusal",
    "is-xml",
    "contains-xml",
    "is-html",
    "contains-html",
    "is-sql",
    "contains-sql",
    "is-valid-openai-tools-call",
    "is-valid-openai-function-call",
    "is-valid-function-call",
]


KINDS: tuple[str, ...] = get_args(TextCheckKind)
"""The kinds of text checks, by name."""


SHOWN = 200
"""The characters of a found or wanted value that a message shows."""


BEGINNINGS = 1000
"""The most beginnings of JSON in a text: every `{` and `[` may be one, and each costs a parse up to where it breaks off."""


Gap = str | None


_SENTENCES = {
    "equals": ("it equals", "it does not equal"),
    "contains": ("it contains", "it does not contain"),
    "icontains": ("it contains, in any case,", "it does not contain, in any case,"),
    "contains-all": ("it contains all of", "it does not contain all of"),
    "contains-any": ("it contains one of", "it contains none of"),
    "icontains-all": ("it contains, in any case, all of", "it does not contain, in any case, all of"),
    "icontains-any": ("it contains, in any case, one of", "it contains, in any case, none of"),
    "starts-with": ("it starts with", "it does not start with"),
    "regex": ("it matches", "it does not match"),
    "is-json": ("it is JSON", "it is no JSON"),
    "contains-json": ("it contains JSON", "it contains no JSON"),
    **SENTENCES,
}


def run_text_check(draft: str, arguments: Mapping[str, JsonValue]) -> CheckOutcome:
    """Check a text, and return whether it passes, with what was wanted and what was found as the gap.

    Args:
        draft: The whole text.
        arguments: `kind`, the `value` to compare with, and `negate`, which inverts the outcome.

    Raises:
        ValueError: The arguments are invalid; the text may still pass.
    """
    validate_text_check(arguments)
    if arguments["kind"] in MEASURES:
        return _measured(draft, arguments)
    gap = _CHECKS[str(arguments["kind"])](draft, arguments.get("value"))
    if not arguments.get("negate"):
        return CheckOutcome(passed=gap is None, gap=None if gap is None else shortened(whole_characters(gap)))
    return CheckOutcome(
        passed=gap is not None, gap=None if gap else shortened(f"{describe_text_check(arguments)}; found {clip(draft, SHOWN)}")
    )


def _measured(draft: str, arguments: Mapping[str, JsonValue]) -> CheckOutcome:
    """Return the outcome of a kind that measures; what it measured is its share of the score."""
    kind, negate = str(arguments["kind"]), bool(arguments.get("negate"))
    threshold = arguments.get("threshold")
    least = THRESHOLDS[kind] if threshold is None else as_number(threshold, kind)
    passed, share, found = MEASURES[kind](draft, arguments.get("value"), least)
    passed, share = (not passed, None if share is None else 1 - share) if negate else (passed, share)
    gap = f"{describe_text_check(arguments)}; {found}" if negate else found
    return CheckOutcome(passed=passed, gap=None if passed else gap, share=share)


def run_text_checks(output: str, checks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Run the text checks of a rubric on an output, and return their outcomes as JSON by criterion.

    Args:
        output: The whole text.
        checks: For each criterion its `id`, the check's `arguments`, and what it `extract`s.

    Raises:
        ValueError: A check cannot decide; the message names it.
    """
    outcomes = {}
    for check in checks:
        text = code_of(output) if check["extract"] == "code" else output
        try:
            outcomes[check["id"]] = run_text_check(text, check["arguments"]).model_dump(mode="json")
        except ValueError as error:
            raise ValueError(f"the check text_check of {check['id']} could not decide: {error}") from None
    return outcomes


def validate_text_check(arguments: Mapping[str, JsonValue]) -> None:
    """Raise ValueError where arguments are missing, unknown, or unfit for the kind."""
    if odd := sorted(set(arguments) - {"kind", "value", "negate", "threshold"}):
        raise ValueError(f"unknown argument {odd[0]!r}; give kind, value, negate and threshold")
    kind, value = arguments.get("kind"), arguments.get("value")
    if kind not in KINDS:
        raise ValueError(f"there is no kind {clip(str(kind))}.{did_you_mean(str(kind), list(KINDS))}")
    if not isinstance(arguments.get("negate", False), bool):
        raise ValueError(f"negate is {clip(str(arguments['negate']))}; write true or false")  # noqa: TRY004 - of a request, all are ValueErrors
    if kind in SENTENCES:
        validate_kind(str(kind), value, arguments.get("threshold"))
    elif arguments.get("threshold") is not None:
        raise ValueError(f"{kind} has no threshold; leave it out")
    else:
        _validate_value(str(kind), value)


def takes_threshold(kind: str) -> bool:
    """Tell whether a kind compares what it measures with a threshold."""
    return kind.removeprefix("not-") in THRESHOLDS


def _validate_value(kind: str, value: JsonValue) -> None:
    if kind.endswith("-json"):
        if value is not None:
            validate_schema(schema_of(value))
    elif value is None:
        raise ValueError(f"{kind} has no value; write what is looked for")
    elif kind.endswith(("-all", "-any")):
        texts_of(value)
    elif kind != "equals":
        text = text_of(value, kind)
        if not text:
            raise ValueError(f"the value of {kind} is empty, which every text has in it; write what is looked for")
        if kind == "regex":
            compile_pattern(text)


def describe_text_check(arguments: Mapping[str, JsonValue]) -> str:
    """Return the requirement as a sentence: `it contains '5 days'`."""
    kind, value = str(arguments["kind"]), arguments.get("value")
    sentence = _SENTENCES[kind][bool(arguments.get("negate"))]
    if kind.endswith("-json"):
        return f"{sentence} that fits the schema" if value is not None else sentence
    if value is None or kind.endswith("-call"):
        return sentence
    return f"{sentence} {show_value(value)}"


def show_value(value: JsonValue) -> str:
    """Return a value for a message, shortened."""
    return clip(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), SHOWN)


def schema_of(value: JsonValue) -> dict[str, Any]:
    """Return the value as a JSON Schema; raise ValueError where it is no object."""
    if not isinstance(value, dict):
        raise ValueError(f"{clip(str(value))} is no JSON Schema; write an object")  # noqa: TRY004 - of a request, all are ValueErrors
    return value


def text_of(value: JsonValue, kind: str) -> str:
    """Return the text, or a number or truth value as JSON writes it; raise ValueError for anything else."""
    if isinstance(value, dict | list) or value is None:
        raise ValueError(f"the value of {kind} is {clip(str(value))}; write a text")
    return value if isinstance(value, str) else json.dumps(value)


def texts_of(value: JsonValue) -> list[str]:
    """Return the texts of a list, or of one comma-separated text, in which quotes protect a comma.

    Raises:
        ValueError: There are no texts.
    """
    if isinstance(value, str):
        rows = list(csv.reader([value.replace("\n", " ")], skipinitialspace=True))
        value = [row.strip() for row in (rows[0] if rows else []) if row.strip()]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{clip(str(value))} is no list of texts; write one, or texts with commas between them")
    return [text_of(item, "an item") for item in value]


def _equals(draft: str, value: JsonValue) -> Gap:
    if isinstance(value, dict | list):
        try:
            same = _comparable(read_json(draft)) == _comparable(value)
        except ValueError:
            same = False
    else:
        same = draft == text_of(value, "equals")
    return None if same else f"wanted {show_value(value)}, found {clip(draft, SHOWN)}"


def _comparable(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return the value in a form that compares `true` and `1` as different, as JSON does."""
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return ("truth", value) if isinstance(value, bool) else value


def _contains(draft: str, value: JsonValue, *, fold: bool = False) -> Gap:
    missing = _missing(draft, [text_of(value, "contains")], fold=fold)
    return f"{clip(missing[0], SHOWN)} is not in it; found {clip(draft, SHOWN)}" if missing else None


def _contains_all(draft: str, value: JsonValue, *, fold: bool = False) -> Gap:
    missing = _missing(draft, texts_of(value), fold=fold)
    return f"not in it: {', '.join(clip(text) for text in missing)}; found {clip(draft, SHOWN)}" if missing else None


def _contains_any(draft: str, value: JsonValue, *, fold: bool = False) -> Gap:
    texts = texts_of(value)
    none = len(_missing(draft, texts, fold=fold)) == len(texts)
    return f"none of these is in it: {', '.join(clip(text) for text in texts)}; found {clip(draft, SHOWN)}" if none else None


def _missing(draft: str, texts: list[str], *, fold: bool) -> list[str]:
    haystack = draft.lower() if fold else draft
    return [text for text in texts if (text.lower() if fold else text) not in haystack]


def _starts_with(draft: str, value: JsonValue) -> Gap:
    text = text_of(value, "starts-with")
    return None if draft.startswith(text) else f"wanted {show_value(value)} at the beginning, found {clip(draft[: len(text) + 40], SHOWN)}"


def _regex(draft: str, value: JsonValue) -> Gap:
    return (
        None
        if compile_pattern(text_of(value, "regex")).search(draft)
        else f"nothing matches {show_value(value)}; found {clip(draft, SHOWN)}"
    )


def _is_json(draft: str, value: JsonValue) -> Gap:
    try:
        read = read_json(draft)
    except ValueError as error:
        return f"{error}; found {clip(draft, SHOWN)}"
    errors = [] if value is None else list(schema_errors(schema_of(value), read))
    return "; ".join(errors) or None


def _contains_json(draft: str, value: JsonValue) -> Gap:
    first: str | None = None
    for part in _objects(draft):
        errors = [] if value is None else list(schema_errors(schema_of(value), part))
        if not errors:
            return None
        first = first or "; ".join(errors)
    return first or f"there is no JSON object or list in it; found {clip(draft, SHOWN)}"


def _objects(draft: str) -> Iterator[Any]:
    """Yield the outermost JSON objects and lists in a text; raise ValueError where it has too many beginnings of them."""
    end = tried = 0
    for at, character in enumerate(draft):
        if character in "{[" and at >= end:
            tried += 1
            if tried > BEGINNINGS:
                raise ValueError(f"the text has more than {BEGINNINGS} beginnings of JSON; ask for is-json")
            try:
                value, end = leading_json(draft, at)
            except (ValueError, RecursionError):
                continue
            yield value


def _reading(check: Callable[[str, JsonValue, JsonReader], str | None]) -> Callable[[str, JsonValue], Gap]:
    """Return the check of a kind that reads calls of functions."""
    return lambda draft, value: check(draft, value, JsonReader(read_json, _valid_schema_errors))


def _valid_schema_errors(schema: dict[str, Any], value: object) -> Iterator[str]:
    validate_schema(schema)
    return schema_errors(schema, value)


_CHECKS: dict[str, Callable[[str, JsonValue], Gap]] = {
    "equals": _equals,
    "contains": _contains,
    "icontains": lambda draft, value: _contains(draft, value, fold=True),
    "contains-all": _contains_all,
    "contains-any": _contains_any,
    "icontains-all": lambda draft, value: _contains_all(draft, value, fold=True),
    "icontains-any": lambda draft, value: _contains_any(draft, value, fold=True),
    "starts-with": _starts_with,
    "regex": _regex,
    "is-json": _is_json,
    "contains-json": _contains_json,
    **SIMPLE,
    **{kind: _reading(check) for kind, check in CALLS.items()},
}


PATTERN_CHARACTERS = 10_000
"""The longest regular expression."""


@functools.lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Any:  # noqa: ANN401 - RE2's own type, which its package does not export
    """Compile a regular expression by RE2, which matches in linear time.

    Raises:
        ValueError: RE2 does not accept the pattern; it has neither look-around nor back-references.
    """
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
    """Yield what does not fit the schema, at most `ERRORS` sentences.

    Raises:
        ValueError: The schema takes too long, or refers to what is not in it; the value may still fit.
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
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional,
        "uniqueItems": _unique,
        "multipleOf": multiple_of,
    }
    return validators.extend(Draft202012Validator, {name: counted(keyword) for name, keyword in own.items()})


def _pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401 - the library's own
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
    """Yield an error where a number is no multiple of `step`, by the digits that JSON has of both; infinity, as of `1e400`, is none."""
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
