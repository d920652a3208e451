"""A row whose reason contradicts its verdict has a note wherever rows are shown, and no other row has."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from gradeloop.batches.cli.batch_view import case_lines
from gradeloop.cli.render.run import row_lines
from gradeloop.contract.evaluation import CriterionRow, Evaluation
from gradeloop.contract.rubric import Rubric
from gradeloop.integrations.mcp_server import explain_run
from gradeloop.reports.model import RunReport
from gradeloop.reports.run_page import run_page
from tests.rig.batch_results import case
from tests.rig.cli import CommandLine
from tests.rig.threads import row as judged_row
from tests.rig.threads import verdict

NOTE = "its reason concludes “The criterion is not met”, which contradicts its verdict"
RUBRIC = Rubric.model_validate(
    {"criteria": [{"id": "odd", "description": "It has a date."}, {"id": "sound", "description": "It is kind."}]}
)
ROWS = (
    CriterionRow(id="odd", name="It has a date.", passed=True, reason="There is none. The criterion is not met."),
    CriterionRow(id="sound", name="It is kind.", passed=True, reason="It says please."),
)


def _evaluation() -> Evaluation:
    facts = {"grading_run_id": "r", "iteration": 0, "result": "satisfied", "status": "satisfied", "explanation": "e", "draft": 0}
    return Evaluation.model_validate(facts | {"criteria": ROWS})


def _printed(parts: list[Any]) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return captured.get()


def _report(rubric: Rubric | None) -> RunReport:
    return RunReport(name="t", kind="thread", verdict="passed", word="satisfied", rubric=rubric, evaluations=(_evaluation(),))


SHOWN: dict[str, Callable[[Rubric | None], str]] = {
    "a thread in the terminal": lambda rubric: _printed([line.head + line.body for line in row_lines(_evaluation(), rubric)]),
    "a case in the terminal": lambda rubric: _printed(list(case_lines(case(0, criteria=ROWS), rubric))),
    "a page": lambda rubric: run_page(_report(rubric)),
    "plain text": lambda rubric: explain_run(_report(rubric)),
}


@pytest.mark.parametrize("place", SHOWN)
def test_a_row_that_contradicts_itself_has_a_note(place: str) -> None:
    assert SHOWN[place](RUBRIC).count(NOTE) == 1
    assert NOTE not in SHOWN[place](None)  # nobody knows what was asked


@pytest.mark.slow
def test_judgements_have_it_in_their_table_and_page_and_check_judge_counts_them(commands: CommandLine) -> None:
    said = verdict(judged_row("c1", reason="There is none. The criterion is not met."))
    files: dict[str, object] = {
        "dated.yaml": {"rubric": "- It has a date", "grader": {"model": "scripted:judge"}},
        "said.yaml": {"replies": [{"role": "grader", "verdict": said}]},
        "dated.jsonl": {"id": "undated", "messages": [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "Soon."}]},
        "dates.jsonl": {"prompt": "When?", "output": "Soon.", "label": False},
        "schema.yaml": {"rubric_text": "It has a date.", "judge_model": "scripted:judge", "pass_if": {"label": "match"}},
        "answers.yaml": {
            "replies": [
                {"role": "grader", "text": f"<response>{json.dumps({'label': 'match', 'explanation': 'So the answer fails.'})}</response>"}
            ]
        },
    }
    for name, value in files.items():
        (commands.folder / name).write_text(json.dumps(value))

    listed = commands("judge", "dated.yaml", "dated.jsonl", "--scripted", "said.yaml", "-o", "dated.html")
    by_schema = commands("judge", "schema.yaml", "dated.jsonl", "--scripted", "answers.yaml")
    checks = [
        commands("check-judge", judge, "dates.jsonl", "--scripted", replies, "--json")
        for judge, replies in (("dated.yaml", "said.yaml"), ("schema.yaml", "answers.yaml"))
    ]
    counted = commands("check-judge", "dated.yaml", "dates.jsonl", "--scripted", "said.yaml")

    assert f"c1: {NOTE}" in " ".join(listed.out.split())
    assert NOTE in (commands.folder / "dated.html").read_text()
    assert "its reason concludes “So the answer fails”" in " ".join(by_schema.out.split())
    assert [done.result["contradictory"] for done in checks] == [["1"], ["1"]]
    assert "1 judgement with a reason that contradicts the verdict; --json names the items" in counted.out
