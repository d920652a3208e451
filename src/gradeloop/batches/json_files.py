"""Results as JSON: one document of the whole batch, or a line a case."""

import re
from typing import TextIO

from pydantic import BaseModel, JsonValue
from pydantic_core import PydanticSerializationError, to_json

from gradeloop.batches.case_result import SCHEMA, BatchSummary, CaseResult
from gradeloop.batches.ending import rate_of

_LONE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """Return the text with half characters, which no encoding can hold, replaced."""
    return _LONE.sub("\ufffd", text)


def as_json(value: BaseModel) -> str:
    """Return a model as one line of JSON that every reader accepts."""
    try:
        return value.model_dump_json()
    except PydanticSerializationError:
        return to_json(_encodable(value.model_dump(mode="json")), inf_nan_mode="null").decode()


def _encodable(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    return {encodable(key): _encodable(each) for key, each in value.items()} if isinstance(value, dict) else value


def json_line(result: CaseResult) -> str:
    """Return a result as a line: the schema first, then its fields."""
    return f'{{"schema":"{SCHEMA}",{as_json(result).removeprefix("{")}\n'


class JsonFile:
    """The whole batch as `{"schema", "summary", "rate", "cases"}`, a line a case."""

    def __init__(self, file: TextIO, summary: BatchSummary) -> None:
        self._file = file
        self._between = "\n"
        rate = to_json(rate_of(summary)).decode()
        file.write(f'{{"schema":"{SCHEMA}",\n"summary":{as_json(summary)},\n"rate":{rate},\n"cases":[')

    def write(self, result: CaseResult) -> None:
        """Write the next case."""
        self._file.write(self._between + as_json(result))
        self._between = ",\n"

    def end(self) -> None:
        """Write what comes after the last case."""
        self._file.write("\n]}\n")
