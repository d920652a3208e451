"""Facts for operators in Temporal: a workflow's tenant; a thread's details, search attributes, and a grader's prompt for an audit."""

import json
from contextlib import suppress
from typing import Any

from temporalio import worker, workflow
from temporalio.common import RawValue, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from gradeloop.contract.base import refuse_other_than_numbers
from gradeloop.contract.evaluation import CheckOutcome, Evaluation
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.thread import SEARCH_ATTRIBUTES, GivenPrompt, tenant_named, tenant_value
from gradeloop.grading.answer_form import FULL, model_key
from gradeloop.grading.prompts import PROMPT_VERSION, JudgedDraft, build_grader_prompt
from gradeloop.grading.scoring import call_groups
from gradeloop.text import one_line
from workflows.activity_calls import ActivityCalls
from workflows.thread_state import Thread

DETAILS_CHARACTERS = 8_000
"""The longest details; the Temporal UI takes 20,000 bytes."""

ROWS = 20
"""The number of evaluations in the details, the newest ones."""

_KEYS = tuple(SearchAttributeKey.for_keyword(name) for name in SEARCH_ATTRIBUTES)
*_OF_RUN, _TENANT, _FORK = _KEYS

TENANT_PATCH = "tenant attribute"
"""The patch of workflows that name their tenant as they begin."""


# Workers with and without the attributes replay each other's histories, and those of older releases. So in a replay the history decides,
# and the worker only where a workflow begins: one that writes nothing does not even ask for the patch.
class TenantAttribute(worker.Interceptor):
    """Names the tenant of every workflow in a search attribute where the namespace has it; children inherit it."""

    def __init__(self, *, registered: bool) -> None:
        self._registered = registered

    def workflow_interceptor_class(self, _: worker.WorkflowInterceptorClassInput) -> type[worker.WorkflowInboundInterceptor]:
        """Return what names the tenant of a workflow."""
        return type("NamesTenant", (_NamesTenant,), {"registered": self._registered})


class _NamesTenant(worker.WorkflowInboundInterceptor):
    registered: bool

    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_HandsTenantOn(outbound))

    async def execute_workflow(self, input: worker.ExecuteWorkflowInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        info = workflow.info()
        tenant = tenant_value(next(map(_tenant_of, input.args), None) or info.priority.fairness_key)
        is_due = tenant and info.typed_search_attributes.get(_TENANT) != tenant and (self.registered or workflow.unsafe.is_replaying())
        if is_due and workflow.patched(TENANT_PATCH):
            workflow.upsert_search_attributes([_TENANT.value_set(tenant)])
        return await super().execute_workflow(input)


class _HandsTenantOn(worker.WorkflowOutboundInterceptor):
    async def start_child_workflow(self, input: worker.StartChildWorkflowInput) -> workflow.ChildWorkflowHandle[Any, Any]:  # noqa: A002
        if (tenant := workflow.info().typed_search_attributes.get(_TENANT)) is not None:
            input.search_attributes = TypedSearchAttributes([SearchAttributePair(_TENANT, tenant)])
        return await super().start_child_workflow(input)


def _tenant_of(argument: object) -> str | None:
    """Return the tenant that a workflow's argument names, which may be JSON that nobody has validated yet."""
    if not isinstance(argument, RawValue):
        return getattr(getattr(argument, "priority", None), "tenant", None)
    with suppress(ValueError, RecursionError):
        return tenant_named(json.loads(argument.payload.data)) if b'"tenant"' in argument.payload.data else None
    return None


class ThreadVisibility:
    """Publishes the thread's status in Temporal."""

    def __init__(self, thread: Thread, calls: ActivityCalls) -> None:
        self._thread = thread
        self._calls = calls
        self._written: tuple[str, str, str] | None = None

    def publish(self) -> None:
        """Write the details, and the search attributes once it is known that they exist."""
        rows = [line for evaluation in self._thread.evaluations[-ROWS:] for line in _details(evaluation)]
        wanted = self._wanted()
        workflow.set_current_details("\n".join([f"Status: **{wanted[0]}**", "", *rows])[:DETAILS_CHARACTERS])
        # The details leave nothing in the history and are set each time. Each upsert of search attributes is an
        # event, so it is made only where a value has changed.
        if wanted != self._written and self._exist():
            values = [key.value_set(value) if value else key.value_unset() for key, value in zip(_OF_RUN, wanted, strict=True)]
            priority, origin = self._thread.priority, self._thread.forked_from
            values += [_FORK.value_set(tenant_value(origin.thread_id)[:255])] if origin else []
            workflow.upsert_search_attributes([*values, _TENANT.value_set(tenant_value(priority.tenant if priority else None))])
            self._written = wanted

    def _exist(self) -> bool:
        """Return whether the namespace has the search attributes: a call has said so, or this run of the workflow began with them."""
        if self._calls.search_attributes is not None:
            return self._calls.search_attributes
        known = workflow.info().typed_search_attributes
        return any(known.get(key) for key in _KEYS)

    def _wanted(self) -> tuple[str, str, str]:
        thread, run, rubric = self._thread, self._thread.run, self._thread.rubric_in_force
        status = thread.status if thread.status in {"interrupted", "waiting"} else run.status if run else "ungraded"
        return status, run.grading_run_id if run else "", rubric.sha256() if rubric else ""


def _details(evaluation: Evaluation) -> list[str]:
    """Return an evaluation as Markdown, numbered from 1 as the calls are, with a line for each criterion that fails."""
    gaps = [f"  - ✗ {row.id}: {one_line(row.gap or '')}" for row in evaluation.criteria if not row.passed]
    return [f"- iteration {evaluation.iteration + 1}: **{evaluation.result}**. {one_line(evaluation.explanation)}", *gaps]


MASK = "(the run's random code)"
"""Text in place of the code that marks the fence around what is judged."""


def given_prompt(thread: Thread, index: int, number: int) -> GivenPrompt | None:
    """Return the prompt of a call group's grader for an evaluation; None where there is no such evaluation, or its rubric is gone.

    Raises:
        InvalidRequest: A number is another JSON value.
    """
    refuse_other_than_numbers(evaluation=index, group=number)
    if not 0 <= index < len(thread.evaluations):
        return None
    evaluation = thread.evaluations[index]
    rubric = thread.rubric_of(evaluation.rubric_sha256)
    groups = call_groups(rubric) if rubric else ()
    # The prompt is built again from the thread, so it is shown only if it is the one that was sent. An evaluation
    # under other wording, or under a rubric that is no longer kept, has none.
    if rubric is None or not 0 <= number < len(groups) or evaluation.prompt_version != PROMPT_VERSION:
        return None
    messages = thread.log.slice(0, evaluation.draft + 1)
    checks = {row.id: CheckOutcome(passed=row.passed, gap=row.gap) for row in evaluation.criteria if row.by == "tool"}
    judged = JudgedDraft(messages, thread.request_of(evaluation.draft), evaluation.draft, checks, MASK)
    judge, grader = groups[number].judges[0] or thread.judge, thread.grader
    form = thread.forms.get(model_key(judge), FULL) if isinstance(judge, ModelSpec) else FULL
    prompt = build_grader_prompt(rubric, groups[number], judged, instructions=grader.system_prompt if grader else None, form=form)
    return GivenPrompt(
        prompt_version=PROMPT_VERSION,
        rubric_sha256=rubric.sha256(),
        criteria=groups[number].ids,
        groups=len(groups),
        system=prompt.system,
        messages=prompt.messages,
    )
