"""Session of one server for agents: it judges, starts and reads threads within its user's limits."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_args
from uuid import uuid4

from filelock import FileLock
from pydantic import Field, JsonValue
from temporalio.client import Client, WorkflowFailureError
from temporalio.service import RPCError

from gradeloop.client.call_waits import describe_call_wait
from gradeloop.client.client import GradingClient
from gradeloop.contract.base import Strict
from gradeloop.contract.model_spec import Budget, ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Grader
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest, ThreadNotFound, explained
from gradeloop.files.roots import Roots
from gradeloop.grading.grants import Grants, Kind
from gradeloop.integrations.standing import Standings
from gradeloop.judges.client import Judge, parse_run
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult, Judging, judging_id, parse_judge
from gradeloop.judges.registry import JudgeRegistry
from gradeloop.judges.sources import parse_reference, read_judge, read_thread, with_model
from gradeloop.settings.endpoints import require_default_model
from gradeloop.settings.paths import state_folder
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import WorkerSpec, keep_worker_alive, wake_worker
from gradeloop.temporal.process import beside, end_all
from gradeloop.text import clip, counted, duration
from gradeloop.transcripts.readers import read_run_file

PACE_SECONDS = 5.0
"""The time from one notice to the next: clients give a call up that is silent for a minute or less."""

DESCRIBED_SECONDS = 3.0
"""Seconds that the server may take to describe a waiting judgement."""

Report = Callable[[float, str], Awaitable[None]]
"""Takes the seconds since the call began, and where it is in words."""


@dataclass
class JudgingProgress:
    """The judgements of one call that have begun, and those that have ended."""

    total: int
    open: list[str] = field(default_factory=list)
    """The workflows of those that have begun and not ended."""
    ended: int = 0


@asynccontextmanager
async def reporting(progress: JudgingProgress, client: Client, report: Report | None) -> AsyncIterator[None]:
    """Report while the body runs, unless `report` is None; a listener that is gone ends only the reports."""
    if report is None:
        yield
        return
    async with beside(_tell(progress, client, report)):
        yield


async def _tell(progress: JudgingProgress, client: Client, report: Report) -> None:
    began, due = time.monotonic(), PACE_SECONDS
    while True:
        await asyncio.sleep(max(0.0, began + due - time.monotonic()))
        waits = await _wait_of(progress.open, client)
        elapsed = round(time.monotonic() - began, 1)
        of = f"{progress.ended} of {counted(progress.total, 'judgement')} made"
        await report(elapsed, "; ".join(filter(None, (duration(elapsed), of, waits))))
        due = max(due, time.monotonic() - began) + PACE_SECONDS


async def _wait_of(names: Sequence[str], client: Client) -> str:
    """Return what the first judgement in flight waits for; empty where none is."""
    if not names:
        return ""
    try:
        async with asyncio.timeout(DESCRIBED_SECONDS):
            description = await client.get_workflow_handle(names[0]).describe()
            return await describe_call_wait(client, description)
    except (RPCError, TimeoutError):
        return "the Temporal server does not say what is waited for"


THREAD_PREFIX = "agent-"
"""The beginning of the ids of threads that agents start; whose a thread is, its recorded owner says."""

READING_CHECKS = frozenset({"text_check", "regex_check", "json_schema_check", "word_count", "count_tokens", "read_transcript"})
"""The tools that any agent may name: they read what is judged, and reach nothing else."""

GRANTED_KINDS = ("model", "address", "tool", "queue")
"""The kinds that a server's user may grant beside them."""

RUNS_AT_ONCE = 8
"""The judgements of one call that are open at the same time."""

FILE_BYTES = 32 * 1024 * 1024
"""The largest file that is read for an agent: what a run may have at most."""

JUDGEMENT = re.compile(r"judging-[0-9a-f]{64}")


class SessionLimits(Strict):
    """Limits on what all agents of one server spend and read until it ends."""

    max_calls: Annotated[int, Field(ge=1)] = 200
    """The most judgements and threads that are begun."""
    budget_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """US dollars after which none is begun; None sets no limit."""
    roots: tuple[Path, ...] = ()
    """The folders below which files are read; without any, none is."""
    allow_decide: bool = False
    """Whether agents may decide criteria that wait for a person."""
    grants: tuple[str, ...] = ()
    """Names that rubrics and judges of agents may have beside the server's grader and the tools that only read: `KIND:NAME`."""


class SessionModels(Strict):
    """The models and files with which the server judges and writes; agents do not choose them."""

    grader: str | None = None
    generator: str | None = None
    tools: tuple[Path, ...] = ()
    scripted: Path | None = None


