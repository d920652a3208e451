"""Waits for a PostgreSQL that says nothing, or whose locks are held: each ends, and what waited is done anew."""

import asyncio
import gc
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import Connection, text
from temporalio.client import Client

from gradeloop.errors import StoreRefused, StoreUnavailable
from gradeloop.store import engine, postgres
from gradeloop.store.engine import Pool, Store
from rig.pooler import pooled
from rig.postgresql import Wire, wire_to
from tests.rig.batches import batching, case, drafted, passes
from tests.rig.threads import Models


@pytest.fixture
async def wire(server_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Wire, str]]:
    """Stand before a PostgreSQL, with limits that a test can wait for."""
    for name, seconds in {"TRANSACTION_SECONDS": 1.0, "PING_SECONDS": 0.5, "LOOK_SECONDS": 0.05}.items():
        monkeypatch.setattr(postgres, name, seconds)
    monkeypatch.setattr(engine, "TRANSACTION_SECONDS", 1.0)
    async with wire_to(server_url) as found:
        yield found


def one(connection: Connection) -> int:
    return int(connection.execute(text("SELECT 1")).scalar_one())


@pytest.mark.parametrize("writer", ["_groups", "_sets"])
async def test_a_silent_connection_does_not_hold_what_is_written(wire: tuple[Wire, str], writer: str) -> None:
    through, url = wire
    store = Store(url)
    write = getattr(store, writer).do
    await write(one)
    through.mute()
    together = await asyncio.gather(*(write(one) for _ in range(5)))
    through.mute()
    alone = await write(one)
    store.close()

    assert (together, alone) == ([1] * 5, 1)


async def test_a_read_on_a_silent_connection_ends_and_the_next_one_has_another_connection(wire: tuple[Wire, str]) -> None:
    through, url = wire
    store = Store(url)
    await store.read(one)
    through.mute()
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        await store.read(one)
    found = await store.read(one)
    store.close()

    assert found == 1


async def test_a_connection_that_fell_silent_unused_is_replaced_unseen(wire: tuple[Wire, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "UNUSED_SECONDS", 0.0)
    through, url = wire
    store = Store(url)
    await store.read(one)
    through.mute()
    found = await store.read(one)
    store.close()

    assert found == 1


async def test_a_server_that_takes_a_connection_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgres.CONNECT, "connect_timeout", 2)  # the shortest that the driver takes
    taken = list[asyncio.StreamWriter]()
    async with await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        store = Store(f"postgresql://gradeloop@127.0.0.1:{port}/nothing")
        with pytest.raises(StoreUnavailable, match="timeout"):
            await store.write_soon(one)
        store.close()
        silent.close()
        for writer in taken:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def wire_tasks() -> list[str]:
    return [name for name in map(repr, asyncio.all_tasks()) if "Wire.serve" in name]


