"""Files of finished runs, read run by run; a message names the file and the line that cannot be read."""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradeloop.contract.transcript import AgentRun, RunMessage, RunTranscript
from gradeloop.errors import InvalidRequest
from gradeloop.grading.checks import strict_json
from gradeloop.transcripts.forms import UnreadableMessage, is_message, line_of, parse_inspect_sample, parse_runs

FILE_BYTES = 1024 * 1024 * 1024
"""The largest file, and the largest entry of an Inspect archive."""

ZSTANDARD = 93
"""The number of this compression in a zip archive (PKWARE's APPNOTE, 4.4.5)."""

_LENGTHS = "<26xHH"
"""The local header of an entry, which ends with the lengths of its name and of its extra field (APPNOTE, 4.3.7)."""

TEXTS = (".txt", ".md", ".markdown")


def read_run_file(path: Path) -> Iterator[AgentRun]:
    """Yield the runs of a file: JSON, JSON lines, an Inspect log (`.json` or `.eval`), or plain text, which is one answer.

    Raises:
        InvalidRequest: The file cannot be read; the message names file and line.
    """
    try:
        if path.stat().st_size > FILE_BYTES:
            raise InvalidRequest(f"{path} has more than {FILE_BYTES // 1024**3} GiB; split it")
        if path.suffix == ".eval":
            yield from _archive(path)
            return
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes().count(b"\n", 0, error.start) + 1
        raise InvalidRequest(f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is no UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
    if not text.strip():
        raise InvalidRequest(f"{path} is empty; there is nothing to judge")
    if path.suffix in TEXTS:
        yield AgentRun(id=path.stem, transcripts=(RunTranscript(messages=(RunMessage(role="assistant", content=text),)),))
    else:
        yield from (_lines(path, text) if path.suffix in {".jsonl", ".ndjson"} else _whole(path, text))


def _whole(path: Path, text: str) -> Iterator[AgentRun]:
    value = _json(path, text, 1)
    try:
        yield from parse_runs(value, path.stem)
    except UnreadableMessage as error:
        raise InvalidRequest(f"{path}, line {line_of(text, error.path)}: {_path_prefix(error.path)}{error}") from None


def _lines(path: Path, text: str) -> Iterator[AgentRun]:
    """Yield one run per line, or the one run whose messages are the lines."""
    rows = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    first = _json(path, rows[0][1], rows[0][0])
    if is_message(first):
        values = [_json(path, line, number) for number, line in rows]
        try:
            yield from parse_runs(values if all(is_message(value) for value in values) else {"messages": values}, path.stem)
        except UnreadableMessage as error:
            row = next((part for part in error.path if isinstance(part, int)), 0)
            raise InvalidRequest(f"{path}, line {rows[row][0]}: {error}") from None
        return
    for number, line in rows:
        value = first if number == rows[0][0] else _json(path, line, number)
        try:
            yield from parse_runs(value, f"{path.stem}-{number}")
        except UnreadableMessage as error:
            raise InvalidRequest(f"{path}, line {number}: {_path_prefix(error.path)}{error}") from None


def _archive(path: Path) -> Iterator[AgentRun]:
    """Yield the samples of an Inspect archive, each an entry of its own."""
    try:
        with zipfile.ZipFile(path) as archive:
            header = _entry(path, archive, "header.json") if "header.json" in archive.namelist() else {}
            about = header.get("eval") if isinstance(header, dict) else None
            eval_header = about if isinstance(about, dict) else {}
            task = str(eval_header.get("task") or path.stem)
            for name in sorted(name for name in archive.namelist() if name.startswith("samples/") and name.endswith(".json")):
                try:
                    yield parse_inspect_sample(_entry(path, archive, name), task, eval_header.get("model"))
                except UnreadableMessage as error:
                    raise InvalidRequest(f"{path}, {name}: {_path_prefix(error.path)}{error}") from None
    except (zipfile.BadZipFile, NotImplementedError, EOFError, struct.error) as error:
        cure = "write it as JSON: inspect log convert --to json"
        raise InvalidRequest(f"{path} is no archive that can be read here ({error}); {cure}") from None


def _entry(path: Path, archive: zipfile.ZipFile, name: str) -> Any:  # noqa: ANN401 - JSON of any shape
    entry = archive.getinfo(name)
    if entry.file_size > FILE_BYTES:
        raise InvalidRequest(f"{path}, {name}: more than {FILE_BYTES // 1024**3} GiB")
    raw = _zstandard(path, entry) if entry.compress_type == ZSTANDARD else archive.read(name)
    return _json(path, raw.decode("utf-8", errors="replace"), 1, name)


def _zstandard(path: Path, entry: zipfile.ZipInfo) -> bytes:
    """Return an entry in the compression that is Inspect's default; Python's own library knows it from 3.14 on."""
    try:
        import zstandard
    except ModuleNotFoundError:
        cure = "run: pip install 'gradeloop[inspect]', or write it as JSON: inspect log convert --to json"
        raise InvalidRequest(f"{path} is compressed by zstandard, which is not installed; {cure}") from None
    with path.open("rb") as file:
        file.seek(entry.header_offset)
        name, extra = struct.unpack(_LENGTHS, file.read(struct.calcsize(_LENGTHS)))
        file.seek(name + extra, 1)
        packed = file.read(entry.compress_size)
    try:
        unpacked = bytes(zstandard.ZstdDecompressor().stream_reader(packed).read(entry.file_size + 1))
    except zstandard.ZstdError as error:
        raise InvalidRequest(f"{path}, {entry.filename}: damaged: {error}") from None
    if (len(unpacked), zlib.crc32(unpacked)) != (entry.file_size, entry.CRC):
        raise InvalidRequest(f"{path}, {entry.filename}: damaged: it is not what its checksum says")
    return unpacked


def _json(path: Path, text: str, line: int, entry: str = "") -> Any:  # noqa: ANN401 - JSON of any shape
    where = f"{path}, {entry}" if entry else str(path)
    try:
        return strict_json(text.strip())
    except RecursionError:
        raise InvalidRequest(f"{where}, line {line}: nested too deeply; flatten it") from None
    except ValueError as error:
        number = line + getattr(error, "lineno", 1) - 1 + (text[: len(text) - len(text.lstrip())].count("\n") if line == 1 else 0)
        raise InvalidRequest(f"{where}, line {number}: no JSON: {getattr(error, 'msg', error)}; correct it there") from None


def _path_prefix(path: tuple[int | str, ...]) -> str:
    """Return a path as the beginning of a message: `messages[2].role: `."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    return f"{text}: " if text else ""


def refuse_duplicate_ids(runs: list[AgentRun]) -> None:
    """Raise InvalidRequest for two runs with one id, whose judgements could not be told apart."""
    seen: dict[str, str] = {}
    for run in runs:
        sha256 = run.sha256()
        if run.id in seen:
            content = "the same content, too" if seen[run.id] == sha256 else "another content"
            raise InvalidRequest(f"two runs have the id {run.id!r} ({content}); give each its own, or leave one out")
        seen[run.id] = sha256
