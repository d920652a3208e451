"""Batches as the tests build them: cases, what the judge says of each, a worker with a store, and the batch run to its end."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy

from gradeloop.batches.contract import BatchRequest, BatchSummary, Case, CaseResult, GradingBatch, StoreCases, Upload
from gradeloop.batches.reader import BatchReader
from gradeloop.store.engine import Store
from tests.rig.threads import Reply, Served, row, serving, verdict

JUDGE = {"model": "scripted:judge"}


def case(name: str, output: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a case with an output of its own, judged by one criterion."""
    given: dict[str, Any] = {"output": output if output is not None else f"the output of {name}."}
    given = {} if "generator" in more else given
    return {"id": name, "rubric": "- it is good", "grader": JUDGE, **given, **more}


def drafted(name: str, **more: Any) -> dict[str, Any]:
    """Return a case that a model drafts."""
    said = [{"role": "user", "content": f"Write {name}."}]
    return case(name, generator={"model": "scripted:writer"}, messages=said, **more)


def passes(when: str | None = None, **more: Any) -> Reply:
    """Return the judge's pass of what holds a text."""
    return {"role": "grader", "verdict": verdict(row("c1"))} | ({"when": when} if when else {}) | more


def fails(when: str | None = None, gap: str = "it is not", **more: Any) -> Reply:
    """Return the judge's fail of what holds a text."""
    return {"role": "grader", "verdict": verdict(row("c1", gap))} | ({"when": when} if when else {}) | more


def breaks(when: str | None = None, kind: str = "auth", role: str = "grader", **more: Any) -> Reply:
    """Return a call that fails."""
    return {"role": role, "error": {"kind": kind, "message": "as it was told to"}} | ({"when": when} if when else {}) | more


@dataclass(frozen=True)
class Batches:
    """A worker with a store."""

    client: Client
    served: Served
    store: Store

    @property
    def reader(self) -> BatchReader:
        """What the command reads."""
        return BatchReader(self.store)

    async def upload(self, batch_id: str, cases: Sequence[Mapping[str, Any]], *, first: int = 0) -> int:
        """Store cases."""
        upload = Upload(batch_id=batch_id, first=first, cases=tuple(Case.model_validate(case) for case in cases))
        name = f"store/{batch_id}/{first}/{uuid4()}"
        return await self.client.execute_workflow(StoreCases.run, upload, id=name, task_queue=self.served.task_queue)

    async def start(self, batch_id: str, total: int, **more: Any) -> WorkflowHandle[Any, BatchSummary]:
        """Start a batch whose cases are stored, or go on with it."""
        request = BatchRequest.model_validate({"batch_id": batch_id, "total": total} | more)
        return await self.client.start_workflow(
            GradingBatch.run,
            request,
            id=batch_id,
            task_queue=self.served.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )

    async def run(self, cases: Sequence[Mapping[str, Any]], **more: Any) -> tuple[BatchSummary, list[CaseResult]]:
        """Store cases, run them as a batch, and return where it stands and its results."""
        batch_id = more.pop("batch_id", f"batch-{uuid4()}")
        await self.upload(batch_id, cases)
        summary = await (await self.start(batch_id, len(cases), **more)).result()
        return summary, list(self.reader.results(batch_id))


@asynccontextmanager
async def batching(client: Client, folder: Path, *replies: Reply, url: str | None = None, **options: Any) -> AsyncIterator[Batches]:
    """Serve batches on a queue of their own, with a store of their own."""
    store = Store(url or f"sqlite:///{folder / 'results.db'}")
    async with serving(client, *replies, store=store, **options) as served:
        yield Batches(client, served, store)
    store.close()
