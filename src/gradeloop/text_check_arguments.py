"""What a text is compared with: the arguments of `text_check`, and how they are told."""

import csv
import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import JsonValue

from gradeloop.json_schema import refuse_unfit
from gradeloop.patterns import compiled
from gradeloop.printable import clip, did_you_mean

Kind = Literal[
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
]
KINDS: tuple[str, ...] = get_args(Kind)

SHOWN = 200
"""Characters of what was found or wanted that is told."""

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
}


def refuse_unusable(arguments: Mapping[str, JsonValue]) -> None:
    """Raise ValueError where arguments are missing, odd, or of a kind that takes others."""
    if odd := sorted(set(arguments) - {"kind", "value", "negate"}):
        raise ValueError(f"unknown argument {odd[0]!r}; give kind, value and negate")
    kind, value = arguments.get("kind"), arguments.get("value")
    if kind not in KINDS:
        raise ValueError(f"there is no kind {clip(str(kind))}.{did_you_mean(str(kind), list(KINDS))}")
    if not isinstance(arguments.get("negate", False), bool):
        raise ValueError(f"negate is {clip(str(arguments['negate']))}; write true or false")  # noqa: TRY004 - of a request, all are ValueErrors
    _refuse_value(str(kind), value)


def _refuse_value(kind: str, value: JsonValue) -> None:
    if kind.endswith("-json"):
        if value is not None:
            refuse_unfit(schema_of(value))
    elif value is None:
        raise ValueError(f"{kind} has no value; write what is looked for")
    elif kind.endswith(("-all", "-any")):
        words_of(value)
    elif kind != "equals":
        text = word_of(value, kind)
        if not text:
            raise ValueError(f"the value of {kind} is empty, which every text has in it; write what is looked for")
        if kind == "regex":
            compiled(text)


def described(arguments: Mapping[str, JsonValue]) -> str:
    """Return what a text has to be, as a sentence: `it contains '5 days'`."""
    kind, value = str(arguments["kind"]), arguments.get("value")
    words = _SENTENCES[kind][bool(arguments.get("negate"))]
    if kind.endswith("-json"):
        return f"{words} that fits the schema" if value is not None else words
    return f"{words} {shown(value)}"


def shown(value: JsonValue) -> str:
    """Return a value for a message, cut."""
    return clip(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), SHOWN)


def schema_of(value: JsonValue) -> dict[str, Any]:
    """Return a JSON Schema; raise ValueError where it is no object."""
    if not isinstance(value, dict):
        raise ValueError(f"{clip(str(value))} is no JSON Schema; write an object")  # noqa: TRY004 - of a request, all are ValueErrors
    return value


def word_of(value: JsonValue, kind: str) -> str:
    """Return a text, or a number or truth value as JSON writes it; raise ValueError for anything else."""
    if isinstance(value, dict | list) or value is None:
        raise ValueError(f"the value of {kind} is {clip(str(value))}; write a text")
    return value if isinstance(value, str) else json.dumps(value)


def words_of(value: JsonValue) -> list[str]:
    """Return the texts of a list, or of one text with commas between them, quoted where a comma is meant.

    Raises:
        ValueError: There are none.
    """
    if isinstance(value, str):
        rows = list(csv.reader([value.replace("\n", " ")], skipinitialspace=True))
        value = [each.strip() for each in (rows[0] if rows else []) if each.strip()]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{clip(str(value))} is no list of texts; write one, or texts with commas between them")
    return [word_of(each, "an item") for each in value]
