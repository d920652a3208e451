"""Threads read for their pages: messages, evaluations, and evidence from their histories."""

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeVar, cast, get_args

from pydantic import JsonValue, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.client.client import GradingClient
from gradeloop.client.thread import ThreadHandle, error_of_rpc
from gradeloop.contract.base import Page
from gradeloop.contract.evaluation import CheckOutcome, Evaluation, Event, Evidence, build_evidence, describe_failure, parse_check_outcome
from gradeloop.contract.messages import Message
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import TASK_QUEUE, RunResult, ThreadState
from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.grading.scoring import best_evaluation
from gradeloop.reports.model import RunReport, ToolEvidence, Verdict
from gradeloop.text import clip

VERDICTS: dict[str, Verdict] = {
    "satisfied": "passed",
    "max_iterations_reached": "failed",
    "failed": "failed",
    "grader_error": "error",
    "waiting": "waiting",
    "running": "running",
    "generating": "running",
    "grading": "running",
}
"""The colours by status and phase; a run that was interrupted, or that nobody graded, has no verdict."""

VARIABLES_CHARACTERS = 2_000
"""The most characters of a thread's variables that are shown."""


async def read_thread_report(client: GradingClient, thread_id: str) -> RunReport:
    """Read a thread, open or closed, with the evidence that the server still keeps.

    Raises:
        ThreadNotFound: There is none of that id.
        ServerUnreachable: The server does not answer, or no worker does.
        InvalidRequest: The thread was refused when it was started.
    """
    record = await read_thread_record(client, thread_id)
    tools, notes = await read_tool_calls(client.temporal, thread_id)
    word, rubric, ended = _word(record), _rubric(record), record.ended_turn
    best = _best(record, rubric)
    overridden = record.own[-1].overridden_result if record.own else None
    return RunReport(
        name=thread_id,
        kind="thread",
        verdict=VERDICTS.get(word, "none"),
        word=word,
        thread_id=thread_id,
        about=dict(_about(record)),
        score=best.score if best else ended.score if ended else None,
        error=_error(record, word),
        rubric=rubric,
        messages=record.messages,
        evaluations=record.evaluations,
        tools=tuple(tools),
        events=record.events,
        usage=record.state.usage,
        budget=record.state.budget,
        waiting_for=record.state.waiting_for,
        best=best.draft if best else _ungraded(record),
        overridden=None if overridden is None else overridden == "satisfied",
        notes=(*_notes(record, rubric), *notes),
    )


Item = TypeVar("Item")


@dataclass(frozen=True)
class ThreadRecord:
    """A thread as it was read: messages last, so that every reference to one finds it."""

    thread_id: str
    described: WorkflowExecutionDescription
    """The description of its last Temporal run."""
    state: ThreadState
    result: RunResult | None
    evaluations: tuple[Evaluation, ...]
    events: tuple[Event, ...]
    dropped_events: int
    """The number of older events that the thread does not keep."""
    messages: tuple[Message, ...]
    kept: dict[str, JsonValue]
    """The thread in its checkpoint; empty where that cannot be read."""
    forks: tuple[str, ...]
    """The ids of the threads that were forked off it, the newest first."""

    @property
    def is_open(self) -> bool:
        """True where its last Temporal run is open."""
        return self.described.status == WorkflowExecutionStatus.RUNNING

    @property
    def own(self) -> tuple[Evaluation, ...]:
        """The evaluations of the grading run in flight, else of the last one; none where the last turn was not graded."""
        return tuple(evaluation for evaluation in self.evaluations if evaluation.grading_run_id == self.state.grading_run_id)

    @property
    def ended_turn(self) -> RunResult | None:
        """The result of its last turn; None where another turn is in flight."""
        current = self.result is not None and self.result.grading_run_id == self.state.grading_run_id
        return self.result if current and self.state.status != "running" else None


