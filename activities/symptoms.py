"""What an exception shows of a failed model call, read by shape, so that no SDK is imported to know its errors."""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

WORDS_LIMIT = 500
"""Characters kept of a provider's own words: they may quote the prompt."""

_SECRET = re.compile(r"sk-[\w*-]{6,}|AIza[\w-]{20,}|\bBearer\s+\S{8,}", re.IGNORECASE)


@dataclass(frozen=True)
class Symptoms:
    """The facts of a failed call, whichever library raised it."""

    name: str
    """The exception's class."""
    classes: frozenset[str]
    """The names of its classes and bases, and of its causes': an SDK wraps whatever goes wrong while sending."""
    status: int | None
    codes: tuple[str, ...]
    """The provider's own names for it, the most exact first."""
    words: str
    retry_after: float | None
    """Seconds."""


def symptoms(error: Exception) -> Symptoms:
    """Read an exception of the anthropic and openai SDKs, of httpx2, of the json module or of asyncio."""
    response, report = getattr(error, "response", None), _report(error)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None) or getattr(error, "code", None)
    if status == HTTPStatus.OK and isinstance(report.get("code"), int):  # an error in a stream, which began well
        status = report["code"]
    return Symptoms(
        name=type(error).__name__,
        classes=frozenset(cls.__name__ for link in _chain(error) for cls in type(link).__mro__),
        status=status if isinstance(status, int) else None,
        codes=_codes(report),
        words=_redirect(response) or _words(error, report),
        retry_after=_retry_delay(report) or retry_after(getattr(response, "headers", {})),
    )


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Read the seconds to wait from `retry-after-ms` or `retry-after` (seconds or an HTTP date); None if absent or past."""
    milliseconds, asked = _number(headers.get("retry-after-ms")), headers.get("retry-after")
    seconds = milliseconds / 1000 if milliseconds is not None else _number(asked)
    if seconds is None and asked:
        try:
            seconds = (parsedate_to_datetime(asked) - (now or datetime.now(UTC))).total_seconds()
        except (TypeError, ValueError):  # no date either, or one without a zone
            return None
    return seconds if seconds is not None and seconds > 0 else None


def scrubbed(text: str, secrets: Collection[str] = ()) -> str:
    """Return `text` without keys: the ones at hand, and whatever looks like one."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "[key]") if secret else text
    return _SECRET.sub("[key]", text)


def conceal(text: str, secrets: Collection[str] = ()) -> str:
    """Return `text` on one line, without keys, cut to what a message may carry."""
    text = " ".join(scrubbed(text, secrets).split())
    return text if len(text) <= WORDS_LIMIT else f"{text[: WORDS_LIMIT - 1]}…"


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
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _codes(report: Mapping[str, object]) -> tuple[str, ...]:
    details = report.get("details")
    exact = details.get("error_code") if isinstance(details, Mapping) else None
    daily = "insufficient_quota" if any("PerDay" in str(each.get("quotaId")) for each in _violations(report)) else None
    return tuple(code for code in (exact, daily, report.get("code"), report.get("type")) if isinstance(code, str))


def _details(report: Mapping[str, object], kind: str) -> Iterator[Mapping[str, object]]:
    """Yield what Google says beside an error, of that kind."""
    details = report.get("details")
    for each in details if isinstance(details, list) else []:
        if isinstance(each, Mapping) and str(each.get("@type")).endswith(kind):
            yield each


def _violations(report: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    for failure in _details(report, "QuotaFailure"):
        violations = failure.get("violations")
        yield from (each for each in violations if isinstance(each, Mapping)) if isinstance(violations, list) else ()


def _retry_delay(report: Mapping[str, object]) -> float | None:
    """Read the seconds to wait from Google's `RetryInfo`: `34.07s`."""
    delays = (_number(str(each.get("retryDelay")).removesuffix("s")) for each in _details(report, "RetryInfo"))
    return next((delay for delay in delays if delay and delay > 0), None)


def _redirect(response: object) -> str:
    if not HTTPStatus.MULTIPLE_CHOICES <= getattr(response, "status_code", 0) < HTTPStatus.BAD_REQUEST:
        return ""
    target = str(getattr(response, "headers", {}).get("location", "")).partition("?")[0]
    return f"the endpoint redirects to {target!r}, which is refused, for a key goes to no other host; name the final address"


def _words(error: Exception, report: Mapping[str, object]) -> str:
    body, cause = getattr(error, "body", None), error.__cause__
    said = report.get("message") or report.get("detail") or (body if isinstance(body, str) else None)
    if said:
        return str(said)
    text = str(error) or type(error).__name__
    return text if cause is None else f"{text} ({type(cause).__name__}: {cause}{_address(error)})"


def _address(error: Exception) -> str:
    """Say which host was not reached, without the path."""
    try:
        url = error.request.url  # type: ignore[attr-defined]  # the SDKs' and httpx2's errors have it
    except (AttributeError, RuntimeError):  # httpx2's property raises where none was set
        return ""
    return f" at {url.scheme}://{url.netloc.decode()}" if url.host else ""
