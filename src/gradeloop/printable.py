"""Text from models, tools and files, made harmless for a terminal."""

import re

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return the text without control and direction characters, which could move the cursor or reorder words."""
    return _UNPRINTABLE.sub("", text)


def one_line(text: str) -> str:
    """Return the text as one printable line."""
    return " ".join(printable(text).split())


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 case`, `2,000 cases`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def money(dollars: float | None) -> str:
    """Return an amount of US dollars with four decimals; nothing if it is unknown or zero."""
    return f"${dollars:.4f}" if dollars else ""


def percent(share: float | None) -> str:
    """Return a share as a whole percentage, but never as 100% or 0% unless it is exactly all or nothing."""
    if share is None:
        return ""
    whole = round(share * 100)
    return f"{share:.1%}" if (whole in {0, 100} and share not in {0.0, 1.0}) else f"{whole}%"
