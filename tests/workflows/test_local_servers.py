"""Runs and batches whose judge is a local server that nobody has described: it is asked, and what that costs is counted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from activities.providers import Providers
from activities.providers.environment import Environment
from activities.tools.registry import ToolRegistry
from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.contract.thread import RunResult
from gradeloop.settings.endpoints import CallCeilings
from gradeloop.settings.worker import WorkerSettings
from gradeloop.store.engine import Store
from tests.rig.batches import Batches
from tests.rig.local_servers import MODEL, LocalServer, serving
from tests.rig.threads import Served
from worker import build


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalServer]:
    monkeypatch.setattr("gradeloop.settings.catalog._facts", {})
    async with serving(LocalServer()) as running:
        yield running


@pytest.fixture
async def providers(server: LocalServer) -> AsyncIterator[Providers]:
    made = Providers(Environment.read({"GRADELOOP_BASE_URLS": server.url}))
    made.probe = True
    yield made
    await made.aclose()


def judge(server: LocalServer, **config: Any) -> dict[str, Any]:
    return {"model": {"id": f"openai_compatible:{MODEL}", "config": {"base_url": server.url, **config}}}


def forms(server: LocalServer) -> list[bool]:
    """Return for each call whether it was bound by a schema."""
    return ["response_format" in body for body in server.chats]


@pytest.mark.parametrize(("config", "calls", "bound"), [({}, 2, [False, True, True]), ({"structured_output": True}, 1, [False, True])])
async def test_a_verdict_is_bound_by_the_schema_that_its_server_enforces_and_the_trial_is_paid_for(
    client: Client, server: LocalServer, providers: Providers, config: dict[str, Any], calls: int, bound: list[bool]
) -> None:
    queue = f"local-{uuid4()}"
    spec = judge(server, **config)
    request = {"messages": [{"role": "user", "content": "hi"}], "rubric": "- it is good", "generator": spec, "grader": spec}
    async with build(client, providers, ToolRegistry(), WorkerSettings(task_queue=queue)):
        result: RunResult = await Served(client, queue, providers).run(request | {"max_iterations": 1})  # type: ignore[arg-type]  # it only starts threads

    assert forms(server) == bound
    assert (result.evaluations[0].usage.calls, result.evaluations[0].usage.attempts) == (calls, calls)
    assert result.usage.calls == len(server.chats)


async def batch(
    client: Client, server: LocalServer, providers: Providers, folder: Path, count: int, settings: dict[str, Any], **more: Any
) -> tuple[BatchSummary, list[CaseResult]]:
    """Run a batch of cases whose judge is the server."""
    cases = [{"id": f"c{at}", "output": f"An output {at}.", "rubric": "- it is good", "grader": judge(server)} for at in range(count)]
    queue, store = f"local-{uuid4()}", Store(f"sqlite:///{folder / 'results.db'}")
    async with build(client, providers, ToolRegistry(), WorkerSettings(task_queue=queue, **settings), store=store):
        found = await Batches(client, Served(client, queue, providers), store).run(cases, **more)  # type: ignore[arg-type]  # it only starts workflows
    store.close()
    return found


@pytest.mark.slow
async def test_the_trial_of_a_batch_is_counted_once_in_one_of_its_cases(
    client: Client, server: LocalServer, providers: Providers, tmp_path: Path
) -> None:
    summary, results = await batch(client, server, providers, tmp_path, 5, {})

    assert [result.status for result in results] == ["passed"] * 5
    assert (len(server.chats), forms(server)) == (6, [True] * 6)
    assert sum(result.usage.calls for result in results) == summary.usage.calls == 6
    assert max(result.usage.calls for result in results) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "more", "seen"),
    [
        ({}, {}, range(2, 4)),
        ({}, {"at_once": 8}, range(4, 9)),
        ({"limits": {"openai_compatible": CallCeilings(concurrency=6)}}, {}, range(4, 7)),
    ],
)
async def test_no_more_calls_are_in_flight_than_a_local_server_has_slots_unless_batch_or_settings_say_how_many(
    client: Client,
    server: LocalServer,
    providers: Providers,
    tmp_path: Path,
    settings: dict[str, Any],
    more: dict[str, Any],
    seen: range,
) -> None:
    server.wait = 0.3

    _, results = await batch(client, server, providers, tmp_path, 12, settings, **more)

    assert [result.status for result in results] == ["passed"] * 12
    assert server.at_once in seen
