"""A worker whose store cannot be used polls for nothing, and takes what waits once it can."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.client.client import GradingClient
from gradeloop.settings.worker import TunerSettings
from gradeloop.store.engine import Store
from gradeloop.store.upgrade import VERSION, version_of
from gradeloop.telemetry.health import HealthChecks
from gradeloop.temporal import store_gate
from gradeloop.temporal.connect import pollers
from gradeloop.temporal.store_gate import StoreGate
from rig.builds import NEXT
from rig.postgresql import Wire, wire_to
from tests.rig.batches import batching, case, passes
from tests.rig.stores import next_version
from tests.rig.threads import Models, Served, serving

ASKED = {"generator": {"model": "scripted:x"}, "messages": [{"role": "user", "content": "write"}]}
DRAFT = {"role": "generator", "text": "a draft"}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[StoreGate]:
    """Return the gates of the workers that the test builds, which look often."""
    found, made, look = list[StoreGate](), StoreGate.__init__, StoreGate._look

    def note(self: StoreGate, store: Store) -> None:
        made(self, store)
        self.asked = 0  # type: ignore[attr-defined]
        found.append(self)

    async def count(self: StoreGate) -> str | None:
        self.asked += 1  # type: ignore[attr-defined]
        return await look(self)

    monkeypatch.setattr(StoreGate, "__init__", note)
    monkeypatch.setattr(StoreGate, "_look", count)
    monkeypatch.setattr(store_gate, "LOOK_SECONDS", 0.02)
    return found


@pytest.fixture
async def wire(server_url: str) -> AsyncIterator[tuple[Wire, Store]]:
    """Return a wire to a PostgreSQL, and a store behind it."""
    async with wire_to(server_url) as (found, url):
        store = Store(url)
        yield found, store
        store.close()


async def until_closed(gate: StoreGate, *, known: str | None = None) -> str:
    """Wait until the gate is closed for a reason that is not the known one, and return it."""
    while gate.problem in {None, known}:
        await asyncio.sleep(0.02)
    return str(gate.problem)


async def until_looked(gate: StoreGate) -> None:
    """Wait until the gate has asked its store a few times more."""
    asked = gate.asked  # type: ignore[attr-defined]  # the fixture's
    while gate.asked < asked + 5:  # type: ignore[attr-defined]
        await asyncio.sleep(0.02)


async def answer(client: Client, served: Served) -> str:
    """Run a thread of one draft, and return that."""
    result = await GradingClient(client, task_queue=served.task_queue).result(
        await GradingClient(client, task_queue=served.task_queue).start(ASKED)
    )
    return result.output or ""


async def test_a_worker_whose_store_is_away_from_the_start_polls_once_it_is_there(
    client: Client, wire: tuple[Wire, Store], built: list[StoreGate], caplog: pytest.LogCaptureFixture
) -> None:
    away, store = wire
    caplog.set_level(logging.INFO, "gradeloop.worker")
    away.refuses = True
    async with serving(client, DRAFT, store=store) as served:
        waiting = asyncio.create_task(answer(client, served))
        problem = await until_closed(built[0], known="the store was not asked yet")
        await until_looked(built[0])
        polled = await pollers(client, served.task_queue)
        away.refuses = False
        output = await waiting

    assert (polled, output) == ([], "a draft")
    assert "cannot be used" in problem
    said = [record.getMessage() for record in caplog.records if "takes" in record.getMessage()]
    assert ["takes no work" in sentence for sentence in said] == [True, False]


async def test_a_worker_ends_at_once_while_its_store_is_away(client: Client, wire: tuple[Wire, Store], built: list[StoreGate]) -> None:
    away, store = wire
    away.refuses = True
    async with serving(client, DRAFT, store=store):
        await until_closed(built[0], known="the store was not asked yet")


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"tuner": TunerSettings()}], ids=["fixed slots", "slots by resources"])
async def test_what_comes_through_a_closed_gate_is_handed_back_and_done_once_it_is_open(
    client: Client, wire: tuple[Wire, Store], built: list[StoreGate], more: dict[str, Any]
) -> None:
    away, store = wire
    models = Models([DRAFT])
    async with serving(client, models=models, store=store, **more) as served:
        before = await answer(client, served)
        away.refuses = True
        away.cut()
        await until_closed(built[0])
        grading = GradingClient(client, task_queue=served.task_queue)
        thread = await grading.start(ASKED)
        await until_looked(built[0])
        asked = len(models.requests)
        away.refuses = False
        result = await grading.result(thread)

    assert (before, result.output) == ("a draft", "a draft")
    assert asked == 1


async def test_what_comes_while_a_file_cannot_be_used_is_handed_back_and_done_once_it_can(
    client: Client, tmp_path: Path, built: list[StoreGate], monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[str] = []

    async def look(self: StoreGate) -> str | None:
        self.asked += 1  # type: ignore[attr-defined]  # the fixture's
        return problems[0] if problems else None

    monkeypatch.setattr(StoreGate, "_look", look)
    models, store = Models([DRAFT]), Store(f"sqlite:///{tmp_path / 'results.db'}")
    async with serving(client, models=models, store=store) as served:
        before = await answer(client, served)
        problems.append("the disk is full")
        await until_closed(built[0])
        grading = GradingClient(client, task_queue=served.task_queue)
        thread = await grading.start(ASKED)
        await until_looked(built[0])
        asked = len(models.requests)
        problems.clear()
        result = await grading.result(thread)
    store.close()

    assert (before, result.output) == ("a draft", "a draft")
    assert asked == 1


@pytest.mark.slow
async def test_a_worker_that_is_too_old_for_its_store_takes_no_work_and_says_so(
    client: Client, server_url: str, tmp_path: Path, built: list[StoreGate]
) -> None:
    models = Models([passes()])
    models.hold("grader")
    async with batching(client, tmp_path, models=models, url=server_url) as batches:
        await batches.upload("rolled", [case(f"c{at}") for at in range(6)])
        batch = await batches.start("rolled", 6, at_once=3)
        await models.called("grader", 3)
        with next_version(tmp_path, oldest=NEXT):
            newer = Store(server_url)
            newer.do(version_of)
        while "install a newer" not in (problem := built[0].problem or ""):  # within the block it took itself for the newer one
            await asyncio.sleep(0.02)
        ready = await HealthChecks({"store": batches.store.ping}, str).results()
        models.release("grader")
        await until_looked(built[0])
        asked = len(models.requests)
        with next_version(tmp_path / "again", oldest=NEXT):
            newer.move(VERSION)
        newer.close()
        summary = await batch.result()

    assert f"this gradeloop knows {VERSION}; install a newer gradeloop" in problem
    assert ready == {"store": problem}
    assert asked == 3
    assert (summary.passed, summary.errors, summary.usage.attempts, len(models.requests)) == (6, 0, 6, 6)
