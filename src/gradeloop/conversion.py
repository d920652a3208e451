"""Rubrics of others in files, read and written as ours."""

import io
import json
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.mastra import from_mastra
from gradeloop.own_prompt import Place
from gradeloop.promptfoo import from_promptfoo
from gradeloop.rubric import Rubric
from gradeloop.rubric_file import with_files
from gradeloop.yaml_file import read_yaml

Source = Literal["promptfoo", "mastra"]


def converted(path: Path, source: Source | None, test: int) -> Rubric:
    """Return the rubric that a file of somebody else's makes.

    Raises:
        InvalidRequest: It makes none, or something in it has no counterpart.
    """
    if not path.is_file():
        raise InvalidRequest(f"the file {str(path)!r} does not exist; name one")
    value = with_files(read_yaml(path, "the file"), path.parent)
    return from_promptfoo(value, test=test) if (source or _source(value)) == "promptfoo" else from_mastra(value)


def _source(value: JsonValue) -> Source:
    keys = (
        set(value)
        if isinstance(value, dict)
        else {key for each in value if isinstance(each, dict) for key in each}
        if isinstance(value, list)
        else set()
    )
    if keys & {"assert", "tests", "type", "defaultTest"}:
        return "promptfoo"
    if keys & {"criteria", "scorers", "description"}:
        return "mastra"
    raise InvalidRequest("the file is neither promptfoo's (tests, assert) nor Mastra's (criteria, scorers); say whose with --from")


def as_yaml(rubric: Rubric) -> str:
    """Return a rubric as a person would write it."""
    from ruamel.yaml import YAML

    raw = json.loads(rubric.model_dump_json(exclude_none=True, exclude_defaults=True))
    raw["criteria"] = raw.get("criteria") or []
    for told, criterion in zip(raw["criteria"], rubric.criteria, strict=True):
        if criterion.prompt:
            told["prompt"] = _prompt(criterion.prompt.messages)
    if rubric.prompt:
        raw["prompt"] = _prompt(rubric.prompt.messages)
    written = io.StringIO()
    YAML().dump(raw, written)
    return written.getvalue()


def _prompt(messages: tuple[object, ...]) -> JsonValue:
    from gradeloop.own_prompt import PromptMessage

    told = [each for each in messages if isinstance(each, PromptMessage)]
    texts = ["".join(part.written if isinstance(part, Place) else part for part in each.parts) for each in told]
    if len(told) == 1 and told[0].role == "user":
        return texts[0]
    return [{"role": each.role, "content": text} for each, text in zip(told, texts, strict=True)]
