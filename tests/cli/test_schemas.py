"""The printed schemas: those of the files that people write name themselves and accept the examples."""

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from gradeloop.cli.schemas import json_schemas
from gradeloop.files.yaml import read_yaml
from tests.conftest import ROOT

TASKS = sorted(ROOT.glob("examples/*/task.yaml"))


@pytest.mark.slow
def test_every_schema_says_which_it_is_and_is_one() -> None:
    for name, schema in json_schemas().items():
        assert schema["$id"] == f"urn:gradeloop:schema:{name}"
        Draft202012Validator.check_schema(schema)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda path: path.parent.name)
def test_the_schema_of_tasks_accepts_the_examples_and_no_misspelt_key(task: Path) -> None:
    validator = Draft202012Validator(json_schemas("Task"))
    value = read_yaml(task, "the task file")
    assert isinstance(value, dict)

    assert list(validator.iter_errors(value)) == []
    assert [error.validator for error in validator.iter_errors({**value, "rubrics": "- a"})] == ["additionalProperties"]
