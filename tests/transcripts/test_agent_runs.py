"""Runs in files: every form that others write is read, and what cannot be read is told with file and line."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gradeloop.contract.transcript import AgentRun, draft_index, request_index, run_as_messages
from gradeloop.errors import InvalidRequest
from gradeloop.judges.prompt import blocks_of
from gradeloop.transcripts.readers import read_run_file, refuse_duplicate_ids
from gradeloop.transcripts.registry import line_of, parse_runs
from tests.rig.judging import spoiled
from tests.rig.provider_server import all_exchanges

ASKED = {"role": "user", "content": "What is the capital of France?"}
IMAGE = "data:image/png;base64,AAA="
SAID = {"role": "assistant", "content": "Paris."}


def read(folder: Path, name: str, content: object) -> list[AgentRun]:
    """Write a file and read it."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return list(read_run_file(path))


def texts_of(run: AgentRun) -> list[tuple[str, str]]:
    """Return role and text of each block."""
    return [(block.role, block.text) for block in blocks_of(run)]


def test_a_list_of_messages_is_one_run(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "paris.json", [ASKED, SAID])

    assert run.id == "paris"
    assert texts_of(run) == [("user", ASKED["content"]), ("assistant", "Paris.")]


def test_lines_of_messages_are_one_run_and_lines_of_runs_are_many(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(value) for value in (ASKED, SAID))
    runs = "\n".join(json.dumps({"id": name, "messages": [ASKED, SAID]}) for name in "ab")

    assert [run.id for run in read(tmp_path, "one.jsonl", lines)] == ["one"]
    assert [run.id for run in read(tmp_path, "many.jsonl", runs)] == ["a", "b"]


def test_runs_without_ids_are_named_from_their_file_and_place(tmp_path: Path) -> None:
    assert [run.id for run in read(tmp_path, "r.json", [{"messages": [ASKED]}, {"messages": [SAID]}])] == ["r-1", "r-2"]
    assert [run.id for run in read(tmp_path, "r.jsonl", '{"messages": [{"role": "user", "content": "x"}]}\n\n')] == ["r-1"]


INSPECT = {
    "version": 2,
    "status": "success",
    "eval": {"task": "bench/capitals", "model": "openai/gpt-5"},
    "samples": [
        {
            "id": 7,
            "epoch": 2,
            "target": "Paris",
            "scores": {"match": {"value": "C"}},
            "attachments": {"abc": "What is the capital of France?"},
            "messages": [
                {"role": "user", "content": "attachment://abc", "source": "input"},
                {
                    "role": "assistant",
                    "content": [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "Let me look."}],
                    "tool_calls": [{"id": "c", "function": "bash", "arguments": {"cmd": "ls"}, "type": "function"}],
                },
                {
                    "role": "tool",
                    "content": "",
                    "tool_call_id": "c",
                    "function": "bash",
                    "error": {"type": "timeout", "message": "too slow"},
                },
            ],
        }
    ],
}


