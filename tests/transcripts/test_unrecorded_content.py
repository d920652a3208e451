"""Traces whose content was not recorded are refused by name: the shapes are those that the makers' own instrumentation writes then."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.transcripts.readers import Reading, read_run_file
from gradeloop.transcripts.registry import UnreadableMessage, parse_runs

Attributes = dict[str, Any]


def span(name: str, trace: str = "0x1", **fields: Any) -> dict[str, Any]:
    """Return a span as an SDK's console exporter writes it; `__` stands for a dot in the names of its attributes."""
    attributes = {key.replace("__", "."): value for key, value in fields.items()}
    return {"name": name, "context": {"trace_id": trace, "span_id": f"{trace}{name}"}, "start_time": "1", "attributes": attributes}


def record(name: str, body: object, call: str, place: int) -> dict[str, Any]:
    """Return a log record of OpenTelemetry's instrumentation of OpenAI."""
    return {"event_name": name, "body": body, "attributes": {}, "timestamp": str(place), "trace_id": "0x1", "span_id": call}


def chat(**fields: Any) -> dict[str, Any]:
    """Return the span of a call of a model in OpenTelemetry's conventions."""
    return span("chat m", gen_ai__operation__name="chat", gen_ai__request__model="m", **fields)


CALLED = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look"}}]}
NO_TEXT = json.dumps([{"role": "user", "parts": [{"type": "text"}]}])
NO_ARGUMENTS = json.dumps([{"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "look"}]}])
TOOL = span("execute_tool look", gen_ai__operation__name="execute_tool", gen_ai__tool__name="look", gen_ai__tool__call__id="c")
REDACTED = {
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.content": "__REDACTED__",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "__REDACTED__",
}
GENERATION = {"type": "GENERATION", "name": "answer", "startTime": "1", "input": None, "output": None}
LOOKED = {"type": "TOOL", "name": "look", "startTime": "2", "input": None, "output": None}
MASKED = "<fully masked due to failed mask function>"
HIDDEN: Attributes = {"inputs": {}, "outputs": {}}

UNRECORDED: dict[str, tuple[object, str]] = {
    "OpenTelemetry's log records": (
        [
            record("gen_ai.user.message", None, "0xa", 1),
            record("gen_ai.choice", {"index": 0, "finish_reason": "tool_calls", "message": CALLED}, "0xa", 2),
            record("gen_ai.user.message", None, "0xb", 3),
            record("gen_ai.assistant.message", {"tool_calls": CALLED["tool_calls"]}, "0xb", 4),
            record("gen_ai.tool.message", {"id": "c"}, "0xb", 5),
            record("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": {"role": "assistant"}}, "0xb", 6),
        ],
        "trace '0x1' is recorded: its 4 records hold no text, arguments or results; record the content: OTEL_",
    ),
    "messages without content": (
        [chat(gen_ai__input__messages=NO_TEXT, gen_ai__output__messages=NO_ARGUMENTS)],
        "its 2 records hold no text, arguments or results; record the content: OTEL_",
    ),
    "a tool beside calls without messages": (
        [chat(), TOOL],
        "nothing of what the trace '0x1' sent to models, or they answered, is recorded (chat m); record",
    ),
    "what a tool found beside calls without messages": (
        [chat(), span("look", gen_ai__tool__name="look", gen_ai__tool__call__arguments='{"a": 1}', gen_ai__tool__call__result="found")],
        "sent to models, or they answered, is recorded (chat m)",
    ),
    "a tool alone": ([TOOL], "its 1 records hold no text, arguments or results"),
    "Vercel's spans": (
        [
            span("ai.generateText.doGenerate", ai__operationId="ai.generateText.doGenerate", ai__model__id="m"),
            span("ai.toolCall", ai__toolCall__name="look", ai__toolCall__id="c"),
        ],
        "is recorded (ai.generateText.doGenerate)",
    ),
    "OpenLLMetry's spans": ([span("openai.chat", llm__request__type="chat")], "is recorded (openai.chat)"),
    "OpenInference's spans": (
        [span("ChatCompletion", openinference__span__kind="LLM", input__value="__REDACTED__", output__value="__REDACTED__")],
        "its 2 records hold no text, arguments or results",
    ),
    "OpenInference's messages": (
        [{**span("ChatCompletion"), "attributes": {"openinference.span.kind": "LLM", **REDACTED}}],
        "its 2 records hold no text, arguments or results",
    ),
    "Langfuse's spans": (
        [span("answer", langfuse__observation__type="generation"), span("look", langfuse__observation__type="tool")],
        "is recorded (answer)",
    ),
    "a trace of Langfuse": (
        {"id": "t", "observations": [GENERATION, LOOKED]},
        "the trace 't' sent to models, or they answered, is recorded (answer); record input and output: capture_input",
    ),
    "roles in Langfuse": (
        {"id": "t", "observations": [{**GENERATION, "input": [{"role": "user"}], "output": {"role": "assistant", "content": None}}]},
        "the trace 't' is recorded: its 2 records hold no text",
    ),
    "a mask of Langfuse that failed": (
        {"id": "t", "input": MASKED, "output": MASKED, "observations": []},
        "its 2 records hold no text, arguments or results",
    ),
    "a run of LangSmith": (
        {
            "id": "r",
            "run_type": "chain",
            **HIDDEN,
            "child_runs": [
                {"id": "a", "run_type": "llm", "name": "ask", **HIDDEN},
                {"id": "b", "run_type": "tool", "name": "look", **HIDDEN},
            ],
        },
        "the trace 'r' sent to models, or they answered, is recorded (ask); record inputs and outputs: LANGSMITH_HIDE_INPUTS",
    ),
    "a tool of LangSmith": ({"id": "r", "run_type": "tool", "name": "look", **HIDDEN}, "its 2 records hold no text, arguments or results"),
}


def test_a_trace_without_its_content_is_refused_by_name() -> None:
    for name, (value, words) in UNRECORDED.items():
        with pytest.raises(UnreadableMessage) as caught:
            list(parse_runs(value, "r"))

        assert words in str(caught.value), name


def texts(run: AgentRun) -> list[tuple[str, str]]:
    """Return type and text of each record."""
    return [
        (part.type, str(part.record()["text"]))
        for transcript in run.transcripts
        for message in transcript.messages
        for part in message.records()
    ]


def test_a_trace_of_which_a_part_is_recorded_is_read_with_what_it_has() -> None:
    answer = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Paris"}]}])
    (half,) = parse_runs([chat(gen_ai__input__messages=NO_TEXT, gen_ai__output__messages=answer)], "r")
    (outline,) = parse_runs([span("agent", input__value="q", output__value="Paris"), chat(gen_ai__input__messages=NO_TEXT)], "r")
    (tool,) = parse_runs([span("look", gen_ai__tool__name="look", gen_ai__tool__call__result="found")], "r")
    (quiet,) = parse_runs([chat(gen_ai__input__messages=json.dumps([{"role": "user", "content": "q"}])), TOOL], "r")

    assert texts(half) == [("other", ""), ("text", "Paris")]
    assert texts(outline) == [("text", "q"), ("text", "Paris")]
    assert texts(tool) == [("tool_call", "{}"), ("tool_result", "found")]
    assert texts(quiet) == [("text", "q"), ("tool_call", "{}")]


def test_of_several_traces_the_one_without_content_is_left_out_by_name(tmp_path: Path) -> None:
    said = {"gen_ai.input.messages": json.dumps([{"role": "user", "content": "q"}])}
    good = {**span("chat m", trace="0x2"), "attributes": said}
    health = span("GET /health", trace="0x3")
    (tmp_path / "spans.json").write_text(json.dumps([chat(), good, health]))
    smith = [{"id": name, "run_type": "llm", "inputs": given, "outputs": {}} for name, given in (("a", {}), ("b", {"question": "q"}))]
    (tmp_path / "smith.json").write_text(json.dumps(smith))
    fuse = [{**GENERATION, "traceId": "a"}, {**GENERATION, "traceId": "b", "output": "Paris"}]
    (tmp_path / "fuse.json").write_text(json.dumps(fuse))
    reading = Reading(skip_bad=True)
    files = [tmp_path / name for name in ("spans.json", "smith.json", "fuse.json")]

    assert [run.id for path in files for run in read_run_file(path, reading)] == ["0x2", "b", "b"]
    assert [text.partition(" sent to")[0].partition("what the ")[2] for text in reading.left_out] == [
        "trace '0x1'",
        "trace 'a'",
        "trace 'a'",
    ]
    for path in files:
        with pytest.raises(InvalidRequest, match="is recorded"):
            list(read_run_file(path))
