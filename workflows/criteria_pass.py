"""A judge with criteria: one grading pass of the loop, over a run that has finished."""

from temporalio import workflow

from workflows.calls import Calls, Waiting
from workflows.grading_pass import Grading
from workflows.rollouts import Unavailable
from workflows.run_state import GradingPass, GradingRun
from workflows.thread_state import Thread

with workflow.unsafe.imports_passed_through():
    from typing import Any

    from gradeloop.evaluation import Judgement
    from gradeloop.judges.summary import Summary
    from gradeloop.printable import shortened
    from gradeloop.rubric import Rubric
    from gradeloop.scoring import result_of, score_of

MALFORMED = "malformed_verdict"
"""How the error begins of a grader that was reached, and gave no verdict."""

NOBODY = "{tools}: a person has to approve this call, and a judge asks nobody; leave the tool out, or judge in a thread"


class NoVerdict(Exception):
    """The grader answered, and its answer is no verdict."""


async def judge_by_criteria(thread: Thread, run: GradingRun, held: GradingPass, rubric: Rubric, calls: Calls) -> Summary:
    """Judge a thread that holds a finished run; return the output and what is known of it.

    Raises:
        Unavailable: A provider, a tool or a remote grader failed.
        NoVerdict: What the grader answered is no verdict, after its repairs.
    """
    try:
        judgement = await Grading(thread, run, held, rubric, calls).judge()
    except Waiting:
        tools = ", ".join(sorted({each.tool for each in thread.pending.values()}))
        raise Unavailable(NOBODY.format(tools=tools)) from None
    if judgement.error is not None:
        # Malformed where every conversation that failed did so by its answer; a check that could not decide has none.
        errors = [each.error for each in held.conversations.values() if each.error]
        malformed = bool(errors) and all(error.startswith(MALFORMED) for error in errors)
        raise (NoVerdict if malformed else Unavailable)(judgement.error)
    return Summary(output=_output(rubric, judgement), metadata=_metadata(judgement, held.draft))


def _output(rubric: Rubric, judgement: Judgement) -> dict[str, Any]:
    score = score_of(rubric, judgement)
    return {
        "result": result_of(rubric, judgement),
        **({} if score is None else {"score": score}),
        "criteria": [row.model_dump(mode="json", exclude_none=True) for row in judgement.rows],
        "explanation": shortened(judgement.explanation),
    }


def _metadata(judgement: Judgement, draft: int) -> dict[str, Any]:
    quotes = [quote for row in judgement.rows for quote in row.quotes]
    return {
        "contested": [row.id for row in judgement.rows if row.contested],
        "unverified": [row.id for row in judgement.rows if row.unverified],
        "citation_counts": {"cited": len(quotes), "verified": sum(bool(quote.quote_verified) for quote in quotes)},
        "draft": draft,
    }
