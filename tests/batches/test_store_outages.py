"""A store that is away, full or cut off at any statement: what was paid for is counted once, and nothing is paid twice."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import pytest
from sqlalchemy import Engine, event
from temporalio.client import Client

from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import BatchSummary, CaseResult
from tests.rig.batches import Batches, batching, breaks, case, drafted, fails, passes
from tests.rig.cut_wire import Cut, cut_wire
from tests.rig.threads import SECONDS, Models

GROUPS = {"criteria": ["it is good", {"description": "it is short", "grader": "scripted:other"}]}
CASES = [case("a"), case("b"), drafted("d"), case("g", rubric=GROUPS), case("x")]
REPLIES = (
    {"role": "generator", "text": "a draft", "usage": {"input": 10, "output": 5}},
    fails("of b."),
    breaks("of x."),
    passes(usage={"input": 10, "output": 5}),
    passes(group=1),
)
REQUESTS = 7
"""Of the batch: one for every case, a draft, and a second group."""


class Outages(Protocol):
    """What makes a store fail at one statement."""

    at: int
    statements: int

    def arm(self, at: int, cut: Cut) -> None:
        """Count statements anew, and have the one of that number fail; none for 0."""


async def run_cut(batches: Batches, models: Models, wire: Outages, at: int, cut: Cut) -> tuple[BatchSummary, list[CaseResult], int]:
    """Run a batch whose store fails at a statement; returns its summary, its results, and how many requests were paid for."""
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
        await check_each(batches, models, wire, step, ("request", "answer"))


async def check_each(batches: Batches, models: Models, wire: Outages, step: int, cuts: tuple[Cut, ...]) -> None:
    """Have the store fail at every `step`th statement of a batch."""
    whole, results, paid = await run_cut(batches, models, wire, 0, "request")
    statements, statuses = wire.statements, [result.status for result in results]
    assert statements > 0
    assert (paid, whole.usage.attempts, statuses) == (REQUESTS, REQUESTS, ["passed", "failed", "passed", "passed", "error"])
    for at in range(1, statements + 1, step):
        for cut in cuts:
            summary, results, paid = await run_cut(batches, models, wire, at, cut)
            found = (paid, summary.usage.attempts, summary.usage.calls, summary.usage.tokens, [result.status for result in results])
            assert found == (REQUESTS, REQUESTS, whole.usage.calls, whole.usage.tokens, statuses), f"cut at {at} of {statements}, {cut}"


STEPS = pytest.mark.parametrize(
    "step", [47, pytest.param(4, marks=[pytest.mark.slow, pytest.mark.timeout(600)]), pytest.param(1, marks=[pytest.mark.storm])]
)
"""The statements between two that fail: all are tried in a storm."""


@pytest.mark.slow
@STEPS
async def test_a_store_that_is_cut_off_at_a_statement_counts_what_was_paid_for_once(
    client: Client, tmp_path: Path, server_url: str, step: int
) -> None:
    await check_cuts(client, tmp_path, server_url, step)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a small disk, or skip where none can be mounted."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", folder], capture_output=True, check=False).returncode
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


FULL_SECONDS = 0.3
"""How long the disk stays full."""


class FillingDisk:
    """A small disk that is full from one statement on, and has room again a moment later."""

    def __init__(self, folder: Path) -> None:
        self.statements = self.at = 0
        self._folder = folder
        self._counting = threading.Lock()
        self._emptying: threading.Timer | None = None

    def arm(self, at: int, cut: Cut) -> None:
        """Count statements anew, and be full from that one on."""
        self.settle()
        self.statements, self.at = 0, at

    def settle(self) -> None:
        """Wait until the disk has room, also if a statement is filling it just now."""
        with self._counting:
            emptying = self._emptying
        if emptying is not None:
            emptying.join()

    def note(self, *_: object) -> None:
        """Count a statement."""
        with self._counting:
            self.statements += 1
            if self.statements == self.at:
                self._emptying = threading.Timer(FULL_SECONDS, fill(self._folder).unlink)
                self._emptying.start()


@contextmanager
def filling(folder: Path) -> Iterator[FillingDisk]:
    """Have every statement of this process counted by a disk."""
    disk = FillingDisk(folder)
    event.listen(Engine, "before_cursor_execute", disk.note)
    try:
        yield disk
    finally:
        event.remove(Engine, "before_cursor_execute", disk.note)
        disk.settle()


@pytest.mark.slow
@STEPS
async def test_a_disk_that_is_full_at_a_statement_costs_nothing_twice(client: Client, tmp_path: Path, small_disk: Path, step: int) -> None:
    models, url = Models(REPLIES), f"sqlite:///{small_disk / 'results.db'}"
    async with batching(client, tmp_path, models=models, url=url) as batches:
        with filling(small_disk) as disk:
            await check_each(batches, models, disk, step, ("request",))


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
        wire.refuses = False
        summary = await batch.result()

    assert "cannot be used" in problem
    assert (summary.passed, summary.usage.calls, summary.usage.attempts, len(models.requests)) == (8, 8, 8, 8)
