"""The workflows of batches: `GradingBatch`, its shards, their cases, and the upload of cases."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Literal, TypeVar

from temporalio import workflow
from temporalio.common import Priority, RawValue
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, FailureError, WorkflowAlreadyStartedError
from temporalio.workflow import ActivityConfig, ChildWorkflowHandle

from activities.calls.retries import OUTAGE, TENANT_BUDGET
from gradeloop.batches.answer import answer_of
from gradeloop.batches.contract import (
    MONITOR_PREFIX,
    NO_OUTPUT,
    UPLOAD_WORKFLOW,
    BatchClosing,
    BatchProgress,
    BatchRequest,
    BatchSummary,
    CaseAnswer,
    CaseCall,
    CaseRange,
    ChildEnded,
    ChildRequest,
    DueCase,
    FailedCall,
    GradingBatch,
    OpenedBatch,
    ShardOpened,
    StoreCases,
    count_uploaded,
    parse_batch,
)
from gradeloop.contract import thread as contract
from gradeloop.contract.base import OmitEmpty, Tolerant
from gradeloop.contract.messages import Usage
from gradeloop.contract.notice import TITLE_CHARACTERS, Notice, NoticeBatch, NoticeCall, NoticeKind, Webhooks, wanted_by
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import usage_of_failure
from gradeloop.text import one_line, shortened
from workflows.activity_calls import MODEL_CALL, STORE_CALL, Result, describe_error, failure_details, kind_of, temporal_priority
from workflows.notices import NoticesWorkflow
from workflows.raw_arguments import NO_VALUE, decode
from workflows.stop_rule import raise_when_cancelled
from workflows.thread_state import draw_nonce

Parsed = TypeVar("Parsed")
Told = TypeVar("Told", int, str)

SHARD_WORKFLOW = "BatchShard"

SHARD_LOST = "ShardLost"
"""The type of the failure of a batch one of whose shards is lost again and again."""

SHARE = 0.8
"""The largest share of the slots of all workers that a batch takes."""

RESIZED, FEW_VOTES = "follow the fleet", "ask few votes"
"""The patches since which a run divides the calls among its shards anew, and a shard follows the workers; and votes are asked in waves."""

LANES = 25
"""Calls in flight of one shard, from which on another shard is opened beside it."""

SHARDS = 4
"""The most shards that are open at once."""

EVENTS = 4_000
"""The length of a history above which the batch opens no further shard and goes on in a new run."""

LOST = 3
"""Number of times that a lost shard is opened again."""

HISTORY_BYTES = 4 * 1024 * 1024
HISTORY_EVENTS = 10_000
"""The size of a history above either of which a shard begins no further case; its batch opens another shard for the rest."""

CHILDREN = 16
"""Workflows of cases that a shard has open at once: what they return is in its history."""

TRIES = 15
"""Number of times that a case's workflow is started while one of an earlier attempt is about to end."""


