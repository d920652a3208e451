"""The folder's gradeloop.toml, and whether its user trusts it: by path, and by the sha256 of the file and of the code that it names."""

import ast
import hashlib
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from itertools import pairwise
from pathlib import Path
from typing import Any

from filelock import FileLock

from gradeloop.errors import InvalidRequest
from gradeloop.settings.paths import state_folder

CONFIG_FILE = "gradeloop.toml"
CONFIG_VARIABLE = "GRADELOOP_CONFIG"
FOLDER_VARIABLE = "GRADELOOP_FOLDER"
TRUST_VARIABLE = "GRADELOOP_TRUST"
TRUST_FLAG = "--trust"

TRUST_COMMAND = "gradeloop trust"
TRUST_FILE = "trust.json"

COUNTED_UNTRUSTED = frozenset(
    {
        *("task_queue", "role", "search_attributes", "max_concurrent_activities", "max_calls_per_second", "max_cached_workflows"),
        *("outage_timeout", "call_timeout", "probe", "limits", "until_idle", "needs_approval", "sandbox", "drain_seconds", "store_pool"),
        *("until_input_ends", "processes"),
    }
)
"""The settings that count without trust: none of them names code, a command, a host or a path."""

UNTRUSTED_IN_SANDBOX = frozenset({"read_only", "imports"})
"""The settings of `[sandbox]` that name folders."""

SKIPPED_FOLDERS = frozenset({"__pycache__", ".pytest_cache"})
"""Folders below a test suite that Python and pytest write by themselves."""

LOCK_SECONDS = 30.0
"""Seconds that a command waits while others write down what they trust."""


