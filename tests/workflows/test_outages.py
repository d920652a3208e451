"""A provider that is away is waited for, by real SDK clients against a server that misbehaves; what the wait costs is counted."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.common import RetryPolicy

from activities.calls.retries import ATTEMPTS
from activities.providers import Providers
from activities.providers.environment import Environment
from gradeloop.contract.thread import RunResult
from tests.rig.threads import Served, Thread, draft, request, serving, until
from workflows import activity_calls

CHAT = "openai_compatible:m"

Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]

PATIENT = 60.0
"""Seconds for which no test waits."""


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have failed calls made again at once, for as long as the activity itself says so."""
    again = RetryPolicy(
        initial_interval=timedelta(milliseconds=20),
        maximum_interval=timedelta(milliseconds=50),
        non_retryable_error_types=activity_calls.NEVER_RETRIED,
    )
    call: Any = {**activity_calls.MODEL_CALL, "schedule_to_close_timeout": timedelta(days=8), "retry_policy": again}
    monkeypatch.setattr("workflows.activity_calls.MODEL_CALL", call)
    monkeypatch.setattr("workflows.batches.grading_batch.MODEL_CALL", call)
    monkeypatch.setattr("activities.calls.pace.FIRST_PAUSE", 0.02)
    monkeypatch.setattr("activities.calls.pace.LONGEST_PAUSE", 0.05)


class Provider:
    """A server of two protocols that fails as its plan says before it answers."""

    def __init__(self) -> None:
        self.plan: Iterator[Fault | None] = iter(())
        self.modes: dict[str, Fault] = {}
        """How the first nine calls of a model fail, by the model's name; the plan is for all others."""
        self.calls = 0
        self._plans: dict[str, Iterator[Fault | None]] = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """The address, also while nothing listens there."""
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        """Accept connections."""
        app = web.Application()
        app.router.add_post("/{tail:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def close(self) -> None:
        """Refuse connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def fails(self, times: int, fault: Fault) -> None:
        """Have the next calls fail."""
        self.plan = iter([fault] * times)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.calls += 1
        if fault := next(self._plan_of(request.path, (await request.json())["model"]), None):
            return await fault(request)
        if request.path.endswith("/responses"):
            content = [{"type": "output_text", "text": "a haiku"}]
            items = [{"type": "message", "id": "m1", "status": "completed", "role": "assistant", "content": content}]
            usage = {"input_tokens": 9, "output_tokens": 5}
            return web.json_response({"object": "response", "status": "completed", "output": items, "usage": usage})
        if request.path.endswith("/messages"):
            usage = {"input_tokens": 9, "output_tokens": 5}
            said = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "a haiku"}], "stop_reason": "end_turn"}
            return web.json_response(said | {"usage": usage})
        choice = {"index": 0, "message": {"role": "assistant", "content": "a haiku"}, "finish_reason": "stop"}
        return web.json_response({"object": "chat.completion", "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 5}})

    def _plan_of(self, path: str, name: str) -> Iterator[Fault | None]:
        if name not in self.modes:
            return self.plan
        return self._plans.setdefault(f"{path} {name}", iter([self.modes[name]] * 9))


def status(code: int, **headers: str) -> Fault:
    """Answer with an HTTP status."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no", "type": "x"}}, status=code, headers=headers)

    return answer


def said(content: object) -> Fault:
    """Answer with this JSON and status 200."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(content)

    return answer


def cut(*, begun: bool) -> Fault:
    """Cut the connection, before or within the reply."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "1000"})
        if begun:
            await response.prepare(request)
            await response.write(b'{"id": ')
        assert request.transport is not None
        request.transport.abort()
        return response

    return answer


EMPTY = said({"object": "chat.completion", "choices": []})
"""No reply at all, and nothing paid for as far as is known."""

NOTHING = said(
    {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1},
    }
)
"""A reply that was paid for and says nothing."""


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    """Serve the models of a test."""
    server = Provider()
    await server.listen()
    yield server
    await server.close()


class Calling(Providers):
    """The real adapters, where a test has its models."""

    def release(self) -> None:
        """Do nothing: no call waits at a gate."""


@asynccontextmanager
async def working(
    client: Client, provider: Provider, outage_timeout: float = PATIENT, task_queue: str = "", **settings: Any
) -> AsyncIterator[Served]:
    """Run a worker that calls the provider."""
    url = provider.url
    keys = {"ANTHROPIC_API_KEY": "ant-secret", "OPENAI_API_KEY": "oai-secret", "ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": url}
    models: Any = Calling(Environment.read(keys))
    async with serving(client, models=models, outage_timeout=outage_timeout, task_queue=task_queue, **settings) as served:
        yield served
    await models.aclose()


def asked(model: str, **more: Any) -> dict[str, Any]:
    """Return a request for one ungraded draft."""
    return request(None, generator={"model": model}, **more)


