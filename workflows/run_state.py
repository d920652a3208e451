"""What a grading run holds: the pass in flight, and every conversation of it."""

import hashlib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gradeloop.evaluation import CheckOutcome, Decision, Status
    from gradeloop.evidence import Evidence
    from gradeloop.mending import GraderConversation
    from gradeloop.modelspec import ModelSpec
    from gradeloop.strict import Table, without_nulls
    from gradeloop.transcript import Log
    from gradeloop.usage import Usage


class State(BaseModel):
    """A mutable part of the thread; no unknown keys, so that a checkpoint is read whole or refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:  # noqa: ANN401 - a checkpoint, perhaps through a client that turns [] into null
        return without_nulls(cls, value) if isinstance(value, dict) else value


class Approval(State):
    """A tool call that a person has to approve, and what they said."""

    tool: str
    arguments: dict[str, JsonValue]
    role: Literal["generator", "grader", "check"]
    approved: bool | None = None
    by: str = ""
    why: str = ""

    @property
    def denial(self) -> str:
        """What whoever called the tool is told where it was denied."""
        return f"not run: {self.by} denied it: {self.why}"


class Ledger(State):
    """What is known of the tool calls of one turn, or of the checks of one pass, beside their results."""

    operations: dict[str, str] = Field(default_factory=dict)
    """Their ids, by position: they stay the same where the run goes on under another name."""
    approvals: Table[Approval] = Field(default_factory=dict)
    """By id."""
    begun: tuple[str, ...] = ()
    """Ids of those that were begun and must not be begun again."""


class Exchange(State):
    """A model's turns and tool calls on the way to its answer."""

    steps: int = 0
    tool_calls: int = 0
    results: Table[Evidence] = {}
    """Of the tool calls of the last turn, by their position in it, until all are there."""
    exhausted: bool = False
    """True when tool calls or turns are used up: one last turn without tools is left."""
    raised: bool = False
    """True when a reply was cut: from then on the model gets a larger completion."""
    called: tuple[str, ...] = ()
    """The tools that were called, each once."""
    ledger: Ledger = Field(default_factory=Ledger)


class Conversation(GraderConversation, Exchange):
    """A grader's conversation over one draft, or over one finished run."""

    log: Log
    offered: tuple[str, ...] = ()
    """The tools of the last turn."""
    prompt_sha256: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The sha256 of what the grader of a finished run was given."""


class GradingPass(State):
    """One grading pass in flight."""

    draft: int
    checks: Table[CheckOutcome] = {}
    conversations: Table[Conversation] = {}
    """By call group and sample, `0/0` the first."""
    decisions: Table[Decision] = {}
    usage: Usage = Usage()
    ledger: Ledger = Field(default_factory=Ledger)
    """Of the checks."""

    @property
    def judged_by(self) -> str | None:
        """Who judged, the first of several; None where no grader was asked."""
        return next((each.judge for each in self.conversations.values() if each.judge), None)

    @property
    def prompt_sha256(self) -> str | None:
        """The sha256 of what the graders of a finished run were given, of all prompts in order; None where checks alone decided."""
        sent = [each.prompt_sha256 for _, each in sorted(self.conversations.items()) if each.prompt_sha256]
        return None if not sent else sent[0] if len(sent) == 1 else hashlib.sha256("".join(sent).encode()).hexdigest()

    @model_validator(mode="before")
    @classmethod
    def _from_one(cls, value: Any) -> Any:  # noqa: ANN401 - a checkpoint, perhaps of a version that had one conversation
        if isinstance(value, dict) and "conversation" in value:
            rest = {key: item for key, item in value.items() if key != "conversation"}
            return rest | {"conversations": {"0/0": value["conversation"]}}
        return value


class GradingRun(State):
    """One attempt at one rubric."""

    grading_run_id: str
    ordinal: int
    nonce: str
    max_iterations: int
    status: Status = "running"
    iteration: int = 0
    grading: GradingPass | None = None
    judge: ModelSpec | None = None
    """Who judges, where the thread names nobody: found once, so that a worker with other keys changes nothing."""
    pins: dict[str, str] = Field(default_factory=dict)
    """The sha256 of each tool, as the run first saw it."""
    finished: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where a finished run is judged: what comes after the draft is looked at too."""
