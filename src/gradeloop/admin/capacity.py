"""The size of a fleet for a rate of calls: the model of service times that `gradeloop plan` and the simulation of a fleet share.

Source: Little's law, the number in flight is the rate times the time that each stays (J. D. C. Little, Operations Research 9, 1961).
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest
from gradeloop.settings.worker import StorePoolSettings, WorkerSettings

BUSY = 0.7
"""Share of its time that a core is to work: above it waits grow quickly, and KEDA adds a Pod."""

SHARD_BUSY = 0.1
"""Share of its time that a shard of histories is to write, in the mean: workflows fall on shards by chance."""

WRITES = 2
"""Writes of a history for each call. Assumed."""

BATCH_SHARE = 0.8
"""Share of the slots of a queue that a batch uses."""

LEAST_WORKERS = 2
"""Workers of a role, so that one may be restarted."""

SLOTS: int = WorkerSettings.model_fields["max_concurrent_activities"].default
"""Calls in flight of a worker, as the setting has it by default."""

POOL = StorePoolSettings()

SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "day": 86_400.0}
DAY = SECONDS["day"]


class Workload(StrEnum):
    """Kinds of work that were measured."""

    BATCH = "batch"
    THREADS = "threads"


@dataclass(frozen=True)
class ServiceTimes:
    """Service times of one call of a model, by part; milliseconds of one core where a name says nothing else."""

    loop: float
    models: float
    evidence: float
    temporal: float
    history: float
    """Bytes of Temporal's history."""
    rows: float
    """Rows of the store."""
    write: float = 3.0
    """Milliseconds of a write in Temporal's database, one after the other in each shard of histories. Assumed."""


MEASURED = {
    Workload.BATCH: ServiceTimes(loop=1.4, models=9.3, evidence=0.0, temporal=5.6, history=814, rows=2.0),
    Workload.THREADS: ServiceTimes(loop=7.0, models=12.8, evidence=0.9, temporal=18.1, history=3298, rows=0.0),
}
"""Seen by `python -m lab.sizing`; docs/operating.md says on which machine."""


class FleetPlan(Strict):
    """A fleet that carries a rate of calls, with every part busy for at most its share of the time."""

    work: Workload
    rate: float
    """Calls of models a second."""
    latency: float
    """Seconds of a call at the provider, in the mean."""
    in_flight: int
    """Calls in flight, in the mean: the rate times the time of a call."""
    models: int
    """Workers of the role `models`, of one core each."""
    loop: int
    """Workers of the role `loop`."""
    evidence: int
    """Workers of the role `evidence`; 0 where no tools are called."""
    slots: int
    """Calls in flight that each worker of `models` takes: its `max_concurrent_activities`."""
    connections: int
    """Connections that the store's PostgreSQL has to take of these workers."""
    temporal_cores: float
    """Cores of Temporal."""
    shards: int
    """Shards of Temporal's histories, at least; a cluster's number cannot be changed later."""
    history_a_day: float
    """Bytes of histories a day, at this rate for the whole day."""
    rows_a_day: float
    """Rows of the store a day."""


def plan_fleet(rate: float, latency: float, work: Workload, times: ServiceTimes, most_slots: int = SLOTS) -> FleetPlan:
    """Return the fleet for so many calls a second.

    Args:
        rate: Calls of models a second, above 0.
        latency: Seconds of a call at the provider, in the mean.
        work: The kind of work.
        times: What one call takes, for example `MEASURED[work]`.
        most_slots: Calls in flight that one worker may have at most.

    Returns:
        The smallest fleet in which every part is busy for at most its share.

    Example:
        >>> plan_fleet(50, 5, Workload.BATCH, MEASURED[Workload.BATCH]).models
        2
    """
    # Little's law: what is in flight is the rate times the time that a call takes. Calls that wait for a
    # provider need slots and hardly any processor, so a worker's number follows from whichever of the two
    # runs out first.
    in_flight = rate * (latency + (times.models + times.temporal) / 1000)
    places = in_flight / BATCH_SHARE
    models = max(_workers(rate, times.models), math.ceil(places / most_slots))
    return FleetPlan(
        work=work,
        rate=rate,
        latency=latency,
        in_flight=math.ceil(in_flight),
        models=models,
        loop=_workers(rate, times.loop),
        evidence=_workers(rate, times.evidence) if times.evidence else 0,
        slots=math.ceil(places / models),
        connections=models * (POOL.size + POOL.overflow),
        temporal_cores=round(rate * times.temporal / 1000 / BUSY, 1),
        shards=2 ** max(math.ceil(math.log2(rate * WRITES * times.write / 1000 / SHARD_BUSY)), 0),
        history_a_day=rate * times.history * DAY,
        rows_a_day=rate * times.rows * DAY,
    )


