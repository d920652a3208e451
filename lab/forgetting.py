"""Deletion of one tenant among many threads: seconds, and whether any file still holds a text of it.

    python -m lab.forgetting --threads 10000 --tenant 1000 --older 100

One embedded server with a store, a folder of large payloads and a page of `gradeloop view`. Scripted models draft every thread, and grade
the tenant's. The tenant has every so many threads of all, one in fifty of them with a large message, and a batch; the others belong to
other tenants and to none. `--older` threads are begun by a worker that writes no search attributes, as those of older releases are.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import Client

from activities.providers import Providers
from activities.providers.environment import Environment
from activities.tools.registry import ToolRegistry
from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import BatchRequest, Case
from gradeloop.client.client import GradingClient
from gradeloop.contract.thread import Priority
from gradeloop.exit_codes import leave
from gradeloop.settings.worker import WorkerSettings
from gradeloop.store.engine import STORE_FILE, Store
from gradeloop.temporal.histories import find_runs
from lab.growth import MODELS, rubric, script
from rig.processes import engine_in
from worker import build

QUEUE = "forgetting"
TENANT = "acme"
MARK = "TEXT-OF-THE-TENANT-THAT-GOES"
CONCURRENCY = 50
LARGE = "x" * 300_000
CASES = 20


@dataclass(frozen=True)
class Forgotten:
    """What the command did."""

    seconds: float
    code: int
    said: dict[str, Any]
    before: list[str]
    """Files that held the tenant's text before."""
    after: list[str]
    """Files that still do."""
    others: int
    """Histories of others that stay."""


def files_with(folder: Path) -> list[str]:
    """Return the files below a folder whose bytes hold the tenant's text."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and MARK.encode() in file.read_bytes())


async def run_threads(client: Client, store: Store, wanted: range, mine: int, *, attributes: bool = True) -> None:
    """Run threads to their ends; one in `mine` is the tenant's."""
    threads, places = GradingClient(client, task_queue=QUEUE), asyncio.Semaphore(CONCURRENCY)

    async def run(at: int) -> None:
        tenant = TENANT if at % mine == 0 else f"other-{at % 7}" if at % 10 else None
        text = f"{MARK} {LARGE if at % (50 * mine) == 0 else ''}" if tenant == TENANT else f"Thread {at}."
        priority = {"priority": {"tenant": tenant}} if tenant else {}
        async with places:
            graded = MODELS | {"rubric": rubric(1)} if tenant == TENANT else {"generator": MODELS["generator"]}
            await threads.result(
                await threads.start({"messages": [{"role": "user", "content": text}], **graded, **priority}, thread_id=f"t-{at}")
            )

    settings = WorkerSettings(task_queue=QUEUE)
    models = Providers(Environment(), script(1, 1))
    async with build(client, models, ToolRegistry(), settings, search_attributes=attributes, store=store):
        await asyncio.gather(*map(run, wanted))
        if attributes:
            await run_batch(BatchClient(client, QUEUE))


async def run_batch(batches: BatchClient) -> None:
    """Run a batch of the tenant."""
    asked = {"rubric": rubric(1), "grader": MODELS["grader"]}
    cases = [Case.model_validate({"id": f"c{at}", "output": f"{MARK} {at}", **asked}) for at in range(CASES)]
    await batches.upload("nightly", cases, tenant=TENANT)
    await batches.start(BatchRequest(batch_id="nightly", total=CASES, priority=Priority(level=4, tenant=TENANT)))
    await batches.result("nightly")


async def measure(folder: Path, threads: int, mine: int, older: int) -> Forgotten:
    """Run threads on a server in a folder, forget the tenant by the command, and look into every file."""
    async with engine_in(folder) as engine:
        client, store = await engine.client(), Store(f"sqlite:///{folder / STORE_FILE}")
        await run_threads(client, store, range(threads - older), mine)
        await run_threads(client, store, range(threads - older, threads), mine, attributes=False)
        store.close()
        (pages := folder / "reports").mkdir()
        (pages / "t-0.html").write_text(MARK)
        before, began = files_with(folder), time.monotonic()
        environment = os.environ | {"GRADELOOP_STATE_DIR": str(folder)}
        command = [sys.executable, "-c", "from gradeloop.cli.main import main; main()", "forget", "--tenant", TENANT, "--yes", "--json"]
        done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        said = json.loads(done.stdout) if done.stdout else {"error": done.stderr}
        return Forgotten(seconds, done.returncode, said, before, files_with(folder), len(await find_runs(client, "")))


def main() -> None:
    """Measure, and print a line for each fact."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--threads", type=int, default=10_000)
    parser.add_argument("--tenant", type=int, default=1_000, help="how many of them are the tenant's")
    parser.add_argument("--older", type=int, default=100, help="how many of all are begun without search attributes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder), given.threads, given.threads // given.tenant, given.older))
    print(f"{given.tenant:,} of {given.threads:,} threads: {found.seconds:.1f} s, exit code {found.code}, {found.said}")
    print(f"files with the tenant's text: {len(found.before)} before, after: {found.after}; histories of others: {found.others:,}")
    leave(0 if found.before and not found.after and not found.code else 1)


if __name__ == "__main__":
    main()
