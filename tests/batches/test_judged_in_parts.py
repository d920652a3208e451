"""A run that is too long is judged in parts, and by a last call that sees the findings: all of it paid once, and counted."""

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.batches.pages.read_judgement import read_judgement_reports
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.transcript import AgentRun
from gradeloop.judges.chunks import chunked_id, requests_in_parts
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import parse_judge
from tests.batches.test_judge_many import calls, judged, runs
from tests.rig.batches import batching
from tests.rig.judging import FRANCE, answers, fails
from tests.rig.threads import row, verdict


def long_run(name: str = "long", count: int = 9) -> AgentRun:
    """Return a run that comes apart into two parts; the fourth message alone names Paris."""
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        *({"role": "assistant", "content": f"note {at} {'Paris' if at == 3 else ''} " + "x" * 100_000} for at in range(1, count - 1)),
        {"role": "assistant", "content": "That is all."},
    ]
    return AgentRun.model_validate({"id": name, "transcripts": [{"messages": messages}]})


FOUND = {"label": "match", "explanation": "It names Paris [T0B3:<RANGE>note 3 Paris</RANGE>]."}
NOTHING = {"label": "no match", "explanation": "This part does not name it [T0B7]."}
REPLIES = (
    answers(FOUND, when='"type": "finding"'),
    answers(FOUND, when='{"part": 1, "of": 2}'),
    answers(NOTHING, when='{"part": 2, "of": 2}'),
)


@pytest.mark.slow
async def test_the_last_call_sees_the_findings_and_all_calls_are_counted(client: Client, tmp_path: Path) -> None:
    run = long_run()
    async with batching(client, tmp_path, *REPLIES, answers(FOUND)) as batches:
        found = await judged(batches, FRANCE, [run, *runs("short")], chunk=True)
        made = calls(batches)
        again = await judged(batches, FRANCE, [run], chunk=True)
        sent = [str(request.messages) for request in batches.served.models.requests]

    result, short = found[0].result, found[1].result
    parts: Any = result.result_metadata["parts"]
    citation: Any = result.result_metadata["citations"]
    assert result.output == FOUND
    assert [(part["first"], part["last"]) for part in parts] == [("T0B0", "T0B4"), ("T0B4", "T0B8")]
    assert [part["output"] for part in parts] == [FOUND, NOTHING]
    assert [(one["target"], one["verified"]) for one in citation] == [("T0B3", True)]
    assert (made, result.usage.calls, short.usage.calls) == (4, 3, 1)
    assert result.id == chunked_id(parse_judge(FRANCE), run.sha256())
    assert (result.agent_run_id, result.run_sha256, result.judge_sha256) == ("long", run.sha256(), parse_judge(FRANCE).sha256())
    assert "elided" not in result.result_metadata
    assert again[0].result.output == FOUND
    assert len(sent) == made
    assert not any("note 1 " in text and "note 7 " in text for text in sent)


async def test_a_part_that_fails_is_no_verdict_and_can_be_judged_again(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, REPLIES[1], fails() | {"when": '{"part": 2, "of": 2}'}) as batches:
        (failed,) = await judged(batches, FRANCE, [long_run()], chunk=True)

    assert failed.result.failed
    assert failed.result.result_metadata["again"] is True
    assert str(failed.result.result_metadata["reason"]).startswith("part 2 of 2: ")
    assert failed.result.usage.calls >= 1


@pytest.mark.slow
async def test_a_budget_that_is_used_up_by_the_parts_asks_no_last_call(client: Client, tmp_path: Path) -> None:
    replies = [reply | {"usage": {"input": 100, "output": 10}} for reply in REPLIES]
    async with batching(client, tmp_path, *replies) as batches:
        (stopped,) = await judged(batches, FRANCE, [long_run()], chunk=True, budget=Budget(max_tokens=150), concurrency=1)

    assert stopped.result.failed
    assert "budget" in str(stopped.result.result_metadata["reason"])


async def test_criteria_are_judged_in_parts_and_quotes_name_records_of_the_whole_run(client: Client, tmp_path: Path) -> None:
    config = {"rubric": {"criteria": [{"description": "names Paris", "quotes": True}]}, "grader": {"model": "scripted:judge"}}
    quoted = row("c1", quotes=[{"record": 3, "quote": "note 3 Paris"}])
    last = row("c1", quotes=[{"record": 1, "quote": "note 3 Paris"}])
    replies = [
        {"role": "grader", "when": '"type": "finding"', "verdict": verdict(last)},
        {"role": "grader", "when": "note 3 ", "verdict": verdict(quoted)},
        {"role": "grader", "verdict": verdict(row("c1", "it is not there", quotes=[]))},
    ]

    async with batching(client, tmp_path, *replies) as batches:
        (found,) = await judged(batches, config, [long_run()], chunk=True)
        made = calls(batches)

    rows: Any = found.result.output["criteria"]
    assert found.result.output["result"] == "satisfied", found.result.result_metadata
    assert [(quote["record"], quote["quote_verified"]) for quote in rows[0]["quotes"]] == [(3, True)]
    assert found.result.result_metadata["draft"] == 8
    assert made == found.result.usage.calls == 3


@pytest.mark.slow
async def test_without_a_store_each_part_has_a_workflow_of_its_own(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, *REPLIES) as batches:
        (found,) = await judged(batches, FRANCE, [long_run("alone")], chunk=True, store=None)

    parts: Any = found.result.result_metadata["parts"]
    assert found.result.output == FOUND
    assert not any("batch_id" in part for part in parts)


async def test_a_page_shows_the_whole_run_and_what_was_found_in_its_parts(client: Client, tmp_path: Path) -> None:
    run = long_run("page")
    async with batching(client, tmp_path, *REPLIES) as batches:
        (found,) = await judged(batches, FRANCE, [run], chunk=True, store=None)
        (report,) = await read_judgement_reports([found.result], {}, client)

    assert [passage.label for passage in report.passages] == [f"T0B{at}" for at in range(9)]
    assert report.about["parts"].startswith("2, ")
    assert report.about["rubric text"] == FRANCE["rubric_text"]
    assert any(note.startswith('part 2, T0B4 to T0B8: {"label": "no match"') for note in report.notes)


def test_the_calls_of_a_judgement_in_parts_are_those_of_its_parts_and_the_last() -> None:
    requests = requests_in_parts(Judge(FRANCE).config, long_run())

    assert [request.run.excerpt.part if request.run.excerpt else 0 for request in requests] == [1, 2, None]
