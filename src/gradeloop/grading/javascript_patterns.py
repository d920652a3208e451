"""Regular expressions as JavaScript reads them: matched by RE2 in linear time, and by Python where RE2 has no word for what they ask."""

import re
from typing import Any

from gradeloop.grading.json_schema import PATTERN_CHARACTERS, compile_pattern

_TOKEN = re.compile(
    r"\\(?:u(?P<code>[0-9A-Fa-f]{4})|c(?P<control>[A-Za-z])|k<(?P<back>\w+)>|.)|\[\^?\]|\[\^?|\(\?<(?![=!])|.",
    re.DOTALL,
)
_SPACE = "\\t\\n\\v\\f\\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_ANYWHERE = {r"\u": "u", r"\c": "c", r"\k": "k"}
"""Letters that no code follows."""

_INSIDE = _ANYWHERE | {r"\s": _SPACE, "[": r"\[", "[^": r"\[^", "[]": r"\[]", "[^]": r"\[^]"}
"""What parts of a pattern are in a class of characters, and outside of one."""

_OUTSIDE = _ANYWHERE | {
    r"\s": f"[{_SPACE}]",
    r"\S": f"[^{_SPACE}]",
    ".": "[^\\n\\r\u2028\u2029]",
    "(?<": "(?P<",
    "[^]": r"[\s\S]",
    "[]": r"[^\s\S]",
}


def compile_javascript(pattern: str) -> Any:  # noqa: ANN401 - RE2's own type, or Python's: both search
    """Compile a pattern of JavaScript's without flags; one that begins with flags, as `(?i)`, is RE2's.

    What looks around or refers back is matched by Python, which may take for ever: match it where it can be stopped.

    Raises:
        ValueError: Neither takes the pattern.
    """
    if re.match(r"\(\?[a-zA-Z]+\)", pattern):
        return compile_pattern(pattern)
    try:
        return compile_pattern(_translated(pattern, python=False))
    except ValueError as refused:
        if len(pattern) > PATTERN_CHARACTERS:
            raise
        try:
            return re.compile(_translated(pattern, python=True), re.ASCII)
        except (re.error, RecursionError, OverflowError):
            raise refused from None


def _translated(pattern: str, *, python: bool) -> str:
    """Return the pattern in the words of RE2, or of Python."""
    parts, inside = list[str](), False
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if token["code"] or token["control"]:
            parts.append(re.escape(chr(int(token["code"], 16) if token["code"] else ord(token["control"]) % 32)))
        elif token["back"]:
            parts.append(f"(?P={token['back']})")
        elif text == "$" and python and not inside:
            parts.append(r"\Z")
        else:
            parts.append((_INSIDE if inside else _OUTSIDE).get(text, text))
        inside = text in {"[", "[^"} or (inside and not text.endswith("]")) or (inside and text == r"\]")
    return "".join(parts)
