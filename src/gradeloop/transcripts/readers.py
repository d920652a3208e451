"""Files of finished runs, read run by run; a message names the file and the line that cannot be read."""

import codecs
import hashlib
import json
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from gradeloop.contract.transcript import AgentRun, RunMessage, why_unanswered
from gradeloop.errors import InvalidRequest, installed
from gradeloop.text import acceptable, strict_json
from gradeloop.transcripts.account import Account, account_of
from gradeloop.transcripts.assemble import run_of
from gradeloop.transcripts.formats.agent_benchmarks import INSPECT, parse_sample
from gradeloop.transcripts.json_access import Json, UnreadableMessage, dict_of
from gradeloop.transcripts.mapping import Mapping
from gradeloop.transcripts.message_forms import is_message
from gradeloop.transcripts.registry import PEEKED, Detected, Notes, find_format, line_of, odd_one, parse_runs

FILE_BYTES = 1024 * 1024 * 1024
"""The largest file, and the largest entry of an Inspect archive."""

ZSTANDARD = 93
"""The number of this compression in a zip archive (PKWARE's APPNOTE, 4.4.5)."""

_LENGTHS = "<26xHH"
"""The local header of an entry, which ends with the lengths of its name and of its extra field (APPNOTE, 4.3.7)."""

TEXTS = (".txt", ".md", ".markdown")

_BEGINNING = re.compile(r"[^\s,]")

LINES = (".jsonl", ".ndjson")


class JsonLine(NamedTuple):
    """A JSON value of a file, and the line on which it begins, from 1."""

    number: int
    value: Json


@dataclass
class Reading:
    """Notes taken while files are read: the formats that were found, and what was left out."""

    skip_bad: bool = False
    """Whether a run that cannot be read is left out, rather than ending the reading."""
    answered: bool = False
    """Whether a run without an answer counts as one that cannot be read: for those who judge what is read."""
    mapping: Mapping | None = None
    """The mapping file for the files, with the parts to leave out."""
    formats: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """The number of values of each file that were taken for a format, and why."""
    left_out: list[str] = field(default_factory=list)
    """The runs that were left out, by file and line, and why."""
    runs: int = 0
    """The runs that were read."""
    account: Account = field(default_factory=Account)
    """The account of all records that were read."""
    last_account: Account = field(default_factory=Account)
    """The account of the record that the last run is of."""
    files: dict[str, Path] = field(default_factory=dict)
    """The file of each run, by its id."""

    @property
    def share_left_out(self) -> float:
        """The share of runs that were left out, 0 to 1."""
        total = self.runs + len(self.left_out)
        return len(self.left_out) / total if total else 0.0


def read_run_file(path: Path, reading: Reading | None = None) -> Iterator[AgentRun]:
    """Yield the runs of a file: JSON, JSON lines, an Inspect log (`.json` or `.eval`), or plain text, which is one answer.

    Raises:
        InvalidRequest: The file cannot be read; the message names file and line. What can be left out is raised only where `reading` does
            not say to skip it.
    """
    reader = _Reader(path, reading or Reading())
    try:
        yield from reader.distinct(reader.runs())
    except InvalidRequest as error:
        reader.leave_out(error)


