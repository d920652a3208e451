"""A mapping file reads runs of any shape: JSONPath says where an answer, messages and tools stand, and what is left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.transcripts.mapping import read_mapping
from gradeloop.transcripts.readers import Reading, read_run_file

LONG = "The agent went on to write a report of several pages, in which it said what it had found, where, and how sure it was."
CASES = {"test_cases": [{"name": f"c{at}", "q": "When?", "actual_output": f"At {at}.", "gold": "At six."} for at in (5, 6)]}
CASE_MAPPING = """
runs: $.test_cases[*]
id: $.name
input: $.q
answer: $.actual_output
metadata: {target: $.gold}
"""


def read(mapping: str, value: Any, folder: Path, name: str = "runs.json", **reading: Any) -> tuple[list[AgentRun], Reading]:
    """Return the runs of a value, by lines where the file's name says so, as a mapping reads them, and the notes."""
    (folder / "mapping.yaml").write_text(mapping)
    text = "\n".join(map(json.dumps, value)) if name.endswith("l") else json.dumps(value, indent=1)
    (folder / name).write_text(text)
    notes = Reading(mapping=read_mapping(folder / "mapping.yaml"), **reading)
    return list(read_run_file(folder / name, notes)), notes


def said(run: AgentRun) -> list[str]:
    """Return each record of a run as a line: role, type, the fields beside the text, and the text."""
    records = [(message.role, part.record()) for message in run.transcripts[0].messages for part in message.records()]
    return [" ".join([role, *map(str, record.values())]) for role, record in records]


def test_records_are_found_by_a_path_and_each_is_a_run(tmp_path: Path) -> None:
    runs, notes = read(CASE_MAPPING, CASES, tmp_path)

    assert [run.id for run in runs] == ["c5", "c6"]
    assert said(runs[1]) == ["user text When?", "assistant text At 6."]
    assert runs[0].metadata == {"target": "At six."}
    assert list(notes.formats) == [(f"{tmp_path}/runs.json", "mapping", "$['test_cases'][*]")]
    assert notes.account.values == {"shown": 4, "metadata": 4}


def test_each_line_of_a_file_of_lines_is_a_record_and_a_filter_chooses_among_them(tmp_path: Path) -> None:
    rows = [{"spec": "e"}, {"type": "sampling", "prompt": "q", "sampled": ["a", "b"]}, {"type": "match", "correct": True}]

    (run,), notes = read("runs: $[?@.type == 'sampling']\ninput: $.prompt\nanswer: $.sampled[*]", rows, tmp_path, "log.jsonl")
    (plain,), _ = read("input: $.prompt\nanswer: $.sampled[*]", rows[1:2], tmp_path, "log.jsonl")

    assert (run.id, said(run)) == ("log-2", ["user text q", "assistant text a", "assistant text b"])
    assert said(plain) == said(run)
    assert notes.account.left_out == {"$[*].spec": 1, "$[*].type": 5, "$[*].correct": 4, "$.type": 8}


def test_messages_have_roles_contents_and_tools_where_the_paths_lead(tmp_path: Path) -> None:
    turns = [
        {"speaker": "human", "body": {"parts": ["When?", "Today."]}},
        {"speaker": "bot", "body": None, "used": [{"tool": "clock", "with": {"zone": "UTC"}, "gave": "05:59", "no": 7}]},
        None,
        {"speaker": "bot", "body": {"text": "At six."}},
    ]
    mapping = """
    messages: $.turns
    role: $.speaker
    content: ['$.body.parts[*]', $.body.text]
    roles: {human: user, bot: assistant}
    tools: {calls: "$.used[*]", id: $.no, name: $.tool, arguments: $.with, result: $.gave}
    """

    (run,), _ = read(mapping, {"turns": turns}, tmp_path)

    assert said(run) == [
        "user text When?\nToday.",
        'assistant tool_call 7 clock {"zone": "UTC"}',
        "tool tool_result 7 clock 05:59",
        "assistant text At six.",
    ]


