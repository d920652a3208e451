"""One tick of a monitor: it reads what is new, has the sample judged as a batch, and says what has changed."""

from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ActivityConfig

from gradeloop.batches.contract import BATCH_PRIORITY, BatchRequest, BatchSummary
from gradeloop.contract.notice import Notice, NoticeBatch, NoticeCall, NoticeKind, Webhooks, wanted_by
from gradeloop.contract.thread import BATCH_WORKFLOW
from gradeloop.judges.write_back import WRITE_BACK_WORKFLOW
from gradeloop.monitors import contract
from workflows.activity_calls import NEVER_RETRIED, describe_error, temporal_priority
from workflows.batches.grading_batch import SHARD_LOST, call_store
from workflows.notices import NoticesWorkflow
from workflows.stop_rule import raise_when_cancelled

COLLECT_CALL = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=30),
    schedule_to_close_timeout=timedelta(days=1),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30), non_retryable_error_types=NEVER_RETRIED),
)

TRIES = 15
"""Number of times that a batch is started while that of a tick that was ended from outside is about to end."""


@workflow.defn(name=contract.MONITORING_WORKFLOW)
class MonitoringWorkflow(contract.Monitoring):
    """A tick: collects, judges, finishes; first it finishes the ticks that an earlier workflow left."""

    @workflow.run
    async def run(self, tick: contract.MonitorTick) -> int:
        """See `gradeloop.monitors.contract.Monitoring.run`."""
        info, priority = workflow.info(), temporal_priority(tick.priority or BATCH_PRIORITY)
        call = contract.TickCall(monitor=tick.monitor, tick=f"{info.workflow_id}/{info.run_id}")
        collected: contract.CollectedTick = await workflow.execute_activity(  # type: ignore[call-overload]  # no overload takes a config
            "collect", call, result_type=contract.CollectedTick, summary=f"collect {tick.monitor}", priority=priority, **COLLECT_CALL
        )
        # Ticks that an earlier workflow left come first, one after the other. Each has its number and its batch in
        # the store, so one that is tried again is neither judged nor settled twice.
        for due in collected.due:
            problem = None if due.batch is None else await _judge(due.batch, priority)
            ended = call.model_copy(update={"number": due.number, "problem": problem})
            finished = await call_store("settle", ended, contract.FinishedTick, priority, f"settle tick {due.number}")
            await _announce(tick.monitor, due.number, finished, collected.webhooks, priority)
            if finished.write_back is not None:
                with suppress(WorkflowAlreadyStartedError):  # of an earlier attempt, which goes on
                    await workflow.start_child_workflow(
                        WRITE_BACK_WORKFLOW,
                        finished.write_back,
                        id=f"write-back/monitor/{tick.monitor}/{due.number}",
                        priority=priority,
                        parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                    )
        return len(collected.due)


@workflow.defn(name=contract.BACKFILL_WORKFLOW)
class MonitorBackfillWorkflow(contract.MonitorBackfill):
    """A backfill: one reading of the source; ticks judge what it has chosen."""

    @workflow.run
    async def run(self, call: contract.BackfillCall) -> contract.BackfillReport:
        """See `gradeloop.monitors.contract.MonitorBackfill.run`."""
        priority = temporal_priority(call.priority or BATCH_PRIORITY)
        found: contract.BackfillReport = await workflow.execute_activity(  # type: ignore[call-overload]  # no overload takes a config
            "backfill", call, result_type=contract.BackfillReport, summary=f"backfill {call.monitor}", priority=priority, **COLLECT_CALL
        )
        return found


async def _judge(batch: BatchRequest, priority: Priority) -> str | None:
    """Judge a tick's runs, and return why that ended early; None where it did not."""
    # The batch's id belongs to the tick, so one tick never has two batches at once. If an earlier workflow of it
    # was ended from outside, its batch is still about to end, and the start is tried until it has.
    for _ in range(TRIES):
        try:
            child = await workflow.start_child_workflow(
                BATCH_WORKFLOW, batch, id=batch.batch_id, result_type=BatchSummary, priority=priority, static_summary=f"{batch.total} runs"
            )
            break
        except WorkflowAlreadyStartedError:
            await workflow.sleep(timedelta(seconds=2))
    else:
        raise ApplicationError(f"the batch {batch.batch_id!r} runs already; end it, and the next tick judges", type=SHARD_LOST)
    try:
        summary: BatchSummary = await child
    except ChildWorkflowError as error:
        raise_when_cancelled(error)
        return describe_error(error)
    return None if summary.status == "finished" else summary.reason or summary.status


async def _announce(monitor: str, number: int, finished: contract.FinishedTick, webhooks: Webhooks, priority: Priority) -> None:
    """Start the delivery of what has begun and what is over, and go on without waiting for it."""
    begun = [_notice("monitor.alert", monitor, finished.title, alert) for alert in finished.raised]
    notices = [*begun, *(_notice("monitor.clear", monitor, finished.title, alert) for alert in finished.cleared)]
    wanted = [(name, notice) for notice in notices for name in wanted_by(webhooks, notice.type) if name in (finished.notify or (name,))]
    if not wanted:
        return
    await workflow.start_child_workflow(
        NoticesWorkflow.run,
        NoticeBatch(calls=tuple(NoticeCall(webhook=name, notice=notice) for name, notice in wanted)),
        id=f"notices/monitor/{monitor}/{number}",
        priority=priority,
        parent_close_policy=workflow.ParentClosePolicy.ABANDON,
    )


def _notice(kind: NoticeKind, monitor: str, title: str, alert: contract.Alert) -> Notice:
    over = kind == "monitor.clear"
    return Notice(
        id=f"monitor/{monitor}/{alert.number}/{alert.kind}{'/clear' if over else ''}",
        type=kind,
        time=workflow.now().isoformat(timespec="seconds"),
        title=title,
        answer=f"ALL CLEAR {alert.kind}, since {alert.time}" if over else f"ALERT {alert.said}",
        monitor=monitor,
        runs=alert.runs,
    )
