"""The runs that this process judges, by their sha256; what it lacks, it pages from the workflow by query, which leaves no history."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

from pydantic import Field
from temporalio import activity

from activities.state_cache import ByteBoundedCache
from gradeloop.judges.agent_run import AgentRun
from gradeloop.judges.schema_judge import SchemaJudge
from gradeloop.strict import Strict

CACHE_BYTES = 256 * 1024 * 1024
"""Runs kept in a worker process: some 170 of the largest size."""

QUERY = "subject"
"""The query that pages what is judged."""


class Subject(Strict):
    """What is judged, and by whom."""

    judge: SchemaJudge
    run: AgentRun


class SubjectRef(Strict):
    """A subject by its sha256 and size, and in full where a call carries it."""

    sha256: str
    bytes: int
    subject: Subject | None = Field(default=None, exclude_if=lambda value: value is None)


class SubjectPage(Strict):
    """A stretch of a subject's JSON."""

    text: str
    next: int | None


class RunViews:
    """This process's copies of what is judged, the least used first to go."""

    def __init__(self) -> None:
        self._subjects: ByteBoundedCache[str, Subject] = ByteBoundedCache(CACHE_BYTES)
        self._fetching: dict[str, asyncio.Lock] = {}

    async def subject(self, reference: SubjectRef) -> Subject:
        """Return what a call refers to, from the call itself, from memory, or from the workflow."""
        if reference.subject is not None:
            return self._keep(reference, reference.subject)
        lock = self._fetching.setdefault(reference.sha256, asyncio.Lock())
        try:
            async with lock:
                found = self._subjects.get(reference.sha256)
                return found or self._keep(reference, await _fetched(reference, _query))
        finally:
            if not lock.locked():
                self._fetching.pop(reference.sha256, None)

    def _keep(self, reference: SubjectRef, subject: Subject) -> Subject:
        self._subjects.put(reference.sha256, subject, reference.bytes)
        return subject


async def _fetched(reference: SubjectRef, query: Callable[[int], Awaitable[SubjectPage]]) -> Subject:
    parts: list[str] = []
    at: int | None = 0
    while at is not None:
        page = await query(at)
        parts.append(page.text)
        at = page.next
    text = "".join(parts)
    if hashlib.sha256(text.encode()).hexdigest() != reference.sha256:
        raise LookupError(f"what the workflow judges does not match its reference ({reference.bytes} bytes)")
    return Subject.model_validate_json(text)


async def _query(offset: int) -> SubjectPage:
    info = activity.info()
    handle = activity.client().get_workflow_handle(str(info.workflow_id), run_id=info.workflow_run_id)
    return SubjectPage.model_validate(await handle.query(QUERY, offset))
