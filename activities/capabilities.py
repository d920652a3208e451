"""Capabilities of a worker: it refuses what it cannot serve, and tells each thread what it offers."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.calls.paid_call import ModelCalls
from activities.errors import invalid
from activities.providers import Providers
from activities.state_cache import GradingSettings, GradingSettingsRef, ThreadLoader
from activities.tools.base import Tool
from activities.tools.registry import ToolRegistry
from gradeloop.contract.base import OmitEmpty, Tolerant
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import GraderSpec, ModelSpec, remote_tools, worker_tools
from gradeloop.contract.notice import Webhooks
from gradeloop.contract.provider import ModelFault
from gradeloop.errors import InvalidRequest
from gradeloop.extensions import parts
from gradeloop.grading.checks import needs_logprobs
from gradeloop.grading.grants import named_in
from gradeloop.grading.scoring import call_groups
from gradeloop.settings.catalog import settings_notes


class ToolFacts(Tolerant):
    """The facts of a tool that the thread must know before it is called."""

    sha256: str
    """The first digits of the sha256 of the tool's name, description and parameters."""
    needs_approval: OmitEmpty[bool] = False
    once: OmitEmpty[bool] = False
    """True where it must not run twice for the same call."""


class WorkerCapabilities(Tolerant):
    """The offer of the worker and its namespace; the thread learns it from history, never from its environment."""

    search_attributes: bool
    """Whether the namespace has our search attributes."""
    external_storage: bool
    """Whether large payloads are kept outside of Temporal."""
    grader: OmitEmpty[ModelSpec | None] = None
    """The model that judges where the thread names none; None where every call group names its judge."""
    tools: str = ""
    """The sha256 of the grader's tools, with the versions that they declare."""
    cacheable: OmitEmpty[tuple[str, ...]] = ()
    """Those of the grader's tools on which a verdict may rest that is reused."""
    facts: OmitEmpty[dict[str, ToolFacts]] = Field(default_factory=dict)
    """The facts of every tool of this worker that the thread names."""
    evidence_queue: OmitEmpty[str | None] = None
    """The task queue of the tools, if they have one of their own."""
    webhooks: OmitEmpty[Webhooks] = Field(default_factory=dict)
    """The events of which each webhook of this worker is told; only the worker has their addresses and secrets."""


