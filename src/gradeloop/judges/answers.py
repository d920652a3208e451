"""Answers of judges with a schema of their own: read, cited, aggregated over rollouts."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median, median_low
from typing import Any, Literal

from pydantic import JsonValue

from gradeloop.contract.base import Recorded, Sparse, Strict
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.grading.checks import leading_json, strict_json
from gradeloop.grading.quotes import Folded
from gradeloop.judges.contract import REASONING, SchemaJudge
from gradeloop.judges.prompt import Block, blocks_of
from gradeloop.judges.schema import OutputKey, citing_texts, keys_of, problems_of, value_at, with_value, without_nulls

CITATIONS = 500
"""Of one output; what comes after them is not looked at, and counted as left out."""

_HEAD = re.compile(
    r"\[\s*(?:T(?P<transcript>\d{1,6})(?:B(?P<block>\d{1,6}))?|R(?P<run>\d{1,6}))(?:M\.(?P<key>[^\s:\[\]]{1,200}))?\s*"
    r"(?P<tail>\]|:\s*<RANGE>)"
)
_END, _CLOSED = "</RANGE>", re.compile(r"\s*\]")

OPEN_ENDED = "the quote does not end with </RANGE>]"


class Citation(Strict):
    """One citation: where it stands in the output, and what it points at."""

    path: str
    """Of the string in the output: `explanation`, `findings[2].why`."""
    start: int
    """Of the citation in that string, in characters."""
    end: int
    kind: Literal["block", "metadata"]
    target: str
    """`T0B3`, or with metadata `R0M.model`."""
    quote: Sparse[str | None] = None
    verified: bool
    problem: Sparse[str | None] = None
    """Why it is not verified."""
    transcript_id: Sparse[str | None] = None
    block_start: Sparse[int | None] = None
    """The first character that is meant in the block's text, reasoning and tool calls included."""
    block_end: Sparse[int | None] = None


@dataclass(frozen=True)
class _Found:
    """A citation as it is written."""

    path: str
    head: re.Match[str]
    end: int
    quote: str | None
    closed: bool = True


def citations_of(texts: Sequence[tuple[str, str]], run: AgentRun) -> list[Citation]:
    """Return the citations in the strings of an output, by path and text, in order, the first 500 of them."""
    known = {block.label: CitedBlock(block) for block in blocks_of(run)}
    written = (found for path, text in texts for found in _written(path, text))
    return [_resolved(found, run, known) for found in islice(written, CITATIONS)]


def _written(path: str, text: str) -> Iterator[_Found]:
    """Yield what is written as a citation, each character looked at once; a transcript or a run as a whole, `[T0]`, is none."""
    at, ends = 0, True
    while head := _HEAD.search(text, at):
        at, quote, closed = head.end(), None, True
        if head["tail"] != "]":
            end = text.find(_END, at) if ends else -1
            ends = end >= 0
            close = _CLOSED.match(text, end + len(_END)) if ends else None
            quote, closed = text[at:end] if ends else "", close is not None
            at = close.end() if close else at
        elif head["block"] is None and head["key"] is None:
            continue
        yield _Found(path, head, at, quote, closed)


def _resolved(found: _Found, run: AgentRun, known: Mapping[str, "CitedBlock"]) -> Citation:
    head = found.head
    place = _place(head)
    told: dict[str, Any] = {"path": found.path, "start": head.start(), "end": found.end, "target": place, "quote": found.quote}
    if head["key"] is not None or head["run"] is not None:
        problem = _metadata_problem(head, run, found.quote)
        return Citation.model_validate(told | {"kind": "metadata", "verified": problem is None, "problem": problem})
    told["kind"] = "block"
    if not found.closed:
        return Citation.model_validate(told | {"quote": None, "verified": False, "problem": OPEN_ENDED})
    cited = known.get(place)
    if cited is None:
        return Citation.model_validate(told | {"verified": False, "problem": f"there is no block {place}"})
    told["transcript_id"] = run.transcripts[cited.block.transcript].id
    span = (0, len(cited.block.text)) if found.quote is None else cited.located(found.quote)
    if span is None:
        return Citation.model_validate(told | {"verified": False, "problem": f"the quote does not stand in {place}"})
    return Citation.model_validate(told | {"verified": True, "block_start": span[0], "block_end": span[1]})


