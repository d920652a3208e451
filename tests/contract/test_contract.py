"""The wire contract from outside: plain JSON in and out, one sentence for every refusal, and queries that page."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue

from gradeloop.contract.thread import MAX_ITERATIONS, RunResult, parse_request
from gradeloop.errors import InvalidRequest, ThreadTooLarge
from gradeloop.temporal.server import ServerInfo
from tests.rig.threads import JUDGE, WRITER, Served, draft, grade, outcome, page, refusal, request, row, serving, story

TEMPORAL = Path(sys.executable).parent / "temporal"


def with_generator(**more: Any) -> dict[str, Any]:
    """Return a request whose generator has these fields too."""
    return request(generator={"model": WRITER} | more)


def with_grader(**more: Any) -> dict[str, Any]:
    """Return a graded request whose grader has these fields."""
    return request("- x", grader=more)


async def test_a_plain_client_starts_a_thread_with_dicts_and_reads_dicts(client: Client, temporal_server: ServerInfo) -> None:
    plain = await Client.connect(temporal_server.address)
    async with serving(client, draft(), grade(0, row("c1", "it has two")), draft(1), grade(1)) as served:
        thread = await plain.start_workflow("GradingThread", request("- three lines"), id=f"plain-{uuid4()}", task_queue=served.task_queue)
        result = await thread.result()
        state = await thread.query("state")

    assert result == json.loads(RunResult.model_validate(result).model_dump_json())
    assert list(result) == [
        *("thread_id", "grading_run_id", "status", "iterations", "output", "best_iteration", "last_output", "score"),
        *("evaluations", "messages", "messages_truncated", "usage", "error", "reason", "waiting_for", "overridden_result"),
    ]
    assert (result["thread_id"], result["status"], result["iterations"]) == (thread.id, "satisfied", 2)
    assert result["evaluations"][0]["criteria"] == [
        {"id": "c1", "name": "three lines", "passed": False, "reason": "looked at c1", "gap": "it has two", "by": "model"}
    ]
    assert (state["status"], state["phase"], state["queued"], state["waiting_for"]) == ("idle", None, 0, None)


async def test_the_temporal_command_line_starts_a_thread_and_reads_its_result(client: Client, temporal_server: ServerInfo) -> None:
    async with serving(client, draft(), grade()) as served:
        command = [str(TEMPORAL), "workflow", "execute", "--address", temporal_server.address, "--output", "json"]
        command += ["--type", "GradingThread", "--task-queue", served.task_queue, "--input", json.dumps(request("- three lines"))]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        printed, errors = await asyncio.wait_for(process.communicate(), 240)

    assert process.returncode == 0, errors.decode()
    answer = json.loads(printed)
    assert answer["status"] == "COMPLETED"
    assert (answer["result"]["status"], answer["result"]["output"]) == ("satisfied", "draft 0")


BAD: list[tuple[Any, str]] = [
    (None, "the request is 'None'; it must be a JSON object with 'messages' and 'generator'"),
    ("write", "the request is 'write'; it must be a JSON object"),
    ([], "the request is '[]'; it must be a JSON object"),
    ({}, "generator: Field required"),
    (request() | {"messages": "hi"}, "messages: Input should be a valid tuple, got 'hi'"),
    (request() | {"messages": [{"role": "user"}]}, "messages[0]: the content of a message of role 'user' is empty"),
    (request() | {"messages": [{"role": "user", "content": 7}]}, "messages[0].content: Input should be a valid string, got '7'"),
    (request() | {"messages": [{"role": "system", "content": "x"}]}, "Input should be 'user', 'assistant' or 'tool', got 'system'"),
    (request() | {"messages": [{"role": "tool", "content": "x"}]}, "messages[0]: a message of role 'tool' needs the tool_call_id"),
    (request() | {"messages": [{"role": "assistant", "content": "x"}]}, "the last message is of role 'assistant'; a turn starts with"),
    (request() | {"message": []}, "unknown key 'message'. Did you mean 'messages'?"),
    (request(" \n"), "rubric: the rubric has no criterion, only white space or headings; write one a line, or '' to clear it"),
    (request("# Heading"), "rubric: the rubric has no criterion"),
    (request("- x\n" * 101), "rubric.criteria: 101 criteria, 100 at most"),
    (request("- " + "x" * 65_536), "rubric: the rubric has 65538 bytes, 65536 at most"),
    (request(7), "rubric: "),
    (request(max_iterations=0), "max_iterations: Input should be greater than or equal to 1, got '0'"),
    (request(max_iterations=21), "max_iterations: Input should be less than or equal to 20, got '21'"),
    (request(max_iterations="many"), "max_iterations: "),
    (request(max_iterations=2.5), "max_iterations: "),
    (request(idle_timeout=-1), "idle_timeout: "),
    (request(outage_timeout=0), "outage_timeout: Input should be greater than 0, got '0'"),
    (request(outage_timeout=604_801), "outage_timeout: Input should be less than or equal to 604800, got '604801'"),
    (request(generator="scripted:x"), "generator: "),
    (request(generator={"model": "Antropic:claude"}), "generator.model.id: 'Antropic' is not a provider's name; write small letters"),
    (request(generator={"model": "claude"}), "'claude' names no model; write 'provider:model'"),
    (request(generator={"model": "scripted:"}), "'scripted:' names no model"),
    (with_generator(temprature=1), "generator: unknown key 'temprature'."),
    (with_generator(model={"id": WRITER, "config": {"temperature": 3}}), "generator.model.config.temperature: "),
    (with_generator(model={"id": WRITER, "config": {"base_url": "file:///etc/passwd"}}), "is not a base URL"),
    (with_generator(tools=["../x"]), "generator.tools[0]: String should match pattern"),
    (with_grader(model="scripted"), "grader.model.id: 'scripted' names no model"),
]


@pytest.fixture(scope="module")
async def served(client: Client) -> Any:
    """Serve one queue whose models answer once."""
    async with serving(client, draft(), grade()) as served:
        yield served


def test_a_bad_request_is_refused_with_one_sentence(subtests: pytest.Subtests) -> None:
    for argument, why in BAD:
        with subtests.test(why=why):
            with pytest.raises(InvalidRequest) as caught:
                parse_request(argument)

            assert why in str(caught.value)


async def test_a_bad_raw_start_fails_with_that_sentence_and_calls_nobody(served: Served) -> None:
    for argument, why in (BAD[0], BAD[3], BAD[-1]):
        thread = await served.start(argument)

        assert why in await refusal(thread)
        assert await story(thread) == []


@pytest.mark.parametrize(
    ("encoding", "data", "why"),
    [
        ("json/plain", b'{"messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "recursion limit exceeded"),
        ("json/plain", b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "the request cannot be read: Invalid JSON: "),
        ("json/plain", b'{"messages": ', "the request cannot be read: Invalid JSON: EOF while parsing"),
        ("json/plain", b'{"messages": [], "max_iterations": NaN}', "max_iterations: "),
        ("binary/plain", b"\xff\xfe", "it must be a JSON object"),
        ("binary/encrypted", b"\x00", "the request cannot be read: 'Unknown payload encoding binary/encrypted'"),
    ],
)
async def test_a_start_that_is_no_json_is_refused_and_never_hangs(served: Served, encoding: str, data: bytes, why: str) -> None:
    assert why in await served.refusal(RawValue(Payload(metadata={"encoding": encoding.encode()}, data=data)))


async def test_a_start_without_an_argument_is_refused(served: Served) -> None:
    thread = await served.temporal.start_workflow(
        "GradingThread", id=f"thread-{uuid4()}", task_queue=served.task_queue, result_type=RunResult
    )

    assert "it must be a JSON object" in await refusal(thread)


async def test_of_ten_thousand_mistakes_twenty_are_listed(served: Served) -> None:
    message = await served.refusal({"messages": [{"role": "nobody"}] * 10_000, "generator": {"model": WRITER}})

    assert message.count("messages[") == 20
    assert message.endswith("; and more")


def test_twenty_iterations_and_a_whole_rubric_are_taken() -> None:
    assert parse_request(request(max_iterations=MAX_ITERATIONS)).max_iterations == 20
    assert parse_request(request("- " + "x" * 65_534)).rubric is not None
    assert parse_request(request(None)).rubric is None


def test_a_message_of_a_mebibyte_is_taken_and_one_byte_more_is_refused() -> None:
    frame = len(b'{"role":"user","content":""}')
    largest = {"role": "user", "content": "x" * (1024 * 1024 - frame)}

    assert parse_request(request(None, largest)).messages[0].size() == 1024 * 1024
    with pytest.raises(ThreadTooLarge, match=r"messages\[0\] has 1048577 bytes as JSON, 1048576 at most; pass a reference"):
        parse_request(request(None, largest | {"content": largest["content"] + "x"}))


async def test_a_thread_of_more_than_a_mebibyte_and_a_half_is_refused(served: Served) -> None:
    half = {"role": "user", "content": "x" * (512 * 1024)}

    why = await served.refusal(request(None, half, half, half), "ThreadTooLarge")
    assert why.startswith("the thread would hold 1572")
    assert why.endswith("1572864 at most; start a new thread or shorten the messages")


def test_a_refused_size_is_an_invalid_request_too() -> None:
    assert issubclass(ThreadTooLarge, InvalidRequest)


async def test_a_draft_that_the_thread_cannot_hold_ends_the_run_where_it_stands(client: Client) -> None:
    first = {"role": "user", "content": "x" * (1024 * 1024 - 100)}
    result = await outcome(client, request(None, first), draft(text="y" * 600_000))

    assert (result.status, result.output) == ("interrupted", None)
    assert (result.error or "").startswith("ThreadTooLarge: the thread would hold 1648537 bytes")
    assert (result.messages, result.messages_truncated) == (None, True)


async def test_a_reply_of_more_than_a_mebibyte_is_refused_and_not_bought_again(client: Client) -> None:
    async with serving(client, draft(text="y" * 1_100_000, usage={"input": 3, "output": 7})) as served:
        result = await served.run(request())

    assert (result.error or "").startswith("ThreadTooLarge: scripted:writer answered with 1100")
    assert len(served.models.requests) == 1
    assert (result.usage.calls, result.usage.output) == (1, 7)


UNSERVED: list[tuple[dict[str, Any], str]] = [
    (with_generator(tools=["run_pyton"]), "generator.tools: unknown tool 'run_pyton'. Did you mean 'run_python'?"),
    (request("- x", grader={"model": WRITER, "tools": ["nothing"]}), "grader.tools: unknown tool 'nothing'."),
    (request("- x", grader={"model": "anthropic:claude"}), "ANTHROPIC_API_KEY is not set in the worker's environment"),
    (with_generator(model="openai:gpt"), "OPENAI_API_KEY is not set in the worker's environment"),
    (with_generator(model={"id": "openai_compatible:m", "config": {"base_url": "http://127.0.0.1:9/v1"}}), "is not allowed on this worker"),
    (request({"criteria": [{"description": "t", "check": "nothing"}]}), "rubric: the check of c1: unknown tool 'nothing'."),
    (request({"criteria": [{"description": "t", "check": "compare"}]}), "the tool 'compare' needs more than the draft"),
]


def compare(draft: str, other: str) -> bool:
    """Compare two texts."""
    return draft == other


@pytest.mark.slow
async def test_what_only_the_worker_knows_is_refused_before_anybody_is_called(client: Client) -> None:
    async with serving(client, draft(), grade(), tools=[compare]) as served:
        for argument, why in UNSERVED:
            assert why in await served.refusal(argument)

    assert served.models.requests == []


@pytest.mark.slow
async def test_the_queries_page_from_where_the_reader_stands(client: Client) -> None:
    async with serving(client, draft(), grade(0, row("c1", "no")), draft(1), grade(1)) as served:
        thread = await served.start(request("- x"))
        await thread.result()
        first = await page(thread, "messages", 0, 3)
        rest = await page(thread, "messages", first["next"])
        beyond = await page(thread, "messages", 99)
        evaluations = await page(thread, "evaluations", 1)
        least = await page(thread, "messages", -5, 0)

    assert [len(first["items"]), first["next"], first["total"], first["first"]] == [3, 3, 4, 0]
    assert ([item["content"] for item in rest["items"]], rest["next"]) == (["draft 1"], None)
    assert (beyond["items"], beyond["next"], beyond["total"]) == ([], None, 4)
    assert [evaluation["iteration"] for evaluation in evaluations["items"]] == [1]
    assert [item["content"] for item in least["items"]] == ["Write a haiku about spring."]


async def test_a_page_holds_a_mebibyte_at_most_and_no_message_is_lost(client: Client) -> None:
    texts = [letter * 100_000 for letter in "éüößñå"] + ["short", "end"]
    async with serving(client, draft()) as served:
        thread = await served.start(request(None, *({"role": "user", "content": text} for text in texts)))
        result = await thread.result()
        pages = [await page(thread, "messages")]
        while pages[-1]["next"] is not None:
            pages.append(await page(thread, "messages", pages[-1]["next"]))

    assert [item["content"] for one in pages for item in one["items"]] == [*texts, "draft 0"]
    assert [len(one["items"]) for one in pages] == [5, 4]
    assert all(len(json.dumps(one["items"], ensure_ascii=False).encode()) <= 1024 * 1024 for one in pages)
    assert (result.messages, result.messages_truncated) == (None, True)


async def test_messages_of_128_kib_come_with_the_result_and_more_do_not(client: Client) -> None:
    async with serving(client, draft(text="x" * 100)) as served:
        small = await served.run(request(None, {"role": "user", "content": "y" * (128 * 1024 - 300)}))
        large = await served.run(request(None, {"role": "user", "content": "y" * (128 * 1024)}))

    assert (small.messages is None, small.messages_truncated) == (False, False)
    assert (large.messages, large.messages_truncated, large.output) == (None, True, "x" * 100)


async def test_a_large_best_draft_that_is_the_last_is_told_once(client: Client) -> None:
    result = await outcome(client, request(), draft(text="x" * 300_000))

    assert (len(result.output or ""), result.last_output) == (300_000, None)


async def test_events_are_numbered_without_gaps_and_hold_no_text(client: Client) -> None:
    async with serving(client, draft(text="SECRET draft"), grade(0, row("c1", "SECRET gap")), draft(1), grade(1)) as served:
        thread = await served.start(request("- SECRET criterion"))
        result = await thread.result()
        events = await page(thread, "events")
        later = await page(thread, "events", 3, 2)

    assert [item["seq"] for item in events["items"]] == list(range(1, 11))
    assert [item["type"] for item in events["items"]] == [
        *("message", "run_started", "message", "rubric_evaluation_start", "rubric_evaluation_end"),
        *("message", "message", "rubric_evaluation_start", "rubric_evaluation_end", "run_ended"),
    ]
    assert [(item["iteration"], item["index"]) for item in events["items"] if item["type"] == "message"][1:] == [(0, 1), (0, 2), (1, 3)]
    assert "SECRET" not in json.dumps(events)
    assert {item["grading_run_id"] for item in events["items"][1:]} == {result.grading_run_id}
    assert ([item["seq"] for item in later["items"]], later["next"], later["total"]) == ([4, 5], 5, events["total"])


async def test_the_state_tells_what_is_going_on(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        gate = served.models.gate("grader")
        thread = await served.start(request("- three lines\n- spring"))
        await gate.reached.wait()
        state = await thread.query("state", result_type=dict[str, Any])
        gate.opened.set()
        await thread.terminate()

    assert (state["status"], state["phase"], state["iteration"], state["usage"]["calls"]) == ("running", "grading", 0, 1)
    assert [criterion["id"] for criterion in state["rubric"]["criteria"]] == ["c1", "c2"]


async def test_the_checkpoint_holds_the_whole_thread_on_a_closed_workflow_too(client: Client) -> None:
    async with serving(client, draft(), grade(0, row("c1", "no")), draft(1), grade(1)) as served:
        thread = await served.start(request("- x"))
        result = await thread.result()
        checkpoint = await thread.query("checkpoint", result_type=dict[str, Any])

    state = checkpoint["thread"]
    assert result.messages is not None
    assert [message["content"] for message in state["log"]] == [message.content for message in result.messages]
    assert state["evaluations"] == [json.loads(evaluation.model_dump_json()) for evaluation in result.evaluations]
    assert (checkpoint["temporal_run_id"], state["run"]["grading_run_id"]) == (thread.result_run_id, result.grading_run_id)


async def test_a_refused_thread_answers_queries_with_its_refusal(served: Served) -> None:
    thread = await served.start({})
    await refusal(thread)

    with pytest.raises(Exception, match="generator: Field required"):
        await thread.query("state")


async def test_a_null_counts_as_a_field_that_is_absent(client: Client) -> None:
    unset = {"tools": None, "system_prompt": None, "show_rubric": None}
    message = {"role": "user", "content": "hello", "name": None, "tool_calls": None, "tool_call_id": None}
    argument = request("- it greets") | {"max_iterations": None, "idle_timeout": None, "checkpoint": None, "messages": [message]}
    argument["generator"], argument["grader"] = {"model": WRITER, **unset}, {"model": JUDGE, "tools": None}
    async with serving(client, draft(), grade(0, row("c1"))) as served:
        result = await served.run(argument)

    assert (result.status, result.iterations) == ("satisfied", 1)


@pytest.mark.parametrize("rubric", [{}, {"criteria": None}])
def test_a_null_clears_no_rubric(rubric: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"rubric\.criteria: "):
        parse_request(request(rubric))
