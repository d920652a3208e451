"""Answers of judges: those with a schema parsed, and aggregated over rollouts; those of criteria as output and metadata."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median, median_low
from typing import Any, Literal

from pydantic import JsonValue

from gradeloop.contract.base import OmitEmpty, Tolerant
from gradeloop.contract.evaluation import Judgement
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.transcript import AgentRun, Citation
from gradeloop.errors import InvalidRequest
from gradeloop.grading.scoring import result_of, score_of
from gradeloop.judges.citations import citations_of
from gradeloop.judges.contract import REASONING, SchemaJudge
from gradeloop.judges.schema import OutputKey, citing_texts, keys_of, problems_of, value_at, with_presence, with_value, without_nulls
from gradeloop.stats.intervals import wilson
from gradeloop.text import acceptable, canonical_json, leading_json, shortened, strict_json

ANSWER_BYTES = 64 * 1024
"""The largest output, as JSON: 25 rollouts and as many reflections stay within one payload."""

BAD_CITATIONS = 20
"""The most unverified citations that a judge is asked to repair at once."""

_FENCE = re.compile(r"\s*```(?:json|yaml)?[ \t]*\n")
_FENCE_END = re.compile(r"\s*```\s*")
_BEFORE_OBJECT = re.compile(rf"(?:{_FENCE.pattern})?\s*(?=[{{\[])")
_THOUGHT = re.compile(rf"\s*<(?P<name>{'|'.join(map(re.escape, REASONING))})>")
_YAML_ENTRY = re.compile(r"(?P<key>\s*(?:- +)?[A-Za-z_][\w.-]*: +|\s*- +)(?P<text>\S.*?)\s*")


@dataclass(frozen=True)
class ValidAnswer:
    """An answer whose output keeps the judge's schema."""

    output: dict[str, JsonValue]
    citations: tuple[Citation, ...]


@dataclass(frozen=True)
class InvalidAnswer:
    """Reasons that a judge's answer is never an output."""

    problems: tuple[str, ...]


def parse_answer(text: str, judge: SchemaJudge, run: AgentRun) -> ValidAnswer | InvalidAnswer:
    """Parse a judge's answer strictly, validate it against the schema, and look its citations up.

    In XML mode the object stands between the judge's tags, outside of what the model thought; blocks that parse equal count as one.
    """
    try:
        value = strict_json(_without_fence(text)) if judge.constrained else _tagged_object(text, judge)
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
    citations = citations_of(list(citing_texts(judge.output_schema, value)), run)
    problems = tuple(_citation_problems(judge, value, citations))[:BAD_CITATIONS]
    return InvalidAnswer(problems) if problems else ValidAnswer(value, tuple(citations))


def _citation_problems(judge: SchemaJudge, output: JsonValue, citations: Sequence[Citation]) -> Iterator[str]:
    """Yield what makes an answer invalid for this judge: bad citations, or else texts that are to cite and do not."""
    bad = [f"{citation.path}: [{citation.target}]: {citation.problem}" for citation in citations if not citation.verified]
    if bad and judge.bad_citations == "fail":
        yield from bad
        return
    cited, found = {citation.path for citation in citations}, {citation.path for citation in citations if citation.verified}
    for path, text in citing_texts(judge.output_schema, output):
        if judge.require_citations and text.strip() and path not in found:
            what = "none of its citations is found" if path in cited else "it cites nothing"
            yield f"{path}: {what}; cite what it rests on, as [T0B3:<RANGE>the exact words</RANGE>]"


def _without_fence(text: str) -> str:
    """Return a text without the code fence around all of it."""
    fence = _FENCE.match(text)
    return _FENCE_END.sub("", text[fence.end() :]) if fence and text.rstrip().endswith("```") else text.strip()


def _tagged_object(text: str, judge: SchemaJudge) -> JsonValue:
    """Return the one object between the judge's tags, or an answer that is one JSON object and nothing else."""
    alone = _after_thoughts(text)
    if alone.startswith("{") and alone.endswith("}"):
        with suppress(ValueError, RecursionError):
            whole: JsonValue = strict_json(alone)
            return whole
    key = judge.response_xml_key
    values = list(_tagged_values(text, key, judge.output_format))
    if not values:
        raise ValueError(f"there is no object between <{key}> and </{key}>, outside of what you thought; write exactly one")
    if len(set(map(canonical_json, values))) > 1:
        raise ValueError(f"there are {len(values)} different objects between <{key}> and </{key}>; write only the final one")
    return values[0]