async def read_thread_record(reader: GradingClient, thread_id: str) -> ThreadRecord:
    """Read a thread."""
    described = await ThreadHandle(reader.temporal, thread_id, TASK_QUEUE).describe()
    state = await reader.state(thread_id)
    result = await reader.last_result(thread_id)
    evaluations, _ = await _all(lambda after: reader.evaluations(thread_id, after=after))
    events, dropped = await _all(lambda after: reader.events(thread_id, after=after))
    messages, _ = await _all(lambda after: reader.messages(thread_id, after=after))
    kept: dict[str, JsonValue] = {}
    with suppress(InvalidRequest, ServerUnreachable):  # a thread may be larger than what one answer takes
        kept = mapping((await reader.checkpoint(thread_id)).get("thread"))
    return ThreadRecord(thread_id, described, state, result, evaluations, events, dropped, messages, kept, await reader.forks(thread_id))


async def _all(page: Callable[[int], Awaitable[Page[Item]]]) -> tuple[tuple[Item, ...], int]:
    """Return the items of all pages, and the number of dropped items before them."""
    found: list[Item] = []
    after: int | None = 0
    first: int | None = None
    while after is not None:
        answer = await page(after)
        found += answer.items
        first, after = answer.first if first is None else first, answer.next
    return tuple(found), first or 0


def _word(record: ThreadRecord) -> str:
    """Return the status of the run in flight, else of the last one."""
    state, ended = record.state, record.ended_turn
    if state.status == "running":
        if record.is_open:
            return state.phase or "running"
        return record.described.status.name.lower() if record.described.status else "closed"
    if state.status in {"waiting", "interrupted"}:
        return state.status
    if ended is not None and ended.status is not None:
        return ended.status
    return record.own[-1].status if record.own else "ungraded" if record.messages else "idle"


def _rubric(record: ThreadRecord) -> Rubric | None:
    """Return the rubric in force, else the former one where the newest evaluation was judged by that."""
    if record.state.rubric is not None or not record.evaluations:
        return record.state.rubric
    former = mapping(record.kept.get("rubrics")).get(record.evaluations[-1].rubric_sha256 or "")
    try:
        return Rubric.model_validate(former) if former else None
    except ValidationError:
        return None


def _best(record: ThreadRecord, rubric: Rubric | None) -> Evaluation | None:
    """Return the evaluation of the best draft: that of the run's result, else the best until now; none while a person is asked."""
    if record.state.status == "waiting":
        return None
    if record.ended_turn is not None and record.ended_turn.best_iteration is not None:
        chosen = [evaluation for evaluation in record.own if evaluation.iteration == record.ended_turn.best_iteration]
        if chosen:
            return chosen[-1]
    return best_evaluation(rubric, record.own) if rubric is not None else None


def _ungraded(record: ThreadRecord) -> int | None:
    """Return the index of the last answer of a turn that was not graded."""
    if record.ended_turn is None or record.ended_turn.status is not None:
        return None
    answers = (at for at, message in enumerate(record.messages) if message.role == "assistant" and not message.tool_calls)
    return max(answers, default=None)


def _error(record: ThreadRecord, word: str) -> str | None:
    if record.ended_turn is not None and record.ended_turn.error is not None:
        return record.ended_turn.error
    return record.own[-1].explanation if record.own and VERDICTS.get(word) == "error" else None


def _about(record: ThreadRecord) -> Iterator[tuple[str, str]]:
    """Yield the known facts about the thread."""
    graders = dict.fromkeys(evaluation.grader for evaluation in record.evaluations if evaluation.grader)
    versions = dict.fromkeys(evaluation.prompt_version for evaluation in record.evaluations if evaluation.prompt_version)
    variables = record.kept.get("vars")
    facts = {
        "generator": _actor(record.kept.get("generator")),
        "grader": ", ".join(graders) or _actor(record.kept.get("grader")),
        "prompt version": ", ".join(versions),
        "variables": json.dumps(variables, ensure_ascii=False)[:VARIABLES_CHARACTERS] if variables else "",
        "started": record.events[0].time if record.events and not record.dropped_events else _iso(record.described.start_time),
        "closed": _iso(record.described.close_time),
        "interrupted by": record.state.reason or "",
        "forked from": f"{origin.thread_id}, draft {origin.iteration + 1}" if (origin := record.state.forked_from) else "",
        "forks": ", ".join(record.forks),
    }
    yield from ((name, fact) for name, fact in facts.items() if fact)


