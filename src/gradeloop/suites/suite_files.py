"""What a suite's `file://` means: prompts, rubrics and texts in files, relative to the suite's folder."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip
from gradeloop.rubric_file import YAML_SUFFIXES, existing_rubric, refuse_bad, with_prompts
from gradeloop.spot import Spot
from gradeloop.transcript import MESSAGE_BYTES
from gradeloop.yaml_file import read_yaml

FILE = "file://"


def is_file(value: JsonValue) -> bool:
    """Tell whether a value names a file."""
    return isinstance(value, str) and value.startswith(FILE)


def path_of(value: JsonValue, folder: Path) -> Path:
    """Return the path that a `file://` text names."""
    return folder / str(value).removeprefix(FILE)


def text_at(path: Path, where: Spot) -> str:
    """Return a file's text.

    Raises:
        InvalidRequest: It is not there, no UTF-8, or larger than a message.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MESSAGE_BYTES + 1)
        if len(raw) <= MESSAGE_BYTES:
            return raw.decode("utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"{where}: the file {str(path)!r} cannot be read: {error.strerror}; name another") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{where}: the file {str(path)!r} is no UTF-8 at byte {error.start + 1}; save it as UTF-8") from None
    raise InvalidRequest(f"{where}: the file {str(path)!r} has more than {MESSAGE_BYTES} bytes; shorten it")


def followed(value: JsonValue, folder: Path, where: Spot) -> JsonValue:
    """Return JSON with what stands in the files that its texts name.

    Raises:
        InvalidRequest: A file cannot be read.
    """
    if isinstance(value, dict):
        return {key: followed(item, folder, where.at(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [followed(item, folder, where.at(at)) for at, item in enumerate(value)]
    if not is_file(value):
        return value
    path = path_of(value, folder)
    return read_yaml(path, "the file") if path.suffix in YAML_SUFFIXES else text_at(path, where)


def followed_test(value: JsonValue, folder: Path, where: Spot) -> JsonValue:
    """Return a raw test, or defaults, with what stands in the files that it names; its output is data.

    Raises:
        InvalidRequest: A file cannot be read, or a rubric is none.
    """
    if not isinstance(value, dict):
        return value
    told = {key: followed(item, folder, where.at(key)) if key in {"assert", "options", "vars"} else item for key, item in value.items()}
    return told | with_rubric(told, folder, where)


def with_rubric(told: dict[str, JsonValue], folder: Path, where: Spot) -> dict[str, JsonValue]:
    """Return the rubric of an object that has one, read from its file where it names one.

    Raises:
        InvalidRequest: It is none; with line and column.
    """
    rubric = told.get("rubric")
    if rubric is None:
        return {}
    if is_file(rubric):
        return {"rubric": existing_rubric(path_of(rubric, folder))}
    rubric = with_prompts(rubric, folder)
    refuse_bad(rubric, where.placed, (*where.path, "rubric"), where.file)
    return {"rubric": rubric}


def prompts_of(value: JsonValue, folder: Path, where: Spot) -> Iterator[JsonValue]:
    """Yield raw prompts, those in files read: JSON and YAML as messages, all else as text; each has its file's name as label.

    Raises:
        InvalidRequest: A file cannot be read.
    """
    for at, each in enumerate(value if isinstance(value, list) else [value]):
        label = {"label": each["label"]} if isinstance(each, dict) and each.get("label") is not None else {}
        inside = next((each[key] for key in ("text", "messages") if is_file(each.get(key))), None) if isinstance(each, dict) else each
        if not is_file(inside):
            yield each
            continue
        path = path_of(inside, folder)
        read = read_yaml(path, "the prompt") if path.suffix in YAML_SUFFIXES else text_at(path, where.at(at))
        if not isinstance(read, str | list):
            raise InvalidRequest(f"{where.at(at)}: the prompt {clip(str(path))} is no list of messages; write [{{role, content}}]")
        yield {"label": path.stem, "text" if isinstance(read, str) else "messages": read, **label}
