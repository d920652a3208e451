"""The quarantine: suspects are in flight in groups, apart from all other calls, and take turns with them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.calls.paid_call import ModelCalls
from activities.calls.quarantine import ALONE, GROUP, Quarantine
from activities.providers import Providers
from activities.providers.environment import Environment


class Calls:
    """Calls of one worker that end when they are told to."""

    def __init__(self) -> None:
        self.quarantine = Quarantine()
        self.in_flight: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def begin(self, *names: str, lost: int = 0) -> None:
        """Begin calls with which so many workers were lost."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._make(name, lost))
        await asyncio.sleep(0)

    async def end(self, *names: str) -> None:
        """Let calls end."""
        for name in names:
            self._ends[name].set()
        for _ in range(4):
            await asyncio.sleep(0)

    async def cancel(self, *names: str) -> None:
        """Stop calls, also those that wait."""
        for name in names:
            self._tasks[name].cancel()
        for name in names:
            with suppress(asyncio.CancelledError):
                await self._tasks[name]
        await asyncio.sleep(0)

    async def _make(self, name: str, lost: int) -> None:
        async with self.quarantine.place(lost):
            self.in_flight.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.in_flight.remove(name)


def suspects(count: int) -> Sequence[str]:
    return [f"suspect {number}" for number in range(count)]


async def test_ordinary_calls_do_not_wait_for_one_another() -> None:
    calls = Calls()
    await calls.begin("a", "b")
    await calls.begin("c")

    assert calls.in_flight == ["a", "b", "c"]


async def test_suspects_wait_for_the_calls_in_flight_and_later_calls_for_them() -> None:
    calls = Calls()
    await calls.begin("a", "b")
    await calls.begin(*suspects(3), lost=1)
    await calls.begin("late")
    before = list(calls.in_flight)
    await calls.end("a", "b")
    apart = list(calls.in_flight)
    await calls.end(*suspects(3))

    assert before == ["a", "b"]
    assert apart == suspects(3)
    assert calls.in_flight == ["late"]


async def test_groups_are_of_ten_and_ordinary_calls_go_between_two() -> None:
    calls = Calls()
    await calls.begin("a")
    await calls.begin(*suspects(GROUP + 5), lost=1)
    await calls.end("a")
    first = list(calls.in_flight)
    await calls.begin("between")
    await calls.end(*first)
    between = list(calls.in_flight)
    await calls.begin("later")
    await calls.end("between")
    second = list(calls.in_flight)
    await calls.end(*second)

    assert (len(first), between, len(second), calls.in_flight) == (GROUP, ["between"], 5, ["later"])


async def test_a_suspect_that_comes_while_a_group_is_in_flight_waits_for_the_next() -> None:
    calls = Calls()
    await calls.begin("a", lost=1)
    await calls.begin("b", lost=1)
    first = list(calls.in_flight)
    await calls.end("a")

    assert (first, calls.in_flight) == (["a"], ["b"])


async def test_a_call_with_which_two_workers_were_lost_is_made_alone() -> None:
    calls = Calls()
    await calls.begin("ordinary")
    await calls.begin("first", "second", lost=ALONE)
    await calls.begin("suspect", lost=1)
    await calls.end("ordinary")
    seen = [list(calls.in_flight)]
    for name in ("first", "second", "suspect"):
        await calls.end(name)
        seen.append(list(calls.in_flight))

    assert seen == [["first"], ["second"], ["suspect"], []]


async def test_a_call_that_is_stopped_holds_nobody_up() -> None:
    calls = Calls()
    await calls.begin("a")
    await calls.begin("waiting", lost=1)
    await calls.begin("b")
    await calls.cancel("waiting")
    released = list(calls.in_flight)
    await calls.begin("group", lost=1)
    await calls.begin("c")
    await calls.cancel("a", "b")
    group = list(calls.in_flight)
    await calls.cancel("group")

    assert (released, group, calls.in_flight) == (["a", "b"], ["group"], ["c"])


async def test_a_call_keeps_its_place_until_its_answer_is_handed_over() -> None:
    calls = ModelCalls(Providers(Environment.read({}), None))
    handed_over, made = asyncio.Event(), asyncio.Event()

    async def attempt() -> None:
        async with calls.attempt() as state:
            async with calls._place(state, reserves=True):
                pass
            made.set()
            await handed_over.wait()

    async def suspect() -> None:
        async with calls.quarantine.place(1):
            pass

    working = asyncio.create_task(ActivityEnvironment().run(attempt))
    await made.wait()
    waiting = asyncio.create_task(suspect())
    for _ in range(4):
        await asyncio.sleep(0)
    early = waiting.done()
    handed_over.set()
    await asyncio.gather(working, waiting)

    assert not early


@pytest.mark.parametrize(("others", "waits"), [(1, True), (0, False)], ids=["behind a suspect", "behind nobody"])
async def test_a_suspect_that_has_to_wait_is_not_in_flight_from_its_first_heartbeat_on(others: int, waits: bool) -> None:
    beats: list[tuple[Any, ...]] = []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: beats.append(details)
    earlier = {"attempt": 2, "lost": 1}
    patience = timedelta(seconds=10)
    environment.info = replace(ActivityEnvironment.default_info(), attempt=3, heartbeat_details=[{}, earlier], heartbeat_timeout=patience)
    calls = ModelCalls(Providers(Environment.read({}), None))

    async def attempt() -> tuple[int, bool]:
        async with calls.quarantine.place(others), calls.attempt() as state:
            if not others:
                return state.lost, state.over
            waiting = asyncio.create_task(calls._place(state, reserves=False).__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            return state.lost, state.over

    assert await environment.run(attempt) == (2, waits)
    assert [beat[1].get("over", False) for beat in beats] == [waits] * len(beats)
    assert beats
