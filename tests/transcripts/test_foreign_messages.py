"""Messages and rows in the shapes that the published formats leave open: wrappers of APIs, states, variants of data sets."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.errors import InvalidRequest
from gradeloop.transcripts.readers import Reading, read_run_file
from tests.rig.transcripts import read_samples, shown, shown_value

Json = Any

U = {"role": "user", "content": "q"}
A = {"role": "assistant", "content": "A"}
QA = ["user text q", "assistant text A"]
GEMINI_Q = {"contents": [{"role": "user", "parts": [{"text": "q"}]}]}
GEMINI_A = {"candidates": [{"content": {"role": "model", "parts": [{"text": "A"}]}, "finishReason": "STOP"}]}
GENERATION = {"id": "g", "traceId": "t", "type": "GENERATION", "startTime": "1", "input": [U], "output": A}


def test_messages_are_read_whole(tmp_path: Path) -> None:
    samples = read_samples("messages")

    assert {name: shown_value(sample["value"], tmp_path) for name, sample in samples.items()} == {
        name: sample["shown"] for name, sample in samples.items()
    }


def test_what_holds_no_answer_is_refused_by_name(tmp_path: Path) -> None:
    for name, sample in read_samples("refused_messages").items():
        with pytest.raises(InvalidRequest) as refused:
            shown_value(sample["value"], tmp_path)

        assert sample["refused"] in str(refused.value), name


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000])
def test_a_text_of_brackets_is_a_text(deep: str, tmp_path: Path) -> None:
    calls = [{"id": "c", "function": {"name": "f", "arguments": deep}}]
    turn = {"from": "function_call", "value": deep}
    generation = {**GENERATION, "input": deep}
    for number, value in enumerate(([{"role": "assistant", "tool_calls": calls}], {"conversations": [turn]}, [generation])):
        (tmp_path / f"{number}.json").write_text(json.dumps(value), encoding="utf-8")

        assert deep in shown(tmp_path / f"{number}.json")[0]


def test_what_stands_beside_messages_is_metadata(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"messages": [U, A], "model": "m", "termination_reason": "stop", "output": "B"}))
    (tmp_path / "gemini.json").write_text(json.dumps(GEMINI_Q | GEMINI_A), encoding="utf-8")

    (run,) = read_run_file(tmp_path / "run.json", Reading())
    (gemini,) = read_run_file(tmp_path / "gemini.json", Reading())

    assert run.metadata == {"model": "m", "termination_reason": "stop", "output": "B"}
    assert gemini.transcripts[0].messages[-1].metadata == {"finishReason": "STOP"}


@pytest.mark.parametrize("value", [{"messages": [U, A]}, [U, A]])
def test_one_value_over_several_lines_is_read_from_a_file_of_lines(value: Json, tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text(json.dumps(value, indent=2), encoding="utf-8")

    assert shown(tmp_path / "run.jsonl") == QA


def test_lists_one_behind_the_other_are_a_run_each(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text("\n".join([json.dumps([U, A])] * 2), encoding="utf-8")

    assert shown(tmp_path / "runs.json") == [*QA, "--", *QA]
