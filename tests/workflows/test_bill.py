"""The provider's bill is what a thread counts, whatever comes and whenever: also between a paid reply that is none and the next attempt."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from itertools import product
from typing import Any, get_args
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.client import Client, WorkflowUpdateStage
from temporalio.common import RetryPolicy

from gradeloop.client.call_waits import describe_call_wait
from gradeloop.contract.messages import Usage
from gradeloop.contract.provider import FailureKind, ModelFault, ModelReply, ModelRequest
from gradeloop.errors import InvalidRequest, ServerUnreachable
from tests.rig.failing_models import USED, Answer, FailingModels, calling, listening
from tests.rig.threads import (
    SECONDS,
    Models,
    Served,
    a_thread,
    answering,
    ended,
    replay,
    request,
    runs_of,
    scheduled_types,
    serving,
    start,
    verdict_text,
)
from workflows import activity_calls

GOOD, BETTER = "- it is good", "- it is better"
PASS, FAIL = verdict_text(), verdict_text(False)
REPORTED = {"prompt_tokens": USED["input"], "completion_tokens": USED["output"]}
EMPTY = {"object": "chat.completion", "choices": [], "usage": REPORTED}
TOKENS = sum(USED.values())

PAUSE = 2.0
"""Seconds before a call is made again: a test has time to do something meanwhile."""


def pause_for(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have calls be made again after so many seconds."""
    again = RetryPolicy(initial_interval=timedelta(seconds=seconds), non_retryable_error_types=activity_calls.NEVER_RETRIED)
    call: Any = {**activity_calls.MODEL_CALL, "retry_policy": again}
    patch.setattr("workflows.activity_calls.MODEL_CALL", call)


@pytest.fixture(autouse=True)
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pause_for(monkeypatch, PAUSE)


@pytest.fixture
async def models() -> AsyncIterator[FailingModels]:
    async with listening() as server:
        yield server


class Bought:
    """A thread with models of its own, so that its bill is its own, too."""

    def __init__(self, models: FailingModels, name: str) -> None:
        self.id, self.models, self.name = a_thread(), models, name
        self.spoiled = ""
        """The model whose replies are no answers at first."""

    def model(self, role: str) -> str:
        return f"{role} of {self.name}"

    def plan(self, role: str, *answers: Answer) -> None:
        """Have the writer or the judge give these answers, of which some are none."""
        self.models.plan(self.model(role), *answers)
        self.spoiled = self.model(role) if EMPTY in answers else self.spoiled

    def request(self, **more: Any) -> dict[str, Any]:
        """Return what the thread is started with."""
        writer, judge = ({"model": f"openai_compatible:{self.model(role)}"} for role in ("writer", "judge"))
        return start(generator=writer, grader=judge, rubric=GOOD, idle_timeout=600) | more

    @property
    def bill(self) -> int:
        return self.models.bill[self.model("writer")] + self.models.bill[self.model("judge")]

    async def sold(self, none: int) -> None:
        """Wait until so many replies that are none were sold, behind the first one, which is."""
        async with asyncio.timeout(SECONDS):
            while self.models.bill[self.spoiled] < 1 + none:
                await asyncio.sleep(0.02)

    async def asked(self, none: int) -> None:
        """Wait until the model is asked for so many replies that are none."""
        async with asyncio.timeout(SECONDS):
            while self.models.times(self.spoiled) < 1 + none:
                await asyncio.sleep(0.02)

    async def counted(self, served: Served) -> int:
        """Return how many replies the thread has counted, by its calls and by its tokens alike."""
        usage = (await served.client.state(self.id)).usage
        assert (usage.input or 0) + (usage.output or 0) == TOKENS * usage.calls
        return usage.calls


async def pauses(served: Served, thread: str) -> None:
    """Wait until no call of a thread is at its model."""
    handle, started = served.handle(thread), PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    async with asyncio.timeout(SECONDS):
        while any(call.state == started for call in (await handle.describe()).raw_description.pending_activities):
            await asyncio.sleep(0.05)


async def at_rest(served: Served, thread: str) -> str:
    """Wait until nothing of a thread runs any more, and return its status."""
    status = "running"
    async with asyncio.timeout(SECONDS):
        while status == "running":
            await asyncio.sleep(0.05)
            with suppress(ServerUnreachable):  # a busy machine answers late
                status = (await served.client.state(thread)).status
    await ended(served.temporal, thread)
    return status


async def queue(served: Served, bought: Bought, **more: Any) -> None:
    """Ask for another turn without waiting for it."""
    asked = {"messages": [{"role": "user", "content": "more"}]} | more
    await served.handle(bought.id).start_update("invoke", asked, wait_for_stage=WorkflowUpdateStage.ACCEPTED)


async def ask(served: Served, bought: Bought) -> None:
    """Ask the thread all its questions."""
    for query in ("state", "result", "checkpoint", "stopped"):
        await served.handle(bought.id).query(query)


async def overrule(served: Served, bought: Bought) -> None:
    """Pass the first draft."""
    await served.client.override(bought.id, "c1", True, why="it will do", by="ann")


