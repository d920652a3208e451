"""Abstention: a verdict with too few of its votes is neither a pass nor a fail, and an escalation judge may decide it."""

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.batches.judge_many import RunVerdict, judge_many
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.judges.client import Judge
from gradeloop.judges.client import parse_run as run_of
from gradeloop.judges.contract import JudgeResult, parse_judge
from gradeloop.judges.pass_rule import with_unsure
from gradeloop.judges.registry import JudgeRegistry
from gradeloop.store.engine import Store
from tests.rig.batches import batching
from tests.rig.judging import FRANCE, MATCH, NO_MATCH, PARIS, answers, bench, fresh
from tests.rig.threads import row, verdict

SPLIT: dict[str, Any] = FRANCE | {"n_rollouts_per_input": 3, "abstain": {"label": 0.8}}
TWO_OF_THREE = tuple(answers(said, at, usage={"input": 100, "output": 10}) for at, said in enumerate((MATCH, MATCH, NO_MATCH)))


@pytest.mark.slow
async def test_a_verdict_of_two_of_three_votes_is_unsure_in_a_workflow_and_in_a_batch(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, *TWO_OF_THREE) as batches:
        judge = Judge(SPLIT, client, task_queue=batches.served.task_queue)
        found: list[RunVerdict] = []
        run = parse_run("unsure")
        await judge_many(judge, [run], found.append, store=batches.store)
        alone = await judge(run)
        sure = await Judge(SPLIT | {"abstain": {"label": 0.6}}, client, task_queue=batches.served.task_queue)(run)

    assert found[0].result.unsure == alone.unsure == ("label",)
    assert (found[0].result.result_type, found[0].result.output["label"]) == ("DIRECT_RESULT", "match")
    assert sure.unsure == ()
    assert sure.id == alone.id


async def test_criteria_are_unsure_by_their_votes(client: Client) -> None:
    criteria = [{"description": "names Paris", "votes": 3}, {"description": "is brief", "votes": 3}]
    config = {"rubric": {"criteria": criteria}, "grader": {"model": "scripted:judge"}, "abstain": {"criteria.c1": 0.9, "criteria.c2": 0.9}}
    votes = [verdict(row("c1"), row("c2")), verdict(row("c1"), row("c2")), verdict(row("c1", "it names Lyon"), row("c2"))]
    replies = [{"role": "grader", "sample": at, "verdict": said} for at, said in enumerate(votes)]

    async with bench(client, config, *replies) as (judge, _):
        result = await judge(fresh("unsure-criteria"))

    assert result.unsure == ("criteria.c1",)


async def test_an_escalation_judge_decides_what_is_unsure_once_within_the_budget(client: Client, tmp_path: Path) -> None:
    config = SPLIT | {"escalate": "scripted:dear"}
    run, found = parse_run("escalated"), list[RunVerdict]()

    async with batching(client, tmp_path, *TWO_OF_THREE) as batches:
        judge = Judge(config, client, task_queue=batches.served.task_queue)
        await judge_many(judge, [run], found.append, store=batches.store, budget=Budget(max_tokens=1))
        short = len(batches.served.models.requests)
        await judge_many(judge, [run], found.append, store=batches.store)
        once = len(batches.served.models.requests)
        await judge_many(judge, [run], found.append, store=batches.store)
        asked = [request.spec.id for request in batches.served.models.requests]

    poor, rich, again = (row.result for row in found)
    assert poor.failed or poor.unsure
    assert (once, len(asked)) == (4, 4)
    assert asked[-1] == "scripted:dear"
    assert short <= 3
    assert (rich.output["label"], rich.unsure, rich.model) == ("match", (), "scripted:dear")
    assert rich.escalated_from is not None
    assert found[1].first is not None
    assert rich.usage.calls == found[1].first.usage.calls + 1
    assert found[1].first.unsure == ("label",)
    assert again.output == rich.output


@pytest.mark.slow
async def test_an_unsure_verdict_stays_one_where_the_escalation_judge_fails(client: Client, tmp_path: Path) -> None:
    run, found = parse_run("unescalated"), list[RunVerdict]()

    async with batching(client, tmp_path, *TWO_OF_THREE) as batches:
        judge = Judge(SPLIT | {"escalate": "anthropic:claude-of-nobody"}, client, task_queue=batches.served.task_queue)
        await judge_many(judge, [run], found.append, store=batches.store)

    assert found[0].result.unsure == ("label",)
    assert found[0].result.result_metadata["escalation"]


async def test_what_is_done_with_unsure_verdicts_is_registered_and_does_not_change_the_judge(tmp_path: Path) -> None:
    registry = JudgeRegistry(Store(f"sqlite:///{tmp_path}/geo.db"))
    plain = await registry.create_rubric("geo", {key: value for key, value in SPLIT.items() if key != "abstain"} | {"id": "paris"})
    stricter = await registry.add_version("geo", "paris", SPLIT)
    same = await registry.add_version("geo", "paris", SPLIT)

    assert (plain.version, stricter.version, same.version) == (1, 2, 2)
    assert plain.sha256() == stricter.sha256()
    assert stricter.abstain == {"label": 0.8}


def test_results_of_before_are_read_and_a_failure_is_not_unsure() -> None:
    old = {"id": "j", "agent_run_id": "r", "rubric_id": "x", "rubric_version": 1, "output": {}, "result_type": "FAILURE"}
    result = JudgeResult.model_validate(old)

    assert with_unsure(parse_judge(SPLIT), result).unsure == ()
    assert "unsure" not in result.model_dump()


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"abstain": {"label": 0.8}}, "'label' is not a key with several votes; raise n_rollouts_per_input, or name a panel"),
        ({"n_rollouts_per_input": 3, "abstain": {"lable": 0.8}}, "Did you mean 'label'?"),
        ({"escalate": "scripted:dear"}, "add abstain: {KEY: SHARE}"),
    ],
)
def test_abstention_without_votes_or_use_is_refused(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem.replace("?", "[?]").replace("{", "[{]")):
        parse_judge(FRANCE | more)


def parse_run(name: str) -> AgentRun:
    """Return a run of its own id."""
    return run_of(fresh(name, PARIS))