@workflow.defn(name=contract.BATCH_WORKFLOW)
class GradingBatchWorkflow(GradingBatch):
    """A batch: opens shards over its cases until all have ended, or a limit pauses it."""

    UPGRADED = True
    """It lives for days, and so goes on with each build that becomes current."""

    @workflow.init
    def __init__(self, request: RawValue = NO_VALUE) -> None:  # noqa: ARG002 - the run's
        self._pause_reason: str | None = None
        self._open: dict[asyncio.Task[None], ChildWorkflowHandle[Any, ShardEnded] | None] = {}
        self._ended: list[ShardEnded] = []
        self._due: deque[tuple[int, int]] = deque()
        self._failures: dict[tuple[int, int], int] = {}
        self._opened = 0
        self._slots = self._shards = 0
        self._webhooks: Webhooks = {}
        self._in_turn = False

    @workflow.run
    async def run(self, request: RawValue = NO_VALUE) -> BatchSummary:  # type: ignore[override]  # as above
        """See `gradeloop.batches.contract.GradingBatch.run`."""
        batch = _parse(lambda: parse_batch(decode(request, "the request")))
        self._priority = temporal_priority(batch.priority)
        self._resizes = workflow.patched(RESIZED)
        opened = await call_store("open_batch", batch, OpenedBatch, self._priority, "open batch")
        self._due.extend(opened.stretches)
        self._webhooks, self._slots, self._in_turn = opened.webhooks, opened.slots, opened.in_turn
        # However the run ends, the store is told. Otherwise a batch that was cancelled, or refused in the middle,
        # would be shown as running for ever.
        try:
            await self._run_shards(batch)
        except asyncio.CancelledError:
            await self._close(batch, "it was cancelled", stopped=True)
            raise
        except ApplicationError as error:
            await self._close(batch, error.message, stopped=True)
            raise
        # What `again` names was asked for once. A new run that kept it would open cases again that have ended since.
        if self._due and self._pause_reason is None:
            workflow.continue_as_new(batch.model_copy(update={"again": None}))
        return await self._close(batch, self._pause_reason)

    # A history must not grow with the batch, so the batch knows only stretches, and a shard knows its cases.
    # Near the limit no further shard is opened: the open ones end, and a new run of the batch does the rest. A
    # stretch may be opened again at any time, after a loss or an early end. The store gives only the cases that
    # have not ended, so no case that has ended runs again.
    async def _run_shards(self, batch: BatchRequest) -> None:
        """Open shards until nothing is due, a limit is reached, or the history is long; return when none is open."""
        try:
            while self._open or (self._due and self._may_open()):
                if self._in_turn:  # what is opened again goes before those that follow it
                    self._due = deque(sorted(self._due))
                shards = 1 if self._in_turn else max(1, min(SHARDS, _lanes(batch.at_once, self._slots) // LANES))
                while self._due and len(self._open) < shards and self._may_open():
                    task = asyncio.create_task(self._run_shard(batch, self._due.popleft()))
                    self._open[task] = None
                if self._shards != len(self._open):
                    self._shards = len(self._open)
                    if self._resizes:
                        await self._tell(BatchShard.divide, self._shards)
                done, _ = await workflow.wait(list(self._open), return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del self._open[task]
                    task.result()
        finally:
            for task in self._open:
                task.cancel()

    def _may_open(self) -> bool:
        info = workflow.info()
        return self._pause_reason is None and info.get_current_history_length() < EVENTS and not info.is_continue_as_new_suggested()

    async def _run_shard(self, batch: BatchRequest, stretch: tuple[int, int]) -> None:
        """Run a shard to its end; what it leaves undone is due again."""
        self._opened += 1
        task, request = asyncio.current_task(), ShardRequest.of(batch, stretch, self._slots, self._shards)
        name = f"shard/{batch.batch_id}/{stretch[0]}-{stretch[1]}/{workflow.info().run_id[:8]}-{self._opened}"
        try:
            handle = await workflow.start_child_workflow(BatchShard.run, request, id=name, priority=self._priority)
            # A pause, or another number of shards, may come while this one is starting and cannot be signalled yet. So
            # both are looked at once more when it has started.
            if task in self._open:
                self._open[task] = handle
            if self._pause_reason:
                await _signal(handle, BatchShard.hold, self._pause_reason)
            if self._resizes and self._shards != request.shards:
                await _signal(handle, BatchShard.divide, self._shards)
            ended = await handle
        except ChildWorkflowError as error:
            raise_when_cancelled(error)
            refused = isinstance(error.cause, ApplicationError) and error.cause.type == InvalidRequest.__name__
            self._reopen(stretch, _without_kind(error), refused=refused)
            return
        self._ended.append(ended)
        self._slots = (self._resizes and ended.slots) or self._slots
        self._pause_reason = self._pause_reason or ended.held
        # A shard that leaves cases and has ended none makes no progress. It counts as lost, or the batch would open
        # it for ever.
        if ended.left and not (self._pause_reason or ended.passed or ended.failed or ended.errors or ended.ungraded or ended.unsure):
            self._reopen(stretch, f"of the cases {stretch[0]} to {stretch[1] - 1} none comes to an end")
        elif ended.left:
            self._due.append(stretch)

    def _reopen(self, stretch: tuple[int, int], why: str, *, refused: bool = False) -> None:
        """Have a shard that was lost, or in which no case ended, opened again; raise ApplicationError where it is refused, or fails."""
        self._failures[stretch] = self._failures.get(stretch, 0) + 1
        if refused or self._failures[stretch] > LOST:
            raise ApplicationError(why, type=InvalidRequest.__name__ if refused else SHARD_LOST, non_retryable=True) from None
        self._due.append(stretch)

    async def _close(self, batch: BatchRequest, why: str | None, *, stopped: bool = False) -> BatchSummary:
        closing = BatchClosing(batch_id=batch.batch_id, why=why, stopped=stopped)
        summary = await call_store("close_batch", closing, BatchSummary, self._priority, "close batch")
        await announce_batch(summary, self._webhooks)
        return summary

    @workflow.signal(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def pause(self) -> None:
        """See `gradeloop.batches.contract.GradingBatch.pause`."""
        self._pause_reason = self._pause_reason or "paused by a person"
        await self._tell(BatchShard.hold, self._pause_reason)

    async def _tell(self, signal: Callable[["BatchShard", Told], None], argument: Told) -> None:
        """Send a signal to each open shard."""
        for handle in list(self._open.values()):
            if handle is not None:
                await _signal(handle, signal, argument)

    @workflow.query
    def progress(self) -> BatchProgress:
        """See `gradeloop.batches.contract.GradingBatch.progress`."""
        return BatchProgress(
            held=self._pause_reason,
            shards=tuple(handle.id for handle in self._open.values() if handle is not None),
            passed=sum(shard.passed for shard in self._ended),
            failed=sum(shard.failed for shard in self._ended),
            errors=sum(shard.errors for shard in self._ended),
        )


def _lanes(at_once: int, slots: int, shards: int = 1) -> int:
    """Return the number of calls that each of a batch's shards makes at once on workers of so many slots."""
    return max(1, min(at_once, int(SHARE * slots)) // shards)


def _parse(read: Callable[[], Parsed]) -> Parsed:
    """Read a raw argument; a malformed one fails the workflow for good."""
    try:
        return read()
    except InvalidRequest as error:
        raise ApplicationError(str(error), type=InvalidRequest.__name__, non_retryable=True) from None


@workflow.defn(name=UPLOAD_WORKFLOW)
class StoreCasesWorkflow(StoreCases):
    """An upload of cases: writes them into the store of the worker."""

    @workflow.run
    async def run(self, request: RawValue = NO_VALUE) -> int:  # type: ignore[override]  # raw, so that a malformed one is refused
        """See `gradeloop.batches.contract.StoreCases.run`."""
        count = _parse(lambda: count_uploaded(decode(request, "the request")))
        return await call_store("store_cases", request, int, Priority.default, f"store {count} cases")


class ShardRequest(Tolerant):
    """The cases of a shard, and how it runs them."""

    batch_id: str
    first: int
    last: int
    lanes: int
    """The number of calls at once, until the shard knows of more or fewer slots."""
    at_once: OmitEmpty[int] = 0
    """The number that the whole batch may make at once; 0 from before the shard followed its workers."""
    shards: OmitEmpty[int] = 1
    """The number of shards that are open with it."""
    retries: int
    cache: bool
    decides: OmitEmpty[bool] = False
    """Whether the batch ends as soon as its answer is known."""
    priority: contract.Priority

    @classmethod
    def of(cls, batch: BatchRequest, stretch: tuple[int, int], slots: int, shards: int) -> "ShardRequest":
        """Return the request for a stretch of a batch."""
        first, last = stretch
        own = {"retries": batch.retries, "cache": batch.cache, "priority": batch.priority, "at_once": batch.at_once}
        own |= {"decides": batch.until_decided is not None}
        lanes = _lanes(batch.at_once, slots, shards)
        return cls(batch_id=batch.batch_id, first=first, last=last, lanes=lanes, shards=shards, **own)


class ShardEnded(Tolerant):
    """Result of a shard."""

    passed: int
    failed: int
    errors: int
    ungraded: int
    unsure: int
    left: int
    """The number of cases that have not ended."""
    slots: OmitEmpty[int | None] = None
    """The slots of all workers of the queue, as last heard of."""
    held: str | None = None
    """The limit of the batch for which no further case was begun; None where all were."""


@workflow.defn(name=SHARD_WORKFLOW)
class BatchShard:
    """A shard: runs a stretch of a batch's cases, some at a time."""

    @workflow.init
    def __init__(self, request: ShardRequest) -> None:
        self._request = request
        self._priority = temporal_priority(request.priority)
        self._calls = CaseCalls(request.lanes, self._priority)
        self._tasks: list[asyncio.Task[None]] = []
        self._lanes = 0
        self._slots: int | None = None
        self._shards = request.shards
        self._nonce = draw_nonce()
        self._ended: dict[int, str] = {}
        self._begun: set[int] = set()
        self._open: set[str] = set()
        """The ids of the cases that have not come to an end here."""
        self._parked = 0
        self._pause_reason: str | None = None

    @workflow.run
    async def run(self, request: ShardRequest) -> ShardEnded:
        """Run the shard's cases until all have ended, or no further one may be begun."""
        self._resizes = request.at_once > 0 and workflow.patched(RESIZED)
        stretch = CaseRange(batch_id=request.batch_id, first=request.first, last=request.last)
        opened = await call_store("open_shard", stretch, ShardOpened, self._priority, "open shard")
        due, self._open = deque(opened.due), {case.id for case in opened.due}
        self._resize(opened.slots)
        try:
            await self._run_lanes(due, min(self._calls.most, len(due)))
        finally:
            for task in self._tasks:
                task.cancel()
        statuses = list(self._ended.values())
        names = {"passed": "passed", "failed": "failed", "errors": "error", "ungraded": "ungraded", "unsure": "unsure"}
        ended = {name: statuses.count(status) for name, status in names.items()}
        left = len(opened.due) - len(statuses) - self._parked
        return ShardEnded.model_validate(ended | {"left": left, "held": self._pause_reason, "slots": self._slots})

    async def _run_lanes(self, due: deque[DueCase], lanes: int) -> None:
        self._lanes += lanes
        tasks = [asyncio.create_task(self._lane(due)) for _ in range(lanes)]
        self._tasks += tasks
        await asyncio.gather(*tasks)

    # The number of lanes follows the workers, and no call in flight is cancelled for that, since it is paid
    # for. Where there are too many lanes, one ends with its case. Where there are too few, one that has ended a
    # case opens the missing ones, and one more in its own place.
    async def _lane(self, due: deque[DueCase]) -> None:
        """Run one case after the other; where there are to be more lanes it makes way for them, and where fewer it ends."""
        more = 0
        while (case := self._next(due)) and more <= 0 and self._lanes <= self._calls.most and self._may_begin():
            due.remove(case)
            self._begun.add(case.position)
            answer = await run_case(case, self._call(case), self._calls)
            self._open.discard(case.id)
            self._begun.discard(case.position)
            if self._request.decides:
                await workflow.wait_condition(lambda: self._is_near(due))
            if answer.held:
                self.hold(answer.held)
            if answer.status in {"passed", "failed", "unsure", "error", "ungraded"}:
                self._ended[case.position] = answer.status
            self._parked += answer.parked
            self._resize(answer.slots)
            more = min(self._calls.most - self._lanes, len(due))
        self._lanes -= 1
        if more > 0:
            await self._run_lanes(due, more + 1)

    def _is_near(self, due: deque[DueCase]) -> bool:
        """Return whether the next case is near enough to the first that has not ended, which holds up an answer that may come early."""
        return not due or not self._begun or self._pause_reason is not None or due[0].position < min(self._begun) + self._calls.most

    def _next(self, due: deque[DueCase]) -> DueCase | None:
        """Return the first case that follows none that has not ended; None where those are under way, whose lanes look again."""
        return next((case for case in due if self._open.isdisjoint(case.plan.follows)), None)

    def _resize(self, slots: int | None) -> None:
        """Follow the workers that come and go."""
        self._slots = slots or self._slots
        if self._resizes and self._slots:
            self._calls.resize(_lanes(self._request.at_once, self._slots, self._shards))

    def _call(self, due: DueCase) -> CaseCall:
        """Return the argument of the case's calls, with a random code of its own that nobody can guess without the shard's."""
        nonce = hashlib.sha256(f"{self._nonce}/{due.position}".encode()).hexdigest()[:32]
        own = {"position": due.position, "attempt": due.attempt, "nonce": nonce}
        names = ("batch_id", "cache", "retries", "decides")
        shared = {name: getattr(self._request, name) for name in names}
        return CaseCall.model_validate(own | shared)

    def _may_begin(self) -> bool:
        info = workflow.info()
        is_long = info.get_current_history_size() > HISTORY_BYTES or info.get_current_history_length() > HISTORY_EVENTS
        return self._pause_reason is None and not is_long

    @workflow.signal
    def hold(self, why: str) -> None:
        """Begin no further case."""
        self._pause_reason = self._pause_reason or why

    @workflow.signal
    def divide(self, shards: int) -> None:
        """Make one of so many parts of the batch's calls, from the next end of a case on."""
        self._shards = shards

    @workflow.query
    def in_flight(self) -> int:
        """Return the number of calls and of workflows of cases that are in flight."""
        return self._calls.in_flight


async def _signal(shard: ChildWorkflowHandle[Any, ShardEnded], signal: Callable[[BatchShard, Told], None], argument: Told) -> None:
    with suppress(FailureError):  # it has ended meanwhile
        await shard.signal(signal, argument)


class CaseFailed(Exception):
    """A call failed for good: neither a pass nor a fail."""

    def __init__(self, why: str, usage: Usage) -> None:
        super().__init__(why)
        self.usage = usage


class CaseCalls(asyncio.Semaphore):
    """The calls of a shard: so many at a time, which may become more or fewer."""

    def __init__(self, most: int, priority: Priority) -> None:
        super().__init__(most)
        self.most = most
        self._excess = 0
        """Calls in flight beyond so many as may be."""
        self.priority = priority
        self.children = asyncio.Semaphore(CHILDREN)
        self.in_flight = 0

    # What is in use cannot be taken out of a semaphore. So the part that is too much is counted as excess, and
    # the next calls to end pay it off before another call may begin.
    def resize(self, most: int) -> None:
        """Allow another number of calls at a time; those in flight go on."""
        for _ in range(most - self.most):
            self.release()
        for _ in range(self.most - most):
            self._value, self._excess = max(0, self._value - 1), self._excess + (self._value == 0)
        self.most = most

    def release(self) -> None:
        """Let the next call begin, unless too many are in flight."""
        if self._excess:
            self._excess -= 1
        else:
            super().release()

    async def paid(self, activity: str, call: CaseCall, summary: str) -> CaseAnswer:
        """Make a model call; one whose reply was cut is made once more, with a larger completion.

        Returns:
            The answer; its `held` says who was away where the call was given up since its provider was, and the case has not ended.

        Raises:
            CaseFailed: It failed for good.
            ApplicationError: `InvalidRequest`: the batch as a whole is refused.
        """
        raised, spent = call.raised, call.carried
        while True:
            argument = call.model_copy(update={"raised": raised, "carried": spent})
            try:
                async with self:
                    with self.under_way():
                        return await _execute(activity, argument, CaseAnswer, MODEL_CALL, self.priority, summary)
            except ActivityError as error:
                raise_when_cancelled(error)
                details = failure_details(error)
                spent += details.usage
                if details.raisable and not raised:
                    raised = True
                    continue
                if kind_of(error) == InvalidRequest.__name__:
                    raise ApplicationError(_without_kind(error), type=InvalidRequest.__name__, non_retryable=True) from None
                if kind_of(error) in (TENANT_BUDGET, OUTAGE):  # what it cost is counted already
                    return CaseAnswer(held=describe_error(error))
                raise CaseFailed(describe_error(error), spent) from None

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count the block as a call in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


async def run_case(due: DueCase, call: CaseCall, calls: CaseCalls) -> CaseAnswer:
    """Run a case to its end; its status is absent where a limit of the batch, or a case that it is compared with, keeps it from ending.

    Raises:
        ApplicationError: The batch as a whole is refused, or the store is unavailable.
    """
    filled = await call_store("fill_case", call, CaseAnswer, calls.priority, f"fill {due.id}") if due.plan.follows else CaseAnswer()
    if filled.status or filled.held:
        return filled
    answer = await _judge_case(due, call, calls)
    while answer.compares or answer.again:
        try:
            answer = await calls.paid("compare_cases", call, f"compare {due.id}")
        except CaseFailed as error:
            return await _record_failure(call, "comparison", error, due.id, calls)
    return answer


async def _judge_case(due: DueCase, call: CaseCall, calls: CaseCalls) -> CaseAnswer:
    """Draft a case, and ask the questions about only this case."""
    plan, name = due.plan, due.id
    if plan.drafted:
        try:
            drafted = await calls.paid("draft_case", call, f"draft {name}")
        except CaseFailed as error:
            return await _record_failure(call, "draft", error, name, calls)
        if drafted.held or drafted.status or drafted.parked or drafted.compares:
            return drafted
    if plan.kind != "calls":
        return await _run_workflow(name, call, calls)
    # Questions are asked in waves. Where votes are asked only until they decide, the first wave is the fewest
    # that may do so. Each answer then names those that are due, found from all answers in the store. Otherwise
    # one wave asks everything.
    answers, asked = list[CaseAnswer](), set[int]()
    few = call.decides and plan.first and workflow.patched(FEW_VOTES)
    units = set(plan.first if few else range(max(plan.units, 1)))
    while units:
        asked |= units
        answers += await asyncio.gather(*(_ask_question(due, call.model_copy(update={"unit": at}), calls) for at in sorted(units)))
        units = {unit for answer in answers for unit in answer.due} - asked
    ended = next((answer for answer in answers if answer.status or answer.parked or answer.compares), None)
    return ended or next((answer for answer in answers if answer.held), CaseAnswer())


async def _ask_question(due: DueCase, call: CaseCall, calls: CaseCalls) -> CaseAnswer:
    """Ask one question until it has an answer, or the call fails for good."""
    several = f".{call.unit + 1}" if due.plan.units > 1 else ""
    while True:
        try:
            answer = await calls.paid("grade_case", call, f"grade {due.id}{several}")
        except CaseFailed as error:
            answer = await _record_failure(call, "unit", error, due.id, calls)
        if not answer.again:
            return answer


async def _record_failure(
    call: CaseCall, what: Literal["draft", "unit", "case", "outage", "comparison"], error: CaseFailed, name: str, calls: CaseCalls
) -> CaseAnswer:
    failed = FailedCall(call=call, what=what, error=str(error), usage=error.usage)
    return await call_store("fail_case", failed, CaseAnswer, calls.priority, f"error {name}")


async def _run_workflow(name: str, call: CaseCall, calls: CaseCalls) -> CaseAnswer:
    """Hand a case to a workflow of its own, and wait for its end."""
    async with calls.children:
        try:
            request = await call_store("case_workflow", call, ChildRequest, calls.priority, f"start {name}")
        except ApplicationError as error:
            if error.type != NO_OUTPUT:
                raise
            return await _record_failure(call, "case", CaseFailed(error.message, Usage()), name, calls)
        if request.known is not None or request.type is None:
            return request.known or CaseAnswer()
        # The workflow's id is made of batch and case, so a case never has two at once. A failure that says who was
        # away leaves the case for later, and any other one ends it.
        workflow_id = f"{call.batch_id}/{name}"
        try:
            with calls.under_way():
                handle = await _start_when_free(workflow_id, request.type, request.argument, f"case {name}", calls.priority)
                await handle
        except ChildWorkflowError as error:
            raise_when_cancelled(error)
            usage = usage_of_failure(error.cause.details) if isinstance(error.cause, ApplicationError) else Usage()
            away = _says(error, TENANT_BUDGET) or _says(error, OUTAGE)
            return await _record_failure(call, "outage" if away else "case", CaseFailed(describe_error(error), usage), name, calls)
        ended = ChildEnded(call=call, type=request.type, workflow_id=workflow_id, run_id=handle.first_execution_run_id or "")
        return await call_store("settle_case", ended, CaseAnswer, calls.priority, f"settle {name}")


def _says(error: ChildWorkflowError, kind: str) -> bool:
    """Return whether a judgement failed by a call's error of that type."""
    return isinstance(error.cause, ApplicationError) and error.cause.message.startswith(f"{kind}: ")


async def _start_when_free(
    workflow_id: str, kind: str, argument: dict[str, Any], summary: str, priority: Priority
) -> ChildWorkflowHandle[Any, Any]:
    """Start the case's workflow, once that of an interrupted attempt has ended."""
    for _ in range(TRIES):
        try:
            return await workflow.start_child_workflow(kind, argument, id=workflow_id, priority=priority, static_summary=summary)
        except WorkflowAlreadyStartedError:
            await workflow.sleep(timedelta(seconds=2))
    message = f"the workflow {workflow_id!r} runs already, and is none of this batch's"
    raise ApplicationError(message, type=SHARD_LOST, non_retryable=True)


async def call_store(activity: str, argument: object, result: type[Result], priority: Priority, summary: str) -> Result:
    """Call an activity that reads or writes the store; raise ApplicationError where it was refused, or the store is unavailable."""
    try:
        return await _execute(activity, argument, result, STORE_CALL, priority, summary)
    except ActivityError as error:
        raise_when_cancelled(error)
        raise ApplicationError(_without_kind(error), type=kind_of(error) or "StoreUnavailable", non_retryable=True) from None


async def _execute(
    activity: str, argument: object, result: type[Result], options: ActivityConfig, priority: Priority, summary: str
) -> Result:
    value: Any = await workflow.execute_activity(activity, argument, result_type=result, summary=summary, priority=priority, **options)  # type: ignore[call-overload]  # no overload takes a config
    return value  # type: ignore[no-any-return]  # of the type that was asked for


def _without_kind(error: ActivityError | ChildWorkflowError) -> str:
    return describe_error(error).removeprefix(f"{InvalidRequest.__name__}: ")


async def announce_batch(summary: BatchSummary, webhooks: Webhooks) -> None:
    """Start the delivery of the notice that a batch's run has ended, and go on without waiting for it."""
    kind: NoticeKind = "batch.over_budget" if is_over_budget(summary) else "batch.ended"
    names = wanted_by(webhooks, kind)
    if not names or (kind == "batch.ended" and summary.batch_id.startswith(MONITOR_PREFIX)):  # a monitor says itself what is worth saying
        return
    run_id = workflow.info().run_id
    notice = Notice(
        id=f"{summary.batch_id}/{run_id}",
        type=kind,
        time=workflow.now().isoformat(timespec="seconds"),
        title=shortened(one_line(summary.name or summary.batch_id), TITLE_CHARACTERS),
        answer=answer_of(summary).text,
        batch_id=summary.batch_id,
        counts={name: getattr(summary, name) for name in ("total", "passed", "failed", "unsure", "errors", "ungraded", "waiting", "open")},
    )
    await workflow.start_child_workflow(
        NoticesWorkflow.run,
        NoticeBatch(calls=tuple(NoticeCall(webhook=name, notice=notice) for name in names)),
        id=f"notices/{summary.batch_id}/{run_id[:8]}",
        parent_close_policy=workflow.ParentClosePolicy.ABANDON,
    )


def is_over_budget(summary: BatchSummary) -> bool:
    """Return whether a batch is paused since its budget is used up."""
    return summary.status == "paused" and summary.budget is not None and summary.budget.refusal(summary.usage) is not None