class SpentSoFar(Strict):
    """Calls and cost of a server's agents."""

    calls: int
    max_calls: int
    cost_usd: float
    """US dollars that are spent, plus those that running threads may still spend."""
    budget_usd: float | None


@dataclass
class _Spending:
    """The calls and the money of a server, counted in one place."""

    limits: SessionLimits
    calls: int = 0
    reserved_usd: dict[str, float] = field(default_factory=dict)
    """The budgets of threads whose end is not known yet, by thread."""
    known_usd: dict[str, float] = field(default_factory=dict)
    """Costs of judgements and threads in US dollars, by id: a repeated one counts once."""

    @property
    def committed_usd(self) -> float:
        return sum(self.known_usd.values()) + sum(self.reserved_usd.values())

    @property
    def left_usd(self) -> float | None:
        return None if self.limits.budget_usd is None else self.limits.budget_usd - self.committed_usd

    # A call counts when it begins, and money counts when it is known; until then a thread's whole budget is
    # reserved. So agents that work side by side cannot spend the rest of the budget twice. A judgement that is
    # repeated has the same id and is counted once in money.
    def begin(self, count: int = 1) -> None:
        """Count calls that are about to be made; raise InvalidRequest where a limit does not allow them."""
        if self.calls + count > self.limits.max_calls:
            raise InvalidRequest(f"the limit of this server is {self.limits.max_calls} calls, and {self.calls} were made; ask its user")
        self.require_budget()
        self.calls += count

    def require_budget(self) -> None:
        """Raise InvalidRequest where the budget is used up."""
        if self.left_usd is not None and self.left_usd <= 0:
            raise InvalidRequest(f"the budget of this server, ${self.limits.budget_usd:g}, is used up; ask its user")

    def count_charge(self, name: str, cost_usd: float | None) -> None:
        """Record the final cost of a judgement or thread."""
        self.reserved_usd.pop(name, None)
        self.known_usd[name] = max(cost_usd or 0.0, self.known_usd.get(name, 0.0))


