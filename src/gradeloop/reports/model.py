"""A run as every page shows it, wherever it was read."""

import shlex
from typing import Literal

from pydantic import Field, JsonValue

from gradeloop.contract.base import Strict
from gradeloop.contract.evaluation import Evaluation, Event, WaitingFor
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.transcript import Citation


class NextStep(Strict):
    """A command to run next, as a page shows it: `No rule says what passes. Next: say it, gradeloop report ...`."""

    command: str
    words: str = ""
    """The purpose of the command; empty where the command shows it."""
    why: str = ""
    """A sentence before it; empty where there is none."""
    after: str = ""
    """Text after the command: the values of a placeholder in it."""


def resume_step(thread_id: str, error: str | None) -> NextStep:
    """Return the command by which an interrupted run goes on, with what has to change before, as its error says."""
    command, kind = f"gradeloop resume {shlex.quote(thread_id)}", (error or "").partition(":")[0]
    if kind in {"bad_request", "not_found", "context_overflow", "refused", "truncated", "degenerate", "config"}:
        return NextStep(command=f"{command} --model PROVIDER:MODEL", words="resume it with another model:")
    again = "resume it once that is mended, or add --model or --grader with another model:"
    return NextStep(command=command, words=again if kind in {"auth", "quota_exhausted", "outage"} else "")


Verdict = Literal["passed", "failed", "error", "unsure", "waiting", "running", "none"]
"""The colour of a run; `none` was not judged. An error is neither passed nor failed, and neither is a judge that is unsure."""


class ToolEvidence(Strict):
    """A tool call of a run, with its arguments and its output."""

    tool: str
    role: Literal["generator", "grader", "check"]
    grading_run_id: str | None = None
    iteration: int | None = None
    """The iteration of the call, from 0; None where it is not known."""
    criterion: str | None = None
    """The id of the criterion that a check decided, or that the grader looked into; None where it is not known."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    output: str = ""
    """The output, or the error; head and tail where it was cut."""
    failed: bool = False
    bytes: int | None = None
    """Size of the whole output, where it was cut."""
    seconds: float | None = None
    """The time from the first attempt's start to the end; None where it has not ended."""
    attempts: int = 1


class SchemaVerdict(Strict):
    """The judgement of a judge with a schema of its own."""

    rubric_id: str
    rubric_version: int
    output: dict[str, JsonValue]
    reason: str | None = None
    """Reason that there is no output."""
    citations: tuple[Citation, ...] = ()
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    """Rollouts, votes, ties and whatever else the judgement holds, without its citations."""
    repeat: int = 0
    unmet: tuple[str, ...] = ()
    """The values for which it does not pass, in words: `label is partial`; empty where it passes, or no rule says what does."""
    labels: tuple[str, ...] | None = None
    """The keys of the output that its schema lets the judge choose: enums, booleans and whole numbers; None where it is not known."""


class PassageRecord(Strict):
    """One record of a block: where its text stands in the block's, in characters, and what it is."""

    title: str
    """Heading that names it: `tool_call bash, call c1`; empty for a plain text."""
    start: int
    end: int


class Passage(Strict):
    """A block of a transcript as it is shown."""

    label: str
    """Its name in citations: `T0B3` in a finished run, else the index of the message."""
    role: str
    name: str | None = None
    text: str
    records: tuple[PassageRecord, ...] = ()


class RunReport(Strict):
    """A run from its beginning to its end, as a page shows it."""

    name: str
    """The heading of the page: the thread's id, the case's, the judged run's."""
    kind: Literal["thread", "case", "judgement"]
    verdict: Verdict
    word: str
    """The status in a word or two, as the terminal has it: `satisfied`, `max_iterations_reached`, `passed`, `not run`."""
    thread_id: str | None = None
    """The thread that can be asked and steered; None where there is none."""
    about: dict[str, str] = Field(default_factory=dict)
    """Facts in the order in which they are shown: description, prompt, generator, grader, variables, when."""
    score: float | None = None
    """0 to 1."""
    error: str | None = None
    rubric: Rubric | None = None
    messages: tuple[Message, ...] = ()
    """All messages of a thread or a case, in order; `Evaluation.draft` is an index into them."""
    evaluations: tuple[Evaluation, ...] = ()
    """The evaluations in order, one grading run after the other."""
    tools: tuple[ToolEvidence, ...] = ()
    events: tuple[Event, ...] = ()
    usage: Usage = Usage()
    budget: Budget | None = None
    waiting_for: WaitingFor | None = None
    judged: SchemaVerdict | None = None
    passages: tuple[Passage, ...] = ()
    """The blocks of a finished run that was judged."""
    best: int | None = None
    """Index of the message with the best draft; None where it is not known."""
    overridden: bool | None = None
    """The verdict after overrides: True passes, False does not; None where nobody overrode anything."""
    decided_by: tuple[str, ...] | None = None
    """Ids of the criteria for which a case did not pass; None where its rubric says it."""
    known_optional: tuple[str, ...] = ()
    """Ids of the optional criteria, where the rubric is not known."""
    worst: str | None = None
    """The id of a case's worst criterion, where `decided_by` is known."""
    notes: tuple[str, ...] = ()
    """Sentences about what could not be read, or is not shown."""
    next: NextStep | None = None
    """Next step for a judgement; None for what has buttons or commands of its own."""

    @property
    def optional(self) -> tuple[str, ...]:
        """Ids of the criteria that do not decide whether it passes."""
        return self.rubric.optional if self.rubric else self.known_optional
