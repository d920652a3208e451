"""Assertions that no grader's prompt decides: code, the call of the draft, and texts that mean the same."""

import os
import re
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location
from gradeloop.grading.call_checks import CALL_CHECK, CALL_KINDS, describe_call_check, validate_call_check
from gradeloop.grading.code_checks import CODE_CHECK, parse_code_check
from gradeloop.grading.comparisons import COMPARISON_CHECK, COMPARISON_KINDS, describe_comparison, validate_comparison
from gradeloop.grading.templates import fill_value
from gradeloop.suites.code_files import is_code_file, parse_transform, refuse_code
from gradeloop.suites.fields import as_object, refuse_others
from gradeloop.suites.providers import parse_provider
from gradeloop.text import clip, one_line

CODE_TYPES = ("javascript", "python")
"""The types whose value is code."""

SIMILAR_TYPES = ("similar", "similar:cosine")
"""The types that compare meanings, by the cosine of embeddings."""

SIMILAR_THRESHOLD = 0.75
"""The cosine from which on two texts are similar, as in promptfoo."""

_COMMON = {"type", "value", "weight", "metric"}
_KEYS = {
    **dict.fromkeys(CODE_TYPES, _COMMON | {"threshold", "config", "transform"}),
    **dict.fromkeys(CALL_KINDS, _COMMON | {"threshold"}),
    **dict.fromkeys(SIMILAR_TYPES, _COMMON | {"threshold", "provider", "transform"}),
    "select-best": _COMMON | {"provider"},
    "max-score": _COMMON | {"threshold"},
}

REFUSED_TYPES = {
    "meteor": "it needs WordNet's data; use rouge-n, bleu or similar",
    "gleu": "use bleu or rouge-n",
    "bert-score": "it needs a model on this machine; use similar",
    "guardrails": "no provider's guardrails are called here; write an llm-rubric on what they look for",
    "classifier": "no classifier is called here; write an llm-rubric that names the class",
    "moderation": "no moderation model is called here; write an llm-rubric that names what must not be there",
    "webhook": "no case sends its output anywhere; write the check as a function of the worker's tools",
    "ruby": "it is code in a language that is not run; write it in JavaScript or Python",
    "pi": "no such service is called here; write an llm-rubric",
    "tool-call-f1": "write it as a check, a function of the worker's tools",
    "agent-rubric": "write an llm-rubric",
    "search-rubric": "write an llm-rubric, and give the grader a tool that searches",
    "similar:dot": "use similar, which compares the cosine",
    "similar:euclidean": "use similar, which compares the cosine",
    **dict.fromkeys(("trace-error-spans", "trace-span-count", "trace-span-duration"), "a case has no trace; judge its output"),
}
"""Types without a counterpart, and what is written instead."""


def refused_type(kind: str, where: Location) -> InvalidRequest | None:
    """Return the error for a type that has no counterpart by its name; None for any other type."""
    plain = kind.removeprefix("not-")
    return InvalidRequest(f"{where}: the type {clip(kind)} has no counterpart; {REFUSED_TYPES[plain]}") if plain in REFUSED_TYPES else None


def known_keys(kind: str) -> set[str]:
    """Return the keys that an assertion of a type may have; none where the type is not of this module."""
    return _KEYS.get(kind.removeprefix("not-"), set())


def build_criterion(
    fields: Mapping[str, JsonValue],
    kind: str,
    where: Location,
    options: Mapping[str, JsonValue],
    variables: Mapping[str, JsonValue],
    *,
    allow_code: bool,
) -> dict[str, Any]:
    """Return the criterion of an assertion, without its weight and its name.

    Raises:
        InvalidRequest: The assertion is invalid, or is code that its user has not allowed.
    """
    negate, plain = kind.startswith("not-"), kind.removeprefix("not-")
    if plain in CODE_TYPES:
        return _coded(fields, plain, where, variables, negate=negate, allow_code=allow_code)
    if plain in SIMILAR_TYPES:
        return _similar(fields, where, options, negate=negate) | own_transform(fields, where, allow_code=allow_code)
    if plain in COMPARISON_KINDS:
        return _compared(fields, plain, where, options, variables)
    value = fields.get("value") if plain == "finish-reason" else fields.get("threshold", fields.get("value"))
    arguments: dict[str, JsonValue] = {"kind": plain, "value": fill_value(value, variables, str(where))}
    arguments |= {"negate": True} if negate else {}
    try:
        validate_call_check(arguments)
    except ValueError as error:
        raise InvalidRequest(f"{where}: {error}") from None
    return {"description": describe_call_check(arguments), "check": {"tool": CALL_CHECK, "arguments": arguments}}


def _compared(
    fields: Mapping[str, JsonValue], kind: str, where: Location, options: Mapping[str, JsonValue], variables: Mapping[str, JsonValue]
) -> dict[str, Any]:
    """Return the criterion of an assertion that compares the outputs of a test with one another."""
    arguments: dict[str, JsonValue] = {"kind": kind}
    if kind == "select-best":
        provider = fields.get("provider", options.get("provider"))
        arguments["value"] = fill_value(fields.get("value"), variables, str(where))
        arguments |= {"grader": parse_provider(provider, where)} if provider is not None else {}
    else:
        value = as_object(fields.get("value"), where.at("value"))
        refuse_others(value, {"method", "weights", "threshold"}, where.at("value"))
        arguments |= {name: item for name, item in value.items() if item is not None}
        arguments |= {"threshold": fields["threshold"]} if fields.get("threshold") is not None else {}
    try:
        validate_comparison(arguments)
    except ValueError as error:
        raise InvalidRequest(f"{where.at('value')}: {error}") from None
    description = re.sub(r"\{(?=[{%#])", "{ ", describe_comparison(arguments))  # no template
    return {"description": description, "check": {"tool": COMPARISON_CHECK, "arguments": arguments}}


