"""Timeouts and retry policies, one named constant a kind of call."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType, ActivityConfig

with workflow.unsafe.imports_passed_through():
    from activities.failures import PERMANENT

NEVER_RETRIED = [*PERMANENT, "PayloadsTooLarge", "PayloadSizeError", "InvalidRequest", "ThreadTooLarge", "NotFoundError"]
"""An oversized result would otherwise repeat its paid call for ever, an activity that no worker knows its failure."""

MODEL_CALL = ActivityConfig(
    start_to_close_timeout=timedelta(hours=1),
    schedule_to_close_timeout=timedelta(hours=2),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=1),
        maximum_interval=timedelta(seconds=60),
        maximum_attempts=8,
        non_retryable_error_types=NEVER_RETRIED,
    ),
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
"""An hour is above the client's own deadline; a resumed call never overlaps the one it replaces."""


def model_call(retries: int) -> ActivityConfig:
    """Return the options of a model call that is retried so often."""
    policy = RetryPolicy(
        initial_interval=timedelta(seconds=1),
        maximum_interval=timedelta(seconds=60),
        maximum_attempts=retries + 1,
        non_retryable_error_types=NEVER_RETRIED,
    )
    return ActivityConfig(**{**MODEL_CALL, "retry_policy": policy})


TOOL_CALL = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=2),
    schedule_to_close_timeout=timedelta(minutes=10),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=RetryPolicy(
        initial_interval=timedelta(milliseconds=500),
        maximum_interval=timedelta(seconds=10),
        maximum_attempts=4,
        non_retryable_error_types=NEVER_RETRIED,
    ),
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
"""A tool's own exception is evidence, or a checker's error; what is retried beside it is a lost worker."""

FOREIGN_SECONDS = timedelta(hours=2)
"""What somebody else's generator may take in all."""

FOREIGN_CALL = ActivityConfig(
    schedule_to_start_timeout=timedelta(seconds=60),
    start_to_close_timeout=timedelta(minutes=30),
    schedule_to_close_timeout=FOREIGN_SECONDS,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=60), maximum_attempts=3, non_retryable_error_types=NEVER_RETRIED),
    cancellation_type=ActivityCancellationType.TRY_CANCEL,
)
"""A queue that nobody serves is told after a minute; we do not wait for a stopped call, which may send no heartbeats."""

FOREIGN_TOOL = ActivityConfig(
    schedule_to_start_timeout=timedelta(seconds=60),
    start_to_close_timeout=timedelta(minutes=2),
    schedule_to_close_timeout=timedelta(minutes=10),
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10), maximum_attempts=4, non_retryable_error_types=NEVER_RETRIED),
    cancellation_type=ActivityCancellationType.TRY_CANCEL,
)
"""A tool on its owner's worker, which may send no heartbeats."""


def once(options: ActivityConfig) -> ActivityConfig:
    """Return the options for a call that must not be made twice."""
    return ActivityConfig(**{**options, "retry_policy": RetryPolicy(maximum_attempts=1)})


FIND_WORKER = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=10),
    schedule_to_close_timeout=timedelta(seconds=60),
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=5)),
)

ADMIT = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=10),
    schedule_to_close_timeout=timedelta(minutes=5),
    retry_policy=RetryPolicy(maximum_attempts=5, non_retryable_error_types=NEVER_RETRIED),
)

STORE_CALL = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=2),
    schedule_to_close_timeout=timedelta(minutes=15),
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10), maximum_attempts=20, non_retryable_error_types=NEVER_RETRIED),
)
"""A call that reads or writes the worker's store alone."""

TOOL_CALLS = 25
"""Of one conversation, the grader's or the generator's; then one last turn without tools."""

TURNS = 30
"""Of one conversation; then one last turn without tools."""

TAIL_BYTES = 64 * 1024
"""What a call carries of the thread at most; a longer tail is fetched by query, which leaves no history."""

WARMED_CHARACTERS = 16_000
"""Of the transcript, from which on one of many grading calls goes ahead: some 4,000 tokens, the most that a provider's cache begins at."""
