"""The batches of a store as a worker writes them: their cases, what was paid for, what has ended."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, bindparam, func, select
from sqlalchemy.exc import IntegrityError

from gradeloop.batches.cases import CaseConversation, ParkedCase, lost_workers, plan_of
from gradeloop.batches.charges import CallCost, WaitNote, charged, clear, count_lost, is_counted
from gradeloop.batches.contract import BatchRequest, BatchSummary, Case, CasePlan, CaseResult, DueCase, Upload
from gradeloop.batches.reader import parse_request, pause_reason, read_draft, read_result, select_batches, summary_of
from gradeloop.batches.statements import CASES, CONVERSATIONS, KEEP, LOOK_UP, RELEASE, WRITE
from gradeloop.contract.messages import LogProbs, Usage
from gradeloop.errors import InvalidRequest, StoreRefused, StoreUnavailable
from gradeloop.grading.scoring import trace_grading
from gradeloop.store.engine import Row, Rows, SetWork, Store, driver_connection
from gradeloop.store.tables import table
from gradeloop.telemetry.metrics import BATCH_CASES, BATCH_CASES_STORED, CACHE_HITS
from gradeloop.text import clip, one_line

SHARD_CASES = 250
"""Cases of one shard at most."""

RETRY_PAUSES = (0.2, 0.5, 1.0)
"""Seconds between tries while the store is away, before the call fails and its activity is retried."""

WRITE_PAUSE = 5.0
"""Seconds between the further tries to write what was paid for, which is not given up."""

AHEAD = 100
"""Positions behind a case whose cases are read with it."""

FOLD_SECONDS = 0.5
"""Seconds between two times that a worker has what is appended added to the batches' counters."""

T = TypeVar("T")

COMPARISON_UNIT = 1_000_000
"""The number under which a case that waits to be compared is kept; the questions that compare it have the numbers after it."""

ESCALATION_UNIT = 900_000
"""The number of the first question to an escalation model about what a case's graders are unsure of; it is below `COMPARISON_UNIT`."""

Question = tuple[int, int, int]
"""Position of a case, its attempt, and the number of the question to a grader."""


@dataclass(frozen=True)
class StoredCase:
    """A case as it is in the store."""

    case: Case
    plan: CasePlan
    attempt: int
    fresh: int
    """The number of times that the case was graded anew, without the cache."""
    status: str
    draft: str | None
    spent: Usage
    """Usage of its draft, and of questions that failed for good."""
    logprobs: LogProbs | None = None
    """The probabilities of the draft's tokens, where its call was asked that and its reply said it."""

    @property
    def output(self) -> str | None:
        """The output that is judged; None until it is drafted, empty where a finished run is."""
        return "" if self.case.judging is not None else self.case.output if self.case.output is not None else self.draft

    def result_of_attempt(self, result: CaseResult) -> CaseResult:
        """Return a result with the cost of the draft; it is cached where an answer was, and nothing was paid for."""
        usage, reused = self.spent + result.usage, result.cached or (self.draft is not None and not self.spent.calls)
        cached = reused and not usage.calls and result.status != "error"
        return result.model_copy(update={"attempt": self.attempt, "usage": usage, "cached": cached})


@dataclass
class CaseLookup:
    """The store's knowledge before a question is asked."""

    request: BatchRequest
    pause_reason: str | None
    """The limit for which no further question may be asked; None where questions may be."""
    conversation: CaseConversation
    verdict: str | None
    """The verdict that the cache has for the same question, or the draft for the same request, as JSON."""
    reserved: bool = False
    """Whether the call is reserved that asks it, and not sent yet."""
    released: bool = False
    """Whether it was, and nobody may send it."""
    counted: bool = False
    """Whether an earlier attempt of that call is counted already."""


