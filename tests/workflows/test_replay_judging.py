"""Recorded judgements replay on today's workflow code; `make histories` records them."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from gradeloop.temporal.server import ServerInfo
from tests.rig.histories import FOLDER as HISTORIES
from tests.rig.histories import KILLED, attempts, differences, keep, missing, mortal, read, recorder
from tests.rig.judging import FRANCE, MATCH, NO_MATCH, PARIS, answers, fails
from tests.rig.threads import SECONDS, Reply, row, serving, verdict
from workflows import RUNNER
from workflows.batches.judging import JudgingWorkflow

FOLDER = HISTORIES / "judging"


def look(at: str) -> str:
    """Look at something."""
    return f"seen {at}"


def is_short(draft: str) -> bool:
    """Say whether the draft is short."""
    return len(draft) < 100


@dataclass(frozen=True)
class Story:
    """A judgement that is recorded."""

    judge: dict[str, Any]
    replies: tuple[Reply, ...]
    ends: str
    run: dict[str, Any] | None = None
    more: dict[str, Any] = field(default_factory=dict)


GRADER = {"model": "scripted:judge"}
TWO = {"n_rollouts_per_input": 2}
THREE = {"n_rollouts_per_input": 3}
ONE_OF_THREE = (answers(MATCH), *(answers("nothing", at, step=step) for at in (1, 2) for step in range(3)))
LONG = {"id": "long", "transcripts": [{"messages": [{"role": "assistant", "content": "word " * 14_000}]}]}
CALLS = {"role": "grader", "tool_calls": [{"name": "look", "arguments": {"at": "x"}}]}
CHECKED = {"criteria": [{"description": "short", "check": "is_short"}, {"description": "good", "votes": 2}]}

STORIES = {
    "answered": Story(FRANCE, (answers(MATCH),), "DIRECT_RESULT"),
    "mended": Story(FRANCE, (answers("nothing"), answers(MATCH, step=1)), "DIRECT_RESULT"),
    "invalid": Story(FRANCE, tuple(answers("nothing", step=step) for step in range(3)), "FAILURE"),
    "unavailable": Story(FRANCE, (fails(),), "JudgeUnavailable"),
    "voted": Story(FRANCE | THREE, (answers(MATCH), fails(sample=1), answers(NO_MATCH, 2)), "DIRECT_RESULT"),
    "one_goes_ahead": Story(FRANCE | TWO, (answers(MATCH), answers(MATCH, 1)), "DIRECT_RESULT", LONG),
    "reflected": Story(
        FRANCE | TWO | {"judge_variant": "multi-reflect"},
        tuple(answers(MATCH if at else NO_MATCH, at, iteration=stage) for stage in range(2) for at in range(2)),
        "DIRECT_RESULT",
    ),
    "no_quorum": Story(FRANCE | THREE, ONE_OF_THREE, "FAILURE"),
    "nobody_named": Story({"rubric_text": "r"}, (), "JudgeUnavailable"),
    "criteria": Story({"rubric": "- x", "grader": GRADER}, ({"role": "grader", "verdict": verdict(row("c1"))},), "DIRECT_RESULT"),
    "criteria_with_tools": Story(
        {"rubric": "- x", "grader": GRADER | {"tools": ["look"]}},
        (CALLS, {"role": "grader", "step": 1, "verdict": verdict(row("c1"))}),
        "DIRECT_RESULT",
    ),
    "criteria_with_checks_and_votes": Story(
        {"rubric": CHECKED, "grader": GRADER},
        tuple({"role": "grader", "sample": at, "verdict": verdict(row("k1"))} for at in range(2)),
        "DIRECT_RESULT",
    ),
    "until_decided": Story(
        {"rubric": {"criteria": [{"description": "good", "votes": 5}]}, "grader": GRADER},
        tuple({"role": "grader", "sample": at, "verdict": verdict(row("c1", "no" if at == 1 else None))} for at in range(5)),
        "DIRECT_RESULT",
        more={"until_decided": True},
    ),
    "rollouts_until_decided": Story(
        FRANCE | {"n_rollouts_per_input": 5},
        tuple(answers(NO_MATCH if at == 1 else MATCH, at) for at in range(5)),
        "DIRECT_RESULT",
        more={"until_decided": True},
    ),
    "refused": Story({"rubric_text": ""}, (), "InvalidRequest"),
}

ENDINGS = {name: story.ends for name, story in STORIES.items()} | {KILLED: "DIRECT_RESULT"}


async def history_of(client: Client, name: str) -> WorkflowHistory:
    """Run a story and return its history."""
    story = STORIES[name]
    async with serving(client, *story.replies, tools=[look, is_short]) as served:
        argument = {"judge": story.judge, "run": story.run or PARIS} | story.more
        handle = await client.start_workflow("Judging", argument, id=f"recorded-judging-{name}", task_queue=served.task_queue)
        await asyncio.wait([asyncio.create_task(handle.result())], timeout=SECONDS)
        return await client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id).fetch_history()


async def history_of_a_killed_worker(folder: Path) -> WorkflowHistory:
    """Run a judgement whose worker is killed while two votes are asked for, and return its history."""
    async with mortal(folder) as stage:
        rubric = {"criteria": [{"description": "good", "votes": 2}]}
        said = [{"role": "user", "content": "Write."}, {"role": "assistant", "content": "draft 1 of it"}]
        run = {"id": "run", "transcripts": [{"messages": said}]}
        judge = {"rubric": rubric, "grader": {"model": stage.models.model("grader", "votes")}}
        judgement = await stage.start("Judging", {"judge": judge, "run": run})
        await stage.die_in(("votes", "grader 1"), times=2)
        await judgement.result()
        return await judgement.fetch_history()


def ending(history: WorkflowHistory) -> str:
    """Return how the judgement ended."""
    last = history.events[-1]
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
        return last.workflow_execution_failed_event_attributes.failure.application_failure_info.type
    return str(json.loads(last.workflow_execution_completed_event_attributes.result.payloads[0].data)["result_type"])


@pytest.fixture(scope="module", autouse=True)
async def recordings(temporal_server: ServerInfo, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Record the stories that have no recording, where that was asked for; the recordings name no machine."""
    client = await recorder(temporal_server.address)
    for name in missing(FOLDER, ENDINGS):
        recording = history_of_a_killed_worker(tmp_path_factory.mktemp(name)) if name == KILLED else history_of(client, name)
        keep(FOLDER / f"{name}.json", await recording)


