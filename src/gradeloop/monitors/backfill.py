"""A backfill: the runs that a monitor has passed without a verdict wait to be judged, or are counted."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from gradeloop.batches.preview import preview_judgements
from gradeloop.batches.reader import BatchReader
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import JudgingRequest
from gradeloop.monitors.contract import SOURCES, BackfillCall, BackfillReport, MonitorDefinition
from gradeloop.monitors.files import reasons
from gradeloop.monitors.sources import SourceAccess, read_chunks
from gradeloop.monitors.ticks import MonitorStore, ReadRun, lock_monitor, read_run
from gradeloop.store.engine import Store
from gradeloop.store.tables import table

DECIDED = frozenset({"passed", "failed", "unsure"})
"""What is not judged again; an error and a run that was left out are."""


class _Known(NamedTuple):
    """What a monitor knows of a run."""

    verdict: str | None
    waits: bool
    """Whether it waits, or a tick that is not settled judges it."""


class MonitorBackfiller:
    """Reads what monitors have passed, and has the runs wait that are to be judged."""

    def __init__(self, store: Store, access: SourceAccess) -> None:
        self._store = store
        self._access = access

    async def run(self, call: BackfillCall) -> BackfillReport:
        """Read a monitor's source since a time up to where it has read, and return what was found.

        Raises:
            InvalidRequest: There is no such monitor, it has read nothing, or the source cannot be read so.
        """
        monitor = await MonitorStore(self._store).monitor(call.monitor)
        if monitor.cursor is None:
            raise InvalidRequest(f"the monitor {call.monitor!r} has read nothing yet; its first tick reads all that the source has")
        definition = monitor.definition
        if call.share is not None:
            definition = definition.model_copy(update={"sample": call.share, "strata": {}})
        place = SOURCES.find(definition.source.kind).since(definition.source, call.since, monitor.cursor)
        report, seen = BackfillReport(), set[str]()
        async for chunk in read_chunks(definition.source, place, self._access, until=monitor.cursor):
            runs = {sha256: item.run for item, sha256 in chunk if item.run is not None and sha256 not in seen}
            seen |= runs.keys()
            unreadable = report.unreadable + sum(item.unreadable is not None for item, _ in chunk)
            more = {"unreadable": unreadable, "refused": reasons(report.refused, (item for item, _ in chunk))}
            report = await self._take(call, definition, runs, report.model_copy(update=more))
        return report

    async def _take(
        self, call: BackfillCall, definition: MonitorDefinition, runs: Mapping[str, AgentRun], report: BackfillReport
    ) -> BackfillReport:
        """Return the report with some more runs, of which those that are chosen wait from now on."""
        known = await self._store.read(lambda connection: _known(connection, definition.name, list(runs)))
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
