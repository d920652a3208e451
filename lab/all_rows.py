"""Every figure that we hold ourselves to, beside its peers, in one run: `make bench-all`.

One Markdown table with medians and quartiles; a ratio is the median of the rounds' own ratios, in each of which the sides took turns. With
`--against FILE`, a table of an earlier run, rows that got worse by more than both runs' spreads are told, and the command ends with 1.
"""

import argparse
import asyncio
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from unittest.mock import patch

import psutil  # type: ignore[import-untyped]  # it ships no types

from gradeloop.exit_codes import leave
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ensure_server, stop_server
from lab import batches, beside_deepagents, beside_handwritten, contest, judges, many_cases, overhead
from lab.measure import Cost
from lab.mock_judge import judging
from lab.peer.venv import DEEPAGENTS, DOCENT, peer_python
from lab.served_app import served
from rig.node_peers import MASTRA, PROMPTFOO, peer

MINUTES = 20.0

HEADS = ("what", "gradeloop", "beside", "their figure", "ratio", "aim")

MISSING = "not measured"


@dataclass(frozen=True)
class Spread:
    """The median of figures, and the quartiles around it."""

    low: float
    middle: float
    high: float

    @classmethod
    def over(cls, figures: Sequence[float]) -> "Spread":
        """Return the spread of figures; one alone has none."""
        return cls(*quantiles(figures, n=4, method="inclusive")) if len(figures) > 1 else cls(*(figures[0],) * 3)

    def __str__(self) -> str:
        """Return median and quartiles."""
        shown = [format(figure, ",.0f" if self.middle >= 1_000 else ".3g") for figure in (self.middle, self.low, self.high)]
        return f"{shown[0]} ({shown[1]} to {shown[2]})"


@dataclass(frozen=True)
class Row:
    """A line of the table: figures a round, ours and, in the same rounds, those of a peer."""

    name: str
    ours: Sequence[float]
    peer: str
    theirs: Sequence[float]
    aim: float | None
    """Of the ratio; of our own figure, where there is no peer; None where we set ourselves none."""
    more_is_better: bool = False

    @property
    def ratio(self) -> Spread | None:
        """Ours over theirs, round by round."""
        return Spread.over([here / there for here, there in zip(self.ours, self.theirs, strict=True)]) if self.theirs else None

    def cells(self) -> list[str]:
        """Return the line's cells."""
        ratio, sign = self.ratio, "at least" if self.more_is_better else "at most"
        theirs = str(Spread.over(self.theirs)) if self.theirs else ""
        return [
            self.name,
            str(Spread.over(self.ours)),
            self.peer,
            theirs,
            str(ratio) if ratio else "",
            "" if self.aim is None else f"{sign} {self.aim:g}",
        ]


@dataclass(frozen=True)
class Amount:
    """How much is measured."""

    rounds: int
    cases: int
    """Of the large batch."""


def _alone(latencies: Sequence[float]) -> list[float]:
    return [seconds * 1000 for seconds in latencies]


async def beside_peer(amount: Amount) -> list[Row]:
    """Threads beside temporalio-deepagents."""
    plan = beside_deepagents.Plan(beside_deepagents.SHORT, 10 * amount.rounds, {20: 40, 200: 200}, amount.rounds)
    python = await asyncio.to_thread(peer_python)
    server = await ensure_server()
    client = await connect(Connection(server.address, "default", embedded=True))
    ours, theirs = await beside_deepagents.contest(plan, python, client, server)
    name = beside_deepagents.PEER

    def rates(of: contest.Measured, many: int) -> list[float]:
        return [crowd.cost.rate for crowd in of.crowds[many]]

    def cpu(of: contest.Measured) -> list[float]:
        return [crowd.cost.worker_cpu / crowd.cost.runs * 1000 for crowd in of.crowds[20]]

    return [
        Row("3 iterations, alone, ms", _alone(ours.latencies), name, _alone(theirs.latencies), 0.45),
        *(Row(f"same, runs/s, {many} at once", rates(ours, many), name, rates(theirs, many), 3.5, True) for many in plan.crowds),
        Row("same, worker CPU a run, ms", cpu(ours), name, cpu(theirs), 0.18),
    ]