def _after_thoughts(text: str) -> str:
    """Return what an answer says behind the thoughts with which it begins, without a code fence around all of it."""
    at = 0
    while (thought := _THOUGHT.match(text, at)) and (end := text.find(f"</{thought['name']}>", thought.end())) >= 0:
        at = end + len(thought["name"]) + 3
    return _without_fence(text[at:])


def _tagged_values(text: str, key: str, output_format: str) -> Iterator[JsonValue]:
    """Yield the values between the tags, except for tags inside of what the model thought.

    A tag of thoughts without its end begins a thought that was cut where it begins a line; within a line it is only spoken of.
    """
    # A model that thinks aloud drafts its answer there, often in the very tags, and then decides otherwise.
    # So what stands inside of thoughts never counts. A thought that was cut has no end, and everything behind
    # its beginning is part of it; taken for the answer, a draft would become the verdict. Tags that are only
    # mentioned have no object behind them.
    thoughts = "|".join(map(re.escape, REASONING))
    tags = re.compile(rf"<(?:(?P<thought>{thoughts})|(?P<block>{re.escape(key)}))>")
    at = 0
    while tag := tags.search(text, at):
        at = tag.end()
        if thought := tag["thought"]:
            end = text.find(f"</{thought}>", at)
            if end >= 0:
                at = end + len(thought) + 3
            elif not text[text.rfind("\n", 0, tag.start()) + 1 : tag.start()].strip():
                return
        elif output_format == "yaml":
            value, at = _yaml_value(text, at, key)
            yield value
        elif before := _BEFORE_OBJECT.match(text, at):  # else the tag is only mentioned
            value, at = _json_value(text, before.end(), key)
            yield value


def _json_value(text: str, start: int, key: str) -> tuple[JsonValue, int]:
    """Return the JSON value that begins at `start`, and the end of the closing tag behind it."""
    try:
        value, end = leading_json(text, start)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"what stands between <{key}> and </{key}> is not JSON: {str(error) or 'it is nested too deeply'}") from None
    close = re.compile(rf"\s*(?:```\s*)?</{re.escape(key)}>").match(text, end)
    if close is None:
        raise ValueError(f"the object between <{key}> and </{key}> is followed by something else, or by no closing tag")
    return value, close.end()


def _yaml_value(text: str, start: int, key: str) -> tuple[JsonValue, int]:
    """Return the YAML between `start` and the closing tag as JSON, and the end of that tag."""
    from gradeloop.files.yaml import read_yaml  # most judges answer in JSON, and workflows load this module

    end = text.find(f"</{key}>", start)
    if end < 0:
        raise ValueError(f"there is no closing tag </{key}>")
    written, what = _without_fence(text[start:end]), f"what stands between <{key}> and </{key}>"
    try:
        value = read_yaml(written, what)
    except InvalidRequest as error:
        try:
            value = read_yaml(_with_quoted_texts(written), what)
        except InvalidRequest:
            raise ValueError(str(error)) from None
    return acceptable(value), end + len(key) + 3


def _with_quoted_texts(text: str) -> str:
    """Return YAML with quotation marks around texts that hold a colon and need them: `why: it says: Paris`."""
    lines: list[str] = []
    block_indent: int | None = None
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        if block_indent is not None and (indent > block_indent or not line.strip()):
            lines.append(line)
            continue
        entry = _YAML_ENTRY.fullmatch(line)
        block_indent = indent if entry and entry["text"][0] in "|>" else None
        lines.append(f"{entry['key']}{json.dumps(entry['text'], ensure_ascii=False)}" if entry and _breaks_yaml(entry["text"]) else line)
    return "\n".join(lines)


def _breaks_yaml(text: str) -> bool:
    """Tell whether a value on one line with a colon needs quotation marks in YAML."""
    from gradeloop.files.yaml import read_yaml

    if ":" not in text or text[0] in "|>!&*":
        return False
    try:
        read_yaml(f"key: {text}", "the line")
    except InvalidRequest:
        return True
    return False


