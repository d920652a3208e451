"""Batches and threads at a provider's rate limit: `python -m lab.rate_limits`.

The provider is a real token bucket behind HTTP; the figures are errors, pauses, the share of its rate that was used, and what it refused.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from rich.console import Console
from rich.table import Table
from temporalio.client import Client

from activities.providers import Providers
from activities.providers.environment import Environment
from activities.tools.registry import ToolRegistry
from gradeloop.batches.contract import BatchRequest, Case, GradingBatch, StoreCases, Upload
from gradeloop.contract.thread import RunResult
from gradeloop.settings.worker import WorkerSettings
from gradeloop.store.engine import Store
from rig.limited_provider import LimitedProvider, serving
from rig.processes import Engine, engine_in
from worker import build

MODEL = "openai_compatible:m"

CONCURRENCY = 50


@dataclass(frozen=True)
class Trial:
    """One provider, and what is asked of it."""

    name: str
    provider: LimitedProvider
    workers: int = 1
    cases: int = 200
    threads: int = 0


@dataclass(frozen=True)
class Figures:
    """What came of a trial."""

    errors: int
    status: str
    seconds: float
    throughput: float
    late_refusals: float


def trials() -> list[Trial]:
    """Return the trials of the page."""
    return [
        Trial("60 a minute, no Retry-After", LimitedProvider(60, 10, None)),
        Trial("120 a minute, Retry-After 1", LimitedProvider(120, 10, 1)),
        Trial("120 a minute, Retry-After 20", LimitedProvider(120, 10, 20)),
        Trial("600 a minute, Retry-After 1", LimitedProvider(600, 60, 1)),
        Trial("600 a minute, headers", LimitedProvider(600, 60, 1, reports=True)),
        Trial("120 a minute, 60 threads", LimitedProvider(120, 10, 1), cases=0, threads=60),
        Trial("120 a minute, three workers", LimitedProvider(120, 10, 1), workers=3),
        Trial("120 a minute, down for 30 s", LimitedProvider(120, 10, 1, down=(30.0, 60.0))),
    ]


async def run(engine: Engine, trial: Trial, store_url: str | None = None) -> Figures:
    """Run a trial on a queue of its own."""
    client = await engine.client()
    queue, batch_id = f"rate-{uuid4()}", f"rate-{uuid4()}"
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        provider = await stack.enter_async_context(serving(trial.provider))
        environment = Environment.read({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{provider.url}/v1"})
        for _ in range(trial.workers):
            store = Store(store_url or f"sqlite:///{Path(folder) / 'results.db'}")
            stack.callback(store.close)
            models = Providers(environment)
            stack.push_async_callback(models.aclose)
            own = await engine.client()
            await stack.enter_async_context(build(own, models, ToolRegistry(), WorkerSettings(task_queue=queue), store=store))
        if trial.threads:
            return figures(provider, await threads(client, queue, trial.threads), "finished")
        grader = {"model": {"id": MODEL, "config": {"structured_output": True}}}
        cases = tuple(
            Case.model_validate({"id": f"c{number}", "output": f"output {number}", "rubric": "- it is good", "grader": grader})
            for number in range(trial.cases)
        )
        upload = Upload(batch_id=batch_id, first=0, cases=cases)
        await client.execute_workflow(StoreCases.run, upload, id=f"store/{batch_id}", task_queue=queue)
        request = BatchRequest.model_validate({"batch_id": batch_id, "total": trial.cases, "at_once": CONCURRENCY})
        summary = await client.execute_workflow(GradingBatch.run, request, id=batch_id, task_queue=queue)
        return figures(provider, summary.errors, summary.status)


async def threads(client: Client, queue: str, count: int) -> int:
    """Run threads at once, each with a draft and its grade, and return how many did not end well."""
    request = {
        "messages": [{"role": "user", "content": "Write it."}],
        "generator": {"model": MODEL},
        "grader": {"model": {"id": MODEL, "config": {"structured_output": True}}},
        "rubric": "- it is good",
    }

    async def one() -> RunResult:
        result: RunResult = await client.execute_workflow(
            "GradingThread", request, id=f"thread-{uuid4()}", task_queue=queue, result_type=RunResult
        )
        return result

    results: Sequence[RunResult] = await asyncio.gather(*(one() for _ in range(count)))
    return sum(result.status != "satisfied" for result in results)


def figures(provider: LimitedProvider, errors: int, status: str) -> Figures:
    """Return what came of a trial."""
    return Figures(errors, status, provider.seconds, provider.throughput, provider.late_refusals)


async def measure(chosen: str, store_url: str | None) -> Table:
    """Run the trials whose names hold a text, and return a row for each."""
    columns = ("", "errors", "ended as", "seconds", "of the rate", "refused after 10 s")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="dim")
    with tempfile.TemporaryDirectory() as folder:
        async with engine_in(Path(folder)) as engine:
            for trial in trials():
                if chosen not in trial.name:
                    continue
                found = await run(engine, trial, store_url)
                share, late = f"{found.throughput:.0%}", f"{found.late_refusals:.1%}"
                table.add_row(trial.name, str(found.errors), found.status, f"{found.seconds:.0f}", share, late)
    return table


def main() -> None:
    """Print a row a trial."""
    parser = argparse.ArgumentParser(prog="python -m lab.rate_limits", description=__doc__)
    parser.add_argument("--only", default="", help="run the trials whose names hold this")
    parser.add_argument("--store", default=None, help="a PostgreSQL store that the workers share")
    chosen = parser.parse_args()
    Console(width=120).print(asyncio.run(measure(chosen.only, chosen.store)))


if __name__ == "__main__":
    main()
