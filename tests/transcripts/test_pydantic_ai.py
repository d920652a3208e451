"""Messages as Pydantic AI dumps them."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.errors import InvalidRequest
from gradeloop.transcripts.readers import Reading, read_run_file
from tests.rig.transcripts import shown

Json = Any


def request(*parts: Json, **more: Json) -> Json:
    return {"parts": [*parts], "kind": "request", "timestamp": "2026-03-01T12:00:00Z", **more}


def response(*parts: Json, **more: Json) -> Json:
    return {"parts": [*parts], "kind": "response", "model_name": "gpt-5", "usage": {"input_tokens": 1}, **more}


def part(kind: str, content: Json = None, **more: Json) -> Json:
    return {"part_kind": kind, "content": content, **more}


PICTURE = {"kind": "binary", "data": "YWJj", "media_type": "image/png", "identifier": "i"}
CALL = {"part_kind": "tool-call", "tool_name": "look", "args": '{"a": 1}', "tool_call_id": "c"}
BUILT_IN = {"part_kind": "builtin-tool-call", "tool_name": "web_search", "args": {"query": "q"}, "tool_call_id": "w"}
RETURN = {"tool_name": "look", "tool_call_id": "c"}
LATE = part("tool-return", "late", **RETURN, outcome="failed")
MESSAGES = [
    request(part("system-prompt", "S"), part("user-prompt", ["q", PICTURE, {"kind": "cache-point"}]), instructions="BE BRIEF"),
    response(part("thinking", "hm", signature="CIPHER"), part("text", "I look."), CALL, finish_reason="tool_call"),
    request(part("tool-return", {"found": 1}, **RETURN, outcome="success"), instructions="BE BRIEF"),
    response(BUILT_IN, part("builtin-tool-return", {"hits": 2}, tool_name="web_search", tool_call_id="w"), part("file", PICTURE)),
    request(
        part("retry-prompt", "again", **RETURN), part("retry-feedback", "no JSON"), part("tool-return", "late", **RETURN, outcome="failed")
    ),
    response(part("thinking", ""), part("text", "A"), part("brand-new", "N")),
]
SHOWN = [
    "system text BE BRIEF",
    "system text S",
    "user text q",
    "user file image/png 3",
    "user other cache-point {}",
    "assistant reasoning hm",
    "assistant text I look.",
    'assistant tool_call c look {"a": 1}',
    'tool tool_result c look {"found": 1}',
    'assistant tool_call w web_search {"query": "q"}',
    'assistant tool_result w web_search {"hits": 2}',
    "assistant file image/png 3",
    "tool tool_result c look True again",
    "user text no JSON",
    "tool tool_result c look True late",
    "assistant reasoning True",
    "assistant text A",
    'assistant other brand-new {"content": "N"}',
]
WAYS: dict[str, Any] = {
    "run.json": json.dumps,
    "run.jsonl": lambda messages: "\n".join(map(json.dumps, messages)),
    "object.json": lambda messages: json.dumps({"id": "r", "messages": messages}),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_messages_of_pydantic_ai_are_read_whole(way: str, tmp_path: Path) -> None:
    (tmp_path / way).write_text(WAYS[way](MESSAGES), encoding="utf-8")

    assert shown(tmp_path / way) == SHOWN


def test_what_no_record_shows_is_metadata_and_ciphertext_is_not(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(MESSAGES), encoding="utf-8")
    reading = Reading()
    (run,) = read_run_file(tmp_path / "run.json", reading)
    answer = next(message for message in run.transcripts[0].messages if message.role == "assistant")

    assert answer.metadata == {"model_name": "gpt-5", "usage": {"input_tokens": 1}, "finish_reason": "tool_call"}
    assert "CIPHER" not in run.model_dump_json()
    assert [why for _, _, why in reading.formats] == ["a list of objects with kind and parts, which have a part_kind (Pydantic AI)"]


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (request(part("user-prompt", "q"), part("user-prompt", 5)), r"\[1\]\.parts\[1\]: the content is"),
        (response(part("text", "A"), {"part_kind": "tool-call"}), r"\[1\]\.parts\[1\]: a tool call names no tool"),
    ],
)
def test_a_part_that_cannot_be_read_is_refused_with_its_place(message: Json, place: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps([MESSAGES[0], message]), encoding="utf-8")

    with pytest.raises(InvalidRequest, match=place):
        list(read_run_file(tmp_path / "run.json"))