async def failure_of(thread: Thread) -> Any:
    """Return the failure of the thread's last call, as the history has it."""
    events = [event async for event in thread.fetch_history_events()]
    failed = [event for event in events if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED]
    return failed[-1].activity_task_failed_event_attributes.failure


AWAY = {
    **{str(code): status(code) for code in (502, 503, 504, 529, 429)},
    "cut": cut(begun=False),
    "cut-within": cut(begun=True),
}


PROTOCOLS = ("openai_compatible", "anthropic", "openai")


@pytest.mark.slow
@pytest.mark.parametrize(
    "models",
    [
        ["openai_compatible:503", "openai_compatible:cut"],
        pytest.param([f"{protocol}:{mode}" for protocol in PROTOCOLS for mode in AWAY], marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
async def test_outages_of_more_than_eight_attempts_are_waited_for(client: Client, provider: Provider, models: list[str]) -> None:
    provider.modes = AWAY
    async with working(client, provider) as served:
        results = await asyncio.gather(*(served.run(asked(model)) for model in models))

    ends = {model: (result.output, result.error, result.usage.attempts) for model, result in zip(models, results, strict=True)}
    assert ends == dict.fromkeys(models, ("a haiku", None, 10))


@pytest.mark.parametrize("fault", [status(500), EMPTY])
async def test_what_nobody_is_answered_otherwise_is_an_outage(client: Client, provider: Provider, fault: Fault) -> None:
    provider.fails(9, fault)
    async with working(client, provider) as served:
        result = await served.run(asked(CHAT))

    assert (result.output, result.error) == ("a haiku", None)
    assert (provider.calls, result.usage.attempts, result.usage.calls) == (10, 10, 1)


@pytest.mark.slow
async def test_a_provider_that_refuses_connections_is_waited_for(client: Client, provider: Provider) -> None:
    await provider.close()
    async with working(client, provider) as served:
        thread = await served.start(asked(CHAT))
        while (await pending(thread)) < 9:
            await asyncio.sleep(0.05)
        await provider.listen()
        result = await thread.result()

    assert (result.output, provider.calls) == ("a haiku", 1)
    assert result.usage.attempts > 8


async def pending(thread: Thread) -> int:
    """Return the attempt of the thread's call in flight."""
    return next((call.attempt for call in (await thread.describe()).raw_description.pending_activities), 0)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "kind"), [(status(500), "server"), (EMPTY, "malformed_response"), (status(408), "timeout")])
async def test_what_fails_eight_times_while_others_are_answered_is_an_error(
    client: Client, provider: Provider, fault: Fault, kind: str
) -> None:
    eighth, others_answered = asyncio.Event(), asyncio.Event()
    tries = count(1)

    async def waits_for_others(request: web.Request) -> web.StreamResponse:
        if next(tries) == ATTEMPTS:
            eighth.set()
            await others_answered.wait()
        return await fault(request)

    provider.modes = {"m": waits_for_others}
    async with working(client, provider) as served:
        thread = await served.start(asked(CHAT))
        await eighth.wait()
        other = await served.run(asked("openai_compatible:other"))
        others_answered.set()
        result, failed = await thread.result(), await failure_of(thread)

    assert other.output == "a haiku"
    assert failed.application_failure_info.type == kind
    assert result.error is not None
    assert result.error.startswith(f"{kind}: ")
    assert result.usage.attempts == 8


@pytest.mark.slow
async def test_one_malformed_reply_after_two_rate_limits_is_asked_for_again(client: Client, provider: Provider) -> None:
    provider.plan = iter([status(429), status(429), NOTHING, status(429), NOTHING])
    async with working(client, provider) as served:
        result = await served.run(asked(CHAT))

    assert (result.output, result.usage.attempts, result.usage.calls) == ("a haiku", 6, 3)


@pytest.mark.slow
async def test_the_third_malformed_reply_that_was_paid_for_is_final(client: Client, provider: Provider) -> None:
    provider.plan = iter([NOTHING, status(503), NOTHING, status(429), NOTHING])
    async with working(client, provider) as served:
        thread = await served.start(asked(CHAT))
        result = await thread.result()

    assert result.error is not None
    assert result.error.startswith("malformed_response: ")
    assert (result.usage.attempts, result.usage.calls) == (5, 3)


async def past_the_bound(client: Client, provider: Provider, worker: float, **more: Any) -> tuple[Any, dict[str, Any]]:
    """Return the failure of a call to a provider that stays away, and what the thread has counted."""
    async with working(client, provider, worker) as served:
        thread = await served.start(asked(CHAT, **more))
        while (await thread.query("state"))["status"] == "running":
            await asyncio.sleep(0.02)
        failed, state = await failure_of(thread), await thread.query("state")
        await thread.terminate() if (await thread.describe()).status == 1 else None
    return failed, state


@pytest.mark.slow
async def test_past_its_bound_an_outage_ends_the_call_and_says_who_was_away(client: Client, provider: Provider) -> None:
    provider.fails(10**6, status(503))
    failed, state = await past_the_bound(client, provider, 1.0)

    assert (failed.application_failure_info.type, failed.application_failure_info.non_retryable) == ("outage", True)
    assert re.fullmatch(
        rf"openai_compatible:m at {provider.url} has answered no call for \d+ s; "
        "the last failure: InternalServerError, HTTP 503, openai_compatible:m: no; resume, or try again, once it answers",
        failed.message,
    )
    assert state["usage"]["attempts"] == provider.calls > 1
    assert state["status"] == "interrupted"


@pytest.mark.slow
async def test_a_request_says_how_long_it_waits_and_is_resumed_with_the_same_wait(client: Client, provider: Provider) -> None:
    provider.fails(10**6, status(503))
    async with working(client, provider) as served:
        thread = await served.start(request("- it is good", generator={"model": CHAT}, grader={"model": CHAT}, outage_timeout=0.5))
        stopped = await until(thread, "interrupted")
        again = await served.client.resume(thread.id)
        provider.plan = iter(())
        good = await served.client.resume(thread.id)

    assert stopped["reason"] == "outage"
    assert (again.status, again.reason, str(again.error).split(":")[0]) == ("interrupted", "outage", "outage")
    assert good.reason is None
    assert good.output == "a haiku"


async def test_a_long_wait_that_the_provider_asks_for_does_not_outlast_the_bound(client: Client, provider: Provider) -> None:
    provider.fails(10**6, status(429, **{"retry-after": "300"}))
    failed, _ = await past_the_bound(client, provider, 0.5)

    assert failed.application_failure_info.type == "outage"
    assert "has refused every call by its rate limit for" in failed.message
    assert provider.calls == 1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tries"), [("connection", 2), ("overloaded", 2), ("rate_limited", 2), ("server", 8)])
async def test_an_outage_can_be_scripted(client: Client, kind: str, tries: int) -> None:
    row = {"role": "generator", "error": {"kind": kind, "message": "as the script says"}}
    async with serving(client, row, outage_timeout=1.0) as served:
        thread = await served.start(request())
        while (await thread.query("state"))["status"] == "running":
            await asyncio.sleep(0.02)
        failed, state = await failure_of(thread), await thread.query("state")
        await thread.terminate() if (await thread.describe()).status == 1 else None

    assert failed.application_failure_info.type == "outage"
    assert "scripted:writer " in failed.message
    assert "as the script says" in failed.message
    assert state["usage"]["attempts"] >= tries


async def test_a_call_that_is_given_up_at_the_end_of_the_grace_is_counted_as_an_attempt(client: Client) -> None:
    async with serving(client, draft(delay=30), drain_seconds=0.1) as leaving:
        thread = await leaving.start(request())
        await leaving.models.called("generator")
        await asyncio.sleep(0.2)
    async with serving(client, draft(), task_queue=leaving.task_queue):
        result = await thread.result()

    assert result.output == "draft 0"
    assert (result.usage.attempts, result.usage.calls) == (2, 1)
    assert result.usage.seconds >= 0.2


async def test_a_call_that_a_person_stops_is_counted_as_an_attempt(client: Client) -> None:
    async with serving(client, draft()) as served:
        gate = served.models.gate("generator")
        thread = await served.start(request())
        await gate.reached.wait()
        await asyncio.sleep(0.2)
        await thread.signal("interrupt")
        stopped = await until(thread, "interrupted")
        gate.opened.set()
        resumed = await served.client.resume(thread.id)

    assert (stopped["reason"], stopped["usage"]["attempts"], stopped["usage"]["calls"]) == ("person", 1, 0)
    assert stopped["usage"]["seconds"] >= 0.2
    assert (resumed.output, resumed.usage.attempts, resumed.usage.calls) == ("draft 0", 2, 1)


@pytest.mark.slow
async def test_workers_that_are_lost_count_for_no_failed_attempt(client: Client, provider: Provider) -> None:
    """Three attempts end with their workers, between two malformed replies: neither of these is the third."""

    async def hangs(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(PATIENT)
        raise AssertionError("the call outlived its worker")

    provider.plan = iter([NOTHING, *[hangs] * 3, NOTHING])
    queue, thread = "", f"thread-{uuid4()}"
    for calls in range(2, 5):
        async with working(client, provider, task_queue=queue, drain_seconds=0.02) as served:
            queue = served.task_queue
            if calls == 2:
                await served.start(asked(CHAT), id=thread)
            while provider.calls < calls:
                await asyncio.sleep(0.01)
    async with working(client, provider, task_queue=queue):
        result: RunResult = await client.get_workflow_handle(thread, result_type=RunResult).result()

    assert (result.output, result.usage.calls, result.usage.attempts) == ("a haiku", 3, 6)
