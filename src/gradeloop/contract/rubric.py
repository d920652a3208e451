"""Rubrics, written as text or as an object: criteria with ids, how they add up, and the sentences of feedback."""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue

from gradeloop.contract.base import Items, OmitEmpty, OrText, Strict
from gradeloop.contract.criterion import (
    Check,
    Criterion,
    Group,
    OwnPrompt,
    ScoringUnit,
    Threshold,
    build_units,
    flatten_groups,
    resolve_slot,
)
from gradeloop.text import clip, did_you_mean

RUBRIC_BYTES = 64 * 1024
"""The largest rubric, as UTF-8: it is sent with every grading call."""

MAX_CRITERIA = 100
"""The most criteria of a rubric."""

CONVERSATIONS = 500
"""The most conversations of one pass: a call group has one for each vote."""

_MARKER = re.compile(r"(?:[-*•+]|\d+[.)]|[A-Za-z]\))\s+(?:\[[ xX]?\]\s+)?")

_HEADING = re.compile(r"#{1,6}(\s|$)")

_Sentence = Field(min_length=1, max_length=1000)


class Phrases(Strict):
    """The sentences of one language; fields stand in braces."""

    name: str
    """The language's English name; the grader is asked to answer in it."""
    opening: str = _Sentence
    failing: str = _Sentence
    unverified: str = _Sentence
    suggested: str = _Sentence
    remarks: str = _Sentence
    passing: str = _Sentence
    closing: str = _Sentence
    no_verdict: str = _Sentence
    check_passed: str = _Sentence
    check_failed: str = _Sentence
    check_false: str = _Sentence
    checks: str = _Sentence
    counted: str = _Sentence
    not_passed: str = _Sentence
    not_verified: str = _Sentence
    dropped: str = _Sentence
    unquoted: str = _Sentence
    not_asked: str = _Sentence
    decided: str = _Sentence


class Feedback(Strict):
    """The author's own sentences for feedback: around criteria that fail, are unverified, optional or passing, and before remarks."""

    opening: OmitEmpty[str | None] = None
    failing: OmitEmpty[str | None] = None
    unverified: OmitEmpty[str | None] = None
    suggested: OmitEmpty[str | None] = None
    remarks: OmitEmpty[str | None] = None
    passing: OmitEmpty[str | None] = None
    closing: OmitEmpty[str | None] = None


def phrases(language: str | None, own: Mapping[str, str] | None = None) -> Phrases:
    """Return the sentences of a language, with the author's own instead of those that they replace."""
    return _shipped_phrases()[language or "en"].model_copy(update=dict(own or {}))


def languages() -> tuple[str, ...]:
    """Return the codes of the shipped languages."""
    return tuple(_shipped_phrases())


@cache
def _shipped_phrases() -> dict[str, Phrases]:
    text = (files("gradeloop.contract") / "phrases.toml").read_text(encoding="utf-8")
    return {code: Phrases.model_validate(sentences) for code, sentences in tomllib.loads(text).items()}


class Context(Strict):
    """A heading or an introduction among the criteria: the grader reads it, and nothing is judged by it."""

    before: int
    """Position of the criterion that follows it, from 0; the number of criteria at the end."""
    text: str


