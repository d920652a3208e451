"""Whether anybody serves the task queue of a generator that is not ours."""

from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.exceptions import ApplicationError


@activity.defn(name="find_worker")
async def find_worker(task_queue: str) -> None:
    """Return if a worker polls the queue for workflows.

    Raises:
        ApplicationError: Of type `no_worker`; retried by the caller for as long as it wants to wait.
    """
    client = activity.client()
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    if not answer.pollers:
        raise ApplicationError(f"no worker serves the task queue {task_queue!r}; start it", type="no_worker")
