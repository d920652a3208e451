"""A batch's results as `-o` wrote them, told without a store or a server."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gradeloop.batches.case_result import BatchSummary, CaseResult
from gradeloop.comparisons.export_file import read_export
from gradeloop.reports.batch_report import BatchReport, head_of
from gradeloop.usage import Usage


def report_of_file(path: Path) -> BatchReport:
    """Return the report of a file of results; of a case that is there twice the last line counts.

    Raises:
        InvalidRequest: It is no such file, or of another version; the message names the place.
    """
    found = read_export(path, lambda result: result)
    summary = found.summary or _counted(path, found.cases)
    head = replace(head_of(summary, found.notes), batch_id=None)
    return BatchReport(head, [(None, result) for result in found.cases], repeated=any(result.repeat for result in found.cases))


def _counted(path: Path, results: Sequence[CaseResult]) -> BatchSummary:
    """Return what the cases of a file come to that holds nothing else."""
    counts = Counter(each.status for each in results)
    started = min((each.finished for each in results if each.finished), default="")
    usage = sum((each.usage for each in results), Usage())
    told = {"batch_id": path.stem, "created": started, "status": "finished", "total": len(results), "usage": usage}
    numbers = {"passed": counts["passed"], "failed": counts["failed"], "errors": counts["error"], "waiting": counts["waiting"]}
    return BatchSummary.model_validate(told | numbers | {"cached": sum(each.cached for each in results)})
