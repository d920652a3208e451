"""Recorded batches, with their shards, uploads and cases, replay on today's workflow code; `make histories` records them."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHistory
from temporalio.worker import WorkflowRunner

from gradeloop.grading.templates import late_mark
from gradeloop.store.fleet import Fleet
from gradeloop.temporal.server import ServerInfo
from tests.rig.batches import JUDGE, batching, breaks, case, drafted, fails, passes
from tests.rig.histories import FOLDER as HISTORIES
from tests.rig.histories import KILLED, attempts, differences, keep, missing, mortal, read, recorder
from tests.rig.threads import Reply, row, verdict
from workflows import RUNNER
from workflows.batches import grading_batch
from workflows.batches.grading_batch import BatchShard, GradingBatchWorkflow, StoreCasesWorkflow
from workflows.batches.judging import JudgingWorkflow
from workflows.grading_thread import GradingThreadWorkflow

FOLDER = HISTORIES / "batches"
ROLLED_EVENTS = 15
"""Of a history, above which the story `rolled` goes on in a new run."""


@dataclass(frozen=True)
class Story:
    """A batch that is recorded."""

    cases: tuple[dict[str, Any], ...]
    replies: tuple[Reply, ...]
    request: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the worker."""


TWO_GROUPS = {"criteria": ["it is good", {"description": "it is short", "grader": "scripted:other", "votes": 2}]}
VOTES = tuple({"role": "grader", "group": 1, "sample": at, "verdict": verdict(row("k1"))} for at in range(2))
REVISED = ({"role": "generator", "text": "a"}, {"role": "generator", "iteration": 1, "text": "b"}, fails(), passes(iteration=1))
AWAY = (breaks(kind="overloaded"), breaks(kind="overloaded", role="generator"))

STORIES = {
    "graded": Story((case("a"), case("b"), case("c")), (passes(), fails("of b."), breaks("of c."))),
    "drafted_and_mended": Story((drafted("a"),), ({"role": "generator", "text": "x"}, {"role": "grader", "text": "?"}, passes(step=1))),
    "in_groups_with_votes": Story((case("a", rubric=TWO_GROUPS),), (passes(), *VOTES)),
    "looped": Story((drafted("a", loop=True),), REVISED),
    "looped_over_budget": Story(
        (drafted("a", loop=True), drafted("b", loop=True)),
        ({"role": "generator", "text": "a", "usage": {"input": 9}}, passes()),
        {"budget": {"max_tokens": 5}, "at_once": 1},
    ),
    "with_tools": Story(
        (case("a", grader=JUDGE | {"tools": ["word_count"]}),),
        ({"role": "grader", "tool_calls": [{"name": "word_count"}]}, passes(step=1)),
    ),
    "paused": Story(tuple(case(f"c{at}") for at in range(6)), (breaks(),), {"max_errors": 2, "at_once": 1}),
    "refused": Story((case("a"),), (passes(),), {"total": 2}),
    "provider_away": Story((case("a"), drafted("b", loop=True)), AWAY, {"at_once": 2}, {"outage_timeout": 0.3}),
    "told_of_its_end": Story((case("a"),), (passes(),), settings={"notify": {"ops": {"url": "https://192.0.2.1/hook"}}}),
    "resized": Story(tuple(case(f"c{at}") for at in range(12)), (passes("of c11.", delay=1), passes(delay=0.1)), {"at_once": 50}),
    "in_turn": Story(
        (drafted("a"), drafted("b", description=f"after {late_mark('draft/0')}", follows={"draft/0": "a"}), case("c")),
        ({"role": "generator", "text": "x"}, passes()),
    ),
    "decided_early": Story(
        tuple(case(f"c{at}") for at in range(40)), (passes(),), {"until_decided": {"risk": 0.2}, "pass_rate": 0.5, "at_once": 2}
    ),
    "decided_by_fewer_votes": Story(
        (case("a", rubric={"criteria": [{"description": "good", "votes": 5}]}),),
        tuple({"role": "grader", "sample": at, "verdict": verdict(row("c1", "no" if at == 1 else None))} for at in range(5)),
        {"until_decided": {"risk": 0.2}},
    ),
    "rolled": Story(tuple(case(f"c{at}") for at in range(6)), (passes(),), {"at_once": 2}),
}

CASES = {KILLED: 2, "looped": 1, "looped_over_budget": 1, "with_tools": 1, "provider_away": 1}
"""How many cases of a story have a workflow of their own."""


async def histories_of(client: Client, folder: Path, name: str) -> dict[str, WorkflowHistory]:
    """Run a story and return the histories of its workflows."""
    story, batch_id = STORIES[name], f"recorded-batch-{name}"
    with pytest.MonkeyPatch.context() as patch:
        if name == "rolled":
            patch.setattr("gradeloop.batches.store.SHARD_CASES", 2)
            patch.setattr(grading_batch, "EVENTS", ROLLED_EVENTS)
        if name == "resized":  # two shards, of which one hears that the other has ended, and workers that leave and come back
            slots = chain([80], [4] * 4, repeat(80))
            patch.setattr("gradeloop.batches.store.SHARD_CASES", 6)
            patch.setattr(Fleet, "slots", property(lambda _fleet: next(slots)))
        async with batching(client, folder, *story.replies, **story.settings) as batches:
            await batches.upload(batch_id, story.cases)
            with suppress(WorkflowFailureError):
                await (await batches.start(batch_id, **({"total": len(story.cases)} | story.request))).result()
    return await histories_by_kind(client, batch_id)