class ValueShare(Tolerant):
    """Number of rollouts that gave a value for a key."""

    value: JsonValue
    count: int
    share: float
    low: float
    """The lower bound of Wilson's 95 % interval of the share."""
    high: float


class KeySummary(Tolerant):
    """Summary of one key over several answers."""

    how: Literal["vote", "median"]
    value: JsonValue
    """The value in the aggregated output; None where that lacks the key, as most of the answers do."""
    n: int
    """Number of answers that have the key."""
    distribution: tuple[ValueShare, ...] = ()
    """The values of a vote, the most frequent first, values of one count in the order of the rollouts."""
    low: OmitEmpty[float | None] = None
    """The least value that a median is taken of."""
    high: OmitEmpty[float | None] = None
    tied: OmitEmpty[bool] = False
    """True where two values, or a value and none, are given equally often; the earlier rollout counts."""


class Consensus(Tolerant):
    """One output aggregated from several answers."""

    output: dict[str, JsonValue]
    from_rollout: int
    """The position of the answer whose texts the output has: the first of those that agree most."""
    keys: dict[str, KeySummary]
    composed: OmitEmpty[bool] = False
    """True where no single answer equals the output."""

    @property
    def ties(self) -> tuple[str, ...]:
        """The keys that are tied."""
        return tuple(name for name, key in self.keys.items() if key.tied)


def build_consensus(schema: Mapping[str, Any], outputs: Sequence[dict[str, JsonValue]]) -> Consensus:
    """Aggregate answers into one output: by vote for choices, by median for numbers, with the texts of the answer that agrees most.

    An optional key is in the output where most of the answers have it; of as many that have it as lack it, the first decides.

    Args:
        schema: The schema that says which keys are voted on and which have a median.
        outputs: The answers, at least one, each valid, in the order of their rollouts.
    """
    keys = keys_of(schema)
    # Keys are decided one by one, but texts belong to the answer that gave them. So the answer that agrees most
    # is the base, and only its keys that differ are replaced. If every key came from another answer, the
    # explanation could argue for a verdict that the output does not have.
    summaries = {key.name: _aggregate_key(key, [value_at(output, key.path) for output in outputs]) for key in keys}
    agreeing = [sum(_same(value_at(output, key.path), summaries[key.name].value) for key in keys) for output in outputs]
    first = agreeing.index(max(agreeing))
    output = outputs[first]
    for key in keys * 2:  # an object that is taken over from another answer may hold a key of the first round that most answers lack
        value, own = summaries[key.name].value, value_at(output, key.path)
        if (value is None) != (own is None):
            alike = [one for one in outputs if (value_at(one, key.path) is None) == (value is None)]
            depths = [sum(value_at(one, key.path[:at]) is not None for at in range(1, len(key.path) + 1)) for one in alike]
            output = with_presence(output, alike[depths.index(max(depths))], key.path)
        if value is not None and not _same(own, value):
            changed = with_value(output, key.path, value)
            if key.how == "median" and list(problems_of(schema, changed)):  # the lower one of two keeps the bounds
                changed = with_value(output, key.path, median_low(_numbers([value_at(one, key.path) for one in outputs])))
            output = changed
    summaries = {key.name: summaries[key.name].model_copy(update={"value": value_at(output, key.path)}) for key in keys}
    return Consensus(output=output, from_rollout=first, keys=summaries, composed=output != outputs[first])


def _numbers(values: Sequence[JsonValue]) -> list[float]:
    return [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]


def _aggregate_key(key: OutputKey, values: Sequence[JsonValue]) -> KeySummary:
    lacking = values.count(None)
    is_left_out = 2 * lacking > len(values) or (2 * lacking == len(values) and values[0] is None)
    if key.how == "median":
        numbers = _numbers(values)
        middle = (median_low(numbers) if key.type == "integer" else median(numbers)) if numbers else None
        low, high = min(numbers, default=None), max(numbers, default=None)
        return KeySummary(how="median", value=None if is_left_out else middle, n=len(numbers), low=low, high=high)
    given = [value for value in values if value is not None]
    first = {canonical_json(value): value for value in reversed(given)}
    ranked = Counter(map(canonical_json, given)).most_common()  # stable: of equal counts, the earlier rollout's value
    total = len(given)
    shares = tuple(
        ValueShare(value=first[text], count=count, share=count / total, **wilson(count, total).model_dump()) for text, count in ranked
    )
    tied = 2 * lacking == len(values) or (not is_left_out and len(shares) > 1 and shares[0].count == shares[1].count)
    return KeySummary(how="vote", value=None if is_left_out else shares[0].value, n=total, distribution=shares, tied=tied)


