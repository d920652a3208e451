"""Code that a suite names or holds: read from its files, and run after its user has allowed it."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import JsonValue

from gradeloop.contract.base import CODE_CHARACTERS, CodeText
from gradeloop.errors import InvalidRequest
from gradeloop.files.roots import FileScope
from gradeloop.files.yaml import Location
from gradeloop.text import clip

ALLOW_CODE = "--allow-code"
"""The flag of `gradeloop eval` with which a user allows the code of a suite to run, in the sandbox."""

CODE_CURE = f"gradeloop eval {ALLOW_CODE}"
"""The command that runs code, which no other does."""

LANGUAGES = {".py": "python", **dict.fromkeys((".js", ".cjs", ".mjs", ".ts", ".cts", ".mts"), "javascript")}
"""The language of a file of code, by its suffix; Node takes the types out of TypeScript."""

_UNREAD = (".rb",)
_NAMED = re.compile(r"^(?P<path>.*\.(?:py|js|cjs|mjs|ts|cts|mts|rb))(?::(?P<function>[\w.$]+))?$")
FILE = "file://"
"""The beginning of a value that names a file."""


def names_code(value: JsonValue) -> bool:
    """Tell whether a text names a file of code, with or without a function."""
    return isinstance(value, str) and value.startswith(FILE) and _NAMED.match(value) is not None


def read_code_file(value: str, scope: FileScope, where: Location) -> dict[str, JsonValue]:
    """Read the file that a `file://` text names, and return its language, its text, its name and the function.

    Raises:
        InvalidRequest: It cannot be read, or is in a language that is not run.
    """
    named = _NAMED.match(value.removeprefix(FILE))
    if named is None:
        raise InvalidRequest(f"{where}: {clip(value)} names no file of code; end it with .py or .js")
    suffix = PurePosixPath(named["path"]).suffix
    if suffix in _UNREAD:
        raise InvalidRequest(f"{where}: {clip(value)} is code in a language that is not run; write it in JavaScript or Python")
    path = scope.find(named["path"], where)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidRequest(f"{where}: the file {str(path)!r} cannot be read: {problem}; name another") from None
    if not text.strip():
        raise InvalidRequest(f"{where}: the file {str(path)!r} is empty; write the function into it")
    if len(text) > CODE_CHARACTERS:
        raise InvalidRequest(f"{where}: the file {str(path)!r} has {len(text)} characters, {CODE_CHARACTERS} at most; shorten it")
    (root, *_), real = scope.roots.folders.values(), path.resolve()
    name = real.relative_to(root).as_posix() if real.is_relative_to(root) else path.name
    return {"language": LANGUAGES[suffix], "code": text, "file": name, "function": named["function"] or ""}


@dataclass(frozen=True)
class CodeGrant:
    """A user's leave for the code of a suite to run, and what it may import."""

    allowed: bool = False
    imports: tuple[Path, ...] = ()
    """The suite's folder, unless it holds what is private, and those that its user names."""


def is_code_file(value: JsonValue) -> bool:
    """Tell whether a value is what a file of code was read as."""
    return isinstance(value, dict) and set(value) == {"language", "code", "file", "function"}


def refuse_code(where: Location, what: str) -> InvalidRequest:
    """Return the error for code that its user has not allowed."""
    return InvalidRequest(f"{where}: {what} is code, which runs in a sandbox; read it, then run its suite with: {CODE_CURE}")


def parse_transform(value: JsonValue, default: str, where: Location) -> CodeText:
    """Parse a transform: an inline text of JavaScript, or a file that was read. Raise InvalidRequest where it is none."""
    if isinstance(value, dict) and is_code_file(value):
        function = str(value.get("function") or (default if value.get("language") == "python" else ""))
        return CodeText.model_validate({**value, "function": function})
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequest(f"{where}: {clip(str(value))} is not code; write an expression over output, or name a file")
    if len(value) > CODE_CHARACTERS:
        raise InvalidRequest(f"{where}: it has {len(value)} characters, {CODE_CHARACTERS} at most; shorten it")
    return CodeText(language="javascript", code=value)
