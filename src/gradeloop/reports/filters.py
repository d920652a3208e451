"""How pages write numbers, times and JSON."""

import json
from urllib.parse import quote

from pydantic import JsonValue

from gradeloop.printable import counted, money, percent
from gradeloop.usage import Usage


def score(value: float | None) -> str:
    """Return a score with two decimals; nothing if there is none."""
    return "" if value is None else f"{value:.2f}"


def cost(usage: Usage) -> str:
    """Return what calls cost; nothing if it is unknown or zero."""
    return money(usage.cost_usd)


def tokens(usage: Usage) -> str:
    """Return the tokens of calls, in and out."""
    cached = f" ({usage.cached:,} cached)" if usage.cached else ""
    return f"{usage.input:,} tokens in{cached}, {usage.output:,} out"


def seconds(value: float | None) -> str:
    """Return a duration: in milliseconds below a second, in minutes and seconds from two minutes on."""
    if value is None:
        return ""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{int(value // 60)} min {int(value % 60)} s"  # noqa: PLR2004 - as the sentence says


def when(time: str) -> str:
    """Return a UTC time to the second: `2026-11-22 06:38:32 UTC`; any other text as it is."""
    zone = " UTC" if time.endswith(("Z", "+00:00")) else ""
    return f"{time[:10]} {time[11:19]}{zone}" if zone and time[10:11] == "T" else time


def as_json(value: JsonValue) -> str:
    """Return a value as JSON over several lines; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def in_path(text: str) -> str:
    """Return an id as a part of a path."""
    return quote(text, safe="")


FILTERS = {
    "score": score,
    "percent": percent,
    "money": cost,
    "tokens": tokens,
    "seconds": seconds,
    "when": when,
    "as_json": as_json,
    "in_path": in_path,
    "counted": counted,
}
