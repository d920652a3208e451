"""The pace of one model's calls, learnt from what its provider accepts and refuses, and where all who call the model find it."""

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

from pydantic import Field

from gradeloop.contract.base import Tolerant
from gradeloop.errors import StoreUnavailable

if TYPE_CHECKING:  # a worker without a store does not load SQLAlchemy
    from sqlalchemy import Connection

    from gradeloop.store.engine import Store

logger = logging.getLogger("gradeloop.limits")

FIRST_PAUSE = 1.0
"""Seconds without a call after the first refusal of an endpoint that does not say how long to wait."""

LONGEST_PAUSE = 30.0
"""Seconds to which the pause grows while refusal follows refusal and the provider does not say how long to wait."""

SHORT_RETRY_AFTER = 5.0
"""Seconds of a `Retry-After` that is followed to the end without a look whether it means what it says."""

MANY_WAIT = 5
"""Calls that must wait before one of them looks whether a long `Retry-After` means what it says."""

PROBE_SECONDS = 2.0
"""Seconds after which whoever waits looks again, while one call tries whether a long `Retry-After` means what it says."""

SLACK = 0.25
"""Seconds by which a late call may be made up for: the clock of a busy machine is not better."""

SPAN_CALLS = 128
"""Accepted calls, from one refusal back to an earlier one, over which the rate is measured: with more it follows changes too slowly."""

SPAN_SECONDS = 20.0
"""Seconds, or as many as `SPAN_CALLS` take, back to which refusals count: before, the limit may have been another."""

MARGIN = 0.98
"""The share of the measured rate at which the pace begins again after a refusal."""

AWAY_REFUSALS = 3
"""Refusals in a row behind which earlier ones say nothing of the rate: the provider refused whatever came."""

GROWTH = 0.0005
"""The share by which the pace grows with each call that it made wait: a refusal every eighty calls or so, one in a hundred."""

STEADY_CALLS = 100
"""Calls without a refusal after which the pace grows faster and faster, fewer where few calls were measured: the limit is higher."""

FIRST_RATE = 10.0
"""Calls a second after the first refusal, if no more were accepted in a second before: the next refusal shows whether that is too fast."""

WINDOW_SECONDS = 10.0
"""Seconds over which accepted calls are counted before the first refusal."""

FRESH_SECONDS = 1.0
"""Seconds for which a pace counts as known: as long as no worker was refused, and nobody set a ceiling, calls do not wait for the store."""

LEASE_SECONDS = 1.0
"""Seconds' worth of calls that a worker takes of a shared rate at once: a refusal reaches the others so late, and they write so seldom."""

T = TypeVar("T")


class RateRefusal(Tolerant):
    """A refusal, when the calls that were accepted had used up the limit."""

    at: float
    accepted: int


