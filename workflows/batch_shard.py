"""A shard: at most 250 cases of a batch, so many at a time; what they come to is in the store, and a shard returns counts alone."""

import asyncio
from collections import deque

from temporalio import workflow

from workflows.case_calls import CaseCalls, call_store, priority_of
from workflows.case_run import run_case
from workflows.run_ahead import RunAhead
from workflows.turns import NONCE_BITS

with workflow.unsafe.imports_passed_through():
    import hashlib

    from gradeloop.batches.batch_request import BatchRequest
    from gradeloop.batches.case_call import CaseCall, Due, ShardOpened, Stretch
    from gradeloop.request import Priority
    from gradeloop.strict import Recorded

WORKFLOW = "BatchShard"

HISTORY_BYTES = 4 * 1024 * 1024
HISTORY_EVENTS = 10_000
"""Above either, a shard begins no further case; its batch opens another one for the rest."""


class ShardRequest(Recorded):
    """Which cases, and how many at a time."""

    batch_id: str
    first: int
    last: int
    lanes: int
    retries: int
    cache: bool
    priority: Priority

    @classmethod
    def of(cls, batch: BatchRequest, stretch: tuple[int, int], lanes: int) -> "ShardRequest":
        """Return the request for a stretch of a batch."""
        first, last = stretch
        own = {"retries": batch.retries, "cache": batch.cache, "priority": batch.priority}
        return cls(batch_id=batch.batch_id, first=first, last=last, lanes=lanes, **own)


class ShardEnded(Recorded):
    """What a shard returns."""

    passed: int
    failed: int
    errors: int
    left: int
    """Cases that have not ended."""
    held: str | None = None
    """Why no further case was begun, where that is a limit of the batch."""


@workflow.defn(name=WORKFLOW)
class BatchShard:
    """One shard."""

    @workflow.init
    def __init__(self, request: ShardRequest) -> None:
        self._request = request
        self._priority = priority_of(request.priority)
        self._calls = CaseCalls(request.lanes, request.retries, self._priority)
        self._nonce = f"{workflow.random().getrandbits(NONCE_BITS):032x}"
        self._ended: dict[int, str] = {}
        self._held: str | None = None

    @workflow.run
    async def run(self, request: ShardRequest) -> ShardEnded:
        """Run the shard's cases until all have ended, or no further one may be begun."""
        self._guard = asyncio.create_task(RunAhead().guard())
        stretch = Stretch(batch_id=request.batch_id, first=request.first, last=request.last)
        opened = await call_store("open_shard", stretch, ShardOpened, self._priority, "open shard")
        due = deque(opened.due)
        lanes = [asyncio.create_task(self._lane(due)) for _ in range(min(request.lanes, len(due)))]
        try:
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()
        statuses = list(self._ended.values())
        return ShardEnded(
            passed=statuses.count("passed"),
            failed=statuses.count("failed"),
            errors=statuses.count("error"),
            left=len(opened.due) - len(statuses),
            held=self._held,
        )

    async def _lane(self, due: deque[Due]) -> None:
        """Run one case after the other."""
        while due and self._held is None and not self._is_long():
            case = due.popleft()
            found = await run_case(case, self._call(case), self._calls)
            if found.held:
                self.hold(found.held)
            if found.status in {"passed", "failed", "error"}:
                self._ended[case.position] = found.status

    def _call(self, due: Due) -> CaseCall:
        """Return the case's place, with a code of its own that only who knows the shard's can know."""
        nonce = hashlib.sha256(f"{self._nonce}/{due.position}".encode()).hexdigest()[:32]
        return CaseCall(batch_id=self._request.batch_id, position=due.position, attempt=due.attempt, nonce=nonce, cache=self._request.cache)

    @staticmethod
    def _is_long() -> bool:
        info = workflow.info()
        return info.get_current_history_size() > HISTORY_BYTES or info.get_current_history_length() > HISTORY_EVENTS

    @workflow.signal
    def hold(self, why: str) -> None:
        """Begin no further case."""
        self._held = self._held or why

    @workflow.query
    def in_flight(self) -> int:
        """Return how many calls are under way, and workflows of cases."""
        return self._calls.in_flight
