"""Many runs judged as a batch: the same results as by a workflow each, paid for once by content, within a budget."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from activities.tools.registry import ToolRegistry
from gradeloop.batches.judge_many import RunVerdict, judge_many
from gradeloop.batches.judged import NO_TOOLS
from gradeloop.batches.preview import JudgingPreview, preview_judgements
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import JudgingRequest, judging_id
from tests.rig.batches import Batches, batching, passes
from tests.rig.judging import FRANCE, MATCH, NO_MATCH, PARIS, answers, fails, fresh
from tests.rig.threads import row, serving, verdict


def runs(*names: str, said: str = "The capital of France is Paris.") -> list[AgentRun]:
    """Return runs that say something of their own."""
    question = {"role": "user", "content": "What is the capital of France?"}
    return [
        AgentRun.model_validate(
            {"id": name, "transcripts": [{"messages": [question, {"role": "assistant", "content": f"{name}: {said}"}]}]}
        )
        for name in names
    ]


async def test_a_raw_upload_of_a_run_without_an_answer_is_refused_by_name(client: Client, tmp_path: Path) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    run = {"id": "asked", "transcripts": [{"messages": [question]}], "metadata": {"gold": "Paris"}}
    case = {"id": "c", "judging": {"judge": FRANCE, "run": run}, "rubric": {"criteria": []}, "asks_nothing": True}

    async with batching(client, tmp_path) as batches:
        with pytest.raises(WorkflowFailureError) as refused:
            await batches.upload("unanswered", [case])

    assert "the case 'c': the run 'asked' has no answer: no text and no tool call of an assistant; " in str(refused.value.cause)


@pytest.mark.slow
async def test_a_rule_for_what_passes_asks_no_question_anew(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, answers(MATCH)) as batches:
        await judged(batches, FRANCE, runs("a"))
        ruled = await judged(batches, FRANCE | {"pass_if": {"label": "match"}, "id": "ruled"}, runs("a", "b"))

    assert [one.result.output for one in ruled] == [MATCH, MATCH]
    assert [one.result.usage.calls for one in ruled] == [0, 1]
    assert calls(batches) == 2


async def judged(batches: Batches, config: Any, given: list[AgentRun], **options: Any) -> list[RunVerdict]:
    """Judge runs as a batch."""
    found: list[RunVerdict] = []
    judge = Judge(config, batches.client, task_queue=batches.served.task_queue)
    await judge_many(judge, given, found.append, store=options.pop("store", batches.store), **options)
    return sorted(found)


def calls(batches: Batches) -> int:
    """Return how many calls were made to models."""
    return len(batches.served.models.requests)


@pytest.mark.slow
async def test_a_batch_judges_as_a_workflow_of_its_own_does(client: Client, tmp_path: Path) -> None:
    three = FRANCE | {"n_rollouts_per_input": 3, "id": "paris", "version": 2}
    replies = [answers(MATCH), answers(NO_MATCH, 1), answers("nothing", 2), answers(MATCH, 2, step=1)]
    (run,) = runs("a")

    async with batching(client, tmp_path, *replies) as batches:
        (found,) = await judged(batches, three, [run])
        alone = await Judge(three, client, task_queue=batches.served.task_queue)(run)

    result = found.result
    assert result.batch_id is not None
    unlike = {"batch_id", "usage", "prompt_sha256"}
    assert result.model_dump(exclude=unlike) == alone.model_dump(exclude=unlike)
    assert (result.usage.calls, result.attempts) == (4, 4)
    assert result.prompt_sha256 == alone.prompt_sha256
    assert (result.rubric_id, result.rubric_version) == ("paris", 2)


@pytest.mark.slow
async def test_criteria_are_judged_as_a_workflow_of_its_own_does(client: Client, tmp_path: Path) -> None:
    config = {"rubric": {"criteria": [{"description": "names Paris"}, {"description": "is brief"}]}, "grader": {"model": "scripted:judge"}}
    said = {"role": "grader", "verdict": verdict(row("c1"), row("c2", "it rambles"))}
    (run,) = runs("a")

    async with batching(client, tmp_path, said) as batches:
        (found,) = await judged(batches, config, [run])
        alone = await Judge(config, client, task_queue=batches.served.task_queue)(run)

    unlike = {"batch_id", "usage"}
    assert found.result.batch_id is not None
    assert found.result.model_dump(exclude=unlike) == alone.model_dump(exclude=unlike)


@pytest.mark.slow
async def test_an_edited_criterion_costs_its_own_calls_alone(client: Client, tmp_path: Path) -> None:
    def rubric(third: str) -> dict[str, Any]:
        texts = ("names Paris", "is brief", third)
        return {
            "rubric": {"mode": "per_criterion", "criteria": [{"description": text} for text in texts]},
            "grader": {"model": "scripted:judge"},
        }

    async with batching(client, tmp_path, *(passes(group=at) for at in range(3))) as batches:
        await judged(batches, rubric("is polite"), runs("a", "b"))
        first = calls(batches)
        edited = await judged(batches, rubric("is very polite"), runs("a", "b"))
        after = calls(batches)
        renamed = await judged(batches, rubric("is very polite") | {"id": "other"}, runs("a", "b"))

    assert (first, after - first, calls(batches) - after) == (6, 2, 0)
    assert all(not one.result.failed for one in [*edited, *renamed])
    assert [one.result.usage.calls for one in edited] == [1, 1]


@pytest.mark.slow
async def test_more_rollouts_and_the_same_content_cost_what_is_new(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, *(answers(MATCH, at) for at in range(5))) as batches:
        await judged(batches, FRANCE | {"n_rollouts_per_input": 3}, runs("a"))
        five = await judged(batches, FRANCE | {"n_rollouts_per_input": 5}, runs("a"))
        again = await judged(batches, FRANCE | {"n_rollouts_per_input": 5}, runs("a"))
        other = await judged(batches, FRANCE | {"n_rollouts_per_input": 5}, [runs("a")[0].model_copy(update={"id": "b"})])
        made = calls(batches)
        repeated = await judged(batches, FRANCE, runs("a"), repeats=2)

    assert (five[0].result.usage.calls, made) == (2, 5)
    assert again[0].result.output == five[0].result.output == other[0].result.output
    assert other[0].result.agent_run_id == "b"
    assert [one.repeat for one in repeated] == [0, 1]
    assert calls(batches) == made + 1


@pytest.mark.slow
async def test_a_panel_votes_in_a_batch_as_in_a_workflow_and_costs_what_is_new(client: Client, tmp_path: Path) -> None:
    panel = {"rubric_text": "r", "panel": ["scripted:one", "scripted:two", "scripted:three"]}
    replies = [answers(NO_MATCH, 0), *(answers(MATCH, at) for at in (1, 2, 3))]

    async with batching(client, tmp_path, *replies) as batches:
        (found,) = await judged(batches, panel, runs("a"))
        (larger,) = await judged(batches, panel | {"panel": [*panel["panel"], "scripted:one-more"], "quorum": 3}, runs("a"))
        made = calls(batches)
        alone = await Judge(panel, client, task_queue=batches.served.task_queue)(runs("a")[0])
        asked = [request.spec.id for request in batches.served.models.requests]

    rollouts: Any = found.result.result_metadata["rollouts"]
    assert [rollout["model"] for rollout in rollouts] == ["scripted:one", "scripted:two", "scripted:three"]
    assert found.result.output == alone.output == MATCH
    assert found.result.result_metadata == alone.result_metadata
    assert larger.result.output == MATCH
    assert (made, larger.result.usage.calls) == (4, 1)
    assert sorted(asked[:3]) == sorted(asked[made:]) == ["scripted:one", "scripted:three", "scripted:two"]


@pytest.mark.slow
async def test_a_preview_counts_the_calls_that_are_made(client: Client, tmp_path: Path) -> None:
    criteria = [{"description": text} for text in ("names Paris", "is brief")]
    by_criteria = {"rubric": {"mode": "per_criterion", "criteria": criteria}, "grader": {"model": "scripted:judge"}}
    edited = by_criteria | {"rubric": {"mode": "per_criterion", "criteria": [criteria[0], {"description": "is polite"}]}}
    by_schema = FRANCE | {"n_rollouts_per_input": 2}

    async def preview(batches: Batches, config: Any) -> JudgingPreview:
        wanted = [JudgingRequest(judge=config, run=run) for run in runs("a", "b")]
        named = [(judging_id(request.judge, request.run.sha256()), [request]) for request in wanted]
        return await preview_judgements(named, set(), None, batches.reader)

    async with batching(client, tmp_path, *(passes(group=at) for at in range(2))) as batches:
        before = await preview(batches, by_criteria)
        await judged(batches, by_criteria, runs("a", "b"))
        after = [await preview(batches, config) for config in (by_criteria, edited)]
    async with batching(client, tmp_path, *(answers(MATCH, at) for at in range(3))) as batches:
        first = await preview(batches, by_schema)
        await judged(batches, by_schema, runs("a", "b"))
        second = await preview(batches, FRANCE | {"n_rollouts_per_input": 3})

    assert (before.judgements, before.calls, before.cached) == (2, 4, 0)
    assert [(found.calls, found.cached) for found in after] == [(0, 4), (2, 2)]
    assert [(found.calls, found.cached) for found in (first, second)] == [(4, 0), (2, 4)]


def test_a_preview_costs_what_the_prompts_would_and_says_where_no_price_is_known() -> None:
    def preview(model: str) -> JudgingPreview:
        request = JudgingRequest.model_validate({"judge": FRANCE | {"judge_model": model}, "run": runs("a")[0]})
        return asyncio.run(preview_judgements([("a", [request])], set(), None, None))

    cost = preview("openai:gpt-5-mini").cost_usd

    assert cost is not None
    assert 0.0005 < cost < 0.05
    assert preview("nobody:knows").cost_usd is None


def test_no_tools_have_the_key_that_the_workers_registry_gives_them() -> None:
    assert ToolRegistry([]).sha256(()) == NO_TOOLS


@pytest.mark.slow
async def test_what_failed_is_judged_again_and_what_stays_invalid_is_not(client: Client, tmp_path: Path) -> None:
    invalid = [answers("nothing", step=step, when="bad:") for step in range(3)]
    async with batching(client, tmp_path, fails("auth") | {"when": "away:"}, *invalid, answers(MATCH)) as batches:
        first = await judged(batches, FRANCE, runs("away", "bad", "good"))
        made = calls(batches)
        second = await judged(batches, FRANCE, runs("away", "bad", "good"))

    assert [one.result.result_type for one in first] == ["FAILURE", "FAILURE", "DIRECT_RESULT"]
    assert [one.result.result_metadata.get("again") for one in first] == [True, False, None]
    assert "there is no object" in str(first[1].result.result_metadata["reason"])
    assert str(first[0].result.result_metadata["reason"]).startswith("auth: ")
    assert [one.result.result_type for one in second] == ["FAILURE", "FAILURE", "DIRECT_RESULT"]
    assert calls(batches) == made + 1


async def test_a_budget_ends_what_is_judged(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, answers(MATCH, usage={"input": 100, "output": 10})) as batches:
        short = await judged(batches, FRANCE, runs("a", "b", "c"), budget=Budget(max_tokens=150), concurrency=1)
        whole = await judged(batches, FRANCE, runs("a", "b", "c"))

    failed = [one.result for one in short if one.result.failed]
    assert len(failed) == 1
    assert str(failed[0].result_metadata["reason"]).startswith("not judged: ")
    assert failed[0].result_metadata["again"] is True
    assert [one.result.failed for one in whole] == [False] * 3


async def test_a_worker_without_a_store_judges_by_a_workflow_each(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path) as other, serving(client, answers(MATCH)) as served:
        found = await judged(Batches(client, served, other.store), FRANCE, [AgentRun.model_validate(fresh("storeless", PARIS))])

    assert [(one.result.output, one.result.batch_id) for one in found] == [(MATCH, None)]


async def test_what_needs_a_workflow_of_its_own_gets_one(client: Client, tmp_path: Path) -> None:
    reflecting = FRANCE | {"judge_variant": "multi-reflect"}
    checked = {
        "rubric": {"criteria": [{"description": "good"}, {"description": "short", "check": "is_short"}]},
        "grader": {"model": "scripted:judge"},
    }

    def is_short(draft: str) -> bool:
        """Say whether the draft is short."""
        return len(draft) < 100

    async with batching(client, tmp_path, answers(MATCH)) as batches:
        found = await judged(batches, reflecting, runs("r"))
    async with batching(client, tmp_path, {"role": "grader", "verdict": verdict(row("c1"))}, tools=[is_short]) as batches:
        found += await judged(batches, checked, runs("c"))

    assert [(one.result.failed, one.result.batch_id) for one in found] == [(False, None), (False, None)]


async def test_a_run_that_is_given_twice_is_judged_once(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, answers(MATCH)) as batches:
        found = await judged(batches, FRANCE, runs("a", "a"))

    assert [(one.position, one.result.output) for one in found] == [(0, MATCH), (1, MATCH)]
    assert calls(batches) == 1


async def test_a_command_that_is_stopped_pauses_its_batch_and_the_next_goes_on(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, answers(MATCH, delay=0.5)) as batches:
        names = [f"r{at}" for at in range(4)]
        first = asyncio.create_task(judged(batches, FRANCE, runs(*names), concurrency=1))
        while not calls(batches):
            await asyncio.sleep(0.02)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.sleep(1)
        begun = calls(batches)
        found = await judged(batches, FRANCE, runs(*names), concurrency=1)

    assert begun < 4
    assert [one.result.output for one in found] == [MATCH] * 4
    assert calls(batches) == 4


@pytest.mark.slow
async def test_repeats_are_asked_anew_each_with_a_seed_of_its_own(client: Client, tmp_path: Path) -> None:
    seeded = {"id": "scripted:judge", "config": {"seed": 7}}
    by_criteria: dict[str, Any] = {"rubric": {"criteria": [{"description": "names Paris", "votes": 2}]}, "grader": {"model": seeded}}
    by_schema = FRANCE | {"judge_model": seeded, "n_rollouts_per_input": 2}
    replies: list[Any] = [{"role": "grader", "sample": at, "verdict": verdict(row("c1"))} for at in range(2)]
    seeds: list[list[int]] = []

    for config, said in ((by_criteria, replies), (by_schema, [answers(MATCH), answers(MATCH, 1)])):
        for kept in (True, False):
            async with batching(client, tmp_path, *said) as batches:
                store = batches.store if kept else None
                await judged(batches, config, runs(f"seeded-{kept}"), repeats=2, store=store)
                seeds.append(sorted(request.spec.config.seed or 0 for request in batches.served.models.requests))

    assert seeds == [[7, 8, 9, 10]] * 4


@pytest.mark.slow
async def test_judgements_whose_answers_stayed_invalid_are_made_again_when_that_is_asked_for(client: Client, tmp_path: Path) -> None:
    first, other, good = runs("a"), runs("b"), runs("c")
    criteria = {"rubric": {"criteria": [{"description": "names Paris"}]}, "grader": {"model": "scripted:judge"}}

    async with batching(client, tmp_path) as batches:
        said = batches.served.models.answers
        said["grader"] = lambda *_: answers(MATCH)["text"]
        await judged(batches, FRANCE, good)
        said["grader"] = lambda *_: "nothing"
        failed = await judged(batches, FRANCE, [*good, *first])
        failed += await judged(batches, FRANCE, other, store=None)
        failed += await judged(batches, criteria, first)
        paid = calls(batches)
        stored = [await judged(batches, FRANCE, [*good, *first]), await judged(batches, criteria, first)]
        stored += [await judged(batches, FRANCE, other, store=None)]
        asked_nobody = calls(batches) == paid
        said["grader"] = lambda *_: answers(MATCH)["text"]
        again = await judged(batches, FRANCE, [*good, *first], retry=True)
        alone = await judged(batches, FRANCE, other, store=None, retry=True)
        said["grader"] = lambda *_: json.dumps(verdict(row("c1")))
        by_criteria = await judged(batches, criteria, first, retry=True)
        paid_again = calls(batches) - paid
        once_more = await judged(batches, FRANCE, [*good, *first], retry=True) + await judged(
            batches, FRANCE, other, store=None, retry=True
        )
        asked_once = calls(batches) - paid == paid_again

    assert [found.result.failed for found in failed] == [False, True, True, True]
    assert ([found.result.failed for rows in stored for found in rows], asked_nobody) == ([False, True, True, True], True)
    assert [found.result.output for found in (*again, *alone)] == [MATCH] * 3
    assert [found.result.failed for found in by_criteria] == [False]
    assert ([found.result.output for found in once_more], paid_again, asked_once) == ([MATCH] * 3, 3, True)


async def test_a_judge_that_the_worker_cannot_serve_is_refused_with_the_run_s_id(client: Client, tmp_path: Path) -> None:
    unknown = {"rubric": {"criteria": [{"description": "names Paris"}]}, "grader": {"model": "acme:judge"}}

    async with batching(client, tmp_path) as batches:
        with pytest.raises(InvalidRequest, match=r"^the run 'a': .*unknown provider 'acme'") as refused:
            await judged(batches, unknown, runs("a"))

    assert "judging-" not in str(refused.value)
