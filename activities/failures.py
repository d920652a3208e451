"""Any exception becomes one ApplicationError: its kind, whether a retry can help, and how long to wait."""

import re
from collections.abc import Collection, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import Literal, get_args

from temporalio.exceptions import ApplicationError, is_cancelled_exception

from activities.symptoms import conceal, symptoms
from gradeloop.strict import Recorded
from gradeloop.usage import Usage

Kind = Literal[
    "rate_limited",
    "overloaded",
    "server",
    "connection",
    "timeout",
    "malformed_response",
    "quota_exhausted",
    "auth",
    "bad_request",
    "not_found",
    "context_overflow",
    "refused",
    "truncated",
    "config",
]

RETRYABLE: frozenset[Kind] = frozenset({"rate_limited", "overloaded", "server", "connection", "timeout", "malformed_response"})

PERMANENT: tuple[str, ...] = tuple(kind for kind in get_args(Kind) if kind not in RETRYABLE)
"""The kinds that no retry cures, for a retry policy's `non_retryable_error_types`."""

MALFORMED_ATTEMPTS = 3
"""Attempts after which a malformed reply stands: each one was paid for, and a model that fails thrice fails again."""

RETRY_AFTER_CAP = 300.0
"""Seconds: providers ask for an hour and more, which outlives the activity's own time."""

_BY_STATUS: dict[int, Kind] = {
    401: "auth",
    402: "quota_exhausted",
    403: "auth",
    404: "not_found",
    408: "timeout",
    409: "server",
    413: "context_overflow",
    429: "rate_limited",
    529: "overloaded",
}

_BY_CODE: dict[str, Kind] = {
    "insufficient_quota": "quota_exhausted",
    "enforced_spend_limit_reached": "quota_exhausted",
    "billing_error": "quota_exhausted",
    "context_length_exceeded": "context_overflow",
    "request_too_large": "context_overflow",
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "timeout_error": "timeout",
    "api_error": "server",
    "server_error": "server",
    "authentication_error": "auth",
    "permission_error": "auth",
    "not_found_error": "not_found",
    "invalid_request_error": "bad_request",
}
_TELLING: frozenset[Kind] = frozenset({"quota_exhausted", "context_overflow", "overloaded"})
"""Kinds whose code says more than the status beside it."""

_BY_WORDS: tuple[tuple[Kind, re.Pattern[str], frozenset[int | None]], ...] = (
    ("truncated", re.compile(r"token limit reached", re.IGNORECASE), frozenset({None, 400})),
    (
        "context_overflow",
        re.compile(r"(prompt|input) is too long|context[_ ](length|window)|maximum context|too many tokens", re.IGNORECASE),
        frozenset({None, 400, 422}),
    ),
    ("quota_exhausted", re.compile(r"credit balance|insufficient (credit|quota|balance)", re.IGNORECASE), frozenset({None, 400, 403, 429})),
)
"""What has no code of its own everywhere, with the statuses under which the words count."""

_BY_CLASS: dict[Kind, frozenset[str]] = {
    "config": frozenset({"UnsupportedProtocol", "LocalProtocolError", "InvalidURL", "UnicodeEncodeError"}),
    "malformed_response": frozenset({"JSONDecodeError", "UnknownApiResponseError", "DecodingError", "BodyTooLarge"}),
    "timeout": frozenset({"TimeoutError", "TimeoutException", "APITimeoutError"}),
    "connection": frozenset({"TransportError", "APIConnectionError", "ConnectionError"}),
}
"""Exceptions without an HTTP status, by the names of their classes; the first kind that fits counts."""


class Spent(Recorded):
    """What a failed call says of itself beside its words."""

    usage: Usage
    """Of all attempts."""
    raisable: bool = False
    """Whether the same call with a larger completion may succeed."""