class Rubric(OrText):
    """An ordered list of criteria with unique ids, and how they add up: `Rubric(criteria=["polite", "short"], threshold=0.5)`."""

    name: OmitEmpty[Annotated[str, Field(max_length=200)] | None] = None
    """The name of the rubric, for reports."""
    instructions: OmitEmpty[str | None] = None
    """Instructions for the grader, in addition to its own."""
    scoring: Literal["mean", "binary"] = Field(default="mean", exclude_if=lambda value: value == "mean")
    """The score: the weighted mean of its units, or 1 where the gate passes and 0 where it does not."""
    threshold: OmitEmpty[Threshold | None] = None
    """The lowest score that meets the rubric, in addition to the gate."""
    gate: Literal["required", "any", "none"] = Field(default="required", exclude_if=lambda value: value == "required")
    """The criteria that must pass: all required ones (all, if none is required), one of them, or none. With `none`, a threshold decides."""
    mode: Literal["holistic", "per_criterion"] = Field(default="holistic", exclude_if=lambda value: value == "holistic")
    """One call for all criteria that share grader, prompt and votes, or one call for each criterion."""
    language: OmitEmpty[str | None] = None
    """The language of verdicts and feedback: `en` by default, `de`, `fr` or `es`."""
    feedback: OmitEmpty[Feedback | None] = None
    """The author's own sentences for feedback; those of the language by default."""
    prompt: OmitEmpty[OwnPrompt | None] = None
    """The author's own prompt for the grader; gradeloop's by default."""
    show_checks: OmitEmpty[bool] = False
    """Whether graders see the criteria that tools decide, with their results; never in the form `pass_score`."""
    groups: OmitEmpty[Items[Group]] = ()
    """The groups that criteria belong to."""
    criteria: tuple[Criterion, ...]
    """The criteria in order; none clears the rubric. On the wire also groups: `{"group": name, "criteria": [...]}`."""
    context: OmitEmpty[Items[Context]] = ()
    """Headings and introductions between the criteria."""

    @classmethod
    def widen(cls, schema: JsonSchemaValue) -> None:
        """Add groups to what the criteria may be."""
        properties = schema["properties"]
        group = {
            "group": {"type": "string"},
            "required": {"type": "boolean"},
            "weight": {"type": "number", "minimum": 0},
            "threshold": {"type": "number", "minimum": 0, "maximum": 1},
            "criteria": {"type": "array", "items": properties["criteria"]["items"], "minItems": 1},
        }
        nested = {"type": "object", "properties": group, "required": ["group", "criteria"], "additionalProperties": False}
        properties["criteria"]["items"] = {"anyOf": [properties["criteria"]["items"], nested]}

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if isinstance(value, str):
            _refuse_size(value)
            return parse_rubric_text(value)
        if isinstance(value, dict):
            _refuse_size(json.dumps(value, ensure_ascii=False, default=str))
            return flatten_groups(value)
        return flatten_groups(value) if isinstance(value, list) else value

    @field_validator("criteria", mode="before")
    @classmethod
    def _are_few(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape, counted before it is validated
        if isinstance(value, list | tuple) and len(value) > MAX_CRITERIA:
            raise ValueError(f"{len(value)} criteria, {MAX_CRITERIA} at most; split the rubric over several threads")
        return value

    @field_validator("criteria")
    @classmethod
    def _are_with_ids(cls, value: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        return _with_ids(value)

    @field_validator("groups")
    @classmethod
    def _are_named(cls, value: tuple[Group, ...]) -> tuple[Group, ...]:
        names = [group.group for group in value]
        if double := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"the group {double!r} is there twice; give each group a name of its own")
        return value

    @field_validator("language")
    @classmethod
    def _has_a_language(cls, value: str | None) -> str | None:
        if value is not None and value not in languages():
            raise ValueError(f"no sentences in {clip(value)}.{did_you_mean(value, sorted(languages()))}")
        return value

    @model_validator(mode="after")
    def _adds_up(self) -> "Rubric":
        if self.gate == "none" and self.threshold is None:
            raise ValueError("gate: with 'none' only the score decides; give the threshold that it has to reach")
        if self.gate == "none" and self.scoring == "binary":
            raise ValueError("scoring: 'binary' is what the gate says, and gate is 'none'; write scoring: mean")
        for name, weights in _weights(self):
            if not sum(weights):
                raise ValueError(f"{name}: all weights are 0, so that there is no score; give one of them a weight above 0")
        for criterion in self.judged:
            prompt = criterion.prompt or self.prompt
            for slot in prompt.reaches if prompt else ():
                resolve_slot(criterion.description, slot)
        if (count := sum(len(criterion.judges) for criterion in self.judged)) > CONVERSATIONS:
            raise ValueError(f"criteria: their votes make {count} conversations a pass, {CONVERSATIONS} at most; ask for fewer votes")
        return self

    @property
    def cleared(self) -> bool:
        """Whether the rubric has no criteria, which clears the thread's."""
        return not self.criteria

    def checks(self, *tools: str) -> tuple[tuple[Criterion, Check], ...]:
        """Return the criteria that tools decide, each with its check: those of all tools, or of the named ones."""
        found = ((criterion, criterion.check) for criterion in self.criteria if criterion.check)
        return tuple((criterion, check) for criterion, check in found if not tools or check.tool in tools)

    @property
    def judged(self) -> tuple[Criterion, ...]:
        """The criteria that a grader decides."""
        return tuple(criterion for criterion in self.criteria if not criterion.check and not criterion.human)

    @property
    def asked_of_people(self) -> tuple[Criterion, ...]:
        """The criteria that a person decides."""
        return tuple(criterion for criterion in self.criteria if criterion.human)

    @property
    def units(self) -> tuple[ScoringUnit, ...]:
        """The criteria and groups that each count as one, in order."""
        return build_units(self.criteria, self.groups)

    @property
    def gate_units(self) -> tuple[ScoringUnit, ...]:
        """The units that the gate checks: the required ones, or all where none is required, as in Mastra; none where there is no gate."""
        return () if self.gate == "none" else tuple(unit for unit in self.units if unit.required) or self.units

    @property
    def gating(self) -> frozenset[str]:
        """Ids of the criteria that must pass, or one of them where the gate is `any`, apart from groups with a threshold."""
        return frozenset(member.id for unit in self.gate_units if unit.threshold is None for member in unit.deciding)

    @property
    def decisive(self) -> frozenset[str]:
        """Ids of the criteria that decide whether the rubric is met: the gating ones, and those that a threshold counts."""
        counted = {member.id for unit in self.gate_units if unit.threshold is not None for member in unit.members if member.weight}
        if self.threshold is not None:
            counted |= {member.id for unit in self.units if unit.weight for member in unit.members if member.weight}
        return self.gating | counted

    @property
    def optional(self) -> tuple[str, ...]:
        """Ids of the other criteria, which do not decide whether the rubric is met."""
        decisive = self.decisive
        return tuple(criterion.id for criterion in self.criteria if criterion.id not in decisive)

    @property
    def phrases(self) -> Phrases:
        """The sentences of feedback and results, in the rubric's language."""
        return phrases(self.language, self.feedback.model_dump(exclude_none=True) if self.feedback else None)

    def criterion(self, name: str) -> Criterion:
        """Return the criterion with this id."""
        return next(criterion for criterion in self.criteria if criterion.id == name)

    def canonical(self) -> str:
        """Return the rubric as JSON with sorted keys and no spaces: equal rubrics give equal text."""
        raw = self.model_dump(mode="json")
        for judge in (judge for criterion in raw["criteria"] for judge in (criterion.get("grader"), *criterion.get("panel", ()))):
            for model in (judge, *judge.get("fallback", ())) if judge else ():
                if "config" in model:  # a setting that a later version adds must not change the sha256 of an old rubric
                    model["config"] = {name: value for name, value in model["config"].items() if value is not None}
        return json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def sha256(self) -> str:
        """Return the sha256 of the canonical form, as hex."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()


def _refuse_size(text: str) -> None:
    size = len(text.encode(errors="surrogatepass"))
    if size > RUBRIC_BYTES:
        raise ValueError(f"the rubric has {size} bytes, {RUBRIC_BYTES} at most; move what is background into the conversation")


def _with_ids(criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
    """Give `c<position>` to every criterion without an id, skipping ids that the author used."""
    taken = [criterion.id for criterion in criteria if criterion.id]
    if double := next((name for name in taken if taken.count(name) > 1), None):
        raise ValueError(f"the criterion id {double!r} is used twice; give each criterion an id of its own")
    used = set(taken)
    numbered = []
    for position, criterion in enumerate(criteria, 1):
        number = position
        while not criterion.id and f"c{number}" in used:
            number += 1
        named = criterion if criterion.id else criterion.model_copy(update={"id": f"c{number}"})
        used.add(named.id)
        numbered.append(named)
    return tuple(numbered)


def _weights(rubric: Rubric) -> Iterator[tuple[str, list[float]]]:
    """Yield the name and the weights of every sum: the whole rubric's, and each group's."""
    if rubric.criteria:
        yield "criteria", [unit.weight for unit in rubric.units]
    for unit in rubric.units:
        if unit.name is not None:
            yield f"the group {unit.name!r}", [member.weight for member in unit.members]


def parse_rubric_text(text: str) -> dict[str, Any]:
    """Parse a rubric's text, one criterion a line or list item, headings as context; raise ValueError for a text without a criterion."""
    criteria: list[str] = []
    context: list[dict[str, Any]] = []
    continues = False
    for raw in text.removeprefix("\ufeff").splitlines():
        line = raw.expandtabs(4).rstrip()
        body = line.strip()
        if not any(character.isalnum() for character in body):
            continue
        indented = line != body
        marker = _MARKER.match(body)
        if marker:
            criteria.append(body[marker.end() :])
            continues = True
        elif indented and continues:
            criteria[-1] += " " + body
        elif _HEADING.match(body) or (not indented and body.endswith(":")):
            context.append({"before": len(criteria), "text": body})
            continues = False
        else:
            criteria.append(body)
            continues = False
    if text and not criteria:
        raise ValueError("the rubric has no criterion, only white space or headings; write one a line, or '' to clear it")
    return {"criteria": criteria, "context": context}


def without_marker(line: str) -> str:
    """Return a line without a list's marker and the white space after it."""
    marker = _MARKER.match(line)
    return line[marker.end() :] if marker else line
