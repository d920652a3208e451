"""A model that is away, or refuses to serve, is replaced by its fallback for that call; who answered is said, counted and cached."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.judges.client import Judge
from gradeloop.reports.read_thread import read_thread_report
from gradeloop.reports.run_page import run_page
from gradeloop.settings.catalog import load_prices
from tests.rig.batches import batching
from tests.rig.failing_models import FailingModels, calling, listening, said, working
from tests.rig.judging import PARIS
from tests.rig.threads import request, until, verdict_text
from workflows import activity_calls

FIRST, SECOND, THIRD = "openai:gpt-5-mini", "anthropic:claude-haiku-4-5", "openai_compatible:third"
A, B, C = "gpt-5-mini", "claude-haiku-4-5", "third"
PASS, FAIL = verdict_text(), verdict_text(passed=False)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have failed calls made again at once."""
    again = RetryPolicy(
        initial_interval=timedelta(milliseconds=20),
        maximum_interval=timedelta(milliseconds=50),
        non_retryable_error_types=activity_calls.NEVER_RETRIED,
    )
    call: Any = {**activity_calls.MODEL_CALL, "retry_policy": again}
    monkeypatch.setattr("workflows.activity_calls.MODEL_CALL", call)
    monkeypatch.setattr("workflows.batches.grading_batch.MODEL_CALL", call)


@pytest.fixture
async def models() -> AsyncIterator[FailingModels]:
    """Serve the models of a test."""
    async with listening() as server:
        yield server


def listed(model: str, *fallback: object, **more: Any) -> dict[str, Any]:
    """Return a model with its fallbacks, which are asked soon."""
    return {"id": model, "fallback": list(fallback), "fallback_after": 0.3} | more


