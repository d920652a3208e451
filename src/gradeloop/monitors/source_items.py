"""What a monitor's source yields, one thing after the other."""

from typing import NamedTuple

from gradeloop.contract.transcript import AgentRun


class SourceItem(NamedTuple):
    """One thing that a source has: a run, what cannot be read, or only a new place."""

    cursor: str | None
    """The place behind it, from which a later tick reads on; None for no other than before."""
    run: AgentRun | None = None
    unreadable: str | None = None
