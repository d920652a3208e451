"""What a command takes from the folder it runs in: its gradeloop.toml, as far as it is trusted, and the folders that files may name."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gradeloop.settings.trust import TRUST_FLAG, ConfigFile, find_config_file
from gradeloop.settings.worker import find_outside_roots


def own_config_file(*, trust: bool) -> ConfigFile | None:
    """Return the settings file of this command's worker; what does not count in it is said on stderr.

    Args:
        trust: Whether to trust the folder's file first.

    Raises:
        InvalidRequest: The file that a variable names does not exist, or the file is no TOML.
    """
    config = find_config_file((TRUST_FLAG,) if trust else (), os.environ)
    if config and (warning := config.warning):
        print(warning, file=sys.stderr)  # noqa: T201 - stdout has the results alone
    return config


def own_outside_roots(given: Sequence[Path] | None) -> tuple[Path, ...]:
    """Return the folders in which files may name others: those of the flag, and of the settings.

    Raises:
        InvalidRequest: One of them is no folder.
    """
    return find_outside_roots(tuple(given or ()), find_config_file((), os.environ))
