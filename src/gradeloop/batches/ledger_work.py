"""The transactions of the ledger, each on a connection that it is given."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gradeloop.batches import statements
from gradeloop.batches.batch_request import BatchRequest
from gradeloop.batches.case import Case
from gradeloop.batches.case_plan import plan_of
from gradeloop.batches.case_result import BatchSummary, CaseResult
from gradeloop.batches.limits import held, request_of
from gradeloop.batches.records import summary_of
from gradeloop.batches.unit import Unit
from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip, one_line
from gradeloop.store_tables import table
from gradeloop.usage import Usage

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

SHARD = 250
"""Cases of one shard at most."""

Place = tuple[int, int, int]
"""Position of a case, its attempt, and which of its questions."""


@dataclass(frozen=True)
class Standing:
    """What is known before a question is asked."""

    request: BatchRequest
    held: str | None
    """Why no further question may be asked."""
    unit: Unit
    verdict: str | None
    """Of the cache."""


class AlreadyEndedError(Exception):
    """The case has ended, or another attempt is under way; nothing was written."""


def row_of(batch_id: str, position: int, case: Case) -> dict[str, Any]:
    """Return a case as its row."""
    spec, plan = case.model_dump_json(), plan_of(case).model_dump_json()
    return {"batch_id": batch_id, "position": position, "case_id": case.id, "spec": spec, "plan": plan, "status": "queued"}


def add(connection: "Connection", batch_id: str, rows: Sequence[dict[str, Any]]) -> int:
    """Write rows down that are not there yet, and return how many cases the batch has.

    Raises:
        InvalidRequest: A position holds another case.
    """
    from sqlalchemy import func, select

    cases = table("cases")
    places = [row["position"] for row in rows]
    asked = select(cases.c.position, cases.c.spec).where(cases.c.batch_id == batch_id, cases.c.position.in_(places))
    there = dict(connection.execute(asked).all())
    for row in rows:
        if there.get(row["position"], row["spec"]) != row["spec"]:
            words = f"position {row['position']} holds another case than {clip(row['case_id'])}; choose another batch_id"
            raise InvalidRequest(f"the batch {batch_id!r}: {words}")
    if new := [row for row in rows if row["position"] not in there]:
        connection.execute(cases.insert(), new)
    counted = select(func.count()).select_from(cases).where(cases.c.batch_id == batch_id)
    return int(connection.execute(counted).scalar_one())


def begin(connection: "Connection", request: BatchRequest) -> list[tuple[int, int]]:
    """Make the batch's row, or take up the one that is there, and return the stretches that have cases to be run.

    Raises:
        InvalidRequest: Not all of its cases are there.
    """
    from sqlalchemy import func, select

    batches, cases = table("batches"), table("cases")
    mine = cases.c.batch_id == request.batch_id
    there = int(connection.execute(select(func.count()).select_from(cases).where(mine)).scalar_one())
    if there != request.total:
        words = f"{there} of its {request.total} cases are in the store; upload the others first, each once"
        raise InvalidRequest(f"the batch {request.batch_id!r}: {words}")
    told = {"request": request.model_dump_json(), "status": "running", "reason": None, "total": request.total}
    changed = connection.execute(batches.update().where(batches.c.id == request.batch_id).values(**told))
    if not changed.rowcount:
        connection.execute(batches.insert().values(id=request.batch_id, created=datetime.now(UTC), **told))
    if request.again:
        _queue_again(connection, request)
    due = select(func.distinct(cases.c.position // SHARD)).where(mine, cases.c.status == "queued")
    return [(at * SHARD, min((at + 1) * SHARD, request.total)) for at in sorted(connection.execute(due).scalars())]


def _queue_again(connection: "Connection", request: BatchRequest) -> None:
    """Have errors, or what failed too, run again; what they cost stays counted."""
    from sqlalchemy import func, select

    batches, cases = table("batches"), table("cases")
    mine = cases.c.batch_id == request.batch_id
    bare = {"status": "queued", "attempt": cases.c.attempt + 1, "settled": None, "result": None, "reused": 0}
    connection.execute(cases.update().where(mine, cases.c.status == "error").values(**bare))
    if request.again == "failures":
        anew = bare | {"fresh": cases.c.fresh + 1, "draft": None, "spent": None}
        connection.execute(cases.update().where(mine, cases.c.status == "failed").values(**anew))
    counted = select(cases.c.status, func.count()).where(mine).group_by(cases.c.status)
    counts: dict[str, int] = dict(connection.execute(counted).all())
    told = {"passed": counts.get("passed", 0), "failed": counts.get("failed", 0), "errors": counts.get("error", 0)}
    told["reused"] = connection.execute(select(func.coalesce(func.sum(cases.c.reused), 0)).where(mine)).scalar_one()
    connection.execute(batches.update().where(batches.c.id == request.batch_id).values(**told))


def case_row(connection: "Connection", batch_id: str, position: int) -> "RowMapping":
    """Return a case's row.

    Raises:
        LookupError: There is none.
    """
    from sqlalchemy import select

    cases = table("cases")
    asked = select(cases).where(cases.c.batch_id == batch_id, cases.c.position == position)
    row = connection.execute(asked).mappings().first()
    if row is None:
        raise LookupError(f"the batch {batch_id!r} has no case at position {position}")
    return row


def standing(connection: "Connection", batch_id: str, place: Place, key: str | None) -> Standing:
    """Return what is known before a question is asked."""
    position, attempt, number = place
    row = dict(connection.execute(statements.batch(), {"batch": batch_id}).mappings().one())
    where = {"batch": batch_id, "at": position, "in_attempt": attempt, "number": number}
    kept = connection.execute(statements.unit(), where).scalar()
    known = None if key is None else connection.execute(statements.verdict(), {"named": key}).scalar()
    unit = Unit.model_validate_json(kept) if kept else Unit()
    return Standing(request_of(row["request"]), held(row), unit, known)


def keep(connection: "Connection", batch_id: str, place: Place, unit: Unit, spent: Usage) -> list[Unit]:
    """Write a conversation down, and return all of the case's, by their number."""
    from sqlalchemy import select

    units, cases = table("case_units"), table("cases")
    position, attempt, number = place
    spend(connection, batch_id, spent)  # which takes the lock under which the others are read
    connection.execute(select(cases.c.position).where(cases.c.batch_id == batch_id, cases.c.position == position).with_for_update())
    told = unit.model_dump_json()
    mine = (units.c.batch_id == batch_id, units.c.position == position, units.c.attempt == attempt)
    changed = connection.execute(units.update().where(*mine, units.c.unit == number).values(held=told))
    if not changed.rowcount:
        connection.execute(units.insert().values(batch_id=batch_id, position=position, attempt=attempt, unit=number, held=told))
    asked = select(units.c.held).where(*mine).order_by(units.c.unit)
    return [Unit.model_validate_json(each) for each in connection.execute(asked).scalars()]


