"""CSV row by row: every cell is the text that stands in the file, and what is no table is refused with its line."""

import csv
from collections.abc import Iterator
from pathlib import Path

from gradeloop.batches.case import CASE_BYTES
from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip

_OTHER_SEPARATORS = (";", "\t", "|")


def csv_rows(path: Path, where: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row with its line, from 1, and its cells by column; lines without anything on them are passed over.

    Raises:
        InvalidRequest: The file is no table in UTF-8; the message names line and cure.
    """
    csv.field_size_limit(max(csv.field_size_limit(), 2 * CASE_BYTES))
    rows = _records(path, where)
    line, header = next(rows, (1, []))
    names = [name.strip() for name in header]
    _refuse_header(names, f"{where}, line {line}")
    for line, cells in rows:
        if len(cells) != len(names):
            cure = "put a cell that has a comma or a line end in it into quotes"
            raise InvalidRequest(f"{where}, line {line}: the row has {len(cells)} cells, the header {len(names)}; {cure}")
        yield line, dict(zip(names, cells, strict=True))


def _records(path: Path, where: str) -> Iterator[tuple[int, list[str]]]:
    line = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_without_nul(file, where), strict=True)
            for cells in reader:
                if cells:
                    yield line, cells
                line = reader.line_num + 1
    except UnicodeDecodeError:
        raise foreign(path, where) from None
    except csv.Error as error:
        cure = "close the quote that opens there, and double every quote inside of a quoted cell"
        raise InvalidRequest(f"{where}, line {line}: {error}; {cure}") from None
    except OSError as error:
        raise InvalidRequest(f"{where} cannot be read: {error.strerror}; name a readable file") from None


def _without_nul(lines: Iterator[str], where: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            raise InvalidRequest(f"{where}, line {number}: there is a NUL byte, as in UTF-16; save the file as UTF-8 text")
        yield line


def foreign(path: Path, where: str) -> InvalidRequest:
    """Return the refusal of a file that is no UTF-8, with the line and the byte."""
    with path.open("rb") as file:
        start = file.read(2)
        if start in {b"\xff\xfe", b"\xfe\xff"}:
            return InvalidRequest(f"{where}, line 1: it begins with the bytes 0x{start.hex()}: UTF-16; save the file as UTF-8")
        file.seek(0)
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                byte = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
                return InvalidRequest(f"{where}, line {number}: {byte} is no UTF-8 (Latin-1 or Windows-1252?); save the file as UTF-8")
    return InvalidRequest(f"{where}: it is no UTF-8 text; save it as UTF-8")


def _refuse_header(names: list[str], where: str) -> None:
    if not names:
        raise InvalidRequest(f"{where}: the file is empty; write the names of the columns into the first line")
    if len(names) == 1 and (other := next((each for each in _OTHER_SEPARATORS if each in names[0]), None)):
        raise InvalidRequest(f"{where}: the columns are separated by {other!r}; save the file with commas")
    if "" in names:
        raise InvalidRequest(f"{where}: column {names.index('') + 1} has no name; name it, or remove it")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"{where}: the column {clip(twice)} is there twice; keep one, or rename it")
