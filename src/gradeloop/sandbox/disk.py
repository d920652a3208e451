"""The folder of a program on this machine's disk: made, watched while it fills, removed with whatever the program made of it."""

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradeloop.sandbox.execution import Limits

BLOCK_BYTES = 4096
"""An empty file counts as one."""


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for one run, and remove it at its end."""
    made = Path(tempfile.mkdtemp(prefix="gradeloop-sandbox-")).resolve()
    try:
        yield made
    finally:
        _remove(made)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        # Folders without rights, or deeper than Python's own removal goes: the system's tools take both.
        for command in (["chmod", "-R", "u+rwX", str(folder)], ["rm", "-rf", str(folder)]):
            subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - fixed commands on our own folder


def overfull(folder: Path, limits: Limits) -> str:
    """Return what is wrong with the size of a folder, if anything; at most as many entries are looked at as it may have."""
    most = max(1000, limits.disk_bytes // BLOCK_BYTES)
    entries = total = 0
    pending = [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as found:
                for entry in found:
                    entries += 1
                    with contextlib.suppress(OSError):
                        facts = entry.stat(follow_symlinks=False)
                        total += facts.st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                    if entries > most:
                        return f"it made more than {most} files"
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # below it nobody would see what is written
                return "it made folders too deep"
    return f"it wrote more than {limits.disk_bytes} bytes to disk" if total > limits.disk_bytes else ""