def _place(found: re.Match[str]) -> str:
    if found["run"] is not None:
        head = f"R{int(found['run'])}"
    else:
        head = f"T{int(found['transcript'])}" + (f"B{int(found['block'])}" if found["block"] is not None else "")
    return f"{head}M.{found['key']}" if found["key"] is not None else head


def _metadata_problem(found: re.Match[str], run: AgentRun, quote: str | None) -> str | None:
    if quote is not None:
        return "a citation of metadata has no quote"
    held = _metadata(found, run)
    if held is None:
        return f"there is no {_place(found).partition('M.')[0]}"
    value: JsonValue = dict(held)
    for name in str(found["key"]).split("."):
        if not isinstance(value, dict) or name not in value:
            return f"the metadata has no {found['key']}"
        value = value[name]
    return None


def _metadata(found: re.Match[str], run: AgentRun) -> Mapping[str, JsonValue] | None:
    if found["run"] is not None:
        return run.metadata if int(found["run"]) == 0 else None
    at = int(found["transcript"])
    if at >= len(run.transcripts):
        return None
    if found["block"] is None:
        return run.transcripts[at].metadata
    messages = run.transcripts[at].messages
    return messages[int(found["block"])].metadata if int(found["block"]) < len(messages) else None


class CitedBlock:
    """A block, and its text with white space folded, once somebody needs it."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._folded: Folded | None = None

    def located(self, quote: str) -> tuple[int, int] | None:
        """Return where a quote stands in the block, white space folded; one copied with JSON's escapes is read without them too."""
        text = self.block.text
        for wanted in dict.fromkeys((quote, *_unescaped(quote))):
            at = text.find(wanted) if wanted.strip() else -1
            if at >= 0:
                return at, at + len(wanted)
            self._folded = self._folded or Folded(text)
            if span := self._folded.span(wanted):
                return span
        return None


def _unescaped(quote: str) -> Iterator[str]:
    if "\\" in quote:
        try:
            yield str(json.loads(f'"{quote}"', strict=False))
        except ValueError:
            yield quote.replace('\\"', '"').replace("\\n", "\n").replace("\\t", "\t")


ANSWER_BYTES = 64 * 1024
"""Of an output as JSON: 25 rollouts and as many reflections stay within one payload."""

_FENCE = re.compile(r"\s*```(?:json|yaml)?[ \t]*\n")
_FENCE_END = re.compile(r"\s*```\s*")


@dataclass(frozen=True)
class ValidAnswer:
    """A valid answer."""

    output: dict[str, JsonValue]
    citations: tuple[Citation, ...]


@dataclass(frozen=True)
class InvalidAnswer:
    """An answer that is none: never an output."""

    problems: tuple[str, ...]


def parse_answer(text: str, judge: SchemaJudge, run: AgentRun) -> ValidAnswer | InvalidAnswer:
    """Read an answer: find the object, parse it strictly, hold it against the schema, look its citations up.

    In XML mode the object stands between the judge's tags, outside of what the model thought; blocks that parse equal are one.
    """
    try:
        value = strict_json(_unfenced(text)) if judge.constrained else _block(text, judge)
    except (ValueError, RecursionError) as error:
        return InvalidAnswer((str(error) or "it is nested too deeply",))
    if judge.constrained:
        value = without_nulls(judge.output_schema, value)
    if not isinstance(value, dict):
        return InvalidAnswer((f"the answer is a {type(value).__name__}; write one JSON object",))
    if (size := len(json.dumps(value).encode())) > ANSWER_BYTES:
        return InvalidAnswer((f"the answer has {size} bytes, {ANSWER_BYTES} at most; say it more briefly",))
    if problems := tuple(problems_of(judge.output_schema, value)):
        return InvalidAnswer(problems)
    found = citations_of(list(citing_texts(judge.output_schema, value)), run)
    bad = [f"{each.path}: [{each.target}]: {each.problem}" for each in found if not each.verified]
    if bad and judge.bad_citations == "fail":
        return InvalidAnswer(tuple(bad[:20]))
    return ValidAnswer(value, tuple(found))


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
    from gradeloop.files.yaml import read_yaml

    try:
        return read_yaml(_unfenced(text[at:end]), f"what stands between <{key}> and </{key}>"), end + len(key) + 3
    except InvalidRequest as error:
        raise ValueError(str(error)) from None


