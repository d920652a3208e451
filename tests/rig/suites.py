"""Suites for tests: files in a folder, the cases that they come to, the words with which they are refused."""

from pathlib import Path
from textwrap import dedent

import pytest

from gradeloop.batches.contract import Case
from gradeloop.errors import InvalidRequest
from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.load import read_suite

PLAIN = SuiteFlags()
REPLIES = "replies: [{role: grader, text: x}]"


def written(folder: Path, suite: str, name: str = "suite.yaml", **files: str | bytes) -> Path:
    """Write a suite, and files whose names have `_` for the dot; return the suite's path."""
    (folder / "replies.yaml").write_text(REPLIES)
    for key, text in files.items():
        path = folder / key.replace("_", ".")
        path.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())
    path = folder / name
    path.write_text(dedent(suite), encoding="utf-8")
    return path


def cases(folder: Path, suite: str, flags: SuiteFlags = PLAIN, name: str = "suite.yaml", **files: str | bytes) -> list[Case]:
    """Return the cases of a suite."""
    return list(read_suite(written(folder, suite, name, **files), flags).cases())


def refusal(folder: Path, suite: str, flags: SuiteFlags = PLAIN, name: str = "suite.yaml", **files: str | bytes) -> str:
    """Return the one line with which a suite is refused, its folder left out."""
    with pytest.raises(InvalidRequest) as caught:
        cases(folder, suite, flags, name, **files)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{folder}/", "")
