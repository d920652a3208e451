"""Judges made callable: one run, or many at once."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError

from gradeloop.client.thread import ride_out
from gradeloop.contract.messages import Usage
from gradeloop.contract.thread import TASK_QUEUE, Priority
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import GradeloopError, InvalidRequest, RunTooLarge, explain
from gradeloop.judges.contract import (
    UNAVAILABLE,
    JudgeConfig,
    JudgeResult,
    Judging,
    JudgingRequest,
    judging_id,
    parse_judge,
    refuse_large,
    usage_of_failure,
)
from gradeloop.temporal.connect import Connection, connect, find
from gradeloop.temporal.worker import done_before, looked_after

if TYPE_CHECKING:
    from gradeloop.judges.registry import Registry


_REFUSALS: dict[str, type[GradeloopError]] = {"InvalidRequest": InvalidRequest, "RunTooLarge": RunTooLarge}


class Judge:
    """A rubric and a grader made callable on finished runs; the same run is judged once, however often it is asked for."""

    def __init__(
        self,
        config: JudgeConfig | Mapping[str, Any] | str,
        client: Client | None = None,
        *,
        task_queue: str = TASK_QUEUE,
        priority: Priority | None = None,
    ) -> None:
        self.config = parse_judge(dict(config) if isinstance(config, Mapping) else config)
        self._client = client
        self._task_queue = task_queue
        self._priority = priority

    @classmethod
    async def from_registry(
        cls,
        collection: str,
        rubric_id: str,
        version: int | None = None,
        *,
        registry: "Registry | None" = None,
        client: Client | None = None,
        task_queue: str = TASK_QUEUE,
    ) -> "Judge":
        """Return the judge of a registered rubric, to be called on runs.

        Args:
            collection: Where the rubric is registered.
            rubric_id: Its id there.
            version: The newest by default.
            registry: By default that of the store which the environment names, else of the one in the state folder.
            client: As of `build_judge`.
            task_queue: Where a worker serves it.

        Raises:
            InvalidRequest: There is none, or a server is named and no store.
            StoreUnavailable: The store cannot be reached, or is not one of ours.
        """
        from gradeloop.judges.registry import Registry
        from gradeloop.store.engine import own_store

        found = await (registry or Registry(own_store())).get_rubric(collection, rubric_id, version)
        return cls(found, client, task_queue=task_queue)

    async def __call__(self, agent_run: AgentRun | Mapping[str, Any], *, repeat: int = 0) -> JudgeResult:
        """Judge a run and return the result; one that is finished is read, and not paid for again.

        Args:
            agent_run: The run, or its JSON.
            repeat: Which judgement of this run by this judge, from 0; another number is another judgement.

        Raises:
            InvalidRequest: The run is refused; `RunTooLarge`.
            ServerUnreachable: The server is gone for long.
        """
        run = parse_run(agent_run)
        return await self.result(await self.start(run, repeat=repeat), run)

    async def request(self, run: AgentRun, *, repeat: int = 0) -> JudgingRequest:
        """Return what the judgement of a run is started with; nothing is started.

        Raises:
            InvalidRequest: The run is refused; `RunTooLarge`.
        """
        client = await self._connected()
        refuse_large(run, stored=client.data_converter.external_storage is not None)
        try:
            return JudgingRequest(judge=self.config, run=run, repeat=repeat, priority=self._priority)
        except ValidationError as error:
            raise InvalidRequest(explain(error)) from None

    async def start(self, run: AgentRun, *, repeat: int = 0) -> str:
        """Start the judgement of a run, or find it, and return its id.

        Raises:
            InvalidRequest: The run is refused; `RunTooLarge`.
            ServerUnreachable: The server is gone for long.
        """
        client, request = await self._connected(), await self.request(run, repeat=repeat)
        name = judging_id(self.config, run.sha256(), repeat)

        async def start() -> None:
            with suppress(WorkflowAlreadyStartedError):  # and it has ended with a result
                await client.start_workflow(
                    Judging.run,
                    request,
                    id=name,
                    task_queue=self._task_queue,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
                )

        await ride_out(start, repr(name))
        return name

    async def result(self, name: str, run: AgentRun) -> JudgeResult:
        """Wait for a judgement, through restarts of worker and server; where no judge could be had, the result is a `FAILURE`.

        Raises:
            InvalidRequest: The worker refused it.
            ServerUnreachable: The server is gone for long.
        """
        handle: WorkflowHandle[Any, JudgeResult] = (await self._connected()).get_workflow_handle_for(Judging.run, name)
        try:
            found = await ride_out(handle.result, repr(name))
        except WorkflowFailureError as error:
            return self._failed(error, name, run)
        return found.model_copy(update={"rubric_id": self.config.rubric_id, "rubric_version": self.config.version})

    def _failed(self, error: WorkflowFailureError, name: str, run: AgentRun) -> JudgeResult:
        """Return the result of a judgement that nobody gave."""
        cause = error.cause
        kind = cause.type if isinstance(cause, ApplicationError) else None
        if isinstance(cause, ApplicationError) and kind in _REFUSALS:
            raise _REFUSALS[kind](f"{run.id}: {cause.message}") from None
        reason = cause.message if isinstance(cause, ApplicationError) else f"the judgement ended without a result: {cause}"
        usage = usage_of_failure(cause.details) if isinstance(cause, ApplicationError) and kind == UNAVAILABLE else Usage()
        return JudgeResult(
            id=name,
            agent_run_id=run.id,
            rubric_id=self.config.rubric_id,
            rubric_version=self.config.version,
            output={},
            result_type="FAILURE",
            result_metadata={"reason": reason, "again": True},
            usage=usage,
            attempts=usage.attempts,
        )

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = await connect(await find())
        return self._client


def build_judge(rubric: JudgeConfig | Mapping[str, Any] | str, client: Client | None = None, *, task_queue: str = TASK_QUEUE) -> Judge:
    """Return a judge of a rubric that is in no registry.

    Args:
        rubric: A rubric of criteria, as object or text, or a schema judge; Docent's rubric JSON too.
        client: Connected as `gradeloop.temporal.connect.connect` does; by default the server of the environment, or the embedded one.
        task_queue: Where a worker serves it.

    Raises:
        InvalidRequest: The rubric is refused.
    """
    return Judge(rubric, client, task_queue=task_queue)


def parse_run(value: AgentRun | Mapping[str, Any]) -> AgentRun:
    """Return a run, read from its JSON where it is that.

    Raises:
        InvalidRequest: It is none.
    """
    if isinstance(value, AgentRun):
        return value
    try:
        return AgentRun.model_validate(dict(value))
    except ValidationError as error:
        raise InvalidRequest(f"the run: {explain(error)}") from None


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


def parse_reference(text: str) -> tuple[str, str, int | None] | None:
    """Read `COLLECTION/RUBRIC` or `COLLECTION/RUBRIC@VERSION`; None where it is neither."""
    found = re.fullmatch(r"([^/@]+)/([^/@]+?)(?:@(\d{1,9}))?", text)
    return (found[1], found[2], int(found[3]) if found[3] else None) if found else None
