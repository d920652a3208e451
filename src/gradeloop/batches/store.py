"""Batches in the store: what was opened, what is paid for, what has ended."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from gradeloop.batches.cases import CaseConversation, plan_of
from gradeloop.batches.contract import BatchRequest, BatchSummary, Case, CasePlan, CaseResult, DueCase, Upload
from gradeloop.contract.messages import Usage
from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.store.engine import Store
from gradeloop.store.tables import USAGE_COUNTS, table
from gradeloop.text import clip, one_line

if TYPE_CHECKING:
    from sqlalchemy import Connection, Insert, RowMapping, Select, Update


ENDS = ("passed", "failed", "errors", "reused", "settled")
"""Counters of a batch that a case's end adds to."""

_COST = (*USAGE_COUNTS, "unpriced", "seconds", "cost_usd")


def spending_columns(usage: Usage) -> dict[str, Any]:
    """Return the values that `count` adds for a usage."""
    told: dict[str, Any] = {f"add_{name}": getattr(usage, name) for name in USAGE_COUNTS}
    told |= {"add_seconds": usage.seconds, "add_cost_usd": usage.cost_usd or 0.0}
    return told | {"add_unpriced": int(bool(usage.calls) and usage.cost_usd is None)}


@cache
def count_statement() -> "Update":
    """Add to a batch's counters, which `add_<name>` name, and return how many cases have ended."""
    from sqlalchemy import bindparam

    batches = table("batches")
    added = {name: batches.c[name] + bindparam(f"add_{name}") for name in (*_COST, *ENDS)}
    return batches.update().where(batches.c.id == bindparam("batch")).values(**added).returning(batches.c.settled)


@cache
def end_case_statement() -> "Update":
    """Write down how a case ended that is queued in this attempt."""
    from sqlalchemy import bindparam

    cases = table("cases")
    mine = (cases.c.batch_id == bindparam("batch"), cases.c.position == bindparam("at"), cases.c.attempt == bindparam("in_attempt"))
    told: dict[str, Any] = {name: bindparam(f"to_{name}") for name in ("status", "result", "settled", "reused")}
    return cases.update().where(*mine, cases.c.status == "queued").values(**told)


@cache
def select_batch() -> "Select[Any]":
    """Read a batch's row."""
    from sqlalchemy import bindparam, select

    batches = table("batches")
    return select(batches).where(batches.c.id == bindparam("batch"))


@cache
def select_conversation() -> "Select[Any]":
    """Read a conversation."""
    from sqlalchemy import bindparam, select

    units = table("case_units")
    places = (("batch_id", "batch"), ("position", "at"), ("attempt", "in_attempt"), ("unit", "number"))
    return select(units.c.held).where(*(units.c[column] == bindparam(name) for column, name in places))


@cache
def select_verdict() -> "Select[Any]":
    """Read a verdict of the cache."""
    from sqlalchemy import bindparam, select

    verdicts = table("verdicts")
    return select(verdicts.c.verdict).where(verdicts.c.key == bindparam("named"))


@cache
def insert_verdict(dialect: str) -> "Insert":
    """Write a verdict into the cache, unless one is there."""
    from sqlalchemy import bindparam
    from sqlalchemy.dialects import postgresql, sqlite

    insert: Any = (postgresql if dialect == "postgresql" else sqlite).insert(table("verdicts"))
    made: Insert = insert.values(key=bindparam("named"), verdict=bindparam("told")).on_conflict_do_nothing()
    return made


COUNTED_FROM = 20
"""Cases that must have ended before their error rate counts."""


@lru_cache(maxsize=64)
def request_of(text: str) -> BatchRequest:
    """Return a batch's request, as the store keeps it."""
    return BatchRequest.model_validate_json(text)


def usage_of(row: Mapping[str, Any]) -> Usage:
    """Return what a batch has cost; where the price of some call is unknown, so is the cost."""
    counts = {name: row[name] for name in USAGE_COUNTS}
    known = row["calls"] and not row["unpriced"]
    return Usage(**counts, seconds=round(row["seconds"], 3), cost_usd=round(row["cost_usd"], 10) if known else None)


