"""Work that the server has given up is the next attempt's; it is cancelled where no attempt takes it, and with the one that is stopped."""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

import pytest
from temporalio import activity
from temporalio.testing import ActivityEnvironment

from activities.calls import attempts
from activities.calls.attempts import AbandonedAttempts, AttemptState, heartbeats
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


class Heartbeats:
    """The attempts of one call: each gets the details of the last heartbeat before it, as the server keeps them."""

    def __init__(self) -> None:
        self.details: list[object] = []

    def attempt(self, number: int) -> ActivityEnvironment:
        """Return the environment of an attempt."""
        environment = attempt(number)
        environment.info = replace(environment.info, heartbeat_details=list(self.details), heartbeat_timeout=timedelta(seconds=10))
        environment.on_heartbeat = lambda *details: self.details.__setitem__(slice(None), details)
        return environment


async def known(end: Literal["answers", "fails", "beats"] = "answers") -> tuple[int, bool]:
    """Do an attempt, and return how many workers it takes for lost, and whether the one before it is known to have ended."""
    async with heartbeats() as state:
        if end == "beats":
            state.beat()
        if end == "fails":
            raise KeyError("as it was told to")
        return state.lost, state.is_in_order


async def test_an_attempt_that_fails_is_no_lost_worker() -> None:
    beats = Heartbeats()
    for number in (1, 2):
        with pytest.raises(KeyError):
            await beats.attempt(number).run(known, "fails")

    assert await beats.attempt(3).run(known) == (0, True)


async def test_attempts_that_end_without_a_word_are_lost_workers() -> None:
    beats = Heartbeats()
    first = await beats.attempt(1).run(known, "beats")
    second = await beats.attempt(2).run(known)
    with pytest.raises(KeyError):
        await beats.attempt(3).run(known, "fails")
    fourth = await beats.attempt(4).run(known)

    assert (first, second, fourth) == ((0, True), (1, False), (2, True))


async def test_an_attempt_that_was_never_begun_is_no_lost_worker() -> None:
    beats = Heartbeats()
    first = await beats.attempt(2).run(known)
    with pytest.raises(KeyError):
        await beats.attempt(2).run(known, "fails")

    assert (first, await beats.attempt(4).run(known)) == ((0, False), (0, False))


async def test_a_worker_that_was_told_to_stop_is_not_lost_with_its_attempt() -> None:
    beats = Heartbeats()
    environment = beats.attempt(1)
    environment.worker_shutdown()
    await environment.run(known, "beats")

    assert await beats.attempt(2).run(known) == (0, True)


async def test_work_that_goes_on_elsewhere_in_the_worker_is_not_lost() -> None:
    left, work = AbandonedAttempts(), Work()
    await given_up(left, work)
    states: list[AttemptState] = []
    second = asyncio.create_task(attempt(2).run(serve, left, work, states))
    await asyncio.sleep(0.01)
    lost = states[0].lost
    work.may_end.set()
    await second

    assert lost == 0
