"""Judges made callable on finished runs, one at a time."""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError

from gradeloop.client.thread import ride_out
from gradeloop.contract.messages import Usage
from gradeloop.contract.thread import TASK_QUEUE, Priority
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import GradeloopError, InvalidRequest, RunTooLarge, explained
from gradeloop.judges import contract
from gradeloop.judges.pass_rule import with_unsure
from gradeloop.settings.trust import find_config_file
from gradeloop.settings.worker import with_tenant
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import Connection, WorkerSpec, connect, ensure_worker, find

if TYPE_CHECKING:
    from gradeloop.judges.registry import JudgeRegistry

_REFUSALS: dict[str, type[GradeloopError]] = {"InvalidRequest": InvalidRequest, "RunTooLarge": RunTooLarge}
"""Errors of the library by the type with which a worker's failure names them."""


class Judge:
    """A rubric and a grader made callable on finished runs, each judged once: `result = await Judge("judge.yaml")(run)`."""

    def __init__(
        self,
        config: contract.JudgeConfig | Mapping[str, Any] | str,
        client: Client | None = None,
        *,
        task_queue: str = TASK_QUEUE,
        priority: Priority | None = None,
    ) -> None:
        self.config = contract.parse_judge(dict(config) if isinstance(config, Mapping) else config)
        self._client = client
        self.task_queue = task_queue
        self.priority = with_tenant(priority, level=4)
        self.in_flight: dict[str, None] = {}
        """The workflows of judgements and batches of them that are waited for, the oldest first."""

    @classmethod
    async def from_registry(
        cls,
        collection: str,
        rubric_id: str,
        version: int | None = None,
        *,
        registry: "JudgeRegistry | None" = None,
        client: Client | None = None,
        task_queue: str = TASK_QUEUE,
    ) -> "Judge":
        """Return the judge of a registered rubric, to be called on runs.

        Args:
            collection: Where the rubric is registered.
            rubric_id: Its id there.
            version: Which version; the newest by default.
            registry: Where it is looked up; by default in the store that the environment names, else in the state folder's.
            client: Connected as `gradeloop.temporal.connect.connect` does; by default the server of the environment, or the embedded one.
            task_queue: The queue of the worker that judges.

        Raises:
            InvalidRequest: There is none, or a server is named and no store.
            StoreUnavailable: The store cannot be reached, or is not one of ours.
        """
        from gradeloop.judges.registry import JudgeRegistry  # loads SQLAlchemy, which no other judge needs

        found = await (registry or JudgeRegistry(own_store())).get_rubric(collection, rubric_id, version)
        return cls(found, client, task_queue=task_queue)

    async def __call__(self, agent_run: AgentRun | Mapping[str, Any], *, repeat: int = 0, retry: bool = False) -> contract.JudgeResult:
        """Judge a run and return the result; one that is finished is read, and not paid for again.

        Args:
            agent_run: The run, or its JSON.
            repeat: Which judgement of this run by this judge, from 0; another number is another judgement.
            retry: Whether a judgement that had ended as a `FAILURE`, since the judge's answers stayed invalid, is made again. One that got
                no judge's answer always is.

        Raises:
            InvalidRequest: The run is refused; as `RunTooLarge` because of its size.
            ServerUnreachable: The server stays unreachable.
        """
        run = parse_run(agent_run)
        return await self.result(await self.start(run, repeat=repeat, retry=retry), run)

    async def request(self, run: AgentRun, *, repeat: int = 0) -> contract.JudgingRequest:
        """Build the request that starts the judgement of a run, without starting it; raise InvalidRequest where the run is refused."""
        contract.refuse_unanswered(run)
        client = await self.connected()
        contract.refuse_large(run, stored=client.data_converter.external_storage is not None)
        with explained():
            return contract.JudgingRequest(judge=self.config, run=run, repeat=repeat, priority=self.priority)

    async def start(self, run: AgentRun, *, repeat: int = 0, retry: bool = False) -> str:
        """Start the judgement of a run, or find it, and return its id; arguments and errors are those of a call."""
        client, request = await self.connected(), await self.request(run, repeat=repeat)
        name = contract.judging_id(self.config, run.sha256(), repeat, priority=self.priority)

        # The workflow's id is made of judge and run, so the server keeps a second judgement from being paid
        # for: one that runs is joined, one with a result is found, and only one that ended without a result
        # begins anew. `retry` allows a new one only after the result was read and is a failure.
        async def start(reuse: WorkflowIDReusePolicy) -> bool:
            """Start it, or find it running; False where it has ended with a result."""
            with suppress(WorkflowAlreadyStartedError):
                await client.start_workflow(
                    contract.Judging.run,
                    request,
                    id=name,
                    task_queue=self.task_queue,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    id_reuse_policy=reuse,
                )
                return True
            return False

        what = f"the judgement of the run {run.id!r}"
        started = await ride_out(lambda: start(WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY), what)
        if retry and not started and (await self.result(name, run)).failed:
            await ride_out(lambda: start(WorkflowIDReusePolicy.ALLOW_DUPLICATE), what)
        return name

    async def result(self, name: str, run: AgentRun) -> contract.JudgeResult:
        """Wait for a judgement, through restarts of worker and server; without a judge's answer the result is a `FAILURE`.

        Raises:
            InvalidRequest: The worker refused the request.
            ServerUnreachable: The server stays unreachable.
        """
        handle: WorkflowHandle[Any, contract.JudgeResult] = (await self.connected()).get_workflow_handle_for(contract.Judging.run, name)
        self.in_flight[name] = None
        try:
            found = await ride_out(handle.result, f"the judgement of the run {run.id!r}")
        except WorkflowFailureError as error:
            return self._failed(error, name, run)
        finally:
            self.in_flight.pop(name, None)
        return self.named(found, run)

    def named(self, result: contract.JudgeResult, run: AgentRun) -> contract.JudgeResult:
        """Return a result of this judge with the judge's own id and version, which play no part in judging, and what was judged."""
        return with_unsure(self.config, result.model_copy(update=self._about(run)))

    def _about(self, run: AgentRun) -> dict[str, Any]:
        own = {"rubric_id": self.config.rubric_id, "rubric_version": self.config.version}
        return own | {"judge_sha256": self.config.sha256(), "run_sha256": run.sha256()}

    def failed(self, name: str, run: AgentRun, reason: str, usage: Usage | None = None) -> contract.JudgeResult:
        """Return the `FAILURE` of a judgement that got no judge's answer, and can be run again."""
        spent = usage or Usage()
        return contract.JudgeResult(
            id=name,
            agent_run_id=run.id,
            output={},
            result_type="FAILURE",
            result_metadata={"reason": reason, "again": True},
            usage=spent,
            attempts=spent.attempts,
            **self._about(run),
        )

    def _failed(self, error: WorkflowFailureError, name: str, run: AgentRun) -> contract.JudgeResult:
        """Return the `FAILURE` of a judgement that ended with an error, or raise the worker's refusal."""
        cause = error.cause
        if not isinstance(cause, ApplicationError):
            return self.failed(name, run, f"the judgement ended without a result: {cause}")
        if refusal := _REFUSALS.get(cause.type or ""):
            raise refusal(f"the run {run.id!r}: {cause.message}") from None
        usage = contract.usage_of_failure(cause.details) if cause.type == contract.UNAVAILABLE else None
        return self.failed(name, run, cause.message, usage)

    @property
    def client(self) -> Client | None:
        """The client; None where none was given, and nothing was asked yet."""
        return self._client

    async def connected(self) -> Client:
        """Return the client, which is connected where none was given."""
        if self._client is None:
            self._client = await connect(await find())
        return self._client


async def served_judge(config: contract.JudgeConfig, spec: WorkerSpec | None = None) -> tuple[Judge, Connection]:
    """Return a judge that a worker serves: that of the queue which the environment names, or one that is found or started now."""
    connection, spec = await find(), spec or WorkerSpec(config=find_config_file((), os.environ))
    queue = os.environ.get("GRADELOOP_TASK_QUEUE") or await ensure_worker(spec, connection)
    return Judge(config, await connect(connection), task_queue=queue), connection


def parse_run(value: AgentRun | Mapping[str, Any]) -> AgentRun:
    """Return a run as it is, or validated from its JSON; raise InvalidRequest where the value is not a run."""
    if isinstance(value, AgentRun):
        return value
    with explained("the run: "):
        return AgentRun.model_validate(dict(value))
