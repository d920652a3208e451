"""Any exception turned into one failure: its kind, whether it is retried, and when."""

import math
import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, FailureError, is_cancelled_exception

from activities.calls.rate_headers import reply_time
from gradeloop.contract.base import OmitEmpty, Tolerant
from gradeloop.contract.messages import Usage
from gradeloop.contract.provider import FailureKind, ModelFault
from gradeloop.errors import InvalidRequest, StoreUnavailable, ValueRefused
from gradeloop.settings.secrets import scrubbed
from gradeloop.text import whole_characters

RETRYABLE: frozenset[FailureKind] = frozenset(
    {"rate_limited", "overloaded", "server", "connection", "timeout", "malformed_response", "degenerate"}
)

PERMANENT: tuple[str, ...] = tuple(kind for kind in get_args(FailureKind) if kind not in RETRYABLE)
"""The kinds that no retry cures, for a retry policy's `non_retryable_error_types`."""

RETRY_AFTER_CAP = 300.0
"""Seconds: providers ask for an hour and more, which outlives the activity's own time."""

_BY_STATUS: dict[int, FailureKind] = {
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

_BY_CODE: dict[str, FailureKind] = {
    "insufficient_quota": "quota_exhausted",
    "enforced_spend_limit_reached": "quota_exhausted",
    "billing_error": "quota_exhausted",
    "context_length_exceeded": "context_overflow",
    "exceed_context_size_error": "context_overflow",
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
    "API_KEY_INVALID": "auth",
    "content_filter": "refused",
    "content_policy_violation": "refused",
    "ResponsibleAIPolicyViolation": "refused",
    "invalid_prompt": "refused",
    "bio_policy": "refused",
    "misalignment_policy_violation": "refused",
    "refusal": "refused",
}

_BEFORE_STATUS: frozenset[FailureKind] = frozenset({"quota_exhausted", "context_overflow", "overloaded", "auth", "refused"})
"""Kinds whose code is more exact than the status beside it."""

_BY_MESSAGE: tuple[tuple[FailureKind, re.Pattern[str], frozenset[int | None]], ...] = (
    ("truncated", re.compile(r"token limit reached", re.IGNORECASE), frozenset({None, 400})),
    (
        "context_overflow",
        re.compile(
            r"(prompt|input) is too long|context[_ ](length|window|size)|maximum (context|prompt)|too many tokens|token count.{0,30}exceeds"
            r"|max_new_tokens` must be <=|must have less than \d+ tokens",
            re.IGNORECASE,
        ),
        frozenset({None, 400, 422}),
    ),
    (
        "context_overflow",
        re.compile(r"exceeds (the )?(available )?context|context size has been", re.IGNORECASE),
        frozenset({500}),
    ),
    ("quota_exhausted", re.compile(r"credit balance|insufficient (credit|quota|balance)", re.IGNORECASE), frozenset({None, 400, 403, 429})),
)
"""Kinds that have no code of their own with every provider, with the statuses under which the message counts."""

_PAID = "paid_usage"

_BY_CLASS: tuple[tuple[FailureKind, frozenset[str]], ...] = (
    ("config", frozenset({"UnsupportedProtocol", "LocalProtocolError", "InvalidURL", "UnicodeEncodeError"})),
    ("malformed_response", frozenset({"JSONDecodeError", "UnknownApiResponseError", "DecodingError", "BodyTooLarge"})),
    ("connection", frozenset({"ConnectTimeout"})),
    ("timeout", frozenset({"TimeoutError", "TimeoutException", "APITimeoutError"})),
    ("connection", frozenset({"TransportError", "APIConnectionError", "ConnectionError", "gaierror"})),
)
"""Exceptions without an HTTP status, by the names of their classes; the first kind that fits counts."""

STORE_AWAY = StoreUnavailable.__name__
"""The error type of a call that waits for the store, in which nothing was paid for."""

STORE_PAUSE = timedelta(seconds=5)
"""The pause between two attempts of a call that waits for the store."""

STORE_ATTEMPTS = 20
"""Attempts of a call that pays nothing after which an error that is not the store's is final."""


class FailureDetails(Tolerant):
    """The details of a failed call, beside its message."""

    usage: Usage
    """The usage of all attempts."""
    raisable: bool = False
    """Whether the same call with a larger completion may succeed."""
    waits_for: OmitEmpty[str | None] = None
    """The model whose rate limit the call waits for."""
    away_until: OmitEmpty[float | None] = None
    """Time until which the call waits for a provider that is away, in seconds since 1970."""
    search_attributes: OmitEmpty[bool | None] = None
    """Whether the namespace has our search attributes, as a call says that was stopped before it could return what the worker offers."""


Detail = TypeVar("Detail", bound=BaseModel)


def first_detail(details: Sequence[object], model: type[Detail]) -> Detail | None:
    """Return the first of the details of a failure or a heartbeat; None where there is none, or it is another version's."""
    try:
        return model.model_validate(details[0]) if details else None
    except ValidationError:
        return None


def failure(
    error: BaseException,
    *,
    model: str,
    spent: Usage | None = None,
    final: bool = False,
    waits_for: str | None = None,
    until: float | None = None,
) -> ApplicationError:
    """Turn what a call raised into a failure for Temporal; raise the result `from None`, since SDK errors do not pickle.

    Args:
        error: What was raised. An `ApplicationError` is returned as it is.
        model: The model's id, for the message.
        spent: What all attempts have cost, which the thread counts where none gave a reply.
        final: Whether there is no further attempt, also where a retry could help.
        waits_for: The model whose rate limit is waited for.
        until: Until when a provider that is away is waited for, in seconds since 1970.

    Raises:
        BaseException: `error` itself, where it is a cancellation or no `Exception`.
    """
    if not isinstance(error, Exception) or is_cancelled_exception(error):
        raise error
    if isinstance(error, ApplicationError):
        return error
    fault = model_fault(error, model=model)
    raisable = fault is not None and fault.raisable
    facts = (
        [FailureDetails(usage=spent, raisable=raisable, waits_for=waits_for, away_until=until).model_dump(mode="json")]
        if spent and spent.attempts
        else []
    )
    if fault is None:
        return ApplicationError(conceal(str(error) or repr(error)), *facts, type=type(error).__name__, non_retryable=True)
    final = final or fault.kind not in RETRYABLE
    delay = timedelta(seconds=fault.retry_after) if fault.retry_after and not final else None
    category = ApplicationErrorCategory.BENIGN if waits_for and not final else ApplicationErrorCategory.UNSPECIFIED
    return ApplicationError(str(fault), *facts, type=fault.kind, non_retryable=final, next_retry_delay=delay, category=category)


def priced_failure(
    text: str, kind: str | None, details: FailureDetails, *, final: bool = False, delay: timedelta | None = None, benign: bool = False
) -> ApplicationError:
    """Return a failure of a call by its message, its type, what all attempts have cost, and whether and when the next attempt comes."""
    category = ApplicationErrorCategory.BENIGN if benign else ApplicationErrorCategory.UNSPECIFIED
    facts = details.model_dump(mode="json")
    return ApplicationError(text, facts, type=kind, non_retryable=final, next_retry_delay=delay, category=category)


def note_paid(error: BaseException, usage: Usage) -> None:
    """Note on an exception what the call that it ends had cost by then."""
    error.__dict__[_PAID] = usage


def paid_by(error: BaseException) -> Usage | None:
    """Return what a call had cost when this exception ended it, as far as its server had reported that; None where it had not."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(usage := link.__dict__.get(_PAID), Usage):
            return usage
        link = link.__cause__ or link.__context__  # closing a connection may be cut short, too
    return None


def model_fault(error: Exception, *, model: str, secrets: Collection[str] = ()) -> ModelFault | None:
    """Return the fault that an exception is, without keys and its wait capped; None for an exception that is a bug."""
    if isinstance(error, ModelFault):
        return ModelFault(
            error.kind,
            conceal(error.message, secrets),
            model=model,
            status=error.status,
            retry_after=_wait(error.kind, error.retry_after),
            error=error.error,
            usage=error.usage,
            raisable=error.raisable,
        )
    facts = failure_facts(error)
    if facts.status or facts.codes:
        kind: FailureKind | None = error_kind(facts.status, facts.codes, facts.message)
    else:
        kind = next((kind for kind, names in _BY_CLASS if names & facts.classes), None)
    if kind is None:
        return None
    wait = _wait(kind, facts.retry_after)
    text, paid = conceal(facts.message, secrets), paid_by(error)
    return ModelFault(kind, text, model=model, status=facts.status, retry_after=wait, error=facts.name, usage=paid)


def error_kind(status: int | None, codes: Sequence[str], message: str) -> FailureKind:
    """Return the kind of an error that the provider itself reported, also inside a 200."""
    # Providers name one failure in three places, and none of them is enough. A status is coarse: 400 is a
    # long prompt as well as a wrong one, 429 a rate limit as well as an empty account. A code is exact where
    # it exists. A message is the last resort, and counts only under the statuses with which providers send
    # it, since a prompt that it quotes may say anything. The order decides whether a call is repeated for
    # hours or fails at once.
    known: list[FailureKind] = [_BY_CODE[code] for code in codes if code in _BY_CODE]
    by_code: list[FailureKind] = [kind for kind in known if kind in _BEFORE_STATUS]
    reported = status if status and status >= HTTPStatus.MULTIPLE_CHOICES else None
    by_message: list[FailureKind] = [kind for kind, pattern, statuses in _BY_MESSAGE if reported in statuses and pattern.search(message)]
    if by_code or by_message:  # a prompt that is too long is sometimes called an invalid one, too
        return min(by_code + by_message, key=lambda kind: kind == "refused")
    if reported is None:
        return known[0] if known else "malformed_response"
    return _BY_STATUS.get(reported, "server" if reported >= HTTPStatus.INTERNAL_SERVER_ERROR else "bad_request")


def _wait(kind: FailureKind, seconds: float | None) -> float | None:
    return min(seconds, RETRY_AFTER_CAP) if seconds and kind in RETRYABLE else None


@dataclass(frozen=True)
class FailureFacts:
    """The facts of a failed call, whichever library raised it."""

    name: str
    """The exception's class."""
    classes: frozenset[str]
    """The names of its classes and bases, and of its causes': an SDK wraps whatever goes wrong while sending."""
    status: int | None
    codes: tuple[str, ...]
    """The provider's own names for it, the most exact first."""
    message: str
    """The provider's own message, or the exception's."""
    retry_after: float | None
    """Seconds."""


def failure_facts(error: Exception) -> FailureFacts:
    """Return the facts in an exception of the anthropic and openai SDKs, of httpx2, of the json module or of asyncio."""
    response, report = getattr(error, "response", None), _report(error)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None) or getattr(error, "code", None)
    if status == HTTPStatus.OK and isinstance(report.get("code"), int):  # an error in a stream, which began well
        status = report["code"]
    return FailureFacts(
        name=type(error).__name__,
        classes=frozenset(cls.__name__ for link in _chain(error) for cls in type(link).__mro__),
        status=status if isinstance(status, int) else None,
        codes=reported_codes(report),
        message=_redirect(response) or _message(error, report),
        retry_after=_retry_delay(report) or retry_after(getattr(response, "headers", {})),
    )


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Read the seconds to wait from `retry-after-ms` or `retry-after` (seconds or an HTTP date); None if absent or past."""
    milliseconds, header = _number(headers.get("retry-after-ms")), headers.get("retry-after")
    seconds = milliseconds / 1000 if milliseconds is not None else _number(header)
    if seconds is None and header:
        try:
            seconds = (parsedate_to_datetime(header) - (now or reply_time(headers))).total_seconds()
        except (TypeError, ValueError):  # no date either, or one without a zone
            return None
    return seconds if seconds is not None and seconds > 0 else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def _report(error: Exception) -> Mapping[str, object]:
    """Return the error object of the reply's body: providers nest it, and one SDK unwraps it."""
    body = getattr(error, "body", None) or getattr(error, "details", None)
    body = body[0] if isinstance(body, list) and body else body
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def reported_codes(report: Mapping[str, object]) -> tuple[str, ...]:
    """Return a provider's own names for an error, the most exact first; those of the provider behind it last."""
    # Google reports a used-up day as a rate limit, and only the quota's id says `PerDay`. Read as an empty quota,
    # the call fails or falls back at once. Read as a rate limit, it would be waited for until the outage timeout,
    # for nothing.
    details, metadata = _part(report, "details"), _part(report, "metadata")
    daily = "insufficient_quota" if any("PerDay" in str(violation.get("quotaId")) for violation in _violations(report)) else None
    flagged = "content_filter" if metadata.get("reasons") or metadata.get("flagged_input") else None  # OpenRouter's moderation
    inner = _part(report, "innererror").get("code")
    reason = next((info.get("reason") for info in _details(report, "ErrorInfo")), None)
    named = (details.get("error_code"), daily, flagged, metadata.get("error_type"), inner, reason, report.get("code"), report.get("type"))
    upstream = _upstream(report)
    behind = reported_codes(upstream) if isinstance(upstream, Mapping) else ()
    return (*(code for code in named if isinstance(code, str)), *behind)


