"""What the command reads of batches in the store: where each stands, and what its cases came to."""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gradeloop.batches.contract import BatchSummary, Case, CaseResult, build_result
from gradeloop.batches.store import summary_of
from gradeloop.errors import InvalidRequest
from gradeloop.store.engine import Store
from gradeloop.store.tables import table
from gradeloop.text import clip, did_you_mean

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping, Select


PAGE = 500
LATEST = "latest"


class BatchReader:
    """The batches of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self) -> None:
        """Open the store.

        Raises:
            StoreUnavailable: It cannot be used.
        """
        await self._store.read(lambda _: None)

    async def summary(self, batch_id: str) -> BatchSummary:
        """Return where a batch stands; `latest` is the newest one.

        Raises:
            InvalidRequest: There is none.
        """
        from sqlalchemy import select

        batches = table("batches")
        asked = select(batches).order_by(batches.c.created.desc(), batches.c.id.desc()).limit(1)
        asked = asked if batch_id == LATEST else asked.where(batches.c.id == batch_id)
        row = await self._store.read(lambda connection: connection.execute(asked).mappings().first())
        if row is None:
            known = [summary.batch_id for summary in await self.summaries(20)]
            hint = did_you_mean(batch_id, known) if known else " The store has none yet."
            raise InvalidRequest(f"there is no batch {clip(batch_id)} in the store.{hint}")
        return summary_of(dict(row))

    async def has(self, batch_id: str) -> bool:
        """Tell whether a batch stands in the store."""
        from sqlalchemy import select

        batches = table("batches")
        asked = select(batches.c.id).where(batches.c.id == batch_id)
        return await self._store.read(lambda connection: connection.execute(asked).first() is not None)

    async def stored(self, batch_id: str) -> int:
        """Return how many cases of a batch are in the store."""
        from sqlalchemy import func, select

        cases = table("cases")
        asked = select(func.count()).select_from(cases).where(cases.c.batch_id == batch_id)
        return int(await self._store.read(lambda connection: connection.execute(asked).scalar_one()))

    async def summaries(self, most: int) -> list[BatchSummary]:
        """Return where the newest batches stand."""
        from sqlalchemy import select

        batches = table("batches")
        asked = select(batches).order_by(batches.c.created.desc(), batches.c.id.desc()).limit(most)
        rows = await self._store.read(lambda connection: connection.execute(asked).mappings().all())
        return [summary_of(dict(row)) for row in rows]

    async def request(self, batch_id: str) -> str:
        """Return the request that a batch was started with last, as JSON."""
        from sqlalchemy import select

        batches = table("batches")
        asked = select(batches.c.request).where(batches.c.id == batch_id)
        return await self._store.read(lambda connection: connection.execute(asked).scalar_one())

    async def ended_since(self, batch_id: str, after: int) -> tuple[list[CaseResult], int]:
        """Return results in the order in which they came, and how far they go: 500 at most, from behind `after`."""
        from sqlalchemy import select

        cases = table("cases")
        asked = select(cases.c.result, cases.c.settled).where(cases.c.batch_id == batch_id, cases.c.settled > after)
        asked = asked.order_by(cases.c.settled).limit(PAGE)
        rows = await self._store.read(lambda connection: connection.execute(asked).all())
        return [CaseResult.model_validate_json(row.result) for row in rows], rows[-1].settled if rows else after

    def results(self, batch_id: str, why: str = "not run") -> Iterator[CaseResult]:
        """Yield every case in its order, read from this thread; one that has not ended is `queued`, with why as its error."""
        for row in self._paged(batch_id):
            yield _result(row, why)

    def told(self, batch_id: str) -> Iterator[tuple[Case, CaseResult]]:
        """Yield every case in its order, as it was sent and what it came to, read from this thread."""
        for row in self._paged(batch_id):
            yield Case.model_validate_json(row["spec"]), _result(row, "not run")

    def _paged(self, batch_id: str) -> Iterator["RowMapping"]:
        """Yield the rows of a batch's cases, in order."""
        from sqlalchemy import select

        cases, after = table("cases"), -1
        while True:
            asked = select(cases).where(cases.c.batch_id == batch_id, cases.c.position > after).order_by(cases.c.position).limit(PAGE)
            rows = self._store.do(_rows(asked))
            yield from rows
            if len(rows) < PAGE:
                return
            after = rows[-1]["position"]

    async def case(self, batch_id: str, name: str) -> CaseResult:
        """Return a case's result by its id.

        Raises:
            InvalidRequest: There is none of that id.
        """
        return (await self.told_case(batch_id, name))[1]

    async def told_case(self, batch_id: str, name: str) -> tuple[Case, CaseResult]:
        """Return a case by its id, as it was sent and what it came to.

        Raises:
            InvalidRequest: There is none of that id.
        """
        from sqlalchemy import select

        cases = table("cases")
        rows = await self._store.read(_rows(select(cases).where(cases.c.batch_id == batch_id, cases.c.case_id == name)))
        if rows:
            return Case.model_validate_json(rows[0]["spec"]), _result(rows[0], "not run")
        asked = select(cases.c.case_id).where(cases.c.batch_id == batch_id).order_by(cases.c.position).limit(PAGE)
        known = await self._store.read(lambda connection: list(connection.execute(asked).scalars()))
        raise InvalidRequest(f"the batch {batch_id!r} has no case {clip(name)}.{did_you_mean(name, known[:20])}")


def _rows(asked: "Select[Any]") -> "Callable[[Connection], list[RowMapping]]":
    return lambda connection: list(connection.execute(asked).mappings())


def _result(row: "RowMapping", why: str) -> CaseResult:
    """Return what a case came to, or what is known of it."""
    if row["result"] is not None:
        return CaseResult.model_validate_json(row["result"])
    case = Case.model_validate_json(row["spec"])
    draft = None if row["draft"] is None else json.loads(row["draft"])
    known = build_result(case, row["status"], output=case.output if draft is None else draft, error=why)
    return known.model_copy(update={"index": row["position"], "attempt": row["attempt"], "finished": None})
