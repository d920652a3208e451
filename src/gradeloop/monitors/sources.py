"""The sources of monitors, read on from a cursor: files, rows of a query, received runs, finished threads; and backfills of them."""

import asyncio
import json
import math
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import JsonValue
from pydantic_core import to_jsonable_python
from sqlalchemy import Connection, func, select
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.batches.preview import preview_judgements
from gradeloop.batches.reader import BatchReader
from gradeloop.client.thread import ThreadHandle
from gradeloop.contract.base import Page
from gradeloop.contract.messages import Message
from gradeloop.contract.thread import SEARCH_ATTRIBUTES, WORKFLOW, RunResult
from gradeloop.contract.transcript import AgentRun, why_unanswered
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, installed
from gradeloop.judges.contract import JudgingRequest
from gradeloop.judges.sources import thread_as_run
from gradeloop.monitors import contract
from gradeloop.monitors.files import ObjectPlace, SourceItem, read_bucket, read_folder, reasons
from gradeloop.monitors.received import read_received
from gradeloop.monitors.ticks import Monitor, MonitorStore, ReadRun, is_due, lock_monitor, monitor_of, read_run, runs_of_backfill
from gradeloop.settings.secrets import remember_secret, scrubbed
from gradeloop.store.engine import Store
from gradeloop.store.tables import table
from gradeloop.temporal.histories import quoted
from gradeloop.text import counted, encodable, strict_json
from gradeloop.transcripts.json_access import ODD_SHAPES, UnreadableMessage
from gradeloop.transcripts.registry import parse_runs

LISTED = 5000
"""Threads that are listed at once: the server lists the newest first, so that an older backlog is cut by time."""

READ_AT_ONCE = 10
"""Threads whose workers are asked at the same time."""

NARROWEST = timedelta(seconds=1)
"""The shortest time that is listed: a second with more threads is listed whole."""

WAITED = timedelta(hours=1)
"""The time after its end for which a thread waits for a worker that tells what was said; after that it is passed over."""

_STATUS, _, _RUBRIC, _, _ = SEARCH_ATTRIBUTES
_ATTRIBUTES: dict[contract.ThreadFilter, str] = {"status": _STATUS, "rubric": _RUBRIC, "queue": "TaskQueue"}


class ThreadPlace(NamedTuple):
    """Place of a finished thread in the order of closing."""

    closed: datetime
    thread_id: str
    run_id: str

    @classmethod
    def read(cls, cursor: str) -> "ThreadPlace":
        """Return the place that a cursor means."""
        closed, thread_id, run_id = json.loads(cursor)
        return cls(datetime.fromisoformat(closed), str(thread_id), str(run_id))

    @property
    def cursor(self) -> str:
        """The place as the store has it."""
        return json.dumps([self.closed.isoformat(), self.thread_id, self.run_id])


class _Listed(NamedTuple):
    place: ThreadPlace
    queue: str


async def read_threads(
    source: contract.ThreadsSource, cursor: str | None, client: Client | None, until: str | None
) -> AsyncGenerator[list[SourceItem]]:
    """Yield the threads that closed after the cursor, some at a time.

    Raises:
        InvalidRequest: The server cannot be read, or the worker of a thread that ended lately does not answer.
    """
    if client is None:
        raise InvalidRequest("only a worker reads finished threads; this process has no Temporal server")
    reader, last = _ThreadReader(client), None if until is None else ThreadPlace.read(until)
    begin = datetime.fromtimestamp(0, UTC) if cursor is None else ThreadPlace.read(cursor).closed
    end = datetime.now(UTC) - timedelta(seconds=source.quiet)
    end = end if last is None else min(end, last.closed + timedelta(microseconds=1))
    after = None if cursor is None else ThreadPlace.read(cursor)
    # The end of what is read lies a little back: the server lists a thread some time after it has closed, and
    # a cursor that had passed its time would never come back for it.
    while begin < end:
        found, begin = await _closed_between(client, source, begin, end)
        found = [one for one in found if (after is None or one.place > after) and (last is None or one.place <= last)]
        for first in range(0, len(found), READ_AT_ONCE):
            yield await reader.read(found[first : first + READ_AT_ONCE])
            if reader.problem is not None:  # what comes after this thread is read later, too
                raise InvalidRequest(reader.problem)