Z = 1.959963984540054
"""Of a normal distribution's central 95 per cent."""


class ValueShare(Recorded):
    """How often a value was given."""

    value: JsonValue
    count: int
    share: float
    low: float
    """Of Wilson's 95 % interval (Wilson 1927), as `high`."""
    high: float


class KeySummary(Recorded):
    """What was said about one key."""

    how: Literal["vote", "median"]
    value: JsonValue
    """What the output has; None where no answer had the key."""
    n: int
    """Answers that had it."""
    distribution: tuple[ValueShare, ...] = ()
    """Of a vote, the most frequent value first, values of one count in the order of the rollouts."""
    low: Sparse[float | None] = None
    """Of a median, the least value, and `high` the most."""
    high: Sparse[float | None] = None
    tied: Sparse[bool] = False
    """True where another value was given as often; the one of the earlier rollout counts."""


class Consensus(Recorded):
    """One output out of several."""

    output: dict[str, JsonValue]
    from_rollout: int
    """Position of the answer whose texts the output has: the first of those that agree most."""
    keys: dict[str, KeySummary]
    composed: Sparse[bool] = False
    """True where no single answer says all that the output does."""

    @property
    def ties(self) -> tuple[str, ...]:
        """The keys that were tied."""
        return tuple(name for name, each in self.keys.items() if each.tied)


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share, `count` out of `total`."""
    if not total:
        return 0.0, 1.0
    share = count / total
    centre = share + Z * Z / (2 * total)
    spread = Z * math.sqrt(share * (1 - share) / total + Z * Z / (4 * total * total))
    scale = 1 + Z * Z / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def build_consensus(schema: Mapping[str, Any], outputs: Sequence[dict[str, JsonValue]]) -> Consensus:
    """Return what answers, in the order of their rollouts, come to.

    Args:
        schema: Which of their keys are voted on, and which have a median.
        outputs: At least one, each valid.
    """
    keys = keys_of(schema)
    told = {key.name: _tallied(key, [value_at(output, key.path) for output in outputs]) for key in keys}
    agreeing = [sum(_same(value_at(output, key.path), told[key.name].value) for key in keys) for output in outputs]
    first = agreeing.index(max(agreeing))
    output = outputs[first]
    for key in keys:
        value = told[key.name].value
        if value is None or value_at(output, key.path) is None or _same(value_at(output, key.path), value):
            continue
        output = _with(schema, output, key, value, outputs)
    told = {key.name: told[key.name].model_copy(update={"value": value_at(output, key.path)}) for key in keys}
    return Consensus(output=output, from_rollout=first, keys=told, composed=output != outputs[first])


def _with(
    schema: Mapping[str, Any], output: dict[str, JsonValue], key: OutputKey, value: JsonValue, outputs: Sequence[dict[str, JsonValue]]
) -> dict[str, JsonValue]:
    """Return the output with a key's value; a median between two values that breaks a bound gives way to the lower of them."""
    changed = with_value(output, key.path, value)
    if key.how == "median" and list(problems_of(schema, changed)):
        return with_value(output, key.path, median_low(_numbers([value_at(output, key.path) for output in outputs])))
    return changed


def _numbers(values: Sequence[JsonValue]) -> list[float]:
    return [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]


def _tallied(key: OutputKey, values: Sequence[JsonValue]) -> KeySummary:
    if key.how == "median":
        numbers = _numbers(values)
        middle = (median_low(numbers) if key.integer else median(numbers)) if numbers else None
        return KeySummary(how="median", value=middle, n=len(numbers), low=min(numbers, default=None), high=max(numbers, default=None))
    given = [value for value in values if value is not None]
    counts: dict[str, int] = {}
    for each in given:
        counts[json.dumps(each)] = counts.get(json.dumps(each), 0) + 1
    ranked = sorted(counts.items(), key=lambda item: -item[1])  # stable: of equal counts, the earlier rollout's value
    shares = tuple(_share(json.loads(value), count, len(given)) for value, count in ranked)
    tied = len(shares) > 1 and shares[0].count == shares[1].count
    return KeySummary(how="vote", value=shares[0].value if shares else None, n=len(given), distribution=shares, tied=tied)


