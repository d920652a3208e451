"""promptfoo's prompts and providers as prompts and generators of ours.

Facts of their shapes: promptfoo 0.123.1, `src/prompts` and `src/providers`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue, ValidationError

from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip
from gradeloop.promptfoo_models import as_list, as_object, model_of, refuse_others
from gradeloop.spot import Spot, refused
from gradeloop.suites.plan import Asked, Drafter, refuse_twins
from gradeloop.suites.suite import NamedGenerator, Prompt
from gradeloop.suites.suite_files import FILE, is_file, path_of, text_at

_SEPARATOR = "---"
"""A line of a text file between two prompts."""

_PROMPT_SUFFIXES = (".txt", ".md", ".j2", ".json", ".jsonl")


def prompts_in(value: JsonValue, folder: Path, where: Spot) -> tuple[Asked, ...]:
    """Return the prompts of a configuration; without any, the variable `prompt` is the prompt, as in promptfoo.

    Raises:
        InvalidRequest: One cannot be read, or has no counterpart.
    """
    listed = ["{{prompt}}"] if value is None else value if isinstance(value, list) else [value]
    found: list[Asked] = []
    for at, each in enumerate(listed):
        for label, text, spot in _texts(each, folder, where.at(at)):
            found.append(Asked(label or f"p{len(found) + 1}", _prompt(label, text, spot)))
    refuse_twins([each.label for each in found], where)
    return tuple(found)


def _texts(value: JsonValue, folder: Path, where: Spot) -> Iterator[tuple[str | None, str, Spot]]:
    """Yield the texts that one entry means, each with its label."""
    told = {"raw": value} if isinstance(value, str) else as_object(value, where)
    refuse_others(told, {"raw", "id", "label"}, where)
    text = told.get("raw", told.get("id"))
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}: it has no text; write it as raw, or name a file as id")
    label = told["label"] if isinstance(told.get("label"), str) else None
    path = path_of(text, folder)
    if not is_file(text) and not _names_file(text, path):
        yield str(label) if label else None, text, where
        return
    if path.suffix not in _PROMPT_SUFFIXES:
        raise InvalidRequest(f"{where}: {clip(text)} has no counterpart; a prompt's file ends with {', '.join(_PROMPT_SUFFIXES)}")
    parts = _parts(path, text_at(path, where))
    for number, part in enumerate(parts, 1):
        name = str(label or path.stem)
        yield (name if len(parts) == 1 else f"{name}-{number}"), part, where


def _names_file(text: str, path: Path) -> bool:
    return "\n" not in text and path.suffix in _PROMPT_SUFFIXES and " " not in text and path.is_file()


def _parts(path: Path, text: str) -> list[str]:
    if path.suffix == ".jsonl":
        return [line for line in text.splitlines() if line.strip()]
    parts: list[list[str]] = [[]]
    for line in text.splitlines() if path.suffix == ".txt" else [text]:
        if line.strip() == _SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(line)
    return [part for each in parts if (part := "\n".join(each).strip())]


def _prompt(label: str | None, text: str, where: Spot) -> Prompt:
    """Return a text as a prompt; a JSON list of messages is a chat."""
    raw: dict[str, JsonValue] = {"label": label, "text": text}
    if text.lstrip().startswith("[") and '"role"' in text:
        try:
            raw = {"label": label, "messages": json.loads(text)}
        except (ValueError, RecursionError):
            raise InvalidRequest(
                f"{where}: the chat is no JSON before its variables are filled in; put templates into its strings"
            ) from None
    try:
        return Prompt.model_validate(raw)
    except ValidationError as error:
        raise refused(error, where) from None


def drafters_in(value: JsonValue, where: Spot) -> tuple[Drafter, ...]:
    """Return the providers of a configuration; `echo` is the one that gives the prompt back.

    Raises:
        InvalidRequest: One has no counterpart.
    """
    listed = as_list([value] if isinstance(value, str) else value, where)
    found = tuple(_drafter(each, where.at(at)) for at, each in enumerate(listed))
    refuse_twins([each.label for each in found], where)
    return found


def _drafter(value: JsonValue, where: Spot) -> Drafter:
    told = {"id": value} if isinstance(value, str) else as_object(value, where)
    if len(told) == 1 and "id" not in told:  # {"openai:gpt-5-mini": {config: ...}}
        name, rest = next(iter(told.items()))
        told = {"id": name, **as_object(rest, where)}
    refuse_others(told, {"id", "label", "config"}, where)
    name, label = str(told.get("id")), told.get("label")
    if name.startswith(FILE):
        raise InvalidRequest(f"{where}: {clip(name)} is a provider of one's own; serve it as an activity, and name it in a suite of ours")
    if name == "echo":
        return Drafter(str(label or name), None)
    raw: dict[str, JsonValue] = {"label": label or name, "model": model_of({"id": name, "config": told.get("config")}, where)}
    try:
        generator = NamedGenerator.model_validate(raw)
    except ValidationError as error:
        raise refused(error, where) from None
    return Drafter(generator.named, generator.plain())
