"""What must hold after a storm, computed from what a thread's callers know and from what the models say."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gradeloop.client.client import GradingClient
from gradeloop.contract.base import Page
from gradeloop.contract.evaluation import Evaluation, Event
from gradeloop.contract.messages import Message
from gradeloop.contract.thread import RunResult, ThreadState
from lab.storm import script
from lab.storm.diary import AskedTurn, Diary

ENDED = {"satisfied", "max_iterations_reached"}
"""The statuses that a run of this script ends with; `superseded` besides, where another rubric took over."""

MAX_ITERATIONS = 3


@dataclass(frozen=True)
class ThreadRecord:
    """All that a thread holds."""

    messages: list[Message]
    evaluations: list[Evaluation]
    events: list[Event]
    state: ThreadState

    @property
    def answers(self) -> int:
        """How many answers of models it holds: drafts, and verdicts that were not known before."""
        asked = sum(any(row.by == "model" for row in evaluation.criteria) for evaluation in self.evaluations)
        return asked + sum(message.role == "assistant" for message in self.messages)

    @classmethod
    async def read(cls, client: GradingClient, thread: str) -> "ThreadRecord":
        """Read a thread by its queries."""
        return cls(
            messages=await _all(client.messages, thread),
            evaluations=await _all(client.evaluations, thread),
            events=await _all(client.events, thread),
            state=await client.state(thread),
        )


async def _all(query: Callable[..., Any], thread: str) -> list[Any]:
    found, after = list[Any](), 0
    while True:
        page: Page[Any] = await query(thread, after=after)
        found += page.items
        if page.next is None:
            return found
        after = page.next


def faults_of(diary: Diary, record: ThreadRecord) -> list[str]:
    """Return whatever is not as it has to be, as sentences."""
    if any(evaluation.draft >= len(record.messages) for evaluation in record.evaluations):
        return [f"{diary.thread}: an evaluation is of a message that the thread does not have"]
    found = [
        *diary.faults,
        *_not_finished(diary, record),
        *_wrong_messages(diary, record),
        *_wrong_evaluations(diary, record),
        *_wrong_events(record),
    ]
    for turn in diary.turns:
        found += [f"{turn.key}: {fault}" for fault in _wrong_result(turn, diary, record)]
    return [f"{diary.thread}: {fault}" for fault in found]


def _not_finished(diary: Diary, record: ThreadRecord) -> Iterator[str]:
    state = record.state
    if not diary.finished:
        yield "its callers did not come to an end"
    if state.status != "idle" or state.queued:
        yield f"it is {state.status} at the end, with {state.queued} turns in the queue"
    possible = [rubric for at, rubric in enumerate(diary.rubrics) if not any(later.acknowledged for later in diary.rubrics[at + 1 :])]
    if state.rubric_sha256 not in {rubric.sha256 for rubric in possible}:
        yield f"its rubric is not the last one that it was given: {state.rubric}"


def _wrong_messages(diary: Diary, record: ThreadRecord) -> Iterator[str]:
    """Compare the conversation with the turns that were asked, and all drafts with what the generator says to what was there."""
    spoken = [(message.role, message.content) for message in record.messages]
    said = [number for _, content in spoken if (number := script.turn_number(content)) is not None]
    yield from (
        f"the message of turn {turn.number} is there {said.count(turn.number)} times"
        for turn in diary.turns
        if said.count(turn.number) != 1
    )
    for one in diary.turns:
        for other in diary.turns:
            before = one.ended is not None and one.ended < other.sent
            if before and {one.number, other.number} <= set(said) and said.index(one.number) > said.index(other.number):
                yield f"turn {other.number} was asked after turn {one.number} had ended, and stands before it"
    for at, message in enumerate(record.messages):
        if message.role == "assistant" and message.content != script.draft_after(spoken[:at]):
            yield f"message {at} is {message.content!r} in place of {script.draft_after(spoken[:at])!r}"
        elif message.source is not None:
            yield from _wrong_feedback(at, diary, record)
        elif message.role == "user" and script.turn_number(message.content) is None:
            yield f"message {at} came from nobody: {message.content!r}"
        elif message.role == "tool":
            yield f"message {at} is a tool's: {message.content!r}"


def _wrong_feedback(at: int, diary: Diary, record: ThreadRecord) -> Iterator[str]:
    """See that feedback follows the draft that it is about, and is the newest rubric's that judged this draft."""
    about = [evaluation for evaluation in record.evaluations if evaluation.draft == at - 1]
    asked = [rubric.text.removeprefix("- ") for rubric in diary.rubrics if about and rubric.sha256 == about[-1].rubric_sha256]
    if not asked or about[-1].result != "needs_revision" or asked[0] not in record.messages[at].content:
        yield f"message {at} is feedback that no evaluation gave: {record.messages[at].content!r}"


