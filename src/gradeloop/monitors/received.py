"""Store of the OTLP receiver: spans, until their trace is silent, and the runs that are put together from them."""

import asyncio
import json
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Any, NamedTuple

from pydantic import JsonValue
from sqlalchemy import Connection, RowMapping, func, select
from sqlalchemy.dialects import postgresql, sqlite

from gradeloop.contract.base import Strict
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import ValueRefused
from gradeloop.settings.worker import ReceiverSettings
from gradeloop.store.engine import Store
from gradeloop.store.tables import stored_moment, table
from gradeloop.text import encodable, one_line, shortened
from gradeloop.transcripts.formats.spans import CONVENTIONS, read_trace
from gradeloop.transcripts.json_access import ODD_SHAPES, UnreadableMessage, dict_of

TRACE_BYTES = 32 * 1024 * 1024
"""The most JSON of one trace: a run above it is beyond what any judge reads."""

SETTLED_AT_ONCE = 200
"""Traces that are put together in one transaction."""

SETTLED_BYTES = 16 * 1024 * 1024
"""The JSON of spans that is read at once, beyond which the other traces of a group wait for the next one."""

REMOVED_AT_ONCE = 2000
"""Traces that are closed, or runs that are removed, in one transaction."""

LOCK = 0x67726164656F746C
"""The key of the lock of PostgreSQL under which runs get their numbers, so that a smaller one is never committed later: `gradeotl`."""

REFUSED = "refused"
"""The id, in place of a span's, of the reason for which a span of the trace was refused: without that span it is another run."""

UNSTORABLE = "the store cannot hold a value of the trace; send numbers below 2**63 and texts without NUL"

METADATA_KEYS = 50
METADATA_CHARACTERS = 200

_DESCRIBES_THE_SERVICE = ("service.instance.", "telemetry.", "process.", "host.", "os.", "container.", "k8s.", "cloud.")
"""Attributes of a resource that say where a service runs, and nothing of the run."""

_OF_A_CALL = (*CONVENTIONS, "openai.", "http.", "url.", "server.", "net.", "network.", "thread.", "code.", "error.", "exception.", "event.")
"""Attributes of a span that say how it was called, and nothing of the run."""


class ReceivedSpan(NamedTuple):
    """A span or a log record as it was received."""

    trace_id: str
    span_id: str
    """Its id, of a log record one of its content."""
    ended: int
    """End in nanoseconds: of two with one id the later one counts."""
    text: str
    """It as JSON, in the form that `transcripts` reads; a string says why a span was refused."""

    @classmethod
    def refused(cls, trace_id: str, why: str) -> "ReceivedSpan":
        """Return what a trace has in place of a span that was refused; the first of several counts."""
        return cls(trace_id, REFUSED, 0, json.dumps(shortened(one_line(why))))


class KeptSpans(NamedTuple):
    """Outcome of some spans, counted."""

    kept: int = 0
    known: int = 0
    """Those that were there already."""
    rejected: int = 0
    """Those that are not kept."""
    why: str = ""
    """Reason that spans are not kept."""

    def plus(self, other: "KeptSpans") -> "KeptSpans":
        """Return both together."""
        counts = (self.kept + other.kept, self.known + other.known, self.rejected + other.rejected)
        return KeptSpans(*counts, self.why or other.why)


class ReceivedLoad(NamedTuple):
    """Number of spans, and their bytes."""

    open: int
    """Traces that have not settled."""
    runs: int


class AssembledTraces(NamedTuple):
    """Outcome of traces that were silent, counted."""

    runs: int = 0
    completed: int = 0
    """Those among them that replace an earlier run of their trace."""
    unreadable: int = 0
    empty: int = 0
    """Traces with neither messages nor a call of a model or a tool."""

    def plus(self, other: "AssembledTraces") -> "AssembledTraces":
        """Return both together."""
        return AssembledTraces(*(one + more for one, more in zip(self, other, strict=True)))


class ReceivedRun(Strict):
    """A run that was received, or why its trace cannot be read."""

    number: int
    run: AgentRun | None = None
    problem: str | None = None


class _SilentTrace(NamedTuple):
    """A silent trace as it was read."""

    trace_id: str
    heard: int
    spans: int
    columns: dict[str, str | None] | None
    """The run, or why the trace cannot be read; None for one without messages."""


