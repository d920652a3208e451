"""The tools `read_file`, `list_files`, `search_files`."""

import codecs
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from activities.tools.base import ToolContext, ToolUnavailable
from gradeloop.files.roots import Roots
from gradeloop.grading.json_schema import compile_pattern
from gradeloop.sandbox.processes import await_in_process

STRETCH_BYTES = 32 * 1024
"""The bytes that `read_file` shows at once: as JSON they stay within the 64 KiB that are kept of evidence."""

LISTED = 1_000
MATCHES = 200
LINE_CHARACTERS = 300
SEARCHED_BYTES = 2 * 1024 * 1024
"""A larger file is left out of a search."""

SEARCH_SECONDS = 20.0


def build_file_tool(name: str, context: ToolContext) -> Callable[..., Any]:
    """Return `read_file`, `list_files` or `search_files`, for the settings' folders."""
    if not context.settings.files.roots:
        raise ToolUnavailable("no root is named; name folders under [files.roots] in gradeloop.toml")
    roots = Roots(context.settings.files.roots)
    known = ", ".join(sorted(roots.folders))

    def read_file(path: str, offset: int = 0) -> dict[str, Any]:
        with roots.open(path) as file:
            return {"path": path, **_stretch(file, offset, path)}

    def list_files(path: str = "") -> dict[str, Any]:
        found = [{"path": name, "bytes": size} for name, size in _walk(roots, path)]
        return {"files": found[:LISTED], **({"more": True} if len(found) > LISTED else {})}

    async def search_files(pattern: str, path: str = "") -> Any:  # noqa: ANN401 - as `search` says
        folders = {name: str(folder) for name, folder in roots.folders.items()}
        return await await_in_process(search, {"folders": folders, "pattern": pattern, "path": path})

    read_file.__doc__ = f"""Read a text file, {STRETCH_BYTES // 1024} KiB at a time.

Args:
    path: Begins with a root: {known}.
    offset: The byte to start at; 0, or next_offset of the stretch before."""
    list_files.__doc__ = f"""List files below a folder, with their sizes, at most {LISTED:,}.

Args:
    path: Begins with a root: {known}. Empty lists all roots."""
    search_files.__doc__ = f"""Find lines that match a regular expression (RE2's syntax) in text files, at most {MATCHES}.

Args:
    pattern: (?i) at its beginning ignores case.
    path: A folder or file; begins with a root: {known}. Empty searches all roots."""
    functions: dict[str, Callable[..., Any]] = {"read_file": read_file, "list_files": list_files, "search_files": search_files}
    return functions[name]


def _stretch(file: int, offset: int, path: str) -> dict[str, Any]:
    facts = os.fstat(file)
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{path!r} is not a file; list_files shows what is below it")
    if not 0 <= offset <= facts.st_size:
        raise ValueError(f"offset is {offset}; the file has {facts.st_size} bytes")
    raw = os.pread(file, STRETCH_BYTES, offset)
    if b"\0" in raw:
        raise ValueError(f"{path!r} is binary ({facts.st_size} bytes, sha256 {_sha256(file)})")
    # A stretch ends between two characters: the decoder keeps the bytes of one that is cut, three at most, and the next
    # stretch begins with them. So the texts of all stretches joined are the file, and every stretch moves the reader on.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(raw, final=offset + len(raw) >= facts.st_size)
    stop = offset + len(raw) - len(decoder.getstate()[0])
    return {"bytes": facts.st_size, "text": text, "next_offset": stop if stop < facts.st_size else None}


def _sha256(file: int) -> str:
    with os.fdopen(os.dup(file), "rb") as content:
        content.seek(0)
        return hashlib.file_digest(content, "sha256").hexdigest()


def _walk(roots: Roots, path: str) -> Iterator[tuple[str, int]]:
    """Yield files below a path, ten times as many as are listed at most; links are ignored."""
    pending, count = sorted(roots.folders, reverse=True) if not path else [path.rstrip("/")], 0
    while pending and count <= LISTED * 10:
        current = pending.pop()
        with roots.open(current) as descriptor:
            facts = os.fstat(descriptor)
            if stat.S_ISREG(facts.st_mode):
                count += 1
                yield current, facts.st_size
                continue
            if not stat.S_ISDIR(facts.st_mode):
                continue
            with os.scandir(descriptor) as entries:
                names = sorted((entry.name for entry in entries if not entry.is_symlink()), reverse=True)
        pending += [f"{current}/{name}" for name in names]


def search(folders: Mapping[str, str], pattern: str, path: str) -> dict[str, Any]:
    """Return the lines of text files that match a regular expression, and how many files were passed over."""
    return _search(Roots({name: Path(folder) for name, folder in folders.items()}), compile_pattern(pattern), path)


def _search(roots: Roots, pattern: Any, path: str) -> dict[str, Any]:  # noqa: ANN401 - RE2's own type
    until, skipped = time.monotonic() + SEARCH_SECONDS, 0
    matches: list[dict[str, Any]] = []
    for name, size in _walk(roots, path):
        if time.monotonic() > until:
            return {"matches": matches, "more": True, "stopped": f"after {SEARCH_SECONDS:g} seconds; name a folder below"}
        if size > SEARCHED_BYTES:
            skipped += 1
            continue
        with roots.open(name) as descriptor:
            raw = os.pread(descriptor, SEARCHED_BYTES, 0)
        if b"\0" in raw[:8192]:
            skipped += 1
            continue
        for number, line in enumerate(raw.decode(errors="replace").splitlines(), 1):
            if pattern.search(line):
                if len(matches) == MATCHES:
                    return {"matches": matches, "more": True}
                matches.append({"path": name, "line": number, "text": line[:LINE_CHARACTERS]})
    return {"matches": matches, **({"passed_over": f"{skipped} large or binary files"} if skipped else {})}