@pytest.mark.parametrize("form", ["json", "eval"])
def test_an_inspect_log_is_a_run_a_sample_and_its_scores_are_metadata(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"log.{form}"
    if form == "json":
        path.write_text(json.dumps(INSPECT))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("header.json", json.dumps({"eval": INSPECT["eval"]}))
            archive.writestr("samples/7_epoch_2.json", json.dumps(INSPECT["samples"][0]))  # type: ignore[index]  # the log above
            archive.writestr("summaries.json", "[]")

    (run,) = read_run_file(path)

    assert run.id == "capitals-7-2"
    assert [text for _, text in texts_of(run)] == ["What is the capital of France?", 'hm\nLet me look.\nbash {"cmd": "ls"}', "\ntoo slow"]
    assert run.metadata["target"] == "Paris"
    assert [part.record() for part in run.transcripts[0].messages[2].records()] == [
        {"type": "tool_result", "call": "c", "name": "bash", "is_error": True, "text": ""},
        {"type": "error", "name": "timeout", "text": "too slow"},
    ]


RECORDED = Path(__file__).parents[1] / "runs"


def test_a_log_that_inspect_wrote_is_read() -> None:
    """Written by inspect-ai 0.3.285, compressed by zstandard, as it does by default."""
    first, second = read_run_file(RECORDED / "inspect.eval")

    assert (first.id, second.id) == ("capitals-2", "capitals-s1")
    assert texts_of(first) == [("user", "Capital?"), ("assistant", "Paris")]
    assert [role for role, _ in texts_of(second)] == ["user", "assistant", "tool", "assistant"]
    assert second.transcripts[0].messages[1].tool_calls[0].arguments == {"x": 1, "y": 1}
    assert second.metadata["target"] == "2"


def test_a_damaged_archive_is_told(tmp_path: Path) -> None:
    raw = bytearray((RECORDED / "inspect.eval").read_bytes())
    with zipfile.ZipFile(RECORDED / "inspect.eval") as archive:
        start = archive.getinfo("samples/s1_epoch_1.json").header_offset + 200
    raw[start : start + 100] = bytes(100)
    (tmp_path / "log.eval").write_bytes(raw)

    with pytest.raises(InvalidRequest, match=r"log\.eval, samples/s1_epoch_1\.json: damaged"):
        list(read_run_file(tmp_path / "log.eval"))


REQUESTS = {name: exchange.request for _, name, exchange in all_exchanges()}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_of_a_provider_is_read_with_all_that_it_says(name: str) -> None:
    (run,) = parse_runs(REQUESTS[name], "r")
    asked = {key: value for key, value in REQUESTS[name].items() if key != "tools"}
    sent, shown = json.dumps(asked), run.model_dump_json()

    assert run.transcripts[0].messages[0].role in {"system", "user"}
    assert [
        word
        for word in ("Be brief.", "Which gauge", "The user asks for one gauge.", "read_gauge", "1.1 m")
        if (word in sent) > (word in shown)
    ] == []


def test_a_run_that_docent_wrote_is_read() -> None:
    """Written by docent 0.1.88."""
    (run,) = read_run_file(RECORDED / "docent.json")

    assert [role for role, _ in texts_of(run)] == ["system", "user", "assistant", "tool", "assistant"]
    assert run.transcripts[0].messages[2].reasoning == "hm"
    assert run.metadata == {"name": "n", "scores": {"a": 1}}


def test_docents_agent_run_is_read_with_its_transcripts(tmp_path: Path) -> None:
    call = {"id": "c", "function": "search", "arguments": {"q": 1}, "type": "function", "view": None, "parse_error": None}
    value = {
        "id": "5e0f",
        "name": "a run",
        "description": None,
        "transcript_groups": [],
        "transcripts": [
            {
                "id": "t-1",
                "name": "main",
                "messages": [ASKED, {"role": "assistant", "content": "I look.", "tool_calls": [call]}],
                "metadata": {"k": 1},
            },
            {"id": "t-2", "messages": [{"role": "tool", "content": "x", "tool_call_id": None, "function": "search", "error": None}]},
        ],
        "metadata": {"scores": {"correct": 1}},
    }
    (run,) = read(tmp_path, "docent.json", value)

    assert (run.id, [transcript.id for transcript in run.transcripts]) == ("5e0f", ["t-1", "t-2"])
    assert run.transcripts[0].metadata == {"k": 1}
    assert run.metadata == {"name": "a run", "scores": {"correct": 1}}
    assert [block.label for block in blocks_of(run)] == ["T0B0", "T0B1", "T1B0"]


def test_what_we_write_we_read(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "r.json", {"messages": [ASKED, SAID], "metadata": {"a": 1}})

    assert read(tmp_path, "again.json", run.model_dump(mode="json")) == [run]


def test_plain_text_is_one_answer(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "essay.md", "# Title\n\nText.")

    assert (run.id, texts_of(run)) == ("essay", [("assistant", "# Title\n\nText.")])


BAD: dict[str, tuple[str, str, str]] = {
    "no JSON": ("r.json", '{"messages": [\n  {"role" "user"}\n]}', "r.json, line 2: no JSON: Expecting ':' delimiter"),
    "no JSON in a line": ("r.jsonl", '{"id": "a", "messages": [{"role": "user", "content": "x"}]}\n{oops', "r.jsonl, line 2: no JSON"),
    "an unknown role": (
        "r.json",
        '{\n "messages": [\n  {"role": "user", "content": "x"},\n  {"role": "robot", "content": "x"}\n ]\n}',
        "r.json, line 4: messages[1].role: the role is 'robot'; known: system, developer, user",
    ),
    "no message": (
        "r.json",
        '{"messages": [\n5]}',
        "r.json, line 2: messages[0]: '5' is not a message; write an object with role and content",
    ),
    "no content": ("r.json", '{"messages": [{"role": "user",\n"content": 5}]}', "r.json, line 2: messages[0].content: the content is '5'"),
    "no messages": ("r.json", '{"messages": []}', "r.json, line 1: messages: there are no messages; nothing can be judged"),
    "neither": ("r.json", '{"id": "a", "turns": []}', "line 1: the run has neither transcripts nor messages; its keys: id, turns"),
    "a number": ("r.json", "5", "r.json, line 1: '5' is not a run"),
    "no transcripts": ("r.json", '{"transcripts": []}', "transcripts: transcripts is not a list with something in it"),
    "a bad transcript": (
        "r.json",
        '{"transcripts": [\n{"messages": [\n{"role": "x"}]}]}',
        "line 3: transcripts[0].messages[0].role: the role",
    ),
    "a tool call without a name": (
        "r.jsonl",
        '{"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}',
        "r.jsonl, line 1: messages[0].tool_calls[0]: a tool call names no tool",
    ),
    "tool calls of a user": ("r.json", '[{"role": "user", "tool_calls": [{"name": "x"}]}]', "tool_calls belong to role 'assistant'"),
    "a bad line of messages": ("r.jsonl", '{"role": "user", "content": "x"}\n\n{"role": "x"}', "r.jsonl, line 3: the role is 'x'"),
    "a bad second run": ("r.json", '[{"messages": [{"role": "user", "content": "x"}]},\n {"x": 1}]', "r.json, line 2: [1]: the run has"),
    "a bad sample": ("r.json", '{"samples": [{"id": 1}]}', "samples[0]: \"{'id': 1}\" is not a sample of an Inspect log"),
    "two transcripts of one id": (
        "r.json",
        '{"transcripts": [{"id": "a", "messages": [{"role": "user"}]}, {"id": "a", "messages": [{"role": "user"}]}]}',
        "two transcripts have the id 'a'; give each its own",
    ),
    "metadata that is none": (
        "r.json",
        '{"messages": [{"role": "user"}], "metadata": [1]}',
        "metadata: metadata is '[1]'; write an object",
    ),
    "NaN": ("r.json", '{"messages": [{"role": "user", "content": "x"}], "metadata": {"a": NaN}}', "NaN is not JSON"),
    "half a character": ("r.json", '[{"role": "user", "content": "\\ud800"}]', "half of a surrogate pair"),
    "an empty file": ("r.json", " \n", "r.json is empty; there is nothing to judge"),
    "nested beyond reason": ("r.json", "[" * 100_000, "r.json, line 1:"),
    "no archive": ("r.eval", "text", "r.eval is not an archive that can be read here"),
}


def test_what_cannot_be_read_is_told_with_file_and_line(tmp_path: Path) -> None:
    for name, (file, content, message) in BAD.items():
        with pytest.raises(InvalidRequest) as caught:
            read(tmp_path, file, content)

        assert message in str(caught.value), name


CALL = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "t", "name": "search", "input": {"q": 1}}
FORMS: dict[str, Any] = {
    "chat": {
        "id": "r",
        "messages": [ASKED, {"role": "assistant", "content": "x", "tool_calls": [CALL], "name": "n"}],
        "metadata": {"a": 1},
    },
    "anthropic": {"system": "s", "messages": [{"role": "assistant", "content": [{"type": "text", "text": "x"}, USE]}]},
    "results": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]}]}],
    "responses": {"input": [{"type": "reasoning", "summary": [{"text": "x"}]}, {"type": "function_call", "call_id": "c", "name": "n"}]},
    "docent": {"id": "r", "transcripts": [{"id": "t", "name": "n", "messages": [SAID | {"metadata": {"k": 1}}], "metadata": {"k": 1}}]},
    "inspect": INSPECT,
}


