"""A function of one's own inside a loop: graded and revised, interrupted where its caller is, resumed by the next call."""

import asyncio
import json
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity

import gradeloop
from gradeloop.contract.evaluation import Evaluation
from gradeloop.errors import InvalidRequest
from gradeloop.generators import Draft
from gradeloop.integrations.loop import Loop
from gradeloop.integrations.standing import serve_beside
from gradeloop.temporal.connect import Connection, _process
from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import MODEL, ModelCall, Reply, ScriptedModels, ToolUse, WorkerProcess

MONTH = "- names the month\n- is short"
Messages = list[dict[str, Any]]
Around = Callable[..., Callable[[Draft], Loop]]


@pytest.fixture(autouse=True)
def environment(served: WorkerProcess, models: ScriptedModels, temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the loop find the test's server, and a grader that wants the month to be named."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv("GRADELOOP_TASK_QUEUE", served.queue)
    models.script(verdicts=names_the_month)


@pytest.fixture
async def around() -> AsyncIterator[Around]:
    """Yield a function that makes loops, which are closed at the end."""
    made = list[Loop]()

    def loop(**settings: Any) -> Callable[[Draft], Loop]:
        def around(function: Draft) -> Loop:
            made.append(gradeloop.loop(**{"rubric": MONTH, "grader": MODEL} | settings)(function))
            return made[-1]

        return around

    yield loop
    for one in made:
        await one.close()


def names_the_month(call: ModelCall) -> Reply:
    return {} if "May" in (call.draft or "") else {"k1": "name the month"}


@pytest.mark.slow
async def test_a_function_is_called_until_its_draft_passes_and_callbacks_come_once(around: Around) -> None:
    asked, seen = list[Messages](), list[Evaluation]()

    @around(on_evaluation=seen.append)
    async def poet(messages: Messages) -> str:
        """Write of frogs."""
        asked.append(messages)
        return "Frogs." if len(asked) == 1 else "Frogs in May."

    result = await poet("Write.")

    assert (result.status, result.output, result.iterations) == ("satisfied", "Frogs in May.", 2)
    assert [evaluation.result for evaluation in seen] == ["needs_revision", "satisfied"]
    assert asked[0] == [{"role": "user", "content": "Write."}]
    assert "name the month" in asked[1][-1]["content"]
    assert (poet.__name__, poet.__doc__) == ("poet", "Write of frogs.")


@pytest.mark.slow
async def test_a_thread_is_a_conversation_and_two_loops_do_not_mix(around: Around) -> None:
    lengths = list[int]()

    @around()
    async def poet(messages: Messages) -> str:
        lengths.append(len(messages))
        return f"{messages[-1]['content']} in May."

    @around()
    async def other(_: Messages) -> str:
        return "Another in May."

    thread = f"loop-{uuid4()}"
    first, elsewhere = await asyncio.gather(poet("Newts", thread_id=thread), other("Newts"))
    second = await poet("Newts", thread_id=thread)

    assert (first.output, second.output, elsewhere.output) == ("Newts in May.", "Newts in May.", "Another in May.")
    assert lengths == [1, 3], "the same words again are another turn"
    assert first.thread_id == second.thread_id == thread != elsewhere.thread_id


async def test_a_cancelled_caller_interrupts_the_run_and_the_next_call_resumes_it(around: Around, models: ScriptedModels) -> None:
    begun, open_, calls = asyncio.Event(), asyncio.Event(), 0

    @around()
    async def poet(_: Messages) -> str:
        nonlocal calls
        calls += 1
        begun.set()
        await open_.wait()
        return "Toads in May."

    thread = f"loop-{uuid4()}"
    calling = asyncio.create_task(poet("Write.", thread_id=thread))
    await begun.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    async with gradeloop.GradingClient.connect() as client:
        while (await client.state(thread)).status != "interrupted":
            await asyncio.sleep(0.05)
        open_.set()
        result = await poet("Write.", thread_id=thread)

        assert (result.status, result.output, calls) == ("satisfied", "Toads in May.", 2)
        assert [message.role for message in (await client.messages(thread)).items] == ["user", "assistant"]


@pytest.mark.slow
async def test_events_come_as_they_happen(around: Around) -> None:
    @around()
    async def poet(messages: Messages) -> str:
        return "Efts." if len(messages) == 1 else "Efts in May."

    thread = f"loop-{uuid4()}"
    types = [event.type async for event in poet.events("Write.", thread_id=thread)]
    again = [event.type async for event in poet.events("Once more.", thread_id=thread)]

    assert types.count("rubric_evaluation_end") == 2
    assert again.count("rubric_evaluation_end") == 1


async def test_a_draft_that_is_yielded_in_pieces_is_told_as_it_grows(around: Around) -> None:
    may_go_on, told = asyncio.Event(), list[str]()

    @around()
    async def poet(_: Messages) -> AsyncIterator[str]:
        yield "Frogs"
        await may_go_on.wait()
        yield " in May."

    async for event in poet.events("Write.", thread_id=f"loop-{uuid4()}", drafts=True):
        if event.type == "drafting":
            told.append(event.draft or "")
            may_go_on.set()

    assert told[0] == "Frogs"
    assert set(told) <= {"Frogs", "Frogs in May."}


async def test_a_tool_of_ones_own_is_offered_to_the_grader(around: Around, models: ScriptedModels) -> None:
    calls = list[str]()

    async def look_up(word: str, times: int = 1) -> str:
        """Look a word up."""
        calls.append(f"{word} {times}")
        return "a month"

    def verdict(call: ModelCall) -> Reply:
        return {} if calls else ToolUse("look_up", {"word": "May"})

    models.script(verdicts=verdict)

    @around(tools=[look_up], system_prompt="Look words up.")
    async def poet(_: Messages) -> str:
        return "Frogs in May."

    result = await poet("Write.")

    assert (result.status, calls) == ("satisfied", ["May 1"])


async def test_a_thread_without_an_event_loop_calls_it_plainly() -> None:
    @gradeloop.loop(rubric=MONTH, grader=MODEL)
    async def poet(_: Messages) -> str:
        return "Frogs in May."

    results = [await asyncio.to_thread(poet.sync, "Write.") for _ in range(2)]

    assert [result.output for result in results] == ["Frogs in May."] * 2


async def test_what_is_not_a_text_or_a_list_of_messages_is_refused_with_its_value() -> None:
    @gradeloop.loop(rubric=MONTH, grader=MODEL)
    async def poet(_: Messages) -> str:
        return "Frogs in May."

    values: list[Any] = [3, {"role": "user", "content": "Write."}]
    for value in values:
        with pytest.raises(InvalidRequest, match="messages: Input should be a valid tuple"):
            await poet(value)


async def test_in_an_event_loop_the_plain_call_says_how_it_is_awaited() -> None:
    @gradeloop.loop(rubric=MONTH, grader=MODEL)
    async def poet(_: Messages) -> str:
        return "Frogs in May."

    with pytest.raises(InvalidRequest, match=r"an event loop runs here; write `await poet\(\.\.\.\)`"):
        poet.sync("Write.")


def test_what_cannot_work_is_refused_where_it_is_written() -> None:
    def plain(_: Messages) -> str:
        return ""

    with pytest.raises(InvalidRequest, match="is not an async function"):
        gradeloop.loop(rubric=MONTH)(plain)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"missing a required argument.*decorate a method where it is bound"):

        class _Agent:
            @gradeloop.loop(rubric=MONTH)  # type: ignore[arg-type]
            async def draft(self, _: Messages) -> str:
                return ""

    with pytest.raises(InvalidRequest, match="rubric"):
        gradeloop.loop(rubric="")
    with pytest.raises(InvalidRequest, match="max_iterations"):
        gradeloop.loop(rubric=MONTH, max_iterations=0)

    async def bare(word) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001
        return str(word)

    with pytest.raises(InvalidRequest, match="the tool 'bare': parameter 'word' needs a type annotation"):
        gradeloop.loop(rubric=MONTH, tools=[bare])


