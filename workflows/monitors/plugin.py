"""Workflows and activities of monitors that a worker serves."""

from collections.abc import Callable
from typing import Any

from temporalio.plugin import SimplePlugin

from activities.monitors.monitor_ticks import monitor_activities
from gradeloop.extensions import WorkerContext
from gradeloop.monitors.contract import SOURCES
from workflows.monitors.monitoring import MonitorBackfillWorkflow, MonitoringWorkflow

WORKFLOWS = (MonitoringWorkflow, MonitorBackfillWorkflow)


def plugin(context: WorkerContext) -> SimplePlugin:
    """Return the workflows and activities of monitors for a worker."""
    activities: list[Callable[..., Any]] = []
    _ = SOURCES.rows  # loaded here, never first within a workflow's task
    if context.services is not None:
        activities = monitor_activities(context.store, context.services.capabilities.webhooks, context.client)
    return SimplePlugin("monitors", workflows=WORKFLOWS if context.runs_workflows else (), activities=activities)