@pytest.mark.parametrize("name", FORMS)
def test_a_part_that_is_something_else_is_read_or_told_and_never_a_bug(tmp_path: Path, name: str) -> None:
    sentences = []
    for value in spoiled(FORMS[name]):
        try:
            read(tmp_path, "r.json", json.dumps(value))
        except InvalidRequest as error:
            sentences.append(str(error))

    assert len(sentences) > 10
    assert [words for words in sentences if "r.json, line " not in words or "pydantic" in words] == []


def test_a_file_in_another_encoding_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_bytes(b"fine\ncaf\xe9")

    with pytest.raises(InvalidRequest, match=r"r\.txt, line 2: byte 0xe9 is not UTF-8"):
        list(read_run_file(tmp_path / "r.txt"))


def test_two_runs_of_one_id_are_refused() -> None:
    one = AgentRun.model_validate({"id": "a", "transcripts": [{"messages": [ASKED]}]})

    with pytest.raises(InvalidRequest, match="two runs have the id 'a'"):
        refuse_duplicate_ids([one, one])


def test_the_line_of_a_value_is_found_by_its_path() -> None:
    text = '{\n "a": {"x": "}],"},\n "b": [\n  1,\n  {"c":\n   2}]\n}'

    paths: list[list[int | str]] = [[], ["b"], ["b", 1], ["b", 1, "c"], ["b", 9], ["z"]]

    assert [line_of(text, path) for path in paths] == [1, 3, 5, 6, 3, 1]


def test_criteria_are_put_to_the_last_answer_in_words_and_see_all_that_came_after() -> None:
    call = {"id": "c", "name": "search", "arguments": {}}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        ASKED,
        SAID,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "x", "tool_call_id": "c"},
    ]
    log = run_as_messages(AgentRun.model_validate({"id": "r", "transcripts": [{"messages": messages}]}))

    assert [(message.role, message.source) for message in log[:2]] == [("user", "system"), ("user", None)]
    assert (draft_index(log), request_index(log, 2), len(log)) == (2, 1, 5)
