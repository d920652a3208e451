"""Criteria and groups of criteria: who judges them, by what prompt, and how much they count."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError

from gradeloop.contract.base import CodeText, Items, OmitEmpty, OrText, Strict
from gradeloop.contract.model_spec import GraderSpec, ModelSpec, parse_grader_spec
from gradeloop.errors import InvalidRequest
from gradeloop.text import clip, closest

VOTES = 99
"""The most samples of one grader; a pass has at most 500 conversations."""

PROMPT_CHARACTERS = 65_536
"""The longest prompt of an author's own, slots not counted: it is sent with every call of its criteria."""

TOLERANCE = 1e-9
"""The shortfall at which a score still reaches its threshold: sums of decimal weights are not exact."""

_ID = re.compile(r"[A-Za-z][\w.-]{0,63}")

_SLOT = re.compile(r"\{\{\s*(rubric|output|transcript)((?:\.\w+)*)\s*\}\}")

_TRUTHS = {"yes", "no", "on", "off", "true", "false", "null", "none", "~"}
"""Words that YAML 1.1 reads as a truth value or as null; none of them is a criterion."""

Number = Annotated[float, Field(allow_inf_nan=False)]

Weight = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class Check(OrText):
    """The tool that decides a criterion without a model."""

    tool: str = Field(min_length=1)
    """The name of the tool: `true` or `{"ok": true}` passes, `false` or `{"ok": false, ...}` fails, with the other keys as the gap."""
    extract: Literal["text", "code"] = "text"
    """The tool's input: the whole draft, or its last fenced code block (the whole draft if it has none)."""
    arguments: OmitEmpty[dict[str, JsonValue]] = Field(default_factory=dict)
    """Arguments that the tool is given beside the draft."""
    transform: OmitEmpty[CodeText | None] = None
    """Code that makes of the output what this check is given; only a batch runs it, for its own checks."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return {"tool": value} if isinstance(value, str) else value


class Scale(Strict):
    """The range of the number that a grader gives beside its verdict."""

    min: Number
    """The worst score."""
    max: Number
    """The best score."""
    threshold: OmitEmpty[Number | None] = None
    """The lowest score that passes; a lower one fails the criterion whatever the grader says."""

    @model_validator(mode="before")
    @classmethod
    def _is_an_object(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if isinstance(value, bool | int | float | str | list):
            raise _misread_by_yaml(f"{clip(str(value))} is not a scale; write {{min: 1, max: 5}}, with a threshold where one is needed")
        return value

    @model_validator(mode="after")
    def _rises(self) -> "Scale":
        if self.min >= self.max:
            raise ValueError(f"min {self.min:g} is not below max {self.max:g}; give the worst score as min, the best as max")
        if self.threshold is not None and not self.min <= self.threshold <= self.max:
            raise ValueError(f"threshold {self.threshold:g} is outside of {self.min:g} to {self.max:g}; give a score that can be reached")
        return self

    def share(self, score: float) -> float:
        """Return where a score lies between the worst and the best, 0 to 1."""
        return (score - self.min) / (self.max - self.min)


UNIT = Scale(min=0, max=1)
"""The scale of the form `pass_score`."""


class PromptSlot(Strict):
    """A place in a prompt that is filled when the prompt is sent."""

    of: Literal["rubric", "output", "transcript"]
    path: OmitEmpty[tuple[str, ...]] = ()
    """Keys into a JSON draft (`{{ output.key }}`) or an object that describes the criterion (`{{ rubric.key }}`); empty for the whole."""

    @property
    def written(self) -> str:
        """The slot as its author wrote it."""
        return "{{ " + ".".join((self.of, *self.path)) + " }}"


class PromptMessage(Strict):
    """A message of the prompt, split at its slots; on the wire also `{role, content}`."""

    role: Literal["system", "user", "assistant"] = "user"
    parts: tuple[str | PromptSlot, ...]

    @model_validator(mode="before")
    @classmethod
    def _from_content(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if isinstance(value, dict) and isinstance(value.get("content"), str) and "parts" not in value:
            rest = {key: item for key, item in value.items() if key != "content"}
            return rest | {"parts": split_at_slots(value["content"])}
        return value


class OwnPrompt(OrText):
    """The author's own prompt: messages for the grader with slots for the rubric and the output."""

    messages: Items[PromptMessage]

    @classmethod
    def other_forms(cls) -> list[JsonSchemaValue]:
        """Return the form of a chat: `[{role, content}]`."""
        text = {"type": "string"}
        properties = {"role": {"enum": ["system", "user", "assistant"]}, "content": text}
        message = {"type": "object", "properties": properties, "required": ["content"], "additionalProperties": False}
        return [{"type": "array", "items": message}]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if isinstance(value, str):
            if value.startswith("file://"):
                raise ValueError(f"{clip(value)} is read where the rubric is a file; elsewhere write the prompt's text")
            value = [{"role": "user", "content": value}]
        return {"messages": tuple(value)} if isinstance(value, list | tuple) else value

    @property
    def reaches(self) -> tuple[PromptSlot, ...]:
        """The slots that read a key of a criterion's description; a prompt with one is about one criterion."""
        parts = [part for message in self.messages for part in message.parts]
        return tuple(part for part in parts if isinstance(part, PromptSlot) and part.of == "rubric" and part.path)

    @model_validator(mode="after")
    def _has_its_slots(self) -> "OwnPrompt":
        places = [part.of for message in self.messages for part in message.parts if isinstance(part, PromptSlot)]
        if not {"output", "transcript"} & set(places):
            raise ValueError("the prompt has no {{ output }}; write where the draft is put in")
        if self.messages[-1].role != "user":
            raise ValueError(f"the prompt ends with role {self.messages[-1].role!r}; its last message is of role 'user'")
        if any(isinstance(part, PromptSlot) for message in self.messages if message.role == "system" for part in message.parts):
            raise ValueError("a message of role 'system' has a place in it; put what is judged into a message of role 'user'")
        size = sum(len(part) for message in self.messages for part in message.parts if isinstance(part, str))
        if size > PROMPT_CHARACTERS:
            raise ValueError(f"the prompt has {size} characters, {PROMPT_CHARACTERS} at most; shorten it")
        return self


