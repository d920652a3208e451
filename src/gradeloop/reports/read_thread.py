"""Threads read for their pages: messages, evaluations, and evidence from their histories."""

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeVar

from google.protobuf.message import Message as Proto
from pydantic import JsonValue, ValidationError
from temporalio import exceptions
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.client.client import GradingClient
from gradeloop.client.thread import ThreadHandle, error_of_rpc
from gradeloop.contract.base import Page
from gradeloop.contract.evaluation import CheckOutcome, Evaluation, Event, Evidence, build_evidence, parse_check_outcome
from gradeloop.contract.messages import Message
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import TASK_QUEUE, RunResult, ThreadState
from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.grading.scoring import best_evaluation
from gradeloop.reports.model import RunReport, ToolEvidence, Verdict
from gradeloop.text import clip

GONE = {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}
"""How the server says that it has no such run; the latter of an id that is none of its own."""


class UnreadablePayload(Exception):
    """A payload cannot be read; the message says why."""


@dataclass(frozen=True)
class RunHistory:
    """What happened in one run of a workflow."""

    events: Sequence[HistoryEvent]
    closed: bool


@dataclass(frozen=True)
class Histories:
    """The runs of a workflow."""

    runs: tuple[RunHistory, ...]
    """The oldest first."""
    notes: tuple[str, ...]
    """What is missing, in words."""


async def histories(temporal: Client, workflow_id: str) -> Histories:
    """Return the histories of a workflow's last run and of those that it goes on from.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    runs: list[RunHistory] = []
    seen: set[str] = set()
    try:
        last = await temporal.get_workflow_handle(workflow_id).describe()
        following, closed = last.run_id, last.status != WorkflowExecutionStatus.RUNNING
        while following not in seen:
            seen.add(following)
            history = await temporal.get_workflow_handle(workflow_id, run_id=following).fetch_history()
            runs.insert(0, RunHistory(history.events, closed))
            before, note = await _before(temporal, workflow_id, history.events[0])
            if before is None:
                return Histories(tuple(runs), (note,) if note else ())
            following, closed = before, True
    except RPCError as error:
        if error.status not in GONE:
            raise error_of_rpc(error, workflow_id) from None
    return Histories(tuple(runs), (_missing(len(runs)),))


def _missing(found: int) -> str:
    if not found:
        return "the workflow's history has expired on the server, so its tool calls are not shown"
    return "the history of the workflow's first runs has expired on the server, so their tool calls are not shown"


async def _before(temporal: Client, workflow_id: str, first: HistoryEvent) -> tuple[str | None, str]:
    """Return the run that a run goes on from, if any, and what cannot be told."""
    begun = first.workflow_execution_started_event_attributes
    if begun.continued_execution_run_id:
        return begun.continued_execution_run_id, ""
    try:
        given = await started_with(temporal, first)
    except UnreadablePayload as error:
        return None, f"the workflow's input cannot be read: {error}"
    checkpoint = mapping(given.get("checkpoint"))
    run_id = checkpoint.get("temporal_run_id")
    if not isinstance(run_id, str) or not run_id:
        return None, ""
    if (name := mapping(checkpoint.get("thread")).get("thread_id")) != workflow_id:
        return None, f"this thread continues from a checkpoint of {clip(str(name))}, whose tool calls are not shown"
    return run_id, ""


async def started_with(temporal: Client, first: HistoryEvent) -> dict[str, JsonValue]:
    """Return the object that a workflow was started with, by its first event; an empty one where it is none.

    Raises:
        Unreadable: It is stored where this client does not find it, or written as it cannot read.
    """
    values = await decoded(temporal, first.workflow_execution_started_event_attributes.input.payloads)
    return mapping(values[0]) if values else {}


async def decoded(temporal: Client, payloads: Sequence[Payload]) -> list[JsonValue]:
    """Return payloads as plain JSON, fetched from external storage where they are kept there.

    Raises:
        Unreadable: One of them cannot be had, or read.
    """
    try:
        return await temporal.data_converter.decode([_copy(payload) for payload in payloads])
    except Exception as error:  # noqa: BLE001 - a storage's or a codec's, whatever it raises
        raise UnreadablePayload(f"{type(error).__name__}: {error}") from None


def _copy(payload: Payload) -> Payload:
    """Return a payload of its own: some codecs write into what they are given."""
    mine: Proto = Payload()
    mine.CopyFrom(payload)
    return mine  # type: ignore[return-value]


def mapping(value: JsonValue) -> dict[str, JsonValue]:
    """Return the value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


