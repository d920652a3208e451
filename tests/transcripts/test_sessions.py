"""Files with several sessions of coding agents, one behind the other: a run each, and one where a session goes on."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.transcripts.readers import Reading, read_run_file

Json = Any


def said(session: str, uuid: str, text: str, parent: str | None = None, **more: Json) -> Json:
    """Return a line of Claude Code; one whose uuid begins with `u` is the user's."""
    role = "user" if uuid.startswith("u") else "assistant"
    line = {"type": role, "uuid": uuid, "parentUuid": parent, "message": {"role": role, "content": text}, **more}
    return line | ({"sessionId": session} if session else {})


def boundary(session: str, uuid: str, parent: str) -> Json:
    about = {"type": "system", "subtype": "compact_boundary", "content": "Conversation compacted", "uuid": uuid}
    return {**about, "parentUuid": None, "logicalParentUuid": parent, "sessionId": session}


def result(session: str, text: str) -> Json:
    return {"type": "result", "subtype": "success", "is_error": False, "result": text, "session_id": session}


def streamed(session: str, role: str, text: str, **more: Json) -> Json:
    return {"type": role, "session_id": session, "message": {"role": role, "content": text}, "parent_tool_use_id": None, **more}


A = [said("A", "u1", "q"), said("A", "a1", "x", "u1")]
B = [said("B", "u2", "r"), said("B", "a2", "y", "u2")]
CLAUDE: dict[str, tuple[list[Json], dict[str, list[str]]]] = {
    "two sessions": ([*A, *B], {"A": ["q", "x"], "B": ["r", "y"]}),
    "two sessions in turns": ([A[0], B[0], A[1], B[1]], {"A": ["q", "x"], "B": ["r", "y"]}),
    "with sidechains": (
        [*A, *B, said("A", "a3", "sub", isSidechain=True, agentId="s"), said("B", "a4", "tab", isSidechain=True, agentId="s")],
        {"A": ["q", "x", "--", "sub"], "B": ["r", "y", "--", "tab"]},
    ),
    "one that is resumed under its own id": ([*A, said("A", "u5", "more", "a1")], {"A": ["q", "x", "more"]}),
    "one that is resumed under a new id, in one file": (
        [*A, said("B", "u5", "more", "a1"), said("B", "a5", "z", "u5"), said("C", "u6", "again", "a5")],
        {"A": ["q", "x", "more", "z", "again"]},
    ),
    "one that is resumed in a file of its own, which repeats the first": (
        [*A, *({**line, "sessionId": "B"} for line in A), said("B", "u5", "more", "a1")],
        {"A": ["q", "x"], "B": ["q", "x", "more"]},
    ),
    "a file that is there twice": ([*A, *A, said("A", "u5", "more", "a1")], {"A": ["q", "x", "more"]}),
    "one that was made shorter": (
        [*A, boundary("A", "c1", "a1"), said("A", "u7", "SUMMARY", "c1", isCompactSummary=True), said("A", "a7", "on", "u7"), *B],
        {"A": ["q", "x", "Conversation compacted", "SUMMARY", "on"], "B": ["r", "y"]},
    ),
    "lines of another session that say nothing": (
        [{"type": "queue-operation", "sessionId": "Z"}, *A, {"type": "custom-title", "sessionId": "Y", "customTitle": "t"}],
        {"A": ["q", "x"]},
    ),
    "what two calls printed": (
        [
            {"type": "system", "subtype": "init", "session_id": "A", "tools": ["Task"]},
            streamed("A", "user", "q"),
            streamed("A", "assistant", "sub", parent_tool_use_id="t"),
            result("A", "x"),
            {"type": "system", "subtype": "init", "session_id": "B", "tools": ["Task"]},
            streamed("B", "assistant", "y"),
            result("B", "y"),
        ],
        {
            "A": ['{"subtype": "init", "tools": ["Task"]}', "q", '{"subtype": "success", "is_error": false, "result": "x"}', "--", "sub"],
            "B": ['{"subtype": "init", "tools": ["Task"]}', "y", '{"subtype": "success", "is_error": false, "result": "y"}'],
        },
    ),
}


def meta(name: str, **more: Json) -> Json:
    return {"timestamp": "t", "type": "session_meta", "payload": {"id": name, "cwd": f"/{name}", "instructions": "S", **more}}


