"""One thing that must hold, and who decides it: a model, several, a tool, a person, or somebody else's code."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gradeloop.judge import Judge, judge_of
from gradeloop.own_prompt import OwnPrompt
from gradeloop.printable import clip, close_to
from gradeloop.strict import Items, OrText, Sparse, Strict

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
    grader: Sparse[Judge | None] = None
    """Who judges this one, instead of the thread's grader."""
    votes: Annotated[int, Field(ge=1, le=VOTES, exclude_if=lambda value: value == 1)] = 1
    """Samples of the grader; a majority of them decides."""
    panel: Sparse[Items[Judge]] = ()
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
        if isinstance(value, dict) and len(value) == 1 and not close_to(str(next(iter(value))), list(cls.model_fields)):
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
        return judge_of(value)

    @field_validator("panel", mode="before")
    @classmethod
    def _reads_panel(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return tuple(judge_of(each) for each in value) if isinstance(value, list | tuple) else value

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
    def judges(self) -> tuple[Judge | None, ...]:
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
