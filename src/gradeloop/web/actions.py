"""The actions that people take on a thread's page: each calls one method of the typed client."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.contract.base import Strict
from gradeloop.contract.thread import ApproveRequest, DecideRequest, DenyRequest, OverrideRequest, ResumeRequest, parse_update
from gradeloop.errors import GradeloopError, InvalidRequest, explain
from gradeloop.files.rubric import refuse_bad_rubric
from gradeloop.files.yaml import read_placed
from gradeloop.web.site import ACTION_SECONDS, Site, in_time

Body = Mapping[str, JsonValue]

RESUME_POLL_SECONDS = 0.1
LOOK_SECONDS = 2.0
"""For one look at a thread that is being resumed: a question to a run that closes meanwhile may never be answered."""

_STRUCTURED = re.compile(r"\A\s*\{|^criteria\s*:", re.MULTILINE)
"""What tells YAML or JSON from the list of a text file: an object has to name its criteria."""


class NewRubric(Strict):
    """What the form for a new rubric sends."""

    rubric: str
    """The content of a rubric file: a list in text, YAML, or JSON."""


async def act(site: Site, thread_id: str, action: str, body: Body) -> None:
    """Do what a person asked for in a thread.

    Raises:
        GradeloopError: It is refused, or nobody answers: one sentence for the person.
    """
    if action not in ACTIONS:
        raise InvalidRequest(f"Unknown action {action!r}. Known: {', '.join(ACTIONS)}.")
    await site.wake(thread_id)
    words = f"no worker answered for the thread {thread_id!r} within {ACTION_SECONDS:.0f} s; check its worker, then try again"
    await in_time(ACTIONS[action](site, thread_id, body), ACTION_SECONDS, words)


async def _interrupt(site: Site, thread_id: str, _body: Body) -> None:
    await site.client.interrupt(thread_id)


async def _close(site: Site, thread_id: str, _body: Body) -> None:
    await site.client.close_thread(thread_id)


async def _resume(site: Site, thread_id: str, body: Body) -> None:
    """Have the run go on, and return once it does; its end is nobody's to wait for here."""
    budget = parse_update(ResumeRequest, body).budget
    seen = (await site.client.events(thread_id, after=10**9)).total
    going_on = site.begin(site.client.resume(thread_id, budget=budget))
    try:
        while not going_on.done() and not await _has_moved(site, thread_id, seen):
            await asyncio.wait([going_on], timeout=RESUME_POLL_SECONDS)
    except BaseException:
        going_on.cancel()
        raise
    if going_on.done():
        going_on.result()


async def _has_moved(site: Site, thread_id: str, seen: int) -> bool:
    """Tell whether anything has happened since; False where the thread, which may just be opened again, gives no answer."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            return (await site.client.events(thread_id, after=10**9)).total != seen
    except (TimeoutError, GradeloopError):
        return False


async def _rubric(site: Site, thread_id: str, body: Body) -> None:
    try:
        text = NewRubric.model_validate(body).rubric
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None
    rubric = pasted_rubric(text)
    await site.client.supply_rubric(thread_id, rubric if isinstance(rubric, dict) else text)


async def _decide(site: Site, thread_id: str, body: Body) -> None:
    said = parse_update(DecideRequest, body)
    run, iteration = said.grading_run_id, said.iteration
    await site.client.decide(thread_id, said.criterion, said.passed, by=said.by, gap=said.gap, grading_run_id=run, iteration=iteration)


async def _override(site: Site, thread_id: str, body: Body) -> None:
    said = parse_update(OverrideRequest, body)
    run, iteration = said.grading_run_id, said.iteration
    await site.client.override(thread_id, said.criterion, said.passed, why=said.why, by=said.by, grading_run_id=run, iteration=iteration)


async def _approve(site: Site, thread_id: str, body: Body) -> None:
    said = parse_update(ApproveRequest, body)
    await site.client.approve(thread_id, said.call, by=said.by)


async def _deny(site: Site, thread_id: str, body: Body) -> None:
    said = parse_update(DenyRequest, body)
    await site.client.deny(thread_id, said.call, why=said.why, by=said.by)


ACTIONS: Mapping[str, Callable[[Site, str, Body], Coroutine[Any, Any, None]]] = {
    "interrupt": _interrupt,
    "resume": _resume,
    "rubric": _rubric,
    "decide": _decide,
    "override": _override,
    "approve": _approve,
    "deny": _deny,
    "close": _close,
}


def pasted_rubric(text: str) -> JsonValue:
    """Read a rubric as people paste it out of a file: the text itself, or the object that its YAML or JSON says.

    Raises:
        InvalidRequest: It is no rubric; the message names line, column, field and cure.
    """
    where = "the rubric"
    if not _STRUCTURED.search(text):
        refuse_bad_rubric(text, {}, (), where)
        return text
    value, placed = read_placed(text, where)
    if _names_a_file(value):
        raise InvalidRequest("prompt: a pasted rubric cannot refer to a file; paste the content of the file")
    refuse_bad_rubric(value, placed, (), where)
    return value


def _names_a_file(value: JsonValue) -> bool:
    """Tell whether a prompt stands in a file, which only the one who has the rubric's file can read."""
    if isinstance(value, list):
        return any(map(_names_a_file, value))
    if not isinstance(value, dict):
        return False
    return str(value.get("prompt")).startswith("file://") or _names_a_file(value.get("criteria"))
