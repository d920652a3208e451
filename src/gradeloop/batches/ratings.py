"""Ratings: the verdicts and comments of people about cases of batches."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from gradeloop.contract.base import Strict

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


def verdicts_of_people(result: "CaseResult") -> dict[str, bool]:
    """Return the verdicts of people on this very attempt of a case, by person."""
    return {one.by: one.passed for one in result.ratings if one.passed is not None and one.attempt == result.attempt}


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
