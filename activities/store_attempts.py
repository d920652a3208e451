"""Attempts of calls that read or write the store: what is tried again while it is away, and what is final."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, FailureError

from activities.errors import failure
from gradeloop.errors import InvalidRequest, StoreRefused, StoreUnavailable

STORE_AWAY = StoreUnavailable.__name__
"""The error type of a call that waits for the store, in which nothing was paid for."""

STORE_PAUSE = timedelta(seconds=5)
"""The pause between two attempts of a call that waits for the store."""

STORE_ATTEMPTS = 20
"""Attempts of a call that pays nothing after which an error that is not the store's is final."""


def activity_call() -> str:
    """Return the id of the call that this activity is, which all its attempts share."""
    info = activity.info()
    return f"{info.workflow_run_id}/{info.activity_id}"


def invalid(why: str) -> ApplicationError:
    """Return the failure of a request that no attempt can serve."""
    return ApplicationError(why, type=InvalidRequest.__name__, non_retryable=True)


@asynccontextmanager
async def store_attempt() -> AsyncIterator[None]:
    """Do an attempt of a call that reads or writes the store alone; it is repeated while the store is away.

    Raises:
        ApplicationError: `InvalidRequest`; `StoreUnavailable` for another attempt; any other error at its last one.
    """
    try:
        yield
    except InvalidRequest as error:
        raise invalid(str(error)) from None
    except FailureError:
        raise
    except Exception as error:
        if isinstance(error, StoreUnavailable) and not isinstance(error, StoreRefused):
            raise store_away(error) from None
        if activity.info().attempt < STORE_ATTEMPTS:
            raise
        raise failure(error, model="", final=True) from error


def store_away(error: StoreUnavailable) -> ApplicationError:
    """Return the failure of a call that is made again once the store is there."""
    return ApplicationError(str(error), type=STORE_AWAY, next_retry_delay=STORE_PAUSE)