def held(row: Mapping[str, Any]) -> str | None:
    """Say which limit a batch has reached, in words; None where it may go on."""
    request = request_of(row["request"])
    if row["status"] == "paused":
        return str(row["reason"])
    if request.budget is not None and (told := request.budget.overrun(usage_of(row))):
        return f"the budget is used up: {told}"
    errors, done = row["errors"], row["passed"] + row["failed"] + row["errors"]
    if request.max_errors is not None and errors >= request.max_errors:
        return f"{errors} cases ended in an error, {request.max_errors} is the most that is borne (max_errors)"
    rate = request.max_error_rate
    if done >= COUNTED_FROM and errors > rate * done:
        return f"{errors} of {done} cases ended in an error, a share of {rate:g} is the most that is borne (max_error_rate)"
    return None


PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between tries: half a minute in all, before the call is given up and its activity tried again."""

T = TypeVar("T")


async def insist(write: Callable[[], Awaitable[T]]) -> T:
    """Do a write, again and again where the store cannot be had.

    Raises:
        StoreUnavailable: It was away for half a minute.
    """
    for seconds in PAUSES:
        try:
            return await write()
        except StoreUnavailable:
            await asyncio.sleep(seconds)
    return await write()


def summary_of(row: Mapping[str, Any]) -> BatchSummary:
    """Return where a batch stands."""
    request, created = request_of(row["request"]), row["created"]
    aware = created if created.tzinfo else created.replace(tzinfo=UTC)
    return BatchSummary(
        batch_id=row["id"],
        name=request.name,
        created=aware.astimezone(UTC).isoformat(timespec="seconds"),
        status=row["status"],
        reason=row["reason"],
        total=row["total"],
        passed=row["passed"],
        failed=row["failed"],
        errors=row["errors"],
        cached=row["reused"],
        usage=usage_of(row),
        budget=request.budget,
        pass_rate=request.pass_rate,
        throttled=row["throttled"],
        throttled_by=row["throttled_by"],
    )


SHARD = 250
"""Cases of one shard at most."""

Place = tuple[int, int, int]
"""Position of a case, its attempt, and which of its questions."""


@dataclass(frozen=True)
class CaseLookup:
    """What is known before a question is asked."""

    request: BatchRequest
    held: str | None
    """Why no further question may be asked."""
    unit: CaseConversation
    verdict: str | None
    """Of the cache."""


class AlreadyEndedError(Exception):
    """The case has ended, or another attempt is under way; nothing was written."""


def row_of(batch_id: str, position: int, case: Case) -> dict[str, Any]:
    """Return a case as its row."""
    spec, plan = case.model_dump_json(), plan_of(case).model_dump_json()
    return {"batch_id": batch_id, "position": position, "case_id": case.id, "spec": spec, "plan": plan, "status": "queued"}


def insert_cases(connection: "Connection", batch_id: str, rows: Sequence[dict[str, Any]]) -> int:
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


def begin_batch(connection: "Connection", request: BatchRequest) -> list[tuple[int, int]]:
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


def look_up_case(connection: "Connection", batch_id: str, place: Place, key: str | None) -> CaseLookup:
    """Return what is known before a question is asked."""
    position, attempt, number = place
    row = dict(connection.execute(select_batch(), {"batch": batch_id}).mappings().one())
    where = {"batch": batch_id, "at": position, "in_attempt": attempt, "number": number}
    kept = connection.execute(select_conversation(), where).scalar()
    known = None if key is None else connection.execute(select_verdict(), {"named": key}).scalar()
    unit = CaseConversation.model_validate_json(kept) if kept else CaseConversation()
    return CaseLookup(request_of(row["request"]), held(row), unit, known)


def keep_conversation(
    connection: "Connection", batch_id: str, place: Place, unit: CaseConversation, spent: Usage
) -> list[CaseConversation]:
    """Write a conversation down, and return all of the case's, by their number."""
    from sqlalchemy import select

    units, cases = table("case_units"), table("cases")
    position, attempt, number = place
    count_spending(connection, batch_id, spent)  # which takes the lock under which the others are read
    connection.execute(select(cases.c.position).where(cases.c.batch_id == batch_id, cases.c.position == position).with_for_update())
    told = unit.model_dump_json()
    mine = (units.c.batch_id == batch_id, units.c.position == position, units.c.attempt == attempt)
    changed = connection.execute(units.update().where(*mine, units.c.unit == number).values(held=told))
    if not changed.rowcount:
        connection.execute(units.insert().values(batch_id=batch_id, position=position, attempt=attempt, unit=number, held=told))
    asked = select(units.c.held).where(*mine).order_by(units.c.unit)
    return [CaseConversation.model_validate_json(each) for each in connection.execute(asked).scalars()]


