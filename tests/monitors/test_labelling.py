"""People label the runs of a monitor without seeing the verdicts, and what they say measures its judge."""

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import JudgeResult, parse_judge
from gradeloop.judges.judgements import read_labels
from gradeloop.monitors.cli.monitor import agreement_of, as_labels
from gradeloop.monitors.contract import MonitorDefinition
from gradeloop.monitors.labelling import LabelledRun, MonitorLabels, WaitingLabels, label_value
from gradeloop.monitors.overview import labels_text
from tests.monitors.test_monitoring import watched
from tests.rig.batches import fails, passes


@pytest.mark.slow
async def test_failed_runs_and_as_many_that_passed_wait_for_a_label_and_the_task_has_no_verdict(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, fails("bad"), passes()) as monitor:
        labels = MonitorLabels(monitor.batches.store)
        monitor.write("a.jsonl", *(f"good {number}" for number in range(6)))
        monitor.write("b.jsonl", "x", "y", said="bad")
        await monitor.tick()
        seen, waiting = list[str](), list[int]()
        while (task := await labels.next_task(monitor.name, "ada")) is not None:
            seen.append(task.run_id)
            waiting.append(task.waiting)
            assert not {"verdict", "judgement", "passed"} & task.model_dump().keys()
            assert [message.role for message in task.messages] == ["user", "assistant"]
            await labels.give(monitor.name, task.run_sha256, "ada", passed=task.run_id != "y", reason="read it")
        other = await labels.next_task(monitor.name, "bob")
        given = await labels.given(monitor.name)
        definition = (await monitor.reader.require(monitor.name)).definition
        found = agreement_of(definition, given)

    assert waiting == [4, 3, 2, 1]
    assert {"x", "y"} < set(seen)
    assert other is not None
    assert other.waiting == 4
    assert len(given) == 4
    assert (found.judged, found.labels) == (4, 4)
    assert [row.agent_run_id for row in found.disagreements] == ["x"]


@pytest.mark.slow
async def test_every_monitor_with_runs_to_label_is_listed_and_one_whose_runs_have_labels_is_not(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, fails("bad"), passes()) as monitor:
        labels = MonitorLabels(monitor.batches.store)
        nothing_yet = await labels.waiting(None)
        monitor.write("a.jsonl", *(f"good {number}" for number in range(3)))
        monitor.write("b.jsonl", "x", said="bad")
        await monitor.tick()
        before = await labels.waiting("ada")
        while (task := await labels.next_task(monitor.name, "ada")) is not None:
            await labels.give(monitor.name, task.run_sha256, "ada", passed=True)
        hers, others, anybody = [await labels.waiting(person) for person in ("ada", "bob", None)]

    assert nothing_yet == []
    assert before == others == [WaitingLabels(monitor=monitor.name, runs=2)]
    assert hers == anybody == []


@pytest.mark.slow
async def test_labels_correct_the_rate_by_the_runs_that_each_stands_for(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, fails("bad"), passes()) as monitor:
        labels = MonitorLabels(monitor.batches.store)
        monitor.write("a.jsonl", *(f"good {number}" for number in range(30)))
        monitor.write("b.jsonl", *(f"x {number}" for number in range(10)), said="bad")
        await monitor.tick()
        for number in range(10):
            await labels.give(monitor.name, f"good {number}", "ada", passed=number > 0)
        few, mark = await monitor.reader.summary(monitor.name), await monitor.reader.mark(monitor.name)
        for number in range(10):
            await labels.give(monitor.name, f"x {number}", "ada", passed=number < 5)
        for passed, person in ((True, "bob"), (False, "eve")):
            await labels.give(monitor.name, "good 29", person, passed=passed)
        found = await monitor.reader.summary(monitor.name)

        assert (few.labelled, "10 of each say what they would pass of all" in labels_text(few)) == (None, True)
        assert await monitor.reader.mark(monitor.name) != mark
        assert found.labels.model_dump() == {"of_passed": 10, "right_passes": 9, "of_failed": 10, "wrong_fails": 5}
        assert found.labelled is not None
        assert found.labelled.raw == 0.75
        assert found.labelled.value == pytest.approx(0.75 * 0.9 + 0.25 * 0.5)
        said = "people pass 9 of 10 that the judge passed, and 5 of 10 that it failed"
        assert labels_text(found).startswith("labels: people would pass 80%"), labels_text(found)
        assert said in labels_text(found)


