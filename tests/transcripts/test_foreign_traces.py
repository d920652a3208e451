"""Traces as exporters write them beside the specification: data frames, mixed files, calls that lack what others have."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.contract.transcript import TRANSCRIPTS, RunMessage
from gradeloop.errors import InvalidRequest
from gradeloop.transcripts.assemble import merge_histories
from gradeloop.transcripts.readers import read_run_file
from tests.rig.transcripts import shown, shown_value

Json = Any


def attributes(values: dict[str, Json]) -> list[Json]:
    return [{"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}} for key, value in values.items()]


def otlp(*spans: dict[str, Json]) -> Json:
    """Return spans of one trace, given the attributes of each, as OTLP JSON."""
    made = [
        {"traceId": "t", "spanId": f"s{at}", "name": "span", "startTimeUnixNano": str(at), "attributes": attributes(span)}
        for at, span in enumerate(spans, 1)
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": made}]}]}


Q = {"role": "user", "parts": [{"type": "text", "content": "q"}]}
CALL = {"type": "tool_call", "id": "c", "name": "look", "arguments": {"a": 1}}
FOUND = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "found"}]}
ANSWER = {"role": "assistant", "parts": [{"type": "text", "content": "A"}]}
CALLED = ["user text q", 'assistant tool_call c look {"a": 1}']


def said(*parts: Json) -> Json:
    return {"role": "assistant", "parts": list(parts)}


def gen_ai(given: list[Json], *answered: Json) -> dict[str, Json]:
    return {"gen_ai.input.messages": given, "gen_ai.output.messages": list(answered)}


CHAT_Q = {"role": "user", "content": "q"}
CHAT_A = {"role": "assistant", "content": "A"}
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}


def observations(*rows: dict[str, Json]) -> Json:
    """Return a trace of Langfuse with these generations, or other observations."""
    return {"id": "t", "observations": [{"id": f"o{at}", "startTime": str(at), "type": "GENERATION", **row} for at, row in enumerate(rows)]}


SERVER_CALL = {"type": "server_tool_call", "id": "s", "name": "code", "server_tool_call": {"type": "code", "code": "1+1"}}
SERVER_RESPONSE = {"type": "server_tool_call_response", "id": "s", "server_tool_call_response": {"type": "code", "out": "2"}}
BLOB = {"role": "user", "parts": [{"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AAAA"}]}
VERCEL_Q = {"role": "user", "content": [{"type": "text", "text": "q"}]}
VERCEL_CALL = {"type": "tool-call", "toolCallId": "c", "toolName": "look", "input": {"a": 1}}
VERCEL_RESULT = {"type": "tool-result", "toolCallId": "c", "toolName": "look", "output": {"type": "json", "value": {"w": 1}}}
VERCEL = otlp(
    {"ai.operationId": "ai.generateText", "ai.prompt": {"system": "SYS", "prompt": "q"}, "ai.response.text": "A"},
    {
        "ai.operationId": "ai.generateText.doGenerate",
        "ai.prompt.messages": [{"role": "system", "content": "SYS"}, VERCEL_Q],
        "ai.response.reasoning": "WHY",
        "ai.response.toolCalls": [{"toolCallId": "c", "toolName": "look", "input": '{"a": 1}'}],
    },
    {
        "ai.operationId": "ai.generateText.doGenerate",
        "ai.prompt.messages": [
            {"role": "system", "content": "SYS"},
            VERCEL_Q,
            {"role": "assistant", "content": [VERCEL_CALL]},
            {"role": "tool", "content": [VERCEL_RESULT]},
        ],
        "ai.response.text": "A",
    },
)
FRAME: dict[str, Json] = {
    "name": "Chat",
    "span_kind": "LLM",
    "context.trace_id": "t",
    "context.span_id": "s",
    "start_time": 1,
    "attributes.llm.input_messages": [
        {"message.role": "system", "message.content": "SYS"},
        {"message.role": "user", "message.content": "q"},
    ],
    "attributes.llm.output_messages": [
        {
            "message.role": "assistant",
            "message.tool_calls": [{"tool_call.id": "c", "tool_call.function.name": "look", "tool_call.function.arguments": '{"a": 1}'}],
        }
    ],
}
FRAME_TOOL = {
    "name": "look",
    "span_kind": "TOOL",
    "context.trace_id": "t",
    "context.span_id": "s2",
    "start_time": 2,
    "attributes.tool.name": "look",
    "attributes.input.value": '{"a": 1}',
    "attributes.output.value": "found",
}
RETRIEVER = {
    "openinference.span.kind": "RETRIEVER",
    "input.value": "query",
    "retrieval.documents.0.document.content": "DOC",
    "retrieval.documents.0.document.id": "1",
}
OPENLLMETRY = {
    "gen_ai.prompt.0.role": "user",
    "gen_ai.prompt.0.content": "q",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "A",
    "gen_ai.completion.0.reasoning": "WHY",
    "gen_ai.completion.0.refusal": "NO",
}
CHAT = otlp(gen_ai([Q], ANSWER))

CASES: dict[str, tuple[Json, list[str]]] = {
    "a blob's content is counted, not shown": (otlp(gen_ai([BLOB], ANSWER)), ["user file image/png 3", "assistant text A"]),
    "hosted tools of GenAI's conventions": (
        otlp(gen_ai([Q], said(SERVER_CALL, SERVER_RESPONSE))),
        ["user text q", 'assistant tool_call s code {"code": "1+1"}', 'assistant tool_result s {"type": "code", "out": "2"}'],
    ),
    "reasoning that the next call does not send back": (
        otlp(gen_ai([Q], said({"type": "reasoning", "content": "hm"}, CALL)), gen_ai([Q, said(CALL), FOUND], ANSWER)),
        ["user text q", "assistant reasoning hm", 'assistant tool_call c look {"a": 1}', "tool tool_result c found", "assistant text A"],
    ),
    "an agent's question and answer, which the calls below it hold": (
        otlp(gen_ai([Q], ANSWER), gen_ai([Q], said(CALL)), gen_ai([Q, said(CALL), FOUND], ANSWER)),
        [*CALLED, "tool tool_result c found", "assistant text A"],
    ),
    "Vercel's outer and inner spans": (
        VERCEL,
        [
            "system text SYS",
            "user text q",
            "assistant reasoning WHY",
            'assistant tool_call c look {"a": 1}',
            'tool tool_result c look {"w": 1}',
            "assistant text A",
        ],
    ),
    "Vercel's object": (
        otlp({"ai.operationId": "ai.generateObject.doGenerate", "ai.prompt.messages": [VERCEL_Q], "ai.response.object": {"k": 1}}),
        ["user text q", 'assistant text {"k": 1}'],
    ),
    "Phoenix's data frame, with dotted names within its cells": (
        [FRAME, FRAME_TOOL],
        ["system text SYS", "user text q", 'assistant tool_call c look {"a": 1}', "tool tool_result c look found"],
    ),
    "a retriever's documents": (
        otlp(gen_ai([Q], ANSWER), RETRIEVER),
        [
            "user text q",
            "assistant text A",
            "assistant tool_call s2 span query",
            'tool tool_result s2 span [{"content": "DOC", "id": "1"}]',
        ],
    ),
    "reasoning and refusals of OpenLLMetry": (
        otlp(OPENLLMETRY),
        ["user text q", "assistant reasoning WHY", "assistant text A", "assistant text True NO"],
    ),
    "events of Pydantic AI in an attribute": (
        otlp(
            {
                "gen_ai.operation.name": "chat",
                "events": [
                    {"event.name": "gen_ai.user.message", "role": "user", "content": "q"},
                    {"event.name": "gen_ai.choice", "message": {"role": "assistant", "content": "A"}},
                ],
            }
        ),
        ["user text q", "assistant text A"],
    ),
    "all messages of Pydantic AI's agent": (otlp({"pydantic_ai.all_messages": [Q, ANSWER]}), ["user text q", "assistant text A"]),
    "a request and a response of Logfire": (
        otlp({"request_data": {"messages": [CHAT_Q]}, "response_data": {"message": CHAT_A}}),
        ["user text q", "assistant text A"],
    ),
    "an error of Langfuse's SDK": (
        otlp(
            {"langfuse.observation.type": "generation", "langfuse.observation.input": [CHAT_Q], "langfuse.observation.output": CHAT_A},
            {"langfuse.observation.type": "tool", "langfuse.observation.level": "ERROR", "langfuse.observation.status_message": "bad"},
        ),
        ["user text q", "assistant text A", "assistant tool_call s2 span {}", "tool tool_result s2 span True bad"],
    ),
    "a system prompt in Gemini's config": (
        observations({"input": {"contents": [{"role": "user", "parts": [{"text": "q"}]}], "config": {"system_instruction": "SYS"}}}),
        ["system text SYS", "user text q"],
    ),
    "calls that LangChain keeps beside a message with a role": (
        observations({"input": [CHAT_Q], "output": {**CHAT_A, "content": "", "additional_kwargs": {"tool_calls": [CHAT_CALL]}}}),
        CALLED,
    ),
    "a tool whose observation has an id of its own": (
        observations(
            {"input": [CHAT_Q], "output": {"role": "assistant", "tool_calls": [CHAT_CALL]}},
            {"type": "TOOL", "name": "look", "input": {"a": 1}, "output": "found"},
        ),
        [*CALLED, "tool tool_result c look found"],
    ),
    "a tool that failed, beside the call that it is": (
        {
            "id": "r",
            "run_type": "llm",
            "inputs": {"messages": [CHAT_Q]},
            "outputs": {"role": "assistant", "tool_calls": [CHAT_CALL]},
            "child_runs": [{"id": "x", "run_type": "tool", "name": "look", "inputs": {"input": "1"}, "outputs": None, "error": "E"}],
        },
        [*CALLED, "tool tool_result c look True E"],
    ),
    "prompts of LangSmith": (
        {"id": "r", "run_type": "llm", "inputs": {"prompts": ["q"]}, "outputs": {"generations": [[{"text": "A"}]]}},
        ["user text q", "assistant text A"],
    ),
    "Tempo's batches": ({"batches": CHAT["resourceSpans"]}, ["user text q", "assistant text A"]),
}


def test_a_trace_is_read_whole(tmp_path: Path) -> None:
    found = {name: shown_value(value, tmp_path) for name, (value, _) in CASES.items()}

    assert found == {name: expected for name, (_, expected) in CASES.items()}


def test_a_collectors_metrics_beside_its_spans_are_passed_over(tmp_path: Path) -> None:
    metrics: dict[str, Json] = {"resourceMetrics": [{"scopeMetrics": []}]}
    (tmp_path / "otel.jsonl").write_text("\n".join(map(json.dumps, (metrics, CHAT, metrics))), encoding="utf-8")

    assert shown(tmp_path / "otel.jsonl") == ["user text q", "assistant text A"]


def independent(count: int) -> dict[str, Json]:
    """Return traces with so many calls of models that go on with none of the others."""
    turns = [({"role": "user", "content": f"q{at}"}, {"role": "assistant", "content": f"A{at}"}) for at in range(count)]
    parent = {"id": "r", "run_type": "chain", "inputs": {}, "outputs": {}, "name": "chain"}
    return {
        "spans": otlp(*(gen_ai([question], answer) for question, answer in turns)),
        "observations": observations(
            *({"startTime": f"{at:04}", "input": [question], "output": answer} for at, (question, answer) in enumerate(turns))
        ),
        "runs": [
            parent,
            *(
                {"id": f"l{at}", "parent_run_id": "r", "run_type": "llm", "inputs": {"messages": [question]}, "outputs": answer}
                for at, (question, answer) in enumerate(turns)
            ),
        ],
    }


@pytest.mark.parametrize("name", independent(1))
def test_a_trace_of_many_independent_calls_is_a_run_with_as_many_transcripts_and_one_of_more_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(independent(TRANSCRIPTS)[name]), encoding="utf-8")
    (run,) = read_run_file(tmp_path / "run.json")
    (tmp_path / "run.json").write_text(json.dumps(independent(TRANSCRIPTS + 1)[name]), encoding="utf-8")

    assert [transcript.messages[1].content for transcript in run.transcripts] == [f"A{at}" for at in range(TRANSCRIPTS)]
    with pytest.raises(
        InvalidRequest, match=r"has 1,001 conversations of which none goes on with another, 1,000 at most; make them runs of"
    ):
        list(read_run_file(tmp_path / "run.json"))


def test_calls_that_are_all_begun_alike_are_put_together_by_what_they_go_on_with() -> None:
    def history(*texts: str) -> list[RunMessage]:
        roles = ("user", "assistant")
        return [RunMessage(role="system", content="S"), *(RunMessage(role=roles[at % 2], content=text) for at, text in enumerate(texts))]

    made = merge_histories(
        [history("q", "A"), history("q", "B"), history("q", "A", "r"), history(), history("q", "B", "s", "C"), history("r")]
    )

    assert [[message.content for message in messages[1:]] for messages in made] == [["q", "A", "r"], ["q", "B", "s", "C"]]
