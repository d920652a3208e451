"""Recorded histories replay on today's workflow code, so a deploy breaks no thread that is in flight; `make histories` records them."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Worker

from activities.tools.registry import ToolRegistry
from gradeloop.contract.messages import Usage
from gradeloop.contract.thread import RunResult
from gradeloop.settings.worker import WorkerSettings
from gradeloop.temporal import server as embedded
from gradeloop.temporal.server import ServerInfo
from tests.rig.histories import FOLDER, KILLED, attempts, differences, keep, missing, mortal, read, recorder
from tests.rig.threads import SECONDS, Gate, Models, Reply, Served, Thread, draft, grade, page, request, row, says, serving, until, wants
from tests.rig.webhooks import hooked
from worker import build
from workflows import RUNNER, thread_rules
from workflows.grading_thread import GradingThreadWorkflow

HAIKU_MESSAGES = [{"role": "user", "content": "Write a haiku about spring."}]
HAIKU = "# Form\n- three lines\n- spring"
TWO_LINES = (row("c1", "it has two"), row("c2"))
BOTH = (row("c1"), row("c2"))


def look(at: str) -> str:
    """Look at something."""
    return f"seen {at}"


def run_test_suite(draft: str) -> dict[str, object]:
    """Pass from the second draft on."""
    return {"ok": "draft 0" not in draft, "failed": "test_unhashable"}


def broken_suite(draft: str) -> bool:
    """Break."""
    raise ConnectionError("the test database is down")


async def interrupted_twice(served: Served, thread: Thread) -> None:
    """Stop a draft and then a grading, and go on each time."""
    first, second = served.models.gate("generator", 1), served.models.gate("grader", 1)
    await _stopped(thread, first)
    resumed = asyncio.create_task(thread.execute_update("resume", result_type=RunResult))
    await _stopped(thread, second)
    await resumed
    await thread.execute_update("resume", result_type=RunResult)


async def _stopped(thread: Thread, gate: Gate) -> None:
    await gate.reached.wait()
    await thread.signal("interrupt")
    await until(thread, "interrupted")
    gate.opened.set()


async def steered_by_updates(served: Served, thread: Thread) -> None:
    """Supply another rubric and interrupt, by the updates that say what they did, and go on."""
    served.models.hold("grader")
    await served.models.called("grader", 1)
    supplied = await thread.execute_update("supply_rubric", "- it greets", result_type=dict)
    await served.models.called("grader", 2)
    stopped = await thread.execute_update("interrupt", result_type=dict)
    served.models.release()
    assert (supplied["in_force"], stopped["interrupted"]) == (False, True)
    assert await thread.execute_update("interrupt", result_type=dict) | {"interrupted": True, "phase": "grading"} == stopped
    await thread.execute_update("resume", result_type=RunResult)


async def cleared_and_stopped(served: Served, thread: Thread) -> None:
    """Clear the rubric while the first draft is written, and interrupt the run as the draft comes."""
    gate = served.models.gate("generator", 0)
    await gate.reached.wait()
    await thread.signal("supply_rubric", {"criteria": []})
    await thread.signal("interrupt")
    asked = EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED
    while not any(event.event_type == asked for event in (await thread.fetch_history()).events):
        await asyncio.sleep(0.01)
    gate.opened.set()


async def asked_for_again(served: Served, thread: Thread) -> None:
    """Send a turn that waits again, while an interrupt that would drop it stops the run."""
    served.models.hold("generator")
    await served.models.called("generator", 1)
    more = {"messages": [{"role": "user", "content": "more"}], "key": "more"}
    turns = [asyncio.create_task(thread.execute_update("invoke", more, result_type=RunResult))]
    while not (await thread.query("state"))["queued"]:
        await asyncio.sleep(0.02)
    await thread.signal("interrupt")
    turns.append(asyncio.create_task(thread.execute_update("invoke", more, result_type=RunResult)))
    await served.models.called("generator", 2)
    served.models.release()
    assert {result.status for result in await asyncio.gather(*turns)} == {"satisfied"}


async def overridden_in_a_later_turn(served: Served, thread: Thread) -> None:
    """End the run of an interrupted draft while a later turn drafts, which then has a run of its own."""
    await _stopped(thread, served.models.gate("generator", 1))
    served.models.hold("generator")
    more = {"messages": [{"role": "user", "content": "more"}]}
    turn = asyncio.create_task(thread.execute_update("invoke", more, result_type=RunResult))
    await served.models.called("generator", 3)
    await overridden(served, thread)
    served.models.release()
    await turn


async def superseded(served: Served, thread: Thread) -> None:
    """Supply another rubric while the first draft is graded."""
    gate = served.models.gate("grader", 0)
    await gate.reached.wait()
    await thread.signal("supply_rubric", "- it greets")
    while (await thread.query("state"))["rubric"]["criteria"][0]["description"] != "it greets":
        await asyncio.sleep(0.02)
    gate.opened.set()


async def out_of_budget(served: Served, thread: Thread) -> None:
    """Go on with a larger budget."""
    assert (await until(thread, "interrupted"))["reason"] == "budget"
    await thread.execute_update("resume", {"budget": {"max_tokens": 1000}}, result_type=RunResult)


async def cut_short(served: Served, thread: Thread) -> None:
    """Cut the first verdict."""
    served.models.fail_first("grader", kind="truncated", raisable=True, usage=Usage(output=9, calls=1, attempts=1))


async def asked_again(served: Served, thread: Thread) -> None:
    """Sell two gradings that are none: go on after an interrupt in the first pause, and wait for the end of the second."""
    served.models.fail_first("grader", times=2, kind="malformed_response", usage=Usage(output=9, calls=1, attempts=1))
    while (await thread.query("state"))["usage"]["calls"] < 2:
        await asyncio.sleep(0.02)
    await thread.signal("interrupt")
    await until(thread, "interrupted")
    await thread.execute_update("resume", result_type=RunResult)


async def drafted_elsewhere(served: Served, thread: Thread, queue: str = "their-queue") -> None:
    """Serve the drafts of somebody else."""

    @activity.defn(name="their_draft")
    async def their_draft(asked: dict[str, Any]) -> str:
        return f"draft {asked['iteration']}"

    async with Worker(served.temporal, task_queue=queue, activities=[their_draft]):
        await thread.result()


async def decided(served: Served, thread: Thread) -> None:
    """Say yes, as the person who is waited for."""
    asked = (await until(thread, "waiting"))["waiting_for"]
    place = {"grading_run_id": asked["grading_run_id"], "iteration": asked["iteration"], "criterion": asked["criteria"][0]["id"]}
    await thread.execute_update("decide", place | {"passed": True, "by": "ann"})


async def approved(served: Served, thread: Thread) -> None:
    """Let one call of the generator's go on, and deny one of the grader's."""
    asked = (await until(thread, "waiting"))["waiting_for"]["calls"]
    await thread.execute_update("approve", {"call": asked[0]["call"], "by": "ann"})
    while (now := (await until(thread, "waiting"))["waiting_for"]["calls"]) == asked:
        await asyncio.sleep(0.02)
    await thread.execute_update("deny", {"call": now[0]["call"], "by": "ann", "why": "no"})


async def looked_up_elsewhere(served: Served, thread: Thread) -> None:
    """Serve somebody else's tool."""

    @activity.defn(name="their_tool")
    async def their_tool(asked: dict[str, Any]) -> Any:
        return {"ok": True, "word": asked["arguments"].get("word")}

    async with Worker(served.temporal, task_queue=THEIR_TOOLS, activities=[their_tool]):
        await thread.result()


