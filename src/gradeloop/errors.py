"""Errors that gradeloop raises at its edges.

GradeloopError
├── InvalidRequest        the caller's input is refused; nothing was recorded
│   ├── ThreadTooLarge    the thread would grow beyond what it may hold
│   └── RunTooLarge       the run to be judged does not fit into a history
├── JudgeFailed           a judge gave no verdict: neither a pass nor a fail
├── StoreUnavailable      the store of results and rubrics cannot be opened
│   ├── StoreRefused      it answers, and refuses a statement of this gradeloop: another version may be able to
│   │   └── ValueRefused  it refuses a value, such as a NUL: whatever else is written with it is not at fault
│   └── StoreLost         it went away while a batch was followed; the batch goes on
├── ServerUnreachable     no Temporal server answers
├── PayloadUnreadable     a payload's key is not here, or it does not open with it
├── WorkerFailed          the worker that a command needs did not start
├── ThreadNotFound        no thread of that id
├── ThreadClosed          the thread ended without a result: cancelled, terminated, timed out
└── BatchLost             the batch, or an upload of its cases, ended without a result
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gradeloop.text import clip

if TYPE_CHECKING:  # `gradeloop --help` shall not wait for pydantic
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

MISTAKES = 20
"""The most mistakes of one input that a message lists: 100,000 would not fit into the failure that carries them."""


class GradeloopError(Exception):
    """The root of all that gradeloop raises for its caller: `with contextlib.suppress(GradeloopError): await client.state("none")`."""


class InvalidRequest(GradeloopError, ValueError):
    """The input is refused, as that of `await client.start({})` is; the message names the field, the value and the cure."""


class ThreadTooLarge(InvalidRequest):
    """Messages, evaluations and rubric would exceed what one thread may hold, as in `await client.invoke("haiku-1", "x" * 10**9)`."""


class RunTooLarge(InvalidRequest):
    """The run of `await judge(run)` is larger than what one workflow can be given."""


class JudgeFailed(GradeloopError):
    """A judge gave no verdict, neither a pass nor a fail, on the run of `result = await judge(run)`."""


class StoreUnavailable(GradeloopError):
    """The store is not named, not reachable, or of another version, as `await batches.store_problem()` says."""


class StoreRefused(StoreUnavailable):
    """The store answers and refuses a statement, as one of another version does; a gradeloop that knows its tables may go on."""


class ValueRefused(StoreRefused):
    """The store cannot hold a value, such as a NUL or a number beyond 64 bits; what is written beside it is not at fault."""


class StoreLost(StoreUnavailable):
    """The store went away while a command followed a batch, and did not come back; the batch goes on."""


class ServerUnreachable(GradeloopError):
    """No Temporal server answers `GradingClient.connect()` at the address that was given or found."""


class PayloadUnreadable(GradeloopError):
    """A payload is encrypted with a key that is not here, or was changed since; the message names the key."""


class WorkerFailed(GradeloopError):
    """The worker process that a command or `await poet("Write.")` needs did not start; the message is the worker's."""


class ThreadNotFound(GradeloopError):
    """No thread has that id on this server and namespace, as in `await client.state("none")`."""


class ThreadClosed(GradeloopError):
    """The thread was cancelled, terminated or timed out, so that `await client.result("haiku-1")` has nothing to return."""


class BatchLost(GradeloopError):
    """A batch or an upload was cancelled, terminated or failed, as `await batches.result("nightly")` says; its results are stored."""


def field_path(location: Sequence[int | str]) -> str:
    """Return the path of a field; parts in angle brackets are pydantic's names of a union's members, not of fields."""
    shown = [part for part in location if not (isinstance(part, str) and part.startswith("<"))]
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in shown]
    return "".join(parts).lstrip(".")


def _sentence(detail: "ErrorDetails") -> str:
    where = field_path(detail["loc"])
    message = detail["msg"].removeprefix("Value error, ").replace("Extra inputs are not permitted", "is not known here")
    value = detail["input"]
    shown = f", got {clip(str(value))}" if isinstance(value, (str, int, float, bool)) else ""
    if detail["type"] in {"value_error", "unknown_key", "missing", "extra_forbidden"}:
        shown = ""
    return f"{where}: {message}{shown}" if where else f"{message}{shown}"


def explain(error: "ValidationError") -> str:
    """Return pydantic's report as one sentence for each problem: the field, what is wrong, and the value."""
    details = error.errors(include_url=False, include_context=False)
    more = ["and more"] if len(details) > MISTAKES else []
    return "; ".join([*(_sentence(detail) for detail in details[:MISTAKES]), *more])


@contextmanager
def explained(prefix: str = "") -> Iterator[None]:
    """Raise pydantic's report on what is validated inside as an InvalidRequest, whose message begins with a prefix."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        raise InvalidRequest(f"{prefix}{explain(error)}") from None


@contextmanager
def installed(cure: str, *packages: str) -> Iterator[None]:
    """Raise InvalidRequest with the cure where one of these packages is missing that is needed inside; without names, where any is."""
    try:
        yield
    except ModuleNotFoundError as error:
        if packages and (error.name or "").partition(".")[0] not in packages:
            raise
        raise InvalidRequest(cure) from None
