"""What done looks like: an ordered list of criteria with ids, written as text or as an object."""

import hashlib
import json
import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from gradeloop.strict import OrText, Strict, clip

RUBRIC_BYTES = 64 * 1024
"""The largest rubric, as UTF-8: it is sent with every grading call."""

MAX_CRITERIA = 100

_MARKER = re.compile(r"(?:[-*•+]|\d+[.)]|[A-Za-z]\))\s+(?:\[[ xX]?\]\s+)?")
_HEADING = re.compile(r"#{1,6}(\s|$)")
_ID = re.compile(r"[A-Za-z][\w.-]{0,63}")


def _absent(value: object) -> bool:
    return value is None or value == ()


class Check(OrText):
    """A tool that decides a criterion alone, without a model."""

    tool: str = Field(min_length=1)
    extract: Literal["text", "code"] = "text"
    """What the tool is given: the whole draft, or its last fenced code block (the whole draft where it has none)."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return {"tool": value} if isinstance(value, str) else value


class Criterion(OrText):
    """One thing that must hold."""

    id: str = ""
    description: str
    required: bool = True
    check: Check | None = Field(default=None, exclude_if=_absent)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return {"description": value} if isinstance(value, str) else value

    @field_validator("id")
    @classmethod
    def _is_an_id(cls, value: str) -> str:
        if value and not _ID.fullmatch(value):
            raise ValueError(f"{clip(value)} is no criterion id; start with a letter, then letters, digits, '_', '.', '-', 64 at most")
        return value

    @field_validator("description")
    @classmethod
    def _says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("the description is empty; say what must hold")
        return value.strip()


class Context(Strict):
    """A heading or an introducing line: the grader reads it, nothing is judged by it."""

    before: int
    """Position of the criterion that it stands before, from 0; the number of criteria at the end."""
    text: str


class Rubric(OrText):
    """An ordered list of criteria, each with an id of its own."""

    criteria: tuple[Criterion, ...]
    """Empty: the rubric is cleared."""
    context: tuple[Context, ...] = Field(default=(), exclude_if=_absent)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if isinstance(value, str):
            _refuse_size(value)
            return _parse(value)
        if isinstance(value, dict):
            _refuse_size(json.dumps(value, ensure_ascii=False, default=str))
        return value

    @field_validator("criteria")
    @classmethod
    def _are_identified(cls, value: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        if len(value) > MAX_CRITERIA:
            raise ValueError(f"{len(value)} criteria, {MAX_CRITERIA} at most; split the rubric over several threads")
        return _identified(value)

    @property
    def cleared(self) -> bool:
        """True where nothing is asked: later turns are not graded."""
        return not self.criteria

    @property
    def checked(self) -> tuple[Criterion, ...]:
        """The criteria that a tool decides."""
        return tuple(criterion for criterion in self.criteria if criterion.check)

    @property
    def judged(self) -> tuple[Criterion, ...]:
        """The criteria that the grader decides."""
        return tuple(criterion for criterion in self.criteria if not criterion.check)

    @property
    def plain(self) -> bool:
        """True where every criterion is required and judged, so that the grader's own `result` must agree with its rows."""
        return all(criterion.required and not criterion.check for criterion in self.criteria)

    @property
    def gating(self) -> frozenset[str]:
        """Ids that must pass; all of them where none is marked required, as in Mastra's rubric scorer."""
        required = frozenset(criterion.id for criterion in self.criteria if criterion.required)
        return required or frozenset(criterion.id for criterion in self.criteria)

    def canonical(self) -> str:
        """Return the rubric as JSON with sorted keys and no spaces: equal rubrics give equal text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

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


def _parse(text: str) -> dict[str, Any]:
    """Read the text form: a criterion a line, headings and introducing lines as context."""
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
