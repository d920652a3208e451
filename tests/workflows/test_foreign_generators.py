"""Generators that are not ours: an activity or a workflow on somebody else's worker."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from gradeloop.cli.task_file import TaskFlags, read_task
from gradeloop.contract.thread import Grader, ThreadRequest
from gradeloop.errors import InvalidRequest
from gradeloop.temporal.server import ServerInfo
from tests.rig.threads import Served, a_thread, answering, failing_until, replay, serving, start, verdict_text
from workflows import activity_calls

EXAMPLE = Path(__file__).parents[2] / "examples" / "deep_agent"

DEEP_AGENT = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from temporalio.client import Client
from temporalio.worker import Worker
from worker import TASK_QUEUE, DeepAgent

class Fake(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self

    def _generate(self, messages, *arguments, **options):
        heard = [message.text for message in messages]
        print("heard", len(heard), "and at last", heard[-1].splitlines()[0], file=sys.stderr, flush=True)
        return super()._generate(messages, *arguments, **options)

async def main():
    client = await Client.connect(sys.argv[2])
    model = Fake(messages=iter([AIMessage("a deep draft"), AIMessage("a deeper draft")]))
    async with Worker(client, task_queue=TASK_QUEUE, activities=[DeepAgent(model).draft]):
        print("serving", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""
"""The example's worker with a model that answers from a list, run by the Python of its own venv."""

Draw = Callable[[dict[str, Any]], Any]


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


@workflow.defn(name="TheirWorkflow")
class TheirWorkflow:
    """Somebody's workflow that calls somebody's activity."""

    @workflow.run
    async def run(self, asked: dict[str, Any]) -> Any:
        return await workflow.execute_activity(
            "their_activity", asked, start_to_close_timeout=TIMEOUT, cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL
        )


with workflow.unsafe.imports_passed_through():
    from datetime import timedelta

    TIMEOUT = timedelta(seconds=60)


