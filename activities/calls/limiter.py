"""The limiters of model calls: each model at its endpoint has one, which all of the worker's calls pass."""

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Self

from activities.calls.pace import LEASE_SECONDS, SLACK, Change, LocalPaces, Pace, PaceKeeper, T
from activities.calls.rate_headers import MINUTE, KeptHeaders, ReportedLimit, reported_limits
from gradeloop.contract.messages import Usage
from gradeloop.contract.provider import ModelFault
from gradeloop.settings.endpoints import CallCeilings
from gradeloop.telemetry.metrics import LIMITER_IN_FLIGHT, LIMITER_WAITING, LIMITER_WINDOW

INSIDE_SECONDS = 3.0
"""Seconds that a call may wait in the worker: longer than Temporal's timers are late, so that a call waits when one may start."""

LEAD = 1.0
"""Seconds by which a call that was handed back comes before its turn, since timers of a server count whole seconds."""

LONGEST_WAIT = 20.0
"""Seconds after which a call that was handed back comes again to look, however long the queue is."""

LOOK_SECONDS = 0.5
"""Seconds after which whoever waits looks again, also where nothing is heard: a ceiling may be shared with other models."""

SHARE_INSIDE = 4
"""One in so many of the worker's slots may be taken by calls that wait."""

FIRST_WINDOW = 64
"""Calls that may be in flight before anything is known; each reply allows one more."""

LEAST_WINDOW = 4
"""Calls that may be in flight however often the provider refuses."""

SHRINK = 0.7
"""The share of the calls in flight that is left after a refusal."""

STARTS = 4096
"""Starts that are remembered, to know which of them a reply's headers count already."""

LIMITED = frozenset({"rate_limited", "overloaded"})
"""The kinds of failure by which a provider says that too much is asked of it."""

CHARACTERS_A_TOKEN = 4


class MustWait(Exception):
    """A call may not start yet, and waits outside of the worker."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"wait {seconds:.1f} s")
        self.seconds = seconds


@dataclass
class Ceiling:
    """A ceiling that a person set, with what has been taken of it in this worker."""

    ceilings: CallCeilings
    in_flight: int = 0
    tokens: float | None = None
    """Tokens that may be taken now; below 0 where calls took more than was reckoned."""
    at: float = 0.0

    # A bucket that holds ten seconds of the ceiling and fills with time. The tokens are reckoned before a call
    # and corrected after it (`give_back`). So the bucket may fall below 0, and later calls wait for that debt.
    # A call that is larger than the bucket starts when the bucket is full; without that bound it would wait for
    # ever.
    def wait(self, now: float, tokens: float) -> float:
        """Return the seconds until a call of so many tokens may start; infinite until one ends."""
        most = self.ceilings.tokens_per_minute
        if self.ceilings.concurrency is not None and self.in_flight >= self.ceilings.concurrency:
            return math.inf
        if most is None:
            return 0.0
        burst = most / 6
        self.tokens = burst if self.tokens is None else min(burst, self.tokens + (now - self.at) * most / 60)
        self.at = now
        return max(0.0, (min(tokens, burst) - self.tokens) * 60 / most)

    def take(self, tokens: float) -> None:
        """Count a call that starts."""
        self.in_flight += 1
        self.tokens = None if self.tokens is None else self.tokens - tokens

    def give_back(self, reckoned: float, taken: float) -> None:
        """Count the end of a call, and the tokens that it took."""
        self.in_flight -= 1
        self.tokens = None if self.tokens is None else self.tokens + reckoned - taken


@dataclass
class _Headroom:
    """A limit as the newest reply has reported it."""

    limit: ReportedLimit
    started: float
    """Start of the call that reported it; later calls are not counted in it."""
    sent: float
    """Time at which that call was sent."""


@dataclass(order=True)
class _Waiter:
    since: float
    number: int
    tokens: float = field(compare=False)
    entered: float = field(compare=False)
    turn: "asyncio.Future[float]" = field(compare=False)


@dataclass
class Permit:
    """A call that may be made; it ends with the `with` block that enters it."""

    limiter: "ModelLimiter"
    started: float
    """Time at which it may be sent, by the monotonic clock."""
    taken: float
    """Time at which the pace allowed it, perhaps together with others."""
    tokens: float
    """The tokens that it was reckoned to take."""
    usage: Usage = field(default_factory=Usage)
    """The usage of the call, once it is known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.limiter.leave(self)


