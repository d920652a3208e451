"""Regular expressions of others: RE2, whose time grows with the text alone, whatever the pattern."""

import functools
import re
from typing import Any

import re2  # type: ignore[import-untyped]  # it has no types

PATTERN_CHARACTERS = 10_000


@functools.lru_cache(maxsize=512)
def compiled(pattern: str) -> Any:  # noqa: ANN401 - RE2's own type, which its package does not export
    """Return the pattern, ready to use.

    Raises:
        ValueError: It is no regular expression that RE2 knows; it has neither look-around nor back-references.
    """
    if len(pattern) > PATTERN_CHARACTERS:
        raise ValueError(f"the pattern has {len(pattern)} characters, {PATTERN_CHARACTERS} at most")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        told = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        python = " (Python's own would take it; RE2 has neither look-around nor back-references)" if _is_pythons(pattern) else ""
        raise ValueError(f"the pattern {pattern[:200]!r} is refused: {told}{python}") from None


def _is_pythons(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True
