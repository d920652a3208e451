"""Rate limits as OpenAI, Anthropic and OpenRouter report them, from recordings and in every spelling of a reset."""

from datetime import UTC, datetime

import pytest

from activities.calls.rate_headers import ReportedLimit, reported_limits
from tests.rig.provider_server import recordings

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def test_openais_headers_give_the_refill_by_the_day_and_by_the_minute() -> None:
    found = reported_limits(recordings("openai_compatible").exchanges["plain"][0].headers, NOW)

    assert found["requests"] == ReportedLimit(limit=5_000, remaining=4_999, reset=0.012)
    assert found["tokens"] == ReportedLimit(limit=400_000, remaining=399_000, reset=60.15)


def test_anthropics_headers_are_read_with_their_times() -> None:
    found = reported_limits(recordings("anthropic").exchanges["thinking_with_a_tool"][1].headers, NOW)

    assert found["requests"] == ReportedLimit(limit=4_000, remaining=3_998, reset=1.0)
    assert found["input-tokens"] == ReportedLimit(limit=800_000, remaining=799_000, reset=0.0)
    assert found["output-tokens"] == ReportedLimit(limit=160_000, remaining=150_000, reset=2.0)


def test_openrouters_headers_are_of_requests() -> None:
    at = str(int((NOW.timestamp() + 30) * 1000))
    headers = {"x-ratelimit-limit": "20", "x-ratelimit-remaining": "0", "x-ratelimit-reset": at}

    assert reported_limits(headers, NOW) == {"requests": ReportedLimit(20, 0, 30.0)}


@pytest.mark.parametrize(
    ("text", "seconds"), [("8.64s", 8.64), ("6m0s", 360), ("1h2m3.5s", 3723.5), ("6ms", 0.006), ("7", 7), ("1d", 86_400)]
)
def test_every_spelling_of_a_reset_is_read(text: str, seconds: float) -> None:
    headers = {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": text}

    assert reported_limits(headers, NOW)["requests"].reset == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("limit", "reset"), [("", "1s"), ("0", "1s"), ("60", "soon"), ("many", "1s"), ("60", ""), ("60", "2026-02-17T23:44:11")]
)
def test_what_cannot_be_read_is_no_limit(limit: str, reset: str) -> None:
    headers = {"x-ratelimit-limit-requests": limit, "x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": reset}

    assert reported_limits(headers, NOW) == {}


def test_a_limit_that_is_whole_within_the_minute_counts_by_the_minute() -> None:
    assert ReportedLimit(600, 0, 60).rate == 10
    assert ReportedLimit(86_400, 80_000, 6_400).rate == 1
