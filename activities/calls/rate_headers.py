"""Facts of a reply under way beside its content: the rate limits that providers report, and how much of a stream has come."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from pydantic import JsonValue

from gradeloop.contract.provider import DRAFT_CHARACTERS

MINUTE = 66.0
"""Seconds: a limit that is full again within them counts by the minute."""

# As in `6m0s`, `8.64s` and `20ms`: an `m` with an `s` behind it stands for milliseconds and not for minutes.
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)


@dataclass(frozen=True)
class ReportedLimit:
    """A limit as a reply reports it: so many are left, and the limit is whole again in so many seconds."""

    limit: float
    remaining: float
    reset: float

    @property
    def rate(self) -> float:
        """The amount that is given back a second; 0 where all of it comes back at once, or that is not known."""
        # `reset` has two meanings. Within a minute it is a limit by the minute, which all providers refill evenly,
        # whatever is left of it. A longer one refills evenly until then only as far as was taken: a daily limit that
        # is full gives nothing back.
        if self.reset <= MINUTE:
            return self.limit / 60
        return (self.limit - self.remaining) / self.reset


@dataclass
class KeptHeaders:
    """The headers of a reply about rate limits, when its request was sent, and how much of a stream has come."""

    headers: dict[str, str] = field(default_factory=dict)
    sent: float | None = None
    """Time at which it was sent, by the monotonic clock; None before."""
    characters: int = 0
    """The characters that a stream has brought."""
    draft: str = ""
    """The end of what a stream says, without its reasoning and its calls of tools."""


_WRITTEN = frozenset({"content", "reasoning", "reasoning_content", "thinking", "text", "delta", "arguments", "partial_json"})
"""The keys of an event, in every protocol, that hold what a model has written."""

_SAID = frozenset({"content", "text", "delta", "choices", "parts", "candidates"})
"""The keys of an event that hold what a model says, or an object with it; all others hold reasoning, calls of tools and the like."""

_UNSAID = re.compile("reasoning|thinking|arguments")
"""The types of events, and of what they hold, that are not part of a draft."""

_LAST: ContextVar[KeptHeaders | None] = ContextVar("headers of the last reply", default=None)


@contextmanager
def kept_headers() -> Iterator[KeptHeaders]:
    """Yield what takes the headers of the replies in the block, those of the last one."""
    kept = KeptHeaders()
    token = _LAST.set(kept)
    try:
        yield kept
    finally:
        _LAST.reset(token)


def keep_streamed(event: dict[str, JsonValue]) -> str:
    """Return what an event of the call's stream has brought, and keep how much; one that repeats what came before brings nothing."""
    # Protocols whose events have types send a text in deltas, and once more as a whole when it is complete. Only
    # the deltas count, or each reply would be counted twice.
    kind = event.get("type")
    text = _written(event, _WRITTEN) if kind is None or "delta" in str(kind) else ""
    if (kept := _LAST.get()) is not None:
        kept.characters += len(text)
        kept.draft = (kept.draft + _written(event, _SAID))[-DRAFT_CHARACTERS:] if text else kept.draft
    return text


def _written(value: JsonValue, keys: frozenset[str], key: str = "") -> str:
    if isinstance(value, str):
        return value if key in keys else ""
    if isinstance(value, list):
        return "".join(_written(item, keys, key) for item in value)
    if not isinstance(value, dict) or (keys is _SAID and (value.get("thought") or _UNSAID.search(str(value.get("type"))))):
        return ""
    return "".join(_written(item, keys, name) for name, item in value.items() if keys is _WRITTEN or name in keys)


def keep_sending() -> None:
    """Keep when the request of the call that is under way is sent."""
    if (kept := _LAST.get()) is not None:
        kept.sent = time.monotonic()


def keep_headers(headers: Mapping[str, str]) -> None:
    """Keep the headers of a reply that speak of rate limits for the call that is under way, if anybody reads them."""
    if (kept := _LAST.get()) is not None:
        kept.headers = {name.lower(): value for name, value in headers.items() if "ratelimit" in name.lower() or name.lower() == "date"}


def reply_time(headers: Mapping[str, str]) -> datetime:
    """Return when a server answered, by its own clock, to which other times in its headers refer; by ours where it does not say."""
    try:
        return parsedate_to_datetime(headers["date"]).astimezone(UTC)
    except (KeyError, TypeError, ValueError):
        return datetime.now(UTC)


def reported_limits(headers: Mapping[str, str], now: datetime | None = None) -> dict[str, ReportedLimit]:
    """Return the limits that headers report, by what is counted: `requests`, `tokens`, `input-tokens`, `output-tokens`.

    Args:
        headers: A reply's, their names in lower case: OpenAI's, Anthropic's or OpenRouter's.
        now: The time of the reply; by default as it says.
    """
    if not any("ratelimit" in name for name in headers):
        return {}
    at = now or reply_time(headers)
    found = {}
    for what in ("requests", "tokens", "input-tokens", "output-tokens"):
        for form in ("x-ratelimit-{part}-{what}", "anthropic-ratelimit-{what}-{part}"):
            texts = [headers.get(form.format(part=part, what=what)) for part in ("limit", "remaining", "reset")]
            if (read := _read(texts, at)) is not None:
                found[what] = read
    # A limit without a name, as OpenRouter sends it, counts requests. One that is named so is more exact and
    # takes its place.
    plain = _read([headers.get(f"x-ratelimit-{part}") for part in ("limit", "remaining", "reset")], at)
    return {"requests": plain} | found if plain is not None else found


def _read(texts: list[str | None], now: datetime) -> ReportedLimit | None:
    limit, remaining, reset = _number(texts[0]), _number(texts[1]), _seconds(texts[2], now)
    if limit is None or remaining is None or reset is None or limit <= 0:
        return None
    return ReportedLimit(limit, max(0.0, min(remaining, limit)), reset)


def _number(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d{1,15}(\.\d{1,9})?", text.strip()) else None


def _seconds(text: str | None, now: datetime) -> float | None:
    """Read `8.64s`, `6m0s`, a time of RFC 3339, seconds, or milliseconds since 1970."""
    text = (text or "").strip()
    if not text:
        return None
    if (number := _number(text)) is not None:
        since_1970 = number / 1000 if number > 1e11 else number  # noqa: PLR2004 - of the year 5138 in seconds
        return max(0.0, since_1970 - now.timestamp()) if since_1970 > 1e9 else since_1970  # noqa: PLR2004 - of the year 2001
    if match := _DURATION.fullmatch(text):
        return sum(float(part or 0) * unit for part, unit in zip(match.groups(), _UNITS, strict=True))
    try:
        return max(0.0, (datetime.fromisoformat(text) - now).total_seconds())
    except (ValueError, TypeError):
        return None
