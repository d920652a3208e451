"""The charges of a batch's calls: each is reserved before it is paid for, and counted once, whatever comes of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, false, func, select

from gradeloop.batches.tables import ENDS, USAGE_COUNTS
from gradeloop.contract.messages import Usage
from gradeloop.store.fleet import is_live
from gradeloop.store.tables import table

WaitNote = Callable[[str], None]
"""Called with the problem while a write waits for the store."""


@dataclass(frozen=True)
class CallCost:
    """The cost of a call: it is counted once, with what the call writes, however often its transaction is sent."""

    usage: Usage = Usage()  # noqa: RUF009 - frozen
    """The cost, with all that is not counted yet of the attempts and calls before it."""
    call: str | None = None
    """The call, by an id that all its attempts share; None where none was paid for, so that `usage` is counted as it is."""
    attempt: int = 0
    """The number of the attempt; 0 where all attempts count the same."""
    requests: int = 0
    """The number of requests of the call's attempts so far that `usage` accounts for."""
    on_wait: WaitNote | None = None
    """Called while the store is waited for; where it is given, the write is not given up."""
    lost: int = 0
    """The number of workers that were lost with the call in flight before this attempt."""


# A request may be paid for although its worker never hears of the reply, and a transaction may be sent twice although it was kept the
# first time. So each attempt reserves its charge in a row of its own before it sends anything, and whoever writes what the call came to
# marks the rows of all attempts until then as counted, in the same transaction.
# Invariant: of a call exactly one transaction counts its usage, and each reserved request is in some usage or counted as lost, with
# unknown cost. Without the rows a lost worker's requests would be free, and a repeated transaction would count twice.


def charged(batch_id: str, cost: CallCost) -> dict[str, Any]:
    """Return what is written of a call and its cost, as `statements.WRITE` takes it."""
    usage = cost.usage
    counts: dict[str, float] = {name: getattr(usage, name) or 0 for name in USAGE_COUNTS}
    counts |= {"unpriced": int(bool(usage.calls) and usage.cost_usd is None), "unreported": int(usage.tokens is None)}
    counts |= {"seconds": usage.seconds, "cost_usd": usage.cost_usd or 0.0}
    call = {"batch_id": batch_id, "position": None, "call": cost.call, "attempt": cost.attempt, "requests": cost.requests}
    return call | counts | dict.fromkeys(ENDS, 0)


def count_lost(connection: Connection, call: str, closed: int, worker: str | None) -> int:
    """Return how many workers were lost with a call in flight, as its newest reservation says that is not counted.

    `closed`: the last attempt that is known to have ended in an orderly way.
    """
    # The newest reservation that is not counted tells who made the call last. That worker is lost unless it
    # lives, has left in order, is this one, or the attempt is known to have ended. So a call is blamed only for
    # a worker that nobody has heard of since.
    charges, workers = table("charges"), table("workers")
    is_here = func.coalesce((workers.c.left == 1) | is_live(connection, workers), false())
    known = charges.outerjoin(workers, workers.c.id == charges.c.worker)
    newest = select(charges.c.attempt, charges.c.worker, charges.c.lost, is_here.label("here")).select_from(known)
    newest = newest.where(charges.c.call == call, charges.c.counted == 0).order_by(charges.c.attempt.desc()).limit(1)
    row = connection.execute(newest).first()
    return row.lost + (row.attempt != closed and row.worker not in {None, worker} and not row.here) if row else 0


def is_counted(connection: Connection, call: str) -> bool:
    """Return whether what a call came to is written down."""
    charges = table("charges")
    return connection.execute(select(charges.c.call).where(charges.c.call == call, charges.c.counted == 1).limit(1)).first() is not None


def clear(connection: Connection, batch_id: str) -> int:
    """Forget the charges of a batch none of whose calls is in flight, and return how many were never counted: those of lost calls."""
    charges = table("charges")
    mine = charges.c.batch_id == batch_id
    lost = connection.execute(charges.delete().where(mine, charges.c.counted == 0)).rowcount
    connection.execute(charges.delete().where(mine))
    return lost