class AgentSession:
    """One server's connection, limits and work; it connects when it is first asked for something that needs the Temporal server."""

    def __init__(self, limits: SessionLimits, models: SessionModels) -> None:
        self.limits = limits
        self.models = models
        self._spending = _Spending(limits)
        self._grants = parse_grants(limits.grants, models.grader)
        self._standings = Standings(Grader(), spec=WorkerSpec(tools=models.tools, scripted=models.scripted))
        self._judging: set[asyncio.Task[JudgeResult]] = set()
        """The judgements in flight; one whose call is cancelled goes on, and what it costs is counted at its end."""

    @property
    def spent(self) -> SpentSoFar:
        """Calls and cost until now."""
        made = self._spending
        return SpentSoFar(
            calls=made.calls, max_calls=self.limits.max_calls, cost_usd=round(made.committed_usd, 6), budget_usd=self.limits.budget_usd
        )

    async def close(self) -> None:
        """Close the connection; what is in flight goes on at the server."""
        await end_all(self._judging)
        await self._standings.close()

    async def client(self) -> GradingClient:
        """Return the client, connected and with the queue of this server's worker."""
        return (await self._standings.get()).client

    @asynccontextmanager
    async def working(self) -> AsyncIterator[GradingClient]:
        """Yield the client while the worker of its queue is kept alive."""
        standing = await self._standings.get()
        await wake_worker(standing.queue, standing.connection)
        async with beside(keep_worker_alive(standing.queue, standing.connection)):
            yield standing.client

    def rooted(self, name: str) -> Path:
        """Return the file of a name below a root; raise InvalidRequest where it is elsewhere, no regular file, or too large."""
        if not self.limits.roots:
            raise InvalidRequest(f"file {clip(name)}: this server reads no files; its user names folders with --root")
        if "\0" in name:
            raise InvalidRequest(f"file {clip(name)} has a NUL character; name a file")
        roots = Roots({str(root.resolve()): root.resolve() for root in self.limits.roots})
        allowed = ", ".join(roots.folders)
        for root in roots.folders.values():
            try:
                real = (root / name).resolve()
                size = real.stat().st_size if roots.contain(real) and real.is_file() else None
            except (OSError, RuntimeError):  # too long a name, a loop of links
                continue
            if size is not None and size > FILE_BYTES:
                raise InvalidRequest(f"file {clip(name)} has more than {FILE_BYTES} bytes; split it")
            if size is not None:
                return real
        raise InvalidRequest(f"file {clip(name)} is not a file below {allowed}; name one that is")

    async def judge_config(self, judge: str | Mapping[str, JsonValue] | None, judge_file: str | None = None) -> JudgeConfig:
        """Return a judge with the server's model: a rubric as text or object, a file below a root, or `COLLECTION/RUBRIC[@VERSION]`.

        A registered judge is the user's own; any other, also in a file that agents may have written, names what was granted.

        Args:
            judge: The judge itself, or its name.
            judge_file: Its file.

        Raises:
            InvalidRequest: There is none, or both are given, or it is refused, or names what was not granted.
        """
        config = await self._named_judge(judge, judge_file) or self._grants.check(parse_judge(_plain(judge)))
        return with_model(config, self.models.grader, scripted=self.models.scripted is not None)[0]

    async def rubric(self, rubric: str | Mapping[str, JsonValue] | None, rubric_file: str | None) -> Rubric:
        """Return a rubric, named as in `judge_config`, with criteria for people too; raise InvalidRequest where it is refused."""
        if (named := await self._named_judge(rubric, rubric_file)) is not None:
            return rubric_of(named)
        with explained("rubric: "):
            return self._grants.check(Rubric.model_validate(_plain(rubric)), "rubric.")

    async def _named_judge(self, judge: str | Mapping[str, JsonValue] | None, judge_file: str | None) -> JudgeConfig | None:
        """Return the judge of a file or of the registry; None where it is given itself."""
        if (judge is None) == (judge_file is None):
            raise InvalidRequest("name one of the two: the rubric itself, or its file")
        if judge_file is not None:
            return self._grants.check(read_judge(self.rooted(judge_file)))
        reference = parse_reference(judge.strip()) if isinstance(judge, str) and not re.search(r"\s", judge.strip()) else None
        return await JudgeRegistry(own_store()).get_rubric(*reference) if reference else None

    async def judge(self, config: JudgeConfig, runs: Sequence[AgentRun], report: Report | None = None) -> list[JudgeResult]:
        """Judge runs, several at the same time; one that has a verdict is read, and counted as a call all the same.

        A judgement that ended without a verdict is made again, and paid for again. Where this is cancelled, judgements in flight go on at
        the server, are read by the next equal request, and count for the budget; no more begin.

        Args:
            config: The judge.
            runs: What it judges.
            report: Who is told at a steady pace how far it is.

        Raises:
            InvalidRequest: A limit does not allow it, or a run is refused.
        """
        async with self.working() as client:
            judge, slots = Judge(config, client.temporal, task_queue=(await self._standings.get()).queue), asyncio.Semaphore(RUNS_AT_ONCE)
            for run in runs:
                await judge.request(run)
            self._spending.begin(len(runs))
            progress = JudgingProgress(len(runs))

            async def judge_one(run: AgentRun) -> JudgeResult:
                name = judging_id(config, run.sha256())
                async with slots:
                    self._spending.require_budget()
                    progress.open.append(name)
                    judging = asyncio.create_task(self._counted(judge, run))
                    self._judging.add(judging)
                    judging.add_done_callback(self._forget)
                    # An agent that gives up does not stop the judgement at the server, which goes on to cost
                    # money. So the task is shielded and lives on in `_judging`, and its cost is counted at its
                    # end.
                    result = await asyncio.shield(judging)
                    progress.open.remove(name)
                    progress.ended += 1
                return result

            async with reporting(progress, client.temporal, report):
                return list(await asyncio.gather(*map(judge_one, runs)))

    async def _counted(self, judge: Judge, run: AgentRun) -> JudgeResult:
        """Judge a run, and take down what that cost."""
        result = await judge(run, retry=True)
        self._spending.count_charge(f"{result.id} {uuid4()}" if result.failed else result.id, result.usage.cost_usd)
        return result

    def _forget(self, judging: "asyncio.Task[JudgeResult]") -> None:
        self._judging.discard(judging)
        if not judging.cancelled():
            judging.exception()  # whoever waits for it has it; without a waiter it needs no warning

    async def runs(self, file: str | None, run: Mapping[str, JsonValue] | None, thread_id: str | None) -> list[AgentRun]:
        """Return the runs that a call names in one of three ways; raise InvalidRequest for none, several, or one that cannot be read."""
        if sum(value is not None for value in (file, run, thread_id)) != 1:
            raise InvalidRequest("name one of the three: run, file, or thread_id")
        if run is not None:
            return [parse_run(run)]
        if thread_id is not None:
            async with self.working() as client:
                return [await read_thread(client, await self.own_thread(thread_id))]
        path = self.rooted(file or "")
        return await asyncio.to_thread(lambda: list(read_run_file(path)))

    async def stored_judgement(self, name: str) -> JudgeResult:
        """Return a judgement by its id; raise InvalidRequest where none of it has ended."""
        client = await self.client()
        handle = client.temporal.get_workflow_handle_for(Judging.run, name)
        try:
            return await asyncio.wait_for(handle.result(), 30)
        except (RPCError, WorkflowFailureError, TimeoutError):
            raise InvalidRequest(f"judgement {clip(name)}: none of that id has ended with a result; call grade again") from None

    async def revise(self, task: str, rubric: str | Mapping[str, JsonValue], max_iterations: int, budget_usd: float | None) -> str:
        """Start a thread that drafts, is graded and mends, and return its id; raise InvalidRequest where something is refused."""
        generator = self.models.generator or require_default_model(os.environ, "generator").spec.model_dump(mode="json")
        graded = await self.rubric(rubric, None)
        async with self.working() as client:
            # Nothing is awaited from the budget's reading to its reserving: of two threads that begin at once, both would
            # take the same dollars, and the server's budget would be spent twice.
            budget = self._thread_budget(budget_usd)
            self._spending.begin()
            thread_id = f"{THREAD_PREFIX}{uuid4()}"
            if budget is not None:
                self._spending.reserved_usd[thread_id] = budget
            request = {
                "messages": [{"role": "user", "content": task}],
                "rubric": graded,
                "generator": {"model": generator},
                "grader": {"model": self.models.grader} if self.models.grader else None,
                "max_iterations": max_iterations,
                "budget": None if budget is None else Budget(max_cost_usd=budget),
            }
            try:
                return await client.start(request, thread_id=thread_id, owner=owner_name())
            except BaseException:
                self._spending.reserved_usd.pop(thread_id, None)
                raise

    def _thread_budget(self, asked: float | None) -> float | None:
        """Return what a new thread may cost, which is held back of the server's budget until the thread's end is seen."""
        if asked is not None and not 0 < asked < float("inf"):
            raise InvalidRequest(f"budget_usd is {asked!r}; write US dollars, more than 0")
        left = self._spending.left_usd
        if left is None:
            return asked
        self._spending.require_budget()
        # Who names no amount gets half of the rest: all of it would stop every other call until this thread's
        # end is seen.
        return left / 2 if asked is None else min(asked, left)

    async def own_thread(self, thread_id: str) -> str:
        """Return the id of a thread that `revise` started for this owner; raise InvalidRequest for another's, or one that is not there."""
        with suppress(ThreadNotFound):
            if thread_id.startswith(THREAD_PREFIX) and await (await self.client()).owner_of(thread_id) == owner_name():
                return thread_id
        raise InvalidRequest(f"thread {clip(thread_id)}: agents see threads that `revise` started here; take the id that it returned")

    def count_thread(self, thread_id: str, cost_usd: float | None) -> None:
        """Record the cost of an ended thread."""
        self._spending.count_charge(thread_id, cost_usd)


