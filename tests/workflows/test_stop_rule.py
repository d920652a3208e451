"""Two events in one workflow task: a stop loses, repeats and blames nothing, and a turn's result is its own draft's."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from gradeloop.contract.messages import ToolCall, Usage
from gradeloop.contract.provider import FailureKind
from gradeloop.contract.thread import RunResult
from tests.rig.threads import (
    SECONDS,
    Models,
    Role,
    Served,
    a_thread,
    answering,
    at_once,
    ended,
    failing_until,
    fall_silent,
    replay,
    serving,
    start,
)

GOOD, BETTER = "- it is good", "- it is better"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
MORE = {"messages": [{"role": "user", "content": "more"}]}
Handle = WorkflowHandle[Any, Any]


class Stage:
    """A thread whose worker for workflows comes and goes: what is sent while it is gone is delivered in one workflow task."""

    def __init__(self, client: Client, calls: Served) -> None:
        self.client = client
        self.models = calls.models
        self.thread = a_thread()
        self.handle: Handle = client.get_workflow_handle(self.thread)
        self._calls = calls

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Served]:
        """Serve the thread for a while."""
        async with serving(self.client, models=self.models, task_queue=self._calls.task_queue, only="workflows") as served:
            yield served

    async def send(self, name: str, argument: object = None) -> asyncio.Task[RunResult]:
        """Send an update, and return its task once the server has it."""
        arguments = [] if argument is None else [argument]
        task = asyncio.create_task(self.handle.execute_update(name, args=arguments, result_type=RunResult))
        await asyncio.sleep(0.3)
        return task

    async def after_first_turn(self, **options: Any) -> None:
        """Do a turn and leave."""
        async with self.served() as served:
            await served.client.invoke(self.thread, "hello", start=start(**options))


@asynccontextmanager
async def staged(client: Client, models: Models | None = None, **options: Any) -> AsyncIterator[Stage]:
    """Make the calls of a thread, which `Stage.served` serves."""
    async with serving(client, models=models or answering(), only="activities", **options) as calls:
        yield Stage(client, calls)


async def in_order(first: str, supply: Callable[[], Awaitable[None]], invoke: Callable[[], Awaitable[Any]]) -> Any:
    """Supply a rubric and invoke, in that order or the other one; returns what the turn is waited for with."""
    if first == "rubric":
        await supply()
        return await invoke()
    task = await invoke()
    await supply()
    return task


@pytest.mark.parametrize(("first", "rubric", "count"), [("rubric", BETTER, 2), ("turn", BETTER, 1), ("turn", GOOD, 2)])
async def test_a_turn_that_comes_with_a_rubric_ends_with_a_draft_of_its_own(client: Client, first: str, rubric: str, count: int) -> None:
    async with staged(client) as stage:
        await stage.after_first_turn()
        turn = await in_order(
            first,
            lambda: stage.handle.signal("supply_rubric", rubric),
            lambda: stage.send("invoke", {"messages": MORE["messages"] * count}),
        )
        async with stage.served() as served:
            result = await asyncio.wait_for(turn, SECONDS)
            asked = stage.models.requests_of("grader")[-1]
            contents = await served.contents(stage.thread)

    assert (result.status, result.output) == ("satisfied", "draft 2")
    assert result.evaluations[-1].draft == 2 + count
    assert contents == ["hello", "draft 1", *["more"] * count, "draft 2"]
    assert rubric.removeprefix("- ") in str(asked)
    await replay(client, stage.thread)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls be those of a worker that is gone."""
    fall_silent(monkeypatch)


async def slow_look(_at: str) -> str:
    """Look for a long time, the first time."""
    LOOKS.append(_at)
    if len(LOOKS) == 1:
        await asyncio.sleep(3)
    return "seen"


async def slow_check(draft: str) -> bool:
    """Look at the draft for a long time, the first time."""
    LOOKS.append(draft)
    if len(LOOKS) == 1:
        await asyncio.sleep(3)
    return True


LOOKS: list[str] = []