async def resumed(served: Served, thread: Thread) -> None:
    """Go on with a run that a checkpoint left in the middle of its checks."""
    await thread.execute_update("resume", result_type=RunResult)


async def overridden(served: Served, thread: Thread) -> None:
    """Overrule the first verdict while the second draft is written."""
    gate = served.models.gate("generator", 1)
    await gate.reached.wait()
    (judged,) = (await page(thread, "evaluations"))["items"]
    place = {"grading_run_id": judged["grading_run_id"], "iteration": 0, "criterion": "c1"}
    await thread.execute_update("override", place | {"passed": True, "why": "it has three", "by": "ann"}, result_type=dict)
    gate.opened.set()


async def edited(served: Served, thread: Thread) -> None:
    """Grade again by the same rubric but for one criterion."""
    await until(thread, "idle")
    rubric = EACH | {"criteria": ["three lines", "{{ season }}, or its end"]}
    await thread.execute_update("invoke", {"rubric": rubric}, result_type=RunResult)
    await thread.signal("close")


async def edited_check(served: Served, thread: Thread) -> None:
    """Grade again by the same rubric but for its check."""
    await until(thread, "idle")
    await thread.execute_update("invoke", {"rubric": beside_a_check("every test passes")}, result_type=RunResult)
    await thread.signal("close")