def _coded(
    fields: Mapping[str, JsonValue],
    language: str,
    where: Location,
    variables: Mapping[str, JsonValue],
    *,
    negate: bool,
    allow_code: bool,
) -> dict[str, Any]:
    value = fields.get("value")
    if isinstance(value, dict) and is_code_file(value):
        default = "get_assert" if value.get("language") == "python" else ""
        arguments: dict[str, JsonValue] = {**value, "function": value.get("function") or default}
        shown = f"{value.get('file')}{':' + str(value['function']) if value.get('function') else ''}"
    elif isinstance(value, str) and value.strip():
        code = str(fill_value(value, variables, str(where.at("value"))))
        arguments = {"language": language, "code": code}
        shown = clip(one_line(code.strip()), 120)
    else:
        raise InvalidRequest(f"{where.at('value')}: {clip(str(value))} is no code; write an expression over output, or name a file")
    if not allow_code:
        raise refuse_code(where, f"the {language} assertion")
    arguments |= {"threshold": fields["threshold"]} if fields.get("threshold") is not None else {}
    arguments |= {"config": fill_value(fields["config"], variables, str(where.at("config")))} if "config" in fields else {}
    arguments |= {"negate": True} if negate else {}
    try:
        parse_code_check(arguments)
    except ValueError as error:
        raise InvalidRequest(f"{where.at('value')}: {error}") from None
    description = re.sub(r"\{(?=[{%#])", "{ ", f"{language} {'does not hold' if negate else 'holds'}: {shown}")  # no template
    check = {"tool": CODE_CHECK, "arguments": arguments, **own_transform(fields, where, allow_code=True)}
    return {"description": description, "check": check}


def own_transform(fields: Mapping[str, JsonValue], where: Location, *, allow_code: bool) -> dict[str, Any]:
    """Return the transform of an assertion of its own, as a field of its check or its criterion.

    Raises:
        InvalidRequest: It is no code, or its user has not allowed it.
    """
    if fields.get("transform") is None:
        return {}
    if not allow_code:
        raise refuse_code(where.at("transform"), "the transform")
    return {"transform": parse_transform(fields["transform"], "get_transform", where.at("transform")).model_dump()}


_EMBEDDERS = {
    f"{vendor}:{kind}:": ours
    for vendor, ours in (("openai", "openai:"), ("google", "google_genai:"), ("vertex", "google_genai:"))
    for kind in ("embedding", "embeddings")
}
"""Prefixes of promptfoo's embedding models, and those of ours."""

_DEFAULT_EMBEDDERS = (
    ("OPENAI_API_KEY", "openai:text-embedding-3-large"),
    ("GOOGLE_API_KEY", "google_genai:gemini-embedding-001"),
    ("GEMINI_API_KEY", "google_genai:gemini-embedding-001"),
)
"""The embedding model where none is named, by the key that is there; the first of them is promptfoo's."""


def _similar(fields: Mapping[str, JsonValue], where: Location, options: Mapping[str, JsonValue], *, negate: bool) -> dict[str, Any]:
    """Return the criterion; its texts are filled with the rubric's, once, since what a variable holds is data."""
    value = fields.get("value")
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InvalidRequest(f"{where.at('value')}: {clip(str(value))} is no text; write what the output must be similar to")
    threshold = fields.get("threshold", SIMILAR_THRESHOLD)
    return {
        "description": {"similar_to": texts} if len(texts) > 1 else texts[0],
        "form": "similar",
        "grader": _embedder(fields.get("provider"), options.get("provider"), where),
        "score": {"min": 0, "max": 1, "threshold": threshold},
    } | ({"negate": True} if negate else {})


def _embedder(own: JsonValue, shared: JsonValue, where: Location) -> dict[str, JsonValue]:
    """Return the embedding model of an assertion: its own, that of its test's options, or the default."""
    for provider in (own, shared):
        chosen = provider.get("embedding", provider) if isinstance(provider, dict) else provider
        fields = chosen if isinstance(chosen, dict) else {"id": chosen}
        name = fields.get("id")
        if not isinstance(name, str):
            continue
        for theirs, ours in _EMBEDDERS.items():
            if name.startswith(theirs):
                return {"id": f"{ours}{name.removeprefix(theirs)}"}
        if name.startswith("scripted:"):
            return {"id": name}
        if provider is own:
            known = ", ".join(_EMBEDDERS)
            raise InvalidRequest(f"{where}.provider: {clip(name)} is no embedding model that is called here; known ids begin with {known}")
    return {"id": next((model for variable, model in _DEFAULT_EMBEDDERS if os.environ.get(variable)), _DEFAULT_EMBEDDERS[0][1])}