def split_at_slots(text: str) -> tuple[str | PromptSlot, ...]:
    """Split a text at its slots."""
    parts: list[str | PromptSlot] = []
    start = 0
    for slot in _SLOT.finditer(text):
        parts += [text[start : slot.start()], PromptSlot.model_validate({"of": slot[1], "path": tuple(slot[2].split(".")[1:])})]
        start = slot.end()
    return tuple(part for part in (*parts, text[start:]) if part != "")


def resolve_slot(value: Any, slot: PromptSlot) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return the value at a slot's path; raise InvalidRequest, which names the slot, where it leads to nothing."""
    for position, key in enumerate(slot.path):
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            where = ".".join((slot.of, *slot.path[:position]))
            raise InvalidRequest(f"prompt: {slot.written}: there is no {clip(key)} in {where}; correct the place, or what it reaches into")
    return value


class Criterion(OrText):
    """One requirement of a rubric: what must hold, who decides it, its weight: `Criterion(description="polite", weight=2)`."""

    id: str = ""
    """A letter, then letters, digits, `_`, `.` or `-`, 64 at most; `c` and the position by default."""
    description: str | dict[str, JsonValue]
    """The requirement; an object if the author's own prompt reads its keys."""
    required: bool = True
    """Whether the rubric is met only if this criterion passes."""
    weight: Weight = Field(default=1.0, exclude_if=lambda value: value == 1.0)
    """The weight in the score."""
    negate: OmitEmpty[bool] = False
    """Whether it must *not* hold: the grader is asked as written, and its verdict and score are inverted."""
    score: OmitEmpty[Scale | None] = None
    """The scale of a number that the grader gives beside its verdict; below its threshold the criterion does not pass."""
    check: OmitEmpty[Check | None] = None
    """The tool that decides; no model is asked."""
    human: OmitEmpty[bool] = False
    """Whether a person decides it, once everything else passes."""
    grader: OmitEmpty[GraderSpec | None] = None
    """The grader of this criterion; the thread's grader by default."""
    votes: Annotated[int, Field(ge=1, le=VOTES, exclude_if=lambda value: value == 1)] = 1
    """Samples of the grader. The majority decides; a tie does not pass."""
    panel: OmitEmpty[Items[GraderSpec]] = ()
    """Graders that judge together, with one vote each; the majority decides."""
    quotes: OmitEmpty[bool] = False
    """Whether the grader quotes its evidence; the quotes are looked up in the conversation."""
    require_quotes: OmitEmpty[bool] = False
    """Whether a pass needs a quote that was found."""
    prompt: OmitEmpty[OwnPrompt | None] = None
    """The prompt for this criterion; the rubric's, or gradeloop's, by default."""
    form: Literal["row", "pass_score", "similar"] = Field(default="row", exclude_if=lambda value: value == "row")
    """The form of the answer: a row of the verdict, or `{reason, pass, score: 0..1}`, as in promptfoo, in a call of its own.

    With `similar`, nobody is asked: `grader` names an embedding model, and the score is the cosine between the draft and the description,
    or the best of the texts under the description's key `similar_to`."""
    categories: OmitEmpty[dict[str, Annotated[float, Field(ge=0, le=1)]]] = Field(default_factory=dict)
    """Scores by category, instead of `pass` and `score` in the answer: the grader names one, which passes if its score is above 0."""
    transform: OmitEmpty[CodeText | None] = None
    """Code that makes of the output what its grader is shown, in a call of its own; a batch runs it, without a loop and without tools."""
    group: OmitEmpty[str | None] = None
    """The name of the group that it belongs to."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if isinstance(value, bool | int | float):
            raise _misread_by_yaml(f"YAML reads this as {str(value).lower()}; put the criterion in quotes")
        if isinstance(value, dict) and len(value) == 1 and not closest(str(next(iter(value))), list(cls.model_fields)):
            key, rest = next(iter(value.items()))
            raise _misread_by_yaml(f"YAML reads {clip(f'{key}: {rest}')} as a mapping; put the criterion in quotes")
        return {"description": value} if isinstance(value, str) else value

    @field_validator("id")
    @classmethod
    def _is_an_id(cls, value: str) -> str:
        if value and not _ID.fullmatch(value):
            raise ValueError(f"{clip(value)} is not a criterion id; start with a letter, then letters, digits, '_', '.', '-', 64 at most")
        return value

    @field_validator("description", mode="before")
    @classmethod
    def _is_not_empty(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if not isinstance(value, str | dict):
            raise _misread_by_yaml(f"{clip(str(value))} is not a string; put the description in quotes")
        if not (value.strip() if isinstance(value, str) else value):
            raise ValueError("the description is empty; say what must hold")
        if isinstance(value, str) and value.strip().lower() in _TRUTHS:
            raise _misread_by_yaml(
                f"{clip(value)} is not a criterion, and some readers of YAML take it for a truth value; write a sentence"
            )
        return value.strip() if isinstance(value, str) else value

    @field_validator("grader", mode="before")
    @classmethod
    def _read_grader(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return parse_grader_spec(value)

    @field_validator("panel", mode="before")
    @classmethod
    def _read_panel(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return tuple(parse_grader_spec(grader) for grader in value) if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _hangs_together(self) -> "Criterion":
        judged = [name for name, default in _GRADER_FIELDS.items() if getattr(self, name) != default]
        if (self.check or self.human) and judged:
            who = "a check is decided by its tool" if self.check else "a person decides this one"
            raise ValueError(f"{who}; leave {', '.join(judged)} out")
        if self.check and self.human:
            raise ValueError("check and human exclude each other; make two criteria of it")
        if self.panel and (self.votes > 1 or self.grader):
            raise ValueError("a panel is one vote of each model; leave votes and grader out")
        if self.require_quotes and self.negate:
            raise ValueError("what must not be there cannot be quoted; leave require_quotes or negate out")
        if self.form != "row" and (self.quotes or self.require_quotes):
            raise ValueError(f"a {self.form} answer has no quotes; leave them out, or the form")
        if self.form == "similar" and (self.prompt or self.votes > 1 or self.panel or not isinstance(self.grader, ModelSpec)):
            raise ValueError("similar compares embeddings; give grader an embedding model, and neither prompt, votes nor panel")
        return self

    @model_validator(mode="after")
    def _is_shown_what_it_makes(self) -> "Criterion":
        if self.categories and self.form != "pass_score":
            raise ValueError("categories are for a criterion of the form pass_score; give it that form")
        if self.transform is not None and self.form == "row":
            raise ValueError("transform is for a criterion with a call of its own; give it the form pass_score or similar")
        return self

    @property
    def text(self) -> str:
        """The description as text; an object as JSON."""
        if isinstance(self.description, str):
            return self.description
        return json.dumps(self.description, ensure_ascii=False)

    @property
    def scale(self) -> Scale | None:
        """The scale of the grader's number: the criterion's own, 0 to 1 for the forms `pass_score` and `similar`, None without a number."""
        return self.score or (UNIT if self.form != "row" else None)

    @property
    def references(self) -> tuple[str, ...]:
        """The texts to which the draft is compared in the form `similar`."""
        texts = self.description.get("similar_to") if isinstance(self.description, dict) else None
        return tuple(map(str, texts)) if isinstance(texts, list) else (self.text,)

    @property
    def quoted(self) -> bool:
        """Whether the grader is asked for quotes."""
        return self.quotes or self.require_quotes

    @property
    def judges(self) -> tuple[GraderSpec | None, ...]:
        """The graders, one for each vote; None is the thread's own grader."""
        return self.panel or (self.grader,) * self.votes


