"""The batches of a suite beside one another: how their rates, costs and latencies went, and where the suite itself changed."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from gradeloop.batches.contract import BatchSummary
from gradeloop.batches.reader import BatchReader
from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest
from gradeloop.reports.html import seconds as seconds_text
from gradeloop.stats.intervals import Estimate
from gradeloop.store.tables import table
from gradeloop.text import clip, counted, did_you_mean, money, percent

READ_BATCHES, SAMPLED_CASES = 2_000, 100
"""The newest batches that are looked through, and the first cases of each of a suite's that are read for its trends."""

Changes = tuple[int, int]
"""The cases that failed in the batch before and pass now, and those that passed and fail."""


class SuiteBatch(Strict):
    """A batch beside the one before it."""

    batch: BatchSummary
    rate: Estimate
    """The pass rate of judged cases, 0 to 1."""
    seconds: float | None
    """The median of the seconds in which a case's calls were in flight, of the first 100 cases; None where none asked a model."""
    since: Changes | None
    """None where the batch before has no case in common."""
    changed: tuple[str, ...]
    """Names of what the first 100 cases have otherwise than in the batch before: `judge`, `model`, `prompt`, `rubric`."""


def suite_of(batch: BatchSummary) -> str:
    """Return the name of a batch's suite; its own id where it has none."""
    return batch.suite or batch.name or batch.batch_id


def group_by_suite(batches: Iterable[BatchSummary], words: str = "") -> list[list[BatchSummary]]:
    """Return the batches by suite and tenant, in the order given; with words only those whose name, suite, id or model has all of them."""
    wanted, suites = words.lower().split(), dict[tuple[str | None, str], list[BatchSummary]]()
    for batch in batches:
        text = " ".join(filter(None, (batch.batch_id, batch.name, batch.suite, batch.tenant, *batch.models))).lower()
        if all(word in text for word in wanted):
            suites.setdefault((batch.tenant, suite_of(batch)), []).append(batch)
    return list(suites.values())


async def changes_since(reader: BatchReader, before: Mapping[str, str]) -> dict[str, Changes]:
    """Return what each batch changed since another one, by its id, read in one statement; a batch without common cases is left out."""
    from sqlalchemy import case, func, select

    if not before:
        return {}
    now, was = table("cases").alias(), table("cases").alias()
    pair = (was.c.batch_id == case(dict(before), value=now.c.batch_id)) & (was.c.case_id == now.c.case_id)
    ways = (("failed", "passed"), ("passed", "failed"))
    counts = (func.sum(case(((was.c.status == one) & (now.c.status == other), 1), else_=0)) for one, other in ways)
    statement = select(now.c.batch_id, *counts).join(was, pair).where(now.c.batch_id.in_(before)).group_by(now.c.batch_id)
    return {name: (fixed, new) for name, fixed, new in await reader.store.read(lambda connection: connection.execute(statement).all())}


async def read_trend(reader: BatchReader, batches: Sequence[BatchSummary]) -> list[SuiteBatch]:
    """Return the batches of one suite, the newest first as given, each beside the one before it."""
    from sqlalchemy import select

    ids, cases = [batch.batch_id for batch in batches], table("cases")
    changes = await changes_since(reader, dict(pairwise(ids)))
    facts = {name: dict[tuple[str, str], object]() for name in ids}
    seconds = {name: list[float]() for name in ids}
    first = select(cases.c.batch_id, cases.c.spec, cases.c.result).where(cases.c.batch_id.in_(ids), cases.c.position < SAMPLED_CASES)
    for name, spec, text in await reader.store.read(lambda connection: connection.execute(first).all()):
        result = json.loads(text or "{}")
        facts[name] |= _facts(json.loads(spec), result)
        seconds[name] += [result["usage"]["seconds"]] if result and result["usage"]["calls"] else []
    found = list[SuiteBatch]()
    for batch, before in zip(batches, [*ids[1:], ""], strict=True):
        name, was = batch.batch_id, facts.get(before, {})
        changed = tuple(sorted({kind for (kind, place), fact in facts[name].items() if was.get((kind, place), fact) != fact}))
        rate = Estimate.share(batch.passed, batch.passed + batch.failed)
        middle = median(seconds[name]) if seconds[name] else None
        found.append(SuiteBatch(batch=batch, rate=rate, seconds=middle, since=changes.get(name), changed=changed))
    return found


def _facts(spec: Mapping[str, Any], result: Mapping[str, Any]) -> dict[tuple[str, str], object]:
    """Return what a case is made of, by what it is and what the case has in common with that of another batch."""
    name = spec["id"]
    facts: dict[tuple[str, str], object] = {("rubric", name): spec["rubric"], ("model", name): spec.get("generator")}
    facts |= {("judge", name): [spec.get("grader"), result["grader"]]} if result.get("grader") else {}
    # what others said is in the messages of a case that follows them
    return facts if spec.get("follows") else facts | {("prompt", f"{name} {spec.get('vars')}"): spec.get("messages")}