class ModelFault(Exception):
    """A model call that gave no answer."""

    def __init__(  # noqa: PLR0913 - one argument a fact
        self,
        kind: Kind,
        message: str,
        *,
        model: str = "",
        status: int | None = None,
        retry_after: float | None = None,
        error: str = "",
        usage: Usage | None = None,
        raisable: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.message = message
        self.model = model
        self.status = status
        self.retry_after = retry_after
        """Seconds that the provider asks us to wait."""
        self.error = error
        """The class name of the exception behind it; empty where the fault is our own finding."""
        self.usage = usage
        """What the reply cost that is no answer; None where none came."""
        self.raisable = raisable
        """True for a completion that was cut at its own cap, below what the model can write."""

    def told(self, model: str, secrets: Collection[str]) -> "ModelFault":
        """Return the fault as it may be told: with the model, without keys, its wait capped."""
        return ModelFault(
            self.kind,
            conceal(self.message, secrets),
            model=model,
            status=self.status,
            retry_after=_wait(self.kind, self.retry_after),
            error=self.error,
            usage=self.usage,
            raisable=self.raisable,
        )

    def __str__(self) -> str:
        """Say which exception, which HTTP status and which model, then the provider's words."""
        if self.kind == "config" and not self.error:
            return self.message
        status = f"HTTP {self.status}" if self.status else ""
        return f"{', '.join(part for part in (self.error, status, self.model) if part)}: {self.message}".removeprefix(": ")


def failure(error: BaseException, *, model: str, attempt: int = 1, spent: Usage | None = None) -> ApplicationError:
    """Turn what a call raised into what Temporal is told; raise the result `from None`, since SDK errors do not pickle.

    Args:
        error: What was raised. An `ApplicationError` is returned as it is.
        model: The model's id, for the message.
        attempt: The activity's attempt, from 1; the third malformed reply is final.
        spent: What all attempts have cost; the thread counts it where none gave a reply.

    Raises:
        BaseException: `error` itself, where it is a cancellation or no `Exception`.
    """
    if not isinstance(error, Exception) or is_cancelled_exception(error):
        raise error
    if isinstance(error, ApplicationError):
        return error
    fault = fault_of(error, model=model)
    if fault is None:
        return ApplicationError(conceal(str(error)) or repr(error), type=type(error).__name__, non_retryable=True)
    final = fault.kind not in RETRYABLE or (fault.kind == "malformed_response" and attempt >= MALFORMED_ATTEMPTS)
    delay = timedelta(seconds=fault.retry_after) if fault.retry_after and not final else None
    facts = Spent(usage=spent, raisable=fault.raisable).model_dump(mode="json") if spent and spent.attempts else None
    return ApplicationError(str(fault), *([facts] if facts else []), type=fault.kind, non_retryable=final, next_retry_delay=delay)


def fault_of(error: Exception, *, model: str, secrets: Collection[str] = ()) -> ModelFault | None:
    """Recognise a failed model call by its status, codes and class names; None for any other exception (a bug)."""
    if isinstance(error, ModelFault):
        return error.told(model, secrets)
    seen = symptoms(error)
    kind = kind_of(seen.status, seen.codes, seen.words) if seen.status or seen.codes else _kind_by_class(seen.classes)
    if kind is None:
        return None
    wait = _wait(kind, seen.retry_after)
    return ModelFault(kind, conceal(seen.words, secrets), model=model, status=seen.status, retry_after=wait, error=seen.name)


def kind_of(status: int | None, codes: Sequence[str], words: str) -> Kind:
    """Name the kind of an error that the provider itself reported, also inside a 200."""
    known = [_BY_CODE[code] for code in codes if code in _BY_CODE]
    telling = [kind for kind in known if kind in _TELLING]
    reported = status if status and status >= HTTPStatus.MULTIPLE_CHOICES else None
    spoken = [kind for kind, pattern, statuses in _BY_WORDS if reported in statuses and pattern.search(words)]
    if telling or spoken:
        return (telling + spoken)[0]
    if reported is None:
        return known[0] if known else "malformed_response"
    return _BY_STATUS.get(reported, "server" if reported >= HTTPStatus.INTERNAL_SERVER_ERROR else "bad_request")


def _kind_by_class(classes: frozenset[str]) -> Kind | None:
    return next((kind for kind, names in _BY_CLASS.items() if names & classes), None)


def _wait(kind: Kind, asked: float | None) -> float | None:
    return min(asked, RETRY_AFTER_CAP) if asked and kind in RETRYABLE else None
