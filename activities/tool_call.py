"""The activities of evidence tools: one call of a tool, one stretch of a transcript, and whether a worker serves a remote queue."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pydantic import Field, JsonValue, ValidationError
from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.exceptions import ApplicationError

from activities.calls.attempts import heartbeats
from activities.state_cache import LogRef, ThreadLoader
from activities.tools.base import Tool
from gradeloop.contract.base import OmitEmpty, Strict
from gradeloop.contract.evaluation import (
    EVIDENCE_BYTES,
    Evidence,
    build_evidence,
    build_grader_evidence,
    describe_uncertain_call,
    parse_check_outcome,
)
from gradeloop.errors import explain
from gradeloop.grading.prompts import records
from gradeloop.settings.secrets import scrubbed, scrubbed_value
from gradeloop.text import whole_characters

TOOL_SECONDS = 110.0
"""Seconds that a tool may take: below its activity's own 2 minutes, so that the grader gets an error rather than nothing."""

ERROR_CHARACTERS = 2_000
"""The characters that are kept of a tool's exception."""

CHECKER_ERROR = "checker_error"
"""The error type of a check that could not decide."""

PAGE_CHARACTERS = EVIDENCE_BYTES // 4
"""The characters that `read_transcript` shows at once: within the bytes that evidence keeps, whatever they are."""


class ToolRequest(Strict):
    """A tool call of a model, or a criterion that only the tool decides."""

    call: str
    """The id of the model's tool call, or of the checked criterion."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    draft: str = ""
    """The value of a parameter named `draft`, which a check judges."""
    check: bool = False
    grader: OmitEmpty[bool] = False
    """True: the tool is a grader, `arguments` what it is asked, and its value a verdict."""
    operation_id: OmitEmpty[str] = ""
    """The id of the call, the same at every attempt: a tool with effects passes it to its own service, so that they happen once."""
    pinned: OmitEmpty[str] = ""
    """The tool's `sha256` when the run began."""
    approved: OmitEmpty[bool] = False
    """True where a person has approved this very call."""


class TranscriptRequest(Strict):
    """A grader's request to see a record whole, from an offset on."""

    call: str
    messages: LogRef
    record: int
    offset: int = 0


def tool_name(tool: str) -> str:
    """Return the activity type of a tool."""
    return f"tool.{tool}"


def tool_activity(tool: Tool) -> Callable[[ToolRequest], Coroutine[Any, Any, Evidence]]:
    """Return the activity of a tool.

    What the tool raises becomes text for the model that called it. Where the tool is a check or a grader, it is an error, never a grade.
    """

    @activity.defn(name=tool_name(tool.spec.name))
    async def call(request: ToolRequest) -> Evidence:
        async with heartbeats():
            deadline = asyncio.timeout(TOOL_SECONDS)
            try:
                async with deadline:
                    if tool.refresh is not None:
                        await tool.refresh()
                    _refuse(tool, request)
                    value = await _run(tool, request)
                return await asyncio.to_thread(lambda: _evidence(request, scrubbed_value(value)))
            except Exception as error:  # noqa: BLE001 - a tool's failure is reported, whatever it is
                late = f"{tool.spec.name} took more than {TOOL_SECONDS:g} seconds"
                text = late if deadline.expired() else _describe_error(error)
                if request.check or request.grader:
                    raise ApplicationError(text, type=CHECKER_ERROR, non_retryable=isinstance(error, NotCalled)) from None
                return build_evidence(request.call, text, failed=True)

    return call


class NotCalled(Exception):
    """The tool was not called; the message says why."""


def _refuse(tool: Tool, request: ToolRequest) -> None:
    """Raise where the tool must not be called, whatever the workflow knew of it when it asked."""
    # The workflow decided by what it knew, which may be old: tools are loaded anew with a worker. So the
    # worker looks once more, where it cannot be wrong. A second attempt means that a worker was lost during
    # the first, and nobody knows whether the tool had run.
    name = tool.spec.name
    if request.pinned and request.pinned != tool.sha256:
        raise NotCalled(f"{name} has changed its description or parameters since this run began; it was not called")
    if tool.needs_approval and not request.approved:
        raise NotCalled(f"{name} needs a person's approval, which this call has not; it was not called")
    if not tool.repeatable and activity.info().attempt > 1:
        raise NotCalled(describe_uncertain_call(name, request.operation_id))


async def _run(tool: Tool, request: ToolRequest) -> object:
    if request.grader:
        return await tool.judge(request.arguments, request.draft, request.operation_id)
    if request.check:
        return await tool.check(request.draft, request.arguments, request.operation_id)
    return await tool.run(request.arguments, request.draft, request.operation_id)


def _evidence(request: ToolRequest, value: object) -> Evidence:
    if request.check:
        return Evidence(call=request.call, text="", outcome=parse_check_outcome(value))
    return build_grader_evidence(request.call, value) if request.grader else build_evidence(request.call, value)


def _describe_error(error: Exception) -> str:
    if isinstance(error, NotCalled):
        return str(error)
    if isinstance(error, ValidationError):
        return scrubbed(f"the arguments do not fit: {explain(error)}")[:ERROR_CHARACTERS]
    return scrubbed(whole_characters(f"{type(error).__name__}: {error}"))[:ERROR_CHARACTERS]


class TranscriptActivities:
    """The activity `read_transcript`: any record whole, a stretch at a time."""

    def __init__(self, threads: ThreadLoader) -> None:
        self._threads = threads

    @activity.defn(name="read_transcript")
    async def read_transcript(self, request: TranscriptRequest) -> Evidence:
        """Return a record's text from an offset on, and where it goes on."""
        async with heartbeats():
            shown = records(await self._threads.messages(request.messages))
        if not 0 <= request.record < len(shown):
            return build_evidence(request.call, f"there is no record {request.record}; they run from 0 to {len(shown) - 1}", failed=True)
        text, start = str(shown[request.record]["text"]), max(request.offset, 0)
        stop = min(len(text), start + PAGE_CHARACTERS)
        page = {
            "record": request.record,
            "characters": len(text),
            "next_offset": stop if stop < len(text) else None,
            "text": text[start:stop],
        }
        return build_evidence(request.call, page)


@activity.defn(name="find_worker")
async def find_worker(task_queue: str) -> None:
    """Return if a worker polls the queue for workflows.

    Raises:
        ApplicationError: Of type `no_worker`; retried by the caller for as long as it wants to wait.
    """
    client = activity.client()
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    if not answer.pollers:
        raise ApplicationError(f"no worker serves the task queue {task_queue!r}; start it", type="no_worker")
