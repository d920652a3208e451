"""Workers register their slots in a store and learn those of the others, by the database's clock, on SQLite and on a real PostgreSQL."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Engine

from gradeloop.errors import StoreUnavailable
from gradeloop.store import fleet as fleets
from gradeloop.store.engine import Store
from gradeloop.store.fleet import Fleet


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers register often, and never forgotten for being slow."""
    monkeypatch.setattr(fleets, "REFRESH_SECONDS", 0.02)
    monkeypatch.setattr(fleets, "LIVE_SECONDS", 600)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = Store(url)
    yield store
    store.close()


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """List the statements that are sent, those that begin and end transactions among them."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    def note_end(_connection: object) -> None:
        sent.append("COMMIT")

    event.listen(Engine, "before_cursor_execute", note)
    event.listen(Engine, "commit", note_end)
    yield sent
    event.remove(Engine, "before_cursor_execute", note)
    event.remove(Engine, "commit", note_end)


async def until_slots(fleet: Fleet, slots: int) -> None:
    """Wait until a worker knows of so many slots."""
    async with asyncio.timeout(60):
        while fleet.slots != slots:
            await asyncio.sleep(0.01)


async def age(store: Store, fleet: Fleet, seconds: int) -> None:
    """Have a worker's last registration be so long ago, by the database's clock."""
    ago = "now() - make_interval(secs => :seconds)" if store.shared else "datetime('now', '-' || :seconds || ' seconds')"
    statement = text(f"UPDATE workers SET seen = {ago} WHERE id = :id")
    await store.write(lambda connection: connection.execute(statement, {"seconds": seconds, "id": fleet.worker_id}))


async def rows(store: Store) -> dict[str, int]:
    """Return whether each registered worker has left."""
    query = text('SELECT id, "left" FROM workers')
    return await store.read(lambda connection: {row[0]: row[1] for row in connection.execute(query)})


async def test_workers_of_a_queue_know_the_slots_of_all(store: Store) -> None:
    four, other = [Fleet(store, "graders", 20) for _ in range(4)], Fleet(store, "others", 7)
    async with AsyncExitStack() as stack:
        for fleet in (*four, other):
            await stack.enter_async_context(fleet.registered())
        for fleet in four:
            await until_slots(fleet, 80)
        assert other.slots == 7
        four[0].leave()
        await until_slots(four[1], 60)
    assert set((await rows(store)).values()) == {1}


async def test_a_worker_that_registers_no_more_counts_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, alive = Fleet(store, "graders", 20), Fleet(store, "graders", 20)
    async with alive.registered():
        async with dead.registered():
            await until_slots(alive, 40)
        await store.write(lambda connection: connection.execute(text('UPDATE workers SET "left" = 0')))
        await until_slots(alive, 40)
        await age(store, dead, 601)
        await until_slots(alive, 20)
    newcomer = Fleet(store, "graders", 20)
    await age(store, dead, 86_500)
    async with newcomer.registered():
        async with asyncio.timeout(60):
            while newcomer.worker_id not in await rows(store):
                await asyncio.sleep(0.01)
    assert dead.worker_id not in await rows(store)


@pytest.mark.parametrize("wrong", [600.0, -600.0])
async def test_workers_whose_clocks_are_wrong_count_all_the_same(store: Store, monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    right = time.time
    one, two = Fleet(store, "graders", 20), Fleet(store, "graders", 20)
    async with one.registered():
        await until_slots(one, 20)
        monkeypatch.setattr(time, "time", lambda: right() + wrong)
        async with two.registered():
            await until_slots(two, 40)
            await until_slots(one, 40)


async def test_a_registration_is_one_statement_outside_of_a_transaction(store: Store, statements: list[str]) -> None:
    fleet = Fleet(store, "graders", 20)
    async with fleet.registered():
        async with asyncio.timeout(60):
            while sum("INSERT INTO workers" in statement for statement in statements) < 4:
                await asyncio.sleep(0.01)
    first = next(at for at, statement in enumerate(statements) if "INSERT INTO workers" in statement)
    assert {statement.split(" (")[0] for statement in statements[first:]} == {"INSERT INTO workers"}


async def test_a_worker_counts_its_own_slots_while_the_store_is_away(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Fleet(store, "graders", 20), Fleet(store, "graders", 20)

    def away(_work: object) -> None:
        raise StoreUnavailable("as it was told to")

    async with one.registered(), two.registered():
        await until_slots(one, 40)
        with monkeypatch.context() as patch:
            patch.setattr(store, "do_at_once", away)
            patch.setattr(fleets, "LIVE_SECONDS", 1)
            await until_slots(one, 20)
        await until_slots(one, 40)


async def test_a_worker_runs_and_ends_where_the_store_was_never_there() -> None:
    fleet = Fleet(Store("sqlite:////no/such/folder/results.db"), "graders", 20)
    async with fleet.registered():
        assert fleet.slots == 20
    assert Fleet(None, "graders", 20).slots == 20
