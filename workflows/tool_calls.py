"""A model's tool calls: where they run, how often, and who approves them."""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from temporalio import exceptions
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception
from temporalio.workflow import ActivityConfig

from activities.capabilities import ToolFacts
from activities.tool_call import CHECKER_ERROR, ToolRequest, TranscriptRequest, tool_name
from gradeloop.contract.evaluation import Evidence, build_evidence, describe_uncertain_call, parse_check_outcome
from gradeloop.contract.messages import Message, ToolCall
from gradeloop.contract.model_spec import RemoteTool, remote_tools
from workflows.activity_calls import REMOTE_TOOL, TOOL_CALL, TOOL_CALLS, ActivityCalls, Interrupted, WaitingForPerson, describe_error, once
from workflows.raw_arguments import UnreadableResult, decode_result
from workflows.thread_state import MESSAGES, Approval, Exchange, Thread, ToolCallRecord

READ_TRANSCRIPT = "read_transcript"

APPROVED_BYTES = 16 * 1024
"""Of a call's arguments: what a person is asked about has to fit on a page."""

Role = Literal["generator", "grader", "check"]


class ToolFailed(Exception):
    """The tool gave no value; the message says why."""


class ToolCalls:
    """Calls the tools of one role."""

    def __init__(self, thread: Thread, calls: ActivityCalls, role: Role) -> None:
        self._thread = thread
        self._calls = calls
        self._role = role

    @property
    def _abroad(self) -> Mapping[str, RemoteTool]:
        """The tools that are not ours, by name."""
        if self._role == "generator":
            return remote_tools(self._thread.generator.tools)
        return remote_tools(self._thread.grader.tools) if self._thread.grader else {}

    def operation(self, step: str) -> str:
        """Return the id of a call: run, iteration, step; the same however often it is made."""
        run = self._thread.run
        return f"{run.grading_run_id if run else self._thread.thread_id}:{run.iteration if run else 0}:{step}"

    async def answer(
        self, exchange: Exchange, wanted: tuple[ToolCall, ...], offered: tuple[str, ...], step: str, draft: str = ""
    ) -> list[Message]:
        """Run the calls that have no result yet and return all results in order.

        Args:
            exchange: What has been found so far, and where it is kept.
            wanted: The calls of the turn.
            offered: The tools that the model was given.
            step: What the turn is called in its calls' ids.
            draft: What is judged, for a grader's tools.

        Raises:
            Interrupted: The thread is stopping; the results that came are kept in `exchange`.
            Waiting: A person has to approve a call; the results of the others are kept.
        """
        missing = [(str(at), call) for at, call in enumerate(wanted) if str(at) not in exchange.results]
        started = [self._answer_one(exchange, at, call, offered, f"{step}.{at}", draft) for at, call in missing]
        for ended in await asyncio.gather(*started, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended
        if any(str(at) not in exchange.results for at, _ in enumerate(wanted)):
            if self._calls.stopping:
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
        elif exchange.tool_calls >= TOOL_CALLS:
            exchange.exhausted = True
            exchange.results[at] = build_evidence(call.id, f"not run: all {TOOL_CALLS} tool calls are used up", failed=True)
        else:
            exchange.tool_calls += 1
            if call.name not in exchange.called:
                exchange.called = (*exchange.called, call.name)
            found = None
            try:
                found = await self._find(exchange, at, call, step, draft)
            finally:
                if found is None:
                    exchange.tool_calls -= 1
            if found is not None:
                exchange.results[at] = found

    async def _find(self, exchange: Exchange, at: str, call: ToolCall, step: str, draft: str) -> Evidence | None:
        """Return what a call found; None where a person has yet to approve it."""
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
        self._thread.tell("tool_called", tool=call.name, role=self._role)
        record, offset = call.arguments.get("record"), call.arguments.get("offset", 0)
        if not isinstance(record, int) or not isinstance(offset, int):
            return build_evidence(call.id, "record and offset are whole numbers", failed=True)
        messages = self._calls.log(MESSAGES, self._thread.log)
        request = TranscriptRequest(call=call.id, messages=messages, record=record, offset=offset)
        try:
            return await self._calls.make(READ_TRANSCRIPT, request, TOOL_CALL, summary=f"evidence record {record}", result=Evidence)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return build_evidence(call.id, describe_error(error), failed=True)

    async def permitted(self, tool: str, request: ToolRequest, ledger: ToolCallRecord) -> Evidence | None:
        """Call a tool and return what it found; None where a person has yet to approve the call.

        Raises:
            ToolFailed: It gave no value, a person denied it, or nobody knows whether it ran.
            Interrupted: The thread is stopping.
        """
        word = self._word(ledger, request, tool)
        if word is not None and word.approved is None:
            return None
        if word is not None and not word.approved:
            raise ToolFailed(word.denial)
        return await self._run(tool, request, ledger, approved=word is not None)

    def _word(self, ledger: ToolCallRecord, request: ToolRequest, tool: str) -> Approval | None:
        """Return what a person said to a call, and ask for it where nobody has yet; None where nobody need be asked.

        Raises:
            ToolFailed: The arguments are too large for a person to read.
        """
        if not self._needs_approval(tool):
            return None
        if request.operation_id not in ledger.approvals:
            size = len(request.model_dump_json(include={"arguments"}))
            if size > APPROVED_BYTES:
                raise ToolFailed(f"not run: a person is asked about it, and its arguments have {size} bytes, {APPROVED_BYTES} at most")
            asked = Approval(tool=tool, arguments=request.arguments, role=self._role)
            ledger.approvals = {**ledger.approvals, request.operation_id: asked}
        return ledger.approvals[request.operation_id]

    async def _run(self, tool: str, request: ToolRequest, ledger: ToolCallRecord, *, approved: bool) -> Evidence:
        single = self._is_single(tool)
        if single and request.operation_id in ledger.begun:
            raise ToolFailed(describe_uncertain_call(tool, request.operation_id))
        if self._calls.stopping:
            raise Interrupted
        if single:
            ledger.begun = (*ledger.begun, request.operation_id)
        self._thread.tell("tool_called", tool=tool, role=self._role)
        abroad = self._abroad.get(tool)
        try:
            return await (self._foreign(abroad, request) if abroad else self.ours(tool, request, approved=approved))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            unsure = single and _may_have_run(error, ours=abroad is None)
            raise ToolFailed(describe_uncertain_call(tool, request.operation_id) if unsure else describe_error(error)) from None

    async def ours(self, tool: str, request: ToolRequest, *, approved: bool = False, summary: str = "") -> Evidence:
        """Call a tool of our worker's.

        Raises:
            ActivityError: The call failed for good.
            Interrupted: The thread is stopping.
        """
        run, offer = self._thread.run, self._calls.offer
        pinned = run.pins.get(tool, "") if run else ""
        options: ActivityConfig = once(TOOL_CALL) if self._is_single(tool) else TOOL_CALL
        if offer and offer.evidence_queue:
            options = options | {"task_queue": offer.evidence_queue}
        asked = request.model_copy(update={"pinned": pinned, "approved": approved})
        return await self._calls.make(tool_name(tool), asked, options, summary=summary or f"evidence {tool}", result=Evidence)

    async def _foreign(self, tool: RemoteTool, request: ToolRequest) -> Evidence:
        options = (REMOTE_TOOL if tool.repeatable else once(REMOTE_TOOL)) | {"task_queue": tool.task_queue}
        asked: dict[str, Any] = request.model_dump(mode="json", include={"call", "arguments", "draft"})
        asked["operation_id"] = request.operation_id
        returned = await self._calls.make(tool.activity, asked, options, summary=f"evidence {tool.name}", result=RawValue)
        try:
            value = decode_result(returned)
            if not request.check:
                return build_evidence(request.call, value)
            return Evidence(call=request.call, text="", outcome=parse_check_outcome(value))
        except UnreadableResult as error:
            raise ToolFailed(str(error)) from None
        except TypeError as error:
            raise ToolFailed(f"{CHECKER_ERROR}: {error}") from None

    def _facts(self, tool: str) -> ToolFacts | None:
        return self._calls.offer.facts.get(tool) if self._calls.offer else None

    def _needs_approval(self, tool: str) -> bool:
        abroad, facts = self._abroad.get(tool), self._facts(tool)
        return abroad.needs_approval if abroad else facts is not None and facts.needs_approval

    def _is_single(self, tool: str) -> bool:
        abroad, facts = self._abroad.get(tool), self._facts(tool)
        return not abroad.repeatable if abroad else facts is not None and facts.once


def _may_have_run(error: ActivityError, *, ours: bool) -> bool:
    """True where the call was begun and its end was not heard of: a time-out, or a worker that was stopped in the middle of it.

    Our own worker tells what a tool raised as evidence or as a checker's error; whatever else ends a call is the worker's end.
    """
    cause = error.cause
    if isinstance(cause, exceptions.TimeoutError):
        return cause.type != exceptions.TimeoutType.SCHEDULE_TO_START
    return ours and not (isinstance(cause, ApplicationError) and cause.type in {CHECKER_ERROR, "NotFoundError"})
