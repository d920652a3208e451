"""Up to a hundred workers, by simulation: how many gradings a second they make of a batch, and what binds first.

    python -m lab.fleet --provider-limit 100

A discrete-event simulation. Each worker has so many calls in flight; a call takes, one after the other, a write in the Temporal shard of
its workflow and half of Temporal's processor time, the worker's (a worker is one Python process, so one call at a time), a wait for the
provider's limit and the provider's own time, the worker's again, a place in the store's next transaction, and the other half of Temporal.
Times are random around their means, a queue is first come, first served. The means are options with the defaults of `gradeloop plan`:
processor time was measured (docs/operating.md), a write is assumed, and what is simulated is not what a cluster was seen to do.
"""

import argparse
import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from rich.console import Console
from rich.table import Table

from gradeloop.admin.capacity import MEASURED, Workload

TIMES = MEASURED[Workload.BATCH]
WORKERS = (1, 2, 4, 10, 30, 100)
WARM = 0.2
"""The share of the calls that is left out before the queues have filled."""


@dataclass(frozen=True)
class Means:
    """What a call takes; milliseconds where a name says nothing else."""

    worker: float = TIMES.models + TIMES.loop
    """Processor time of workers, for model calls and for workflows."""
    temporal: float = TIMES.temporal
    """Processor time of Temporal."""
    write: float = TIMES.write
    """A write of a history, of which a call makes two, in the one shard that its workflow is in. Assumed."""
    commit: float = 5.0
    """A transaction of the store, in which everything rides that has come meanwhile. Assumed."""
    row: float = 0.05
    """What one more row adds to a transaction. Assumed."""
    provider: float = 200.0
    """The provider's time."""
    provider_limit: float = 0.0
    """Calls a second that the provider takes; 0 for no limit."""
    slots: int = 200
    """Calls in flight a worker."""
    shard_calls: int = 50
    """Calls in flight that one workflow of a batch has."""
    cores: int = 8
    """Cores of Temporal."""
    shards: int = 512
    """Shards of Temporal's history."""


class Station:
    """A queue with so many places, first come, first served; arrivals come in the order of time."""

    def __init__(self, places: int = 1) -> None:
        self._free = [0.0] * places
        self.busy = 0.0

    def take(self, now: float, service: float) -> float:
        """Return when a work that comes now is done."""
        done = max(now, self._free[0]) + service
        heapq.heapreplace(self._free, done)
        self.busy += service
        return done

    def used(self, seconds: float) -> float:
        """Return the share of its time that it worked."""
        return min(self.busy / seconds / len(self._free), 1.0)


class GroupCommit:
    """A store whose one writer takes everything that waits into its next transaction."""

    def __init__(self, commit: float, row: float) -> None:
        self._commit, self._row = commit, row
        self._begins = self._ends = self.busy = 0.0

    def take(self, now: float) -> float:
        """Return when a row that comes now is committed."""
        if now > self._begins:  # its transaction is under way or over: the next one
            self._begins = max(now, self._ends)
            self._ends = self._begins + self._commit
        self._ends += self._row
        self.busy += self._row
        return self._ends

    def used(self, seconds: float) -> float:
        """Return the share of its time that rows took; a transaction takes longer the more wait for it, and so binds nothing by itself."""
        return self.busy / seconds


class Fleet:
    """Workers, Temporal, a store and a provider."""

    def __init__(self, workers: int, means: Means, seed: int = 1) -> None:
        self.means, self._dice = means, random.Random(seed)
        self.workers = [Station() for _ in range(workers)]
        self.temporal = Station(means.cores)
        self.shards = [Station() for _ in range(means.shards)]
        self.store = GroupCommit(means.commit / 1000, means.row / 1000)
        self.gate = Station()
        workflows = max(workers * means.slots // means.shard_calls, 1)
        self._shard_of = [self._dice.randrange(means.shards) for _ in range(workflows)]

    def run(self, calls: int) -> "Simulated":
        """Simulate until so many calls are done."""
        slots = [slot for at in range(len(self.workers)) for slot in [at] * self.means.slots]
        began = [0.0] * len(slots)
        waiting = [(0.0, slot, 0) for slot in range(len(slots))]
        heapq.heapify(waiting)
        ended, latencies, now, counted_from = 0, list[float](), 0.0, 0.0
        skipped = int(calls * WARM)
        while ended < calls:
            now, slot, step = heapq.heappop(waiting)
            if step == len(STEPS):
                ended += 1
                counted_from = now if ended == skipped else counted_from
                if ended > skipped:
                    latencies.append(now - began[slot])
                began[slot], step = now, 0
            heapq.heappush(waiting, (self._after(STEPS[step], now, slot, slots[slot]), slot, step + 1))
        return Simulated((calls - skipped) / (now - counted_from), mean(latencies), self._used(now, calls))

    def _after(self, step: str, now: float, slot: int, worker: int) -> float:
        means = self.means
        match step:
            case "write":
                shard = self.shards[self._shard_of[slot // means.shard_calls % len(self._shard_of)]]
                return shard.take(now, self._around(means.write))
            case "temporal":
                return self.temporal.take(now, self._around(means.temporal / 2))
            case "worker":
                return self.workers[worker].take(now, self._around(means.worker / 2))
            case "limit":
                return self.gate.take(now, 1 / means.provider_limit) if means.provider_limit else now
            case "provider":
                return now + self._around(means.provider)
            case _:
                return self.store.take(now)

    def _around(self, milliseconds: float) -> float:
        """Return seconds around a mean, half of it fixed and half of it exponential."""
        return milliseconds / 1000 * (0.5 + 0.5 * self._dice.expovariate(1))

    def _used(self, seconds: float, calls: int) -> dict[str, float]:
        limit = self.means.provider_limit
        return {
            "workers": sum(worker.used(seconds) for worker in self.workers) / len(self.workers),
            "Temporal's cores": self.temporal.used(seconds),
            "its fullest shard": max(shard.used(seconds) for shard in self.shards),
            "the store's rows": self.store.used(seconds),
            "provider's limit": calls / seconds / limit if limit else 0.0,
        }


STEPS = ("write", "temporal", "worker", "limit", "provider", "worker", "store", "write", "temporal")


@dataclass(frozen=True)
class Simulated:
    """What a fleet did."""

    rate: float
    """Calls a second."""
    latency: float
    """Seconds of a call, in the mean."""
    used: dict[str, float]
    """The share of its time that each part was at work."""

    @property
    def binds(self) -> str:
        """What is at work all of the time; the calls in flight where nothing is."""
        name = max(self.used, key=lambda part: self.used[part])
        return name if self.used[name] > 0.85 else "calls in flight"


def table(means: Means, counts: Sequence[int]) -> Table:
    """Return what fleets of these sizes do."""
    shown = Table("workers", "gradings a second", "a call, s", box=None, padding=(0, 3, 0, 0), header_style="dim")
    rows = {count: Fleet(count, means).run(max(20_000, 10 * count * means.slots)) for count in counts}
    for name in next(iter(rows.values())).used:
        shown.add_column(name)
    shown.add_column("what binds")
    for count, row in rows.items():
        shown.add_row(f"{count}", f"{row.rate:,.0f}", f"{row.latency:.2f}", *(f"{used:.0%}" for used in row.used.values()), row.binds)
    return shown


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.fleet", description=(__doc__ or "").splitlines()[0])
    for name, default in vars(Means()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, metavar=f"{default:g}")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, dest="counts", metavar="N")
    told = vars(parser.parse_args(arguments))
    counts = told.pop("counts")
    Console(highlight=False, width=140).print(table(Means(**told), counts))


if __name__ == "__main__":
    main()
