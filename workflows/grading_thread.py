"""The workflow `GradingThread`: one conversation, graded."""

import asyncio
from typing import Any

from pydantic import JsonValue
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from activities.state_cache import GradingSettings
from gradeloop.contract import thread as contracts
from gradeloop.contract.base import Page, page_of
from gradeloop.contract.evaluation import Evaluation, Event, InterruptReason
from gradeloop.contract.messages import Message
from gradeloop.contract.thread import ApproveRequest, DenyRequest, GivenPrompt, GradingThread, RunResult, ThreadState, parse_request
from gradeloop.errors import InvalidRequest
from workflows import observed, person_rules, thread_rules, thread_state
from workflows.activity_calls import ActivityCalls, Interrupted, WaitingForPerson
from workflows.grading_loop import DraftFailed, GradingLoop, Rolling
from workflows.notices import ThreadNotices
from workflows.raw_arguments import NO_VALUE, decode
from workflows.stop_rule import forget_stop, is_cancelled, must_end_turn, turns_dropped_by_stop
from workflows.thread_state import Invocation, Thread, TurnOutcome, dropped_result, fork_at, page_of_log, portable, result_of, waiting_for
from workflows.visibility import ThreadVisibility, given_prompt

FIRST_TURN_SECONDS = 10.0
"""The seconds for which a thread that was started without a turn waits for its first one."""

NOTHING_TO_DO = "messages is empty and no turn came; give the task as one message of role 'user'"


