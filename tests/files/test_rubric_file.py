"""Rubrics in files: what is wrong is told with line, column, field, value and cure."""

from pathlib import Path

import pytest

from gradeloop.cli.task_file import TaskFlags, read_task
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest
from gradeloop.files.rubric import load_rubric

MISTAKES = {
    "- a mapping": (
        "criteria:\n  - fine\n  - Tone: professional\n",
        3,
        5,
        "criteria[1]: YAML reads 'Tone: professional' as a mapping; put the",
    ),
    "- yes": ("criteria:\n  - yes\n", 2, 5, "criteria[0].description: 'yes' is not a criterion, and some readers of YAML take it"),
    "a list": ("- a\n- b\n", 1, 1, "the rubric is a list; write 'criteria:' above it"),
    "a mapping": ("criteria:\n  a: 1\n", 2, 3, "criteria: \"{'a': 1}\" is not a list; write each criterion after '- '"),
    "a scale": ("criteria:\n- {description: a, score: 5}\n", 2, 27, "criteria[0].score: '5' is not a scale; write {min: 1, max: 5}"),
    "- true": ("criteria:\n  - true\n", 2, 5, "criteria[0]: YAML reads this as true; put the criterion in quotes"),
    "- 3.5": ("criteria:\n  - 3.5\n", 2, 5, "criteria[0]: YAML reads this as 3.5; put the criterion in quotes"),
    "per cent": ("threshold: 80\ncriteria: [a]\n", 1, 12, "threshold: 80 is outside of 0 to 1, between which the score runs; write 0.8"),
    "weights": ("criteria:\n  - {description: a, weight: 0}\n", 2, 3, "criteria: all weights are 0, so that there is no score"),
    "scale": ("criteria:\n- description: a\n  score: {min: 5, max: 5}\n", 3, 10, "criteria[0].score: min 5 is not below max 5"),
    "reach": ("criteria:\n- description: a\n  score: {min: 1, max: 5, threshold: 7}\n", 3, 10, "threshold 7 is outside of 1 to 5"),
    "negated check": ("criteria:\n- {description: a, check: t, negate: true}\n", 2, 3, "a check is decided by its tool; leave negate out"),
    "votes": ("criteria:\n- {description: a, votes: 0}\n", 2, 27, "criteria[0].votes: Input should be greater than or equal to 1, got '0'"),
    "no gate": ("gate: none\ncriteria: [a]\n", 1, 7, "gate: with 'none' only the score decides; give the threshold"),
    "provider": ("criteria:\n- {description: a, grader: 'f.o:bar'}\n", 2, 28, "criteria[0].grader.id: 'f.o' is not a provider's name"),
    "no place": ("prompt: Judge it.\ncriteria: [a]\n", 1, 9, "prompt: the prompt has no {{ output }}; write where the draft is put in"),
    "a member": (
        "criteria:\n- a\n- group: S\n  criteria:\n  - b\n  - {description: ''}\n",
        6,
        19,
        "the description is empty; say what must hold",
    ),
    "twice": ("criteria:\n- {id: a, description: x}\n- {id: a, description: y}\n", 2, 1, "criteria: the criterion id 'a' is used twice"),
    "unknown key": ("criteria:\n- {description: a, wieght: 2}\n", 2, 3, "criteria[0]: unknown key 'wieght'. Did you mean 'weight'?"),
    "id": ("criteria:\n- {id: '1st', description: a}\n", 2, 8, "'1st' is not a criterion id; start with a letter"),
    "a group in a group": ("criteria:\n- group: S\n  criteria:\n  - {group: T, criteria: [a]}\n", 1, 1, "groups are one level deep"),
    "panel and votes": ("criteria:\n- {description: a, panel: ['scripted:x'], votes: 2}\n", 2, 3, "leave votes and grader out"),
    "too many": ("mode: per_criterion\ncriteria:\n" + "- {description: a, votes: 99}\n" * 6, 3, 1, "594 conversations a pass, 500 at most"),
    "language": ("language: klingon\ncriteria: [a]\n", 1, 11, "no sentences in 'klingon'. Known: de, en, es, fr."),
    "a negated quote": (
        "criteria:\n- {description: a, negate: true, require_quotes: true}\n",
        2,
        3,
        "what must not be there cannot be quoted",
    ),
    "human and check": ("criteria:\n- {description: a, check: t, human: true}\n", 2, 3, "check and human exclude each other"),
    "nan": ("criteria:\n- {description: a, weight: .inf}\n", 2, 28, "'.inf' is not a number in JSON"),
}


