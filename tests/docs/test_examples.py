"""The examples run as they stand: services as a service would, agents through their frameworks, suites through the command line."""

import asyncio
import importlib.util
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path
from re import findall

import httpx2 as httpx
import pytest
from temporalio.client import Client

from activities.providers.scripted import Script
from examples.find_duplicates.tools import TESTS, run_test_suite
from gradeloop import GradingClient
from gradeloop.contract.messages import code_of
from gradeloop.contract.thread import TASK_QUEUE
from gradeloop.files.yaml import read_yaml
from gradeloop.temporal.connect import Connection
from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import MODEL, ScriptedModels, worker
from tests.conftest import ROOT
from tests.docs.runner import OFTEN, TIMES, blocks, ends_alike, run_process
from tests.rig.cli import CommandLine
from tests.rig.model_server import Reply
from tests.rig.model_streams import model_streams
from tests.rig.threads import JUDGE, draft, grade, row, says, serving
from tests.rig.typescript_example import build_example

EXAMPLES = ROOT / "examples"
SERVED = {"langgraph": "langchain_openai", "claude": "claude_agent_sdk"}
"""Agents that serve a queue, and the package without which they are skipped."""

SORRY, TODAY = "Sorry to hear that.", "Bring it in: we replace the chain today."


def replies(*drafts: str) -> list[dict[str, object]]:
    """Return the drafts of a thread of three criteria; its grader fails the first one, and passes the second one."""
    rest = (row("c2"), row("c3"))
    return [
        *(draft(at, text) for at, text in enumerate(drafts)),
        grade(0, row("c1", "no next step is named"), *rest),
        grade(1, row("c1"), *rest),
    ]


@pytest.mark.parametrize("times", [pytest.param(TIMES, marks=pytest.mark.slow), pytest.param(OFTEN, marks=pytest.mark.storm)])
@pytest.mark.timeout(450)
async def test_the_service_gives_the_answer_that_meets_its_rubric(client: Client, temporal_server: ServerInfo, times: int) -> None:
    command = (sys.executable, str(EXAMPLES / "service.py"), JUDGE)
    async with serving(client, *replies(SORRY, TODAY), task_queue=TASK_QUEUE):
        done = await ends_alike([command] * times, TEMPORAL_ADDRESS=temporal_server.address)

    assert done.out.splitlines() == ["iteration 1: needs_revision", "iteration 2: satisfied", TODAY]


@pytest.mark.slow
async def test_the_service_raises_where_its_rubric_cannot_be_judged(client: Client, temporal_server: ServerInfo) -> None:
    failed = json.dumps({"unjudgeable": "There is no answer to judge."})
    async with serving(client, draft(0, SORRY), says(failed), task_queue=TASK_QUEUE):
        done = await run_process(sys.executable, str(EXAMPLES / "service.py"), JUDGE, TEMPORAL_ADDRESS=temporal_server.address)

    assert done.code != 0
    assert "ended failed: There is no answer to judge." in done.err


def shown(program: str) -> list[str]:
    """Return what the page on services shows of a program's output."""
    (block,) = (block for block in blocks("docs/python.md") if block.language == "text")
    lines = block.text.splitlines()
    starts = {line.split()[0]: at for at, line in enumerate(lines) if not line.startswith(" ")}
    end = min((at for at in starts.values() if at > starts[program]), default=len(lines))
    return [line[12:] for line in lines[starts[program] : end]]