async def is_unreadable(served: Served, bought: Bought) -> bool:
    """Tell whether a thread was terminated while a workflow task was scheduled and not begun: its server answers no query from then on."""
    last = [event.event_type async for event in served.handle(bought.id).fetch_history_events()][-2:]
    return last == [EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED]


Disturbance = Callable[[Served, Bought], Awaitable[object]]

DISTURBANCES: dict[str, Disturbance] = {
    "nothing": lambda *_: asyncio.sleep(0),
    "interrupt": lambda served, bought: served.client.interrupt(bought.id),
    "cancel": lambda served, bought: served.client.cancel(bought.id),
    "terminate": lambda served, bought: served.handle(bought.id).terminate(),
    "another rubric": lambda served, bought: served.client.supply_rubric(bought.id, BETTER),
    "the rubric in force": lambda served, bought: served.client.supply_rubric(bought.id, GOOD),
    "a cleared rubric": lambda served, bought: served.client.supply_rubric(bought.id, {"criteria": []}),
    "a malformed rubric": lambda served, bought: served.handle(bought.id).signal("supply_rubric", {"criteria": 5}),
    "override": overrule,
    "close": lambda served, bought: served.client.close_thread(bought.id),
    "invoke": queue,
    "invoke, another rubric": lambda served, bought: queue(served, bought, rubric=BETTER),
    "queries": ask,
}

PLANS: dict[str, dict[str, tuple[Answer, ...]]] = {
    "draft": {"writer": ("one", EMPTY, EMPTY, "two"), "judge": (FAIL, PASS)},
    "grading": {"writer": ("one", "two"), "judge": (FAIL, EMPTY, EMPTY, PASS)},
}
"""A story whose first draft fails, so that there is something to override, and whose replies then are none twice."""


async def disturbed(served: Served, bought: Bought, moment: str, disturb: Disturbance) -> list[tuple[int, int]]:
    """Return the bill and what is counted: where the disturbance has stopped the thread, and at its end."""
    turn = asyncio.create_task(served.client.invoke(bought.id, "write", key="first", start=bought.request()))
    await MOMENTS[moment](served, bought)
    await disturb(served, bought)
    if await is_unreadable(served, bought):
        turn.cancel()
        return []
    seen = []
    for _ in range(3):
        status = await at_rest(served, bought.id)
        seen.append((bought.bill, await bought.counted(served)))
        if status != "interrupted" and (await served.client.state(bought.id)).status == status:
            break
        try:
            await served.client.resume(bought.id)
        except InvalidRequest as error:  # a turn that waited has gone on with it meanwhile
            if "nothing is interrupted" not in str(error):
                raise
    await served.client.invoke(bought.id, "and more", key="last", start=bought.request())
    await asyncio.gather(turn, return_exceptions=True)
    return [*seen, (bought.bill, await bought.counted(served))]


async def in_the_first_pause(served: Served, bought: Bought) -> None:
    """Wait until the first reply that is none has been read."""
    await bought.sold(1)
    await pauses(served, bought.id)


async def in_the_second_pause(served: Served, bought: Bought) -> None:
    """Wait until the second reply that is none has been read."""
    await bought.sold(2)
    await pauses(served, bought.id)


async def as_the_reply_comes(_: Served, bought: Bought) -> None:
    """Wait until the first reply that is none is on its way."""
    await bought.sold(1)


async def in_the_next_call(_: Served, bought: Bought) -> None:
    """Wait until the call is made again."""
    await bought.asked(2)


MOMENTS = {moment.__name__: moment for moment in (in_the_first_pause, in_the_second_pause, as_the_reply_comes, in_the_next_call)}


AT_A_KILL = {("terminate", "as_the_reply_comes"), ("terminate", "in_the_next_call")}
"""What ends a thread without a word, while a call is in flight, of which one reply may be lost."""

OFTEN = ("grading", "in_the_first_pause")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "moment"),
    [pytest.param(*case, marks=() if case == OFTEN else pytest.mark.slow, id=" ".join(case)) for case in product(PLANS, MOMENTS)],
)
async def test_the_bill_is_counted_whatever_comes(client: Client, models: FailingModels, step: str, moment: str) -> None:
    adapters, threads = calling(models), {name: Bought(models, name) for name in DISTURBANCES}
    for bought in threads.values():
        for role, answers in PLANS[step].items():
            bought.plan(role, *answers)
        models.delays[bought.spoiled] = [0.0, 0.0, 1.0]
    async with serving(client, models=adapters) as served:
        found = await asyncio.gather(*(disturbed(served, bought, moment, DISTURBANCES[name]) for name, bought in threads.items()))
        await replay(client, threads["interrupt"].id)
    await adapters.aclose()

    lost = {name: {paid - counted for paid, counted in pairs} - {0} for name, pairs in zip(DISTURBANCES, found, strict=True)}
    assert {name for name, missing in lost.items() if missing > ({1} if (name, moment) in AT_A_KILL else set())} == set()


