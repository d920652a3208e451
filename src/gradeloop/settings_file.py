"""Where settings are: a worker's file, named by flag or variable, else gradeloop.toml in the current folder; Temporal's environment."""

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from temporalio.envconfig import ClientConfig, ClientConnectConfig

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


def is_embedded() -> bool:
    """Tell whether neither Temporal's environment nor a profile names a server.

    Raises:
        InvalidRequest: The environment or the profile is malformed.
    """
    return configured().get("target_host") is None


def configured() -> ClientConnectConfig:
    """Return how Temporal's environment or profile says to connect.

    Raises:
        InvalidRequest: The environment or the profile is malformed.
    """
    file = os.environ.get("TEMPORAL_CONFIG_FILE")
    if file and not Path(file).exists():
        raise InvalidRequest(f"TEMPORAL_CONFIG_FILE names {file!r}, which does not exist; correct or unset it")
    try:
        return ClientConfig.load_client_connect_config()
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        raise InvalidRequest(f"Temporal's environment or profile is malformed: {_joined_lines(error)}") from error


def _joined_lines(error: Exception) -> str:
    """Join the lines of a report without its drawing, which quotes the file and so perhaps a key."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip() and "|" not in line)
