"""The formats of runs, in small samples after what their makers publish: what becomes which record."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.transcripts.forms import PEEKED, UnreadableMessage, detect, parse_runs
from gradeloop.transcripts.readers import Reading, distinct_ids, read_run_file
from tests.rig.judging import spoiled

Record = tuple[str, str, str]


def records_of(run: AgentRun) -> list[Record]:
    """Return role, type and text of every record."""
    return [
        (message.role, part.type, str(part.record()["text"]))
        for transcript in run.transcripts
        for message in transcript.messages
        for part in message.records()
    ]


def parsed(value: object) -> AgentRun:
    """Return the one run of a value."""
    (run,) = parse_runs(value, "r")
    return run


def attributes(**values: object) -> list[dict[str, object]]:
    """Return attributes as OTLP writes them; `__` stands for a dot."""
    return [{"key": key.replace("__", "."), "value": {"stringValue": value}} for key, value in values.items()]


def span(name: str, start: int, **values: object) -> dict[str, object]:
    """Return a span as OTLP writes it."""
    return {"traceId": "t1", "spanId": f"s{start}", "name": name, "startTimeUnixNano": str(start), "attributes": attributes(**values)}


Q = {"role": "user", "parts": [{"type": "text", "content": "q"}]}
OTEL_CALL = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "look", "arguments": {"a": 1}}]}
OTEL_RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "found"}]}
OTEL_ANSWER = {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "Paris"}]}
LOOKED: list[Record] = [("user", "text", "q"), ("assistant", "tool_call", '{"a": 1}'), ("tool", "tool_result", "found")]
ANSWERED: list[Record] = [("user", "text", "q"), ("assistant", "text", "Paris")]
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}

INVOCATION = {"state": "result", "toolCallId": "c", "toolName": "look", "args": {"a": 1}, "result": "found"}
PATCH = {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "PATCH"}
FULL = {"type": "web_search_tool_result_error", "error_code": "max"}

SAMPLES: dict[str, Any] = {
    "otel_chain": {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            span(
                                "chat m",
                                3,
                                gen_ai__system_instructions=json.dumps([{"type": "text", "content": "S"}]),
                                gen_ai__input__messages=json.dumps([Q, OTEL_CALL, OTEL_RESULT]),
                                gen_ai__output__messages=json.dumps([OTEL_ANSWER]),
                            ),
                            span(
                                "chat m",
                                1,
                                gen_ai__system_instructions=json.dumps([{"type": "text", "content": "S"}]),
                                gen_ai__input__messages=json.dumps([Q]),
                                gen_ai__output__messages=json.dumps([OTEL_CALL]),
                            ),
                            span("execute_tool look", 2, gen_ai__tool__name="look", gen_ai__tool__call__id="c"),
                            span("GET /", 2, http__method="GET"),
                        ]
                    }
                ]
            }
        ]
    },
    "otel_events": [
        {
            "name": "chat m",
            "context": {"trace_id": "t", "span_id": "s"},
            "start_time": "2026-01-01T00:00:00Z",
            "attributes": {"gen_ai.system": "openai"},
            "events": [
                {"name": "gen_ai.user.message", "attributes": {"content": "q"}},
                {"name": "gen_ai.assistant.message", "attributes": {"tool_calls": json.dumps([CHAT_CALL])}},
                {"name": "gen_ai.tool.message", "attributes": {"id": "c", "content": "found"}},
                {"name": "gen_ai.choice", "attributes": {"message": json.dumps({"content": "Paris"}), "finish_reason": "stop"}},
            ],
        }
    ],
    "otel_logs": {
        "resourceLogs": [
            {
                "scopeLogs": [
                    {
                        "logRecords": [
                            {
                                "traceId": "t",
                                "timeUnixNano": "1",
                                "eventName": "gen_ai.client.inference.operation.details",
                                "attributes": attributes(
                                    gen_ai__input__messages=json.dumps([Q]), gen_ai__output__messages=json.dumps([OTEL_ANSWER])
                                ),
                            }
                        ]
                    }
                ]
            }
        ]
    },
    "openllmetry": [
        {
            "traceId": "t",
            "name": "openai.chat",
            "attributes": {
                "gen_ai.prompt.0.role": "user",
                "gen_ai.prompt.0.content": "q",
                "gen_ai.completion.0.role": "assistant",
                "gen_ai.completion.0.tool_calls.0.id": "c",
                "gen_ai.completion.0.tool_calls.0.name": "look",
                "gen_ai.completion.0.tool_calls.0.arguments": '{"a": 1}',
            },
        }
    ],
    "phoenix": [
        {
            "context": {"trace_id": "t", "span_id": "1"},
            "span_kind": "LLM",
            "start_time": "2026-01-01",
            "attributes": {
                "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.content": "q",
                "llm.output_messages.0.message.role": "assistant",
                "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c",
                "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "look",
                "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"a": 1}',
            },
        },
        {
            "context": {"trace_id": "t", "span_id": "2"},
            "span_kind": "TOOL",
            "start_time": "2026-01-02",
            "attributes": {"tool": {"name": "look", "id": "c"}, "output": {"value": "found"}},
        },
    ],
    "langfuse_observations": {
        "id": "t",
        "name": "agent",
        "input": {"question": "q"},
        "observations": [
            {
                "type": "GENERATION",
                "startTime": "2",
                "input": [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}],
                "output": None,
            },
            {"type": "TOOL", "startTime": "3", "id": "c", "name": "look", "input": {"a": 1}, "output": "found"},
            {"type": "SPAN", "startTime": "4", "name": "step", "level": "ERROR", "statusMessage": "it broke"},
        ],
    },
    "langsmith_tree": {
        "id": "r",
        "run_type": "chain",
        "name": "agent",
        "inputs": {"x": 1},
        "outputs": {"y": 2},
        "child_runs": [
            {
                "id": "l",
                "run_type": "llm",
                "inputs": {
                    "messages": [
                        [{"lc": 1, "type": "constructor", "id": ["langchain", "schema", "HumanMessage"], "kwargs": {"content": "q"}}]
                    ]
                },
                "outputs": {
                    "generations": [
                        [
                            {
                                "text": "Paris",
                                "message": {
                                    "lc": 1,
                                    "type": "constructor",
                                    "id": ["langchain", "schema", "AIMessage"],
                                    "kwargs": {"content": "Paris"},
                                },
                            }
                        ]
                    ]
                },
            },
            {"id": "t", "run_type": "tool", "name": "look", "inputs": {"a": 1}, "outputs": {"output": "found"}, "error": "it broke"},
        ],
    },
    "langchain_tools": [
        {"type": "human", "content": "q"},
        {"type": "ai", "content": "", "tool_calls": [{"name": "look", "args": {"a": 1}, "id": "c", "type": "tool_call"}]},
        {"type": "tool", "content": "found", "tool_call_id": "c", "name": "look", "status": "error"},
    ],
    "vercel_v4": {
        "id": "chat",
        "messages": [
            {"id": "1", "role": "user", "content": "q"},
            {
                "id": "2",
                "role": "assistant",
                "content": "",
                "parts": [
                    {"type": "step-start"},
                    {"type": "reasoning", "text": "hm"},
                    {
                        "type": "tool-invocation",
                        "toolInvocation": INVOCATION,
                    },
                    {
                        "type": "dynamic-tool",
                        "toolName": "x",
                        "toolCallId": "d",
                        "state": "output-error",
                        "input": {},
                        "errorText": "it broke",
                    },
                    {"type": "file", "mediaType": "image/png", "url": "https://a/b.png"},
                    {"type": "data-note", "data": {"n": 1}},
                ],
            },
        ],
    },
    "claude_code": [
        {"type": "summary", "summary": "About France", "leafUuid": "3"},
        {"type": "user", "message": {"role": "user", "content": "q"}, "uuid": "1", "sessionId": "s"},
        {
            "type": "assistant",
            "uuid": "2",
            "sessionId": "s",
            "message": {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {"a": 1}}]},
        },
        {
            "type": "user",
            "uuid": "3",
            "sessionId": "s",
            "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "found"}]},
            "toolUseResult": {"stdout": "found"},
        },
        {
            "type": "assistant",
            "uuid": "4",
            "isSidechain": True,
            "agentId": "a1",
            "message": {"role": "assistant", "content": [{"type": "text", "text": "below"}]},
        },
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
    ],
    "codex": [
        {"timestamp": "t", "type": "session_meta", "payload": {"id": "s", "cwd": "/", "instructions": "S"}},
        {"timestamp": "t", "type": "event_msg", "payload": {"type": "user_message", "message": "q"}},
        {"type": "response_item", "payload": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]}},
        {"type": "response_item", "payload": {"type": "function_call", "name": "look", "arguments": '{"a": 1}', "call_id": "c"}},
        {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "c", "output": "found"}},
        {"type": "event_msg", "payload": {"type": "error", "message": "it broke"}},
    ],
    "codex_exec": [
        {"type": "thread.started", "thread_id": "s"},
        {"type": "turn.started"},
        {"type": "item.started", "item": {"id": "i0", "type": "command_execution", "command": "ls"}},
        {
            "type": "item.completed",
            "item": {"id": "i0", "type": "command_execution", "command": "ls", "aggregated_output": "found", "exit_code": 1},
        },
        {"type": "item.completed", "item": {"id": "i1", "type": "agent_message", "text": "Paris"}},
        {"type": "turn.failed", "error": {"message": "it broke"}},
    ],
    "mini_swe": {
        "info": {"exit_status": "LimitsExceeded", "submission": ""},
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Paris"}],
        "trajectory_format": "mini-swe-agent-1",
    },
    "mini_swe_commands": {
        "messages": [
            {"role": "user", "content": "q"},
            {
                "role": "user",
                "content": "e",
                "extra": {"interrupt_type": "FormatError", "response": {"choices": [{"message": {"role": "assistant", "content": "x"}}]}},
            },
            {"role": "assistant", "content": "Paris", "extra": {"actions": [{"command": "ls"}], "response": {"id": "r", "output": []}}},
            {"role": "user", "content": "found", "extra": {"returncode": 1, "raw_output": "found", "exception_info": "late"}},
            {"type": "function_call_output", "call_id": "c", "output": "found", "extra": {"returncode": 0}},
            {"role": "exit", "content": "e", "extra": {"exit_status": "E", "exception_str": "it broke", "traceback": "T"}},
        ],
        "trajectory_format": "mini-swe-agent-1.1",
    },
    "docent_groups": {
        "id": "r",
        "transcripts": [
            {
                "id": "t",
                "transcript_group_id": "g",
                "created_at": "2026-03-01T12:00:00Z",
                "messages": [
                    {"role": "user", "content": "q"},
                    {
                        "role": "assistant",
                        "content": [{"type": "text", "text": "Paris", "refusal": True}],
                        "tool_calls": [{"id": "c", "function": "look", "arguments": {"a": 1}, "view": {"content": "v"}}],
                    },
                    {"role": "tool", "tool_call_id": "c", "content": "found", "error": {"message": "it broke", "at": 9}},
                ],
            }
        ],
        "transcript_groups": [{"id": "g", "parent_transcript_group_id": None, "created_at": "2026-03-01T12:00:00Z"}],
    },
    "swe_agent": {
        "trajectory": [{"action": "ls", "observation": "found", "response": "I look.", "thought": "I look.", "state": {"cwd": "/"}}],
        "history": [{"role": "user", "content": "q", "agent": "main"}, {"role": "assistant", "content": "I look.", "agent": "main"}],
        "info": {"submission": "DIFF"},
    },
    "openhands": [
        {"id": 0, "source": "user", "action": "message", "args": {"content": "q", "image_urls": None}},
        {"id": 1, "source": "agent", "action": "run", "args": {"command": "ls", "thought": "I look."}},
        {"id": 2, "source": "agent", "observation": "run", "content": "found", "cause": 1, "extras": {"metadata": {"exit_code": 2}}},
        {"id": 3, "source": "agent", "action": "finish", "args": {"final_thought": "Paris"}},
    ],
    "openhands_sdk": [
        {"kind": "SystemPromptEvent", "source": "agent", "system_prompt": {"type": "text", "text": "S"}, "tools": []},
        {"kind": "MessageEvent", "source": "user", "llm_message": {"role": "user", "content": [{"type": "text", "text": "q"}]}},
        {
            "kind": "ActionEvent",
            "source": "agent",
            "thought": [],
            "reasoning_content": "hm",
            "action": {"kind": "LookAction", "a": 1},
            "tool_name": "look",
            "tool_call_id": "c",
        },
        {"kind": "ObservationEvent", "tool_name": "look", "tool_call_id": "c", "observation": {"kind": "O", "output": "found"}},
        {"kind": "AgentErrorEvent", "tool_name": "look", "tool_call_id": "d", "error": "it broke"},
    ],
    "tau2": {
        "info": {},
        "simulations": [
            {
                "task_id": "7",
                "trial": 2,
                "reward_info": {"reward": 1.0},
                "messages": [
                    {
                        "role": "user",
                        "content": "q",
                        "tool_calls": [{"id": "c", "name": "look", "arguments": {"a": 1}, "requestor": "user"}],
                    },
                    {"role": "tool", "id": "c", "content": "found", "requestor": "user", "error": True},
                ],
            }
        ],
    },
    "atif": {
        "schema_version": "ATIF-v1.4",
        "session_id": "s",
        "agent": {"name": "a", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "q"},
            {
                "step_id": 2,
                "source": "agent",
                "message": "",
                "reasoning_content": "hm",
                "tool_calls": [{"tool_call_id": "c", "function_name": "look", "arguments": {"a": 1}}],
                "observation": {"results": [{"source_call_id": "c", "content": "found"}]},
            },
        ],
        "final_metrics": {"total_cost_usd": 0.1},
    },
    "sharegpt": {
        "system": "S",
        "conversations": [
            {"from": "human", "value": "q"},
            {"from": "function_call", "value": '{"name": "look", "arguments": {"a": 1}}'},
            {"from": "observation", "value": "found"},
        ],
    },
    "batch_output": {
        "custom_id": "x",
        "response": {
            "status_code": 200,
            "body": {"object": "response", "output": [PATCH]},
        },
        "error": None,
    },
    "anthropic_batch": {
        "custom_id": "x",
        "result": {"type": "succeeded", "message": {"role": "assistant", "content": [{"type": "text", "text": "Paris"}]}},
    },
    "fine_tuning": {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Paris"}], "tools": []},
    "preference": {
        "input": {"messages": [{"role": "user", "content": "q"}]},
        "preferred_output": [{"role": "assistant", "content": "Paris"}],
        "non_preferred_output": [{"role": "assistant", "content": "Lyon"}],
    },
    "pair": {"prompt": "q", "completion": "Paris"},
    "gemini": {
        "systemInstruction": {"parts": [{"text": "S"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "q"}, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]},
            {"role": "model", "parts": [{"text": "hm", "thought": True}, {"functionCall": {"name": "look", "args": {"a": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"result": "found"}}}]},
        ],
        "candidates": [
            {
                "content": {
                    "parts": [
                        {"executableCode": {"language": "PYTHON", "code": "1+1"}},
                        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
                        {"text": "Paris"},
                    ]
                }
            }
        ],
    },
    "responses": {
        "object": "response",
        "output": [
            {"type": "reasoning", "summary": [], "encrypted_content": "CIPHER"},
            {"type": "code_interpreter_call", "id": "k", "code": "1+1", "outputs": [{"type": "logs", "logs": "2"}]},
            {
                "type": "mcp_call",
                "id": "m",
                "name": "look",
                "server_label": "s",
                "arguments": '{"a": 1}',
                "output": None,
                "error": "it broke",
            },
            {"type": "file_search_call", "id": "f", "queries": ["q"], "results": [{"text": "found"}]},
            {"type": "mcp_list_tools", "id": "l", "server_label": "s", "tools": [{"name": "look"}]},
            {"type": "image_generation_call", "id": "g", "prompt": "a cat", "result": "AAAA"},
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ],
    },
    "chat_audio": {
        "messages": [
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]},
            {"role": "assistant", "content": None, "audio": {"id": "a", "data": "AAAA", "transcript": "Paris"}},
            {"role": "assistant", "content": None, "refusal": "no"},
        ]
    },
    "anthropic_mcp": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "mcp_tool_use", "id": "c", "name": "look", "server_name": "s", "input": {"a": 1}},
                    {"type": "mcp_tool_result", "tool_use_id": "c", "is_error": True, "content": [{"type": "text", "text": "found"}]},
                    {
                        "type": "web_search_tool_result",
                        "tool_use_id": "w",
                        "content": FULL,
                    },
                    {"type": "brand_new_block", "said": "new"},
                ],
            },
        ]
    },
}

EXPECTED: dict[str, list[Record]] = {
    "otel_chain": [("system", "text", "S"), *LOOKED, ("assistant", "reasoning", "hm"), ("assistant", "text", "Paris")],
    "otel_events": [*LOOKED, ("assistant", "text", "Paris")],
    "otel_logs": [("user", "text", "q"), ("assistant", "reasoning", "hm"), ("assistant", "text", "Paris")],
    "openllmetry": LOOKED[:2],
    "phoenix": LOOKED,
    "langfuse_observations": [*LOOKED, ("system", "error", "it broke")],
    "langsmith_tree": [
        *ANSWERED,
        ("assistant", "tool_call", '{"a": 1}'),
        ("tool", "tool_result", "found"),
        ("system", "error", "it broke"),
    ],
    "langchain_tools": LOOKED,
    "vercel_v4": [
        ("user", "text", "q"),
        ("assistant", "reasoning", "hm"),
        ("assistant", "tool_call", '{"a": 1}'),
        ("assistant", "tool_result", "found"),
        ("assistant", "tool_call", "{}"),
        ("assistant", "tool_result", "it broke"),
        ("assistant", "file", ""),
        ("assistant", "other", '{"data": {"n": 1}}'),
    ],
    "claude_code": [*LOOKED, ("assistant", "text", "below")],
    "codex": [("system", "text", "S"), *LOOKED, ("system", "error", "it broke")],
    "codex_exec": [
        ("assistant", "tool_call", '{"command": "ls"}'),
        ("tool", "tool_result", "found"),
        ("assistant", "text", "Paris"),
        ("system", "error", "it broke"),
    ],
    "mini_swe": [*ANSWERED, ("system", "other", '{"exit_status": "LimitsExceeded", "submission": ""}')],
    "mini_swe_commands": [
        ("user", "text", "q"),
        ("assistant", "text", "x"),
        ("user", "text", "e"),
        ("assistant", "text", "Paris"),
        ("assistant", "tool_call", '{"command": "ls"}'),
        ("tool", "tool_result", "found"),
        ("tool", "tool_result", "found"),
        ("system", "error", "it broke"),
    ],
    "docent_groups": [
        *ANSWERED,
        ("assistant", "tool_call", '{"a": 1}'),
        ("tool", "tool_result", "found"),
        ("tool", "error", "it broke"),
    ],
    "swe_agent": [
        ("user", "text", "q"),
        ("assistant", "text", "I look."),
        ("assistant", "tool_call", '{"command": "ls"}'),
        ("tool", "tool_result", "found"),
        ("system", "other", '{"submission": "DIFF"}'),
    ],
    "openhands": [
        ("user", "text", "q"),
        ("assistant", "text", "I look."),
        ("assistant", "tool_call", '{"command": "ls"}'),
        ("tool", "tool_result", "found"),
        ("assistant", "tool_call", '{"final_thought": "Paris"}'),
    ],
    "openhands_sdk": [
        ("system", "text", "S"),
        ("user", "text", "q"),
        ("assistant", "reasoning", "hm"),
        *LOOKED[1:],
        ("tool", "tool_result", "it broke"),
    ],
    "tau2": [("user", "text", "q"), ("user", "tool_call", '{"a": 1}'), ("tool", "tool_result", "found")],
    "atif": [("user", "text", "q"), ("assistant", "reasoning", "hm"), *LOOKED[1:]],
    "sharegpt": [("system", "text", "S"), *LOOKED],
    "batch_output": [("assistant", "tool_call", "PATCH")],
    "anthropic_batch": ANSWERED[1:],
    "fine_tuning": ANSWERED,
    "pair": ANSWERED,
    "gemini": [
        ("system", "text", "S"),
        ("user", "text", "q"),
        ("user", "file", ""),
        ("assistant", "reasoning", "hm"),
        *LOOKED[1:],
        ("assistant", "tool_call", "1+1"),
        ("assistant", "tool_result", "2"),
        ("assistant", "text", "Paris"),
    ],
    "responses": [
        ("assistant", "reasoning", ""),
        ("assistant", "tool_call", '{"code": "1+1"}'),
        ("tool", "tool_result", '{"type": "logs", "logs": "2"}'),
        ("assistant", "tool_call", '{"a": 1}'),
        ("tool", "tool_result", "it broke"),
        ("assistant", "tool_call", '{"queries": ["q"]}'),
        ("tool", "tool_result", "found"),
        ("assistant", "other", '{"id": "l", "server_label": "s", "tools": [{"name": "look"}]}'),
        ("assistant", "tool_call", '{"prompt": "a cat"}'),
        ("tool", "tool_result", ""),
        ("tool", "file", ""),
        ("assistant", "text", "no"),
    ],
    "chat_audio": [("user", "file", ""), ("assistant", "file", "Paris"), ("assistant", "text", "no")],
    "anthropic_mcp": [
        ("user", "text", "q"),
        ("assistant", "tool_call", '{"a": 1}'),
        ("assistant", "tool_result", "found"),
        ("assistant", "tool_result", '{"type": "web_search_tool_result_error", "error_code": "max"}'),
        ("assistant", "other", '{"said": "new"}'),
    ],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_sample_gives_the_records_that_it_holds(name: str) -> None:
    assert records_of(parsed(SAMPLES[name])) == EXPECTED[name]


FOUND = {
    "otel_chain": ("OpenTelemetry spans", "OTLP JSON: an object with resourceSpans"),
    "phoenix": ("OpenTelemetry spans", "spans: objects with attributes, and an id of their trace"),
    "langfuse_observations": ("Langfuse trace", "a trace: an object with observations"),
    "langsmith_tree": ("LangSmith run", "a run: an object with run_type and inputs"),
    "langchain_tools": ("messages", "a list of messages as LangChain dumps them"),
    "vercel_v4": ("messages", "an object with messages: objects with role and parts (Vercel, Gemini, OpenTelemetry)"),
    "claude_code": ("Claude Code session", "lines of types user and assistant, with message and uuid or sessionId"),
    "codex": ("Codex session", "lines with type and payload, of which response_item is one"),
    "mini_swe": ("mini-swe-agent trajectory", "trajectory_format is mini-swe-agent-1"),
    "swe_agent": ("SWE-agent trajectory", "trajectory, whose steps have action and observation"),
    "openhands": ("OpenHands events", "events with source, and action or observation"),
    "tau2": ("tau-bench run", "simulations, each with messages"),
    "atif": ("ATIF trajectory", "schema_version is ATIF-v1.4"),
    "sharegpt": ("ShareGPT conversation", "conversations of from and value"),
    "batch_output": ("batch", "a row of a batch's output: custom_id and response"),
    "preference": ("preference pair", "a row for preference tuning: input, preferred_output and non_preferred_output"),
    "pair": ("prompt and completion", "a pair: prompt and completion"),
    "gemini": ("reply of a provider", "a conversation of Gemini: contents or candidates"),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_detector_names_what_it_took_and_why(name: str) -> None:
    found = detect(SAMPLES[name])

    assert (found.format.name, found.why) == FOUND[name]


def broken(value: Any) -> Iterator[str]:
    """Yield what is said of each value in which one part is something else."""
    for bad in spoiled(value):
        try:
            list(parse_runs(bad, "r"))
        except UnreadableMessage as error:
            yield str(error)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_part_that_is_something_else_is_read_or_refused_in_a_sentence(name: str) -> None:
    assert [text for text in broken(SAMPLES[name]) if "pydantic" in text or "has not the shape" in text or not text] == []


def test_is_error_and_redaction_are_kept() -> None:
    results = [part for message in parsed(SAMPLES["vercel_v4"]).transcripts[0].messages for part in message.records()]
    reasoning = parsed(SAMPLES["responses"]).transcripts[0].messages[0].records()[0]

    assert [getattr(part, "is_error", None) for part in results if part.type == "tool_result"] == [False, True]
    assert reasoning.record() == {"type": "reasoning", "redacted": True, "text": ""}
    assert "CIPHER" not in parsed(SAMPLES["responses"]).model_dump_json()


def test_what_no_record_shows_is_kept_as_metadata() -> None:
    part = {"type": "output_text", "text": "Paris", "annotations": [{"type": "url_citation", "url": "http://u"}]}
    (message,) = parsed([{"role": "assistant", "content": [part], "phase": "final"}]).transcripts[0].messages

    assert message.metadata == {"phase": "final", "parts": [{"part": 0, "annotations": part["annotations"]}]}


def test_of_a_trace_what_is_no_conversation_is_kept_as_metadata() -> None:
    steps = {"type": "SPAN", "name": "plan", "startTime": "1"}
    run = parsed(
        {"id": "t", "input": {"messages": [{"role": "user", "content": "q"}], "user": "ann"}, "output": "Paris", "observations": [steps]}
    )
    system = {"role": "system", "content": "S"}
    call = {"run_type": "llm", "inputs": {"messages": [system, {"role": "user", "content": "q"}]}, "outputs": {"output": "Paris"}}
    chain = {"run_type": "chain", "name": "plan", "inputs": {}, "outputs": {}, "child_runs": [call]}
    outputs = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Paris"}], "report": "long"}
    smith = parsed({"id": "r", "run_type": "chain", "inputs": {}, "outputs": outputs, "child_runs": [chain]})

    assert records_of(run) == ANSWERED
    assert run.metadata == {"not_shown": {"SPAN plan": 1}, "input beside": {"user": "ann"}}
    assert records_of(smith) == [("system", "text", "S"), *ANSWERED]
    assert (smith.metadata["outputs"], smith.metadata["not_shown"]) == ({"report": "long"}, {"chain plan": 1})


def test_a_question_and_its_answer_that_the_calls_below_hold_are_no_second_conversation() -> None:
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}]
    chat += [{"role": "tool", "tool_call_id": "c", "content": "found"}]
    call = {
        "run_type": "llm",
        "inputs": {"messages": chat},
        "outputs": {"choices": [{"message": {"role": "assistant", "content": "Paris"}}]},
    }
    run = parsed({"id": "r", "run_type": "chain", "inputs": {"question": "q"}, "outputs": {"output": "Paris"}, "child_runs": [call]})

    assert (records_of(run), len(run.transcripts)) == ([*LOOKED, ("assistant", "text", "Paris")], 1)


def langfuse_span(kind: str, given: object, output: object, start: str, name: str = "step") -> dict[str, object]:
    """Return a span as Langfuse's SDK exports it."""
    attributes = {"type": kind, "input": json.dumps(given), "output": output if isinstance(output, str) else json.dumps(output)}
    named = {f"langfuse.observation.{key}": value for key, value in attributes.items()}
    return {"name": name, "context": {"trace_id": "0x1", "span_id": start}, "start_time": start, "attributes": named}


