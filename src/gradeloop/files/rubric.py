"""Rubric files, and where their mistakes are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.contract.criterion import PROMPT_CHARACTERS, places
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest, explain
from gradeloop.files.yaml import Places, read_placed, read_yaml

YAML_SUFFIXES = (".yaml", ".yml", ".json")

_FILE = "file://"


def read_rubric_file(path: Path) -> JsonValue:
    """Read a rubric: YAML or JSON by its suffix, else text; the prompts in files are read too.

    Raises:
        InvalidRequest: It is no rubric; the message names file, line, column, field and cure.
    """
    if path.suffix not in YAML_SUFFIXES:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise InvalidRequest(f"the rubric {str(path)!r} is no readable text file in UTF-8; save it as one") from None
    value, placed = read_placed(path, "the rubric")
    value = inline_prompts(value, path.parent)
    refuse_bad_rubric(value, placed, (), f"the rubric {str(path)!r}")
    return value


def load_rubric(path: Path) -> JsonValue:
    """Read a rubric that must be there, text too.

    Raises:
        InvalidRequest: It is not, or it is no rubric.
    """
    if not path.is_file():
        raise InvalidRequest(f"the rubric {str(path)!r} does not exist; name a file")
    value = read_rubric_file(path)
    refuse_bad_rubric(value, {}, (), f"the rubric {str(path)!r}")
    return value


def inline_files(value: JsonValue, folder: Path) -> JsonValue:
    """Return any JSON with each text of the form `file://name` replaced by what stands in that file."""
    if isinstance(value, dict):
        return {key: inline_files(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [inline_files(item, folder) for item in value]
    return _prompt(folder / value.removeprefix(_FILE)) if isinstance(value, str) and value.startswith(_FILE) else value


def inline_prompts(value: JsonValue, folder: Path) -> JsonValue:
    """Return a rubric with what stands in the files that its prompts name, relative to the folder."""
    if not isinstance(value, dict):
        return value
    told = dict(value)
    if isinstance(prompt := told.get("prompt"), str) and prompt.startswith(_FILE):
        told["prompt"] = _prompt(folder / prompt.removeprefix(_FILE))
    if isinstance(criteria := told.get("criteria"), list):
        told["criteria"] = [inline_prompts(criterion, folder) for criterion in criteria]
    return told


def _prompt(path: Path) -> JsonValue:
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
    """Raise InvalidRequest with the place of the first mistake, and all of them in words.

    Args:
        value: The rubric as it was read.
        placed: Where its values stand in the file.
        prefix: The path of the rubric in the file.
        where: The file, in the words of a message.
    """
    try:
        Rubric.model_validate(value)
    except ValidationError as error:
        words = explain(error)
        first = error.errors(include_url=False, include_context=False)[0]
        path = _path(value, first["loc"] or (words.partition(":")[0],))
        while path and (*prefix, *path) not in placed:
            path = path[:-1]
        line, column = placed.get((*prefix, *path), (1, 1))
        raise InvalidRequest(f"{where}, line {line}, column {column}: {'.'.join(map(str, (*prefix, words)))}") from None


def _path(value: Any, location: tuple[int | str, ...]) -> tuple[int | str, ...]:  # noqa: ANN401 - JSON of any shape
    """Return where in the file a criterion stands that the rubric counts by its place in line."""
    if len(location) > 1 and location[0] == "criteria" and isinstance(value, dict) and isinstance(location[1], int):
        written = [path for path, _, _ in places(value.get("criteria") or ())]
        if location[1] < len(written):
            return ("criteria", *written[location[1]], *location[2:])
    return location


def require_files(paths: Sequence[Path], field: str) -> tuple[Path, ...]:
    """Return the paths of files that must exist.

    Raises:
        InvalidRequest: A path names no file.
    """
    for path in paths:
        if not path.is_file():
            raise InvalidRequest(f"{field}: {str(path)!r} {'is not a file' if path.exists() else 'does not exist'}; name a file")
    return tuple(paths)
