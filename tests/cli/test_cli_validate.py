"""`gradeloop validate`: every kind of file that people write, told apart, read, and refused with its place."""

import json
from pathlib import Path

import pytest

from gradeloop.suites.cli.validate import FileKind, find_kind
from tests.conftest import ROOT
from tests.rig.cli import CommandLine

FILES: dict[str, tuple[FileKind, str]] = {
    "task.yaml": ("task", "prompt: Write a haiku\nrubric: '- short'\n"),
    "suite.yaml": (
        "suite",
        (
            "prompts: ['Write {{x}}']\ngenerators: ['scripted:w']\nscripted: replies.yaml\n"
            "grader: 'scripted:j'\nrubric: '- ok'\ntests: [{vars: {x: a}}]\n"
        ),
    ),
    "promptfooconfig.yaml": (
        "suite",
        "prompts: [Write]\nproviders: [echo]\ntests: [{assert: [{type: equals, value: a}]}]\n",
    ),
    "judge.yaml": ("judge", "rubric: '- short'\ngrader: {model: 'scripted:j'}\n"),
    "schema.json": (
        "judge",
        '{"rubric_text": "Is it true?", "judge_model": "scripted:j"}',
    ),
    "rubric.yaml": ("rubric", "criteria: [short, kind]\n"),
    "rubric.md": ("rubric", "- short\n- kind\n"),
    "labels.jsonl": ("labels", '{"agent_run_id": "r1", "label_value": {"label": "a"}}\n'),
    "set.csv": ("labels", "output,label\nhello,yes\nbye,no\n"),
    "gradeloop.toml": ("settings", '[notify.ops]\nurl = "https://ops.example/hook"\n'),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file of every kind."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "replies.yaml").write_text("replies: [{role: generator, text: a}]\n")
    for name, (_, text) in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def gradeloop(folder: Path) -> CommandLine:
    """Return the command in that folder."""
    return CommandLine(folder / "state", folder)


def test_a_file_is_told_by_its_name_and_its_keys(folder: Path, subtests: pytest.Subtests) -> None:
    for name in FILES:
        with subtests.test(name):
            assert find_kind(folder / name) == FILES[name][0]


@pytest.mark.parametrize("example", sorted(ROOT.glob("examples/*/task.yaml")), ids=lambda path: path.parent.name)
def test_the_examples_are_tasks(example: Path) -> None:
    assert find_kind(example) == "task"


def test_all_kinds_are_checked_together_and_the_wrong_ones_named(gradeloop: CommandLine, folder: Path) -> None:
    (folder / "bad.toml").write_text("tusk_queue = 'x'\n")
    (folder / "bad.jsonl").write_text('{"agent_run_id": "r1"}\n')

    good = gradeloop("validate", *FILES, "--json")
    bad = gradeloop("validate", "task.yaml", "bad.toml", "bad.jsonl", "none.yaml")

    assert good.code == 0, good.err
    assert [(one["file"], one["kind"]) for one in json.loads(good.out)] == [(name, kind) for name, (kind, _) in FILES.items()]
    assert bad.code == 2
    assert "task.yaml: a task, 1 message, a rubric of 1" in bad.out
    assert "bad.toml: unknown key 'tusk_queue'. Did you mean 'task_queue'?" in bad.err
    assert "bad.jsonl" in bad.err
    assert "line 1: label_value" in bad.err
    assert "the file 'none.yaml' does not exist" in bad.err


def test_a_task_is_checked_without_any_key_but_not_without_its_words(gradeloop: CommandLine, folder: Path) -> None:
    (folder / "typo.yaml").write_text("prompt: Write\nrubrics: '- short'\n")

    wrong = gradeloop("validate", "typo.yaml")

    assert wrong.code == 2
    assert "typo.yaml', line 2" in wrong.err


BRACES = [
    ("braces_task.yaml", "prompt: {{ q }}\nrubric: '- short'\n"),
    ("braces_suite.yaml", "prompts: [hi {{ q }}]\ntests: [{vars: {q: a}}]\n"),
    ("promptfooconfig.braces.yaml", "prompts: ['{{ q }}']\nproviders: [echo]\ntests: [{vars: {q: {{ q }}}}]\n"),
    ("braces_judge.yaml", "rubric_text: {{ q }}\njudge_model: 'scripted:j'\n"),
    ("braces_rubric.yaml", "criteria: [Names {{ q }}]\n"),
]


def test_a_template_without_quotes_is_refused_with_the_cure_in_every_kind_of_file(
    gradeloop: CommandLine, folder: Path, subtests: pytest.Subtests
) -> None:
    for name, text in BRACES:
        with subtests.test(name):
            (folder / name).write_text(text)

            done = gradeloop("validate", name)

            assert done.code == 2
            assert "'{{ q }}' is not in quotes, so YAML reads its braces; quote the whole text, as in 'Dear {{ name }}'" in done.err
