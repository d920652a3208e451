"""What a thread lets in: turns with their keys, rubrics, checkpoints; a refusal names the field, the value and the cure."""

import hashlib
import json
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from workflows.raw import decoded, rubric_in
from workflows.thread_state import Invocation, Outcome, Thread
from workflows.turns import begin, same_rubric, settle, take_supplied

with workflow.unsafe.imports_passed_through():
    from gradeloop.budget import Budget
    from gradeloop.errors import InvalidRequest, explain
    from gradeloop.request import QUEUED, ThreadRequest, refuse_oversize
    from gradeloop.steering import InvokeRequest, ResumeRequest, parse
    from gradeloop.templates import fill
    from gradeloop.transcript import Log

ROLLING = "the thread goes on in a new run of its workflow; send the update again with another update id"

START_KEY = "start"
"""The key of the turn that a thread is started with."""


def begun(request: ThreadRequest) -> Thread:
    """Return the thread that a request starts, or goes on with from its checkpoint.

    Raises:
        InvalidRequest: The checkpoint is none.
    """
    thread = _restored(request) if request.checkpoint is not None else _new(request)
    filled = fill(request.rubric, thread.vars)
    if request.messages:
        rubric = filled if request.checkpoint is not None else None
        payload = payload_sha256(request.model_dump(mode="json", include={"messages", "rubric"}))
        begin(thread, Invocation(keys=[START_KEY], payload=payload, messages=request.messages, rubric=rubric))
    elif request.checkpoint is not None and filled is not None and not same_rubric(filled, thread.rubric):
        thread.supplied = filled
    return thread


def _new(request: ThreadRequest) -> Thread:
    return Thread(
        thread_id=workflow.info().workflow_id,
        generator=request.generator,
        grader=request.grader,
        rubric=fill(request.rubric, request.vars),
        template=request.rubric if request.vars is not None else None,
        vars=request.vars,
        max_iterations=request.max_iterations,
        idle_timeout=request.idle_timeout,
        budget=request.budget,
        priority=request.priority,
        log=Log(),
    )


def _restored(request: ThreadRequest) -> Thread:
    """Read a checkpoint; a turn that was in flight when it was taken is interrupted, unless the thread has just rolled over."""
    checkpoint = request.checkpoint or {}
    try:
        thread = Thread.model_validate(checkpoint.get("thread"))
    except ValidationError as error:
        raise InvalidRequest(f"checkpoint: it is none of this version: {explain(error)}") from None
    if checkpoint.get("rolled"):
        return thread
    if thread.status == "running":
        thread.status = "interrupted"
        settle(thread)
    thread.thread_id, thread.closing = workflow.info().workflow_id, False
    thread.queue.clear()
    thread.generator, thread.grader = request.generator, request.grader or thread.grader
    thread.max_iterations, thread.idle_timeout = request.max_iterations, request.idle_timeout
    thread.budget, thread.priority = request.budget or thread.budget, request.priority or thread.priority
    thread.vars, thread.template = request.vars or thread.vars, request.rubric or thread.template
    return thread


def payload_sha256(payload: dict[str, Any]) -> str:
    """Return the sha256 of what was asked."""
    return hashlib.sha256(json.dumps(payload, sort_keys=True, ensure_ascii=False).encode(errors="replace")).hexdigest()


