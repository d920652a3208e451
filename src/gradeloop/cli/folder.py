"""The folder that a command runs in: its gradeloop.toml, as far as it is trusted, and the folders that files may name."""

import os
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from gradeloop.errors import InvalidRequest
from gradeloop.settings.trust import TRUST_FLAG, ConfigFile, find_config_file
from gradeloop.settings.worker import find_outside_roots
from gradeloop.text import clip


def own_config_file(*, trust: bool) -> ConfigFile | None:
    """Return the settings file of this command's worker; what does not count in it is said on stderr.

    Raises:
        InvalidRequest: The file that a variable names does not exist, or the file is not TOML.
    """
    config = find_config_file((TRUST_FLAG,) if trust else (), os.environ)
    if config and (warning := config.warning):
        print(warning, file=sys.stderr)  # noqa: T201 - stdout has only the results
    return config


def load_env_files(named: list[Path] | None) -> list[Path] | None:
    """Set the variables of .env files in this process, and so in the worker that it starts; they replace those that are set.

    A name may be several, with commas between them. The values go nowhere else: no workflow, store or file has them. The names are
    returned, so that this may be called as an option is parsed, before anything is read from the environment.

    Raises:
        InvalidRequest: A file cannot be read, or a line of it is not NAME=VALUE.
    """
    for name in named or ():
        for path in [name] if name.is_file() else [Path(part.strip()) for part in str(name).split(",")]:
            os.environ.update(_read_env_file(path))
    return named


def _read_env_file(path: Path) -> dict[str, str]:
    from dotenv.parser import parse_stream

    try:
        bindings = list(parse_stream(StringIO(path.read_text(encoding="utf-8-sig"))))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidRequest(f"--env-file: {clip(str(path))} cannot be read: {why}; name a file of NAME=VALUE lines") from None
    if odd := next((binding for binding in bindings if binding.error), None):
        raise InvalidRequest(f"--env-file: {clip(str(path))}, line {odd.original.line}: it is not NAME=VALUE; correct it")
    return {binding.key: binding.value for binding in bindings if binding.key and binding.value is not None}


def own_outside_roots(given: Sequence[Path] | None) -> tuple[Path, ...]:
    """Return the folders, of the flag and the settings, in which files may name others; raise InvalidRequest for what is not a folder."""
    return find_outside_roots(tuple(given or ()), find_config_file((), os.environ))
