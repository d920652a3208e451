"""Cases of a batch as stories of runs."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from gradeloop.batches.case import Case, CaseStatus
from gradeloop.batches.case_result import CaseResult
from gradeloop.batches.wording import VERDICTS
from gradeloop.evaluation import Evaluation
from gradeloop.reports.run_story import RunStory, Verdict
from gradeloop.transcript import Message
from gradeloop.verdict import VerdictResult

COLOURS: dict[CaseStatus, Verdict] = {"passed": "passed", "failed": "failed", "error": "error", "waiting": "waiting", "queued": "none"}

OPEN: frozenset[CaseStatus] = frozenset({"queued", "waiting"})
"""Of which a batch has not counted anything yet."""

VALUE_CHARACTERS = 2_000
"""Of a variable, among the facts about a case: what it fills is in the messages."""


def case_story(result: CaseResult, case: Case | None = None) -> RunStory:
    """Return a case's story: what was asked, what was judged, and the one pass over it."""
    messages = [*(case.messages if case else ())]
    if result.output is not None:
        messages.append(Message.model_construct(role="assistant", content=result.output))
    evaluation = _evaluation(result, len(messages) - 1) if result.output is not None else None
    return RunStory(
        name=result.id,
        kind="case",
        verdict=COLOURS[result.status],
        word=VERDICTS[result.status][0],
        thread_id=thread_of(result, None),
        about=about(result),
        score=result.score,
        error=result.error if result.status == "error" else None,
        rubric=case.rubric if case else None,
        messages=tuple(messages),
        evaluations=(evaluation,) if evaluation else (),
        usage=result.usage,
        best=len(messages) - 1 if evaluation and result.iterations is not None else None,
        overridden=_overridden(result),
        notes=_notes(result, case),
    )


def with_thread(result: CaseResult, thread: RunStory) -> RunStory:
    """Return the story of a case whose thread could be read: the whole way to its last draft.

    What counts is what the batch counted; a thread that went on since then says so among the facts.
    """
    now = {"thread now": thread.word.replace("_", " ")} if thread.verdict != COLOURS[result.status] else {}
    told = {"kind": "case", "name": result.id, "about": about(result) | now | thread.about}
    counted = {} if result.status in OPEN else {"verdict": COLOURS[result.status], "word": VERDICTS[result.status][0]}
    return thread.model_copy(update=told | counted)


def thread_of(result: CaseResult, batch_id: str | None) -> str | None:
    """Return the thread that drafts and judges a case, before its end too; None where it had none, or a judgement of its own."""
    if result.status == "waiting" and batch_id is not None:
        return f"{batch_id}/{result.id}"
    return result.thread_id if result.iterations is not None else None


def about(result: CaseResult) -> dict[str, str]:
    """Return the facts about a case, in their order."""
    named: Mapping[str, JsonValue] = {
        "description": result.description,
        "prompt": result.prompt,
        "generator": result.label,
        "grader": result.grader,
        **{f"{name} (variable)": value for name, value in result.vars.items()},
        "finished": result.finished,
        "retried": f"{result.attempt} times" if result.attempt else None,
        "cache": "all verdicts were cached" if result.cached else None,
    }
    return {name: _cut(value) for name, value in named.items() if value is not None}


def _cut(value: JsonValue) -> str:
    told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return told if len(told) <= VALUE_CHARACTERS else f"{told[:VALUE_CHARACTERS]}… ({len(told):,} characters)"


def _evaluation(result: CaseResult, draft: int) -> Evaluation | None:
    if result.status in OPEN or (result.status == "error" and not result.criteria and not result.explanation):
        return None
    words: dict[CaseStatus, VerdictResult] = {"passed": "satisfied", "failed": "needs_revision"}
    came_to = words.get(result.status, "grader_error")
    return Evaluation(
        grading_run_id=result.id,
        iteration=max((result.iterations or 1) - 1, 0),
        result=came_to,
        status=came_to if came_to != "needs_revision" else "max_iterations_reached",
        explanation=result.explanation,
        criteria=result.criteria,
        score=result.score,
        draft=draft,
        grader=result.grader,
        usage=result.usage,
    )


def _overridden(result: CaseResult) -> bool | None:
    """Return whether all that people overrode passes; None where they overrode nothing."""
    words = [row.override.passed for row in result.criteria if row.override is not None]
    return all(words) if words else None


def _notes(result: CaseResult, case: Case | None) -> tuple[str, ...]:
    told = {
        "The results file does not hold the prompt; the report of the batch itself shows it.": case is None and not result.thread_id,
        f"This is the last of {result.iterations} drafts; the thread {result.thread_id} has the others.": (result.iterations or 0) > 1,
        f"Not run: {result.error}": result.status == "queued" and bool(result.error) and result.error != "not run",
    }
    return tuple(words for words, holds in told.items() if holds)
