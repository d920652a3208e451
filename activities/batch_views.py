"""This process's copies of cases, so that what a shard has read once is not read again for each of its calls."""

from collections import OrderedDict

from gradeloop.batches.ledger import HeldCase, Ledger

CACHE_BYTES = 64 * 1024 * 1024
"""Of cases kept in a worker process."""

OVERHEAD = 4
"""How many times its JSON a case takes as objects, about."""


class CaseViews:
    """Cases by batch and position, the least used dropped first."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held: OrderedDict[tuple[str, int], tuple[HeldCase, int]] = OrderedDict()
        self._bytes = 0

    async def case(self, batch_id: str, position: int, attempt: int) -> HeldCase:
        """Return a case as its attempt began; one of another attempt is read anew."""
        place = (batch_id, position)
        held = self._held.get(place)
        if held is None or held[0].attempt != attempt:
            return await self.again(batch_id, position)
        self._held.move_to_end(place)
        return held[0]

    async def again(self, batch_id: str, position: int) -> HeldCase:
        """Return a case as it stands in the store now."""
        found = await self._ledger.case(batch_id, position)
        self.put(batch_id, position, found)
        return found

    def put(self, batch_id: str, position: int, found: HeldCase) -> None:
        """Keep a copy of a case."""
        place = (batch_id, position)
        self.drop(*place)
        size = OVERHEAD * (found.case.size() + len(found.draft or ""))
        self._held[place] = (found, size)
        self._bytes += size
        while self._bytes > CACHE_BYTES and len(self._held) > 1:
            _, (_, dropped) = self._held.popitem(last=False)
            self._bytes -= dropped

    def drop(self, batch_id: str, position: int) -> None:
        """Forget a case, which has changed or ended."""
        if held := self._held.pop((batch_id, position), None):
            self._bytes -= held[1]
