"""The wire contract: what a service in any language sends and gets back, as plain JSON. Told in `docs/contract.md`."""

from typing import Literal

from pydantic import JsonValue
from temporalio import workflow

from gradeloop.budget import Budget
from gradeloop.evaluation import Evaluation, InterruptReason, Status
from gradeloop.event import Event
from gradeloop.page import Page
from gradeloop.request import ThreadRequest
from gradeloop.rubric import Rubric
from gradeloop.steering import ApproveRequest, DecideRequest, DenyRequest, InvokeRequest, OverrideRequest, ResumeRequest
from gradeloop.strict import Strict
from gradeloop.transcript import Message
from gradeloop.usage import Usage
from gradeloop.verdict import VerdictResult
from gradeloop.waiting_for import WaitingFor

TASK_QUEUE = "gradeloop"
WORKFLOW = "GradingThread"
RESULT_MESSAGES_BYTES = 128 * 1024
"""Above this, and in a thread that is nearly full, a result leaves `messages` out; the query pages them."""

SEARCH_ATTRIBUTES = ("GradeloopStatus", "GradeloopRunId", "GradeloopRubric")
"""Keyword attributes that the worker registers and the thread writes."""


class RunResult(Strict):
    """What a turn of a thread came to."""

    thread_id: str
    grading_run_id: str | None
    status: Status | None
    """None where no rubric was set: nothing was graded."""
    iterations: int
    output: str | None
    """The best draft: gate held, then score, then required criteria passed, then the latest."""
    best_iteration: int | None
    last_output: str | None
    """The last draft; None where it is the best one and over 128 KiB."""
    score: float | None
    evaluations: tuple[Evaluation, ...]
    messages: tuple[Message, ...] | None
    """This turn's messages; None above 128 KiB (page them with the query `messages`)."""
    messages_truncated: bool
    usage: Usage
    error: str | None
    reason: InterruptReason | None = None
    """Of the status `interrupted`; None also where the workflow itself was cancelled or lost."""
    waiting_for: WaitingFor | None = None
    """Of the status `waiting`."""
    overridden_result: VerdictResult | None = None
    """What the last evaluation comes to with what people overrode; None where nobody did."""


class GivenPrompt(Strict):
    """What a grader was given, as it can be shown."""

    prompt_version: str
    rubric_sha256: str
    criteria: tuple[str, ...]
    """Ids of the call group."""
    groups: int
    """How many call groups the rubric has."""
    system: str
    messages: tuple[Message, ...]


class ThreadState(Strict):
    """The answer of the query `state`."""

    status: Literal["idle", "running", "waiting", "interrupted"]
    grading_run_id: str | None
    phase: Literal["generating", "grading"] | None
    iteration: int | None
    rubric: Rubric | None
    rubric_sha256: str | None
    usage: Usage
    budget: Budget | None = None
    reason: InterruptReason | None = None
    """Of the status `interrupted`."""
    queued: int
    waiting_for: WaitingFor | None


@workflow.defn(name=WORKFLOW)
class GradingThread:
    """The typed door to a thread: start it, read it, steer it. The worker's own class answers."""

    @workflow.run
    async def run(self, request: ThreadRequest) -> RunResult:
        """Answer the request's messages, graded by its rubric.

        Raises:
            ApplicationError: Of type `InvalidRequest` or `ThreadTooLarge`, before any paid call.
        """
        raise NotImplementedError

    @workflow.update
    async def invoke(self, request: InvokeRequest) -> RunResult:
        """Answer one turn's messages and return its result; queued while another turn is in flight, 8 at most.

        Raises:
            ApplicationError: `InvalidRequest` (also for a key that was used for another turn), `ThreadTooLarge`, `ThreadClosing`,
                `Backpressure`, before anything is recorded; `ThreadRolling` where the thread goes on in a new Temporal run: send it
                again with another update id.
        """
        raise NotImplementedError

    @workflow.signal
    async def supply_rubric(self, rubric: Rubric) -> None:
        """Take a new rubric: what is drafted or was drafted last is judged by it in a new grading run."""
        raise NotImplementedError

    @workflow.signal
    async def close(self) -> None:
        """Refuse new turns, serve the queued ones, and complete."""
        raise NotImplementedError

    @workflow.signal
    async def interrupt(self) -> None:
        """Stop the calls in flight; the run can be resumed, and no iteration is consumed."""
        raise NotImplementedError

    @workflow.update
    async def resume(self, request: ResumeRequest | None = None) -> RunResult:
        """Go on with the interrupted run and return its result; `NothingToResume` where there is none.

        A run that its budget stopped needs a larger one: `InvalidRequest` without.
        """
        raise NotImplementedError

    @workflow.update
    async def decide(self, request: DecideRequest) -> None:
        """Take a person's word on a criterion that waits for it; with the last of them the run goes on.

        Raises:
            ApplicationError: `StaleDecision` where nothing of that name waits; `InvalidRequest`.
        """
        raise NotImplementedError

    @workflow.update
    async def approve(self, request: ApproveRequest) -> None:
        """Let a tool call go on that waits for it; with the last of them the run goes on.

        Raises:
            ApplicationError: `StaleDecision` where no such call waits; `InvalidRequest`.
        """
        raise NotImplementedError

    @workflow.update
    async def deny(self, request: DenyRequest) -> None:
        """Have a tool call that waits not be made; whoever wanted it is told by whom and why.

        Raises:
            ApplicationError: `StaleDecision` where no such call waits; `InvalidRequest`.
        """
        raise NotImplementedError

    @workflow.update
    async def override(self, request: OverrideRequest) -> Evaluation:
        """Record a person's verdict beside the machine's and return the evaluation with it.

        A run that has not ended is decided anew; one that has keeps its status.

        Raises:
            ApplicationError: `StaleDecision` where there is no such row; `InvalidRequest`.
        """
        raise NotImplementedError

    @workflow.query
    def state(self) -> ThreadState:
        """Return where the thread stands."""
        raise NotImplementedError

    @workflow.query
    def result(self, key: str | None = None) -> RunResult | None:
        """Return what the turn of a key came to, the last turn by default; None where it has not ended or is not remembered."""
        raise NotImplementedError

    @workflow.query
    def messages(self, after: int = 0, limit: int = 1000) -> Page[Message]:
        """Return the thread's messages from index `after`."""
        raise NotImplementedError

    @workflow.query
    def evaluations(self, after: int = 0, limit: int = 1000) -> Page[Evaluation]:
        """Return the thread's evaluations from index `after`."""
        raise NotImplementedError

    @workflow.query
    def events(self, after: int = 0, limit: int = 1000) -> Page[Event]:
        """Return the events with a `seq` above `after`."""
        raise NotImplementedError

    @workflow.query
    def prompt(self, evaluation: int, group: int = 0) -> GivenPrompt | None:
        """Return what the grader of an evaluation, by its index, was given; None where its rubric is not kept any more.

        The random code of the fence, and the tags of an answer, are masked.
        """
        raise NotImplementedError

    @workflow.query
    def checkpoint(self) -> dict[str, JsonValue]:
        """Return all that a new start needs; answers on a closed thread too."""
        raise NotImplementedError
