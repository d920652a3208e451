"""Callbacks: told once of each evaluation of a turn, with a copy, and without effect on it."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from gradeloop.contracts import RunResult
from gradeloop.errors import GradeloopError
from gradeloop.evaluation import Evaluation
from gradeloop.page import Page

SECONDS = 0.2

logger = logging.getLogger("gradeloop")


class Reader(Protocol):
    """Where a thread's evaluations are read."""

    async def evaluations(self, thread_id: str, *, after: int = 0, limit: int = 1000) -> Page[Evaluation]:
        """Return a page of the evaluations from index `after`."""
        ...


class Telling:
    """Tells a callback of the evaluations that a thread gains while a turn is waited for."""

    def __init__(self, client: Reader, thread_id: str, callback: Callable[[Evaluation], Awaitable[None] | None]) -> None:
        self._client = client
        self._thread_id = thread_id
        self._callback = callback
        self._told: set[tuple[str, int]] = set()

    async def during(self, turn: Coroutine[Any, Any, RunResult]) -> RunResult:
        """Wait for the turn, telling of its evaluations as they come, of all of them before it returns."""
        start = await self._total()
        telling = asyncio.create_task(self._follow(start))
        try:
            result = await turn
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling
        for evaluation in result.evaluations:
            await self._tell(evaluation)
        return result

    async def _total(self) -> int:
        try:
            return (await self._client.evaluations(self._thread_id, after=10**9)).total
        except GradeloopError:
            return 0

    async def _follow(self, start: int) -> None:
        while True:
            await asyncio.sleep(SECONDS)
            with contextlib.suppress(GradeloopError):
                page = await self._client.evaluations(self._thread_id, after=start)
                start += len(page.items)
                for evaluation in page.items:
                    await asyncio.shield(self._tell(evaluation))

    async def _tell(self, evaluation: Evaluation) -> None:
        place = (evaluation.grading_run_id, evaluation.iteration)
        if place in self._told:
            return
        self._told.add(place)
        try:
            answer = self._callback(evaluation.model_copy(deep=True))
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            logger.exception("on_evaluation raised for iteration %d of %s", evaluation.iteration, self._thread_id)
