"""What done looks like: an ordered list of criteria with ids, written as text or as an object."""

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue

from gradeloop.criterion import Criterion
from gradeloop.nesting import flat
from gradeloop.own_prompt import OwnPrompt, reached
from gradeloop.phrases import Feedback, Phrases, languages, phrases
from gradeloop.printable import clip, did_you_mean
from gradeloop.rubric_text import parse
from gradeloop.strict import Items, OrText, Sparse, Strict
from gradeloop.units import Group, Threshold, Unit, units

RUBRIC_BYTES = 64 * 1024
"""The largest rubric, as UTF-8: it is sent with every grading call."""

MAX_CRITERIA = 100

CONVERSATIONS = 500
"""Of one pass: a call group has one a vote."""


class Context(Strict):
    """A heading or an introducing line: the grader reads it, nothing is judged by it."""

    before: int
    """Position of the criterion that it stands before, from 0; the number of criteria at the end."""
    text: str


class Rubric(OrText):
    """An ordered list of criteria, each with an id of its own, and how they add up."""

    name: Sparse[Annotated[str, Field(max_length=200)] | None] = None
    instructions: Sparse[str | None] = None
    """For the grader, beside its own."""
    scoring: Literal["mean", "binary"] = Field(default="mean", exclude_if=lambda value: value == "mean")
    threshold: Sparse[Threshold | None] = None
    """On the score, in addition to the gate."""
    gate: Literal["required", "any", "none"] = Field(default="required", exclude_if=lambda value: value == "required")
    """Which criteria must pass: all required ones, one of them, or none, so that the score alone decides."""
    mode: Literal["holistic", "per_criterion"] = Field(default="holistic", exclude_if=lambda value: value == "holistic")
    language: Sparse[str | None] = None
    """Of verdicts and feedback."""
    feedback: Sparse[Feedback | None] = None
    prompt: Sparse[OwnPrompt | None] = None
    """The grader's, instead of ours."""
    groups: Sparse[Items[Group]] = ()
    criteria: tuple[Criterion, ...]
    """Empty: the rubric is cleared. On the wire also groups: `{"group": name, "criteria": [...]}`."""
    context: Sparse[Items[Context]] = ()

    @classmethod
    def widen(cls, schema: JsonSchemaValue) -> None:
        """Let groups stand among the criteria."""
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
            return parse(value)
        if isinstance(value, dict):
            _refuse_size(json.dumps(value, ensure_ascii=False, default=str))
            return flat(value)
        return flat(value) if isinstance(value, list) else value

    @field_validator("criteria", mode="before")
    @classmethod
    def _are_few(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape, counted before it is validated
        if isinstance(value, list | tuple) and len(value) > MAX_CRITERIA:
            raise ValueError(f"{len(value)} criteria, {MAX_CRITERIA} at most; split the rubric over several threads")
        return value

    @field_validator("criteria")
    @classmethod
    def _are_identified(cls, value: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        return _identified(value)

    @field_validator("groups")
    @classmethod
    def _are_named(cls, value: tuple[Group, ...]) -> tuple[Group, ...]:
        names = [group.group for group in value]
        if double := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"the group {double!r} is there twice; give each group a name of its own")
        return value

    @field_validator("language")
    @classmethod
    def _is_spoken(cls, value: str | None) -> str | None:
        if value is not None and value not in languages():
            raise ValueError(f"no sentences in {clip(value)}.{did_you_mean(value, sorted(languages()))}")
        return value

    @model_validator(mode="after")
    def _adds_up(self) -> "Rubric":
        if self.gate == "none" and self.threshold is None:
            raise ValueError("gate: with 'none' the score alone decides; give the threshold that it has to reach")
        if self.gate == "none" and self.scoring == "binary":
            raise ValueError("scoring: 'binary' is what the gate says, and gate is 'none'; write scoring: mean")
        for name, weights in _weights(self):
            if not sum(weights):
                raise ValueError(f"{name}: all weights are 0, so that there is no score; give one of them a weight above 0")
        for each in self.judged:
            prompt = each.prompt or self.prompt
            for place in prompt.reaches if prompt else ():
                reached(each.description, place)
        if (count := sum(len(each.judges) for each in self.judged)) > CONVERSATIONS:
            raise ValueError(f"criteria: their votes make {count} conversations a pass, {CONVERSATIONS} at most; ask for fewer votes")
        return self

    @property
    def cleared(self) -> bool:
        """True where nothing is asked."""
        return not self.criteria

    @property
    def checked(self) -> tuple[Criterion, ...]:
        """The criteria that a tool decides."""
        return tuple(criterion for criterion in self.criteria if criterion.check)

    @property
    def judged(self) -> tuple[Criterion, ...]:
        """The criteria that a grader decides."""
        return tuple(criterion for criterion in self.criteria if not criterion.check and not criterion.human)

    @property
    def asked_of_people(self) -> tuple[Criterion, ...]:
        """The criteria that a person decides."""
        return tuple(criterion for criterion in self.criteria if criterion.human)

    @property
    def units(self) -> tuple[Unit, ...]:
        """What counts as one, a criterion or a group, in order."""
        return units(self.criteria, self.groups)

    @property
    def gate_units(self) -> tuple[Unit, ...]:
        """The units that the gate is about: the required ones, or all where none is, as in Mastra; none where there is no gate."""
        return () if self.gate == "none" else tuple(unit for unit in self.units if unit.required) or self.units

    @property
    def gating(self) -> frozenset[str]:
        """Ids that must pass, or one of them where the gate is `any`; groups with a threshold aside."""
        return frozenset(each.id for unit in self.gate_units if unit.threshold is None for each in unit.deciding)

    @property
    def pressing(self) -> frozenset[str]:
        """Ids on which it depends whether the rubric is met: the gating ones, and those that a threshold counts."""
        counted = {each.id for unit in self.gate_units if unit.threshold is not None for each in unit.members if each.weight}
        if self.threshold is not None:
            counted |= {each.id for unit in self.units if unit.weight for each in unit.members if each.weight}
        return self.gating | counted

    @property
    def phrases(self) -> Phrases:
        """What the code says, in the rubric's language."""
        return phrases(self.language, self.feedback.model_dump(exclude_none=True) if self.feedback else None)

    def criterion(self, name: str) -> Criterion:
        """Return the criterion of an id."""
        return next(each for each in self.criteria if each.id == name)

    def canonical(self) -> str:
        """Return the rubric as JSON with sorted keys and no spaces: equal rubrics give equal text."""
        raw = self.model_dump(mode="json")
        for judge in (judge for each in raw["criteria"] for judge in (each.get("grader"), *each.get("panel", ()))):
            if judge and "config" in judge:  # settings that are not there yet shall not make it another rubric
                judge["config"] = {name: value for name, value in judge["config"].items() if value is not None}
        return json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def sha256(self) -> str:
        """Return the sha256 of the canonical form, as hex."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()


def _refuse_size(text: str) -> None:
    size = len(text.encode(errors="surrogatepass"))
    if size > RUBRIC_BYTES:
        raise ValueError(f"the rubric has {size} bytes, {RUBRIC_BYTES} at most; move what is background into the conversation")


def _identified(criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
    """Give `c<position>` to every criterion without an id, passing over ids that the author used."""
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
    """Yield the weights that are added up: those of the whole, and those in each group."""
    if rubric.criteria:
        yield "criteria", [unit.weight for unit in rubric.units]
    for unit in rubric.units:
        if unit.name is not None:
            yield f"the group {unit.name!r}", [each.weight for each in unit.members]
