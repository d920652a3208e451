"""Files that are damaged in any way are read, or refused in one sentence that names the file: never a traceback, never less in silence."""

import copy
import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.transcripts.readers import Reading, read_run_file
from tests.rig.transcripts import SAMPLES

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


@pytest.mark.slow
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
    "UTF-16": (lambda raw: raw.decode().encode("utf-16"), "is UTF-16; save it as UTF-8"),
    "gzip": (gzip.compress, "is packed by gzip; unpack it: gunzip FILE"),
    "binary": (lambda raw: bytes(range(256)), "is not UTF-8"),
    "NUL": (lambda raw: b"\x00" + raw, "no JSON"),
    "cut off": (lambda raw: raw[: len(raw) // 2], "no JSON"),
    "nothing": (lambda raw: b"", "is empty"),
    "nested too deeply": (lambda raw: b"[" * 100_000, "nested too deeply"),
}


def test_bytes_that_are_something_else_are_read_or_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for how, name in itertools.product(BYTES, ("vercel_v4", "otel_events", "openhands", "claude_code")):
        with subtests.test(how=how, name=name):
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
    ("otel_chain", ("resourceSpans", 0, "scopeSpans", 0, "spans", 0, "attributes", 0)),
    ("otel_chain", ("resourceSpans", 0, "scopeSpans", 0, "spans", 0, "attributes")),
    ("langfuse_observations", ("observations", 1)),
    ("gemini", ("candidates", 0)),
    ("gemini", ("candidates", 0, "content")),
]


def test_what_is_no_object_in_a_list_of_events_is_refused_and_not_passed_over(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, place in LISTED:
        with subtests.test(name=name):
            path = tmp_path / "run.json"
            path.write_text(json.dumps(_mutated(name, place, "replace", CANARY)))

            assert CANARY in str(_refusal(path))


def _run(name: str, place: tuple[int | str, ...], value: object, folder: Path) -> AgentRun | str:
    """Return the run of a sample with another value at a place, or why it is refused."""
    path = folder / "run.json"
    path.write_text(json.dumps(_mutated(name, place, "replace", value)))
    refusal = _refusal(path)
    return refusal if refusal is not None else next(read_run_file(path))


def _said(run: AgentRun | str) -> list[tuple[str, str, object]]:
    assert isinstance(run, AgentRun), run
    return [(message.role, part.type, part.record()["text"]) for message in run.transcripts[0].messages for part in message.records()]


@pytest.mark.parametrize("odd", [7, True, [[1]], None])
def test_a_turn_of_gemini_that_is_none_is_refused_and_a_text_is_the_users(tmp_path: Path, odd: object) -> None:
    refused = _run("gemini", ("contents", 0), odd, tmp_path)
    text = _run("gemini", ("contents", 0), CANARY, tmp_path)

    assert "contents[0]: " in str(refused)
    assert "is not a turn" in str(refused)
    assert _said(text)[1] == ("user", "text", CANARY)


SYSTEMS: dict[str, Any] = {
    "a text": CANARY,
    "a part": {"text": CANARY},
    "a list of parts": [{"text": CANARY}],
    "an object whose parts are one": {"parts": {"text": CANARY}},
    "an object with parts": {"role": "user", "parts": [{"text": CANARY}]},
}


@pytest.mark.parametrize("shape", SYSTEMS)
def test_a_system_instruction_of_gemini_is_read_in_every_shape(tmp_path: Path, shape: str) -> None:
    assert _said(_run("gemini", ("systemInstruction",), SYSTEMS[shape], tmp_path))[0] == ("system", "text", CANARY)


@pytest.mark.parametrize("odd", [7, {"parts": 7}, {"words": CANARY}])
def test_a_system_instruction_of_gemini_that_is_none_is_refused_or_kept(tmp_path: Path, odd: object) -> None:
    run = _run("gemini", ("systemInstruction",), odd, tmp_path)

    assert "systemInstruction" in run if isinstance(run, str) else CANARY in str(_said(run)[0])


def test_what_content_says_beside_parts_is_kept_and_what_both_say_is_said_once(tmp_path: Path) -> None:
    texts = [{"type": "text", "text": "It is"}, {"type": "text", "text": "Paris."}]
    message = {"id": "2", "role": "assistant", "parts": texts}

    def records(content: object) -> list[tuple[str, str, object]]:
        return _said(_run("vercel_v4", ("messages", 1), message | {"content": content}, tmp_path))[1:]

    both = [("assistant", "text", "It is\nParis.")]
    assert records("It is Paris.") == records("It isParis.") == records("") == both
    assert records(CANARY) == [("assistant", "text", f"{CANARY}\nIt is\nParis.")]


@pytest.mark.parametrize("odd", ["no", 1, ["x"], {}])
def test_an_error_flag_that_is_none_is_refused(tmp_path: Path, odd: object) -> None:
    result = {"type": "tool_result", "tool_use_id": "c", "content": "found", "is_error": odd}
    line = {"type": "user", "uuid": "u", "message": {"role": "user", "content": [result]}}
    ended = {"type": "result", "subtype": "success", "is_error": odd, "result": "done", "session_id": "s", "uuid": "v"}

    for row in (line, ended):
        assert "is_error: is_error is" in str(_run("claude_code", (1,), row, tmp_path))
