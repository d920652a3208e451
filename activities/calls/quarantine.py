"""The quarantine of a worker: calls with which a worker was lost are made apart from all others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

GROUP = 10
"""The most calls of a group: of 200 that were in flight at a worker's death, a second death strikes so many at most."""

ALONE = 2
"""Lost workers from which on a call runs with no other call."""

LOST = 3
"""Lost workers after which a call is not made again: the last one ran only this call."""


# A call that kills its worker kills every call in flight with it, so after a death all of them are suspects. Suspects are made in groups
# that shrink, 10 and then 1, and nothing else is in flight meanwhile: only then does a death point at this group. Groups and
# ordinary calls take turns, so that the work of others goes on however many suspects wait.
# Invariant: what is in flight is ordinary calls, or one group. A suspect waits for the ordinary calls in flight, and ordinary calls that
# come later wait for its group; those begin before the next group does. A suspect that joined a group in flight could keep it for ever.
# A call is in flight until its answer is handed over: one that is only in the worker's memory is lost with it, and would be a suspect too.
class Quarantine:
    """Says when a call may be made: among others, or apart from them where workers were lost with it in flight."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._apart = False
        self._suspects: dict[asyncio.Future[None], int] = {}
        self._others: dict[asyncio.Future[None], int] = {}

    @property
    def is_free(self) -> bool:
        """Whether an ordinary call need not wait."""
        return not self._apart and not self._suspects

    @asynccontextmanager
    async def place(self, lost: int) -> AsyncIterator[None]:
        """Make a call in the block once it may be made: among others, or apart where so many workers were lost with it in flight."""
        turn, queue = asyncio.get_running_loop().create_future(), self._suspects if lost else self._others
        queue[turn] = lost
        self._admit()
        try:
            try:
                await turn
            finally:
                self._in_flight += queue.pop(turn, None) is not None  # cancelled before its turn
            yield
        finally:
            self._in_flight -= 1
            self._admit()

    def _admit(self) -> None:
        """Begin what may be in flight now."""
        if self._in_flight and (self._apart or self._suspects):
            return
        self._apart = bool(self._suspects) and not (self._apart and self._others)
        if not self._apart:
            self._begin(self._others, list(self._others))
        elif next(iter(self._suspects.values())) >= ALONE:
            self._begin(self._suspects, list(self._suspects)[:1])
        else:
            self._begin(self._suspects, [turn for turn, lost in self._suspects.items() if lost < ALONE][:GROUP])

    def _begin(self, queue: dict[asyncio.Future[None], int], turns: list[asyncio.Future[None]]) -> None:
        for turn in turns:
            del queue[turn]
            self._in_flight += 1
            if not turn.done():
                turn.set_result(None)
