"""A schema judge's answer, read strictly: one object that keeps the schema, whoever else is quoted beside it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.judges.agent_run import AgentRun
from gradeloop.judges.citations import Citation, citations_of
from gradeloop.judges.schema_judge import REASONING, SchemaJudge
from gradeloop.judges.schema_shape import cited, without_nulls
from gradeloop.judges.validation import problems_of
from gradeloop.strict_json import leading_json, strict_json

ANSWER_BYTES = 64 * 1024
"""Of an output as JSON: 25 rollouts and as many reflections stay within one payload."""

_FENCE = re.compile(r"\s*```(?:json|yaml)?[ \t]*\n")
_FENCE_END = re.compile(r"\s*```\s*")


@dataclass(frozen=True)
class Answered:
    """A valid answer."""

    output: dict[str, JsonValue]
    citations: tuple[Citation, ...]


@dataclass(frozen=True)
class Invalid:
    """An answer that is none: never an output."""

    problems: tuple[str, ...]


def read(text: str, judge: SchemaJudge, run: AgentRun) -> Answered | Invalid:
    """Read an answer: find the object, parse it strictly, hold it against the schema, look its citations up.

    In XML mode the object stands between the judge's tags, outside of what the model thought; blocks that parse equal are one.
    """
    try:
        value = strict_json(_unfenced(text)) if judge.constrained else _block(text, judge)
    except (ValueError, RecursionError) as error:
        return Invalid((str(error) or "it is nested too deeply",))
    if judge.constrained:
        value = without_nulls(judge.output_schema, value)
    if not isinstance(value, dict):
        return Invalid((f"the answer is a {type(value).__name__}; write one JSON object",))
    if (size := len(json.dumps(value).encode())) > ANSWER_BYTES:
        return Invalid((f"the answer has {size} bytes, {ANSWER_BYTES} at most; say it more briefly",))
    if problems := tuple(problems_of(judge.output_schema, value)):
        return Invalid(problems)
    found = citations_of(list(cited(judge.output_schema, value)), run)
    bad = [f"{each.path}: [{each.target}]: {each.problem}" for each in found if not each.verified]
    if bad and judge.bad_citations == "fail":
        return Invalid(tuple(bad[:20]))
    return Answered(value, tuple(found))


def _unfenced(text: str) -> str:
    """Return a text without the code fence around all of it."""
    opened = _FENCE.match(text)
    return _FENCE_END.sub("", text[opened.end() :]) if opened and text.rstrip().endswith("```") else text.strip()


def _block(text: str, judge: SchemaJudge) -> JsonValue:
    """Return the one object between the tags."""
    key = judge.response_xml_key
    found = list(_blocks(text, key, judge.output_format))
    if not found:
        raise ValueError(f"there is no object between <{key}> and </{key}>, outside of what you thought; write exactly one")
    first = json.dumps(found[0], sort_keys=True)
    if any(json.dumps(each, sort_keys=True) != first for each in found[1:]):
        raise ValueError(f"there are {len(found)} different objects between <{key}> and </{key}>; write the final one alone")
    return found[0]


def _blocks(text: str, key: str, form: str) -> Iterator[JsonValue]:
    """Yield the values between the tags, those aside that are mentioned in what the model thought."""
    thoughts = "|".join(map(re.escape, REASONING))
    tags = re.compile(rf"<(?:(?P<thought>{thoughts})|(?P<block>{re.escape(key)}))>")
    at = 0
    while found := tags.search(text, at):
        at = found.end()
        if thought := found["thought"]:
            end = text.find(f"</{thought}>", at)
            at = len(text) if end < 0 else end + len(thought) + 3
        elif form == "yaml":
            value, at = _yaml(text, at, key)
            yield value
        elif (start := _object_start(text, at)) is not None:
            value, at = _json(text, start, key)
            yield value


def _object_start(text: str, at: int) -> int | None:
    """Return where the object begins behind an opening tag; None where the tag is only spoken of."""
    fence = _FENCE.match(text, at)
    start = re.compile(r"\s*").match(text, fence.end() if fence else at)
    place = start.end() if start else at
    return place if text[place : place + 1] in {"{", "["} else None


def _json(text: str, start: int, key: str) -> tuple[JsonValue, int]:
    try:
        value, end = leading_json(text, start)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"what stands between <{key}> and </{key}> is no JSON: {str(error) or 'it is nested too deeply'}") from None
    close = re.compile(rf"\s*(?:```\s*)?</{re.escape(key)}>").match(text, end)
    if close is None:
        raise ValueError(f"the object between <{key}> and </{key}> is followed by something else, or by no closing tag")
    return value, close.end()


def _yaml(text: str, at: int, key: str) -> tuple[JsonValue, int]:
    end = text.find(f"</{key}>", at)
    if end < 0:
        raise ValueError(f"there is no closing tag </{key}>")
    from gradeloop.yaml_file import read_yaml  # a tenth of a second that only YAML pays

    try:
        return read_yaml(_unfenced(text[at:end]), f"what stands between <{key}> and </{key}>"), end + len(key) + 3
    except InvalidRequest as error:
        raise ValueError(str(error)) from None
