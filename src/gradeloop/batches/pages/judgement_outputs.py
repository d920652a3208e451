"""The judgements of a command in files: JSON lines as they come; JSON, CSV, JUnit, Markdown and a page when all are there."""

import csv
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from pydantic import JsonValue, ValidationError

from gradeloop.batches.contract import BatchSummary, CaseResult, CaseStatus
from gradeloop.batches.outputs import JunitFile, ResultsOverview, as_json, cell_text, cell_value
from gradeloop.batches.pages.collection_page import Head
from gradeloop.batches.pages.judgement_page import judgement_markdown, judgement_page
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.files.output import PAGE, replacing, resolve_outputs
from gradeloop.judges.contract import JUDGEMENTS_SCHEMA, JudgeResult
from gradeloop.judges.pass_rule import unmet_values
from gradeloop.reports.html import write_page
from gradeloop.reports.model import RunReport

LINES = ".jsonl"
MARKDOWN = ".md"
SUFFIXES = (".csv", PAGE, ".json", LINES, MARKDOWN, ".xml")
"""The suffixes that an output of judgements may have."""

READ_BACK = (LINES, ".json")
"""The suffixes of files that `gradeloop report` reads."""

Judgements = Sequence[tuple[JudgeResult, int]]
"""Judgements, each with its number among those of one run, from 0."""


class JudgementOutputs:
    """Writes the files of judgements: `.jsonl` as they come, all others when all are there.

    Args:
        paths: The files.
        overwrite: Whether they may replace files that gradeloop did not write.

    Raises:
        InvalidRequest: A suffix is not known, or a file cannot be written or is not ours; no file is written then.
    """

    def __init__(self, paths: Sequence[Path], *, overwrite: bool = False) -> None:
        self._paths = resolve_outputs(paths, SUFFIXES, overwrite=overwrite)
        self._lines: list[TextIOWrapper] | None = None

    @property
    def explains(self) -> bool:
        """Whether a file is among them that shows judgements with their transcripts."""
        return any(path.suffix.lower() in {PAGE, MARKDOWN} for path in self._paths)

    def begin(self) -> None:
        """Empty the files that are written as judgements come."""
        self._lines = [path.open("w", encoding="utf-8") for path in self._paths if path.suffix.lower() == LINES]

    def take(self, line: str) -> None:
        """Write a judgement, as a line of JSON, to the files that are written as judgements come."""
        for file in self._lines or ():
            file.write(line)
            file.flush()

    def end(self) -> None:
        """Close the files that are written as judgements come."""
        for file in self._lines or ():
            file.close()

    def write(self, results: Judgements, head: Head | None, reports: Sequence[RunReport]) -> None:
        """Write the other files, each of which replaces an older one only when it is complete.

        Args:
            results: All judgements, in order.
            head: What a page begins with; None where none of the files explains.
            reports: The judgements as pages show them; empty where none of the files explains.
        """
        for path in self._paths:
            suffix = path.suffix.lower()
            if suffix in {PAGE, MARKDOWN} and head is not None:
                write_page(path, (judgement_page if suffix == PAGE else judgement_markdown)(head, reports))
            elif suffix in _WRITERS:
                with replacing(path) as file:
                    _WRITERS[suffix](file, results)


def _write_json(file: TextIO, results: Judgements) -> None:
    rows = ",\n".join(as_json(result) for result, _ in results)
    file.write(f'{{"schema":"{JUDGEMENTS_SCHEMA}",\n"judgements":[\n{rows}\n]}}\n')


COLUMNS = ("agent_run_id", "repeat", "result", "reason", "model", "cost_usd", "tokens", "judgement")
"""The columns of a CSV file before those of the judge's output, which are `output.KEY`."""


def _write_csv(file: TextIO, results: Judgements) -> None:
    keys = list(dict.fromkeys(key for result, _ in results for key in result.output))
    rows = csv.writer(file)
    rows.writerow([*COLUMNS, *(cell_text(f"output.{key}") for key in keys)])
    for result, repeat in results:
        facts = (cell_text(result.agent_run_id), repeat, status_of(result), cell_text(_why(result)), cell_text(result.model))
        cost = (result.usage.cost_usd, result.usage.tokens, result.id)
        values = (result.output.get(key) for key in keys)
        rows.writerow([*facts, *cost, *("" if value is None else cell_value(value) for value in values)])


def _write_junit(file: TextIO, results: Judgements) -> None:
    cases = [_case_of(result, at, repeat, repeated=any(number for _, number in results)) for at, (result, repeat) in enumerate(results)]
    overview = ResultsOverview.of(cases)
    first = results[0][0]
    gate = first.gate
    facts: Mapping[str, object] = {
        "batch_id": first.batch_id or f"{first.rubric_id}@{first.rubric_version}",
        "name": f"{first.rubric_id}@{first.rubric_version}",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": "finished",
        "total": len(cases),
        "pass_rate": 1.0 if gate is None or gate.pass_rate is None else gate.pass_rate,
        "usage": sum((result.usage for result, _ in results[1:]), first.usage),
    }
    writer = JunitFile(file, BatchSummary.model_validate(facts), overview)  # type: ignore[arg-type]  # it writes texts
    for case in cases:
        writer.write(case)
    writer.end()


_WRITERS = {".json": _write_json, ".csv": _write_csv, ".xml": _write_junit}


def status_of(result: JudgeResult) -> CaseStatus:
    """Return what became of a judgement, as cases of a batch say it; `ungraded` where no rule says what passes."""
    if result.failed:
        return "error"
    if result.unsure:
        return "unsure"
    return "ungraded" if result.passed is None else "passed" if result.passed else "failed"


def _why(result: JudgeResult) -> str:
    """Return why a judgement did not pass, or is none; empty where it passed."""
    if result.failed:
        return str(result.result_metadata.get("reason") or "")
    if result.unsure:
        return f"unsure of {', '.join(result.unsure)}"
    return "no rule says what passes" if result.passed is None else "; ".join(unmet_values(result))


def _case_of(result: JudgeResult, at: int, repeat: int, *, repeated: bool) -> CaseResult:
    """Return a judgement as a case."""
    rows: list[CriterionRow] = []
    with suppress(ValidationError, TypeError):
        rows = [CriterionRow.model_validate(row) for row in _list(result.output.get("criteria"))]
    return CaseResult(
        index=at,
        id=f"{result.agent_run_id}/{repeat + 1}" if repeated else result.agent_run_id,
        repeat=repeat,
        status=status_of(result),
        output=json.dumps(result.output, ensure_ascii=False) if result.output else None,
        explanation=_why(result),
        criteria=tuple(rows),
        unsure=result.unsure,
        error=_why(result) if result.failed else None,
        usage=result.usage,
        grader=result.model,
    )


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