async def graded_again(served: Served, thread: Thread) -> None:
    """Have the last draft graded again, by the verdict that there is, and close."""
    await until(thread, "idle")
    await thread.execute_update("invoke", {}, result_type=RunResult)
    await thread.signal("close")


async def dismissed(served: Served, thread: Thread) -> None:
    """Cancel while the first draft is written and another turn waits."""
    await served.models.gate("generator", 0).reached.wait()
    another = {"messages": [{"role": "user", "content": "Now one about autumn."}]}
    queued = asyncio.create_task(thread.execute_update("invoke", another, result_type=RunResult))
    while (await thread.query("state"))["queued"] == 0:
        await asyncio.sleep(0.02)
    await thread.cancel()
    assert (await queued).status == "interrupted"


async def supplied_while_idle(served: Served, thread: Thread) -> None:
    """Have the last draft judged by another rubric, and close."""
    await until(thread, "idle")
    await thread.signal("supply_rubric", "- it greets")
    while (await page(thread, "evaluations"))["total"] < 2:
        await asyncio.sleep(0.02)
    await thread.signal("close")


async def left_while_waiting(served: Served, thread: Thread) -> None:
    """Interrupt what waits for a person, resume it, and cancel it while another turn waits behind it."""
    await until(thread, "waiting")
    await thread.signal("interrupt")
    await until(thread, "interrupted")
    await thread.execute_update("resume", result_type=RunResult)
    queued = asyncio.create_task(thread.execute_update("invoke", {"messages": HAIKU_MESSAGES}, result_type=RunResult))
    while (await thread.query("state"))["queued"] == 0:
        await asyncio.sleep(0.02)
    await thread.cancel()
    assert (await queued).status == "interrupted"


async def judged_otherwise(served: Served, thread: Thread) -> None:
    """Stop the first draft, and go on under another rubric."""
    gate = served.models.gate("generator", 0)
    await _stopped(thread, gate)
    await thread.execute_update("invoke", {"rubric": "- it greets"}, result_type=RunResult)


@dataclass(frozen=True)
class Story:
    """A thread that is recorded."""

    argument: dict[str, Any]
    replies: tuple[Reply, ...]
    status: str | None
    meanwhile: Callable[[Served, Thread], Awaitable[None]] | None = None
    signalled: object = None
    """A rubric that is supplied with the start."""
    told: bool = False
    """Whether the worker has a webhook, which takes its notice before the story goes on."""


def with_tools(argument: dict[str, Any], *tools: str) -> dict[str, Any]:
    """Return the request with the same tools for both models."""
    return argument | {role: argument[role] | {"tools": list(tools)} for role in ("generator", "grader")}


GONE = {"kind": "not_found", "message": "no such model"}


def spared(name: str, fallback: str) -> dict[str, Any]:
    """Return a scripted model with a fallback."""
    return {"id": f"scripted:{name}", "fallback": [f"scripted:{fallback}"]}


CANCELLED = "cancelled"
"""The ending of a story whose workflow is cancelled."""

CONTINUED = "continued_as_new"
"""The ending of a story that only a server tells which suggests a new run after few events."""

THEIRS, THEIR_TOOLS = "their-queue", "their-tools"

EACH = {"mode": "per_criterion", "criteria": ["three lines", "{{ season }}"]}
VOTED = {"criteria": [{"description": "three lines", "votes": 3}, {"description": "short", "grader": {"function": "judge"}}]}