def remember(connection: "Connection", key: str, verdict: str) -> None:
    """Keep a verdict for whoever asks the same; one that is there stays."""
    connection.execute(statements.keep_verdict(connection.dialect.name), {"named": key, "told": verdict})


def spend(connection: "Connection", batch_id: str, usage: Usage) -> None:
    """Count what a call cost."""
    if usage.attempts or usage.calls:
        _count(connection, batch_id, usage)


def _count(connection: "Connection", batch_id: str, usage: Usage, **ends: int) -> int:
    added = {f"add_{name}": ends.get(name, 0) for name in statements.ENDS}
    found = connection.execute(statements.count(), {"batch": batch_id} | statements.spending(usage) | added).scalar()
    return int(found or 0)


def settle(connection: "Connection", batch_id: str, position: int, result: CaseResult, spent: Usage) -> str:
    """Write down what a case came to, and return its status.

    Raises:
        AlreadyEndedError: Somebody else did.
    """
    counter = {"passed": "passed", "failed": "failed", "error": "errors"}[result.status]
    settled = _count(connection, batch_id, spent, settled=1, reused=int(result.cached), **{counter: 1})
    kept = result.model_copy(update={"index": position}).model_dump_json()
    told = {"to_status": result.status, "to_result": kept, "to_settled": settled, "to_reused": int(result.cached)}
    where = {"batch": batch_id, "at": position, "in_attempt": result.attempt}
    if not connection.execute(statements.end_case(), told | where).rowcount:
        raise AlreadyEndedError
    return result.status


def close(connection: "Connection", batch_id: str, why: str | None, *, stopped: bool) -> BatchSummary:
    """Say how a batch ended, and return where it stands."""
    from sqlalchemy import func, select

    batches, cases = table("batches"), table("cases")
    due = select(func.count()).select_from(cases).where(cases.c.batch_id == batch_id, cases.c.status == "queued")
    left = connection.execute(due).scalar_one()
    status = "stopped" if stopped else "paused" if left else "finished"
    told = {"status": status, "reason": one_line(why) if why and left else None}
    connection.execute(batches.update().where(batches.c.id == batch_id).values(**told))
    return summary_of(dict(connection.execute(select(batches).where(batches.c.id == batch_id)).mappings().one()))