def looking() -> Models:
    """Return models of which both look first."""
    models = answering()

    def first_look(answer: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
        return lambda step, number: answer(step, number) if step.step else (ToolCall(id="look", name="slow_look", arguments={"_at": "x"}),)

    models.answers = {role: first_look(answer) for role, answer in models.answers.items()}
    return models


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(("role", "how"), [("generator", "interrupt"), ("grader", "cancel")])
async def test_a_model_call_whose_worker_is_gone_as_the_stop_comes_is_not_done(client: Client, role: Role, how: str) -> None:
    models = answering()
    async with serving(client, models=models, quick=False) as served:
        thread = a_thread()
        turn = await served.begun(thread, role)
        await served.handle(thread).signal("interrupt") if how == "interrupt" else await served.client.cancel(thread)
        stopped = await asyncio.wait_for(turn, SECONDS)
        models.release()
        result = await served.client.resume(thread)
        evaluations = (await served.client.evaluations(thread)).items

    assert (stopped.status, stopped.reason, stopped.error) == ("interrupted", "person", None)
    assert (result.status, [evaluation.result for evaluation in evaluations]) == ("satisfied", ["satisfied"])
    assert models.count("generator") + models.count("grader") == 3


@pytest.mark.slow
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(("where", "how"), [("generator", "cancel"), ("grader", "interrupt"), ("check", "cancel")])
async def test_a_tool_whose_worker_is_gone_as_the_stop_comes_is_called_again(client: Client, where: str, how: str) -> None:
    LOOKS.clear()
    rubric = {"criteria": [{"description": "seen", "check": "slow_check"}]} if where == "check" else GOOD
    changed: dict[str, Any] = {} if where == "check" else {where: start()[where] | {"tools": ["slow_look"]}}
    async with serving(client, models=answering() if where == "check" else looking_only(where), tools=[slow_look, slow_check]) as served:
        thread = a_thread()
        turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start(rubric=rubric, **changed)))
        async with asyncio.timeout(SECONDS):
            while not LOOKS:
                await asyncio.sleep(0.02)
        await served.handle(thread).signal("interrupt") if how == "interrupt" else await served.client.cancel(thread)
        stopped = await asyncio.wait_for(turn, SECONDS)
        result = await served.client.resume(thread)
        messages = (await served.client.messages(thread)).items

    assert (stopped.status, stopped.reason, stopped.error) == ("interrupted", "person", None)
    assert (result.status, len(LOOKS)) == ("satisfied", 2)
    assert [message.content for message in messages if message.role == "tool"] == (["seen"] if where == "generator" else [])


def looking_only(role: str) -> Models:
    """Return models of which one looks first."""
    models, plain = looking(), answering()
    models.answers = {**plain.answers, role: models.answers[role]}  # type: ignore[index, dict-item]  # one of the two roles
    return models


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("role", "kind"),
    [
        *(("generator", kind) for kind in ("rate_limited", "malformed_response", "auth")),
        *(("grader", kind) for kind in ("server", "connection", "truncated")),
    ],
)
async def test_an_attempt_that_fails_as_the_stop_comes_is_not_done_and_what_it_cost_is_counted(
    client: Client, role: Role, kind: FailureKind
) -> None:
    models = answering()
    models.fail_first(role, kind=kind, usage=Usage(input=7, calls=1, attempts=1), raisable=kind == "truncated")
    async with serving(client, models=models) as served:
        thread = a_thread()
        turn = await served.begun(thread, role)
        await served.handle(thread).signal("interrupt")
        await asyncio.sleep(0.2)
        models.release()
        stopped = await turn
        result = await served.client.resume(thread)

    assert (stopped.status, stopped.reason, stopped.error) == ("interrupted", "person", None)
    assert (result.status, len(result.evaluations)) == ("satisfied", 1)
    assert result.usage.input == 27


async def test_a_turn_that_a_cancel_with_the_verdict_dropped_is_served_when_it_is_asked_again(client: Client) -> None:
    models = answering()
    queued = list[asyncio.Task[RunResult]]()

    async def more(calls: Served, thread: str) -> RunResult:
        return await calls.client.invoke(thread, "more", key="second", start=start())

    async def ask_more(calls: Served, thread: str) -> None:
        queued.append(asyncio.create_task(more(calls, thread)))
        await calls.until(thread, lambda state: state.queued == 1)

    async with at_once(client, models, "grader", lambda calls, thread: calls.client.cancel(thread), before=ask_more) as (
        served,
        thread,
        first,
    ):
        dropped = await asyncio.wait_for(queued[0], SECONDS)
        again = await asyncio.wait_for(more(served, thread), SECONDS)
        await replay(client, thread)

    assert (first.status, first.output) == ("satisfied", "draft 1")
    assert (dropped.status, dropped.output) == ("interrupted", None)
    assert (again.status, again.output) == ("satisfied", "draft 2")


