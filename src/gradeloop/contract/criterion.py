"""Criteria and groups of criteria: how each is judged, by whom, and how much it counts."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError

from gradeloop.contract.base import Items, OrText, Sparse, Strict
from gradeloop.contract.model_spec import GraderSpec, parse_grader_spec
from gradeloop.errors import InvalidRequest
from gradeloop.text import clip, closest


def criterion_paths(criteria: Any) -> Iterator[tuple[tuple[int | str, ...], Any, str | None]]:  # noqa: ANN401 - raw input of any shape
    """Yield each criterion of a raw list with its path and its group's name, the members of groups one by one."""
    for at, each in enumerate(criteria):
        if isinstance(each, dict) and "group" in each and "criteria" in each and isinstance(each["criteria"], list):
            for inner, member in enumerate(each["criteria"]):
                yield (at, "criteria", inner), member, str(each["group"])
        else:
            yield (at,), each, None


def flatten_groups(raw: dict[str, Any] | list[Any]) -> dict[str, Any]:
    """Put the members of groups in line with the other criteria, each with the name of its group.

    Raises:
        ValueError: The rubric is no object, its criteria are no list, or a group holds none, or a group.
    """
    if isinstance(raw, list):
        raise ValueError("the rubric is a list; write 'criteria:' above it")  # noqa: TRY004 - pydantic tells no other
    criteria = raw.get("criteria")
    if criteria is None:
        return raw
    if not isinstance(criteria, list | tuple):
        raise ValueError(f"criteria: {clip(str(criteria))} is no list; write each criterion after '- '")  # noqa: TRY004 - the same
    nested = [criterion for criterion in criteria if isinstance(criterion, dict) and "group" in criterion and "criteria" in criterion]
    for each in nested:
        if not each["criteria"] or not isinstance(each["criteria"], list):
            raise ValueError(f"the group {clip(str(each['group']))} has no criteria; give it a list of them, or leave it out")
        if any(isinstance(member, dict) and "criteria" in member for member in each["criteria"]):
            raise ValueError(f"the group {clip(str(each['group']))} has a group in it; groups are one level deep")
    groups = [*(raw.get("groups") or ()), *({key: value for key, value in each.items() if key != "criteria"} for each in nested)]
    flat = [_member(each, name) for _, each, name in criterion_paths(criteria)]
    named = {group.get("group") if isinstance(group, dict) else group.group for group in groups}
    used = dict.fromkeys(each["group"] for each in flat if isinstance(each, dict) and isinstance(each.get("group"), str))
    groups += [{"group": name} for name in used if name not in named]
    return raw | {"criteria": flat} | ({"groups": groups} if groups else {})


def _member(raw: Any, group: str | None) -> Any:  # noqa: ANN401 - raw input of any shape
    if group is None:
        return raw
    if isinstance(raw, str):
        return {"description": raw, "group": group}
    return raw | {"group": group} if isinstance(raw, dict) and not (len(raw) == 1 and "description" not in raw) else raw


PROMPT_CHARACTERS = 65_536

_PLACE = re.compile(r"\{\{\s*(rubric|output|transcript)((?:\.\w+)*)\s*\}\}")


class PromptSlot(Strict):
    """Where something is put in."""

    of: Literal["rubric", "output", "transcript"]
    path: Sparse[tuple[str, ...]] = ()
    """Keys into a JSON draft, or into the object that describes the criterion."""

    @property
    def written(self) -> str:
        """The place as its author wrote it."""
        return "{{ " + ".".join((self.of, *self.path)) + " }}"