@workflow.defn(name=contracts.WORKFLOW)
class GradingThreadWorkflow(GradingThread):
    """A conversation, its rubric, and the grading runs over it."""

    UPGRADED = True
    """It lives for days, and so goes on with each build that becomes current; all others end on the build that began them."""

    @workflow.init
    def __init__(self, request: RawValue = NO_VALUE) -> None:
        self._refusal: InvalidRequest | None = None
        self._served = False  # a turn was served, in this run of the workflow or before
        self._rolling = False  # the thread is about to go on in a new run of the workflow: callers have to come again
        self._failure: ApplicationError | None = None  # why the thread fails: the worker refused it
        self._dropped: dict[str, RunResult] = {}  # results of queued turns that ended before they began, by their keys
        self._interruptions = 0  # turns that were interrupted, in this run of the workflow
        try:
            self._request = parse_request(decode(request, "the request"))
            self._thread = thread_rules.begin_thread(self._request)
            self._served = bool((self._request.checkpoint or {}).get("rolled"))
        except InvalidRequest as error:
            self._refusal = error
            return
        self._calls = ActivityCalls(self._thread)
        self._visibility = ThreadVisibility(self._thread, self._calls)
        self._loop = GradingLoop(self._thread, self._calls, self._visibility.publish)
        self._notices = ThreadNotices(self._thread, self._calls)

    @workflow.run
    async def run(self, request: RawValue = NO_VALUE) -> RunResult:  # type: ignore[override]  # noqa: ARG002 - taken in __init__
        """See `gradeloop.contract.thread.GradingThread.run`."""
        thread = self._require_thread()
        await self._calls.serve(self._serve(thread))
        if is_cancelled(thread):
            raise asyncio.CancelledError
        if self._rolling:
            await self._notices.finish()
            workflow.continue_as_new(self._rolled())
        if not thread.outcomes:
            raise ApplicationError(NOTHING_TO_DO, type="InvalidRequest", non_retryable=True)
        return result_of(thread, thread.outcomes[-1])

    # The run ends only when nothing is due and every handler has returned. Turns may be admitted until then,
    # also during the last wait, so the conditions are checked again behind it. If the run ended before,
    # Temporal would fail the updates that still wait, and their callers would lose the result.
    async def _serve(self, thread: Thread) -> None:
        """Serve turns until the thread ends, is cancelled, or goes on in a new run of the workflow, and all callers have their answers."""
        while not is_cancelled(thread):
            await self._serve_turns(thread)
            await workflow.wait_condition(lambda: workflow.all_handlers_finished() or is_cancelled(thread))
            busy = thread.status == "running" or thread.queue or thread.supplied is not None
            if not is_cancelled(thread) and (self._rolling or not busy):
                return
        self._end_cancelled(thread)
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _serve_turns(self, thread: Thread) -> None:
        """Serve turns until there is nothing left to do and nothing left to wait for."""
        while not self._rolling and not is_cancelled(thread):
            self._visibility.publish()
            if thread.status == "running":
                await self._serve_turn(thread)
            elif thread_rules.is_due(thread):
                self._proceed(thread)
            elif workflow.info().is_continue_as_new_suggested():
                self._rolling = True
            elif not await self._more_to_do(thread):
                return

    async def _more_to_do(self, thread: Thread) -> bool:
        """Wait for a turn or a rubric; False where the thread may end."""
        if thread.closing:
            if thread.status == "waiting":  # behind which nothing is served
                self._drop_queue()
            return False
        # An interrupted thread waits without a limit, since a person may resume it. It ends at once after a
        # failure, which a resumption would meet again, and where it is a case of a batch that has to pause: the
        # batch itself starts it anew.
        is_case = workflow.info().parent is not None  # which nobody resumes
        ends = thread.reason == "failure" or (thread.reason in {"outage", "budget"} and is_case)
        resumable = thread.status == "interrupted" and (not ends or thread.idle_timeout > 0)
        seconds = thread.idle_timeout if self._served else max(thread.idle_timeout, FIRST_TURN_SECONDS)
        timeout = None if thread.status == "waiting" or resumable else seconds
        if timeout == 0:
            return False

        def awaited() -> bool:
            return thread.status == "running" or thread_rules.is_due(thread) or thread.closing or is_cancelled(thread)

        try:
            await workflow.wait_condition(awaited, timeout=timeout)
        except TimeoutError:
            return False
        return True

    async def _serve_turn(self, thread: Thread) -> None:
        """Serve the turn in flight until it ends, is stopped, or rolls over."""
        self._served = True
        self._notices.withdraw()
        # A generator's failure interrupts the turn, so that it can be resumed. Only a first call that the worker
        # refuses fails the workflow. A person's stop outweighs a budget, an outage or a question that came with it:
        # whoever asked for it hears that the turn was interrupted.
        try:
            await self._loop.turn()
        except Interrupted as error:
            self._interrupted(thread, "person" if must_end_turn(thread) else error.reason, str(error) or None)
        except DraftFailed as error:
            thread_rules.interrupt_turn(thread, "failure", str(error))
        except WaitingForPerson:
            if must_end_turn(thread):
                self._interrupted(thread, "person")
            else:
                thread.wait_for_person()
                thread_rules.record_outcome(thread)
                self._notices.waiting()
        except Rolling:
            self._rolling = True
            return
        except ApplicationError as error:
            await self._fail(thread, error)
            raise
        else:
            thread.status = "idle"
            if thread.run is None or thread.run.status != "superseded":
                thread.record_event("run_ended", status=thread.run.status if thread.run else None)
            thread_rules.record_outcome(thread)
        self._interruptions += thread.status == "interrupted"
        await self._after_turn(thread)

    async def _after_turn(self, thread: Thread) -> None:
        observed.turn_ended(thread)
        forget_stop(thread)
        if thread.status == "interrupted" and thread_rules.is_due(thread):
            await workflow.wait_condition(lambda: True)  # its callers learn of it before it goes on

    def _interrupted(self, thread: Thread, reason: InterruptReason, error: str | None = None) -> None:
        """Interrupt the turn; turns that waited at that moment end with it, as all do without a budget."""
        thread_rules.interrupt_turn(thread, reason, error)
        if reason == "person":
            self._drop(turns_dropped_by_stop(thread), "person")
        elif reason == "budget":
            self._drop_queue("budget")
            self._notices.over_budget(error or "the budget is used up")

    def _end_cancelled(self, thread: Thread) -> None:
        """End a cancelled thread, as its checkpoint has it: a turn in flight is interrupted, one that waits for a person waits on."""
        if thread.status == "waiting":
            thread.record_event("interrupted", reason="person")
        elif thread.status == "running":
            thread_rules.interrupt_turn(thread, "person")
        self._drop_queue()

    async def _fail(self, thread: Thread, error: ApplicationError) -> None:
        """End a thread that the worker refused."""
        self._failure = error
        thread.status = "interrupted"
        observed.refused()
        thread_rules.record_outcome(thread)
        self._drop_queue()
        await workflow.wait_condition(workflow.all_handlers_finished)

    def _rolled(self) -> dict[str, Any]:
        """Return the request that goes on with this thread in a new run of the workflow."""
        request = self._request.model_dump(mode="json", exclude={"messages", "rubric", "vars", "checkpoint"}, exclude_none=True)
        return request | {"checkpoint": self.checkpoint() | {"rolled": True}}

    def _require_thread(self) -> Thread:
        """Return the thread; a request that was refused fails whatever asks for it."""
        if self._refusal is not None:
            raise ApplicationError(str(self._refusal), type=type(self._refusal).__name__, non_retryable=True)
        return self._thread

    async def _await_outcome(self, key: str, *, attached: bool = False) -> RunResult:
        """Wait for the turn of a key and return its result; where `attached`, one that waits for a person is waited for too.

        Raises:
            ApplicationError: `ThreadRolling`, or the thread's own failure.
        """
        thread = self._thread
        # An interrupted turn may go on, by another caller's `resume`, before the first caller has looked. Its
        # outcome is then unknown again, and the first caller would wait for the next end of a turn that it was
        # to hear was interrupted. So each caller counts the interruptions from when it began to wait, a stop in
        # progress among them. After one more, the last outcome is its answer, whatever runs by now.
        known = self._interruptions + (thread.status == "running" and must_end_turn(thread))

        def ended() -> TurnOutcome | None:
            again = self._interruptions <= known  # where another caller had it go on since, this one learns of the interruption
            outcome = thread_state.outcome_of(thread, key) if again else thread_state.last_outcome_of(thread, key)
            if outcome is None or not attached or outcome.status != "waiting" or thread.closing:
                return outcome
            left = is_cancelled(thread)  # nobody decides in this run of the workflow any more
            return outcome.model_copy(update={"status": "interrupted", "reason": "person"}) if left else None

        self._dropped.pop(key, None)
        await workflow.wait_condition(lambda: ended() is not None or key in self._dropped or self._rolling)
        if self._failure is not None:
            raise ApplicationError(self._failure.message, type=self._failure.type, non_retryable=True)
        if outcome := ended():
            return result_of(thread, outcome)
        if key in self._dropped:
            return self._dropped[key]
        raise ApplicationError(thread_rules.ROLLING, type="ThreadRolling")

    def _drop(self, turns: list[Invocation], reason: InterruptReason, error: str | None = None) -> None:
        """End queued turns as interrupted ones of which nothing was recorded."""
        self._dropped |= dict.fromkeys((key for turn in turns for key in turn.keys), dropped_result(self._thread, reason, error))

    def _drop_queue(self, reason: InterruptReason = "person") -> None:
        queued, self._thread.queue = self._thread.queue, []
        self._drop(queued, reason)

    def _proceed(self, thread: Thread) -> None:
        """Begin what is due; a turn whose rubric can no longer be filled ends before it begins."""
        due = thread.queue[:1]
        try:
            thread_rules.proceed(thread)
        except InvalidRequest as error:
            thread.record_event("rubric_rejected", why=str(error)[:1000])
            self._drop(due, "failure", str(error))

    # The server may deliver several messages in one task, and their handlers run before the main coroutine. So
    # a handler first begins whatever the messages before it made due. Otherwise two messages would mean one
    # thing in one task and another thing in two, and the server decides which it is.
    def _catch_up(self) -> None:
        """Begin what the messages before this one in the same task ask for, so that it counts as if it had come by itself."""
        thread = self._require_thread()
        while not self._rolling and not is_cancelled(thread) and thread_rules.is_due(thread):
            self._proceed(thread)

    @workflow.update
    async def invoke(self, request: RawValue = NO_VALUE) -> RunResult:  # type: ignore[override]  # raw, so that a malformed one is refused
        """See `gradeloop.contract.thread.GradingThread.invoke`."""
        self._catch_up()
        turn = thread_rules.parse_turn(self._thread, request, self._update_id())
        key = turn.keys[0]
        attached = thread_state.attaches(self._thread, key)
        thread_rules.enqueue(self._thread, turn)
        keyless = self._thread.owed.pop(key, None) is not None or key == self._update_id()
        try:
            return await self._await_outcome(key, attached=attached)
        except ApplicationError as error:
            if keyless and error.type == "ThreadRolling":
                owed = {other: until for other, until in self._thread.owed.items() if until > workflow.time()}
                self._thread.owed = owed | {key: workflow.time() + thread_rules.OWED_SECONDS}
            raise

    @invoke.validator
    def _may_invoke(self, request: RawValue = NO_VALUE) -> None:
        thread_rules.refuse_turn(self._require_thread(), request, self._update_id(), rolling=self._rolling)

    @workflow.update
    async def resume(self, request: RawValue = NO_VALUE) -> RunResult:  # type: ignore[override]  # raw, so that a malformed one is refused
        """See `gradeloop.contract.thread.GradingThread.resume`."""
        turn = thread_rules.parse_resumption(self._thread, request, self._update_id())
        thread_rules.resume(self._thread, turn)
        return await self._await_outcome(turn.keys[0])

    @resume.validator
    def _may_resume(self, request: RawValue = NO_VALUE) -> None:
        thread_rules.refuse_resumption(self._require_thread(), request, self._update_id())

    @staticmethod
    def _update_id() -> str:
        info = workflow.current_update_info()
        return info.id if info else ""

    @workflow.update
    async def decide(self, request: RawValue = NO_VALUE) -> None:  # type: ignore[override]  # raw, so that a malformed one is refused
        """See `gradeloop.contract.thread.GradingThread.decide`."""
        person_rules.decide(self._thread, request)

    @decide.validator
    def _may_decide(self, request: RawValue = NO_VALUE) -> None:
        person_rules.refuse_decision(self._require_thread(), request)

    @workflow.update
    async def approve(self, request: RawValue = NO_VALUE) -> None:  # type: ignore[override]  # raw, so that a malformed one is refused
        """See `gradeloop.contract.thread.GradingThread.approve`."""
        person_rules.approve(self._thread, request)

    @approve.validator
    def _may_approve(self, request: RawValue = NO_VALUE) -> None:
        person_rules.refuse_approval(self._require_thread(), ApproveRequest, request)

    @workflow.update
    async def deny(self, request: RawValue = NO_VALUE) -> None:  # type: ignore[override]  # raw, so that a malformed one is refused
        """See `gradeloop.contract.thread.GradingThread.deny`."""
        person_rules.deny(self._thread, request)

    @deny.validator
    def _may_deny(self, request: RawValue = NO_VALUE) -> None:
        person_rules.refuse_approval(self._require_thread(), DenyRequest, request)

    @workflow.update
    async def override(self, request: RawValue = NO_VALUE) -> Evaluation:  # type: ignore[override]  # raw, so that a malformed one is refused
        """See `gradeloop.contract.thread.GradingThread.override`."""
        self._catch_up()
        index = person_rules.override(self._thread, request)
        if thread_rules.end_overridden_run(self._thread, index):
            self._calls.stop("rubric")
        self._visibility.publish()
        return self._thread.evaluations[index]

    @override.validator
    def _may_override(self, request: RawValue = NO_VALUE) -> None:
        person_rules.refuse_override(self._require_thread(), request)

    @workflow.signal
    async def interrupt(self) -> None:
        """See `gradeloop.contract.thread.GradingThread.interrupt`."""
        if self._refusal is None:
            self._stop()

    def _stop(self) -> None:
        self._catch_up()
        if self._thread.status == "running":
            self._calls.stop("person")
        elif self._thread.status == "waiting":
            thread_rules.interrupt_turn(self._thread, "person")
            self._drop_queue()
            self._visibility.publish()

    @workflow.update(name="interrupt")
    async def stop_turn(self) -> contracts.Interruption:  # type: ignore[override]  # of a subclass, as mypy sees updates
        """See `gradeloop.contract.thread.GradingThread.stop_turn`."""
        # The stop is over when the turn no longer has to end, or nothing runs any more. Whether it interrupted
        # the turn is read from the count: the turn may have ended by itself first, and a person must not be
        # told that it was interrupted then.
        thread, known = self._thread, self._interruptions
        self._catch_up()
        waited = thread.status == "waiting"
        self._stop()
        await workflow.wait_condition(lambda: not must_end_turn(thread) or thread.status != "running" or self._rolling)
        if self._rolling:
            raise ApplicationError(thread_rules.ROLLING, type="ThreadRolling")
        run, interrupted = thread.run, waited or self._interruptions > known
        return contracts.Interruption(
            interrupted=interrupted,
            grading_run_id=run.grading_run_id if run else None,
            iteration=run.iteration if run else None,
            phase=thread.phase if interrupted else None,
        )

    @stop_turn.validator
    def _may_stop_turn(self) -> None:
        self._require_thread()

    @workflow.signal
    async def close(self) -> None:
        """See `gradeloop.contract.thread.GradingThread.close`."""
        if self._refusal is None:
            self._thread.closing = True

    @workflow.signal
    async def supply_rubric(self, rubric: RawValue = NO_VALUE) -> None:  # type: ignore[override]  # raw, so that a malformed one is recorded
        """See `gradeloop.contract.thread.GradingThread.supply_rubric`."""
        if self._refusal is None:
            self._supply(rubric)

    def _supply(self, rubric: RawValue) -> None:
        self._catch_up()
        if thread_rules.supply_rubric(self._thread, rubric):
            self._calls.stop("rubric")
        elif self._thread.status == "interrupted":
            self._visibility.publish()

    @workflow.update(name="supply_rubric")
    async def replace_rubric(self, rubric: RawValue = NO_VALUE) -> contracts.SuppliedRubric:  # type: ignore[override]  # raw, so that a malformed one is refused
        """See `gradeloop.contract.thread.GradingThread.replace_rubric`."""
        thread = self._thread
        # The caller is told how things stand once the rubric has taken effect. So whatever it makes due is begun
        # before the answer is put together, as the next message would do.
        before = thread.open_run_id
        self._supply(rubric)
        self._catch_up()
        self._visibility.publish()
        waits, now = thread.supplied is not None, thread.open_run_id
        stands = thread.supplied or thread.rubric
        given = None if stands is None or stands.cleared else stands
        return contracts.SuppliedRubric(
            rubric=given,
            rubric_sha256=given.sha256() if given else None,
            in_force=not waits,
            grading_run_id=None if waits else now,
            superseded=before if waits or before != now else None,
        )

    @replace_rubric.validator
    def _may_replace_rubric(self, rubric: RawValue = NO_VALUE) -> None:
        thread_rules.refuse_rubric(self._require_thread(), rubric, rolling=self._rolling)

    @workflow.query
    def state(self) -> ThreadState:
        """See `gradeloop.contract.thread.GradingThread.state`."""
        thread = self._require_thread()
        run, rubric = thread.run, thread.rubric_in_force
        return ThreadState(
            status=thread.status,
            grading_run_id=run.grading_run_id if run else None,
            phase=thread.phase if thread.status == "running" else None,
            iteration=run.iteration if run else None,
            rubric=rubric,
            rubric_sha256=rubric.sha256() if rubric else None,
            usage=thread.usage,
            budget=thread.budget,
            reason=thread.reason,
            error=thread.error,
            queued=len(thread.queue),
            waiting_for=waiting_for(thread),
            forked_from=thread.forked_from,
        )

    @workflow.query
    def result(self, key: str | None = None) -> RunResult | None:
        """See `gradeloop.contract.thread.GradingThread.result`."""
        thread = self._require_thread()
        ended = [outcome for outcome in thread.outcomes if key in {None, outcome.key}]
        return result_of(thread, ended[-1]) if ended else None

    @workflow.query
    def messages(self, after: int = 0, limit: int = 1000) -> Page[Message]:
        """See `gradeloop.contract.thread.GradingThread.messages`."""
        return Page[Message](**page_of(self._require_thread().log.slice(0), after, limit))

    @workflow.query
    def evaluations(self, after: int = 0, limit: int = 1000) -> Page[Evaluation]:
        """See `gradeloop.contract.thread.GradingThread.evaluations`."""
        return Page[Evaluation](**page_of(self._require_thread().evaluations, after, limit))

    @workflow.query
    def events(self, after: int = 0, limit: int = 1000) -> Page[Event]:
        """See `gradeloop.contract.thread.GradingThread.events`."""
        kept = self._require_thread().events
        return Page[Event](**page_of(kept, after, limit, first=kept[0].seq - 1 if kept else 0))

    @workflow.query
    def prompt(self, evaluation: int, group: int = 0) -> GivenPrompt | None:
        """See `gradeloop.contract.thread.GradingThread.prompt`."""
        return given_prompt(self._require_thread(), evaluation, group)

    @workflow.query
    def checkpoint(self, evaluation: int | None = None) -> dict[str, JsonValue]:
        """See `gradeloop.contract.thread.GradingThread.checkpoint`."""
        thread, fork = self._require_thread(), dict[str, JsonValue]()
        if evaluation is not None:
            thread, said = fork_at(thread, evaluation)
            fork = {"fork": {"feedback": said.model_dump(mode="json") if said else None}}
        return {"temporal_run_id": workflow.info().run_id, **fork, "thread": portable(thread).model_dump(mode="json")}

    @workflow.query
    def stopped(self) -> dict[str, int]:
        """Return the `seq` of the newest event by which a turn may have got an answer that is not its last; it is part of update ids."""
        kept = self._require_thread().events
        # The thread keeps only its newest events, and the last stop may be among those that are gone. The newest
        # number that is gone then stands for it, since the stop cannot have come later.
        dropped = kept[0].seq - 1 if kept else 0
        kinds = {"interrupted", "waiting", "rubric_rejected"}
        stops = (event.seq for event in reversed(kept) if event.type in kinds or event.status == "interrupted")
        return {"seq": next(stops, dropped)}

    @workflow.query
    def brief(self) -> GradingSettings | None:
        """Return the settings that every call of the thread shares, for a worker that lacks them."""
        return self._calls.settings().brief

    @workflow.query
    def log(self, key: str, after: int, limit: int) -> Page[Message]:
        """Return messages of the thread or of a grader's conversation, for a worker that lacks them."""
        return page_of_log(self._require_thread(), key, after, limit)