Item = TypeVar("Item")


@dataclass(frozen=True)
class ThreadRecord:
    """A thread as it was read: messages last, so that whatever refers to one finds it."""

    thread_id: str
    described: WorkflowExecutionDescription
    """Of its last Temporal run."""
    state: ThreadState
    result: RunResult | None
    evaluations: tuple[Evaluation, ...]
    events: tuple[Event, ...]
    dropped_events: int
    """How many older ones the thread does not keep any more."""
    messages: tuple[Message, ...]
    kept: dict[str, JsonValue]
    """The thread in its checkpoint; empty where that cannot be read."""

    @property
    def is_open(self) -> bool:
        """True where its last Temporal run is."""
        return self.described.status == WorkflowExecutionStatus.RUNNING

    @property
    def own(self) -> tuple[Evaluation, ...]:
        """The evaluations of the grading run in flight, else of the last one; none where the last turn was not graded."""
        return tuple(evaluation for evaluation in self.evaluations if evaluation.grading_run_id == self.state.grading_run_id)

    @property
    def settled(self) -> RunResult | None:
        """What the last turn came to; None where another one is in flight."""
        current = self.result is not None and self.result.grading_run_id == self.state.grading_run_id
        return self.result if current and self.state.status != "running" else None


async def thread_record(reader: GradingClient, thread_id: str) -> ThreadRecord:
    """Read a thread.

    Raises:
        ThreadNotFound: There is none of that id.
        ServerUnreachable: The server does not answer, or no worker does.
        InvalidRequest: The thread was refused when it was started.
    """
    described = await ThreadHandle(reader.temporal, thread_id, TASK_QUEUE).describe()
    state = await reader.state(thread_id)
    result = await reader.last_result(thread_id)
    evaluations, _ = await _all(lambda after: reader.evaluations(thread_id, after=after))
    events, dropped = await _all(lambda after: reader.events(thread_id, after=after))
    messages, _ = await _all(lambda after: reader.messages(thread_id, after=after))
    kept = await _kept(reader, thread_id)
    return ThreadRecord(thread_id, described, state, result, evaluations, events, dropped, messages, kept)


async def _all(page: Callable[[int], Awaitable[Page[Item]]]) -> tuple[tuple[Item, ...], int]:
    """Return the items of all pages, and how many before them are gone."""
    found: list[Item] = []
    after: int | None = 0
    first: int | None = None
    while after is not None:
        told = await page(after)
        found += told.items
        first, after = told.first if first is None else first, told.next
    return tuple(found), first or 0


async def _kept(reader: GradingClient, thread_id: str) -> dict[str, JsonValue]:
    try:
        return mapping((await reader.checkpoint(thread_id)).get("thread"))
    except (InvalidRequest, ServerUnreachable):  # a thread may be larger than what one answer takes
        return {}


Ending = Literal["completed", "failed", "timed_out", "canceled"]

LOST = "the result is unknown: the workflow closed before the call ended"

CANCELLED = "cancelled before it ended"


@dataclass
class RecordedActivity:
    """An activity that was scheduled; what comes after is filled in as the history goes on."""

    scheduled: HistoryEvent
    closed: bool
    """Whether the run of the workflow is, so that nothing more will be heard."""
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
        """How often it was tried; the history tells so once it has ended."""
        return max(self.started.activity_task_started_event_attributes.attempt, 1) if self.started else 1

    @property
    def seconds(self) -> float | None:
        """How long it took; where it was tried again, from when it was scheduled, since the first start is not kept."""
        if self.ended is None or self.started is None:
            return None
        begun = self.scheduled if self.attempts > 1 else self.started
        return max(round((self.ended.event_time.ToNanoseconds() - begun.event_time.ToNanoseconds()) / 1e9, 3), 0.0)

    async def trouble(self, temporal: Client) -> str | None:
        """Return why it has no result, in words; None where it has one, or may still."""
        if self.ended is None:
            return LOST if self.closed else None
        if self.ending == "failed":
            failed = self.ended.activity_task_failed_event_attributes.failure
            return _told(await temporal.data_converter.decode_failure(failed))
        if self.ending == "timed_out":
            late = self.ended.activity_task_timed_out_event_attributes.failure
            return _told(await temporal.data_converter.decode_failure(late))
        return CANCELLED if self.ending == "canceled" else None


