"""Messages and rows in the shapes that the published formats leave open: wrappers of APIs, states, variants of data sets."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.errors import InvalidRequest
from gradeloop.transcripts.readers import Reading, read_run_file
from tests.rig.transcripts import shown

Json = Any

U = {"role": "user", "content": "q"}
A = {"role": "assistant", "content": "A"}
QA = ["user text q", "assistant text A"]
HUMAN = {"type": "human", "content": "q"}
AI = {"type": "ai", "content": "A"}
CHOICES = {"object": "chat.completion", "choices": [{"message": A}]}
GEMINI_Q = {"contents": [{"role": "user", "parts": [{"text": "q"}]}]}
GEMINI_A = {"candidates": [{"content": {"role": "model", "parts": [{"text": "A"}]}, "finishReason": "STOP"}]}
TURNS = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "A"}]
SOURCE = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
FETCHED = {"type": "web_fetch_result", "url": "https://f", "content": {"type": "document", "source": SOURCE}}
SPAN = {
    "name": "Chat",
    "context": {"trace_id": "t", "span_id": "s"},
    "attributes": {"llm.input_messages": [{"message.role": "user", "message.content": "q"}]},
}
GENERATION = {"id": "g", "traceId": "t", "type": "GENERATION", "startTime": "1", "input": [U], "output": A}
TRACE = {"id": "t", "timestamp": "x", "name": "n", "sessionId": None, "userId": None, "environment": "default"}


def answers(*parts: Json) -> list[Json]:
    return [{"role": "assistant", "content": list(parts)}]


def hosted(**item: Json) -> Json:
    return {"object": "response", "output": [item]}


CASES: dict[str, tuple[Json, list[str]]] = {
    "a page of Phoenix's spans": ({"data": [SPAN], "next_cursor": None}, ["user text q"]),
    "a page of Langfuse's observations": ({"data": [GENERATION], "meta": {"page": 1}}, QA),
    "a page of Langfuse's traces, with the ids of observations": (
        {"data": [{**TRACE, "input": "q", "output": "A", "observations": ["g1"]}], "meta": {}},
        QA,
    ),
    "a trace of Langfuse's interface without an answer": ([{**TRACE, "input": "q", "output": None}], ["user text q"]),
    "a page of LangSmith's runs": (
        {"runs": [{"id": "r", "run_type": "llm", "inputs": {"messages": [U]}, "outputs": A}], "cursors": {}},
        QA,
    ),
    "a bulk export of LangSmith": (
        [{"id": "r", "run_type": "chain", "inputs": '{"question": "q"}', "outputs": '{"answer": "A"}', "extra": "{}"}],
        QA,
    ),
    "a list of OpenAI's completions": ({"object": "list", "data": [{"id": "1", **CHOICES}], "has_more": False}, ["assistant text A"]),
    "a thread of OpenAI's, newest first": (
        {"object": "list", "data": [{**row, "object": "thread.message", "created_at": at} for row, at in ((A, 2), (U, 1))]},
        QA,
    ),
    "a request beside its response": ({"request": {"messages": [U]}, "response": CHOICES}, QA),
    "a row of Vertex's batches": ({"status": "", "request": GEMINI_Q, "response": GEMINI_A}, QA),
    "a row of Gemini's batches": ({"key": "k", "response": GEMINI_A}, ["assistant text A"]),
    "a row of a batch of completions": (
        {"custom_id": "c", "url": "/v1/completions", "body": {"model": "m", "prompt": "q"}},
        ["user text q"],
    ),
    "a state of LangGraph": ({"values": {"messages": [HUMAN, AI]}, "next": [], "tasks": [], "metadata": {}}, QA),
    "a checkpoint of LangGraph": ({"v": 3, "id": "c", "channel_values": {"messages": [HUMAN, AI]}}, QA),
    "a checkpoint with its config": ({"config": {}, "checkpoint": {"channel_values": {"messages": [HUMAN, AI]}}}, QA),
    "a state as LangChain dumps it": ([{"messages": [HUMAN, AI]}, [], {"configurable": {"thread_id": "t"}}, {}, "2", None, [], []], QA),
    "the history of a thread of LangGraph, newest first": (
        [
            {"values": {"messages": [HUMAN, AI]}, "config": {"configurable": {"thread_id": "t"}}, "created_at": "3"},
            {"values": {"messages": [HUMAN]}, "config": {"configurable": {"thread_id": "t"}}, "created_at": "2"},
            {"values": {"messages": []}, "config": {"configurable": {"thread_id": "t"}}, "created_at": "1"},
        ],
        QA,
    ),
    "a prompt as LangChain dumps it": (
        {"lc": 1, "type": "constructor", "id": ["ChatPromptValue"], "kwargs": {"messages": [HUMAN]}},
        QA[:1],
    ),
    "a message that LangChain's constructor takes out": (
        [HUMAN, {"lc": 1, "type": "constructor", "id": ["messages", "RemoveMessage"], "kwargs": {"id": "x"}}],
        ["user text q", 'system other remove {"lc": 1, "id": ["messages", "RemoveMessage"], "kwargs": {"id": "x"}}'],
    ),
    "a message that LangGraph takes out": (
        [HUMAN, {"type": "remove", "data": {"content": "", "id": "x"}}, AI],
        ["user text q", 'system other remove {"data": {"content": "", "id": "x"}}', "assistant text A"],
    ),
    "what LangChain keeps beside a message": (
        [
            HUMAN,
            {
                "type": "ai",
                "content": "A",
                "additional_kwargs": {
                    "refusal": "NO",
                    "reasoning": {"id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
                    "tool_outputs": [{"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "Q"}}],
                },
            },
        ],
        [
            "user text q",
            'assistant tool_call w web_search {"type": "search", "query": "Q"}',
            "assistant reasoning hm",
            "assistant text A",
            "assistant text True NO",
        ],
    ),
    "why LangChain could not read a call": (
        [HUMAN, {"type": "ai", "content": "", "invalid_tool_calls": [{"id": "c", "name": "look", "args": "{", "error": "E"}]}],
        ["user text q", "assistant tool_call c look {", "assistant error parse_error E"],
    ),
    "approvals of Vercel's model messages": (
        [
            *answers(
                {"type": "tool-call", "toolCallId": "c", "toolName": "del", "input": {}},
                {"type": "tool-approval-request", "approvalId": "p"},
            ),
            {
                "role": "tool",
                "content": [
                    {"type": "tool-approval-response", "approvalId": "p", "approved": False},
                    {"type": "tool-result", "toolCallId": "c", "toolName": "del", "output": {"type": "execution-denied", "reason": "NO"}},
                ],
            },
        ],
        [
            "assistant tool_call c del {}",
            'assistant other tool-approval-request {"approvalId": "p"}',
            'tool other tool-approval-response {"approvalId": "p", "approved": false}',
            'tool tool_result c del True {"type": "execution-denied", "reason": "NO"}',
        ],
    ),
    "a call that Vercel's user denied": (
        [
            {
                "role": "assistant",
                "parts": [
                    {"type": "tool-del", "toolCallId": "c", "state": "output-denied", "approval": {"approved": False, "reason": "NO"}}
                ],
            }
        ],
        ["assistant tool_call c del {}", "assistant tool_result c del True denied by the user: NO"],
    ),
    "a picture in what Vercel's tool returned": (
        [
            {
                "role": "tool",
                "content": [
                    {
                        "type": "tool-result",
                        "toolCallId": "c",
                        "toolName": "look",
                        "output": {"type": "content", "value": [{"type": "media", "data": "AAAA", "mediaType": "image/png"}]},
                    }
                ],
            }
        ],
        ["tool tool_result c look", "tool file image/png 3"],
    ),
    "a document of Anthropic's with a picture in it": (
        [
            {
                "role": "user",
                "content": [
                    {
                        "type": "document",
                        "source": {"type": "content", "content": [{"type": "text", "text": "D"}, {"type": "image", "source": SOURCE}]},
                    }
                ],
            }
        ],
        ["user file document D", "user file application/pdf 3"],
    ),
    "a document that Anthropic's tool fetched": (
        answers({"type": "web_fetch_tool_result", "tool_use_id": "w", "content": FETCHED}),
        [
            "assistant tool_result w " + json.dumps(FETCHED | {"content": {"type": "document", "source": SOURCE | {"data": "3 bytes"}}}),
        ],
    ),
    "a picture in a response of Gemini's function": (
        {
            "contents": [
                {
                    "role": "user",
                    "parts": [
                        {
                            "function_response": {
                                "name": "look",
                                "response": {"result": "found"},
                                "parts": [{"inline_data": {"data": "AAAA"}}],
                            }
                        }
                    ],
                }
            ]
        },
        ["tool tool_result look look found", "tool file 3"],
    ),
    "a screenshot of Responses": (
        {
            "object": "response",
            "output": [{"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "file_id": "f"}}],
        },
        ["tool tool_result c", "tool file f computer_screenshot"],
    ),
    "what a file search found": (
        hosted(type="file_search_call", id="f", queries=["Q"], results=[{"filename": "n.txt", "text": "T"}]),
        ['assistant tool_call f file_search {"queries": ["Q"]}', 'tool tool_result f file_search [{"filename": "n.txt", "text": "T"}]'],
    ),
    "an item that Responses added": (hosted(type="brand_new", said="N"), ['assistant other brand_new {"said": "N"}']),
    "conversations of role and content": ({"conversations": [U, A]}, QA),
    "a conversation of LMSYS": ({"conversation_id": "c", "conversation": [U, A]}, QA),
    "a list of turns": (TURNS, QA),
    "turns of a speaker in capitals, with text": ({"items": [{"from": "Human", "text": "q"}, {"from": "GPT", "text": "A"}]}, QA),
    "a result of ShareGPT is that of the call before it": (
        {
            "conversations": [
                TURNS[0],
                {"from": "function_call", "value": '{"name": "look", "arguments": {}}'},
                {"from": "observation", "value": "found"},
            ]
        },
        ["user text q", "assistant tool_call call_1 look {}", "tool tool_result call_1 found"],
    ),
    "a pair of an arena": ({"conversation_a": [U, A], "conversation_b": [U, A]}, [*QA, "--", *QA]),
    "a pair of ShareGPT's turns": ({"conversations": TURNS[:1], "chosen": TURNS[1], "rejected": TURNS[1]}, [*QA, "--", *QA]),
    "several rejected answers": (
        {"prompt": "q", "chosen": ["A"], "rejected": ["B", "C"]},
        [*QA, "--", "user text q", "assistant text B", "--", "user text q", "assistant text C"],
    ),
    "an instruction with its input": ({"instruction": "q", "input": "r", "output": "A"}, ["user text q\n\nr", "assistant text A"]),
    "a reply of Gemini's SDK, with all that is not there": (
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "A", "thought": None, "function_response": None}]}}]},
        ["assistant text A"],
    ),
    "hosted tools of Gemini's newer replies": (
        {
            "contents": [
                {
                    "role": "model",
                    "parts": [
                        {"toolCall": {"id": "g", "toolType": "SEARCH", "args": {"q": 1}}},
                        {"toolResponse": {"id": "g", "toolType": "SEARCH", "response": {"r": 1}}},
                    ],
                }
            ]
        },
        ['assistant tool_call g SEARCH {"q": 1}', 'assistant tool_result g SEARCH {"r": 1}'],
    ),
    "output of Responses alone": ({"id": "r", "output": [{"type": "message", **A}], "model": "m"}, ["assistant text A"]),
    "items of Responses in what LangChain keeps": (
        [
            HUMAN,
            {
                "type": "ai",
                "content": [
                    {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "Q"}},
                    {"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": '{"a": 1}'},
                ],
                "tool_calls": [{"name": "look", "args": {"a": 1}, "id": "c"}],
            },
        ],
        ["user text q", 'assistant tool_call w web_search {"type": "search", "query": "Q"}', 'assistant tool_call c look {"a": 1}'],
    ),
    "a text and a picture of LangChain's standard blocks": (
        answers(
            {"type": "text-plain", "text": "T", "mime_type": "text/plain"}, {"type": "image", "base64": "AAAA", "mime_type": "image/png"}
        ),
        ["assistant file text/plain T", "assistant file image/png 3"],
    ),
    "messages of Bedrock's Converse": (
        [
            {"role": "user", "content": [{"text": "q"}, {"image": {"format": "png", "source": {"bytes": "AAAA"}}}]},
            {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "x"}}},
                    {"toolUse": {"toolUseId": "c", "name": "look", "input": {"a": 1}}},
                ],
            },
            {
                "role": "user",
                "content": [{"toolResult": {"toolUseId": "c", "content": [{"text": "no"}, {"json": {"b": 1}}], "status": "error"}}],
            },
        ],
        [
            "user text q",
            "user file png 3",
            "assistant reasoning hm",
            'assistant tool_call c look {"a": 1}',
            'tool tool_result c True no\n{"json": {"b": 1}}',
        ],
    ),
    "roles in capitals": ([{"role": "User", "content": "q"}, {"role": "ASSISTANT", "content": "A"}], QA),
    "JSON that was written as JSON once more": (json.dumps([HUMAN, AI]), QA),
    "half a character in JSON within JSON": (
        [{"id": "g", "traceId": "t", "type": "GENERATION", "input": '[{"role": "user", "content": "q\\ud83d"}]', "output": "A"}],
        ["user text q\ufffd", "assistant text A"],
    ),
    "arguments that no other parser takes": (
        [
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "1", "function": {"name": "f", "arguments": '{"a": "\\ud83d"}'}},
                    {"id": "2", "function": {"name": "f", "arguments": '{"a": NaN}'}},
                ],
            }
        ],
        ['assistant tool_call 1 f {"a": "\\ud83d"}', 'assistant tool_call 2 f {"a": NaN}'],
    ),
    "messages with the answer beside them": ({"messages": [U], "output": "A"}, QA),
    "messages with a reply beside them": ({"messages": [U], "response": CHOICES}, QA),
    "messages with a message beside them": ({"messages": [U], "completion": A}, QA),
    "messages written as a text": ({"messages": json.dumps([U, A])}, QA),
    "a system prompt of a pair": (
        {"system": "S", "prompt": "q", "chosen": "A", "rejected": "A"},
        ["system text S", *QA, "--", "system text S", *QA],
    ),
    "parts as a table of a database has them": ([{"role": "user", "parts": '[{"type": "text", "text": "q"}]'}, A], QA),
    "a status as a text": ({"custom_id": "c", "response": {"status_code": "200", "body": CHOICES}}, ["assistant text A"]),
    "a question and its answer": ({"question": "q", "answer": "A"}, QA),
}


@pytest.mark.parametrize("name", CASES)
def test_messages_are_read_whole(name: str, tmp_path: Path) -> None:
    value, expected = CASES[name]
    (tmp_path / "run.json").write_text(json.dumps(value), encoding="utf-8")

    assert shown(tmp_path / "run.json") == expected


REFUSED: dict[str, tuple[Json, str]] = {
    "a piece of a stream": ({"choices": [{"delta": {"content": "H"}}]}, "choices[0].delta: this is a piece of a stream"),
    "an error of an API": ({"type": "error", "error": {"message": "Overloaded"}}, "error: the reply is an error: 'Overloaded'"),
    "a choice that OpenRouter's provider broke off": (
        {"choices": [{"message": {"role": "assistant", "content": ""}, "error": {"code": 502, "message": "UPSTREAM"}}]},
        "holds nothing but errors: UPSTREAM",
    ),
    "parts that are none": ([{"role": "user", "content": "q", "parts": 5}], "[0].parts: parts is '5'; write a list"),
    "a prompt that Gemini blocked": (
        {"promptFeedback": {"blockReason": "SAFETY"}},
        "the request was blocked, so that nothing was said: 'SAFETY'",
    ),
    "a request that Vertex failed": (
        {"status": "Bad Request", "request": GEMINI_Q, "response": {}},
        "failed, so that nothing was said: 'Bad Request'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_holds_no_answer_is_refused_by_name(name: str, tmp_path: Path) -> None:
    value, expected = REFUSED[name]
    (tmp_path / "run.json").write_text(json.dumps(value), encoding="utf-8")

    with pytest.raises(InvalidRequest) as refused:
        shown(tmp_path / "run.json")

    assert expected in str(refused.value)


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000])
def test_a_text_of_brackets_is_a_text(deep: str, tmp_path: Path) -> None:
    calls = [{"id": "c", "function": {"name": "f", "arguments": deep}}]
    turn = {"from": "function_call", "value": deep}
    generation = {**GENERATION, "input": deep}
    for number, value in enumerate(([{"role": "assistant", "tool_calls": calls}], {"conversations": [turn]}, [generation])):
        (tmp_path / f"{number}.json").write_text(json.dumps(value), encoding="utf-8")

        assert deep in shown(tmp_path / f"{number}.json")[0]


def test_what_stands_beside_messages_is_metadata(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"messages": [U, A], "model": "m", "termination_reason": "stop", "output": "B"}))
    (tmp_path / "gemini.json").write_text(json.dumps(GEMINI_Q | GEMINI_A), encoding="utf-8")

    (run,) = read_run_file(tmp_path / "run.json", Reading())
    (gemini,) = read_run_file(tmp_path / "gemini.json", Reading())

    assert run.metadata == {"model": "m", "termination_reason": "stop", "output": "B"}
    assert gemini.transcripts[0].messages[-1].metadata == {"finishReason": "STOP"}


@pytest.mark.parametrize("value", [{"messages": [U, A]}, [U, A]])
def test_one_value_over_several_lines_is_read_from_a_file_of_lines(value: Json, tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text(json.dumps(value, indent=2), encoding="utf-8")

    assert shown(tmp_path / "run.jsonl") == QA


def test_lists_one_behind_the_other_are_a_run_each(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text("\n".join([json.dumps([U, A])] * 2), encoding="utf-8")

    assert shown(tmp_path / "runs.json") == [*QA, "--", *QA]
