"""The programs written by hand, beside which gradeloop is measured: the same verdicts, and what they promise of a paid call."""

import asyncio
import json
import os
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError

from activities.providers import Providers
from activities.providers.environment import Environment
from activities.tools.registry import ToolRegistry
from gradeloop.settings.worker import WorkerSettings
from gradeloop.store.engine import Store
from lab.beside_handwritten import Ours, Step, Theirs, verdicts
from lab.handwritten import batch
from lab.handwritten.judgement import JudgedRun, JudgedRuns, Judgement, Judging, Judgings, Run
from lab.handwritten.model_call import PAID_CALL, PERMANENT, Message
from lab.handwritten.worker import QUEUE, build, connect
from lab.mock_judge import FAILURE, counts, judging
from rig.processes import Engine
from worker import build as build_ours

pytestmark = pytest.mark.slow

ASKED = Judging(run=Run(id="r", messages=[Message(role="user", content="Who are you?")]), question="It asks.", judge="gpt-5")


@pytest.fixture(scope="module")
def judge() -> Iterator[str]:
    with judging(0.0) as url:
        yield url


@asynccontextmanager
async def by_hand(server: Engine, models: str) -> AsyncIterator[Client]:
    """Serve the programs written by hand, and yield a client."""
    client = await connect(server.address)
    async with AsyncOpenAI(api_key="k", base_url=f"{models}/v1", max_retries=0) as openai, build(client, openai):
        yield client


@asynccontextmanager
async def answering(*answers: int | str) -> AsyncIterator[tuple[str, list[Any]]]:
    """Answer with a status or a text, one after the other; yield the address and the requests."""
    requests: list[Any] = []

    async def respond(request: web.Request) -> web.Response:
        requests.append(await request.json())
        said = answers[len(requests) - 1]
        if isinstance(said, int):
            return web.json_response({"error": {"message": "no", "type": "t", "code": None}}, status=said, headers={"Retry-After": "0"})
        content = [{"type": "output_text", "text": said, "annotations": []}]
        output = [{"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": content}]
        reply = {"id": "r", "object": "response", "created_at": 1, "status": "completed", "model": "m", "output": output}
        return web.json_response(reply | {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []})

    app = web.Application()
    app.router.add_post("/v1/responses", respond)
    server = TestServer(app)
    await server.start_server()
    try:
        yield str(server.make_url("")).rstrip("/"), requests
    finally:
        await server.close()


async def judged(client: Client) -> Judgement:
    return await client.execute_workflow(JudgedRun.run, ASKED, id=f"judged-{uuid4()}", task_queue=QUEUE)


