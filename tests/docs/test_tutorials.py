"""The tutorials run as they are written: their files, their commands with their exit codes, and what they say is printed."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.cli import CommandLine

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
RUN = ("first-run", "rubric", "suite-in-ci", "production", "person")
"""Those that need no cluster."""

STEP = re.compile(r"Save as `(?P<name>[\w.]+)`|^```(?P<language>\w+) ?(?P<about>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT = re.compile(r"#\s+exit (\d+)")
ELSEWHERE = ("pip install",)
"""What is not for a test to run."""


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Yield the steps of a page: `file NAME` with its text, `run` with a command, `shown` with a line of what is printed.

    A command marked `later` needs a model that a test does not have.
    """
    name = ""
    for found in STEP.finditer((FOLDER / f"{page}.md").read_text()):
        if found["name"]:
            name = found["name"]
        elif found["language"] in {"yaml", "json"} and not found["about"]:
            yield f"file {name}", found["text"]
        elif found["language"] in {"sh", "text"} and found["about"] != "later":
            yield from (("run" if found["language"] == "sh" else "shown", line) for line in found["text"].splitlines())


@pytest.mark.parametrize("page", RUN)
def test_a_tutorial_runs_from_its_first_command_to_its_last(page: str, commands: CommandLine) -> None:
    printed, ran = "", 0
    for kind, text in steps(page):
        if kind.startswith("file "):
            (commands.folder / kind.removeprefix("file ")).write_text(text)
        elif kind == "shown":
            assert text in printed
        elif not text.startswith(ELSEWHERE):
            program, *arguments = shlex.split(text, comments=True)
            code = EXIT.search(text)
            done = commands(*arguments)
            printed, ran = done.out + done.err, ran + 1
            assert program == "gradeloop"
            assert done.code == (int(code[1]) if code else 0), f"{text}\n{printed}"
    assert ran > 1


def test_every_tutorial_is_run_or_named_here() -> None:
    assert {page.stem for page in FOLDER.glob("*.md")} == {*RUN, "cluster"}
