"""Rows of the store as what they mean, and back."""

from collections.abc import Mapping
from datetime import UTC
from typing import Any

from gradeloop.batches.case_result import BatchSummary
from gradeloop.batches.limits import request_of, usage_of


def summary_of(row: Mapping[str, Any]) -> BatchSummary:
    """Return where a batch stands."""
    request, created = request_of(row["request"]), row["created"]
    aware = created if created.tzinfo else created.replace(tzinfo=UTC)
    return BatchSummary(
        batch_id=row["id"],
        name=request.name,
        created=aware.astimezone(UTC).isoformat(timespec="seconds"),
        status=row["status"],
        reason=row["reason"],
        total=row["total"],
        passed=row["passed"],
        failed=row["failed"],
        errors=row["errors"],
        cached=row["reused"],
        usage=usage_of(row),
        budget=request.budget,
        pass_rate=request.pass_rate,
        throttled=row["throttled"],
        throttled_by=row["throttled_by"],
    )
