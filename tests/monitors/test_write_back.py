"""Scores written back to Langfuse and LangSmith: their SDKs read them, again overwrites, and no failure touches a verdict."""

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from langfuse.api import CreateScoreRequest, LangfuseAPI
from langsmith import Client as LangSmith
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.batches.score_writer import write_scores
from gradeloop.contract.transcript import AgentRun
from gradeloop.judges.contract import JudgeResult, parse_judge
from gradeloop.judges.pass_rule import PassRule
from gradeloop.judges.write_back import Target, TraceScore, scores_of
from gradeloop.monitors.overview import MonitorSummary, tick_notes
from tests.monitors.test_monitoring import Watched, watched
from tests.rig.batches import fails, passes
from tests.rig.judging import PARIS
from tests.rig.score_servers import ScoreServer, score_server

NOW = datetime(2026, 5, 1, tzinfo=UTC)
CRITERIA = parse_judge({"id": "helpful", "rubric": "- it is good\n- it is short"})
SCHEMA = parse_judge(
    {
        "id": "label",
        "rubric_text": "Judge.",
        "pass_if": {"label": "match"},
        "output_schema": {
            "type": "object",
            "properties": {
                "label": {"type": "string", "enum": ["match", "no match"]},
                "points": {"type": "integer"},
                "explanation": {"type": "string"},
            },
        },
    }
)


@pytest.fixture
async def server() -> AsyncIterator[ScoreServer]:
    async with score_server() as made:
        yield made


def a_run(name: str, **metadata: Any) -> AgentRun:
    return AgentRun.model_validate(PARIS | {"id": name, "metadata": metadata})


def result(output: dict[str, Any], **more: Any) -> JudgeResult:
    about = {"id": "j", "agent_run_id": "r", "rubric_id": "x", "rubric_version": 1, "result_type": "DIRECT_RESULT"}
    return JudgeResult.model_validate(about | {"output": output} | more)


def by_criteria(good: bool = True) -> JudgeResult:
    rows = [{"id": "c1", "name": "it is good", "passed": True, "reason": "it is"}]
    rows.append({"id": "c2", "name": "it is short", "passed": good, "reason": "counted", **({} if good else {"gap": "cut it"})})
    word = "satisfied" if good else "needs_revision"
    return result({"result": word, "score": 1.0 if good else 0.5, "criteria": rows, "explanation": "both"})


def scored(to: Target, trace: str, judged: JudgeResult | None = None, **more: Any) -> tuple[TraceScore, ...]:
    found = scores_of(to, PassRule(CRITERIA, ()), a_run(trace, **more), judged or by_criteria(), NOW)
    assert found is not None
    return found


def said(scores: tuple[TraceScore, ...] | None) -> dict[str, Any]:
    return {score.name: score.value for score in scores or ()}


def test_a_judgement_is_a_score_for_its_verdict_and_for_each_criterion_or_key() -> None:
    trace = uuid4().hex
    label = result({"label": "no match", "points": 3, "explanation": "It names Rome."})

    assert said(scored("langfuse", trace, by_criteria(good=False))) == {
        "helpful": False,
        "helpful.c1": True,
        "helpful.c2": False,
        "helpful.score": 0.5,
    }
    assert [score.reason for score in scored("langfuse", trace, by_criteria(good=False))] == ["both", "it is", "cut it", ""]
    by_label = scores_of("langfuse", PassRule(SCHEMA, ()), a_run(trace), label, NOW)
    assert said(by_label) == {"label": False, "label.label": "no match", "label.points": 3}
    failure = label.model_copy(update={"output": {}, "result_type": "FAILURE"})
    assert scores_of("langfuse", PassRule(SCHEMA, ()), a_run(trace), failure, NOW) == ()


def test_what_the_judge_is_unsure_of_has_no_score() -> None:
    judge = parse_judge(SCHEMA.model_dump(exclude_none=True) | {"n_rollouts_per_input": 3, "abstain": {"label": 0.9}})
    keys = {"label": {"value": "match", "distribution": [{"value": "match", "share": 0.67}]}}
    unsure = result({"label": "match", "points": 3}, result_metadata={"keys": keys})

    assert said(scores_of("langfuse", PassRule(judge, ()), a_run(uuid4().hex), unsure, NOW)) == {"label.points": 3}


