"""The batches of a store as commands and pages read them: summaries, cases and results."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from gradeloop.batches.answer import why_open
from gradeloop.batches.cases import build_result
from gradeloop.batches.contract import JUDGING_PREFIX, BatchRequest, BatchSummary, Case, CaseResult, CaseStatus
from gradeloop.batches.ratings import Rating
from gradeloop.batches.tables import COUNTERS, USAGE_COUNTS
from gradeloop.contract.base import RECORDED
from gradeloop.contract.messages import LogProbs, Usage
from gradeloop.errors import InvalidRequest
from gradeloop.store.engine import Row, Store, StoreSnapshot
from gradeloop.store.tables import table
from gradeloop.text import clip, did_you_mean

if TYPE_CHECKING:  # imported where a statement is built: `gradeloop diff` of two files does without a store
    from sqlalchemy import Connection, Executable, RowMapping, Select


PAGE = 500
"""Rows that one query returns at most: a batch of 100,000 cases is never in memory as a whole."""

LATEST = "latest"
"""The name under which commands accept the newest batch."""

ERROR_RATE_FROM = 20
"""Cases that must have ended before their error rate counts."""


class BatchReader:
    """Reads the batches of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def store(self) -> Store:
        """The store that is read."""
        return self._store

    async def open(self) -> None:
        """Open the store; raise StoreUnavailable where the store cannot be used."""
        await self._store.read(lambda _: None)

    async def summary(self, batch_id: str) -> BatchSummary:
        """Return the summary of a batch; `latest` is the newest one. Raise InvalidRequest where the store has no such batch."""
        return await self._store.read(lambda connection: _read_summary(connection, batch_id))

    @contextmanager
    def snapshot(self, batch_id: str) -> Iterator["BatchSnapshot"]:
        """Yield a batch as it is now, for this thread, so that its numbers and its cases agree while it runs; `latest` is the newest one.

        Raises:
            InvalidRequest: The store has no such batch.
            StoreUnavailable: The store cannot be used.
        """
        with self._store.snapshot() as found:
            summary = found.do(lambda connection: _read_summary(connection, batch_id))
            yield BatchSnapshot(summary, found)

    async def summaries(self, limit: int, tenant: str | None = None) -> list[BatchSummary]:
        """Return the summaries of the newest batches, of all or of one tenant, the newest first."""
        return [_summary_of_items(tuple(row.items())) for row in await self._store.read(_fetch(_select_newest(limit, tenant)))]

    async def has(self, batch_id: str) -> bool:
        """Tell whether a batch has begun."""
        batches = table("batches")
        statement = _select(batches.c.id).where(batches.c.id == batch_id)
        return await self._store.read(lambda connection: connection.execute(statement).first() is not None)

    async def request(self, batch_id: str) -> str:
        """Return the request that a batch was last started with, as JSON."""
        batches = table("batches")
        statement = _select(batches.c.request).where(batches.c.id == batch_id)
        return await self._store.read(lambda connection: connection.execute(statement).scalar_one())

    async def keep_gate(self, batch_id: str, gate: Mapping[str, object]) -> None:
        """Write another gate, `pass_rate`, `allow_errors` or `corrected`, to a batch: its pages and lists then answer by it."""
        # The request is one JSON text, and whoever changes a part of it writes all of it. So it is written only
        # if it is still the text that was read; otherwise the change of the other would be lost.
        batches, written = table("batches"), 0
        while not written:  # a worker may write its early answer meanwhile
            known = await self.request(batch_id)
            text = parse_request(known).model_copy(update=dict(gate)).model_dump_json()
            statement = batches.update().where(batches.c.id == batch_id, batches.c.request == known).values(request=text)
            written = await self._store.write(partial(_changed, statement))

    async def count_cases(self, batch_id: str) -> int:
        """Return how many cases of a batch are in the store."""
        from sqlalchemy import func

        cases = table("cases")
        statement = _select(func.count()).select_from(cases).where(cases.c.batch_id == batch_id)
        return int(await self._store.read(lambda connection: connection.execute(statement).scalar_one()))

    async def cached_verdicts(self, keys: Sequence[str]) -> frozenset[str]:
        """Return which of these keys the cache of verdicts has."""
        verdicts, found = table("verdicts"), set[str]()
        for start in range(0, len(keys), PAGE):
            statement = _select(verdicts.c.key).where(verdicts.c.key.in_(keys[start : start + PAGE]))
            found |= {row["key"] for row in await self._store.read(_fetch(statement))}
        return frozenset(found)

    async def ended_since(self, batch_id: str, after: int) -> tuple[list[CaseResult], int]:
        """Return at most 500 results that came after position `after`, in the order in which they came, and the position of the last."""
        cases = table("cases")
        statement = _select(cases.c.result, cases.c.settled).where(cases.c.batch_id == batch_id, cases.c.settled > after)

        # A case has no place in the order of ends until the changes of its batch are folded. A reader therefore
        # folds first, or the newest ends would be missing; batches that another transaction holds are folded by
        # that one.
        def read(connection: "Connection") -> "list[RowMapping]":
            if self._store.shared:
                connection.exec_driver_sql(FOLD)
            return _fetch(statement.order_by(cases.c.settled).limit(PAGE))(connection)

        rows = await self._store.read(read)
        return [CaseResult.model_validate_json(row["result"]) for row in rows], rows[-1]["settled"] if rows else after

    def results(self, batch_id: str, why: str = "not run") -> Iterator[CaseResult]:
        """Yield the result of every case in order, read from this thread; an unfinished case is `queued`, with `why` as its error."""
        return (result for _, result in _read_cases(self._store, batch_id, why))

    async def cases_named(self, batch_id: str, names: Sequence[str]) -> list[tuple[Case, CaseResult]]:
        """Return the cases of a batch that have one of these ids, with their results."""
        cases, found = table("cases"), list[tuple[Case, CaseResult]]()
        for start in range(0, len(names), PAGE):
            statement = _select(cases).where(cases.c.batch_id == batch_id, cases.c.case_id.in_(names[start : start + PAGE]))
            found += [(Case.model_validate_json(row["spec"]), read_result(row)) for row in await self._store.read(_fetch(statement))]
        return found

    async def first_results(self, batches: Sequence[str], statuses: Sequence[CaseStatus], limit: int) -> dict[str, list[CaseResult]]:
        """Return the results of the first cases of each batch, at most `limit` of each status, in their order."""
        from sqlalchemy import func

        cases = table("cases")
        number = func.row_number().over(partition_by=(cases.c.batch_id, cases.c.status), order_by=cases.c.position).label("number")
        found = _select(cases, number).where(cases.c.batch_id.in_(batches), cases.c.status.in_(statuses)).subquery()
        results: dict[str, list[CaseResult]] = {}
        for row in await self._store.read(_fetch(_select(found).where(found.c.number <= limit).order_by(found.c.position))):
            results.setdefault(row["batch_id"], []).append(read_result(row))
        return results

    async def failing_ids(self, batch_id: str) -> list[str]:
        """Return the ids of the cases of a batch that failed, then of those that are errors, each in their order."""
        cases = table("cases")
        statement = _select(cases.c.case_id, cases.c.status).where(cases.c.batch_id == batch_id, cases.c.status.in_(("failed", "error")))
        rows = await self._store.read(_fetch(statement.order_by(cases.c.position)))
        return [row["case_id"] for row in sorted(rows, key=lambda row: bool(row["status"] == "error"))]

    async def case(self, batch_id: str, case_id: str) -> tuple[Case, CaseResult]:
        """Return one case with its result; raise InvalidRequest where the batch has no case with this id."""
        cases = table("cases")
        rows = await self._store.read(_fetch(_select(cases).where(cases.c.batch_id == batch_id, cases.c.case_id == case_id)))
        if rows:
            ratings = (await self._store.read(lambda connection: _ratings(connection, batch_id, case_id))).get(case_id, ())
            return Case.model_validate_json(rows[0]["spec"]), read_result(rows[0]).model_copy(update={"ratings": ratings})
        statement = _select(cases.c.case_id).where(cases.c.batch_id == batch_id).order_by(cases.c.position).limit(20)
        known = await self._store.read(lambda connection: list(connection.execute(statement).scalars()))
        raise InvalidRequest(f"the batch {batch_id!r} has no case {clip(case_id)}.{did_you_mean(case_id, known)}")

    async def rated(self, batch_id: str) -> str:
        """Return what changes with each rating of a batch's cases."""
        from sqlalchemy import func

        rows = table("case_ratings")
        statement = _select(func.count(), func.max(rows.c.created)).where(rows.c.batch_id == batch_id)
        return str(await self._store.read(lambda connection: tuple(connection.execute(statement).one())))

    async def rate(self, batch_id: str, case_id: str, rating: Rating) -> None:
        """Write what a person says about a case, in place of what the same person has said before.

        Raises:
            InvalidRequest: There is no such case, or it has not ended, or runs again since the page of the rating was read.
        """
        await self.case(batch_id, case_id)
        rows, cases = table("case_ratings"), table("cases")
        mine = {"batch_id": batch_id, "case_id": case_id, "created_by": rating.by}
        values = mine | {
            "passed": rating.passed,
            "comment": rating.comment.strip(),
            "attempt": rating.attempt,
            "created": datetime.now(UTC),
        }

        def write(connection: "Connection") -> None:
            connection.execute(rows.delete().where(*(rows.c[name] == value for name, value in mine.items())))
            rated = (cases.c.batch_id == batch_id, cases.c.case_id == case_id, cases.c.attempt == rating.attempt)
            ended = _select(cases.c.position).where(*rated, cases.c.status.not_in(("queued", "waiting"))).with_for_update()
            if connection.execute(ended).first() is None:  # it may have been forgotten, too
                raise InvalidRequest(f"the case {clip(case_id)} is not judged, or ran again meanwhile; read its new output, then rate that")
            connection.execute(rows.insert().values(values))

        await self._store.write(write)


