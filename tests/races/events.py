"""What happens to a thread: messages, ends of calls, and a cancel, in words that model and schedule share."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tests.races.story import Given, Rubric

How = Literal["arrived", "failed", "cancelled", "silent", "unanswered"]
"""How a call ends: with its result, with an error for good, as one that was asked to stop, as one whose worker is gone, or with a paid
reply that is not an answer."""


@dataclass(frozen=True)
class Invoke:
    """The update `invoke`."""

    update: str
    key: str
    text: str = ""
    """The user's message; empty for a turn without messages."""
    rubric: Given | None = None
    named: Rubric | None = None
    """What the variable `name` is from this turn on."""


@dataclass(frozen=True)
class Resume:
    """The update `resume`."""

    update: str


@dataclass(frozen=True)
class Decide:
    """The update `decide`: a person likes the draft of a run's iteration, or does not."""

    update: str
    run: int
    iteration: int
    passed: bool = True


@dataclass(frozen=True)
class Answer:
    """The update `approve` or `deny`, on a tool call by its name in the model."""

    update: str
    call: str
    approved: bool


@dataclass(frozen=True)
class Override:
    """The update `override`: a person passes the graders' first criterion in the evaluation of an index."""

    update: str
    evaluation: int


@dataclass(frozen=True)
class Supply:
    """The signal `supply_rubric`; a malformed one has no name."""

    rubric: Rubric | None


@dataclass(frozen=True)
class Interrupt:
    """The signal `interrupt`."""


@dataclass(frozen=True)
class Close:
    """The signal `close`."""


@dataclass(frozen=True)
class Cancel:
    """Temporal's own cancel of the workflow."""


@dataclass(frozen=True)
class End:
    """The end of a call in flight."""

    call: str
    how: How


@dataclass(frozen=True)
class Elapsed:
    """The end of the pause before a call is made again that had no answer."""

    call: str


Update = Invoke | Resume | Decide | Answer | Override
Sent = Update | Supply | Interrupt | Close
"""A message: an update or a signal."""
Event = Sent | End | Elapsed | Cancel


def in_servers_order(events: Iterable[Event]) -> list[Event]:
    """Return what comes in one workflow task in a server's order: signals, then updates, then ends of calls and a cancel."""
    order = (Supply | Interrupt | Close, Update, End | Elapsed, Cancel)
    return [event for kind in order for event in events if isinstance(event, kind)]
