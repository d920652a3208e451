"""Checks on a text that need no model: what it equals, contains, begins with or matches, and whether it is JSON.

Facts of what they come to: promptfoo 0.123.1, `src/assertions`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import JsonValue

from gradeloop.evaluation import CheckOutcome
from gradeloop.json_schema import read_json, schema_errors
from gradeloop.patterns import compiled
from gradeloop.printable import clip, shortened
from gradeloop.strict_json import leading_json
from gradeloop.text_check_arguments import KINDS, SHOWN, described, refuse_unusable, schema_of, shown, word_of, words_of

__all__ = ["BEGINNINGS", "KINDS", "outcome"]

BEGINNINGS = 1000
"""Of JSON in a text: every `{` and `[` may be one, and each is read to where it breaks off."""

Gap = str | None


def outcome(draft: str, arguments: Mapping[str, JsonValue]) -> CheckOutcome:
    """Say whether a text passes, and if not what was wanted and what was found.

    Args:
        draft: What is looked at, whole.
        arguments: `kind`, the `value` it is compared with, and `negate`, which turns the outcome round.

    Raises:
        ValueError: The arguments cannot be used; that is no word on the text.
    """
    refuse_unusable(arguments)
    gap = _CHECKS[str(arguments["kind"])](draft, arguments.get("value"))
    if not arguments.get("negate"):
        return CheckOutcome(passed=gap is None, gap=None if gap is None else shortened(gap))
    return CheckOutcome(passed=gap is not None, gap=None if gap else shortened(f"{described(arguments)}; found {clip(draft, SHOWN)}"))


def _equals(draft: str, value: JsonValue) -> Gap:
    if isinstance(value, dict | list):
        try:
            same = _comparable(read_json(draft)) == _comparable(value)
        except ValueError:
            same = False
    else:
        same = draft == word_of(value, "equals")
    return None if same else f"wanted {shown(value)}, found {clip(draft, SHOWN)}"


def _comparable(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return a value of which Python tells `true` from `1`, as JSON does."""
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return ("truth", value) if isinstance(value, bool) else value


def _contains(draft: str, value: JsonValue, *, fold: bool = False) -> Gap:
    missing = _missing(draft, [word_of(value, "contains")], fold=fold)
    return f"{clip(missing[0], SHOWN)} is not in it; found {clip(draft, SHOWN)}" if missing else None


def _contains_all(draft: str, value: JsonValue, *, fold: bool = False) -> Gap:
    missing = _missing(draft, words_of(value), fold=fold)
    return f"not in it: {', '.join(clip(each) for each in missing)}; found {clip(draft, SHOWN)}" if missing else None


def _contains_any(draft: str, value: JsonValue, *, fold: bool = False) -> Gap:
    words = words_of(value)
    none = len(_missing(draft, words, fold=fold)) == len(words)
    return f"none of these is in it: {', '.join(clip(each) for each in words)}; found {clip(draft, SHOWN)}" if none else None


def _missing(draft: str, words: list[str], *, fold: bool) -> list[str]:
    text = draft.lower() if fold else draft
    return [each for each in words if (each.lower() if fold else each) not in text]


def _starts_with(draft: str, value: JsonValue) -> Gap:
    text = word_of(value, "starts-with")
    return None if draft.startswith(text) else f"wanted {shown(value)} at the beginning, found {clip(draft[: len(text) + 40], SHOWN)}"


def _regex(draft: str, value: JsonValue) -> Gap:
    return None if compiled(word_of(value, "regex")).search(draft) else f"nothing matches {shown(value)}; found {clip(draft, SHOWN)}"


def _is_json(draft: str, value: JsonValue) -> Gap:
    try:
        read = read_json(draft)
    except ValueError as error:
        return f"{error}; found {clip(draft, SHOWN)}"
    errors = [] if value is None else list(schema_errors(schema_of(value), read))
    return "; ".join(errors) or None


def _contains_json(draft: str, value: JsonValue) -> Gap:
    first: str | None = None
    for found in _objects(draft):
        errors = [] if value is None else list(schema_errors(schema_of(value), found))
        if not errors:
            return None
        first = first or "; ".join(errors)
    return first or f"there is no JSON object or list in it; found {clip(draft, SHOWN)}"


def _objects(draft: str) -> Iterator[Any]:
    """Yield the JSON objects and lists in a text, the outer ones; raise ValueError where it has too many beginnings of them."""
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
}