class _Reader:
    """Reads one file."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        self._reading = reading
        self._has_rows = False

    def runs(self) -> Iterator[AgentRun]:
        """Yield the runs of the file; of a file of lines each as soon as it is read."""
        path, mapping = self._path, self._reading.mapping
        try:
            status = path.stat()
            if not S_ISREG(status.st_mode):
                raise InvalidRequest(f"{path} is not a file, but a pipe, a socket, a device or a folder; put a file there")
            if status.st_size > FILE_BYTES:
                raise InvalidRequest(f"{path} has more than {FILE_BYTES // 1024**3} GiB; split it")
            if path.suffix == ".eval":
                yield from self._archive()
            elif path.suffix in LINES:
                yield from self._lines()
            elif path.suffix in TEXTS:
                run = run_of(path.stem, [RunMessage(role="assistant", content=(text := self._text()))])
                self._keep_account(account_of(text, [run], ""))
                yield run
            else:
                yield from self._whole(self._text())
            if mapping is not None and mapping.selects and not self._has_rows and path.suffix not in (*TEXTS, ".eval"):
                raise InvalidRequest(f"{path}: runs: {mapping.runs} of the mapping matches nothing in it; correct the path")
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
        except UnreadableMessage as error:
            raise InvalidRequest(f"{path}: {error}") from None

    def _text(self) -> str:
        try:
            text = self._path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            line = self._path.read_bytes().count(b"\n", 0, error.start) + 1
            raise _no_utf8(self._path, line, error) from None
        if not text.strip():
            raise self._nothing()
        return text

    def _nothing(self) -> InvalidRequest:
        return InvalidRequest(f"{self._path} is empty; there is nothing to judge")

    def distinct(self, runs: Iterator[AgentRun]) -> Iterator[AgentRun]:
        """Yield the runs; of rows with one id and different content, the later ones have their content's sum in their ids."""
        seen: dict[str, str] = {}
        for run in runs:
            if self._reading.answered and (why := why_unanswered(run)) is not None:
                self.leave_out(InvalidRequest(f"{self._path}: {why}"))
                continue
            self._reading.runs += 1
            found, sha256 = run, run.sha256()
            if self._has_rows and seen.setdefault(run.id, sha256) != sha256:
                found = run.model_copy(update={"id": f"{run.id[:190]}-{hashlib.sha256(sha256.encode()).hexdigest()[:8]}"})
            yield found

    def leave_out(self, error: InvalidRequest) -> None:
        """Note what cannot be read, or raise it where nothing is to be left out."""
        if not self._reading.skip_bad:
            raise error
        self._reading.left_out.append(str(error))

    def _note(self, detected: Detected) -> None:
        self._has_rows = self._has_rows or detected.format.rows
        self._reading.formats[str(self._path), detected.format.name, detected.why] += 1

    def _keep_account(self, account: Account) -> None:
        self._reading.last_account = account
        self._reading.account.add(account)

    def _parsed(self, value: Json, name: str, locate: Callable[[UnreadableMessage], InvalidRequest]) -> Iterator[AgentRun]:
        """Yield the runs of a value; an error is located in the file."""

        def on_bad(error: UnreadableMessage) -> None:
            self.leave_out(locate(error))

        notes = Notes(self._note, on_bad if self._reading.skip_bad else None, self._keep_account, self._reading.mapping)
        try:
            yield from parse_runs(value, name, notes)
        except UnreadableMessage as error:
            raise locate(error) from None

    def _whole(self, text: str) -> Iterator[AgentRun]:
        try:
            value = _json(self._path, text, 1)
        except InvalidRequest:
            values = _concatenated(text) or _server_sent(text)
            if values is None:
                raise
            yield from self._rows(iter(values))
            return
        yield from self._parsed(value, self._path.stem, lambda error: _at(self._path, line_of(text, error.path), error))

    def _lines(self) -> Iterator[AgentRun]:
        """Yield the runs of lines; a file whose first line only opens a value is read whole, as values one behind the other."""
        # A file that is named as lines may hold one value over several lines, several such values, or a saved stream.
        # The first line shows it: one that only opens a value, or begins an event, is not a value of its own.
        rows = self._text_lines()
        first = next(rows, None)
        if first is None:
            raise self._nothing()
        split = _concatenated if _opens_only(first[1]) else _server_sent if _SENT.match(first[1]) else None
        if split is not None and (values := split(self._text())) is not None:
            yield from self._rows(iter(values))
        elif _opens_only(first[1]) and _is_json(self._text()):
            yield from self._whole(self._text())
        else:
            yield from self._rows(self._json_lines(chain([first], rows)))

    def _text_lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines that are not blank, with their numbers, one at a time; one that is not UTF-8 may be left out."""
        with self._path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    line = raw.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").decode()
                except UnicodeDecodeError as error:
                    self.leave_out(_no_utf8(self._path, number, error))
                    continue
                if line.strip():
                    yield number, line

    def _json_lines(self, lines: Iterator[tuple[int, str]]) -> Iterator[JsonLine]:
        for number, line in lines:
            try:
                value = _json(self._path, line, number)
            except InvalidRequest as error:
                self.leave_out(error)
                continue
            yield JsonLine(number, value)

    def _rows(self, rows: Iterator[JsonLine]) -> Iterator[AgentRun]:
        """Yield the runs of lines: one per line, or the one run whose messages, events or spans the lines are."""
        path = self._path
        if self._reading.mapping is not None and self._reading.mapping.selects:
            for row in rows:
                yield from self._runs_of_line([row.value], row)
            return
        # The first lines decide whether the file is one run, whose messages its lines are, or a run a line.
        # Only the first kind has to be held as a whole; of the second each line is let go when its run is read,
        # so that a file may be larger than the memory.
        peeked = list(islice(rows, PEEKED))
        while (odd := odd_one([row.value for row in peeked])) is not None:
            self.leave_out(_at_row(path, peeked, odd))
            peeked = [*(row for at, row in enumerate(peeked) if at != odd.path[0]), *islice(rows, 1)]
        if not peeked:
            return
        detected = find_format([row.value for row in peeked], lines=True)
        if detected is not None or is_message(peeked[0].value):
            lines = [*peeked, *rows]
            values = [line.value for line in lines]
            whole = values if detected is not None or all(is_message(value) for value in values) else {"messages": values}
            yield from self._parsed(whole, path.stem, lambda error: _at_row(path, lines, error))
            return
        for row in chain(peeked, rows):
            yield from self._runs_of_line(row.value, row)

    def _runs_of_line(self, value: Json, row: JsonLine) -> Iterator[AgentRun]:
        """Yield the runs of a line, which may be left out."""
        try:
            yield from self._parsed(value, f"{self._path.stem}-{row.number}", partial(_at, self._path, row.number))
        except InvalidRequest as error:
            self.leave_out(error)

    def _archive(self) -> Iterator[AgentRun]:
        """Yield the samples of an Inspect archive, each an entry of its own."""
        path = self._path
        try:
            with zipfile.ZipFile(path) as archive:
                header = _entry(path, archive, "header.json") if "header.json" in archive.namelist() else {}
                about = dict_of(dict_of(header).get("eval"))
                task = str(about.get("task") or path.stem)
                names = sorted(name for name in archive.namelist() if name.startswith("samples/") and name.endswith(".json"))
                if not names:
                    error, status = dict_of(dict_of(dict_of(header).get("error"))).get("message"), dict_of(header).get("status")
                    why = f": the evaluation ended with {status}{f', {error}' if error else ''}" if status not in (None, "success") else ""
                    raise InvalidRequest(f"{path} has no samples{why}; nothing can be judged")
                self._reading.formats[str(path), "Inspect log", "an archive with samples"] += 1
                # Each sample is unpacked by itself. So a damaged one can be left out, and an archive may be larger than the
                # memory.
                for name in names:
                    try:
                        run = self._sample(archive, name, task, about.get("model"))
                    except InvalidRequest as error:
                        self.leave_out(error)
                    else:
                        yield run
        except (zipfile.BadZipFile, NotImplementedError, EOFError, struct.error) as error:
            cure = "write it as JSON: inspect log convert --to json"
            raise InvalidRequest(f"{path} is not an archive that can be read here ({error}); {cure}") from None

    def _sample(self, archive: zipfile.ZipFile, name: str, task: str, model: object) -> AgentRun:
        try:
            run = parse_sample(sample := _entry(self._path, archive, name), task, model)
            Notes(on_account=self._keep_account, mapping=self._reading.mapping).keep_account(sample, [run], INSPECT)
        except UnreadableMessage as error:
            raise InvalidRequest(f"{self._path}, {name}: {_path_prefix(error.path)}{error}") from None
        return run


def _no_utf8(path: Path, line: int, error: UnicodeDecodeError) -> InvalidRequest:
    packed = next((cure for begins, cure in _PACKED.items() if error.object.startswith(begins)), None)
    if line == 1 and packed:
        return InvalidRequest(f"{path} {packed}")
    return InvalidRequest(f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is not UTF-8; save the file as UTF-8")


_PACKED = {
    b"\x1f\x8b": "is packed by gzip; unpack it: gunzip FILE",
    b"\x28\xb5\x2f\xfd": "is packed by zstandard; unpack it: zstd -d FILE",
    b"PK": "is a zip archive; unpack it: unzip FILE",
    b"PAR1": "is a file of Parquet; write its rows as JSON lines",
    b"\xff\xfe": "is UTF-16; save it as UTF-8",
    b"\xfe\xff": "is UTF-16; save it as UTF-8",
}
"""The meaning of the first bytes of a file that is not UTF-8, with the cure."""


def _at(path: Path, line: int, error: UnreadableMessage) -> InvalidRequest:
    return InvalidRequest(f"{path}, line {line}: {_path_prefix(error.path)}{error}")


def _at_row(path: Path, lines: Sequence[JsonLine], error: UnreadableMessage) -> InvalidRequest:
    """Return the error at the line that the first index in its path is of."""
    row = next((part for part in error.path if isinstance(part, int)), 0)
    return InvalidRequest(f"{path}, line {lines[min(row, len(lines) - 1)].number}: {error}")


def _concatenated(text: str) -> list[JsonLine] | None:
    """Return JSON values that stand one behind the other, over several lines, as exporters of spans write them; None for other text."""
    decoder, at, line, found = json.JSONDecoder(), 0, 1, list[JsonLine]()
    while begins := _BEGINNING.search(text, at):
        line += text.count("\n", at, begins.start())
        try:
            value, end = decoder.raw_decode(text, begins.start())
            found.append(JsonLine(line, acceptable(value)))
        except (ValueError, RecursionError):
            return None
        line += text.count("\n", begins.start(), end)
        at = end
    return found if len(found) > 1 and all(isinstance(row.value, (dict, list)) for row in found) else None


_SENT = re.compile(r"(data|event|id|retry)?:")
"""The beginning of a line of server-sent events."""


def _server_sent(text: str) -> list[JsonLine] | None:
    """Return the JSON of server-sent events, as a stream that is saved as it came has them; None for other text."""
    found: list[JsonLine] = []
    for number, line in enumerate(text.split("\n"), 1):
        kind = _SENT.match(line)
        if line.strip() and kind is None:
            return None
        data = line[kind.end() :].strip() if kind and kind[1] == "data" else ""
        if data and data != "[DONE]":
            try:
                found.append(JsonLine(number, strict_json(data)))
            except (ValueError, RecursionError):
                return None
    return found or None


def _opens_only(line: str) -> bool:
    """Return whether a line is only the beginning of a value, as in JSON over several lines."""
    return line.lstrip()[:1] in {"{", "["} and not _is_json(line)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _entry(path: Path, archive: zipfile.ZipFile, name: str) -> Json:
    entry = archive.getinfo(name)
    if entry.file_size > FILE_BYTES:
        raise InvalidRequest(f"{path}, {name}: more than {FILE_BYTES // 1024**3} GiB")
    raw = _zstandard(path, entry) if entry.compress_type == ZSTANDARD else archive.read(name)
    return _json(path, raw.decode("utf-8", errors="replace"), 1, name)


def _zstandard(path: Path, entry: zipfile.ZipInfo) -> bytes:
    """Return an entry in the compression that is Inspect's default; Python's own library knows it from 3.14 on."""
    cure = "run: pip install 'gradeloop[inspect]', or write it as JSON: inspect log convert --to json"
    with installed(f"{path} is compressed by zstandard, which is not installed; {cure}"):
        import zstandard
    with path.open("rb") as file:
        file.seek(entry.header_offset)
        name, extra = struct.unpack(_LENGTHS, file.read(struct.calcsize(_LENGTHS)))
        file.seek(name + extra, 1)
        packed = file.read(entry.compress_size)
    try:
        # One byte more than the archive says is read: enough to see that it lies, and too little for a few
        # kilobytes to unpack into all memory.
        unpacked = bytes(zstandard.ZstdDecompressor().stream_reader(packed).read(entry.file_size + 1))
    except zstandard.ZstdError as error:
        raise InvalidRequest(f"{path}, {entry.filename}: damaged: {error}") from None
    if (len(unpacked), zlib.crc32(unpacked)) != (entry.file_size, entry.CRC):
        raise InvalidRequest(f"{path}, {entry.filename}: damaged: it is not what its checksum says")
    return unpacked


def _json(path: Path, text: str, line: int, entry: str = "") -> Json:
    where = f"{path}, {entry}" if entry else str(path)
    try:
        return _parsed_json(text.strip(), entry)
    except RecursionError:
        raise InvalidRequest(f"{where}, line {line}: nested too deeply; flatten it") from None
    except ValueError as error:
        number = line + getattr(error, "lineno", 1) - 1 + (text[: len(text) - len(text.lstrip())].count("\n") if line == 1 else 0)
        raise InvalidRequest(f"{where}, line {number}: no JSON: {getattr(error, 'msg', error)}; correct it there") from None


def _parsed_json(text: str, entry: str) -> Json:
    """Return the value of a text; in a log of Inspect, which writes NaN for a sample without a score, NaN is a text."""
    try:
        return strict_json(text)
    except ValueError:
        if not (_NAN.search(text) and (entry or ('"samples"' in text and '"eval"' in text))):
            raise
    return acceptable(json.loads(text, parse_constant=str))


_NAN = re.compile(r"\bNaN\b|\bInfinity\b")


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


def distinct_ids(files: Sequence[tuple[Path, Sequence[AgentRun]]]) -> list[AgentRun]:
    """Return the runs of all files in order; where files have runs of one id, each carries its file's name: two logs of one task."""
    named: dict[str, set[Path]] = {}
    for path, runs in files:
        for run in runs:
            named.setdefault(run.id, set()).add(path.resolve())
    several = {name for name, paths in named.items() if len(paths) > 1}
    labels = _labels(sorted({path.resolve() for name in several for path in named[name]}))
    return [
        run.model_copy(update={"id": f"{labels[path.resolve()]}/{run.id}"[-200:]}) if run.id in several else run
        for path, runs in files
        for run in runs
    ]


def _labels(paths: Sequence[Path]) -> dict[Path, str]:
    """Return the shortest end of each path, without its suffix, that no other has."""
    found = {}
    for path in paths:
        parts = path.with_suffix("").parts
        ends = ("/".join(parts[-length:]) for length in range(1, len(parts)))
        others = ["/".join(("", *other.with_suffix("").parts[1:])) for other in paths if other != path]
        found[path] = next((end for end in ends if not any(other.endswith(f"/{end}") for other in others)), path.name)
    return found
