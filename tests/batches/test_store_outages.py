"""A store that is away, full or cut off at any statement: what was paid for is counted once, and nothing is paid twice."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from temporalio.client import Client

from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import BatchSummary, CaseResult
from tests.rig.batches import Batches, batching, breaks, case, drafted, fails, passes
from tests.rig.cut_wire import Cut, CutWire, cut_wire
from tests.rig.threads import SECONDS, Models, row, verdict

GROUPS = {"criteria": ["it is good", {"description": "it is short", "grader": "scripted:other"}]}
CASES = [case("a"), case("b"), drafted("d"), case("g", rubric=GROUPS), case("x")]
REPLIES = (
    {"role": "generator", "text": "a draft", "usage": {"input": 10, "output": 5}},
    fails("of b."),
    breaks("of x."),
    passes(usage={"input": 10, "output": 5}),
    {"role": "grader", "group": 1, "verdict": verdict(row("c2"))},
)
REQUESTS = 7
"""Of the batch: one for every case, a draft, and a second group."""


async def run_cut(batches: Batches, models: Models, wire: CutWire, at: int, cut: Cut) -> tuple[BatchSummary, list[CaseResult], int]:
    """Run a batch whose store is cut off at a statement; returns its summary, its results, and how many requests were paid for."""
    batch_id, before = f"{cut}-{at}-{id(wire)}", len(models.requests)
    await batches.upload(batch_id, CASES)
    wire.arm(at, cut)
    summary = await (await batches.start(batch_id, len(CASES), at_once=2, cache=False)).result()
    wire.at = 0
    results = await asyncio.to_thread(lambda: list(batches.reader.results(batch_id)))  # the wire is of this thread
    return summary, results, len(models.requests) - before


async def check_cuts(client: Client, folder: Path, url: str, step: int) -> None:
    """Cut the store off at every `step`th statement of a batch, each time in both ways."""
    models = Models(REPLIES)
    async with cut_wire(url) as (wire, through), batching(client, folder, models=models, url=through) as batches:
        whole, results, paid = await run_cut(batches, models, wire, 0, "request")
        statements, statuses = wire.statements, [result.status for result in results]
        assert (paid, whole.usage.attempts, statuses) == (REQUESTS, REQUESTS, ["passed", "failed", "passed", "passed", "error"])
        for at in range(1, statements + 1, step):
            for cut in ("request", "answer"):
                summary, results, paid = await run_cut(batches, models, wire, at, cut)
                found = (paid, summary.usage.attempts, summary.usage.calls, summary.usage.tokens, [result.status for result in results])
                assert found == (REQUESTS, REQUESTS, whole.usage.calls, whole.usage.tokens, statuses), f"cut at {at} of {statements}, {cut}"


async def test_a_store_that_is_cut_off_at_some_statements_counts_what_was_paid_for_once(
    client: Client, tmp_path: Path, server_url: str
) -> None:
    await check_cuts(client, tmp_path, server_url, 11)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_store_that_is_cut_off_at_any_statement_counts_what_was_paid_for_once(
    client: Client, tmp_path: Path, server_url: str
) -> None:
    await check_cuts(client, tmp_path, server_url, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a disk of 2 MiB, or skip where none can be mounted."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a disk needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """Fill a disk to its last byte, and return the file that does."""
    filler = folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)
    return filler


async def test_on_a_full_disk_nothing_is_paid_for_and_what_was_paid_is_kept_until_it_is_written(
    client: Client, tmp_path: Path, small_disk: Path
) -> None:
    models, url = Models([passes(usage={"input": 10, "output": 5})]), f"sqlite:///{small_disk / 'results.db'}"
    cases = [case(f"c{at}") for at in range(12)]
    models.hold("grader")
    async with batching(client, tmp_path, models=models, url=url) as batches:
        await batches.upload("full", cases)
        batch = await batches.start("full", len(cases), at_once=4)
        await models.called("grader", 4)
        filler = fill(small_disk)
        models.release("grader")
        problem = await until_noted(client, batches, "full")
        paid_while_full = len(models.requests)
        filler.unlink()
        summary = await batch.result()

    assert "is full" in problem
    assert paid_while_full == 4  # those that were in flight
    assert (summary.passed, summary.usage.calls, summary.usage.attempts, len(models.requests)) == (12, 12, 12, 12)


async def until_noted(client: Client, batches: Batches, batch_id: str) -> str:
    """Wait until the batch's worker says that it waits for the store, and return why."""
    followed = BatchClient(client, batches.served.task_queue)
    async with asyncio.timeout(SECONDS):
        while not (problem := await followed.store_problem(batch_id)):
            await asyncio.sleep(0.1)
    return problem


async def test_a_store_that_goes_away_with_replies_in_flight_is_waited_for(client: Client, tmp_path: Path, server_url: str) -> None:
    models = Models([passes(usage={"input": 10, "output": 5})])
    models.hold("grader")
    async with cut_wire(server_url) as (wire, through), batching(client, tmp_path, models=models, url=through) as batches:
        await batches.upload("away", [case(f"c{at}") for at in range(8)])
        batch = await batches.start("away", 8, at_once=4)
        await models.called("grader", 4)
        wire.leave()
        models.release("grader")
        problem = await until_noted(client, batches, "away")
        wire.away = False
        summary = await batch.result()

    assert "cannot be used" in problem
    assert (summary.passed, summary.usage.calls, summary.usage.attempts, len(models.requests)) == (8, 8, 8, 8)
