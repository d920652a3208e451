"""The gates of batches that end as soon as their answer is known: what a worker asks after each end of a case."""

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Connection, select

from gradeloop.batches.contract import BatchRequest
from gradeloop.batches.reader import PAGE, parse_request
from gradeloop.stats.decided import EarlyAnswer, EarlyGate, Kind
from gradeloop.store.tables import table
from gradeloop.text import counted

MOST_GATES = 100
"""The most gates that a worker keeps; one more begins anew, at the first case."""

_BATCHES, _CASES = table("batches"), table("cases")

_SAID: dict[str, Kind] = {"passed": "passed", "failed": "failed"}


class EarlyGates:
    """The gates of a worker, each with the position of the next case that it takes, by the run of the workflow that asks.

    Every worker comes to the same answer, since cases enter in the order of the batch, whenever they end. A batch that is run again, with
    cases that change, has other runs.
    """

    def __init__(self, do: Callable[..., Awaitable[Any]]) -> None:
        """Begin without a gate; `do` does work on the store's connection."""
        self._do = do
        self._gates: dict[str, tuple[EarlyGate, int]] = {}

    async def decide(self, batch_id: str, run_id: str) -> str | None:
        """Take the cases that have ended in order, and return why nothing more is asked, once the answer is known; the batch says so then.

        Args:
            batch_id: The batch.
            run_id: The run of the workflow that asks.
        """
        while True:
            _, position = self._gates.get(run_id, (None, 0))
            request, rows = await self._do(lambda connection, at=position: _read(connection, batch_id, at), alone=True)
            if request.decision is not None or request.until_decided is None:
                return None if request.decision is None else _reason(request.decision)
            if run_id not in self._gates:
                self._gates[run_id] = EarlyGate(request.total, request.pass_rate, request.until_decided.risk), 0
            gate, position = self._gates[run_id]  # which another case may have moved on meanwhile
            for at, status in rows:
                if at == position and status not in {"queued", "waiting"} and gate.decision is None:
                    gate.take(_SAID.get(status, "neither"))
                    position += 1
            self._gates[run_id] = gate, position
            if gate.decision is not None or len(rows) < PAGE or position <= rows[-1][0]:
                break
        while len(self._gates) > MOST_GATES:
            self._gates.pop(next(iter(self._gates)))
        if (known := gate.decision) is None:
            return None
        self._gates.pop(run_id, None)
        values = {"request": request.model_copy(update={"decision": known}).model_dump_json(), "status": "paused", "reason": _reason(known)}
        paused = _BATCHES.update().where(_BATCHES.c.id == batch_id, _BATCHES.c.status == "running").values(**values)
        await self._do(lambda connection: connection.execute(paused), alone=True)
        return _reason(known)


def _read(connection: Connection, batch_id: str, position: int) -> tuple[BatchRequest, list[tuple[int, str]]]:
    """Return a batch's request, and the statuses of the cases from a position on."""
    request = parse_request(connection.execute(select(_BATCHES.c.request).where(_BATCHES.c.id == batch_id)).scalar_one())
    mine = (_CASES.c.batch_id == batch_id, _CASES.c.position >= position)
    rows = connection.execute(select(_CASES.c.position, _CASES.c.status).where(*mine).order_by(_CASES.c.position).limit(PAGE))
    return request, [(row.position, row.status) for row in rows]


def _reason(answer: EarlyAnswer) -> str:
    return f"{answer.answer} after {counted(answer.asked, 'case')}"
