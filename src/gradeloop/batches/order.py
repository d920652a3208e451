"""The options of `gradeloop eval`, and the batch request that they make."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from uuid import uuid4

from pydantic import ValidationError

from gradeloop.batches.batch_request import BatchRequest
from gradeloop.budget import Budget
from gradeloop.errors import InvalidRequest, explain
from gradeloop.suites.suite_run import Suite, SuiteFlags

NAME_CHARACTERS = 60

WIRE_NAMES = {"concurrency": "at_once"}
"""Names in a batch request that differ from the flag's."""


@dataclass(frozen=True)
class Limits:
    """Flags that override the suite's settings, and the settings that a batch was started with."""

    budget: Budget | None = None
    concurrency: int | None = None
    max_errors: int | None = None
    max_error_rate: float | None = None
    pass_rate: float | None = None
    retries: int | None = None

    def fields_of(self, values: object) -> dict[str, object]:
        """Return the limits that an object of the same fields sets, by their names in a batch request."""
        set_values = {name: getattr(values, name) for name in vars(self) if getattr(values, name) is not None}
        return {WIRE_NAMES.get(name, name): value for name, value in set_values.items()}


@dataclass(frozen=True)
class Order:
    """The arguments and flags of one `gradeloop eval`."""

    suite: Path | None
    flags: SuiteFlags = SuiteFlags()  # noqa: RUF009 - frozen
    limits: Limits = Limits()
    outputs: tuple[Path, ...] = ()
    attach: str | None = None
    """The batch to follow."""
    resume: str | None = None
    """The batch to resume."""
    again: Literal["errors", "failures"] | None = None
    allow_errors: float = 0.0
    cache: bool = True
    detach: bool = False
    as_json: bool = False

    @property
    def batch(self) -> str:
        """The batch that the flags name when there is no suite."""
        return self.resume or self.attach or "latest"

    @property
    def goes_on(self) -> bool:
        """Whether the batch continues, instead of only being followed."""
        return self.resume is not None or self.again is not None

    def refuse_mixed(self) -> None:
        """Refuse flags that exclude one another.

        Raises:
            InvalidRequest: Two flags exclude one another, or nothing is named.
        """
        known = [name for name, value in (("--attach", self.attach), ("--resume", self.resume), ("--retry", self.again)) if value]
        if self.suite is None and not known:
            raise InvalidRequest("No suite is named; give its file, or name a batch with --attach or --resume")
        if self.suite is not None and known:
            raise InvalidRequest(f"{known[0]} uses a batch whose cases are stored already; leave the suite {str(self.suite)!r} out")
        if self.attach and self.resume:
            raise InvalidRequest("--attach and --resume exclude each other; keep one")
        if self.suite is None and self.flags != SuiteFlags():
            flags = "--grader, --filter, --limit, --loop, --repeat, --tools and --scripted"
            raise InvalidRequest(f"{flags} need a suite; a batch keeps the ones it was started with")

    def request(self, suite: Suite, total: int) -> BatchRequest:
        """Return the request that starts the suite's batch.

        Raises:
            InvalidRequest: A limit is out of range.
        """
        name, settings = suite.name or suite.path.stem, suite.settings
        given = {"batch_id": batch_name(name), "total": total, "name": name[:200], "cache": settings.cache and self.cache}
        try:
            return BatchRequest.model_validate(given | self.limits.fields_of(settings) | self.limits.fields_of(self.limits))
        except ValidationError as error:
            raise InvalidRequest(explain(error)) from None

    def going_on(self, known: BatchRequest) -> BatchRequest:
        """Return the request that resumes a batch: its own settings, overridden by the flags."""
        changed = self.limits.fields_of(self.limits) | {"again": self.again or "errors"}
        return known.model_copy(update=changed | ({} if self.cache else {"cache": False}))


def batch_name(name: str) -> str:
    """Return a new batch's id: the suite's name, the time, and four random letters."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:NAME_CHARACTERS] or "batch"
    return f"{plain}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid4().hex[:4]}"