# Temporal lists the newest first, and a cursor needs the oldest first. So the time is halved until what is
# in it can be listed whole and sorted here. The upper end is exclusive and becomes the next lower one, so
# that no thread is read twice or left out at a border.
async def _closed_between(client: Client, source: contract.ThreadsSource, begin: datetime, end: datetime) -> tuple[list[_Listed], datetime]:
    """Return the threads that closed first from a time on, in order, and up to when those are all."""
    try:
        while end - begin > NARROWEST and (await client.count_workflows(_query(source, begin, end))).count > LISTED:
            end = begin + (end - begin) / 2
        found = [
            _Listed(ThreadPlace(one.close_time, one.id, one.run_id), one.task_queue)
            async for one in client.list_workflows(_query(source, begin, end))
            if one.close_time is not None and one.parent_id is None  # a case of a batch is not production
        ]
    except RPCError as error:
        raise InvalidRequest(f"the finished threads cannot be listed: {error.message}; start the server, or correct --where") from None
    return sorted(found), end


def _query(source: contract.ThreadsSource, begin: datetime, end: datetime) -> str:
    times = f"CloseTime >= {quoted(begin.isoformat())} AND CloseTime < {quoted(end.isoformat())}"
    chosen = "".join(f" AND {_ATTRIBUTES[key]} = {quoted(value)}" for key, value in source.where.items())
    return f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus = 'Completed' AND {times}{chosen}"


