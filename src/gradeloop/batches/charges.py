"""The charges of a batch's calls: each is reserved before it is paid for, and counted once, whatever comes of it."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite

from gradeloop.contract.messages import Usage
from gradeloop.store.tables import table

WaitNote = Callable[[str], None]
"""Called with the problem while a write waits for the store."""

_CHARGES = table("charges")

_INSERT = {
    dialect: insert(_CHARGES)
    .values(call=bindparam("of_call"), attempt=bindparam("in_attempt"), batch_id=bindparam("of_batch"), counted=bindparam("is_counted"))
    .on_conflict_do_nothing()
    .returning(_CHARGES.c.call)
    for dialect, insert in (("postgresql", postgresql.insert), ("sqlite", sqlite.insert))
}

_COUNT_OPEN = (
    _CHARGES.update()
    .where(_CHARGES.c.call == bindparam("of_call"), _CHARGES.c.attempt <= bindparam("in_attempt"), _CHARGES.c.counted == 0)
    .values(counted=1)
)

_IS_COUNTED = select(_CHARGES.c.attempt).where(_CHARGES.c.call == bindparam("of_call"), _CHARGES.c.counted == 1).limit(1)


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


# A request may be paid for although its worker never hears of the reply, and a transaction may be sent twice although it was kept the
# first time. So each attempt reserves its charge in a row of its own before it sends anything, and whoever writes what the call came to
# marks the rows of all attempts until then as counted, in the same transaction.
# Invariant: of a call exactly one transaction counts its usage, and each reserved request is in some usage or counted as lost, with
# unknown cost. Without the rows a lost worker's requests would be free, and a repeated transaction would count twice.


def reserve(connection: Connection, batch_id: str, cost: CallCost) -> bool:
    """Reserve a charge before its request is sent, and return whether an earlier attempt of its call is counted already."""
    _insert(connection, batch_id, cost, counted=0)
    return connection.execute(_IS_COUNTED, {"of_call": cost.call}).first() is not None


def count_charge(connection: Connection, batch_id: str, cost: CallCost) -> Usage:
    """Mark a call's charges as counted, and return what of it was not counted yet, with its requests that nobody has heard of."""
    if cost.call is None:
        return cost.usage
    reserved = connection.execute(_COUNT_OPEN, {"of_call": cost.call, "in_attempt": cost.attempt}).rowcount
    if not _insert(connection, batch_id, cost, counted=1) and not reserved:
        return Usage()
    return cost.usage + Usage(attempts=max(0, reserved - cost.requests))


def _insert(connection: Connection, batch_id: str, cost: CallCost, *, counted: int) -> bool:
    values = {"of_call": cost.call, "in_attempt": cost.attempt, "of_batch": batch_id, "is_counted": counted}
    return connection.execute(_INSERT[connection.dialect.name], values).first() is not None


def clear(connection: Connection, batch_id: str) -> int:
    """Forget the charges of a batch none of whose calls is in flight, and return how many were never counted: those of lost calls."""
    mine = _CHARGES.c.batch_id == batch_id
    lost = connection.execute(select(func.count()).select_from(_CHARGES).where(mine, _CHARGES.c.counted == 0)).scalar_one()
    connection.execute(_CHARGES.delete().where(mine))
    return int(lost)
