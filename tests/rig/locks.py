"""The lock files: which versions they fix for this Python and platform."""

import re
from pathlib import Path

from packaging.requirements import Requirement


def pins(lock: Path) -> dict[str, str]:
    """Return the versions by name that a lock file fixes here."""
    lines = [line.removesuffix("\\").strip() for line in lock.read_text().splitlines() if re.match(r"[a-z0-9]", line)]
    needed = [need for need in map(Requirement, lines) if need.marker is None or need.marker.evaluate()]
    return {need.name: str(need.specifier).removeprefix("==") for need in needed}
