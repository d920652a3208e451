"""What KEDA's trigger asks a Temporal server for, as the chart writes it, is where a build's tasks wait."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentVersionRequest, SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from rig.processes import WorkerProcess, engine_in
from tests.rig.kubernetes import rendered

ROLES, BUILD, THREADS = ("loop", "models", "evidence"), "sha256:0a0a", 3
Queue = tuple[str, str]


async def backlogs(client: Client, asked: WorkerDeploymentVersion) -> dict[Queue, int]:
    """Return how many tasks wait in each queue of a build, as KEDA 2.20 reads them; nothing while the server does not know the build."""
    request = DescribeWorkerDeploymentVersionRequest(namespace="default", deployment_version=asked, report_task_queue_stats=True)
    try:
        found = await client.workflow_service.describe_worker_deployment_version(request)
    except RPCError:
        return {}
    kinds = {TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW: "workflow", TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY: "activity"}
    return {(row.name, kinds[row.type]): row.stats.approximate_backlog_count for row in found.version_task_queues}


@pytest.mark.slow
async def test_the_queues_that_keda_asks_for_are_those_where_the_tasks_of_the_build_wait(tmp_path: Path) -> None:
    queue = f"keda-{uuid4().hex[:8]}"
    async with engine_in(tmp_path) as engine:
        chart = {
            "temporal": {"address": engine.address, "taskQueue": queue},
            "versioning": {"deployment": "gradeloop", "buildId": BUILD},
            "scaling": {"by": "keda"},
        }
        manifests = rendered(chart)
        triggers = {role: manifests["ScaledObject", f"gradeloop-{role}"]["spec"]["triggers"][0]["metadata"] for role in ROLES}
        wanted = {role: (found["taskQueue"], found["queueTypes"]) for role, found in triggers.items()}
        version = WorkerDeploymentVersion(
            deployment_name=triggers["loop"]["workerDeploymentName"], build_id=triggers["loop"]["workerDeploymentBuildId"]
        )
        settings = {key: value for key, value in manifests["ConfigMap", "gradeloop-settings"]["data"].items() if "_ADDRESS" not in key}
        workers = [WorkerProcess(engine, queue, "http://127.0.0.1:9", variables=settings | {"GRADELOOP_ROLE": role}) for role in ROLES]
        client = await Client.connect(engine.address)
        try:
            await asyncio.gather(*(worker.start() for worker in workers))
            async with asyncio.timeout(120):
                while not set(wanted.values()) <= set(await backlogs(client, version)):
                    await asyncio.sleep(0.1)
            await client.workflow_service.set_worker_deployment_current_version(
                SetWorkerDeploymentCurrentVersionRequest(namespace="default", deployment_name="gradeloop", build_id=BUILD)
            )
        finally:
            for worker in workers:
                worker.kill()
        for number in range(THREADS):
            await client.start_workflow("GradingThread", {}, id=f"{queue}-{number}", task_queue=queue)
        async with asyncio.timeout(120):
            while (await backlogs(client, version)).get(wanted["loop"], 0) < THREADS:
                await asyncio.sleep(0.1)