class BatchSnapshot:
    """A batch as it was at one moment."""

    def __init__(self, summary: BatchSummary, store: StoreSnapshot) -> None:
        self.summary = summary
        self._store = store

    def results(self) -> Iterator[CaseResult]:
        """Yield the result of every case in order; an unfinished case is `queued`, and its error says why."""
        return (result for _, result in _read_cases(self._store, self.summary.batch_id, why_open(self.summary)))

    def cases(self) -> Iterator[tuple[Case, CaseResult]]:
        """Yield every case in order with its result."""
        found = _read_cases(self._store, self.summary.batch_id, why_open(self.summary))
        return ((Case.model_validate_json(spec), result) for spec, result in found)


def _read_summary(connection: "Connection", batch_id: str) -> BatchSummary:
    """Return the summary of a batch; raise InvalidRequest where the store has no such batch."""
    named = table("batches").c.id == batch_id
    statement = _select_newest(1) if batch_id == LATEST else select_batches().where(named)
    if rows := _fetch(statement)(connection):
        return summary_of(rows[0])
    known = [row["id"] for row in _fetch(_select_newest(20))(connection)]
    hint = did_you_mean(batch_id, known) if known else " The store has none yet."
    raise InvalidRequest(f"there is no batch {clip(batch_id)} in the store.{hint}")


