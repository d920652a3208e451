"""Files of eight further tools: what their samples do not hold, as their versions write it, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.transcripts.json_access import UnreadableMessage
from gradeloop.transcripts.registry import parse_runs
from tests.rig.transcripts import SAMPLES, shown, shown_value

USER = {"id": "1", "type": "user", "content": "q"}
HEAD = {"sessionId": "s", "projectHash": "p"}


def test_a_tool_of_an_mcp_server_carries_its_servers_name(tmp_path: Path) -> None:
    claude = {"type": "mcp_tool_use", "id": "c", "name": "look", "server_name": "s", "input": {"a": 1}}
    openai = {"type": "mcp_call", "id": "m", "name": "look", "server_label": "s", "arguments": '{"a": 1}', "output": "found"}

    assert shown_value([{"role": "user", "content": "q"}, {"role": "assistant", "content": [claude]}], tmp_path)[1:] == [
        'assistant tool_call c s__look {"a": 1}'
    ]
    assert shown_value({"object": "response", "output": [openai]}, tmp_path) == [
        'assistant tool_call m s__look {"a": 1}',
        "tool tool_result m s__look found",
    ]


def test_messages_of_a_gemini_cli_session_that_were_taken_back_or_replaced_are_not_shown(tmp_path: Path) -> None:
    said = [{"id": str(at), "type": "gemini", "content": f"answer {at}"} for at in (2, 3, 4)]
    (tmp_path / "taken.jsonl").write_text(
        "\n".join(map(json.dumps, [HEAD, USER, *said, {"$rewindTo": "3"}, {**said[0], "content": "new"}]))
    )
    (tmp_path / "unknown.jsonl").write_text("\n".join(map(json.dumps, [HEAD, USER, {"$rewindTo": "none"}, *said[2:]])))

    assert shown(tmp_path / "taken.jsonl") == ["user text q", "assistant text new"]
    assert shown(tmp_path / "unknown.jsonl") == ["assistant text answer 4"]


def test_a_failed_call_of_opencode_and_its_own_error_are_shown(tmp_path: Path) -> None:
    tool = {"type": "tool", "callID": "c", "tool": "read", "state": {"status": "error", "input": {"a": 1}, "error": "no such file"}}
    waiting = {"type": "tool", "callID": "d", "tool": "read", "state": {"status": "running", "input": {"a": 2}}}
    file = {"type": "file", "mime": "image/png", "filename": "a.png", "url": "data:image/png;base64,AAAA"}
    error = {"name": "APIError", "data": {"message": "overloaded"}}
    messages = [
        {"info": {"role": "user"}, "parts": [{"type": "text", "text": "q"}, file]},
        {"info": {"role": "assistant", "error": error}, "parts": [tool, waiting, {"type": "patch", "hash": "h", "files": ["f"]}]},
    ]

    assert shown_value({"info": {"id": "s"}, "messages": messages}, tmp_path) == [
        "user text q",
        "user file a.png image/png 3",
        'assistant tool_call c read {"a": 1}',
        "assistant tool_result c read True no such file",
        'assistant tool_call d read {"a": 2}',
        'assistant other patch {"hash": "h", "files": ["f"]}',
        'assistant error APIError {"name": "APIError", "data": {"message": "overloaded"}}',
    ]


def test_what_autogen_writes_beside_texts_and_calls_is_kept(tmp_path: Path) -> None:
    rows = [
        {"type": "MultiModalMessage", "source": "user", "content": ["q", {"data": "AAAA"}]},
        {"type": "StructuredMessage[Verdict]", "source": "judge", "content": {"grade": 1}},
        {"type": "MemoryQueryEvent", "source": "judge", "content": [{"content": "remembered", "mime_type": "text/plain"}]},
        {"type": "CodeExecutionEvent", "source": "runner", "result": {"exit_code": 1, "output": "it broke"}},
    ]

    assert shown_value(rows, tmp_path) == [
        "user text q",
        "user file image 3",
        'assistant other StructuredMessage[Verdict] {"content": {"grade": 1}}',
        'assistant other MemoryQueryEvent {"content": [{"content": "remembered", "mime_type": "text/plain"}]}',
        'assistant other CodeExecutionEvent {"content": {"exit_code": 1, "output": "it broke"}}',
    ]


def test_each_answer_of_a_sample_of_lm_eval_is_a_run() -> None:
    runs = list(parse_runs(SAMPLES["lm_eval"], "r"))

    assert [run.id for run in runs] == ["doc-1-strict-1", "doc-1-strict-2"]
    assert runs[0].metadata["target"] == "Rome"


def test_an_mcp_call_of_deepeval_and_its_failure_are_shown(tmp_path: Path) -> None:
    result = {"content": [{"type": "text", "text": "no such file"}], "isError": True}
    case = {"input": "q", "actualOutput": "a", "mcpToolsCalled": [{"name": "look", "args": {"a": 1}, "result": result}]}

    assert shown_value(case, tmp_path) == [
        "user text q",
        'assistant tool_call mcp_tools_called_1_0 look {"a": 1}',
        "tool tool_result mcp_tools_called_1_0 True no such file",
        "assistant text a",
    ]


def span(kind: str, at: int, **data: object) -> dict[str, Any]:
    """Return a span as the Agents SDK exports it."""
    return {"object": "trace.span", "id": f"s{at}", "trace_id": "t", "started_at": str(at), "span_data": {"type": kind, **data}}


def test_a_response_that_a_span_of_the_agents_sdk_keeps_is_read_and_its_error_is_shown(tmp_path: Path) -> None:
    reply = {
        "instructions": "S",
        "model": "m",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}],
    }
    tripped = span("guardrail", 3, name="safe", triggered=True) | {
        "error": {"message": "tripwire triggered", "data": {"guardrail": "safe"}}
    }

    below = {"parent_id": "a span that was not exported"}

    assert shown_value([span("response", 1, input="q", response=reply) | below, tripped], tmp_path) == [
        "system text S",
        "user text q",
        "assistant text a",
        'system error safe {"message": "tripwire triggered", "data": {"guardrail": "safe"}}',
    ]


def test_a_chain_that_mlflow_traces_without_a_call_of_a_model_is_its_question_and_answer(tmp_path: Path) -> None:
    attributes = {"mlflow.spanType": '"CHAIN"', "mlflow.spanInputs": '{"question": "q"}', "mlflow.spanOutputs": '"a"'}
    failed = {"status_code": "ERROR", "status_message": "it broke", "context": {"span_id": "2"}, "parent_id": "1", "name": "step"}
    spans = [{"span_id": "1", "name": "chain", "attributes": attributes}, failed]

    assert shown_value({"info": {"request_id": "r"}, "data": {"spans": spans}}, tmp_path) == [
        "user text q",
        "assistant text a",
        "system error step it broke",
    ]


CHOICES = {"gen_args_0": {"arg_0": "q", "arg_1": " Paris"}, "gen_args_1": {"arg_0": "q", "arg_1": " Rome"}}
REFUSED: dict[str, tuple[object, str]] = {
    "scored choices": (
        {"doc_id": 0, "arguments": CHOICES, "resps": [[["-0.8", "False"]], [["-0.9", "False"]]]},
        "wrote no answer; judge tasks",
    ),
    "ids of responses": ([span("response", 1, response_id="resp_1")], "keep span_data.response and span_data.input of each span"),
    "a span of voice": ([span("speech", 1, input="hello")], "the type of a span is 'speech', which is not known here"),
    "a step that is none": (
        [*({"step_number": at, "model_output": "x", "model_output_message": None} for at in range(20)), {"handoff": "x"}],
        "a step has system_prompt or task or plan or step_number, and this one has the keys: handoff",
    ),
    "a message of Gemini CLI": ([HEAD, *[USER] * 20, {"id": "2", "type": "robot", "content": "x"}], "the role is 'robot'"),
}


def test_what_is_not_known_is_refused_by_name() -> None:
    for name, (value, words) in REFUSED.items():
        with pytest.raises(UnreadableMessage) as caught:
            list(parse_runs(value, "r"))

        assert words in str(caught.value), name


def test_a_run_of_langsmith_whose_interface_gives_messages_beside_it_is_one() -> None:
    run = {
        "id": "r",
        "run_type": "llm",
        "inputs": {"messages": [{"role": "user", "content": "q"}]},
        "outputs": {"output": "a"},
        "messages": [],
    }

    (found,) = parse_runs(run, "r")

    assert [message.content for message in found.transcripts[0].messages] == ["q", "a"]