# Providers do not say how fast calls may come; they refuse. A limit by rate is a bucket that refills: right after a refusal it is empty,
# so what is accepted between two refusals, over the time between them, is the rate.
# Invariant: `accepted` counts the starts that were not refused: a refusal takes its own start back (`_disowned`), also from the refusals
# behind it, and refusals of calls in flight at a refusal are one with it; else a burst of refusals would lower the rate once for each.
# A row of refusals ends with an accepted call that started behind its first (`row_from`). In a long one the provider was away: what was
# accepted before it says nothing of the time, so measuring begins anew.
# No span may hold idle time, or the rate falls to the load that there was: a call that comes late forgets the earlier refusals.
class Pace(Tolerant):
    """The rate at which the calls of one model may start; all times are in seconds, by the clock of who keeps it.

    At two refusals one after the other the provider's bucket is empty, so that what it accepted between them is what it refills. The rate
    is the least that any span between the newest refusal and an earlier one shows; from there it grows with each call, slowly at first.
    """

    rate: float | None = None
    """Calls a second, as last measured; None before the first refusal."""
    behind: int = 0
    """Accepted calls over which the rate was measured."""
    grown: int = 0
    """Calls since then that the pace made wait."""
    accepted: int = 0
    """Calls that have started and were not refused so far."""
    refusals: tuple[RateRefusal, ...] = ()
    in_row: Annotated[int, Field(ge=0)] = 0
    """Refusals since a call was accepted that started behind the first of them."""
    row_from: float = 0.0
    """Time of the first of them."""
    cool_until: float = 0.0
    """No call starts before this."""
    pause: float = LONGEST_PAUSE
    """Seconds from the newest refusal to `cool_until`."""
    next_at: float = 0.0
    """Start of the next call, by the rate."""
    last_refused: float = 0.0
    window_from: float = 0.0
    window_accepted: int = 0
    believes: bool | None = None
    """Whether the provider refuses until its `Retry-After` is over; None where that is not known."""
    probe_at: float | None = None
    """Time at which one call may test a `Retry-After`; None if none may."""
    probing: bool = False
    answered: float = 0.0
    """Time of the last accepted call."""

    @property
    def current(self) -> float | None:
        """The rate with what it has grown by, in calls a second; None where none is known."""
        # The measured rate is slightly too low on purpose, and has to find its way back. It grows by a small share
        # with each call that had to wait. Behind `sure` calls without a refusal the limit must have been raised, and
        # a cubic term, as in TCP CUBIC, soon finds the new one.
        if self.rate is None:
            return None
        sure = min(STEADY_CALLS, 2 * self.behind + 5)
        steady = max(0.0, (self.grown - sure) / sure)
        return self.rate * (1 + GROWTH * self.grown + 0.5 * steady**3)

    def bounded(self, ceiling: float | None) -> float | None:
        """Return the rate that holds: the learnt one, or a ceiling in calls a second that is lower."""
        return min(self.current or math.inf, ceiling or math.inf) if self.current or ceiling else None

    def wait(self, now: float, ahead: int, waiting: int, ceiling: float | None) -> float:
        """Return the seconds until a call may start that has so many others ahead of it, of so many that wait."""
        rate = self.bounded(ceiling)
        until = self._doubted(now) if waiting >= MANY_WAIT else None
        if until is None:
            until = max(self.cool_until, self._next(now, rate) if rate else 0.0)
        return max(now, until) - now + (ahead / rate if rate else 0.0)

    def _next(self, now: float, rate: float) -> float:
        """Return `next_at`; only a clock that was wrong has written one that lies further ahead than a lease and a call."""
        return min(self.next_at, now + LEASE_SECONDS + 1 / rate)

    def _doubted(self, now: float) -> float | None:
        """Return when it is worth a look whether the pause is over that a long `Retry-After` asked for; None where that is known."""
        if now >= self.cool_until:
            return None
        return now + min(PROBE_SECONDS, self.cool_until - now) if self.probing else self.probe_at

    # One number keeps a rate: no call starts before `next_at`, and each start moves it on by one interval. A
    # call that is late by less than SLACK keeps the grid, so that an inexact clock costs no calls. A later call
    # begins a new grid; if the old one stayed, the calls that nobody made in between would all start at once.
    def take(self, now: float, waiting: int, ceiling: float | None, most: int = 1) -> tuple["Pace", float]:
        """Start a call, and return the pace behind it and 0; where none may start yet, a pace and the seconds to wait.

        Where a rate holds, the calls of the next second are started together, one after the other from `next_at` on.

        `ceiling`: the highest rate, in calls a second; None where there is none.
        """
        if now < self.cool_until:
            if self.probe_at is None or waiting < MANY_WAIT:
                return self, self.cool_until - now
            if now < self.probe_at:
                return self, self.probe_at - now
            return self.model_copy(update={"accepted": self.accepted + 1, "probe_at": None, "probing": True}), 0.0
        changed: dict[str, object] = {"accepted": self.accepted + 1}
        if rate := self.bounded(ceiling):
            if now < (next_at := self._next(now, rate)):
                return self.model_copy(update={"next_at": next_at}), next_at - now
            late, calls = now - next_at, max(1, min(most, int(rate * LEASE_SECONDS)))
            changed = {"accepted": self.accepted + calls, "next_at": (next_at if late < SLACK else now) + calls / rate}
            if late > max(2 / rate, 1.0):  # fewer calls come than may: what is accepted then says nothing of the rate
                changed["refusals"] = ()
        return self.model_copy(update=changed), 0.0

    def give_back(self, started: float, calls: int, ceiling: float | None) -> "Pace":
        """Return the pace without calls that were taken together and did not start."""
        rate = self.bounded(ceiling)
        # Calls that lapsed were never made. Their starts are taken out of `accepted`, or the next measure would take
        # them for calls that the provider accepted, and their time is given back, or the pace would pause for them.
        own = self._disowned(started, calls)
        return own.model_copy(update={"next_at": self.next_at - calls / rate}) if rate else own

    def as_of(self, now: float) -> "Pace":
        """Return the pace as it can be now: nothing of it lies ahead, and no pause is longer than it was when it began."""
        # A database that moves to another host has another clock. Times that the old one wrote ahead of the new would
        # stop all calls until then, and make every refusal count as an old one.
        changed = {name: min(getattr(self, name), now) for name in ("last_refused", "row_from", "window_from", "answered")}
        past = tuple(refusal for refusal in self.refusals if refusal.at <= now)
        return self.model_copy(update={**changed, "refusals": past, "cool_until": min(self.cool_until, now + self.pause)})

    def learn(self, rate: float) -> "Pace":
        """Return the pace with a rate that the provider itself has named, where none was measured."""
        return self if self.rate is not None else self.model_copy(update={"rate": rate * MARGIN, "behind": SPAN_CALLS})

    def accept(self, now: float, started: float) -> "Pace":
        """Return the pace after a call that was not refused."""
        changed: dict[str, object] = {"answered": now}
        fresh = now - self.window_from > WINDOW_SECONDS
        changed |= {"window_from": now if fresh else self.window_from, "window_accepted": 1 if fresh else self.window_accepted + 1}
        if started > self.row_from:  # one that had started before the row says nothing of what is accepted now
            changed["in_row"] = 0
            if self.in_row >= AWAY_REFUSALS:
                earlier = [past for past in self.refusals if past.at < started]
                changed["refusals"] = (*earlier[-1:], *(past for past in self.refusals if past.at >= started))
        # Only a call that the pace made wait tests the rate. If any call counted, an idle night would raise the rate
        # without a limit, and the morning would begin with a burst of refusals.
        if self.rate and started > self.last_refused and self.next_at > now - 1.0:
            changed["grown"] = self.grown + 1
        if self.probing and self.last_refused < started < self.cool_until:
            changed |= {"probing": False, "believes": False, "cool_until": now}
            changed["next_at"] = now + (1 / self.current if self.current else 0.0)
        return self.model_copy(update=changed)

    def refuse(self, now: float, started: float, retry_after: float | None) -> "Pace":
        """Return the pace after a refusal; those of calls that started before the last one count as the same one."""
        own = self._disowned(started)
        if started <= self.last_refused:
            return own
        if self.probing and started < self.cool_until:
            believing = own.model_copy(update={"probing": False, "believes": True, "last_refused": now})
            return believing._cool(now, retry_after)  # noqa: SLF001 - of its own class
        accepted = own.accepted
        rate, behind, refusals = own._measured(now, accepted)  # noqa: SLF001 - of its own class
        newest = (*refusals, RateRefusal(at=now, accepted=accepted))
        changed: dict[str, object] = {"rate": rate, "behind": behind, "grown": 0, "in_row": self.in_row + 1, "refusals": newest}
        changed["row_from"] = self.row_from if self.in_row else now
        refused = self.model_copy(update=changed | {"accepted": accepted, "last_refused": now})
        return refused._cool(now, retry_after)  # noqa: SLF001 - of its own class

    def _disowned(self, started: float, calls: int = 1) -> "Pace":
        """Return the pace without calls that had counted as accepted since their start."""
        later = [past.model_copy(update={"accepted": past.accepted - calls}) if past.at >= started else past for past in self.refusals]
        return self.model_copy(update={"accepted": self.accepted - calls, "refusals": tuple(later)})

    # A span measures the rate only if the bucket was empty at both ends, that is, from one refusal to another.
    # Without a refusal that is near enough, the rate is an estimate from what was accepted lately. With one,
    # the calls of the span over its time are the rate. Either result stays at or below the current rate: the
    # refusal has just shown that this rate is too high.
    def _measured(self, now: float, accepted: int) -> tuple[float, int, tuple[RateRefusal, ...]]:
        """Return the rate after a refusal, over how many calls it was measured, and the earlier refusals that still count."""
        current = self.current
        longest = SPAN_SECONDS if current is None else max(SPAN_SECONDS, SPAN_CALLS / current)
        near = tuple(past for past in self.refusals if accepted - past.accepted <= SPAN_CALLS and now - past.at <= longest)
        if not near:
            seconds = min(max(1.0, now - self.window_from), WINDOW_SECONDS)
            shown = max(FIRST_RATE, self.window_accepted / seconds)
            return (shown, 0, ()) if current is None else (min(current * MARGIN, 2 * shown), self.behind, ())
        if self.in_row:  # calls that are in flight in a row of refusals are likely to be refused, too
            accepted = self.refusals[-min(self.in_row, len(self.refusals))].accepted
        behind = accepted - near[0].accepted
        if current is not None and behind <= 0:  # refused whatever comes: the pause sees to that
            return current, self.behind, near
        measured = (behind + 1) / max(now - near[0].at, 0.001)
        return (measured if current is None else min(current, measured) * MARGIN), behind, near

    # A provider may accept calls long before its `Retry-After` is over. So one call probes it after a tenth of
    # the time, if many wait, and `believes` keeps the result. Without the probe a wrong header would stop all
    # calls for minutes. Without `believes` every later refusal would be probed anew.
    def _cool(self, now: float, retry_after: float | None) -> "Pace":
        """Return the pace with the pause that a refusal makes."""
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.in_row - 1, 16)) if self.in_row else FIRST_PAUSE
        if self.rate and (len(self.refusals) > 1 or self.believes is False):
            pause = min(pause, 2.0 ** min(self.in_row - 1, 16) / self.rate)
        if retry_after is None:
            return self._until(now, pause, None)
        if self.believes is False:
            return self._until(now, min(pause, retry_after), None)
        doubtful = self.believes is None and (retry_after > SHORT_RETRY_AFTER or len(self.refusals) > 1)
        return self._until(now, retry_after, now + max(1.0, retry_after / 10) if doubtful else None)

    def _until(self, now: float, pause: float, probe_at: float | None) -> "Pace":
        until = max(self.cool_until, now + pause)
        changed = {"cool_until": until, "pause": until - now, "next_at": max(self.next_at, until), "probe_at": probe_at}
        return self.model_copy(update=changed)