def call(group: int, *rows: dict[str, Any], sample: int = 0, run: int = 0) -> Reply:
    """Return a grader's verdict in one of several calls of a pass."""
    placed = ({f"k{at}": fields} for at, row in enumerate(rows, 1) for fields in row.values())
    return grade(0, *placed) | {"group": group, "sample": sample, "run": run}


def booked(amount: int) -> str:
    """Book."""
    return f"booked {amount}"


booked.needs_approval = True  # type: ignore[attr-defined]
booked.repeatable = False  # type: ignore[attr-defined]

BOOKS = {"name": "booked", "arguments": {"amount": 5}}
ELSEWHERE = {"name": "their_look", "description": "Look.", "activity": "their_tool", "task_queue": THEIR_TOOLS, "repeatable": False}
WITH_CHECK = {"criteria": [{"description": "tests pass", "check": "run_test_suite"}, "readable"]}


def beside_a_check(what: str) -> dict[str, Any]:
    """Return a rubric with a criterion for the grader, and an optional one for a tool."""
    return {"criteria": [{"description": what, "check": "run_test_suite", "required": False}, "readable"]}


def left_in_the_checks() -> dict[str, Any]:
    """Return a request with the checkpoint of a thread that was stopped before its first check."""
    said = [{"role": "user", "content": "Write a haiku about spring."}, {"role": "assistant", "content": "draft 1"}]
    run = {"grading_run_id": "run-1", "ordinal": 0, "nonce": "0" * 32, "max_iterations": 3, "grading": {"draft": 1}}
    argument = request(WITH_CHECK)
    thread = {key: argument[key] for key in ("generator", "grader", "rubric")} | {"thread_id": "t", "max_iterations": 3, "log": said}
    thread |= {"run": run, "runs": 1, "status": "interrupted", "reason": "person"}
    checkpoint = {"temporal_run_id": "before", "thread": thread}
    return {key: argument[key] for key in ("generator", "grader")} | {"checkpoint": checkpoint}


def cleared_in_the_checks() -> dict[str, Any]:
    """Return a request with the checkpoint of a thread whose rubric was to be cleared, and with that rubric again."""
    argument = left_in_the_checks()
    argument["checkpoint"]["thread"] |= {"supplied": {"criteria": []}, "status": "running", "reason": None}
    return argument | {"rubric": WITH_CHECK}


def forked(**changed: Any) -> dict[str, Any]:
    """Return a request with the checkpoint of the first iteration of a thread, whose draft got feedback."""
    argument = left_in_the_checks()
    judged = {"grading_run_id": "run-1", "iteration": 0, "result": "needs_revision", "status": "running", "explanation": "no", "draft": 1}
    thread = argument["checkpoint"]["thread"] | {"rubric": HAIKU, "evaluations": [judged], "events": []}
    thread["run"] = {name: value for name, value in thread["run"].items() if name != "grading"}
    thread["forked_from"] = {"thread_id": "t", "grading_run_id": "run-1", "iteration": 0}
    feedback = {"role": "user", "content": "Revise it.", "name": "rubric_grader", "source": "rubric_grader"}
    return argument | {"checkpoint": {"temporal_run_id": "before", "fork": {"feedback": feedback}, "thread": thread}} | changed


def judge(asked: dict[str, Any]) -> dict[str, Any]:
    """Judge."""
    return {"passed": len(asked["draft"]) < 100, "reason": "counted", "metadata": {"characters": len(asked["draft"])}}


QUERIES = ("state", "result", "messages", "evaluations", "events", "checkpoint", "brief")

LOOKS = ({"name": "look", "arguments": {"at": "x"}}, {"name": "look", "arguments": {}}, "nothing")
MISSING = [grade(0, row("c1", "it has two"), step=step) for step in range(3)]
NOTHING = '{"unjudgeable": ""}'
REVISED = (draft(), grade(0, *TWO_LINES), draft(1), grade(1, *BOTH))