def test_generations_of_langfuses_sdk_are_the_conversation_and_a_tool_that_it_holds_is_not_said_twice() -> None:
    chat = [{"role": "user", "content": "q"}]
    call = {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}
    tool = "look"
    spans = [
        langfuse_span("agent", {"args": ["q"], "kwargs": {}}, "Paris", "1"),
        langfuse_span("generation", {"messages": chat, "tools": []}, call, "2"),
        langfuse_span("tool", {"args": ["Paris"]}, "found", "3", tool),
    ]
    answered = [*chat, call, {"role": "tool", "tool_call_id": "c", "content": "found"}]
    last = langfuse_span("generation", {"messages": answered}, {"role": "assistant", "content": "Paris"}, "4")
    unseen = langfuse_span("tool", {"args": ["Paris"]}, "found again", "5", tool)

    assert records_of(parsed([*spans, last])) == [*LOOKED, ("assistant", "text", "Paris")]
    assert records_of(parsed([*spans, last, unseen]))[-1] == ("tool", "tool_result", "found again")


def test_log_records_of_one_call_are_one_conversation() -> None:
    question = ("gen_ai.user.message", {"content": "q"})
    call = ("gen_ai.choice", {"message": {"role": "assistant", "tool_calls": [CHAT_CALL]}})
    again = ("gen_ai.assistant.message", {"tool_calls": [CHAT_CALL]})
    result = ("gen_ai.tool.message", {"content": "found", "id": "c"})
    answer = ("gen_ai.choice", {"message": {"role": "assistant", "content": "Paris"}})
    said = [("0xa", question), ("0xa", call), *(("0xb", event) for event in (question, again, result, answer))]
    records: list[dict[str, object]] = [
        {"event_name": name, "body": body, "attributes": {}, "timestamp": str(place), "trace_id": "0x1", "span_id": span}
        for place, (span, (name, body)) in enumerate(said)
    ]
    spans = [{"name": "chat m", "context": {"trace_id": "0x1", "span_id": span}, "attributes": {}} for span in ("0xa", "0xb")]

    assert records_of(parsed(records)) == [*LOOKED, ("assistant", "text", "Paris")]
    assert records_of(parsed([*spans, *records])) == [*LOOKED, ("assistant", "text", "Paris")]