async def beside_bare(amount: Amount) -> list[Row]:
    """Threads beside six activities that do nothing."""
    plan = overhead.Plan(latencies=10 * amount.rounds, rounds=amount.rounds)
    ours, bare = await overhead.overhead(plan)
    name = "six no-op activities"

    def cpu(of: overhead.Measured) -> list[float]:
        return [cost.worker_cpu / cost.runs * 1000 for cost in of.costs]

    return [
        Row("3 iterations beside no-ops, alone, ms", _alone(ours.latencies), name, _alone(bare.latencies), 1.2),
        Row(
            f"same, runs/s, {plan.many} at once",
            [cost.rate for cost in ours.costs],
            name,
            [cost.rate for cost in bare.costs],
            round(1 / 1.15, 2),
            True,
        ),
        Row("same, worker CPU, ms", cpu(ours), name, cpu(bare), 1.4),
        Row("history of 3 iterations, bytes", [ours.history.bytes], name, [bare.history.bytes], 3),
    ]


async def evals(amount: Amount) -> list[Row]:
    """`eval` beside promptfoo and Mastra, as far as they can be installed."""
    pins = {batches.Promptfoo: PROMPTFOO, batches.Mastra: MASTRA}
    peers = [kind for kind in batches.PEERS if await asyncio.to_thread(_installs, pins[kind])]
    with tempfile.TemporaryDirectory(prefix="gradeloop-bench-") as folder, judging() as judge:
        found = await batches.contest(judge, Path(folder), amount.rounds, peers)
    rounds = found["gradeloop"]

    def row(name: str, aim: float, figure: Callable[[batches.Measured], float], beside: str) -> Row:
        theirs = found.get(beside)
        named = beside if theirs is not None else f"{beside}: {MISSING}"
        return Row(name, [figure(one) for one in rounds], named, [figure(one) for one in theirs or ()], aim)

    judged, per_case = (lambda one: one.judged), (lambda one: (one.cpu - one.start) / batches.RUNS * 1000)
    what = f"`eval`, {batches.RUNS} x 200 ms at {batches.CONCURRENCY}"
    return [
        row(f"{what}, s of judging", 0.44, judged, "promptfoo"),
        row(f"{what}, s", 0.36, judged, "Mastra"),
        row(f"{what}, CPU a grading, ms", 0.37, per_case, "promptfoo"),
    ]


def _installs(pins: tuple[str, ...]) -> bool:
    """Return whether a peer of Node's world is there, or can be had; what is wrong is printed."""
    try:
        peer(pins)
    except SystemExit as error:
        print(error, flush=True)
        return False
    return True


async def large_batch(amount: Amount) -> list[Row]:
    """A large batch, three times."""
    rates, cpu = [], []
    for _ in range(min(amount.rounds, 3)):
        with judging() as judge, tempfile.TemporaryDirectory(prefix="gradeloop-bench-") as folder:
            found = await many_cases.measure(judge, Path(folder), amount.cases, 160, stored=False)
        rates.append(amount.cases / found.seconds)
        cpu.append(found.cpu["worker"] / amount.cases * 1000)
    what = f"`eval`, {amount.cases:,} at 160"
    return [Row(f"{what}, cases/s", rates, "", [], 300, True), Row(f"{what}, worker CPU a case, ms", cpu, "", [], 3)]


async def judgements(amount: Amount) -> list[Row]:
    """`judge_many` beside Docent and the bare SDK."""
    try:
        docent: Path | None = await asyncio.to_thread(peer_python, DOCENT)
    except subprocess.CalledProcessError as error:
        print(f"Docent cannot be installed: {error}", flush=True)
        docent = None
    with served(judges.provider) as url, tempfile.TemporaryDirectory(prefix="gradeloop-bench-") as folder:
        found = await judges.measure(url, amount.rounds, Path(folder), docent)
    ours, what = [one.wall for one in found["gradeloop"]], f"`judge`, {judges.RUNS} x 200 ms at {judges.CONCURRENCY}"
    others = {"Docent": 1.4, "bare SDK": 1.4}
    return [Row(f"{what}, s, beside {name}", ours, name, [one.wall for one in found[name]], aim) for name, aim in others.items()]