def post(judge: str) -> None:
    """Make one call."""
    body = json.dumps({"model": "m", "input": "[draft]"}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(urllib.request.Request(f"{judge}/v1/responses", body, {"Content-Type": "application/json"})).close()


def label(name: str) -> str:
    return json.dumps({"explanation": "so it is", "label": name})


async def test_both_come_to_the_same_verdicts_with_as_many_calls_of_comparable_size(
    client: Client, engine: Engine, judge: str, tmp_path: Path
) -> None:
    providers = Providers(Environment.read({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{judge}/v1", "GRADELOOP_BASE_URLS": judge}))
    store, queue, here = Store(f"sqlite:///{tmp_path / 'results.db'}"), f"beside-{uuid4()}", os.getpid()
    worker = build_ours(client, providers, ToolRegistry(), WorkerSettings(task_queue=queue), store=store)
    async with worker, by_hand(engine, judge) as other:
        counts(judge)
        ours = await verdicts(Ours(client, queue, store, here, here))
        our_calls = counts(judge)
        theirs = await verdicts(Theirs(other, tmp_path, here, here))
        their_calls = counts(judge)
    await providers.aclose()
    store.close()

    assert ours == theirs
    assert ours[0] == ("Draft 2. Queues drain before a worker leaves, and each entry says who is affected.", [False, False, True])
    assert ours[1] == [bool(at % 3) for at in range(10)]
    assert our_calls.calls == their_calls.calls == 6 + 10 + 10 + 2
    assert 0.7 < their_calls.bytes / our_calls.bytes < 1


async def test_a_side_that_makes_another_number_of_calls_is_not_measured(client: Client, judge: str, tmp_path: Path) -> None:
    step = Step(2, lambda side, _: side.bench.cost(1, lambda: asyncio.to_thread(post, judge)))

    with pytest.raises(RuntimeError, match="handwritten made 1 calls for one, and not 2"):
        await step.measured(Theirs(client, tmp_path, os.getpid(), os.getpid()), "one", judge)


async def test_a_batch_of_several_pages_writes_every_verdict_and_every_error(
    engine: Engine, judge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "PAGE", 4)
    monkeypatch.setitem(PAID_CALL, "retry_policy", RetryPolicy(maximum_attempts=2))
    outputs = ["good", "[fail]", "[500 once in a batch]", "[500]", "good", "[prose once in a batch]", "[fail]", "good"]
    cases = tmp_path / "cases.jsonl"
    cases.write_text("\n".join(json.dumps({"id": f"case-{at}", "output": output}) for at, output in enumerate(outputs)))
    asked = batch.Batch(cases=cases, verdicts=tmp_path, rubric=["It is good."], grader="gpt-5")
    async with by_hand(engine, judge) as client:
        done = await client.execute_workflow(batch.GradedBatch.run, asked, id=f"batch-{uuid4()}", task_queue=QUEUE)
    pages = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("*.json"))]

    assert (done.passed, done.failed, done.errors) == (5, 2, 1)
    assert [len(page) for page in pages] == [4, 4, 0]
    written = [case for page in pages for case in page]
    assert [case["id"] for case in written if case["error"] is None] == [f"case-{at}" for at in (0, 1, 2, 4, 5, 6, 7)]
    assert [case["error"] for case in written if case["error"]] == [f"InternalServerError: Error code: 500 - {FAILURE}"]


async def test_a_request_that_is_refused_for_good_is_sent_once(engine: Engine) -> None:
    refusals = sorted(PERMANENT)
    async with answering(*refusals) as (url, requests), by_hand(engine, url) as client:
        for sent, _ in enumerate(refusals, start=1):
            with pytest.raises(WorkflowFailureError) as failed:
                await judged(client)

            assert len(requests) == sent
            assert isinstance(failed.value.cause, ActivityError)
            assert isinstance(failed.value.cause.cause, ApplicationError)


async def test_a_failure_that_may_pass_and_an_answer_of_another_form_are_asked_again(engine: Engine) -> None:
    passing: list[int | str] = [429, 500, 503, "no JSON", label("perhaps")]
    answers = [answer for first in passing for answer in (first, label("match"))]
    async with answering(*answers) as (url, requests), by_hand(engine, url) as client:
        for sent, _ in enumerate(passing, start=1):
            assert (await judged(client)).label == "match"
            assert len(requests) == 2 * sent
            assert requests[-2] == requests[-1]


@pytest.mark.parametrize(
    ("program", "asked"),
    [(JudgedRun, ASKED), (JudgedRuns, Judgings(runs=[ASKED.run] * 3, question=ASKED.question, judge=ASKED.judge, at_once=1))],
)
async def test_a_call_whose_workflow_is_cancelled_hangs_up(
    engine: Engine, program: type[JudgedRun | JudgedRuns], asked: Judging | Judgings
) -> None:
    called, hung_up = asyncio.Event(), asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        called.set()
        while await reader.read(1 << 16):
            pass
        hung_up.set()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as provider, asyncio.timeout(240):
        url = f"http://127.0.0.1:{provider.sockets[0].getsockname()[1]}"
        async with by_hand(engine, url) as client:
            handle = await client.start_workflow(program.__name__, asked, id=f"judged-{uuid4()}", task_queue=QUEUE)
            await called.wait()
            await handle.cancel()
            await hung_up.wait()
            with pytest.raises(WorkflowFailureError) as ended:
                await handle.result()

    assert isinstance(ended.value.cause, CancelledError)
