"""A thread, told from its beginning: what was said, judged, looked into and decided, by its own queries and its histories."""

import json
from collections.abc import Iterator
from datetime import datetime

from pydantic import JsonValue, ValidationError

from gradeloop.client import GradingClient
from gradeloop.evaluation import Evaluation
from gradeloop.reports.run_story import RunStory, Verdict
from gradeloop.reports.thread_record import ThreadRecord, thread_record
from gradeloop.reports.tool_uses import tool_uses
from gradeloop.reports.workflow_histories import mapping
from gradeloop.rubric import Rubric
from gradeloop.scoring import best_of

VERDICTS: dict[str, Verdict] = {
    "satisfied": "passed",
    "max_iterations_reached": "failed",
    "failed": "failed",
    "grader_error": "error",
    "waiting": "waiting",
    "running": "running",
    "generating": "running",
    "grading": "running",
}
"""By status and phase; a run that was interrupted, or that nobody graded, has no verdict."""

VARIABLES_CHARACTERS = 2_000
"""Of a thread's variables, as they are shown."""


async def thread_story(client: GradingClient, thread_id: str) -> RunStory:
    """Return the story of a thread, open or closed, with the evidence that the server still keeps.

    Raises:
        ThreadNotFound: There is none of that id.
        ServerUnreachable: The server does not answer, or no worker does.
        InvalidRequest: The thread was refused when it was started.
    """
    record = await thread_record(client, thread_id)
    tools, notes = await tool_uses(client.temporal, thread_id)
    word, rubric, settled = _word(record), _rubric(record), record.settled
    best = _best(record, rubric)
    said = record.own[-1].overridden_result if record.own else None
    return RunStory(
        name=thread_id,
        kind="thread",
        verdict=VERDICTS.get(word, "none"),
        word=word,
        thread_id=thread_id,
        about=dict(_about(record)),
        score=best.score if best else settled.score if settled else None,
        error=_error(record, word),
        rubric=rubric,
        messages=record.messages,
        evaluations=record.evaluations,
        tools=tuple(tools),
        events=record.events,
        usage=record.state.usage,
        budget=record.state.budget,
        waiting_for=record.state.waiting_for,
        best=best.draft if best else _ungraded(record),
        overridden=None if said is None else said == "satisfied",
        notes=(*_notes(record, rubric), *notes),
    )


def _word(record: ThreadRecord) -> str:
    """Return the status of the run in flight, else of the last one."""
    state, settled = record.state, record.settled
    if state.status == "running":
        if record.is_open:
            return state.phase or "running"
        return record.described.status.name.lower() if record.described.status else "closed"
    if state.status in {"waiting", "interrupted"}:
        return state.status
    if settled is not None and settled.status is not None:
        return settled.status
    return record.own[-1].status if record.own else "ungraded" if record.messages else "idle"


def _rubric(record: ThreadRecord) -> Rubric | None:
    """Return the rubric in force, else the former one where the newest evaluation was judged by that."""
    if record.state.rubric is not None or not record.evaluations:
        return record.state.rubric
    former = mapping(record.kept.get("rubrics")).get(record.evaluations[-1].rubric_sha256 or "")
    try:
        return Rubric.model_validate(former) if former else None
    except ValidationError:
        return None


def _best(record: ThreadRecord, rubric: Rubric | None) -> Evaluation | None:
    """Return the evaluation whose draft stands, as the run's result has it, else as it stands now."""
    if record.settled is not None and record.settled.best_iteration is not None:
        chosen = [each for each in record.own if each.iteration == record.settled.best_iteration]
        if chosen:
            return chosen[-1]
    return best_of(rubric, record.own) if rubric is not None else None


def _ungraded(record: ThreadRecord) -> int | None:
    """Return the last answer of a turn that nobody graded, which stands by itself."""
    if record.settled is None or record.settled.status is not None:
        return None
    answers = (at for at, each in enumerate(record.messages) if each.role == "assistant" and not each.tool_calls)
    return max(answers, default=None)


def _error(record: ThreadRecord, word: str) -> str | None:
    if record.settled is not None and record.settled.error is not None:
        return record.settled.error
    return record.own[-1].explanation if record.own and VERDICTS.get(word) == "error" else None


def _about(record: ThreadRecord) -> Iterator[tuple[str, str]]:
    """Yield facts about the thread that are known."""
    graders = dict.fromkeys(each.grader for each in record.evaluations if each.grader)
    versions = dict.fromkeys(each.prompt_version for each in record.evaluations if each.prompt_version)
    variables = record.kept.get("vars")
    facts = {
        "generator": _named(record.kept.get("generator")),
        "grader": ", ".join(graders) or _named(record.kept.get("grader")),
        "prompt version": ", ".join(versions),
        "variables": json.dumps(variables, ensure_ascii=False)[:VARIABLES_CHARACTERS] if variables else "",
        "started": record.events[0].time if record.events and not record.dropped_events else _iso(record.described.start_time),
        "closed": _iso(record.described.close_time),
        "interrupted by": record.state.reason or "",
    }
    yield from ((name, fact) for name, fact in facts.items() if fact)


def _named(somebody: JsonValue) -> str:
    """Return who drafts or judges, as a checkpoint names them."""
    told = mapping(somebody)
    model = told.get("model")
    if isinstance(model, str):
        return model
    if isinstance(named := mapping(model).get("id"), str):
        return named
    kind = next((key for key in ("activity", "workflow", "function") if told.get(key)), None)
    if kind is None:
        return ""
    return f"{kind} {told[kind]}" + (f" on the task queue {told['task_queue']}" if told.get("task_queue") else "")


def _iso(when: datetime | None) -> str:
    return when.isoformat(timespec="milliseconds") if when else ""


def _notes(record: ThreadRecord, rubric: Rubric | None) -> Iterator[str]:
    """Yield what is not shown, or not known any more."""
    if record.dropped_events:
        yield f"the first {record.dropped_events} events are not shown: a thread keeps only its newest"
    if not record.kept:
        yield "the thread's checkpoint cannot be read, so its generator is unknown"
    now = rubric.sha256() if rubric else None
    others = sum(each.rubric_sha256 is not None and each.rubric_sha256 != now for each in record.evaluations)
    if others:
        which = "another rubric" if rubric else "a rubric"
        yield f"{others} of {len(record.evaluations)} evaluations used {which} that is not shown"
