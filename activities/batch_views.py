"""This process's copies of cases, so that what a shard has read once is not read again for each of its calls."""

from activities.state_cache import ByteBoundedCache
from gradeloop.batches.ledger import HeldCase, Ledger

CACHE_BYTES = 64 * 1024 * 1024
"""Of cases kept in a worker process."""

OVERHEAD = 4
"""How many times its JSON a case takes as objects, about."""


class CaseViews:
    """Cases by batch and position, the least used dropped first."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._cases: ByteBoundedCache[tuple[str, int], HeldCase] = ByteBoundedCache(CACHE_BYTES)

    async def case(self, batch_id: str, position: int, attempt: int) -> HeldCase:
        """Return a case as its attempt began; one of another attempt is read anew."""
        found = self._cases.get((batch_id, position))
        return found if found and found.attempt == attempt else await self.again(batch_id, position)

    async def again(self, batch_id: str, position: int) -> HeldCase:
        """Return a case as it stands in the store now."""
        found = await self._ledger.case(batch_id, position)
        self.put(batch_id, position, found)
        return found

    def put(self, batch_id: str, position: int, found: HeldCase) -> None:
        """Keep a copy of a case."""
        self._cases.put((batch_id, position), found, OVERHEAD * (found.case.size() + len(found.draft or "")))

    def drop(self, batch_id: str, position: int) -> None:
        """Forget a case, which has changed or ended."""
        self._cases.drop((batch_id, position))