@pytest.mark.slow
async def test_the_bill_is_counted_by_the_next_worker_and_across_a_roll_over(
    impatient: Client, models: FailingModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters, bought, queue = calling(models), Bought(models, "rolling"), f"rolling-{time.time()}"
    pause_for(monkeypatch, 0.5)
    bought.plan("writer", "one", EMPTY, EMPTY, "two", "three", EMPTY, "four")
    bought.plan("judge", FAIL, EMPTY, FAIL, FAIL, EMPTY, PASS)

    async with serving(impatient, models=adapters, task_queue=queue, only="activities"), AsyncExitStack() as gone:
        first = await gone.enter_async_context(serving(impatient, models=adapters, task_queue=queue, only="workflows"))
        turn = asyncio.create_task(first.client.invoke(bought.id, "write", key="first", start=bought.request(max_iterations=9)))
        await bought.sold(1)
        await pauses(first, bought.id)
        await gone.aclose()
        async with serving(impatient, models=adapters, task_queue=queue, only="workflows") as second:
            result = await turn
            seen = bought.bill, await bought.counted(second)
            await replay(impatient, bought.id)
            runs = await runs_of(impatient, bought.id)
    await adapters.aclose()

    assert (result.status, len(runs) > 1) == ("satisfied", True)
    assert seen[0] == seen[1] == result.usage.calls


async def test_a_budget_ends_what_is_interrupted_in_every_pause(
    client: Client, models: FailingModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_for(monkeypatch, 60.0)
    adapters, bought, seen = calling(models), Bought(models, "spender"), list[tuple[int, int, str | None]]()
    waits = set[str]()
    bought.plan("judge", EMPTY)
    started = time.monotonic()
    async with serving(client, models=adapters) as served:
        task = {"messages": [{"role": "user", "content": "write"}], "budget": {"max_tokens": 3 * TOKENS + 100}}
        bought.id = (await served.start(bought.request(**task))).id
        for turn in range(6):
            await bought.sold(min(turn, 2))
            await pauses(served, bought.id)
            waits.add(await describe_call_wait(client, await served.handle(bought.id).describe()))
            await served.client.interrupt(bought.id)
            await at_rest(served, bought.id)
            seen.append((bought.bill, await bought.counted(served), (await served.client.state(bought.id)).reason))
            await served.handle(bought.id).start_update("resume", wait_for_stage=WorkflowUpdateStage.ACCEPTED)
    await adapters.aclose()

    assert seen == [(2, 2, "person"), (3, 3, "person"), *[(4, 4, "budget")] * 4]
    assert time.monotonic() - started < 60  # no pause was waited for
    assert "a model gave no answer, and is asked again after a pause" in waits


@pytest.mark.slow
async def test_a_wait_for_a_rate_limit_behind_a_paid_reply_loses_nothing(client: Client, models: FailingModels) -> None:
    adapters, bought = calling(models), Bought(models, "limited")
    bought.plan("judge", EMPTY, 429, 429, PASS)
    async with serving(client, models=adapters) as served:
        bought.id = (await served.start(bought.request(messages=[{"role": "user", "content": "write"}]))).id
        await bought.asked(1)
        await pauses(served, bought.id)
        await served.client.interrupt(bought.id)
        await at_rest(served, bought.id)
        seen = bought.bill, await bought.counted(served)
        result = await served.client.resume(bought.id)
        calls = await scheduled_types(client, bought.id)
    await adapters.aclose()

    assert (seen, result.status, result.usage.calls) == ((2, 2), "satisfied", 3)
    assert calls["grade"] == 3  # what was free has no call of its own in the history


ASKED_AGAIN: set[FailureKind] = {"malformed_response", "degenerate", "server", "timeout", "connection", "overloaded", "rate_limited"}
"""The kinds of failures behind which the same model is asked again."""


class FailingOnce(Models):
    """Models whose first grading of each thread fails, as the thread's name says."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = answering().answers
        self._failed = set[str]()

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Fail the first grading of a thread."""
        if request.step.role == "grader" and request.thread not in self._failed:
            self._failed.add(request.thread)
            kind, cost, _ = request.thread.split(" ")
            (named,) = (one for one in get_args(FailureKind) if one == kind)
            raise ModelFault(named, "as it was told to", usage=Usage(input=7, calls=1, attempts=1) if cost == "paid" else None)
        return await super().complete(request)


@pytest.mark.slow
async def test_what_was_paid_for_is_in_the_history_before_it_is_asked_again_and_what_was_free_is_not(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_for(monkeypatch, 0.05)
    cases = list(product(get_args(FailureKind), ("paid", "free")))

    async def made(kind: FailureKind, cost: str) -> tuple[int, int | None]:
        thread = await served.start(request("- it is good"), id=f"{kind} {cost} {uuid4()}")
        result = await thread.result()
        return (await scheduled_types(client, thread.id))["grade"], result.usage.input

    async with serving(client, models=FailingOnce()) as served:
        found = await asyncio.gather(*(made(*case) for case in cases))

    assert dict(zip(cases, found, strict=True)) == {
        (kind, cost): (
            1 + (cost == "paid" and kind in ASKED_AGAIN),  # calls in the history
            10 + 7 * (cost == "paid") + 10 * (kind in ASKED_AGAIN),
        )
        for kind, cost in cases
    }
