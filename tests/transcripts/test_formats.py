"""The formats of runs, in small samples after what their makers publish: what becomes which record."""

import itertools
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.judges.prompt import render_run
from gradeloop.transcripts.readers import Reading, distinct_ids, read_run_file
from gradeloop.transcripts.registry import PEEKED, UnreadableMessage, detect, parse_runs
from tests.rig.judging import spoiled
from tests.rig.transcripts import FORMATS, SAMPLES

Record = tuple[str, str, str]


def records_of(run: AgentRun) -> list[Record]:
    """Return role, type and text of every record."""
    return [
        (message.role, part.type, str(part.record()["text"]))
        for transcript in run.transcripts
        for message in transcript.messages
        for part in message.records()
    ]


def parsed(value: object) -> AgentRun:
    """Return the one run of a value."""
    (run,) = parse_runs(value, "r")
    return run


def attributes(**values: object) -> list[dict[str, object]]:
    """Return attributes as OTLP writes them; `__` stands for a dot."""
    return [{"key": key.replace("__", "."), "value": {"stringValue": value}} for key, value in values.items()]


def span(name: str, start: int, **values: object) -> dict[str, object]:
    """Return a span as OTLP writes it."""
    return {"traceId": "t1", "spanId": f"s{start}", "name": name, "startTimeUnixNano": str(start), "attributes": attributes(**values)}


LOOKED: list[Record] = [("user", "text", "q"), ("assistant", "tool_call", '{"a": 1}'), ("tool", "tool_result", "found")]
ANSWERED: list[Record] = [("user", "text", "q"), ("assistant", "text", "Paris")]
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}


def test_a_sample_gives_the_records_that_it_holds() -> None:
    found = {name: [record for run in parse_runs(value, "r") for record in records_of(run)] for name, value in SAMPLES.items()}

    assert found == {name: [tuple(record) for record in sample["records"]] for name, sample in FORMATS.items()}


def test_a_judge_is_shown_all_that_a_sample_says() -> None:
    for name, value in SAMPLES.items():
        for run in parse_runs(value, "r"):
            shown = [json.loads(line) for line in render_run(run, "0f" * 16).splitlines() if not line.startswith("===")]
            assert [record["text"] for record in shown if "block" in record] == [text for *_, text in records_of(run)], name


def test_a_detector_names_what_it_took_and_why() -> None:
    named = {name: (sample["format"], sample["why"]) for name, sample in FORMATS.items() if "why" in sample}
    found = {name: detect(SAMPLES[name]) for name in named}

    assert {name: (one.format.name, one.why) for name, one in found.items()} == named


def broken(value: Any, step: int) -> Iterator[str]:
    """Yield what is said of each value in which one part is something else, or of every second, third, ... one."""
    for bad in itertools.islice(spoiled(value), 0, None, step):
        try:
            list(parse_runs(bad, "r"))
        except UnreadableMessage as error:
            yield str(error)


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a_part_that_is_something_else_is_read_or_refused_in_a_sentence(step: int) -> None:
    sentences = [(name, text) for name, value in SAMPLES.items() for text in broken(value, step)]

    assert [(name, text) for name, text in sentences if "pydantic" in text or "has not the shape" in text or not text] == []


def test_is_error_and_redaction_are_kept() -> None:
    results = [part for message in parsed(SAMPLES["vercel_v4"]).transcripts[0].messages for part in message.records()]
    reasoning = parsed(SAMPLES["responses"]).transcripts[0].messages[0].records()[0]

    assert [getattr(part, "is_error", None) for part in results if part.type == "tool_result"] == [False, True]
    assert reasoning.record() == {"type": "reasoning", "redacted": True, "text": ""}
    assert "CIPHER" not in parsed(SAMPLES["responses"]).model_dump_json()


def test_what_no_record_shows_is_kept_as_metadata() -> None:
    part = {"type": "output_text", "text": "Paris", "annotations": [{"type": "url_citation", "url": "http://u"}]}
    (message,) = parsed([{"role": "assistant", "content": [part], "phase": "final"}]).transcripts[0].messages

    assert message.metadata == {"phase": "final", "parts": [{"part": 0, "annotations": part["annotations"]}]}


