"""The prompts of promptfoo's configurations: texts, chats, and files and folders of them."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from gradeloop.contract.base import CodeText
from gradeloop.errors import InvalidRequest
from gradeloop.files.roots import FileScope
from gradeloop.files.yaml import Location, explained_at, read_yaml
from gradeloop.suites.chats import is_chat, parse_chat, read_chat
from gradeloop.suites.code_files import FILE, LANGUAGES, names_code, read_code_file
from gradeloop.suites.datasets import match_files, read_csv
from gradeloop.suites.flags import TEXT_SUFFIXES
from gradeloop.suites.plan import NamedPrompt
from gradeloop.suites.suite import Prompt, is_file, read_text
from gradeloop.suites.unsupported import as_object, refuse_others
from gradeloop.text import clip, distinct

CODE_SUFFIXES = (*LANGUAGES, ".rb", ".sh", ".go", ".exe")
"""The suffixes of files of code."""

_SEPARATOR = "---"
"""The line between two prompts of a text file."""

_SCHEME = re.compile(r"(?P<name>[a-z][a-z0-9+.-]*)://\S+")
_EXECUTABLE = "exec:"


def _parse_text(text: str, chat: JsonValue, label: str | None, where: Location) -> Prompt:
    """Return the prompt that a text or a chat is; a JSON or YAML list of messages is a chat."""
    messages = read_chat(text, where) if chat is None else parse_chat(chat, where)
    with explained_at(where):
        return Prompt.model_validate(({"text": text} if messages is None else {"messages": messages}) | {"label": label})


def prompt_entries(value: JsonValue, where: Location) -> Iterator[tuple[JsonValue, Location]]:
    """Yield the entries of `prompts` with their places: a list, one of them, or a mapping of files to labels.

    Without any, the variable `prompt` is the prompt, as in promptfoo.
    """
    if isinstance(value, dict) and {"raw", "id", "label"}.isdisjoint(value):
        for name, label in value.items():
            yield {"id": name, "label": label}, where.at(name)
        return
    for at, entry in enumerate(["{{prompt}}"] if value is None else value if isinstance(value, list) else [value]):
        yield entry, where.at(at) if isinstance(value, list) else where


def parse_prompt(value: JsonValue, scope: FileScope, where: Location) -> list[NamedPrompt]:
    """Parse an entry, which may name several prompts, labelled or not; raise InvalidRequest where it cannot be read, or used."""
    fields: dict[str, JsonValue] = value if isinstance(value, dict) else {"id": value}
    name = str(fields.get("raw", fields.get("id")))
    if names_code(code := name if is_file(name) else f"{FILE}{name}") and "\n" not in name:
        return [_code_prompt(fields, code, scope, where)]
    config = as_object(fields.get("config"), where.at("config")) or None
    return [NamedPrompt(prompt.label or "", prompt, config=config) for prompt in _find(value, scope, where)]


def _code_prompt(fields: dict[str, JsonValue], name: str, scope: FileScope, where: Location) -> NamedPrompt:
    """Return a prompt that a function makes."""
    refuse_others(fields, {"raw", "id", "label", "config"}, where)
    read = read_code_file(name, scope, where)
    if read["language"] == "python" and not read["function"]:
        raise InvalidRequest(f"{where}: {clip(name)} names no function; write the one that makes the prompt, as {name}:function")
    code = CodeText.model_validate({**read, "config": fields.get("config")})
    own = f"{Path(code.file).stem}{'-' + code.function if code.function else ''}"
    label = fields["label"] if isinstance(fields.get("label"), str) else own
    return NamedPrompt(str(label)[:100].strip(), Prompt(text=name), code)


def name_prompts(prompts: list[NamedPrompt]) -> tuple[NamedPrompt, ...]:
    """Return the prompts with a label of its own for every one."""
    labels = distinct([prompt.label or f"p{at}" for at, prompt in enumerate(prompts, 1)])
    return tuple(replace(prompt, label=label) for label, prompt in zip(labels, prompts, strict=True))


def _find(value: JsonValue, scope: FileScope, where: Location) -> Iterator[Prompt]:
    """Yield the prompts of one entry."""
    fields = {"id": value} if isinstance(value, str) else as_object(value, where)
    refuse_others(fields, {"raw", "id", "label", "config"}, where)
    text = fields.get("raw", fields.get("id"))
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}: it has no text; write it as raw, or name a file as id")
    label = str(fields["label"])[:100].strip() if fields.get("label") else None
    if not is_file(text) and ("raw" in fields or not names_file(text, scope, where)):
        yield _parse_text(text, None, label, where)
        return
    for path in _paths(text, scope, where):
        found = list(_read(path, where))
        name = label or path.stem
        for number, (part, chat) in enumerate(found, 1):
            yield _parse_text(part, chat, name if len(found) == 1 else f"{name}:{number}", where)


def names_file(text: str, scope: FileScope, where: Location) -> bool:
    """Tell whether a text without `file://` names files: by its suffix, a `*`, or as a file or folder that is there.

    Raises:
        InvalidRequest: It names a prompt that is stored elsewhere, or a program.
    """
    plain = text.strip()
    if scheme := _SCHEME.fullmatch(plain):
        raise InvalidRequest(
            f"{where}: {clip(text)} names a prompt at {scheme['name']}, which is not fetched; save its text as a file, and name that"
        )
    if plain.startswith(_EXECUTABLE):
        raise InvalidRequest(f"{where}: {clip(text)} is a program, which is not run; write the prompt's text, or name a file of it")
    if not plain or len(plain.splitlines()) > 1 or "{{" in plain or "{%" in plain:
        return False
    base = without_function(plain)
    if not any(character.isspace() for character in plain):
        return base.lower().endswith((*TEXT_SUFFIXES, *CODE_SUFFIXES)) or ("*" in plain and "/" in plain) or _is_there(plain, scope)
    return base.lower().endswith((*TEXT_SUFFIXES, *CODE_SUFFIXES)) and _is_there(base, scope)


def without_function(name: str) -> str:
    """Return the path in `prompt.py:function`."""
    base, colon, function = name.rpartition(":")
    return base if colon and function.isidentifier() and base.lower().endswith(CODE_SUFFIXES) else name


def _is_there(name: str, scope: FileScope) -> bool:
    try:
        return (scope.folder / name).exists()
    except (OSError, ValueError):
        return False


def _paths(name: str, scope: FileScope, where: Location) -> list[Path]:
    """Return the files that a name stands for: a file, the files of a folder, or those that a pattern matches."""
    plain = name.removeprefix(FILE)
    if without_function(plain).lower().endswith(CODE_SUFFIXES):
        raise InvalidRequest(f"{where}: {clip(name)} is code, which is not run here; a prompt's file ends with {', '.join(TEXT_SUFFIXES)}")
    found = match_files(plain, scope, where)
    if len(found) == 1 and found[0].is_dir():
        found = [scope.check(path, path.name, where) for path in sorted(found[0].iterdir()) if not path.name.startswith(".")]
    paths = [path for path in found if not path.is_dir()]
    if not paths or not all(path.is_file() for path in paths):
        raise InvalidRequest(f"{where}: the prompt {clip(name)} does not exist; name a file, relative to the configuration's folder")
    for path in paths:
        if path.suffix.lower() not in TEXT_SUFFIXES:
            raise InvalidRequest(
                f"{where}: {clip(path.name)} of {clip(name)} is not supported; a prompt's file ends with {', '.join(TEXT_SUFFIXES)}"
            )
    return paths


def _read(path: Path, where: Location) -> Iterator[tuple[str, JsonValue]]:
    """Yield the prompts of a file: the text of each, and its messages where YAML holds them."""
    suffix = path.suffix.lower()
    if suffix == ".csv":
        for line, row in read_csv(path, f"{where}: the prompts {clip(path.name)}"):
            text = row.get("prompt", next(iter(row.values()), ""))
            if not text.strip():
                raise InvalidRequest(f"{where}: {clip(path.name)}, line {line}: the prompt is empty; write it into the column 'prompt'")
            yield text, None
        return
    text = read_text(path, where)
    if suffix in {".yaml", ".yml"} and read_chat(text, where) is None:
        value = read_yaml(path, f"{where}: the prompt")
        yield (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)), value if is_chat(value) else None
        return
    yield from ((part, None) for part in _parts(suffix, text))


def _parts(suffix: str, text: str) -> list[str]:
    if suffix == ".jsonl":
        return [line for line in text.split("\n") if line.strip()]
    parts: list[list[str]] = [[]]
    for line in text.splitlines() if suffix == ".txt" else [text]:
        if line.strip() == _SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(line)
    return [part for lines in parts if (part := "\n".join(lines).strip())]
