"""The live pages of judgements: what was judged, and that nothing says what passes where nothing does."""

from html import unescape
from pathlib import Path

import pytest
from temporalio.client import Client

from gradeloop.batches.judge_many import RunVerdict, judge_many
from gradeloop.client.client import GradingClient
from gradeloop.contract.transcript import AgentRun
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import parse_judge
from gradeloop.judges.registry import JudgeRegistry
from gradeloop.reports.html import batch_path, case_path
from tests.rig.batches import batching
from tests.rig.judging import FRANCE, MATCH, answers, fresh
from tests.rig.threads import row, verdict
from tests.web.test_live import opened

CRITERIA = {"rubric": {"criteria": [{"description": "names Paris"}]}, "grader": {"model": "scripted:judge"}}


@pytest.mark.slow
async def test_judgements_without_a_rule_say_so_on_their_live_pages_and_name_the_command(client: Client, tmp_path: Path) -> None:
    found: list[RunVerdict] = []
    async with batching(client, tmp_path, answers(MATCH)) as batches:
        runs = [AgentRun.model_validate(fresh(name)) for name in ("a", "b")]
        await judge_many(Judge(FRANCE, client, task_queue=batches.served.task_queue), runs, found.append, store=batches.store)
        batch_id = str(found[0].result.batch_id)
        async with opened(GradingClient(client), tmp_path) as browser:
            whole = await browser.get(batch_path(batch_id))
            one = await browser.get(case_path(batch_id, found[0].result.id))

    assert '<p class="answer none" id="answer">2 JUDGED</p>' in whole.text
    say = "No rule says what passes. Next: say it with <code>gradeloop judge JUDGE RUNS --pass label=VALUE</code> (values here: match)"
    assert say in whole.text
    assert "2 judgements" in whole.text
    assert "UNGRADED" not in whole.text
    assert "No rule says what passes. Next: say it with <code>gradeloop judge JUDGE RUNS --pass label=VALUE</code>" in one.text


async def test_a_registered_judge_is_named_by_its_place_in_the_command_that_says_what_passes(client: Client, tmp_path: Path) -> None:
    found: list[RunVerdict] = []
    async with batching(client, tmp_path, answers(MATCH)) as batches:
        made = await JudgeRegistry(batches.store).create_rubric("my geo", parse_judge(FRANCE | {"id": "capital"}))
        judge = Judge(made, client, task_queue=batches.served.task_queue)
        await judge_many(judge, [AgentRun.model_validate(fresh("a"))], found.append, store=batches.store)
        batch_id = str(found[0].result.batch_id)
        async with opened(GradingClient(client), tmp_path) as browser:
            pages = [(await browser.get(path)).text for path in (batch_path(batch_id), case_path(batch_id, found[0].result.id))]

    for page in pages:
        assert "say it with <code>gradeloop report 'my geo/capital@1' --pass label=VALUE</code>" in unescape(page)


async def test_judgements_by_criteria_say_how_many_passed(client: Client, tmp_path: Path) -> None:
    found: list[RunVerdict] = []
    async with batching(client, tmp_path, {"role": "grader", "verdict": verdict(row("c1", "it names Lyon"))}) as batches:
        judge = Judge(CRITERIA, client, task_queue=batches.served.task_queue)
        await judge_many(judge, [AgentRun.model_validate(fresh("a"))], found.append, store=batches.store)
        batch_id = str(found[0].result.batch_id)
        async with opened(GradingClient(client), tmp_path) as browser:
            whole = await browser.get(batch_path(batch_id))
            one = await browser.get(case_path(batch_id, found[0].result.id))

    assert 'class="answer failed" id="answer"' in whole.text
    assert "0 OF 1 PASSED" in whole.text
    assert "No rule" not in whole.text + one.text
