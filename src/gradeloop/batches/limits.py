"""Why a batch begins no further case: a limit of its own that is reached."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gradeloop.batches.batch_request import BatchRequest
from gradeloop.batches.tables import COUNTS
from gradeloop.usage import Usage

COUNTED_FROM = 20
"""Cases that must have ended before their error rate counts."""


@lru_cache(maxsize=64)
def request_of(text: str) -> BatchRequest:
    """Return a batch's request, as the store keeps it."""
    return BatchRequest.model_validate_json(text)


def usage_of(row: Mapping[str, Any]) -> Usage:
    """Return what a batch has cost; where the price of some call is unknown, so is the cost."""
    counts = {name: row[name] for name in COUNTS}
    known = row["calls"] and not row["unpriced"]
    return Usage(**counts, seconds=round(row["seconds"], 3), cost_usd=round(row["cost_usd"], 10) if known else None)


def held(row: Mapping[str, Any]) -> str | None:
    """Say which limit a batch has reached, in words; None where it may go on."""
    request = request_of(row["request"])
    if row["status"] == "paused":
        return str(row["reason"])
    if request.budget is not None and (told := request.budget.overrun(usage_of(row))):
        return f"the budget is used up: {told}"
    errors, done = row["errors"], row["passed"] + row["failed"] + row["errors"]
    if request.max_errors is not None and errors >= request.max_errors:
        return f"{errors} cases ended in an error, {request.max_errors} is the most that is borne (max_errors)"
    rate = request.max_error_rate
    if done >= COUNTED_FROM and errors > rate * done:
        return f"{errors} of {done} cases ended in an error, a share of {rate:g} is the most that is borne (max_error_rate)"
    return None