STORIES = {
    "ungraded": Story(request(), (draft(),), None),
    "satisfied": Story(request(HAIKU), REVISED, "satisfied"),
    "of_a_tenant": Story(request(HAIKU, priority={"tenant": "acme's ä"}), REVISED, "satisfied"),
    "capped": Story(request(HAIKU, max_iterations=2), (*REVISED[:3], grade(1, *TWO_LINES)), "max_iterations_reached"),
    "failed": Story(request(HAIKU), (draft(), grade(unjudgeable="it contradicts itself")), "failed"),
    "grader_error": Story(request(HAIKU), (draft(), *(says("{}", step=step) for step in range(3))), "grader_error"),
    "unverified": Story(request(HAIKU), (draft(), *MISSING, says(NOTHING, step=3), draft(1), grade(1, *BOTH)), "satisfied"),
    "verdict_in_parts": Story(
        request(HAIKU),
        (draft(), *MISSING, grade(0, *TWO_LINES, row("c3"), step=3), draft(1), grade(1, *BOTH)),
        "satisfied",
    ),
    "interrupted_and_resumed": Story(request(HAIKU), REVISED, "satisfied", interrupted_twice),
    "superseded": Story(request(HAIKU), (draft(), grade(0, *BOTH), grade(0, row("c1")) | {"run": 1}), "satisfied", superseded),
    "steered_by_updates": Story(
        request(HAIKU), (draft(), grade(0, *BOTH), grade(0, row("c1")) | {"run": 1}), "satisfied", steered_by_updates
    ),
    "foreign_generator": Story(
        request(HAIKU) | {"generator": {"activity": "their_draft", "task_queue": THEIRS}}, REVISED, "satisfied", drafted_elsewhere
    ),
    "foreign_with_heartbeats": Story(
        request(HAIKU) | {"generator": {"activity": "their_draft", "task_queue": "beating", "heartbeat_timeout": 60}},
        REVISED,
        "satisfied",
        partial(drafted_elsewhere, queue="beating"),
    ),
    "continued_as_new": Story(
        request(HAIKU, max_iterations=4),
        tuple(reply for at in range(4) for reply in (draft(at), grade(at, *(BOTH if at == 3 else TWO_LINES)))),
        CONTINUED,
    ),
    "out_of_budget": Story(
        request(HAIKU, budget={"max_tokens": 150}),
        tuple(reply | {"usage": {"input": 90, "output": 10}} for reply in REVISED),
        "satisfied",
        out_of_budget,
    ),
    "asked_again": Story(request(HAIKU), REVISED, "satisfied", asked_again),
    "cleared_and_stopped": Story(request(HAIKU), REVISED, "superseded", cleared_and_stopped),
    "asked_for_again": Story(request(HAIKU), REVISED, "satisfied", asked_for_again),
    "cut_short": Story(request(HAIKU), REVISED, "satisfied", cut_short),
    "fallen_back": Story(
        request(
            {"criteria": [{"description": "it is good", "panel": [*(spared(name, "c") for name in "ab"), "scripted:other"]}]},
            generator={"model": spared("writer", "spare")},
        ),
        (
            draft(),
            {"role": "generator", "model": "writer", "error": GONE},
            *({"role": "grader", "sample": at, "model": name, "error": GONE} for at, name in enumerate("ab")),
            *(grade(0, row("c1")) | {"sample": at} for at in range(3)),
        ),
        "satisfied",
    ),
    "draft_failed": Story(request(HAIKU), ({"role": "generator", "error": {"kind": "auth", "message": "no such key"}},), "interrupted"),
    "refused": Story(request(" "), (), "InvalidRequest"),
    "tools": Story(
        with_tools(request("- x"), "look"),
        (wants("generator", *LOOKS), draft(step=1), wants("grader", *LOOKS), grade(step=1)),
        "satisfied",
    ),
    "limited_and_hidden": Story(
        with_tools(request("- x", {"role": "user", "content": "secret", "source": "crm"}, *HAIKU_MESSAGES), "look")
        | {"grader": {"model": "scripted:judge", "tools": ["look"], "max_tool_calls": 1, "hide": [{"source": "crm"}]}},
        (draft(), wants("grader", *LOOKS[:2]), grade(step=1)),
        "satisfied",
    ),
    "checks": Story(
        request({"criteria": [{"description": "tests pass", "check": "run_test_suite"}, "readable"]}),
        (draft(), grade(0, row("k1")), draft(1), grade(1, row("k1"))),
        "satisfied",
    ),
    "graded_again": Story(request(HAIKU, idle_timeout=60), (draft(), grade(0, *BOTH)), "satisfied", graded_again),
    "votes_and_a_function": Story(request(VOTED), (draft(), call(0), call(0, row("c1", "two"), sample=1), call(0, sample=2)), "satisfied"),
    "edited_criterion": Story(
        request(EACH, vars={"season": "spring"}, idle_timeout=60),
        (draft(), call(0), call(1, row("c2")), call(1, row("c2"), run=1)),
        "satisfied",
        edited,
    ),
    "edited_check": Story(
        request(beside_a_check("the tests pass"), idle_timeout=60), (draft(), grade(0, row("k1"))), "satisfied", edited_check
    ),
    "waited_for_a_person": Story(
        request({"criteria": ["three lines", {"description": "kind", "human": True}]}), (draft(), grade()), "satisfied", decided
    ),
    "told_of_a_wait": Story(
        request({"criteria": ["three lines", {"description": "kind", "human": True}]}), (draft(), grade()), "satisfied", decided, told=True
    ),
    "overridden": Story(request("- three lines"), (draft(), grade(0, row("c1", "two")), draft(1), grade(1)), "satisfied", overridden),
    "overridden_in_a_later_turn": Story(
        request("- three lines"),
        (draft(), grade(0, row("c1", "two")), draft(1), grade() | {"run": 1}),
        "satisfied",
        overridden_in_a_later_turn,
    ),
    "approved_and_denied": Story(
        with_tools(request("- x"), "booked", "look"),
        (wants("generator", BOOKS, LOOKS[0]), draft(step=1), wants("grader", BOOKS, LOOKS[0]), grade(step=1)),
        "satisfied",
        approved,
    ),
    "tool_elsewhere": Story(
        request(
            {"criteria": [{"description": "c", "check": {"tool": "their_look", "arguments": {"word": "x"}}}, "readable"]},
            grader={"model": "scripted:judge", "tools": [ELSEWHERE]},
        ),
        (draft(), wants("grader", {"name": "their_look", "arguments": {"word": "y"}}), grade(0, row("k1"), step=1)),
        "satisfied",
        looked_up_elsewhere,
    ),
    "resumed_in_the_checks": Story(left_in_the_checks(), (grade(0, row("k1")),), "satisfied", resumed),
    "begun_by_the_newest_rubric": Story(cleared_in_the_checks(), (grade(0, row("k1")) | {"run": 1},), "satisfied", resumed),
    "dismissed": Story(request(HAIKU, idle_timeout=60), (draft(), grade(0, *BOTH)), CANCELLED, dismissed),
    "supplied_while_idle": Story(
        request(HAIKU, idle_timeout=60), (draft(), grade(0, *BOTH), grade(0, row("c1")) | {"run": 1}), "satisfied", supplied_while_idle
    ),
    "rubric_with_the_start": Story(
        request(HAIKU), (draft() | {"run": 1}, grade(0, row("c1")) | {"run": 1}), "satisfied", signalled="- it greets"
    ),
    "forked": Story(forked(), (draft(1), grade(1, *BOTH)), "satisfied"),
    "forked_by_another_rubric": Story(forked(rubric="- it greets"), (grade(0, row("c1")) | {"run": 1},), "satisfied"),
    "left_while_waiting": Story(
        request({"criteria": ["three lines", {"description": "kind", "human": True}]}), (draft(), grade()), CANCELLED, left_while_waiting
    ),
    "judged_otherwise": Story(request(HAIKU), (draft() | {"run": 1}, grade(0, row("c1")) | {"run": 1}), "satisfied", judged_otherwise),
    "checker_error": Story(request({"criteria": [{"description": "t", "check": "broken_suite"}]}), (draft(),), "grader_error"),
}

