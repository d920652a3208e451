"""Remarks on cases of batches that have ended: verdicts and comments of people, and what hooks added."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, JsonValue, model_validator
from pydantic_core import to_json

from gradeloop.contract.base import OmitEmpty, Strict
from gradeloop.text import shortened

if TYPE_CHECKING:  # a result has ratings
    from gradeloop.batches.contract import CaseResult


class Rating(Strict):
    """The word of one person about a case: `Rating(by="ann", passed=False, comment="It names no date.")`."""

    by: Annotated[str, Field(min_length=1, max_length=200)]
    passed: bool | None = None
    """The person's own verdict; None if it is only a comment."""
    comment: Annotated[str, Field(max_length=4_000)] = ""
    attempt: Annotated[int, Field(ge=0)] = 0
    """The attempt of the case that it is about; it says nothing about the output of a later one."""
    created: str = ""
    """ISO 8601, UTC."""

    @model_validator(mode="after")
    def _says_something(self) -> "Rating":
        if self.passed is None and not self.comment.strip():
            raise ValueError("comment: it is empty, and there is no verdict; write a comment, or agree or disagree with the verdict")
        return self


class AfterEach(Strict):
    """Scores and metadata that a case's hooks added once it had ended: `result.after_each.named_scores["Tone"]`."""

    named_scores: OmitEmpty[dict[str, Annotated[float, Field(allow_inf_nan=False)]]] = Field(default_factory=dict)
    """New scores by metric, and those that take the place of what the criteria's scores come to."""
    metadata: OmitEmpty[dict[str, JsonValue]] = Field(default_factory=dict)
    """The test's own metadata, and what the hooks returned."""
    response_metadata: OmitEmpty[dict[str, JsonValue]] = Field(default_factory=dict)
    """Metadata of the response that the hooks returned."""
    error: OmitEmpty[str | None] = None
    """The hook that failed, and why; then nothing was added."""

    @property
    def lines(self) -> list[str]:
        """The scores, the metadata and the error, a line each."""
        facts = {"scores": self.named_scores, "metadata": self.metadata, "metadata of the response": self.response_metadata}
        added = [f"afterEach: {what}: {shortened(to_json(value).decode(), 300)}" for what, value in facts.items() if value]
        return [*([self.error] if self.error else []), *added]


def verdicts_of_people(result: "CaseResult") -> dict[str, bool]:
    """Return the verdicts of people on this very attempt of a case, by person."""
    return {one.by: one.passed for one in result.ratings if one.passed is not None and one.attempt == result.attempt}


def remarks(result: "CaseResult") -> list[str]:
    """Return what hooks and people say about a case, a line each."""
    return [*(result.after_each.lines if result.after_each else []), *rating_lines(result)]


def rating_lines(result: "CaseResult") -> list[str]:
    """Return what people say about a case, a sentence each; that their verdicts contradict one another comes first."""
    verdicts = verdicts_of_people(result)
    lines = ["People contradict one another on this case."] if len(set(verdicts.values())) > 1 else []
    for rating in result.ratings:
        own = "it passes" if rating.passed else "it fails"
        says = "comments" if rating.passed is None else f"says that {own}"
        if rating.by in verdicts and result.status in {"passed", "failed"}:
            says = f"{'agrees' if rating.passed == (result.status == 'passed') else 'disagrees'}: {own}"
        says += " of an earlier output" if rating.attempt != result.attempt else ""
        lines.append(f"{rating.by} {says}{f': {rating.comment}' if rating.comment else ''} ({rating.created[:10]})")
    return lines
