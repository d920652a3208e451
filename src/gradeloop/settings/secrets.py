"""The secrets of this process's environment, and texts without them."""

import os
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gradeloop.text import without_secrets

SHORTEST = 8
"""The characters of the shortest value that counts as a secret: shorter ones stand in ordinary words."""

SHORTEST_IN_EVIDENCE = 16
"""The characters of the shortest secret that is taken out of evidence, of which no word may be lost."""

LONGEST_USER = 16
"""The characters from which a user without a password in a URL counts as a token, as in clone addresses."""

_NAME = re.compile(
    r"(?:(?:^|_)(?:KEY|PAT|PASS|PWD|AUTH)|(?:API|ACCESS|SECRET|PRIVATE)KEY|API_?KEYS|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)"
    r"(?:_?\d+|_(?:PROD|LIVE|STAGING|DEV|TEST|OLD|NEW|PRIMARY|SECONDARY|VALUE|B64|BASE64))*$"
)
_IN_URL = tuple(
    map(re.compile, (r"\w://[^/?#\s:@]*:([^@\s]+)@", r"\w://[^/?#\s:@]*:([^/?#\s]+)@", rf"\w://([^/?#\s:@]{{{LONGEST_USER},}})@"))
)
_NAMED = re.compile(r"(?:password|passwd|passphrase|secret|token|key|sig|signature|authorization)\s*=\s*([^&#;,\s]+)", re.IGNORECASE)

_remembered: set[str] = set()


def remember_secret(value: str) -> None:
    """Keep a secret that stands in no variable, a key that was read from a file say, out of every text from now on."""
    if len(value) >= SHORTEST:
        _remembered.add(value)


def environment_secrets(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the values of variables that are named as secrets are, and passwords in URLs; by default this process's, and what it read."""
    # Secrets are known by the names of their variables and by their place in URLs, since no list of variables
    # is ever complete. A value that is too short stands in ordinary words, and a path names where a key is:
    # to replace either would make messages unreadable and hide nothing.
    found: set[str] = set(_remembered) if environ is None else set()
    for name, value in (os.environ if environ is None else environ).items():
        if len(value) >= SHORTEST and _NAME.search(name.upper()) and not _is_path(value):
            found |= {value.strip(), *(part.strip() for part in value.split(","))}
        if "://" in value or "=" in value:
            parts = {part for pattern in (*_IN_URL, _NAMED) for part in pattern.findall(value)}
            found |= parts | set(map(unquote, parts))
    return frozenset(secret for secret in found if len(secret) >= SHORTEST)


@lru_cache(maxsize=256)
def _is_path(value: str) -> bool:
    """Return whether a variable names a file, a key's say; a key as base64 may begin with a slash, too."""
    return value.startswith("/") and (Path(value).exists() or (value.count("/") > 1 and Path(value).parent.is_dir()))


def scrubbed(text: str, secrets: Collection[str] = ()) -> str:
    """Return a message without the given secrets, those of this process's environment, and what looks like one; cut it after that."""
    return without_secrets(text, {*secrets, *environment_secrets()})


def scrubbed_value(value: Any) -> Any:  # noqa: ANN401 - whatever a tool returns
    """Return a value whose texts have no secret of this process's environment; nothing else in it is changed, since it is evidence."""
    secrets = [secret for secret in environment_secrets() if len(secret) >= SHORTEST_IN_EVIDENCE]
    return _replaced(value, secrets) if secrets else value


def _replaced(value: Any, secrets: Collection[str]) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, "[key]")
        return value
    if isinstance(value, dict):
        return {_replaced(key, secrets): _replaced(item, secrets) for key, item in value.items()}
    return [_replaced(item, secrets) for item in value] if isinstance(value, list) else value