# A call starts where four limits allow it at once: the window of calls in flight (it grows with each reply, and shrinks to a share of
# what is in flight at the first refusal of a burst), the ceilings that a person set, what the provider's headers say is left, and the
# pace, which workers share by their store. The turns are given in the order in which calls first asked. Who waits for long does not wait
# in a slot of the worker: the attempt ends with `MustWait`, and its next one keeps the place by the call's id and its first time.
# Invariant: each entry into the window is left exactly once, by the permit's end or here where no permit was given; a lost one would
# narrow the window for good. `_enter` comes before the await of the shared pace, or two calls would take one place.
# Leases: a shared pace is changed once for the calls of the next second, which then start at their times without it. Each counts as
# started when it was taken: a refusal of one that was taken before another worker's refusal is the same refusal. What lapses is given
# back with the next change, time and count; else the pace would measure calls that never were. Replies are told with that change, too.
class ModelLimiter:
    """Says when the calls of one model at one endpoint may start, by what the provider accepts, refuses and reports."""

    def __init__(self, key: str, paces: PaceKeeper, ceilings: tuple[Ceiling, ...], inside: int) -> None:
        self._key = key
        self._paces = paces
        self._ceilings = ceilings
        self._most_inside = inside
        asked = [ceiling.ceilings.requests_per_minute for ceiling in ceilings]
        self._rate = min((rate / 60 for rate in asked if rate is not None), default=None)
        self._pace = Pace()
        self._window = float(FIRST_WINDOW)
        self._lost = False
        self._in_flight = 0
        self._starts: deque[float] = deque(maxlen=STARTS)
        self._lease, self._asking = asyncio.Lock(), 0
        self._leased: deque[float] = deque()
        """Starts of the calls that were taken together with another one."""
        self._taken, self._look_at, self._lapsed = 0.0, 0.0, 0
        self._untold: list[Change[None]] = []
        """Replies that the pace in the store is not told of yet."""
        self._headroom: dict[str, _Headroom] = {}
        self._cost: dict[str, float] = {"requests": 1.0}
        self._latency = 0.0
        self._inside: list[_Waiter] = []
        self._outside: dict[str, tuple[float, float]] = {}
        self._numbers = count()
        self._changed = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        names = key.split(" ", 2)
        self._labels = {"provider": names[0], "model": names[-1]}

    def _show(self) -> None:
        """Record the limiter's gauges."""
        LIMITER_IN_FLIGHT.record(self._in_flight, **self._labels)
        LIMITER_WINDOW.record(self._window, **self._labels)
        LIMITER_WAITING.record(len(self._inside) + len(self._outside), **self._labels)

    @property
    def answered(self) -> float:
        """Time at which the model last accepted a call, in seconds since 1970; 0 if it has not."""
        return self._pace.answered and time.time() - (time.monotonic() + self._paces.ahead - self._pace.answered)

    async def enter(self, call: str, since: float, characters: int) -> Permit:
        """Wait for a call's turn, in the order of their first attempts.

        `since`: when it first asked, in seconds since 1970.

        Raises:
            MustWait: That takes longer than a call may wait in the worker.
        """
        tokens = characters / CHARACTERS_A_TOKEN + self._cost.get("output-tokens", 0.0)
        self._outside.pop(call, None)
        # Nobody overtakes: a call that finds others in the queue joins it without a try of its own. A call with a
        # long wait, or one for which the worker has no place left, goes back to Temporal at once, so that a full
        # provider does not fill the slots that calls of other models need.
        if not self._inside and await self._try(tokens) is None:
            return Permit(self, time.monotonic(), self._taken, tokens)
        seconds, full = self.seconds_to_wait(since), len(self._inside) >= self._most_inside
        if seconds > INSIDE_SECONDS or full:
            raise MustWait(self._hand_back(call, since, max(seconds, INSIDE_SECONDS if full else 0.0)))
        waiter = _Waiter(since, next(self._numbers), tokens, time.monotonic(), asyncio.get_running_loop().create_future())
        heapq.heappush(self._inside, waiter)
        self._changed.set()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        try:
            taken = await waiter.turn
        except asyncio.CancelledError:
            # The pump may have given this call its turn in the moment in which it was stopped. Then it has entered
            # the window, and nobody else will leave it.
            if waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self._leave(tokens, 0.0)
            raise
        except MustWait as wait:
            raise MustWait(self._hand_back(call, since, wait.seconds)) from None
        finally:
            self._forget(waiter)
        return Permit(self, time.monotonic(), taken, tokens)

    def _forget(self, waiter: _Waiter) -> None:
        with suppress(ValueError):
            self._inside.remove(waiter)
            heapq.heapify(self._inside)

    def _hand_back(self, call: str, since: float, seconds: float) -> float:
        """Note that a call waits outside, and return for how long."""
        # A call that waits outside keeps its place in the queue, but only until shortly after it should be back. A
        # stopped call never comes back, and its place would hold up all behind it.
        wait = min(max(seconds - LEAD if seconds > 2 * LEAD else seconds, 0.05), LONGEST_WAIT)
        self._outside[call] = (since, time.monotonic() + wait + INSIDE_SECONDS)
        self._show()
        return wait

    def seconds_to_wait(self, since: float) -> float:
        """Return the seconds until a call would have its turn that first asked then."""
        now = time.monotonic()
        for call in [name for name, (_, until) in self._outside.items() if until < now]:
            del self._outside[call]
        # The wait is an estimate, the largest of what each limit asks for. Too short, it costs a further attempt,
        # which asks again; too long, it leaves the model idle, for at most LONGEST_WAIT. The number of calls in
        # flight says how often one ends: every latency / in_flight seconds, as many times as places are missing.
        ahead = sum(other.since < since for other in self._inside) + sum(other < since for other, _ in self._outside.values())
        waiting = len(self._inside) + len(self._outside) + 1
        if ahead < len(self._leased):
            paced = self._leased[ahead] - now
        else:
            paced = self._pace.wait(now + self._paces.ahead, ahead, waiting, self._rate)
        seconds = max(paced, self._reported_wait(now), 0.0)
        for most in (ceiling.ceilings.tokens_per_minute for ceiling in self._ceilings):
            seconds = max(seconds, ahead * self._cost.get("tokens", 0.0) * 60 / most) if most else seconds
        room = self._room()
        if ahead >= room and self._latency:
            seconds = max(seconds, (ahead - room + 1) * self._latency / max(1.0, self._in_flight))
        return seconds

    def is_free(self) -> bool:
        """Return whether a call would start at once, as far as this worker knows."""
        return not self._inside and self._room() >= 1 and self.seconds_to_wait(time.time()) <= 0

    def _room(self) -> float:
        """Return how many more calls may be in flight."""
        most = [ceiling.ceilings.concurrency - ceiling.in_flight for ceiling in self._ceilings if ceiling.ceilings.concurrency]
        return min([self._window - self._in_flight, *most])

    async def _run(self) -> None:
        """Give the calls that wait inside their turns, one after the other."""
        # Only the first of the queue is tried. A ceiling of tokens may let a smaller call behind it start, but then a
        # large one might wait for ever while small ones keep the bucket low.
        while self._inside:
            self._changed.clear()
            first = self._inside[0]
            try:
                wait = await self._try(first.tokens)
            except Exception as error:  # noqa: BLE001 - whoever waits must learn of it
                for waiter in self._inside:
                    if not waiter.turn.done():
                        waiter.turn.set_exception(error)
                return
            if wait is None:
                self._forget(first)
                if first.turn.done():
                    self._leave(first.tokens, 0.0)
                else:
                    first.turn.set_result(self._taken)
                continue
            self._send_out()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait, LOOK_SECONDS)):
                    await self._changed.wait()

    def _send_out(self) -> None:
        """Hand back whoever has waited in the worker for long, or will."""
        now = time.monotonic()
        for waiter in [waiter for waiter in self._inside if not waiter.turn.done() and now - waiter.entered > INSIDE_SECONDS / 2]:
            seconds = self.seconds_to_wait(waiter.since)
            if seconds > INSIDE_SECONDS or now - waiter.entered > 2 * INSIDE_SECONDS:
                waiter.turn.set_exception(MustWait(max(seconds, INSIDE_SECONDS)))
                self._forget(waiter)

    async def _try(self, tokens: float) -> float | None:
        """Start a call, and return None; where none may start, return the seconds after which to look again."""
        now = time.monotonic()
        if self._in_flight >= self._window:
            return math.inf
        wait = max(self._reported_wait(now), *(ceiling.wait(now, tokens) for ceiling in self._ceilings), 0.0)
        if wait > 0:
            return wait
        self._enter(tokens)  # before anybody else looks
        self._asking += 1
        try:
            async with self._lease:
                wait = await self._take()
        except BaseException:
            self._leave(tokens, 0.0)
            raise
        finally:
            self._asking -= 1
        if wait <= 0:
            self._starts.append(time.monotonic())
            return None
        self._leave(tokens, 0.0)
        return wait

    async def _take(self) -> float:
        """Start a call that was leased, else lease as many as came in the last second or wait; return the seconds until one may start."""
        now = time.monotonic()
        while self._leased and self._leased[0] < now - SLACK:
            self._leased.popleft()
            self._lapsed += 1
        if now < (begins := self._leased[0] if self._leased else self._look_at):
            return begins - now
        if self._leased:
            self._leased.popleft()
            return 0.0
        waiting, rate = len(self._inside) + len(self._outside) + 1, self._rate
        lately = sum(start > now - LEASE_SECONDS for start in self._starts) if self._paces.leases else 0
        most = max(self._asking + len(self._inside), lately) if self._paces.leases else 1

        def take(pace: Pace, ahead: float) -> tuple[Pace, tuple[float, int]]:
            taken, wait = pace.take(time.monotonic() + ahead, waiting, rate, most)
            return taken, (wait, taken.accepted - pace.accepted)

        wait, calls = await self._change(take)
        self._taken, pace = time.monotonic(), self._pace.bounded(rate)
        # The pace has moved `next_at` on by all calls of the lease. The first of them starts now, and the starts of
        # the others are read back from the end of the lease.
        if calls > 1 and pace:
            first = self._pace.next_at - self._paces.ahead - calls / pace
            self._leased.extend(first + number / pace for number in range(1, calls))
        if wait > 0 and self._paces.leases:  # nobody but a refusal of ours makes it earlier, or a look whether a long pause is meant
            self._look_at = self._taken + (wait if wait <= LEASE_SECONDS else LOOK_SECONDS)
        return wait

    async def _change(self, change: Change[T]) -> T:
        """Change the pace where all find it, with what was not told yet; what was leased and did not start is given back."""
        untold, self._untold = self._untold, []
        taken, unused, rate = self._taken, self._lapsed + len(self._leased), self._rate
        self._lapsed, self._leased, self._look_at = 0, deque(), 0.0

        def tell(pace: Pace, ahead: float) -> tuple[Pace, T]:
            for accept in untold:
                pace, _ = accept(pace, ahead)
            return change(pace.give_back(taken + ahead, unused, rate) if unused else pace, ahead)

        self._pace, result = await self._paces.change(self._key, tell)
        return result

    def _enter(self, tokens: float) -> None:
        self._in_flight += 1
        for ceiling in self._ceilings:
            ceiling.take(tokens)
        self._show()

    def _leave(self, reckoned: float, taken: float) -> None:
        self._in_flight -= 1
        for ceiling in self._ceilings:
            ceiling.give_back(reckoned, taken)
        self._show()

    def _reported_wait(self, now: float) -> float:
        """Return the seconds to wait by what the provider itself has reported of its limits."""
        return max((self._wait_for(what, seen, now) for what, seen in self._headroom.items()), default=0.0)

    # The headers of a reply say what was left when that call was answered. The number does not have the calls
    # that started after it. So each of them counts here with the usual cost, as does the call that asks. What
    # the limit gives back meanwhile is added. If the number were taken as it stands, every waiting call would
    # take the same remainder for its own.
    def _wait_for(self, what: str, seen: _Headroom, now: float) -> float:
        cost, passed = self._cost.get(what, 0.0), now - seen.sent
        uncounted = sum(1 for start in self._starts if start > seen.started) if seen.limit.remaining < STARTS * max(cost, 1.0) else 0
        lacking = (uncounted + 1) * cost - seen.limit.remaining - passed * seen.limit.rate
        if cost == 0.0 or lacking <= 0:
            return 0.0
        if not seen.limit.rate:
            return max(0.0, seen.limit.reset - passed)
        return min(lacking / seen.limit.rate, max(seen.limit.reset, MINUTE))

    async def accepted(self, permit: Permit, kept: KeptHeaders) -> None:
        """Note that a call was not refused, and what its reply reports of limits."""
        now = time.monotonic()
        # The window grows as TCP's does: by one for each reply until the first refusal, which doubles it in every
        # round trip, and then by one in each round trip, since a limit is near.
        self._latency = now - permit.started if not self._latency else 0.8 * self._latency + 0.2 * (now - permit.started)
        self._window += 1 / self._window if self._lost else 1
        usage = permit.usage
        counts = {"tokens": usage.tokens, "input-tokens": usage.input, "output-tokens": usage.output}
        for what, taken in counts.items():
            if taken and usage.calls:
                self._cost[what] = 0.8 * self._cost.get(what, taken) + 0.2 * taken
        for what, limit in reported_limits(kept.headers).items():
            seen = self._headroom.get(what)
            # Replies come out of order. The headers of an earlier call say what was left before later calls were
            # counted, so they must not replace those of a later one.
            if seen is None or permit.started >= seen.started:
                self._headroom[what] = _Headroom(limit, permit.started, kept.sent or permit.started)
        named = self._named_rate()

        def accept(pace: Pace, ahead: float) -> tuple[Pace, None]:
            pace = pace.accept(now + ahead, permit.taken + ahead)
            return (pace if named is None else pace.learn(named)), None

        # Where a rate holds, other workers need not learn of each reply at once. It counts here, and waits in
        # `_untold` for the next change of the shared pace. In a row of refusals or during a probe it is told at
        # once: it may end the row or the pause for all workers.
        paced = self._paces.leases and self._pace.bounded(self._rate)
        if paced and not (self._pace.in_row or self._pace.probing):  # the others need not know at once
            self._untold.append(accept)
            self._pace, _ = accept(self._pace, self._paces.ahead)
        else:
            await self._change(accept)

    def _named_rate(self) -> float | None:
        """Return the rate that the provider has named, once its limit is used up but for what is in flight."""
        near = [
            (seen.limit.rate / cost, seen.limit.remaining / cost)
            for what, seen in self._headroom.items()
            if (cost := self._cost.get(what)) and seen.limit.rate
        ]
        rates = [rate for rate, calls in near if calls <= self._in_flight + 1]
        return min(rates, default=None)

    async def refused(self, permit: Permit, fault: ModelFault, call: str, since: float) -> float:
        """Note that a call was refused for its rate, and return the seconds after which it may be made again."""
        now, floor = time.monotonic(), LEAST_WINDOW + 2 * (self._pace.current or 0.0) * self._latency
        # Only the first refusal of a burst narrows the window: calls that were taken before it are refused for
        # the same reason. The floor has room for two round trips of calls at the known rate. A narrower window
        # would itself hold the calls below that rate.
        if permit.taken + self._paces.ahead > self._pace.last_refused:
            self._window = max(floor, min(self._window, self._in_flight * SHRINK))
            self._lost = True
        await self._change(lambda pace, ahead: (pace.refuse(now + ahead, permit.taken + ahead, fault.retry_after), None))
        return self._hand_back(call, since, max(self.seconds_to_wait(since), 0.05))

    def leave(self, permit: Permit) -> None:
        """Note that a call has ended, with a reply or without."""
        # A call whose tokens nobody knows keeps what was reckoned. If it counted as nothing, a provider that reports
        # no usage would have no ceiling of tokens at all.
        taken = permit.usage.tokens
        self._leave(permit.tokens, permit.tokens if taken is None or not permit.usage.calls else taken)
        self._changed.set()


