"""Finds a worker's settings file: named by flag or variable, else gradeloop.toml in the current folder."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from gradeloop.errors import InvalidRequest

FILE = "gradeloop.toml"
VARIABLE = "GRADELOOP_CONFIG"

SETTINGS = ("CONFIG", "NEEDS_APPROVAL", "SANDBOX", "FILES", "COMMANDS", "FETCH", "PYTEST", "MCP")
"""Variables `GRADELOOP_...`, with those below them, that change which tools a worker has."""


def flag(arguments: Sequence[str], name: str) -> str | None:
    """Return the value of a flag among raw arguments."""
    apart = next((value for each, value in pairwise(arguments) if each == name), None)
    return apart or next((each.partition("=")[2] for each in arguments if each.startswith(f"{name}=")), None)


def config_file(arguments: Sequence[str], environment: Mapping[str, str]) -> Path | None:
    """Return the settings file: named by flag or variable, else gradeloop.toml in the current folder, if it exists.

    Raises:
        InvalidRequest: The named file does not exist.
    """
    named = flag(arguments, "--config") or environment.get(VARIABLE)
    file = Path(named or FILE)
    if named and not file.is_file():
        raise InvalidRequest(f"the settings file {named!r} does not exist; correct --config or {VARIABLE}")
    return file.absolute() if file.is_file() else None