def _actor(value: JsonValue) -> str:
    """Return the name of a generator or a grader of a checkpoint."""
    actor = mapping(value)
    model = actor.get("model")
    if isinstance(model, str):
        return model
    if isinstance(named := mapping(model).get("id"), str):
        return named
    kind = next((key for key in ("activity", "workflow", "function") if actor.get(key)), None)
    if kind is None:
        return ""
    return f"{kind} {actor[kind]}" + (f" on the task queue {actor['task_queue']}" if actor.get("task_queue") else "")


def _iso(when: datetime | None) -> str:
    return when.isoformat(timespec="milliseconds") if when else ""


def _notes(record: ThreadRecord, rubric: Rubric | None) -> Iterator[str]:
    """Yield notes about what is not shown, or not known."""
    if record.dropped_events:
        yield f"the first {record.dropped_events} events are not shown: a thread keeps only its newest"
    if not record.kept:
        yield "the thread's checkpoint cannot be read, so its generator is unknown"
    now = rubric.sha256() if rubric else None
    others = sum(evaluation.rubric_sha256 is not None and evaluation.rubric_sha256 != now for evaluation in record.evaluations)
    if others:
        which = "another rubric" if rubric else "a rubric"
        yield f"{others} of {len(record.evaluations)} evaluations used {which} that is not shown"


async def read_tool_calls(temporal: Client, workflow_id: str) -> tuple[list[ToolEvidence], list[str]]:
    """Read the tool calls of all runs of a workflow, in the order in which they were made, and notes about what cannot be read.

    `temporal`: connected as the worker is, so that it reads what the worker wrote.
    """
    histories = await read_histories(temporal, workflow_id)
    reader = _ToolCallReader(temporal, workflow_id)
    found = [await reader.read(activity) for run in histories.runs for activity in recorded_activities(run)]
    return [call for call in found if call is not None], list(dict.fromkeys((*histories.notes, *reader.notes)))


GONE = {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}
"""The statuses of a run that the server does not have; the latter where the id is not even well formed."""


class UnreadablePayload(Exception):
    """A payload cannot be read; the message says why."""


@dataclass(frozen=True)
class RunHistory:
    """The events of one run of a workflow."""

    events: Sequence[HistoryEvent]
    closed: bool


@dataclass(frozen=True)
class Histories:
    """The runs of a workflow."""

    runs: tuple[RunHistory, ...]
    """The runs, the oldest first."""
    notes: tuple[str, ...]
    """Sentences about what is missing."""


async def read_histories(temporal: Client, workflow_id: str) -> Histories:
    """Read the histories of a workflow's last run and of those that it continues."""
    runs: list[RunHistory] = []
    seen: set[str] = set()
    try:
        last = await temporal.get_workflow_handle(workflow_id).describe()
        following, closed = last.run_id, last.status != WorkflowExecutionStatus.RUNNING
        # A thread of many turns is a chain of runs: one names the run that it continues in its first event, or
        # in the checkpoint with which it was started. `seen` ends a chain that a forged checkpoint bends into a
        # ring.
        while following not in seen:
            seen.add(following)
            history = await temporal.get_workflow_handle(workflow_id, run_id=following).fetch_history()
            runs.insert(0, RunHistory(history.events, closed))
            before, note = await _find_previous_run(temporal, workflow_id, history.events[0])
            if before is None:
                return Histories(tuple(runs), (note,) if note else ())
            following, closed = before, True
    except RPCError as error:
        if error.status not in GONE:
            raise error_of_rpc(error, workflow_id) from None
    lost = "the history of the workflow's first runs" if runs else "the workflow's history"
    return Histories(tuple(runs), (f"{lost} has expired on the server, so {'their' if runs else 'its'} tool calls are not shown",))