class CallLimiter:
    """The limiters of a worker, one for each provider, endpoint and model."""

    def __init__(self, ceilings: Mapping[str, CallCeilings] | None = None, slots: int = 200, paces: PaceKeeper | None = None) -> None:
        self._asked = dict(ceilings or {})
        self._ceilings: dict[str, Ceiling] = {}
        self._inside = max(1, slots // SHARE_INSIDE)
        self._paces = paces or LocalPaces()
        self._models: dict[tuple[str, str, str], ModelLimiter] = {}

    def is_free(self, provider: str, address: str, model: str) -> bool:
        """Return whether a call of a model would start at once, as far as this worker knows."""
        known = self._models.get((provider, address, model))
        return known is None or known.is_free()

    def limiter(self, provider: str, address: str, model: str, slots: int | None = None) -> ModelLimiter:
        """Return the limiter of a model at an endpoint.

        `slots`: the most calls in flight at the endpoint, where no setting says how many; None where no number is known.
        """
        key, names = (provider, address, model), [name for name in (provider, f"{provider}:{model}") if name in self._asked]
        # Ceilings are shared objects: that of a provider by its models, that of an address by all models which a
        # server there has in one memory. So the end of one model's call may make room for another model's, which
        # nobody tells; whoever waits looks again every LOOK_SECONDS.
        of_server = self._ceilings.setdefault(address, Ceiling(CallCeilings()))
        if key not in self._models:
            of_settings = [self._ceilings.setdefault(name, Ceiling(self._asked[name])) for name in names]
            self._models[key] = ModelLimiter(" ".join(key), self._paces, (*of_settings, of_server), self._inside)
        wanted = None if any(self._asked[name].concurrency for name in names) else slots
        if of_server.ceilings.concurrency != wanted:
            of_server.ceilings = CallCeilings(concurrency=wanted)
        return self._models[key]