def _same(one: JsonValue, other: JsonValue) -> bool:
    return canonical_json(one) == canonical_json(other)


ROLLOUTS_BYTES = 512 * 1024
"""The size up to which a result has all outputs beside its own; beyond, it has only the voted keys of each."""

RAW_CHARACTERS = 20_000
"""The most characters of an invalid answer that are kept."""


class Rollout(Tolerant):
    """One of several answers to the same question, or why there is none."""

    index: int
    output: dict[str, JsonValue] | None = None
    citations: tuple[Citation, ...] = ()
    repairs: int = 0
    """Turns in which the judge was asked to repair its answer."""
    invalid: OmitEmpty[str | None] = None
    """Reason that the answer stayed invalid after its repairs; None for a valid one."""
    raw_text: OmitEmpty[str | None] = None
    """The text of an invalid answer."""
    unavailable: OmitEmpty[str | None] = None
    """Reason that no judge answered; None where one did."""
    model: OmitEmpty[str | None] = None
    """The model that answered, where it is a fallback of the judge's, or one of a panel."""
    prompt_sha256: OmitEmpty[str | None] = None


def _outputs(rollouts: Sequence[Rollout]) -> list[dict[str, JsonValue]]:
    return [rollout.output for rollout in rollouts if rollout.output is not None]


def has_quorum(judge: SchemaJudge, rollouts: Sequence[Rollout]) -> bool:
    """Tell whether so many rollouts have an output that there is a result."""
    return len(_outputs(rollouts)) >= judge.answers_needed


def rollouts_due(judge: SchemaJudge, answers: Mapping[int, dict[str, JsonValue] | None]) -> list[int]:
    """Return the numbers of the rollouts that are still to be asked; none once no further one can change the output.

    They are asked as votes on criteria are (`gradeloop.grading.scoring.samples_due`): first as many as a result needs, then each time the
    fewest that could fix it. All are asked where a key has a median.

    `answers`: the outputs of those that have ended, by their numbers; None where there is none.
    """
    asked = 0
    while wave := _wave(judge, [answers[at] for at in range(asked)]):
        if missing := [at for at in range(asked, asked + wave) if at not in answers]:
            return missing
        asked += wave
    return []


