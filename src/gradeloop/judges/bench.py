"""Many runs before one judge: so many at once, each result told as it comes, kept in the order of the runs."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gradeloop.connection import Connection
from gradeloop.judges.agent_run import AgentRun
from gradeloop.judges.judge import Judge
from gradeloop.judges.judge_result import JudgeResult
from gradeloop.worker_process import done_before, looked_after

AT_ONCE = 50
"""Judgements that are open at once by default; the worker has limits of its own."""


@dataclass
class Bench:
    """Judges runs, and keeps what comes of them."""

    judge: Judge
    runs: Sequence[AgentRun]
    repeats: int = 1
    at_once: int = AT_ONCE
    results: dict[tuple[int, int], JudgeResult] = field(default_factory=dict)
    """By the run's position and the repeat."""

    @property
    def total(self) -> int:
        """How many judgements there are to be."""
        return len(self.runs) * self.repeats

    @property
    def ordered(self) -> list[tuple[JudgeResult, int]]:
        """The results in the order of the runs, each with its repeat."""
        return [(self.results[place], place[1]) for place in sorted(self.results)]

    async def judge_all(self, told: Callable[[JudgeResult, int], None]) -> None:
        """Judge every run so often; results that are there when this is cancelled stay.

        Raises:
            GradeloopError: A run is refused, or the server is gone for long; the other judgements go on at the server.
        """
        slots = asyncio.Semaphore(self.at_once)

        async def one(at: int, repeat: int) -> None:
            async with slots:
                result = await self.judge(self.runs[at], repeat=repeat)
            self.results[at, repeat] = result
            told(result, repeat)

        tasks = [asyncio.create_task(one(at, repeat)) for at in range(len(self.runs)) for repeat in range(self.repeats)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def attended(bench: Bench, task_queue: str, connection: Connection, told: Callable[[JudgeResult, int], None]) -> None:
    """Judge all runs, with an eye on the worker."""
    await done_before(bench.judge_all(told), looked_after(task_queue, connection))


def reference(text: str) -> tuple[str, str, int | None] | None:
    """Read `COLLECTION/RUBRIC` or `COLLECTION/RUBRIC@VERSION`; None where it is neither."""
    found = re.fullmatch(r"([^/@]+)/([^/@]+?)(?:@(\d{1,9}))?", text)
    return (found[1], found[2], int(found[3]) if found[3] else None) if found else None