Change = Callable[[Pace, float], tuple[Pace, T]]
"""A change of a pace, by the seconds that its clock is ahead of this process's monotonic one."""


class PaceKeeper(Protocol):
    """Keeps the pace of a model where all who call it find it."""

    leases: bool
    """Whether a worker takes calls ahead, and tells of replies later: whether others share the pace."""
    ahead: float
    """Seconds that the clock of the paces is ahead of this process's monotonic one."""

    async def change(self, key: str, change: Change[T]) -> tuple[Pace, T]:
        """Change a pace, alone, and return it with what the change returns."""
        ...


class LocalPaces:
    """The paces of one worker, by its monotonic clock."""

    leases = False

    def __init__(self) -> None:
        self.ahead = 0.0
        self._paces: dict[str, Pace] = {}

    async def change(self, key: str, change: Change[T]) -> tuple[Pace, T]:
        """Change a pace."""
        pace, result = change(self._paces.get(key) or Pace(), self.ahead)
        self._paces[key] = pace
        return pace, result


class SharedPaces:
    """Keeps paces in a store, a row for each model, by the database's clock; while the store is away, only in the worker."""

    leases = True

    def __init__(self, store: "Store") -> None:
        self.ahead = 0.0
        self._store = store
        self._local = LocalPaces()
        self._known: dict[str, tuple[float, Pace]] = {}
        self._away = False

    async def change(self, key: str, change: Change[T]) -> tuple[Pace, T]:
        """Change a pace, alone among all workers, and return it with what the change returns."""
        # Without a rate and without refusals a change holds nothing that other workers must know. Then a copy
        # that was read less than FRESH_SECONDS ago is enough, and a call needs no round trip to the store. A
        # rate or a refusal always goes to the shared row, whose lock puts the workers' changes in order.
        read, known = self._known.get(key, (0.0, None))
        if known is not None and time.monotonic() - read < FRESH_SECONDS:
            pace, result = change(known, self.ahead)
            if pace.next_at == known.next_at and pace.rate is None and pace.in_row == 0:  # nothing that others must know
                self._known[key] = (read, pace)
                return pace, result
        try:
            self._local.ahead = self.ahead
            pace, result, self.ahead = await self._store.write(lambda connection: _change(connection, key, change))
        except StoreUnavailable as error:
            if not self._away:
                logger.warning("the pace of calls is not shared with other workers: %s", error)
            self._away = True
            return await self._local.change(key, change)
        self._away = False
        self._known[key] = (time.monotonic(), pace)
        return pace, result