def test_subagents_have_transcripts_of_their_own() -> None:
    run = parsed(SAMPLES["claude_code"])

    assert [transcript.id for transcript in run.transcripts] == ["main", "a1"]
    assert (run.id, run.metadata["summary"], run.metadata["lines_left_out"]) == ("s", "About France", {"file-history-snapshot": 1})


def test_docents_transcripts_are_in_the_order_in_which_they_were_created() -> None:
    said = [{"role": "user", "content": "q"}]
    transcripts = [{"id": at, "created_at": f"2026-01-0{at}T00:00:00Z", "messages": said} for at in ("3", "1", "2")]

    assert [transcript.id for transcript in parsed({"id": "r", "transcripts": transcripts}).transcripts] == ["1", "2", "3"]


NOTHING: dict[str, tuple[object, str]] = {
    "empty messages": ({"messages": [{"role": "user", "content": ""}]}, "nothing is said in the run 'r': its 1 messages are empty"),
    "a failed request": (
        {"custom_id": "x", "response": {"status_code": 500, "body": {"error": {"message": "it broke"}}}},
        "the request 'x' failed, so that nothing was said: 'it broke'",
    ),
    "an errored sample": (
        {"eval": {"task": "t"}, "samples": [{"id": 1, "messages": [], "error": {"message": "it broke"}}]},
        "the sample ended with an error before anything was said: 'it broke'",
    ),
    "an errored log": (
        {"eval": {"task": "t"}, "plan": {}, "status": "error", "error": {"message": "it broke"}},
        "the log of 't' has no samples, since the evaluation ended with error: 'it broke'",
    ),
    "spans without content": (
        {"resourceSpans": [{"scopeSpans": [{"spans": [span("chat", 1, gen_ai__system="openai")]}]}]},
        "no span holds messages (chat); record them",
    ),
    "an unknown speaker": ({"conversations": [{"from": "robot", "value": "x"}]}, "the speaker is 'robot'; known: human"),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_run_in_which_nothing_is_said_is_refused_by_name(name: str) -> None:
    value, words = NOTHING[name]

    with pytest.raises(UnreadableMessage) as caught:
        parsed(value)

    assert words in str(caught.value)


INSPECT = {
    "eval": {"task": "t", "model": "m"},
    "samples": [
        {
            "id": 1,
            "messages": [
                {"role": "user", "content": "q"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "reasoning", "reasoning": "x", "redacted": True, "summary": "hm"},
                        {
                            "type": "tool_use",
                            "tool_type": "web_search",
                            "id": "w",
                            "name": "search",
                            "arguments": '{"a": 1}',
                            "result": "found",
                        },
                    ],
                },
            ],
            "scores": {"match": {"value": "NaN_HERE", "answer": "x"}},
            "error": {"message": "it broke", "traceback": "..."},
            "limit": {"type": "token", "limit": 5},
        },
        {
            "id": 2,
            "messages": [],
            "events": [
                {
                    "event": "model",
                    "input": [{"role": "user", "content": "q"}],
                    "output": {"choices": [{"message": {"role": "assistant", "content": "Paris"}}]},
                }
            ],
        },
    ],
}


