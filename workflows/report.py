"""What Temporal shows of a thread: search attributes, and the details on its page."""

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from workflows.calls import Calls
from workflows.thread_state import Thread

with workflow.unsafe.imports_passed_through():
    from gradeloop.contracts import SEARCH_ATTRIBUTES
    from gradeloop.evaluation import Evaluation
    from gradeloop.printable import one_line

DETAILS_CHARACTERS = 8_000
"""Shown in the Temporal UI, which takes 20,000 bytes."""

ROWS = 20
"""Evaluations told in the details, the newest ones."""


class Report:
    """Tells Temporal where the thread stands."""

    def __init__(self, thread: Thread, calls: Calls) -> None:
        self._thread = thread
        self._calls = calls
        self._written: tuple[str, str, str] | None = None

    def tell(self) -> None:
        """Write the details, and the search attributes where the first call told that they exist."""
        thread = self._thread
        run, rubric = thread.run, thread.rubric_in_force
        status = thread.status if thread.status in {"interrupted", "waiting"} else run.status if run else "ungraded"
        rows = [line for each in thread.evaluations[-ROWS:] for line in _details(each)]
        workflow.set_current_details("\n".join([f"Status: **{status}**", "", *rows])[:DETAILS_CHARACTERS])
        wanted = (status, run.grading_run_id if run else "", rubric.sha256() if rubric else "")
        if self._calls.offer and self._calls.offer.search_attributes and wanted != self._written:
            keys = [SearchAttributeKey.for_keyword(name) for name in SEARCH_ATTRIBUTES]
            workflow.upsert_search_attributes([key.value_set(value) for key, value in zip(keys, wanted, strict=True) if value])
            self._written = wanted


def _details(evaluation: Evaluation) -> list[str]:
    """Return an evaluation as Markdown, numbered from 1 as the calls are, with a line for each criterion that fails."""
    gaps = [f"  - ✗ {row.id}: {one_line(row.gap or '')}" for row in evaluation.criteria if not row.passed]
    return [f"- iteration {evaluation.iteration + 1}: **{evaluation.result}**. {one_line(evaluation.explanation)}", *gaps]
