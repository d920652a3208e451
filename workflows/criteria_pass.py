"""A judge with criteria: one grading pass of the loop, over a run that has finished."""

from temporalio import workflow

from workflows.calls import Calls, Waiting
from workflows.grading_pass import Grading
from workflows.rollouts import Unavailable
from workflows.run_state import GradingPass, GradingRun
from workflows.thread_state import Thread

with workflow.unsafe.imports_passed_through():
    import hashlib
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


class CriteriaPass:
    """Judges a thread that holds a finished run."""

    def __init__(self, thread: Thread, calls: Calls, rubric: Rubric, run: GradingRun, draft: int) -> None:
        self._thread = thread
        self._calls = calls
        self._rubric = rubric
        self._run = run
        self._pass = GradingPass(draft=draft)
        run.grading = self._pass

    async def judge(self) -> Summary:
        """Return the output and what is known of it.

        Raises:
            Unavailable: A provider, a tool or a grader elsewhere failed.
            NoVerdict: What the grader answered is no verdict, after its repairs.
        """
        try:
            judgement = await Grading(self._thread, self._run, self._pass, self._rubric, self._calls).judge()
        except Waiting:
            tools = ", ".join(sorted({each.tool for each in self._thread.pending.values()}))
            raise Unavailable(NOBODY.format(tools=tools)) from None
        if judgement.error is not None:
            raise (NoVerdict if self._is_malformed() else Unavailable)(judgement.error)
        return Summary(output=self._output(judgement), metadata=self._metadata(judgement))

    def _is_malformed(self) -> bool:
        """True where every conversation that failed did so by its answer; a check that could not decide has none."""
        errors = [each.error for each in self._pass.conversations.values() if each.error]
        return bool(errors) and all(error.startswith(MALFORMED) for error in errors)

    def _output(self, judgement: Judgement) -> dict[str, Any]:
        score = score_of(self._rubric, judgement)
        return {
            "result": result_of(self._rubric, judgement),
            **({} if score is None else {"score": score}),
            "criteria": [row.model_dump(mode="json", exclude_none=True) for row in judgement.rows],
            "explanation": shortened(judgement.explanation),
        }

    def _metadata(self, judgement: Judgement) -> dict[str, Any]:
        quotes = [quote for row in judgement.rows for quote in row.quotes]
        return {
            "contested": [row.id for row in judgement.rows if row.contested],
            "unverified": [row.id for row in judgement.rows if row.unverified],
            "citation_counts": {"cited": len(quotes), "verified": sum(bool(quote.quote_verified) for quote in quotes)},
            "draft": self._pass.draft,
        }

    @property
    def prompt_sha256(self) -> str | None:
        """Of what the graders were given: the one prompt's, or of all of them in order; None where checks alone decided."""
        found = [each.prompt_sha256 for _, each in sorted(self._pass.conversations.items()) if each.prompt_sha256]
        return None if not found else found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()

    @property
    def model(self) -> str | None:
        """Who judged, the first of several."""
        return self._pass.judged_by