def test_of_a_trace_what_is_no_conversation_is_kept_as_metadata() -> None:
    steps = {"type": "SPAN", "name": "plan", "startTime": "1"}
    run = parsed(
        {"id": "t", "input": {"messages": [{"role": "user", "content": "q"}], "user": "ann"}, "output": "Paris", "observations": [steps]}
    )
    system = {"role": "system", "content": "S"}
    call = {"run_type": "llm", "inputs": {"messages": [system, {"role": "user", "content": "q"}]}, "outputs": {"output": "Paris"}}
    chain = {"run_type": "chain", "name": "plan", "inputs": {}, "outputs": {}, "child_runs": [call]}
    outputs = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Paris"}], "report": "long"}
    smith = parsed({"id": "r", "run_type": "chain", "inputs": {}, "outputs": outputs, "child_runs": [chain]})

    assert records_of(run) == ANSWERED
    assert run.metadata == {"input beside": {"user": "ann"}}
    assert records_of(smith) == [("system", "text", "S"), *ANSWERED]
    assert smith.metadata["outputs"] == {"report": "long"}


def test_a_question_and_its_answer_that_the_calls_below_hold_are_no_second_conversation() -> None:
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}]
    chat += [{"role": "tool", "tool_call_id": "c", "content": "found"}]
    call = {
        "run_type": "llm",
        "inputs": {"messages": chat},
        "outputs": {"choices": [{"message": {"role": "assistant", "content": "Paris"}}]},
    }
    run = parsed({"id": "r", "run_type": "chain", "inputs": {"question": "q"}, "outputs": {"output": "Paris"}, "child_runs": [call]})

    assert (records_of(run), len(run.transcripts)) == ([*LOOKED, ("assistant", "text", "Paris")], 1)


def langfuse_span(kind: str, given: object, output: object, start: str, name: str = "step") -> dict[str, object]:
    """Return a span as Langfuse's SDK exports it."""
    attributes = {"type": kind, "input": json.dumps(given), "output": output if isinstance(output, str) else json.dumps(output)}
    named = {f"langfuse.observation.{key}": value for key, value in attributes.items()}
    return {"name": name, "context": {"trace_id": "0x1", "span_id": start}, "start_time": start, "attributes": named}


def test_generations_of_langfuses_sdk_are_the_conversation_and_a_tool_that_it_holds_is_not_said_twice() -> None:
    chat = [{"role": "user", "content": "q"}]
    call = {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}
    tool = "look"
    spans = [
        langfuse_span("agent", {"args": ["q"], "kwargs": {}}, "Paris", "1"),
        langfuse_span("generation", {"messages": chat, "tools": []}, call, "2"),
        langfuse_span("tool", {"args": ["Paris"]}, "found", "3", tool),
    ]
    answered = [*chat, call, {"role": "tool", "tool_call_id": "c", "content": "found"}]
    last = langfuse_span("generation", {"messages": answered}, {"role": "assistant", "content": "Paris"}, "4")
    unseen = langfuse_span("tool", {"args": ["Paris"]}, "found again", "5", tool)

    assert records_of(parsed([*spans, last])) == [*LOOKED, ("assistant", "text", "Paris")]
    assert records_of(parsed([*spans, last, unseen]))[-1] == ("tool", "tool_result", "found again")


