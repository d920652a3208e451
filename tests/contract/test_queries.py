"""A refused query is sent again, for a while, and one that was lost; another failure is the caller's at once."""

import asyncio
import gc
from datetime import timedelta

import pytest
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.contract import queries
from gradeloop.contract.queries import recorded


class Asked:
    """A query that fails with these messages or statuses, one after the other, and then answers."""

    def __init__(self, *failures: str | RPCStatusCode) -> None:
        self.waits: list[float] = []
        self._failures = list(failures)

    @property
    def count(self) -> int:
        return len(self.waits)

    async def query(self, patience: timedelta) -> str:
        self.waits.append(patience.total_seconds())
        if not self._failures:
            return "answer"
        failure = self._failures.pop(0)
        if isinstance(failure, str):
            raise WorkflowQueryFailedError(failure)
        raise RPCError("no answer", failure, b"")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "PAUSE_SECONDS", 0.01)


async def test_a_refused_query_is_sent_until_it_is_answered() -> None:
    asked = Asked("[READ_AGAIN] the worker has applied events", "[TMPRL1100] Nondeterminism error: ...")

    assert await recorded(asked.query) == "answer"
    assert asked.count == 3


async def test_a_query_that_failed_otherwise_is_not_sent_again() -> None:
    asked = Asked("there is no evaluation 7")

    with pytest.raises(WorkflowQueryFailedError, match="no evaluation 7"):
        await recorded(asked.query)
    assert asked.count == 1


async def test_a_query_that_is_refused_for_too_long_fails_as_it_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "REFUSED_SECONDS", 0.1)
    asked = Asked(*["[READ_AGAIN] the worker has applied events"] * 1000)

    with pytest.raises(WorkflowQueryFailedError, match="READ_AGAIN"):
        await recorded(asked.query)
    assert 2 < asked.count < 30


async def test_a_query_that_nobody_answers_is_sent_again() -> None:
    asked = Asked(RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)

    assert await recorded(asked.query) == "answer"
    assert asked.waits == [30.0] * 3


async def test_a_query_that_was_lost_is_sent_again_beside_the_first_and_an_answer_that_comes_late_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queries, "LOST_SECONDS", 0.02)
    sent: list[asyncio.Future[str]] = []

    async def query(_: timedelta) -> str:
        sent.append(asyncio.get_running_loop().create_future())
        if len(sent) == 3:
            sent[1].set_result("late")
        return await sent[-1]

    assert await recorded(query) == "late"
    await asyncio.sleep(0)
    assert [one.cancelled() for one in sent] == [True, False, True]


@pytest.mark.parametrize("status", [RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.UNAVAILABLE])
async def test_a_query_that_the_server_refuses_is_not_sent_again(status: RPCStatusCode) -> None:
    asked = Asked(status)

    with pytest.raises(RPCError, match="no answer"):
        await recorded(asked.query)
    assert asked.count == 1


async def test_a_query_that_nobody_answers_for_long_fails_as_the_server_said_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "SILENT_SECONDS", -1.0)
    asked = Asked(*[RPCStatusCode.DEADLINE_EXCEEDED] * 10)

    with pytest.raises(RPCError, match="no answer"):
        await recorded(asked.query)
    assert asked.count == 1


async def test_an_answer_counts_more_than_a_failure_of_the_same_moment_and_no_failure_is_left_unread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queries, "LOST_SECONDS", 0.02)
    for _ in range(10):
        sent: list[asyncio.Future[str]] = []

        async def query(_: timedelta) -> str:
            sent.append(asyncio.get_running_loop().create_future())  # noqa: B023 - called within the round
            if len(sent) == 4:  # noqa: B023
                for one in (sent[0], sent[2]):  # noqa: B023
                    one.set_exception(RPCError("away", RPCStatusCode.UNAVAILABLE, b""))
                sent[1].set_result("answer")  # noqa: B023
            return await sent[-1]  # noqa: B023

        assert await recorded(query) == "answer"
    gc.collect()
    await asyncio.sleep(0)

    assert "never retrieved" not in caplog.text