class BatchStore:
    """Writes the batches of a store; each method is one transaction.

    `worker`: the id under which the worker that writes is registered in the store; None where it is not.
    """

    def __init__(self, store: Store, worker: str | None = None) -> None:
        self._store = store
        self._worker = worker
        self._folded = 0.0
        """Time at which this process last folded appended changes into the batches' counters."""

    # An upload is an activity, so it may come twice, and its second attempt finds its own rows. The positions
    # decide what is a repetition: the same case at its position is left as it is, and another case there is
    # refused. An id that is there twice is found by the unique index, which sees what another upload writes
    # at the same time; which id it was is looked up behind it.
    async def add(self, upload: Upload) -> int:
        """Store a range of cases and return how many the batch has then; cases that are stored already stay as they are.

        Raises:
            InvalidRequest: An id is there twice, or a position has another case.
        """
        try:
            count = await self.do(lambda connection: insert_cases(connection, upload), alone=True)
        except IntegrityError:
            ids = [case.id for case in upload.cases]
            statement = select(_CASES.c.case_id, _CASES.c.position).where(_CASES.c.batch_id == upload.batch_id, _CASES.c.case_id.in_(ids))
            stored = await self.do(lambda connection: dict(connection.execute(statement).all()))
            positions = {case.id: upload.first + at for at, case in enumerate(upload.cases)}
            twice = next((name for name in ids if ids.count(name) > 1 or stored.get(name, positions[name]) != positions[name]), ids[0])
            problem = f"two cases have the id {clip(twice)}; give each its own"
            raise InvalidRequest(f"the batch {upload.batch_id!r}: {problem}") from None
        BATCH_CASES_STORED.record(len(upload.cases))
        return count

    async def open(self, request: BatchRequest) -> tuple[list[tuple[int, int]], bool]:
        """Begin or resume a batch; return the ranges of positions that have cases to run, and whether one range follows the other.

        Raises:
            InvalidRequest: Some of its cases are not stored, or one follows another that is not before it.
        """
        return await self.do(lambda connection: _open_batch(connection, request), alone=True)

    async def close(self, batch_id: str, why: str | None, *, stopped: bool = False) -> BatchSummary:
        """Record how a batch ended, and return its summary: finished where no case is left, else paused or stopped, and why."""

        # A batch is closed when none of its calls is in flight any more. What is still reserved then was sent
        # by workers that were lost, or was never sent: it is counted as requests of unknown cost before the
        # summary is read.
        def write(connection: Connection) -> BatchSummary:
            queued = select(func.count()).select_from(_CASES).where(_CASES.c.batch_id == batch_id, _CASES.c.status == "queued")
            left = connection.execute(queued).scalar_one()
            row = connection.execute(select(_BATCHES.c.request).where(_BATCHES.c.id == batch_id)).scalar_one()
            decided = parse_request(row).decision is not None
            status = "stopped" if stopped else "paused" if left and not decided else "finished"
            reason = one_line(why) if why and left and not decided else None
            _written(batch_id, CallCost(Usage(attempts=clear(connection, batch_id))))(connection)
            connection.execute(_BATCHES.update().where(_BATCHES.c.id == batch_id).values(status=status, reason=reason))
            return summary_of(connection.execute(_SELECT_BATCH, {"batch": batch_id}).mappings().one())

        return await self.do(write, alone=True)

    async def due(self, batch_id: str, first: int, last: int) -> list[tuple[DueCase, StoredCase]]:
        """Return the cases from `first` to before `last` that have not ended."""
        mine = (_CASES.c.batch_id == batch_id, _CASES.c.position >= first, _CASES.c.position < last, _CASES.c.status == "queued")
        statement = select(_CASES).where(*mine).order_by(_CASES.c.position)
        rows = await self.do(lambda connection: connection.execute(statement).mappings().all(), alone=True)
        found = [(row["position"], _stored_case(row)) for row in rows]
        return [
            (DueCase(position=position, id=stored.case.id, attempt=stored.attempt, plan=stored.plan), stored) for position, stored in found
        ]

    async def followed(self, batch_id: str, case: Case) -> dict[str, tuple[str | None, CaseResult]]:
        """Return the draft and the result of each case that a case follows, by their ids."""
        mine = (_CASES.c.batch_id == batch_id, _CASES.c.case_id.in_(case.follows.values()))
        rows = await self.do(lambda connection: connection.execute(select(_CASES).where(*mine)).mappings().all())
        return {row["case_id"]: (read_draft(row["draft"])[0], read_result(row)) for row in rows}

    async def fill(self, batch_id: str, position: int, case: Case) -> None:
        """Store a case whose marks are filled with the outputs of those that it follows."""
        mine = (_CASES.c.batch_id == batch_id, _CASES.c.position == position, _CASES.c.status == "queued")
        await self.do(lambda connection: connection.execute(_CASES.update().where(*mine).values(spec=case.model_dump_json())), alone=True)

    async def case(self, batch_id: str, position: int) -> StoredCase:
        """Return a case; raise LookupError where the batch has no case at this position."""
        return (await self.cases_from(batch_id, position, 0))[position]

    async def cases_from(self, batch_id: str, position: int, ahead: int = AHEAD) -> dict[int, StoredCase]:
        """Return a case, and on PostgreSQL those behind it that are due and small, by their positions: each would be a round trip.

        Raises:
            LookupError: The batch has no case at this position.
        """
        values = {"batch_id": batch_id, "position": position, "ahead": ahead}
        found = await self.do(SetWork(CASES, values, lambda rows: {row["position"]: _stored_case(row) for row in rows}))
        if position not in found:
            raise LookupError(f"the batch {batch_id!r} has no case at position {position}")
        return found

    async def look_up(self, batch_id: str, question: Question, key: str | None = None, cost: CallCost | None = None) -> CaseLookup:
        """Return the batch's limits, the conversation about a question, and the cached verdict under `key`.

        Args:
            batch_id: The batch.
            question: Position and attempt of the case, and the number of the question.
            key: The cache key of the verdict; None where none may be reused.
            cost: The charge that is reserved where nothing holds the batch, and neither the conversation nor the cache has the answer.
        """
        values = _place(batch_id, *question) | {"key": key, "call": None, "attempt": 0, "reserve": None}
        if cost is not None:
            values |= self._reservation(cost, "if due")
        found = await self.do(SetWork(LOOK_UP, values, _lookup))
        if found.verdict is not None and not found.conversation.ended:
            CACHE_HITS.record(where="store")
        return found

    async def conversations(self, batch_id: str, position: int, attempt: int) -> list[CaseConversation]:
        """Return the conversations about a case that are stored until now."""
        return await self.do(SetWork(CONVERSATIONS, _place(batch_id, position, attempt), _parsed))

    async def reserve(self, batch_id: str, cost: CallCost) -> bool:
        """Reserve the charge of a call that is about to be made, and return whether an earlier attempt of it is counted already.

        Raises:
            StoreUnavailable: The store cannot be written, so that nothing may be paid for.
        """
        values = {"batch_id": batch_id} | self._reservation(cost, "anyway")
        return await self.do(SetWork(LOOK_UP, values, lambda rows: bool(rows[0]["counted"]), (cost.call,)))

    def _reservation(self, cost: CallCost, reserve: str) -> dict[str, Any]:
        return {"call": cost.call, "attempt": cost.attempt, "reserve": reserve, "worker": self._worker, "lost": cost.lost}

    async def count_lost(self, call: str, closed: int) -> int:
        """Return how many workers were lost with a call in flight, whose attempt of that number is known to have ended."""
        return await self.do(lambda connection: count_lost(connection, call, closed, self._worker))

    async def is_counted(self, call: str) -> bool:
        """Return whether what a call came to is written down."""
        return await self.do(lambda connection: is_counted(connection, call))

    async def release(self, cost: CallCost) -> None:
        """Take back the reservation of a call that was not made.

        Raises:
            StoreUnavailable: The store cannot be written; the reservation then counts as a request that nobody has heard of.
        """
        values = {"call": cost.call, "attempt": cost.attempt}
        await self._store.write_soon(SetWork(RELEASE, values, lambda _: None, (cost.call,)))

    async def require_writable(self, batch_id: str, cost: CallCost) -> None:
        """Write a charge of nothing before something else is paid for; raise StoreUnavailable where the store cannot be written."""
        await self.do(_written(batch_id, cost))

    async def count_failed(self, batch_id: str, cost: CallCost) -> None:
        """Count a call that is not made again: its cost, and its requests that nobody has heard of.

        Raises:
            StoreUnavailable: The store cannot be written; not where the cost has an `on_wait`.
        """
        work = _written(batch_id, cost)
        await (self.do(work, cost.on_wait) if cost.on_wait else self._store.write_soon(work))

    async def keep_draft(self, batch_id: str, place: tuple[int, int], draft: str, cost: CallCost, key: str | None) -> None:
        """Store the draft of the case at a position, in its attempt, as `write_draft` writes it; with a key in the cache, too."""
        values = {"draft": draft, "spent": cost.usage.model_dump_json()} | ({"key": key, "verdict": draft} if key else {})
        await self.do(_written(batch_id, cost, _place(batch_id, *place) | values), cost.on_wait)

    async def keep_conversation(
        self, batch_id: str, question: Question, conversation: CaseConversation, cost: CallCost, key: str | None = None
    ) -> list[CaseConversation]:
        """Store a conversation, and its verdict in the cache; return all conversations about the case, by their number.

        Args:
            batch_id: The batch.
            question: Position and attempt of the case, and the number of the question.
            conversation: The conversation about the question; its verdict is dropped where its fallback votes for another grader already.
            cost: The cost of the call that was just made.
            key: The cache key of the verdict; None where the verdict must not be reused.
        """
        place = _place(batch_id, *question)

        def keep(connection: Connection) -> list[CaseConversation]:
            # Two graders of one panel may fall back to the same model at once. Under the batch's lock the
            # second one sees the vote of the first, and is asked again. Without the lock one model could have
            # two votes.
            if conversation.fallback is not None:
                _lock(connection, batch_id)
                others = SetWork[Rows](CONVERSATIONS, place, lambda rows: rows)(connection)
                if conversation.votes_twice(_parsed([row for row in others if row["unit"] != place["unit"]])):
                    conversation.ask_again()
            return work()(connection)

        def work() -> SetWork[list[CaseConversation]]:
            values = place | {"held": conversation.model_dump_json()} | _cached(key, conversation)
            written = _written(batch_id, cost, values)
            return SetWork(KEEP, written.values, _parsed, written.keys)

        return await self.do(work() if conversation.fallback is None else keep, cost.on_wait)

    async def end_case(
        self,
        batch_id: str,
        position: int,
        result: CaseResult,
        cost: CallCost,
        *,
        key: str | None = None,
        conversation: CaseConversation | None = None,
    ) -> str:
        """Store a case's result once, and return its status; a case that has ended keeps the result it has.

        `key`: the cache key of the verdict on the case's only question; None where the verdict must not be reused.
        """
        if fold := time.monotonic() - self._folded > FOLD_SECONDS:
            self._folded = time.monotonic()
        values = _end(batch_id, position, result) | _cached(key, conversation) | {"fold": fold}
        if not await self.do(_written(batch_id, cost, values), cost.on_wait):
            return (await self.case(batch_id, position)).status
        _note_end(batch_id, result)
        return result.status

    # The lock comes first, so that of several cases that park at once exactly one finds all the others there
    # and compares. Without it each of two transactions could miss the other's row, and nobody would compare.
    async def park(self, batch_id: str, place: tuple[int, int], ids: tuple[str, ...], parked: ParkedCase, cost: CallCost) -> ParkedCase:
        """Store what is known of a case until it is compared, and return that; the last of the cases to come compares them."""

        def write(connection: Connection) -> ParkedCase:
            _lock(connection, batch_id)
            _written(batch_id, cost)(connection)
            mine = (_CASES.c.batch_id == batch_id, _CASES.c.case_id.in_(ids))
            rows = connection.execute(
                select(_CASES.c.position, _CASES.c.attempt).where(*mine).order_by(_CASES.c.position).with_for_update()
            )
            others = {(row.position, row.attempt) for row in rows} - {place}
            known = _parked_by_place(connection, batch_id, [position for position, _ in others | {place}])
            if place in known:
                return known[place]
            kept = parked.model_copy(update={"compares": others <= set(known)})
            position, attempt = place
            names = {"batch_id": batch_id, "position": position, "attempt": attempt, "unit": COMPARISON_UNIT}
            connection.execute(_CONVERSATIONS.insert().values(**names, held=kept.model_dump_json()))
            return kept

        return await self.do(write, cost.on_wait)

    async def parked(self, batch_id: str, ids: tuple[str, ...]) -> list[tuple[int, StoredCase, ParkedCase | None]]:
        """Return the cases that are compared with one another, by their positions, and what is known of each until now."""

        def read(connection: Connection) -> list[tuple[int, StoredCase, ParkedCase | None]]:
            mine = (_CASES.c.batch_id == batch_id, _CASES.c.case_id.in_(ids))
            rows = connection.execute(select(_CASES).where(*mine).order_by(_CASES.c.position)).mappings().all()
            known = _parked_by_place(connection, batch_id, [row["position"] for row in rows])
            return [(row["position"], _stored_case(row), known.get((row["position"], row["attempt"]))) for row in rows]

        return await self.do(read)

    async def end_together(self, batch_id: str, results: Mapping[int, CaseResult], cost: CallCost) -> None:
        """Store the results of cases that were compared, by their positions, all of them or none; one that has ended keeps its own.

        The other arguments are those of `end_case`.
        """

        def write(connection: Connection) -> list[CaseResult]:
            _lock(connection, batch_id)
            _written(batch_id, cost)(connection)
            mine = (_CASES.c.batch_id == batch_id, _CASES.c.position.in_(results), _CASES.c.status == "queued")
            rows = connection.execute(
                select(_CASES.c.position, _CASES.c.attempt).where(*mine).order_by(_CASES.c.position).with_for_update()
            )
            ended = [(position, results[position]) for position, attempt in rows if results[position].attempt == attempt]
            for position, result in ended:
                _written(batch_id, CallCost(), _end(batch_id, position, result))(connection)
            return [result for _, result in ended]

        for result in await self.do(write, cost.on_wait):
            _note_end(batch_id, result)

    async def count_throttling(self, batch_id: str, model: str) -> None:
        """Count a call that a provider refused for its rate."""
        values = {"throttled": _BATCHES.c.throttled + 1, "throttled_by": model[:200]}
        await self._store.write(lambda connection: connection.execute(_BATCHES.update().where(_BATCHES.c.id == batch_id).values(**values)))

    # What is not paid for yet may fail, and its activity is retried. What was paid for exists only in this
    # process, so its write is never given up while a heartbeat can say what it waits for. A store that
    # refuses the write ends that at once, since it would refuse it for ever.
    async def do(self, work: Callable[[Connection], T], on_wait: WaitNote | None = None, *, alone: bool = False) -> T:
        """Do work again and again while the store is away: a few times, or without a limit if a person is notified."""
        write = self._store.write if alone else self._store.write_soon
        pauses = chain(RETRY_PAUSES, repeat(WRITE_PAUSE) if on_wait else ())
        while True:
            try:
                return await write(work)
            except StoreRefused:
                raise
            except StoreUnavailable as error:
                pause = next(pauses, None)
                if pause is None:
                    raise
                if on_wait:
                    on_wait(str(error))
                await asyncio.sleep(pause)


