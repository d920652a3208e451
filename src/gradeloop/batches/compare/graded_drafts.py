"""Threads that are compared as batches are: each graded draft of the last turn is a case."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from os.path import isfile

from temporalio.service import RPCError

from gradeloop.batches.contract import CaseResult, CaseStatus
from gradeloop.batches.exports import Kept, ReadBatch, is_batch_file, read_batch
from gradeloop.batches.reader import BatchReader
from gradeloop.client.client import open_thread
from gradeloop.contract.evaluation import Evaluation, EvaluationResult, VerdictResult
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.thread import WORKFLOW
from gradeloop.errors import InvalidRequest, ServerUnreachable, ThreadNotFound
from gradeloop.reports.read_thread import read_thread_record
from gradeloop.settings.paths import state_folder
from gradeloop.settings.worker import is_embedded
from gradeloop.temporal.connect import connect, find
from gradeloop.temporal.server import running_server

_STATUSES: dict[EvaluationResult | VerdictResult, CaseStatus] = {"satisfied": "passed", "needs_revision": "failed"}
"""The results that are verdicts; the others are errors."""


THREAD, BATCH = "thread:", "batch:"
"""The marks before a name that say which of the two is meant."""


def read_compared(named: str, reader: Callable[[], BatchReader], keep: Callable[[CaseResult], Kept]) -> ReadBatch[Kept]:
    """Read a batch or a file as `read_batch` does; where there is neither, the drafts of the thread of that name.

    `thread:NAME` and `batch:NAME` say which is meant.

    Raises:
        InvalidRequest: Nothing has that name, a batch and a thread have it, or the file holds no results.
        ServerUnreachable: No batch has it, and the Temporal server, which knows the threads, does not answer.
    """
    if isfile(named) or named.partition("~")[0] == "latest":  # noqa: PTH113 - Path.is_file raises for a name that is too long
        return read_batch(named, reader, keep)
    if named.startswith(BATCH):
        return read_batch(named.removeprefix(BATCH), reader, keep)
    is_thread, is_batch = named.startswith(THREAD), False
    with suppress(InvalidRequest):  # no store is named, but a server may be
        is_batch = not is_thread and not is_batch_file(named) and asyncio.run(reader().has(named))
    if is_batch and asyncio.run(_has_thread(named)):
        raise InvalidRequest(f"a batch and a thread have the name {named!r}; write {BATCH}{named} or {THREAD}{named}")
    if not is_batch and (drafts := asyncio.run(_read_drafts(name := named.removeprefix(THREAD)))) is not None:
        return ReadBatch(name, [keep(draft) for draft in drafts[0]], thread=drafts[1])
    if is_thread:
        raise InvalidRequest(f"there is no thread {name!r}; gradeloop list shows those that there are")
    try:
        return read_batch(named, reader, keep)
    except InvalidRequest as error:
        raise InvalidRequest(f"{str(error).rstrip('.')}. No thread has that name either.") from None


async def _has_thread(name: str) -> bool:
    """Return whether a server that is up has a thread of that name."""
    if is_embedded() and running_server() is None:
        return False
    with suppress(RPCError, ServerUnreachable):  # a batch has a workflow of its name, too
        found = await (await connect(await find())).get_workflow_handle(name).describe()
        return found.workflow_type == WORKFLOW
    return False


async def _read_drafts(thread_id: str) -> tuple[list[CaseResult], Usage] | None:
    """Return the graded drafts of a thread's last turn, each by its last evaluation, and the usage of the thread; None without a thread."""
    if is_embedded() and running_server() is None and not (state_folder() / "server.db").exists():  # a look-up starts no new server
        return None
    try:
        client, name, _ = await open_thread(thread_id)
    except ThreadNotFound:
        return None
    thread = await read_thread_record(client, name)
    asked = max((at for at, message in enumerate(thread.messages) if message.role == "user" and message.source is None), default=-1)
    last = {evaluation.draft: evaluation for evaluation in thread.evaluations if evaluation.draft > asked}
    return [_case(number, last[at], thread.messages) for number, at in enumerate(sorted(last))], thread.state.usage


def _case(number: int, evaluation: Evaluation, messages: tuple[Message, ...]) -> CaseResult:
    status = _STATUSES.get(evaluation.overridden_result or evaluation.result, "error")
    return CaseResult(
        index=number,
        id=f"draft {number + 1}",
        status=status,
        score=evaluation.score,
        output=messages[evaluation.draft].content,
        criteria=evaluation.criteria,
        error=evaluation.explanation if status == "error" else None,
        usage=evaluation.usage,
        grader=evaluation.grader,
    )