def test_log_records_of_one_call_are_one_conversation() -> None:
    question = ("gen_ai.user.message", {"content": "q"})
    call = ("gen_ai.choice", {"message": {"role": "assistant", "tool_calls": [CHAT_CALL]}})
    again = ("gen_ai.assistant.message", {"tool_calls": [CHAT_CALL]})
    result = ("gen_ai.tool.message", {"content": "found", "id": "c"})
    answer = ("gen_ai.choice", {"message": {"role": "assistant", "content": "Paris"}})
    said = [("0xa", question), ("0xa", call), *(("0xb", event) for event in (question, again, result, answer))]
    records: list[dict[str, object]] = [
        {"event_name": name, "body": body, "attributes": {}, "timestamp": str(place), "trace_id": "0x1", "span_id": span}
        for place, (span, (name, body)) in enumerate(said)
    ]
    spans = [{"name": "chat m", "context": {"trace_id": "0x1", "span_id": span}, "attributes": {}} for span in ("0xa", "0xb")]

    assert records_of(parsed(records)) == [*LOOKED, ("assistant", "text", "Paris")]
    assert records_of(parsed([*spans, *records])) == [*LOOKED, ("assistant", "text", "Paris")]


def test_subagents_have_transcripts_of_their_own() -> None:
    run = parsed(SAMPLES["claude_code"])

    assert [transcript.id for transcript in run.transcripts] == ["main", "a1"]
    assert (run.id, run.metadata["summary"]) == ("s", "About France")


def test_docents_transcripts_are_in_the_order_in_which_they_were_created() -> None:
    said = [{"role": "user", "content": "q"}]
    transcripts = [{"id": at, "created_at": f"2026-01-0{at}T00:00:00Z", "messages": said} for at in ("3", "1", "2")]

    assert [transcript.id for transcript in parsed({"id": "r", "transcripts": transcripts}).transcripts] == ["1", "2", "3"]


NOTHING: dict[str, tuple[object, str]] = {
    "empty messages": ({"messages": [{"role": "user", "content": ""}]}, "nothing is said in the run 'r': its 1 messages are empty"),
    "a failed request": (
        {"custom_id": "x", "response": {"status_code": 500, "body": {"error": {"message": "it broke"}}}},
        "the request 'x' failed, so that nothing was said: 'it broke'",
    ),
    "an errored sample": (
        {"eval": {"task": "t"}, "samples": [{"id": 1, "messages": [], "error": {"message": "it broke"}}]},
        "the sample ended with an error before anything was said: 'it broke'",
    ),
    "an errored log": (
        {"eval": {"task": "t"}, "plan": {}, "status": "error", "error": {"message": "it broke"}},
        "the log of 't' has no samples, since the evaluation ended with error: 'it broke'",
    ),
    "spans without content": (
        {"resourceSpans": [{"scopeSpans": [{"spans": [span("chat", 1, gen_ai__system="openai")]}]}]},
        "no span holds messages (chat); record them",
    ),
    "an unknown speaker": ({"conversations": [{"from": "robot", "value": "x"}]}, "the speaker is 'robot'; known: human"),
}


def test_a_run_in_which_nothing_is_said_is_refused_by_name() -> None:
    for name, (value, words) in NOTHING.items():
        with pytest.raises(UnreadableMessage) as caught:
            parsed(value)

        assert words in str(caught.value), name


INSPECT = {
    "eval": {"task": "t", "model": "m"},
    "samples": [
        {
            "id": 1,
            "messages": [
                {"role": "user", "content": "q"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "reasoning", "reasoning": "x", "redacted": True, "summary": "hm"},
                        {
                            "type": "tool_use",
                            "tool_type": "web_search",
                            "id": "w",
                            "name": "search",
                            "arguments": '{"a": 1}',
                            "result": "found",
                        },
                    ],
                },
            ],
            "scores": {"match": {"value": "NaN_HERE", "answer": "x"}},
            "error": {"message": "it broke", "traceback": "..."},
            "limit": {"type": "token", "limit": 5},
        },
        {
            "id": 2,
            "messages": [],
            "events": [
                {
                    "event": "model",
                    "input": [{"role": "user", "content": "q"}],
                    "output": {"choices": [{"message": {"role": "assistant", "content": "Paris"}}]},
                }
            ],
        },
    ],
}