def recorded_activities(run: RunHistory) -> list[RecordedActivity]:
    """Return the activities of a run, in the order in which they were scheduled."""
    found: dict[int, RecordedActivity] = {}
    for event in run.events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            found[event.event_id] = RecordedActivity(event, run.closed)
        elif event.HasField("activity_task_started_event_attributes"):
            found[event.activity_task_started_event_attributes.scheduled_event_id].started = event
        elif (ending := _ending(event)) is not None:
            activity = found[ending[1]]
            activity.ended, activity.ending = event, ending[0]
    return list(found.values())


def _ending(event: HistoryEvent) -> tuple[Ending, int] | None:
    """Return how an activity ended, and which; None where the event tells of something else."""
    if event.HasField("activity_task_completed_event_attributes"):
        return "completed", event.activity_task_completed_event_attributes.scheduled_event_id
    if event.HasField("activity_task_failed_event_attributes"):
        return "failed", event.activity_task_failed_event_attributes.scheduled_event_id
    if event.HasField("activity_task_timed_out_event_attributes"):
        return "timed_out", event.activity_task_timed_out_event_attributes.scheduled_event_id
    if event.HasField("activity_task_canceled_event_attributes"):
        return "canceled", event.activity_task_canceled_event_attributes.scheduled_event_id
    return None


def _told(error: BaseException) -> str:
    """Return what went wrong in the words in which the thread was told."""
    if isinstance(error, exceptions.ApplicationError):
        return f"{error.type}: {error.message}" if error.type else error.message
    if isinstance(error, exceptions.TimeoutError) and error.type == exceptions.TimeoutType.SCHEDULE_TO_START:
        return "no_worker: no worker took the call in time; start a worker on that task queue"
    if isinstance(error, exceptions.TimeoutError):
        return f"timeout: no result in time ({error.message})"
    return f"{type(error).__name__}: {error}"


EVIDENCE = "evidence "
"""How the summary of a tool call begins; the tool's name comes after."""

READ_TRANSCRIPT = "read_transcript"

GRADE = "grade"
"""The activity that asks a grader; it names the pass, and the criteria of the conversation."""

_OPERATION = re.compile(r"(?P<run>.*):(?P<iteration>\d+):(?P<role>check|grader|generator)\.(?P<rest>.*)", re.DOTALL)
"""Of a tool call's id: run, iteration and step, as `workflows/tool_calls.py` puts them together."""

_GROUP = re.compile(r"\d+\.(?P<group>\d+)\.(?P<sample>\d+)\.\d+\.\d+")
"""Of a grader's step: draft, call group, sample, turn, position."""

_SCRATCH = re.compile(r"scratch/(?P<run>.*)/(?P<iteration>\d+)/(?P<group>\d+)/(?P<sample>\d+)", re.DOTALL)

Place = tuple[str, int]