def remember_verdict(connection: "Connection", key: str, verdict: str) -> None:
    """Keep a verdict for whoever asks the same; one that is there stays."""
    connection.execute(insert_verdict(connection.dialect.name), {"named": key, "told": verdict})


def count_spending(connection: "Connection", batch_id: str, usage: Usage) -> None:
    """Count what a call cost."""
    if usage.attempts or usage.calls:
        _count(connection, batch_id, usage)


def _count(connection: "Connection", batch_id: str, usage: Usage, **ends: int) -> int:
    added = {f"add_{name}": ends.get(name, 0) for name in ENDS}
    found = connection.execute(count_statement(), {"batch": batch_id} | spending_columns(usage) | added).scalar()
    return int(found or 0)


def end_case(connection: "Connection", batch_id: str, position: int, result: CaseResult, spent: Usage) -> str:
    """Write down what a case came to, and return its status.

    Raises:
        AlreadyEndedError: Somebody else did.
    """
    counter = {"passed": "passed", "failed": "failed", "error": "errors"}[result.status]
    settled = _count(connection, batch_id, spent, settled=1, reused=int(result.cached), **{counter: 1})
    kept = result.model_copy(update={"index": position}).model_dump_json()
    told = {"to_status": result.status, "to_result": kept, "to_settled": settled, "to_reused": int(result.cached)}
    where = {"batch": batch_id, "at": position, "in_attempt": result.attempt}
    if not connection.execute(end_case_statement(), told | where).rowcount:
        raise AlreadyEndedError
    return result.status


def close_batch(connection: "Connection", batch_id: str, why: str | None, *, stopped: bool) -> BatchSummary:
    """Say how a batch ended, and return where it stands."""
    from sqlalchemy import func, select

    batches, cases = table("batches"), table("cases")
    due = select(func.count()).select_from(cases).where(cases.c.batch_id == batch_id, cases.c.status == "queued")
    left = connection.execute(due).scalar_one()
    status = "stopped" if stopped else "paused" if left else "finished"
    told = {"status": status, "reason": one_line(why) if why and left else None}
    connection.execute(batches.update().where(batches.c.id == batch_id).values(**told))
    return summary_of(dict(connection.execute(select(batches).where(batches.c.id == batch_id)).mappings().one()))


@dataclass(frozen=True)
class StoredCase:
    """A case as it stands in the store."""

    case: Case
    plan: CasePlan
    attempt: int
    fresh: int
    """How often it was asked for anew, past the cache."""
    status: str
    draft: str | None
    spent: Usage
    """For its draft, and for questions that failed for good."""

    @property
    def output(self) -> str | None:
        """What is judged; None where it is not drafted yet."""
        return self.case.output if self.case.output is not None else self.draft