async def history_of_a_killed_worker(folder: Path) -> dict[str, WorkflowHistory]:
    """Run a batch whose worker is killed while an output is judged, a thread drafts, and a grader with tools is asked."""
    async with mortal(folder) as stage:

        def judged(name: str, **more: Any) -> dict[str, Any]:
            return case(name, f"draft 1 of {name}", grader={"model": stage.models.model("grader", name)} | more)

        loop = stage.models.request("loop", id="loop", messages=[{"role": "user", "content": "Write."}], loop=True)
        cases = [judged("plain"), loop, judged("tools", tools=["look"])]
        upload = {"batch_id": stage.id, "first": 0, "cases": cases}
        await (await stage.start("StoreCases", upload, id=f"store/{stage.id}")).result()
        batch = await stage.start("GradingBatch", {"batch_id": stage.id, "total": 3})
        await stage.die_in(("plain", "grader 1"), ("loop", "generator 0"), ("tools", "grader 1"))
        await batch.result()
        return await histories_by_kind(stage.client, stage.id)


async def histories_by_kind(client: Client, batch_id: str) -> dict[str, WorkflowHistory]:
    """Return the histories of a batch's workflows, by kind and number."""
    prefixes, found = {"shard": "shard/", "upload": "store/", "batch": "", "case": ""}, {}
    for kind, prefix in prefixes.items():
        name = f"{prefix}{batch_id}" + ("/" if kind == "case" else "")
        query = f"WorkflowId = '{name}'" if kind == "batch" else f"WorkflowId STARTS_WITH '{name}'"
        listed = sorted([workflow async for workflow in client.list_workflows(query)], key=lambda workflow: workflow.start_time)
        for number, execution in enumerate(listed):
            found[f"{kind} {number}"] = await client.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history()
    return found


@pytest.fixture(scope="module", autouse=True)
async def recordings(temporal_server: ServerInfo, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Record the stories that have no recording, where that was asked for; the recordings name no machine."""
    client = await recorder(temporal_server.address)
    for name in missing(FOLDER, [*STORIES, KILLED]):
        folder = tmp_path_factory.mktemp(name)
        keep(FOLDER / f"{name}.json", await (history_of_a_killed_worker(folder) if name == KILLED else histories_of(client, folder, name)))


def recorded(name: str) -> dict[str, WorkflowHistory]:
    """Return a story's recorded histories."""
    return read(FOLDER / f"{name}.json")


async def differences_of(stories: Mapping[str, Mapping[str, WorkflowHistory]], runner: WorkflowRunner | None = None) -> dict[str, str]:
    """Replay the histories of stories, and return why those differ that do; a story with a limit of its own knows no sandbox."""
    workflows = [GradingBatchWorkflow, BatchShard, StoreCasesWorkflow, GradingThreadWorkflow, JudgingWorkflow]
    named = {f"{name}: {kind}": history for name, histories in stories.items() for kind, history in histories.items()}
    rolled = {name: history for name, history in named.items() if name.startswith("rolled: ")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grading_batch, "EVENTS", ROLLED_EVENTS)
        found = await differences(workflows, rolled)
    return found | await differences(workflows, {name: named[name] for name in named.keys() - rolled.keys()}, runner)


def test_every_story_is_recorded_and_nothing_else() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted([*STORIES, KILLED])


async def test_every_recorded_batch_replays() -> None:
    stories = {name: recorded(name) for name in (*STORIES, KILLED)}

    assert [name for name, histories in stories.items() if not {"batch 0", "upload 0"} <= histories.keys()] == []
    assert [name for name, histories in stories.items() if "shard 0" not in histories] == ["refused"]
    cases = {name: sum(kind.startswith("case ") for kind in histories) for name, histories in stories.items()}
    assert {name: count for name, count in cases.items() if count} == CASES
    assert await differences_of(stories) == {}


@pytest.mark.slow
async def test_every_recorded_batch_replays_in_temporals_sandbox() -> None:
    assert await differences_of({name: recorded(name) for name in (*STORIES, KILLED)}, RUNNER) == {}


def test_the_worker_was_killed_in_a_call_of_each_kind() -> None:
    histories = recorded(KILLED)

    assert [max(attempts(histories[kind])) for kind in ("batch 0", "shard 0", "case 0", "case 1")] == [1, 2, 2, 2]


def made(folder: Path) -> Path:
    """Make a folder."""
    folder.mkdir()
    return folder


@pytest.mark.slow
async def test_what_batches_do_today_replays_too(client: Client, tmp_path: Path) -> None:
    names = ("graded", "in_groups_with_votes", "looped", "rolled")  # the others have no call that these have not

    assert await differences_of({name: await histories_of(client, made(tmp_path / name), name) for name in names}, RUNNER) == {}


async def test_another_order_of_calls_is_found_out() -> None:
    text = (FOLDER / "graded.json").read_text().replace('"name": "grade_case"', '"name": "fail_case"')
    shard = WorkflowHistory.from_json("changed", json.loads(text)["shard 0"])

    assert "Nondeterminism" in (await differences_of({"graded": {"shard": shard}}))["graded: shard"]