async def tool_uses(temporal: Client, workflow_id: str) -> tuple[list[ToolEvidence], list[str]]:
    """Return the tool calls of all runs of a workflow, in the order in which they were made, and what could not be read, in words.

    Args:
        temporal: Connected as the worker is, so that it reads what the worker wrote.
        workflow_id: Of a thread, or of a judgement.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    held = await histories(temporal, workflow_id)
    reading = _Reading(temporal, workflow_id)
    found = [await reading.use(activity) for run in held.runs for activity in recorded_activities(run)]
    return [each for each in found if each is not None], list(dict.fromkeys((*held.notes, *reading.notes)))


class _Reading:
    """Tells tool calls among a workflow's activities."""

    def __init__(self, temporal: Client, workflow_id: str) -> None:
        self._temporal = temporal
        self._workflow_id = workflow_id
        self._grades: list[RecordedActivity] = []
        """Those that nobody has had to look into yet."""
        self._asked: dict[tuple[str, int, str, str], Sequence[JsonValue]] = {}
        """The criteria of a conversation, by run, iteration, call group and sample."""
        self._place: Place | None = None
        """Run and iteration of the newest pass that was looked into."""
        self.notes: list[str] = []

    async def use(self, activity: RecordedActivity) -> ToolEvidence | None:
        """Return the activity as a tool call; None where it is none, or cannot be read."""
        if activity.type == GRADE:
            self._grades.append(activity)
            return None
        tool = await self._tool(activity)
        if tool is None:
            return None
        try:
            return await self._use(tool, activity)
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

    async def _use(self, tool: str, activity: RecordedActivity) -> ToolEvidence:
        asked = mapping(await self._value(activity.input))
        told = await self._told(asked, activity)
        evidence = await self._evidence(activity, asked, is_check=told["role"] == "check")
        found = {"tool": tool, "output": evidence.text, "failed": evidence.failed, "bytes": evidence.bytes}
        return ToolEvidence.model_validate(told | found | {"seconds": activity.seconds, "attempts": activity.attempts})

    async def _told(self, asked: dict[str, JsonValue], activity: RecordedActivity) -> dict[str, object]:
        """Return who called, where and with what, as the request tells."""
        if activity.type == READ_TRANSCRIPT and "record" in asked:
            await self._learn()
            run, iteration = self._place or (None, None)
            arguments = {key: asked[key] for key in ("record", "offset") if asked.get(key)} | {"record": asked["record"]}
            return {"role": "grader", "grading_run_id": run, "iteration": iteration, "arguments": arguments}
        arguments = mapping(asked.get("arguments"))
        found = _OPERATION.fullmatch(str(asked.get("operation_id") or ""))
        if found is None:  # a history of before calls had ids
            role = "check" if asked.get("check") else "grader" if asked.get("draft") else "generator"
            return {"role": role, "arguments": arguments, "criterion": asked.get("call") if role == "check" else None}
        criterion = asked.get("call") if found["role"] == "check" else await self._criterion(found)
        place = {} if found["run"] == self._workflow_id else {"grading_run_id": found["run"], "iteration": int(found["iteration"])}
        return {"role": found["role"], "arguments": arguments, "criterion": criterion} | place

    async def _criterion(self, found: re.Match[str]) -> JsonValue:
        """Return the criterion that a grader was asked about; None where it was asked about several, or that cannot be told."""
        step = _GROUP.fullmatch(found["rest"]) if found["role"] == "grader" else None
        if step is None:
            return None
        await self._learn()
        ids = self._asked.get((found["run"], int(found["iteration"]), step["group"], step["sample"]), ())
        return ids[0] if len(ids) == 1 else None

    async def _learn(self) -> None:
        """Look into the calls of graders that came since."""
        grades, self._grades = self._grades, []
        for grade in grades:
            try:
                asked = mapping(await self._value(grade.input))
            except UnreadablePayload as error:
                self.notes.append(f"a grader call cannot be read, so the criterion of its tool calls is unknown: {error}")
                continue
            found = _SCRATCH.fullmatch(str(mapping(asked.get("scratch")).get("key")))
            ids = asked.get("asked")
            if found is not None and isinstance(ids, list):
                self._place = found["run"], int(found["iteration"])
                self._asked[(*self._place, found["group"], found["sample"])] = ids

    async def _evidence(self, activity: RecordedActivity, asked: dict[str, JsonValue], *, is_check: bool) -> Evidence:
        """Return what a call found, or its error; empty where it has not ended."""
        call = str(asked.get("call") or "")
        if (trouble := await activity.trouble(self._temporal)) is not None:
            return build_evidence(call, trouble, failed=True)
        if activity.ended is None:
            return Evidence(call=call, text="")
        value = await self._value(activity.output)
        if "check" not in asked and activity.type != READ_TRANSCRIPT:  # somebody else's, who returns what he likes
            return _foreign(call, value, is_check=is_check)
        found = Evidence.model_validate(value)
        return found.model_copy(update={"text": _decided(found.outcome)}) if found.outcome else found

    async def _value(self, payloads: Sequence[Payload]) -> JsonValue:
        values = await decoded(self._temporal, payloads)
        return values[0] if values else None


def _foreign(call: str, value: JsonValue, *, is_check: bool) -> Evidence:
    if not is_check:
        return build_evidence(call, value)
    try:
        return Evidence(call=call, text=_decided(parse_check_outcome(value)))
    except TypeError as error:
        return build_evidence(call, f"checker_error: {error}", failed=True)


def _decided(outcome: CheckOutcome) -> str:
    return "passed" if outcome.passed else f"not passed: {outcome.gap}"


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
"""By status and phase; a run that was interrupted, or that nobody graded, has no verdict."""

VARIABLES_CHARACTERS = 2_000
"""Of a thread's variables, as they are shown."""