def test_an_inspect_log_keeps_hosted_tools_errors_limits_and_unscored_scores(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(INSPECT).replace('"NaN_HERE"', "NaN"))

    first, second = read_run_file(path)

    assert records_of(first) == [
        ("user", "text", "q"),
        ("assistant", "reasoning", "hm"),
        ("assistant", "tool_call", '{"a": 1}'),
        ("assistant", "tool_result", "found"),
        ("system", "error", "it broke"),
        ("system", "other", '{"type": "token", "limit": 5}'),
    ]
    assert first.metadata["scores"] == {"match": {"answer": "x", "value": None, "unscored": True}}
    assert records_of(second) == ANSWERED


def test_lines_and_values_behind_each_other_are_one_session(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, SAMPLES["codex"])))
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps(row, indent=2) for row in SAMPLES["phoenix"]))
    (tmp_path / "c.json").write_text("\n".join(json.dumps(row, indent=2) for row in SAMPLES["phoenix"]))

    (codex,) = read_run_file(tmp_path / "a.jsonl")

    assert records_of(codex) == EXPECTED["codex"]
    for name in ("b.jsonl", "c.json"):
        (phoenix,) = read_run_file(tmp_path / name)
        assert records_of(phoenix) == LOOKED


def one_run_of_lines() -> dict[str, list[Any]]:
    """Return the formats of which each line of a file is a part of one run, with a long session whose beginning tells what it is."""
    found = {name: rows for name, rows in SAMPLES.items() if isinstance(rows, list) and len(rows) > 1}
    turns = [row for row in found["claude_code"] if row["type"] in {"user", "assistant"}]
    long = [{**turns[at % len(turns)], "uuid": f"u{at}", "parentUuid": f"u{at - 1}" if at else None} for at in range(60)]
    return found | {"long": long}