def recorded(name: str) -> WorkflowHistory:
    """Return a story's recorded history."""
    return read(FOLDER / f"{name}.json")[""]


def test_every_story_is_recorded_and_nothing_else() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(ENDINGS)


async def test_every_recorded_judgement_replays() -> None:
    histories = {name: recorded(name) for name in ENDINGS}

    assert {name: ending(history) for name, history in histories.items()} == ENDINGS
    assert await differences([JudgingWorkflow], histories) == {}


@pytest.mark.slow
async def test_every_recorded_judgement_replays_in_temporals_sandbox() -> None:
    assert await differences([JudgingWorkflow], {name: recorded(name) for name in ENDINGS}, RUNNER) == {}


def test_the_worker_was_killed_in_both_calls() -> None:
    assert attempts(recorded(KILLED)) == [2, 2]


@pytest.mark.slow
async def test_what_judges_do_today_replays_too(client: Client) -> None:
    histories = dict(zip(STORIES, await asyncio.gather(*(history_of(client, name) for name in STORIES)), strict=True))

    assert {name: ending(history) for name, history in histories.items()} == {name: story.ends for name, story in STORIES.items()}
    assert await differences([JudgingWorkflow], histories, RUNNER) == {}


async def test_another_order_of_calls_is_found_out() -> None:
    text = (FOLDER / "answered.json").read_text().replace('"name": "judge"', '"name": "grade"')

    assert "Nondeterminism" in (await differences([JudgingWorkflow], {"changed": WorkflowHistory.from_json("changed", text)}))["changed"]
