"""Where a worker's file of settings is: named by flag or variable, else gradeloop.toml in the current folder."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from gradeloop.errors import InvalidRequest

FILE = "gradeloop.toml"
VARIABLE = "GRADELOOP_CONFIG"

SETTINGS = ("CONFIG", "NEEDS_APPROVAL", "SANDBOX", "FILES", "COMMANDS", "FETCH", "PYTEST", "MCP")
"""The variables `GRADELOOP_...`, and those below them, by which a worker's tools differ."""


def flag(arguments: Sequence[str], name: str) -> str | None:
    """Return the value of a flag among arguments that nobody has read yet."""
    apart = next((value for each, value in pairwise(arguments) if each == name), None)
    return apart or next((each.partition("=")[2] for each in arguments if each.startswith(f"{name}=")), None)


def config_file(arguments: Sequence[str], environment: Mapping[str, str]) -> Path | None:
    """Return the file of settings: named by flag or variable, else gradeloop.toml in the current folder, if it is there.

    Raises:
        InvalidRequest: The named one is not there.
    """
    named = flag(arguments, "--config") or environment.get(VARIABLE)
    file = Path(named or FILE)
    if named and not file.is_file():
        raise InvalidRequest(f"the file of settings {named!r} does not exist; correct --config or {VARIABLE}")
    return file.absolute() if file.is_file() else None
