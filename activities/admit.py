"""What only the worker can know of a thread: whether it has the models, keys and tools, and what its namespace offers."""

from dataclasses import dataclass

from pydantic import Field
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.failures import ModelFault
from activities.providers import Providers
from activities.providers.recording import Recording
from activities.thread_view import Brief, BriefRef, ThreadViews
from activities.tools.toolbox import Toolbox
from gradeloop.errors import InvalidRequest
from gradeloop.modelspec import ModelSpec
from gradeloop.strict import Recorded
from gradeloop.usage import Usage


class Offer(Recorded):
    """What the worker and its namespace offer; the thread learns it from history, never from its environment."""

    search_attributes: bool
    """Whether the namespace has our search attributes."""
    external_storage: bool
    """Whether large payloads are kept outside of Temporal."""
    grader: ModelSpec | None = Field(default=None, exclude_if=lambda value: value is None)
    """Who judges where the thread names nobody; told only where that is asked."""


@dataclass(frozen=True)
class Desk:
    """What every activity of a worker works with."""

    providers: Providers
    toolbox: Toolbox
    threads: ThreadViews
    offer: Offer
    recording: Recording | None = None
    """Where every exchange with a model is written down, if anywhere."""

    def refuse_unservable(self, brief: Brief) -> None:
        """Refuse what this worker cannot serve, for generator and grader both, before anybody is called.

        Raises:
            ApplicationError: Of type `InvalidRequest`.
        """
        try:
            if brief.generator.model is not None:
                self.providers.check(brief.generator.model)
                self.toolbox.refuse_unknown(brief.generator.tools, "generator.tools")
            if brief.rubric and brief.rubric.judged:
                self.providers.check(self.grader_of(brief))
                self.toolbox.refuse_unknown(brief.grader.tools if brief.grader else (), "grader.tools")
            self._refuse_unpriced(brief)
            for criterion in brief.rubric.checked if brief.rubric else ():
                if criterion.check:
                    self.toolbox.refuse_non_check(criterion.check.tool, f"rubric: the check of {criterion.id}")
        except (InvalidRequest, ModelFault) as error:
            raise ApplicationError(str(error), type="InvalidRequest", non_retryable=True) from None

    def grader_of(self, brief: Brief) -> ModelSpec:
        """Return the model that judges: the thread's own, or this worker's default.

        Raises:
            ModelFault: None is named and this worker has no key for any.
        """
        named = brief.grader.model if brief.grader else None
        return named or self.providers.default_grader()

    def offer_for(self, brief: Brief) -> Offer:
        """Return the offer; where the thread leaves its grader open, it says who that is."""
        if not (brief.rubric and brief.rubric.judged) or (brief.grader and brief.grader.model):
            return self.offer
        return self.offer.model_copy(update={"grader": self.grader_of(brief)})

    def _refuse_unpriced(self, brief: Brief) -> None:
        """Refuse a budget in money where what a model costs is not known."""
        judged = brief.rubric is not None and brief.rubric.judged
        models = (brief.generator.model, self.grader_of(brief) if judged else None)
        for model in models if brief.priced else ():
            if model is not None and self.providers.cost(model, Usage(calls=1)) is None:
                cure = "add its price to the file that GRADELOOP_PRICES names, or set budget.max_tokens instead"
                raise InvalidRequest(f"budget.max_cost_usd: the price of {model.id!r} is not known on this worker; {cure}")


class Admit:
    """The activity `admit`, for threads whose generator is not ours."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @activity.defn(name="admit")
    async def admit(self, reference: BriefRef) -> Offer:
        """Refuse what this worker cannot serve, and tell what it offers."""
        brief = await self._desk.threads.brief(reference)
        self._desk.refuse_unservable(brief)
        return self._desk.offer_for(brief)
