"""Recorded judgements replay on today's workflow code.

Those that are missing are recorded with `GRADELOOP_RECORD_HISTORIES=1 pytest tests/workflows/test_replay_judging.py`; the others stay as
they are.
"""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from gradeloop.temporal.server import ServerInfo
from tests.rig.judging import FRANCE, MATCH, NO_MATCH, PARIS, answers, fails
from tests.rig.threads import Reply, row, serving, verdict
from tests.workflows.test_replay import without_traces
from workflows import RUNNER
from workflows.judging import JudgingWorkflow

FOLDER = Path(__file__).parents[1] / "histories" / "judging"
RECORDING = bool(os.environ.get("GRADELOOP_RECORD_HISTORIES"))


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


GRADER = {"model": "scripted:judge"}
TWO = {"n_rollouts_per_input": 2}
THREE = {"n_rollouts_per_input": 3}
ONE_OF_THREE = (answers(MATCH), *(answers("nothing", at, step=step) for at in (1, 2) for step in range(3)))
LONG = {"id": "long", "transcripts": [{"messages": [{"role": "user", "content": "word " * 14_000}]}]}
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
        tuple({"role": "grader", "sample": at, "verdict": verdict(row("c2"))} for at in range(2)),
        "DIRECT_RESULT",
    ),
    "refused": Story({"rubric_text": ""}, (), "InvalidRequest"),
}


async def history_of(client: Client, name: str) -> WorkflowHistory:
    """Run a story and return its history."""
    story = STORIES[name]
    async with serving(client, *story.replies, tools=[look, is_short]) as served:
        argument = {"judge": story.judge, "run": story.run or PARIS}
        handle = await client.start_workflow("Judging", argument, id=f"recorded-judging-{name}", task_queue=served.task_queue)
        await asyncio.wait([asyncio.create_task(handle.result())], timeout=30)
        return await client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id).fetch_history()


def replayer() -> Replayer:
    """Return a replayer that loads the workflow anew in Temporal's sandbox."""
    return Replayer(workflows=[JudgingWorkflow], workflow_runner=RUNNER, data_converter=pydantic_data_converter)


def ending(history: WorkflowHistory) -> str:
    """Return how the judgement ended."""
    last = history.events[-1]
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
        return last.workflow_execution_failed_event_attributes.failure.application_failure_info.type
    return str(json.loads(last.workflow_execution_completed_event_attributes.result.payloads[0].data)["result_type"])


@pytest.fixture(scope="module", autouse=True)
async def recordings(temporal_server: ServerInfo) -> None:
    """Record the stories that have no recording, where that was asked for; the recordings name no machine."""
    missing = [name for name in STORIES if RECORDING and not (FOLDER / f"{name}.json").exists()]
    client = await Client.connect(temporal_server.address, identity="recorder", data_converter=pydantic_data_converter) if missing else None
    for name in missing if client else ():
        assert client is not None
        text = json.dumps(without_traces((await history_of(client, name)).to_json_dict()), indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.json").write_text(text + "\n")


def test_every_story_is_recorded_and_nothing_else() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(STORIES)


@pytest.mark.parametrize("name", sorted(STORIES))
async def test_a_recorded_judgement_replays(name: str) -> None:
    history = WorkflowHistory.from_json(f"recorded-{name}", (FOLDER / f"{name}.json").read_text())

    assert ending(history) == STORIES[name].ends
    assert (await replayer().replay_workflow(history)).replay_failure is None


@pytest.mark.slow
async def test_what_judges_do_today_replays_too(client: Client) -> None:
    histories = await asyncio.gather(*(history_of(client, name) for name in STORIES))

    assert [ending(history) for history in histories] == [story.ends for story in STORIES.values()]
    for history in histories:
        await replayer().replay_workflow(history)


async def test_another_order_of_calls_is_found_out() -> None:
    text = (FOLDER / "answered.json").read_text().replace('"name": "judge"', '"name": "grade"')

    with pytest.raises(NondeterminismError):
        await replayer().replay_workflow(WorkflowHistory.from_json("changed", text))
