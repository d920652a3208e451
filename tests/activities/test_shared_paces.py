"""A pace that workers share goes by the database's clock, one of a worker by a monotonic one; calls are leased by the second."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import pytest
from sqlalchemy import text

from activities.calls.limiter import CallLimiter, ModelLimiter, MustWait
from activities.calls.pace import LONGEST_PAUSE, Pace, PaceKeeper, RateRefusal, SharedPaces
from activities.calls.rate_headers import KeptHeaders, ReportedLimit, reported_limits
from activities.errors import retry_after
from gradeloop.contract.provider import ModelFault
from gradeloop.store.engine import Store

WRONG: ContextVar[float] = ContextVar("by how many seconds the clock of the worker that runs is wrong", default=0.0)
KEY = "p http://a m"


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each worker a wall clock of its own, and have it ask the store each time."""
    right = time.time
    monkeypatch.setattr("activities.calls.pace.FRESH_SECONDS", 0.0)
    monkeypatch.setattr(time, "time", lambda: right() + WRONG.get())


@asynccontextmanager
async def worker(url: str | None) -> AsyncIterator[ModelLimiter]:
    """Yield the limiter of a worker, which shares its pace where there is a database."""
    store = Store(url) if url else None
    paces: PaceKeeper | None = SharedPaces(store) if store else None
    yield CallLimiter({}, 200, paces).limiter("p", "http://a", "m")
    if store:
        store.close()


async def call(limiter: ModelLimiter, name: str, *, refused: float | None = None) -> float:
    """Make a call that is accepted, or refused with a `Retry-After`, and return the seconds after which another one may start."""
    with await limiter.enter(name, time.time(), 400) as permit:
        if refused is None:
            await limiter.accepted(permit, KeptHeaders())
        else:
            fault = ModelFault("rate_limited", "too many", retry_after=refused)
            await limiter.refused(permit, fault, name, time.time())
    return limiter.seconds_to_wait(time.time())


async def keep(store: Store, pace: Pace) -> None:
    """Have workers that share a store know a pace."""
    row = {"model": KEY, "pace": pace.model_dump_json()}
    await store.write(lambda connection: connection.execute(text("INSERT INTO call_paces (model, pace) VALUES (:model, :pace)"), row))


async def waits(limiter: ModelLimiter) -> float:
    """Return the seconds that a worker has its next call wait; 0 where it starts."""
    try:
        async with asyncio.timeout(0.5):
            (await limiter.enter("next", time.time(), 400)).__exit__()
    except (TimeoutError, MustWait):
        return limiter.seconds_to_wait(time.time())
    return 0.0


@pytest.mark.parametrize("wrong", [600.0, -600.0])
async def test_a_worker_with_a_wrong_clock_has_nobody_wait_longer_than_the_provider_asked_for(server_url: str, wrong: float) -> None:
    async with worker(server_url) as one, worker(server_url) as other:
        await call(other, "first")
        WRONG.set(wrong)
        assert 0 < await call(one, "refused", refused=20) <= 20.5
        WRONG.set(-wrong)  # and a clock that is set jumps
        assert 0 < one.seconds_to_wait(time.time()) <= 20.5
        WRONG.set(0.0)
        assert 15 < await waits(other) <= 20.5


@pytest.mark.parametrize("jump", [600.0, -600.0])
async def test_a_clock_that_jumps_changes_no_pause_of_a_single_worker(jump: float) -> None:
    async with worker(None) as one:
        await call(one, "first")
        assert 19 < await call(one, "refused", refused=20) <= 20.5
        WRONG.set(jump)
        assert 15 < await waits(one) <= 20.5


@pytest.mark.parametrize("wrong", [600.0, -600.0])
async def test_what_a_wrong_clock_has_written_before_counts_no_more(server_url: str, wrong: float) -> None:
    """Version 1 wrote the time of the worker, and did not say for how long it paused."""
    async with worker(server_url) as one:
        await call(one, "first")
        at = time.time() + wrong
        refusals = (RateRefusal(at=at - 5, accepted=1), RateRefusal(at=at, accepted=90))
        written = Pace(rate=10, behind=9, accepted=100, refusals=refusals, in_row=1, cool_until=at + 20, next_at=at + 20, last_refused=at)
        kept = written.model_copy(update={"window_from": at, "answered": at}).model_dump_json(exclude={"pause"})
        store = Store(server_url)
        await store.write(lambda connection: connection.execute(text("UPDATE call_paces SET pace = :pace"), {"pace": kept}))
        store.close()
        waited = await waits(one)
        assert waited <= LONGEST_PAUSE + 0.5
        assert (waited > 0) == (wrong > 0)
        assert one._pace.last_refused <= one._paces.ahead + time.monotonic()


async def test_the_row_changes_once_a_second_and_worker_and_the_rate_holds_for_all(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 calls at a known rate of 40 a second, by three workers whose clocks differ."""
    started: list[float] = []
    store = Store(server_url)
    await keep(store, Pace(rate=40, behind=128))

    async def lane(limiter: ModelLimiter, name: str) -> None:
        number = 0
        while number < 5:
            try:
                permit = await limiter.enter(f"{name}/{number}", time.time(), 400)
            except MustWait as wait:
                await asyncio.sleep(wait.seconds)
                continue
            number += 1
            with permit:
                started.append(time.monotonic())
                await asyncio.sleep(0.05)
                await limiter.accepted(permit, KeptHeaders())

    async with worker(server_url) as one, worker(server_url) as two, worker(server_url) as three:
        tasks = []
        for number, limiter in enumerate((one, two, three)):
            WRONG.set(600.0 * (number - 1))
            tasks += [asyncio.create_task(lane(limiter, f"{number}/{at}")) for at in range(14)]
        WRONG.set(0.0)
        await asyncio.gather(*tasks)
    turns = await store.read(lambda connection: int(connection.execute(text("SELECT turns FROM call_paces")).scalar_one()))
    store.close()

    seconds = max(started) - min(started)
    assert len(started) == 210
    assert len(started) / 40 - 2 <= seconds
    assert turns < len(started) / 2


async def test_a_refusal_stops_the_workers_that_have_calls_of_the_next_second_behind_those(server_url: str) -> None:
    store = Store(server_url)
    await keep(store, Pace(rate=40, behind=128))
    store.close()
    async with worker(server_url) as one, worker(server_url) as other:
        await asyncio.gather(*(waits(one) for _ in range(20)))
        await call(other, "refused", refused=20)
        started = 0
        while (waited := await waits(one)) < 15:
            started += waited == 0.0
        assert started <= 41
        assert waited <= 20.5


@pytest.mark.parametrize("wrong", [600.0, -600.0])
def test_the_times_of_a_reply_are_read_by_the_clock_of_its_server(wrong: float) -> None:
    WRONG.set(wrong)
    headers = {"date": "Fri, 20 Nov 2026 12:00:00 GMT", "retry-after": "Fri, 20 Nov 2026 12:00:30 GMT"}
    assert retry_after(headers) == 30
    limits = {"limit": "20", "remaining": "0", "reset": "2026-11-20T12:00:10Z"}
    headers |= {f"anthropic-ratelimit-requests-{part}": text for part, text in limits.items()}
    assert reported_limits(headers) == {"requests": ReportedLimit(20, 0, 10.0)}