async def handwritten(amount: Amount) -> list[Row]:
    """All three programs beside what an expert would write, before a server that answers at once, and after 200 ms."""
    rows = list[Row]()
    for seconds, speed in ((0.0, "instant"), (0.2, "200 ms")):
        ours, theirs = await beside_handwritten.contest(seconds, amount.rounds)
        rows += rows_by_hand(speed, ours, theirs)
        if not seconds:
            rows.append(Row("a thread, history, bytes", [ours.history], "by hand", [theirs.history], 3))
    return rows


def rows_by_hand(speed: str, ours: beside_handwritten.Measured, theirs: beside_handwritten.Measured) -> list[Row]:
    """Return the rows of one speed of the server."""

    def row(what: str, step: str, figure: Callable[[Cost], float], aim: float | None = None, *, more: bool = False) -> Row:
        both = [[figure(cost) for cost in side.costs[step]] for side in (ours, theirs)]
        return Row(what, both[0], "by hand", both[1], aim, more)

    def milliseconds(cost: Cost) -> float:
        return cost.seconds / cost.runs * 1000

    def worker(cost: Cost) -> float:
        return cost.worker_cpu / cost.runs * 1000

    def server(cost: Cost) -> float:
        return cost.server_cpu / cost.runs * 1000

    def worker_and_caller(cost: Cost) -> float:
        return (cost.worker_cpu + cost.caller_cpu) / cost.runs * 1000

    rows = [
        row(f"a thread, {speed}, ms", "alone", milliseconds, 1.15),
        *(row(f"threads/s, {speed}, {step}", step, lambda cost: cost.rate, 0.9, more=True) for step in ("20 at once", "200 at once")),
        row(f"a thread, {speed}, worker CPU, ms", "20 at once", worker, 1.3),
        row(f"a thread, {speed}, server CPU, ms", "20 at once", server),
        row(f"a judgement, {speed}, ms", "judgement", milliseconds),
    ]
    for step in ("gradings", "judgements"):
        what = f"{beside_handwritten.RUNS} {step}, {speed}"
        rows.append(row(f"{what}, s", step, lambda cost: cost.seconds))
        rows.append(row(f"{what}, CPU of one, ms", step, worker_and_caller))
        rows.append(row(f"{what}, server CPU of one, ms", step, server))
    return rows


PARTS: dict[str, Callable[[Amount], Awaitable[list[Row]]]] = {
    "peer": beside_peer,
    "bare": beside_bare,
    "eval": evals,
    "large": large_batch,
    "judge": judgements,
    "handwritten": handwritten,
}
"""What `--rows` chooses from."""


async def _within(part: Callable[[Amount], Awaitable[list[Row]]], amount: Amount, seconds: float) -> list[Row]:
    """Measure a part on files of its own, which are thrown away; its variables and processes end with it, also where it takes too long."""
    with tempfile.TemporaryDirectory(prefix="gradeloop-bench-") as folder, patch.dict(os.environ, GRADELOOP_STATE_DIR=folder):
        try:
            async with asyncio.timeout(seconds):
                return await part(amount)
        finally:
            await stop_server()