class _ThreadReader:
    """Reads threads; a queue whose worker did not answer is not asked again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._silent = set[str]()
        self.problem: str | None = None
        """Reason that no further thread is read: a worker does not answer, and its thread has ended lately."""

    async def read(self, found: Sequence[_Listed]) -> list[SourceItem]:
        """Return some threads with their places, up to one that has a problem."""
        items = list[SourceItem]()
        for one, run in zip(found, await asyncio.gather(*map(self._run, found)), strict=True):
            cursor = one.place.cursor
            if isinstance(run, AgentRun):
                items.append(SourceItem(cursor, run))
            elif isinstance(run, ServerUnreachable) and datetime.now(UTC) - one.place.closed < WAITED:
                cure = f"start one on the task queue {one.queue!r}, or read another with --where queue=NAME"
                self.problem = f"no worker answers for the thread {one.place.thread_id!r}; {cure}"
                break
            else:
                items.append(SourceItem(cursor, unreadable=f"the thread {one.place.thread_id!r}: {run}"))
        return items

    async def _run(self, one: _Listed) -> AgentRun | GradeloopError:
        # Each query to a queue without a worker waits for its whole timeout. One silence per tick is enough to
        # know.
        if one.queue in self._silent:
            return ServerUnreachable("no worker answered on its task queue")
        try:
            return await self._read(ThreadHandle(self._client, one.place.thread_id, one.queue), one.place.run_id)
        except ServerUnreachable as error:
            self._silent.add(one.queue)
            return error
        except GradeloopError as error:
            return error
        except ValueError as error:
            return InvalidRequest(f"what its worker says of it has not the shape of a thread: {error}")

    async def _read(self, thread: ThreadHandle, run_id: str) -> AgentRun:
        messages, after = list[Message](), 0
        while True:
            page = Page[Message].model_validate(await thread.query("messages", after, 1000, run_id=run_id))
            messages += page.items
            if page.next is None:
                break
            after = page.next
        result: dict[str, JsonValue] = await thread.query("result", run_id=run_id)
        return thread_as_run(thread.thread_id, messages, RunResult.model_validate(result) if result else None)


if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Engine

LOOKED_UP = 100
"""Runs that are looked up at once."""

FETCHED = 100
"""Rows of a query that are fetched at once."""


@dataclass(frozen=True)
class SourceAccess:
    """Connections and settings with which sources are read."""

    store: Store
    """The store, which has what receivers have kept."""
    client: Client | None = None
    """The client of the namespace whose finished threads are read."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """The variables that name databases."""


async def read_chunks(
    source: contract.Source, cursor: str | None, access: SourceAccess, *, until: str | None = None
) -> AsyncGenerator[list[tuple[SourceItem, str]], None]:
    """Yield what a source has behind a cursor, some at a time, with the sums of the runs; what was read before may come again.

    `cursor`: the place of the last tick; None to begin.
    `until`: the last place that is read; None to read all that there is.

    Raises:
        InvalidRequest: The source cannot be read; the message says what to do.
    """
    found = contract.SOURCES.find(source.kind).read(source, cursor, access, until)
    if isinstance(found, AsyncGenerator):
        async for items in found:
            yield [*map(_with_sum, items)]
        return
    while chunk := await asyncio.to_thread(lambda: [*map(_with_sum, islice(found, LOOKED_UP))]):
        yield chunk


def _with_sum(item: SourceItem) -> tuple[SourceItem, str]:
    """Return an item with the sum of its run; one that has no answer, or that JSON cannot hold, is a run that cannot be read."""
    if item.run is None:
        return item, ""
    try:
        if (why := why_unanswered(item.run)) is None:
            return item, item.run.sha256()
    except ODD_SHAPES as error:
        why = f"the run {item.run.id!r} cannot be written as JSON: {error}; correct it"
    return SourceItem(item.cursor, unreadable=why), ""


def _since_in_query(source: contract.SqlSource, since: str, cursor: str) -> str:
    kind, known = json.loads(cursor)
    if kind == "datetime":
        moment = _moment(since, "a date or a time, for example 2026-01-31")
        return json.dumps([kind, (moment if datetime.fromisoformat(known).tzinfo else moment.replace(tzinfo=None)).isoformat()])
    place = json.dumps([kind, since])
    try:
        _watermark(place)
    except (ValueError, ArithmeticError):
        raise InvalidRequest(f"--since is {since!r}; the watermark {source.watermark} has values such as {known!r}, so write one") from None
    return place


def _since_day(place: Callable[[datetime], str]) -> Callable[[contract.Source, str, str], str]:
    """Return what makes a place of the day that a person wrote."""
    return lambda _source, since, _cursor: place(_moment(since, "a date, for example 2026-01-31"))


def _moment(text: str, cure: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"--since is {text!r}; write {cure}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _read_received(source: contract.OtlpSource, cursor: str | None, access: SourceAccess, until: str | None) -> Iterator[SourceItem]:
    """Yield the runs that receivers have kept, in the order in which their traces settled."""
    kind, place = ("number", "0") if cursor is None else json.loads(cursor)
    after = datetime.fromisoformat(place) if kind == "since" else int(place)
    last = None if until is None else int(json.loads(until)[1])
    while found := access.store.do(lambda connection, after=after: read_received(connection, after, last, FETCHED)):  # type: ignore[misc]  # bound
        for one in found:
            if one.problem is not None:
                yield SourceItem(None, unreadable=one.problem)
            elif one.run is not None and all(str(one.run.metadata.get(key)) == value for key, value in source.where.items()):
                yield SourceItem(None, one.run)
            yield SourceItem(json.dumps(["number", one.number]))
        after = found[-1].number


def _read_query(source: contract.SqlSource, cursor: str | None, access: SourceAccess, until: str | None) -> Iterator[SourceItem]:
    """Yield the runs of the rows from the watermark on; those that have the same come again."""
    from sqlalchemy.exc import SQLAlchemyError

    engine = _engine(source, access.environment)
    try:
        with engine.connect() as connection:
            yield from _rows(connection, source, cursor, until)
    except SQLAlchemyError as error:
        problem = " ".join(str(getattr(error, "orig", None) or error).split())
        raise InvalidRequest(scrubbed(f"the query of ${source.variable} fails: {problem}; correct the query, or the database")) from None
    finally:
        engine.dispose()


def _engine(source: contract.SqlSource, environment: Mapping[str, str]) -> "Engine":
    from sqlalchemy import create_engine

    url = environment.get(source.variable, "").strip()
    parts = urlsplit(url)
    if parts.scheme not in {"sqlite", "postgresql", "postgres"}:
        cure = "set it in the worker's environment to sqlite:////folder/file.db or postgresql://user@host/database"
        raise InvalidRequest(f"the variable {source.variable} {'names no such database' if url else 'is not set'}; {cure}")
    if parts.password:
        remember_secret(parts.password)
    if parts.scheme == "sqlite":
        path = url.removeprefix("sqlite:///")
        if not Path(path).is_file():
            raise InvalidRequest(f"the variable {source.variable} names the file {path!r}, which does not exist; name a database")
        return create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
    with installed("PostgreSQL needs a driver; run: pip install 'gradeloop[postgres]'"):
        return create_engine(f"postgresql+psycopg{url[len(parts.scheme) :]}", connect_args={"connect_timeout": 10})


# The watermark's condition is "at or above", since several rows may have the same, and new ones with it may
# come later: a strict one would skip those. Rows that were read before come again, and are known by the
# sums of their runs. The user's query is a subquery with bound values, in a transaction, or a file, that
# cannot be written.
def _rows(connection: "Connection", source: contract.SqlSource, cursor: str | None, until: str | None) -> Iterator[SourceItem]:
    from sqlalchemy import text

    _read_all_values(connection)
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET TRANSACTION READ ONLY"))
    query = source.query.strip().rstrip(";").replace(":", r"\:")  # a colon does not name a parameter
    bounds = {"after": (">=", cursor), "until": ("<=", until)}
    given = {name: (sign, _watermark(place)) for name, (sign, place) in bounds.items() if place is not None}
    conditions = " AND ".join(f'"{source.watermark}" {sign} :{name}' for name, (sign, _) in given.items())
    where = f" WHERE {conditions}" if conditions else ""
    statement = text(f'SELECT * FROM ({query}) AS runs{where} ORDER BY "{source.watermark}"')  # noqa: S608 - the query is the monitor's own
    values = {name: value for name, (_, value) in given.items()}
    rows = connection.execution_options(stream_results=True, yield_per=FETCHED).execute(statement, values)
    fetching = rows.cursor
    try:
        yield from _runs_of_rows(rows, source, None if cursor is None else json.loads(cursor)[0])
    finally:
        if fetching is not None:
            fetching.close()  # which SQLAlchemy leaves open where the connection is lost


def _runs_of_rows(rows: "CursorResult[Any]", source: contract.SqlSource, kind: str | None) -> Iterator[SourceItem]:
    """Yield the runs of rows; a watermark behind which no further row would be read moves no cursor."""
    for row in rows.mappings():
        mark = row[source.watermark]
        if mark is None:
            continue
        place = json.dumps([type(mark).__name__, mark.isoformat() if isinstance(mark, date) else str(mark)])
        is_odd = _is_odd(mark, kind)
        try:
            if is_odd:
                raise UnreadableMessage("a watermark is finite, not in the future, and of the type of those before it; correct the row")
            columns = {str(name): _json(value) for name, value in row.items() if name != source.watermark or name == "id"}
            for run in parse_runs(_json(row["run"]) if "run" in row else columns, f"{source.watermark}-{mark}"):
                yield SourceItem(None, run)
        except ODD_SHAPES as error:
            yield SourceItem(None, unreadable=f"the row with {source.watermark} {str(mark)!r}: {error}")
        if not is_odd:
            kind = type(mark).__name__
            yield SourceItem(place)


def _is_odd(mark: object, kind: str | None) -> bool:
    """Return whether a cursor that stood at a watermark would be behind rows to come: some zones are ahead of UTC, none by a day."""
    if isinstance(mark, date):
        return mark.isoformat()[:10] > (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    if isinstance(mark, int | float | Decimal):
        return not math.isfinite(mark) or kind not in {None, "int", "float", "Decimal"}
    return isinstance(mark, _BeyondPython) or kind not in {None, type(mark).__name__} or encodable(str(mark)) != str(mark)


class _BeyondPython(str):
    """A time of PostgreSQL that Python does not know, such as infinity, as the database writes it."""

    __slots__ = ()


def _read_all_values(connection: "Connection") -> None:
    """Have values that Python does not know come as texts, so that the other rows are read."""
    own: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        own.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        return
    from psycopg import DataError
    from psycopg.types import datetime as times

    def load(loader: Any, data: bytes) -> object:  # noqa: ANN401 - one of the classes below
        try:
            return super(type(loader), loader).load(data)
        except DataError:
            return _BeyondPython(bytes(data).decode())

    for name in ("Date", "Timestamp", "Timestamptz"):
        own.adapters.register_loader(name.lower(), type(name, (getattr(times, f"{name}Loader"),), {"load": load}))


def _watermark(cursor: str) -> object:
    kind, text = json.loads(cursor)
    readers: dict[str, Any] = {"int": int, "float": float, "Decimal": Decimal, "datetime": datetime.fromisoformat, "UUID": UUID}
    return readers.get(kind, date.fromisoformat if kind == "date" else str)(text)


def _json(value: object) -> object:
    """Return a column's value as JSON has it; a text of JSON is read."""
    if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
        try:
            return strict_json(value)
        except (ValueError, RecursionError):
            return value
    return to_jsonable_python(value, bytes_mode="hex", inf_nan_mode="strings", fallback=str)


