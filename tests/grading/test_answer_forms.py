"""How a grader's answer is bound: by a schema beside its tools, by a schema alone, or by tags of its own call."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from activities.providers import Providers
from activities.providers.environment import Environment
from activities.providers.scripted import Script
from activities.tools.registry import ToolRegistry
from gradeloop.contract.messages import Message, ToolCall
from gradeloop.contract.provider import ModelReply, ModelRequest
from gradeloop.contract.thread import RunResult
from gradeloop.grading.verdicts import text_between_tags
from gradeloop.settings.catalog import Capability
from gradeloop.settings.worker import WorkerSettings
from tests.rig.threads import Served, draft, grade, request, row, serving, verdict
from worker import build

SCHEMA_APART = Capability(answer="schema")
TAGGED = Capability(answer="tagged", schema_with_tools=True)
GOOD = json.dumps(verdict(row("c1")))


def look() -> str:
    """Look."""
    return "seen"


class Answering(Providers):
    """A generator with one draft, and a grader that answers as told."""

    def __init__(self, *answers: Callable[[ModelRequest], Message]) -> None:
        super().__init__(Environment.read({}), Script(replies=()))
        self.answers = list(answers)
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer."""
        if request.step.role == "generator":
            return ModelReply(Message(role="assistant", content="a draft"))
        self.requests.append(request)
        return ModelReply(self.answers.pop(0)(request))


def says(text: str) -> Callable[[ModelRequest], Message]:
    """Answer with a text in which TAG stands for the call's own."""
    return lambda asked: Message(role="assistant", content=text.replace("TAG", asked.tag or "none"))


def calls_look(_: ModelRequest) -> Message:
    """Call the tool."""
    return Message(role="assistant", tool_calls=(ToolCall(id="t1", name="look"),))


async def graded(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    capability: Capability,
    models: Answering,
    *,
    tools: bool = True,
    rubric: str = "- good",
) -> RunResult:
    """Run a thread whose grader has this capability, and one tool."""
    for module in ("activities.grade", "gradeloop.settings.answer_forms"):
        monkeypatch.setattr(f"{module}.capability_of", lambda _: capability)
    queue = f"queue-{uuid4()}"
    argument = request(rubric, max_iterations=3 if rubric == "- good" else 1)
    argument["grader"] |= {"tools": ["look"]} if tools else {}
    async with build(client, models, ToolRegistry([look]), WorkerSettings(task_queue=queue)):
        result: RunResult = await client.execute_workflow("GradingThread", argument, id=queue, task_queue=queue, result_type=RunResult)
    return result