@pytest.mark.parametrize("bad", ["{}", '{"neither": 1}', "7", '"text"', "{oops"])
@pytest.mark.parametrize("name", one_run_of_lines())
def test_a_bad_line_among_the_lines_of_one_run_is_named_and_may_be_left_out(tmp_path: Path, name: str, bad: str) -> None:
    rows = one_run_of_lines()[name]
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    whole = [len(run.transcripts) for run in read_run_file(path)]
    for at in sorted({0, 1, len(rows) - 1, len(rows)}):
        lines = [*map(json.dumps, rows)]
        lines[at:at] = ["", bad]
        path.write_text("\n".join(lines))
        reading = Reading(skip_bad=True)

        with pytest.raises(InvalidRequest, match=rf"run\.jsonl, line {at + 2}: "):
            list(read_run_file(path))
        if bad == "{oops" or (bad.startswith("{") and at < PEEKED and name != "langchain_tools"):  # of messages none is left out
            assert [len(run.transcripts) for run in read_run_file(path, reading)] == whole
            assert [text.partition(": ")[0] for text in reading.left_out] == [f"{path}, line {at + 2}"]


def test_lines_that_are_runs_of_several_formats_are_read_each_on_its_own(tmp_path: Path) -> None:
    rows = [SAMPLES["langfuse_observations"], SAMPLES["fine_tuning"], SAMPLES["pair"]]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))

    assert len(list(read_run_file(tmp_path / "a.jsonl"))) == len(rows)


