"""A run explained as plain text: the verdict, every criterion with its evidence, and the tool calls behind it."""

import json
from collections.abc import Iterator

from gradeloop.contract.evaluation import CriterionRow, Evaluation
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.verdicts import contradiction
from gradeloop.reports.model import RunReport, SchemaVerdict
from gradeloop.text import encodable, one_line, printable, shortened

TEXT_CHARACTERS = 20_000
"""The most characters of an explanation: a reader with a context window reads it whole."""

EVIDENCE_CHARACTERS = 600
"""The most characters of one quote, reason or tool output."""


def explain_run(report: RunReport) -> str:
    """Return what a run's verdict is and why, as lines of text; what was quoted of the run stands in JSON strings, on one line each."""
    lines = [f"{report.kind} {one_line(report.name)}: {one_line(report.word)}{_score(report.score)}"]
    lines += [f"error: {_cut(report.error)}"] if report.error else []
    if report.evaluations:
        last = report.evaluations[-1]
        lines += _evaluation_lines(last, len(report.evaluations), report.rubric)
        tools = [tool for tool in report.tools if tool.role != "generator" and tool.grading_run_id in {None, last.grading_run_id}]
        for tool in tools:
            arguments = one_line(shortened(json.dumps(tool.arguments, ensure_ascii=False), EVIDENCE_CHARACTERS))
            lines.append(f"tool {one_line(tool.tool)}({arguments}){' failed' if tool.failed else ''}: {_quoted(tool.output)}")
    if report.judged is not None:
        lines += _schema_lines(report.judged)
    if report.waiting_for is not None:
        lines += [f"waits for a person: {row.id}: {_cut(row.name)}" for row in report.waiting_for.criteria]
    lines += [f"note: {_cut(note)}" for note in report.notes]
    return shortened(encodable("\n".join(lines)), TEXT_CHARACTERS)


def _score(score: float | None) -> str:
    return "" if score is None else f", score {score:.2f}"


def _cut(text: str) -> str:
    return shortened(one_line(text), EVIDENCE_CHARACTERS)


def _quoted(text: str) -> str:
    return json.dumps(shortened(printable(text), EVIDENCE_CHARACTERS), ensure_ascii=False)


def _evaluation_lines(evaluation: Evaluation, count: int, rubric: Rubric | None) -> Iterator[str]:
    grader = f", judged by {evaluation.grader}" if evaluation.grader else ""
    yield f"evaluation {count} (iteration {evaluation.iteration}): {evaluation.result}{_score(evaluation.score)}{grader}"
    yield f"explanation: {_cut(evaluation.explanation)}"
    for row in evaluation.criteria:
        yield from _row_lines(row, contradiction(row, rubric))


def _row_lines(row: CriterionRow, note: str) -> Iterator[str]:
    verdict = "not verified" if row.unverified else "passes" if row.passed else "fails"
    yield f"- {one_line(row.id)} {verdict} (decided by: {row.by}): {_cut(row.name)}"
    yield f"  reason: {_cut(row.reason)}"
    yield from [f"  note: {_cut(note)}"] if note else ()
    if row.gap:
        yield f"  gap: {_cut(row.gap)}"
    for quote in row.quotes:
        found = {True: "found word for word", False: "NOT found", None: "not looked up"}[quote.quote_verified]
        yield f"  quote of record {quote.record} ({found}): {_quoted(quote.quote)}"
    if row.override is not None:
        yield f"  overridden by {one_line(row.override.by)}: {'passes' if row.override.passed else 'fails'}, {_cut(row.override.why)}"


def _schema_lines(judged: SchemaVerdict) -> Iterator[str]:
    if judged.reason is not None:
        yield f"no output: {_cut(judged.reason)}"
    for name, value in judged.output.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{one_line(name)}: {_quoted(text)}"
    for citation in judged.citations:
        found = "verified" if citation.verified else f"NOT verified: {_cut(citation.problem or '')}"
        yield f"  citation {citation.target} ({found}){f': {_quoted(citation.quote)}' if citation.quote else ''}"