_BATCHES, _CASES, _CONVERSATIONS = table("batches"), table("cases"), table("case_units")
_CHANGES = table("batch_changes")

_SELECT_BATCH = select_batches().where(_BATCHES.c.id == bindparam("batch"))


def _lock(connection: Connection, batch_id: str) -> None:
    """Have no other transaction change the batch until this one ends; SQLite begins one at its first write, and not before a read."""
    connection.execute(_BATCHES.update().where(_BATCHES.c.id == batch_id).values(settled=_BATCHES.c.settled))


def _place(batch_id: str, position: int, attempt: int, unit: int = 0) -> dict[str, Any]:
    """Return where a conversation about a case is stored; those about one case are below `most`."""
    return {"batch_id": batch_id, "position": position, "in_attempt": attempt, "unit": unit, "most": COMPARISON_UNIT}


def write_draft(text: str, logprobs: LogProbs | None) -> str:
    """Return a draft as the store keeps it: as JSON; as text if that is all of it."""
    return json.dumps(text if logprobs is None else {"text": text, "logprobs": logprobs.model_dump()})


def _end(batch_id: str, position: int, result: CaseResult) -> dict[str, Any]:
    """Return what is written of the end of a case."""
    stored = result.model_copy(update={"index": position}).model_dump_json()
    counts = {"settled": 1, "reused": int(result.cached), {"error": "errors"}.get(result.status, result.status): 1}
    return _place(batch_id, position, result.attempt) | {"status": result.status, "result": stored} | counts


