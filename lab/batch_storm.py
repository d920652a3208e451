"""A batch while its worker and its server are killed at random: `python -m lab.batch_storm`.

Server, worker and command are real processes, the judge is a server in this one that counts what is paid for. The command is left with
Ctrl-C in the middle and attached again. `lab/tests/test_batch_storm.py` runs a small one.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.batches.reader import BatchReader
from gradeloop.exit_codes import leave
from gradeloop.store.engine import Store
from lab.judging_storm import Judges, Kill, Paid, paid_again
from rig.processes import Engine, WorkerProcess, engine_in

QUEUE = "batch-storm"
UNREACHABLE = 4
"""The command's exit code where no server answers it as it begins."""
WRITTEN_SECONDS = 0.5
"""An answer that came so shortly before a kill may not have been written down yet."""


@dataclass(frozen=True)
class Plan:
    """How many, and how hard it blows."""

    cases: int = 1000
    at_once: int = 50
    delay: float = 2.0
    """Seconds that each model call takes."""
    seconds: float = 60.0
    """For so long something is killed now and then."""
    pause: tuple[float, float] = (3.0, 8.0)
    """Seconds between two kills, at least and at most."""
    seed: int = 1
    longest: float = 900.0
    """Seconds after which it is given up, with whatever still runs."""


@dataclass
class Report:
    """What came of it."""

    faults: list[str] = field(default_factory=list)
    calls: int = 0
    again: int = 0
    """Calls that were made more than once."""
    workers_killed: int = 0
    servers_killed: int = 0
    seconds: float = 0.0
    codes: list[int] = field(default_factory=list)
    """Exit codes of the command: left by Ctrl-C, then attached to the end."""


class CaseJudge(Judges):
    """A provider whose verdict depends on the case alone."""

    def named(self, body: dict[str, Any]) -> str:
        """Return the case's number."""
        found = re.search(r"case number (\d+)", json.dumps(body["messages"]))
        return found.group(1) if found else "?"

    def said(self, name: str) -> dict[str, Any]:
        """Return the verdict."""
        passed = is_good(int(name))
        row = {"reason": f"as told to {name}", "passed": passed, "gap": "" if passed else "it is not"}
        return {"k1": row, "unjudgeable": "", "summary": "so it is"}


def is_good(case: int) -> bool:
    """Say what the judge says of a case."""
    return case % 3 != 0


def suite_of(plan: Plan, url: str, folder: Path) -> Path:
    """Write the suite and its outputs."""
    rows = [json.dumps({"id": f"case-{at}", "output": f"I am case number {at}. " * 20}) for at in range(plan.cases)]
    (folder / "cases.jsonl").write_text("\n".join(rows))
    model = {"id": "openai_compatible:judge", "config": {"base_url": f"{url}/v1", "structured_output": True}}
    told = {"name": "storm", "grader": model, "rubric": "- it is good", "tests": "cases.jsonl", "concurrency": plan.at_once, "retries": 20}
    (folder / "suite.yaml").write_text(json.dumps(told))
    return folder / "suite.yaml"


async def storm(plan: Plan, folder: Path) -> Report:
    """Run the batch through the kills, and look at what it came to."""
    judge, report = CaseJudge(plan.delay), Report()
    url = await judge.start()
    store = f"sqlite:///{folder / 'results.db'}"
    os.environ["GRADELOOP_STORE"] = store  # of the workers, which are started with this environment
    async with engine_in(folder) as engine, asyncio.timeout(plan.longest):
        worker = await WorkerProcess(engine, QUEUE, url).start()
        suite = suite_of(plan, url, folder)
        began = time.monotonic()
        await _command(engine, store, "eval", str(suite), "--detach")
        kills: list[Kill] = []
        async with asyncio.TaskGroup() as group:  # where nothing is started again any more, no command waits for it
            blowing = group.create_task(_blow(plan, engine, url, worker, kills, report))
            report.codes.append(await _command(engine, store, "eval", "--attach", "latest", ctrl_c_after=plan.seconds / 4))
            await asyncio.sleep(plan.seconds / 8)
            report.codes.append(await _command(engine, store, "eval", "--attach", "latest", "-o", str(folder / "out.json")))
            report.seconds = time.monotonic() - began
        blowing.result().kill()
    await judge.close()
    _look_at_calls(plan, judge.calls, kills, report)
    await _look_at_results(plan, store, folder / "out.json", report)
    return report