def _ratings(connection: "Connection", batch_id: str, case_id: str | None = None) -> dict[str, tuple[Rating, ...]]:
    """Return what people say about the cases of a batch, or about one of them, by the ids of the cases."""
    rows, found = table("case_ratings"), dict[str, tuple[Rating, ...]]()
    mine = _select(rows).where(rows.c.batch_id == batch_id).order_by(rows.c.created, rows.c.created_by)
    for row in _fetch(mine if case_id is None else mine.where(rows.c.case_id == case_id))(connection):
        said = {"by": row["created_by"], "created": iso_time(row["created"])} | {key: row[key] for key in ("passed", "comment", "attempt")}
        found[row["case_id"]] = (*found.get(row["case_id"], ()), Rating.model_validate(said, context=RECORDED))
    return found


def _read_cases(store: Store | StoreSnapshot, batch_id: str, why: str = "not run") -> Iterator[tuple[str, CaseResult]]:
    """Yield every case of a batch in order, as JSON, with its result, read a page at a time."""
    ratings = store.do(lambda connection: _ratings(connection, batch_id))
    for row in _pages(store, batch_id):
        result = read_result(row, why)
        yield row["spec"], result.model_copy(update={"ratings": ratings[result.id]}) if result.id in ratings else result


def _pages(store: Store | StoreSnapshot, batch_id: str) -> Iterator["RowMapping"]:
    """Yield the rows of a batch's cases in order, read a page at a time."""
    cases, after = table("cases"), -1
    while True:
        statement = _select(cases).where(cases.c.batch_id == batch_id, cases.c.position > after).order_by(cases.c.position).limit(PAGE)
        rows = store.do(_fetch(statement))
        yield from rows
        if len(rows) < PAGE:
            return
        after = rows[-1]["position"]


def _select(*columns: Any) -> "Select[Any]":  # noqa: ANN401 - columns, or a table
    from sqlalchemy import select

    return select(*columns)


def select_batches() -> "Select[Any]":
    """Return a statement for the rows of batches, whose counters have what is appended and not added to them yet."""
    from sqlalchemy import func, literal_column

    batches, changes = table("batches"), table("batch_changes")
    sums = (func.sum(changes.c[name]).label(name) for name in COUNTERS)
    appended = _select(changes.c.batch_id, *sums).group_by(changes.c.batch_id).subquery("appended")
    more = {name: func.coalesce(appended.c[name], literal_column("0")) for name in COUNTERS}
    columns = ((column + more[column.name]).label(column.name) if column.name in more else column for column in batches.c)
    return _select(*columns).select_from(batches.outerjoin(appended, appended.c.batch_id == batches.c.id))


FOLD = """UPDATE batches SET settled = settled WHERE id IN (
    SELECT id FROM batches WHERE id IN (SELECT batch_id FROM batch_changes) FOR UPDATE SKIP LOCKED
)"""
"""Has the trigger of the third migration add what is appended of batches to their counters, but for those at which others do that now."""