@pytest.mark.parametrize(
    ("to", "name", "metadata", "trace"),
    [
        ("langfuse", "0123456789abcdef0123456789abcdef", {}, "0123456789abcdef0123456789abcdef"),
        ("langfuse", "two/0123456789abcdef0123456789abcdef", {}, "0123456789abcdef0123456789abcdef"),
        ("langfuse", "runs-1", {"langfuse_trace_id": "my trace"}, "my trace"),
        ("langsmith", "0f0e0d0c-1111-2222-3333-444455556666", {}, "0f0e0d0c-1111-2222-3333-444455556666"),
        ("langsmith", "0123456789abcdef0123456789abcdef", {}, None),
        ("langfuse", "runs-1", {"langsmith_trace_id": "x"}, None),
    ],
)
def test_a_trace_is_the_runs_own_id_or_what_its_metadata_says(to: Target, name: str, metadata: dict[str, Any], trace: str | None) -> None:
    found = scores_of(to, PassRule(CRITERIA, ()), a_run(name, **metadata), by_criteria(), NOW)

    assert (None if found is None else {score.trace for score in found}) == (None if trace is None else {trace})


@pytest.mark.parametrize("takes_lists", [True, False])
async def test_langfuses_sdk_reads_what_is_written_and_again_overwrites(*, takes_lists: bool) -> None:
    async with score_server(takes_lists=takes_lists) as server:
        environment, trace = server.environment, uuid4().hex
        first = await write_scores("langfuse", scored("langfuse", trace), environment)
        later = [score.model_copy(update={"time": datetime.now(UTC)}) for score in scored("langfuse", trace, by_criteria(good=False))]
        again = await write_scores("langfuse", later, environment)
        with httpx.Client() as http:
            sdk = LangfuseAPI(base_url=server.url, username="pk", password=environment["LANGFUSE_SECRET_KEY"], httpx_client=http)
            found = (await asyncio.to_thread(sdk.scores.get_many, trace_id=trace, fields="details,subject")).data
            if takes_lists:
                mine = CreateScoreRequest(id="own", trace_id=trace, name="own", value=1.0)
                await asyncio.to_thread(sdk.scores.create, request=[mine])

    assert (first.written, again.written, first.problems, again.problems) == (4, 4, (), ())
    assert {one.name: one.value for one in found} == {"helpful": False, "helpful.c1": True, "helpful.c2": False, "helpful.score": 0.5}
    assert {one.name: one.comment for one in found}["helpful.c2"] == "cut it"
    assert len({one.id for one in found}) == 4
    assert {header["authorization"].split()[0] for header in server.headers} == {"Basic"}
    assert server.headers[0]["authorization"] == server.headers[-1]["authorization"], "the SDK signs in as we do"


async def test_langsmiths_sdk_reads_what_is_written_and_again_overwrites(server: ScoreServer) -> None:
    environment, run, project = server.environment, uuid4(), uuid4()
    first = await write_scores("langsmith", scored("langsmith", str(run), session_id=str(project)), environment)
    again = await write_scores("langsmith", scored("langsmith", str(run), by_criteria(good=False)), environment)
    sdk = LangSmith(api_url=server.url, api_key=environment["LANGSMITH_API_KEY"], auto_batch_tracing=False)

    def read() -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = list(sdk.list_feedback(run_ids=[run]))
            sdk.create_feedback(run, "own", score=1, feedback_id=uuid4())
        sdk.close()
        sdk.session.close()
        return found

    found = await asyncio.to_thread(read)

    assert (first.written, again.written, first.problems + again.problems) == (4, 4, ())
    assert {one.key: one.score for one in found} == {"helpful": False, "helpful.c1": True, "helpful.c2": False, "helpful.score": 0.5}
    assert {one.session_id for one in found} == {project}
    assert {one.comment for one in found if one.key == "helpful.c2"} == {"cut it"}
    assert all(header["x-api-key"] == environment["LANGSMITH_API_KEY"] for header in server.headers)
    assert len(server.feedback) == 5
    assert {type(one.id) for one in found} == {UUID}


