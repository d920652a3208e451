"""The updates by which people decide and override."""

from temporalio import workflow
from temporalio.common import RawValue

from workflows.people import People
from workflows.raw import NO_VALUE
from workflows.thread_queries import ThreadQueries

with workflow.unsafe.imports_passed_through():
    from gradeloop.evaluation import Evaluation
    from gradeloop.steering import ApproveRequest, DenyRequest


class ThreadDecisions(ThreadQueries):
    """Takes people's words."""

    _people: People

    @workflow.update
    async def decide(self, request: RawValue = NO_VALUE) -> None:  # type: ignore[override]  # raw, read by the admission
        """See `gradeloop.contracts.GradingThread.decide`."""
        self._people.decide(request)

    @decide.validator
    def _may_decide(self, request: RawValue = NO_VALUE) -> None:
        self._held()
        self._people.refuse_decision(request)

    @workflow.update
    async def approve(self, request: RawValue = NO_VALUE) -> None:  # type: ignore[override]  # raw, read by the admission
        """See `gradeloop.contracts.GradingThread.approve`."""
        self._people.approve(request)

    @approve.validator
    def _may_approve(self, request: RawValue = NO_VALUE) -> None:
        self._held()
        self._people.refuse_word(ApproveRequest, request)

    @workflow.update
    async def deny(self, request: RawValue = NO_VALUE) -> None:  # type: ignore[override]  # raw, read by the admission
        """See `gradeloop.contracts.GradingThread.deny`."""
        self._people.deny(request)

    @deny.validator
    def _may_deny(self, request: RawValue = NO_VALUE) -> None:
        self._held()
        self._people.refuse_word(DenyRequest, request)

    @workflow.update
    async def override(self, request: RawValue = NO_VALUE) -> Evaluation:  # type: ignore[override]  # raw, read by the admission
        """See `gradeloop.contracts.GradingThread.override`."""
        return self._people.override(request)

    @override.validator
    def _may_override(self, request: RawValue = NO_VALUE) -> None:
        self._held()
        self._people.refuse_override(request)
