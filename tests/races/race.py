"""A race: workflow and model get the same events, task by task, and have to agree on every call, every answer and all that is kept."""

from tests.races.events import Answer, Decide, Elapsed, End, Event, How, Invoke, Resume, in_servers_order
from tests.races.model import Model
from tests.races.schedule import Schedule
from tests.races.story import Rubric, Story
from tests.races.view import View

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

    def task(self, *events: Event, long: bool = False) -> None:
        """Deliver events in one workflow task to both, as a server does, and compare the calls that are made then."""
        ordered, runs = in_servers_order(events), self.schedule.runs
        made = self.schedule.task(*ordered, long=long)
        expected = self.model.task(*ordered, long=long, rolled=self.schedule.runs > runs)
        self.model.thread.known |= self.schedule.asked_own_worker == self.schedule.runs
        self._arrived |= {event.call for event in events if isinstance(event, End) and event.how == "arrived" and event.call != "admit"}
        if again := self._arrived.intersection(made):
            raise Differs(f"calls that were answered are made again: {', '.join(again)}")
        if made != expected:
            raise Differs(f"after {_text(events)} it calls {_list(made)}, and is to call {_list(expected)}")
        asked, stopping = [name for name, call in self.schedule.flight.items() if call.asked], bool(self.model.stopping)
        if sorted(asked) != sorted(self.model.flight if stopping else ()):
            raise Differs(f"after {_text(events)} it has asked {_list(asked)} to stop of {_list(sorted(self.model.flight))}")
        if at_once := [name for name in self.schedule.end_at_once() if name in self.schedule.flight]:
            self.task(*(End(name, "cancelled") for name in at_once))

    def step(self) -> bool:
        """Do what happens next in an undisturbed story; False where nothing does."""
        model = self.model
        if self.schedule.owes_a_task:
            self.task()
        elif model.flight:
            call = min(model.flight)
            self.task(Elapsed(call) if call in model.pausing else End(call, self.asked_end if model.stopping else "arrived"))
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

    def restart(self, text: str = "", rubric: Rubric | None = None) -> None:
        """Start the thread again from its checkpoint, with a turn or a rubric where one is given."""
        if self.schedule.owes_a_task:  # it closes in the run that has yet to begin
            self.task()
        self.schedule.start_again(text, rubric)
        self.model.start_again(text, rubric)

    def start_again(self) -> None:
        """Start the closed thread again from its checkpoint; whoever asked for its last turn asks again."""
        self.restart()
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

    def compare(self) -> None:
        """Compare all that the thread keeps and all that callers got.

        Raises:
            Differs: They disagree; the message says in what.
        """
        if found := self.view().differences(self.model):
            raise Differs("; ".join(found))

    def view(self) -> View:
        """Return what the thread shows of itself."""
        schedule = self.schedule
        return View(
            story=self.model.story,
            state=schedule.query("state"),
            events=schedule.query("events", 0, 1000)["items"],
            messages=schedule.query("messages", 0, 1000)["items"],
            evaluations=schedule.query("evaluations", 0, 1000)["items"],
            answers={name: sent.answer for name, sent in schedule.sent.items()},
            closed=schedule.closed,
        )


def _list(calls: list[str]) -> str:
    return ", ".join(calls) or "nothing"


def _text(events: tuple[Event, ...]) -> str:
    return " and ".join(str(event) for event in events) or "a task without news"
