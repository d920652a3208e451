"""Spans above and beside the calls of models: what they repeat, sum up, and know of a call that the conversation does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.transcripts.assemble import ancestors
from tests.rig.transcripts import shown, shown_value

Json = Any

Q = {"role": "user", "parts": [{"type": "text", "content": "q"}]}
LOOK = {"type": "tool_call", "id": "c", "name": "look", "arguments": {"a": 1}}
OTHER = {**LOOK, "id": "d", "arguments": {"a": 2}}
BROKE = {"type": "tool_call_response", "id": "c", "response": "no: it broke"}
A = {"type": "text", "content": "A"}
CALLED = ["user text q", 'assistant tool_call c look {"a": 1}']
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
ASKED = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}]
ANSWERED = [*ASKED, {"role": "tool", "tool_call_id": "c", "content": "no: it broke"}]


def span(name: str, parent: str = "", error: str = "", **attributes: Json) -> Json:
    """Return a span, whose id is its name; `__` in the name of an attribute stands for a point."""
    values = {key.replace("__", "."): value if isinstance(value, str) else json.dumps(value) for key, value in attributes.items()}
    status = {"code": 2, "message": error} if error else {}
    own = [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]
    return {"traceId": "t", "spanId": name, "parentSpanId": parent, "name": name, "status": status, "attributes": own}


def trace(*spans: Json) -> Json:
    return {"resourceSpans": [{"scopeSpans": [{"spans": [{**one, "startTimeUnixNano": str(at)} for at, one in enumerate(spans)]}]}]}


def call(name: str, parent: str, given: list[Json], *answered: Json, error: str = "") -> Json:
    output = {"gen_ai__output__messages": [said(*answered)]} if answered else {}
    return span(name, parent, error, gen_ai__input__messages=given, **output)


def said(*parts: Json, role: str = "assistant") -> Json:
    return {"role": role, "parts": [*parts]}


FIRST = call("first", "agent", [Q], LOOK)
SECOND = call("second", "agent", [Q, said(LOOK), said(BROKE, role="tool")], A)
FAILED = "tool tool_result c True no: it broke"
LANGFUSE_TOOL = {"langfuse__observation__type": "tool", "langfuse__observation__input": {"args": [], "kwargs": {"a": 1}}}
LANGFUSE_TEXT = {"input": json.dumps({"args": [], "kwargs": {"a": 1}}), "output": None}
LANGFUSE_ERROR = {"level": "ERROR", "statusMessage": "it broke"}
BELOW = {"parent_run_id": "r"}
CASES: dict[str, tuple[Json, list[str]]] = {
    "a span that sums up what the calls below it say": (
        trace(call("agent", "", [Q], A, LOOK, BROKE), FIRST, SECOND),
        [*CALLED, "tool tool_result c no: it broke", "assistant text A"],
    ),
    "a span that says more than the calls below it": (
        trace(call("agent", "", [Q], A, {"type": "text", "content": "MORE"}), call("first", "agent", [Q], A)),
        ["user text q", "assistant text A\nMORE", "--", "user text q", "assistant text A"],
    ),
    "an error that the spans above it repeat": (
        trace(
            span("agent", error="down\n  at 1"),
            span("step", "agent", error="down"),
            call("first", "step", [Q], error="down"),
            call("again", "agent", [Q], error="down"),
        ),
        ["user text q", "system error first down", "system error again down"],
    ),
    "a result that failed, as the tool's own span says": (
        trace(FIRST, span("look", "agent", "it broke", gen_ai__tool__name="look", gen_ai__tool__call__id="c"), SECOND),
        [*CALLED, FAILED, "assistant text A"],
    ),
    "a tool's span without the call's id, by its arguments": (
        trace(
            call("first", "", [Q], OTHER, LOOK),
            span("look", "", "it broke", **LANGFUSE_TOOL),
            call(
                "second", "", [Q, said({**LOOK, "id": "d", "arguments": {"a": 2}}, LOOK), said(BROKE, {**BROKE, "id": "d"}, role="tool")], A
            ),
        ),
        ["user text q", 'assistant tool_call d look {"a": 2}', CALLED[1], FAILED, "tool tool_result d no: it broke", "assistant text A"],
    ),
    "a tool's span with an id and arguments of its own, beside a call that nothing answers": (
        trace(
            call("first", "", [Q], LOOK),
            span(
                "look", gen_ai__tool__name="look", gen_ai__tool__call__id="x", gen_ai__tool__call__arguments={"a": 3}, output__value="found"
            ),
        ),
        [*CALLED, 'assistant tool_call x look {"a": 3}', "tool tool_result x look found"],
    ),
    "a tool of LangSmith, by its arguments": (
        {
            "id": "r",
            "run_type": "chain",
            "inputs": {"question": "q"},
            "error": "ValueError('down')\n\nTraceback: one",
            "child_runs": [
                {
                    "id": "l",
                    "parent_run_id": "r",
                    "run_type": "llm",
                    "inputs": {"messages": ANSWERED},
                    "error": "ValueError('down')\n\nTraceback",
                },
                {
                    "id": "x",
                    "parent_run_id": "r",
                    "run_type": "tool",
                    "name": "look",
                    "inputs": {"a": 1},
                    "error": "ValueError('it broke')",
                },
            ],
        },
        [*CALLED, FAILED, "system error error ValueError('down')\n\nTraceback"],
    ),
    "a tool of Langfuse, by its arguments": (
        {
            "id": "t",
            "observations": [
                {"id": "g", "type": "GENERATION", "startTime": "1", "input": ANSWERED, "output": {"role": "assistant", "content": "A"}},
                {
                    "id": "x",
                    "type": "TOOL",
                    "startTime": "2",
                    "name": "look",
                    "input": {"a": 1},
                    "level": "ERROR",
                    "statusMessage": "it broke",
                },
            ],
        },
        [*CALLED, FAILED, "assistant text A"],
    ),
    "a tool of Langfuse, whose interface gives its input as text": (
        {
            "data": [
                {"id": "g", "traceId": "t", "type": "GENERATION", "startTime": "1", "input": json.dumps(ANSWERED), "output": "A"},
                {"id": "x", "traceId": "t", "type": "TOOL", "startTime": "2", "name": "look", **LANGFUSE_TEXT, **LANGFUSE_ERROR},
            ],
            "meta": {"cursor": None},
        },
        [*CALLED, FAILED, "assistant text A"],
    ),
    "a tool that was called once more than the conversation has": (
        {
            "id": "r",
            "run_type": "llm",
            "inputs": {"messages": ANSWERED},
            "outputs": {"role": "assistant", "content": "A"},
            "child_runs": [{"id": "x", "run_type": "tool", "name": "look", "inputs": {"a": 2}, "outputs": {"output": "found"}}],
        },
        [
            *CALLED,
            "tool tool_result c no: it broke",
            "assistant text A",
            'assistant tool_call x look {"a": 2}',
            "tool tool_result x look found",
        ],
    ),
}


def test_what_stands_beside_the_calls_of_models_is_read_once(tmp_path: Path) -> None:
    found = {name: shown_value(value, tmp_path) for name, (value, _) in CASES.items()}

    assert found == {name: expected for name, (_, expected) in CASES.items()}


def test_spans_that_are_below_each_other_are_not_below_themselves() -> None:
    parents = {"a": "b", "b": "a", "c": "b", "d": "gone"}

    assert {name: [*ancestors(name, parents)] for name in parents} == {"a": ["b"], "b": ["a"], "c": ["b", "a"], "d": []}


def test_of_spans_within_each_other_nothing_is_lost(tmp_path: Path) -> None:
    both = [call("a", "b", [Q], A, LOOK, error="down"), call("b", "a", [Q], A, LOOK, error="down")]
    (tmp_path / "trace.json").write_text(json.dumps(trace(*both)), encoding="utf-8")

    assert shown(tmp_path / "trace.json") == ["user text q", "assistant text A", CALLED[1], "system error a down"]


@pytest.mark.slow
def test_a_trace_of_many_tools_is_read(tmp_path: Path) -> None:
    calls = [{**LOOK, "id": f"c{at}", "arguments": {"at": at}} for at in range(1_000)]
    tools = [span(f"s{at}", gen_ai__tool__name="look", input__value={"at": at}, output__value=f"found {at}") for at in range(999, -1, -1)]
    (tmp_path / "trace.json").write_text(json.dumps(trace(call("first", "", [Q], *calls), *tools)), encoding="utf-8")

    assert shown(tmp_path / "trace.json")[1_001:1_003] == ["tool tool_result c999 look found 999", "tool tool_result c998 look found 998"]


@pytest.mark.slow
def test_a_trace_of_spans_that_are_all_in_one_another_is_read(tmp_path: Path) -> None:
    chain = [span(f"s{at}", f"s{at - 1}", "down") for at in range(3_000)]
    (tmp_path / "trace.json").write_text(json.dumps(trace(*chain, call("last", "s2999", [Q], A))), encoding="utf-8")

    assert shown(tmp_path / "trace.json") == ["user text q", "assistant text A", "system error s2999 down"]


def test_the_values_that_phoenix_writes_as_null_are_none(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("array_value", "bool_value", "int_value", "kvlist_value", "string_value"))
    values = {"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "q"}
    own = [{"key": key, "value": nothing | {"string_value": value}} for key, value in values.items()]
    said = {"trace_id": "t", "span_id": "s", "name": "c", "attributes": [*own, {"key": "llm.output_messages", "value": nothing}]}
    (tmp_path / "page.json").write_text(json.dumps({"data": [said], "next_cursor": None}), encoding="utf-8")

    assert shown(tmp_path / "page.json") == ["user text q"]