async def _command(engine: Engine, store: str, *arguments: str, ctrl_c_after: float | None = None) -> int:
    """Run the command line, perhaps not to its end, and return its exit code; one that began while the server was down begins again."""
    own = {"TEMPORAL_ADDRESS": engine.address, "GRADELOOP_STORE": store, "GRADELOOP_TASK_QUEUE": QUEUE}
    own["GRADELOOP_STATE_DIR"] = str(engine.folder)
    command = [str(Path(sys.executable).parent / "gradeloop"), *arguments]
    while (code := await _exit_code(command, own, engine.folder / f"command-{time.time_ns()}.log", ctrl_c_after)) == UNREACHABLE:  # noqa: ASYNC110 - a server that is back tells nobody
        await asyncio.sleep(0.5)
    return code


async def _exit_code(command: list[str], own: dict[str, str], log: Path, ctrl_c_after: float | None) -> int:
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(*command, env=os.environ | own, stdout=file, stderr=file)
    try:
        if ctrl_c_after is not None:
            while process.returncode is None and b"Ctrl-C leaves" not in await asyncio.to_thread(log.read_bytes):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await asyncio.wait([asyncio.create_task(process.wait())], timeout=ctrl_c_after)
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
        return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


async def _blow(plan: Plan, engine: Engine, url: str, worker: WorkerProcess, kills: list[Kill], report: Report) -> WorkerProcess:
    """Kill the worker or the server now and then, and start it again; return the last worker."""
    dice, until = random.Random(plan.seed), time.monotonic() + plan.seconds
    while time.monotonic() < until:
        await asyncio.sleep(dice.uniform(*plan.pause))
        if dice.random() < 0.5:
            began = time.monotonic()
            worker.kill()
            report.workers_killed += 1
            worker = await WorkerProcess(engine, QUEUE, url).start()
            kills.append(Kill(began, time.monotonic()))
        else:
            engine.kill()
            report.servers_killed += 1
            await engine.start()
    return worker


def _look_at_calls(plan: Plan, calls: list[Paid], kills: list[Kill], report: Report) -> None:
    """Note every call that was paid for twice though it was not in flight when the worker was killed."""
    counted = Counter(call.name for call in calls)
    report.calls, report.again = len(calls), sum(count - 1 for count in counted.values())
    report.faults += [f"nobody asked for case {at}" for at in range(plan.cases) if str(at) not in counted]
    for call in calls:
        later = [other for other in calls if other.name == call.name and other.began > call.began] if counted[call.name] > 1 else []
        if later and not any(kill.may_have_lost(call, WRITTEN_SECONDS) for kill in kills):
            report.faults.append(f"case {paid_again(call, later[0], kills)}")


async def _look_at_results(plan: Plan, store: str, output: Path, report: Report) -> None:
    reader = BatchReader(Store(store))
    summary = await reader.summary("latest")
    results = list(reader.results(summary.batch_id))
    wanted = ["passed" if is_good(at) else "failed" for at in range(plan.cases)]
    if [result.status for result in results] != wanted:
        report.faults.append(f"the results differ: {Counter(result.status for result in results)}")
    counts = Counter(result.status for result in results)
    if (summary.passed, summary.failed, summary.errors) != (counts["passed"], counts["failed"], counts["error"]):
        report.faults.append(f"the summary says {summary}, the cases {counts}")
    used, unsent = summary.usage, plan.at_once * report.workers_killed  # a kill may come between the charge of a request and its sending
    if not plan.cases <= used.calls <= report.calls <= used.attempts <= report.calls + unsent:
        report.faults.append(f"{report.calls} calls were paid for, and counted as {used}")
    if (used.input, used.output) != (10 * used.calls, 5 * used.calls):
        report.faults.append(f"the tokens are not those of the calls: {used}")
    told: dict[str, Any] = json.loads(await asyncio.to_thread(output.read_text))
    if BatchSummary.model_validate(told["summary"]) != summary or [CaseResult.model_validate(each) for each in told["cases"]] != results:
        report.faults.append("the output differs from the store")


def main() -> None:
    """Run the whole storm and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=Plan.cases)
    parser.add_argument("--seconds", type=float, default=Plan.seconds)
    parser.add_argument("--seed", type=int, default=Plan.seed)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(cases=arguments.cases, seconds=arguments.seconds, seed=arguments.seed)
        print(asyncio.run(storm(plan, Path(folder))))
    leave(0)


if __name__ == "__main__":
    main()
