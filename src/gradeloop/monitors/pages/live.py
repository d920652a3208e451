"""The pages `/monitors` and `/monitors/NAME`: what monitors have found, as it changes."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gradeloop.batches.trends import Chart, draw_chart
from gradeloop.contract.base import Strict
from gradeloop.errors import GradeloopError, explained
from gradeloop.monitors.client import NO_WORKER, MonitorSchedule, MonitorSchedules
from gradeloop.monitors.contract import Alert, MonitorDefinition, Rate, TickReport
from gradeloop.monitors.labelling import MonitorLabels, labels_path, monitor_path
from gradeloop.monitors.overview import (
    MonitorReader,
    MonitorSummary,
    anchor_text,
    backfill_text,
    labels_text,
    rate_text,
    rates_text,
    shadow_text,
    sum_of_rates,
    tick_notes,
    undecided_text,
    waiting_text,
)
from gradeloop.reports.html import Live, case_path, document, part, read_id
from gradeloop.reports.model import Verdict
from gradeloop.stats.intervals import Estimate
from gradeloop.text import counted, duration, money, percent
from gradeloop.web.pages import read_body
from gradeloop.web.site import IndexSection, LivePages, Site, SteeredPage, answer_page, is_known, tag_of, unchanged

PAGE_TICKS = 1000
"""The newest ticks that the page of a monitor shows."""

POINTS = 60
"""The most points of the line: more are closer together than a narrow screen can show."""

LISTED = 20
"""The ticks in the table, and the alerts."""


class RatePoint(Strict):
    """The rate of one tick, or of several that follow one another."""

    time: str
    rate: Rate


def rate_chart(ticks: Sequence[TickReport], alerts: Sequence[Alert], definition: MonitorDefinition) -> Chart | None:
    """Return the plot of a monitor's ticks; None where nothing is judged yet.

    Args:
        ticks: The newest first.
        alerts: Those that begin or end within the time of the ticks are marked.
        definition: The monitor, whose limits of the pass rate are drawn.
    """
    rows = rate_points([tick for tick in reversed(ticks) if tick.rate.judged])
    if not rows:
        return None
    limits = [rule.limit for rule in definition.alerts if rule.rate == "pass_rate"]
    figures = [Estimate.within(row.rate.passed / row.rate.judged, row.rate.interval, row.rate.judged) for row in rows]
    lowest = min([*limits, *(one.low for one in figures if one.low is not None)])
    start, end = _seconds(rows[0].time), _seconds(rows[-1].time)

    def place(time: str) -> float:
        return (_seconds(time) - start) / (end - start) if end > start else 0.5

    marks = [(alert.time, "raised", f"{alert.time} {alert.said}") for alert in alerts]
    marks += [(alert.cleared, "cleared", f"{alert.cleared} over: {alert.kind}") for alert in alerts if alert.cleared]
    first, last = rate_text(rows[0].rate), rate_text(rows[-1].rate)
    label = f"Pass rate over time, {counted(len(rows), 'point')}: first {first}, last {last}"
    return draw_chart(
        ("Pass rate over time", label, (rows[0].time, rows[-1].time)),
        [(place(row.time), one) for row, one in zip(rows, figures, strict=True)],
        percent,
        ends=(min(math.floor(lowest * 10) / 10, 0.9), 1.0),
        limits=limits,
        marks=[(place(time), kind, said) for time, kind, said in marks if start <= _seconds(time) <= end],
    )


def rate_points(ticks: Sequence[TickReport]) -> list[RatePoint]:
    """Return the points of ticks, the oldest first: so many runs in each that there are not too many."""
    enough = sum(tick.rate.judged for tick in ticks) / POINTS
    points, some = list[RatePoint](), list[TickReport]()
    for tick in ticks:
        some.append(tick)
        if sum(one.rate.judged for one in some) >= enough or tick is ticks[-1]:
            points.append(RatePoint(time=tick.time, rate=sum_of_rates([one.rate for one in some])))
            some = []
    return points


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def monitor_page(found: MonitorSummary, schedule: MonitorSchedule | None, problem: str, *, live: Live) -> str:
    """Return the page of a monitor.

    `schedule`: its schedule; None where the server has none, or cannot be asked.
    `problem`: why the schedule cannot be read; empty where it can.
    """
    return document(
        "live_monitor.html",
        title=f"{found.name} · gradeloop",
        live=live,
        found=found,
        answer=monitor_answer(found),
        facts=_facts(found, schedule),
        problem=problem or ("" if schedule is None or schedule.is_served else NO_WORKER),
        waits=[*filter(None, (note(found) for note in (waiting_text, anchor_text, backfill_text, labels_text, shadow_text)))],
        chart=rate_chart(found.ticks, found.alerts, found.definition),
        rows=rate_points([tick for tick in reversed(found.ticks) if tick.rate.judged]),
        ticks=[(tick, rate_text(tick.rate) if tick.settled else "being judged", tick_notes(tick)) for tick in found.ticks[:LISTED]],
        alerts=found.alerts[:LISTED],
        times={tick.number: tick.time for tick in found.ticks},
        case_path=case_path,
        rates=lambda rate: rates_text(rate, found),
        dollars=money,
    )


def monitor_answer(found: MonitorSummary) -> tuple[str, Verdict]:
    """Return whether a monitor warns of anything, in words, and the colour of that."""
    if found.open_alerts:
        kinds = ", ".join(alert.kind for alert in found.open_alerts)
        return f"{counted(len(found.open_alerts), 'open alert').upper()}: {kinds}", "failed"
    if not found.rate.judged:
        return "NOTHING JUDGED YET", "waiting"
    why = undecided_text(found)
    return (f"NO ALERT YET: {why}", "waiting") if why else ("NO ALERT", "passed")


def _facts(found: MonitorSummary, schedule: MonitorSchedule | None) -> dict[str, str]:
    """Return what the monitor is, by name."""
    definition, source = found.definition, found.definition.source
    strata = "".join(f", {percent(share)} of {name}" for name, share in definition.strata.items())
    when = "no schedule on this server" if schedule is None else "paused" if schedule.paused else f"next tick {schedule.next_tick}"
    kinds = ["drift"] * definition.drift + ["judge"] * bool(definition.anchors)
    facts = {
        "source": source.text,
        "ticks": f"every {duration(definition.every)}, {when}",
        "sample": f"{percent(definition.sample)} of the runs{strata}",
        "always judged": ", ".join(rule.key if rule.value is None else f"{rule.key}={rule.value}" for rule in definition.always),
        "alerts on": ", ".join([*(rule.text for rule in definition.alerts), *kinds, "silence"]),
        "budget a day": ""
        if definition.budget_usd is None
        else f"${definition.budget_usd:g}, of which {money(found.state.spent_usd) or 'nothing is used'} on {found.state.day}",
        "tenant": definition.tenant or "",
    }
    return {name: value for name, value in facts.items() if value}


class GivenLabel(Strict):
    """The content of the form for a label."""

    run: Annotated[str, Field(min_length=1)]
    """The sha256 of the run."""
    passed: bool
    by: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(max_length=4000)] = ""


class MonitorPages:
    """The pages of monitors."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._monitors = MonitorReader(site.store)

    async def section(self, words: str) -> IndexSection:
        """Return the monitors whose names have all words, with their open alerts, for the page at `/`."""
        found = [one for one in await self._monitors.briefs() if all(word in one.name.lower() for word in words.lower().split())]
        return IndexSection(part("live_listed_monitors.html", monitors=found, monitor_path=monitor_path))

    async def list(self, request: Request) -> Response:
        """Answer with all monitors."""
        found = await self._monitors.summaries()
        try:
            unserved = await MonitorSchedules(self._site.client.temporal).unserved([one.name for one in found])
        except GradeloopError:  # a monitor's own page says so
            unserved = frozenset()
        page = document(
            "live_monitors.html",
            title="Monitors · gradeloop",
            live=SteeredPage(token=self._site.token, path="/monitors", open=True),
            monitors=[(one, rate_text(one.rate), duration(one.definition.every), undecided_text(one)) for one in found],
            monitor_path=monitor_path,
            unserved=unserved,
        )
        return answer_page(request, page)

    async def show(self, request: Request) -> Response:
        """Answer with a monitor's page; its ticks are read only where one is new or settled."""
        name = read_id(request.path_params["monitor"])
        path, mark = monitor_path(name), await self._monitors.mark(name)
        schedule, problem = await self._schedule(name)
        tag = tag_of(mark, "" if schedule is None else schedule.model_dump_json(), problem)
        if is_known(request, tag):
            return unchanged(tag)
        live = SteeredPage(token=self._site.token, path=path, open=True, tag=tag)
        found = await self._monitors.summary(name, ticks=PAGE_TICKS)
        return answer_page(request, monitor_page(found, schedule, problem, live=live), tag)

    async def labels(self, request: Request) -> Response:
        """Answer with the next run of a monitor that nobody has labelled, without what the judge says of it."""
        name = read_id(request.path_params["monitor"])
        task, path = await self._labels.next_task(name, None), labels_path(name)
        waiting = 0 if task is None else task.waiting
        page = document(
            "live_labels.html",
            title=f"Label {name} ({waiting}) · gradeloop" if waiting else f"Label {name} · gradeloop",
            live=SteeredPage(token=self._site.token, path=path, open=True),
            name=name,
            task=task,
            waiting=waiting,
            path=path,
        )
        return answer_page(request, page)

    async def label(self, request: Request) -> Response:
        """Take what a person says of a run."""
        name, body = read_id(request.path_params["monitor"]), self._site.signed(request, await read_body(request))
        with explained():
            given = GivenLabel.model_validate(body)
        await self._labels.give(name, given.run, given.by, passed=given.passed, reason=given.reason)
        return JSONResponse({"ok": True, "by": given.by})

    @property
    def _labels(self) -> MonitorLabels:
        return MonitorLabels(self._site.store)

    async def _schedule(self, name: str) -> tuple[MonitorSchedule | None, str]:
        """Return a monitor's schedule, and why it cannot be read; empty where it can."""
        try:
            return await MonitorSchedules(self._site.client.temporal).find(name), ""
        except GradeloopError as error:
            return None, f"the schedule cannot be read now: {error}"


def live_pages(site: Site) -> LivePages:
    """Return the pages of monitors."""
    monitors = MonitorPages(site)
    routes = [
        Route("/monitors", monitors.list, methods=["GET"]),
        Route("/monitors/{monitor}/labels", monitors.labels, methods=["GET"]),
        Route("/monitors/{monitor}/labels", monitors.label, methods=["POST"]),
        Route("/monitors/{monitor}", monitors.show, methods=["GET"]),
    ]
    return LivePages(routes, monitors.section, rank=10)