def _wrong_evaluations(diary: Diary, record: ThreadRecord) -> Iterator[str]:
    """Judge every draft anew, and see that each rubric is one that was given, no earlier than the one before it."""
    place, iterations = 0, Counter[str]()
    texts = {rubric.sha256: rubric.text for rubric in diary.rubrics}
    for at, evaluation in enumerate(record.evaluations):
        if evaluation.iteration != iterations[evaluation.grading_run_id]:
            yield f"evaluation {at} is of iteration {evaluation.iteration}, and the run's {iterations[evaluation.grading_run_id] + 1}th"
        iterations[evaluation.grading_run_id] += 1
        text = texts.get(evaluation.rubric_sha256 or "")
        draft = record.messages[evaluation.draft]
        if text is None or draft.role != "assistant":
            yield f"evaluation {at} is by a rubric that nobody gave, or of a message that is no draft: {evaluation}"
            continue
        while place < len(diary.rubrics) and diary.rubrics[place].sha256 != evaluation.rubric_sha256:
            place += 1
        if place == len(diary.rubrics):
            yield f"evaluation {at} is by a rubric that another one had replaced: {text!r}"
            return
        met = script.is_met(text, draft.content)
        last = evaluation.iteration + 1 >= MAX_ITERATIONS
        right = ("satisfied", "satisfied") if met else ("needs_revision", "max_iterations_reached" if last else "running")
        if (evaluation.result, evaluation.status) != right:
            yield f"evaluation {at} of {draft.content!r} by {text!r} is {evaluation.result}, {evaluation.status}: {evaluation.explanation}"


def _wrong_events(record: ThreadRecord) -> Iterator[str]:
    """Compare the events with one another and with what they point to."""
    if [event.seq for event in record.events] != list(range(1, len(record.events) + 1)):
        yield "events are missing or doubled"
    by_type: dict[str, list[Event]] = {}
    for event in record.events:
        by_type.setdefault(event.type, []).append(event)
    if [event.index for event in by_type.get("message", [])] != list(range(len(record.messages))):
        yield "not every message has its event"
    ends = by_type.get("rubric_evaluation_end", [])
    if [event.index for event in ends] != list(range(len(record.evaluations))):
        yield f"{len(record.evaluations)} evaluations have the events {[event.index for event in ends]}"
    yield from _wrong_runs(by_type, record)
    newest = -1
    for event in record.events:
        if event.type == "message" and event.index is not None:
            newest = event.index
        elif event.type == "rubric_evaluation_end" and event.index is not None and event.index < len(record.evaluations):
            evaluation = record.evaluations[event.index]
            if evaluation.draft != newest:
                yield f"evaluation {event.index} is of message {evaluation.draft}, and the newest was {newest}"
            if (evaluation.grading_run_id, evaluation.iteration) != (event.grading_run_id, event.iteration):
                yield f"evaluation {event.index} is of another run or iteration than its event"


def _wrong_runs(by_type: dict[str, list[Event]], record: ThreadRecord) -> Iterator[str]:
    """See that every run begins once and ends once."""
    begun = Counter(event.grading_run_id for event in by_type.get("run_started", []))
    ended = Counter(event.grading_run_id for event in by_type.get("run_ended", []))
    yield from (f"the run {run} began {count} times" for run, count in begun.items() if count > 1)
    yield from (f"the run {run} ended {ended[run]} times" for run in begun if ended[run] != 1)
    yield from (f"run_ended: {event.status}" for event in by_type.get("run_ended", []) if event.status not in ENDED | {"superseded"})
    judged = {evaluation.grading_run_id for evaluation in record.evaluations}
    yield from (f"the run {run} was judged, and never began" for run in judged - set(begun))


def _wrong_result(turn: AskedTurn, diary: Diary, record: ThreadRecord) -> Iterator[str]:
    """Compare a turn's result with what the thread holds and with what the rubric asked."""
    result = turn.result
    if result is None:
        yield "it has no result"
        return
    if turn.overtaken:
        if result.status != "interrupted":
            yield f"it was overtaken, and is {result.status}"
        return
    if result.status not in ENDED or result.error is not None:
        yield f"it ended as {result.status}: {result.error}"
        return
    if result.messages is not None:
        yield from _wrong_drafts(turn, result)
    yield from _wrong_verdict(turn, result, diary, record)


def _wrong_drafts(turn: AskedTurn, result: RunResult) -> Iterator[str]:
    messages = result.messages or ()
    drafts = [message.content for message in messages if message.role == "assistant"]
    if not messages or messages[0].content != turn.text:
        yield f"its messages begin with {messages[0].content if messages else None!r}"
    if not drafts or any(script.draft_turn(draft) != turn.number for draft in drafts):
        yield f"its drafts are {drafts}"
        return
    if result.output not in drafts or result.last_output != drafts[-1]:
        yield f"its output is {result.output!r}, its last one {result.last_output!r}, and its drafts are {drafts}"


def _wrong_verdict(turn: AskedTurn, result: RunResult, diary: Diary, record: ThreadRecord) -> Iterator[str]:
    run = [evaluation for evaluation in record.evaluations if evaluation.grading_run_id == result.grading_run_id]
    if not result.evaluations or list(result.evaluations) != run[: len(result.evaluations)]:
        yield "its evaluations are not those that the thread has of its run"
        return
    last = result.evaluations[-1]
    if last.status != result.status:
        yield f"it is {result.status}, and its last evaluation says {last.status}"
    if script.draft_turn(record.messages[last.draft].content) != turn.number:
        yield f"its last evaluation is of {record.messages[last.draft].content!r}"
    if (result.status == "satisfied") != (result.output == record.messages[last.draft].content and last.result == "satisfied"):
        yield f"it is {result.status} with {result.output!r}"
    known = [at for at, rubric in enumerate(diary.rubrics[: turn.known_rubrics]) if rubric.acknowledged]
    allowed = {rubric.sha256 for rubric in diary.rubrics[known[-1] if known else 0 :]}
    if last.rubric_sha256 not in allowed:
        yield "it was judged by a rubric that had been replaced before it was asked"