class BatchStore:
    """The batches of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, upload: Upload) -> int:
        """Write a stretch of cases down and return how many the batch has then; what is there already stays.

        Raises:
            InvalidRequest: An id is there twice, or a position holds another case.
        """
        from sqlalchemy.exc import IntegrityError

        rows = [row_of(upload.batch_id, upload.first + at, case) for at, case in enumerate(upload.cases)]
        try:
            return await self._store.write(lambda connection: insert_cases(connection, upload.batch_id, rows))
        except IntegrityError:
            raise InvalidRequest(f"the batch {upload.batch_id!r}: {await self._double(upload)}") from None

    async def _double(self, upload: Upload) -> str:
        """Say which id of an upload is there twice."""
        from sqlalchemy import select

        ids, cases = [case.id for case in upload.cases], table("cases")
        asked = select(cases.c.case_id, cases.c.position).where(cases.c.batch_id == upload.batch_id, cases.c.case_id.in_(ids))
        there = await self._store.read(lambda connection: dict(connection.execute(asked).all()))
        places = {case.id: upload.first + at for at, case in enumerate(upload.cases)}
        double = next((name for name in ids if ids.count(name) > 1 or there.get(name, places[name]) != places[name]), ids[0])
        return f"two cases have the id {clip(double)}; give each its own"

    async def open(self, request: BatchRequest) -> list[tuple[int, int]]:
        """Begin a batch, or go on with it, and return the stretches that have cases to be run.

        Raises:
            InvalidRequest: Not all of its cases are there.
        """
        return await self._store.write(lambda connection: begin_batch(connection, request))

    async def due(self, batch_id: str, first: int, last: int) -> list[tuple[DueCase, StoredCase]]:
        """Return the cases from `first` to before `last` that have not ended."""
        from sqlalchemy import select

        cases = table("cases")
        mine = (cases.c.batch_id == batch_id, cases.c.position >= first, cases.c.position < last, cases.c.status == "queued")
        asked = select(cases).where(*mine).order_by(cases.c.position)
        rows = await self._store.read(lambda connection: connection.execute(asked).mappings().all())
        found = [(row["position"], _held_case(row)) for row in rows]
        return [(DueCase(position=at, id=held.case.id, attempt=held.attempt, plan=held.plan), held) for at, held in found]

    async def case(self, batch_id: str, position: int) -> StoredCase:
        """Return a case.

        Raises:
            LookupError: There is none.
        """
        return _held_case(await self._store.read(lambda connection: case_row(connection, batch_id, position)))

    async def standing(self, batch_id: str, place: Place, key: str | None = None) -> CaseLookup:
        """Return what is known before a question is asked: of the batch, of the conversation, and of the same question before."""
        return await self._store.read(lambda connection: look_up_case(connection, batch_id, place, key))

    async def drafted(self, batch_id: str, position: int, attempt: int, draft: str, usage: Usage) -> None:
        """Keep a case's draft."""
        cases = table("cases")

        def write(connection: "Connection") -> None:
            count_spending(connection, batch_id, usage)
            mine = (cases.c.batch_id == batch_id, cases.c.position == position, cases.c.attempt == attempt, cases.c.status == "queued")
            connection.execute(cases.update().where(*mine).values(draft=json.dumps(draft), spent=usage.model_dump_json()))

        await insist(lambda: self._store.write(write))

    async def keep(
        self, batch_id: str, place: Place, unit: CaseConversation, spent: Usage, key: str | None = None
    ) -> list[CaseConversation]:
        """Keep a conversation, and its verdict for whoever asks the same; return all conversations of the case, by their number.

        Args:
            batch_id: The batch.
            place: Position, attempt, and which of the case's questions.
            unit: The conversation.
            spent: What the call cost that was made just now.
            key: Of the verdict; None where it must not stand for another.
        """

        def write(connection: "Connection") -> list[CaseConversation]:
            kept = keep_conversation(connection, batch_id, place, unit, spent)
            _remember(connection, key, unit)
            return kept

        return await insist(lambda: self._store.write(write))

    async def settle(
        self,
        batch_id: str,
        position: int,
        result: CaseResult,
        spent: Usage,
        *,
        key: str | None = None,
        unit: CaseConversation | None = None,
    ) -> str:
        """Write down what a case came to, once, and return its status; one that has ended stays as it is.

        Args:
            batch_id: The batch.
            position: The case's.
            result: Of the attempt that it names.
            spent: What is not counted in the batch yet.
            key: Of the verdict of the case's only question; None where it must not stand for another.
            unit: That question.
        """

        def write(connection: "Connection") -> str:
            _remember(connection, key, unit)
            return end_case(connection, batch_id, position, result, spent)

        try:
            return await insist(lambda: self._store.write(write))
        except AlreadyEndedError:
            await self._store.write(lambda connection: count_spending(connection, batch_id, spent))
            return (await self.case(batch_id, position)).status

    async def throttled(self, batch_id: str, model: str) -> None:
        """Note that a provider refused a call for its rate."""
        batches = table("batches")
        told = {"throttled": batches.c.throttled + 1, "throttled_by": model[:200]}
        await self._store.write(lambda connection: connection.execute(batches.update().where(batches.c.id == batch_id).values(**told)))

    async def close(self, batch_id: str, why: str | None, *, stopped: bool = False) -> BatchSummary:
        """Say how a batch ended: finished where nothing is left, else paused or stopped, and why."""
        return await self._store.write(lambda connection: close_batch(connection, batch_id, why, stopped=stopped))


def _held_case(row: "RowMapping") -> StoredCase:
    return StoredCase(
        case=Case.model_validate_json(row["spec"]),
        plan=CasePlan.model_validate_json(row["plan"]),
        attempt=row["attempt"],
        fresh=row["fresh"],
        status=row["status"],
        draft=None if row["draft"] is None else json.loads(row["draft"]),
        spent=Usage.model_validate_json(row["spent"]) if row["spent"] else Usage(),
    )


def _remember(connection: "Connection", key: str | None, unit: CaseConversation | None) -> None:
    if key is not None and unit is not None and unit.verdict is not None and unit.is_clean and not unit.cached:
        remember_verdict(connection, key, unit.verdict.model_dump_json())
