"""Any async function as the generator of a thread, on the real server: drafts, pieces, errors, and the end of what nobody waits for."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from gradeloop.contract.thread import RunResult, ThreadState
from gradeloop.errors import InvalidRequest, ThreadNotFound
from gradeloop.generators import serve
from gradeloop.temporal.connect import Connection
from gradeloop.temporal.server import ServerInfo
from tests.rig.threads import Served, a_thread, answering, failing_until, serving, start

Messages = list[dict[str, Any]]


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


@asynccontextmanager
async def generating(server: ServerInfo, function: Any) -> AsyncIterator[dict[str, str]]:
    """Serve a function, and yield the generator of a thread's request."""
    queue = f"agents-{uuid4()}"
    task = asyncio.create_task(serve(function, queue, connection=Connection(server.address, "default", embedded=False)))
    try:
        yield {"activity": "generate", "task_queue": queue}
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def turn(served: Served, generator: dict[str, str]) -> RunResult:
    return await served.client.invoke(a_thread(), "hello", start=start(generator=generator))


async def test_a_function_gets_the_conversation_as_chat_apis_take_it_and_drafts_again(served: Served, temporal_server: ServerInfo) -> None:
    asked = list[Messages]()
    served.models.answers["grader"] = failing_until(1)

    async def draft(messages: Messages) -> str:
        asked.append(messages)
        return f"text {len(asked)}"

    async with generating(temporal_server, draft) as generator:
        result = await turn(served, generator)

    assert (result.status, result.output, len(asked)) == ("satisfied", "text 2", 2)
    assert asked[0] == [{"role": "user", "content": "hello"}]
    assert [sorted(message) for message in asked[1]] == [["content", "role"]] * 3
    assert [message["role"] for message in asked[1]] == ["user", "assistant", "user"]


async def test_a_function_may_add_its_tool_calls(served: Served, temporal_server: ServerInfo) -> None:
    async def draft(_: Messages) -> Messages:
        call = {"id": "1", "name": "look_up", "arguments": {"word": "spring"}}
        return [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "name": "look_up", "content": "a season"},
            {"role": "assistant", "content": "Spring is a season."},
        ]

    async with generating(temporal_server, draft) as generator:
        result = await turn(served, generator)

    assert result.output == "Spring is a season."
    assert [message.role for message in result.messages or ()] == ["user", "assistant", "tool", "assistant"]


async def test_a_function_may_yield_its_draft_in_pieces(served: Served, temporal_server: ServerInfo) -> None:
    async def draft(_: Messages) -> AsyncIterator[str]:
        for piece in ("Spring ", "is ", "here."):
            yield piece

    async with generating(temporal_server, draft) as generator:
        assert (await turn(served, generator)).output == "Spring is here."


async def test_the_pieces_of_a_draft_are_told_by_the_state_and_not_by_the_history(served: Served, temporal_server: ServerInfo) -> None:
    may_end, thread = asyncio.Event(), a_thread()

    async def draft(_: Messages) -> AsyncIterator[str]:
        yield "Spring "
        await may_end.wait()
        yield "is here."

    async with generating(temporal_server, draft) as generator:
        turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start(generator=generator)))
        while not (state := await state_of(served, thread)) or not state.draft:
            await asyncio.sleep(0.05)
        may_end.set()
        result = await turn
        after = await served.client.state(thread)
        events = (await served.client.temporal.get_workflow_handle(thread).fetch_history()).events

    assert (state.draft, result.output, after.draft) == ("Spring ", "Spring is here.", None)
    assert re.fullmatch(r"the function generate has been writing for \d+ s", state.call_wait or "")
    assert not any(b'"Spring "' in event.SerializeToString() for event in events)


async def state_of(served: Served, thread: str) -> ThreadState | None:
    with suppress(ThreadNotFound):
        return await served.client.state(thread)
    return None


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "the function returned NoneType; return a text, or a list of messages"),
        (" ", "the function returned an empty text; return the draft"),
        ([{"role": "assistant"}], "the function returned messages that cannot be read"),
    ],
)
async def test_what_is_no_draft_interrupts_the_run_with_a_sentence(
    served: Served, temporal_server: ServerInfo, returned: Any, sentence: str
) -> None:
    async def draft(_: Messages) -> Any:
        return returned

    async with generating(temporal_server, draft) as generator:
        result = await turn(served, generator)

    assert result.status == "interrupted"
    assert sentence in (result.error or "")


async def test_a_function_that_fails_is_tried_again(served: Served, temporal_server: ServerInfo) -> None:
    tries = list[int]()

    async def draft(_: Messages) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("the agent's model hung up")
        return "a draft"

    async with generating(temporal_server, draft) as generator:
        assert (await turn(served, generator)).output == "a draft"


async def test_an_interrupt_cancels_the_function(served: Served, temporal_server: ServerInfo) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def draft(_: Messages) -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "late"

    thread = a_thread()
    async with generating(temporal_server, draft) as generator:
        work = asyncio.create_task(served.client.invoke(thread, "hello", start=start(generator=generator)))
        await asyncio.wait_for(begun.wait(), 240)
        await served.client.interrupt(thread)
        assert (await work).status == "interrupted"
        await asyncio.wait_for(cancelled.wait(), 240)


async def test_a_function_that_would_block_the_worker_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is not an async function; write `async def`"):
        await serve(lambda messages: "text", "queue")  # type: ignore[arg-type,return-value] # which a type checker says, too
