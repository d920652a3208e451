"""`python -m lab.ours CASE QUEUE ADDRESS` serves gradeloop with the case's replies until it is told to stop."""

import asyncio
import logging
import signal
import sys
from typing import Any

from activities.providers import Providers
from activities.providers.environment import Environment
from activities.providers.scripted import Script
from activities.tools.registry import ToolRegistry
from gradeloop.settings.worker import WorkerSettings
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.worker_process import LoadedObjects
from lab.replies import CRITERIA, EXPLANATION, GAP, READY, REASON, RUBRIC, TASK, Case
from worker import build


def request(case: Case) -> dict[str, Any]:
    """Return the argument of the thread."""
    return {
        "messages": [{"role": "user", "content": TASK}],
        "rubric": RUBRIC,
        "generator": {"model": "scripted:instant"},
        "grader": {"model": "scripted:instant"},
        "max_iterations": case.iterations,
    }


def replies(case: Case) -> Script:
    """Return the case's drafts and verdicts as rows of a scripted file."""
    drafts = [{"role": "generator", "iteration": at, "text": case.draft(at)} for at in range(case.iterations)]
    verdicts = [{"role": "grader", "iteration": at, "verdict": _verdict(case, at)} for at in range(case.iterations)]
    return Script.model_validate({"replies": [*drafts, *verdicts]})


def _verdict(case: Case, at: int) -> dict[str, object]:
    rows = {
        f"k{CRITERIA.index(row['name']) + 1}": {"reason": REASON, "passed": row["passed"], "gap": "" if row["passed"] else GAP}
        for row in case.judged(at)
    }
    return {**rows, "unjudgeable": "", "summary": EXPLANATION}


async def serve(case: Case, queue: str, address: str) -> None:
    """Serve until SIGTERM."""
    client = await connect(Connection(address, "default", embedded=True))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with build(client, Providers(Environment(), replies(case)), ToolRegistry(), WorkerSettings(task_queue=queue)):
        with LoadedObjects().gc_freeze():  # as worker.py does
            print(READY, flush=True)
            await stopped.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(serve(Case.named(sys.argv[1]), sys.argv[2], sys.argv[3]))
