"""The tool calls of one model turn: in parallel, each its own activity, each kept as it finishes."""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from workflows.calls import MESSAGES, Calls, Interrupted, Waiting, told
from workflows.options import TOOL_CALL, TOOL_CALLS
from workflows.run_state import Exchange, Ledger
from workflows.thread_state import Thread
from workflows.tool_calls import ToolCalls, ToolFailed

with workflow.unsafe.imports_passed_through():
    from typing import Literal

    from activities.evidence import ToolRequest, TranscriptRequest
    from gradeloop.evidence import Evidence, evidence_of
    from gradeloop.transcript import Message, ToolCall

READ_TRANSCRIPT = "read_transcript"


class ToolRound:
    """Answers a model's tool calls."""

    def __init__(self, thread: Thread, calls: Calls, role: Literal["generator", "grader"], *, draft: str = "") -> None:
        self._thread = thread
        self._calls = calls
        self._tools = ToolCalls(thread, calls, role)
        self._role = role
        self._draft = draft

    async def answer(self, exchange: Exchange, wanted: tuple[ToolCall, ...], offered: tuple[str, ...], step: str) -> list[Message]:
        """Run the calls that have no result yet and return all results in order.

        Args:
            exchange: What has been found so far, and where it is kept.
            wanted: The calls of the turn.
            offered: The tools that the model was given.
            step: What the turn is called in its calls' ids.

        Raises:
            Interrupted: The thread is stopping; the results that came are kept in `exchange`.
            Waiting: A person has to approve a call; the results of the others are kept.
        """
        missing = [(str(at), call) for at, call in enumerate(wanted) if str(at) not in exchange.results]
        started = [self._one(exchange, at, call, offered, f"{step}.{at}") for at, call in missing]
        for ended in await asyncio.gather(*started, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended
        if any(str(at) not in exchange.results for at, _ in enumerate(wanted)):
            if self._calls.stopping:
                raise Interrupted
            raise Waiting
        messages = [exchange.results[str(at)].message(call.name) for at, call in enumerate(wanted)]
        exchange.results, exchange.ledger = {}, Ledger()
        return messages

    async def _one(self, exchange: Exchange, at: str, call: ToolCall, offered: tuple[str, ...], step: str) -> None:
        if call.name not in offered:
            known = ", ".join(offered) or "none"
            exchange.results[at] = evidence_of(call.id, f"there is no tool {call.name!r}; the tools are: {known}", failed=True)
        elif call.invalid is not None:
            exchange.results[at] = evidence_of(call.id, "the arguments are not a JSON object; nothing was run", failed=True)
        elif exchange.tool_calls >= TOOL_CALLS:
            exchange.exhausted = True
            exchange.results[at] = evidence_of(call.id, f"not run: all {TOOL_CALLS} tool calls are used up", failed=True)
        else:
            exchange.tool_calls += 1
            if call.name not in exchange.called:
                exchange.called = (*exchange.called, call.name)
            found = None
            try:
                found = await self._run(exchange, at, call, step)
            finally:
                if found is None:
                    exchange.tool_calls -= 1
            if found is not None:
                exchange.results[at] = found

    async def _run(self, exchange: Exchange, at: str, call: ToolCall, step: str) -> Evidence | None:
        """Return what a call found; None where a person has yet to approve it."""
        if call.name == READ_TRANSCRIPT:
            return await self._read(call)
        operation = exchange.ledger.operations.get(at) or self._tools.operation(step)
        exchange.ledger.operations = {**exchange.ledger.operations, at: operation}
        request = ToolRequest(call=call.id, arguments=call.arguments, draft=self._draft, operation_id=operation)
        try:
            return await self._tools.permitted(call.name, request, exchange.ledger)
        except ToolFailed as failed:
            return evidence_of(call.id, str(failed), failed=True)

    async def _read(self, call: ToolCall) -> Evidence:
        self._thread.tell("tool_called", tool=call.name, role=self._role)
        record, offset = call.arguments.get("record"), call.arguments.get("offset", 0)
        if not isinstance(record, int) or not isinstance(offset, int):
            return evidence_of(call.id, "record and offset are whole numbers", failed=True)
        messages = self._calls.log(MESSAGES, self._thread.log)
        request = TranscriptRequest(call=call.id, messages=messages, record=record, offset=offset)
        try:
            return await self._calls.make(READ_TRANSCRIPT, request, TOOL_CALL, summary=f"evidence record {record}", result=Evidence)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return evidence_of(call.id, told(error), failed=True)
