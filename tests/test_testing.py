"""The shipped test kit: models that follow a script, and a worker process that calls them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradeloop.client.client import GradingClient
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.judges.client import Judge
from gradeloop.testing import MODEL, ModelCall, Reply, ScriptedModels, ToolUse, WorkerProcess, temporal_server, worker
from tests.rig.kit import Kit


@pytest.fixture
def models(kit: Kit) -> ScriptedModels:
    """Return the models of the run's worker, without what another test has them say."""
    kit.models.script()
    return kit.models


@pytest.fixture
def served(kit: Kit) -> WorkerProcess:
    """Return the run's worker."""
    return kit.process


def request(**more: Any) -> dict[str, Any]:
    """Return a thread's request whose two models are scripted."""
    plain = {
        "messages": [{"role": "user", "content": "Write a haiku."}],
        "rubric": "- names the month\n- is short",
        "generator": {"model": MODEL},
        "grader": {"model": MODEL},
    }
    return plain | more


@pytest.mark.slow
async def test_drafts_and_verdicts_follow_the_script_in_their_order(served: WorkerProcess, models: ScriptedModels) -> None:
    models.script(drafts=["Frogs.", "Frogs in May."], verdicts=[{"k1": "name the month"}, {}])

    result = await served.client.result(await served.client.start(request()))

    assert (result.status, result.iterations, result.output) == ("satisfied", 2, "Frogs in May.")
    assert [row.gap for row in result.evaluations[0].criteria] == ["name the month", None]
    assert [(call.role, call.iteration, call.step) for call in models.calls] == [
        ("generator", 0, 0),
        ("grader", 0, 0),
        ("generator", 1, 0),
        ("grader", 1, 0),
    ]
    assert [call.draft for call in models.calls] == [None, "Frogs.", None, "Frogs in May."]
    assert models.calls[1].keys == ("k1", "k2")
    assert "name the month" in models.calls[2].messages[-1]["content"]


async def test_a_function_answers_calls_and_a_grader_may_use_the_workers_tools(served: WorkerProcess, models: ScriptedModels) -> None:
    def grade(call: ModelCall) -> Reply:
        if call.step == 0:
            return ToolUse("count_lines", {"text": call.draft})
        return {} if call.messages[-1]["content"] == "3" else {"k1": "write three lines"}

    models.script(drafts=["one", "one\ntwo\nthree"], verdicts=grade)

    result = await served.client.result(
        await served.client.start(request(rubric="- three lines", grader={"model": MODEL, "tools": ["count_lines"]}))
    )

    assert (result.status, result.iterations) == ("satisfied", 2)
    assert [call.step for call in models.calls if call.role == "grader"] == [0, 1, 0, 1]


async def test_a_grader_that_is_bound_by_a_schema_answers_without_tags(served: WorkerProcess, models: ScriptedModels) -> None:
    bound = {"id": MODEL, "config": {"structured_output": True}}

    result = await served.client.result(await served.client.start(request(grader={"model": bound})))

    assert result.status == "satisfied"
    assert [call.tag is None for call in models.calls] == [True, True]


async def test_a_text_in_a_graders_place_is_sent_as_it_is(served: WorkerProcess, models: ScriptedModels) -> None:
    models.script(verdicts=["I like it."])

    result = await served.client.result(await served.client.start(request()))

    assert result.status == "grader_error"
    assert [call.step for call in models.calls if call.role == "grader"] == [0, 1, 2]


async def test_calls_that_fail_are_made_again(served: WorkerProcess, models: ScriptedModels) -> None:
    models.fail("generator", status=None)
    models.fail("grader", status=429, retry_after=0.1)

    result = await served.client.result(await served.client.start(request()))

    assert result.status == "satisfied"
    assert [call.role for call in models.calls] == ["generator", "generator", "grader", "grader"]


async def test_a_refused_key_ends_the_run(served: WorkerProcess, models: ScriptedModels) -> None:
    models.fail(status=401)

    result = await served.client.result(await served.client.start(request()))

    assert (result.status, len(models.calls)) == ("interrupted", 1)
    assert "status 401, as the test asked for" in str(result.error)


async def test_a_reply_that_raises_is_named_in_the_result(served: WorkerProcess, models: ScriptedModels) -> None:
    models.script(verdicts=[{"k9": "no such criterion"}])

    result = await served.client.result(await served.client.start(request()))

    assert result.status == "grader_error"
    assert "the grader is not asked for 'k9'; it is asked for k1, k2" in str(result.evaluations[-1].explanation)


async def test_a_judge_is_scripted_like_any_grader(served: WorkerProcess, models: ScriptedModels) -> None:
    models.script(verdicts=[{"k1": "it is Lyon"}])
    judge = Judge({"rubric": "- names the capital", "grader": {"model": MODEL}}, served.client.temporal, task_queue=served.queue)
    messages = [{"role": "user", "content": "Capital?"}, {"role": "assistant", "content": "Paris."}]

    result = await judge(AgentRun.model_validate({"id": "run-1", "transcripts": [{"messages": messages}]}))

    assert result.output["result"] == "needs_revision"
    assert models.calls[0].draft == "Paris."


async def test_a_call_waits_at_a_gate_until_it_is_opened(served: WorkerProcess, models: ScriptedModels) -> None:
    gate = models.gate("grader", iteration=0)
    thread = await served.client.start(request())

    await gate.reached()

    assert (await served.client.state(thread)).status == "running"

    gate.open()

    assert (await served.client.result(thread)).status == "satisfied"


@pytest.mark.slow
async def test_a_thread_outlives_its_workers(served: WorkerProcess, models: ScriptedModels) -> None:
    await served.kill()
    thread = await served.client.start(request())

    assert models.calls == ()

    await served.restart()
    await served.restart()

    assert (await served.client.result(thread)).status == "satisfied"


@pytest.mark.slow
async def test_a_worker_has_a_server_of_its_own_which_the_service_finds(models: ScriptedModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a real one")
    before = dict(os.environ)

    async with temporal_server() as server, worker(models, server=server) as served:
        async with GradingClient.connect(task_queue=served.queue) as client:
            result = await client.result(await client.start(request()))
        with pytest.raises(InvalidRequest, match="this client is closed"):
            await client.state(result.thread_id)

    assert result.status == "satisfied"
    assert dict(os.environ) == before
    with pytest.raises(InvalidRequest, match="this client is closed"):
        await served.client.state(result.thread_id)


@pytest.mark.slow
async def test_a_worker_that_cannot_serve_its_tools_says_why(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("import numpyx")

    with pytest.raises(InvalidRequest, match=r"tools\.py' does not import: .*numpyx"):
        async with worker(kit.models, tools=[tmp_path / "tools.py"], server=kit.server):
            pass


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="drafts is empty; give at least one reply"):
        ScriptedModels(drafts=[])
    with pytest.raises(InvalidRequest, match="the scripted models do not run; use them inside `with models:`"):
        _ = ScriptedModels().url


@pytest.mark.slow
def test_the_kit_loads_neither_pytest_nor_the_worker() -> None:
    script = "import sys, gradeloop.testing; print({'pytest', 'worker', 'workflows', 'activities'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