def _workers(rate: float, milliseconds: float) -> int:
    return max(math.ceil(rate * milliseconds / 1000 / BUSY), LEAST_WORKERS)


def own_times(times: ServiceTimes, given: Iterable[str]) -> ServiceTimes:
    """Return service times with those in place that were measured elsewhere, each written `NAME=MILLISECONDS`.

    Raises:
        InvalidRequest: A name is unknown, or a number cannot be read.
    """
    known = [field.name for field in fields(times) if field.name not in ("history", "rows")]
    for text in given:
        name, _, number = text.partition("=")
        if name not in known or not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", number) or not float(number):
            raise InvalidRequest(f"--time is {text!r}; write NAME=MILLISECONDS above 0, with a name of {', '.join(known)}: models=9.5")
        times = replace(times, **{name: float(number)})
    return times


def plan_lines(plan: FleetPlan, times: ServiceTimes) -> Iterator[str]:
    """Yield the lines that a terminal shows of a plan."""
    rows = [
        (role, getattr(plan, role), f"workers; a call takes {getattr(times, role):g} ms of a core")
        for role in ("models", "loop", "evidence")
    ]
    rows += [
        ("slots", plan.slots, "at once of a models worker: max_concurrent_activities"),
        ("connections", plan.connections, f"of PostgreSQL: {POOL.size} to {POOL.size + POOL.overflow} of a models worker: store_pool"),
        ("Temporal", plan.temporal_cores, f"cores; a call takes {times.temporal:g} ms of one"),
        ("shards", plan.shards, "of Temporal at least: numHistoryShards, for good"),
        ("histories", round(plan.history_a_day / 1e9), "GB a day"),
        ("store", round(plan.rows_a_day), "rows a day"),
        ("provider", math.ceil(plan.rate * 60), "calls a minute that it has to allow"),
    ]
    yield f"{plan.rate:,.4g} calls a second of {plan.latency:g} s are {plan.in_flight:,} calls in flight:"
    yield from (f"{count:>12,}  {name:<12}{meaning}" for name, count, meaning in rows if count)
    yield f"No core works more than {BUSY:.0%} of its time. Write times of your own with --time."


def parse_rate(text: str) -> float:
    """Return the calls a second of `50/s`, `3000/min`, `100000/h` or `1000000/day`; raise InvalidRequest unless it is one above 0."""
    return _positive(text, r"(\d{1,9}(?:\.\d{1,9})?)/(s|min|h|day)", "--rate", "50/s, 3000/min, 100000/h or 1000000/day", divide=True)


def parse_seconds(text: str) -> float:
    """Return the seconds of `800ms`, `5s` or `2min`; raise InvalidRequest where it is none, or not above 0."""
    return _positive(text, r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|min)", "--latency", "800ms, 5s or 2min", divide=False)


def _positive(text: str, pattern: str, flag: str, examples: str, *, divide: bool) -> float:
    found = re.fullmatch(pattern, text.strip())
    number = float(found[1]) if found else 0.0
    if found is None or not number:
        raise InvalidRequest(f"{flag} is {text!r}; write a number above 0 with its unit, for example {examples}")
    return number / SECONDS[found[2]] if divide else number * SECONDS[found[2]]
