"""Sessions of agents with lines and events that their programs added, or that only some of their outputs have."""

import json
from pathlib import Path
from typing import Any

from gradeloop.transcripts.readers import read_run_file
from tests.rig.transcripts import shown

Json = Any


def claude(kind: str, **more: Json) -> dict[str, Json]:
    return {"type": kind, "uuid": "u", "sessionId": "S", **more}


USER = claude("user", message={"role": "user", "content": "q"})
ANSWER = claude("assistant", message={"role": "assistant", "content": [{"type": "text", "text": "A"}]})


def codex(kind: str, **payload: Json) -> dict[str, Json]:
    return {"timestamp": "t", "type": kind, "payload": payload}


META = codex("session_meta", id="x", cwd="/")
CODEX_USER = codex("response_item", type="message", role="user", content=[{"type": "input_text", "text": "q"}])


def item(kind: str, **fields: Json) -> dict[str, Json]:
    return {"type": kind, "item": fields}


MCP = {"id": "2", "type": "mcp_tool_call", "server": "s", "tool": "look", "arguments": {"a": 1}}
MCP_RESULT = {"content": [{"type": "text", "text": "found"}], "structured_content": None}
PENDING = {
    "id": "3",
    "type": "command_execution",
    "command": "sleep 9",
    "aggregated_output": "",
    "exit_code": None,
    "status": "in_progress",
}

SYSTEM_V1 = {"kind": "SystemPromptEvent", "source": "agent", "system_prompt": {"type": "text", "text": "SYS"}}
IMAGE_V1 = {"type": "image", "image_urls": ["data:image/png;base64,AAAA", "https://x/b.png"]}
MESSAGE_V1 = {
    "kind": "MessageEvent",
    "source": "user",
    "llm_message": {"role": "user", "content": [{"type": "text", "text": "q"}, IMAGE_V1]},
    "extended_content": [{"type": "text", "text": "MORE"}],
}
ACTION_V1 = {
    "kind": "ActionEvent",
    "source": "agent",
    "thought": [],
    "reasoning_content": None,
    "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "x"}],
    "tool_name": "run",
    "tool_call_id": "c",
    "tool_call": {"id": "c", "name": "run", "arguments": '{"a": 1}'},
}
NEW_V1 = {"kind": "BrandNewEvent", "source": "environment", "said": "N"}
SAID_V1 = ["system text SYS", "user text q", "user file image/png 3", "user file image https://x/b.png", "user text MORE"]
ACTED_V1 = ["assistant reasoning hm", 'assistant tool_call c run {"a": 1}']
V0 = [
    {"id": 1, "source": "user", "action": "message", "args": {"content": "q"}},
    {"id": 2, "source": "agent", "action": "message", "args": {"content": "A"}},
]

