"""Threads and judgements while the workers' build changes under them: `python -m lab.rolling_deploy`.

Server and workers are real processes, the models are servers in this one that count what is paid for. Build 1 serves; build 2 gets a fifth
of what is new, then becomes current, and build 1 is stopped; then build 1 comes back, as in a rollback, and build 2 is stopped.
`lab/tests/test_rolling_deploy.py` runs a small one.
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import EventType, VersionDrainageStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentVersionRequest,
    DescribeWorkerDeploymentVersionResponse,
    SetWorkerDeploymentCurrentVersionRequest,
    SetWorkerDeploymentRampingVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.client.client import GradingClient
from gradeloop.contract.transcript import AgentRun
from gradeloop.exit_codes import leave
from gradeloop.judges.client import Judge
from gradeloop.temporal import server as embedded
from lab.judging_storm import Judges, judge_of
from rig.counting_server import CountingServer
from rig.processes import Engine, WorkerProcess, engine_in

QUEUE = "rolling-deploy"
DEPLOYMENT = "gradeloop"
DRAINAGE = ('matching.wv.VersionDrainageStatusVisibilityGracePeriod="2s"', 'matching.wv.VersionDrainageStatusRefreshInterval="1s"')
"""How often the server looks whether a build is drained: by itself every three minutes, after as many of grace."""

FAILED = (EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT)


@dataclass(frozen=True)
class Plan:
    """How many, and how fast."""

    threads: int = 200
    """At least; new ones begin until the last step is done."""
    judgements: int = 30
    rollouts: int = 3
    delay: float = 0.5
    """Seconds that each model call takes."""
    at_once: int = 20
    ramp: float = 20.0
    """Percent of what is new that build 2 gets before it becomes current."""
    longest: float = 900.0
    """Seconds after which it is given up, with whatever still runs."""


@dataclass
class Report:
    """What came of it."""

    results: Counter[str] = field(default_factory=Counter)
    """Threads by status."""
    calls: Counter[str] = field(default_factory=Counter)
    """Calls of the threads by the build that made them."""
    again: int = 0
    """Calls that were made more than once."""
    judgements: int = 0
    judge_calls: int = 0
    moved: int = 0
    """Threads whose calls were made by more than one build."""
    judged_by: Counter[str] = field(default_factory=Counter)
    """Judgements by the build that they ended on."""
    failed_tasks: int = 0
    lost_tasks: int = 0
    """Workflow tasks that were offered to a worker that was gone, and given to another one."""
    drained: list[float] = field(default_factory=list)
    """Seconds from a change of the current build until the server says that nothing is pinned to the old one."""
    seconds: float = 0.0


def run_number(number: int) -> AgentRun:
    """Return a run to judge that no other one equals."""
    said = [{"role": "user", "content": "Which run are you?"}, {"role": "assistant", "content": f"I am run number {number}."}]
    return AgentRun.model_validate({"id": f"run-{number}", "transcripts": [{"messages": said}]})


class Deployment:
    """The worker deployment of a server: builds that are started, become current, and are stopped."""

    def __init__(self, engine: Engine, client: Client, models: str, judges: str) -> None:
        self._engine, self._client, self._models, self._judges = engine, client, models, judges
        self._workers: dict[str, WorkerProcess] = {}

    async def start(self, build: str) -> None:
        """Start a worker of a build, and return once the server knows it on both queues, of workflows and of activities."""
        variables = {"GRADELOOP_DEPLOYMENT": DEPLOYMENT, "GRADELOOP_BUILD_ID": build}
        variables["GRADELOOP_BASE_URLS"] = f"{self._models},{self._judges}"
        self._workers[build] = await WorkerProcess(self._engine, QUEUE, self._models, name=build, variables=variables).start()
        while (found := await self._describe(build)) is None or len(found.version_task_queues) < 2:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.05)

    async def make_current(self, build: str) -> None:
        """Have the server give all new work to a build, and what a build may take over."""
        await self._client.workflow_service.set_worker_deployment_current_version(
            SetWorkerDeploymentCurrentVersionRequest(namespace="default", deployment_name=DEPLOYMENT, build_id=build, identity="operator")
        )

    async def ramp(self, build: str, percentage: float) -> None:
        """Have the server give a share of the work to a build."""
        await self._client.workflow_service.set_worker_deployment_ramping_version(
            SetWorkerDeploymentRampingVersionRequest(
                namespace="default", deployment_name=DEPLOYMENT, build_id=build, percentage=percentage, identity="operator"
            )
        )

    async def until_drained(self, build: str) -> float:
        """Wait until the server says that nothing is pinned to a build, and return how long it took."""
        began = time.monotonic()
        while (found := await self._describe(build)) is None or _pinned(found):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.2)
        return time.monotonic() - began

    async def stop(self, build: str) -> None:
        """Tell the worker of a build to stop, as a container's engine does, and wait for its end."""
        await self._workers[build].drain()

    def kill(self) -> None:
        """End the workers that are left."""
        for worker in self._workers.values():
            worker.kill()

    async def _describe(self, build: str) -> DescribeWorkerDeploymentVersionResponse | None:
        version = WorkerDeploymentVersion(deployment_name=DEPLOYMENT, build_id=build)
        asked = DescribeWorkerDeploymentVersionRequest(namespace="default", deployment_version=version)
        try:
            return await self._client.workflow_service.describe_worker_deployment_version(asked)
        except RPCError:  # not known yet
            return None


