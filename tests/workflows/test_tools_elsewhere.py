"""Tools on somebody else's worker, in any language: what they are given, and what becomes of what they return."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from ruamel.yaml import YAML
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from gradeloop.contract.evaluation import EVIDENCE_BYTES
from gradeloop.contract.thread import Grader, RunResult, parse_request
from gradeloop.errors import InvalidRequest
from tests.rig.tables import over
from tests.rig.threads import draft, grade, request, serving, story, wants
from tests.rig.typescript_example import build_example
from workflows import activity_calls

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "typescript_tool"


def tool(queue: str, **more: Any) -> dict[str, Any]:
    """Return a tool elsewhere, as a request declares it."""
    parameters = {"type": "object", "properties": {"word": {"type": "string"}}}
    return {"name": "look", "description": "Look.", "parameters": parameters, "activity": "look_it_up", "task_queue": queue} | more


async def heard(client: Client, behaviour: Callable[[dict[str, Any]], Any], **more: Any) -> tuple[str, dict[str, Any], RunResult]:
    """Return what the grader is told of a call, what the tool was given, and what the run came to."""
    given: list[dict[str, Any]] = []

    @activity.defn(name="look_it_up")
    async def look(asked: dict[str, Any]) -> Any:
        given.append(asked)
        value = behaviour(asked)
        return await value if asyncio.iscoroutine(value) else value

    queue, argument = f"owner-{uuid4()}", request("- x")
    argument["grader"]["tools"] = [tool(queue, **more)]
    call = {"name": "look", "arguments": {"word": "spring"}}
    async with (
        Worker(client, task_queue=queue, activities=[look]),
        serving(client, draft(text="the draft"), wants("grader", call), grade(step=1)) as served,
    ):
        thread = await served.start(argument)
        result = await asyncio.wait_for(thread.result(), 240)
        made = await story(thread)
    assert made[2].type == "look_it_up"
    assert len(given) == (1 if more.get("repeatable") is False else len(given))
    return served.models.requests_of("grader")[1].messages[-1].content, given[0] if given else {}, result


@pytest.mark.slow
async def test_it_is_given_arguments_draft_and_an_id_and_its_value_is_evidence(client: Client) -> None:
    evidence, given, result = await heard(client, lambda asked: {"word": asked["arguments"]["word"], "found": 3})

    assert evidence == '{"word":"spring","found":3}'
    assert given == {
        "call": given["call"],
        "arguments": {"word": "spring"},
        "draft": "the draft",
        "operation_id": f"{result.grading_run_id}:0:grader.1.0.0.0.0",
    }
    assert result.status == "satisfied"


async def test_the_model_is_told_of_it_as_of_any_tool(client: Client) -> None:
    argument = request("- x")
    argument["grader"]["tools"] = [tool("nobody"), "word_count"]
    async with serving(client, draft(), grade()) as served:
        await served.run(argument)

    (asked,) = served.models.requests_of("grader")
    assert (asked.tools[0].name, asked.tools[0].description) == ("look", "Look.")
    assert [tool.name for tool in asked.tools] == ["look", "word_count"]


@pytest.mark.slow
async def test_a_megabyte_comes_back_as_head_and_tail(client: Client) -> None:
    answer, _, _ = await heard(client, lambda _: "x" * 1_000_000)

    assert len(answer.encode()) <= EVIDENCE_BYTES
    assert "the middle of 1000000 bytes left out" in answer


async def test_more_than_a_payload_holds_is_told_and_not_asked_for_again(client: Client) -> None:
    answer, _, result = await heard(client, lambda _: "x" * 3_000_000)

    assert "PayloadsTooLarge" in answer or "PayloadSizeError" in answer
    assert result.status == "satisfied"


@pytest.mark.slow
async def test_what_it_raises_is_told(client: Client) -> None:
    def fails(_: object) -> None:
        raise ApplicationError("no such book", type="LibraryError", non_retryable=True)

    answer, _, _ = await heard(client, fails)

    assert answer == "LibraryError: no such book"


@pytest.mark.slow
async def test_a_queue_that_nobody_serves_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(activity_calls.REMOTE_TOOL, "schedule_to_start_timeout", timedelta(seconds=1))
    argument = request("- x")
    argument["grader"]["tools"] = [tool(f"nobody-{uuid4()}", repeatable=False)]
    async with serving(client, draft(), wants("grader", "look"), grade(step=1)) as served:
        result = await served.run(argument)

    answer = served.models.requests_of("grader")[1].messages[-1].content
    assert (answer, result.status) == ("no_worker: no worker took the call in time; start one on that task queue", "satisfied")


async def test_one_that_must_not_run_twice_is_uncertain_when_it_takes_too_long(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(activity_calls.REMOTE_TOOL, "start_to_close_timeout", timedelta(seconds=1))
    answer, _, result = await heard(client, lambda _: asyncio.sleep(3), repeatable=False)

    assert answer.startswith("uncertain: look was begun and its end is not known")
    assert result.status == "satisfied"


@pytest.mark.parametrize(("value", "status"), [({"ok": True}, "satisfied"), (False, "max_iterations_reached"), ("yes", "grader_error")])
async def test_it_may_be_a_check(client: Client, value: object, status: str) -> None:
    @activity.defn(name="look_it_up")
    async def look(asked: dict[str, Any]) -> Any:
        assert (asked["draft"], asked["arguments"]) == ("the draft", {"word": "x"})
        return value

    queue = f"owner-{uuid4()}"
    rubric = {"criteria": [{"id": "c1", "description": "x", "check": {"tool": "look", "arguments": {"word": "x"}}}]}
    argument = request(rubric, grader={"tools": [tool(queue)]}, max_iterations=1)
    async with Worker(client, task_queue=queue, activities=[look]), serving(client, draft(text="the draft")) as served:
        result = await served.run(argument)

    assert result.status == status
    if status == "grader_error":
        assert "a check returns true, false or an object with 'ok'" in result.evaluations[0].explanation


@over(
    ("tools", "expected"),
    [
        ([{"name": "look"}], "grader.tools[0].description: Field required"),
        ([tool("q", parameters={"type": "string"})], "grader.tools[0]: parameters is not a JSON Schema of an object"),
        ([tool("q", name="a b")], "grader.tools[0].name: String should match pattern"),
        ([tool("q", timeout=3)], "grader.tools[0]: unknown key 'timeout'"),
        ([tool("q"), "look"], "grader: tools: 'look' is there twice"),
        ([tool("q", parameters={"type": "object", "x": "y" * 20_000})], "parameters has 20027 bytes as JSON, 16384 at most"),
        (["a b"], "grader.tools[0]: String should match pattern"),
        ([3], "grader.tools[0]: Input should be a valid string"),
    ],
)
def test_a_tool_that_is_none_is_refused_by_its_place(tools: list[object], expected: str) -> None:
    argument = request("- x")
    argument["grader"]["tools"] = tools

    with pytest.raises(InvalidRequest) as caught:
        parse_request(argument)
    assert expected in str(caught.value)


@pytest.fixture(scope="module")
def typescript() -> Path:
    """Build the example's worker, once, where Node is."""
    return build_example(EXAMPLE, [EXAMPLE / "worker.ts"])