async def _find_previous_run(temporal: Client, workflow_id: str, first: HistoryEvent) -> tuple[str | None, str]:
    """Return the id of the run that a run continues, if any, and a note where it cannot be followed."""
    started = first.workflow_execution_started_event_attributes
    if started.continued_execution_run_id:
        return started.continued_execution_run_id, ""
    try:
        request = await read_start_request(temporal, first)
    except UnreadablePayload as error:
        return None, f"the workflow's input cannot be read: {error}"
    checkpoint = mapping(request.get("checkpoint"))
    run_id = checkpoint.get("temporal_run_id")
    if not isinstance(run_id, str) or not run_id:
        return None, ""
    if (name := mapping(checkpoint.get("thread")).get("thread_id")) != workflow_id:
        return None, f"this thread continues from a checkpoint of {clip(str(name))}, whose tool calls are not shown"
    return run_id, ""


async def read_start_request(temporal: Client, first: HistoryEvent) -> dict[str, JsonValue]:
    """Read the object that a workflow was started with, by its first event; an empty one where it was another value.

    Raises:
        UnreadablePayload: It is stored where this client does not find it, or encoded as this client cannot read it.
    """
    values = await decode_payloads(temporal, first.workflow_execution_started_event_attributes.input.payloads)
    return mapping(values[0]) if values else {}


async def first_message(temporal: Client, thread_id: str) -> str:
    """Return the message that a thread's last run was started with, read without a worker; empty where it was started with none.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    try:
        async for event in temporal.get_workflow_handle(thread_id).fetch_history_events(page_size=1):
            messages = (await read_start_request(temporal, event)).get("messages")
            first = mapping(messages[0]).get("content") if isinstance(messages, list) and messages else None
            return first if isinstance(first, str) else ""
    except RPCError as error:
        if error.status not in GONE:
            raise error_of_rpc(error, thread_id) from None
    except UnreadablePayload:
        pass
    return ""


async def decode_payloads(temporal: Client, payloads: Sequence[Payload]) -> list[JsonValue]:
    """Read payloads as plain JSON, from external storage too; raise UnreadablePayload where one cannot be fetched or decoded."""
    try:
        copies = [Payload.FromString(payload.SerializeToString()) for payload in payloads]  # some codecs write into what they are given
        return await temporal.data_converter.decode(copies)
    except Exception as error:  # noqa: BLE001 - a storage or a codec may raise anything
        raise UnreadablePayload(f"{type(error).__name__}: {error}") from None


def mapping(value: JsonValue) -> dict[str, JsonValue]:
    """Return the value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


Ending = Literal["completed", "failed", "timed_out", "canceled"]

LOST = "the result is unknown: the workflow closed before the call ended"

CANCELLED = "cancelled before it ended"


@dataclass
class RecordedActivity:
    """An activity that was scheduled; its later events are filled in as they are read."""

    scheduled: HistoryEvent
    closed: bool
    """True where the run of the workflow is closed, so that no event will follow."""
    started: HistoryEvent | None = None
    ended: HistoryEvent | None = None
    ending: Ending | None = None

    @property
    def type(self) -> str:
        """The activity's type."""
        return self.scheduled.activity_task_scheduled_event_attributes.activity_type.name

    @property
    def summary(self) -> Sequence[Payload]:
        """The summary's payload, if it has one."""
        return [self.scheduled.user_metadata.summary] if self.scheduled.user_metadata.HasField("summary") else []

    @property
    def input(self) -> Sequence[Payload]:
        """The arguments' payloads."""
        return self.scheduled.activity_task_scheduled_event_attributes.input.payloads

    @property
    def output(self) -> Sequence[Payload]:
        """The result's payloads; none where it did not complete."""
        return self.ended.activity_task_completed_event_attributes.result.payloads if self.ended and self.ending == "completed" else []

    @property
    def attempts(self) -> int:
        """The number of its attempts; the history has it once the activity has ended."""
        return max(self.started.activity_task_started_event_attributes.attempt, 1) if self.started else 1

    @property
    def seconds(self) -> float | None:
        """Seconds that it took; with several attempts from its scheduling, since the first start is not kept."""
        if self.ended is None or self.started is None:
            return None
        start = self.scheduled if self.attempts > 1 else self.started
        return max(round((self.ended.event_time.ToNanoseconds() - start.event_time.ToNanoseconds()) / 1e9, 3), 0.0)

    async def error_text(self, temporal: Client) -> str | None:
        """Return why it has no result; None where it has one, or may still have one."""
        if self.ended is None:
            return LOST if self.closed else None
        if self.ending in {"failed", "timed_out"}:
            failure = getattr(self.ended, f"activity_task_{self.ending}_event_attributes").failure
            return describe_failure(await temporal.data_converter.decode_failure(failure))
        return CANCELLED if self.ending == "canceled" else None