class PromptMessage(Strict):
    """A message of the prompt, cut at its places; on the wire also `{role, content}`."""

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
    """Messages for the grader, in which the rubric and the output have their places."""

    messages: Items[PromptMessage]

    @classmethod
    def other_forms(cls) -> list[JsonSchemaValue]:
        """Return the form of a chat: `[{role, content}]`."""
        text = {"type": "string"}
        said = {"role": {"enum": ["system", "user", "assistant"]}, "content": text}
        message = {"type": "object", "properties": said, "required": ["content"], "additionalProperties": False}
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
        """The places that reach into a criterion's description: such a prompt is about one criterion."""
        parts = [part for message in self.messages for part in message.parts]
        return tuple(part for part in parts if isinstance(part, PromptSlot) and part.of == "rubric" and part.path)

    @model_validator(mode="after")
    def _has_its_places(self) -> "OwnPrompt":
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


def resolve_slot(value: Any, place: PromptSlot) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return what a place reaches in a value.

    Raises:
        InvalidRequest: It is not there; the message names the place.
    """
    for at, key in enumerate(place.path):
        inside = value.get(key, _ABSENT) if isinstance(value, dict) else _item(value, key)
        if inside is _ABSENT:
            where = ".".join((place.of, *place.path[:at]))
            raise InvalidRequest(f"prompt: {place.written}: there is no {clip(key)} in {where}; correct the place, or what it reaches into")
        value = inside
    return value


_ABSENT = object()


def _item(value: Any, key: str) -> Any:  # noqa: ANN401 - JSON of any shape
    return value[int(key)] if isinstance(value, list) and key.isdecimal() and int(key) < len(value) else _ABSENT


def split_at_slots(text: str) -> tuple[str | PromptSlot, ...]:
    """Cut a text at its places."""
    parts: list[str | PromptSlot] = []
    start = 0
    for found in _PLACE.finditer(text):
        parts += [text[start : found.start()], PromptSlot.model_validate({"of": found[1], "path": tuple(found[2].split(".")[1:])})]
        start = found.end()
    return tuple(part for part in (*parts, text[start:]) if part != "")


VOTES = 99
"""Samples of one grader at most; a pass has at most 500 conversations."""

_ID = re.compile(r"[A-Za-z][\w.-]{0,63}")

Number = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class Check(OrText):
    """A tool that decides a criterion alone, without a model."""

    tool: str = Field(min_length=1)
    extract: Literal["text", "code"] = "text"
    """What the tool is given: the whole draft, or its last fenced code block (the whole draft where it has none)."""
    arguments: Sparse[dict[str, JsonValue]] = Field(default_factory=dict)
    """What it is given beside the draft."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return {"tool": value} if isinstance(value, str) else value