async def test_the_thread_that_serves_ends_also_where_its_end_is_cancelled(temporal_server: ServerInfo) -> None:
    @activity.defn
    async def draft() -> None: ...

    before = set(threading.enumerate())
    connection = Connection(temporal_server.address, "default", embedded=False)
    serving = asyncio.create_task(serve_beside(connection, f"served-{uuid4()}", [draft], at_once=1))
    while set(threading.enumerate()) == before:
        await asyncio.sleep(0)
    for _ in range(3):
        serving.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await serving

    assert [thread for thread in set(threading.enumerate()) - before if thread.name == "gradeloop-client"] == []


PROGRAM = """
import asyncio, os, sys
import gradeloop

@gradeloop.loop(rubric="- names the month", grader="MODEL", thread_id=sys.argv[1])
async def poet(messages):
    print("drafting", flush=True)
    await asyncio.sleep(float(sys.argv[2]))
    return "Frogs in May."

print(poet.sync("Write.").output, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
async def test_a_program_that_was_stopped_goes_on_where_it_was(sent: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("MODEL", MODEL))
    thread = f"loop-{uuid4()}"
    command = [sys.executable, "program.py", thread]

    async def begun(seconds: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, seconds, cwd=tmp_path, stdout=pipe, stderr=pipe)

    first = await begun("600")
    assert first.stdout is not None
    assert await first.stdout.readline() == b"drafting\n"
    first.send_signal(sent)
    _, said = await first.communicate()
    out, err = await (await begun("0")).communicate()

    assert first.returncode not in {0, None}, said
    assert out == b"drafting\nFrogs in May.\n", err
    async with gradeloop.GradingClient.connect() as client:
        assert [message.role for message in (await client.messages(thread)).items] == ["user", "assistant"]


@pytest.mark.slow
async def test_the_judge_of_a_loop_answers_from_a_file_that_a_variable_names(
    around: Around, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADELOOP_TASK_QUEUE")
    passes, fails = ({"passed": passed, "reason": "scripted", "gap": "" if passed else "name it"} for passed in (True, False))
    rows = [("Newts", fails), ("Newts in May", passes)]
    verdicts = [
        {"role": "grader", "when": when, "iteration": at, "verdict": {"k1": k1, "k2": passes}} for at, (when, k1) in enumerate(rows)
    ]
    (tmp_path / "replies.yaml").write_text(json.dumps({"replies": verdicts}))
    drafts = iter(["Newts.", "Newts in May."])

    @around(grader="scripted:judge")
    async def poet(_: Messages) -> str:
        return next(drafts)

    with pytest.raises(InvalidRequest, match=r"'scripted:judge' needs a file of replies; name it in GRADELOOP_SCRIPTED, "):
        await poet("Write.")
    monkeypatch.setenv("GRADELOOP_SCRIPTED", str(tmp_path / "replies.yaml"))
    result = await poet("Write.")

    assert (result.status, result.output, result.iterations) == ("satisfied", "Newts in May.", 2)
    await _process((await poet._standings.get()).queue).stop(10)