class Theirs:
    """A worker of somebody else's, and what it was asked for."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.asked: list[dict[str, Any]] = []
        self.gate: asyncio.Event | None = None
        self.called = asyncio.Event()

    @activity.defn(name="their_activity")
    async def activity(self, asked: dict[str, Any]) -> Any:
        self.asked.append(asked)
        self.called.set()
        if self.gate:
            await self.gate.wait()
        return self.draw(asked)

    @asynccontextmanager
    async def working(self, client: Client) -> AsyncIterator[str]:
        """Serve the activity and the workflow on a queue of their own."""
        queue = f"theirs-{uuid4()}"
        runner = UnsandboxedWorkflowRunner()
        async with Worker(client, task_queue=queue, activities=[self.activity], workflows=[TheirWorkflow], workflow_runner=runner):
            yield queue


def theirs(queue: str, kind: str) -> dict[str, str]:
    return {kind: "their_activity" if kind == "activity" else "TheirWorkflow", "task_queue": queue}


KINDS = pytest.mark.parametrize("kind", ["activity", "workflow"])


@KINDS
async def test_it_gets_the_conversation_inline_and_its_draft_is_graded(served: Served, kind: str) -> None:
    worker = Theirs(lambda asked: f"their draft {asked['iteration'] + 1}")
    served.models.answers["grader"] = failing_until(1)
    thread = a_thread()
    async with worker.working(served.temporal) as queue:
        result = await served.client.invoke(thread, "hello", start=start(generator=theirs(queue, kind)))

    first, second = worker.asked
    assert first == {"messages": [{"role": "user", "content": "hello"}], "iteration": 0, "feedback": None}
    assert [message.get("name") or message["content"] for message in second["messages"]] == ["hello", "their draft 1", "rubric_grader"]
    assert (second["iteration"], second["feedback"]) == (1, second["messages"][-1]["content"])
    assert (result.status, result.output, result.iterations) == ("satisfied", "their draft 2", 2)
    assert served.models.count("generator") == 0
    await replay(served.temporal, thread)


@KINDS
async def test_it_may_return_several_messages_the_draft_last(served: Served, kind: str) -> None:
    call = {"id": "1", "name": "look", "arguments": {}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "seen", "tool_call_id": "1"},
        {"role": "assistant", "content": "the draft"},
    ]
    worker = Theirs(lambda _: {"messages": messages})
    thread = a_thread()
    async with worker.working(served.temporal) as queue:
        result = await served.client.invoke(thread, "hello", start=start(generator=theirs(queue, kind)))

    assert (result.status, result.output) == ("satisfied", "the draft")
    assert [message.role for message in (await served.client.messages(thread)).items] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (None, "returned no text and no {messages}"),
        (17, "returned no text and no {messages}"),
        ("  ", "returned no text and no {messages}"),
        ({"text": "a draft"}, "returned no text and no {messages}"),
        ({"messages": []}, "returned no draft; its last message must be an answer of role 'assistant'"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "returned no draft"),
        ([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}], "may add 'assistant' and 'tool' messages"),
        ("x" * 2**20, "returned a message of 1048609 bytes, 1048576 at most"),
    ],
)
async def test_a_return_value_that_is_no_draft_interrupts_the_run_and_says_why(served: Served, returned: Any, why: str) -> None:
    worker = Theirs(lambda _: returned)
    thread = a_thread()
    async with worker.working(served.temporal) as queue:
        failed = await served.client.invoke(thread, "hello", start=start(generator=theirs(queue, "activity")))
        worker.draw = lambda _: "a draft"
        result = await served.client.invoke(thread)

    assert failed.status == "interrupted"
    assert "their_activity" in (failed.error or "")
    assert why in (failed.error or "")
    assert (result.status, result.output, result.grading_run_id) == ("satisfied", "a draft", failed.grading_run_id)
    assert served.models.count("grader") == 1


def broken(_: object) -> str:
    from temporalio.exceptions import ApplicationError

    raise ApplicationError("their tool box is empty", type="TheirTrouble", non_retryable=True)


@KINDS
async def test_its_own_failure_is_told(served: Served, kind: str) -> None:
    async with Theirs(broken).working(served.temporal) as queue:
        failed = await served.client.invoke(a_thread(), "hello", start=start(generator=theirs(queue, kind)))

    assert failed.status == "interrupted"
    assert queue in (failed.error or "")
    assert "TheirTrouble: their tool box is empty" in (failed.error or "")


@KINDS
async def test_a_missing_worker_is_told_after_a_while(served: Served, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, 1.5)

    failed = await served.client.invoke(a_thread(), "hello", start=start(generator=theirs("nobody-serves-this", kind)))

    assert failed.status == "interrupted"
    assert "on 'nobody-serves-this': no_worker: no worker " in (failed.error or "")
    assert served.models.requests == []


@KINDS
async def test_a_run_whose_worker_was_missing_goes_on_when_it_is_there(served: Served, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, 1.0)
    worker, thread = Theirs(lambda _: "their draft"), a_thread()
    queue = f"theirs-{uuid4()}"
    failed = await served.client.invoke(thread, "hello", start=start(generator=theirs(queue, kind)))
    runner = UnsandboxedWorkflowRunner()
    monkeypatch.undo()
    async with Worker(served.temporal, task_queue=queue, activities=[worker.activity], workflows=[TheirWorkflow], workflow_runner=runner):
        result = await served.client.resume(thread)

    assert (result.status, result.output, result.grading_run_id) == ("satisfied", "their draft", failed.grading_run_id)


def shorten(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have the thread wait less for a worker."""
    short = timedelta(seconds=seconds)
    monkeypatch.setitem(cast("dict[str, Any]", activity_calls.REMOTE_CALL), "schedule_to_start_timeout", short)
    monkeypatch.setitem(cast("dict[str, Any]", activity_calls.FIND_WORKER), "schedule_to_close_timeout", short)