_GRADER_FIELDS = {
    "negate": False,
    "score": None,
    "grader": None,
    "votes": 1,
    "panel": (),
    "quotes": False,
    "require_quotes": False,
    "prompt": None,
    "form": "row",
}
"""The fields that need a grader, with their defaults."""


def _misread_by_yaml(message: str) -> PydanticCustomError:
    """Return the error for a line that YAML does not read as its author meant it; the message has the value already."""
    return PydanticCustomError("unknown_key", "{message}", {"message": message})


def _refuse_threshold(value: float) -> float:
    if not 0 <= value <= 1:
        hint = f"; write {value / 100:g}" if 1 < value <= 100 else ""  # noqa: PLR2004 - per cent
        raise ValueError(f"{value:g} is outside of 0 to 1, between which the score runs{hint}")
    return value


Threshold = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_refuse_threshold)]


class Group(Strict):
    """A group of criteria that counts as one."""

    group: Annotated[str, Field(min_length=1, max_length=200)]
    """The name that its criteria refer to."""
    required: bool = True
    """Whether the rubric is met only if the group passes."""
    weight: Weight = Field(default=1.0, exclude_if=lambda value: value == 1.0)
    """The group's weight in the rubric's score, to which its mean contributes."""
    threshold: OmitEmpty[Threshold | None] = None
    """The mean at which the group passes; without it, its required criteria decide."""


