"""A run as every page shows it, wherever it was read."""

from typing import Literal

from pydantic import Field, JsonValue

from gradeloop.contract.base import Strict
from gradeloop.contract.evaluation import Evaluation, Event, WaitingFor
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.rubric import Rubric
from gradeloop.judges.answers import Citation

Verdict = Literal["passed", "failed", "error", "waiting", "running", "none"]
"""How a run is coloured; `none` was not judged. An error is neither passed nor failed."""


class ToolEvidence(Strict):
    """A tool that was called on the way: evidence, as it was asked for and came back."""

    tool: str
    role: Literal["generator", "grader", "check"]
    grading_run_id: str | None = None
    iteration: int | None = None
    """From 0; None where it cannot be told."""
    criterion: str | None = None
    """The id of the criterion that a check decided, or that the grader looked into; None where it is not known."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    output: str = ""
    """What came back, or the error; head and tail where it was cut."""
    failed: bool = False
    bytes: int | None = None
    """Size of the whole output, where it was cut."""
    seconds: float | None = None
    """From the first attempt's start to the end; None where it has not ended."""
    attempts: int = 1


class SchemaVerdict(Strict):
    """What a judge with a schema of its own came to."""

    rubric_id: str
    rubric_version: int
    output: dict[str, JsonValue]
    reason: str | None = None
    """Why there is no output."""
    citations: tuple[Citation, ...] = ()
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    """Rollouts, votes, ties: whatever else the judgement tells, citations left out."""
    repeat: int = 0


class Passage(Strict):
    """A message as it is shown: who says it, and what."""

    label: str
    """How it is referred to: `T0B3` in a finished run, else the index of the message."""
    role: str
    name: str | None = None
    text: str


class RunReport(Strict):
    """A run, told from its beginning."""

    name: str
    """What heads the page: the thread's id, the case's, the judged run's."""
    kind: Literal["thread", "case", "judgement"]
    verdict: Verdict
    word: str
    """The status in a word or two, as the terminal has it: `satisfied`, `max_iterations_reached`, `passed`, `not run`."""
    thread_id: str | None = None
    """Where more can be asked for or said, if anywhere."""
    about: dict[str, str] = Field(default_factory=dict)
    """Facts in the order in which they are shown: description, prompt, generator, grader, variables, when."""
    score: float | None = None
    """0 to 1."""
    error: str | None = None
    rubric: Rubric | None = None
    messages: tuple[Message, ...] = ()
    """Of a thread or a case: all, in order; `Evaluation.draft` is an index into them."""
    evaluations: tuple[Evaluation, ...] = ()
    """In order; of several grading runs, one after the other."""
    tools: tuple[ToolEvidence, ...] = ()
    events: tuple[Event, ...] = ()
    usage: Usage = Usage()
    budget: Budget | None = None
    waiting_for: WaitingFor | None = None
    judged: SchemaVerdict | None = None
    passages: tuple[Passage, ...] = ()
    """Of a finished run that was judged: its blocks."""
    best: int | None = None
    """Index of the message with the draft that stands; None where nobody has said which."""
    overridden: bool | None = None
    """What people made of the verdict: True passes, False does not; None where nobody overrode anything."""
    notes: tuple[str, ...] = ()
    """What could not be read, or is not shown, in words."""