def _folder_of(flags: contract.SourceFlags) -> dict[str, Any] | None:
    return {"path": str(Path(flags.place).expanduser().absolute()), **flags.waits} if flags.kind == "folder" and flags.place else None


def _bucket_of(flags: contract.SourceFlags) -> dict[str, Any] | None:
    if flags.kind != "s3" or not flags.place.startswith("//"):
        return None
    bucket, _, prefix = flags.place.removeprefix("//").partition("/")
    return {"bucket": bucket, "prefix": prefix, **flags.waits}


def _query_of(flags: contract.SourceFlags) -> dict[str, Any] | None:
    if flags.kind != "sql" or not flags.place:
        return None
    if not flags.query or not flags.watermark:
        raise InvalidRequest("a sql: source needs --query and --watermark; the watermark is the column by which rows are read on")
    return {"variable": flags.place, "query": flags.query, "watermark": flags.watermark}


KINDS = (
    contract.SourceKind(
        "folder",
        contract.FolderSource,
        lambda source, cursor, _, until: read_folder(source, cursor, until),
        _since_day(lambda day: json.dumps([int(day.timestamp() * 1e9), ""])),
        _folder_of,
        "folder:/PATH",
    ),
    contract.SourceKind(
        "bucket",
        contract.BucketSource,
        lambda source, cursor, _, until: read_bucket(source, cursor, until),
        _since_day(lambda day: ObjectPlace(day, "").cursor),
        _bucket_of,
        "s3://BUCKET/PREFIX",
    ),
    contract.SourceKind("sql", contract.SqlSource, _read_query, _since_in_query, _query_of, "sql:VARIABLE"),
    contract.SourceKind(
        "otlp",
        contract.OtlpSource,
        _read_received,
        _since_day(lambda day: json.dumps(["since", day.isoformat()])),
        lambda flags: (
            {"where": ({"service.name": flags.place} if flags.place else {}) | dict(flags.where)} if flags.kind == "otlp" else None
        ),
        "otlp, otlp:SERVICE",
    ),
    contract.SourceKind(
        "threads",
        contract.ThreadsSource,
        lambda source, cursor, access, until: read_threads(source, cursor, access.client, until),
        _since_day(lambda day: ThreadPlace(day, "", "").cursor),
        lambda flags: {"where": dict(flags.where), **flags.waits} if flags.text == "threads" else None,
        "threads",
    ),
)
"""The kinds of sources of gradeloop."""


