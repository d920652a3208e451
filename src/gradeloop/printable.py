"""Text from models, tools and files, made harmless for a terminal."""

import re

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return the text without control and direction characters, which could move the cursor or reorder words."""
    return _UNPRINTABLE.sub("", text)


def one_line(text: str) -> str:
    """Return the text as one printable line."""
    return " ".join(printable(text).split())