def test_a_mistake_is_told_with_its_place_and_cure(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for mistake, (text, line, column, words) in MISTAKES.items():
        with subtests.test(mistake=mistake):
            (tmp_path / "rubric.yaml").write_text(text)

            with pytest.raises(InvalidRequest) as caught:
                load_rubric(tmp_path / "rubric.yaml")

            assert f"line {line}, column {column}: " in str(caught.value)
            assert words in str(caught.value)


def test_a_mistake_in_a_tasks_rubric_has_its_place_in_the_task(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("prompt: hello\nrubric:\n  criteria:\n    - false\n")

    with pytest.raises(InvalidRequest) as caught:
        read_task(tmp_path / "task.yaml", TaskFlags())

    assert "line 4, column 7: rubric.criteria[0]: YAML reads this as false" in str(caught.value)


def test_a_prompt_may_stand_in_a_file_beside_the_rubric(tmp_path: Path) -> None:
    (tmp_path / "judge.txt").write_text("Look at {{ output }} by {{ rubric }}.")
    (tmp_path / "chat.json").write_text('[{"role": "system", "content": "Be fair."}, {"role": "user", "content": "{{ output }}"}]')
    (tmp_path / "rubric.yaml").write_text("prompt: file://judge.txt\ncriteria:\n- a\n- {description: b, prompt: file://chat.json}\n")

    rubric = Rubric.model_validate(load_rubric(tmp_path / "rubric.yaml"))

    assert rubric.prompt is not None
    assert rubric.prompt.messages[0].parts[0] == "Look at "
    assert [message.role for message in (rubric.criteria[1].prompt or rubric.prompt).messages] == ["system", "user"]


def test_a_file_on_the_wire_is_refused() -> None:
    with pytest.raises(ValueError, match="is read where the rubric is a file; elsewhere write the prompt's text"):
        Rubric.model_validate({"prompt": "file:///etc/passwd", "criteria": ["a"]})


def test_a_setting_that_nobody_made_is_no_part_of_a_rubrics_sha256() -> None:
    rubric = Rubric.model_validate({"criteria": [{"description": "a", "grader": {"id": "scripted:x", "config": {"seed": 1}}}]})

    assert '"grader":{"config":{"seed":1},"id":"scripted:x"}' in rubric.canonical()
    assert Rubric.model_validate_json(rubric.canonical()) == rubric


OBJECT = {"description": {"a": {"b": 1}}}


@pytest.mark.parametrize(
    "rubric",
    [
        {"criteria": ["a", {"group": "g", "threshold": 0.5, "criteria": ["b", {"id": "x", "description": {"min": 3}}]}], "gate": "any"},
        {"prompt": [{"role": "user", "content": "{{ output.text }} {{ rubric.a }} {{ transcript }} {{ other }}"}], "criteria": [OBJECT]},
        {"criteria": [{"description": "a", "panel": ["scripted:x", {"activity": "j", "task_queue": "q"}, {"function": "f"}]}]},
        {"language": "de", "feedback": {"opening": "Noch nicht."}, "criteria": [{"description": "a", "human": True}]},
    ],
)
def test_a_rubric_that_was_read_and_written_is_the_same(rubric: dict[str, object]) -> None:
    read = Rubric.model_validate(rubric)

    assert Rubric.model_validate_json(read.model_dump_json()) == read
    assert Rubric.model_validate(read.model_dump(mode="json")).sha256() == read.sha256()