class ReceivedSpans:
    """Keeps spans, and puts silent traces together; any number of receivers may share one store."""

    def __init__(self, store: Store, settings: ReceiverSettings) -> None:
        self._store = store
        self._settings = settings

    async def keep(self, spans: Sequence[ReceivedSpan]) -> KeptSpans:
        """Write spans, and return once they are committed; one that the store cannot hold is rejected, and its trace says so.

        Raises:
            StoreUnavailable: The store cannot be reached; not all are kept.
        """
        if not spans:
            return KeptSpans()
        try:
            return await self._store.write_soon(lambda connection: _Keeping(connection, self._settings).keep(spans))
        except ValueRefused:
            # The store says only that some value is refused, and nothing of the request is written then. So each span is
            # written by itself: the others are kept, and the trace says that it lacks one.
            if len(spans) > 1:
                return reduce(KeptSpans.plus, [await self.keep([span]) for span in spans])
            await self.keep([ReceivedSpan.refused(spans[0].trace_id, f"a span was refused: {UNSTORABLE}")])
            return KeptSpans(rejected=1, why=UNSTORABLE)

    async def load(self) -> ReceivedLoad:
        """Return how many open traces and runs there are; raise StoreUnavailable where the store cannot be reached."""
        return await self._store.read(_load)

    async def assemble_silent(self) -> AssembledTraces:
        """Assemble the runs of silent traces, and count the outcomes; raise StoreUnavailable where the store cannot be reached."""
        total = AssembledTraces()
        while True:
            until = _now() - int(self._settings.settle * 1000)
            found = await asyncio.to_thread(self._read_silent, until)
            if not found:
                return total
            total = total.plus(await self._write(found))

    async def _write(self, found: Sequence[_SilentTrace]) -> AssembledTraces:
        """Write what became of silent traces; a run that the store cannot hold is one that cannot be read."""

        def write(traces: Sequence[_SilentTrace]) -> Awaitable[AssembledTraces]:
            return self._store.write_soon(lambda connection: _write_assembled(connection, traces))

        try:
            return await write(found)
        except ValueRefused:
            if len(found) == 1:
                return await write([found[0]._replace(columns={"run": None, "problem": UNSTORABLE})])
            return reduce(AssembledTraces.plus, [await self._write([one]) for one in found])

    def _read_silent(self, until: int) -> list[_SilentTrace]:
        """Return the next silent traces with their runs, which are put together outside of any transaction."""
        found = self._store.do(lambda connection: _silent(connection, until))
        return [_SilentTrace(row["trace_id"], row["heard"], row["spans"], _columns_of(row["trace_id"], spans)) for row, spans in found]

    async def clean(self) -> int:
        """Close the traces that no late span may join any more, remove what is older than it is kept, and return how many runs that were.

        Raises:
            StoreUnavailable: The store cannot be reached.
        """
        late = _now() - int(self._settings.late * 1000)
        while await self._store.write_soon(lambda connection: _close(connection, late)):
            pass
        removed, age = 0, timedelta(days=self._settings.keep_days)
        while rows := await self._store.write_soon(lambda connection: _remove_old(connection, datetime.now().astimezone() - age)):
            removed += rows
        return removed


