"""The mappings of the examples, each on a sample of the shape that it is for: all that was said is shown, in its order."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.transcripts.mapping import read_mapping
from gradeloop.transcripts.readers import Reading, read_run_file
from tests.conftest import ROOT
from tests.docs.runner import block_of

LONG = "it says so because of what it was shown, of what the reference says, and of how the two of them are to be compared here."

MAPPINGS = {path.stem: path.read_text() for path in (ROOT / "examples/mappings").glob("*.yaml")}


def node(name: str, parent: str | None, role: str, content: dict[str, Any], at: float | None) -> dict[str, Any]:
    message = {"id": name, "author": {"role": role, "name": None}, "create_time": at, "content": content, "metadata": {"request": LONG}}
    return {"id": name, "message": message, "parent": parent, "children": []}


def said(*parts: str) -> dict[str, Any]:
    return {"content_type": "text", "parts": [*parts]}


SAMPLES: dict[str, tuple[str, Any, list[tuple[str, list[str]]]]] = {
    "chatgpt": (
        "conversations.json",
        [
            {
                "title": "Opening hours",
                "create_time": 10.0,
                "mapping": {
                    "root": {"id": "root", "message": None, "parent": None, "children": ["s"]},
                    "s": node("s", "root", "system", said(""), None),
                    "c": node("c", "b", "assistant", said(f"At six, {LONG}"), 14.0),
                    "a": node("a", "s", "user", said("When does it open?"), 11.0),
                    "b": node("b", "a", "assistant", {"content_type": "code", "language": "unknown", "text": "search('hours')"}, 12.0),
                    "t": node("t", "b", "tool", {"content_type": "execution_output", "text": "06:00"}, 13.0),
                },
                "current_node": "c",
                "conversation_id": "c-1",
            }
        ],
        [
            (
                "c-1",
                [
                    "system other empty_message ",
                    "user text When does it open?",
                    "assistant text search('hours')",
                    "tool tool_result unknown 06:00",
                    f"assistant text At six, {LONG}",
                ],
            )
        ],
    ),
    "helm": (
        "scenario_state.json",
        {
            "adapter_spec": {"method": "generation", "instructions": LONG},
            "request_states": [
                {
                    "instance": {
                        "input": {"text": f"When? {LONG}"},
                        "references": [{"output": {"text": f"six {LONG}"}, "tags": ["correct"]}],
                        "split": "test",
                        "id": "id7",
                    },
                    "train_trial_index": 0,
                    "request": {"model": "m", "prompt": f"Answer. Q: When? {LONG}\nA:", "temperature": 0.0, "max_tokens": 5},
                    "result": {
                        "success": True,
                        "completions": [{"text": " At six", "logprob": -1.0, "tokens": [{"text": " At", "logprob": -1}]}],
                    },
                }
            ],
        },
        [("id7-0", [f"user text Answer. Q: When? {LONG}\nA:", "assistant text  At six"])],
    ),
    "openai-evals": (
        "record.jsonl",
        [
            {"spec": {"completion_fns": ["m"], "eval_name": "e.dev.v0", "run_config": {"prompt": LONG}}},
            {
                "run_id": "r",
                "event_id": 0,
                "sample_id": "e.dev.1",
                "type": "sampling",
                "data": {
                    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "When?"}],
                    "sampled": ["At six."],
                },
            },
            {"run_id": "r", "event_id": 1, "sample_id": "e.dev.1", "type": "match", "data": {"correct": False, "sampled": LONG}},
            {"final_report": {"accuracy": 0.0, "said": LONG}},
        ],
        [("e.dev.1-0", ["system text Be brief.", "user text When?", "assistant text At six."])],
    ),
    "pydantic-evals": (
        "report.json",
        {
            "name": "hours",
            "cases": [
                {
                    "name": "one",
                    "inputs": {"question": "When?"},
                    "metadata": {"why": LONG},
                    "expected_output": f"six {LONG}",
                    "output": "At six.",
                    "metrics": {"cost": 0.1},
                    "assertions": {"judge": {"name": "judge", "value": True, "reason": LONG}},
                    "task_duration": 0.1,
                },
                {"name": "two", "inputs": "When?", "output": {"hour": 6}, "scores": {}},
            ],
            "failures": [{"name": "three", "error_stacktrace": LONG}],
        },
        [("one", ["user text When?", "assistant text At six."]), ("two", ["user text When?", 'assistant other answer {"hour": 6}'])],
    ),
    "weave": (
        "calls.jsonl",
        [
            {
                "id": f"call-{at}",
                "op_name": "weave:///e/p/op/openai.chat.completions.create:1",
                "inputs": {"model": "m", "messages": [{"role": "user", "content": f"When? {at}"}], "tools": [{"about": LONG}]},
                "output": {"choices": [{"index": 0, "message": {"role": "assistant", "content": f"At {at}."}}]},
                "summary": {"status": LONG},
            }
            for at in (5, 6)
        ],
        [(f"call-{at}", [f"user text When? {at}", f"assistant text At {at}."]) for at in (5, 6)],
    ),
    "promptfoo": (
        "results.json",
        {
            "evalId": "eval-1",
            "results": {
                "version": 3,
                "prompts": [{"raw": LONG, "label": "p"}],
                "results": [
                    {
                        "prompt": {"raw": "When does {{shop}} open?", "label": "p"},
                        "vars": {"shop": LONG},
                        "response": {"output": "At six.", "tokenUsage": {"total": 9}},
                        "gradingResult": {"pass": True, "score": 1, "reason": LONG},
                        "testCase": {"vars": {"shop": LONG}, "assert": [{"type": "contains", "value": "six"}]},
                        "testIdx": 2,
                        "promptIdx": 0,
                    }
                ],
                "stats": {"successes": 1},
            },
            "config": {"description": LONG, "prompts": [LONG]},
        },
        [("2-0", ["user text When does {{shop}} open?", "assistant text At six."])],
    ),
}


def test_every_mapping_has_a_sample_and_the_page_shows_one_of_them() -> None:
    shown = block_of("docs/transcripts.md", "yaml mapping helm").text

    assert set(MAPPINGS) == set(SAMPLES)
    assert shown in MAPPINGS["helm"]


@pytest.mark.parametrize("shape", SAMPLES)
def test_a_shape_is_read_whole_by_its_mapping(shape: str, tmp_path: Path) -> None:
    name, value, expected = SAMPLES[shape]
    (tmp_path / "mapping.yaml").write_text(MAPPINGS[shape])
    (tmp_path / name).write_text("\n".join(map(json.dumps, value)) if name.endswith("l") else json.dumps(value))
    reading = Reading(mapping=read_mapping(tmp_path / "mapping.yaml"), answered=True)

    runs = list(read_run_file(tmp_path / name, reading))

    shown = []
    for run in runs:
        records = [(message.role, part.record()) for _, _, message in run.placed() for part in message.records()]
        shown.append((run.id, [" ".join([role, *map(str, record.values())]) for role, record in records]))
    assert shown == expected
