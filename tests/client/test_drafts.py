"""A draft is shown while it is written: in events of `watch`, in the state, on the page and in the terminal, and never in the history."""

import asyncio
import io
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

import pytest
from pydantic import JsonValue
from rich.console import Console
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from activities.calls.rate_headers import keep_streamed, kept_headers
from gradeloop.cli.render.run import LiveScreen
from gradeloop.client.call_waits import CallWait
from gradeloop.contract.evaluation import Event
from gradeloop.contract.provider import DRAFT_CHARACTERS
from gradeloop.reports.html import thread_path
from tests.client.test_call_waits import MODEL, TASK, worked
from tests.web.test_live import opened

EVENTS: dict[str, tuple[JsonValue, ...]] = {
    "openai_chat": (
        {"choices": [{"index": 0, "delta": {"role": "assistant", "reasoning_content": "hm", "reasoning_details": [{"text": "hm"}]}}]},
        {"choices": [{"index": 0, "delta": {"content": "Frogs "}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": "{}"}}]}}]},
        {"choices": [{"index": 0, "delta": {"content": "in May"}}]},
    ),
    "openai_responses": (
        {"type": "response.reasoning_summary_text.delta", "delta": "hm"},
        {"type": "response.output_text.delta", "delta": "Frogs "},
        {"type": "response.function_call_arguments.delta", "delta": "{}"},
        {"type": "response.output_text.delta", "delta": "in May"},
        {"type": "response.output_text.done", "text": "Frogs in May"},
    ),
    "anthropic": (
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Frogs "}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "in May"}},
    ),
    "google": (
        {"candidates": [{"content": {"parts": [{"text": "hm", "thought": True}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "Frogs "}, {"functionCall": {"name": "look", "args": {"text": "x"}}}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "in May"}]}}]},
    ),
}


@pytest.mark.parametrize("protocol", EVENTS)
def test_a_draft_is_what_a_stream_says_without_reasoning_and_calls(protocol: str) -> None:
    with kept_headers() as kept:
        for event in EVENTS[protocol]:
            assert isinstance(event, dict)
            keep_streamed(event)

    assert kept.draft == "Frogs in May"
    assert kept.characters > len(kept.draft)


def test_a_long_draft_is_told_by_its_end() -> None:
    with kept_headers() as kept:
        for number in range(3_000):
            keep_streamed({"choices": [{"delta": {"content": f"{number:04} "}}]})

    assert (len(kept.draft), kept.draft[-5:]) == (DRAFT_CHARACTERS, "2999 ")


async def test_a_watcher_sees_the_draft_grow_and_the_history_never_holds_it(client: Client) -> None:
    grown, others = list[str](), list[Event]()
    async with worked(client) as (served, model):
        thread = await served.start(TASK)
        async for event in served.client.watch(thread.id, details=True, drafts=True):
            if event.type != "drafting":
                others.append(event)
                continue
            grown.append(event.draft or "")
            assert event.seq == (others[-1].seq if others else 0)
            state = await served.client.state(thread.id)
            assert (state.draft or "").startswith(grown[-1])
            if len(grown) == 3:
                model.may_end.set()
        result = await thread.result()
        state = await served.client.state(thread.id)
        events = (await thread.fetch_history()).events
        plain = [event.type async for event in served.client.watch(thread.id)]

    assert all(later.startswith(earlier) and len(later) > len(earlier) for earlier, later in pairwise(grown))
    assert str(result.output).startswith(grown[-1])
    assert ([event.type for event in others], state.draft) == (plain, None)
    assert "drafting" not in plain
    holding = [EventType.Name(event.event_type) for event in events if b"word word" in event.SerializeToString()]
    assert holding == ["EVENT_TYPE_ACTIVITY_TASK_COMPLETED", "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED"]


async def test_the_page_tells_the_end_of_the_draft_without_being_made_anew(client: Client, tmp_path: Any) -> None:
    async with worked(client) as (served, model), opened(served.client, tmp_path) as browser:
        thread = await served.start(TASK)
        while not (await served.client.state(thread.id)).draft:
            await asyncio.sleep(0.05)
        told = unquote((await browser.get(thread_path(thread.id))).headers["Gradeloop-Wait"])
        model.may_end.set()
        await thread.result()

    wait, _, draft = told.partition(" … ")
    assert "has written about " in wait
    assert draft.strip().removesuffix("word") in "word " * 100


def test_a_terminal_shows_the_last_lines_of_a_draft() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=60, height=20)
    screen = LiveScreen(console, None)
    screen.show_wait(
        CallWait((2, 0.0), "m has written about 9 tokens in 3 s", draft="\n".join(f"line {number}\x1b[31m" for number in range(9)))
    )
    console.print(screen._render())
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    screen.show_event(Event(seq=1, type="message", time="2026-11-27T00:00:00+00:00"), None, None)
    console.print(screen._render())

    assert [f"line {number}" in shown for number in (4, 5, 6, 7, 8)] == [False, True, True, True, True]
    assert "\x1b[31m" not in shown
    assert console.file.getvalue().count("line 8") == 1


def test_a_terminal_shows_the_end_of_a_draft_that_is_one_long_line() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=40, height=20)
    screen = LiveScreen(console, None)
    screen.show_wait(CallWait((2, 0.0), "m has written about 99 tokens in 3 s", draft=" ".join(f"word{number}" for number in range(99))))
    console.print(screen._render())

    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert ("word0 " in shown, "word85" in shown, "word98" in shown, "…" in shown) == (False, True, True, False)
    assert max(map(len, shown.splitlines())) <= 40


@pytest.mark.slow
async def test_a_grader_that_streams_tells_no_draft(client: Client) -> None:
    async with worked(client) as (served, model):
        thread = await served.start(TASK | {"grader": {"model": MODEL}, "idle_timeout": 60})
        while not (await served.client.state(thread.id)).draft:
            await asyncio.sleep(0.05)
        model.may_end.set()
        await served.until(thread.id, lambda state: state.status == "idle")
        model.may_end.clear()
        await served.client.supply_rubric(thread.id, "- x")
        while "has written about" not in ((state := await served.client.state(thread.id)).call_wait or ""):
            await asyncio.sleep(0.05)
        model.may_end.set()
        await thread.terminate()

    assert state.draft is None
