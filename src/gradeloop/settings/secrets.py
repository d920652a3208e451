"""The secrets of this process's environment, and texts without them."""

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from gradeloop.text import without_secrets

SHORTEST = 8
"""The characters of the shortest value that counts as a secret: shorter ones stand in ordinary words."""

SHORTEST_IN_EVIDENCE = 16
"""The characters of the shortest secret that is taken out of evidence, of which no word may be lost."""

_NAME = re.compile(r"(?:^|_)(?:API)?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)$")
_IN_URL = re.compile(r"\w+://[^/@\s]*:([^/@\s]+)@")


_remembered: set[str] = set()


def remember_secret(value: str) -> None:
    """Keep a secret that stands in no variable, a key that was read from a file say, out of every text from now on."""
    if len(value) >= SHORTEST:
        _remembered.add(value)


def environment_secrets(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the values of variables that are named as secrets are, and passwords in URLs; by default this process's, and what it read."""
    found: set[str] = set(_remembered) if environ is None else set()
    for name, value in (os.environ if environ is None else environ).items():
        if _NAME.search(name.upper()) and not value.startswith("/"):
            found.add(value.strip())
        elif "@" in value:
            found.update(_IN_URL.findall(value))
    return frozenset(secret for secret in found if len(secret) >= SHORTEST)


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
