"""Files that results are written to: checked before anything runs, and replaced only when they are complete."""

import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from uuid import uuid4

from gradeloop.errors import InvalidRequest
from gradeloop.text import clip, did_you_mean

PAGE = ".html"

TEXT_MARK = "gradeloop results of"
"""The beginning of results as text."""

MARKDOWN_MARK = "<!-- gradeloop results -->"
"""The beginning of results as Markdown, which no reader shows."""

_HEAD_BYTES = 64 * 1024
"""Bytes of a file that are searched: our marks are at its beginning, after a suite's name of at most 200 characters."""

_OURS = re.compile(
    rb"""
    \{\s*"schema"\s*:\s*"gradeloop\.                                            # results as JSON and JSON lines
    | \{"id":"[^"]*","agent_run_id":                                              # judgements
    | agent_run_id,repeat,result,                                                 # judgements as CSV
    | id,description,prompt,label,status,score,worst_criterion,                     # results as CSV
    | <\?xml\ [^>]*>\s*<testsuites\ .*<property\ name="schema"\ value="gradeloop\.  # JUnit's XML
    | schema:\ ['"]?gradeloop\.                                                    # results as YAML
    | gradeloop\ results\ of\                                                     # results as text
    | <!--\ gradeloop\ results\ -->                                               # results as Markdown
    | <!doctype\ html>.*<meta\ name="generator"\ content="gradeloop">              # pages
    """,
    re.DOTALL | re.VERBOSE,
)
"""The beginnings of files that gradeloop writes; comments of the expression name them."""


def refuse_foreign(path: Path, *, overwrite: bool) -> None:
    """Raise InvalidRequest for an output that would replace a file which gradeloop did not write; an empty file may always be."""
    if overwrite or not path.is_file():
        return
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise InvalidRequest(f"the output {quoted_path(path)} exists and cannot be read: {error.strerror}; name another") from None
    if head and _OURS.match(head) is None:
        cure = "name another, or replace it with --overwrite"
        raise InvalidRequest(f"the output {quoted_path(path)} is a file that gradeloop did not write; {cure}")


def is_written_by_us(path: Path) -> bool:
    """Return whether a file begins as one that gradeloop writes; one that cannot be read does not."""
    try:
        with path.open("rb") as file:
            return _OURS.match(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


def resolve_writable(given: Path, suffixes: Sequence[str], *, overwrite: bool = False) -> Path:
    """Return the absolute path of an output, after making its folder and checking that it can be written.

    `overwrite`: whether it may replace a file that gradeloop did not write.

    Raises:
        InvalidRequest: It cannot be written, has another suffix, or would replace a file of others; the message says what to do.
    """
    suffix = given.suffix.lower()
    if suffix not in suffixes:
        raise InvalidRequest(f"the output {quoted_path(given)}: its suffix names no format.{did_you_mean(suffix, list(suffixes))}")
    try:
        path, is_there = given.resolve(), True
        try:  # `exists` says no more than False where a name is too long or a link leads to itself, from Python 3.14 on
            if not stat.S_ISREG(path.stat().st_mode):
                raise InvalidRequest(f"the output {quoted_path(given)} is not a file; name one, such as results{suffix}")
        except FileNotFoundError:
            is_there = False
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_there and not os.access(path, os.W_OK):
            raise InvalidRequest(f"the output {quoted_path(given)} may not be written; change its permissions, or name another")
        refuse_foreign(path, overwrite=overwrite)
        probe = _temporary(path)
        probe.touch(exist_ok=False)
        probe.unlink()
    except (OSError, RuntimeError) as error:
        raise InvalidRequest(f"the output {quoted_path(given)} cannot be written: {error}; name another") from None
    return path


def resolve_outputs(given: Sequence[Path], suffixes: Sequence[str], *, overwrite: bool = False) -> list[Path]:
    """Return the absolute paths of a command's outputs, each as `resolve_writable` checks it; raise InvalidRequest for one named twice."""
    paths = [resolve_writable(path, suffixes, overwrite=overwrite) for path in given]
    for at, path in enumerate(paths):
        if path in paths[:at]:
            raise InvalidRequest(f"the output {quoted_path(given[at])} is named twice; name it once")
    return paths


def _temporary(path: Path) -> Path:
    return path.with_name(f".gradeloop-{uuid4().hex}")


@contextmanager
def replacing(path: Path) -> Iterator[TextIOWrapper]:
    """Yield a new file that replaces `path` when all is written, and is removed if something fails; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            # The bytes are on disk before the name is: the rename may reach the disk first, and a power cut
            # would leave an empty file in the place of the older results.
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def quoted_path(path: Path) -> str:
    """Return a path in quotes, cut to what a message has room for."""
    return clip(str(path), 200)