@pytest.mark.slow
async def test_a_silent_connection_is_kept_until_the_wire_is_taken_away() -> None:
    """A task that only its own sockets know is collected with them, in the middle of another test."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as far:
        async with wire_to(f"postgresql://127.0.0.1:{far.sockets[0].getsockname()[1]}/gradeloop") as (wire, url):
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
            writer.write(b"x")
            assert await reader.read(1) == b"x"
            wire.mute()
            wire.cut()
            assert await reader.read() == b""
            writer.close()
            await asyncio.sleep(0.1)  # the wire has seen it
            gc.collect()
            assert wire_tasks()
        assert not wire_tasks()


async def test_a_copy_of_the_store_takes_as_long_as_it_takes(server_url: str) -> None:
    store = Store(server_url)
    with store.snapshot() as snapshot:
        copying = snapshot.do(lambda connection: (limits(connection), connection.info["until"]))
    reading = await store.read(limits)
    store.close()

    assert copying == (["0", "2min", "0"], math.inf)
    assert reading == ["25s", "20s", "30s"]


async def test_a_statement_that_takes_too_long_is_ended(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgres.LIMITS, "statement_timeout", 1000)
    store = Store(server_url)
    with pytest.raises(StoreUnavailable, match="statement timeout"):
        await store.read(lambda connection: connection.execute(text("SELECT pg_sleep(3600)")))
    store.close()


async def test_a_lock_that_nobody_gives_back_is_not_waited_for_without_end(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgres.LIMITS, "lock_timeout", 200)
    store = Store(server_url)
    await store.read(one)
    with psycopg.connect(server_url) as other:
        other.execute("LOCK TABLE batches")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            await store.write(lambda connection: connection.execute(text("DELETE FROM batches")))
    store.close()


async def test_the_options_of_a_url_come_beside_the_limits_and_before_them(server_url: str) -> None:
    store = Store(f"{server_url}?options=-csearch_path%3Dpublic%20-cstatement_timeout%3D7000&connect_timeout=3")
    shown = await store.read(lambda connection: [connection.execute(text(f"SHOW {name}")).scalar_one() for name in SHOWN])
    store.close()

    assert shown == ["7s", "20s", "30s", "public"]


SHOWN = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "search_path")


async def test_through_a_pooler_each_transaction_has_the_limits_without_a_round_trip_of_their_own(server_url: str) -> None:
    trips, shown, levels = [], [], []
    with pooled(server_url) as behind:
        for url in (server_url, behind):
            async with wire_to(url) as (wire, through):
                store = Store(through)
                await store.read(one)
                wire.round_trips = 0
                await store.read(one)
                trips.append(wire.round_trips)
                shown += await asyncio.to_thread(limits_of_two_transactions, store)
                levels.append(await asyncio.to_thread(level_of_a_copy, store))
                store.close()
        with psycopg.connect(behind) as other:
            outside = [other.execute("SHOW statement_timeout").fetchone() for _ in range(3)]

    assert trips == [3, 3]
    assert shown == [["25s", "20s", "30s"]] * 4
    assert levels == ["repeatable read"] * 2
    assert outside == [("0",)] * 3


def level_of_a_copy(store: Store) -> str:
    with store.snapshot() as snapshot:
        return snapshot.do(lambda connection: str(connection.execute(text("SHOW transaction_isolation")).scalar_one()))


def limits_of_two_transactions(store: Store) -> list[list[str]]:
    with store._opened().connect() as connection:
        first = limits(connection)
        connection.rollback()
        return [first, limits(connection)]


def limits(connection: Connection) -> list[str]:
    return [str(connection.execute(text(f"SHOW {name}")).scalar_one()) for name in SHOWN[:3]]


async def test_through_a_pooler_a_batch_ends_and_its_store_is_upgraded_and_vacuumed(
    client: Client, tmp_path: Path, server_url: str
) -> None:
    with pooled(server_url) as through:
        models = Models([{"role": "generator", "text": "a draft"}, passes()])
        async with batching(client, tmp_path, models=models, url=through) as batches:
            summary, results = await batches.run([*(case(f"c{at}") for at in range(20)), drafted("d")], at_once=8)
            await asyncio.to_thread(batches.store.vacuum, "charges")
            with batches.store.snapshot() as snapshot:
                kept = snapshot.do(lambda connection: connection.execute(text("SELECT count(*) FROM cases")).scalar_one())

    assert (summary.passed, summary.usage.attempts, len(models.requests)) == (21, 22, 22)
    assert (kept, len(results)) == (21, 21)


@pytest.mark.parametrize("statement", ["EXECUTE _pg3_0", "PREPARE twice AS SELECT 1; PREPARE twice AS SELECT 1"])
async def test_a_prepared_statement_that_was_lost_is_tried_again(server_url: str, statement: str) -> None:
    store = Store(server_url)
    with pytest.raises(StoreUnavailable) as caught:
        await store.read(lambda connection: [connection.exec_driver_sql(part) for part in statement.split(";")])
    store.close()

    assert not isinstance(caught.value, StoreRefused)


async def test_a_store_has_no_more_connections_than_its_pool(server_url: str) -> None:
    store, together = Store(server_url, pool=Pool(size=1, overflow=1)), list[int]()

    def count(connection: Connection) -> None:
        others = text("SELECT count(*) FROM pg_stat_activity, pg_sleep(0.05) WHERE datname = current_database()")
        together.append(int(connection.execute(others).scalar_one()))

    await asyncio.gather(*(store.read(count) for _ in range(8)))
    store.close()

    assert max(together) <= 2
