"""What a grader was given, put together again from what the thread holds."""

from temporalio import workflow

from workflows.thread_state import Thread

with workflow.unsafe.imports_passed_through():
    from gradeloop.call_groups import call_groups
    from gradeloop.contracts import GivenPrompt
    from gradeloop.evaluation import CheckOutcome
    from gradeloop.grader_prompt import Judged, grader_prompt
    from gradeloop.prompts import VERSION
    from gradeloop.transcript import FEEDBACK_SOURCE

MASK = "(the run's random code)"


def given_prompt(thread: Thread, index: int, number: int) -> GivenPrompt | None:
    """Return what a call group's grader was given for an evaluation; None where there is no such one, or its rubric is gone."""
    if not 0 <= index < len(thread.evaluations):
        return None
    evaluation = thread.evaluations[index]
    rubric = thread.rubric_of(evaluation.rubric_sha256)
    groups = call_groups(rubric) if rubric else ()
    if rubric is None or not 0 <= number < len(groups) or evaluation.prompt_version != VERSION:
        return None
    messages = thread.log.slice(0, evaluation.draft + 1)
    asked = [at for at, message in enumerate(messages) if message.role == "user" and message.source != FEEDBACK_SOURCE]
    checks = {row.id: CheckOutcome(passed=row.passed, gap=row.gap) for row in evaluation.criteria if row.by == "tool"}
    judged = Judged(messages, asked[-1], evaluation.draft, checks, MASK)
    given = grader_prompt(rubric, groups[number], judged, instructions=thread.grader.system_prompt if thread.grader else None)
    return GivenPrompt(
        prompt_version=VERSION,
        rubric_sha256=rubric.sha256(),
        criteria=groups[number].ids,
        groups=len(groups),
        system=given.system,
        messages=given.messages,
    )