@asynccontextmanager
async def started(server: ServerInfo, name: str, *arguments: str, **variables: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run an example of a web service; yield a client of it once it answers."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, str(EXAMPLES / name), *(str(port) if argument == "PORT" else argument for argument in arguments)]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        environment = {**os.environ, "TEMPORAL_ADDRESS": server.address, **variables}
        process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(240):
                while process.returncode is None:
                    try:
                        await http.get("/nowhere")
                    except httpx.ConnectError:
                        await asyncio.sleep(0.1)
                    else:
                        break
            yield http
        finally:
            process.terminate()
            await process.wait()


@pytest.mark.slow
async def test_the_fastapi_service_streams_the_events_of_a_thread_and_gives_its_answer(client: Client, temporal_server: ServerInfo) -> None:
    async with (
        serving(client, *replies(SORRY, TODAY), task_queue=TASK_QUEUE),
        started(temporal_server, "service_fastapi.py", JUDGE, "PORT") as http,
    ):
        thread = (await http.post("/threads", json={"question": "The chain has snapped."})).json()["thread_id"]
        async with http.stream("GET", f"/threads/{thread}/events") as stream:
            text = "".join([part async for part in stream.aiter_text()])
        again = (await http.get(f"/threads/{thread}/events", headers={"last-event-id": "4"})).text
        answer = (await http.get(f"/threads/{thread}/answer")).json()
        nowhere, empty = await http.get("/threads/none/events"), await http.post("/threads", json={"question": ""})

    kinds, ids = findall(r"^event: (.+)$", text, 8), findall(r"^id: (.+)$", text, 8)
    found = [json.loads(line) for line in findall(r"^data: (.+)$", text, 8)]
    assert kinds.count("rubric_evaluation_end") == 2
    assert kinds[-1] == "end"
    assert ids == [str(number + 1) for number in range(len(ids))]
    assert [event["evaluation"]["result"] for event in found if "evaluation" in event] == ["needs_revision", "satisfied"]
    assert again.startswith("id: 5\n")
    assert answer["answer"] == TODAY
    assert (nowhere.status_code, empty.status_code) == (404, 422)


@pytest.mark.slow
async def test_a_fastapi_service_answers_once_before_and_until_its_rubric_is_met_after(temporal_server: ServerInfo) -> None:
    models = ScriptedModels(
        lambda call: TODAY if "next step" in str(call.messages[1:]) else SORRY,
        lambda call: {} if call.draft == TODAY else {"k1": "no next step is named"},
    )
    answers = []
    async with worker(models, server=Connection(temporal_server.address, "default", embedded=False)) as served:
        keys = {"OPENAI_BASE_URL": models.url, "OPENAI_API_KEY": "none", "GRADER": MODEL, "GRADELOOP_TASK_QUEUE": served.queue}
        for program in ("before.py", "after.py"):
            async with started(temporal_server, f"fastapi_service/{program}", "PORT", **keys) as http:
                answers.append((await http.post("/answers", json={"question": "The chain has snapped."})).text)
                assert (await http.post("/answers", json={"question": ""})).status_code == 422
            assert [answers[-1]] == shown(program)


@pytest.mark.slow
async def test_a_fastapi_service_whose_answers_never_meet_the_rubric_says_so(temporal_server: ServerInfo) -> None:
    models = ScriptedModels([SORRY], [{"k1": "no next step is named"}])
    async with worker(models, server=Connection(temporal_server.address, "default", embedded=False)) as served:
        keys = {"OPENAI_BASE_URL": models.url, "OPENAI_API_KEY": "none", "GRADER": MODEL, "GRADELOOP_TASK_QUEUE": served.queue}
        async with started(temporal_server, "fastapi_service/after.py", "PORT", **keys) as http:
            answered = await http.post("/answers", json={"question": "The chain has snapped."})

    assert (answered.status_code, answered.json()) == (502, {"detail": "the answer is max_iterations_reached"})


@pytest.mark.slow
async def test_a_person_rejects_and_approves_drafts_on_the_approval_page(client: Client, temporal_server: ServerInfo) -> None:
    person = {"id": "tone", "description": "The owner likes it", "human": True}
    request = {
        "messages": [{"role": "user", "content": "The chain has snapped."}],
        "rubric": {"criteria": ["It answers", person]},
        "generator": {"model": JUDGE},
        "grader": {"model": JUDGE},
    }

    async with (
        serving(client, draft(0, "<b>Sorry!</b>"), draft(1, TODAY), grade(0), grade(1), task_queue=TASK_QUEUE),
        started(temporal_server, "approval_page.py", "PORT", "ada") as http,
    ):
        grading = GradingClient(client)
        thread = await grading.start(request)
        own = {"origin": str(http.base_url).rstrip("/")}
        first = await page_with(http, "Sorry!")
        fields = dict(findall(r'name="(thread|run|iteration|criterion)" value="([^"]*)"', first))
        refused = await http.post("/decide", data={**fields, "answer": "yes"}, headers={"origin": "https://elsewhere.example"})
        rejected = await http.post("/decide", data={**fields, "answer": "no", "why": "name a day"}, headers=own)
        second = await page_with(http, TODAY)
        stale = await http.post("/decide", data={**fields, "answer": "yes"}, headers=own)
        fields = dict(findall(r'name="(thread|run|iteration|criterion)" value="([^"]*)"', second))
        await http.post("/decide", data={**fields, "answer": "yes"}, headers=own)
        result = await grading.result(thread)

    assert "<b>Sorry!</b>" not in first
    assert "<b>Sorry!</b>" in unescape(first)
    assert (refused.status_code, rejected.status_code, stale.status_code) == (403, 303, 409)
    assert (result.status, result.output, result.iterations) == ("satisfied", TODAY, 2)
    assert result.evaluations[0].criteria[1].gap == "name a day"


async def page_with(http: httpx.AsyncClient, words: str) -> str:
    """Return the page once it shows these words."""
    async with asyncio.timeout(240):
        while words not in (text := (await http.get("/")).text):
            await asyncio.sleep(0.2)
    return text


@pytest.mark.slow
async def test_the_typescript_service_speaks_plain_json_to_temporal(client: Client, temporal_server: ServerInfo) -> None:
    example = EXAMPLES / "typescript_service"
    folder = build_example(example, [example / "service.ts", example / "before.ts", ROOT / "docs" / "contract.d.ts"])
    with ScriptedModels([SORRY]) as models:
        before = await run_process("node", "dist/before.js", folder=folder, OPENAI_BASE_URL=models.url)
    async with serving(client, *replies(SORRY, TODAY), task_queue=TASK_QUEUE):
        done = await run_process("node", "dist/service.js", JUDGE, folder=folder, TEMPORAL_ADDRESS=temporal_server.address)

    assert before.out.splitlines() == [SORRY] == shown("before.ts"), before.err
    assert done.out.splitlines() == ["iteration 1: needs_revision", "iteration 2: satisfied", TODAY] == shown("service.ts"), done.err
    assert (before.code, done.code) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pydantic_ai", "openai_agents"])
async def test_an_agent_alone_gives_its_first_answer_and_in_a_loop_a_better_one(temporal_server: ServerInfo, framework: str) -> None:
    first, second = "Never on Fridays.", "Deploy on Tuesday: who would mend it on Saturday?"
    models = ScriptedModels(
        lambda call: second if "say what to do" in str(call.messages) else first,
        lambda call: {} if call.draft == second else {"k1": "say what to do"},
    )
    command = (sys.executable, str(EXAMPLES / f"agents/{framework}_agent.py"), "Explain why we never deploy on a Friday.")
    async with worker(models, server=Connection(temporal_server.address, "default", embedded=False)) as served:
        keys = {"OPENAI_BASE_URL": models.url, "OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1", "GRADER": MODEL}
        keys |= {"TEMPORAL_ADDRESS": temporal_server.address, "GRADELOOP_TASK_QUEUE": served.queue}
        alone, graded = [await run_process(*command, *more, folder=None, **keys) for more in ((), ("--graded",))]

    assert alone.out == f"{first}\n", alone.err
    assert graded.out == f"satisfied after 2 drafts: {second}\n", graded.err


@pytest.mark.slow
@pytest.mark.parametrize("framework", SERVED)
async def test_an_agent_drafts_again_on_feedback(temporal_server: ServerInfo, framework: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(SERVED[framework]) is None:
        pytest.skip(f"{SERVED[framework]} is not installed")
    first, second = "Never on Fridays.", "Deploy on Tuesday: who would mend it on Saturday?"
    models = ScriptedModels([first, second], [{"k1": "say what to do"}, {}])
    server = Connection(temporal_server.address, "default", embedded=False)
    with model_streams(lambda _, asked: Reply(second if "say what to do" in asked else first)) as anthropic:
        async with worker(models, server=server) as served:
            environment = {
                "TEMPORAL_ADDRESS": server.address,
                "OPENAI_BASE_URL": models.url,
                "OPENAI_API_KEY": "none",
                "ANTHROPIC_BASE_URL": anthropic,
                "ANTHROPIC_API_KEY": "none",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "HOME": str(tmp_path),
            }
            agent = await asyncio.create_subprocess_exec(
                sys.executable, str(EXAMPLES / f"agents/{framework}_agent.py"), env={**os.environ, **environment}
            )
            try:
                result = await served.client.result(
                    await served.client.start(
                        {
                            "messages": [{"role": "user", "content": "Explain why we never deploy on a Friday."}],
                            "rubric": "- it says what to do instead",
                            "generator": {"activity": "generate", "task_queue": "agents"},
                            "grader": {"model": MODEL},
                        }
                    )
                )
            finally:
                agent.terminate()
                await agent.wait()

    assert (result.status, result.output) == ("satisfied", second), result.error


def test_the_duplicates_suite_fails_the_first_scripted_draft_on_unhashable_items_and_passes_the_second() -> None:
    first, second = (row.text for row in Script.read(EXAMPLES / "find_duplicates" / "replies.yaml").replies if row.role == "generator")

    assert list(run_test_suite(code_of(first or ""))) == ["ok", "test_unhashable"]
    assert run_test_suite(code_of(second or "")) == {"ok": True}


def test_the_duplicates_suite_names_each_test_that_fails() -> None:
    found = run_test_suite("def find_duplicates(lst):\n    return lst")

    assert found["ok"] is False
    assert set(found) - {"ok"} <= set(TESTS)
    assert "test_none" in found


@pytest.mark.parametrize("name", ["find_duplicates", "haiku"])
def test_an_example_says_what_it_is_in_its_first_line(name: str) -> None:
    path = EXAMPLES / name / "task.yaml"

    assert path.read_text().startswith("# ")
    assert isinstance(read_yaml(path, "the example"), dict)


@pytest.mark.slow
def test_the_suites_come_to_what_they_are_written_for(commands: CommandLine) -> None:
    gradeloop = replace(commands, folder=EXAMPLES)
    support, greetings = gradeloop("eval", "suite/suite.yaml"), gradeloop("eval", "promptfoo/promptfooconfig.yaml")

    assert (support.code, greetings.code) == (0, 1), support.err + greetings.err
    assert "Results: 3 passed, 3 failed of 6 (50% of 6 judged, 50% wanted)" in support.out
    assert "Results: 2 passed, 1 failed of 3 (66.7% of 3 judged, 100% wanted)" in greetings.out