@dataclass(frozen=True)
class ConfigFile:
    """A file of settings, and how it was found."""

    path: Path
    named: bool
    """Whether a flag or a variable names it, which is trust already; the current folder's file is not."""

    def read(self) -> dict[str, Any]:
        """Read the file as TOML; raise InvalidRequest where it cannot be read, or is not TOML."""
        try:
            return tomllib.loads(self.path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidRequest(f"{self.path}: {error}") from None

    @property
    def trusted(self) -> bool:
        """Whether all of its settings count."""
        if self.named:
            return True
        known = _read_trust().get(str(self.path))  # a file that nobody ever trusted is not gone through
        return known is not None and known == fingerprint(self.path, self.read())

    @property
    def sha256(self) -> str:
        """The sum that tells a worker with these settings apart: of the file's content, with the code that it names where it is trusted."""
        return fingerprint(self.path, self.read()) if self.trusted else _sha256(self.path) or ""

    @property
    def warning(self) -> str | None:
        """The settings that do not count and the cure, in one sentence; None where everything counts."""
        names = () if self.trusted else tuple(uncounted_keys(self.read()))
        return describe_uncounted(self.path, names) if names else None


def read_flag(arguments: Sequence[str], name: str) -> str | None:
    """Return the value of a flag among raw arguments."""
    apart = next((value for argument, value in pairwise(arguments) if argument == name), None)
    return apart or next((argument.partition("=")[2] for argument in arguments if argument.startswith(f"{name}=")), None)


def find_config_file(arguments: Sequence[str], environment: Mapping[str, str]) -> ConfigFile | None:
    """Return the settings file: the one that is named, else the folder's gradeloop.toml, which `--trust` trusts first; None without one.

    Raises:
        InvalidRequest: The named file does not exist.
    """
    folder = read_flag(arguments, "--folder")
    named = read_flag(arguments, "--config") or (None if folder else environment.get(CONFIG_VARIABLE))
    if named and not Path(named).is_file():
        raise InvalidRequest(f"the settings file {named!r} does not exist; correct --config or {CONFIG_VARIABLE}")
    file = Path(named) if named else Path(folder or environment.get(FOLDER_VARIABLE, "")) / CONFIG_FILE
    if not file.is_file():
        return None
    asked = TRUST_FLAG in arguments or environment.get(TRUST_VARIABLE, "").strip().lower() in {"1", "true", "yes", "on"}
    return trust(file) if asked and not named else ConfigFile(file.absolute(), named=bool(named))


def uncounted_keys(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings of a file that name code, commands, hosts, or paths."""
    for key, value in table.items():
        if key not in COUNTED_UNTRUSTED:
            yield key
        elif key == "sandbox" and isinstance(value, dict):
            yield from (f"{key}.{name}" for name in value if name in UNTRUSTED_IN_SANDBOX)


def counted_settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file that count without trust."""
    counted = {key: value for key, value in table.items() if key in COUNTED_UNTRUSTED}
    if isinstance(counted.get("sandbox"), dict):
        counted["sandbox"] = {key: value for key, value in counted["sandbox"].items() if key not in UNTRUSTED_IN_SANDBOX}
    return counted


def describe_uncounted(file: Path, names: Sequence[str]) -> str:
    """Return which settings of a file do not count, why, and the cure."""
    return f"{file} is not trusted, so these of its settings do not count: {', '.join(names)}; read it, then run: {TRUST_COMMAND}"


def trust(file: Path) -> ConfigFile:
    """Trust a folder's settings as they are now, with the code that they name; raise InvalidRequest where they cannot be read."""
    path = file / CONFIG_FILE if file.is_dir() else file
    if not path.is_file():
        raise InvalidRequest(f"there is no settings file {str(path)!r}; name a {CONFIG_FILE}, or its folder")
    if path.name != CONFIG_FILE:
        raise InvalidRequest(
            f"{str(path)!r} is not a {CONFIG_FILE}; a file of another name counts where --config names it, and needs no trust"
        )
    config = ConfigFile(path.absolute(), named=False)
    _write_trust({str(config.path): fingerprint(config.path, config.read())})
    return config


def revoke_trust(file: Path) -> Path:
    """Trust a folder's settings no longer, and return their file's path; raise InvalidRequest where they were not trusted."""
    path = (file / CONFIG_FILE if file.is_dir() else file).absolute()
    if str(path) not in _read_trust():
        raise InvalidRequest(f"{str(path)!r} is not trusted; there is nothing to revoke")
    _write_trust({str(path): None})
    return path


def _read_trust() -> dict[str, str]:
    try:
        known = json.loads((state_folder() / TRUST_FILE).read_text())
    except (OSError, ValueError):  # no list, or no state folder: a worker with a named server needs none
        return {}
    return known if isinstance(known, dict) else {}


def _write_trust(changes: Mapping[str, str | None]) -> None:
    file = state_folder() / TRUST_FILE
    with FileLock(file.with_suffix(".lock"), timeout=LOCK_SECONDS):
        known = {path: sha256 for path, sha256 in {**_read_trust(), **changes}.items() if sha256 is not None}
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps(known, indent=1))
        draft.replace(file)


def fingerprint(file: Path, table: Mapping[str, Any]) -> str:
    """Return the sha256 over a file of settings and every file of code that it names."""
    code = dict.fromkeys([file, *sorted(named_code(table, file.parent))])
    return hashlib.sha256(json.dumps([[str(path), _sha256(path)] for path in code]).encode()).hexdigest()


def named_code(table: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    """Yield the files of code that settings name, and those below the folder that these import.

    Named are tools, what a command's arguments name, the modules of its `-m` and `-c`, and the files of test suites.
    """
    # Whoever trusts a file trusts the code that it runs, so a change of that code must take the trust away.
    # The files that settings name are only its beginning: what they import from the folder runs as well.
    # Imports are followed by reading, never by importing, since that would run the code whose trust is in
    # question.
    rest, seen = list(_named_files(table, folder)), set()
    while rest:
        if (file := rest.pop()) in seen:
            continue
        seen.add(file)
        yield file
        if file.suffix == ".py" and file.is_file():
            rest += _module_files(_imported(file.read_bytes()), (file.parent, folder, folder / "src"))


def _named_files(table: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    for name in _texts(table.get("tools")):
        yield folder / name
    for kind, words in (("commands", "argv"), ("mcp", "command")):
        for entry in _tables(table.get(kind)):
            argv = list(_texts(entry.get(words)))
            yield from (path for word in argv if (path := _named_file(word, folder)))
            modules = [word[2:] or after for word, after in pairwise([*argv, ""]) if word.startswith("-m")]
            modules += [name for flag, code in pairwise(argv) if flag == "-c" for name in _imported(code.encode(errors="replace"))]
            yield from _module_files(modules, (folder, folder / "src", Path.cwd()))
    for suite in _tables(table.get("pytest")):
        for name in _texts(list(suite.values())):
            yield from _files_below(folder / name)


def _tables(value: object) -> Iterator[dict[str, Any]]:
    yield from (entry for entry in value.values() if isinstance(entry, dict)) if isinstance(value, dict) else ()


def _texts(value: object) -> Iterator[str]:
    yield from (text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


def _named_file(word: str, folder: Path) -> Path | None:
    """Return the file that a word of a command names; None for a name on the PATH, and for any other word."""
    for path in (folder / word, Path(word).absolute()):
        try:
            if path.is_file():
                return path
        except (OSError, ValueError):  # no path at all
            return None
    return None


def _imported(source: bytes) -> Iterator[str]:
    """Yield the modules that a Python text imports, by a statement or by a literal name."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in nodes:
        match node:
            case ast.Import(names=names) | ast.ImportFrom(module=None, names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(name)):
                yield name
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]):
                yield from [name] if called in {"import_module", "__import__", "run_module"} else []


def _module_files(names: Iterable[str], roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the code of the modules and packages that are in these folders; of a package all of it, since parts import each other."""
    suffixes = tuple(all_suffixes())
    for top in {name.partition(".")[0] for name in names} - {""}:
        for root in roots:
            yield from (path for suffix in suffixes if (path := root / f"{top}{suffix}").is_file())
            if top not in sys.stdlib_module_names or (root / top / "__init__.py").is_file():
                yield from (path for path in _files_below(root / top) if path.name.endswith(suffixes))


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        yield from (Path(parent, name) for name in names)


def _sha256(file: Path) -> str | None:
    """Return the sha256 of a regular file; None of anything else."""
    try:
        if not file.is_file():
            return None
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except (OSError, ValueError):
        return None