async def named_trend(reader: BatchReader, suite: str, tenant: str | None, limit: int) -> list[SuiteBatch]:
    """Return the newest batches of a suite by its name, each beside the one before it.

    Raises:
        InvalidRequest: There is none among the newest batches, or several tenants have a suite of this name.
    """
    known = group_by_suite(await reader.summaries(READ_BATCHES, tenant))
    found = [some for some in known if suite_of(some[0]) == suite and tenant in {None, some[0].tenant}]
    if len(found) != 1:
        names = [suite_of(batches[0]) for batches in known][:20]
        cure = "; name a tenant with --tenant" if found else f".{did_you_mean(suite, names)}" if names else "; the store has none yet"
        raise InvalidRequest(f"{counted(len(found), 'suite')} of the newest {READ_BATCHES:,} batches named {clip(suite)}{cure}")
    return await read_trend(reader, found[0][:limit])


WIDTH, HEIGHT = 1000.0, 200.0
"""The plot's own units; the page stretches it."""


class Chart(Strict):
    """A plot of figures over time, as paths of SVG in its own units."""

    title: str
    label: str
    """The plot in a sentence, for those who do not see it."""
    times: tuple[str, str]
    scale: tuple[str, ...]
    """The figures at the top, in the middle and at the bottom."""
    line: str
    points: str
    band: str
    """The path around the intervals of the figures."""
    limits: tuple[float, ...]
    """Heights of horizontal lines."""
    markers: tuple[tuple[float, str, str], ...]
    """Vertical lines: the place, the kind and the title of each."""


def draw_chart(
    about: tuple[str, str, tuple[str, str]],
    figures: Sequence[tuple[float, Estimate]],
    text: Callable[[float], str],
    *,
    ends: tuple[float, float] = (0.0, 1.0),
    limits: Iterable[float] = (),
    marks: Iterable[tuple[float, str, str]] = (),
) -> Chart:
    """Return a plot with a title, a label and two times; figures and marks have a place from left to right, 0 to 1."""
    floor, top = ends

    def height(value: float) -> float:
        return round(HEIGHT * (top - value) / (top - floor), 1)

    line = [f"{round(WIDTH * place, 1)} {height(one.value)}" for place, one in figures if one.value is not None]
    known = [(WIDTH * place, one.high, one.low) for place, one in figures if one.high is not None and one.low is not None]
    if len(known) == 1:  # else the band of one point has no width
        known = [(known[0][0] + by, *known[0][1:]) for by in (-6.0, 6.0)]
    around = [f"{round(x, 1)} {height(high)}" for x, high, _ in known] + [f"{round(x, 1)} {height(low)}" for x, _, low in reversed(known)]
    return Chart(
        title=about[0],
        label=about[1],
        times=about[2],
        scale=tuple(map(text, (top, (top + floor) / 2, floor))),
        line=f"M{'L'.join(line)}",
        points=" ".join(f"M{point}h.01" for point in line),
        band=f"M{'L'.join(around)}Z" if around else "",
        limits=tuple(map(height, limits)),
        markers=tuple((round(WIDTH * place, 1), kind, title) for place, kind, title in marks),
    )


def charts_of(found: Sequence[SuiteBatch]) -> list[Chart]:
    """Return the plots of a trend, its newest batch first as given: pass rate, cost and latency, each where two batches have it."""
    past, charts = [*reversed(found)], list[Chart]()
    kinds: Sequence[tuple[str, list[Estimate], Callable[[float], str]]] = (
        ("Pass rate", [one.rate for one in past], percent),
        ("Cost", [Estimate(value=one.batch.usage.cost_usd) for one in past], lambda value: money(value) or "0"),
        ("Latency", [Estimate(value=one.seconds) for one in past], seconds_text),
    )
    places = [(at + 0.5) / len(past) for at in range(len(past))]
    marks = [(place, "limit", f"{', '.join(one.changed)} changed") for place, one in zip(places, past, strict=True) if one.changed]
    for title, figures, text in kinds:
        known = [one.value for one in figures if one.value is not None]
        label = f"{title} of {len(known):,} batches, the oldest first: {', '.join(map(text, known))}"
        if len(known) > 1:
            about = (title, label, (past[0].batch.created, past[-1].batch.created))
            top = 1.0 if text is percent else 1.25 * max(known) or 1.0
            charts.append(draw_chart(about, [*zip(places, figures, strict=True)], text, ends=(0.0, top), marks=marks))
    return charts