def measured(names: Sequence[str], amount: Amount, minutes: float) -> tuple[list[Row], dict[str, str]]:
    """Return the rows of parts, and why others have none."""
    ends, rows, missing = time.monotonic() + minutes * 60, list[Row](), dict[str, str]()
    for name in names:
        left, began = ends - time.monotonic(), time.monotonic()
        if left <= 0:
            missing[name] = f"the {minutes:g} minutes were over"
            continue
        try:
            rows += asyncio.run(_within(PARTS[name], amount, left))
        except TimeoutError:
            missing[name] = f"it did not end within the {minutes:g} minutes"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a part that fails leaves the others their rows
            missing[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        print(f"{name}: {missing.get(name, 'measured')}, {time.monotonic() - began:.0f} s", flush=True)
    return rows, missing


def machine() -> str:
    """Return what was measured, and on what."""
    cpu = re.search(r"model name\s*:\s*(.+)", _read(Path("/proc/cpuinfo")))
    versions = ", ".join(f"{name} {version(name)}" for name in ("gradeloop", "temporalio", "pydantic", "openai"))
    peers = ", ".join((*DEEPAGENTS[:2], PROMPTFOO[0], MASTRA[0], MASTRA[1]))
    return (
        f"{datetime.now(UTC):%Y-%m-%d}; {os.cpu_count()} x {cpu[1] if cpu else platform.processor() or platform.machine()}, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.system()} {platform.release()}; Python {platform.python_version()}, "
        f"{versions}; peers: {peers}; load before: {os.getloadavg()[0]:.1f}."
    )


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def markdown(rows: Sequence[Row], missing: dict[str, str], about: str) -> str:
    """Return the table."""
    lines = [HEADS, ("---",) * len(HEADS), *(row.cells() for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    lost = "".join(f"\n- `{name}`: {MISSING}; {why}" for name, why in missing.items())
    return f"{about}\n\n{table}\n{lost}\n"


_FIGURE = re.compile(r"([\d,.e+-]+) \(([\d,.e+-]+) to ([\d,.e+-]+)\)")


def read_table(text: str) -> dict[str, tuple[Spread, bool]]:
    """Return what a table of an earlier run holds by row: the ratio, or our figure where there is none, and whether more is better."""
    found: dict[str, tuple[Spread, bool]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != len(HEADS):
            continue
        shown = _FIGURE.fullmatch(cells[4]) or _FIGURE.fullmatch(cells[1])
        if shown:
            middle, low, high = (float(figure.replace(",", "")) for figure in shown.groups())
            found[cells[0]] = Spread(low, middle, high), cells[5].startswith("at least")
    return found


def worse(rows: Sequence[Row], earlier: dict[str, tuple[Spread, bool]]) -> list[str]:
    """Return a line for each row that is worse than before by more than both spreads."""
    found = []
    for row in rows:
        if row.name not in earlier:
            continue
        (before, _), now = earlier[row.name], row.ratio or Spread.over(row.ours)
        if now.high < before.low if row.more_is_better else now.low > before.high:
            found.append(f"worse: {row.name}: {now}, it was {before}")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.all_rows", description=__doc__)
    parser.add_argument("--rows", default=",".join(PARTS), metavar="PARTS", help=f"some of {', '.join(PARTS)}, with commas between them")
    parser.add_argument("--against", type=Path, metavar="FILE", help="a table of an earlier run, for example docs/benchmarks.md")
    parser.add_argument("--rounds", type=int, default=5, metavar="5", help="rounds of all sides")
    parser.add_argument("--cases", type=int, default=5_000, metavar="5000", help="cases of the large batch")
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="20", help="after which what is not measured is left out")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where the table is written, too")
    chosen = parser.parse_args(arguments)
    names = [name.strip() for name in chosen.rows.split(",")]
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"--rows {unknown[0]!r} is none of {', '.join(PARTS)}")
    try:
        earlier = read_table(chosen.against.read_text()) if chosen.against else {}
    except OSError as error:
        parser.error(f"--against {chosen.against}: {error.strerror}")
    if chosen.against and not earlier:
        parser.error(f"--against {chosen.against} has no table of this command")
    about = machine()
    rows, missing = measured(names, Amount(chosen.rounds, chosen.cases), chosen.minutes)
    table = markdown(rows, missing, about)
    print(f"\n{table}")
    if chosen.output:
        chosen.output.write_text(table)
    lines = worse(rows, earlier)
    print("\n".join(lines) if lines or not earlier else "no row is worse than before by more than its spread")
    if lines or missing:
        leave(1)


if __name__ == "__main__":
    main()
    leave(0)