def test_bad_runs_are_left_out_of_lines_lists_and_logs(tmp_path: Path) -> None:
    good, bad = SAMPLES["fine_tuning"], {"messages": [{"role": "robot"}]}
    log = {"eval": {"task": "t"}, "samples": [INSPECT["samples"][1], {"id": 3}]}  # type: ignore[index]  # the log above
    (tmp_path / "a.jsonl").write_text("\n".join([json.dumps(good), "{oops", json.dumps(bad), json.dumps(good)]))
    (tmp_path / "b.json").write_text(json.dumps([good, bad]))
    (tmp_path / "c.json").write_text(json.dumps(log))
    reading = Reading(skip_bad=True)

    runs = [run.id for name in ("a.jsonl", "b.json", "c.json") for run in read_run_file(tmp_path / name, reading)]

    assert runs == ["a-1", "a-4", "b-1", "t-2"]
    assert [text.removeprefix(f"{tmp_path}/").partition(": ")[0] for text in reading.left_out] == [
        "a.jsonl, line 2",
        "a.jsonl, line 3",
        "b.json, line 1",
        "c.json, line 1",
    ]
    assert (reading.runs, reading.share_left_out) == (4, 0.5)
    assert "[1].messages[0].role: the role is 'robot'" in reading.left_out[2]
    assert "samples[1]: \"{'id': 3}\" is no sample" in reading.left_out[3]
    with pytest.raises(InvalidRequest, match=r"a\.jsonl, line 2: no JSON"):
        list(read_run_file(tmp_path / "a.jsonl"))


