"""What `gradeloop eval` was asked for, and the request that comes of it."""

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


@dataclass(frozen=True)
class Limits:
    """Flags that win over the suite's own settings, and over what a batch was started with."""

    budget: Budget | None = None
    at_once: int | None = None
    max_errors: int | None = None
    max_error_rate: float | None = None
    pass_rate: float | None = None
    retries: int | None = None

    def told(self) -> dict[str, object]:
        """Return those that were given."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Order:
    """One call of the command."""

    suite: Path | None
    flags: SuiteFlags = SuiteFlags()  # noqa: RUF009 - frozen
    limits: Limits = Limits()
    outputs: tuple[Path, ...] = ()
    attach: str | None = None
    """A batch to look at."""
    resume: str | None = None
    """A batch to go on with."""
    again: Literal["errors", "failures"] | None = None
    allow_errors: float = 0.0
    cache: bool = True
    detach: bool = False
    as_json: bool = False

    @property
    def batch(self) -> str:
        """The batch that is meant, where no suite is."""
        return self.resume or self.attach or "latest"

    @property
    def goes_on(self) -> bool:
        """True where a batch is to go on."""
        return self.resume is not None or self.again is not None

    def refuse_mixed(self) -> None:
        """Refuse flags that do not go together.

        Raises:
            InvalidRequest: They do not.
        """
        known = [name for name, value in (("--attach", self.attach), ("--resume", self.resume), ("--retry", self.again)) if value]
        if self.suite is None and not known:
            raise InvalidRequest("there is no suite; name its file, or a batch with --attach or --resume")
        if self.suite is not None and known:
            raise InvalidRequest(f"{known[0]} goes on with a batch whose cases are stored; leave {str(self.suite)!r} out")
        if self.attach and self.resume:
            raise InvalidRequest("--attach and --resume both name a batch; keep one")
        if self.suite is None and self.flags != SuiteFlags():
            flags = "--grader, --only, --first, --loop, --repeat, --tools and --scripted"
            raise InvalidRequest(f"{flags} are for a suite; a batch that was started has its own")

    def request(self, suite: Suite, total: int) -> BatchRequest:
        """Return what a suite's batch is started with.

        Raises:
            InvalidRequest: A limit is out of range.
        """
        name, told = suite.name or suite.path.stem, suite.settings
        own = {each: getattr(told, each) for each in vars(self.limits) if getattr(told, each) is not None}
        given = {"batch_id": batch_name(name), "total": total, "name": name[:200], "cache": told.cache and self.cache}
        try:
            return BatchRequest.model_validate(given | own | self.limits.told())
        except ValidationError as error:
            raise InvalidRequest(explain(error)) from None

    def going_on(self, known: BatchRequest) -> BatchRequest:
        """Return what a batch goes on with: as it was, but for what the flags say."""
        told = self.limits.told() | {"again": self.again or "errors"}
        return known.model_copy(update=told | ({} if self.cache else {"cache": False}))


def batch_name(name: str) -> str:
    """Return a new batch's id: what it runs, when it was started, and four letters that make it one."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:NAME_CHARACTERS] or "batch"
    return f"{plain}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid4().hex[:4]}"