async def test_a_person_who_says_otherwise_replaces_the_label_and_what_was_not_judged_has_none(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, fails("bad"), passes()) as monitor:
        labels = MonitorLabels(monitor.batches.store)
        monitor.write("a.jsonl", "a", said="bad")
        await monitor.tick()
        first = await labels.give(monitor.name, "a", "ada", passed=True)
        await labels.give(monitor.name, "a", "ada", passed=False, reason="on second thought")
        with pytest.raises(InvalidRequest, match="has judged no run 'nobody'"):
            await labels.give(monitor.name, "nobody", "ada", passed=True)
        with pytest.raises(InvalidRequest, match="there is no monitor 'other'"):
            await labels.give("other", "a", "ada", passed=True)
        given = await labels.given(monitor.name)
        definition = (await monitor.reader.require(monitor.name)).definition
        path = tmp_path / "labels.jsonl"
        path.write_text(
            "".join(json.dumps(one.model_dump(mode="json", exclude_none=True)) + "\n" for one in as_labels(definition, given).labels)
        )
        read = read_labels(path, definition.judge)

    assert first == "a"
    assert [(one.passed, one.reason) for one in given] == [(False, "on second thought")]
    assert [label.label_value for label in read.labels] == [{"result": "needs_revision"}]


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"tone": {"type": "string", "enum": ["warm", "cold", "rude"]}, "safe": {"type": "boolean"}},
    "required": ["tone", "safe"],
}


@pytest.mark.parametrize(
    ("passes_by", "passed", "value"),
    [
        (("tone=warm",), True, {"tone": "warm"}),
        (("tone=warm",), False, None),
        (("safe=true",), False, {"safe": False}),
        (("tone=warm", "safe=true"), True, {"tone": "warm", "safe": True}),
        (("tone=warm", "safe=true"), False, None),
    ],
)
def test_a_label_is_written_as_the_values_of_the_judges_keys_where_they_say_it(
    passes_by: tuple[str, ...], passed: bool, value: dict[str, Any] | None
) -> None:
    judge = parse_judge({"rubric_text": "How is it?", "output_schema": SCHEMA, "judge_model": "scripted:judge"})

    assert label_value(judge, passes_by, passed=passed) == value


@pytest.mark.parametrize("enum", [["warm", "cold"], ["cold", "warm"]])
@pytest.mark.parametrize("by_file", [True, False], ids=["pass_if", "--pass"])
def test_agreement_counts_as_passed_what_the_monitor_passes_whatever_the_order_of_the_values(enum: list[str], by_file: bool) -> None:
    schema = {"type": "object", "properties": {"tone": {"type": "string", "enum": enum}}, "required": ["tone"]}
    judge = {"rubric_text": "How is it?", "output_schema": schema, "judge_model": "scripted:judge"}
    rule = {"judge": judge | {"pass_if": {"tone": "warm"}}} if by_file else {"judge": judge, "passes": ["tone=warm"]}
    definition = MonitorDefinition.model_validate({"name": "tone", "source": {"kind": "folder", "path": "/runs"}} | rule)
    given = []
    for at in range(10):
        fields = {"id": f"j{at}", "agent_run_id": f"r{at}", "rubric_id": "r", "rubric_version": 1, "result_type": "DIRECT_RESULT"}
        judgement = JudgeResult.model_validate(fields | {"output": {"tone": "warm" if at < 8 else "cold"}})
        given.append(LabelledRun(run_id=f"r{at}", created_by="ada", passed=at < 8, judgement=judgement))

    (key,) = agreement_of(definition, tuple(given)).keys

    assert key.positive == "warm"
    assert key.pass_rate is not None
    assert (key.pass_rate.raw.value, key.figures["tpr"].value, key.figures["kappa"].value) == (0.8, 1.0, 1.0)