DECIDED = frozenset({"passed", "failed", "unsure"})
"""Outcomes that are not judged again; an error and a run that was left out are."""


class _Known(NamedTuple):
    """Record of a run in a monitor."""

    verdict: str | None
    waits: bool
    """Whether it waits, or a tick that is not settled judges it."""


class MonitorBackfiller:
    """Reads what monitors have passed, and has the runs wait that are to be judged."""

    def __init__(self, store: Store, access: SourceAccess) -> None:
        self._store = store
        self._access = access

    async def run(self, call: contract.BackfillCall) -> contract.BackfillReport:
        """Read a monitor's source since a time up to where it has read, and return what was found.

        Raises:
            InvalidRequest: There is no such monitor, it has read nothing, the source cannot be read so, or an earlier backfill waits where
                one of the two ends early.
        """
        monitor = await MonitorStore(self._store).monitor(call.monitor)
        if monitor.cursor is None:
            raise InvalidRequest(f"the monitor {call.monitor!r} has read nothing yet; its first tick reads all that the source has")
        definition = monitor.definition
        if call.share is not None:
            definition = definition.model_copy(update={"sample": call.share, "strata": {}})
        place = contract.SOURCES.find(definition.source.kind).since(definition.source, call.since, monitor.cursor)
        # The gate is kept before anything waits, and its total is written when all is read. Ticks judge the runs
        # meanwhile, but ask for the answer only once the total is known. A reading that broke off begins again under
        # the same gate.
        if not call.preview:
            await self._store.write(lambda connection: _begin_backfill(connection, call))
        report, seen = contract.BackfillReport(), set[str]()
        async for chunk in read_chunks(definition.source, place, self._access, until=monitor.cursor):
            runs = {sha256: item.run for item, sha256 in chunk if item.run is not None and sha256 not in seen}
            seen |= runs.keys()
            unreadable = report.unreadable + sum(item.unreadable is not None for item, _ in chunk)
            more = {"unreadable": unreadable, "refused": reasons(report.refused, (item for item, _ in chunk))}
            report = await self._take(call, definition, runs, report.model_copy(update=more))
        if call.gate is not None and not call.preview:
            await self._store.write(lambda connection: _count_backfill(connection, call.monitor))
        return report

    async def _take(
        self,
        call: contract.BackfillCall,
        definition: contract.MonitorDefinition,
        runs: Mapping[str, AgentRun],
        report: contract.BackfillReport,
    ) -> contract.BackfillReport:
        """Return the report with some more runs, of which those that are chosen wait from now on."""
        known = await self._store.read(lambda connection: _known(connection, definition.name, list(runs)))
        # A run that has a verdict is not judged again, and one that waits is left to the tick that takes it. One that
        # ended as an error, or was left out, may get its verdict now.
        done = {sha256 for sha256 in runs if sha256 in known and known[sha256].verdict in DECIDED}
        waiting = {sha256 for sha256 in runs if sha256 in known and known[sha256].waits} - done
        read = [read_run(definition, run, sha256) for sha256, run in runs.items() if sha256 not in done | waiting]
        left_out = sum(run.why == "left out" for run in read)
        chosen = [run for run in read if run.case is not None]
        judged = {run.case.id: runs[run.run_sha256] for run in chosen if run.case}
        requests = [(name, [JudgingRequest(judge=definition.judge, run=run, priority=definition.priority)]) for name, run in judged.items()]
        cost = await preview_judgements(requests, set(), None, BatchReader(self._store))
        if chosen and not call.preview:
            await self._store.write(lambda connection: _have_wait(connection, definition.name, chosen))
        more = {"read": len(runs), "done": len(done), "waiting": len(waiting), "left_out": left_out, "chosen": len(chosen)}
        more |= {"unjudgeable": len(read) - left_out - len(chosen), "calls": cost.calls, "cached": cost.cached}
        total = None if report.cost_usd is None or cost.cost_usd is None else report.cost_usd + cost.cost_usd
        return report.model_copy(update={name: getattr(report, name) + count for name, count in more.items()} | {"cost_usd": total})