@dataclass(frozen=True)
class Score:
    """The outcome of a criterion, already inverted where it is negated."""

    passed: bool
    share: float
    """The share of the full score that it reached, 0 to 1; an assertion in code may give any number."""


@dataclass(frozen=True)
class ScoringUnit:
    """A criterion or a named group, which counts as one in gate and score."""

    members: tuple[Criterion, ...]
    required: bool
    weight: float
    threshold: float | None = None
    name: str | None = None

    def share(self, scores: Mapping[str, Score]) -> float | None:
        """Return the share of its score that it reached; None where none of its criteria was graded."""
        graded = (member for member in self.members if member.id in scores)
        return weighted_mean((1.0 if self.name is None else member.weight, scores[member.id].share) for member in graded)

    def passes(self, scores: Mapping[str, Score]) -> bool:
        """Tell whether it passes: its mean decides where it has a threshold, else its required criteria do."""
        if self.threshold is not None:
            share = self.share(scores)
            return share is not None and share >= self.threshold - TOLERANCE
        return all(member.id in scores and scores[member.id].passed for member in self.deciding)

    @property
    def deciding(self) -> tuple[Criterion, ...]:
        """The criteria that must all pass: the required ones, or all of them where none is required."""
        return tuple(member for member in self.members if member.required) or self.members


