"""What every call about a case works with, and what each does before and after it pays."""

from dataclasses import dataclass

from temporalio.exceptions import ApplicationError

from activities.admit import Desk
from activities.batch_views import CaseViews
from activities.heartbeat import Pulse
from activities.paid_call import paid
from activities.providers.model import ModelReply, ModelRequest
from gradeloop.batches.case_call import CaseCall, CaseTold
from gradeloop.batches.case_result import CaseResult
from gradeloop.batches.ledger import HeldCase, Ledger
from gradeloop.batches.ledger_work import Standing
from gradeloop.batches.unit import Unit
from gradeloop.errors import InvalidRequest
from gradeloop.usage import Usage


@dataclass(frozen=True)
class CaseDesk:
    """A worker's desk, its store, and its copies of cases."""

    desk: Desk
    ledger: Ledger
    views: CaseViews

    async def paid(self, call: CaseCall, standing: Standing, request: ModelRequest, pulse: Pulse) -> ModelReply:
        """Make a model call for a case.

        Raises:
            ApplicationError: Its type is the kind of failure; `InvalidRequest` where the batch has a budget and the call no price.
        """
        budget = standing.request.budget
        if budget is not None and budget.max_cost_usd is not None and self.desk.providers.cost(request.spec, Usage(calls=1)) is None:
            cure = "add its price to the file that GRADELOOP_PRICES names, or set budget.max_tokens instead"
            words = f"budget.max_cost_usd: the price of {request.spec.id!r} is not known on this worker; {cure}"
            raise ApplicationError(words, type=InvalidRequest.__name__, non_retryable=True)
        try:
            return await paid(self.desk, request, pulse)
        except ApplicationError as error:
            if error.type == "rate_limited":
                await self.ledger.throttled(call.batch_id, request.spec.id)
            raise

    async def settle(
        self, call: CaseCall, held: HeldCase, result: CaseResult, spent: Usage, *, key: str | None = None, unit: Unit | None = None
    ) -> CaseTold:
        """Write down what a case came to.

        Args:
            call: The call that ended it.
            held: The case.
            result: What it came to, with the usage of what came after its draft.
            spent: What of it is not counted in the batch yet.
            key: Of the verdict of its only question.
            unit: That question.
        """
        whole = result.model_copy(update={"attempt": call.attempt, "usage": held.spent + result.usage})
        status = await self.ledger.settle(call.batch_id, call.position, whole, spent, key=key, unit=unit)
        self.views.drop(call.batch_id, call.position)
        return told(status)


def told(status: str) -> CaseTold:
    """Return that a case has ended."""
    return CaseTold.model_validate({"status": status})


def is_over(held: HeldCase, call: CaseCall) -> bool:
    """Tell whether a case has ended, or another attempt is under way."""
    return held.status != "queued" or held.attempt != call.attempt
