"""What files of mini-swe-agent and Docent hold beside plain messages; `python -m lab.agent_files` has both packages write them."""

from typing import Any

import pytest

from gradeloop.contract.transcript import AgentRun, RunMessage
from gradeloop.transcripts.registry import UnreadableMessage, parse_runs

TASK = {"role": "user", "content": "Find Zürich."}
CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}


def trajectory(*messages: dict[str, Any]) -> tuple[RunMessage, ...]:
    """Return the messages of a trajectory, those behind its task."""
    (run,) = parse_runs({"trajectory_format": "mini-swe-agent-1.1", "info": {}, "messages": [TASK, *messages]}, "r")
    return run.transcripts[0].messages[1:]


def records(messages: tuple[RunMessage, ...]) -> list[tuple[str, dict[str, Any]]]:
    """Return role and record of every part."""
    return [(message.role, part.record()) for message in messages for part in message.records()]


REPLIES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "chat": (
        {"response": {"choices": [{"message": {"role": "assistant", "content": "I call.", "tool_calls": [CALL]}}], "id": "c1"}},
        [{"type": "text", "text": "I call."}, {"type": "tool_call", "call": "c", "tool": "bash", "text": '{"command": "ls"}'}],
    ),
    "responses": (
        {
            "response": {
                "object": "response",
                "output": [
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "No call."}]},
                ],
            }
        },
        [{"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "No call."}],
    ),
    "nothing": ({"response": {"object": "response", "output": []}}, [{"type": "other", "kind": "empty_message", "text": ""}]),
    "text": ({"model_response": "No command."}, [{"type": "text", "text": "No command."}]),
    "repr": ({"response": "ModelResponse(choices=...)"}, [{"type": "text", "text": "ModelResponse(choices=...)"}]),
}


@pytest.mark.parametrize("kind", REPLIES)
def test_an_answer_that_the_agent_could_make_nothing_of_is_shown_before_what_it_was_told(kind: str) -> None:
    extra, shown = REPLIES[kind]
    told = {"role": "user", "content": "No tool calls found.", "extra": {"interrupt_type": "FormatError", **extra}}

    assert records(trajectory(told)) == [*(("assistant", record) for record in shown), ("user", {"type": "text", "text": told["content"]})]


def test_a_reply_that_is_no_reply_is_refused_with_its_place() -> None:
    extra = {"interrupt_type": "FormatError", "response": {"choices": [{"message": {"role": "wizard"}}]}}

    with pytest.raises(UnreadableMessage, match="wizard") as refused:
        trajectory({"role": "user", "content": "What?", "extra": extra})
    assert refused.value.path[:4] == ("messages", 1, "extra", "response")


def test_commands_in_a_text_are_calls_and_what_they_gave_is_their_result_not_words_of_the_user() -> None:
    said = "<tool call>rm</tool call>\n```mswea_bash_command\nls\n```"
    answer = {"role": "assistant", "content": said, "extra": {"actions": [{"command": "ls"}]}}
    seen = {"role": "user", "content": "<returncode>2</returncode>", "extra": {"returncode": 2, "raw_output": "", "exception_info": ""}}
    typed = {"role": "user", "content": "User command: pwd", "extra": {"actions": [{"command": "pwd"}]}}
    gave = {"role": "user", "content": "/", "extra": {"returncode": 0, "raw_output": "/", "exception_info": ""}}

    assert records(trajectory(answer, seen, typed, gave)) == [
        ("assistant", {"type": "text", "text": said}),
        ("assistant", {"type": "tool_call", "call": "command_1_0", "tool": "bash", "text": '{"command": "ls"}'}),
        ("tool", {"type": "tool_result", "call": "command_1_0", "name": "bash", "is_error": True, "text": "<returncode>2</returncode>"}),
        ("user", {"type": "text", "text": "User command: pwd"}),
        ("user", {"type": "tool_call", "call": "command_3_0", "tool": "bash", "text": '{"command": "pwd"}'}),
        ("tool", {"type": "tool_result", "call": "command_3_0", "name": "bash", "text": "/"}),
    ]