def _change(connection: "Connection", key: str, change: Change[T]) -> tuple[Pace, T, float]:
    """Change a model's row, whose lock is taken first, so that its turns follow one after the other; return how far ahead its clock is."""
    from sqlalchemy import func
    from sqlalchemy.dialects import postgresql

    from gradeloop.store.tables import table

    # The first statement writes the row to lock it, and returns the pace as it is under the lock. If the pace
    # were read before the write, two workers could change the same pace, and the first change would be lost.
    paces = table("call_paces")
    named = key[:700]
    clock = func.extract("epoch", func.clock_timestamp())  # when the lock is held, not when the transaction began
    take = paces.update().where(paces.c.model == named).values(turns=paces.c.turns + 1).returning(paces.c.pace, clock)
    found = connection.execute(take).one_or_none()
    if found is None:
        new = postgresql.insert(paces).values(model=named, turns=0, pace=Pace().model_dump_json()).on_conflict_do_nothing()
        connection.execute(new)
        found = connection.execute(take).one()
    kept, now = Pace.model_validate_json(found[0]), float(found[1])
    ahead = now - time.monotonic()
    pace, result = change(kept.as_of(now), ahead)
    connection.execute(paces.update().where(paces.c.model == named).values(pace=pace.model_dump_json()))
    return pace, result, ahead
