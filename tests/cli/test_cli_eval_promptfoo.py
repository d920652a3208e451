"""Runs of promptfoo's configurations: what is left out is not judged in any output, and nothing asked is not a pass."""

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.rig.cli import CommandLine

PART = """
prompts: ['Say {{ q }}']
providers:
  - echo
  - openai:image:dall-e-3
tests:
  - {description: whole, vars: {q: yes}, assert: [{type: contains, value: 'yes'}]}
  - {description: part, vars: {q: yes}, assert: [{type: contains, value: 'yes'}, {type: webhook, value: 'https://x.y'}]}
  - {description: failing, vars: {q: yes}, assert: [{type: contains, value: 'no'}, {type: webhook, value: 'https://x.y'}]}
  - {description: mean, vars: {q: yes}, threshold: 0.9, assert: [{type: contains, value: 'no'}, {type: webhook, value: 'https://x.y'}]}
  - {description: nothing, vars: {q: yes}}
"""
NOTHING = "prompts: ['Say {{ q }}']\nproviders: [echo]\ntests: [{vars: {q: a}}, {vars: {q: b}}]\n"
ALL_LEFT_OUT = "prompts: [a]\nproviders: [echo]\ntests: [{assert: [{type: webhook, value: 'https://x.y'}]}]\n"


def written(gradeloop: CommandLine, name: str, text: str) -> str:
    """Write a configuration, and return its name."""
    (gradeloop.folder / name).write_text(text)
    return name


def test_what_is_left_out_is_not_judged_in_every_output(gradeloop: CommandLine) -> None:
    name = written(gradeloop, "promptfooconfig.part.yaml", PART)
    files = [f"part.{suffix}" for suffix in ("jsonl", "json", "csv", "xml", "html")]
    done = gradeloop("eval", name, "--skip-unsupported", *(word for file in files for word in ("-o", file)), "--overwrite")

    assert done.code == 1, done.err
    assert "Results: 1 passed, 1 failed, 8 ungraded of 10 (50% of 2 judged" in done.out
    found: dict[str, Any] = {row["id"].split("-")[0] + "/" + row["label"]: row for row in rows(gradeloop.folder / "part.jsonl")}
    assert {key: row["status"] for key, row in found.items()} == {
        "whole/echo": "passed",
        "part/echo": "ungraded",
        "failing/echo": "failed",
        "mean/echo": "ungraded",
        "nothing/echo": "ungraded",
        **{f"{word}/openai:image:dall-e-3": "ungraded" for word in ("whole", "part", "failing", "mean", "nothing")},
    }
    assert "not judged: the type 'webhook' is not supported" in found["part/echo"]["error"]
    assert "a model of images, none of a chat" in found["whole/openai:image:dall-e-3"]["error"]
    assert found["failing/echo"]["left_out"]
    assert found["nothing/echo"].get("error") is None

    table = {row["id"]: row for row in csv.DictReader((gradeloop.folder / "part.csv").read_text().splitlines())}
    assert sum("not judged: " in row["error"] for row in table.values()) == 7
    (suite,) = ET.parse(gradeloop.folder / "part.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("10", "1", "0", "8")
    assert len(suite.findall("testcase/skipped")) == 8
    assert "not judged" in (gradeloop.folder / "part.html").read_text()
    assert "webhook" in done.out


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "flags", "code", "line"),
    [
        (NOTHING, (), 0, "2 ungraded of 2; UNGRADED: the suite asks for no verdict"),
        (NOTHING, ("--pass-rate", "0.5"), 3, "2 ungraded of 2; UNGRADED"),
        (ALL_LEFT_OUT, ("--skip-unsupported",), 3, "1 ungraded of 1; UNGRADED: nothing was judged"),
    ],
)
def test_a_suite_that_judges_nothing_never_passes(gradeloop: CommandLine, text: str, flags: tuple[str, ...], code: int, line: str) -> None:
    done = gradeloop("eval", written(gradeloop, "promptfooconfig.nothing.yaml", text), *flags)

    assert done.code == code, done.err
    assert f"Results: {line}" in done.out


def test_a_check_tells_every_refusal_at_once_and_runs_nothing(gradeloop: CommandLine) -> None:
    part = written(gradeloop, "promptfooconfig.part.yaml", PART)
    whole = written(
        gradeloop, "promptfooconfig.whole.yaml", "prompts: [a]\nproviders: [openai:gpt-5]\ntests: [{assert: [{type: is-json}]}]"
    )
    none = written(gradeloop, "promptfooconfig.none.yaml", "prompts: [langfuse://x]\nproviders: ['openai:image:x', 'openai:tts:y']\n")

    assert gradeloop("eval", "--check", whole).code == 0
    done = gradeloop("eval", "--check", whole, part)
    assert done.code == 1
    assert "promptfooconfig.whole.yaml: taken whole: 1 case" in done.out
    assert "promptfooconfig.part.yaml: taken in part: 5 cases, 8 not judged whole, 1 without assertions" in done.out
    assert "lines 8, 9, 10: the type 'webhook' is not supported (3 times)" in done.out

    done = gradeloop("eval", "--check", "--json", whole, none)
    assert done.code == 2
    first, second = (json.loads(line) for line in done.out.splitlines())
    assert (first["verdict"], first["findings"]) == ("whole", [])
    assert second["verdict"] == "refused"
    assert [finding["lines"] for finding in second["findings"]] == [[1], [2], [2]]
    assert not gradeloop("eval", whole, part).out
