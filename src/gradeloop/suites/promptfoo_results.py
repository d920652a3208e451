"""Results in the shape that promptfoo imports: `gradeloop eval -o results.promptfoo.json`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, TextIO

from pydantic_core import to_json

from gradeloop.batches.answer import NOT_ASKED, STATUS_LABELS, failure_reason
from gradeloop.batches.column_table import ColumnTable, MetricFigure
from gradeloop.batches.contract import SCHEMA, BatchSummary, CaseResult
from gradeloop.batches.outputs import Renderer, encodable_json
from gradeloop.contract.messages import Usage

_ENDS = {"passed": ("Pass", 0), "failed": ("Fail", 1)}
"""Counts of promptfoo's that a case adds to, and its number of why the case did not pass; all others are its errors."""

_COUNTS = ("testPassCount", "testFailCount", "testErrorCount", "assertPassCount", "assertFailCount")


class PromptfooFile:
    """Writes a batch as version 3 of promptfoo's results, which its `import` reads.

    A case without a verdict, or with one on a part of what is asked, is an error there, whose text says what it is. One that was not asked,
    since the answer was known early, has no row.
    """

    def __init__(self, file: TextIO, summary: BatchSummary) -> None:
        self._file, self._separator = file, "\n"
        self._plain = summary.model_copy(update={"derived_metrics": ()})
        self._columns: dict[tuple[str | None, str | None], tuple[Counter[str], Counter[str], list[Usage]]] = {}
        """The counts, the scores by metric, and the usage for each prompt and generator."""
        self._tests: dict[tuple[str, int], int] = {}
        head = {"schema": SCHEMA, "evalId": summary.batch_id, "config": {"description": summary.name or summary.batch_id}}
        file.write(f'{_text(head)[:-1]},\n"results":{{"version":3,"timestamp":{_text(summary.created)},"results":[')

    def write(self, result: CaseResult) -> None:
        """Write the next case."""
        if (result.error or "").startswith(NOT_ASKED):
            return
        end, reason = _ENDS.get(result.status, ("Error", 2))
        counts, sums, usages = self._columns.setdefault((result.prompt, result.label), (Counter(dict.fromkeys(_COUNTS, 0)), Counter(), []))
        scores = {figure.name: figure.value or 0.0 for figure in ColumnTable(self._plain, [result]).figures()}
        checked = [] if end == "Error" else [row for row in result.criteria if not row.unverified]
        counts.update([f"test{end}Count", *(f"assert{'Pass' if row.verdict == 'passed' else 'Fail'}Count" for row in checked)])
        sums.update(scores | {"": result.score or 0.0})
        usages[:] = [sum(usages, result.usage)]
        name, why = result.id, failure_reason(result) or result.explanation
        for label in (str(result.repeat + 1), result.label, result.prompt):
            name = name.removesuffix(f"/{label}")
        score, costs = {"score": result.score or 0.0, "namedScores": scores}, _costs(result.usage)
        row: dict[str, Any] = {"id": result.id, "success": not reason, "failureReason": reason, "vars": result.vars, **score, **costs}
        row |= {"promptIdx": list(self._columns).index((result.prompt, result.label)), "promptId": f"{result.prompt} / {result.label}"}
        row |= {"testIdx": self._tests.setdefault((name, result.repeat), len(self._tests))}
        row |= {"testCase": {"vars": result.vars, "description": result.description or result.id}}
        row |= {"provider": {"id": result.label or "", "label": result.label or ""}, "latencyMs": round(result.usage.seconds * 1000)}
        row |= {"prompt": {"raw": result.prompt or result.id, "label": result.prompt or ""}}
        row |= {"response": {"output": result.output or "", "cached": result.cached, **costs}}
        if end == "Error":
            row |= {"error": f"{STATUS_LABELS[result.status][0]}: {result.error or why}"}
        else:
            parts = [{"pass": one.verdict == "passed", "score": float(one.passed) if one.score is None else one.score} for one in checked]
            said = [{"reason": one.reason or one.why_failed, "assertion": {"type": "llm-rubric", "value": one.name}} for one in checked]
            components = [part | words for part, words in zip(parts, said, strict=True)]
            row |= {"gradingResult": {"pass": not reason, "reason": why, "componentResults": components, **score}}
        self._file.write(self._separator + _text(row))
        self._separator = ",\n"

    def end(self, metrics: Sequence[MetricFigure] = ()) -> None:
        """Write the columns, whose sums promptfoo shows, and those of all cases."""
        total, prompts = Counter[str](), list[Any]()
        for (prompt, label), (counts, sums, usages) in self._columns.items():
            mine = [figure for figure in metrics if (figure.prompt, figure.label) == (prompt, label)]
            scores = {name: sums[name] for name in sums if name} | {one.name: one.value or 0.0 for one in mine if not one.criteria}
            figures = {"score": sums[""], "namedScores": scores, "namedScoresCount": {one.name: one.criteria or 1 for one in mine}}
            shown = {"raw": prompt or label or "", "label": prompt or label or "", "id": f"{prompt} / {label}", "provider": label or ""}
            prompts.append({**shown, "metrics": {**counts, **figures, **_costs(usages[0])}})
            total += counts
        usage = sum((usages[0] for *_, usages in self._columns.values()), Usage())
        stats = {"successes": total[_COUNTS[0]], "failures": total[_COUNTS[1]], "errors": total[_COUNTS[2]], **_costs(usage)}
        self._file.write(f'\n],\n"prompts":{_text(prompts)},\n"stats":{_text(stats)}}}}}\n')


def _text(value: Any) -> str:  # noqa: ANN401 - JSON of any shape
    return to_json(encodable_json(value), inf_nan_mode="null").decode()


def _costs(usage: Usage) -> dict[str, Any]:
    tokens = {"prompt": usage.input or 0, "completion": usage.output or 0, "total": usage.tokens or 0, "cached": 0}
    return {"cost": usage.cost_usd or 0.0, "tokenUsage": tokens | {"numRequests": usage.calls}}


RENDERERS = (Renderer("promptfoo", (".promptfoo.json",), lambda file, batch: PromptfooFile(file, batch.summary)),)
