"""What the calls about a case are asked and tell: places and counts, never a text."""

from typing import Any, Literal

from pydantic import Field

from gradeloop.strict import Recorded, Strict
from gradeloop.usage import Usage

NO_OUTPUT = "no_output"
"""The type of the failure of a call about a case that has nothing to judge."""


def _absent(value: object) -> bool:
    return value is None or value is False


Kind = Literal["calls", "thread", "judging"]


class CasePlan(Recorded):
    """How a case is run."""

    kind: Kind
    drafted: bool
    """True where a model drafts it first, by a call of its own."""
    units: int
    """Questions to graders: one for each call group and vote."""


class Due(Recorded):
    """A case that has not ended, as its shard must know it."""

    position: int
    id: str
    attempt: int
    plan: CasePlan


class CaseCall(Strict):
    """A case, and which of its questions."""

    batch_id: str
    position: int
    attempt: int
    nonce: str
    """The case's random code, which marks the fence around what is judged."""
    unit: int = Field(default=0, exclude_if=lambda value: value == 0)
    cache: bool = Field(default=True, exclude_if=lambda value: value is True)
    raised: bool = Field(default=False, exclude_if=_absent)
    """True where a reply was cut before: this one gets a larger completion."""
    carried: Usage = Field(default=Usage(), exclude_if=lambda value: not value.attempts)
    """What the reply that was cut cost."""


class CaseTold(Recorded):
    """What came of a call."""

    status: Literal["queued", "waiting", "passed", "failed", "error"] | None = Field(default=None, exclude_if=_absent)
    """The case's, where the call ended it, or found it ended."""
    again: bool = Field(default=False, exclude_if=_absent)
    """True where the answer was no verdict and is to be asked for again."""
    held: str | None = Field(default=None, exclude_if=_absent)
    """Why nobody was asked: a limit of the batch."""


class Stretch(Strict):
    """Cases of a batch, from `first` to before `last`."""

    batch_id: str
    first: int
    last: int


class Opened(Recorded):
    """What a batch must know before its shards are opened."""

    stretches: tuple[tuple[int, int], ...]
    """Those that have cases to be run."""
    slots: int
    """Calls that the worker makes at once."""


class ShardOpened(Recorded):
    """The cases of a shard."""

    due: tuple[Due, ...]


class Closing(Strict):
    """How a batch ended."""

    batch_id: str
    why: str | None = None
    stopped: bool = False


class ChildRequest(Recorded):
    """What the workflow of a case is started with."""

    type: Literal["GradingThread", "Judging"] | None = None
    argument: dict[str, Any] = Field(default_factory=dict)
    known: CaseTold | None = Field(default=None, exclude_if=_absent)
    """Why none is started: a limit holds the batch, or the case has ended."""


class Failed(Strict):
    """A case's question, or its draft, that failed for good."""

    call: CaseCall
    what: Literal["draft", "unit", "case"]
    error: str
    usage: Usage = Usage()
    """What the failed attempts cost."""


class ChildEnded(Strict):
    """A case whose workflow has ended."""

    call: CaseCall
    type: Literal["GradingThread", "Judging"]
    workflow_id: str
    run_id: str