CASES: dict[str, tuple[list[Json], list[str]]] = {
    "a line of a type that Claude Code added": (
        [claude("brand-new", said="N"), USER, ANSWER],
        ['system other system {"said": "N"}', "user text q", "assistant text A"],
    ),
    "what a user typed while Claude Code was at work": (
        [USER, claude("attachment", attachment={"type": "queued_command", "prompt": "also this"}), ANSWER],
        ["user text q", "user text also this", "assistant text A"],
    ),
    "a system line of Claude Code without words": (
        [USER, claude("system", subtype="hooks", content="", hooks=1), ANSWER],
        ["user text q", 'system other system hooks {"subtype": "hooks", "hooks": 1}', "assistant text A"],
    ),
    "a limit of rates in Claude Code's stream": (
        [{"type": "rate_limit_event", "session_id": "S"}, USER, ANSWER],
        ["user text q", "assistant text A"],
    ),
    "what Claude Code keeps of its requests": (
        [
            {"type": "api-request-blob", "sessionId": "S", "message": {"role": "user", "content": "q"}},
            USER,
            claude("attachment", attachment={"type": "prompt_snapshot", "tools": [{"name": "Bash"}]}),
            claude("api-request", params={}),
            ANSWER,
            claude("cost-state", totalCostUSD=1),
        ],
        ["user text q", "assistant text A"],
    ),
    "Claude Code's one result": (
        [{"type": "result", "subtype": "success", "is_error": False, "result": "FINAL", "session_id": "S"}],
        ["assistant text FINAL"],
    ),
    "what Claude Code's subagent said, in the lines of its progress": (
        [USER, claude("progress", data={"type": "agent_progress", "agentId": "a", "message": ANSWER}), ANSWER],
        ["user text q", "assistant text A", "--", "assistant text A"],
    ),
    "a session of Claude Code that begins with many snapshots": (
        [{"type": "file-history-snapshot", "snapshot": {}}] * 60 + [USER, ANSWER],
        ["user text q", "assistant text A"],
    ),
    "a session of Codex that begins with many events": ([codex("event_msg", type="x")] * 60 + [CODEX_USER], ["user text q"]),
    "calls of Codex of which one failed": (
        [
            META,
            CODEX_USER,
            *(codex("response_item", type="function_call", call_id=call, name="shell", arguments="{}") for call in "abc"),
            codex("event_msg", type="item_completed", item={"type": "CommandExecution", "id": "b", "status": "failed", "exit_code": 3}),
            codex("event_msg", type="exec_command_end", call_id="a", exit_code=0),
            codex("event_msg", type="mcp_tool_call_end", call_id="c", result={"Err": "no"}),
            *(codex("response_item", type="function_call_output", call_id=call, output="code") for call in "abc"),
        ],
        [
            "user text q",
            *(f"assistant tool_call {call} shell {{}}" for call in "abc"),
            "tool tool_result a code",
            "tool tool_result b True code",
            "tool tool_result c True code",
        ],
    ),
    "a line of a type that Codex added": ([META, codex("brand_new", type="y"), CODEX_USER], ["user text q"]),
    "an item that Codex added": (
        [META, CODEX_USER, codex("response_item", type="other", said="N")],
        ["user text q", 'assistant other other {"said": "N"}'],
    ),
    "what Codex keeps of a history that it made shorter": (
        [META, CODEX_USER, codex("compacted", message="M", replacement_history=[{"type": "compaction", "encrypted_content": "gAAA"}])],
        ["user text q", 'system other compacted {"message": "M", "replacement_history": [{"type": "compaction"}]}'],
    ),
    "what `codex exec` had begun when it ended": (
        [
            {"type": "thread.started", "thread_id": "T"},
            item("item.started", **MCP, status="in_progress"),
            item("item.completed", **MCP, result=MCP_RESULT, error=None, status="completed"),
            item("item.started", **PENDING),
            {"type": "turn.failed", "error": {"message": "boom"}},
        ],
        [
            'assistant tool_call 2 s__look {"a": 1}',
            "tool tool_result 2 s__look found",
            "system error turn.failed boom",
            'assistant tool_call 3 shell {"command": "sleep 9"}',
        ],
    ),
    "OpenHands' events with images, thinking and a new kind": (
        [SYSTEM_V1, MESSAGE_V1, ACTION_V1, NEW_V1],
        [*SAID_V1, *ACTED_V1, 'system other BrandNewEvent {"said": "N"}'],
    ),
    "what OpenHands' server answers": ([{"items": [SYSTEM_V1, MESSAGE_V1], "next_page_id": None}], SAID_V1),
    "a trajectory of OpenHands' server": ([{"trajectory": V0}], ["user text q", "assistant text A"]),
    "an instruction that OpenHands' events have behind the system's prompt": (
        [{"instance_id": "i", "instruction": "q", "history": [SYSTEM_V1, MESSAGE_V1]}],
        SAID_V1,
    ),
    "thinking of SWE-agent": (
        [
            {
                "history": [{"role": "system", "content": "s"}],
                "trajectory": [
                    {
                        "action": "ls",
                        "observation": "o",
                        "response": "r",
                        "thought": "r",
                        "thinking_blocks": [{"type": "thinking", "thinking": "hm"}],
                    }
                ],
            }
        ],
        [
            "system text s",
            "assistant reasoning hm",
            "assistant text r",
            'assistant tool_call step_1 shell {"command": "ls"}',
            "tool tool_result step_1 shell o",
        ],
    ),
    "an image of ATIF in a file beside it": (
        [
            {
                "schema_version": "ATIF-v1.6",
                "steps": [
                    {"source": "user", "message": [{"type": "image", "source": {"media_type": "image/png", "path": "images/a.png"}}]}
                ],
            }
        ],
        ["user file images/a.png image/png"],
    ),
}


def test_a_session_is_read_whole(tmp_path: Path) -> None:
    found = {}
    for name, (lines, _) in CASES.items():
        (tmp_path / "run.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        found[name] = shown(tmp_path / "run.jsonl")

    assert found == {name: expected for name, (_, expected) in CASES.items()}


def test_what_claude_code_says_in_the_users_place_is_marked(tmp_path: Path) -> None:
    told = USER | {"uuid": "t", "origin": {"kind": "task-notification"}}
    rows = [USER | {"origin": {"kind": "human"}}, told, claude("attachment", attachment={"type": "session_context"}), claude("tools-used")]
    rows += [claude("system", subtype="thinking_tokens", content="", tokens=9)] * 2
    (tmp_path / "session.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (run,) = read_run_file(tmp_path / "session.jsonl")

    assert [message.metadata.get("origin") for message in run.transcripts[0].messages] == [None, {"kind": "task-notification"}]


def said(text: str, utterance: str, **more: Json) -> Json:
    return {"content": text, "utterance_ids": [utterance], "is_audio": True, **more}


TAU_CALL = {"id": "c", "name": "look", "arguments": {"a": 1}, "requestor": "assistant"}
TAU_RESULT = {"role": "tool", "id": "c", "content": "found", "requestor": "assistant", "error": False}


def test_a_call_of_tau2_in_which_both_speak_at_once_is_read_by_utterances(tmp_path: Path) -> None:
    ticks = [
        {"tick_id": 0, "user_chunk": said("What is", "u1"), "agent_chunk": None},
        {"tick_id": 1, "user_chunk": said(" it?", "u1"), "agent_chunk": said("I", "a1")},
        {"tick_id": 2, "user_chunk": said("", "u1"), "agent_chunk": said(" look.", "a1"), "agent_tool_calls": [TAU_CALL]},
        {"tick_id": 3, "agent_tool_results": [TAU_RESULT], "user_chunk": {"content": None, "audio_script_gold": "yes"}},
        {"tick_id": 4, "agent_chunk": said("Paris", "a2"), "user_chunk": {"content": None, "audio_script_gold": " yes"}},
    ]
    simulation = {"task_id": "7", "trial": 1, "messages": None, "ticks": ticks, "mode": "full_duplex", "reward_info": {"reward": 1.0}}
    (tmp_path / "results.json").write_text(json.dumps({"simulations": [simulation]}), encoding="utf-8")

    assert shown(tmp_path / "results.json") == [
        "user text What is it?",
        "assistant text I look.",
        'assistant tool_call c look {"a": 1}',
        "tool tool_result c found",
        "user text yes",
        "assistant text Paris",
        "user text  yes",
    ]
