"""The pieces of streamed replies, as lists, as lines and as server-sent events, joined to the replies that they make."""

import itertools
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from google import genai
from google.genai import types

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.transcripts.readers import Reading, read_run_file
from tests.rig.provider_server import all_exchanges
from tests.rig.transcripts import shown

Json = Any


def gemini(*parts: Json, index: int = 0, **more: Json) -> Json:
    """Return a piece of Gemini's; keys of `more` that a candidate has are the candidate's."""
    own = {key: more.pop(key) for key in ("finishReason", "citationMetadata") if key in more}
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "index": index, **own}], "responseId": "r", **more}


def chat(delta: Json, *, at: Json = 0, **more: Json) -> Json:
    """Return a piece of Chat Completions."""
    return {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": at, "delta": delta, **more}]}


CALL = {"functionCall": {"name": "look", "args": {"a": 1}}, "thoughtSignature": "CIPHER"}
GEMINI = [
    gemini({"text": "I think", "thought": True}, usageMetadata={"totalTokenCount": 2}),
    gemini({"text": " twice.", "thought": True}),
    gemini({"text": "Par"}, {"text": "is"}),
    gemini({"text": ", "}),
    gemini({"text": "then."}, CALL),
    gemini({"text": "", "thoughtSignature": "CIPHER"}, finishReason="STOP", usageMetadata={"totalTokenCount": 9}, modelVersion="gemini-x"),
]
SAID = ["assistant reasoning I think twice.", "assistant text Paris, then.", 'assistant tool_call look look {"a": 1}']

CHAT = [
    chat({"role": "assistant", "content": "", "reasoning_content": "I "}),
    chat({"reasoning_content": "think."}),
    chat({"content": "Par"}),
    chat({"content": "is"}),
    chat({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}]}),
    chat({"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "find", "arguments": "{}"}}]}),
    chat({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
    chat({"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]}),
    chat({}, finish_reason="tool_calls"),
    {"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": {"total_tokens": 9}},
]
MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Paris"}]}
RESPONSES: list[Json] = [
    {"type": "response.created", "response": {"id": "resp", "object": "response", "output": []}},
    {"type": "response.output_text.delta", "delta": "Paris", "item_id": "m"},
    {"type": "response.output_item.done", "item": MESSAGE},
    {"type": "response.completed", "response": {"id": "resp", "object": "response", "output": [MESSAGE]}},
]
ANTHROPIC: list[Json] = [
    {
        "type": "message_start",
        "message": {"id": "msg", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 3}},
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "I think."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "CIPHER"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Par"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "is"}},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t", "name": "look", "input": {}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a": '}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
    {"type": "content_block_stop", "index": 2},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
]
OF_CHAT = ["assistant reasoning I think.", "assistant text Paris", 'assistant tool_call c1 look {"a": 1}', "assistant tool_call c2 find {}"]
OF_ANTHROPIC = ["assistant reasoning I think.", "assistant text Paris", 'assistant tool_call t look {"a": 1}']
STREAMS: dict[str, tuple[list[Json], list[str]]] = {
    "gemini": (GEMINI, SAID),
    "chat": (CHAT, OF_CHAT),
    "responses": (RESPONSES, ["assistant text Paris"]),
    "anthropic": (ANTHROPIC, OF_ANTHROPIC),
}


def written(pieces: list[Json], way: str, folder: Path) -> Path:
    """Return the file in which pieces are a list, lines or server-sent events."""
    path = folder / {"list": "reply.json", "lines": "reply.jsonl", "events": "reply.sse", "events in lines": "reply.ndjson"}[way]
    lines = [json.dumps(piece) for piece in pieces]
    texts = {"list": f"[{','.join(lines)}]", "lines": "\n".join(lines)}
    sent = "".join(f"event: {piece.get('type', 'message')}\r\ndata: {line}\r\n\r\n" for piece, line in zip(pieces, lines, strict=True))
    path.write_text(texts.get(way, f": open\n{sent}data: [DONE]\n\n"), encoding="utf-8")
    return path


def read(pieces: list[Json], folder: Path) -> list[AgentRun]:
    return list(read_run_file(written(pieces, "list", folder), Reading()))


def test_the_pieces_of_a_stream_are_one_reply(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for way, name in itertools.product(("list", "lines", "events", "events in lines"), STREAMS):
        with subtests.test(way=way, name=name):
            pieces, said = STREAMS[name]

            assert shown(written(pieces, way, tmp_path)) == said


def test_of_a_stream_the_last_usage_counts_and_nothing_else_is_lost(tmp_path: Path) -> None:
    (run,) = read(GEMINI, tmp_path)
    (of_chat,) = read(CHAT, tmp_path)
    (of_anthropic,) = read(ANTHROPIC, tmp_path)

    assert (run.id, run.metadata) == ("r", {"usageMetadata": {"totalTokenCount": 9}, "modelVersion": "gemini-x"})
    assert run.transcripts[0].messages[0].metadata == {"finishReason": "STOP"}
    assert (of_chat.id, of_chat.metadata) == ("c", {"usage": {"total_tokens": 9}})
    assert (of_anthropic.id, of_anthropic.metadata["usage"]) == ("msg", {"input_tokens": 3, "output_tokens": 5})
    assert all("CIPHER" not in one.model_dump_json() for one in (run, of_anthropic))


def test_the_candidates_of_a_stream_are_a_message_each_with_all_their_citations(tmp_path: Path) -> None:
    def cited(text: str, index: int, source: str) -> Json:
        return gemini({"text": text}, index=index, citationMetadata={"citations": [source]})

    (run,) = read([cited("A", 0, "x"), cited("C", 1, "z"), cited("B", 0, "y"), gemini({"text": "D"}, index=1)], tmp_path)

    assert [message.content for message in run.transcripts[0].messages] == ["AB", "CD"]
    assert run.transcripts[0].messages[0].metadata == {"citationMetadata": {"citations": ["x", "y"]}}


def test_the_arguments_of_a_call_that_gemini_streams_are_put_together(tmp_path: Path) -> None:
    def more(**call: Json) -> Json:
        return gemini({"functionCall": {"willContinue": True, **call}})

    pieces = [
        more(name="look", id="f1"),
        more(partialArgs=[{"jsonPath": "$.city", "stringValue": "New "}]),
        more(partialArgs=[{"jsonPath": "$.city", "stringValue": "York"}, {"jsonPath": "$['days'][0].at", "numberValue": 3}]),
        gemini({"functionCall": {"partialArgs": [{"jsonPath": "$.sunny", "boolValue": False}, {"jsonPath": "$.x", "nullValue": None}]}}),
        gemini({"functionCall": {"name": "rest"}}, finishReason="STOP"),
    ]

    assert shown(written(pieces, "list", tmp_path)) == [
        'assistant tool_call f1 look {"city": "New York", "days": [{"at": 3}], "sunny": false, "x": null}',
        "assistant tool_call rest rest {}",
    ]


TWO: dict[str, tuple[list[Json], dict[str, str]]] = {
    "of two ids": ([*GEMINI[2:4], *({**piece, "responseId": "s"} for piece in GEMINI[2:4])], {"r": "Paris, ", "s": "Paris, "}),
    "without ids": (
        [
            {key: value for key, value in piece.items() if key != "responseId"}
            for piece in (gemini({"text": "A"}), gemini({"text": "B"}, finishReason="STOP"), gemini({"text": "C"}), gemini({"text": "D"}))
        ],
        {"reply-1": "AB", "reply-2": "CD"},
    ),
    "of anthropic": ([*ANTHROPIC, {**ANTHROPIC[0], "message": {"id": "other"}}, *ANTHROPIC[5:8]], {"msg": "Paris", "other": "Paris"}),
    "of chat, in turns": (
        [{**chat({"content": text}), "id": name} for text, name in (("A", "x"), ("B", "y"), ("C", "x"))],
        {"x": "AC", "y": "B"},
    ),
    "of responses": (
        [*RESPONSES, *RESPONSES[:2], {**RESPONSES[3], "response": {**RESPONSES[3]["response"], "id": "q"}}],
        {"resp": "Paris", "q": "Paris"},
    ),
}


@pytest.mark.parametrize("case", TWO)
def test_two_streams_in_one_file_are_two_runs(case: str, tmp_path: Path) -> None:
    pieces, texts = TWO[case]

    assert {run.id: run.transcripts[0].messages[0].content for run in read(pieces, tmp_path)} == texts


def test_whole_replies_of_gemini_in_a_list_are_runs_of_their_own(tmp_path: Path) -> None:
    replies = [gemini({"text": text}, finishReason="STOP") | {"responseId": text} for text in ("A", "B")]
    bare = [{key: value for key, value in reply.items() if key != "responseId"} for reply in replies]

    assert [run.transcripts[0].messages[0].content for run in read(replies, tmp_path)] == ["A", "B"]
    assert [run.transcripts[0].messages[0].content for run in read(bare, tmp_path)] == ["A", "B"]


BROKEN: dict[str, tuple[list[Json], list[str]]] = {
    "gemini": ([gemini({"text": "Pa"}), {"error": {"code": 503, "message": "gone"}}], ["assistant text Pa", "system error 503 gone"]),
    "chat": ([*CHAT[2:3], {"error": {"code": 502, "message": "gone"}}], ["assistant text Par", "system error 502 gone"]),
    "responses": (RESPONSES[:3], ["assistant text Paris", "system error the stream ended before its end"]),
    "anthropic": (
        [*ANTHROPIC[:1], *ANTHROPIC[5:7], {"type": "error", "error": {"type": "overloaded_error", "message": "gone"}}],
        ["assistant text Par", "system error overloaded_error gone"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_stream_that_broke_off_ends_with_its_error(name: str, tmp_path: Path) -> None:
    pieces, said = BROKEN[name]

    assert shown(written(pieces, "list", tmp_path)) == said


REFUSED: dict[str, tuple[list[Json], str]] = {
    "a prompt that Gemini blocked": (
        [{"promptFeedback": {"blockReason": "SAFETY"}}, gemini()],
        "0..promptFeedback: the request was blocked",
    ),
    "a candidate that is none": (
        [gemini({"text": "A"}), {"candidates": ["B"], "responseId": "r"}],
        "line 1: .1..candidates.0.: 'B' is not an object",
    ),
    "an index that is none": (
        [chat({"content": "A"}), chat({"content": "B"}, at="x")],
        "1..choices.0..index: index is 'x'; write a number",
    ),
    "a text that is none": ([chat({"content": 5})], "0..choices.0..delta.content: content is '5'; write text"),
    "arguments that are none": (
        [chat({"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]})],
        "delta.tool_calls.0..function.arguments: arguments is .*; write text",
    ),
    "a path that is none": (
        [gemini({"functionCall": {"name": "f", "partialArgs": [{"jsonPath": "city", "stringValue": "x"}]}}), gemini({"text": "A"})],
        "has the path 'city'; write one like",
    ),
    "a delta of a new type": (
        [*ANTHROPIC[:2], {"type": "content_block_delta", "delta": {"type": "wave"}}],
        "a piece of the type 'wave' is not known",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_piece_that_cannot_be_read_is_refused(case: str, tmp_path: Path) -> None:
    pieces, why = REFUSED[case]

    with pytest.raises(InvalidRequest, match=why):
        read(pieces, tmp_path)


def test_a_single_piece_says_how_all_are_read(tmp_path: Path) -> None:
    (tmp_path / "piece.json").write_text(json.dumps(CHAT[2]), encoding="utf-8")

    with pytest.raises(InvalidRequest, match="this is a piece of a stream; write the whole reply, or all pieces in their order"):
        list(read_run_file(tmp_path / "piece.json"))


WAYS: dict[str, Any] = {
    "as the SDK dumps them": lambda chunk: chunk.model_dump(mode="json"),
    "without what is not there": lambda chunk: chunk.model_dump(mode="json", exclude_none=True),
    "by the names of the interface": lambda chunk: chunk.model_dump(mode="json", exclude_none=True, by_alias=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_googles_sdk_yields_of_a_stream_is_read_as_one_reply(way: str, tmp_path: Path) -> None:
    pieces = [json.loads(json.dumps(piece).replace("CIPHER", "Q0lQSEVS")) for piece in GEMINI]

    class Provider(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write("".join(f"data: {json.dumps(piece)}\r\n\r\n" for piece in pieces).encode())

        def log_message(self, *_arguments: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=f"http://127.0.0.1:{server.server_port}"))
        chunks = list(client.models.generate_content_stream(model="gemini-x", contents="q"))
        server.shutdown()
    (run,) = read([WAYS[way](chunk) for chunk in chunks], tmp_path)

    assert shown(tmp_path / "reply.json") == SAID
    assert run.id == "r"
    assert "Q0lQSEVS" not in run.model_dump_json()


RECORDED = {name: (provider, exchange) for provider, name, exchange in all_exchanges() if exchange.events}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_stream_is_read_as_one_reply(name: str, tmp_path: Path) -> None:
    """Counts beside what a loop over the recorded pieces finds: the texts, the calls, and one run."""
    provider, exchange = RECORDED[name]
    pieces = [event for event in exchange.events or () if isinstance(event, dict)]
    (tmp_path / "reply.sse").write_bytes(b"".join(exchange.stream(provider)))
    (run,) = read_run_file(tmp_path / "reply.sse")
    (same,) = read_run_file(written(pieces, "list", tmp_path))
    parts = [part for message in run.transcripts[0].messages if message.role == "assistant" for part in message.records()]

    assert same == run
    assert "".join(part.text for part in parts if part.type == "text") == "".join(map(_text_of, pieces))
    assert sum(part.type == "tool_call" for part in parts) == sum(map(_calls_of, pieces))


def _text_of(piece: Json) -> str:
    candidates = [
        part for one in piece.get("candidates", ()) for part in one.get("content", {}).get("parts", ()) if not part.get("thought")
    ]
    deltas = [choice["delta"] for choice in piece.get("choices", ())]
    texts = [part.get("text", "") for part in candidates] + [delta.get("content") or "" for delta in deltas]
    delta = piece.get("delta")
    return (
        "".join(texts)
        + (delta if isinstance(delta, str) and piece["type"] == "response.output_text.delta" else "")
        + (delta.get("text", "") if isinstance(delta, dict) else "")
    )


def _calls_of(piece: Json) -> int:
    candidates = [part for one in piece.get("candidates", ()) for part in one.get("content", {}).get("parts", ())]
    chats = [call for choice in piece.get("choices", ()) for call in choice["delta"].get("tool_calls") or () if call.get("id")]
    return sum("functionCall" in part for part in candidates) + len(chats) + int(piece.get("content_block", {}).get("type") == "tool_use")