def spoke(role: str, text: str) -> Json:
    kind = "input_text" if role == "user" else "output_text"
    return {"type": "response_item", "payload": {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}}


EVENT = {"type": "event_msg", "payload": {"type": "token_count"}}
FIRST = [meta("A"), EVENT, spoke("user", "q"), spoke("assistant", "x")]
OLD = {"id": "O", "timestamp": "t", "instructions": None}
BARE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]}
DONE = {"type": "item.completed", "item": {"id": "item_0", "type": "agent_message", "text": "x"}}
CODEX: dict[str, tuple[list[Json], dict[str, list[str]]]] = {
    "two sessions": ([*FIRST, meta("B"), spoke("user", "r")], {"A": ["S", "q", "x"], "B": ["S", "r"]}),
    "one that is resumed": ([*FIRST, meta("A"), spoke("user", "r")], {"A": ["S", "q", "x", "r"]}),
    "one that was forked": ([meta("F"), *FIRST, spoke("user", "r")], {"F": ["S", "q", "x", "r"]}),
    "one that was forked, behind the first": (
        [*FIRST, meta("F", forked_from_id="A"), EVENT, *FIRST, meta("A"), spoke("user", "r")],
        {"A": ["S", "q", "x"], "F": ["S", "q", "x", "r"]},
    ),
    "two of the first version": ([OLD, BARE, {**OLD, "id": "P"}, BARE], {"O": ["q"], "P": ["q"]}),
    "two threads that were printed, one of them resumed": (
        [
            {"type": "thread.started", "thread_id": "T"},
            DONE,
            {"type": "thread.started", "thread_id": "U"},
            DONE,
            {"type": "thread.started", "thread_id": "T"},
            {"type": "item.completed", "item": {"id": "item_0", "type": "agent_message", "text": "y"}},
        ],
        {"T": ["x", "y"], "U": ["x"]},
    ),
}
CASES = {f"{tool}: {name}": case for tool, cases in (("claude", CLAUDE), ("codex", CODEX)) for name, case in cases.items()}


def written(rows: list[Json], folder: Path) -> Path:
    (folder / "session.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder / "session.jsonl"


def texts_of(run: AgentRun) -> list[str]:
    texts = [["--", *(str(part.record()["text"]) for message in one.messages for part in message.records())] for one in run.transcripts]
    return [text for one in texts for text in one][1:]


def test_each_session_of_a_file_is_a_run_of_its_own(tmp_path: Path) -> None:
    found = {name: {run.id: texts_of(run) for run in read_run_file(written(rows, tmp_path))} for name, (rows, _) in CASES.items()}

    assert found == {name: expected for name, (_, expected) in CASES.items()}


def test_a_summary_belongs_to_the_session_of_its_message_else_to_the_next_one(tmp_path: Path) -> None:
    summaries = [{"type": "summary", "summary": name, "leafUuid": leaf} for name, leaf in (("of A", "a1"), ("of B", "gone"))]
    runs = {run.id: run.metadata for run in read_run_file(written([*A, *summaries, *B], tmp_path))}

    assert {name: metadata.get("summary") for name, metadata in runs.items()} == {"A": "of A", "B": "of B"}


def test_the_first_meta_of_a_forked_session_is_its_own(tmp_path: Path) -> None:
    (run,) = read_run_file(written([meta("F", forked_from_id="A"), *FIRST], tmp_path))

    assert (run.metadata["cwd"], run.metadata["forked_from_id"]) == ("/F", "A")


WIZARD = {"claude": [*A, said("B", "u2", "r") | {"message": {"role": "wizard"}}], "codex": [*FIRST, meta("B"), spoke("wizard", "r")]}


@pytest.mark.parametrize("tool", WIZARD)
def test_of_several_sessions_one_that_cannot_be_read_is_refused_with_its_line(tool: str, tmp_path: Path) -> None:
    rows = WIZARD[tool]
    path, reading = written(rows, tmp_path), Reading(skip_bad=True)
    line = next(at for at, row in enumerate(rows, 1) if "wizard" in json.dumps(row))

    with pytest.raises(InvalidRequest, match=rf"line {line}: .*wizard"):
        list(read_run_file(path))
    assert [run.id for run in read_run_file(path, reading)] == ["A"]
    assert len(reading.left_out) == 1
