"""gradeloop beside `temporalio-deepagents` with deepagents' RubricMiddleware: `make bench-peer`.

The same runs, with the same replies, on one server, from one script, in turns; each side's worker is a process of its own.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from temporalio.client import Client

from gradeloop.contract.thread import WORKFLOW
from gradeloop.exit_codes import leave
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo, ensure_server, stop_server
from lab import ours
from lab.contest import Contestant, Crowd, Lane, Measured, lane
from lab.peer.venv import peer_python
from lab.replies import RUBRIC, TASK, Case
from lab.subjects import Subject


@dataclass(frozen=True)
class Plan:
    """How much is measured of a case."""

    case: Case
    latencies: int
    crowds: dict[int, int]
    """Runs of a round, by the number of them in flight."""
    rounds: int
    bare: bool = False
    """Whether the bare workflow, of six activities, is the floor."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    figure: Callable[[Measured], float]
    form: str
    more_is_better: bool = False
    target: float | None = None
    """The ratio to the peer that we want: at least this where more is better, at most this elsewhere."""


LONG, SHORT = Case(20, 8192), Case(3, 64)

PEER = "deepagents"
SHORTER, FASTER, CHEAPER, SMALLER, FLOOR = 0.5, 3.0, 0.25, 0.1, 1.3
"""The targets: latency, runs a second, worker CPU and history beside the peer's; latency beside the bare workflow's."""


def contestants(plan: Plan, python: Path) -> list[Contestant]:
    """Return who is measured on a case: ours first, then the peer, then the floor."""
    case = plan.case
    we, they = f"gradeloop-{case.name}", f"{PEER}-{case.name}"
    models = {role: f"scripted:{role}:{case.name}" for role in ("generator", "grader")}
    asked = {"task": TASK, "rubric": RUBRIC, "max_iterations": case.iterations, **models}
    us, peer = Subject(we, WORKFLOW, [ours.request(case)]), Subject(they, "GradedAgent", [asked])
    both = [
        Contestant(us, [sys.executable, "-m", "lab.ours", case.name, us.task_queue]),
        Contestant(peer, [str(python), "-m", "lab.peer.serve", peer.task_queue]),
    ]
    floor = Contestant(Subject("bare", "Bare"), [sys.executable, "-m", "lab.subjects", "bare"])
    return [*both, floor] if plan.bare else both


async def measure(lanes: Sequence[Lane], plan: Plan) -> None:
    """Measure everybody in turns, after a run of each that is checked and one crowd that is not counted."""
    for each in lanes:
        await each.bench.at_once(10, 20)
    for _ in range(plan.latencies):
        for each in lanes:
            await each.alone()
    for _ in range(plan.rounds):
        for many, runs in plan.crowds.items():
            for each in lanes:
                await each.together(many, runs)
    for each in lanes:
        each.measured.history = await each.bench.history()


async def check(lanes: Sequence[Lane], plan: Plan) -> None:
    """Raise where a side does not do what the case says: every draft made, the last one returned."""
    for each in lanes[:2]:
        handle = each.bench.client.get_workflow_handle(await each.bench.run())
        result = await handle.result()
        scheduled = sum([event.HasField("activity_task_scheduled_event_attributes") async for event in handle.fetch_history_events()])
        if result["output"] != plan.case.draft(plan.case.iterations - 1) or scheduled != 2 * plan.case.iterations:
            raise RuntimeError(f"{each.bench.subject.name} made {scheduled} calls and returned {str(result)[:400]}")