def _written(batch_id: str, cost: CallCost, values: Mapping[str, Any] = MappingProxyType({})) -> SetWork[bool]:
    """Return the work that counts a cost, and writes what the values say; it returns whether a case has ended by it."""
    keys = (*((cost.call,) if cost.call else ()), *(((batch_id, values["position"]),) if values else ()))
    return SetWork(WRITE, charged(batch_id, cost) | dict(values), lambda rows: bool(rows[0]["ended"]), keys)


def _note_end(batch_id: str, result: CaseResult) -> None:
    """Count the end of a case in the metrics, and trace what it came to."""
    BATCH_CASES.record(status=result.status)
    if result.thread_id is None:  # else its own workflow has traced it
        ids = {"gradeloop.batch": batch_id, "gradeloop.case": result.id, "gen_ai.request.model": result.grader}
        trace_grading(result.status, result.score, result.explanation, result.criteria, ids)


def _parked_by_place(connection: Connection, batch_id: str, positions: Sequence[int]) -> dict[tuple[int, int], ParkedCase]:
    """Return what is known of the cases that wait to be compared, by position and attempt."""
    rows = _CONVERSATIONS
    mine = (rows.c.batch_id == batch_id, rows.c.position.in_(positions), rows.c.unit == COMPARISON_UNIT)
    found = connection.execute(select(rows.c.position, rows.c.attempt, rows.c.held).where(*mine))
    return {(row.position, row.attempt): ParkedCase.model_validate_json(row.held) for row in found}