async def test_where_tools_and_schema_exclude_each_other_a_well_formed_answer_needs_no_further_call(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = Answering(calls_look, says(GOOD))
    result = await graded(client, monkeypatch, SCHEMA_APART, models)

    assert result.status == "satisfied"
    assert [(asked.schema is None, len(asked.tools)) for asked in models.requests] == [(True, 1), (True, 1)]


async def test_an_answer_that_no_schema_bound_is_asked_for_again_by_the_schema_alone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = Answering(calls_look, says("All good, I would say."), says(GOOD))
    result = await graded(client, monkeypatch, SCHEMA_APART, models)

    assert result.status == "satisfied"
    assert [(asked.schema is None, len(asked.tools)) for asked in models.requests] == [(True, 1), (True, 1), (False, 0)]
    assert "Your answer is no valid verdict" in models.requests[2].messages[-1].content


async def test_the_forced_answer_is_not_one_of_the_two_repairs(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Answering(*(says("no"),) * 3, says(GOOD))
    result = await graded(client, monkeypatch, SCHEMA_APART, models)

    assert (result.status, len(models.requests)) == ("satisfied", 4)


async def test_without_tools_the_schema_binds_the_first_answer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Answering(says(GOOD))
    result = await graded(client, monkeypatch, SCHEMA_APART, models, tools=False)

    assert (result.status, models.requests[0].schema is None) == ("satisfied", False)


async def test_a_tagged_answer_stands_between_the_calls_own_tags(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Answering(calls_look, says(f"Let me think.\n<TAG>{GOOD}</TAG>\n"))
    result = await graded(client, monkeypatch, TAGGED, models)

    first, second = models.requests
    assert result.status == "satisfied"
    assert (first.tag == second.tag, first.schema, second.schema) == (True, None, None)
    assert first.messages[-1].content.endswith(f"between <{first.tag}> and </{first.tag}>; write each of the two once.")
    assert str(first.tag) not in first.system


async def test_an_answer_that_keeps_not_to_its_tags_is_no_verdict(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Answering(*(says(f"<TAG>{GOOD}</TAG><TAG>{GOOD}</TAG>"),) * 3)
    result = await graded(client, monkeypatch, TAGGED, models)

    assert (result.status, len(models.requests)) == ("grader_error", 3)


async def test_a_large_group_is_asked_about_in_parts_of_one_conversation(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rubric, asked = "\n".join(f"- criterion {at}" for at in range(1, 61)), list[list[str]]()

    def answers(request: ModelRequest) -> Message:
        keys = [key for key in (request.schema or {})["properties"] if key.startswith("k")]
        asked.append(keys)
        rows = {key: {"reason": key, "passed": key != "k31", "gap": ""} for key in keys}
        return Message(role="assistant", content=json.dumps(rows | {"unjudgeable": "", "summary": f"{keys[0]} and so on."}))

    models = Answering(answers, says("oops"), answers, answers)
    capability = Capability(answer="schema", schema_with_tools=True, properties=100)
    result = await graded(client, monkeypatch, capability, models, rubric=rubric)

    (evaluation,) = result.evaluations
    assert [(keys[0], keys[-1]) for keys in asked] == [("k1", "k24"), ("k25", "k48"), ("k49", "k60")]
    assert [row.id for row in evaluation.criteria if not row.passed] == ["c31"]
    assert [row.reason for row in evaluation.criteria] == [f"k{at}" for at in range(1, 61)]
    assert evaluation.explanation == "k1 and so on. k25 and so on. k49 and so on."
    assert "Now judge the same draft by k25, k26" in models.requests[1].messages[-1].content
    assert "Answer again for k25, k26" in models.requests[2].messages[-1].content
    assert models.requests[1].schema == models.requests[2].schema  # a repair keeps the schema


async def test_each_iteration_has_tags_of_its_own(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = json.dumps(verdict(row("c1", "more")))
    models = Answering(says(f"<TAG>{fails}</TAG>"), says(f"<TAG>{GOOD}</TAG>"))
    result = await graded(client, monkeypatch, TAGGED, models)

    assert (result.status, result.iterations) == ("satisfied", 2)
    assert models.requests[0].tag != models.requests[1].tag
    assert str(models.requests[0].tag) not in repr(models.requests[1])


def test_what_stands_between_tags_is_all_there_is() -> None:
    assert text_between_tags("think <a>{}</a>\n", "a") == "{}"
    with pytest.raises(ValueError, match="<a> and </a> must each stand in it once"):
        text_between_tags("<a>{}", "a")


async def test_consecutive_questions_share_all_but_the_end(client: Client) -> None:
    """A grader's first requests of five iterations, with drafts of 2,000 characters."""
    fails = row("c1", "more")
    drafts = [draft(at, f"draft {at} " + "word " * 400) for at in range(5)]
    grades = [grade(at, fails if at < 4 else row("c1")) for at in range(5)]
    async with serving(client, *drafts, *grades) as served:
        await served.run(request("- good", max_iterations=5))

    asked = served.models.requests_of("grader")
    shares = [shared(one, other) for one, other in pairwise(asked)]
    assert len(shares) == 4
    assert min(shares) >= 0.95, shares
    for sent in asked:
        assert sent.breakpoints == (len(sent.messages) - 2,)


def shared(one: ModelRequest, other: ModelRequest) -> float:
    """Return how much of a request, its question aside, the next one begins with."""
    texts = [prompt(replace(one, messages=one.messages[:-1])), prompt(other)]
    length = next((at for at, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), len(texts[0]))
    return length / len(texts[0])


def prompt(asked: ModelRequest) -> str:
    """Return what a provider reads, in its order."""
    tools = [tool.model_dump_json() for tool in asked.tools]
    return "".join(
        [*tools, asked.system, json.dumps(asked.schema), *(f"\n{message.role}: {message.content}" for message in asked.messages)]
    )


async def test_a_generator_keeps_its_beginning_as_well(client: Client) -> None:
    replies: list[Any] = [draft(), grade(0, row("c1", "more")), draft(1), grade(1)]
    async with serving(client, *replies) as served:
        await served.run(request("- good"))

    first, second = served.models.requests_of("generator")
    assert second.messages[: len(first.messages)] == first.messages
    assert (first.breakpoints, second.breakpoints) == ((0,), (2,))


async def test_a_thread_that_nobody_grades_marks_nothing_for_a_cache(client: Client) -> None:
    async with serving(client, draft()) as served:
        await served.run(request())

    assert isinstance(served, Served)
    assert served.models.requests_of("generator")[0].breakpoints == ()
