"""How hard a storm blows, and what it has done."""

from dataclasses import dataclass
from typing import Literal

KillKind = Literal["worker killed", "worker drained", "server killed", "client killed", "provider away"]

KILLS: tuple[KillKind, ...] = ("worker killed", "worker drained", "server killed", "client killed", "provider away")
"""What happens to the processes; every kind once before any of them comes again."""


@dataclass(frozen=True)
class Plan:
    """How many threads, for how long, and how much of everything."""

    threads: int = 100
    seconds: float = 90.0
    workers: int = 2
    clients: int = 2
    """Processes that callers ask through, beside the storm's own."""
    seed: int = 1
    calm: tuple[float, float] = (3.5, 6.5)
    """Seconds between two kills, at least and at most."""
    delay: float = 1.0
    """Seconds that a model call takes."""
    grace: float = 1.0
    """Seconds that a worker which is told to stop leaves to its calls in flight."""
    away: float = 3.0
    """Seconds for which the provider refuses every call when it is away."""
    fault_share: float = 0.12
    """The part of the calls that the provider answers with a fault."""
    end_seconds: float = 120.0
    """How long the last turns may take once nothing is killed any more."""
    events_at_most: int = 2
    """How often, at most, somebody meddles with a thread in one turn."""


@dataclass
class Kill:
    """Something that happened to a process."""

    kind: KillKind
    worker: str | None
    """The worker that it happened to."""
    began: float
    ended: float
    """When the process was gone and, for the server and the provider, was there again."""