def test_an_inspect_log_keeps_hosted_tools_errors_limits_and_unscored_scores(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(INSPECT).replace('"NaN_HERE"', "NaN"))

    first, second = read_run_file(path)

    assert records_of(first) == [
        ("user", "text", "q"),
        ("assistant", "reasoning", "hm"),
        ("assistant", "tool_call", '{"a": 1}'),
        ("assistant", "tool_result", "found"),
        ("system", "error", "it broke"),
        ("system", "other", '{"type": "token", "limit": 5}'),
    ]
    assert first.metadata["scores"] == {"match": {"answer": "x", "value": None, "unscored": True}}
    assert records_of(second) == ANSWERED


def test_lines_and_values_behind_each_other_are_one_session(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, SAMPLES["codex"])))
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps(row, indent=2) for row in SAMPLES["phoenix"]))
    (tmp_path / "c.json").write_text("\n".join(json.dumps(row, indent=2) for row in SAMPLES["phoenix"]))

    (codex,) = read_run_file(tmp_path / "a.jsonl")

    assert records_of(codex) == [tuple(record) for record in FORMATS["codex"]["records"]]
    for name in ("b.jsonl", "c.json"):
        (phoenix,) = read_run_file(tmp_path / name)
        assert records_of(phoenix) == LOOKED


def one_run_of_lines() -> dict[str, list[Any]]:
    """Return the formats of which each line of a file is a part of one run, with a long session whose beginning tells what it is."""
    found = {name: rows for name, rows in SAMPLES.items() if isinstance(rows, list) and len(rows) > 1}
    turns = [row for row in found["claude_code"] if row["type"] in {"user", "assistant"}]
    long = [{**turns[at % len(turns)], "uuid": f"u{at}", "parentUuid": f"u{at - 1}" if at else None} for at in range(60)]
    return found | {"long": long}


def test_a_bad_line_among_the_lines_of_one_run_is_named_and_may_be_left_out(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for bad, name in itertools.product(("{}", '{"neither": 1}', "7", '"text"', "{oops"), one_run_of_lines()):
        with subtests.test(bad=bad, name=name):
            rows = one_run_of_lines()[name]
            path = tmp_path / "run.jsonl"
            path.write_text("\n".join(map(json.dumps, rows)))
            whole = [len(run.transcripts) for run in read_run_file(path)]
            for at in sorted({0, 1, len(rows) - 1, len(rows)}):
                lines = [*map(json.dumps, rows)]
                lines[at:at] = ["", bad]
                path.write_text("\n".join(lines))
                reading = Reading(skip_bad=True)

                with pytest.raises(InvalidRequest, match=rf"run\.jsonl, line {at + 2}: "):
                    list(read_run_file(path))
                if bad == "{oops" or (bad.startswith("{") and at < PEEKED and name != "langchain_tools"):  # of messages none is left out
                    assert [len(run.transcripts) for run in read_run_file(path, reading)] == whole
                    assert [text.partition(": ")[0] for text in reading.left_out] == [f"{path}, line {at + 2}"]


def test_lines_that_are_runs_of_several_formats_are_read_each_on_its_own(tmp_path: Path) -> None:
    rows = [SAMPLES["langfuse_observations"], SAMPLES["fine_tuning"], SAMPLES["pair"]]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))

    assert len(list(read_run_file(tmp_path / "a.jsonl"))) == len(rows)


def test_bad_runs_are_left_out_of_lines_lists_and_logs(tmp_path: Path) -> None:
    good, bad = SAMPLES["fine_tuning"], {"messages": [{"role": "robot"}]}
    log = {"eval": {"task": "t"}, "samples": [INSPECT["samples"][1], {"id": 3}]}  # type: ignore[index]  # the log above
    (tmp_path / "a.jsonl").write_text("\n".join([json.dumps(good), "{oops", json.dumps(bad), json.dumps(good)]))
    (tmp_path / "b.json").write_text(json.dumps([good, bad]))
    (tmp_path / "c.json").write_text(json.dumps(log))
    reading = Reading(skip_bad=True)

    runs = [run.id for name in ("a.jsonl", "b.json", "c.json") for run in read_run_file(tmp_path / name, reading)]

    assert runs == ["a-1", "a-4", "b-1", "t-2"]
    assert [text.removeprefix(f"{tmp_path}/").partition(": ")[0] for text in reading.left_out] == [
        "a.jsonl, line 2",
        "a.jsonl, line 3",
        "b.json, line 1",
        "c.json, line 1",
    ]
    assert (reading.runs, reading.share_left_out) == (4, 0.5)
    assert "[1].messages[0].role: the role is 'robot'" in reading.left_out[2]
    assert "samples[1]: \"{'id': 3}\" is not a sample" in reading.left_out[3]
    with pytest.raises(InvalidRequest, match=r"a\.jsonl, line 2: no JSON"):
        list(read_run_file(tmp_path / "a.jsonl"))


