"""The wire contract of batches: the typed doors to `GradingBatch` and `StoreCases`. Told in `docs/contract.md`."""

from temporalio import workflow

from gradeloop.batches.batch_request import BatchRequest, Upload
from gradeloop.batches.case_result import BatchSummary
from gradeloop.strict import Strict

WORKFLOW = "GradingBatch"
UPLOAD_WORKFLOW = "StoreCases"


class BatchProgress(Strict):
    """The answer of the query `progress`."""

    held: str | None
    """Why no further case is begun; None while cases are."""
    shards: tuple[str, ...]
    """Ids of the shards that are open; each answers `in_flight` with a number."""
    passed: int
    failed: int
    errors: int
    """Of the shards that have ended in this Temporal run."""


@workflow.defn(name=UPLOAD_WORKFLOW)
class StoreCases:
    """Writes a stretch of cases into the store of the worker. The worker's own class answers."""

    @workflow.run
    async def run(self, request: Upload) -> int:
        """Store the cases and return how many the batch has then; the same upload again changes nothing.

        Raises:
            ApplicationError: `InvalidRequest`: an id is there twice, a position holds another case, the worker cannot serve one.
        """
        raise NotImplementedError


@workflow.defn(name=WORKFLOW)
class GradingBatch:
    """Many cases, graded to the last. The worker's own class answers."""

    @workflow.run
    async def run(self, request: BatchRequest) -> BatchSummary:
        """Run every case of the batch that has not ended, and return where it stands then.

        A batch that was paused, cancelled or lost goes on where it stood when it is started again under the same id.

        Raises:
            ApplicationError: `InvalidRequest` before any paid call.
        """
        raise NotImplementedError

    @workflow.signal
    async def pause(self) -> None:
        """Begin no further case; those in flight end."""
        raise NotImplementedError

    @workflow.query
    def progress(self) -> BatchProgress:
        """Return what the workflow itself knows; the store knows more."""
        raise NotImplementedError
