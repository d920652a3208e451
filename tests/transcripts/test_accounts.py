"""The account of each record: what is shown, metadata or left out; a long text that no judge would be shown is refused by name."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.extensions import Extension
from gradeloop.transcripts.assemble import run_of
from gradeloop.transcripts.formats import Format
from gradeloop.transcripts.message_forms import messages_at
from gradeloop.transcripts.readers import Reading, read_run_file
from gradeloop.transcripts.registry import FORMATS
from tests.rig.extensions import install
from tests.rig.transcripts import SAMPLES

LONG = "The agent went on to write a report of several pages, in which it said what it had found, where, and how sure it was."
CHAT = [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "At six."}]


def read(value: Any, folder: Path, name: str = "run.json", **reading: Any) -> tuple[list[AgentRun], Reading]:
    """Return the runs of a value that is written to a file, by lines where the name says so, and the notes on it."""
    path, notes = folder / name, Reading(**reading)
    path.write_text("\n".join(map(json.dumps, value)) if name.endswith("l") else json.dumps(value, indent=1))
    return list(read_run_file(path, notes)), notes


def test_a_long_text_beside_messages_is_refused_with_file_line_path_and_cure(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read({"messages": CHAT, "final_report": LONG, "more": {"notes of it": [LONG + "."]}}, tmp_path)

    why = str(refused.value)
    assert why.startswith(f"{tmp_path}/run.json, line 12: final_report: this text of 117 characters would be shown to no judge: 'The agent")
    assert why.endswith(
        "name it in a mapping file (--mapping FILE), or list it under its leave_out: $.final_report, $.more['notes of it'][*]"
    )


@pytest.mark.parametrize("text", ["x" * 500, "Of several words, but no longer than eighty characters, as names are.", 7, None, ""])
def test_ids_numbers_and_short_texts_beside_messages_are_read_as_before(tmp_path: Path, text: object) -> None:
    (run,), notes = read({"messages": CHAT, "final_report": text}, tmp_path)

    assert [message.content for message in run.transcripts[0].messages] == ["When?", "At six."]
    assert notes.account.values["shown"] == 4


@pytest.mark.parametrize("key", ["metadata", "tools", "reference_answer", "rubric", "explanation"])
def test_what_is_about_a_run_in_any_format_is_metadata_however_long_it_is(tmp_path: Path, key: str) -> None:
    (run,), notes = read({"messages": CHAT, key: {"inner": LONG}}, tmp_path)

    assert LONG in json.dumps(run.metadata)
    assert (notes.account.values["metadata"], notes.account.characters["metadata"]) == (1, 117)


def test_what_a_message_says_in_another_layout_is_shown(tmp_path: Path) -> None:
    spaced = {"role": "assistant", "content": [{"type": "text", "text": LONG}, {"type": "text", "text": "Done."}]}
    call = {"id": "c", "function": {"name": "write", "arguments": json.dumps({"pages": [{"text": LONG + ' "So it is."\n'}]})}}
    _, notes = read({"messages": [*CHAT, spaced, {"role": "assistant", "tool_calls": [call]}]}, tmp_path)

    assert notes.account.characters["shown"] > 2 * len(LONG)
    assert max(notes.account.left_out.values(), default=0) < 10


def test_what_a_shown_text_says_as_json_is_shown(tmp_path: Path) -> None:
    said = json.dumps({"summary": f"{LONG}\n{LONG}"})

    _, notes = read({"messages": [CHAT[0], {"role": "assistant", "content": said}], "parsed": json.loads(said)}, tmp_path)

    assert notes.account.values == {"shown": 5}


def test_every_value_of_a_record_is_counted_once(tmp_path: Path) -> None:
    _, notes = read({"id": "r", "messages": CHAT, "score": 1, "usage": {"tokens": 9}, "flag": None}, tmp_path)

    assert sum(notes.account.values.values()) == 7


def test_what_a_sample_says_in_a_new_place_is_refused_shown_or_metadata_by_name(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, sample in SAMPLES.items():
        value = json.loads(json.dumps(sample))
        first = value if isinstance(value, dict) else value[0]
        first["narrative"] = LONG
        with subtests.test(name=name):
            runs, notes = read(value, tmp_path, skip_bad=True)
            is_shown = any(LONG in message.model_dump_json() for run in runs for _, _, message in run.placed())
            assert is_shown or any("narrative" in text for text in notes.left_out)


def test_a_text_beside_the_list_whose_items_are_runs_is_refused_too(tmp_path: Path) -> None:
    log = {**SAMPLES["tau2"], "narrative": LONG}

    with pytest.raises(InvalidRequest, match=r"line \d+: narrative: this text of 117 characters would be shown to no judge"):
        read(log, tmp_path)


def test_retrieved_contexts_are_shown_between_question_and_answer(tmp_path: Path) -> None:
    (run,), _ = read([{"user_input": "When?", "response": "At six.", "retrieved_contexts": [LONG], "reference": LONG}], tmp_path)

    assert [part.record()["text"] for _, _, message in run.placed() for part in message.records()] == ["When?", f'["{LONG}"]', "At six."]
    assert run.metadata == {"reference": LONG}


def test_a_record_that_is_refused_costs_that_record_alone(tmp_path: Path) -> None:
    rows = [{"messages": CHAT}, {"messages": CHAT, "report": LONG}, {"messages": CHAT}]

    runs, notes = read(rows, tmp_path, "runs.jsonl", skip_bad=True)

    assert [run.id for run in runs] == ["runs-1", "runs-3"]
    assert [text.partition("report: ")[0] for text in notes.left_out] == [f"{tmp_path}/runs.jsonl, line 2: "]


def parse(value: dict[str, Any], name: str) -> Iterator[AgentRun]:
    yield run_of(name, messages_at(value, "acme_turns"))


ROWS = (Format("acme log", lambda value: "acme" if "acme_turns" in value else None, parse, unshown=r"audit|x_\w+"),)


def test_a_format_names_the_keys_that_it_leaves_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, FORMATS, Extension("acme", kinds={"formats": f"{__name__}:ROWS"}))
    named = {"acme_turns": CHAT, "audit": {"log": [LONG]}, "x_trail": LONG}

    _, notes = read(named, tmp_path)

    assert notes.account.left_out == {"$.audit.log[*]": 117, "$.x_trail": 117}
    with pytest.raises(InvalidRequest, match="trail"):
        read({**named, "trail": LONG}, tmp_path)


def test_a_plain_text_is_shown_whole(tmp_path: Path) -> None:
    (tmp_path / "answer.md").write_text(f'[{{"it is": "{LONG}"}}]')
    notes = Reading()

    assert len(list(read_run_file(tmp_path / "answer.md", notes))) == 1
    assert (notes.account.values, notes.account.characters["shown"]) == ({"shown": 1}, 132)


def test_what_an_agent_of_openhands_was_told_beside_its_prompt_is_shown(tmp_path: Path) -> None:
    prompt = {"kind": "SystemPromptEvent", "source": "agent", "system_prompt": {"text": "Be brief."}, "dynamic_context": {"text": LONG}}
    said = {"kind": "MessageEvent", "source": "user", "llm_message": {"role": "user", "content": [{"type": "text", "text": "When?"}]}}

    (run,), _ = read([prompt, said], tmp_path)

    assert [message.content for _, _, message in run.placed()] == [f"Be brief.\n\n{LONG}", "When?"]


REAL: dict[str, Any] = {
    "an evaluation of OpenHands": {
        "instance_id": "i",
        "instance": {"problem_statement": LONG, "patch": LONG},
        "test_result": {"git_patch": LONG},
        "history": [
            {"id": 0, "source": "user", "action": "message", "args": {"content": "Fix it."}, "message": "Fix it."},
            {
                "id": 1,
                "source": "agent",
                "action": "run",
                "args": {"command": f"echo {LONG}"},
                "message": f"Running command: echo {LONG}",
                "tool_call_metadata": {"tool_call_id": "c", "model_response": {"said": LONG}},
            },
            {
                "id": 2,
                "source": "agent",
                "observation": "run",
                "content": "done",
                "cause": 1,
                "message": f"Command `echo {LONG}` executed.",
            },
        ],
    },
    "a simulation of tau2": {
        **SAMPLES["tau2"],
        "info": {"policy": LONG},
        "simulations": [
            {**one, "reward_info": {"nl_assertions": [{"nl_assertion": LONG, "justification": LONG}]}}
            for one in SAMPLES["tau2"]["simulations"]
        ],
    },
    "a span of Langfuse that is no call": [
        {"id": "g", "traceId": "t", "type": "GENERATION", "startTime": "1", "input": "When?", "output": "At six."},
        {"id": "s", "traceId": "t", "type": "SPAN", "name": "plan", "startTime": "2", "input": {"plan": LONG}, "output": LONG},
    ],
    "a workflow of OpenLLMetry": [
        {
            "name": name,
            "context": {"trace_id": "t", "span_id": name},
            "start_time": "1",
            "attributes": attributes,
        }
        for name, attributes in (
            ("w", {"traceloop.entity.input": json.dumps({"args": [LONG]}), "process.command": f"python {LONG}"}),
            ("c", {"gen_ai.input.messages": json.dumps(CHAT[:1]), "gen_ai.output.messages": json.dumps(CHAT[1:])}),
        )
    ],
}


@pytest.mark.parametrize("name", REAL)
def test_what_formats_have_beside_their_messages_is_left_out_by_name(name: str, tmp_path: Path) -> None:
    runs, notes = read(REAL[name], tmp_path)

    assert runs
    assert notes.account.characters["left_out"] + notes.account.characters["metadata"] > len(LONG)