def test_two_logs_of_one_task_do_not_collide(tmp_path: Path) -> None:
    paths = [tmp_path / folder / name for folder, name in (("x", "log.json"), ("y", "log.json"), ("y", "other.json"))]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"eval": {"task": "t" if path.stem == "log" else "u"}, "samples": INSPECT["samples"][1:]}))  # type: ignore[index]  # the log above

    runs = distinct_ids([(path, list(read_run_file(path))) for path in paths])

    assert [run.id for run in runs] == ["x/log/t-2", "y/log/t-2", "u-2"]


def test_rows_of_one_prompt_have_ids_of_their_own(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "prompt_id": "p", "completion": text} for text in ("Paris", "Lyon")]
    (tmp_path / "h.jsonl").write_text("\n".join(map(json.dumps, rows)))

    first, second = read_run_file(tmp_path / "h.jsonl")

    assert first.id == "p"
    assert second.id.startswith("p-")


def test_ten_megabytes_of_thirty_thousand_messages_are_read(tmp_path: Path) -> None:
    line = json.dumps({"role": "user", "content": "x" * 300})
    (tmp_path / "long.jsonl").write_text("\n".join([line] * 30_000))

    (run,) = read_run_file(tmp_path / "long.jsonl")

    assert len(run.transcripts[0].messages) == 30_000