async def read_thread_report(client: GradingClient, thread_id: str) -> RunReport:
    """Return the story of a thread, open or closed, with the evidence that the server still keeps.

    Raises:
        ThreadNotFound: There is none of that id.
        ServerUnreachable: The server does not answer, or no worker does.
        InvalidRequest: The thread was refused when it was started.
    """
    record = await thread_record(client, thread_id)
    tools, notes = await tool_uses(client.temporal, thread_id)
    word, rubric, settled = _word(record), _rubric(record), record.settled
    best = _best(record, rubric)
    said = record.own[-1].overridden_result if record.own else None
    return RunReport(
        name=thread_id,
        kind="thread",
        verdict=VERDICTS.get(word, "none"),
        word=word,
        thread_id=thread_id,
        about=dict(_about(record)),
        score=best.score if best else settled.score if settled else None,
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
        overridden=None if said is None else said == "satisfied",
        notes=(*_notes(record, rubric), *notes),
    )


def _word(record: ThreadRecord) -> str:
    """Return the status of the run in flight, else of the last one."""
    state, settled = record.state, record.settled
    if state.status == "running":
        if record.is_open:
            return state.phase or "running"
        return record.described.status.name.lower() if record.described.status else "closed"
    if state.status in {"waiting", "interrupted"}:
        return state.status
    if settled is not None and settled.status is not None:
        return settled.status
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
    """Return the evaluation whose draft stands, as the run's result has it, else as it stands now."""
    if record.settled is not None and record.settled.best_iteration is not None:
        chosen = [each for each in record.own if each.iteration == record.settled.best_iteration]
        if chosen:
            return chosen[-1]
    return best_evaluation(rubric, record.own) if rubric is not None else None


def _ungraded(record: ThreadRecord) -> int | None:
    """Return the last answer of a turn that nobody graded, which stands by itself."""
    if record.settled is None or record.settled.status is not None:
        return None
    answers = (at for at, each in enumerate(record.messages) if each.role == "assistant" and not each.tool_calls)
    return max(answers, default=None)


def _error(record: ThreadRecord, word: str) -> str | None:
    if record.settled is not None and record.settled.error is not None:
        return record.settled.error
    return record.own[-1].explanation if record.own and VERDICTS.get(word) == "error" else None


def _about(record: ThreadRecord) -> Iterator[tuple[str, str]]:
    """Yield facts about the thread that are known."""
    graders = dict.fromkeys(evaluation.grader for evaluation in record.evaluations if evaluation.grader)
    versions = dict.fromkeys(evaluation.prompt_version for evaluation in record.evaluations if evaluation.prompt_version)
    variables = record.kept.get("vars")
    facts = {
        "generator": _named(record.kept.get("generator")),
        "grader": ", ".join(graders) or _named(record.kept.get("grader")),
        "prompt version": ", ".join(versions),
        "variables": json.dumps(variables, ensure_ascii=False)[:VARIABLES_CHARACTERS] if variables else "",
        "started": record.events[0].time if record.events and not record.dropped_events else _iso(record.described.start_time),
        "closed": _iso(record.described.close_time),
        "interrupted by": record.state.reason or "",
    }
    yield from ((name, fact) for name, fact in facts.items() if fact)


def _named(somebody: JsonValue) -> str:
    """Return who drafts or judges, as a checkpoint names them."""
    told = mapping(somebody)
    model = told.get("model")
    if isinstance(model, str):
        return model
    if isinstance(named := mapping(model).get("id"), str):
        return named
    kind = next((key for key in ("activity", "workflow", "function") if told.get(key)), None)
    if kind is None:
        return ""
    return f"{kind} {told[kind]}" + (f" on the task queue {told['task_queue']}" if told.get("task_queue") else "")


def _iso(when: datetime | None) -> str:
    return when.isoformat(timespec="milliseconds") if when else ""


def _notes(record: ThreadRecord, rubric: Rubric | None) -> Iterator[str]:
    """Yield what is not shown, or not known any more."""
    if record.dropped_events:
        yield f"the first {record.dropped_events} events are not shown: a thread keeps only its newest"
    if not record.kept:
        yield "the thread's checkpoint cannot be read, so its generator is unknown"
    now = rubric.sha256() if rubric else None
    others = sum(evaluation.rubric_sha256 is not None and evaluation.rubric_sha256 != now for evaluation in record.evaluations)
    if others:
        which = "another rubric" if rubric else "a rubric"
        yield f"{others} of {len(record.evaluations)} evaluations used {which} that is not shown"