def test_tools_without_messages_stand_between_the_question_and_the_answer(tmp_path: Path) -> None:
    value = {"q": "When?", "a": "At six.", "tools_called": [{"name": "clock", "output": {"h": 6}}, {"name": "bell"}]}
    mapping = "input: $.q\nanswer: $.a\ntools: {calls: '$.tools_called[*]', name: $.name, result: $.output}"

    (run,), _ = read(mapping, value, tmp_path)

    assert [line.partition(" ")[2] for line in said(run)] == [
        "text When?",
        "tool_call call_0_0 clock {}",
        'tool_result call_0_0 clock {"h": 6}',
        "tool_call call_0_1 bell {}",
        "text At six.",
    ]


def test_a_path_that_must_lead_somewhere_and_does_not_is_told_with_its_record(tmp_path: Path) -> None:
    broken = json.loads(json.dumps(CASES))
    del broken["test_cases"][1]["actual_output"]

    with pytest.raises(InvalidRequest) as refused:
        read(CASE_MAPPING, broken, tmp_path)
    runs, notes = read(CASE_MAPPING, broken, tmp_path, skip_bad=True)

    why = "runs.json, line 9: test_cases[1]: answer: $['actual_output'] matches nothing in record 2; its keys: name, q, gold"
    assert str(refused.value) == f"{tmp_path}/{why}"
    assert [run.id for run in runs] == ["c5"]
    assert notes.left_out == [f"{tmp_path}/{why}"]


@pytest.mark.parametrize("name", ["runs.json", "runs.jsonl"])
def test_a_file_in_which_the_mapping_finds_no_run_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"runs: \$\['cases'\]\[\*\] of the mapping matches nothing in it; correct the path"):
        read("runs: $.cases[*]\nanswer: $.a", [{"a": "b"}], tmp_path, name)


def test_what_no_path_names_is_refused_until_it_is_left_out(tmp_path: Path) -> None:
    more: dict[str, Any] = {**CASES, "report": LONG}
    more["test_cases"][0]["thoughts"] = [LONG]

    for leave_out, missing in (("", "report"), ("leave_out: [$.report]", "thoughts"), ("leave_out: [$.thoughts]", "report")):
        with pytest.raises(InvalidRequest, match=missing):
            read(CASE_MAPPING + leave_out, more, tmp_path)
    _, notes = read(CASE_MAPPING + "leave_out: [$.report, '$.thoughts[*]']", more, tmp_path)

    assert notes.account.left_out == {"$.report": 117, "$.thoughts[*]": 117}


def test_a_mapping_that_only_leaves_out_stands_beside_a_format_that_is_known(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "At six."}]

    (run,), notes = read("leave_out: [$.report, '$.notes_of[*]']", {"messages": chat, "report": LONG, "notes_of": [LONG]}, tmp_path)

    assert said(run) == ["user text When?", "assistant text At six."]
    assert [name for _, name, _ in notes.formats] == ["messages"]


MISTAKES = {
    "answer: actual_output": "line 1, column 9: answer[0]: 'actual_output' is not a JSONPath: expected '$', found 'a'",
    "answer: $.a\ninput: [$.b, '$[']": "line 2, column 14: input[1]: '$[' is not a JSONPath: unbalanced brackets",
    "anwser: $.a": "line 1, column 1: unknown key 'anwser'. Did you mean 'answer'?",
    "runs: $.a": "the mapping says neither answer nor messages nor leave_out",
    "answer: $.a\ntools: {calls: $.t}": "tools: calls or name is missing; write tools: {calls",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_a_mapping_is_told_with_its_place(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(text, CASES, tmp_path)

    assert f"the mapping '{tmp_path}/mapping.yaml'" in str(refused.value)
    assert MISTAKES[text] in str(refused.value)
