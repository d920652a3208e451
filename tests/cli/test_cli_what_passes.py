"""What passes is said once, by `--pass` or `pass_if`, and every command that counts, measures or shows a judge takes it from there."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.rig.cli import CommandLine, Done
from tests.rig.judging import answers

CLOSED = {"type": "object", "properties": {"label": {"type": "string", "enum": ["fail", "pass"]}}, "required": ["label"]}
GOOD, RUNS = 8, 10


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command with a judge that is always right, whose schema names the failing value first, and ten judged runs."""
    texts = [f"GOOD {at}" if at < GOOD else f"BAD {at}" for at in range(RUNS)]
    labels = ["pass" if at < GOOD else "fail" for at in range(RUNS)]
    said = [[{"role": "user", "content": "Which river?"}, {"role": "assistant", "content": text}] for text in texts]
    judge = {"rubric_text": "The river is right.", "judge_model": "scripted:judge", "output_schema": CLOSED}
    files: dict[str, list[Any]] = {
        "ruled.yaml": [judge | {"pass_if": {"label": "pass"}}],
        "unruled.yaml": [judge],
        "several.yaml": [{"replies": [answers({"label": "pass"}, when="GOOD"), answers({"label": "fail"}, when="BAD")]}],
        "rivers.jsonl": [{"id": f"r{at}", "messages": messages} for at, messages in enumerate(said)],
        "people.jsonl": [{"agent_run_id": f"r{at}", "label_value": {"label": label}} for at, label in enumerate(labels)],
        "set.jsonl": [{"prompt": "Which river?", "output": text, "label": label} for text, label in zip(texts, labels, strict=True)],
    }
    for name, rows in files.items():
        (commands.folder / name).write_text("\n".join(map(json.dumps, rows)))
    done = commands("judge", "ruled.yaml", "rivers.jsonl", *SCRIPTED, "-o", "said.jsonl")
    assert done.code == 0, done.err
    return commands


SCRIPTED = ("--scripted", "several.yaml")
JUDGED = ("rivers.jsonl", *SCRIPTED, "--json")

Count = Callable[[Done], tuple[object, ...]]


def _counted(done: Done) -> tuple[object, ...]:
    return done.code, sum(line["passed"] for line in done.lines), len(done.lines)


def _agreed(done: Done) -> tuple[object, ...]:
    (key,) = done.result["keys"]
    figures = [key["figures"][name]["value"] for name in ("kappa", "tpr", "tnr", "f1")]
    return done.code, key["positive"], key["pass_rate"]["raw"]["value"], *figures


def _checked(done: Done) -> tuple[object, ...]:
    figures = [done.result["figures"][name]["value"] for name in ("kappa", "accuracy", "tpr", "tnr")]
    return done.code, *figures, "; passes: label is pass\n" in done.err


def _shown(*texts: str) -> Count:
    return lambda done: (done.code, *(text in done.out for text in texts))


COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Count, tuple[object, ...]]] = {
    "judge": (("judge",), ("rivers.jsonl", *SCRIPTED), _shown("10 judged, 8 passed (80%)"), (0, True)),
    "judge --json": (("judge",), (*JUDGED, "--pass-rate", "0.8"), _counted, (0, 8, 10)),
    "judge --pass-rate": (("judge",), (*JUDGED, "--pass-rate", "0.9"), _counted, (1, 8, 10)),
    "judge --labels": (
        ("judge",),
        ("rivers.jsonl", *SCRIPTED, "--labels", "people.jsonl"),
        _shown("corrected pass rate: 80.0%"),
        (0, True),
    ),
    "agreement": (("agreement",), ("people.jsonl", "--json"), _agreed, (0, "pass", 0.8, 1.0, 1.0, 1.0, 1.0)),
    "check-judge": (("check-judge",), ("set.jsonl", *SCRIPTED, "--json"), _checked, (0, 1.0, 1.0, 1.0, 1.0, True)),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("stated", [("ruled.yaml", ()), ("unruled.yaml", ("--pass", "label=pass"))], ids=["pass_if", "--pass"])
def test_every_command_counts_what_the_rule_passes(gradeloop: CommandLine, name: str, stated: tuple[str, tuple[str, ...]]) -> None:
    command, more, count, expected = COMMANDS[name]
    judge, rule = stated

    done = gradeloop(*command, judge, *more, *rule)

    assert count(done) == expected, done.err


@pytest.mark.parametrize("stated", [("ruled.yaml", ()), ("unruled.yaml", ("--pass", "label=pass")), ("said.jsonl", ())])
def test_pages_and_summaries_count_it_too(gradeloop: CommandLine, stated: tuple[str, tuple[str, ...]]) -> None:
    judge, rule = stated

    done = gradeloop("report", judge, *rule, "-o", "rivers.md", "--overwrite")

    assert done.code == 0, done.err
    assert "8 OF 10 PASSED" in (gradeloop.folder / "rivers.md").read_text()
    assert "--pass label=pass" in (gradeloop.folder / "rivers.md").read_text()  # of the command that comes next


@pytest.mark.parametrize(
    "command",
    [("agreement", "unruled.yaml", "people.jsonl"), ("check-judge", "unruled.yaml", "set.jsonl", *SCRIPTED)],
    ids=lambda row: row[0],
)
def test_two_values_of_which_nothing_says_which_passes_are_refused_with_the_cure(gradeloop: CommandLine, command: tuple[str, ...]) -> None:
    done = gradeloop(*command)

    assert done.code == 2
    cure = "add pass_if: {label: VALUE} to the judge's file, or --pass label=VALUE"
    assert f'gradeloop: nothing says which value of \'label\' passes, "fail" or "pass"; {cure}\n' in done.err


def test_a_judge_by_criteria_passes_what_is_satisfied_whatever_a_flag_says(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "listed.yaml").write_text(json.dumps({"rubric": "- it is right", "grader": {"model": "scripted:judge"}}))

    done = gradeloop("check-judge", "listed.yaml", "set.jsonl", *SCRIPTED, "--pass", "result=needs_revision")

    assert (done.code, "one by criteria passes what is satisfied, so leave it out" in done.err) == (2, True)