def recorded_activities(run: RunHistory) -> list[RecordedActivity]:
    """Return the activities of a run, in the order in which they were scheduled."""
    found: dict[int, RecordedActivity] = {}
    for event in run.events:
        kind = str(event.WhichOneof("attributes"))
        step = kind.removeprefix("activity_task_").removesuffix("_event_attributes")
        if step == "scheduled":
            found[event.event_id] = RecordedActivity(event, run.closed)
        elif step == "started":
            found[event.activity_task_started_event_attributes.scheduled_event_id].started = event
        elif step in get_args(Ending):
            activity = found[getattr(event, kind).scheduled_event_id]
            activity.ended, activity.ending = event, cast(Ending, step)
    return list(found.values())


EVIDENCE = "evidence "
"""The beginning of a tool call's summary; the tool's name follows."""

READ_TRANSCRIPT = "read_transcript"

GRADE = "grade"
"""The activity that asks a grader; its request names the pass, and the criteria of the conversation."""

_OPERATION = re.compile(r"(?P<run>.*):(?P<iteration>\d+):(?P<role>check|grader|generator)\.(?P<rest>.*)", re.DOTALL)
"""The id of a tool call: run, iteration and step, as `workflows/tool_calls.py` builds it."""

_GROUP = re.compile(r"\d+\.(?P<group>\d+)\.(?P<sample>\d+)\.\d+\.\d+")
"""The step of a grader: draft, call group, sample, turn, position."""

_SCRATCH = re.compile(r"scratch/(?P<run>.*)/(?P<iteration>\d+)/(?P<group>\d+)/(?P<sample>\d+)", re.DOTALL)

Place = tuple[str, int]