@pytest.mark.slow
async def test_an_interrupt_at_the_verdict_where_the_thread_rolls_over_is_kept(impatient: Client) -> None:
    models = answering()
    models.answers["grader"] = failing_until(9)

    async def often(calls: Served, thread: str) -> None:
        await calls.handle(thread).signal("interrupt")

    async with serving(impatient, models=models, only="activities") as calls:
        thread, queue = a_thread(), calls.task_queue
        async with serving(impatient, models=models, task_queue=queue, only="workflows") as served:
            models.hold("grader")
            turn = asyncio.create_task(served.client.invoke(thread, "hello", key="it", start=start(max_iterations=20)))
            for number in range(1, 30):
                await models.called("grader", number)
                length = (await served.handle(thread).describe()).history_length
                if length > 22:
                    break
                models.release()
                models.hold("grader")
        before = models.count("generator"), models.count("grader")
        await often(calls, thread)
        models.release()
        await ended(impatient, thread)
        async with serving(impatient, models=models, task_queue=queue, only="workflows") as served:
            stopped = await asyncio.wait_for(turn, SECONDS)
            after = models.count("generator"), models.count("grader")

    assert stopped.status == "interrupted"
    assert after == before


@pytest.mark.slow
async def test_callers_of_a_thread_that_waits_for_a_person_get_interrupted_when_it_is_cancelled(client: Client) -> None:
    rubric = {"criteria": ["it is good", {"id": "kind", "description": "kind", "human": True}]}
    async with serving(client, models=answering()) as served:
        thread = a_thread()
        waiting = await served.client.invoke(thread, "hello", key="one", start=start(rubric=rubric))
        attached = asyncio.create_task(served.handle(thread).execute_update("invoke", HELLO | {"key": "one"}, result_type=RunResult))
        queued = asyncio.create_task(served.client.invoke(thread, "more"))
        await served.until(thread, lambda state: state.queued == 1)
        await served.client.cancel(thread)
        results = await asyncio.wait_for(asyncio.gather(attached, queued), SECONDS)
        await served.client.decide(thread, "kind", True, by="ann")
        final = await served.client.invoke(thread, "hello", key="one")

    assert (waiting.status, [result.status for result in results]) == ("waiting", ["interrupted"] * 2)
    assert (final.status, final.grading_run_id) == ("satisfied", waiting.grading_run_id)
    assert served.models.count("grader") == 1


@pytest.mark.slow
async def test_a_rubric_that_is_pending_as_a_draft_is_terminated_is_the_rubric_of_that_draft(client: Client) -> None:
    async with serving(client, models=answering()) as served:
        thread = a_thread()
        await served.client.invoke(thread, "hello", start=start())
        turn = await served.begun(thread, "generator", "more")
        await served.client.supply_rubric(thread, BETTER)
        await served.until(thread, lambda _: True)
        await served.handle(thread).terminate()
        await asyncio.gather(turn, return_exceptions=True)
        served.models.release()
        result = await served.client.resume(thread)
        contents = await served.contents(thread)

    assert (result.status, len(contents), contents[2]) == ("satisfied", 4, "more")
    assert [evaluation.draft for evaluation in result.evaluations] == [3]
    assert "it is better" in str(served.models.requests_of("grader")[-1])


@pytest.mark.slow
async def test_a_turn_that_was_cancelled_goes_on_for_its_key(client: Client) -> None:
    async with serving(client, models=answering()) as served:
        thread = a_thread()
        await served.client.invoke(thread, "hello", key="one", start=start())
        turn = await served.begun(thread, "generator", "more", "two")
        await served.client.cancel(thread)
        stopped = await turn
        served.models.release()
        result = await served.client.invoke(thread, "more", key="two")

    assert (stopped.status, stopped.reason) == ("interrupted", "person")
    assert (result.status, next(message.content for message in result.messages or ())) == ("satisfied", "more")


async def interrupted(stage: Stage) -> None:
    """Interrupt a first draft, and leave."""
    async with stage.served() as served:
        turn = await served.begun(stage.thread, "generator")
        await served.client.interrupt(stage.thread)
        await turn
    stage.models.release()


async def test_one_who_resumes_what_another_has_resumed_gets_its_result(client: Client) -> None:
    async with staged(client) as stage:
        await interrupted(stage)
        stage.models.hold("generator")
        async with stage.served():
            first = await stage.send("resume")
            await stage.models.called("generator", 2)
            second = await stage.send("resume")
            stage.models.release()
            results = await asyncio.gather(first, second)

    assert [result.status for result in results] == ["satisfied"] * 2
    assert results[0] == results[1]


@pytest.mark.slow
async def test_turns_before_an_interrupt_end_with_it(client: Client) -> None:
    async with staged(client) as stage:
        async with stage.served() as served:
            turn = await served.begun(stage.thread, "generator", "hello", key="one")
            queued = await stage.send("invoke", MORE)
        await stage.handle.signal("interrupt")
        async with stage.served() as served:
            results = await asyncio.wait_for(asyncio.gather(turn, queued), SECONDS)
            contents = await served.contents(stage.thread)
        stage.models.release()

    assert [result.status for result in results] == ["interrupted", "interrupted"]
    assert contents == ["hello"]
