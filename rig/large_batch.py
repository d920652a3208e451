"""A batch as large as asked, of what a suite of support answers would hold.

A case has a question of three sentences, an output of some 1,500 characters, six criteria with reasons, and a gap where one fails; one
generator, or several that take turns.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from gradeloop.batches.column_table import ColumnTable
from gradeloop.batches.contract import BatchSummary, Case, CaseResult
from gradeloop.batches.pages.read_batch import BatchReport, head_of
from gradeloop.contract.evaluation import CriterionRow, Quote
from gradeloop.contract.messages import Usage

WORDS = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8").split()
"""What outputs are made of: as compressible as prose."""

CRITERIA = ("answers the question", "names a next step", "sounds friendly", "is short", "promises nothing", "quotes the right policy")
PASSING = 0.9
"""Of a criterion."""


MODELS = ("anthropic:claude-haiku-4-5", "openai:gpt-5-mini", "google_genai:gemini-3-flash")


def judged_cases(cases: int, models: int = 1, seed: int = 1) -> Iterator[tuple[Case, CaseResult]]:
    """Yield cases as a batch would hold them."""
    dice = random.Random(seed)
    for at in range(cases):
        label = MODELS[at % models]
        output = _prose(dice, 240)
        rows = tuple(_row(dice, number, output) for number in range(len(CRITERIA)))
        failing = sum(not row.passed for row in rows)
        case = Case.model_validate(
            {
                "id": f"question-{at // models:05}/{label}",
                "description": _prose(dice, 8),
                "messages": [{"role": "user", "content": _prose(dice, 50)}],
                "output": output,
                "rubric": {"criteria": [{"id": f"c{number + 1}", "description": text} for number, text in enumerate(CRITERIA)]},
            }
        )
        usage = Usage(input=900, output=160, calls=1, attempts=1, seconds=2.1, cost_usd=0.0004)
        judged = {"status": "failed" if failing else "passed", "score": 1 - failing / len(rows), "output": output, "criteria": rows}
        facts = {"description": case.description, "label": label, "grader": "openai:gpt-5", "usage": usage}
        yield case, CaseResult.model_validate({"index": at, "id": case.id, "explanation": _prose(dice, 20), **judged, **facts})


def report_of(cases: int, models: int = 1) -> BatchReport:
    """Return the report of so many cases, which that many generators share."""
    results = [result for _, result in judged_cases(cases, models)]
    usage = sum((result.usage for result in results), Usage())
    passed = sum(result.status == "passed" for result in results)
    summary = BatchSummary(
        batch_id="large-20260102-030405-abcd",
        name="support answers",
        created="2026-01-02T03:04:05+00:00",
        status="finished",
        total=cases,
        passed=passed,
        failed=cases - passed,
        usage=usage,
    )
    table = ColumnTable(summary, results)
    return BatchReport(head_of(summary, table=table), judged_cases(cases, models), columns=table)


def _prose(dice: random.Random, words: int) -> str:
    start = dice.randrange(len(WORDS) - words)
    return " ".join(WORDS[start : start + words])


def _row(dice: random.Random, number: int, output: str) -> CriterionRow:
    passed = dice.random() < PASSING
    quote = Quote(record=1, quote=output[40:120].strip(), quote_verified=True)
    gap = None if passed else _prose(dice, 14)
    quotes = (quote,) if number == 0 else ()
    return CriterionRow(id=f"c{number + 1}", name=CRITERIA[number], passed=passed, reason=_prose(dice, 18), gap=gap, quotes=quotes)