class _ToolCallReader:
    """Reads the tool calls among a workflow's activities."""

    def __init__(self, temporal: Client, workflow_id: str) -> None:
        self._temporal = temporal
        self._workflow_id = workflow_id
        self._grades: list[RecordedActivity] = []
        """The grader calls that are not read yet: only a grader's tool call needs them."""
        self._criteria: dict[tuple[str, int, str, str], Sequence[JsonValue]] = {}
        """The criteria of a conversation, by run, iteration, call group and sample."""
        self._place: Place | None = None
        """Run and iteration of the newest pass that was read."""
        self.notes: list[str] = []

    async def read(self, activity: RecordedActivity) -> ToolEvidence | None:
        """Return the activity as a tool call; None where it is none, or cannot be read."""
        if activity.type == GRADE:
            # A tool's call names its conversation but not the criteria of it; those stand in the request of the
            # call of the grader before. To decode these takes a fetch each where payloads are stored outside, so
            # it waits until a tool call needs them.
            self._grades.append(activity)
            return None
        tool = await self._tool(activity)
        if tool is None:
            return None
        try:
            return await self._read(tool, activity)
        except (UnreadablePayload, ValidationError) as error:
            self.notes.append(f"a call of {tool} cannot be read and is not shown: {' '.join(str(error).split())[:200]}")
            return None

    async def _tool(self, activity: RecordedActivity) -> str | None:
        """Return the name of the tool that an activity calls, if it is one."""
        try:
            summary = await self._value(activity.summary)
        except UnreadablePayload:
            return activity.type.removeprefix("tool.") if activity.type.startswith("tool.") else None
        if not isinstance(summary, str) or not summary.startswith(EVIDENCE):
            return None
        return READ_TRANSCRIPT if activity.type == READ_TRANSCRIPT else summary.removeprefix(EVIDENCE)

    async def _read(self, tool: str, activity: RecordedActivity) -> ToolEvidence:
        request = mapping(await self._value(activity.input))
        caller = await self._caller(request, activity)
        evidence = await self._evidence(activity, request, is_check=caller["role"] == "check")
        found = {"tool": tool, "output": evidence.text, "failed": evidence.failed, "bytes": evidence.bytes}
        return ToolEvidence.model_validate(caller | found | {"seconds": activity.seconds, "attempts": activity.attempts})

    async def _caller(self, request: dict[str, JsonValue], activity: RecordedActivity) -> dict[str, object]:
        """Return who called, where and with which arguments, by the request."""
        if activity.type == READ_TRANSCRIPT and "record" in request:
            await self._read_grades()
            run, iteration = self._place or (None, None)
            arguments = {key: request[key] for key in ("record", "offset") if request.get(key)} | {"record": request["record"]}
            return {"role": "grader", "grading_run_id": run, "iteration": iteration, "arguments": arguments}
        arguments = mapping(request.get("arguments"))
        found = _OPERATION.fullmatch(str(request.get("operation_id") or ""))
        if found is None:
            raise UnreadablePayload("its operation_id does not say who made it")
        criterion = request.get("call") if found["role"] == "check" else await self._criterion(found)
        place = {} if found["run"] == self._workflow_id else {"grading_run_id": found["run"], "iteration": int(found["iteration"])}
        return {"role": found["role"], "arguments": arguments, "criterion": criterion} | place

    async def _criterion(self, found: re.Match[str]) -> JsonValue:
        """Return the criterion that a grader judged; None where it judged several, or where it is not known."""
        step = _GROUP.fullmatch(found["rest"]) if found["role"] == "grader" else None
        if step is None:
            return None
        await self._read_grades()
        ids = self._criteria.get((found["run"], int(found["iteration"]), step["group"], step["sample"]), ())
        return ids[0] if len(ids) == 1 else None

    async def _read_grades(self) -> None:
        """Read the criteria of the grader calls that came since."""
        grades, self._grades = self._grades, []
        for grade in grades:
            try:
                request = mapping(await self._value(grade.input))
            except UnreadablePayload as error:
                self.notes.append(f"a grader call cannot be read, so the criterion of its tool calls is unknown: {error}")
                continue
            found = _SCRATCH.fullmatch(str(mapping(request.get("scratch")).get("key")))
            ids = request.get("asked")
            if found is not None and isinstance(ids, list):
                self._place = found["run"], int(found["iteration"])
                self._criteria[(*self._place, found["group"], found["sample"])] = ids

    async def _evidence(self, activity: RecordedActivity, request: dict[str, JsonValue], *, is_check: bool) -> Evidence:
        """Return what a call found, or its error; empty where it has not ended."""
        call = str(request.get("call") or "")
        if (error_text := await activity.error_text(self._temporal)) is not None:
            return build_evidence(call, error_text, failed=True)
        if activity.ended is None:
            return Evidence(call=call, text="")
        value = await self._value(activity.output)
        if "check" not in request and activity.type != READ_TRANSCRIPT:  # a remote tool may return anything
            return _remote_evidence(call, value, is_check=is_check)
        found = Evidence.model_validate(value)
        return found.model_copy(update={"text": _outcome_text(found.outcome)}) if found.outcome else found

    async def _value(self, payloads: Sequence[Payload]) -> JsonValue:
        values = await decode_payloads(self._temporal, payloads)
        return values[0] if values else None


def _remote_evidence(call: str, value: JsonValue, *, is_check: bool) -> Evidence:
    if not is_check:
        return build_evidence(call, value)
    try:
        return Evidence(call=call, text=_outcome_text(parse_check_outcome(value)))
    except TypeError as error:
        return build_evidence(call, f"checker_error: {error}", failed=True)


def _outcome_text(outcome: CheckOutcome) -> str:
    return "passed" if outcome.passed else f"not passed: {outcome.gap}"