@KINDS
async def test_an_interrupt_stops_it_and_the_run_goes_on(served: Served, kind: str) -> None:
    worker, thread = Theirs(lambda _: "their draft"), a_thread()
    worker.gate = asyncio.Event()
    async with worker.working(served.temporal) as queue:
        turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start(generator=theirs(queue, kind))))
        await asyncio.wait_for(worker.called.wait(), 240)
        await served.client.interrupt(thread)
        stopped = await turn
        worker.gate.set()
        result = await served.client.invoke(thread)

    assert stopped.status == "interrupted"
    assert (result.status, result.output, result.grading_run_id) == ("satisfied", "their draft", stopped.grading_run_id)
    await replay(served.temporal, thread)


@pytest.mark.parametrize(
    ("grader", "why"),
    [
        ({"model": "anthropic:claude-haiku-4-5"}, "ANTHROPIC_API_KEY is not set in the worker's environment"),
        ({"model": "scripted:judge", "tools": ["no_such_tool"]}, "grader.tools: unknown tool 'no_such_tool'"),
    ],
)
async def test_a_grader_that_our_worker_cannot_serve_is_refused_before_they_are_asked(
    served: Served, grader: dict[str, Any], why: str
) -> None:
    worker = Theirs(lambda _: "their draft")
    async with worker.working(served.temporal) as queue:
        with pytest.raises(InvalidRequest, match=why):
            await served.client.invoke(a_thread(), "hello", start=start(generator=theirs(queue, "activity"), grader=grader))

    assert worker.asked == []


@pytest.mark.parametrize(
    ("generator", "why"),
    [
        ({"activity": "a"}, "task_queue is missing"),
        ({"activity": "a", "workflow": "b", "task_queue": "q"}, "exactly one of model, activity and workflow"),
        ({"activity": "a", "task_queue": "q", "tools": ["look"]}, "system_prompt, tools and show_rubric are for a model"),
        ({"model": "scripted:a", "task_queue": "q"}, "task_queue is for an activity or workflow"),
        ({}, "exactly one of model, activity and workflow"),
    ],
)
async def test_a_generator_that_is_nobody_is_refused(served: Served, generator: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        await served.client.invoke(a_thread(), "hello", start=start(generator=generator))


def the_example(monkeypatch: pytest.MonkeyPatch) -> ThreadRequest:
    """Read the example's task where a grader's key is set."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    return read_task(EXAMPLE / "task.yaml", TaskFlags()).request


def test_a_task_file_may_name_a_generator_that_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = the_example(monkeypatch).generator

    assert (generator.model, generator.activity, generator.task_queue) == (None, "deep_agent", "deep-agent")
    assert 'TASK_QUEUE = "deep-agent"' in (EXAMPLE / "worker.py").read_text()


async def test_a_deep_agent_drafts_on_its_own_worker_and_mends_what_the_grader_names(
    served: Served, temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = os.environ.get("GRADELOOP_DEEPAGENTS_PYTHON")
    if not python:
        pytest.skip("GRADELOOP_DEEPAGENTS_PYTHON names no Python of a venv with deepagents and temporalio")
    served.models.answers["grader"] = lambda step, _: verdict_text(step.iteration > 0, "c1", "c2", "c3")
    request = the_example(monkeypatch).model_copy(update={"grader": Grader.model_validate({"model": "scripted:judge"})})
    process = await asyncio.create_subprocess_exec(
        *(python, "-W", "ignore", "-c", DEEP_AGENT, str(EXAMPLE), temporal_server.address),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    assert await process.stdout.readline() == b"serving\n", (await process.communicate())[1].decode()
    result = await served.client.result(await served.client.start(request))
    _, heard = await process.communicate(b"\n")

    assert (result.status, result.output, result.iterations) == ("satisfied", "a deeper draft", 2)
    assert [line.split(" and")[0] for line in heard.decode().splitlines() if line.startswith("heard")] == ["heard 2", "heard 4"]
    assert "at last " + str((result.messages or ())[2].content).splitlines()[0] in heard.decode()
