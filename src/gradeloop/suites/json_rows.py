"""JSON and JSONL row by row; an `output` that is no text is the JSON as it was written, so that `1.10` stays `1.10`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip
from gradeloop.strict_json import leading_json
from gradeloop.suites.csv_rows import foreign

LINE_BYTES = 8 * 1024 * 1024
"""Of one line of JSONL: six times what a case may have, as escapes may take six bytes for one."""

JSON_BYTES = 32 * 1024 * 1024
"""Of a file that is one JSON list, which is read whole."""

OUTPUTS = ("output", "providerOutput")
"""What is judged, in our rows and in promptfoo's."""

_SPACE = re.compile(r"[ \t\r\n]*")


def jsonl_rows(path: Path, where: str) -> Iterator[tuple[int, dict[str, JsonValue]]]:
    """Yield each line's object with its number, from 1; blank lines are passed over.

    Raises:
        InvalidRequest: A line is no JSON object in UTF-8, or too long.
    """
    for number, line in enumerate(_lines(path, where), 1):
        if number == 1 and line[:2] in {b"\xff\xfe", b"\xfe\xff"}:
            raise foreign(path, where)
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise foreign(path, where) from None
        if text.strip():
            yield number, _row(text, f"{where}, line {number}")


def json_rows(path: Path, where: str) -> Iterator[tuple[int, dict[str, JsonValue]]]:
    """Yield the objects of a JSON list, each with the line on which it begins.

    Raises:
        InvalidRequest: It is no such list in UTF-8, or too large.
    """
    text = _whole(path, where)
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise InvalidRequest(f"{where} begins with {clip(text[at : at + 20])}; write a list of rows, or save it as JSONL")
    line, counted, mark = 1, 0, ","
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        return
    while mark == ",":
        line, counted = line + text.count("\n", counted, at), at
        try:
            _, end = leading_json(text, at)
        except (ValueError, RecursionError) as error:
            raise _refusal(f"{where}, line {line}", error) from None
        yield line, _row(text[at:end], f"{where}, line {line}")
        at = _skip(text, end)
        mark, at = text[at : at + 1], _skip(text, at + 1)
    if mark != "]" or at != len(text):
        raise InvalidRequest(f"{where}, line {line}: after this row there is {clip(mark + text[at : at + 20])}; write ',' or end the list")


def _lines(path: Path, where: str) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_BYTES + 1):
                number += 1
                if len(line) > LINE_BYTES:
                    raise InvalidRequest(f"{where}, line {number} has more than {LINE_BYTES} bytes; write one row a line")
                yield line
    except OSError as error:
        raise InvalidRequest(f"{where} cannot be read: {error.strerror}; name a readable file") from None


def _whole(path: Path, where: str) -> str:
    raw = b"".join(_lines(path, where)) if path.stat().st_size <= JSON_BYTES else None
    if raw is None:
        raise InvalidRequest(f"{where} has more than {JSON_BYTES // 2**20} MiB; write it as JSONL, which is read row by row")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise foreign(path, where) from None


def _row(text: str, where: str) -> dict[str, JsonValue]:
    """Read an object that is the whole text; its `output` is kept as it stands where it is no text."""
    try:
        row, end = leading_json(text, _skip(text, 0))
    except (ValueError, RecursionError) as error:
        raise _refusal(where, error) from None
    if _skip(text, end) != len(text):
        raise InvalidRequest(f"{where}: {clip(text[end : end + 20])} follows the JSON; write one row a line")
    if not isinstance(row, dict):
        raise InvalidRequest(f"{where}: {clip(text.strip())} is no JSON object; write the row's variables as one")
    for name in OUTPUTS:
        if row.get(name) is not None and not isinstance(row[name], str):
            row[name] = _as_written(text, name)
    return row


def _as_written(text: str, name: str) -> str:
    """Return the text of a member's value; the whole is an object that was read already."""
    at = _skip(text, _skip(text, 0) + 1)
    while True:
        key, end = leading_json(text, at)
        start = _skip(text, _skip(text, end) + 1)
        _, end = leading_json(text, start)
        if key == name:
            return text[start:end]
        at = _skip(text, _skip(text, end) + 1)


def _refusal(where: str, error: Exception) -> InvalidRequest:
    if isinstance(error, json.JSONDecodeError):
        return InvalidRequest(f"{where}: no JSON: {error.msg} at character {error.pos + 1}; correct it")
    told = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return InvalidRequest(f"{where}: no JSON: {told}; correct it")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