def insert_cases(connection: Connection, upload: Upload) -> int:
    """Insert a range of cases in the transaction of a connection, and return how many the batch has then."""
    rows = [
        {
            "batch_id": upload.batch_id,
            "position": upload.first + at,
            "case_id": case.id,
            "spec": case.model_dump_json(),
            "plan": plan_of(case).model_dump_json(),
            "status": "queued",
        }
        for at, case in enumerate(upload.cases)
    ]
    mine = _CASES.c.batch_id == upload.batch_id
    positions = [row["position"] for row in rows]
    statement = select(_CASES.c.position, _CASES.c.spec).where(mine, _CASES.c.position.in_(positions))
    stored = dict(connection.execute(statement).all())
    for row, case in zip(rows, upload.cases, strict=True):  # one that follows others may have been filled with their outputs
        if stored.get(row["position"], row["spec"]) != row["spec"] and not case.follows:
            problem = f"position {row['position']} holds another case than {clip(str(row['case_id']))}; choose another batch_id"
            raise InvalidRequest(f"the batch {upload.batch_id!r}: {problem}")
    if new := [row for row in rows if row["position"] not in stored]:
        if connection.dialect.name == "sqlite":
            connection.execute(_CASES.insert(), new)
        else:
            with (
                driver_connection(connection) as driver,
                driver.cursor() as cursor,
                cursor.copy(f"COPY cases ({', '.join(rows[0])}) FROM STDIN") as copy,
            ):
                for row in new:
                    copy.write_row(tuple(row.values()))
    return int(connection.execute(select(func.count()).select_from(_CASES).where(mine)).scalar_one())