@pytest.mark.parametrize("extra", [{"returncode": 1}, {"returncode": -1, "exception_info": "timed out"}])
@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_a_command_that_failed_is_a_result_that_failed(kind: str, extra: dict[str, Any]) -> None:
    chat = {"role": "tool", "tool_call_id": "c", "content": "gone", "extra": extra}
    item = {"type": "function_call_output", "call_id": "c", "output": "gone", "extra": extra}
    (message,) = trajectory(chat if kind == "chat" else item)

    assert records((message,)) == [("tool", {"type": "tool_result", "call": "c", "is_error": True, "text": "gone"})]
    assert message.metadata == {"extra": extra}


def test_a_reply_of_several_items_is_one_message() -> None:
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "CIPHER"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c", "name": "bash", "arguments": '{"command": "ls"}'},
    ]
    (message,) = trajectory(
        {"object": "response", "output": items, "extra": {"cost": 0.1, "actions": [{"command": "ls", "tool_call_id": "c"}]}}
    )

    assert [part.type for part in message.records()] == ["reasoning", "text", "tool_call"]
    assert message.metadata == {"extra": {"cost": 0.1}}


def test_a_reply_is_not_kept_twice_nor_an_output_of_which_the_model_was_shown_a_part() -> None:
    response = {"id": "r", "usage": {"total_tokens": 9}, "choices": [{"message": {"role": "assistant", "content": "WORDS"}}]}
    answer = {"role": "assistant", "content": "WORDS", "extra": {"response": response, "cost": 0.1}}
    cut = {"role": "tool", "tool_call_id": "c", "content": "1 ... 9", "extra": {"raw_output": "123456789", "returncode": 0}}
    whole = {"role": "tool", "tool_call_id": "d", "content": "out: 12", "extra": {"raw_output": "12\n", "returncode": 0}}
    first, second, third = trajectory(answer, cut, whole)

    assert first.metadata == {"extra": {"cost": 0.1, "response": {"id": "r", "usage": {"total_tokens": 9}}}}
    assert second.metadata == third.metadata == {"extra": {"returncode": 0}}


def test_an_exception_that_ended_a_run_is_an_error_and_other_ends_are_kept_with_the_submission() -> None:
    raised = {"exit_status": "BadRequestError", "submission": "", "exception_str": "too strange", "traceback": "Traceback ..."}
    (error,) = trajectory({"role": "exit", "content": "too strange", "extra": raised})
    (submitted,) = trajectory({"role": "exit", "content": "DIFF", "extra": {"exit_status": "Submitted", "submission": "DIFF"}})

    assert records((error,)) == [("system", {"type": "error", "name": "BadRequestError", "text": "too strange"})]
    assert error.metadata == {"traceback": "Traceback ..."}
    assert records((submitted,)) == [
        ("system", {"type": "other", "kind": "exit", "text": '{"exit_status": "Submitted", "submission": "DIFF"}'})
    ]


def test_what_a_model_of_swe_agent_thought_stands_before_its_step() -> None:
    thinking = [{"type": "thinking", "thinking": "First this.", "signature": "CIPHER"}]
    said = {
        "role": "assistant",
        "content": "I look.",
        "thought": "I look.",
        "action": "ls",
        "message_type": "action",
        "thinking_blocks": thinking,
    }
    steps = [{"action": action, "observation": "found", "response": "I look.", "thought": "I look."} for action in ("ls", "pwd")]
    (run,) = parse_runs({"trajectory": steps, "history": [TASK, said], "info": {}}, "r")

    assert [part.type for message in run.transcripts[0].messages[1::2] for part in message.records()] == [
        *("reasoning", "text", "tool_call"),
        *("text", "tool_call"),
    ]
    assert "CIPHER" not in run.model_dump_json()


def docent(*messages: dict[str, Any], **more: object) -> AgentRun:
    """Return a run as Docent's models write it."""
    (run,) = parse_runs({"id": "r", "transcripts": [{"id": "t", "messages": [TASK, *messages], "description": "d"}], **more}, "r")
    return run


