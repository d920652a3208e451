"""What `gradeloop report` is asked to tell of: a batch, a thread, or judgements, by whatever it is called."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gradeloop.batches.contract import BatchSummary
from gradeloop.batches.reader import BatchReader
from gradeloop.calibration.agreement import read_results
from gradeloop.client.client import GradingClient
from gradeloop.client.listing import LATEST, threads
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, StoreUnavailable
from gradeloop.judges.client import parse_reference
from gradeloop.judges.contract import JudgeResult
from gradeloop.judges.sources import load_runs
from gradeloop.reports.read_batch import batch_page, batch_report, report_of_file, threads_of
from gradeloop.reports.read_judgement import JudgementReport, judgement_page, judgements_named, read_judgement_reports
from gradeloop.reports.read_thread import read_thread_report
from gradeloop.reports.run_page import run_page
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import connect, find
from gradeloop.text import clip

if TYPE_CHECKING:
    from temporalio.client import Client


Kind = Literal["thread", "batch", "judgements"]


@dataclass(frozen=True)
class ReportSubject:
    """What is told of.

    Args:
        name: As the user wrote it.
        kind: What it is, where the user says so; found out otherwise.
        runs: Files of runs that were judged, for their transcripts.
    """

    name: str
    kind: Kind | None = None
    runs: tuple[str, ...] = ()

    async def page(self) -> str:
        """Return the page of it.

        Raises:
            GradeloopError: There is none, or it cannot be read; with one sentence for the user.
        """
        kind = self.kind or await self._kind()
        if kind == "thread":
            return await self._thread()
        return await (self._batch() if kind == "batch" else self._judgements())

    async def _kind(self) -> Kind:
        """Find out what the name stands for: a file, a batch of the store, a thread of the server, a judge's judgements."""
        if self._is_file():
            return "judgements" if _holds_judgements(Path(self.name)) else "batch"
        if self.name == LATEST:
            return "batch" if await _is_newest(await _stored(LATEST)) else "thread"
        if await _stored(self.name) is not None:
            return "batch"
        if await _is_thread(self.name):
            return "thread"
        if parse_reference(self.name) is not None:
            return "judgements"
        words = "is not a file, a batch in the store, a thread on the server, or a registered judge"
        raise InvalidRequest(f"{clip(self.name)} {words}; `gradeloop batches list` and `gradeloop list` list what exists")

    def _is_file(self) -> bool:
        return Path(self.name).suffix.lower() in {".json", ".jsonl"} or Path(self.name).is_file()

    async def _thread(self) -> str:
        from gradeloop.client.client import open_thread

        client, thread_id, _ = await open_thread(self.name)
        return run_page(await read_thread_report(client, thread_id))

    async def _batch(self) -> str:
        if self._is_file():
            return batch_page(report_of_file(Path(self.name)))
        return batch_page(await batch_report(BatchReader(own_store()), self.name, threads_of))

    async def _judgements(self) -> str:
        title, results = await self._results()
        runs = {run.id: run for run in await load_runs(self.runs, None)} if self.runs else {}
        at_hand = all(result.agent_run_id in runs for result in results)
        stories = await read_judgement_reports(results, runs, None if at_hand else await _temporal())
        about = {"judge": title, "judgements": f"{len(results):,}"}
        return judgement_page(JudgementReport(title, stories, about))

    async def _results(self) -> tuple[str, Sequence[JudgeResult]]:
        if self._is_file():
            results = read_results(Path(self.name))
            judges = {f"{result.rubric_id}, version {result.rubric_version}" for result in results}
            return " and ".join(sorted(judges)), results
        kept = await judgements_named(self.name)
        return kept.name, kept.results


async def _stored(name: str) -> BatchSummary | None:
    """Return a batch of the store; None where there is none of that name, or no store."""
    try:
        reader = BatchReader(own_store())
        return await reader.summary(name) if name == LATEST or await reader.has(name) else None
    except (InvalidRequest, StoreUnavailable):
        return None


async def _is_newest(batch: BatchSummary | None) -> bool:
    """True where a batch was begun after the newest thread that is none of its own."""
    if batch is None:
        return False
    with contextlib.suppress(GradeloopError):
        async for thread in threads(await connect(await find()), limit=1):
            return thread.thread_id.startswith(f"{batch.batch_id}/") or thread.started < datetime.fromisoformat(batch.created)
    return True


async def _is_thread(name: str) -> bool:
    """True where the server knows a thread of that name.

    Raises:
        ServerUnreachable: It does not answer, and the name can stand for nothing else.
    """
    try:
        await GradingClient(await connect(await find())).task_queue_of(name)
    except ServerUnreachable:
        if parse_reference(name) is None:
            raise
        return False
    except GradeloopError:
        return False
    return True


async def _temporal() -> "Client | None":
    """Return a connection to where the judgements ran; None where nobody answers there."""
    with contextlib.suppress(GradeloopError):
        return await connect(await find())
    return None


def _holds_judgements(path: Path) -> bool:
    """True for a file whose first line is a judgement."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and "agent_run_id" in first