class Admission:
    """Turns and rubrics of one thread."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    def refuse(self, raw: RawValue, update_id: str, *, rolling: bool) -> None:
        """Raise where a turn cannot be taken; nothing of it is recorded then."""
        try:
            request = parse(InvokeRequest, decoded(raw, "the turn"))
            turn = self.turn(raw, update_id)
            if not self._known(turn):
                self._refuse_new(request, rolling=rolling)
        except InvalidRequest as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None

    def refuse_resumption(self, raw: RawValue, update_id: str) -> None:
        """Raise where nothing is interrupted, unless this very update had it resumed before the thread rolled over."""
        try:
            turn = self.resumption(raw, update_id)
            if self._waiting(turn.keys[0]) or self._ended(turn.keys[0]):
                return
            if self._thread.status != "interrupted" or self._thread.queue:
                raise ApplicationError("nothing is interrupted in this thread", type="NothingToResume", non_retryable=True)
            self._refuse_used_up(turn.budget)
        except InvalidRequest as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None

    def resumption(self, raw: RawValue, update_id: str) -> Invocation:
        """Return the turn that goes on with the interrupted one."""
        budget = parse(ResumeRequest, decoded(raw, "the resumption")).budget
        return Invocation(keys=[f"resume/{update_id}"], payload=payload_sha256({}), resumes=True, budget=budget)

    def _refuse_used_up(self, budget: Budget | None) -> None:
        """Refuse a turn that could make no call."""
        due = budget or self._thread.budget
        if due and (told := due.overrun(self._thread.usage)):
            raise InvalidRequest(f"budget: {told}; give a larger one")

    def turn(self, raw: RawValue, update_id: str) -> Invocation:
        """Return the turn that is asked for."""
        request, thread = parse(InvokeRequest, decoded(raw, "the turn")), self._thread
        template = request.rubric if request.rubric is not None or request.vars is None else thread.template or thread.rubric
        return Invocation(
            keys=[request.key or update_id],
            payload=payload_sha256(request.model_dump(mode="json", exclude={"key"})),
            messages=request.messages,
            rubric=fill(template, thread.vars if request.vars is None else request.vars),
            template=template,
            vars=request.vars,
            max_iterations=request.max_iterations,
            budget=request.budget,
        )

    def enqueue(self, turn: Invocation) -> None:
        """Queue a turn, or attach to the one of its key; an interrupted one goes on."""
        key = turn.keys[0]
        if self._waiting(key) or self.attaches(key):
            return
        if self._ended(key) is None:
            self._thread.queue.append(turn)
        elif self._is_interrupted(key):
            self._thread.queue.append(Invocation(keys=[key], payload=turn.payload, resumes=True, budget=turn.budget))

    def attaches(self, key: str) -> bool:
        """True for a turn that waits for a person: whoever comes with its key waits for its end."""
        return self._thread.status == "waiting" and self._thread.active is not None and key in self._thread.active.keys

    def ended(self, key: str) -> Outcome | None:
        """Return how a key's turn ended, unless it is still waited for."""
        return None if self._waiting(key) else self._ended(key)

    def supply(self, raw: RawValue) -> bool:
        """Take a supplied rubric in; True where the grading in flight is to be stopped for it."""
        thread = self._thread
        try:
            template = rubric_in(raw)
            supplied = fill(template, thread.vars) or template
        except InvalidRequest as error:
            thread.tell("rubric_rejected", why=str(error)[:1000])
            return False
        thread.tell("rubric_supplied")
        if thread.status != "idle" and same_rubric(supplied, thread.rubric):
            thread.supplied = None
            return False
        thread.supplied, thread.template = supplied, template if thread.vars is not None else None
        if thread.status == "interrupted":
            take_supplied(thread)
        return thread.status == "running" and thread.run is not None and thread.run.grading is not None

    def _known(self, turn: Invocation) -> bool:
        """True where the key is known with this payload; another payload is refused."""
        key = turn.keys[0]
        waiting, ended = self._waiting(key), self._ended(key)
        payload = waiting.payload_of(key) if waiting else ended.payload if ended else None
        if payload is not None and payload != turn.payload:
            raise InvalidRequest(f"key {key!r} was used for another turn; give this one a key of its own")
        return payload is not None

    def _refuse_new(self, request: InvokeRequest, *, rolling: bool) -> None:
        thread = self._thread
        if rolling:
            raise ApplicationError(ROLLING, type="ThreadRolling")
        if thread.closing:
            raise ApplicationError("the thread is closing and takes no further turns", type="ThreadClosing", non_retryable=True)
        if len(thread.queue) >= QUEUED:
            raise ApplicationError(f"{QUEUED} turns are queued already; wait for one to end", type="Backpressure", non_retryable=True)
        queued = sum(message.size() for turn in thread.queue for message in turn.messages)
        refuse_oversize(request.messages, thread.bytes() + queued, thread.limit)
        self._refuse_used_up(request.budget)
        idle = not request.messages and not thread.queue and thread.status == "idle"
        if idle and (thread.last_draft() is None or not (request.rubric.criteria if request.rubric else thread.rubric_in_force)):
            raise InvalidRequest("messages is empty, nothing is interrupted and there is no draft to grade by a rubric; give a message")

    def _waiting(self, key: str) -> Invocation | None:
        running = self._thread.active if self._thread.status == "running" else None
        return next((turn for turn in (*self._thread.queue, *((running,) if running else ())) if key in turn.keys), None)

    def _ended(self, key: str) -> Outcome | None:
        return next((each for each in self._thread.outcomes if each.key == key), None)

    def _is_interrupted(self, key: str) -> bool:
        active = self._thread.active
        return self._thread.status == "interrupted" and active is not None and key in active.keys