def _select_newest(limit: int, tenant: str | None = None) -> "Select[Any]":
    """Return the newest batches that a user has begun; those of `gradeloop judge` are found only by their ids."""
    batches = table("batches")
    begun = select_batches().where(batches.c.id.not_like(f"{JUDGING_PREFIX}%"))
    if tenant is not None:  # as the request's JSON names it, in which the quotes of any other text are escaped
        begun = begun.where(batches.c.request.contains(f'"tenant":{json.dumps(tenant, ensure_ascii=False)}', autoescape=True))
    return begun.order_by(batches.c.created.desc(), batches.c.id.desc()).limit(limit)


def _changed(statement: "Executable", connection: "Connection") -> int:
    return connection.execute(statement).rowcount


def _fetch(statement: "Executable") -> "Callable[[Connection], list[RowMapping]]":
    return lambda connection: list(connection.execute(statement).mappings())


def read_result(row: "RowMapping", why: str = "not run") -> CaseResult:
    """Return the result of a case, or what is known of a case that has not ended."""
    if row["result"] is not None:
        return CaseResult.model_validate_json(row["result"])
    case = Case.model_validate_json(row["spec"])
    draft, _ = read_draft(row["draft"])
    unfinished = build_result(case, row["status"], output=case.output if draft is None else draft, error=why)
    return unfinished.model_copy(update={"index": row["position"], "attempt": row["attempt"], "finished": None})


def read_draft(kept: str | None) -> tuple[str | None, LogProbs | None]:
    """Return a draft of the store, None where there is none yet, and how probable its tokens were, where that is known."""
    value = None if kept is None else json.loads(kept)
    return (value["text"], LogProbs.model_validate(value["logprobs"])) if isinstance(value, dict) else (value, None)


def summary_of(row: Row) -> BatchSummary:
    """Return the summary of a batch from its row."""
    request = parse_request(row["request"])
    return BatchSummary(
        batch_id=row["id"],
        name=request.name,
        suite=request.suite,
        tenant=request.priority.tenant,
        models=tuple(json.loads(row["models"] or "[]")),
        created=iso_time(row["created"]),
        status=row["status"],
        reason=row["reason"],
        total=row["total"],
        passed=row["passed"],
        failed=row["failed"],
        unsure=row["unsure"],
        errors=row["errors"],
        ungraded=row["ungraded"],
        cached=row["reused"],
        usage=usage_of(row),
        budget=request.budget,
        pass_rate=request.pass_rate,
        allow_errors=request.allow_errors,
        corrected=request.corrected,
        baseline=request.baseline,
        decision=request.decision,
        asks=request.asks,
        derived_metrics=request.derived_metrics,
        throttled=row["throttled"],
        throttled_by=row["throttled_by"],
    )


@lru_cache(maxsize=4096)
def _summary_of_items(row: tuple[tuple[str, Any], ...]) -> BatchSummary:
    """Return the summary of a batch from its row, which a list that is polled reads unchanged again and again."""
    return summary_of(dict(row))


def iso_time(moment: datetime) -> str:
    """Return a moment of the store, which SQLite keeps without its zone, in ISO 8601, UTC."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat(timespec="seconds")


@lru_cache(maxsize=64)
def parse_request(text: str) -> BatchRequest:
    """Return a batch's request from its JSON in the store."""
    return BatchRequest.model_validate_json(text, context=RECORDED)


def pause_reason(row: Row) -> str | None:
    """Return which limit a batch has reached, from its row; None where it may go on."""
    request = parse_request(row["request"])
    if row["status"] == "paused":
        return str(row["reason"])
    if request.budget is not None and (why := request.budget.refusal(usage_of(row))):
        return why
    errors, done = row["errors"], row["passed"] + row["failed"] + row["errors"] + row["ungraded"] + row["unsure"]
    if request.max_errors is not None and errors >= request.max_errors:
        return f"{errors} cases ended in an error; max_errors is {request.max_errors}"
    if done >= ERROR_RATE_FROM and errors > request.max_error_rate * done:
        return f"{errors} of {done} cases ended in an error; max_error_rate is {request.max_error_rate:g}"
    return None


def usage_of(row: Row) -> Usage:
    """Return the usage of a batch from its row; its tokens or its cost are None where those of some call are unknown."""
    counts = {name: row[name] for name in USAGE_COUNTS}
    counts |= {"input": None, "output": None} if row["unreported"] else {}
    priced = row["calls"] and not row["unpriced"]
    return Usage(**counts, seconds=round(row["seconds"], 3), cost_usd=round(row["cost_usd"], 10) if priced else None)
