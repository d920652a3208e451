"""Replies that a worker was paid for and cannot write: another worker writes them, and pays nothing."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from temporalio import activity
from temporalio.client import Client

from activities import errors
from activities.calls.attempts import AbandonedAttempts
from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.batches.reader import BatchReader
from gradeloop.errors import StoreUnavailable
from gradeloop.store.engine import Store
from gradeloop.temporal import store_gate
from gradeloop.temporal.connect import Connection, connect
from tests.rig.batches import Batches, batching, case, drafted, passes
from tests.rig.cut_wire import cut_wire
from tests.rig.threads import Models, serving, verdict_text

USED = {"input": 10, "output": 5}
CASES = [
    case("a"),
    case("b"),
    drafted("d"),
    case("g", rubric={"criteria": ["it is good", {"description": "short", "grader": "scripted:x"}]}),
]
REPLIES = ({"role": "generator", "text": "a draft", "usage": USED}, passes(usage=USED), passes(group=1, usage=USED))
REQUESTS = 6
"""Of the batch: one for every case, a draft, and a second group."""


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "STORE_PAUSE", errors.STORE_PAUSE / 50)
    monkeypatch.setattr(store_gate, "LOOK_SECONDS", 0.05)


@asynccontextmanager
async def other_worker(client: Client, batches: Batches, url: str) -> AsyncIterator[None]:
    """Serve the same queue by another worker, which can write the store."""
    store, address = Store(url), client.service_client.config.target_host
    own = await connect(Connection(address, "default", embedded=False))  # a client has one worker of a queue
    async with serving(own, models=batches.served.models, store=store, task_queue=batches.served.task_queue):
        yield
    store.close()


class User:
    """A user of the database, whose statements are refused as those are that name what a newer version has dropped."""

    def __init__(self, url: str) -> None:
        self.name = f"old_{url.rpartition('/')[2]}"
        self.url = url.replace("gradeloop@", f"{self.name}@")
        self.admin = url

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.admin, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.format(self.name).encode())


@pytest.fixture
def user(server_url: str) -> Iterator[User]:
    """Return a user that may do everything for now."""
    store = Store(server_url)
    store.do(lambda _: None)
    store.close()
    found = User(server_url)
    found.run("CREATE ROLE {} LOGIN", "GRANT ALL ON ALL TABLES IN SCHEMA public TO {}", "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {}")
    yield found
    found.run("DROP OWNED BY {}", "DROP ROLE {}")


def results_of(url: str) -> list[CaseResult]:
    """Return the results of the batch."""
    store = Store(url)
    found = list(BatchReader(store).results("refused"))
    store.close()
    return found


async def run_refused(client: Client, folder: Path, user: User, models: Models, cases: Sequence[Mapping[str, Any]]) -> BatchSummary:
    """Run a batch whose store refuses what a worker writes as soon as it has asked about all cases, and return its end with another."""
    models.hold("grader", "generator")
    async with batching(client, folder, models=models, url=user.url) as old:
        await old.upload("refused", cases)
        batch = await old.start("refused", len(cases), at_once=len(cases))
        await models.called("grader", sum("generator" not in case for case in cases))
        user.run("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {}")
        async with other_worker(client, old, user.admin):
            models.release("grader", "generator")
            return await batch.result()


@pytest.mark.slow
async def test_what_a_worker_was_paid_for_whose_statements_the_store_refuses_is_written_by_another(
    client: Client, tmp_path: Path, user: User
) -> None:
    models = Models(REPLIES)
    summary = await run_refused(client, tmp_path, user, models, CASES)

    assert len(models.requests) == REQUESTS
    assert (summary.passed, summary.usage.attempts, summary.usage.calls, summary.usage.tokens) == (4, REQUESTS, REQUESTS, 15 * REQUESTS)


async def test_a_reply_that_was_handed_over_is_taken_once_where_its_writer_is_lost_right_behind_the_write(
    client: Client, tmp_path: Path, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, lost, forget = Models([]), list[str](), AbandonedAttempts.forget
    models.answers["grader"] = lambda _, number: "no verdict" if number == 1 else verdict_text()

    def forget_and_be_lost(self: AbandonedAttempts) -> None:
        forget(self)
        if not lost:
            lost.append(activity.info().activity_type)
            raise errors.store_away(StoreUnavailable("the worker is lost"))  # which is made again soon

    monkeypatch.setattr(AbandonedAttempts, "forget", forget_and_be_lost)
    summary = await run_refused(client, tmp_path, user, models, [case("a")])

    assert lost == ["grade_case"]
    assert (len(models.requests), summary.usage.calls, summary.passed) == (2, 2, 1)
    assert results_of(user.admin)[0].usage.calls == 2  # the case's own, which has no charges


async def test_what_a_worker_was_paid_for_that_ends_while_its_store_is_away_is_written_by_another(
    client: Client, server_url: str, tmp_path: Path
) -> None:
    models = Models(REPLIES)
    models.hold("grader", "generator")
    async with cut_wire(server_url) as (wire, through):
        async with batching(client, tmp_path, models=models, url=through, drain_seconds=1) as old:
            await old.upload("ended", CASES)
            batch = await old.start("ended", len(CASES), at_once=4)
            await models.called("grader", 3)
            await models.called("generator")
            wire.leave()
        async with other_worker(client, old, server_url):
            summary = await batch.result()

    assert len(models.requests) == REQUESTS
    assert (summary.passed, summary.usage.attempts, summary.usage.calls, summary.usage.tokens) == (4, REQUESTS, REQUESTS, 15 * REQUESTS)
