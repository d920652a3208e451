"""A batch's results as `-o` wrote them, told without a store or a server."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from gradeloop.batches.case_result import BatchSummary, CaseResult
from gradeloop.comparisons.export_file import read_export
from gradeloop.errors import InvalidRequest, explain
from gradeloop.reports.batch_report import BatchReport, head_of
from gradeloop.usage import Usage

M = TypeVar("M", bound=BaseModel)


def report_of_file(path: Path) -> BatchReport:
    """Return the report of a file of results; of a case that is there twice the last line counts.

    Raises:
        InvalidRequest: It is no such file, or of another version; the message names the place.
    """
    source = read_export(path)  # which tells what is no such file from one, line by line
    text = path.read_text(encoding="utf-8-sig")
    whole = None if source.batch_id is None else json.loads(text)
    cases = whole["cases"] if whole else [json.loads(line) for line in text.split("\n") if line.strip()]
    results = list({result.id: result for result in _results(path, cases)}.values())
    summary = _known(BatchSummary, whole["summary"], f"{path}, summary") if whole else _counted(path, results)
    head = replace(head_of(summary, source.notes), batch_id=None)
    return BatchReport(head, [(None, result) for result in results], repeated=any(each.repeat for each in results))


def _results(path: Path, cases: Sequence[Mapping[str, JsonValue]]) -> Iterator[CaseResult]:
    for number, case in enumerate(cases, 1):
        yield _known(CaseResult, case, f"{path}, case {number}")


def _known(model: type[M], told: Mapping[str, JsonValue], place: str) -> M:
    """Return what is known of an object; keys that a later version added are passed over."""
    try:
        return model.model_validate({name: value for name, value in told.items() if name in model.model_fields})
    except ValidationError as error:
        raise InvalidRequest(
            f"{place}: this result cannot be read: {explain(error)}; write the file again with this version of gradeloop"
        ) from None


def _counted(path: Path, results: Sequence[CaseResult]) -> BatchSummary:
    """Return what the cases of a file come to that holds nothing else."""
    counts = Counter(each.status for each in results)
    started = min((each.finished for each in results if each.finished), default="")
    usage = sum((each.usage for each in results), Usage())
    told = {"batch_id": path.stem, "created": started, "status": "finished", "total": len(results), "usage": usage}
    numbers = {"passed": counts["passed"], "failed": counts["failed"], "errors": counts["error"], "waiting": counts["waiting"]}
    return BatchSummary.model_validate(told | numbers | {"cached": sum(each.cached for each in results)})