def _open_batch(connection: Connection, request: BatchRequest) -> tuple[list[tuple[int, int]], bool]:
    mine = _CASES.c.batch_id == request.batch_id
    stored = int(connection.execute(select(func.count()).select_from(_CASES).where(mine)).scalar_one())
    if stored != request.total:
        problem = f"{stored} of its {request.total} cases are in the store; upload the others first, each once"
        raise InvalidRequest(f"the batch {request.batch_id!r}: {problem}")
    in_turn = _refuse_following(connection, mine, request.batch_id)
    known = connection.execute(select(_BATCHES.c.request).where(_BATCHES.c.id == request.batch_id)).scalar()
    if known is not None and parse_request(known).priority.tenant != request.priority.tenant:
        raise InvalidRequest(f"priority.tenant: the batch {request.batch_id!r} is another tenant's; choose another batch_id")
    request = request.model_copy(update={"decision": None})
    values = {"request": request.model_dump_json(), "status": "running", "reason": None, "total": request.total}
    changed = connection.execute(_BATCHES.update().where(_BATCHES.c.id == request.batch_id).values(**values))
    if not changed.rowcount:
        values["models"] = json.dumps(_drafting_models(connection, mine))
        connection.execute(_BATCHES.insert().values(id=request.batch_id, created=datetime.now(UTC), **values))
    _written(request.batch_id, CallCost(Usage(attempts=clear(connection, request.batch_id))))(connection)
    # Opening is how a batch resumes, too. Reservations that its earlier run left behind are counted here,
    # before anything is queued again, since a case that runs again makes calls of its own.
    if request.again:
        _queue_again(connection, request)
    shards = select(func.distinct(_CASES.c.position // SHARD_CASES)).where(mine, _CASES.c.status == "queued")
    due = [(shard * SHARD_CASES, min((shard + 1) * SHARD_CASES, request.total)) for shard in sorted(connection.execute(shards).scalars())]
    return due, in_turn or request.until_decided is not None


def _drafting_models(connection: Connection, mine: ColumnElement[bool]) -> list[str]:
    """Return the models that draft the first cases of a batch, in their order: lists and searches name them."""
    specs = connection.execute(select(_CASES.c.spec).where(mine, _CASES.c.position < AHEAD).order_by(_CASES.c.position)).scalars()
    drafting = (Case.model_validate_json(spec).generator for spec in specs)
    return [*dict.fromkeys(one.model.id for one in drafting if one is not None and one.model is not None)]


def _refuse_following(connection: Connection, mine: ColumnElement[bool], batch_id: str) -> bool:
    """Return whether cases of a batch follow others; refuse one that follows itself, a later one, or none of the batch."""
    columns = (_CASES.c.case_id, _CASES.c.position, _CASES.c.plan)
    rows = connection.execute(select(*columns).where(mine, _CASES.c.plan.contains('"follows":['))).all()
    positions = dict(connection.execute(select(_CASES.c.case_id, _CASES.c.position).where(mine)).all()) if rows else {}
    for name, position, plan in rows:
        for other in CasePlan.model_validate_json(plan).follows:
            if positions.get(other, position) >= position:
                problem = f"the case {clip(name)} follows {clip(other)}, which is not before it in the batch; put that one first"
                raise InvalidRequest(f"the batch {batch_id!r}: {problem}")
    return bool(rows)


def _queue_again(connection: Connection, request: BatchRequest) -> None:
    """Queue the errors again, or the invalid judgements and the failures too; what they cost stays counted."""
    mine = _CASES.c.batch_id == request.batch_id
    which = mine & (_CASES.c.case_id.in_(request.cases) if request.cases else _CASES.c.position.not_in(_quarantined(connection, mine)))
    # A case that runs again has a new attempt, and whatever is written about a case names its attempt. So the
    # late answer of a call from before changes no row of the new attempt, although its cost is still counted.
    queued = {"status": "queued", "attempt": _CASES.c.attempt + 1, "settled": None, "result": None, "reused": 0}
    if request.again != "errors":
        for position in _invalid_judgements(connection, request.batch_id):
            connection.execute(_CASES.update().where(which, _CASES.c.position == position).values(**queued))
    statuses = ("error", "failed", "unsure") if request.again == "failures" else ("error",)
    rivals = _compared_with(connection, which & _CASES.c.status.in_(statuses))
    connection.execute(_CASES.update().where(which, _CASES.c.status == "error").values(**queued))
    if request.again == "failures":
        anew = queued | {"fresh": _CASES.c.fresh + 1, "draft": None, "spent": None}
        connection.execute(_CASES.update().where(which, _CASES.c.status.in_(("failed", "unsure"))).values(**anew))
    for case_id in sorted(rivals):  # a new attempt for them too: their verdicts named the others
        connection.execute(_CASES.update().where(mine, _CASES.c.case_id == case_id, _CASES.c.status != "queued").values(**queued))
    # one statement sees both the cases and what is appended of them, which is counted with the next change of the batch's row
    names = {"passed": "passed", "failed": "failed", "errors": "error", "ungraded": "ungraded", "unsure": "unsure"}
    found = {name: func.count().filter(_CASES.c.status == status) for name, status in names.items()} | {"reused": func.sum(_CASES.c.reused)}
    appended = {name: select(func.coalesce(func.sum(_CHANGES.c[name]), 0)).where(_CHANGES.c.batch_id == request.batch_id) for name in found}
    columns = ((func.coalesce(found[name], 0) - appended[name].scalar_subquery()).label(name) for name in found)
    values = dict(connection.execute(select(*columns).where(mine)).mappings().one())
    connection.execute(_BATCHES.update().where(_BATCHES.c.id == request.batch_id).values(**values))


def _invalid_judgements(connection: Connection, batch_id: str) -> list[int]:
    """Return the positions of judgements whose judge's answers stayed invalid, which have ended with nothing that passes or fails."""
    ended = (_CASES.c.batch_id == batch_id, _CASES.c.status == "ungraded", _CASES.c.result.contains('"result_type":"FAILURE"'))
    rows = connection.execute(select(_CASES.c.position, _CASES.c.result).where(*ended)).all()
    judged = ((position, CaseResult.model_validate_json(text).judgement) for position, text in rows)  # the text may stand in an output
    return [position for position, judgement in judged if judgement is not None and judgement.failed]


def _quarantined(connection: Connection, mine: ColumnElement[bool]) -> list[int]:
    """Return the positions of the cases that ended since workers were lost with their calls."""
    rows = connection.execute(select(_CASES.c.position, _CASES.c.result).where(mine, _CASES.c.result.contains("worker_lost: "))).all()
    return [position for position, text in rows if lost_workers(CaseResult.model_validate_json(text))]


def _compared_with(connection: Connection, ended: ColumnElement[bool]) -> set[str]:
    """Return the ids of the cases that are compared with one of those that have ended so."""
    specs = connection.execute(select(_CASES.c.spec).where(ended, _CASES.c.spec.contains('"compared_with":['))).scalars()
    return {name for spec in specs for name in Case.model_validate_json(spec).compared_with}


def _stored_case(row: Row) -> StoredCase:
    draft, logprobs = read_draft(row["draft"])
    return StoredCase(
        case=Case.model_validate_json(row["spec"]),
        plan=CasePlan.model_validate_json(row["plan"]),
        attempt=row["attempt"],
        fresh=row["fresh"],
        status=row["status"],
        draft=draft,
        spent=Usage.model_validate_json(row["spent"]) if row["spent"] else Usage(),
        logprobs=logprobs,
    )


def _parsed(rows: Rows) -> list[CaseConversation]:
    return [CaseConversation.model_validate_json(row["held"]).model_copy(update={"unit": row["unit"]}) for row in rows]


def _lookup(rows: Rows) -> CaseLookup:
    """Return what is known before a question is asked."""
    (row,) = rows
    conversation = CaseConversation.model_validate_json(row["held"]) if row["held"] else CaseConversation()
    known = (parse_request(row["request"]), pause_reason(row), conversation, row["verdict"])
    return CaseLookup(*known, reserved=row["reserved"], counted=row["counted"])


def _cached(key: str | None, conversation: CaseConversation | None) -> dict[str, Any]:
    """Return a verdict that may be reused, and its key in the cache; nothing where there is none."""
    verdict = conversation.reusable if key is not None and conversation is not None else None
    return {} if key is None or verdict is None else {"key": key, "verdict": verdict}