# The output of the first rollouts must be that of all, its texts included. A value is fixed once its lead is larger than the number of
# rollouts to come. An answer without the key is a vote for none, and a new value starts at 0. The texts are those of the first answer that
# agrees most. So they are fixed once an answer agrees in every key: a later one can only agree as much.
def _wave(judge: SchemaJudge, asked: Sequence[dict[str, JsonValue] | None]) -> int:
    """Return how many more rollouts are asked after the first ones; 0 where the output is fixed."""
    left, outputs = judge.rollout_count - len(asked), [output for output in asked if output is not None]
    keys, wanted = keys_of(judge.output_schema), judge.answers_needed - len(outputs)
    if any(key.how == "median" for key in keys):
        return left
    if outputs:
        wanted = max(wanted, int(build_consensus(judge.output_schema, outputs).composed))
        for key in keys:
            counts = Counter(canonical_json(value_at(output, key.path)) for output in outputs)
            lead = _lead(counts, len(outputs))
            wanted = max(wanted, 0 if lead > left else (left - lead) // 2 + 1)
    return max(0, min(wanted, left))


def _lead(counts: Counter[str], total: int) -> int:
    """Return by how many answers the first value of a key leads: that it is lacking, over all that have it."""
    (first, most), *others = counts.most_common()
    return 2 * most - total if first == "null" else most - (others[0][1] if others else 0)


def failure_metadata(judge: SchemaJudge, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Return why too few rollouts have an output, and what the judge answered instead."""
    first = next((rollout for rollout in rollouts if rollout.invalid), rollouts[0])
    rows = [rollout.model_dump(mode="json", exclude={"citations", "output"}) | {"raw_text": None} for rollout in rollouts]
    reason = too_few(judge, rollouts, str(first.invalid))
    return {"reason": reason, "raw_text": first.raw_text, "again": False, "rollouts": rows}


def too_few(judge: SchemaJudge, rollouts: Sequence[Rollout], why: str) -> str:
    """Return the reason of a failure; where some rollouts have an answer, with their number and the quorum."""
    answered = len(_outputs(rollouts))
    return f"{answered} of {len(rollouts)} rollouts answered, the quorum is {judge.answers_needed}; another: {why}" if answered else why


def answered_by(model: str | None, rollouts: Sequence[Rollout]) -> str | None:
    """Return the model that answered: the judge's own where one answer is of it, else the fallback."""
    answered = [rollout.model for rollout in rollouts if rollout.unavailable is None]
    return answered[0] if answered and None not in answered else model


class Summary(Tolerant):
    """An aggregated output and its metadata."""

    output: dict[str, JsonValue]
    metadata: dict[str, JsonValue]


def shorten_raw(text: str) -> str:
    """Return what is kept of an invalid answer."""
    return text if len(text) <= RAW_CHARACTERS else f"{text[:RAW_CHARACTERS]}… ({len(text)} characters)"


def summarize(judge: SchemaJudge, rollouts: Sequence[Rollout], reflections: Sequence[Rollout] = ()) -> Summary:
    """Aggregate rollouts into one output; reflections over them count instead where there are any.

    `rollouts`: all of them in order, at least one with an output.
    """
    counted = reflections if _outputs(reflections) else rollouts
    agreed = build_consensus(judge.output_schema, _outputs(counted))
    chosen = [rollout for rollout in counted if rollout.output is not None][agreed.from_rollout]
    metadata: dict[str, Any] = _key_metadata(agreed) | {
        "from_rollout": chosen.index,
        "variant": judge.judge_variant,
        "rollouts": _rollout_metadata(judge, rollouts),
        "citations": [citation.model_dump(mode="json") for citation in chosen.citations],
        "citation_counts": {"cited": len(chosen.citations), "verified": sum(citation.verified for citation in chosen.citations)},
    }
    if reflections:
        before = build_consensus(judge.output_schema, _outputs(rollouts))
        metadata |= {"reflections": _rollout_metadata(judge, reflections), "before_reflection": _key_metadata(before)}
    return Summary(output=agreed.output, metadata=metadata)


def _key_metadata(agreed: Consensus) -> dict[str, Any]:
    keys = {name: key.model_dump(mode="json") for name, key in agreed.keys.items()}
    return {"keys": keys, "ties": list(agreed.ties)} | ({"composed": True} if agreed.composed else {})


def _rollout_metadata(judge: SchemaJudge, rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    """Return the rollouts as a result has them, without citations; if they are too large, only the voted keys of their outputs."""
    rows = [rollout.model_dump(mode="json", exclude={"citations", "prompt_sha256"}) for rollout in rollouts]
    if sum(len(json.dumps(row)) for row in rows) <= ROLLOUTS_BYTES:
        return rows
    keys = keys_of(judge.output_schema)
    for row in rows:
        output = None if row["output"] is None else {key.name: value_at(row["output"], key.path) for key in keys}
        row.update({"output": output, "abridged": True} | ({"raw_text": ""} if "raw_text" in row else {}))
    return rows


MALFORMED = "malformed_verdict"
"""The beginning of the error of a grader that answered without a verdict."""


def criteria_output(rubric: Rubric, judgement: Judgement) -> dict[str, Any]:
    """Return the output in the shape of `gradeloop.judges.contract.OUTPUT_SCHEMA`."""
    score = score_of(rubric, judgement)
    return {
        "result": result_of(rubric, judgement),
        **({} if score is None else {"score": score}),
        "criteria": [row.model_dump(mode="json", exclude_none=True) for row in judgement.rows],
        "explanation": shortened(judgement.explanation),
    }


def criteria_metadata(judgement: Judgement, draft: int) -> dict[str, Any]:
    """Return what is contested and unverified, the counts of quotes, and the index of the judged message."""
    quotes = [quote for row in judgement.rows for quote in row.quotes]
    return {
        "contested": [row.id for row in judgement.rows if row.contested],
        "unverified": [row.id for row in judgement.rows if row.unverified],
        "citation_counts": {"cited": len(quotes), "verified": sum(bool(quote.quote_verified) for quote in quotes)},
        "draft": draft,
    }
