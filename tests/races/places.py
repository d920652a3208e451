"""The places of the story at which events meet, and the events."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from tests.races.calls import WrongCall
from tests.races.events import Answer, Cancel, Close, Decide, Elapsed, End, Event, How, Interrupt, Invoke, Override, Resume, Supply
from tests.races.model import Model
from tests.races.race import FIRST_TURN, PATIENCE, Differs, Race
from tests.races.schedule import TaskFailed
from tests.races.story import TO_FILL, Story

PLAIN = Story("plain")
TWO = Story("two graders", groups=2)
PERSON = Story("a person decides", person=True)
APPROVED = {tool: Story(f"{tool} needs approval", approved=frozenset({tool})) for tool in ("look", "search", "count")}


@dataclass(frozen=True)
class Place:
    """A point of a story, and how a race gets there."""

    name: str
    story: Story
    prepare: Callable[[Race], None]

    def reached(self) -> Race:
        """Return a race that has come to this point."""
        race = Race(self.story)
        self.prepare(race)
        return race


def _begin(race: Race) -> None:
    race.task(FIRST_TURN)


def _until(race: Race, call: str) -> None:
    """Go on until a call is in flight."""
    for _ in range(PATIENCE):
        if call in race.model.flight:
            return
        race.step()
    raise AssertionError(f"{call!r} is never made")


def _at(call: str) -> Callable[[Race], None]:
    def prepare(race: Race) -> None:
        _begin(race)
        _until(race, call)

    return prepare


def _stopped_at(call: str) -> Callable[[Race], None]:
    def prepare(race: Race) -> None:
        _at(call)(race)
        race.task(Interrupt())
        race.step()

    return prepare


def _closing_at(call: str) -> Callable[[Race], None]:
    def prepare(race: Race) -> None:
        _at(call)(race)
        race.task(Close())

    return prepare


def _waiting(race: Race) -> None:
    _begin(race)
    while race.model.status != "waiting":
        race.step()


def _idle(race: Race) -> None:
    _begin(race)
    race.rest()


def _later(call: str) -> Callable[[Race], None]:
    """Come to a call of a turn that goes on with the run of an interrupted one."""

    def prepare(race: Race) -> None:
        _stopped_at("generate 5")(race)
        race.task(Invoke(race.name("later"), "later key", "later"))
        _until(race, call)

    return prepare


def _later_stopped_at(call: str) -> Callable[[Race], None]:
    def prepare(race: Race) -> None:
        _later(call)(race)
        race.task(Interrupt())
        race.step()

    return prepare


def _later_waiting(race: Race) -> None:
    """Come to where a later turn's tool call waits for a person, who has approved all calls of the turn before."""
    _begin(race)
    while "generate 5" not in race.model.flight:
        race.step()
    race.task(Interrupt())
    race.step()
    race.task(Invoke(race.name("later"), "later key", "later"))
    while race.model.status != "waiting":
        race.step()


def _graded_again_at(call: str) -> Callable[[Race], None]:
    """Come to a call of a second run over a draft behind which feedback stands: a person had ended the first run."""

    def prepare(race: Race) -> None:
        _at("generate 5")(race)
        race.task(Override(race.name("override"), 0))
        race.rest()
        race.task(Invoke(race.name("again"), race.name("key")))
        _until(race, call)

    return prepare


def _failed(race: Race) -> None:
    _at("generate 1")(race)
    race.task(End("generate 1", "failed"))


def _pausing_at(call: str) -> Callable[[Race], None]:
    def prepare(race: Race) -> None:
        _at(call)(race)
        race.task(End(call, "unanswered"))

    return prepare


def _rolled(race: Race) -> None:
    """Come to where the next run of the workflow has yet to begin."""
    _at("grade first 0 of 3 at 0.0 step 1")(race)
    race.task(End("grade first 0 of 3 at 0.0 step 1", "arrived"), long=True)


def _nothing(race: Race) -> None:
    """Leave the thread before its first task."""


def _empty(race: Race) -> None:
    race.task()


CALLS = (
    "generate 1",
    "look-1",
    "generate 3",
    "count 3 at 0.0",
    "grade first 0 of 3 at 0.0 step 0",
    "search-3-0-0",
    "grade first 0 of 3 at 0.0 step 1",
    "generate 5",
    "look-5",
    "generate 7",
    "count 7 at 0.1",
    "grade first 0 of 7 at 0.1 step 0",
    "search-7-0-0",
    "grade first 0 of 7 at 0.1 step 1",
)
"""The calls of the plain story where nothing disturbs it."""

LATER_CALLS = ("generate 6", "look-6", "generate 8", "count 8 at 0.1", "grade first 0 of 8 at 0.1 step 0", "search-8-0-0")
"""Calls of a turn that goes on with the run of an interrupted one."""

