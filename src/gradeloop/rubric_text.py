"""The text form of a rubric: a criterion a line, headings and introducing lines as context."""

import re
from typing import Any

_MARKER = re.compile(r"(?:[-*•+]|\d+[.)]|[A-Za-z]\))\s+(?:\[[ xX]?\]\s+)?")
_HEADING = re.compile(r"#{1,6}(\s|$)")


def without_marker(line: str) -> str:
    """Return a line without the marker of a list, if it begins with one and white space follows."""
    marker = _MARKER.match(line)
    return line[marker.end() :] if marker else line


def parse(text: str) -> dict[str, Any]:
    """Read the text form.

    Raises:
        ValueError: It says something, but no criterion.
    """
    criteria: list[str] = []
    context: list[dict[str, Any]] = []
    continues = False
    for raw in text.removeprefix("\ufeff").splitlines():
        line = raw.expandtabs(4).rstrip()
        body = line.strip()
        if not any(character.isalnum() for character in body):
            continue
        indented = line != body
        marker = _MARKER.match(body)
        if marker:
            criteria.append(body[marker.end() :])
            continues = True
        elif indented and continues:
            criteria[-1] += " " + body
        elif _HEADING.match(body) or (not indented and body.endswith(":")):
            context.append({"before": len(criteria), "text": body})
            continues = False
        else:
            criteria.append(body)
            continues = False
    if text and not criteria:
        raise ValueError("the rubric has no criterion, only white space or headings; write one a line, or '' to clear it")
    return {"criteria": criteria, "context": context}
