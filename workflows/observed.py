"""Metrics and traces of what workflows decide; a replay counts nothing again, and nothing of it is in a history."""

from gradeloop.contract.evaluation import Evaluation
from gradeloop.grading.scoring import trace_grading
from gradeloop.telemetry.metrics import CACHE_HITS, JUDGEMENTS, RUN_ITERATIONS, RUNS, VERDICTS
from workflows.thread_state import Thread


def evaluated(thread: Thread, evaluation: Evaluation) -> None:
    """Count a grading pass, and trace it with the rows of its criteria."""
    VERDICTS.record(result=evaluation.result)
    ids: dict[str, str | int | None] = {
        "gen_ai.conversation.id": thread.thread_id,
        "gradeloop.run": evaluation.grading_run_id,
        "gradeloop.iteration": evaluation.iteration,
    }
    trace_grading(evaluation.result, evaluation.score, evaluation.explanation, evaluation.criteria, ids)


def reused() -> None:
    """Count a verdict that was asked for before about the same draft."""
    CACHE_HITS.record(where="thread")


def turn_ended(thread: Thread) -> None:
    """Count how a turn ended, or why it was interrupted."""
    run = thread.run
    away = thread.status if thread.status in {"interrupted", "waiting"} else None
    RUNS.record(status=away or (run.status if run else "ungraded"), reason=thread.reason or "none")
    if run is not None and away is None:
        RUN_ITERATIONS.record(run.iteration + 1)


def refused() -> None:
    """Count a thread that its worker cannot serve."""
    RUNS.record(status="refused", reason="none")


def judged(kind: str) -> None:
    """Count a judgement of a finished run."""
    JUDGEMENTS.record(type=kind.lower())
