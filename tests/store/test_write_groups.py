"""Works that come together are one transaction, and each is reported once it is committed, on SQLite and on a real PostgreSQL."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError

from gradeloop.errors import StoreUnavailable
from gradeloop.store.engine import Store

Work = Callable[[Connection], int]


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = Store(url)
    await store.write(lambda connection: connection.execute(text("CREATE TABLE kept (id integer PRIMARY KEY)")))
    yield store
    store.close()


@pytest.fixture
def commits() -> Iterator[list[int]]:
    """Count the transactions that are committed."""
    counted: list[int] = []

    def count(_connection: Connection) -> None:
        counted.append(1)

    event.listen(Engine, "commit", count)
    yield counted
    event.remove(Engine, "commit", count)


def keep(number: int, error: Exception | None = None) -> Work:
    """Return a work that keeps a number, and then perhaps fails."""

    def work(connection: Connection) -> int:
        connection.execute(text("INSERT INTO kept VALUES (:number)"), {"number": number})
        if error is not None:
            raise error
        return number

    return work


async def kept(url: str) -> list[int]:
    """Return the numbers that others see."""
    other = Store(url)
    found = await other.read(lambda connection: list(connection.execute(text("SELECT id FROM kept ORDER BY id")).scalars()))
    other.close()
    return found


async def test_what_comes_while_one_commits_is_committed_together(store: Store, url: str, commits: list[int]) -> None:
    results = await asyncio.gather(*(store.write_soon(keep(number)) for number in range(200)))

    assert results == list(range(200))
    assert len(commits) < 50
    assert await kept(url) == list(range(200))


async def test_one_that_fails_is_rolled_back_alone(store: Store, url: str) -> None:
    works = [keep(1), keep(2), keep(2), keep(3, ValueError("as it was told to")), keep(4), keep(5)]
    results = await asyncio.gather(*map(store.write_soon, works), return_exceptions=True)

    assert [type(result).__name__ if isinstance(result, Exception) else result for result in results] == [
        1,
        2,
        IntegrityError.__name__,
        "ValueError",
        4,
        5,
    ]
    assert await kept(url) == [1, 2, 4, 5]


async def test_one_that_fails_leaves_the_others_together(store: Store, url: str, commits: list[int]) -> None:
    works = [keep(number, ValueError("as it was told to") if number == 120 else None) for number in range(200)]
    results = await asyncio.gather(*map(store.write_soon, works), return_exceptions=True)

    assert [at for at, result in enumerate(results) if isinstance(result, Exception)] == [120]
    assert len(commits) < 50
    assert await kept(url) == [number for number in range(200) if number != 120]


async def test_a_statement_that_the_database_refuses_takes_no_other_with_it(store: Store, url: str) -> None:
    works = [keep(1), lambda connection: connection.execute(text("SELECT * FROM nowhere")).rowcount, keep(2)]
    results = await asyncio.gather(*map(store.write_soon, works), return_exceptions=True)

    assert results[::2] == [1, 2]
    assert isinstance(results[1], StoreUnavailable)
    assert await kept(url) == [1, 2]


async def test_a_caller_that_goes_away_keeps_nobody_from_being_served(store: Store, url: str) -> None:
    tasks = [asyncio.create_task(store.write_soon(keep(number))) for number in range(50)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks[1::2])

    assert results == list(range(1, 50, 2))
    assert await kept(url) == list(range(50))  # what was asked for is done, whoever still waits


def test_each_loop_gets_its_own_results(url: str) -> None:
    store = Store(url)
    store.do(lambda connection: connection.execute(text("CREATE TABLE kept (id integer PRIMARY KEY)")))

    async def some(first: int) -> list[int]:
        return await asyncio.gather(*(store.write_soon(keep(number)) for number in range(first, first + 10)))

    assert [asyncio.run(some(first)) for first in (0, 10)] == [list(range(10)), list(range(10, 20))]
    store.close()


@pytest.mark.slow
def test_a_store_that_nobody_holds_any_more_closes_its_connections(url: str) -> None:
    forgotten, closed = Store(url), list[object]()

    def write(connection: Connection) -> None:
        event.listen(connection.engine.pool, "close", lambda lost, _record: closed.append(lost))
        connection.execute(text("SELECT 1"))

    forgotten.do(write)
    del forgotten
    gc.collect()

    assert len(closed) == 1
