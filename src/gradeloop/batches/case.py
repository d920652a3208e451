"""A case of a batch: what is judged, or who is to draft it first, and by what."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator
from pydantic_core import to_json

from gradeloop.request import MAX_ITERATIONS, Generator, Grader
from gradeloop.rubric import Rubric
from gradeloop.strict import Sparse, Strict
from gradeloop.transcript import Messages

CASE_BYTES = 1024 * 1024
"""The largest case as JSON: it is uploaded in one payload."""

CaseId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$")]

CaseStatus = Literal["queued", "waiting", "passed", "failed", "error"]
"""`queued` is every case without a verdict that may still get one; `waiting` is one for a person."""


class Case(Strict):
    """One row of a batch, with everything in it filled in."""

    id: CaseId
    """Unique in its batch; the same from one run of a suite to the next, so that two batches can be compared."""
    description: Sparse[str | None] = None
    vars: Sparse[dict[str, JsonValue]] = Field(default_factory=dict)
    """What the suite filled its texts with; shown, never sent."""
    prompt: Sparse[str | None] = None
    """The label of the suite's prompt."""
    label: Sparse[str | None] = None
    """The column of a matrix: the generator's label; equal for all cases of a generator."""
    messages: Sparse[Messages] = ()
    """The conversation before the output; its last message is the user's."""
    output: str | None = None
    """What is judged; None where `generator` drafts it."""
    generator: Sparse[Generator | None] = None
    rubric: Rubric
    grader: Sparse[Grader | None] = None
    repeat: Sparse[Annotated[int, Field(ge=0)]] = 0
    """Which repetition of the same case, from 0: each has a draft and verdicts of its own."""
    loop: Sparse[bool] = False
    """True runs the full loop: draft, judge, revise."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] = Field(default=3, exclude_if=lambda value: value == 3)  # noqa: PLR2004 - the default

    @model_validator(mode="after")
    def _hangs_together(self) -> "Case":
        if (self.output is None) == (self.generator is None):
            raise ValueError("give either the output that is judged, or the generator that drafts it")
        if self.loop and self.generator is None:
            raise ValueError("loop needs a generator; a given output is only judged")
        if self.generator is not None and (not self.messages or self.messages[-1].role != "user"):
            raise ValueError("messages must end with the user's, which the generator answers")
        if not self.rubric.criteria:
            raise ValueError("rubric: it is empty; there is nothing to judge by")
        if self.output is not None and not self.output.strip() and not self.messages:
            raise ValueError("output is empty, and there is no conversation before it; there is nothing to judge")
        if self.rubric.asked_of_people and not self.loop:
            raise ValueError("rubric: a criterion is for a person, whom only a case with loop: true can wait for")
        return self

    def size(self) -> int:
        """Return the bytes of the case as JSON."""
        return len(to_json(self))
