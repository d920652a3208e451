"""How large the page of many cases is, how long it takes to write, and when a browser first paints it: `python -m benchmarks.large_report`.

The cases are of what a suite of support answers would hold: a question of three sentences, an output of some 1,500 characters, six criteria
with reasons, a gap where one fails, two generators.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gradeloop.batches.contract import BatchSummary, Case, CaseResult
from gradeloop.contract.evaluation import CriterionRow, Quote
from gradeloop.contract.messages import Usage
from gradeloop.reports.html import write_page
from gradeloop.reports.read_batch import BatchReport, batch_page, head_of
from gradeloop.web.site import SteeredPage
from tests.rig.browser import chromium

WORDS = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8").split()
"""What outputs are made of: as compressible as prose."""

CRITERIA = ("answers the question", "names a next step", "sounds friendly", "is short", "promises nothing", "quotes the right policy")
PASSING = 0.9
"""Of a criterion."""


def told(cases: int, seed: int = 1) -> Iterator[tuple[Case, CaseResult]]:
    """Yield cases as a batch would hold them."""
    dice = random.Random(seed)
    for at in range(cases):
        label = ("anthropic:claude-haiku-4-5", "openai:gpt-5-mini")[at % 2]
        output = _prose(dice, 240)
        rows = tuple(_row(dice, number, output) for number in range(len(CRITERIA)))
        failing = sum(not row.passed for row in rows)
        case = Case.model_validate(
            {
                "id": f"question-{at // 2:05}/{label}",
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


def report_of(cases: int) -> BatchReport:
    """Return the report of so many cases."""
    results = [result for _, result in told(cases)]
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
    return BatchReport(head_of(summary), told(cases))


def first_paint(page: Path, runs: int) -> tuple[list[float], list[float], list[tuple[int, float]]]:
    """Return, in ms, when a new browser's page first painted something, when it was loaded, and how many rows it had when, for each run."""
    painted, ready, filled = [], [], []
    for _ in range(runs):
        with chromium() as browser:
            opened = browser.new_page(viewport={"width": 1280, "height": 900})
            opened.goto(page.as_uri())
            paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            opened.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length > 0")
            painted.append(float(opened.evaluate(paint)))
            ready.append(float(opened.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")))
            opened.locator("#rows").wait_for(state="detached")
            filled.append(opened.evaluate("[document.querySelectorAll('#table tbody tr').length, performance.now()]"))
    return painted, ready, filled


def main() -> None:
    """Write the page, open it, and print what that took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="write the page there")
    parser.add_argument("--live", action="store_true", help="the page as `gradeloop dev` serves it, whose rows lead to pages of their own")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.keep or Path(folder) / "report.html"
        report = report_of(arguments.cases)
        began = time.perf_counter()
        size = write_page(path, batch_page(report, live=SteeredPage(token="t", path="/") if arguments.live else None))
        seconds = time.perf_counter() - began
        painted, ready, filled = first_paint(path.resolve(), arguments.runs)
    paint, loaded, rows = statistics.median(painted), statistics.median(ready), max(count for count, _ in filled)
    print(f"{arguments.cases:,} cases: {size}, written in {seconds:.1f} s")
    print(f"first paint {paint:.0f} ms, loaded {loaded:.0f} ms, medians of {arguments.runs} new browsers")
    print(f"{rows:,} rows are there after {statistics.median(when for _, when in filled):.0f} ms")


def _prose(dice: random.Random, words: int) -> str:
    start = dice.randrange(len(WORDS) - words)
    return " ".join(WORDS[start : start + words])


def _row(dice: random.Random, number: int, output: str) -> CriterionRow:
    passed = dice.random() < PASSING
    quote = Quote(record=1, quote=output[40:120].strip(), quote_verified=True)
    gap = None if passed else _prose(dice, 14)
    quotes = (quote,) if number == 0 else ()
    return CriterionRow(id=f"c{number + 1}", name=CRITERIA[number], passed=passed, reason=_prose(dice, 18), gap=gap, quotes=quotes)


if __name__ == "__main__":
    main()