class _Keeping:
    """Keeps spans in one transaction, in which the rows of their traces are locked first."""

    def __init__(self, connection: Connection, settings: ReceiverSettings) -> None:
        self._connection = connection
        self._settings = settings

    def keep(self, spans: Sequence[ReceivedSpan]) -> KeptSpans:
        """Write those that are new, and count."""
        latest = dict[tuple[str, str], ReceivedSpan]()
        for span in spans:
            place = span.trace_id, span.span_id
            if place not in latest or latest[place].ended < span.ended:
                latest[place] = span
        # The rows of the traces are locked first, in the order of their names, so that two receivers never wait
        # for each other. All counts are read and written under these locks. Otherwise two requests for one
        # trace could each stay below its limit and exceed it together.
        traces = self._hear(sorted({span.trace_id for span in latest.values()}))
        found = table("received_spans")
        mine = (found.c.trace_id.in_(traces), found.c.span_id.in_({span.span_id for span in latest.values()}))
        kept = self._connection.execute(select(found.c.trace_id, found.c.span_id, found.c.ended).where(*mine))
        ended: dict[tuple[str, str], int] = {(trace, span): moment for trace, span, moment in kept}
        added, replaced, grown, whys = list[ReceivedSpan](), list[ReceivedSpan](), set[str](), list[str]()
        less: dict[str, ReceivedSpan] = {}
        sizes: dict[str, int] = {name: row["bytes"] for name, row in traces.items()}
        counts: dict[str, int] = {name: row["spans"] for name, row in traces.items()}
        known = len(spans) - len(latest)
        for place, span in latest.items():
            name = span.trace_id
            if (before := ended.get(place)) is not None and before >= span.ended:
                known += 1
                continue
            if why := self._refusal(traces[name], counts[name] + (before is None), sizes[name] + len(span.text)):
                whys.append(why)
                if not traces[name]["closed"]:
                    less[name] = ReceivedSpan.refused(name, why)
                continue
            (added if before is None else replaced).append(span)
            counts[name] += before is None
            sizes[name] += len(span.text)
            grown.add(name)
        self._write([*added, *less.values()], replaced)
        self._count({name: (counts[name], sizes[name]) for name in sorted({*grown, *less})})
        return KeptSpans(len(added) + len(replaced), known, len(whys), whys[0] if whys else "")

    def _hear(self, names: Sequence[str]) -> dict[str, RowMapping]:
        """Return the rows of traces, made where they are not there, and locked until the transaction ends."""
        traces, now = table("received_traces"), _now()
        insert = _insert(self._connection, "received_traces").on_conflict_do_update(index_elements=["trace_id"], set_={"heard": now})
        self._connection.execute(insert, [{"trace_id": name, "heard": now} for name in names])
        rows = self._connection.execute(select(traces).where(traces.c.trace_id.in_(names))).mappings()
        return {row["trace_id"]: row for row in rows}

    def _refusal(self, trace: RowMapping, spans: int, size: int) -> str:
        """Return why a trace takes no further span; nothing where it does."""
        if trace["closed"]:
            return f"the trace has settled, and was closed {self._settings.late:g} s later; send spans as soon as they end"
        if spans > self._settings.max_spans:
            return f"the trace has {self._settings.max_spans} spans of models and tools, more are not kept; raise receiver.max_spans"
        return f"the trace has {TRACE_BYTES} bytes, more are not kept" if size > TRACE_BYTES else ""

    def _write(self, added: Sequence[ReceivedSpan], replaced: Sequence[ReceivedSpan]) -> None:
        spans = table("received_spans")
        if added:
            rows = [{"trace_id": one.trace_id, "span_id": one.span_id, "ended": one.ended, "span": one.text} for one in added]
            self._connection.execute(_insert(self._connection, "received_spans").on_conflict_do_nothing(), rows)
        for one in replaced:
            mine = (spans.c.trace_id == one.trace_id, spans.c.span_id == one.span_id)
            self._connection.execute(spans.update().where(*mine).values(ended=one.ended, span=one.text))

    def _count(self, grown: Mapping[str, tuple[int, int]]) -> None:
        """Write how large traces are now; one that had settled is open again."""
        from sqlalchemy import bindparam

        traces = table("received_traces")
        update = traces.update().where(traces.c.trace_id == bindparam("name"))
        update = update.values(spans=bindparam("count"), bytes=bindparam("size"), settled=None)
        if grown:
            rows = [{"name": name, "count": count, "size": size} for name, (count, size) in grown.items()]
            self._connection.execute(update, rows)


def _columns_of(trace_id: str, spans: Iterable[str]) -> dict[str, str | None] | None:
    """Return the run of a trace, with what its resource and its spans say of it as metadata, or why it cannot be read; None for no run."""
    rows = [json.loads(text) for text in spans]
    try:
        if refused := next((row for row in rows if isinstance(row, str)), None):
            raise UnreadableMessage(refused)
        run = read_trace(trace_id, rows)
        if run is None:
            return None
        if isinstance(run, UnreadableMessage):
            raise run
        whole = run.model_copy(update={"metadata": {**_described(rows), **run.metadata}})
        return {"run": whole.json_bytes().decode(), "problem": None}
    except ODD_SHAPES as error:  # a sender may send anything
        why = str(error) if isinstance(error, UnreadableMessage) else f"the spans have not the shape of OTLP: {error}"
        return {"run": None, "problem": shortened(one_line(encodable(why)))}


def _described(rows: Sequence[Mapping[str, Any]]) -> dict[str, JsonValue]:
    """Return the plain attributes of a trace's resource and spans; the first that has one counts."""
    found: dict[str, JsonValue] = {}
    for row in sorted(rows, key=lambda row: int(row.get("startTimeUnixNano") or row.get("timeUnixNano") or 0)):
        for attributes, others in ((dict_of(row.get("resource")), _DESCRIBES_THE_SERVICE), (dict_of(row.get("attributes")), _OF_A_CALL)):
            for key, value in attributes.items():
                if isinstance(value, str | int | float) and not key.startswith(others) and len(found) < METADATA_KEYS:
                    found.setdefault(key[:METADATA_CHARACTERS], value[:METADATA_CHARACTERS] if isinstance(value, str) else value)
    return found


def read_received(connection: Connection, after: int | datetime, until: int | None, most: int) -> list[ReceivedRun]:
    """Return the next runs behind a number, or since a moment, in the order of their numbers."""
    runs = table("received_runs")
    query = select(runs.c.number, runs.c.run, runs.c.problem).order_by(runs.c.number).limit(most)
    query = query.where(runs.c.number > after if isinstance(after, int) else runs.c.created >= stored_moment(connection, after))
    query = query if until is None else query.where(runs.c.number <= until)
    rows = connection.execute(query)
    return [ReceivedRun(number=number, run=run and AgentRun.model_validate_json(run), problem=why) for number, run, why in rows]


