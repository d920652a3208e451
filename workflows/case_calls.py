"""Calls about the cases of a shard: so many at once, behind those of threads, and what failed for good said as that."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import Priority
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception
from temporalio.workflow import ActivityConfig

from workflows.calls import kind_of, told
from workflows.options import STORE_CALL, model_call
from workflows.paid_calls import spent_of

with workflow.unsafe.imports_passed_through():
    from gradeloop.batches.case_call import CaseCall, CaseTold, Failed
    from gradeloop.errors import InvalidRequest
    from gradeloop.request import Priority as Asked
    from gradeloop.usage import Usage

Result = TypeVar("Result")

SHARD_LOST = "ShardLost"
"""The type of the failure of a batch one of whose shards is lost again and again."""

CHILDREN = 16
"""Workflows of cases that a shard has open at once: what they return is in its history."""


class CaseFailed(Exception):
    """A call failed for good: neither a pass nor a fail."""

    def __init__(self, why: str, usage: Usage) -> None:
        super().__init__(why)
        self.usage = usage


def priority_of(asked: Asked) -> Priority:
    """Return a priority in Temporal's own terms."""
    return Priority(priority_key=asked.level, fairness_key=asked.tenant, fairness_weight=asked.weight if asked.tenant else None)


async def call_store(activity: str, argument: object, result: type[Result], priority: Priority, summary: str) -> Result:
    """Call an activity that asks no model.

    Raises:
        ApplicationError: It was refused, or the store cannot be had.
    """
    try:
        return await _started(activity, argument, result, STORE_CALL, priority, summary)
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        raise ApplicationError(_words(error), type=kind_of(error) or "StoreUnavailable", non_retryable=True) from None


class CaseCalls:
    """The calls of one shard."""

    def __init__(self, lanes: int, retries: int, priority: Priority) -> None:
        self._slots = asyncio.Semaphore(lanes)
        self._options = model_call(retries)
        self.priority = priority
        self.children = asyncio.Semaphore(CHILDREN)
        self.in_flight = 0

    async def paid(self, activity: str, call: CaseCall, summary: str) -> CaseTold:
        """Make a model call; one whose reply was cut is made once more, with a larger completion.

        Raises:
            CaseFailed: It failed for good.
            ApplicationError: `InvalidRequest`: the batch as a whole is refused.
        """
        while True:
            try:
                async with self._slots:
                    with self.under_way():
                        return await _started(activity, call, CaseTold, self._options, self.priority, summary)
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                if kind_of(error) == InvalidRequest.__name__:
                    raise ApplicationError(_words(error), type=InvalidRequest.__name__, non_retryable=True) from None
                spent = spent_of(error)
                if call.raised or not spent.raisable:
                    raise CaseFailed(told(error), call.carried + spent.usage) from None
                call = call.model_copy(update={"raised": True, "carried": spent.usage})

    async def fail(self, failed: Failed, summary: str) -> CaseTold:
        """Have a failure written down."""
        return await call_store("fail_case", failed, CaseTold, self.priority, summary)

    async def store(self, activity: str, argument: object, result: type[Result], summary: str) -> Result:
        """Call an activity that asks no model.

        Raises:
            ApplicationError: It was refused, or the store cannot be had.
        """
        return await call_store(activity, argument, result, self.priority, summary)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count what is done inside as in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


async def _started(
    activity: str, argument: object, result: type[Result], options: ActivityConfig, priority: Priority, summary: str
) -> Result:
    found: Any = await workflow.execute_activity(activity, argument, result_type=result, summary=summary, priority=priority, **options)  # type: ignore[call-overload]  # no overload takes a config
    return found  # type: ignore[no-any-return]  # of the type that was asked for


def _words(error: ActivityError) -> str:
    return told(error).removeprefix(f"{InvalidRequest.__name__}: ")
