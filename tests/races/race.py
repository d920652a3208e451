"""A race: workflow and model get the same events, task by task, and have to agree on every call, every answer and all that is kept."""

from typing import Any

from gradeloop.contract.messages import Message
from gradeloop.contract.rubric import Rubric
from tests.races.events import Answer, Decide, End, Event, How, Invoke, Resume
from tests.races.model import Model
from tests.races.schedule import Schedule
from tests.races.story import Rubric as RubricName
from tests.races.story import Story, line_of, rubric
from tests.races.thread import Judged, Outcome

PATIENCE = 150
"""The most tasks that a thread may take to come to rest."""

FIRST_TURN = Invoke("first", "key", "hello")
LAST_TURN = Invoke("last", "last key", "and more")


class Differs(Exception):
    """Workflow and model disagree."""


class Race:
    """One thread and its model, side by side."""

    def __init__(self, story: Story) -> None:
        self.schedule, self.model = Schedule(story), Model(story)
        self.asked_end: How = "cancelled"
        """How a call ends that was asked to stop."""
        self._events: list[str] = []
        self._arrived: set[str] = set()
        self._names = 0
        names: tuple[RubricName, ...] = ("first", "other", "cleared")
        self._shas = {Rubric.model_validate(rubric(name, story)).sha256(): name for name in names}

    def task(self, *events: Event, long: bool = False) -> None:
        """Deliver events in one workflow task to both, and compare the calls that are made then."""
        runs = self.schedule.runs
        made = self.schedule.task(*events, long=long)
        expected = self.model.task(*events, long=long, rolled=self.schedule.runs > runs)
        self.model.thread.known |= self.schedule.asked_own_worker == self.schedule.runs
        self._arrived |= {event.call for event in events if isinstance(event, End) and event.how == "arrived" and event.call != "admit"}
        if again := self._arrived.intersection(made):
            raise Differs(f"calls that were answered are made again: {', '.join(again)}")
        if made != expected:
            raise Differs(f"after {_text(events)} it calls {_list(made)}, and is to call {_list(expected)}")
        if at_once := [name for name in self.schedule.end_at_once() if name in self.schedule.flight]:
            self.task(*(End(name, "cancelled") for name in at_once))

    def step(self) -> bool:
        """Do what happens next in an undisturbed story; False where nothing does."""
        model = self.model
        if self.schedule.owes_a_task:
            self.task()
        elif model.flight:
            call = min(model.flight)
            self.task(End(call, self.asked_end if model.stopping else "arrived"))
        elif model.closed == "cancelled":
            self.start_again()
        elif model.closed:
            return False
        elif model.waiting_calls:
            self.task(*(Answer(self.name("approve"), call, approved=True) for call in model.waiting_calls))
        elif model.waits_for_decision and (run := model.thread.run):
            self.task(Decide(self.name("decide"), run.number, run.iteration))
        elif model.status == "interrupted":
            self.task(Resume(self.name("resume")))
        else:
            return False
        return True

    def start_again(self) -> None:
        """Start the closed thread again from its checkpoint; whoever asked for its last turn asks again."""
        if self.schedule.owes_a_task:  # it closes in the run that has yet to begin
            self.task()
        self.schedule.start_again()
        self.model.start_again()
        asked = self.model.turn and next((FIRST_TURN for key in self.model.turn.keys if key == FIRST_TURN.key), None)
        if asked and self.model.status != "idle":
            self.task(Invoke(self.name("again"), asked.key, asked.text))

    def rest(self) -> None:
        """Go on until nothing happens any more."""
        for _ in range(PATIENCE):
            if not self.step():
                return
        raise Differs(f"it does not come to rest in {PATIENCE} tasks")

    def finish(self) -> None:
        """Go on to the end, compare, then have one more turn, and compare again."""
        self.rest()
        self.compare()
        if self.model.closed:
            self.start_again()
        self.task(LAST_TURN)
        self.rest()
        self.compare()

    def name(self, what: str) -> str:
        """Return a name that no other update has."""
        self._names += 1
        return f"{what} {self._names}"

    # -- What is compared

    def compare(self) -> None:
        """Compare all that the thread keeps and all that callers got.

        Raises:
            Differs: They disagree; the message says in what.
        """
        self.schedule.worker.learn_runs()
        seen, due = self._seen(), self._due()
        wrong = [f"{name} is {seen[name]}, and is to be {due[name]}" for name in due if seen[name] != due[name]]
        if wrong:
            raise Differs("; ".join(wrong))

    def _due(self) -> dict[str, object]:
        model = self.model
        return {
            "the answers": {name: model.answers.get(name) for name in self.schedule.sent},
            "the conversation": model.thread.log,
            "the evaluations": model.thread.evaluations,
            "the status": model.status,
            "how it closed": model.closed,
            "the rubric": model.thread.rubric,
            "how the runs ended": [run.status for run in model.thread.runs],
            "calls and attempts paid for": (model.calls, model.attempts),
            "the rubrics refused": model.rejected,
        }

    def _seen(self) -> dict[str, object]:
        schedule = self.schedule
        state, events = schedule.query("state"), schedule.query("events", 0, 1000)["items"]
        messages = [Message.model_validate(message) for message in schedule.query("messages", 0, 1000)["items"]]
        ended = {event["grading_run_id"]: event["status"] for event in events if event["type"] == "run_ended" and event["grading_run_id"]}
        started = [event["grading_run_id"] for event in events if event["type"] == "run_started"]
        runs = [ended.get(run, "running") for run in started]
        return {
            "the answers": {name: self._answer(sent.answer) for name, sent in schedule.sent.items()},
            "the conversation": [line_of(message) for message in messages],
            "the evaluations": [self._judged(item) for item in schedule.query("evaluations", 0, 1000)["items"]],
            "the status": state["status"],
            "how it closed": schedule.closed,
            "the rubric": self._shas[state["rubric_sha256"]] if state["rubric_sha256"] else "cleared",
            "how the runs ended": ["running" if status == "interrupted" else status for status in runs],
            "calls and attempts paid for": (state["usage"]["calls"], state["usage"]["attempts"]),
            "the rubrics refused": sum(event["type"] == "rubric_rejected" for event in events),
        }

    def _answer(self, answer: dict[str, Any] | str | None) -> Outcome | str | None:
        if not isinstance(answer, dict):
            return answer
        if "thread_id" not in answer:
            return "done"
        run = answer["grading_run_id"]
        number = None if run is None else self.schedule.worker.number_of(run)
        return Outcome(answer["status"], number, answer["iterations"], answer["output"], answer["reason"])

    def _judged(self, item: dict[str, Any]) -> Judged:
        number = self.schedule.worker.number_of(item["grading_run_id"])
        name = self._shas[item["rubric_sha256"]]
        return Judged(number, item["iteration"], item["result"], item["status"], item["draft"], name)


def _list(calls: list[str]) -> str:
    return ", ".join(calls) or "nothing"


def _text(events: tuple[Event, ...]) -> str:
    return " and ".join(str(event) for event in events) or "a task without news"