def build_units(criteria: Sequence[Criterion], groups: Sequence[Group]) -> tuple[ScoringUnit, ...]:
    """Return the units of a rubric, in the order of its criteria."""
    named = {group.group: group for group in groups}
    units: dict[tuple[str, str], ScoringUnit] = {}
    for criterion in criteria:
        group = named.get(criterion.group or "")
        if group is None:
            units["criterion", criterion.id] = ScoringUnit((criterion,), criterion.required, criterion.weight)
        elif ("group", group.group) not in units:
            members = tuple(criterion for criterion in criteria if criterion.group == group.group)
            units["group", group.group] = ScoringUnit(members, group.required, group.weight, group.threshold, group.group)
    return tuple(units.values())


def weighted_mean(shares: Iterable[tuple[float, float]]) -> float | None:
    """Return the mean of (weight, share) pairs; None where nothing has weight."""
    weighed = list(shares)
    total = sum(weight for weight, _ in weighed)
    return sum(weight * share for weight, share in weighed) / total if total else None


def flatten_groups(raw: dict[str, Any] | list[Any]) -> dict[str, Any]:
    """Return a raw rubric whose groups' members stand in line with the other criteria, with the names of their groups.

    Raises:
        ValueError: The rubric is not an object, its criteria are not a list, or a group is empty or nested.
    """
    if isinstance(raw, list):
        raise ValueError("the rubric is a list; write 'criteria:' above it")  # noqa: TRY004 - pydantic tells no other
    criteria = raw.get("criteria")
    if criteria is None:
        return raw
    if not isinstance(criteria, list | tuple):
        raise ValueError(f"criteria: {clip(str(criteria))} is not a list; write each criterion after '- '")  # noqa: TRY004 - the same
    nested = [criterion for criterion in criteria if isinstance(criterion, dict) and "group" in criterion and "criteria" in criterion]
    for group in nested:
        if not group["criteria"] or not isinstance(group["criteria"], list):
            raise ValueError(f"the group {clip(str(group['group']))} has no criteria; give it a list of them, or leave it out")
        if any(isinstance(member, dict) and "criteria" in member for member in group["criteria"]):
            raise ValueError(f"the group {clip(str(group['group']))} has a group in it; groups are one level deep")
    groups = [*(raw.get("groups") or ()), *({key: value for key, value in group.items() if key != "criteria"} for group in nested)]
    flat = [_member(criterion, name) for _, criterion, name in criterion_paths(criteria)]
    named = {group.get("group") if isinstance(group, dict) else group.group for group in groups}
    used = dict.fromkeys(member["group"] for member in flat if isinstance(member, dict) and isinstance(member.get("group"), str))
    groups += [{"group": name} for name in used if name not in named]
    return raw | {"criteria": flat} | ({"groups": groups} if groups else {})


def criterion_paths(criteria: Any) -> Iterator[tuple[tuple[int | str, ...], Any, str | None]]:  # noqa: ANN401 - raw input of any shape
    """Yield the path, the raw value and the group's name of each criterion in a raw list, members of groups included."""
    for position, criterion in enumerate(criteria):
        if isinstance(criterion, dict) and "group" in criterion and isinstance(criterion.get("criteria"), list):
            for inner, member in enumerate(criterion["criteria"]):
                yield (position, "criteria", inner), member, str(criterion["group"])
        else:
            yield (position,), criterion, None


def _member(raw: Any, group: str | None) -> Any:  # noqa: ANN401 - raw input of any shape
    if group is None:
        return raw
    if isinstance(raw, str):
        return {"description": raw, "group": group}
    return raw | {"group": group} if isinstance(raw, dict) and not (len(raw) == 1 and "description" not in raw) else raw
