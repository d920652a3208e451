"""The generated tests come to the same verdicts on promptfoo and here, but for five kinds of difference that the documentation names."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.suites.assertions import assertion_types
from gradeloop.temporal.server import stop_server
from lab.beside_promptfoo import beside, legend, ours, table
from lab.peer.promptfoo_suite import promptfoo
from lab.promptfoo_differences import KINDS
from lab.promptfoo_tests import COUNT, hooked, hooked_after, suites

PAGE = Path(__file__).parents[2] / "docs" / "suites.md"


def test_a_seed_makes_the_same_tests_of_every_type() -> None:
    made = suites()
    types = {kind.removeprefix("not-") for suite in made for test in suite.tests for kind in _types(test.fields)}

    assert made == suites()
    assert made != suites(seed=1)
    assert sum(len(suite.tests) for suite in made) == COUNT == 300
    assert sorted({row.name for row in assertion_types() if row.build} - types) == []
    assert "assert-set" in types


def _types(fields: object) -> list[str]:
    if isinstance(fields, dict):
        own = [str(fields["type"])] if isinstance(fields.get("type"), str) else []
        return own + [kind for item in fields.values() for kind in _types(item)]
    return [kind for item in fields for kind in _types(item)] if isinstance(fields, list) else []


def test_there_are_five_kinds_of_difference_at_most_and_the_page_names_them() -> None:
    page = PAGE.read_text().partition("## promptfooconfig.yaml")[2]

    assert len(KINDS) <= 5
    assert [name for name, kind in KINDS.items() if f"| {name} | {kind.why}" not in page] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_come_to_the_same_verdicts(tmp_path: Path) -> None:
    try:
        found = asyncio.run(beside(suites(), tmp_path))
    except SystemExit as error:
        pytest.skip(str(error))

    assert [f"{row.suite}: {row.theirs.about}: {row.theirs} there, {row.ours} here" for row in found if row.outcome == "DIFFERS"] == []
    assert len(found) >= COUNT
    assert {row.outcome for row in found} == {"same", *KINDS}
    assert table(found).row_count == len(found)
    assert len(list(legend(found))) >= len(KINDS) + 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hooks_before_the_suite_and_its_tests_come_to_the_same_verdicts(tmp_path: Path) -> None:
    try:
        found = asyncio.run(beside(hooked(), tmp_path))
    except SystemExit as error:
        pytest.skip(str(error))

    assert [f"{row.suite}: {row.theirs.about}: {row.theirs} there, {row.ours} here" for row in found if row.outcome != "same"] == []
    assert len(found) == 5 * len(hooked())
    assert {row.theirs.status for row in found} == {"passed", "failed"}


def _rows(file: Path) -> list[tuple[object, ...]]:
    """Return what a file of promptfoo's says of each case and of each prompt, in the order of its table."""
    found = json.loads(file.read_text())["results"]
    cases = sorted(found["results"], key=lambda row: (row["testIdx"], row["promptIdx"]))
    prompts = [
        (prompt["metrics"]["namedScoresCount"].get("length"), prompt["metrics"]["namedScores"].get("Twice")) for prompt in found["prompts"]
    ]
    return [*(_told(row) for row in cases), *prompts]


def _told(row: dict[str, Any]) -> tuple[object, ...]:
    own = {"_promptfooFileMetadata", "sessionId", "afterEachError"}  # of promptfoo's own, and an error, of which it only writes a log
    metadata = {name: value for name, value in row["metadata"].items() if name not in own}
    scores = {name: round(score, 9) for name, score in row["namedScores"].items()}
    return row["success"], round(row["score"], 9), scores, metadata, row["response"].get("metadata") or {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hooks_after_each_test_add_the_same_scores_and_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADELOOP_STATE_DIR", str(tmp_path / "state"))
    try:
        peer = promptfoo("http://127.0.0.1:9", tmp_path)
    except SystemExit as error:
        pytest.skip(str(error))
    found = {}
    try:
        for suite in hooked_after():
            config, here = suite.write(tmp_path), tmp_path / f"{suite.name}.promptfoo.json"
            peer.evaluate(config)
            ours("http://127.0.0.1:9", config, tmp_path, here)
            found[suite.name] = (_rows(tmp_path / "results.json"), _rows(here))
    finally:
        asyncio.run(stop_server())

    for name, (theirs, own) in found.items():
        assert own == theirs, name
    assert len(found["hooks after 0"][0]) == 6 + 2
