"""Files that results are written to: checked before anything runs, and replaced only when they are complete."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from uuid import uuid4

from gradeloop.errors import InvalidRequest
from gradeloop.text import clip, did_you_mean

PAGE = ".html"


def resolve_writable(given: Path, suffixes: Sequence[str]) -> Path:
    """Return the absolute path of an output, after checking that it can be written.

    Raises:
        InvalidRequest: It cannot be written, or has another suffix; the message says what to do.
    """
    suffix = given.suffix.lower()
    if suffix not in suffixes:
        raise InvalidRequest(f"the output {quoted_path(given)}: its suffix names no format.{did_you_mean(suffix, list(suffixes))}")
    try:
        path = given.resolve()
        if path.exists() and not path.is_file():
            raise InvalidRequest(f"the output {quoted_path(given)} is no file; name one, such as results{suffix}")
        if not path.parent.is_dir():
            raise InvalidRequest(f"the output {quoted_path(given)}: there is no folder {quoted_path(path.parent)}; make it first")
        if path.exists() and not os.access(path, os.W_OK):
            raise InvalidRequest(f"the output {quoted_path(given)} may not be written; change its permissions, or name another")
        probe = _temporary(path)
        probe.touch(exist_ok=False)
        probe.unlink()
    except (OSError, RuntimeError) as error:
        raise InvalidRequest(f"the output {quoted_path(given)} cannot be written: {error}; name another") from None
    return path


def _temporary(path: Path) -> Path:
    return path.with_name(f".gradeloop-{uuid4().hex}")


@contextmanager
def replacing(path: Path) -> Iterator[TextIOWrapper]:
    """Yield a new file that replaces `path` when all is written, and is removed if something fails."""
    temporary = _temporary(path)
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def quoted_path(path: Path) -> str:
    """Return a path in quotes, cut to what a message has room for."""
    return clip(str(path), 200)