def _known(connection: Connection, name: str, shas: Sequence[str]) -> dict[str, _Known]:
    runs, ticks = table("monitor_runs"), table("monitor_ticks")
    unsettled = set(connection.execute(select(ticks.c.number).where(ticks.c.monitor == name, ticks.c.settled == 0)).scalars())
    statement = select(runs.c.run_sha256, runs.c.verdict, runs.c.judged, runs.c.waiting.is_not(None))
    rows = connection.execute(statement.where(runs.c.monitor == name, runs.c.run_sha256.in_(shas)))
    return {sha256: _Known(verdict, bool(waits) or judged in unsettled) for sha256, verdict, judged, waits in rows}


def _begin_backfill(connection: Connection, call: contract.BackfillCall) -> None:
    """Keep the gate of a backfill; its runs are counted once the source is read. One that was begun before a crash goes on."""
    lock_monitor(connection, call.monitor)
    monitor, runs = monitor_of(connection, call.monitor), table("monitor_runs")
    known = monitor.state.backfill
    if call.gate is not None and known is not None and known == call.gate.model_copy(update={"after": known.after}):
        return
    waits = (runs.c.monitor == call.monitor, runs.c.why == "backfill", is_due(call.monitor))
    left = connection.execute(select(func.count()).select_from(runs).where(*waits)).scalar_one()
    if left and (call.gate is not None or (known is not None and known.decision is None)):
        what = f"{counted(left, 'run')} of an earlier backfill {'waits' if left == 1 else 'wait'} to be judged"
        raise InvalidRequest(f"{what}, and one that ends early counts only its own; begin it once none waits")
    _keep_gate(connection, monitor, call.gate and call.gate.model_copy(update={"after": monitor.state.ticks}))