ENDINGS = {name: story.status for name, story in STORIES.items()} | {KILLED: "satisfied"}


async def history_of(client: Client, name: str) -> WorkflowHistory:
    """Run a story and return its history."""
    story = STORIES[name]
    tools: list[Callable[..., Any]] = [look, run_test_suite, broken_suite, judge, booked]
    async with hooked() as hook, serving(client, *story.replies, tools=tools, notify=hook.settings() if story.told else {}) as served:
        signal = {"start_signal": "supply_rubric", "start_signal_args": [story.signalled]} if story.signalled else {}
        thread = await served.start(story.argument, id=f"recorded-{name}", **signal)
        if story.told:
            await hook.posted()
        if story.meanwhile:
            await story.meanwhile(served, thread)
        await asyncio.wait([asyncio.create_task(thread.result())], timeout=SECONDS)
        return await client.get_workflow_handle(thread.id, run_id=thread.first_execution_run_id).fetch_history()


async def history_of_a_killed_worker(folder: Path) -> WorkflowHistory:
    """Run a thread whose worker is killed while its first draft is graded, and return its history."""
    async with mortal(folder) as stage:
        argument = stage.models.request("thread", messages=HAIKU_MESSAGES)
        thread = await stage.start("GradingThread", argument, result_type=RunResult)
        await stage.die_in(("thread", "grader 0"))
        await thread.result()
        return await thread.fetch_history()