@pytest.fixture
def typescript_queue(typescript: Path, client: Client) -> Iterator[str]:
    queue = f"typescript-{uuid4()}"
    environment = {**os.environ, "TEMPORAL_ADDRESS": client.service_client.config.target_host, "TASK_QUEUE": queue}
    process = subprocess.Popen(["node", "dist/worker.js"], cwd=typescript, env=environment, stderr=subprocess.DEVNULL)
    yield queue
    process.terminate()
    process.wait(20)


@pytest.mark.slow
async def test_the_typescript_example_counts_syllables_for_grader_and_check(client: Client, typescript_queue: str) -> None:
    task = YAML(typ="safe").load(EXAMPLE / "task.yaml")
    (declared,) = task["grader"]["tools"]
    argument = request(task["rubric"])
    argument["grader"]["tools"] = [declared | {"task_queue": typescript_queue}]
    wrong, right = "spring\nis\nhere", "the old pond is still\na green frog jumps into it\nthe sound of water"
    replies = [draft(text=wrong), wants("grader", {"name": "count_syllables", "arguments": {"lines": [1, 1, 1]}}), grade(0, step=1)]
    async with serving(client, *replies, draft(1, right), grade(1)) as served:
        result = await asyncio.wait_for(served.run(argument), 240)

    assert served.models.requests_of("grader")[1].messages[-1].content == '{"ok":true,"counted":[1,1,1]}'
    assert (result.status, result.iterations) == ("satisfied", 2)
    assert result.evaluations[0].criteria[0].gap == "counted: [1,1,1]"


def test_the_examples_task_is_one_that_a_thread_takes() -> None:
    task = YAML(typ="safe").load(EXAMPLE / "task.yaml")

    assert Grader.model_validate(task["grader"]).tools
