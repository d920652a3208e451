"""A refused query is sent again, for a while; another failure is the caller's at once."""

import pytest
from temporalio.client import WorkflowQueryFailedError

from gradeloop.contract import queries
from gradeloop.contract.queries import recorded


class Asked:
    """A query that fails with these messages, one after the other, and then answers."""

    def __init__(self, *failures: str) -> None:
        self.count = 0
        self._failures = list(failures)

    async def query(self) -> str:
        self.count += 1
        if self._failures:
            raise WorkflowQueryFailedError(self._failures.pop(0))
        return "answer"


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
