"""People's part: what waits for their word, and their verdicts beside the machine's."""

from typing import TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from workflows.calls import Calls
from workflows.raw import decoded
from workflows.thread_state import Invocation, Thread
from workflows.turns import settle

with workflow.unsafe.imports_passed_through():
    from gradeloop.errors import InvalidRequest
    from gradeloop.evaluation import Decision, Evaluation, Override
    from gradeloop.scoring import overridden
    from gradeloop.steering import ApproveRequest, DecideRequest, DenyRequest, OverrideRequest, parse


Asked = TypeVar("Asked", DecideRequest, OverrideRequest, ApproveRequest, DenyRequest)
Word = TypeVar("Word", ApproveRequest, DenyRequest)


class People:
    """Decisions and overrides of one thread."""

    def __init__(self, thread: Thread, calls: Calls) -> None:
        self._thread = thread
        self._calls = calls

    @staticmethod
    def ready(thread: Thread) -> bool:
        """True where a turn can begin: while a person is waited for, only the one that goes on."""
        return bool(thread.queue) and (thread.status != "waiting" or thread.queue[0].resumes)

    def refuse_decision(self, raw: RawValue) -> None:
        """Raise where nothing of that name waits; nothing of it is recorded then."""
        asked = _read(DecideRequest, raw, "the decision")
        run = self._thread.run
        place = (asked.grading_run_id, asked.iteration)
        if run is None or self._thread.status != "waiting" or place != (run.grading_run_id, run.iteration):
            raise _stale("that run does not wait for a person, or not at that iteration; ask the query `state` what waits")
        waiting = [each.id for each in self._thread.waiting_for]
        if asked.criterion not in waiting:
            raise _stale(f"the criterion {asked.criterion!r} does not wait; those that do are: {', '.join(waiting)}")

    def decide(self, raw: RawValue) -> None:
        """Take a decision; with the last one the run goes on."""
        asked, thread = _read(DecideRequest, raw, "the decision"), self._thread
        if thread.run is None or thread.run.grading is None:
            return
        gap = None if asked.passed else asked.gap
        thread.run.grading.decisions[asked.criterion] = Decision(passed=asked.passed, gap=gap, by=asked.by)
        thread.tell("decided", criterion=asked.criterion)
        if not thread.waiting_for:
            thread.queue.insert(0, Invocation(keys=[f"decided/{thread.seq}"], payload="", resumes=True))

    def refuse_word(self, model: type[Word], raw: RawValue) -> None:
        """Raise where no such tool call waits; nothing of it is recorded then."""
        asked, waiting = _read(model, raw, "the word on a call"), self._thread.pending
        if self._thread.status != "waiting" or asked.call not in waiting:
            told = f"those that do are: {', '.join(waiting)}" if self._thread.status == "waiting" and waiting else "none does"
            raise _stale(f"the call {asked.call!r} does not wait for a person; {told}")

    def approve(self, raw: RawValue) -> None:
        """Let a tool call go on."""
        asked = _read(ApproveRequest, raw, "the approval")
        self._answer(asked.call, by=asked.by)

    def deny(self, raw: RawValue) -> None:
        """Forbid a tool call."""
        asked = _read(DenyRequest, raw, "the denial")
        self._answer(asked.call, by=asked.by, why=asked.why)

    def _answer(self, call: str, *, by: str, why: str | None = None) -> None:
        """Note what a person said; with the last word the run goes on."""
        thread, asked = self._thread, self._thread.pending.get(call)
        if asked is None:
            return
        asked.approved, asked.by, asked.why = why is None, by, why or ""
        thread.tell("approved" if why is None else "denied", call=call, tool=asked.tool)
        if not thread.pending:
            thread.queue.insert(0, Invocation(keys=[f"decided/{thread.seq}"], payload="", resumes=True))

    def stop_waiting(self) -> None:
        """Interrupt a run that waits for a person."""
        thread = self._thread
        thread.status, thread.reason = "interrupted", "person"
        thread.tell("interrupted", reason="person")
        settle(thread)

    def refuse_override(self, raw: RawValue) -> None:
        """Raise where there is no such row; nothing of it is recorded then."""
        asked = _read(OverrideRequest, raw, "the override")
        at = self._find(asked)
        if at is None or not any(row.id == asked.criterion for row in self._thread.evaluations[at].criteria):
            raise _stale(
                f"there is no verdict on {asked.criterion!r} at that run and iteration; the query `evaluations` shows those there are"
            )
        if self._thread.rubric_of(self._thread.evaluations[at].rubric_sha256) is None:
            raise _stale("the rubric of that evaluation is not kept any more; override one by the rubric in force, or the one before it")

    def override(self, raw: RawValue) -> Evaluation:
        """Record a person's verdict; a run that has not ended, and is met by it, ends."""
        asked, thread = _read(OverrideRequest, raw, "the override"), self._thread
        at = self._find(asked)
        judged = None if at is None else thread.evaluations[at]
        rubric = thread.rubric_of(judged.rubric_sha256) if judged else None
        if at is None or judged is None or rubric is None:
            raise _stale("the evaluation is gone")
        when = workflow.now().isoformat(timespec="milliseconds")
        told = overridden(rubric, judged, asked.criterion, Override(passed=asked.passed, why=asked.why, by=asked.by, time=when))
        thread.evaluations[at] = told
        thread.tell("overridden", index=at, criterion=asked.criterion)
        if told.overridden_result == "satisfied":
            self._end(at)
        return told

    def _end(self, at: int) -> None:
        """End the run whose newest evaluation this is, where it has not ended: its draft stands."""
        thread, run = self._thread, self._thread.run
        newest = at == len(thread.evaluations) - 1
        if run is None or not newest or run.status != "running" or thread.evaluations[at].grading_run_id != run.grading_run_id:
            return
        run.status, run.grading, thread.drafting = "satisfied", None, None
        if thread.status == "running":
            self._calls.stop("rubric")
        elif thread.status in {"waiting", "interrupted"}:
            thread.status, thread.reason, thread.error = "idle", None, None
            thread.tell("run_ended", status="satisfied")
            settle(thread)

    def _find(self, asked: OverrideRequest) -> int | None:
        place = (asked.grading_run_id, asked.iteration)
        found = [at for at, each in enumerate(self._thread.evaluations) if (each.grading_run_id, each.iteration) == place]
        return found[-1] if found else None


def _read(model: type[Asked], raw: RawValue, what: str) -> Asked:
    try:
        return parse(model, decoded(raw, what))
    except InvalidRequest as error:
        raise ApplicationError(str(error), type="InvalidRequest", non_retryable=True) from None


def _stale(why: str) -> ApplicationError:
    return ApplicationError(why, type="StaleDecision", non_retryable=True)
