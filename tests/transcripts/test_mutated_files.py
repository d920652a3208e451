"""Files that are damaged in any way are read, or refused in one sentence that names the file: never a traceback, never less in silence."""

import copy
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradeloop.errors import InvalidRequest
from gradeloop.transcripts.readers import Reading, read_run_file
from tests.transcripts.test_formats import SAMPLES

CANARY = "a-word-that-no-sample-has"
DEEP: Any = CANARY
for _ in range(80):
    DEEP = {"inner": [DEEP]}
ODD: list[Any] = [None, 7, True, CANARY, [], {}, [CANARY], {CANARY: 1}, "", DEEP, [None], [[[1]]], {"type": "none-of-them"}, "x" * 200_000]


def _paths(value: Any, path: tuple[int | str, ...] = ()) -> Iterator[tuple[int | str, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _paths(inner, (*path, key))


PLACES = [(name, path) for name, sample in SAMPLES.items() for path in _paths(sample) if path]


def _mutated(name: str, path: tuple[int | str, ...], how: str, odd: object) -> object:
    """Return a sample with a value that is dropped, doubled, or something else."""
    value = copy.deepcopy(SAMPLES[name])
    holder: Any = value
    for part in path[:-1]:
        holder = holder[part]
    if how == "drop":
        del holder[path[-1]]
    elif how == "double" and isinstance(holder, list):
        at = int(path[-1])
        holder.insert(at, copy.deepcopy(holder[at]))
    else:
        holder[path[-1]] = odd
    return value


def _refusal(path: Path) -> str | None:
    """Return why a file is refused; None where it is read. Anything else that is raised fails the test."""
    try:
        runs = list(read_run_file(path, Reading()))
    except InvalidRequest as error:
        return str(error)
    assert all(message.records() for run in runs for transcript in run.transcripts for message in transcript.messages)
    return None


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PLACES), st.sampled_from(["drop", "double", "replace", "replace"]), st.sampled_from(ODD), st.booleans())
def test_a_value_that_is_something_else_is_read_or_refused_in_one_sentence(
    tmp_path: Path, place: tuple[str, tuple[int | str, ...]], how: str, odd: object, lines: bool
) -> None:
    value = _mutated(*place, how, odd)
    path = tmp_path / ("run.jsonl" if lines else "run.json")
    rows = value if lines and isinstance(value, list) else [value]
    path.write_text("\n".join(json.dumps(row) for row in rows))

    refusal = _refusal(path)

    assert refusal is None or (str(path) in refusal and "\n" not in refusal)


BYTES = {
    "a byte order mark": (lambda raw: b"\xef\xbb\xbf" + raw, None),
    "CRLF": (lambda raw: raw.replace(b"\n", b"\r\n"), None),
    "UTF-16": (lambda raw: raw.decode().encode("utf-16"), "is no UTF-8"),
    "gzip": (gzip.compress, "is no UTF-8"),
    "binary": (lambda raw: bytes(range(256)), "is no UTF-8"),
    "NUL": (lambda raw: b"\x00" + raw, "no JSON"),
    "cut off": (lambda raw: raw[: len(raw) // 2], "no JSON"),
    "nothing": (lambda raw: b"", "is empty"),
    "nested too deeply": (lambda raw: b"[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("how", BYTES)
@pytest.mark.parametrize("name", ["vercel_v4", "otel_events", "openhands", "claude_code"])
def test_bytes_that_are_something_else_are_read_or_refused(tmp_path: Path, name: str, how: str) -> None:
    damage, expected = BYTES[how]
    path = tmp_path / "run.json"
    path.write_bytes(damage(json.dumps(SAMPLES[name], indent=1).encode()))  # type: ignore[no-untyped-call]  # lambdas

    refusal = _refusal(path)

    assert (refusal is None) if expected is None else (expected in str(refusal) and str(path) in str(refusal))


LISTED = [
    ("claude_code", (1,)),
    ("codex", (1,)),
    ("langsmith_tree", ("child_runs", 0)),
    ("langsmith_tree", ("child_runs",)),
    ("otel_chain", ("resourceSpans", 0, "scopeSpans", 0, "spans", 0)),
    ("openhands", (0,)),
    ("swe_agent", ("history",)),
    ("atif", ("steps", 1, "tool_calls")),
]


@pytest.mark.parametrize(("name", "place"), LISTED)
def test_what_is_no_object_in_a_list_of_events_is_refused_and_not_passed_over(
    tmp_path: Path, name: str, place: tuple[int | str, ...]
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(_mutated(name, place, "replace", CANARY)))

    assert CANARY in str(_refusal(path))