def test_what_docents_messages_say_beside_their_content_is_kept() -> None:
    view = {"title": None, "format": "markdown", "content": "search for **it**"}
    call = {"id": "c", "function": "search", "arguments": {}, "type": "function", "view": view, "google_thought_signature": "CIPHER"}
    thought = {"type": "reasoning", "reasoning": "First this.", "summary": "This.", "signature": "CIPHER", "redacted": False}
    refused = {"type": "text", "text": "I will not.", "refusal": True}
    run = docent(
        {"role": "user", "content": "And?", "tool_call_id": ["earlier"], "metadata": None},
        {"role": "assistant", "content": [thought, refused], "tool_calls": [call], "model": "gpt-5"},
        {"role": "tool", "content": "", "tool_call_id": "c", "error": {"type": "timeout", "message": "9 s", "seconds": 9}},
    )
    _, asked, answer, result = run.transcripts[0].messages

    assert run.transcripts[0].metadata == {"description": "d"}
    assert asked.metadata == {"tool_call_id": ["earlier"]}
    assert answer.records()[1].record() == {"type": "text", "refusal": True, "text": "I will not."}
    assert answer.metadata == {"model": "gpt-5", "parts": [{"part": 0, "summary": "This."}], "tool_calls": [{"call": "c", "view": view}]}
    assert result.metadata == {"error": {"seconds": 9}}
    assert "CIPHER" not in run.model_dump_json()


def test_a_mark_of_refusal_is_no_text() -> None:
    said = docent({"role": "assistant", "content": [{"type": "text", "text": "", "refusal": True}]}).transcripts[0].messages[1]

    assert [part.record()["text"] for part in said.records()] == [""]


ORDERS: dict[str, tuple[dict[str, tuple[str | None, str | None]], list[dict[str, Any]], str]] = {
    "clocks of two zones, with and without fractions": (
        {"c": ("2026-03-01T15:00:00+02:00", None), "b": ("2026-03-01T12:00:00.500000Z", None), "a": ("2026-03-01T12:00:00Z", None)},
        [],
        "abc",
    ),
    "without a time at the end": ({"b": (None, None), "a": ("2026-03-01T12:00:00", None), "c": (None, None)}, [], "abc"),
    "groups in groups": (
        {
            "c": ("2026-03-01T16:00:00Z", "inner"),
            "d": ("2026-03-01T17:00:00Z", "outer"),
            "b": ("2026-03-01T13:00:00Z", "outer"),
            "a": ("2026-03-01T13:00:00Z", None),
        },
        [
            {"id": "outer", "created_at": "2026-03-01T14:00:00Z", "parent_transcript_group_id": None},
            {"id": "inner", "created_at": "2026-03-01T15:00:00Z", "parent_transcript_group_id": "outer"},
        ],
        "abcd",
    ),
    "groups before transcripts where nothing has a time": (
        {"c": (None, None), "b": (None, "two"), "a": (None, "one")},
        [{"id": "one"}, {"id": "two"}],
        "abc",
    ),
    "groups within each other, and one that is not there": (
        {"b": (None, "one"), "a": (None, "gone")},
        [{"id": "one", "parent_transcript_group_id": "two"}, {"id": "two", "parent_transcript_group_id": "one"}],
        "ab",
    ),
}


@pytest.mark.parametrize("case", ORDERS)
def test_transcripts_stand_in_docents_order(case: str) -> None:
    placed, groups, order = ORDERS[case]
    transcripts = [
        {"id": name, "messages": [TASK], "created_at": created, "transcript_group_id": group} for name, (created, group) in placed.items()
    ]
    (run,) = parse_runs({"id": "r", "transcripts": transcripts, "transcript_groups": groups}, "r")

    assert "".join(transcript.id for transcript in run.transcripts) == order


def test_docents_groups_are_kept() -> None:
    group = {"id": "g", "name": "agents", "description": None, "parent_transcript_group_id": None, "metadata": {"round": 2}}

    assert docent(transcript_groups=[group]).metadata == {"transcript_groups": [{"id": "g", "name": "agents", "metadata": {"round": 2}}]}
    with pytest.raises(UnreadableMessage, match="is not an object") as refused:
        docent(transcript_groups=["g"])
    assert refused.value.path == ("transcript_groups", 0)
