"""What a provider sold is in the usage of a batch and of its cases, also where the reply was refused, lost or asked for again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from activities.calls.tenant_budgets import used_today
from gradeloop.batches.charges import CallCost
from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.batches.store import BatchStore
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import Budget
from tests.rig.batches import Batches, batching
from tests.rig.failing_models import USED, FailingModels, calling, listening
from tests.rig.threads import fall_silent, verdict_text
from workflows import activity_calls

WRITER, FIRST, SECOND = (f"openai_compatible:{name}" for name in ("writer", "first", "second"))
PASS = verdict_text()
EMPTY = {"object": "chat.completion", "choices": [], "usage": {"prompt_tokens": USED["input"], "completion_tokens": USED["output"]}}
CUT = EMPTY | {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a dra"}, "finish_reason": "length"}]}


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
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
    async with listening() as server:
        yield server


@asynccontextmanager
async def calling_batches(client: Client, folder: Path, models: FailingModels, **settings: Any) -> AsyncIterator[Batches]:
    """Serve batches that call the models."""
    adapters = calling(models)
    async with batching(client, folder, models=adapters, **settings) as batches:
        yield batches
    await adapters.aclose()


def drafted(rubric: object = "- it is good", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Write a haiku."}]
    return {"id": "a", "messages": messages, "generator": {"model": WRITER}, "grader": {"model": FIRST}, "rubric": rubric} | more


def whole(usage: Usage) -> tuple[int | None, int | None, int]:
    return usage.input, usage.output, usage.calls


def of_all(models: FailingModels, summary: BatchSummary, results: list[CaseResult]) -> tuple[Any, Any, Any]:
    """Return what the provider sold, what the batch counts, and what its cases do."""
    sold = (models.sold * USED["input"], models.sold * USED["output"], models.sold)
    return sold, whole(summary.usage), whole(sum((result.usage for result in results), Usage()))


PANEL = {"criteria": [{"id": "c1", "description": "it is good", "panel": [FIRST, SECOND]}]}
TWO = {"criteria": [{"id": "c1", "description": "it is good", "grader": FIRST}, {"id": "c2", "description": "it is", "grader": SECOND}]}

PLANS: dict[str, tuple[object, dict[str, list[Any]]]] = {
    "replies that are none, and then are": ("- it is good", {"writer": [EMPTY, CUT, "a draft"], "first": ["x", EMPTY, CUT, PASS]}),
    "drafts that are none for good": ("- it is good", {"writer": [EMPTY]}),
    "a draft that is cut, and a key that is refused": ("- it is good", {"writer": [CUT, EMPTY, 401]}),
    "answers that stay no verdict": ("- it is good", {"first": ["x"]}),
    "a grader that loses its key": ("- it is good", {"first": ["x", EMPTY, 401]}),
    "a vote of a panel that fails": (PANEL, {"first": [EMPTY, PASS], "second": ["x", EMPTY, 401]}),
    "one question of two that fails": (TWO, {"second": [CUT, EMPTY, 401]}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("rubric", "plan"), PLANS.values(), ids=PLANS)
async def test_a_batch_and_its_case_count_what_was_sold(
    client: Client, tmp_path: Path, models: FailingModels, rubric: object, plan: dict[str, list[Any]]
) -> None:
    models.plan("first", PASS)
    models.plan("second", verdict_text(True, "c2"))
    for name, answers in plan.items():
        models.plan(name, *answers)
    async with calling_batches(client, tmp_path, models) as batches:
        summary, results = await batches.run([drafted(rubric)])

    sold, batch, cases = of_all(models, summary, results)
    assert (batch, cases) == (sold, sold)
    assert summary.usage.attempts == len(models.asked)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "again"),
    [
        ({"first": ["x", EMPTY, 401, PASS]}, "errors"),
        ({"first": ["x", EMPTY, 401, PASS]}, "failures"),
        ({"writer": [EMPTY, 401, "a draft"]}, "errors"),
        ({"second": [EMPTY, 401, PASS]}, "errors"),
    ],
)
async def test_a_batch_counts_every_attempt_of_a_case_and_the_case_its_own(  # as `CaseResult.usage` says
    client: Client, tmp_path: Path, models: FailingModels, plan: dict[str, list[Any]], again: str
) -> None:
    rubric = PANEL if "second" in plan else "- it is good"
    models.plan("first", PASS)
    models.plan("second", PASS)
    for name, answers in plan.items():
        models.plan(name, *answers)
    async with calling_batches(client, tmp_path, models) as batches:
        first, errors = await batches.run([drafted(rubric)], batch_id="tried")
        before = of_all(models, first, errors)
        summary = await (await batches.start("tried", 1, again=again)).result()
        results = list(batches.reader.results("tried"))

    assert (errors[0].status, results[0].status) == ("error", "passed")
    assert before[1:] == (before[0], before[0])
    sold, batch, cases = of_all(models, summary, results)
    assert batch == sold
    assert cases[2] == 2  # the draft, which is kept, and the new answer: a verdict that there was comes from the cache


@pytest.mark.parametrize("role", ["writer", "first"])
@pytest.mark.parametrize("answers", [[PASS], [EMPTY, PASS]], ids=["a reply", "no reply"])
async def test_a_call_that_the_server_gives_up_is_counted(
    client: Client, tmp_path: Path, models: FailingModels, monkeypatch: pytest.MonkeyPatch, role: str, answers: list[Any]
) -> None:
    models.plan("first", PASS)
    models.plan(role, *answers)
    models.delays[role] = [3.0]
    fall_silent(monkeypatch)
    async with calling_batches(client, tmp_path, models) as batches:
        summary, results = await batches.run([drafted()])

    sold, batch, cases = of_all(models, summary, results)
    assert (results[0].status, models.times(role)) == ("passed", len(answers))
    assert (batch, cases) == (sold, sold)


@pytest.mark.parametrize("first", [[CUT, EMPTY, "x", 401], ["<response>{}</response>"]], ids=["none", "invalid"])
async def test_a_comparison_that_fails_is_counted_in_the_batch_and_in_the_case_that_compares(
    client: Client, tmp_path: Path, models: FailingModels, first: list[Any]
) -> None:
    models.plan("first", *first)
    check = {"tool": "comparison_check", "arguments": {"kind": "select-best", "value": "the funniest"}}
    rubric = {"criteria": [{"id": "best", "description": "the best", "check": check}]}
    cases = [drafted(rubric, id=name, compared_with=["a", "b"]) for name in "ab"]
    async with calling_batches(client, tmp_path, models) as batches:
        summary, results = await batches.run(cases)

    sold, batch, of_cases = of_all(models, summary, results)
    assert [result.status for result in results] == ["error", "error"]
    assert (batch, of_cases) == (sold, sold)


async def test_an_escalation_judge_that_fails_is_counted(client: Client, tmp_path: Path, models: FailingModels) -> None:
    escalation: list[Any] = [EMPTY, "x", CUT, 401]
    rubric = {"criteria": [{"id": "c1", "description": "it is good", "votes": 3}]}
    models.plan("first", PASS, PASS, verdict_text(False))
    models.plan("second", *escalation)
    async with calling_batches(client, tmp_path, models) as batches:
        summary, results = await batches.run([drafted(rubric, abstain=0.8, escalate=SECOND)])

    sold, batch, cases = of_all(models, summary, results)
    assert models.times("second") == len(escalation)
    assert (batch, cases) == (sold, sold)


@pytest.mark.parametrize("looped", [False, True])
async def test_a_case_with_a_workflow_of_its_own_that_fails_is_counted(
    client: Client, tmp_path: Path, models: FailingModels, looped: bool
) -> None:
    models.plan("writer", EMPTY, "a draft")
    models.plan("first", CUT, "x", EMPTY, 401)
    grader = {"model": FIRST, "tools": ["word_count"]}
    own = {"max_iterations": 2} if looped else {}
    async with calling_batches(client, tmp_path, models) as batches:
        summary, results = await batches.run([drafted(grader=grader, **own)])

    sold, batch, cases = of_all(models, summary, results)
    assert results[0].status == "error"
    assert (batch, cases) == (sold, sold)


@pytest.mark.slow
async def test_a_tenants_day_has_what_was_sold_also_where_an_earlier_attempt_is_counted_already(
    client: Client, tmp_path: Path, models: FailingModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.plan("writer", EMPTY, "a draft")
    models.plan("first", EMPTY, PASS)
    whole = BatchStore.reserve

    async def reserve(store: BatchStore, batch_id: str, cost: CallCost) -> bool:
        """Say of a second attempt that the first one has counted what it cost, as one whose worker was lost right after that."""
        await whole(store, batch_id, cost)
        return cost.attempt > 1

    monkeypatch.setattr(BatchStore, "reserve", reserve)
    budgets = {"acme": Budget(max_tokens=1_000_000)}
    async with calling_batches(client, tmp_path, models, tenant_budgets=budgets) as batches:
        _, results = await batches.run([drafted()], priority={"level": 3, "tenant": "acme"})
        used = await batches.store.read(lambda connection: used_today(connection, "acme"))

    assert (results[0].status, models.sold) == ("passed", 4)
    assert (used.tokens, used.calls) == (4 * (USED["input"] + USED["output"]), 4)
