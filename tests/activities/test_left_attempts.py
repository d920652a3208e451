"""Work that the server has given up is cancelled where no attempt takes it, and ends with the attempt that is stopped."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest
from temporalio import activity
from temporalio.testing import ActivityEnvironment

from activities.calls import abandoned_attempts
from activities.calls.abandoned_attempts import LeftAttempts
from activities.calls.attempts import FailedAttempts
from activities.calls.fallback import ModelTurn
from gradeloop.contract.messages import Message, Usage

ANSWER = Message(role="assistant", content="an answer")


@dataclass
class Knows:
    spent: Usage = Usage()  # noqa: RUF009 - frozen
    failed: FailedAttempts = FailedAttempts()  # noqa: RUF009 - frozen
    turn: ModelTurn = ModelTurn()  # noqa: RUF009 - frozen


@dataclass
class Answered:
    message: Message = ANSWER


def attempt(number: int) -> ActivityEnvironment:
    environment = ActivityEnvironment()
    environment.info = replace(ActivityEnvironment.default_info(), attempt=number)
    return environment


class Work:
    """A paid call that waits until it may end."""

    def __init__(self) -> None:
        self.began, self.may_end, self.cancelled = 0, asyncio.Event(), False

    async def __call__(self) -> Answered:
        self.began += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return Answered()


async def given_up(left: LeftAttempts, work: Work) -> None:
    """Begin an attempt that the server gives up."""
    environment = attempt(1)
    running = asyncio.create_task(environment.run(left.serve, Knows(), work))
    while not work.began:
        await asyncio.sleep(0)
    environment.cancel(activity.ActivityCancellationDetails(timed_out=True))
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_next_attempt_takes_the_reply_of_one_that_was_given_up() -> None:
    left, work = LeftAttempts(), Work()
    await given_up(left, work)
    second = asyncio.create_task(attempt(2).run(left.serve, Knows(), work))
    await asyncio.sleep(0.01)
    work.may_end.set()
    turn: Any = await second

    assert (turn.message, work.began, work.cancelled) == (ANSWER, 1, False)


async def test_work_that_no_attempt_takes_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abandoned_attempts, "UNCLAIMED_SECONDS", 0.02)
    left, work = LeftAttempts(), Work()
    await given_up(left, work)
    await asyncio.sleep(0.1)

    assert work.cancelled


async def test_work_that_an_attempt_has_taken_is_cancelled_with_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abandoned_attempts, "UNCLAIMED_SECONDS", 0.02)
    left, work = LeftAttempts(), Work()
    await given_up(left, work)
    environment = attempt(2)
    second = asyncio.create_task(environment.run(left.serve, Knows(), work))
    await asyncio.sleep(0.1)
    before = work.cancelled
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second

    assert (before, work.cancelled, work.began) == (False, True, 1)
