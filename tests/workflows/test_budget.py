"""What a thread may cost, and what its calls cost: counted whatever comes of them, checked before each."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from activities.providers import Providers
from gradeloop.client.client import GradingClient
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.thread import RunResult, parse_request
from gradeloop.errors import InvalidRequest
from gradeloop.settings.catalog import Price
from tests.rig.tables import over
from tests.rig.threads import Reply, draft, grade, outcome, page, replay, request, row, serving, until

FAILS = row("c1", "more")
SPENT = {"input": 90, "output": 10}


def story(*, passing: int = 2) -> list[Reply]:
    """Return the replies of a run whose draft passes at that iteration; every call takes 100 tokens."""
    drafts = [draft(at, usage=SPENT) for at in range(passing + 1)]
    return drafts + [grade(at, row("c1") if at == passing else FAILS) | {"usage": SPENT} for at in range(passing + 1)]


async def update(thread: Any, name: str, *arguments: object) -> RunResult:
    """Send an update and return its result."""
    result: RunResult = await thread.execute_update(name, *arguments, result_type=RunResult)
    return result


async def test_a_run_stops_before_the_call_that_its_budget_does_not_cover(client: Client) -> None:
    async with serving(client, *story()) as served:
        thread = await served.start(request("- good", budget={"max_tokens": 300}))
        state = await until(thread, "interrupted")
        result = await thread.query("result")

    assert (state["reason"], state["budget"]["max_tokens"], state["iteration"]) == ("budget", 300, 1)
    assert (result["status"], result["reason"], len(served.models.requests)) == ("interrupted", "budget", 3)
    assert result["error"] == "the budget is used up: 300 of 300 tokens are used; resume with a larger one"
    assert result["output"] == "draft 0"


@pytest.mark.slow
async def test_a_larger_budget_goes_on_and_pays_for_nothing_twice(client: Client) -> None:
    async with serving(client, *story()) as served:
        thread = await served.start(request("- good", budget={"max_tokens": 300}))
        stopped = await until(thread, "interrupted")
        again = await update(thread, "resume", {"budget": {"max_tokens": 500}})
        result = await update(thread, "resume", {"budget": {"max_tokens": 5000}})

    assert (again.status, again.reason, again.iterations) == ("interrupted", "budget", 2)
    assert (result.status, result.reason, result.error, result.grading_run_id) == ("satisfied", None, None, stopped["grading_run_id"])
    assert (len(served.models.requests), result.usage.calls, result.usage.tokens) == (6, 6, 600)


@pytest.mark.parametrize("argument", [[], [{"budget": {"max_tokens": 300}}]])
async def test_a_resumption_without_a_larger_budget_is_refused(client: Client, argument: list[object]) -> None:
    async with serving(client, *story()) as served:
        thread = await served.start(request("- good", budget={"max_tokens": 300}))
        await until(thread, "interrupted")
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await update(thread, "resume", *argument)

    assert str(caught.value.cause) == "InvalidRequest: budget: 300 of 300 tokens are used; give a larger one"


async def test_a_turn_of_its_own_may_raise_the_budget_too(client: Client) -> None:
    async with serving(client, *story(passing=0), draft() | {"run": 1}, grade() | {"run": 1}) as served:
        typed = GradingClient(client, task_queue=served.task_queue)
        thread = await served.start(request("- good", budget={"max_tokens": 150}, idle_timeout=60))
        while (await thread.query("result")) is None:
            await asyncio.sleep(0.05)
        with pytest.raises(InvalidRequest, match="200 of 150 tokens are used; give a larger one"):
            await typed.invoke(thread.id, "another one")
        result = await typed.invoke(thread.id, "another one", budget={"max_tokens": 1000})
        state = await typed.state(thread.id)

    assert (result.status, state.budget) == ("satisfied", Budget(max_tokens=1000))


UNREPORTED = {"input": None, "output": None}


async def test_usage_that_a_server_does_not_report_is_unknown_in_every_sum_and_in_no_other(client: Client) -> None:
    replies = [draft(usage=SPENT), grade() | {"usage": UNREPORTED}, draft(usage=SPENT) | {"run": 1}, grade() | {"run": 1, "usage": SPENT}]
    async with serving(client, *replies) as served:
        typed = GradingClient(client, task_queue=served.task_queue)
        thread = await served.start(request("- good", idle_timeout=60))
        while (first := await typed.last_result(thread.id)) is None:
            await asyncio.sleep(0.05)
        second = await typed.invoke(thread.id, "another one")
        state = await typed.state(thread.id)
        await replay(client, thread.id)

    for usage, calls in ((first.usage, 2), (first.evaluations[0].usage, 1), (state.usage, 4)):
        assert (usage.input, usage.output, usage.tokens, usage.cost_usd, usage.calls, usage.attempts) == (
            None,
            None,
            None,
            None,
            calls,
            calls,
        )
    assert (second.usage.input, second.usage.output, second.usage.calls) == (180, 20, 2)


@pytest.mark.parametrize("budget", [{"max_tokens": 300}, {"max_tokens": 300, "max_cost_usd": 5}])
async def test_a_budget_refuses_a_model_whose_usage_is_not_reported(
    client: Client, monkeypatch: pytest.MonkeyPatch, budget: dict[str, Any]
) -> None:
    price = Price(provider="scripted", models=".*", input=1, output=1)
    monkeypatch.setattr(Providers, "cost", lambda _self, _spec, usage: price.cost(usage))
    async with serving(client, draft(usage=UNREPORTED), grade()) as served:
        thread = await served.start(request("- good", budget=budget))
        state = await until(thread, "interrupted")
        result = await thread.query("result")
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await update(thread, "resume", {"budget": {"max_tokens": 10**9}})

    why = "the budget cannot be checked: a model's server does not report the tokens of its calls; use another model, or no budget"
    assert (state["reason"], result["error"], len(served.models.requests)) == ("budget", why, 1)
    assert str(caught.value.cause) == f"InvalidRequest: budget: {why}"


async def test_the_event_says_why(client: Client) -> None:
    async with serving(client, *story()) as served:
        thread = await served.start(request("- good", budget={"max_tokens": 100}))
        await until(thread, "interrupted")
        events = (await page(thread, "events"))["items"]

    assert [(event["type"], event.get("reason")) for event in events][-1] == ("interrupted", "budget")


@pytest.mark.slow
async def test_the_attempts_that_failed_are_counted_with_the_one_that_did_not(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        served.models.fail_first("generator", kind="malformed_response", usage=Usage(input=40, output=2, calls=1, attempts=1))
        result = await served.run(request("- good"))

    assert result.status == "satisfied"
    assert (result.usage.input, result.usage.output, result.usage.calls) == (40, 2, 3)


async def test_a_pass_that_failed_for_good_is_paid_for_too(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        served.models.fail_first("grader", times=9, kind="refused", usage=Usage(input=40, output=2, calls=1, attempts=1))
        result = await served.run(request("- good"))

    evaluation = result.evaluations[0]
    assert (evaluation.result, evaluation.usage.input, evaluation.usage.calls) == ("grader_error", 40, 1)
    assert evaluation.explanation.startswith("refused: ")


async def test_a_reply_that_was_cut_is_asked_for_once_more_with_a_larger_completion(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        served.models.fail_first("grader", kind="truncated", raisable=True, usage=Usage(input=40, output=9, calls=1, attempts=1))
        result = await served.run(request("- good"))

    assert [request.raised for request in served.models.requests_of("grader")] == [False, True]
    assert (result.status, result.evaluations[0].usage.output, result.evaluations[0].usage.calls) == ("satisfied", 9, 2)


async def test_a_reply_that_is_cut_again_is_the_graders_failure(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        served.models.fail_first("grader", times=9, kind="truncated", raisable=True, usage=Usage(output=9, calls=1, attempts=1))
        result = await served.run(request("- good"))

    assert len(served.models.requests_of("grader")) == 2
    assert (result.status, result.evaluations[0].result) == ("grader_error", "grader_error")


async def test_what_cannot_be_raised_is_not_asked_for_again(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        served.models.fail_first("grader", times=9, kind="truncated", usage=Usage(output=9, calls=1, attempts=1))
        await served.run(request("- good"))

    assert len(served.models.requests_of("grader")) == 1


async def test_a_budget_in_money_needs_a_price_for_every_model(client: Client) -> None:
    environment = {"OPENAI_API_KEY": "k"}
    async with serving(client, draft(), grade(), environment=environment) as served:
        argument = request("- good", budget={"max_cost_usd": 1})
        argument["grader"] = {"model": "openai:nobody-knows-this-model"}
        answer = await served.refusal(argument)

    assert answer.startswith("budget.max_cost_usd: the price of 'openai:nobody-knows-this-model' is not known on this worker; ")


async def test_the_usage_of_a_run_is_that_of_its_calls(client: Client) -> None:
    result = await outcome(client, request("- good"), *story(passing=1))

    tokens = [evaluation.usage.tokens for evaluation in result.evaluations]
    assert (tokens, result.usage.tokens, result.usage.calls, result.usage.attempts) == ([100, 100], 400, 4, 4)
    assert result.usage.seconds >= 0


@over(
    ("budget", "words"),
    [
        ({}, "budget: the budget limits nothing; give max_tokens, max_cost_usd or both"),
        ({"max_tokens": 0}, "budget.max_tokens: Input should be greater than or equal to 1, got '0'"),
        ({"max_cost_usd": 0}, "budget.max_cost_usd: Input should be greater than 0, got '0'"),
        ({"max_cost": 1}, "budget: unknown key 'max_cost'. Did you mean 'max_cost_usd'? Known: max_tokens, max_cost_usd."),
    ],
)
def test_a_budget_that_means_nothing_is_refused(budget: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(request("- good", budget=budget))

    assert str(caught.value) == words


@over(
    ("one", "other", "total"),
    [
        (Usage(), Usage(calls=1, cost_usd=0.5), 0.5),
        (Usage(calls=1, cost_usd=0.25), Usage(calls=1, cost_usd=0.5), 0.75),
        (Usage(calls=1), Usage(calls=1, cost_usd=0.5), None),
        (Usage(), Usage(), None),
    ],
)
def test_a_sum_with_an_unknown_cost_has_none(one: Usage, other: Usage, total: float | None) -> None:
    assert (one + other).cost_usd == total
    assert (other + one).cost_usd == total


def test_the_cost_since_is_the_difference() -> None:
    before = Usage(calls=1, cost_usd=0.25)

    assert (before + Usage(calls=1, cost_usd=0.5)).minus(before).cost_usd == 0.5
    assert (before + Usage(calls=1)).minus(before).cost_usd is None
    assert before.minus(Usage()).cost_usd == 0.25


def test_an_unknown_cost_is_over_no_budget_but_tokens_are() -> None:
    budget = Budget(max_tokens=10, max_cost_usd=0.5)

    assert budget.overrun(Usage(input=9, calls=1)) is None
    assert budget.overrun(Usage(input=9, output=1, calls=1)) == "10 of 10 tokens are used"
    assert budget.overrun(Usage(calls=1, cost_usd=0.5)) == "0.5 of 0.5 US dollars are spent"
    unknown = Usage(input=None, output=None, calls=1, cost_usd=0.1)
    assert Budget(max_cost_usd=0.5).refusal(unknown) is None  # the server reports what the call cost
    assert Budget(max_cost_usd=0.05).refusal(unknown) == "the budget is used up: 0.1 of 0.05 US dollars are spent"
    assert (budget.refusal(unknown) or "").startswith("the budget cannot be checked: ")
