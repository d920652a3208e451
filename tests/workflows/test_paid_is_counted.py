"""What a provider sold is in the usage of threads and judgements, also where the reply was refused, lost or asked for again."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from activities import generate, grade
from activities.batches import judge as judging
from activities.state_cache import ThreadLoader
from gradeloop.contract.messages import Usage
from gradeloop.judges.client import Judge
from tests.rig.failing_models import USED, FailingModels, listening, working
from tests.rig.judging import fresh
from tests.rig.threads import fall_silent, request, verdict_text
from workflows import activity_calls

WRITER, FIRST, SECOND, THIRD = (f"openai_compatible:{name}" for name in ("writer", "first", "second", "third"))
PASS = verdict_text()


def reply(text: str | None, stop: str = "stop") -> dict[str, Any]:
    usage = {"prompt_tokens": USED["input"], "completion_tokens": USED["output"]}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": stop}
    return {"object": "chat.completion", "choices": [choice], "usage": usage}


EMPTY = {"object": "chat.completion", "choices": [], "usage": {"prompt_tokens": USED["input"], "completion_tokens": USED["output"]}}
CUT = reply("a dra", "length")
FILTERED = reply("", "content_filter")


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    again = RetryPolicy(
        initial_interval=timedelta(milliseconds=20),
        maximum_interval=timedelta(milliseconds=50),
        non_retryable_error_types=activity_calls.NEVER_RETRIED,
    )
    call: Any = {**activity_calls.MODEL_CALL, "retry_policy": again}
    monkeypatch.setattr("workflows.activity_calls.MODEL_CALL", call)


@pytest.fixture
async def models() -> AsyncIterator[FailingModels]:
    async with listening() as server:
        yield server


def sold(models: FailingModels) -> tuple[int, int, int]:
    return models.sold * USED["input"], models.sold * USED["output"], models.sold


def counted(usage: Usage) -> tuple[int | None, int | None, int]:
    return usage.input, usage.output, usage.calls


def graded(rubric: object = "- it is good", **more: Any) -> dict[str, Any]:
    return request(rubric, generator={"model": WRITER}, grader={"model": FIRST}) | more


PLANS: dict[str, dict[str, list[Any]]] = {
    "an empty reply of the generator": {"writer": [EMPTY, "a draft"]},
    "empty replies of the generator, for good": {"writer": [EMPTY]},
    "a reply of the generator that was cut": {"writer": [CUT, "a draft"]},
    "a reply that is cut again": {"writer": [CUT]},
    "a reply that was filtered": {"writer": [FILTERED]},
    "an empty reply, then a server that fails, then a draft": {"writer": [EMPTY, 500, 500, "a draft"]},
    "an empty reply, then a key that is refused": {"writer": [EMPTY, 401]},
    "an answer of the grader that is not a verdict": {"first": ["no verdict", PASS]},
    "answers of the grader that stay none": {"first": ["no verdict"]},
    "an empty reply of the grader, then a refused key": {"first": [EMPTY, 401]},
    "a reply of the grader that was cut, then a key that is refused": {"first": [CUT, 401]},
    "a wrong answer, an empty reply and a cut one": {"first": ["no verdict", EMPTY, CUT, PASS]},
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
async def test_a_thread_counts_what_was_sold(client: Client, models: FailingModels, plan: dict[str, list[Any]]) -> None:
    models.plan("first", PASS)
    for name, answers in plan.items():
        models.plan(name, *answers)
    async with working(client, models) as served:
        result = await served.run(graded())

    assert counted(result.usage) == sold(models)
    assert result.usage.attempts == len(models.asked)


@pytest.mark.parametrize("role", ["writer", "first"])
async def test_the_third_paid_reply_that_is_none_is_the_last(client: Client, models: FailingModels, role: str) -> None:
    models.plan(role, EMPTY, 429, EMPTY, 503, EMPTY, PASS)
    async with working(client, models) as served:
        result = await served.run(graded())

    assert (models.bill[role], models.times(role)) == (3, 5)
    assert counted(result.usage) == sold(models)
    assert (result.status, "malformed_response" in str(result)) == ("interrupted" if role == "writer" else "grader_error", True)


async def test_a_panel_of_which_one_fails_counts_what_all_were_paid(client: Client, models: FailingModels) -> None:
    models.plan("first", "no verdict", PASS)
    models.plan("second", EMPTY, 401)
    models.plan("third", CUT, PASS)
    rubric = {"criteria": [{"id": "c1", "description": "it is good", "panel": [FIRST, SECOND, THIRD]}]}
    async with working(client, models) as served:
        result = await served.run(graded(rubric))

    assert counted(result.usage) == sold(models)
    assert models.times("second") == 2
    assert result.evaluations[-1].usage.calls == models.sold - 1  # the draft is the thread's


SCHEMA = {"type": "object", "properties": {"polite": {"type": "boolean"}}, "required": ["polite"]}

JUDGEMENTS: dict[str, list[Any]] = {
    "an invalid answer": ["{}", '{"polite": true}'],
    "answers that stay invalid": ["{}"],
    "an empty reply": [EMPTY, '{"polite": true}'],
    "empty replies for good": [EMPTY],
    "a cut reply": [CUT, '{"polite": true}'],
    "an empty reply and a key that is refused": [EMPTY, 401],
}


@pytest.mark.parametrize("answers", JUDGEMENTS.values(), ids=JUDGEMENTS)
@pytest.mark.parametrize("rollouts", [1, 3])
async def test_a_judgement_by_a_schema_counts_what_was_sold(
    client: Client, models: FailingModels, answers: list[Any], rollouts: int
) -> None:
    models.plan("first", *answers)
    judge = {"rubric_text": "Is it polite?", "output_schema": SCHEMA, "judge_model": FIRST, "n_rollouts_per_input": rollouts}
    async with working(client, models) as served:
        result = await Judge(judge, client, task_queue=served.task_queue)(fresh(f"run-{uuid4()}"))

    assert counted(result.usage) == sold(models)


async def test_a_judgement_by_criteria_counts_what_was_sold_before_it_failed(client: Client, models: FailingModels) -> None:
    models.plan("first", "no verdict", EMPTY, 401)
    async with working(client, models) as served:
        result = await Judge({"rubric": "- it is good", "grader": {"model": FIRST}}, client, task_queue=served.task_queue)(
            fresh(f"run-{uuid4()}")
        )

    assert result.failed
    assert counted(result.usage) == sold(models) == (2000, 200, 2)


def fail_once(patch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception) -> None:
    """Have a method raise the first time, as behind a reply that has just been paid for."""
    whole: Callable[..., Any] = getattr(owner, name)
    failed: list[bool] = []

    def method(*arguments: Any, **activity_calls: Any) -> Any:
        if not failed:
            failed.append(True)
            raise error
        return whole(*arguments, **activity_calls)

    patch.setattr(owner, name, method)


BEHIND = {"generate": (generate, "model_notes"), "grade": (grade, "parse_verdict"), "judge": (judging, "parse_answer")}
"""What each paid activity does once it has its reply."""

BROKEN: dict[str, Callable[[], Exception]] = {
    "an error of our own": lambda: RuntimeError("a bug"),
    "an error that is retried": lambda: ApplicationError("not now", type="StoreUnavailable"),
    "an error that is final": lambda: ApplicationError("never", type="config", non_retryable=True),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("step", ["generate", "grade"])
async def test_a_call_that_fails_behind_its_reply_has_paid_for_it(
    client: Client, models: FailingModels, monkeypatch: pytest.MonkeyPatch, step: str, broken: Callable[[], Exception]
) -> None:
    models.plan("first", PASS)
    fail_once(monkeypatch, *BEHIND[step], broken())
    async with working(client, models) as served:
        result = await served.run(graded())

    assert counted(result.usage) == sold(models)


async def test_an_error_of_our_own_behind_paid_replies_is_final_at_the_third(
    client: Client, models: FailingModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    models.plan("first", PASS)
    monkeypatch.setattr(grade, "parse_verdict", broken)
    async with working(client, models) as served:
        result = await served.run(graded())

    assert (result.status, models.times("first")) == ("grader_error", 3)
    assert counted(result.usage) == sold(models)


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_a_judgement_that_fails_behind_its_reply_has_paid_for_it(
    client: Client, models: FailingModels, monkeypatch: pytest.MonkeyPatch, broken: Callable[[], Exception]
) -> None:
    models.plan("first", '{"polite": true}')
    fail_once(monkeypatch, *BEHIND["judge"], broken())
    judge = {"rubric_text": "Is it polite?", "output_schema": SCHEMA, "judge_model": FIRST}
    async with working(client, models) as served:
        result = await Judge(judge, client, task_queue=served.task_queue)(fresh(f"run-{uuid4()}"))

    assert counted(result.usage) == sold(models)


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_an_attempt_that_fails_before_it_asks_keeps_what_the_one_before_it_paid(
    client: Client, models: FailingModels, monkeypatch: pytest.MonkeyPatch, broken: Callable[[], Exception]
) -> None:
    models.plan("first", EMPTY, PASS)
    whole, calls = ThreadLoader.settings, 0

    async def settings(*arguments: Any) -> Any:
        nonlocal calls
        if activity.info().activity_type == "grade":
            calls += 1
            if calls == 2:
                raise broken()
        return await whole(*arguments)

    monkeypatch.setattr(ThreadLoader, "settings", settings)
    async with working(client, models) as served:
        result = await served.run(graded())

    assert models.times("first") >= 1
    assert counted(result.usage) == sold(models)


@pytest.mark.parametrize("role", ["writer", "first"])
async def test_a_reply_that_is_none_of_a_call_that_the_server_gives_up_is_counted(
    client: Client, models: FailingModels, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    models.plan("first", PASS)
    models.plan(role, EMPTY, PASS)
    models.delays[role] = [3.0]
    fall_silent(monkeypatch)
    async with working(client, models) as served:
        result = await served.run(graded())

    assert (result.status, models.times(role)) == ("satisfied", 2)
    assert counted(result.usage) == sold(models)


@pytest.mark.parametrize("role", ["writer", "first"])
async def test_a_call_that_the_server_gives_up_is_counted_whatever_becomes_of_its_reply(
    client: Client, models: FailingModels, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    models.plan("first", PASS)
    models.delays[role] = [3.0]
    fall_silent(monkeypatch)
    async with working(client, models) as served:
        result = await served.run(graded())

    assert (result.status, models.times(role)) == ("satisfied", 1)
    assert counted(result.usage) == sold(models)


@pytest.mark.slow
async def test_an_answer_of_a_judge_that_the_server_gives_up_is_counted(
    client: Client, models: FailingModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.plan("first", '{"polite": true}')
    models.delays["first"] = [3.0]
    fall_silent(monkeypatch)
    judge = {"rubric_text": "Is it polite?", "output_schema": SCHEMA, "judge_model": FIRST}
    async with working(client, models) as served:
        result = await Judge(judge, client, task_queue=served.task_queue)(fresh(f"run-{uuid4()}"))

    assert (result.failed, models.times("first")) == (False, 1)
    assert counted(result.usage) == sold(models)
