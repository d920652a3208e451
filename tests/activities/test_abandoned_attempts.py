"""Work that the server has given up is the next attempt's; it is cancelled where no attempt takes it, and with the one that is stopped."""

import asyncio
from dataclasses import dataclass, replace

import pytest
from temporalio import activity
from temporalio.testing import ActivityEnvironment

from activities.calls import attempts
from activities.calls.attempts import AbandonedAttempts, AttemptState
from gradeloop.contract.messages import Message, Usage

ANSWER = Message(role="assistant", content="an answer")


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


async def serve(left: AbandonedAttempts, work: Work, kept: list[AttemptState] | None = None) -> Answered:
    """Do an attempt; where states are collected, its reply is kept until it is written down."""
    state = AttemptState()
    if kept is not None:
        kept.append(state)
    if (adopted := await left.adopt(state)) is not None:
        return adopted  # type: ignore[no-any-return]  # the same call's
    return await left.pay(state, work, None if kept is not None else lambda answered: answered.message.size())


async def given_up(left: AbandonedAttempts, work: Work, kept: list[AttemptState] | None = None) -> None:
    """Begin an attempt that the server gives up."""
    environment = attempt(1)
    running = asyncio.create_task(environment.run(serve, left, work, kept))
    while not work.began:
        await asyncio.sleep(0)
    environment.cancel(activity.ActivityCancellationDetails(timed_out=True))
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_next_attempt_takes_the_reply_of_one_that_was_given_up() -> None:
    left, work = AbandonedAttempts(), Work()
    await given_up(left, work)
    second = asyncio.create_task(attempt(2).run(serve, left, work))
    await asyncio.sleep(0.01)
    work.may_end.set()
    turn = await second

    assert (turn.message, work.began, work.cancelled) == (ANSWER, 1, False)


async def test_work_that_no_attempt_takes_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "UNCLAIMED_SECONDS", 0.02)
    left, work = AbandonedAttempts(), Work()
    await given_up(left, work)
    await asyncio.sleep(0.1)

    assert work.cancelled


async def test_work_that_an_attempt_has_taken_is_cancelled_with_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "UNCLAIMED_SECONDS", 0.02)
    left, work = AbandonedAttempts(), Work()
    await given_up(left, work)
    environment = attempt(2)
    second = asyncio.create_task(environment.run(serve, left, work))
    await asyncio.sleep(0.1)
    before = work.cancelled
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second

    assert (before, work.cancelled, work.began) == (False, True, 1)


async def test_an_attempt_on_this_worker_behind_one_elsewhere_makes_the_call_itself() -> None:
    left, work = AbandonedAttempts(), Work()
    work.may_end.set()
    await attempt(1).run(serve, left, work)
    await attempt(3).run(serve, left, work)

    assert work.began == 2


async def test_a_reply_that_is_not_written_down_is_kept_for_any_later_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "UNCLAIMED_SECONDS", 0.02)
    left, work, states = AbandonedAttempts(), Work(), list[AttemptState]()
    await given_up(left, work, states)
    await asyncio.sleep(0.1)
    states[0].spent = Usage(calls=1, attempts=1)
    work.may_end.set()
    await asyncio.sleep(0)
    await attempt(2).run(serve, left, work, states)
    third = await attempt(3).run(serve, left, work, states)

    assert (third.message, work.began, work.cancelled) == (ANSWER, 1, False)
    assert [state.spent.calls for state in states] == [1, 1, 0]

    async def written() -> object:
        left.forget()
        return left.unwritten()

    assert await attempt(3).run(written) is None
