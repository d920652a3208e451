"""Judgements of finished runs, each told with the run that it is about."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from temporalio.client import Client

from gradeloop.evaluation import CriterionRow, Evaluation
from gradeloop.judges.agent_run import AgentRun, answer_of, as_log
from gradeloop.judges.blocks import blocks
from gradeloop.judges.citations import Citation
from gradeloop.judges.config import CriteriaJudge
from gradeloop.judges.judge_result import JudgeResult
from gradeloop.judges.schema_judge import SchemaJudge
from gradeloop.reports.judgement_record import JudgementRecord, judgement_record
from gradeloop.reports.run_story import Judged, Passage, RunStory
from gradeloop.scoring import status_of
from gradeloop.transcript import Message

AT_ONCE = 20
"""Judgements that are read from the server at once."""

NO_RUN = "the transcript is missing; name the file of the runs with --runs FILE"

ANOTHER_RUN = "the run in the given file differs from the judged run of the same id; the judged one is shown"

MISPLACED = "some citations point outside the given run; it may differ from the run that was judged"

CITATIONS = "citations"
"""The key of a result's metadata under which they stand."""


@dataclass(frozen=True)
class _Telling:
    """A judgement with all that is known of it."""

    result: JudgeResult
    run: AgentRun | None
    record: JudgementRecord
    repeat: int
    """Which judgement of this run by this judge it is, from 0."""
    repeats: int
    notes: tuple[str, ...]


async def judgement_stories(results: Sequence[JudgeResult], runs: Mapping[str, AgentRun], temporal: Client | None) -> list[RunStory]:
    """Return a story a judgement, in their order.

    Args:
        results: As `read_results` or `judgements_named` return them.
        runs: What was judged, by id, as far as it is at hand.
        temporal: Where the rest is looked for, and the tools that graders called; None looks nowhere.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def recorded(result: JudgeResult) -> JudgementRecord:
        async with slots:
            return await judgement_record(temporal, result) if temporal is not None else JudgementRecord()

    records = await asyncio.gather(*(recorded(each) for each in results))
    totals, seen = Counter(_key(each) for each in results), Counter[tuple[str, str, int]]()
    stories = []
    for result, record in zip(results, records, strict=True):
        key = _key(result)
        stories.append(_story(_telling(result, runs.get(result.agent_run_id), record, seen[key], totals[key])))
        seen[key] += 1
    return stories


def _key(result: JudgeResult) -> tuple[str, str, int]:
    return result.agent_run_id, result.rubric_id, result.rubric_version


def _telling(result: JudgeResult, given: AgentRun | None, record: JudgementRecord, repeat: int, repeats: int) -> _Telling:
    """Put together what is known; the run that was judged goes before the one that was named."""
    notes, run = list(record.notes), given or record.run
    if given is not None and record.run is not None and given.sha256() != record.run.sha256():
        run = record.run
        notes.append(ANOTHER_RUN)
    if run is None:
        notes.append(NO_RUN)
    return _Telling(result, run, record, repeat, repeats, tuple(notes))


def _story(telling: _Telling) -> RunStory:
    result = telling.result
    if not result.failed and isinstance(result.output.get("criteria"), list) and "variant" not in result.result_metadata:
        try:
            return _by_criteria(telling)
        except ValidationError:  # a schema judge's own key of that name, or a later version's row
            return _by_schema(telling)
    return _by_schema(telling)


def _by_criteria(telling: _Telling) -> RunStory:
    log = as_log(telling.run) if telling.run else []
    evaluation = _evaluation(telling, log)
    passed = evaluation.result == "satisfied"
    update = {
        "verdict": "passed" if passed else "failed",
        "word": evaluation.result,
        "score": evaluation.score,
        "messages": tuple(log),
        "evaluations": (evaluation,),
        "best": evaluation.draft if log else None,
    }
    return _told(telling).model_copy(update=update)


def _evaluation(telling: _Telling, log: list[Message]) -> Evaluation:
    """Return a judgement by criteria as one pass.

    Raises:
        ValidationError: It is none.
    """
    result, judge = telling.result, telling.record.judge
    rows = [CriterionRow.model_validate(each) for each in _list(result.output.get("criteria"))]
    told = {
        "grading_run_id": result.id,
        "iteration": 0,
        "result": result.output.get("result"),
        "status": "running",
        "explanation": result.output.get("explanation", ""),
        "criteria": rows,
        "score": result.output.get("score"),
        "unverified": any(each.unverified for each in rows),
        "usage": result.usage,
        "draft": _draft(result, log),
        "grader": result.model,
        "rubric_sha256": judge.rubric.sha256() if isinstance(judge, CriteriaJudge) else None,
    }
    found = Evaluation.model_validate(told)
    return found.model_copy(update={"status": status_of(found.result, last=True)})


def _draft(result: JudgeResult, log: list[Message]) -> int:
    """Return the index of what was judged as the answer, as the judgement says, else as it would be chosen now."""
    said = result.result_metadata.get("draft")
    if isinstance(said, int) and said >= 0 and (not log or said < len(log)):
        return said
    return max(answer_of(log), 0)


def _by_schema(telling: _Telling) -> RunStory:
    result = telling.result
    passages = _passages(telling.run) if telling.run else ()
    metadata = {key: value for key, value in result.result_metadata.items() if key != CITATIONS}
    reason = result.result_metadata.get("reason") if result.failed else None
    citations, notes = _citations(result, passages)
    judged = Judged(
        rubric_id=result.rubric_id,
        rubric_version=result.rubric_version,
        output=result.output,
        reason=None if reason is None else str(reason),
        citations=citations,
        metadata=metadata,
        repeat=telling.repeat,
    )
    ended = {"verdict": "error", "word": "failure", "error": judged.reason} if result.failed else {"word": "judged"}
    story = _told(telling)
    return story.model_copy(update={"judged": judged, "passages": passages, "notes": (*story.notes, *notes)} | ended)


def _passages(run: AgentRun) -> tuple[Passage, ...]:
    return tuple(Passage(label=each.label, role=each.role, name=each.name, text=each.text) for each in blocks(run))


def _citations(result: JudgeResult, passages: Sequence[Passage]) -> tuple[tuple[Citation, ...], list[str]]:
    """Return the citations that can be read, and what is wrong with them, in words."""
    told = _list(result.result_metadata.get(CITATIONS))
    found = []
    for each in told:
        try:
            found.append(Citation.model_validate(each))
        except ValidationError:  # a later version's
            continue
    lengths = {each.label: len(each.text) for each in passages}
    misplaced = passages and any(each.block_end is not None and each.block_end > lengths.get(each.target, -1) for each in found)
    lost = len(told) - len(found)
    notes = [f"{lost} of {len(told)} citations cannot be read"] if lost else []
    return tuple(found), [*notes, MISPLACED] if misplaced else notes


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _told(telling: _Telling) -> RunStory:
    """Return what is told alike of all judgements."""
    result, judge = telling.result, telling.record.judge
    about = {
        "rubric": f"{result.rubric_id}, version {result.rubric_version}",
        "rubric text": judge.rubric_text if isinstance(judge, SchemaJudge) else "",
        "judge": result.model or "",
        "repeat": f"{telling.repeat + 1} of {telling.repeats}" if telling.repeats > 1 else "",
        "judgement": result.id,
    }
    return RunStory(
        name=result.agent_run_id,
        kind="judgement",
        verdict="none",
        word="judged",
        about={name: fact for name, fact in about.items() if fact},
        rubric=judge.rubric if isinstance(judge, CriteriaJudge) else None,
        tools=telling.record.tools,
        usage=result.usage,
        notes=telling.notes,
    )