def rows(plan: Plan) -> list[Row]:
    """Return what is shown of a case."""
    few, most = min(plan.crowds), max(plan.crowds)

    def of(many: int, figure: Callable[[Crowd], float]) -> Callable[[Measured], float]:
        return lambda each: median(figure(crowd) for crowd in each.crowds[many])

    return [
        Row("one run, ms (p50)", lambda each: median(each.latencies) * 1000, ".1f", target=SHORTER),
        Row("one run, ms (fastest)", lambda each: min(each.latencies) * 1000, ".1f"),
        Row("runs/s, 1 at once", lambda each: 1 / median(each.latencies), ".1f", more_is_better=True, target=FASTER if few > 1 else None),
        *(
            Row(f"runs/s, {many} at once", of(many, lambda crowd: crowd.cost.rate), ".1f", more_is_better=True, target=FASTER)
            for many in plan.crowds
        ),
        Row(
            f"worker CPU, ms a run ({few} at once)",
            of(few, lambda crowd: crowd.cost.worker_cpu / crowd.cost.runs * 1000),
            ".1f",
            target=CHEAPER,
        ),
        Row(f"server CPU, ms a run ({few} at once)", of(few, lambda crowd: crowd.cost.server_cpu / crowd.cost.runs * 1000), ".1f"),
        Row("history, events", lambda each: each.history.events if each.history else 0, ",.0f"),
        Row(
            "history, bytes", lambda each: each.history.bytes if each.history else 0, ",.0f", target=SMALLER if plan.case == LONG else None
        ),
        Row(f"failed workflow tasks, {most} at once", lambda each: sum(crowd.failed_tasks for crowd in each.crowds[most]), ".0f"),
        Row(f"workflow tasks taken up late, {most} at once", lambda each: sum(crowd.late_tasks for crowd in each.crowds[most]), ".0f"),
        Row(f"deadlock warnings, {most} at once", lambda each: sum(crowd.deadlocks for crowd in each.crowds[most]), ".0f"),
    ]


def table(plan: Plan, measured: Sequence[Measured]) -> Table:
    """Return the figures side by side; a ratio is ours over theirs."""
    title = f"{plan.case.iterations} iterations, drafts of {plan.case.draft_bytes:,} bytes"
    heads = ["gradeloop", PEER, "ratio", "target", *(["bare", "ratio"] if plan.bare else [])]
    shown = Table(title, *heads, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for row in rows(plan):
        here, there, *floor = (row.figure(each) for each in measured)
        sign = "≥" if row.more_is_better else "≤"
        cells = [format(here, row.form), format(there, row.form), _ratio(here, there), f"{sign} {row.target:g}" if row.target else ""]
        cells += [cell for bare in floor for cell in (format(bare, row.form), _ratio(here, bare))]
        shown.add_row(row.name, *cells)
    return shown


def _ratio(here: float, there: float) -> str:
    return f"{here / there:.2f}" if there else ""


async def contest(plan: Plan, python: Path, client: Client, server: ServerInfo) -> list[Measured]:
    """Measure one case."""
    async with AsyncExitStack() as stack:
        entered = [lane(contestant, client, server.address, server.pid) for contestant in contestants(plan, python)]
        lanes = [await stack.enter_async_context(each) for each in entered]
        await check(lanes, plan)
        await measure(lanes, plan)
        return [each.measured for each in lanes]


async def beside(plans: Sequence[Plan], python: Path, console: Console) -> None:
    """Measure the cases on an embedded server of their own, whose files are thrown away."""
    with tempfile.TemporaryDirectory(prefix="gradeloop-bench-") as folder:
        os.environ["GRADELOOP_STATE_DIR"] = folder
        server = await ensure_server()
        try:
            client = await connect(Connection(server.address, "default", embedded=True))
            for plan in plans:
                console.print(table(plan, await contest(plan, python, client, server)), "")
        finally:
            await stop_server()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table a case."""
    parser = argparse.ArgumentParser(prog="python -m lab.beside_deepagents", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, metavar="3", help="rounds of runs at once, each side in turn")
    parser.add_argument(
        "--latencies", type=int, default=40, metavar="40", help="runs alone, each side in turn; a quarter of it for the long case"
    )
    parser.add_argument("--python", type=Path, default=None, help="of a venv with the peer; made in the user's cache folder by default")
    parser.add_argument("--only", choices=("short", "long"), default=None)
    chosen = parser.parse_args(arguments)
    python = chosen.python or peer_python()
    short = Plan(SHORT, chosen.latencies, {20: 60, 200: 200}, chosen.rounds, bare=True)
    long = Plan(LONG, max(chosen.latencies // 4, 3), {20: 40, 200: 200}, max(chosen.rounds - 1, 1))
    plans = {"short": [short], "long": [long], None: [short, long]}[chosen.only]
    asyncio.run(beside(plans, python, Console(highlight=False, width=140)))


if __name__ == "__main__":
    main()
    leave(0)