@pytest.mark.parametrize("to", ["langfuse", "langsmith"])
async def test_what_one_score_is_refused_for_stops_no_other(to: Target, server: ScoreServer) -> None:
    gone = f"{uuid4()}"[:-8] + "f" * 8
    found = await write_scores(to, [*scored(to, str(uuid4())), *scored(to, gone)], server.environment)

    assert found.written == 4
    assert len(found.problems) == 1
    assert "no trace" in found.problems[0] or "404" in found.problems[0]


@pytest.mark.parametrize(
    ("to", "body"),
    [(to, body) for to in ("langfuse", "langsmith") for body in ("<html>Please log in</html>", "[]")] + [("langfuse", '{"data": 1}')],
)
async def test_a_success_that_is_no_answer_of_the_api_is_no_score_written(to: Target, body: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as other:
        address = str(other.make_url(""))
        keys = dict.fromkeys(("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY", "LANGSMITH_API_KEY"), "k")
        environment = keys | {"LANGFUSE_BASE_URL": address, "LANGSMITH_ENDPOINT": address}
        with pytest.raises(ApplicationError, match=rf"{to} at 127.0.0.1 gives no answer of its API; correct the address"):
            await write_scores(to, scored(to, str(uuid4())), environment)


async def test_a_missing_key_a_refused_one_and_a_silent_server_are_told_apart(server: ScoreServer) -> None:
    scores = scored("langsmith", str(uuid4()))
    with pytest.raises(ApplicationError, match="needs the variable LANGSMITH_API_KEY in the worker's environment") as missing:
        await write_scores("langsmith", scores, {})
    with pytest.raises(ApplicationError, match="does not answer: ConnectError") as away:
        await write_scores("langsmith", scores, server.environment | {"LANGSMITH_ENDPOINT": "http://127.0.0.1:1"})
    with pytest.raises(ApplicationError, match="not a URL"):
        await write_scores("langsmith", scores, server.environment | {"LANGSMITH_ENDPOINT": "ftp://somewhere"})
    async with score_server(401) as strict:
        with pytest.raises(ApplicationError, match="answers with 401") as refused:
            await write_scores("langsmith", scores, strict.environment)

    assert (missing.value.non_retryable, away.value.non_retryable, refused.value.non_retryable) == (True, False, True)


def write(monitor: Watched, traced: str, untraced: str = "runs-1") -> None:
    lines = [
        {"id": name, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": f"good {name}"}]}
        for name in (traced, untraced)
    ]
    (monitor.folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


async def written_back(monitor: Watched) -> MonitorSummary:
    """Run a tick, and return the monitor once its scores were written, or were given up."""
    await monitor.tick()
    handle = monitor.batches.client.get_workflow_handle(f"write-back/monitor/{monitor.name}/1")
    await handle.result()
    return await monitor.reader.summary(monitor.name)


async def test_a_monitor_writes_back_what_it_judges_and_says_how_much(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with score_server(503, 429) as server, watched(client, tmp_path, passes(), write_back="langfuse") as monitor:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        write(monitor, trace := uuid4().hex)
        found = await written_back(monitor)

    assert (found.rate.passed, found.rate.judged) == (2, 2)
    assert {(one["traceId"], one["dataType"], one["value"]) for one in server.scores.values()} == {
        (trace, "BOOLEAN", 1.0),
        (trace, "NUMERIC", 1.0),
    }
    assert "3 scores written back; the trace of 1 run is not known" in tick_notes(found.ticks[0])


async def test_a_write_back_that_fails_is_told_and_changes_no_verdict(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with score_server(403) as server, watched(client, tmp_path, fails(), write_back="langsmith") as monitor:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        write(monitor, str(uuid4()))
        found = await written_back(monitor)

    assert (found.rate.passed, found.rate.judged) == (0, 2)
    assert found.ticks[0].problem is None
    assert "not written: langsmith at 127.0.0.1 answers with 403" in tick_notes(found.ticks[0])