def test_runs_of_lines_are_read_one_at_a_time_in_little_memory(tmp_path: Path) -> None:
    line = json.dumps({"messages": [{"role": "user", "content": "x" * 20_000}]})
    with (tmp_path / "many.jsonl").open("w") as file:
        for _ in range(1_000):
            file.write(line + "\n")

    tracemalloc.start()
    try:
        count = sum(1 for _ in read_run_file(tmp_path / "many.jsonl"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert count == 1_000
    assert most < 6 * 1024 * 1024


def test_a_line_that_is_no_utf8_is_left_out_alone(tmp_path: Path) -> None:
    good = json.dumps({"messages": [{"role": "user", "content": "q"}]}).encode()
    (tmp_path / "lines.jsonl").write_bytes(b"\xef\xbb\xbf" + good + b"\r\n\xff\xfe\r\n\r\n" + good + b"\r\n")
    reading = Reading(skip_bad=True)

    found = list(read_run_file(tmp_path / "lines.jsonl", reading))

    assert [run.id for run in found] == ["lines-1", "lines-4"]
    assert reading.left_out == [f"{tmp_path / 'lines.jsonl'}, line 2: byte 0xff is no UTF-8; save the file as UTF-8"]


def test_scores_of_which_a_part_is_unscored_say_which(tmp_path: Path) -> None:
    log = json.loads(json.dumps(INSPECT))
    log["samples"][0]["scores"] = {"parts": {"value": {"a": "NaN_HERE", "b": 1}}, "rows": {"value": ["NaN_HERE", 0.5]}}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log).replace('"NaN_HERE"', "NaN"))

    first, *_ = read_run_file(path)

    assert first.metadata["scores"] == {
        "parts": {"value": {"a": None, "b": 1}, "unscored": ["a"]},
        "rows": {"value": [None, 0.5], "unscored": [0]},
    }