def reported_message(report: Mapping[str, object]) -> str:
    """Return a provider's own message, with what the provider behind it said; empty where there is none."""
    metadata, upstream = _part(report, "metadata"), _upstream(report)
    behind = reported_message(upstream) if isinstance(upstream, Mapping) else upstream
    name, reasons = metadata.get("provider_name"), metadata.get("reasons")
    more = [f"{name}: {behind}" if isinstance(name, str) else behind] if behind else []
    more += [", ".join(map(str, reasons))] if isinstance(reasons, list) and reasons else []
    message = str(report.get("message") or report.get("detail") or "")
    return f"{message} ({'; '.join(more)})".strip() if more else message


def _upstream(report: Mapping[str, object]) -> Mapping[str, object] | str:
    """Return the error of the provider behind a router, as OpenRouter hands it on: an error object, else a text."""
    raw = _part(report, "metadata").get("raw")
    try:
        value = from_json(raw) if isinstance(raw, str) else raw
    except ValueError:
        return str(raw)
    inner = value.get("error", value) if isinstance(value, Mapping) else None
    if isinstance(inner, Mapping) and not _part(inner, "metadata").get("raw") and reported_message(inner):
        return inner
    return raw if isinstance(raw, str) else "" if raw is None else to_json(raw, fallback=str).decode()


