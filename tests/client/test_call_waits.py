"""What a call waits for is said by the query `state`, the command line and the live page: attempt, time, tokens, the failure before."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console
from temporalio.client import Client

from activities.providers.environment import Environment
from gradeloop.cli.render.run import LiveScreen, PlainScreen
from gradeloop.client import call_waits
from gradeloop.client.call_waits import CallWait, watch_calls
from gradeloop.client.client import GradingClient
from gradeloop.reports.html import thread_path
from tests.rig.failing_models import Calling
from tests.rig.threads import Served, serving
from tests.web.test_live import opened

MODEL = "openai:chat:gpt-4.1"


class SlowModel:
    """A server whose model answers as its plan says, and writes its last reply word by word until it may end."""

    def __init__(self) -> None:
        self.plan: list[int | str] = []
        self.may_end = asyncio.Event()
        app = web.Application()
        app.router.add_post("/chat/completions", self._complete)
        self.server = TestServer(app)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        answer = self.plan.pop(0) if self.plan else ""
        if isinstance(answer, int):
            return web.json_response({"error": {"message": "busy"}}, status=answer)
        if answer:
            choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "length"}
            return web.json_response({"id": "c", "model": body["model"], "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        while not self.may_end.is_set():
            await response.write(_event({"choices": [{"index": 0, "delta": {"content": "word "}}]}))
            await asyncio.sleep(0.02)
        await response.write(_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}))
        return response


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


@pytest.fixture(autouse=True)
def said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_waits, "UNREMARKABLE_SECONDS", 0.0)
    monkeypatch.setattr(call_waits, "LOOK_SECONDS", 0.05)


@asynccontextmanager
async def worked(client: Client) -> AsyncIterator[tuple[Served, SlowModel]]:
    model = SlowModel()
    await model.server.start_server()
    adapters: Any = Calling(Environment.read({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": str(model.server.make_url("")).rstrip("/")}))
    async with serving(client, models=adapters) as served:
        yield served, model
    await adapters.aclose()
    await model.server.close()


async def said(served: Served, thread_id: str, pattern: str) -> str:
    """Return what `state` says of the thread's call, once it fits."""
    async with asyncio.timeout(240):
        while not re.fullmatch(pattern, text := (await served.client.state(thread_id)).call_wait or ""):
            await asyncio.sleep(0.05)
    return text


TASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Write."}], "generator": {"model": MODEL}}


async def test_the_state_says_how_much_of_a_stream_has_come_and_for_how_long_it_has(client: Client) -> None:
    async with worked(client) as (served, model):
        thread = await served.start(TASK)
        await said(served, thread.id, r"openai_chat:gpt-4\.1 has written about \d+ tokens in \d+ s")
        first = int(re.findall(r"about (\d+)", await said(served, thread.id, r".*about \d+.*"))[0])
        while int(re.findall(r"about (\d+)", await said(served, thread.id, r".*about \d+.*"))[0]) <= first:
            await asyncio.sleep(0.05)
        model.may_end.set()
        result = await thread.result()
        state = await served.client.state(thread.id)

    assert str(result.output).startswith("word word ")
    assert state.call_wait is None


@pytest.mark.slow
async def test_the_state_says_which_attempt_it_is_and_why_the_one_before_failed(client: Client) -> None:
    async with worked(client) as (served, model):
        model.plan = ["word", 503]  # a reply that was cut and paid for, whose attempt is an activity of its own, and a refusal that was not
        thread = await served.start(TASK)
        away = await said(served, thread.id, r"the provider gives no answer, attempt 2: server: .*")
        text = await said(served, thread.id, r"openai_chat:gpt-4\.1 has written .*; attempt 3; before: .*")
        model.may_end.set()
        await thread.result()

    assert re.search(r"HTTP 503.*; asked again in \d+ s; waited for until \d\d:\d\d:\d\d UTC", away)
    assert "before: server: InternalServerError, HTTP 503" in text


async def test_whoever_watches_calls_is_shown_what_they_wait_for_and_then_nothing(client: Client) -> None:
    shown = list[str | None]()

    def show(wait: CallWait | None) -> None:
        shown.append(wait.text if wait else None)

    async with worked(client) as (served, model):
        thread = await served.start(TASK)
        watching = asyncio.create_task(watch_calls(GradingClient(client).temporal, lambda: [thread.id], show))
        while not any(text and "gpt-4.1 has written about " in text for text in shown):
            await asyncio.sleep(0.05)
        model.may_end.set()
        await thread.result()
        count = len(shown)
        while len(shown) < count + 2:
            await asyncio.sleep(0.05)
        watching.cancel()

    assert shown[-1] is None


@pytest.mark.slow
async def test_the_live_page_says_what_a_call_waits_for_and_is_not_made_anew_for_it(client: Client, tmp_path: Path) -> None:
    async with worked(client) as (served, model), opened(served.client, tmp_path) as browser:
        thread = await served.start(TASK)
        path, tag, told = thread_path(thread.id), "", list[str]()
        await said(served, thread.id, r".*about \d+ tokens.*")
        while len(set(told)) < 3:
            answer = await browser.part(path, tag)
            told += [unquote(answer.headers["Gradeloop-Wait"])] if tag else []
            assert answer.status_code == (304 if tag else 200)
            tag = answer.headers["ETag"]
            await asyncio.sleep(0.3)
        model.may_end.set()
        await thread.result()
        after = await browser.get(path)

    assert all(re.fullmatch(r"openai_chat:gpt-4\.1 has written about \d+ tokens in \d+ s … (word )+", text) for text in told)
    assert "Gradeloop-Wait" not in after.headers


def plain(*waits: str | None, terminal: bool = False) -> str:
    """Return what a screen shows of these waits, one after the other."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, height=20)
    screen = LiveScreen(console, None) if terminal else PlainScreen(console, None)
    for wait in waits:
        screen.show_wait(CallWait((2, 0.0), wait) if wait else None)
    if isinstance(screen, LiveScreen):
        console.print(screen._render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_pipe_says_once_a_minute_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 30.0, 60.0, 60.0, 90.0, 120.0, 120.0])
    monkeypatch.setattr("gradeloop.cli.render.run.time.monotonic", lambda: next(now))

    assert [line.split("s  ")[1] for line in plain("early", "first", "between", "second").splitlines()] == ["first", "second"]


def test_a_terminal_says_at_once_what_is_waited_for_and_no_more_when_that_is_over() -> None:
    assert "m has not answered for 40 s" in plain("m has not answered for 40 s", terminal=True)
    assert "m has" not in plain("m has not answered for 40 s", None, terminal=True)