def drafted(model: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a request for one ungraded draft."""
    return request(None, generator={"model": model}, **more)


def graded(grader: dict[str, Any] | None, rubric: object = "- it is good", **more: Any) -> dict[str, Any]:
    """Return a request whose draft the third model writes."""
    judge = {"grader": {"model": grader}} if grader else {}
    return request(rubric, generator={"model": "openai_compatible:writer"}) | judge | more


@pytest.mark.parametrize("status", [429, 503, 529])
async def test_after_an_outage_the_fallback_answers_and_its_tokens_are_counted_at_its_price(
    client: Client, models: FailingModels, status: int
) -> None:
    models.plan(A, status)
    async with working(client, models) as served:
        result = await served.run(drafted(listed(FIRST, SECOND)))

    used = Usage(input=1000, output=100, calls=1)
    assert (result.output, result.error) == (f"a draft of {B}", None)
    assert result.messages is not None
    assert result.messages[-1].model == SECOND
    assert models.times(A) >= 1
    assert models.times(B) == 1
    assert (result.usage.calls, result.usage.attempts) == (1, len(models.asked))
    assert result.usage.cost_usd == load_prices(None).cost(ModelSpec(id=SECOND), used)


@pytest.mark.parametrize("status", [404, 402, 401])
async def test_a_model_that_is_not_served_is_asked_once(client: Client, models: FailingModels, status: int) -> None:
    models.plan(A, status)
    async with working(client, models) as served:
        result = await served.run(drafted(listed(FIRST, SECOND, fallback_after=3600)))

    assert (result.output, models.asked) == (f"a draft of {B}", [A, B])


async def test_a_request_that_is_wrong_falls_back_to_nobody(client: Client, models: FailingModels) -> None:
    models.plan(A, 400)
    async with working(client, models) as served:
        result = await served.run(drafted(listed(FIRST, SECOND)))

    assert models.asked == [A]
    assert str(result.error).startswith("bad_request: ")


@pytest.mark.parametrize(("more", "asked"), [({}, [B]), ({"on_refusal": True}, [B, A])])
async def test_a_content_refusal_falls_back_only_where_the_model_says_so(
    client: Client, models: FailingModels, more: dict[str, Any], asked: list[str]
) -> None:
    models.plan(B, said({"type": "text", "text": "no"}, stop="refusal"))
    async with working(client, models) as served:
        result = await served.run(drafted(listed(SECOND, FIRST, **more)))

    assert models.asked == asked
    assert result.output == f"a draft of {A}" if more else str(result.error).startswith("refused: ")


async def test_every_call_begins_with_the_first_model_again(client: Client, models: FailingModels) -> None:
    models.plan(A, 404, "the second draft")
    models.plan("judge", FAIL, PASS)
    argument = request("- it is good", generator={"model": listed(FIRST, SECOND)}, grader={"model": "openai_compatible:judge"})
    async with working(client, models) as served:
        result = await served.run(argument)

    assert models.asked == [A, B, "judge", A, "judge"]
    assert (result.status, result.output) == ("satisfied", "the second draft")


async def test_the_grader_that_answered_is_named_in_row_and_evaluation(client: Client, models: FailingModels) -> None:
    models.plan(A, 404)
    models.plan(C, PASS)
    async with working(client, models) as served:
        result = await served.run(graded(listed(FIRST, THIRD)))

    evaluation = result.evaluations[0]
    assert (evaluation.result, evaluation.grader) == ("satisfied", THIRD)
    assert (evaluation.criteria[0].grader, evaluation.criteria[0].instead_of) == (THIRD, FIRST)


async def test_a_fallback_in_a_vote_is_never_a_model_that_votes_already(client: Client, models: FailingModels) -> None:
    models.plan(A, 404)
    models.plan(B, PASS)
    models.plan(C, PASS)
    panel = [listed(FIRST, SECOND, THIRD), SECOND]
    async with working(client, models) as served:
        result = await served.run(graded(None, {"criteria": [{"description": "it is good", "panel": panel}]}))

    votes = result.evaluations[0].criteria[0].votes
    assert [(vote.grader, vote.passed, vote.instead_of) for vote in votes] == [(THIRD, True, FIRST), (SECOND, True, None)]
    assert (models.times(B), models.times(C)) == (1, 1)


async def test_a_vote_whose_only_fallback_votes_already_is_lost(client: Client, models: FailingModels) -> None:
    models.plan(A, 404)
    models.plan(B, PASS)
    panel = [listed(FIRST, SECOND), SECOND]
    async with working(client, models) as served:
        result = await served.run(graded(None, {"criteria": [{"description": "it is good", "panel": panel}]}))

    assert result.status == "grader_error"
    assert "not_found" in result.evaluations[0].explanation
    assert models.times(B) == 1


async def test_two_graders_with_the_same_fallback_give_it_one_vote(client: Client, models: FailingModels) -> None:
    models.plan(A, 404)
    models.plan(B, 404)
    models.plan("other", PASS)
    models.plan(C, PASS)
    panel = [listed(FIRST, THIRD), listed(SECOND, THIRD), "openai_compatible:other"]
    async with working(client, models) as served:
        result = await served.run(graded(None, {"criteria": [{"description": "it is good", "panel": panel}]}))

    votes = result.evaluations[0].criteria[0].votes
    assert sum(vote.grader == THIRD for vote in votes) == 1
    assert sorted(str(vote.passed) for vote in votes) == ["None", "True", "True"]
    assert result.usage.calls == models.times(C) + 2


async def test_all_votes_of_one_grader_may_go_to_its_fallback(client: Client, models: FailingModels) -> None:
    models.plan(A, 404)
    models.plan(C, PASS)
    criterion = {"description": "it is good", "grader": listed(FIRST, THIRD), "votes": 3}
    async with working(client, models) as served:
        result = await served.run(graded(None, {"criteria": [criterion]}))

    assert [vote.grader for vote in result.evaluations[0].criteria[0].votes] == [THIRD] * 3
    assert models.times(C) == 3


async def test_thinking_of_one_model_is_not_sent_to_another(client: Client, models: FailingModels) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "only-mine"}
    call = {"type": "tool_use", "id": "t1", "name": "word_count", "input": {"text": "one two"}}
    models.plan(B, said(thought, call, stop="tool_use"), 404)
    argument = request(None, generator={"model": listed(SECOND, "anthropic:claude-opus-4-8", FIRST), "tools": ["word_count"]})
    models.plan("claude-opus-4-8", said(thought, call | {"id": "t2"}, stop="tool_use"), 404)
    async with working(client, models) as served:
        result = await served.run(argument)

    assert result.error is None
    assert models.asked == [B, B, "claude-opus-4-8", B, "claude-opus-4-8", A]
    assert result.output == f"a draft of {A}"
    sent = [str(body).count("only-mine") for body in models.bodies]
    assert sent == [0, 1, 0, 1, 1, 0]


@pytest.mark.slow
async def test_where_every_model_is_away_the_wait_ends_and_names_them(client: Client, models: FailingModels) -> None:
    models.plan(A, 503)
    models.plan(B, 429)
    async with working(client, models, 1.5) as served:
        thread = await served.start(drafted(listed(FIRST, SECOND)))
        stopped = await until(thread, "interrupted")
        again = await served.client.resume(thread.id)
        models.plan(A, "at last")
        resumed = await served.client.resume(thread.id)

    assert (stopped["reason"], again.reason) == ("outage", "outage")
    assert SECOND in str(again.error)
    assert f"the other models failed too: {FIRST} (" in str(again.error)
    assert resumed.output == "at last"


@pytest.mark.slow
async def test_the_first_model_is_asked_again_where_its_fallback_is_away_too(client: Client, models: FailingModels) -> None:
    models.plan(A, *[503] * 8, "a late draft")
    models.plan(B, 503)
    async with working(client, models) as served:
        result = await served.run(drafted(listed(FIRST, SECOND, fallback_after=0)))

    assert models.asked[:4] == [A, B, A, B]
    assert result.output == "a late draft"


async def test_a_fallback_that_cannot_be_called_is_refused_at_the_start(client: Client, models: FailingModels) -> None:
    async with working(client, models) as served:
        keyless = await served.refusal(drafted(listed(FIRST, SECOND, "openrouter:x")))
        judge = await served.refusal(graded(listed(FIRST, "google_genai:gemini-2.5-flash")))
        priceless = await served.refusal(drafted(listed(FIRST, THIRD), budget={"max_cost_usd": 1}))

    assert keyless == (
        f"fallback 2 of {FIRST!r}: OPENROUTER_API_KEY is not set in the worker's environment; set it to use 'openrouter:x', "
        "or leave it out of the fallbacks"
    )
    assert judge.startswith(f"fallback 1 of {FIRST!r}: GOOGLE_API_KEY")
    assert priceless.startswith(f"budget.max_cost_usd: the price of {THIRD!r} is not known")
    assert models.asked == []


@pytest.mark.slow
async def test_a_verdict_is_cached_under_the_model_that_gave_it(client: Client, models: FailingModels, tmp_path: Path) -> None:
    models.plan(A, 404, PASS)
    models.plan(C, PASS)

    def case(name: str, model: object) -> dict[str, Any]:
        return {"id": name, "rubric": "- it is good", "output": "the output", "grader": {"model": model}}

    adapters = calling(models)
    async with batching(client, tmp_path, models=adapters) as batches:
        _, fallen = await batches.run([case("a", listed(FIRST, THIRD))])
        _, of_third = await batches.run([case("a", THIRD)])
        _, of_first = await batches.run([case("a", listed(FIRST, THIRD))])
        _, again = await batches.run([case("a", FIRST)])
    await adapters.aclose()

    results = [(result.grader, result.cached, result.criteria[0].instead_of) for (result,) in (fallen, of_third, of_first, again)]
    assert results == [(THIRD, False, FIRST), (THIRD, True, None), (FIRST, False, None), (FIRST, True, None)]
    assert models.asked == [A, C, A]


async def test_in_a_batch_two_graders_with_the_same_fallback_give_it_one_vote(
    client: Client, models: FailingModels, tmp_path: Path
) -> None:
    models.plan(A, 404)
    models.plan(B, 404)
    models.plan("other", PASS)
    models.plan(C, PASS)
    panel = [listed(FIRST, SECOND, THIRD), listed(SECOND, THIRD), "openai_compatible:other"]
    rubric = {"criteria": [{"description": "it is good", "panel": panel}]}
    adapters = calling(models)
    async with batching(client, tmp_path, models=adapters) as batches:
        cases = [{"id": name, "rubric": rubric, "output": f"the output {name}"} for name in ("a", "b", "c")]
        _, results = await batches.run(cases)
    await adapters.aclose()

    for result in results:
        votes = result.criteria[0].votes
        assert sum(vote.grader == THIRD for vote in votes) == 1
        assert sorted(str(vote.passed) for vote in votes) == ["None", "True", "True"]


@pytest.mark.slow
async def test_a_draft_of_a_case_and_a_judgement_by_a_schema_fall_back(client: Client, models: FailingModels, tmp_path: Path) -> None:
    models.plan(A, 404)
    models.plan(C, PASS)
    adapters = calling(models)
    case = {"id": "a", "rubric": "- it is good", "grader": {"model": THIRD}, "generator": {"model": listed(FIRST, SECOND)}}
    async with batching(client, tmp_path, models=adapters) as batches:
        _, (result,) = await batches.run([case | {"messages": [{"role": "user", "content": "Write."}]}])
    await adapters.aclose()

    assert (result.output, result.status) == (f"a draft of {B}", "passed")


async def test_a_judgement_names_the_fallback_that_gave_it(client: Client, models: FailingModels) -> None:
    schema = {"type": "object", "properties": {"label": {"type": "string", "enum": ["match", "no match"]}}, "required": ["label"]}
    judge = {"rubric_text": "Which label?", "output_schema": schema, "judge_model": listed(FIRST, THIRD), "n_rollouts_per_input": 3}
    models.plan(A, 404)
    models.plan(C, '<response>{"label": "match"}</response>')
    async with working(client, models) as served:
        result = await Judge(judge, client, task_queue=served.task_queue)(PARIS)
        refused = await asyncio.gather(
            Judge(judge | {"judge_model": listed(FIRST, "openrouter:x")}, client, task_queue=served.task_queue)(PARIS),
            return_exceptions=True,
        )

    assert (result.output, result.model) == ({"label": "match"}, THIRD)
    assert [rollout["model"] for rollout in result.result_metadata["rollouts"]] == [THIRD] * 3  # type: ignore[index, union-attr, call-overload]
    assert "OPENROUTER_API_KEY is not set" in str(refused[0])


async def test_the_page_of_a_run_says_who_answered_in_whose_place(client: Client, models: FailingModels) -> None:
    models.plan(A, 404)
    panel = [listed(FIRST, THIRD), "openai_compatible:other"]
    fourth = "openai_compatible:fourth"
    rubric = {"criteria": [{"description": "it is good", "panel": panel}, {"description": "it is short", "grader": listed(FIRST, fourth)}]}
    models.plan(C, verdict_text(True, "c1"))
    models.plan("fourth", verdict_text())
    models.plan("other", verdict_text(True, "c1"))
    async with working(client, models) as served:
        thread = await served.start(request(rubric, generator={"model": listed(FIRST, SECOND)}))
        await thread.result()
        page = run_page(await read_thread_report(served.client, thread.id))

    assert f"judged by {fourth} instead of {FIRST}" in page
    assert f'<span class="muted">instead of {FIRST}</span>' in page
    assert f'<span class="fact">{SECOND}</span>' in page