def test_two_logs_of_one_task_do_not_collide(tmp_path: Path) -> None:
    paths = [tmp_path / folder / name for folder, name in (("x", "log.json"), ("y", "log.json"), ("y", "other.json"))]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"eval": {"task": "t" if path.stem == "log" else "u"}, "samples": INSPECT["samples"][1:]}))  # type: ignore[index]  # the log above

    runs = distinct_ids([(path, list(read_run_file(path))) for path in paths])

    assert [run.id for run in runs] == ["x/log/t-2", "y/log/t-2", "u-2"]


def test_rows_of_one_prompt_have_ids_of_their_own(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "prompt_id": "p", "completion": text} for text in ("Paris", "Lyon")]
    (tmp_path / "h.jsonl").write_text("\n".join(map(json.dumps, rows)))

    first, second = read_run_file(tmp_path / "h.jsonl")

    assert first.id == "p"
    assert second.id.startswith("p-")


@pytest.mark.slow
def test_ten_megabytes_of_thirty_thousand_messages_are_read(tmp_path: Path) -> None:
    line = json.dumps({"role": "user", "content": "x" * 300})
    (tmp_path / "long.jsonl").write_text("\n".join([line] * 30_000))

    (run,) = read_run_file(tmp_path / "long.jsonl")

    assert len(run.transcripts[0].messages) == 30_000


@pytest.mark.slow
def test_runs_of_lines_are_read_one_at_a_time_in_little_memory(tmp_path: Path) -> None:
    line = json.dumps({"messages": [{"role": "user", "content": "x" * 20_000}]})
    with (tmp_path / "many.jsonl").open("w") as file:
        for _ in range(1_000):
            file.write(line + "\n")

    tracemalloc.start()
    try:
        count = sum(1 for _ in read_run_file(tmp_path / "many.jsonl"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert count == 1_000
    assert most < 8 * 1024 * 1024, "the file has 20 MB"


def test_a_line_that_is_no_utf8_is_left_out_alone(tmp_path: Path) -> None:
    good = json.dumps({"messages": [{"role": "user", "content": "q"}]}).encode()
    (tmp_path / "lines.jsonl").write_bytes(b"\xef\xbb\xbf" + good + b"\r\n\xff\xfe\r\n\r\n" + good + b"\r\n")
    reading = Reading(skip_bad=True)

    found = list(read_run_file(tmp_path / "lines.jsonl", reading))

    assert [run.id for run in found] == ["lines-1", "lines-4"]
    assert reading.left_out == [f"{tmp_path / 'lines.jsonl'}, line 2: byte 0xff is not UTF-8; save the file as UTF-8"]


def test_scores_of_which_a_part_is_unscored_say_which(tmp_path: Path) -> None:
    log = json.loads(json.dumps(INSPECT))
    log["samples"][0]["scores"] = {"parts": {"value": {"a": "NaN_HERE", "b": 1}}, "rows": {"value": ["NaN_HERE", 0.5]}}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log).replace('"NaN_HERE"', "NaN"))

    first, *_ = read_run_file(path)

    assert first.metadata["scores"] == {
        "parts": {"value": {"a": None, "b": 1}, "unscored": ["a"]},
        "rows": {"value": [None, 0.5], "unscored": [0]},
    }
