"""The activities of monitors: `collect` reads what is new, `settle` says what the judged runs mean, `backfill` reads what was passed."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.batches.score_writer import write_scores
from activities.calls.attempts import heartbeats
from activities.errors import invalid, store_attempt
from gradeloop.batches.contract import NO_STORE
from gradeloop.contract.notice import Webhooks
from gradeloop.errors import InvalidRequest
from gradeloop.judges.write_back import WriteBackCall, WriteBackReport
from gradeloop.monitors.contract import READ_RUNS, TICK_RUNS, BackfillCall, BackfillReport, CollectedTick, FinishedTick, TickCall
from gradeloop.monitors.files import SourceItem, reasons
from gradeloop.monitors.sources import MonitorBackfiller, SourceAccess, read_chunks
from gradeloop.monitors.ticks import Monitor, MonitorStore, ReadRun, SourceReading, read_run
from gradeloop.store.engine import STORE_CURE, Store
from gradeloop.telemetry.metrics import MONITOR_ALERTS, MONITOR_RUNS
from gradeloop.text import one_line

KEPT_BYTES = 64 * 1024 * 1024
"""The most JSON of chosen runs that one tick keeps in memory."""


def monitor_activities(store: Store | None, webhooks: Webhooks, client: Client) -> list[Callable[..., Any]]:
    """Return the activities of monitors; on a worker without a store, one that refuses every tick with the cure."""
    if store is None:
        return [_refusing, _refusing_backfill]
    monitors = MonitorActivities(store, SourceAccess(store, client), webhooks)
    return [monitors.collect, monitors.finish_tick, monitors.backfill, monitors.write_back]


@activity.defn(name="collect")
async def _refusing(_call: TickCall) -> CollectedTick:
    raise invalid(f"{NO_STORE}, in which monitors are kept; {STORE_CURE}, for the worker too")


@activity.defn(name="backfill")
async def _refusing_backfill(_call: BackfillCall) -> BackfillReport:
    raise invalid(f"{NO_STORE}, in which monitors are kept; {STORE_CURE}, for the worker too")


class MonitorActivities:
    """The activities of monitors, on one store."""

    def __init__(self, store: Store, access: SourceAccess, webhooks: Webhooks) -> None:
        self._store = MonitorStore(store)
        self._backfiller = MonitorBackfiller(store, access)
        self._access = access
        self._webhooks = webhooks

    @activity.defn(name="collect")
    async def collect(self, call: TickCall) -> CollectedTick:
        """Read the source on from its cursor, and write the new runs, the cases of the chosen ones and the new cursor at once.

        Raises:
            ApplicationError: `InvalidRequest`: there is no such monitor.
        """
        async with heartbeats(), store_attempt():
            # An attempt whose answer was lost has written its tick with runs and cursor. The next attempt finds
            # that by the workflow's run and reads nothing: to read on would leave the runs of the first tick
            # unjudged.
            due = await self._store.begun(call.monitor, call.tick)
            if due is None:
                monitor = await self._store.monitor(call.monitor)
                unknown = tuple(name for name in monitor.definition.notify if name not in self._webhooks)
                found = replace(await _SourceReader(self._store, monitor, self._access).read(), no_webhooks=unknown)
                due = await self._store.collect(monitor, call.tick, found, datetime.now(UTC))
                for run in found.runs:
                    MONITOR_RUNS.record(why=run.why)
            return CollectedTick(due=due, webhooks=self._webhooks)

    @activity.defn(name="settle")
    async def finish_tick(self, call: TickCall) -> FinishedTick:
        """Write the rates and alerts of a tick whose batch has ended."""
        async with store_attempt():
            finished = await self._store.finish_tick(call.monitor, call.number, call.problem)
        for _ in finished.raised:
            MONITOR_ALERTS.record()
        return finished

    @activity.defn(name="write_back_tick")
    async def write_back(self, call: WriteBackCall) -> WriteBackReport:
        """Write the scores of a tick's runs back, and note in its report what became of them, also where the attempt fails."""
        name, number = str(call.monitor), call.number
        async with heartbeats(), store_attempt():
            scores, untraced = await self._store.scores(name, number)
            try:
                found = await write_scores(call.to, scores)
            except ApplicationError as error:
                await self._store.note_written(name, number, WriteBackReport(untraced=untraced, problems=(error.message,)))
                raise
            found = found.model_copy(update={"untraced": untraced})
            await self._store.note_written(name, number, found)
        return found

    @activity.defn(name="backfill")
    async def backfill(self, call: BackfillCall) -> BackfillReport:
        """Read the source since a time, and have the runs wait that have no verdict; with `preview` only count them.

        Raises:
            ApplicationError: `InvalidRequest`: there is no such monitor, or its source cannot be read so.
        """
        async with heartbeats(), store_attempt():
            return await self._backfiller.run(call)


class _SourceReader:
    """Reads what is new of a monitor's source, up to the limits of one tick."""

    def __init__(self, store: MonitorStore, monitor: Monitor, access: SourceAccess) -> None:
        self._store = store
        self._access = access
        self._monitor = monitor
        self._cursor = monitor.cursor
        self._runs: dict[str, ReadRun] = {}
        self._known = self._unreadable = self._bytes = self._chosen = 0
        self._refused: tuple[str, ...] = ()

    async def read(self) -> SourceReading:
        """Read; a source that cannot be read is a problem of the tick, and what came before it counts."""
        problem, more = None, False
        try:
            async with aclosing(read_chunks(self._monitor.definition.source, self._monitor.cursor, self._access)) as chunks:
                async for chunk in chunks:
                    more = await self._take(chunk)
                    if more:
                        break
        except InvalidRequest as error:
            problem = one_line(str(error))
        return SourceReading(self._cursor, tuple(self._runs.values()), self._known, self._unreadable, self._refused, problem, more)

    async def _take(self, chunk: list[tuple[SourceItem, str]]) -> bool:
        """Take a chunk, and return whether the tick has enough."""
        name = self._monitor.definition.name
        known = await self._store.known(name, [sha256 for item, sha256 in chunk if item.run is not None])
        for item, sha256 in chunk:
            if self._chosen >= TICK_RUNS or len(self._runs) >= READ_RUNS or self._bytes >= KEPT_BYTES:
                return True
            self._unreadable += item.unreadable is not None
            self._refused = reasons(self._refused, [item])
            if item.run is not None and (sha256 in known or sha256 in self._runs):
                self._known += 1
            elif item.run is not None:
                self._runs[sha256] = found = read_run(self._monitor.definition, item.run, sha256)
                self._bytes += 0 if found.case is None else found.case.size()
                self._chosen += found.why != "left out"
            # The cursor follows each item that was taken. Where the tick has enough in the middle of a chunk, the
            # next one begins with the first item that was not; a cursor at the chunk's end would skip the others.
            self._cursor = item.cursor or self._cursor
        return False
