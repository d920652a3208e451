"""The loop itself: generate, grade, decide, append."""

from collections.abc import Callable

from temporalio import workflow

from workflows.calls import Calls, Interrupted, OverBudget
from workflows.drafting import Drafting
from workflows.grading_pass import Grading
from workflows.run_state import GradingPass, GradingRun
from workflows.thread_state import Thread
from workflows.turns import take_supplied

with workflow.unsafe.imports_passed_through():
    from gradeloop.evaluation import Evaluation, Judgement
    from gradeloop.feedback import feedback
    from gradeloop.printable import shortened
    from gradeloop.prompts import VERSION
    from gradeloop.rubric import Rubric
    from gradeloop.scoring import result_of, score_of, status_of


class Rolling(Exception):
    """The history has grown: the run goes on, as it stands, in a new run of the workflow."""


class GradingLoop:
    """Drives one turn of a thread to its end; called again on the same state, it goes on where it stopped."""

    def __init__(self, thread: Thread, calls: Calls, report: Callable[[], None]) -> None:
        self._thread = thread
        self._calls = calls
        self._report = report
        self.drafting = Drafting(thread, calls)

    async def turn(self) -> None:
        """Answer the thread's request, until its grading run ends or the draft is there that nobody grades.

        Raises:
            Interrupted: The thread is stopping.
            Waiting: A person has to decide.
            DraftFailed: There is no draft to be had.
            Rolling: An iteration is done and the history is long.
        """
        while True:
            try:
                await self._under_one_rubric()
            except OverBudget:
                raise
            except Interrupted:
                if self._calls.stopping == "person":
                    raise
            if self._thread.supplied is None:
                return
            take_supplied(self._thread)
            self._calls.stopping = None if self._calls.stopping == "rubric" else self._calls.stopping
            self._report()

    async def _under_one_rubric(self) -> None:
        thread = self._thread
        rubric, run = thread.rubric_in_force, thread.run
        if rubric is None or run is None:
            if thread.drafting is not None or (thread.turn < len(thread.log) and thread.last_draft(thread.turn) is None):
                await self.drafting.draft()
            return
        while run.status == "running" and thread.supplied is None:
            await self._iterate(rubric, run)
        if run.status == "max_iterations_reached":
            workflow.logger.warning("the draft still fails its rubric after %d iterations", run.max_iterations)

    async def _iterate(self, rubric: Rubric, run: GradingRun) -> None:
        if run.grading is None:
            draft = await self.drafting.draft()
            run.grading = GradingPass(draft=draft)
            self._thread.tell("rubric_evaluation_start", index=len(self._thread.evaluations))
            self._report()
        held = run.grading
        if self._thread.supplied is not None or run.status != "running":
            return
        judgement = await Grading(self._thread, run, held, rubric, self._calls).judge()
        if run.status != "running":  # a person's word has ended it meanwhile
            return
        evaluation = self._decide(rubric, run, held, judgement)
        if evaluation.status == "running" and self._thread.supplied is None:
            self.drafting.append(feedback(rubric, evaluation))
            run.iteration += 1
            self._report()
            if workflow.info().is_continue_as_new_suggested():
                raise Rolling

    def _decide(self, rubric: Rubric, run: GradingRun, held: GradingPass, judgement: Judgement) -> Evaluation:
        result = result_of(rubric, judgement)
        run.status = status_of(result, last=run.iteration + 1 >= run.max_iterations)
        evaluation = Evaluation(
            grading_run_id=run.grading_run_id,
            iteration=run.iteration,
            result=result,
            status=run.status,
            explanation=shortened(judgement.explanation),
            criteria=judgement.rows,
            score=score_of(rubric, judgement),
            unverified=any(row.unverified for row in judgement.rows),
            usage=held.usage,
            draft=held.draft,
            grader=held.judged_by,
            rubric_sha256=rubric.sha256(),
            prompt_version=VERSION if rubric.judged else None,
        )
        if self._thread.bytes() + evaluation.size() > self._thread.limit:
            evaluation = evaluation.curtailed()
        self._thread.evaluations.append(evaluation)
        run.grading = None
        self._thread.tell("rubric_evaluation_end", index=len(self._thread.evaluations) - 1, result=result, status=run.status)
        return evaluation