@dataclass(frozen=True)
class WorkerServices:
    """The services that every activity of a worker works with."""

    calls: ModelCalls
    tools: ToolRegistry
    threads: ThreadLoader
    capabilities: WorkerCapabilities
    """The offer to every thread."""

    @property
    def providers(self) -> Providers:
        """The models that the worker can call."""
        return self.calls.providers

    def refuse_unservable(self, settings: GradingSettings) -> None:
        """Raise ApplicationError of type `InvalidRequest` for what this worker cannot serve, of generator or grader, before any call."""
        # All that only the worker can know is checked before the first call, in one place. Otherwise a thread would
        # pay for drafts and only then hear that nobody can grade them.
        grader_tools = settings.grader.tools if settings.grader else ()
        try:
            if settings.generator.model is not None:
                self.refuse_uncallable(settings.generator.model)
                self.tools.refuse_unknown(settings.generator.tools, "generator.tools")
                if settings.rubric and needs_logprobs(settings.rubric):
                    self.providers.refuse_without_logprobs(settings.generator.model)
            for judge in self.judges(settings):
                if isinstance(judge, ModelSpec):
                    self.refuse_uncallable(judge)
                elif judge.function:
                    self.tools.refuse_non_grader(judge.function, "grader")
            self.tools.refuse_unknown(grader_tools, "grader.tools", judges=True)
            self._refuse_unpriced(settings)
            remote = remote_tools(grader_tools)
            for criterion, check in settings.rubric.checks() if settings.rubric else ():
                if check.tool not in remote:
                    self.tools.refuse_non_check(check.tool, check.arguments, f"rubric: the check of {criterion.id}")
        except (InvalidRequest, ModelFault) as error:
            raise invalid(str(error)) from None

    def refuse_uncallable(self, spec: ModelSpec) -> None:
        """Refuse a model that this worker cannot call, and one with such a fallback: an outage is too late to hear of a missing key.

        Raises:
            ModelFault: Of kind `config`.
        """
        for at, model in enumerate(spec.chain):
            try:
                self.providers.check(model)
            except ModelFault as fault:
                if not at:
                    raise
                why = f"fallback {at} of {spec.id!r}: {fault.message}, or leave it out of the fallbacks"
                raise ModelFault(fault.kind, why, model=spec.id) from None

    def judges(self, settings: GradingSettings) -> tuple[GraderSpec, ...]:
        """Return every judge of the settings' rubric once; raise ModelFault where none is named and this worker has no key for any."""
        named = [judge for group in call_groups(settings.rubric) for judge in group.judges] if settings.rubric else []
        remote = settings.grader.remote if settings.grader else None
        judges = [judge or remote or self.grader_of(settings) for judge in named]
        return tuple({judge.model_dump_json(): judge for judge in judges}.values())

    def grader_of(self, settings: GradingSettings) -> ModelSpec:
        """Return the model that judges: the thread's, or the default. Raise ModelFault where this worker has no key for any."""
        named = settings.grader.model if settings.grader else None
        return named or self.providers.default_grader()

    def capabilities_for(self, settings: GradingSettings) -> WorkerCapabilities:
        """Return what the worker offers to a thread; where the thread leaves its grader open, it says who that is."""
        tools = settings.grader.tools if settings.grader else ()
        called = sorted({named.value for named in named_in(settings) if named.kind == "tool"})
        offered: dict[str, object] = {
            "tools": self.tools.sha256(tools),
            "cacheable": self.tools.cacheable(worker_tools(tools)),
            "facts": {tool.spec.name: _facts(tool) for tool in self.tools.named(called)},
        }
        named = settings.grader is not None and (settings.grader.model or settings.grader.remote)
        if settings.rubric and not named and any(None in group.judges for group in call_groups(settings.rubric)):
            offered["grader"] = self.grader_of(settings)
        return self.capabilities.model_copy(update=offered)

    def _refuse_unpriced(self, settings: GradingSettings) -> None:
        models = (settings.generator.model, *self.judges(settings)) if settings.priced else ()
        for model in models:
            for asked in model.chain if isinstance(model, ModelSpec) else ():
                self.refuse_without_price(asked)

    def refuse_without_price(self, model: ModelSpec) -> None:
        """Raise InvalidRequest where there is a budget in money and the model has no price on this worker."""
        if self.providers.cost(model, Usage(calls=1)) is None:
            cure = "add its price to the file that GRADELOOP_PRICES names, or set budget.max_tokens instead"
            raise InvalidRequest(f"budget.max_cost_usd: the price of {model.id!r} is not known on this worker; {cure}")


def model_notes(model: ModelSpec | None) -> tuple[str, ...]:
    """Return what an evaluation says about a model that is called."""
    return settings_notes(model, datetime.now(UTC).date()) if model else ()


def _facts(tool: Tool) -> ToolFacts:
    return ToolFacts(sha256=tool.sha256, needs_approval=tool.needs_approval, once=not tool.repeatable)


@dataclass(frozen=True)
class Admission:
    """Kind of request that a worker can refuse before it is sent."""

    model: type[BaseModel]
    """Model of the request."""
    refuse: Callable[[WorkerServices, Any], Awaitable[None]]
    """Raises the `ApplicationError` with which it would refuse it."""


async def _refuse_settings(services: WorkerServices, settings: GradingSettings) -> None:
    services.refuse_unservable(settings)


async def refusals(services: WorkerServices, asked: str | bytes) -> list[str | None]:
    """Return for each of some threads' settings or other requests, as JSON, why a worker would refuse it; None where it would not."""
    admissions = [Admission(GradingSettings, _refuse_settings), *parts(lambda extension: extension.admits)]
    any_of_them = reduce(or_, (admission.model for admission in admissions))
    return [await _refusal(services, admissions, one) for one in TypeAdapter(list[any_of_them]).validate_json(asked)]  # type: ignore[valid-type]


async def _refusal(services: WorkerServices, admissions: Sequence[Admission], asked: BaseModel) -> str | None:
    try:
        await next(admission for admission in admissions if isinstance(asked, admission.model)).refuse(services, asked)
    except ApplicationError as error:
        return str(error.message)
    return None


class CapabilityActivities:
    """The activity `admit`, for threads whose generator is remote."""

    def __init__(self, services: WorkerServices) -> None:
        self._services = services

    @activity.defn(name="admit")
    async def admit(self, reference: GradingSettingsRef) -> WorkerCapabilities:
        """Return what this worker offers; raise ApplicationError of type `InvalidRequest` for what it cannot serve."""
        settings = await self._services.threads.settings(reference)
        self._services.refuse_unservable(settings)
        return self._services.capabilities_for(settings)
