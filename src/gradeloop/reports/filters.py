"""How values are written in pages."""

import json
from urllib.parse import quote

from pydantic import JsonValue

from gradeloop.printable import counted, percent
from gradeloop.usage import Usage


def score(value: float | None) -> str:
    """Return a score with two decimals; nothing where there is none."""
    return "" if value is None else f"{value:.2f}"


def money(usage: Usage) -> str:
    """Return what calls cost; nothing where that is not known, or nothing."""
    return f"${usage.cost_usd:.4f}" if usage.cost_usd else ""


def tokens(usage: Usage) -> str:
    """Return the tokens of calls, in and out, in words."""
    cached = f" ({usage.cached:,} cached)" if usage.cached else ""
    return f"{usage.input:,} tokens in{cached}, {usage.output:,} out"


def seconds(value: float | None) -> str:
    """Return a duration: milliseconds below a second, and from two minutes on minutes too."""
    if value is None:
        return ""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{int(value // 60)} min {int(value % 60)} s"  # noqa: PLR2004 - as the sentence says


def when(time: str) -> str:
    """Return a time as it is read: `2026-11-22T06:38:32.337+00:00` to the second, with UTC for its zone."""
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
    "money": money,
    "tokens": tokens,
    "seconds": seconds,
    "when": when,
    "as_json": as_json,
    "in_path": in_path,
    "counted": counted,
}
