"""Workflows and activities of batches and judgements that a worker serves."""

from collections.abc import Callable
from typing import Any

from temporalio.plugin import SimplePlugin

from activities.batches.batch_activities import batch_activities
from activities.batches.judge import JudgeActivities
from activities.batches.score_writer import write_back
from gradeloop.extensions import WorkerContext
from workflows.batches.grading_batch import BatchShard, GradingBatchWorkflow, StoreCasesWorkflow
from workflows.batches.judging import JudgingWorkflow, WriteBackWorkflow

WORKFLOWS = (JudgingWorkflow, GradingBatchWorkflow, BatchShard, StoreCasesWorkflow, WriteBackWorkflow)


def plugin(context: WorkerContext) -> SimplePlugin:
    """Return the workflows and activities of batches for a worker."""
    activities: list[Callable[..., Any]] = []
    if context.services is not None:
        judge = JudgeActivities(context.services)
        activities = [judge.judge, judge.default_judge, write_back, *batch_activities(context.services, context.store, context.fleet)]
    return SimplePlugin("batches", workflows=WORKFLOWS if context.runs_workflows else (), activities=activities)