def _share(value: JsonValue, count: int, total: int) -> ValueShare:
    low, high = wilson(count, total)
    return ValueShare(value=value, count=count, share=count / total, low=low, high=high)


def _same(one: JsonValue, other: JsonValue) -> bool:
    return json.dumps(one) == json.dumps(other)


ROLLOUTS_BYTES = 512 * 1024
"""Of all outputs that a result tells beside its own; beyond, only what was voted on is told of each."""

RAW_CHARACTERS = 20_000
"""What is kept of an answer that is none."""


class Rollout(Recorded):
    """One of several answers to the same question, or why there is none."""

    index: int
    output: dict[str, JsonValue] | None = None
    citations: tuple[Citation, ...] = ()
    repairs: int = 0
    """Turns in which it was asked to mend its answer."""
    invalid: Sparse[str | None] = None
    """What was wrong with its answer, after its repairs."""
    raw_text: Sparse[str | None] = None
    """Of an invalid answer."""
    unavailable: Sparse[str | None] = None
    """Why nobody answered."""
    prompt_sha256: Sparse[str | None] = None


class Summary(Recorded):
    """An output and what is known of it."""

    output: dict[str, JsonValue]
    metadata: dict[str, JsonValue]


def shorten_raw(text: str) -> str:
    """Return what is kept of an answer that is none."""
    return text if len(text) <= RAW_CHARACTERS else f"{text[:RAW_CHARACTERS]}… ({len(text)} characters)"


def summarize(judge: SchemaJudge, rollouts: Sequence[Rollout], reflections: Sequence[Rollout] = ()) -> Summary:
    """Return what rollouts come to, in their order; reflections over them count instead where there are any.

    Args:
        judge: By whose schema they are compared.
        rollouts: All of them, at least one with an output.
        reflections: Those of a second round.
    """
    answered = [reflection for reflection in reflections if reflection.output is not None] or [
        rollout for rollout in rollouts if rollout.output is not None
    ]
    agreed = build_consensus(judge.output_schema, [each.output for each in answered if each.output is not None])
    chosen = answered[agreed.from_rollout]
    told: dict[str, Any] = _agreement(agreed, chosen) | {
        "variant": judge.judge_variant,
        "rollouts": _told(judge, rollouts),
        "citations": [citation.model_dump(mode="json") for citation in chosen.citations],
        "citation_counts": {"cited": len(chosen.citations), "verified": sum(citation.verified for citation in chosen.citations)},
    }
    if reflections:
        first = build_consensus(judge.output_schema, [rollout.output for rollout in rollouts if rollout.output is not None])
        told |= {"reflections": _told(judge, reflections), "before_reflection": _agreement(first)}
    return Summary(output=agreed.output, metadata=told)


def _agreement(agreed: Consensus, chosen: Rollout | None = None) -> dict[str, Any]:
    keys = {name: each.model_dump(mode="json") for name, each in agreed.keys.items()}
    told: dict[str, Any] = {"keys": keys, "ties": list(agreed.ties)} | ({"composed": True} if agreed.composed else {})
    return told | ({"from_rollout": chosen.index} if chosen else {})


def _told(judge: SchemaJudge, rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    """Return the rollouts as they are told, without citations; of many long outputs, what was voted on alone."""
    told = [rollout.model_dump(mode="json", exclude={"citations", "prompt_sha256"}) for rollout in rollouts]
    if sum(len(json.dumps(each)) for each in told) <= ROLLOUTS_BYTES:
        return told
    keys = keys_of(judge.output_schema)
    brief = [{key.name: value_at(rollout.output, key.path) for key in keys} if rollout.output is not None else None for rollout in rollouts]
    raw = {"raw_text": ""}
    return [
        each | {"output": output, "abridged": True} | (raw if "raw_text" in each else {}) for each, output in zip(told, brief, strict=True)
    ]