def rubric_of(config: JudgeConfig) -> Rubric:
    """Return a judge's criteria; raise InvalidRequest where it has a schema instead."""
    if not isinstance(config, CriteriaJudge):
        raise InvalidRequest(f"the judge {config.rubric_id!r} has a schema of its own and no criteria; call judge_run with it")
    return config.rubric


def owner_name() -> str:
    """Return whose the threads are that this machine's user has agents start: a random name that the state folder keeps."""
    file = state_folder() / "agents.owner"
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_text(uuid4().hex)
        return file.read_text()


def parse_grants(granted: Sequence[str], grader: str | None) -> Grants:
    """Return what agents may name: the grader, tools that only read, and the `KIND:NAME` granted. Raise InvalidRequest for a bad grant."""
    names = {("tool", tool) for tool in READING_CHECKS} | {("model", grader or "")}
    for grant in granted:
        kind, _, name = grant.partition(":")
        if kind not in GRANTED_KINDS or not name:
            raise InvalidRequest(f"--grant {clip(grant)}: write KIND:NAME, the kind one of {', '.join(GRANTED_KINDS)}")
        names.add((kind, require_model(name, "--grant") if kind == "model" else name))
    cure = "leave it out, or ask this server's user, who grants models, addresses, tools and queues with --grant"
    return Grants(frozenset(get_args(Kind)) - {"activity"}, frozenset(names), cure)


def require_model(name: str, flag: str) -> str:
    """Return a model's name; raise InvalidRequest where it cannot be one."""
    with explained(f"{flag}: "):
        return ModelSpec.model_validate(name).id


def _plain(value: str | Mapping[str, JsonValue] | None) -> str | dict[str, JsonValue] | None:
    return dict(value) if isinstance(value, Mapping) else value
