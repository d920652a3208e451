"""The page about reports matches the code: its flags, outcomes, marks, limits and keys are the code's."""

import re
from pathlib import Path
from typing import Any

import typer

from gradeloop.cli.main import app
from gradeloop.compare.compare import OUTCOMES, ComparisonGate
from gradeloop.reports import collection_page, read_batch
from gradeloop.reports.html import FOLDER
from gradeloop.reports.run_page import MARKS
from gradeloop.web.guard import DEFAULT, VARIABLE
from tests.docs.test_docs import rows

PAGE = Path(__file__).parents[2] / "docs" / "reports.md"
TEXT = PAGE.read_text()


def flags(name: str) -> set[str]:
    """Return the long flags of a command."""
    top: Any = typer.main.get_command(app)
    top.load_all()
    return {flag for param in top.commands[name].params for flag in param.opts if flag.startswith("--")}


def test_every_flag_is_documented_and_no_other() -> None:
    one, other = TEXT.split("## The page as it changes")
    flags_of_diff = set(re.findall(r"(--[a-z][a-z-]*)", other))

    assert set(re.findall(r"(--[a-z][a-z-]*)", one)) == flags("report")
    assert flags_of_diff == flags("diff")


def test_the_gates_and_outcomes_are_those_of_a_comparison() -> None:
    gates = re.findall(r"`(\w+)`", next(row[1] for row in rows(PAGE, "Comparing two batches") if row[0] == "`--fail-on`"))

    assert gates == [gate.value for gate in ComparisonGate]
    outcomes = [
        name for row in rows(PAGE, "Comparing two batches") for name in re.findall(r"`(\w+)`", row[0]) if not row[0].startswith("`-")
    ]
    assert set(outcomes) == set(OUTCOMES)


def test_the_marks_are_those_of_a_page() -> None:
    assert "".join(MARKS.values()) == "✓✗?"
    assert all(mark in TEXT for mark in MARKS.values())


def test_the_limits_are_the_codes() -> None:
    assert f"{read_batch.THREADS:,} at most" in TEXT
    assert f"port {DEFAULT}, or `{VARIABLE}`" in TEXT
    assert collection_page.PACKED_BYTES + collection_page.TABLE_BYTES < 20_000_000


def test_the_keys_are_those_of_the_script() -> None:
    script = (FOLDER / "cases.js").read_text()

    for keys in TEXT.split("Keys: ")[1:]:
        assert all(f'"{key}"' in script for key in re.findall(r"`(.)`", keys.split("\n")[0]))
