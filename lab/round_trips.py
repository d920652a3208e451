"""The cases of batches on a PostgreSQL that is some milliseconds away: how many end a second, by how many round trips each.

    python -m lab.round_trips --before ../gradeloop-of-before

One to four worker processes take each case through the store as `grade_case` does, without a model: look-up, reservation, end. A wire that
is late stands between them and the server, and counts. With `--before`, a checkout of an earlier version is measured beside this one, cell
by cell in turns; it needs no environment of its own.
"""

import argparse
import asyncio
import inspect
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]

WORKERS, BATCHES, DELAYS = (1, 2, 4), (1, 4), (0, 1, 20)

LANES = 8
"""Cases that a worker has in hand at once."""

CASES = 1600
"""Cases of a cell at most."""

SECONDS = 2.0
"""Seconds after which no further case of a cell begins."""

LONGEST_SECONDS = 60.0
"""Seconds after which a worker that says nothing has failed."""


@dataclass(frozen=True)
class Cell:
    """What the workers do at once; one of them, its part."""

    url: str
    batches: int
    workers: int
    worker: int = 0
    prepares: bool = False
    """Whether the cases are stored, and none is judged."""


@dataclass(frozen=True)
class Measured:
    """What came of a cell."""

    cases: float
    """Cases that ended in a second."""
    trips: float
    """Round trips for each."""

    def __str__(self) -> str:
        """Return both figures."""
        return f"{self.cases:,.1f} ({self.trips:.1f})"


async def work() -> None:
    """Do the cells that come by lines of standard input, each once another line follows, with the gradeloop that is imported."""
    from gradeloop.batches.store import BatchStore
    from gradeloop.store.engine import Store

    for line in sys.stdin:
        cell = Cell(**json.loads(line))
        store = Store(cell.url)
        made = BatchStore(store)
        if cell.prepares:
            await _prepare(made, cell)
            found = {"ended": 0, "seconds": 0.0}
        else:
            await asyncio.gather(*(made.case(f"b{at % cell.batches}", 0) for at in range(LANES)))  # whose connections are there then
            print("ready", flush=True)
            sys.stdin.readline()
            found = await _judge(made, cell)
        store.close()
        print(json.dumps(found), flush=True)


async def _prepare(made: "BatchStore", cell: Cell) -> None:  # type: ignore[name-defined]  # noqa: F821 - of the checkout that is measured
    from gradeloop.batches.contract import BatchRequest, Upload

    total = CASES // cell.batches
    for number in range(cell.batches):
        name = f"b{number}"
        for first in range(0, total, 200):
            cases = [{"id": f"c{at}", "output": f"text {at}", "rubric": "- it is good"} for at in range(first, min(total, first + 200))]
            await made.add(Upload.model_validate({"batch_id": name, "first": first, "cases": cases}))
        await made.open(BatchRequest(batch_id=name, total=total))


async def _judge(made: "BatchStore", cell: Cell) -> dict[str, float]:  # type: ignore[name-defined]  # noqa: F821 - as above
    """Take cases from their look-ups to their ends until the time is over."""
    from gradeloop.batches.cases import build_result
    from gradeloop.batches.charges import CallCost
    from gradeloop.contract.messages import Usage

    reserves = "cost" in inspect.signature(made.look_up).parameters
    usage = Usage(input=90, output=10, calls=1, attempts=1, cost_usd=0.001)
    known = (await made.case("b0", 0)).case
    due = iter(range(cell.worker, CASES // cell.batches * cell.batches, cell.workers))
    began, ended = time.monotonic(), 0

    async def lane() -> None:
        nonlocal ended
        for number in due:
            if time.monotonic() - began > SECONDS:
                return
            batch, position = f"b{number % cell.batches}", number // cell.batches
            key, cost = f"{batch:>4}{position:060d}", CallCost(call=f"{batch}/{position}", attempt=1)
            found = await made.look_up(batch, (position, 0, 0), key, *((cost,) if reserves else ()))
            if not (reserves and found.reserved):
                await made.reserve(batch, cost)
            result = build_result(known.model_copy(update={"id": f"c{position}"}), "passed", output="text")
            await made.end_case(batch, position, result, CallCost(usage, cost.call, 1, requests=1), key=key)
            ended += 1

    await asyncio.gather(*(lane() for _ in range(LANES)))
    return {"ended": ended, "seconds": time.monotonic() - began}


class Side:
    """The worker processes of a checkout."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    async def measure(self, url: str, through: str, batches: int, workers: int, wire: "Wire") -> Measured:  # type: ignore[name-defined]  # noqa: F821
        """Measure a cell on an empty database."""
        await self._say(0, json.dumps(asdict(Cell(url, batches, workers, prepares=True))))
        await self._hear(0)
        for at in range(workers):
            await self._say(at, json.dumps(asdict(Cell(through, batches, workers, at))))
        for at in range(workers):
            await self._hear(at)
        before = wire.round_trips
        for at in range(workers):
            await self._say(at, "go")
        found = [json.loads(await self._hear(at)) for at in range(workers)]
        ended = sum(one["ended"] for one in found)
        return Measured(ended / max(one["seconds"] for one in found), (wire.round_trips - before) / max(ended, 1))

    async def _say(self, at: int, line: str) -> None:
        writer = self._processes[at].stdin
        assert writer is not None
        writer.write(f"{line}\n".encode())
        await writer.drain()

    async def _hear(self, at: int) -> str:
        reader = self._processes[at].stdout
        assert reader is not None
        async with asyncio.timeout(LONGEST_SECONDS):
            line = (await reader.readline()).decode()
        if not line:
            raise RuntimeError(f"worker {at} has ended; its error is above")
        return line


@asynccontextmanager
async def side(checkout: Path) -> AsyncIterator[Side]:
    """Run the workers of a checkout while the block runs."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, str(HERE / "lab/round_trips.py"), "--work"]
    pipe = asyncio.subprocess.PIPE
    processes = [
        await asyncio.create_subprocess_exec(*command, env=environment, cwd=checkout, stdin=pipe, stdout=pipe) for _ in range(max(WORKERS))
    ]
    try:
        yield Side(processes)
    finally:
        for process in processes:
            process.kill()
            await process.wait()


async def run(before: Path | None) -> Table:
    """Measure every cell, of both checkouts in turns."""
    from contextlib import AsyncExitStack

    from rig.postgresql import postgresql, wire_to

    heads = ("PostgreSQL is away by", "batches", "workers", *(["before"] if before else []), "now")
    table = Table(*heads, title="Cases a second (round trips a case)")
    async with AsyncExitStack() as stack:
        server = stack.enter_context(postgresql())
        sides = [await stack.enter_async_context(side(checkout)) for checkout in (*([before] if before else []), HERE)]
        for number, (delay, batches, workers) in enumerate((d, b, w) for d in DELAYS for b in BATCHES for w in WORKERS):
            figures = []
            for at, measured in enumerate(sides):
                url = server.create(f"cell_{number}_{at}")
                async with wire_to(url, delay / 1000) as (wire, through):
                    figures.append(str(await measured.measure(url, through, batches, workers, wire)))
            table.add_row(f"{delay} ms", str(batches), str(workers), *figures)
    return table


def main() -> None:
    """Measure and print, or do the work of one process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        asyncio.run(work())
        return
    Console().print(asyncio.run(run(asked.before and asked.before.resolve())))


if __name__ == "__main__":
    main()
