"""What only the worker can know of a thread: whether it has the models, keys and tools, and what its namespace offers."""

from dataclasses import dataclass

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.failures import ModelFault
from activities.providers import Providers
from activities.thread_view import Brief, BriefRef, ThreadViews
from activities.tools.toolbox import Toolbox
from gradeloop.errors import InvalidRequest
from gradeloop.strict import Recorded


class Offer(Recorded):
    """What the worker and its namespace offer; the thread learns it from history, never from its environment."""

    search_attributes: bool
    """Whether the namespace has our search attributes."""
    external_storage: bool
    """Whether large payloads are kept outside of Temporal."""


@dataclass(frozen=True)
class Desk:
    """What every activity of a worker works with."""

    providers: Providers
    toolbox: Toolbox
    threads: ThreadViews
    offer: Offer

    def refuse_unservable(self, brief: Brief) -> None:
        """Refuse what this worker cannot serve, for generator and grader both, before anybody is called.

        Raises:
            ApplicationError: Of type `InvalidRequest`.
        """
        try:
            if brief.generator.model is not None:
                self.providers.check(brief.generator.model)
                self.toolbox.refuse_unknown(brief.generator.tools, "generator.tools")
            if brief.grader and brief.rubric and brief.rubric.judged:
                self.providers.check(brief.grader.model)
                self.toolbox.refuse_unknown(brief.grader.tools, "grader.tools")
            for criterion in brief.rubric.checked if brief.rubric else ():
                if criterion.check:
                    self.toolbox.refuse_non_check(criterion.check.tool, f"rubric: the check of {criterion.id}")
        except (InvalidRequest, ModelFault) as error:
            raise ApplicationError(str(error), type="InvalidRequest", non_retryable=True) from None


class Admit:
    """The activity `admit`, for threads whose generator is not ours."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @activity.defn(name="admit")
    async def admit(self, reference: BriefRef) -> Offer:
        """Refuse what this worker cannot serve, and tell what it offers."""
        self._desk.refuse_unservable(await self._desk.threads.brief(reference))
        return self._desk.offer
