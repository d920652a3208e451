"""What workers write of batches into the store: cases, what each came to, and what all of it cost."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradeloop.batches import ledger_work as work
from gradeloop.batches.batch_request import BatchRequest, Upload
from gradeloop.batches.case import Case
from gradeloop.batches.case_call import CasePlan, Due
from gradeloop.batches.case_result import BatchSummary, CaseResult
from gradeloop.batches.patience import insist
from gradeloop.batches.unit import Unit
from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip
from gradeloop.store import Store
from gradeloop.store_tables import table
from gradeloop.usage import Usage

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping


@dataclass(frozen=True)
class HeldCase:
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


class Ledger:
    """The batches of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, upload: Upload) -> int:
        """Write a stretch of cases down and return how many the batch has then; what is there already stays.

        Raises:
            InvalidRequest: An id is there twice, or a position holds another case.
        """
        from sqlalchemy.exc import IntegrityError

        rows = [work.row_of(upload.batch_id, upload.first + at, case) for at, case in enumerate(upload.cases)]
        try:
            return await self._store.write(lambda connection: work.add(connection, upload.batch_id, rows))
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
        return await self._store.write(lambda connection: work.begin(connection, request))

    async def due(self, batch_id: str, first: int, last: int) -> list[tuple[Due, HeldCase]]:
        """Return the cases from `first` to before `last` that have not ended."""
        from sqlalchemy import select

        cases = table("cases")
        mine = (cases.c.batch_id == batch_id, cases.c.position >= first, cases.c.position < last, cases.c.status == "queued")
        asked = select(cases).where(*mine).order_by(cases.c.position)
        rows = await self._store.read(lambda connection: connection.execute(asked).mappings().all())
        found = [(row["position"], _held_case(row)) for row in rows]
        return [(Due(position=at, id=held.case.id, attempt=held.attempt, plan=held.plan), held) for at, held in found]

    async def case(self, batch_id: str, position: int) -> HeldCase:
        """Return a case.

        Raises:
            LookupError: There is none.
        """
        return _held_case(await self._store.read(lambda connection: work.case_row(connection, batch_id, position)))

    async def standing(self, batch_id: str, place: work.Place, key: str | None = None) -> work.Standing:
        """Return what is known before a question is asked: of the batch, of the conversation, and of the same question before."""
        return await self._store.read(lambda connection: work.standing(connection, batch_id, place, key))

    async def drafted(self, batch_id: str, position: int, attempt: int, draft: str, usage: Usage) -> None:
        """Keep a case's draft."""
        cases = table("cases")

        def write(connection: "Connection") -> None:
            work.spend(connection, batch_id, usage)
            mine = (cases.c.batch_id == batch_id, cases.c.position == position, cases.c.attempt == attempt, cases.c.status == "queued")
            connection.execute(cases.update().where(*mine).values(draft=json.dumps(draft), spent=usage.model_dump_json()))

        await insist(lambda: self._store.write(write))

    async def keep(self, batch_id: str, place: work.Place, unit: Unit, spent: Usage, key: str | None = None) -> list[Unit]:
        """Keep a conversation, and its verdict for whoever asks the same; return all conversations of the case, by their number.

        Args:
            batch_id: The batch.
            place: Position, attempt, and which of the case's questions.
            unit: The conversation.
            spent: What the call cost that was made just now.
            key: Of the verdict; None where it must not stand for another.
        """

        def write(connection: "Connection") -> list[Unit]:
            kept = work.keep(connection, batch_id, place, unit, spent)
            _remember(connection, key, unit)
            return kept

        return await insist(lambda: self._store.write(write))

    async def settle(
        self, batch_id: str, position: int, result: CaseResult, spent: Usage, *, key: str | None = None, unit: Unit | None = None
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
            return work.settle(connection, batch_id, position, result, spent)

        try:
            return await insist(lambda: self._store.write(write))
        except work.AlreadyEndedError:
            await self._store.write(lambda connection: work.spend(connection, batch_id, spent))
            return (await self.case(batch_id, position)).status

    async def throttled(self, batch_id: str, model: str) -> None:
        """Note that a provider refused a call for its rate."""
        batches = table("batches")
        told = {"throttled": batches.c.throttled + 1, "throttled_by": model[:200]}
        await self._store.write(lambda connection: connection.execute(batches.update().where(batches.c.id == batch_id).values(**told)))

    async def close(self, batch_id: str, why: str | None, *, stopped: bool = False) -> BatchSummary:
        """Say how a batch ended: finished where nothing is left, else paused or stopped, and why."""
        return await self._store.write(lambda connection: work.close(connection, batch_id, why, stopped=stopped))


def _held_case(row: "RowMapping") -> HeldCase:
    return HeldCase(
        case=Case.model_validate_json(row["spec"]),
        plan=CasePlan.model_validate_json(row["plan"]),
        attempt=row["attempt"],
        fresh=row["fresh"],
        status=row["status"],
        draft=None if row["draft"] is None else json.loads(row["draft"]),
        spent=Usage.model_validate_json(row["spent"]) if row["spent"] else Usage(),
    )


def _remember(connection: "Connection", key: str | None, unit: Unit | None) -> None:
    if key is not None and unit is not None and unit.verdict is not None and unit.is_clean and not unit.cached:
        work.remember(connection, key, unit.verdict.model_dump_json())
