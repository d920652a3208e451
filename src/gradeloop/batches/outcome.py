"""What a case came to: from its graders' answers and its checks, from its thread, or from its judgement."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from gradeloop.batches.case import Case, CaseStatus
from gradeloop.batches.case_plan import checks_of, units_of
from gradeloop.batches.case_result import CaseResult, ended
from gradeloop.batches.unit import Unit
from gradeloop.contracts import RunResult
from gradeloop.evaluation import CheckOutcome, CriterionRow, Judgement
from gradeloop.judges.judge_result import JudgeResult
from gradeloop.printable import shortened
from gradeloop.scoring import result_of, score_of
from gradeloop.tally import Found, tally

_ROWS = TypeAdapter(tuple[CriterionRow, ...])


def judged(case: Case, output: str, units: Sequence[Unit]) -> CaseResult:
    """Return the result of a case all of whose questions are answered, or will never be."""
    try:
        checks = checks_of(case, output)
    except ValueError as error:
        return ended(case, "error", output=output, error=str(error))
    judgement = tally(case.rubric, _found(case, units, checks))
    return _of_judgement(case, output, judgement, units)


def _found(case: Case, units: Sequence[Unit], checks: Mapping[str, CheckOutcome]) -> Found:
    asked = units_of(case)
    answers = {(group.index, sample): unit.answer() for (group, sample), unit in zip(asked, units, strict=True)}
    return Found(answers=answers, checks=checks)


def _of_judgement(case: Case, output: str, judgement: Judgement, units: Sequence[Unit]) -> CaseResult:
    met = result_of(case.rubric, judgement) == "satisfied"
    status: CaseStatus = "error" if judgement.error else "passed" if met else "failed"
    verdicts = [unit for unit in units if unit.verdict is not None]
    return ended(
        case,
        status,
        output=output,
        score=score_of(case.rubric, judgement),
        explanation=shortened(judgement.explanation),
        criteria=judgement.rows,
        error=judgement.error,
        cached=bool(verdicts) and all(unit.cached for unit in verdicts),
        grader=next((unit.judge for unit in units if unit.judge), None),
    )


def of_thread(case: Case, result: RunResult) -> CaseResult:
    """Return the result of a case that a thread drafted and judged."""
    last = result.evaluations[-1] if result.evaluations else None
    best = next((each for each in result.evaluations if each.iteration == result.best_iteration), last)
    ends: dict[str | None, CaseStatus] = {"satisfied": "passed", "max_iterations_reached": "failed", "failed": "failed"}
    status = ends.get(result.status, "error")
    told = result.error or (last.explanation if last else f"the thread ended as {result.status}")
    return ended(
        case,
        status,
        output=result.output,
        score=result.score,
        explanation=best.explanation if best else "",
        criteria=best.criteria if best else (),
        error=told if status == "error" else None,
        usage=result.usage,
        grader=best.grader if best else None,
        iterations=result.iterations,
        thread_id=result.thread_id,
    )


def of_judging(case: Case, output: str, result: JudgeResult) -> CaseResult:
    """Return the result of a case that a judgement of its own judged."""
    told: dict[str, Any] = result.output
    passed = told.get("result") == "satisfied"
    reason = str(result.result_metadata.get("reason") or "the judge gave no verdict")
    return ended(
        case,
        "error" if result.failed else "passed" if passed else "failed",
        output=output,
        score=told.get("score"),
        explanation=str(told.get("explanation") or ""),
        criteria=_ROWS.validate_python(told.get("criteria") or ()),
        error=reason if result.failed else None,
        usage=result.usage,
        grader=result.model,
        thread_id=result.id,
    )