def _count_backfill(connection: Connection, name: str) -> None:
    """Write how many runs a backfill has, from which moment on ticks ask whether its answer is known."""
    lock_monitor(connection, name)
    monitor = monitor_of(connection, name)
    if (gate := monitor.state.backfill) is not None:
        total = connection.execute(select(func.count()).where(*runs_of_backfill(name, gate))).scalar_one()
        _keep_gate(connection, monitor, gate.model_copy(update={"total": total}))


def _keep_gate(connection: Connection, monitor: Monitor, gate: contract.BackfillGate | None) -> None:
    monitors, state = table("monitors"), monitor.state.model_copy(update={"backfill": gate})
    mine = monitors.c.name == monitor.definition.name
    connection.execute(monitors.update().where(mine).values(state=state.model_dump_json()))


def _have_wait(connection: Connection, name: str, chosen: Sequence[ReadRun]) -> None:
    """Have runs wait; one that a tick has taken meanwhile is left to it."""
    lock_monitor(connection, name)
    runs = table("monitor_runs")
    known = _known(connection, name, [run.run_sha256 for run in chosen])
    for run in chosen:
        waiting = None if run.case is None else run.case.model_dump_json()
        values = {"why": "backfill", "verdict": "unjudged", "judged": None, "case_id": None, "waiting": waiting}
        there = known.get(run.run_sha256)
        if there is None:
            row = {"monitor": name, "run_sha256": run.run_sha256, "run_id": run.run_id, "number": 0, "stratum": run.stratum}
            connection.execute(runs.insert().values(**row, **values))
        elif there.verdict not in DECIDED and not there.waits:
            connection.execute(runs.update().where(runs.c.monitor == name, runs.c.run_sha256 == run.run_sha256).values(**values))
