"""Rubric files, and the places of their mistakes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.contract.criterion import PROMPT_CHARACTERS, criterion_paths
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest, explain
from gradeloop.files.roots import FileScope
from gradeloop.files.yaml import Location, Places, read_placed, read_yaml

YAML_SUFFIXES = (".yaml", ".yml", ".json")

_FILE = "file://"
"""The prefix of a text that stands in a file of its own."""


def read_rubric_file(path: Path, scope: FileScope | None = None) -> JsonValue:
    """Read a rubric, YAML or JSON by its suffix, else text, with the prompts that stand in files of their own.

    `scope`: the files that it may name; those below its own folder by default.

    Raises:
        InvalidRequest: The file holds no rubric; the message names file, line, column, field and cure.
    """
    if path.suffix not in YAML_SUFFIXES:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise InvalidRequest(f"the rubric {str(path)!r} is not a readable text file in UTF-8; save it as one") from None
    value, placed = read_placed(path, "the rubric")
    where = f"the rubric {str(path)!r}"
    value = inline_prompts(value, scope or FileScope.of(path), Location(where, (), placed))
    refuse_bad_rubric(value, placed, (), where)
    return value


def load_rubric(path: Path, scope: FileScope | None = None) -> JsonValue:
    """Read a rubric and validate it, one in text too; raise InvalidRequest where the file does not exist, or holds no rubric."""
    if not path.is_file():
        raise InvalidRequest(f"the rubric {str(path)!r} does not exist; name a file")
    value = read_rubric_file(path, scope)
    refuse_bad_rubric(value, {}, (), f"the rubric {str(path)!r}")
    return value


def inline_files(value: JsonValue, scope: FileScope, where: Location) -> JsonValue:
    """Return JSON with each text of the form `file://name` replaced by that file's content."""
    if isinstance(value, dict):
        return {key: inline_files(item, scope, where.at(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [inline_files(item, scope, where.at(at)) for at, item in enumerate(value)]
    return _read_prompt(scope, value, where) if isinstance(value, str) and value.startswith(_FILE) else value


def inline_prompts(value: JsonValue, scope: FileScope, where: Location) -> JsonValue:
    """Return a rubric with each prompt of the form `file://name` replaced by that file's content."""
    if not isinstance(value, dict):
        return value
    rubric = dict(value)
    if isinstance(prompt := rubric.get("prompt"), str) and prompt.startswith(_FILE):
        rubric["prompt"] = _read_prompt(scope, prompt, where.at("prompt"))
    if isinstance(criteria := rubric.get("criteria"), list):
        rubric["criteria"] = [inline_prompts(criterion, scope, where.at("criteria", at)) for at, criterion in enumerate(criteria)]
    return rubric


def _read_prompt(scope: FileScope, name: str, where: Location) -> JsonValue:
    path = scope.find(name.removeprefix(_FILE), where)
    if path.suffix in YAML_SUFFIXES:
        return read_yaml(path, "the prompt")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidRequest(f"prompt: the file {str(path)!r} is not there, or no text in UTF-8; name another") from None
    if len(text) > PROMPT_CHARACTERS:
        raise InvalidRequest(f"prompt: the file {str(path)!r} has {len(text)} characters, {PROMPT_CHARACTERS} at most; shorten it")
    return text


def refuse_bad_rubric(value: JsonValue, placed: Places, prefix: tuple[int | str, ...], where: str) -> None:
    """Raise InvalidRequest for a rubric that is none, with the place of the first mistake and a message about all.

    `where`: the file as a message names it: `the rubric 'a.yaml'`.
    """
    try:
        Rubric.model_validate(value)
    except ValidationError as error:
        problems = explain(error)
        first = error.errors(include_url=False, include_context=False)[0]
        field = problems.partition(":")[0]
        named = [*prefix, problems] if first["loc"] or field in Rubric.model_fields else [": ".join([*map(str, prefix), problems])]
        path = _path_in_file(value, first["loc"] or (field,))
        while path and (*prefix, *path) not in placed:
            path = path[:-1]
        line, column = placed.get((*prefix, *path), (1, 1))
        raise InvalidRequest(f"{where}, line {line}, column {column}: {'.'.join(map(str, named))}") from None


def _path_in_file(value: Any, location: tuple[int | str, ...]) -> tuple[int | str, ...]:  # noqa: ANN401 - JSON of any shape
    """Return the path in the file of a location in the rubric, which numbers nested criteria in one line."""
    if len(location) > 1 and location[0] == "criteria" and isinstance(value, dict) and isinstance(location[1], int):
        written = [path for path, _, _ in criterion_paths(value.get("criteria") or ())]
        if location[1] < len(written):
            return ("criteria", *written[location[1]], *location[2:])
    return location


def require_files(paths: Sequence[Path], field: str) -> tuple[Path, ...]:
    """Return the paths; raise InvalidRequest, whose message begins with `field`, where one of them names no file."""
    for path in paths:
        if not path.is_file():
            raise InvalidRequest(f"{field}: {str(path)!r} {'is not a file' if path.exists() else 'does not exist'}; name a file")
    return tuple(paths)