def _now() -> int:
    """Return the time in milliseconds."""
    return int(time.time() * 1000)


def _insert(connection: Connection, name: str) -> Any:  # noqa: ANN401 - one of two dialects' own
    return (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table(name))


def _load(connection: Connection) -> ReceivedLoad:
    traces, runs = table("received_traces"), table("received_runs")
    open_traces = connection.execute(select(func.count()).select_from(traces).where(traces.c.settled.is_(None))).scalar_one()
    lowest, highest = connection.execute(select(func.min(runs.c.number), func.max(runs.c.number))).one()
    return ReceivedLoad(open_traces, 0 if highest is None else highest - lowest + 1)


def _silent(connection: Connection, until: int) -> list[tuple[RowMapping, list[str]]]:
    """Return traces that have been silent since a time, with their spans."""
    traces, spans = table("received_traces"), table("received_spans")
    silent = select(traces).where(traces.c.settled.is_(None), traces.c.heard <= until).order_by(traces.c.heard).limit(SETTLED_AT_ONCE)
    chosen, size = list[RowMapping](), 0
    for row in connection.execute(silent).mappings():
        if chosen and size + row["bytes"] > SETTLED_BYTES:
            break
        chosen.append(row)
        size += row["bytes"]
    texts: dict[str, list[str]] = {row["trace_id"]: [] for row in chosen}
    for name, text in connection.execute(select(spans.c.trace_id, spans.c.span).where(spans.c.trace_id.in_(texts))):
        texts[name].append(text)
    return [(row, texts[row["trace_id"]]) for row in chosen]


def _write_assembled(connection: Connection, found: Sequence[_SilentTrace]) -> AssembledTraces:
    """Write the runs of traces that have not changed since they were read."""
    traces, runs = table("received_traces"), table("received_runs")
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
    # A trace was read and put together outside of any transaction, which may take long. Here its row is locked
    # first. The run is written only if the time and the number of its spans are those that were read. A trace
    # that has grown meanwhile is left for the next look. Without the comparison a late span would be missing
    # for good.
    names, now = [one.trace_id for one in found], _now()
    connection.execute(traces.update().where(traces.c.trace_id.in_(names)).values(heard=traces.c.heard))  # no span may join them now
    rows = connection.execute(select(traces).where(traces.c.trace_id.in_(names), traces.c.settled.is_(None))).mappings()
    still = {row["trace_id"]: (row["heard"], row["spans"]) for row in rows}
    settled = [one for one in found if still.get(one.trace_id) == (one.heard, one.spans)]
    written = {one.trace_id: one.columns for one in settled if one.columns is not None}
    before = set(connection.execute(select(runs.c.trace_id).where(runs.c.trace_id.in_(list(written)))).scalars())
    if added := [{"trace_id": name, **columns} for name, columns in written.items() if name not in before]:
        connection.execute(runs.insert(), added)
    for name in before:
        connection.execute(runs.update().where(runs.c.trace_id == name).values(**written[name]))
    if settled:
        connection.execute(traces.update().where(traces.c.trace_id.in_([one.trace_id for one in settled])).values(settled=now))
    unreadable = sum(columns["run"] is None for columns in written.values())
    return AssembledTraces(len(written) - unreadable, len(before), unreadable, len(settled) - len(written))


def _close(connection: Connection, settled_before: int) -> int:
    """Remove the spans of traces that were assembled long ago; the traces stay, to recognise late spans."""
    traces, spans = table("received_traces"), table("received_spans")
    old = select(traces.c.trace_id).where(traces.c.settled <= settled_before, traces.c.closed == 0).limit(REMOVED_AT_ONCE)
    names = list(connection.execute(old).scalars())
    for some in _parts(names):
        connection.execute(traces.update().where(traces.c.trace_id.in_(some)).values(closed=1))
        connection.execute(spans.delete().where(spans.c.trace_id.in_(some)))
    return len(names)


def _remove_old(connection: Connection, before: datetime) -> int:
    """Remove the oldest runs that are older than a moment, and their traces."""
    runs, traces = table("received_runs"), table("received_traces")
    moment = stored_moment(connection, before)
    old = list(connection.execute(select(runs.c.number).where(runs.c.created < moment).limit(REMOVED_AT_ONCE)).scalars())
    for some in _parts(old):
        connection.execute(runs.delete().where(runs.c.number.in_(some)))
    gone = select(traces.c.trace_id).where(traces.c.created < moment, traces.c.closed == 1).limit(REMOVED_AT_ONCE)
    names = list(connection.execute(gone).scalars())
    for some in _parts(names):
        connection.execute(traces.delete().where(traces.c.trace_id.in_(some)))
    return max(len(old), len(names))


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(values), 500):
        yield values[first : first + 500]
