"""The activities of batches at a worker, or two that refuse every batch where it has no store."""

from collections.abc import Callable
from typing import Any

from temporalio import activity

from activities.batches.case_questions import refuse_case
from activities.batches.cases import BatchActivities
from activities.capabilities import Admission, WorkerServices
from activities.errors import invalid
from gradeloop.batches.contract import NO_STORE, BatchRequest, Case, OpenedBatch
from gradeloop.batches.early import EarlyGates
from gradeloop.batches.store import BatchStore
from gradeloop.store.engine import STORE_CURE, Store
from gradeloop.store.fleet import Fleet

ADMISSION = Admission(Case, refuse_case)


def batch_activities(services: WorkerServices, store: Store | None, fleet: Fleet) -> list[Callable[..., Any]]:
    """Return the activities of batches; on a worker without a store, two that refuse every batch with the cure."""
    if store is None:
        return _refusing_activities(f"{NO_STORE}, in which a batch's cases are kept; {STORE_CURE}, for the worker too")
    kept = BatchStore(store, fleet.worker_id)
    batches = BatchActivities(services, kept, EarlyGates(kept.do, store), fleet)
    return [
        batches.store_cases,
        batches.open_batch,
        batches.open_shard,
        batches.fill_case,
        batches.draft_case,
        batches.grade_case,
        batches.compare_cases,
        batches.fail_case,
        batches.case_workflow,
        batches.finish_case,
        batches.close_batch,
    ]


def _refusing_activities(why: str) -> list[Callable[..., Any]]:
    """Return the two activities with which a batch begins."""

    @activity.defn(name="store_cases")
    async def store_cases(_raw: dict[str, Any]) -> int:
        raise invalid(why)

    @activity.defn(name="open_batch")
    async def open_batch(_request: BatchRequest) -> OpenedBatch:
        raise invalid(why)

    return [store_cases, open_batch]