class Scale(Strict):
    """A number that the grader gives beside its verdict."""

    min: Number
    max: Number
    threshold: Sparse[Number | None] = None
    """A lower score is no pass, whatever the grader says."""

    @model_validator(mode="before")
    @classmethod
    def _is_an_object(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if isinstance(value, bool | int | float | str | list):
            raise _read_by_yaml(f"{clip(str(value))} is no scale; write {{min: 1, max: 5}}, with a threshold where one is needed")
        return value

    @model_validator(mode="after")
    def _rises(self) -> "Scale":
        if self.min >= self.max:
            raise ValueError(f"min {self.min:g} is not below max {self.max:g}; give the worst score as min, the best as max")
        if self.threshold is not None and not self.min <= self.threshold <= self.max:
            raise ValueError(f"threshold {self.threshold:g} is outside of {self.min:g} to {self.max:g}; give a score that can be reached")
        return self

    def share(self, score: float) -> float:
        """Return how far a score stands between the worst and the best, 0 to 1."""
        return (score - self.min) / (self.max - self.min)


class Criterion(OrText):
    """One thing that must hold."""

    id: str = ""
    description: str | dict[str, JsonValue]
    """What must hold; an object where a prompt of one's own reaches into it."""
    required: bool = True
    weight: Weight = Field(default=1.0, exclude_if=lambda value: value == 1.0)
    """In the score."""
    negate: Sparse[bool] = False
    """True: it must *not* hold. It is put to the grader as written, and its verdict is turned round."""
    score: Sparse[Scale | None] = None
    check: Sparse[Check | None] = None
    human: Sparse[bool] = False
    """True: a person decides, once everything else passes."""
    grader: Sparse[GraderSpec | None] = None
    """Who judges this one, instead of the thread's grader."""
    votes: Annotated[int, Field(ge=1, le=VOTES, exclude_if=lambda value: value == 1)] = 1
    """Samples of the grader; a majority of them decides."""
    panel: Sparse[Items[GraderSpec]] = ()
    """Several graders, one vote each."""
    quotes: Sparse[bool] = False
    """True: the grader quotes what it judges by, and the quotes are looked up in the conversation."""
    require_quotes: Sparse[bool] = False
    """True: a pass needs a quote that was found."""
    prompt: Sparse[OwnPrompt | None] = None
    """Instead of the rubric's and ours."""
    form: Literal["row", "pass_score"] = Field(default="row", exclude_if=lambda value: value == "row")
    """`pass_score`: the grader answers `{reason, pass, score: 0..1}`, as promptfoo's do, in a call of its own."""
    group: Sparse[str | None] = None
    """The name of its group."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if isinstance(value, bool | int | float):
            raise _read_by_yaml(f"YAML reads this as {str(value).lower()}; put the criterion in quotes")
        if isinstance(value, dict) and len(value) == 1 and not closest(str(next(iter(value))), list(cls.model_fields)):
            key, rest = next(iter(value.items()))
            raise _read_by_yaml(f"YAML reads {clip(f'{key}: {rest}')} as a mapping; put the criterion in quotes")
        return {"description": value} if isinstance(value, str) else value

    @field_validator("id")
    @classmethod
    def _is_an_id(cls, value: str) -> str:
        if value and not _ID.fullmatch(value):
            raise ValueError(f"{clip(value)} is no criterion id; start with a letter, then letters, digits, '_', '.', '-', 64 at most")
        return value

    @field_validator("description", mode="before")
    @classmethod
    def _says_something(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if not isinstance(value, str | dict):
            raise _read_by_yaml(f"{clip(str(value))} is no text; put the description in quotes")
        if not (value.strip() if isinstance(value, str) else value):
            raise ValueError("the description is empty; say what must hold")
        if isinstance(value, str) and value.strip().lower() in _TRUTHS:
            raise _read_by_yaml(f"{clip(value)} is no criterion, and some readers of YAML take it for a truth value; write a sentence")
        return value.strip() if isinstance(value, str) else value

    @field_validator("grader", mode="before")
    @classmethod
    def _reads_grader(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return parse_grader_spec(value)

    @field_validator("panel", mode="before")
    @classmethod
    def _reads_panel(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return tuple(parse_grader_spec(each) for each in value) if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _hangs_together(self) -> "Criterion":
        judged = [name for name, default in _OF_A_MODEL.items() if getattr(self, name) != default]
        if (self.check or self.human) and judged:
            who = "a check is decided by its tool" if self.check else "a person decides this one"
            raise ValueError(f"{who}; leave {', '.join(judged)} out")
        if self.check and self.human:
            raise ValueError("check and human exclude each other; make two criteria of it")
        if self.panel and (self.votes > 1 or self.grader):
            raise ValueError("a panel is one vote of each model; leave votes and grader out")
        if self.require_quotes and self.negate:
            raise ValueError("what must not be there cannot be quoted; leave require_quotes or negate out")
        if self.form == "pass_score" and (self.quotes or self.require_quotes):
            raise ValueError("a pass_score answer has no quotes; leave them out, or the form")
        return self

    @property
    def text(self) -> str:
        """The description as text; an object as JSON."""
        told = self.description
        return told if isinstance(told, str) else json.dumps(told, ensure_ascii=False)

    @property
    def scale(self) -> Scale | None:
        """What the grader's number means: the criterion's own scale, 0 to 1 for the form `pass_score`."""
        return self.score or (UNIT if self.form == "pass_score" else None)

    @property
    def quoted(self) -> bool:
        """True where the grader is asked for quotes."""
        return self.quotes or self.require_quotes

    @property
    def judges(self) -> tuple[GraderSpec | None, ...]:
        """Who judges, one a vote; None is the thread's own grader."""
        return self.panel or (self.grader,) * self.votes


_TRUTHS = {"yes", "no", "on", "off", "true", "false", "null", "none", "~"}
"""What YAML 1.1 reads as a truth value or as nothing, and no sentence in any case."""

UNIT = Scale(min=0, max=1)

_OF_A_MODEL = {
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
"""Fields that mean something only where a grader judges, and their defaults."""


def _read_by_yaml(words: str) -> PydanticCustomError:
    """Return the refusal of a line that YAML does not read as its author meant it; the value is in the words already."""
    return PydanticCustomError("unknown_key", "{words}", {"words": words})


TOLERANCE = 1e-9
"""By which a score may miss its threshold: sums of decimal weights are not exact."""


def _of_a_score(value: float) -> float:
    if not 0 <= value <= 1:
        hint = f"; write {value / 100:g}" if 1 < value <= 100 else ""  # noqa: PLR2004 - per cent
        raise ValueError(f"{value:g} is outside of 0 to 1, between which the score runs{hint}")
    return value


Threshold = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_of_a_score)]


