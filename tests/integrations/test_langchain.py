"""The rubric middleware in agents of LangChain and deepagents: their calls, their state, their events, graded on Temporal."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.messages import AIMessage, HumanMessage, SystemMessage
from langchain.tools import ToolRuntime, tool
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.runnables import Runnable
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from pydantic import BaseModel, JsonValue

from gradeloop.contract.messages import FEEDBACK_SOURCE
from gradeloop.errors import InvalidRequest
from gradeloop.integrations import langchain as door
from gradeloop.langchain import RubricEvaluation, RubricMiddleware
from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import MODEL, ModelCall, Reply, ScriptedModels, ToolUse, WorkerProcess
from tests.conftest import ROOT
from tests.docs.runner import blocks

MONTH = "- names the month\n- is short"


class Drafts(GenericFakeChatModel):
    """An agent's model that answers from a list."""

    def bind_tools(self, *_: Any, **__: Any) -> Runnable[Any, AIMessage]:
        return self


def drafting(*texts: str | AIMessage) -> BaseChatModel:
    return Drafts(messages=iter([text if isinstance(text, AIMessage) else AIMessage(text) for text in texts]))


@pytest.fixture(autouse=True)
def environment(
    served: WorkerProcess, models: ScriptedModels, temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Have the middleware find the test's server, and a grader that wants the month to be named."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv("GRADELOOP_TASK_QUEUE", served.queue)
    models.script(verdicts=names_the_month)
    yield
    door._standings.cache_clear()


def names_the_month(call: ModelCall) -> Reply:
    return {} if "May" in (call.draft or "") else {"k1": "name the month"}


def task() -> list[HumanMessage]:
    """Return the messages of a turn; each one anew, since the graph writes its id into what it is given."""
    return [HumanMessage("Write of frogs.")]


def thread() -> Any:
    return {"configurable": {"thread_id": f"langchain-{uuid4()}"}}


def made(**settings: Any) -> Any:
    """Return an agent; its type knows no rubric in what it is given, with deepagents' own middleware neither."""
    return create_agent(**settings)


def kept(agent: Any, config: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", agent.get_state(config).values)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("make", [create_agent, create_deep_agent])
async def test_an_agent_revises_until_every_criterion_passes(make: Any, asynchronous: bool, models: ScriptedModels) -> None:
    told = list[RubricEvaluation]()
    grading = RubricMiddleware(model=MODEL, on_evaluation=told.append)
    agent, config = make(model=drafting("Frogs.", "Frogs in May."), middleware=[grading], checkpointer=InMemorySaver()), thread()
    asked = {"messages": task(), "rubric": MONTH}

    found = await agent.ainvoke(asked, config) if asynchronous else await asyncio.to_thread(agent.invoke, asked, config)

    said = found["messages"]
    assert [one.text for one in said if isinstance(one, AIMessage)] == ["Frogs.", "Frogs in May."]
    feedback = said[2]
    assert isinstance(feedback, HumanMessage)
    assert (feedback.name, feedback.additional_kwargs) == (FEEDBACK_SOURCE, {"lc_source": FEEDBACK_SOURCE})
    assert "name the month" in feedback.text
    assert "is short" in feedback.text
    state, (first, second) = kept(agent, config), told
    assert first["criteria"] == [
        {"name": "names the month", "passed": False, "gap": "name the month"},
        {"name": "is short", "passed": True},
    ]
    assert (first["result"], first["iteration"], second["result"], second["iteration"]) == ("needs_revision", 0, "satisfied", 1)
    assert first["grading_run_id"] == second["grading_run_id"] == state["_current_grading_run_id"]
    assert (state["_rubric_status"], state["_rubric_iterations"], state["_rubric_evaluations"]) == ("satisfied", 2, told)
    assert not {key for key in found if key.startswith("_")}, "what the middleware keeps is not part of the output"
    assert [call.draft for call in models.calls] == ["Frogs.", "Frogs in May."]


async def test_the_feedback_is_not_taken_for_the_request_and_calls_of_tools_are_shown(models: ScriptedModels) -> None:
    @tool
    def look_up(word: str) -> str:
        """Look a word up."""
        return f"{word} is an amphibian"

    called = AIMessage("", tool_calls=[{"name": "look_up", "args": {"word": "frog"}, "id": "call-1"}])
    agent = made(model=drafting(called, "Frogs.", "Frogs in May."), tools=[look_up], middleware=[RubricMiddleware(model=MODEL)])

    picture = {"type": "image", "base64": "aGVsbG8=", "mime_type": "image/png"}
    sent = HumanMessage([{"type": "text", "text": "Write of this frog."}, picture])
    await agent.ainvoke({"messages": [SystemMessage("Be brief."), sent], "rubric": MONTH})

    shown = "\n".join(str(message["content"]) for message in models.calls[-1].messages)
    assert '"tool": "look_up", "text": "{\\"word\\": \\"frog\\"}"' in shown
    assert "frog is an amphibian" in shown
    assert '"media_type": "image/png", "bytes": 5' in shown
    assert f'"name": "{FEEDBACK_SOURCE}"' in shown
    assert "The user's request is record 1" in shown or "record 1" in str(models.calls[-1].messages[-1]["content"])


async def test_the_cap_ends_the_run_and_the_callback_hears_the_graders_verdict() -> None:
    told = list[RubricEvaluation]()
    grading = RubricMiddleware(model=MODEL, max_iterations=2, on_evaluation=told.append)
    agent, config = made(model=drafting("Frogs.", "Toads."), middleware=[grading], checkpointer=InMemorySaver()), thread()

    found = await agent.ainvoke({"messages": task(), "rubric": MONTH}, config)

    assert found["messages"][-1].text == "Toads."
    assert [evaluation["result"] for evaluation in told] == ["needs_revision"] * 2
    assert kept(agent, config)["_rubric_status"] == "max_iterations_reached"


async def test_without_a_rubric_nothing_is_graded(models: ScriptedModels) -> None:
    agent = made(model=drafting("Frogs."), middleware=[RubricMiddleware(model=MODEL)])

    found = await agent.ainvoke({"messages": task()})

    assert (found["messages"][-1].text, models.calls) == ("Frogs.", ())


async def test_a_rubric_stays_and_each_turn_is_a_grading_run_of_its_own() -> None:
    grading = RubricMiddleware(model=MODEL)
    agent, config = made(model=drafting("In May.", "May.", "Or May."), middleware=[grading], checkpointer=InMemorySaver()), thread()

    runs = []
    for rubric in ({"rubric": MONTH}, {}, {"rubric": "- is short"}):
        await agent.ainvoke({"messages": task(), **rubric}, config)
        state = kept(agent, config)
        runs.append(state["_current_grading_run_id"])
        assert (state["_rubric_status"], state["_rubric_iterations"]) == ("satisfied", 1)

    assert len(set(runs)) == 3
    assert [evaluation["grading_run_id"] for evaluation in kept(agent, config)["_rubric_evaluations"]] == runs


async def test_events_come_on_the_custom_stream() -> None:
    agent = made(model=drafting("Frogs.", "Frogs in May."), middleware=[RubricMiddleware(model=MODEL)])

    events = [event async for event in agent.astream({"messages": task(), "rubric": MONTH}, stream_mode="custom")]

    assert [(event["type"], event["iteration"]) for event in events] == [
        ("rubric_evaluation_start", 0),
        ("rubric_evaluation_end", 0),
        ("rubric_evaluation_start", 1),
        ("rubric_evaluation_end", 1),
    ]
    assert len({event["grading_run_id"] for event in events}) == 1
    assert events[-1]["result"] == "satisfied"
    assert [row["passed"] for row in events[1]["criteria"]] == [False, True]


async def test_a_rubric_that_cannot_be_judged_ends_the_run_as_failed(models: ScriptedModels) -> None:
    def refuse(call: ModelCall) -> Reply:
        rows: dict[str, JsonValue] = {key: {"reason": "", "passed": False, "gap": "?"} for key in call.keys}
        return rows | {"unjudgeable": "no frog here", "summary": ""}

    models.script(verdicts=refuse)
    told = list[RubricEvaluation]()
    agent = made(model=drafting("Frogs."), middleware=[RubricMiddleware(model=MODEL, on_evaluation=told.append)])

    await agent.ainvoke({"messages": task(), "rubric": MONTH})

    assert [evaluation["result"] for evaluation in told] == ["failed"]
    assert "no frog here" in told[0]["explanation"]


async def test_a_fault_of_the_grader_is_an_error_and_no_verdict(models: ScriptedModels) -> None:
    models.fail("grader", status=400)
    told = list[RubricEvaluation]()
    grading = RubricMiddleware(model=MODEL, on_evaluation=told.append)
    agent, config = made(model=drafting("Frogs."), middleware=[grading], checkpointer=InMemorySaver()), thread()

    found = await agent.ainvoke({"messages": task(), "rubric": MONTH}, config)

    assert found["messages"][-1].text == "Frogs."
    assert (told[0]["result"], told[0]["criteria"]) == ("grader_error", [])
    assert "400" in told[0]["explanation"]
    assert kept(agent, config)["_rubric_status"] == "grader_error"


async def test_a_rate_limit_is_waited_for(models: ScriptedModels) -> None:
    models.fail("grader", status=429, retry_after=0.1, times=3)
    told = list[RubricEvaluation]()
    agent = made(model=drafting("Frogs in May."), middleware=[RubricMiddleware(model=MODEL, on_evaluation=told.append)])

    await agent.ainvoke({"messages": task(), "rubric": MONTH})

    assert [evaluation["result"] for evaluation in told] == ["satisfied"]
    assert len(models.calls) == 4


async def test_what_a_callback_raises_or_changes_has_no_effect(models: ScriptedModels) -> None:
    def wild(evaluation: RubricEvaluation) -> None:
        evaluation["result"] = "satisfied"
        evaluation["criteria"].clear()
        raise ValueError("so it goes")

    grading = RubricMiddleware(model=MODEL, on_evaluation=wild)
    agent, config = made(model=drafting("Frogs.", "In May."), middleware=[grading], checkpointer=InMemorySaver()), thread()

    await agent.ainvoke({"messages": task(), "rubric": MONTH}, config)

    assert [evaluation["result"] for evaluation in kept(agent, config)["_rubric_evaluations"]] == ["needs_revision", "satisfied"]


async def test_a_callback_may_pause_the_graph_and_the_judgement_is_not_paid_twice(models: ScriptedModels) -> None:
    def ask(_: RubricEvaluation) -> None:
        interrupt("is that so?")

    grading = RubricMiddleware(model=MODEL, on_evaluation=ask)
    agent, config = made(model=drafting("Frogs in May."), middleware=[grading], checkpointer=InMemorySaver()), thread()

    paused = await agent.ainvoke({"messages": task(), "rubric": MONTH}, config)
    assert paused["__interrupt__"][0].value == "is that so?"
    await agent.ainvoke(Command(resume="yes"), config)

    assert kept(agent, config)["_rubric_status"] == "satisfied"
    assert len(models.calls) == 1


async def test_an_empty_answer_is_not_judged_by_an_earlier_one(models: ScriptedModels) -> None:
    told = list[RubricEvaluation]()
    grading = RubricMiddleware(model=MODEL, on_evaluation=told.append)
    agent, config = made(model=drafting("In May.", ""), middleware=[grading], checkpointer=InMemorySaver()), thread()

    for _ in range(2):
        await agent.ainvoke({"messages": task(), "rubric": MONTH}, config)

    assert [evaluation["result"] for evaluation in told] == ["satisfied", "grader_error"]
    assert "empty" in told[1]["explanation"]
    assert len(models.calls) == 1


async def test_a_structured_answer_is_what_is_judged(models: ScriptedModels) -> None:
    class Poem(BaseModel):
        month: str

    called = AIMessage("", tool_calls=[{"name": "Poem", "args": {"month": "May"}, "id": "call-1"}])
    agent = made(model=drafting(called), response_format=Poem, middleware=[RubricMiddleware(model=MODEL)])

    found = await agent.ainvoke({"messages": task(), "rubric": MONTH})

    assert found["structured_response"] == Poem(month="May")
    assert [call.draft for call in models.calls] == ['{"month": "May"}']


async def test_messages_may_be_prepared_for_the_grader(models: ScriptedModels) -> None:
    def without_secrets(messages: list[Any]) -> list[Any]:
        return [message for message in messages if "secret" not in message.text]

    grading = RubricMiddleware(model=MODEL, prepare_messages_for_grader=without_secrets)
    agent = made(model=drafting("Frogs in May."), middleware=[grading])

    await agent.ainvoke({"messages": [HumanMessage("secret"), *task()], "rubric": MONTH})

    assert "secret" not in str(models.calls[0].messages)


# Evidence tools


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_tools_of_langchain_are_served_by_this_process(models: ScriptedModels, asynchronous: bool) -> None:
    calls = list[str]()

    @tool
    def look_up(word: str, times: int = 1) -> dict[str, Any]:
        """Look a word up."""
        calls.append(f"{word} {times}")
        return {"is a": "month"}

    async def count(text: str) -> int:
        """Count the letters of a text."""
        calls.append(text)
        return len(text)

    evidence = [ToolUse("look_up", {"word": "May"}), ToolUse("count", {"text": "May"})]
    models.script(verdicts=lambda call: evidence[call.step] if call.step < 2 else {})
    grading = RubricMiddleware(model=MODEL, system_prompt="Look words up.", tools=[look_up, count])
    agent = made(model=drafting("Frogs in May."), middleware=[grading])
    asked = {"messages": task(), "rubric": MONTH}

    await agent.ainvoke(asked) if asynchronous else await asyncio.to_thread(agent.invoke, asked)

    assert calls == ["May 1", "May"]
    last = models.calls[-1].messages
    assert str(last[0]["content"]).startswith("Look words up.")
    assert [str(message["content"]) for message in last if message["role"] == "tool"] == ['{"is a": "month"}', "3"]


def test_what_cannot_work_is_refused_where_it_is_written(subtests: pytest.Subtests) -> None:
    @tool
    def stateful(word: str, runtime: ToolRuntime) -> str:
        """Look a word up in the agent's state."""
        return word

    def silent(word: str) -> str:
        return word

    rows: list[tuple[dict[str, Any], str]] = [
        ({"model": "haiku"}, "model.id: 'haiku' names no model; write 'provider:model'"),
        ({"model": ""}, "names no model"),
        ({"model": MODEL, "max_iterations": 0}, "max_iterations: .*greater than or equal to 1, got .0."),
        ({"model": MODEL, "max_iterations": 21}, "less than or equal to 20, got .21."),
        ({"model": MODEL, "max_iterations": True}, "max_iterations"),
        ({"model": MODEL, "tools": [stateful]}, "the tool 'stateful' takes runtime of the agent's run"),
        ({"model": MODEL, "tools": [silent]}, "docstring"),
        ({"model": MODEL, "tools": [tool(names_the_month_tool), names_the_month_tool]}, "'names_the_month_tool' is there twice"),
    ]
    for settings, why in rows:
        with subtests.test(why=why), pytest.raises(ValueError, match=why):
            RubricMiddleware(**settings)


def names_the_month_tool(text: str) -> bool:
    """Return whether a text names the month."""
    return "May" in text


async def test_a_rubric_without_criteria_is_refused_before_anything_is_drafted() -> None:
    agent = made(model=drafting(), middleware=[RubricMiddleware(model=MODEL)])

    with pytest.raises(InvalidRequest, match="rubric"):
        await agent.ainvoke({"messages": task(), "rubric": "# Nothing"})


def test_providers_are_called_as_langchain_calls_them() -> None:
    assert [
        RubricMiddleware(model=name)._judge_of(MONTH, "queue").grader.model.id  # type: ignore[union-attr]
        for name in ("google_genai:gemini-3.5-flash", "anthropic:claude-haiku-4-5", "mistralai:mistral-large", "azure_openai:gpt-5")
    ] == ["google_genai:gemini-3.5-flash", "anthropic:claude-haiku-4-5", "mistral:mistral-large", "azure:gpt-5"]


# Interruptions


async def test_a_cancelled_call_is_resumed_and_neither_draft_nor_judgement_is_paid_twice(models: ScriptedModels) -> None:
    gate = models.gate("grader", iteration=1)
    told = list[RubricEvaluation]()
    grading = RubricMiddleware(model=MODEL, on_evaluation=told.append)
    agent, config = made(model=drafting("Frogs.", "Frogs in May."), middleware=[grading], checkpointer=InMemorySaver()), thread()

    calling = asyncio.create_task(agent.ainvoke({"messages": task(), "rubric": MONTH}, config))
    await gate.reached()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert kept(agent, config)["_rubric_status"] == "needs_revision"
    gate.open()
    found = await agent.ainvoke({"messages": task(), "rubric": MONTH}, config)

    assert [one.text for one in found["messages"] if one.name != FEEDBACK_SOURCE] == ["Write of frogs.", "Frogs.", "Frogs in May."]
    assert [(one["iteration"], one["result"]) for one in told] == [(0, "needs_revision"), (1, "satisfied")]
    assert len({one["grading_run_id"] for one in told}) == 1
    assert [call.draft for call in models.calls] == ["Frogs.", "Frogs in May."]


@pytest.mark.parametrize("again", ["None", "nothing", "something else"])
async def test_an_interrupted_turn_goes_on_however_it_is_called_again(models: ScriptedModels, again: str) -> None:
    gate = models.gate("grader")
    agent, config = (
        made(model=drafting("In May.", "In late May."), middleware=[RubricMiddleware(model=MODEL)], checkpointer=InMemorySaver()),
        thread(),
    )
    calling = asyncio.create_task(agent.ainvoke({"messages": task(), "rubric": MONTH}, config))
    await gate.reached()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    run = kept(agent, config)["_current_grading_run_id"]
    gate.open()
    sent: dict[str, Any] = {"None": None, "nothing": {"messages": []}, "something else": {"messages": [HumanMessage("Of late May.")]}}

    found = await agent.ainvoke(sent[again], config)

    drafts = ["In May.", "In late May."] if again == "something else" else ["In May."]
    assert [one.text for one in found["messages"] if isinstance(one, AIMessage)] == drafts
    assert [call.draft for call in models.calls] == drafts
    assert (kept(agent, config)["_current_grading_run_id"], kept(agent, config)["_rubric_status"]) == (run, "satisfied")


async def test_a_turn_that_was_cut_while_it_drafted_is_drafted() -> None:
    """The answer of the turn before is not taken for its draft, though the same was asked."""

    class Slow(Drafts):
        async def ainvoke(self, *given: Any, **options: Any) -> AIMessage:
            if not begun.is_set() and len(given[0]) > 1:
                begun.set()
                await asyncio.Event().wait()
            return await super().ainvoke(*given, **options)

    begun = asyncio.Event()
    model = Slow(messages=iter([AIMessage("In May."), AIMessage("In May, too.")]))
    agent, config = made(model=model, middleware=[RubricMiddleware(model=MODEL)], checkpointer=InMemorySaver()), thread()
    await agent.ainvoke({"messages": task(), "rubric": MONTH}, config)
    calling = asyncio.create_task(agent.ainvoke({"messages": task(), "rubric": MONTH}, config))
    await begun.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling

    found = await agent.ainvoke({"messages": []}, config)

    assert [one.text for one in found["messages"]] == ["Write of frogs.", "In May.", "Write of frogs.", "In May, too."]


PROGRAM = """
import asyncio, sys
from langchain.agents import create_agent
from langchain.messages import AIMessage, HumanMessage
from langchain_core.language_models import FakeListChatModel
from langgraph.checkpoint.sqlite import SqliteSaver
from gradeloop.langchain import RubricMiddleware

async def look_up(word: str) -> str:
    "Look a word up."
    print("looking", flush=True)
    await asyncio.sleep(float(sys.argv[2]))
    return "a month"

class Drafts(FakeListChatModel):
    def _call(self, *given, **options):
        print("drafting", flush=True)
        return super()._call(*given, **options)

with SqliteSaver.from_conn_string("checkpoints.sqlite") as saver:
    grading = RubricMiddleware(model="MODEL", tools=[look_up])
    agent = create_agent(model=Drafts(responses=["Frogs in May."]), middleware=[grading], checkpointer=saver)
    config = {"configurable": {"thread_id": sys.argv[1]}}
    found = agent.invoke({"messages": [HumanMessage("Write.")], "rubric": "- names the month"}, config)
    print(agent.get_state(config).values["_rubric_status"], [one.text for one in found["messages"]], flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
async def test_a_program_that_was_stopped_goes_on_where_it_was(models: ScriptedModels, sent: signal.Signals, tmp_path: Path) -> None:
    models.script(verdicts=lambda call: {} if call.step else ToolUse("look_up", {"word": "May"}))
    (tmp_path / "program.py").write_text(PROGRAM.replace("MODEL", MODEL))
    command = [sys.executable, "program.py", f"langchain-{uuid4()}"]

    async def begun(seconds: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, seconds, cwd=tmp_path, stdout=pipe, stderr=pipe)

    first = await begun("600")
    assert first.stdout is not None
    assert [await first.stdout.readline() for _ in range(2)] == [b"drafting\n", b"looking\n"]
    first.send_signal(sent)
    _, said = await first.communicate()
    out, err = await (await begun("0")).communicate()

    assert first.returncode not in {0, None}, said
    assert out == b"looking\nsatisfied ['Write.', 'Frogs in May.']\n", err
    assert len(models.calls) == 2, "the judge's first turn is not paid again"


# Chat models as judges


def asking(models: ScriptedModels, **settings: Any) -> BaseChatModel:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="scripted", base_url=models.url, api_key="sk-no-key", max_retries=0, **settings)


@pytest.mark.slow
async def test_a_chat_model_judges_in_this_process_with_its_own_key_and_tools(models: ScriptedModels, served: WorkerProcess) -> None:
    async def look_up(word: str) -> str:
        """Look a word up."""
        return f"{word} is a month"

    def verdict(call: ModelCall) -> Reply:
        if not call.step:
            return ToolUse("look_up", {"word": "May"})
        return names_the_month(call)

    models.script(verdicts=verdict)
    told = list[RubricEvaluation]()
    grading = RubricMiddleware(model=asking(models), system_prompt="Look words up.", tools=[look_up], on_evaluation=told.append)
    agent = made(model=drafting("Frogs.", "Frogs in May."), middleware=[grading])

    await agent.ainvoke({"messages": task(), "rubric": MONTH})

    assert [evaluation["result"] for evaluation in told] == ["needs_revision", "satisfied"]
    assert told[0]["criteria"][0] == {"name": "names the month", "passed": False, "gap": "name the month"}
    assert [message["content"] for message in models.calls[-1].messages if message["role"] == "tool"] == ["May is a month"]
    assert str(models.calls[0].messages[0]["content"]).startswith("Look words up.")
    history = await served.client.temporal.get_workflow_handle(await last_judgement(served)).fetch_history()
    assert "sk-no-key" not in history.to_json()


async def last_judgement(served: WorkerProcess) -> str:
    query = f"WorkflowType = 'Judging' AND TaskQueue = '{served.queue}'"
    found = [one async for one in served.client.temporal.list_workflows(query)]
    return max(found, key=lambda one: one.start_time).id


async def test_limits_of_a_chat_model_are_waited_for_and_refusals_are_not(models: ScriptedModels) -> None:
    models.fail("grader", status=429, retry_after=0.1, times=2)
    told = list[RubricEvaluation]()
    grading = RubricMiddleware(model=asking(models), on_evaluation=told.append)

    await made(model=drafting("In May."), middleware=[grading]).ainvoke({"messages": task(), "rubric": MONTH})
    models.fail("grader", status=401, times=9)
    await made(model=drafting("In May."), middleware=[grading]).ainvoke({"messages": task(), "rubric": MONTH})

    assert [evaluation["result"] for evaluation in told] == ["satisfied", "grader_error"]
    assert "401" in told[1]["explanation"]
    assert len(models.calls) == 4


async def test_a_chat_model_is_asked_again_where_its_answer_is_no_verdict(models: ScriptedModels) -> None:
    models.script(verdicts=lambda call: "Fine." if not call.step else {})
    told = list[RubricEvaluation]()
    grading = RubricMiddleware(model=asking(models), on_evaluation=told.append)

    await made(model=drafting("In May."), middleware=[grading]).ainvoke({"messages": task(), "rubric": MONTH})

    assert [evaluation["result"] for evaluation in told] == ["satisfied"]
    assert len(models.calls) == 2


# The page and the example


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch, models: ScriptedModels) -> None:
    """Give an agent that names a model this drafting one, and name the scripted grader in the place of a vendor's."""
    monkeypatch.setattr("deepagents.graph.resolve_model", lambda _: drafting("Frogs.", "Frogs in May."))
    monkeypatch.setattr(door, "RubricMiddleware", Renamed)
    monkeypatch.setattr("gradeloop.langchain.RubricMiddleware", Renamed)


class Renamed(RubricMiddleware[Any, Any]):
    def __init__(self, *, model: Any, **settings: Any) -> None:
        super().__init__(model=MODEL, **settings)


@pytest.mark.slow
@pytest.mark.usefixtures("drafts")
async def test_the_programs_of_the_page_and_the_example_run(capsys: pytest.CaptureFixture[str], models: ScriptedModels) -> None:
    models.script(verdicts=lambda call: names_the_month(call) if call.step else ToolUse("count_lines", {"text": "May"}))
    first, evidence = (block.text for block in blocks("docs/from-deepagents.md") if block.language == "python")

    await asyncio.to_thread(exec, evidence, {"__name__": "evidence"})
    shown = capsys.readouterr().out
    models.script(verdicts=names_the_month)
    await asyncio.to_thread(exec, first, {"__name__": "first"})
    haiku = capsys.readouterr().out
    after = {"__name__": "after"}
    exec((ROOT / "examples" / "deep_agent" / "after.py").read_text(), after)
    await asyncio.to_thread(cast("Any", after["main"]), "google_genai:gemini-3.5-flash", "anthropic:claude-haiku-4-5")

    assert [line.split()[0] for line in shown.splitlines()] == ["rubric_evaluation_start", "rubric_evaluation_end"] * 2
    assert haiku.splitlines()[-1] == "Frogs in May."
    assert capsys.readouterr().out.splitlines() == PRINTED


PRINTED = ["draft 0: needs_revision", "  three lines: name the month", "draft 1: satisfied", "Frogs in May."]
"""What the example prints, with either middleware."""


@pytest.mark.usefixtures("drafts")
@pytest.mark.filterwarnings("ignore:The middleware `RubricMiddleware` is in beta")
async def test_the_program_before_prints_the_same_with_deepagents_own_middleware(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = {"name": "names a month", "passed": True}
    failed = {"name": "three lines", "passed": False, "gap": "name the month"}
    verdicts: list[dict[str, Any]] = [
        {"result": "needs_revision", "explanation": "No month.", "criteria": [failed, passed]},
        {"result": "satisfied", "explanation": "It does.", "criteria": [failed | {"passed": True, "gap": None}, passed]},
    ]
    judge = drafting(*(AIMessage("", tool_calls=[{"name": "GraderResponse", "args": verdict, "id": "1"}]) for verdict in verdicts))
    monkeypatch.setattr("deepagents._models.resolve_model", lambda _: judge)
    before = {"__name__": "before"}
    exec((ROOT / "examples" / "deep_agent" / "before.py").read_text(), before)
    await asyncio.to_thread(cast("Any", before["main"]), "google_genai:gemini-3.5-flash", "anthropic:claude-haiku-4-5")

    assert capsys.readouterr().out.splitlines() == PRINTED


@pytest.mark.slow
def test_the_example_differs_from_the_program_before_it_by_its_import_alone() -> None:
    def code(name: str) -> list[str]:
        text = (ROOT / "examples" / "deep_agent" / name).read_text()
        return [line for line in text.splitlines() if line and "import" not in line and ".py" not in line]

    assert code("before.py") == code("after.py")
