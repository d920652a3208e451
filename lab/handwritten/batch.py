"""A batch: outputs that are there already, in a file, are graded by one rubric, so many at once.

The file has one JSON object a line, with `id` and `output`, on a disk that all workers share. Cases and verdicts of any number go past the
history: an activity is given a line's place in the file, and each page's verdicts are written to a file of their own.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel, TypeAdapter
from temporalio import activity, workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityConfig

from lab.handwritten.model_call import PAID_CALL, Model
from lab.handwritten.verdict import Verdict, grade

PAGE = 500
"""Cases of one run: some 3,000 events, below the 4,096 from which Temporal suggests a new run."""

FILE_ACCESS = ActivityConfig(start_to_close_timeout=timedelta(minutes=1))
"""Options of an activity that reads or writes a file."""


class Batch(BaseModel):
    """What is graded, and how far it is."""

    cases: Path
    verdicts: Path
    """The folder that the pages of verdicts are written to."""
    rubric: list[str]
    grader: str
    at_once: int = 50
    offset: int = 0
    """Where in the file the next page begins, in bytes."""
    passed: int = 0
    failed: int = 0
    errors: int = 0


class Case(BaseModel):
    """A line of the file."""

    id: str
    output: str


class CaseGrading(BaseModel):
    """The argument of `grade_case`."""

    cases: Path
    offset: int
    rubric: list[str]
    grader: str


class CaseVerdict(BaseModel):
    """The verdict on a case, or why there is none."""

    id: str
    verdict: Verdict | None = None
    error: str | None = None


class BatchActivities:
    """The paid call of a case, and the files around it."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @activity.defn
    async def list_cases(self, batch: Batch) -> list[int]:
        """Return where the lines of the next page begin, and where the last of them ends."""
        return await asyncio.to_thread(_offsets, batch.cases, batch.offset)

    @activity.defn
    async def grade_case(self, grading: CaseGrading) -> CaseVerdict:
        """Return the verdict on a case."""
        case = await asyncio.to_thread(_read_case, grading.cases, grading.offset)
        verdict = await grade(self._model, grading.grader, grading.rubric, case.output)
        return CaseVerdict(id=case.id, verdict=verdict)

    @activity.defn
    async def write_page(self, batch: Batch, page: list[CaseVerdict]) -> None:
        """Write the verdicts of a page; writing them again changes nothing."""
        file = batch.verdicts / f"{batch.offset:012}.json"
        await asyncio.to_thread(file.write_bytes, TypeAdapter(list[CaseVerdict]).dump_json(page))


def _offsets(cases: Path, begin: int) -> list[int]:
    with cases.open("rb") as file:
        file.seek(begin)
        offsets = [begin]
        while len(offsets) <= PAGE and file.readline():
            offsets.append(file.tell())
    return offsets


def _read_case(cases: Path, offset: int) -> Case:
    with cases.open("rb") as file:
        file.seek(offset)
        return Case.model_validate_json(file.readline())


@workflow.defn
class GradedBatch:
    """Grades a page of cases, and continues as new with the next one."""

    @workflow.run
    async def run(self, batch: Batch) -> Batch:
        """Return the batch with its counts, once it is at the end of the file."""
        *offsets, end = await workflow.execute_activity_method(BatchActivities.list_cases, batch, **FILE_ACCESS)
        gate = asyncio.Semaphore(batch.at_once)

        async def graded(offset: int) -> CaseVerdict:
            grading = CaseGrading(cases=batch.cases, offset=offset, rubric=batch.rubric, grader=batch.grader)
            async with gate:
                try:
                    return await workflow.execute_activity_method(BatchActivities.grade_case, grading, **PAID_CALL)
                except ActivityError as error:
                    return CaseVerdict(id=f"at {offset}", error=str(error.cause))

        page = await asyncio.gather(*map(graded, offsets))
        await workflow.execute_activity_method(BatchActivities.write_page, args=[batch, page], **FILE_ACCESS)
        passes = [case.verdict.satisfied for case in page if case.verdict is not None]
        batch.passed, batch.failed = batch.passed + passes.count(True), batch.failed + passes.count(False)
        batch.errors, batch.offset = batch.errors + len(page) - len(passes), end
        if len(offsets) == PAGE:
            workflow.continue_as_new(batch)
        return batch