class Group(Strict):
    """Criteria that count as one."""

    group: Annotated[str, Field(min_length=1, max_length=200)]
    """Its name."""
    required: bool = True
    weight: Weight = Field(default=1.0, exclude_if=lambda value: value == 1.0)
    """In the rubric's score, in which the group's mean counts as one."""
    threshold: Sparse[Threshold | None] = None
    """With it the group's mean alone decides, instead of its required criteria."""


@dataclass(frozen=True)
class Score:
    """What a criterion came to, turned round already where it is negated."""

    passed: bool
    share: float
    """Of the score, 0 to 1."""


@dataclass(frozen=True)
class ScoringUnit:
    """What counts as one: a criterion, or a group with its name."""

    members: tuple[Criterion, ...]
    required: bool
    weight: float
    threshold: float | None = None
    name: str | None = None

    def share(self, marks: Mapping[str, Score]) -> float | None:
        """Return its part of the score; None where none of it was graded."""
        return weighted_mean(
            (1.0 if self.name is None else member.weight, marks[member.id].share) for member in self.members if member.id in marks
        )

    def holds(self, marks: Mapping[str, Score]) -> bool:
        """Return whether it passes: by its mean where it has a threshold, else by its required criteria."""
        if self.threshold is not None:
            share = self.share(marks)
            return share is not None and share >= self.threshold - TOLERANCE
        return all(each.id in marks and marks[each.id].passed for each in self.deciding)

    @property
    def deciding(self) -> tuple[Criterion, ...]:
        """The criteria that must pass for it to pass: the required ones, or all where none is."""
        return tuple(member for member in self.members if member.required) or self.members


def build_units(criteria: Sequence[Criterion], groups: Sequence[Group]) -> tuple[ScoringUnit, ...]:
    """Return what counts as one, in the order of the criteria."""
    named = {group.group: group for group in groups}
    found: dict[tuple[str, str], ScoringUnit] = {}
    for criterion in criteria:
        group = named.get(criterion.group or "")
        if group is None:
            found["criterion", criterion.id] = ScoringUnit((criterion,), criterion.required, criterion.weight)
        elif ("group", group.group) not in found:
            members = tuple(criterion for criterion in criteria if criterion.group == group.group)
            found["group", group.group] = ScoringUnit(members, group.required, group.weight, group.threshold, group.group)
    return tuple(found.values())


def weighted_mean(shares: Iterable[tuple[float, float]]) -> float | None:
    """Return the mean of (weight, share) pairs; None where nothing has weight."""
    weighed = list(shares)
    total = sum(weight for weight, _ in weighed)
    return sum(weight * share for weight, share in weighed) / total if total else None