def _pinned(found: DescribeWorkerDeploymentVersionResponse) -> bool:
    status = found.worker_deployment_version_info.drainage_info.status
    return status != VersionDrainageStatus.VERSION_DRAINAGE_STATUS_DRAINED


class Work:
    """The threads and judgements of a plan, some at once, and how many of them have ended."""

    def __init__(self, plan: Plan, client: Client, models: CountingServer, judges: str) -> None:
        self._plan, self._client, self._models = plan, client, models
        self._judge = Judge(judge_of(judges, plan.rollouts), client, task_queue=QUEUE)
        self._places = asyncio.Semaphore(plan.at_once)
        self._ended = asyncio.Condition()
        self.ended = self.judgements = 0
        self.rolled = asyncio.Event()
        self.results: Counter[str] = Counter()

    async def run(self) -> None:
        """Do all of it, and more until `rolled` is set."""
        every, began = max(1, self._plan.threads // max(1, self._plan.judgements)), 0
        async with asyncio.TaskGroup() as group:
            while began < self._plan.threads or not self.rolled.is_set():
                await self._places.acquire()
                group.create_task(self._thread(f"thread-{began}"))
                if began % every == 0:
                    self.judgements += 1
                    group.create_task(self._judge(run_number(self.judgements)))
                began += 1

    async def until_more(self, share: float) -> None:
        """Wait until so many more threads have ended, as a share of the plan's."""
        wanted = self.ended + share * self._plan.threads
        async with self._ended:
            await self._ended.wait_for(lambda: self.ended >= wanted)

    async def _thread(self, name: str) -> None:
        try:
            grading = GradingClient(self._client, task_queue=QUEUE)
            asked = [{"role": "user", "content": "write"}]
            result = await grading.result(await grading.start({**self._models.request(name), "messages": asked}, thread_id=name))
            self.results[str(result.status)] += 1
        finally:
            self._places.release()
            async with self._ended:
                self.ended += 1
                self._ended.notify_all()


async def deploy(plan: Plan, folder: Path) -> Report:
    """Roll a build out and back under the work, and look at what it came to."""
    report, models, judges = Report(), CountingServer(delay=plan.delay), Judges(plan.delay)
    await models.start()
    address = await judges.start()
    with patch.object(embedded, "DYNAMIC_CONFIG", (*embedded.DYNAMIC_CONFIG, *DRAINAGE)):
        async with engine_in(folder) as engine, asyncio.timeout(plan.longest):
            await _roll_under(plan, engine, models, address, report)
    await models.close()
    await judges.close()
    _look_at_calls(models, judges, report)
    return report


async def _roll_under(plan: Plan, engine: Engine, models: CountingServer, judges: str, report: Report) -> None:
    """Change the build while the work goes on."""
    client = await engine.client()
    deployment = Deployment(engine, client, models.url, judges)
    try:
        await deployment.start("1")
        await deployment.make_current("1")
        work, began = Work(plan, client, models, judges), time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(work.run())
            await _roll(plan, deployment, work, report)
        report.seconds = time.monotonic() - began
    finally:
        deployment.kill()
    report.results, report.judgements = work.results, work.judgements
    await _look_at_histories(client, report)


async def _roll(plan: Plan, deployment: Deployment, work: Work, report: Report) -> None:
    """Change the build in three steps: a share of the work, all of it, and back."""
    await work.until_more(0.15)
    await deployment.start("2")
    await deployment.ramp("2", plan.ramp)
    await work.until_more(0.2)
    await deployment.make_current("2")
    report.drained.append(await deployment.until_drained("1"))
    await deployment.stop("1")
    await work.until_more(0.2)
    await deployment.start("1")
    await deployment.make_current("1")
    report.drained.append(await deployment.until_drained("2"))
    await deployment.stop("2")
    await work.until_more(0.1)
    work.rolled.set()


async def _look_at_histories(client: Client, report: Report) -> None:
    """Count the workflow tasks that failed, and by which build judgements ended."""
    async for found in client.list_workflows(f"TaskQueue = '{QUEUE}'"):
        handle = client.get_workflow_handle(found.id, run_id=found.run_id)
        async for event in handle.fetch_history_events():
            report.failed_tasks += event.event_type == FAILED[0]
            report.lost_tasks += event.event_type == FAILED[1]
        if found.workflow_type == "Judging":
            raw = (await handle.describe()).raw_description.workflow_execution_info
            report.judged_by[raw.versioning_info.deployment_version.build_id] += 1


def _look_at_calls(models: CountingServer, judges: Judges, report: Report) -> None:
    report.calls = Counter(call.worker for call in models.calls)
    report.judge_calls = len(judges.calls)
    report.again = models.extra() + len(judges.calls) - len({call.name for call in judges.calls})
    by_thread: dict[str, set[str]] = {}
    for call in models.calls:
        by_thread.setdefault(call.thread, set()).add(call.worker)
    report.moved = sum(len(builds) > 1 for builds in by_thread.values())


def main() -> None:
    """Run the whole deploy and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=Plan.threads)
    parser.add_argument("--judgements", type=int, default=Plan.judgements)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(asyncio.run(deploy(Plan(threads=arguments.threads, judgements=arguments.judgements), Path(folder))))
    leave(0)


if __name__ == "__main__":
    main()