def _part(report: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = report.get(name)
    return part if isinstance(part, Mapping) else {}


def _details(report: Mapping[str, object], kind: str) -> Iterator[Mapping[str, object]]:
    """Yield the details of one kind that Google sends with an error."""
    details = report.get("details")
    for detail in details if isinstance(details, list) else []:
        if isinstance(detail, Mapping) and str(detail.get("@type")).endswith(kind):
            yield detail


def _violations(report: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    for failure in _details(report, "QuotaFailure"):
        violations = failure.get("violations")
        yield from (violation for violation in violations if isinstance(violation, Mapping)) if isinstance(violations, list) else ()


def _retry_delay(report: Mapping[str, object]) -> float | None:
    """Read the seconds to wait from Google's `RetryInfo`: `34.07s`."""
    delays = (_number(str(detail.get("retryDelay")).removesuffix("s")) for detail in _details(report, "RetryInfo"))
    return next((delay for delay in delays if delay and delay > 0), None)


def _redirect(response: object) -> str:
    if not HTTPStatus.MULTIPLE_CHOICES <= getattr(response, "status_code", 0) < HTTPStatus.BAD_REQUEST:
        return ""
    target = str(getattr(response, "headers", {}).get("location", "")).partition("?")[0]
    return f"the endpoint redirects to {target!r}, which is refused, for a key goes to no other host; name the final address"


def _message(error: Exception, report: Mapping[str, object]) -> str:
    body, cause = getattr(error, "body", None), error.__cause__
    if reported := reported_message(report) or (body if isinstance(body, str) else ""):
        return reported
    text = str(error) or type(error).__name__
    return text if cause is None else f"{text} ({type(cause).__name__}: {cause}{_address(error)})"


def _address(error: Exception) -> str:
    """Return which host was not reached, without the path."""
    try:
        url = error.request.url  # type: ignore[attr-defined]  # the SDKs' and httpx2's errors have it
    except (AttributeError, RuntimeError):  # httpx2's property raises where none was set
        return ""
    return f" at {url.scheme}://{url.netloc.decode()}" if url.host else ""


MESSAGE_CHARACTERS = 500
"""The characters kept of a provider's own message, which may quote the prompt."""

EXCERPT_CHARACTERS = 80
"""The characters of a reply that a message shows where the reply cannot be read."""


def excerpt(reply: bytes | str) -> str:
    """Return how a reply begins, in quotes and without keys: they are taken out before it is cut."""
    text = reply[: 64 * 1024].decode(errors="replace") if isinstance(reply, bytes) else reply[: 64 * 1024]
    return repr(scrubbed(text)[:EXCERPT_CHARACTERS])


def conceal(text: str, secrets: Collection[str] = ()) -> str:
    """Return `text` on one line, without keys, cut to what a message may carry."""
    text = " ".join(scrubbed(whole_characters(text), secrets).split())
    return text if len(text) <= MESSAGE_CHARACTERS else f"{text[: MESSAGE_CHARACTERS - 1]}…"


def activity_call() -> str:
    """Return the id of the call that this activity is, which all its attempts share."""
    info = activity.info()
    return f"{info.workflow_run_id}/{info.activity_id}"


def invalid(why: str) -> ApplicationError:
    """Return the failure of a request that no attempt can serve."""
    return ApplicationError(why, type=InvalidRequest.__name__, non_retryable=True)


# While the store is away, the call is tried until its own time-out, since nothing is lost by waiting. Any
# other error, a value that the store refuses included, may be one of the moment. After twenty attempts it
# counts as permanent.
@asynccontextmanager
async def store_attempt() -> AsyncIterator[None]:
    """Do an attempt of a call that only reads or writes the store; it is repeated while this worker cannot use the store.

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
        if isinstance(error, StoreUnavailable) and not isinstance(error, ValueRefused):
            raise store_away(error) from None
        if activity.info().attempt < STORE_ATTEMPTS:
            raise
        raise failure(error, model="", final=True) from error


def store_away(error: StoreUnavailable) -> ApplicationError:
    """Return the failure of a call that is made again once the store is there."""
    return ApplicationError(str(error), type=STORE_AWAY, next_retry_delay=STORE_PAUSE)
