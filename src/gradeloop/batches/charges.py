"""The charges of a batch's calls: each is reserved before it is paid for, and counted once, whatever comes of it."""

from sqlalchemy import Connection, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite

from gradeloop.batches.cases import Charge
from gradeloop.store.tables import table

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


def reserve(connection: Connection, batch_id: str, charge: Charge) -> bool:
    """Reserve a charge before its request is sent, and return whether an earlier attempt of its call is counted already."""
    _insert(connection, batch_id, charge, counted=0)
    return connection.execute(_IS_COUNTED, {"of_call": charge.call}).first() is not None


def settle(connection: Connection, batch_id: str, charge: Charge) -> int | None:
    """Mark a call's charges as counted, and return how many of its requests nobody has heard of; None where it was counted already."""
    reserved = connection.execute(_COUNT_OPEN, {"of_call": charge.call, "in_attempt": charge.attempt}).rowcount
    if not _insert(connection, batch_id, charge, counted=1) and not reserved:
        return None
    return max(0, reserved - charge.requests)


def _insert(connection: Connection, batch_id: str, charge: Charge, *, counted: int) -> bool:
    values = {"of_call": charge.call, "in_attempt": charge.attempt, "of_batch": batch_id, "is_counted": counted}
    return connection.execute(_INSERT[connection.dialect.name], values).first() is not None


def clear(connection: Connection, batch_id: str) -> int:
    """Forget the charges of a batch none of whose calls is in flight, and return how many were never counted: those of lost calls."""
    mine = _CHARGES.c.batch_id == batch_id
    lost = connection.execute(select(func.count()).select_from(_CHARGES).where(mine, _CHARGES.c.counted == 0)).scalar_one()
    connection.execute(_CHARGES.delete().where(mine))
    return int(lost)
