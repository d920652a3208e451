"""Many threads with everything at once, for a quarter of a minute and for as long as `python -m lab.storm`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from gradeloop.contract.evaluation import Evaluation, Event, EventType
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.thread import RunResult, ThreadState
from lab.storm.checks import ThreadRecord, faults_of
from lab.storm.diary import Diary, GivenRubric, rubric_of
from lab.storm.payments import look_at
from lab.storm.plan import KILLS, Kill, Plan
from lab.storm.provider import ModelCall
from lab.storm.script import draft_after, rubric_text
from lab.storm.storm import storm

SMALL = Plan(threads=20, seconds=15.0, calm=(1.0, 2.0), delay=0.4, grace=0.3, away=1.5, end_seconds=60.0)
WHOLE = Plan()


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(SMALL, id="small", marks=pytest.mark.slow),
        pytest.param(WHOLE, id="whole", marks=pytest.mark.storm),
    ],
)
async def test_every_result_of_a_storm_is_what_it_has_to_be(tmp_path: Path, plan: Plan) -> None:
    async with storm(plan, tmp_path) as prepared:
        report = await prepared.run()
    print(report)

    assert report.faults == []
    assert {kill.kind for kill in report.kills} == set(KILLS)
    events = {"interrupt", "interrupt in a pause", "cancel", "close", "rubric", "caller gone", "turn asked again", "ended turn asked again"}
    lacking = events - set(report.events)
    assert len(lacking) <= (3 if plan == SMALL else 0), lacking  # on a slow host a small storm ends before each of them comes
    assert report.histories >= plan.threads


def calm_thread() -> tuple[Diary, ThreadRecord]:
    """Return a thread of two turns, of which the second needed two drafts, with what its caller knows."""
    rubric = rubric_of(rubric_text(2, 0))
    diary = Diary("t", rubrics=[GivenRubric(rubric.text, rubric.sha256)], finished=True)
    messages, evaluations, events = list[Message](), list[Evaluation](), list[Event]()

    def note(kind: EventType, **fields: Any) -> None:
        events.append(Event.model_validate({"seq": len(events) + 1, "type": kind, "time": "now"} | fields))

    def say(role: Literal["user", "assistant"], content: str, **more: str) -> None:
        messages.append(Message.model_validate({"role": role, "content": content} | more))
        note("message", index=len(messages) - 1)

    for number in range(2):
        turn, run = diary.open_turn(), f"run-{number}"
        begin = len(messages)
        note("run_started", grading_run_id=run)
        say("user", turn.text)
        for iteration in range(2):
            say("assistant", draft_after([(message.role, message.content) for message in messages]))
            result, status = ("satisfied", "satisfied") if iteration else ("needs_revision", "running")
            fields = {"grading_run_id": run, "iteration": iteration, "result": result, "status": status}
            fields |= {"explanation": "", "draft": len(messages) - 1, "rubric_sha256": rubric.sha256}
            evaluations.append(Evaluation.model_validate(fields))
            place = {"grading_run_id": run, "iteration": iteration, "index": len(evaluations) - 1}
            note("rubric_evaluation_end", **place, result=result, status=status)
            if not iteration:
                say("user", f"not yet: {rubric.text.removeprefix('- ')}", source="rubric_grader")
        note("run_ended", grading_run_id=run, status="satisfied")
        output = messages[-1].content
        turn.result = RunResult.model_validate(
            {"thread_id": "t", "grading_run_id": run, "status": "satisfied", "iterations": 2, "output": output, "best_iteration": 1}
            | {"last_output": output, "score": 1.0, "evaluations": evaluations[-2:], "messages": messages[begin:], "usage": Usage()}
            | {"messages_truncated": False, "error": None}
        )
        turn.ended = turn.sent
    state = {
        "status": "idle",
        "phase": None,
        "iteration": 1,
        "rubric": None,
        "rubric_sha256": rubric.sha256,
        "usage": Usage(),
        "queued": 0,
        "waiting_for": None,
    }
    record = ThreadRecord(messages, evaluations, events, ThreadState.model_validate(state | {"grading_run_id": "run-1"}))
    return diary, record


@pytest.mark.slow
def test_a_calm_thread_has_no_faults() -> None:
    assert faults_of(*calm_thread()) == []


WRONG: dict[str, Callable[[Diary, ThreadRecord], object]] = {
    "a message is lost": lambda _, record: record.messages.pop(4),
    "a message came twice": lambda _, record: record.messages.append(record.messages[4]),
    "turns changed places": lambda diary, _: setattr(diary.turns[1], "ended", diary.turns[0].sent - 1),
    "a draft is for another turn": lambda _, record: record.messages.__setitem__(7, record.messages[3]),
    "a verdict is wrong": lambda _, record: replace_evaluation(record, 0, result="satisfied", status="satisfied"),
    "an error came out of a fault": lambda _, record: replace_evaluation(record, 3, result="grader_error", status="grader_error"),
    "an older draft was judged": lambda _, record: replace_evaluation(record, 3, draft=3),
    "nobody gave the rubric": lambda diary, _: diary.rubrics.__setitem__(0, rubric_of(rubric_text(2, 7))),
    "an iteration is missing": lambda _, record: replace_evaluation(record, 3, iteration=2),
    "an event is missing": lambda _, record: record.events.pop(2),
    "a run did not end": lambda _, record: record.events.pop(),
    "a result is missing": lambda diary, _: setattr(diary.turns[0], "result", None),
    "a result is that of the turn before": lambda diary, _: setattr(diary.turns[1], "result", diary.turns[0].result),
    "a result is no result": lambda diary, _: result_of(diary, status="running"),
    "an output is an older draft": lambda diary, _: result_of(diary, output="draft 1 of t: revision 2 for turn 0"),
    "a status is wrong": lambda diary, _: result_of(diary, status="max_iterations_reached"),
}


def replace_evaluation(record: ThreadRecord, at: int, **changed: object) -> None:
    record.evaluations[at] = record.evaluations[at].model_copy(update=changed)


def result_of(diary: Diary, **changed: object) -> None:
    result = diary.turns[1].result
    diary.turns[1].result = result.model_copy(update=changed) if result else None


@pytest.mark.slow
@pytest.mark.parametrize("fault", WRONG)
def test_a_fault_is_found(fault: str) -> None:
    diary, record = calm_thread()
    WRONG[fault](diary, record)

    assert faults_of(diary, record)


@pytest.mark.slow
def test_a_thread_that_is_stuck_is_found() -> None:
    diary, record = calm_thread()
    stuck = replace(record, state=record.state.model_copy(update={"status": "interrupted"}))

    assert any("interrupted at the end" in fault for fault in faults_of(diary, stuck))


def call(began: float, ended: float, outcome: str = "answered") -> ModelCall:
    return ModelCall("t", "grader", "sum", "worker-0", began, ended, outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill", "stop", "reason"),
    [
        (None, None, "without a reason"),
        (Kill("worker killed", "worker-0", 10.5, 10.5), None, "worker killed"),
        (Kill("worker killed", "worker-1", 10.5, 10.5), None, "without a reason"),
        (Kill("worker drained", "worker-0", 9.0, 10.2), None, "worker drained"),
        (Kill("server killed", None, 12.5, 14.0), None, "server killed"),
        (Kill("server killed", None, 13.5, 14.0), None, "without a reason"),
        (Kill("provider away", None, 10.5, 14.0), None, "without a reason"),
        (None, 10.5, "as its thread was stopped"),
        (None, 11.5, "without a reason"),
    ],
)
def test_a_repeated_call_has_its_reason(kill: Kill | None, stop: float | None, reason: str) -> None:
    diary = Diary("t", stops=[(stop, "interrupt")] if stop else [])

    payments = look_at([call(10, 11), call(20, 21)], [kill] if kill else [], [diary])

    assert payments.repeated == {reason: 1}
    assert len(payments.unexplained) == (reason == "without a reason")


@pytest.mark.slow
def test_a_call_that_was_lost_in_a_kill_recovers_with_its_answer() -> None:
    payments = look_at([call(10, 10.5, "hung up"), call(20, 21)], [Kill("worker killed", "worker-0", 10.5, 10.5)], [Diary("t")])

    assert (payments.recovery, payments.repeated.total()) == (10.5, 0)
