"""A model's tool calls: where they run, how often, and who approves them."""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from temporalio import exceptions, workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.workflow import ActivityConfig

from activities.capabilities import ToolFacts
from activities.tool_call import CHECKER_ERROR, ToolRequest, TranscriptRequest, tool_name
from gradeloop.contract.evaluation import Evidence, build_evidence, describe_uncertain_call, parse_check_outcome
from gradeloop.contract.messages import Message, ToolCall
from gradeloop.contract.model_spec import TOOL_CALLS, RemoteTool, remote_tools
from workflows.activity_calls import REMOTE_TOOL, TOOL_CALL, ActivityCalls, Interrupted, WaitingForPerson, describe_error, once
from workflows.raw_arguments import UnreadableResult, decode_result
from workflows.thread_state import MESSAGES, Approval, Exchange, Thread, ToolCallRecord

READ_TRANSCRIPT = "read_transcript"

APPROVED_BYTES = 16 * 1024
"""The largest arguments of a call that a person approves: they have to fit on a page."""

HEARD = "hear whoever was asked"
"""The patch since which the answer of a person holds although no worker says that the tool needs one."""

Role = Literal["generator", "grader", "check"]


class ToolFailed(Exception):
    """The tool gave no value; the message says why."""


class ToolCalls:
    """Calls the tools of one role."""

    def __init__(self, thread: Thread, calls: ActivityCalls, role: Role) -> None:
        self._thread = thread
        self._calls = calls
        self._role: Role = role

    async def answer(
        self, exchange: Exchange, wanted: tuple[ToolCall, ...], offered: tuple[str, ...], step: str, draft: str = ""
    ) -> list[Message]:
        """Run the calls that have no result yet and return all results in order.

        Raises:
            Interrupted: The thread is stopping; the results that came are kept in `exchange`.
            WaitingForPerson: A person has to approve a call; the results of the others are kept.
        """
        missing = [(str(at), call) for at, call in enumerate(wanted) if str(at) not in exchange.results]
        started = [self._answer_one(exchange, at, call, offered, f"{step}.{at}", draft) for at, call in missing]
        # All calls are waited for before the first error is raised. Otherwise the others would go on
        # unrecorded, and the run that goes on would make them a second time.
        for ended in await asyncio.gather(*started, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended
        if any(str(at) not in exchange.results for at, _ in enumerate(wanted)):
            if self._thread.stopping is not None:
                raise Interrupted
            raise WaitingForPerson
        messages = [exchange.results[str(at)].message(call.name) for at, call in enumerate(wanted)]
        exchange.results, exchange.ledger = {}, ToolCallRecord()
        return messages

    async def _answer_one(self, exchange: Exchange, at: str, call: ToolCall, offered: tuple[str, ...], step: str, draft: str) -> None:
        if call.name not in offered:
            known = ", ".join(offered) or "none"
            exchange.results[at] = build_evidence(call.id, f"there is no tool {call.name!r}; the tools are: {known}", failed=True)
        elif call.invalid is not None:
            exchange.results[at] = build_evidence(call.id, "the arguments are not a JSON object; nothing was run", failed=True)
        elif exchange.tool_calls >= (most := self._thread.limits(self._role).tool_calls):
            exchange.exhausted = True
            exchange.results[at] = build_evidence(call.id, f"not run: all {most} tool calls are used up", failed=True)
        elif most > TOOL_CALLS <= int(at):  # whose results would be too large together for one payload
            exchange.results[at] = build_evidence(call.id, f"not run: {TOOL_CALLS} calls in one turn at most; call it anew", failed=True)
        else:
            # The calls of one turn run at once, so each counts before it begins; if it counted at its end, all of
            # them would pass the limit together. A call without a result, since a person has to approve it or the
            # thread stops, gives its number back and counts anew when the run goes on.
            exchange.tool_calls += 1
            if call.name not in exchange.called:
                exchange.called = (*exchange.called, call.name)
            evidence = None
            try:
                evidence = await self._call(exchange, at, call, step, draft)
            finally:
                if evidence is None:
                    exchange.tool_calls -= 1
            if evidence is not None:
                exchange.results[at] = evidence

    async def _call(self, exchange: Exchange, at: str, call: ToolCall, step: str, draft: str) -> Evidence | None:
        """Return the result of a call; None where a person has yet to approve it."""
        if call.name == READ_TRANSCRIPT:
            return await self._read_transcript(call)
        operation = exchange.ledger.operations.get(at) or self.operation(step)
        exchange.ledger.operations = {**exchange.ledger.operations, at: operation}
        request = ToolRequest(call=call.id, arguments=call.arguments, draft=draft, operation_id=operation)
        try:
            return await self.permitted(call.name, request, exchange.ledger)
        except ToolFailed as failed:
            return build_evidence(call.id, str(failed), failed=True)

    async def _read_transcript(self, call: ToolCall) -> Evidence:
        self._thread.record_event("tool_called", tool=call.name, role=self._role)
        record, offset = call.arguments.get("record"), call.arguments.get("offset", 0)
        if not isinstance(record, int) or not isinstance(offset, int):
            return build_evidence(call.id, "record and offset are whole numbers", failed=True)
        messages = self._calls.log_reference(MESSAGES, self._thread.log)
        request = TranscriptRequest(call=call.id, messages=messages, record=record, offset=offset)
        try:
            return await self._calls.make(READ_TRANSCRIPT, request, TOOL_CALL, summary=f"evidence record {record}", result=Evidence)
        except ActivityError as error:
            return build_evidence(call.id, describe_error(error), failed=True)

    async def permitted(self, tool: str, request: ToolRequest, ledger: ToolCallRecord) -> Evidence | None:
        """Call a tool and return its result; None where a person has yet to approve the call.

        Raises:
            ToolFailed: It gave no value, a person denied it, or nobody knows whether it ran.
            Interrupted: The thread is stopping.
        """
        approval = self._approval(ledger, request, tool)
        if approval is not None and approval.approved is None:
            return None
        if approval is not None and not approval.approved:
            raise ToolFailed(approval.denial)
        return await self._run(tool, request, ledger, approved=approval is not None)

    def _approval(self, ledger: ToolCallRecord, request: ToolRequest, tool: str) -> Approval | None:
        """Return the approval of a call, asked for where it is missing; None where the tool needs none."""
        remote, facts = self._remote_tools.get(tool), self._facts(tool)
        if not (remote.needs_approval if remote else facts is not None and facts.needs_approval):
            # A person who was asked is heard, also where no worker says any more that the tool needs it.
            asked = request.operation_id in ledger.approvals and workflow.patched(HEARD)
            return ledger.approvals[request.operation_id] if asked else None
        if request.operation_id not in ledger.approvals:
            size = len(request.model_dump_json(include={"arguments"}))
            if size > APPROVED_BYTES:
                raise ToolFailed(f"not run: a person is asked about it, and its arguments have {size} bytes, {APPROVED_BYTES} at most")
            approval = Approval(tool=tool, arguments=request.arguments, role=self._role)
            ledger.approvals = {**ledger.approvals, request.operation_id: approval}
        return ledger.approvals[request.operation_id]

    async def _run(self, tool: str, request: ToolRequest, ledger: ToolCallRecord, *, approved: bool) -> Evidence:
        # A call that must not run twice is noted before it is sent. If its worker is lost, nobody knows whether
        # it ran, and then it is not sent again: the model is told so. If it were noted only after its end, the
        # run that goes on would make the call a second time.
        single = self._runs_once(tool)
        if single and request.operation_id in ledger.begun:
            raise ToolFailed(describe_uncertain_call(tool, request.operation_id))
        if self._thread.stopping is not None:
            raise Interrupted
        if single:
            ledger.begun = (*ledger.begun, request.operation_id)
        self._thread.record_event("tool_called", tool=tool, role=self._role)
        remote = self._remote_tools.get(tool)
        try:
            return await (self._call_remote(remote, request) if remote else self.call_own(tool, request, approved=approved))
        except ActivityError as error:
            unsure = single and _may_have_run(error, own=remote is None)
            raise ToolFailed(describe_uncertain_call(tool, request.operation_id) if unsure else describe_error(error)) from None

    async def call_own(self, tool: str, request: ToolRequest, *, approved: bool = False, summary: str = "") -> Evidence:
        """Call a tool of our own worker.

        Raises:
            ActivityError: The call failed for good.
            Interrupted: The thread is stopping.
        """
        run, capabilities = self._thread.run, self._calls.capabilities
        pinned = run.pins.get(tool, "") if run else ""
        options: ActivityConfig = once(TOOL_CALL) if self._runs_once(tool) else TOOL_CALL
        if capabilities and capabilities.evidence_queue:
            options = options | {"task_queue": capabilities.evidence_queue}
        argument = request.model_copy(update={"pinned": pinned, "approved": approved})
        return await self._calls.make(tool_name(tool), argument, options, summary=summary or f"evidence {tool}", result=Evidence)

    async def _call_remote(self, tool: RemoteTool, request: ToolRequest) -> Evidence:
        options = (REMOTE_TOOL if tool.repeatable else once(REMOTE_TOOL)) | {"task_queue": tool.task_queue}
        argument: dict[str, Any] = request.model_dump(mode="json", include={"call", "arguments", "draft"})
        argument["operation_id"] = request.operation_id
        returned = await self._calls.make(tool.activity, argument, options, summary=f"evidence {tool.name}", result=RawValue)
        try:
            value = decode_result(returned)
            if not request.check:
                return build_evidence(request.call, value)
            return Evidence(call=request.call, text="", outcome=parse_check_outcome(value))
        except UnreadableResult as error:
            raise ToolFailed(str(error)) from None
        except TypeError as error:
            raise ToolFailed(f"{CHECKER_ERROR}: {error}") from None

    def operation(self, step: str) -> str:
        """Return the id of a call: run, iteration, step; the same however often it is made."""
        run = self._thread.run
        return f"{run.grading_run_id if run else self._thread.thread_id}:{run.iteration if run else 0}:{step}"

    @property
    def _remote_tools(self) -> Mapping[str, RemoteTool]:
        """The tools that are not our worker's, by name."""
        if self._role == "generator":
            return remote_tools(self._thread.generator.tools)
        return remote_tools(self._thread.grader.tools) if self._thread.grader else {}

    def _facts(self, tool: str) -> ToolFacts | None:
        return self._calls.capabilities.facts.get(tool) if self._calls.capabilities else None

    def _runs_once(self, tool: str) -> bool:
        remote, facts = self._remote_tools.get(tool), self._facts(tool)
        return not remote.repeatable if remote else facts is not None and facts.once


def _may_have_run(error: ActivityError, *, own: bool) -> bool:
    """True where the call began and its end is unknown: a time-out, or a worker that was stopped in the middle of it.

    Our own worker returns what a tool raised as evidence or as a checker's error; whatever else ends a call is the worker's end.
    """
    cause = error.cause
    if isinstance(cause, exceptions.TimeoutError):
        return cause.type != exceptions.TimeoutType.SCHEDULE_TO_START
    return own and not (isinstance(cause, ApplicationError) and cause.type in {CHECKER_ERROR, "NotFoundError"})