def recorded(name: str) -> WorkflowHistory:
    """Return a recorded history."""
    return read(FOLDER / f"{name}.json")[""]


def ending(history: WorkflowHistory) -> str | None:
    """Return the status in which the thread ended, or why it failed."""
    last = history.events[-1]
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
        return last.workflow_execution_failed_event_attributes.failure.application_failure_info.type
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
        return CONTINUED
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
        return CANCELLED
    result = json.loads(last.workflow_execution_completed_event_attributes.result.payloads[0].data)
    return RunResult.model_validate(result).status


@asynccontextmanager
async def early_server(folder: str) -> AsyncIterator[str]:
    """Run a server of its own that suggests a new run after 30 events."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADELOOP_STATE_DIR", folder)
        patch.setattr(embedded, "DYNAMIC_CONFIG", (*embedded.DYNAMIC_CONFIG, "limit.historyCount.suggestContinueAsNew=30"))
        server = await embedded.ensure_server()
        try:
            yield server.address
        finally:
            await embedded.stop_server()


@pytest.fixture(scope="module", autouse=True)
async def recordings(temporal_server: ServerInfo, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Record the stories that have no recording, where that was asked for; the recordings name no machine."""
    lacking = missing(FOLDER, ENDINGS)
    names = [name for name in lacking if ENDINGS[name] != CONTINUED and name != KILLED]
    client = await recorder(temporal_server.address)
    histories = dict(zip(names, await asyncio.gather(*map(partial(history_of, client), names)), strict=True))
    if "continued_as_new" in lacking:
        async with early_server(str(tmp_path_factory.mktemp("early"))) as address:
            histories["continued_as_new"] = await history_of(await recorder(address), "continued_as_new")
    if KILLED in lacking:
        histories[KILLED] = await history_of_a_killed_worker(tmp_path_factory.mktemp(KILLED))
    for name, history in histories.items():
        keep(FOLDER / f"{name}.json", history)


def test_every_story_is_recorded_and_nothing_else() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(ENDINGS)


async def test_every_recorded_history_replays() -> None:
    histories = {name: recorded(name) for name in ENDINGS}

    assert {name: ending(history) for name, history in histories.items()} == ENDINGS
    assert await differences([GradingThreadWorkflow], histories) == {}


@pytest.mark.slow
async def test_every_recorded_history_replays_in_temporals_sandbox() -> None:
    assert await differences([GradingThreadWorkflow], {name: recorded(name) for name in ENDINGS}, RUNNER) == {}


def test_the_worker_was_killed_in_one_call() -> None:
    assert attempts(recorded(KILLED)) == [1, 2, 1, 1]


