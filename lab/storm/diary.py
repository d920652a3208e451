"""What the callers of a thread sent, and what they were answered."""

import time
from collections import Counter
from dataclasses import dataclass, field

from gradeloop.contract.thread import InvokeRequest, RunResult, parse_update
from lab.storm import script


@dataclass
class AskedTurn:
    """A turn with messages, under a key of its own."""

    number: int
    key: str
    text: str
    known_rubrics: int
    """How many rubrics the thread was known to have before the turn was sent."""
    sent: float = field(default_factory=time.monotonic)
    ended: float | None = None
    result: RunResult | None = None
    """The result that counts: the first that is not `interrupted`, or that one where a later turn took over."""
    overtaken: bool = False
    """Whether a later turn's messages came while this one was interrupted."""


@dataclass
class GivenRubric:
    """A rubric that was sent, in order."""

    text: str
    sha256: str
    acknowledged: bool = True
    """False where nobody knows whether it came in."""


@dataclass
class Diary:
    """All that the callers of one thread know."""

    thread: str
    turns: list[AskedTurn] = field(default_factory=list)
    rubrics: list[GivenRubric] = field(default_factory=list)
    stops: list[tuple[float, str]] = field(default_factory=list)
    """When somebody sent what stops calls in flight, and what it was."""
    events: Counter[str] = field(default_factory=Counter)
    """What was sent, and what became of it, by kind."""
    faults: list[str] = field(default_factory=list)
    """What a caller saw that should not be."""
    finished: bool = False
    """Whether the thread was closed at the end, after its last turn."""

    def open_turn(self) -> AskedTurn:
        """Note a further turn."""
        number = len(self.turns)
        turn = AskedTurn(number, f"{self.thread}/{number}", script.turn_message(self.thread, number), len(self.rubrics))
        self.turns.append(turn)
        return turn

    def new_rubric(self, level: int) -> GivenRubric:
        """Return a rubric that this thread never had; it is noted with `give`."""
        return rubric_of(script.rubric_text(level, len(self.rubrics)))

    def give(self, rubric: GivenRubric) -> None:
        """Note a rubric that is about to be sent, unsure until its receipt comes."""
        rubric.acknowledged = False
        self.rubrics.append(rubric)

    @property
    def in_force(self) -> GivenRubric | None:
        """The rubric that the thread has, or has next; None where that is not sure."""
        return self.rubrics[-1] if self.rubrics[-1].acknowledged else None


def rubric_of(text: str) -> GivenRubric:
    """Return a rubric by its text."""
    rubric = parse_update(InvokeRequest, {"rubric": text}).rubric
    return GivenRubric(text, rubric.sha256() if rubric else "")