PLACES = (
    *(Place(call, PLAIN, _at(call)) for call in CALLS),
    *(Place(f"two graders: {call}", TWO, _at(call)) for call in (CALLS[4], "search-3-0-1", "grade first 1 of 3 at 0.0 step 1")),
    Place("before the first task", PLAIN, _nothing),
    Place("before the first turn", PLAIN, _empty),
    Place("idle with a draft", PLAIN, _idle),
    Place("waiting for a decision", PERSON, _waiting),
    *(Place(f"waiting for the approval of {tool}", story, _waiting) for tool, story in APPROVED.items()),
    *(Place(f"interrupted at {CALLS[at]}", PLAIN, _stopped_at(CALLS[at])) for at in (0, 1, 6, 7, 10)),
    Place("interrupted by a failure", PLAIN, _failed),
    *(Place(f"closing at {CALLS[at]}", PLAIN, _closing_at(CALLS[at])) for at in (0, 3)),
    *(Place(f"in the pause behind {CALLS[at]}", PLAIN, _pausing_at(CALLS[at])) for at in (0, 4, 9)),
    Place(f"two graders: in the pause behind {CALLS[4]}", TWO, _pausing_at(CALLS[4])),
    *(Place(f"a later turn: {call}", PLAIN, _later(call)) for call in LATER_CALLS),
    *(Place(f"a later turn interrupted at {LATER_CALLS[at]}", PLAIN, _later_stopped_at(LATER_CALLS[at])) for at in (0, 1, 3, 5)),
    *(Place(f"a later turn waiting for the approval of {tool}", story, _later_waiting) for tool, story in APPROVED.items()),
    *(Place(f"graded again: {call}", PLAIN, _graded_again_at(call)) for call in ("count 3 at 1.0", "grade first 0 of 3 at 1.0 step 1")),
    Place("before the first task of the next run", PLAIN, _rolled),
)
"""Every call of the story, and every phase in which no call is in flight, or one is to be made again."""


class Happening(Protocol):
    """Where something happens: a thread's model, and names that nothing else has."""

    model: Model

    def name(self, what: str) -> str:
        """Return a new name."""


Events = Callable[[Happening], list[Event]]


def _end(race: Happening, how: How, *, last: bool = False, paid: bool = False) -> list[Event]:
    calls = [name for name, made in race.model.flight.items() if made and (not paid or name.startswith(("generate", "grade")))]
    if not calls:
        return []
    return [End(max(calls) if last else min(calls), how)]


def _decision(race: Happening, *, passed: bool) -> list[Event]:
    run = race.model.thread.run
    place = (run.number, run.iteration) if run else (-1, 0)
    return [Decide(race.name("decide"), *place, passed=passed)]


def _word(race: Happening, *, approved: bool) -> list[Event]:
    call = next(iter(race.model.waiting_calls), "none")
    return [Answer(race.name("approve" if approved else "deny"), call, approved)]


KINDS: dict[str, Events] = {
    "invoke": lambda race: [Invoke(race.name("invoke"), race.name("key"), "more")],
    "invoke, another rubric": lambda race: [Invoke(race.name("invoke"), race.name("key"), "more", "other")],
    "invoke, no messages": lambda race: [Invoke(race.name("invoke"), race.name("key"))],
    "invoke, no messages, another rubric": lambda race: [Invoke(race.name("invoke"), race.name("key"), rubric="other")],
    "invoke, another name": lambda race: [Invoke(race.name("invoke"), race.name("key"), "more", named="other")],
    "invoke, a rubric to fill": lambda race: [Invoke(race.name("invoke"), race.name("key"), "more", TO_FILL)],
    "invoke, the same key": lambda race: [Invoke(race.name("invoke"), FIRST_TURN.key, FIRST_TURN.text)],
    "another rubric": lambda _: [Supply("other")],
    "the rubric in force": lambda race: [Supply(race.model.thread.rubric)],
    "a cleared rubric": lambda _: [Supply("cleared")],
    "a malformed rubric": lambda _: [Supply(None)],
    "interrupt": lambda _: [Interrupt()],
    "resume": lambda race: [Resume(race.name("resume"))],
    "decide": lambda race: _decision(race, passed=True),
    "decide against": lambda race: _decision(race, passed=False),
    "override": lambda race: [Override(race.name("override"), max(len(race.model.thread.evaluations) - 1, 0))],
    "approve": lambda race: _word(race, approved=True),
    "deny": lambda race: _word(race, approved=False),
    "close": lambda _: [Close()],
    "cancel": lambda _: [Cancel()],
    "result": lambda race: _end(race, "arrived"),
    "failure": lambda race: _end(race, "failed", last=True),
    "no answer": lambda race: _end(race, "unanswered", paid=True),
    "the end of a pause": lambda race: [Elapsed(call) for call in sorted(race.model.pausing)[:1]],
}
"""What comes in one workflow task."""

LATER: dict[str, How] = {"death": "silent", "late result": "arrived", "late failure": "failed"}
"""How a call ends, some tasks later, that was asked to stop; without a stop another worker makes it again, and nobody knows."""

ROLL = "roll-over"

ALL = (*KINDS, *LATER, ROLL)


PAIRS = tuple(product(KINDS, ALL))
"""Every ordered pair; what comes later, or lasts, is always the second of a pair."""


def difference(place: Place, *kinds: str) -> str | None:
    """Have events meet at a place, drive the thread to its end, and return what differs from the model; None where nothing does."""
    race, last = place.reached(), kinds[-1]
    try:
        events = [event for kind in kinds if kind in KINDS for event in KINDS[kind](race)]
        ends = [event.call for event in events if isinstance(event, End | Elapsed)]
        if len(ends) != len(set(ends)):  # one call ends once
            return None
        race.asked_end = LATER.get(last, "cancelled")
        race.task(*events, long=last == ROLL)
        race.finish()
    except (Differs, TaskFailed, WrongCall) as error:
        return f"{place.name}: {' + '.join(kinds)}: {error}"
    finally:
        race.schedule.evict()
    return None
