"""What this worker offers, and what it refuses to serve."""

from dataclasses import dataclass

from pydantic import Field
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.errors import ModelFault
from activities.providers import Providers
from activities.providers.scripted import Recording
from activities.state_cache import GradingSettings, GradingSettingsRef, ThreadLoader
from activities.tools.base import Tool
from activities.tools.registry import ToolRegistry
from gradeloop.contract.base import Recorded
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import GraderSpec, ModelSpec, RemoteGrader, remote_tools, worker_tools
from gradeloop.contract.thread import Grader
from gradeloop.errors import InvalidRequest
from gradeloop.grading.scoring import call_groups


class ToolFacts(Recorded):
    """What the thread must know of a tool before it is called."""

    sha256: str
    """The first digits, of what a model is told of it."""
    needs_approval: bool = Field(default=False, exclude_if=lambda value: not value)
    once: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where it must not run twice for the same call."""


class WorkerCapabilities(Recorded):
    """What the worker and its namespace offer; the thread learns it from history, never from its environment."""

    search_attributes: bool
    """Whether the namespace has our search attributes."""
    external_storage: bool
    """Whether large payloads are kept outside of Temporal."""
    grader: ModelSpec | None = Field(default=None, exclude_if=lambda value: value is None)
    """Who judges where the thread names nobody; told only where that is asked."""
    tools: str = ""
    """The sha256 of the grader's tools, with the versions that they declare."""
    cacheable: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Those of the grader's tools on which a verdict may rest that is reused."""
    facts: dict[str, ToolFacts] = Field(default={}, exclude_if=lambda value: not value)
    """Of every tool of this worker's that the thread names."""
    evidence_queue: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Where tools are served, if that is a queue of their own."""


@dataclass(frozen=True)
class WorkerServices:
    """What every activity of a worker works with."""

    providers: Providers
    toolbox: ToolRegistry
    threads: ThreadLoader
    offer: WorkerCapabilities
    recording: Recording | None = None
    """Where every exchange with a model is written down, if anywhere."""

    def refuse_unservable(self, brief: GradingSettings) -> None:
        """Refuse what this worker cannot serve, for generator and grader both, before anybody is called.

        Raises:
            ApplicationError: Of type `InvalidRequest`.
        """
        try:
            if brief.generator.model is not None:
                self.providers.check(brief.generator.model)
                self.toolbox.refuse_unknown(brief.generator.tools, "generator.tools")
            for judge in self.judges(brief):
                if isinstance(judge, ModelSpec):
                    self.providers.check(judge)
                elif judge.function:
                    self.toolbox.refuse_non_grader(judge.function, "grader")
            self.toolbox.refuse_unknown(brief.grader.tools if brief.grader else (), "grader.tools", judges=True)
            self._refuse_unpriced(brief)
            abroad = remote_tools(brief.grader.tools) if brief.grader else {}
            for criterion in brief.rubric.checked if brief.rubric else ():
                if criterion.check and criterion.check.tool not in abroad:
                    where = f"rubric: the check of {criterion.id}"
                    self.toolbox.refuse_non_check(criterion.check.tool, criterion.check.arguments, where)
        except (InvalidRequest, ModelFault) as error:
            raise ApplicationError(str(error), type="InvalidRequest", non_retryable=True) from None

    def judges(self, brief: GradingSettings) -> tuple[GraderSpec, ...]:
        """Return whoever judges by the brief's rubric, each once.

        Raises:
            ModelFault: None is named and this worker has no key for any.
        """
        named = [judge for group in call_groups(brief.rubric) for judge in group.judges] if brief.rubric else []
        elsewhere = brief.grader.remote if brief.grader else None
        told = [judge or elsewhere or self.grader_of(brief) for judge in named]
        return tuple({judge.model_dump_json(): judge for judge in told}.values())

    def grader_of(self, brief: GradingSettings) -> ModelSpec:
        """Return the model that judges: the thread's own, or this worker's default.

        Raises:
            ModelFault: None is named and this worker has no key for any.
        """
        named = brief.grader.model if brief.grader else None
        return named or self.providers.default_grader()

    def offer_for(self, brief: GradingSettings) -> WorkerCapabilities:
        """Return the offer; where the thread leaves its grader open, it says who that is."""
        tools = brief.grader.tools if brief.grader else ()
        told: dict[str, object] = {"tools": self.toolbox.sha256(tools), "cacheable": self.toolbox.cacheable(worker_tools(tools))}
        told["facts"] = {tool.spec.name: _facts(tool) for tool in self.toolbox.named(sorted(_tools_of(brief)))}
        somebody = brief.grader is not None and (brief.grader.model or brief.grader.remote)
        if brief.rubric and not somebody and any(None in group.judges for group in call_groups(brief.rubric)):
            told["grader"] = self.grader_of(brief)
        return self.offer.model_copy(update=told)

    def _refuse_unpriced(self, brief: GradingSettings) -> None:
        """Refuse a budget in money where what a model costs is not known."""
        models = (brief.generator.model, *self.judges(brief)) if brief.priced else ()
        for model in models:
            if isinstance(model, ModelSpec) and self.providers.cost(model, Usage(calls=1)) is None:
                cure = "add its price to the file that GRADELOOP_PRICES names, or set budget.max_tokens instead"
                raise InvalidRequest(f"budget.max_cost_usd: the price of {model.id!r} is not known on this worker; {cure}")


def _tools_of(brief: GradingSettings) -> set[str]:
    """Return the names of all tools of this worker's that the thread may call, and perhaps of some elsewhere."""
    rubric, grader = brief.rubric, brief.grader or Grader()
    checks = [criterion.check.tool for criterion in rubric.checked if criterion.check] if rubric else []
    judges = [grader.remote, *(judge for group in call_groups(rubric) for judge in group.judges)] if rubric else []
    functions = [judge.function for judge in judges if isinstance(judge, RemoteGrader) and judge.function]
    return {*worker_tools(brief.generator.tools), *worker_tools(grader.tools), *checks, *functions}


def _facts(tool: Tool) -> ToolFacts:
    return ToolFacts(sha256=tool.sha256, needs_approval=tool.needs_approval, once=not tool.repeatable)


class CapabilityActivities:
    """The activity `admit`, for threads whose generator is not ours."""

    def __init__(self, desk: WorkerServices) -> None:
        self._desk = desk

    @activity.defn(name="admit")
    async def admit(self, reference: GradingSettingsRef) -> WorkerCapabilities:
        """Refuse what this worker cannot serve, and tell what it offers."""
        brief = await self._desk.threads.brief(reference)
        self._desk.refuse_unservable(brief)
        return self._desk.offer_for(brief)