@pytest.mark.slow
async def test_what_the_stories_do_today_replays_too(client: Client) -> None:
    # On a slow host the stop reaches the call of `cleared_and_stopped` before its draft does, and the run waits to be resumed.
    quick = [name for name in STORIES if name not in {"checker_error", "cleared_and_stopped", CONTINUED}]
    histories = dict(zip(quick, await asyncio.gather(*(history_of(client, name) for name in quick)), strict=True))

    assert {name: ending(history) for name, history in histories.items()} == {name: STORIES[name].status for name in quick}
    assert await differences([GradingThreadWorkflow], histories, RUNNER) == {}


async def test_a_worker_that_keeps_no_thread_in_memory_replays_at_every_step(client: Client) -> None:
    models = Models(REVISED, {})
    async with build(client, models, ToolRegistry(), WorkerSettings(task_queue="forgetful", max_cached_workflows=0)):
        result = await Served(client, "forgetful", models).run(STORIES["satisfied"].argument)

    assert (result.status, result.iterations, len(models.requests)) == ("satisfied", 2, 4)


@pytest.mark.slow
async def test_two_replays_give_equal_queries_and_byte_equal_prompts(client: Client) -> None:
    thread, answers, prompts = None, [], []
    for _ in range(3):  # each worker knows nothing of the thread but its history; the call in flight is handed over to the next
        models = Models(REVISED, {})
        gate = models.gate("grader", 1)
        async with build(client, models, ToolRegistry(), WorkerSettings(task_queue="handed-over", drain_seconds=0)):
            thread = thread or await Served(client, "handed-over", models).start(STORIES["satisfied"].argument, id="handed-over")
            await asyncio.wait_for(gate.reached.wait(), 240)
            answers.append([to_json(await thread.query(query)) for query in QUERIES])
        prompts.append([to_json(asked) for asked in models.requests_of("grader")])
    await client.get_workflow_handle("handed-over").terminate()

    assert answers[1] == answers[0]
    assert answers[2] == answers[0]
    assert (len(prompts[0]), len(prompts[1]), len(prompts[2])) == (2, 1, 1)
    assert prompts[1] == prompts[2] == prompts[0][1:]


async def test_another_order_of_calls_is_found_out() -> None:
    text = (FOLDER / "satisfied.json").read_text().replace('"name": "grade"', '"name": "generate"')

    changed = {"changed": WorkflowHistory.from_json("changed", text)}
    assert "Nondeterminism" in (await differences([GradingThreadWorkflow], changed))["changed"]


@pytest.mark.parametrize(
    ("name", "owner", "function"),
    [("dismissed", GradingThreadWorkflow, "_end_cancelled"), ("supplied_while_idle", thread_rules, "judge_anew")],
)
async def test_a_timer_that_is_added_where_a_stop_or_a_rubric_is_taken_is_found_out(
    monkeypatch: pytest.MonkeyPatch, name: str, owner: object, function: str
) -> None:
    as_it_is = getattr(owner, function)

    def with_a_timer(*arguments: Any) -> Any:
        timers.append(asyncio.create_task(asyncio.sleep(60)))
        return as_it_is(*arguments)

    timers = list[asyncio.Task[None]]()
    monkeypatch.setattr(owner, function, with_a_timer)

    assert "Nondeterminism" in (await differences([GradingThreadWorkflow], {name: recorded(name)}))[name]


def machines(text: str) -> list[str]:
    """Return what in a recording tells of the machine on which it was made."""
    others = set(re.findall(r'"identity": "([^"]*)"', text)) - {"recorder", "history-service", ""}
    payloads = [base64.b64decode(data).decode(errors="replace") for data in re.findall(r'"data": "([^"]*)"', text)]
    traces = r"/(?:home|root|tmp|usr|var|site-packages)/|\.py\b|stackTrace"
    return [*others, *(found for part in (text, *payloads) for found in re.findall(traces, part))]


def test_no_recording_names_a_machine() -> None:
    files = list(FOLDER.rglob("*.json"))

    assert {file.name: found for file in files if (found := machines(file.read_text()))} == {}
    assert len(files) > len(ENDINGS)
    assert machines('"identity": "12@host"') == ["12@host"]
