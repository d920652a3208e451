"""The gates of batches that end as soon as their answer is known: what a worker asks after each end of a case."""

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Connection, select

from gradeloop.batches.contract import BatchRequest, CaseResult
from gradeloop.batches.gate import corrected_gate
from gradeloop.batches.reader import PAGE, BatchReader, parse_request
from gradeloop.judges.contract import PassGate
from gradeloop.judges.pass_rule import with_gate
from gradeloop.judges.registry import JudgeRegistry
from gradeloop.stats.decided import EarlyAnswer, EarlyGate, Kind, UntilDecided
from gradeloop.store.engine import Store
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

    def __init__(self, do: Callable[..., Awaitable[Any]], store: Store) -> None:
        """Begin without a gate; `do` does work on the store's connection."""
        self._do, self._reader, self._registry = do, BatchReader(store), JudgeRegistry(store)
        self._gates: dict[str, tuple[EarlyGate, int]] = {}

    async def decide(self, batch_id: str, run_id: str) -> str | None:
        """Take the cases that have ended in order, and return why nothing more is asked, once the answer is known; the batch says so then.

        The run is that of the workflow that asks.
        """
        while True:
            _, position = self._gates.get(run_id, (None, 0))
            request, rows = await self._do(lambda connection, at=position: _read(connection, batch_id, at), alone=True)
            if request.decision is not None or request.until_decided is None:
                return None if request.decision is None else _reason(request.decision)
            if run_id not in self._gates:
                if (begun := await self._begin(request, request.until_decided)) is None:
                    return None
                self._gates[run_id] = begun, begun.seen
                continue
            # Another case of this worker may have moved the gate on since the rows were read. So a row counts
            # only at the gate's own position. Otherwise a case would be taken twice, and the test would hold
            # for another sample.
            gate, position = self._gates[run_id]
            for at, kind in rows:
                if at == position and kind is not None and gate.decision is None:
                    gate.take(kind)
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

    async def _begin(self, request: BatchRequest, until: UntilDecided) -> EarlyGate | None:
        """Return the gate of a batch before its first case; None while a case has not ended whose labels measure the judge's error."""
        if request.baseline is not None:
            return EarlyGate(until.first, 1.0, until.risk)
        if not request.labels:
            return EarlyGate(request.total, request.pass_rate, until.risk)
        first = (_CASES.c.batch_id == request.batch_id, _CASES.c.position < until.first, _CASES.c.status.in_(("queued", "waiting")))
        left = await self._do(lambda connection: connection.execute(select(_CASES.c.position).where(*first)).first(), alone=True)
        return None if left else await corrected_gate(self._reader, request, self._registry)


def _read(connection: Connection, batch_id: str, position: int) -> tuple[BatchRequest, list[tuple[int, Kind | None]]]:
    """Return a batch's request, and what the cases from a position on say to its gate; None of those that have not ended."""
    request = parse_request(connection.execute(select(_BATCHES.c.request).where(_BATCHES.c.id == batch_id)).scalar_one())
    # Only the first cases may regress from a baseline, so that no other one says anything to that gate.
    until = request.until_decided
    last = until.first if until is not None and request.baseline is not None else request.total
    mine = (_CASES.c.batch_id == batch_id, _CASES.c.position >= position, _CASES.c.position < last)
    rule = until.pass_if if until is not None else None
    columns = (_CASES.c.position, _CASES.c.status, *([_CASES.c.result] if rule is not None else []))
    rows = connection.execute(select(*columns).where(*mine).order_by(_CASES.c.position).limit(PAGE))
    return request, [(row.position, _kind(row.status, row.result if rule is not None else None, rule)) for row in rows]


def _kind(status: str, result: str | None, rule: dict[str, Any] | None) -> Kind | None:
    if status in {"queued", "waiting"}:
        return None
    if rule is not None and result is not None and (judged := CaseResult.model_validate_json(result).judgement) is not None:
        passed = with_gate(judged, PassGate(pass_if=rule)).passed
        return "neither" if passed is None else "passed" if passed else "failed"
    return _SAID.get(status, "neither")


def _reason(answer: EarlyAnswer) -> str:
    return f"{answer.answer} after {counted(answer.asked, 'case')}"
