"""Results in the shape that promptfoo imports: `gradeloop eval -o results.promptfoo.json`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from pydantic_core import to_json

from gradeloop.batches.answer import STATUS_LABELS, failure_reason
from gradeloop.batches.contract import SCHEMA, BatchSummary, CaseResult
from gradeloop.batches.metric_table import MetricFigure, MetricTable
from gradeloop.batches.outputs import Renderer, encodable_json
from gradeloop.contract.messages import Usage

_ENDS = {"passed": ("Pass", 0), "failed": ("Fail", 1)}
"""How promptfoo counts a case and says why it did not pass; all others are its errors."""


@dataclass
class _Column:
    """The sums for one prompt and generator."""

    at: int
    ends: Counter[str] = field(default_factory=Counter)
    scores: Counter[str] = field(default_factory=Counter)
    usage: Usage = Usage()  # noqa: RUF009 - frozen
    score: float = 0.0


class PromptfooFile:
    """Writes a batch as version 3 of promptfoo's results, which its `import` reads.

    A case without a verdict, or with one on a part of what is asked, is an error there, whose text says what it is.
    """

    def __init__(self, file: TextIO, summary: BatchSummary) -> None:
        self._file, self._separator = file, "\n"
        self._plain = summary.model_copy(update={"derived_metrics": ()})
        self._columns: dict[tuple[str | None, str | None], _Column] = {}
        self._tests: dict[tuple[str, int], int] = {}
        head = {"schema": SCHEMA, "evalId": summary.batch_id, "config": {"description": summary.name or summary.batch_id}}
        head |= {"metadata": {"evaluationCreatedAt": summary.created}}
        file.write(f'{_text(head)[:-1]},\n"results":{{"version":3,"timestamp":{_text(summary.created)},"results":[')

    def write(self, result: CaseResult) -> None:
        """Write the next case."""
        column = self._columns.setdefault((result.prompt, result.label), _Column(len(self._columns)))
        scores = {figure.name: figure.value or 0.0 for figure in MetricTable(self._plain, [result]).figures()}
        end, reason = _ENDS.get(result.status, ("Error", 2))
        column.ends[f"test{end}Count"] += 1
        column.scores.update(scores)
        column.usage, column.score = column.usage + result.usage, column.score + (result.score or 0.0)
        checked = [] if end == "Error" else [row for row in result.criteria if not row.unverified]
        column.ends.update(f"assert{'Pass' if row.verdict == 'passed' else 'Fail'}Count" for row in checked)
        why = failure_reason(result) or result.explanation
        parts = [
            {
                "pass": row.verdict == "passed",
                "score": float(row.passed) if row.score is None else row.score,
                "reason": row.reason or row.why_failed,
                "assertion": {"type": "llm-rubric", "value": row.name},
            }
            for row in checked
        ]
        name = result.id
        for label in (str(result.repeat + 1), result.label, result.prompt):
            name = name.removesuffix(f"/{label}")
        about = {"promptIdx": column.at, "testIdx": self._tests.setdefault((name, result.repeat), len(self._tests))}
        costs = {"cost": result.usage.cost_usd or 0.0, "tokenUsage": _tokens(result.usage)}
        judged = {"pass": not reason, "score": result.score or 0.0, "reason": why, "namedScores": scores, "componentResults": parts}
        row = {
            **about,
            **costs,
            "id": result.id,
            "promptId": f"prompt {column.at}",
            "provider": {"id": result.label or "", "label": result.label or ""},
            "prompt": {"raw": result.prompt or result.id, "label": result.prompt or ""},
            "vars": result.vars,
            "testCase": {"vars": result.vars, "description": result.description or result.id},
            "response": {"output": result.output or "", "cached": result.cached, **costs},
            "success": not reason,
            "failureReason": reason,
            "score": result.score or 0.0,
            "latencyMs": round(result.usage.seconds * 1000),
            "namedScores": scores,
            "gradingResult": None if end == "Error" else judged,
            "error": f"{STATUS_LABELS[result.status][0]}: {result.error or why}" if end == "Error" else None,
        }
        self._file.write(self._separator + _text(row))
        self._separator = ",\n"

    def end(self, metrics: Sequence[MetricFigure] = ()) -> None:
        """Write the columns, whose sums promptfoo shows, and those of all cases."""
        ends, usage, prompts = Counter[str](), Usage(), list[Any]()
        for (prompt, label), column in self._columns.items():
            mine = [figure for figure in metrics if (figure.prompt, figure.label) == (prompt, label)]
            sums = column.scores | {figure.name: figure.value or 0.0 for figure in mine if not figure.criteria}
            counts = {figure.name: figure.criteria or 1 for figure in mine}
            known = dict.fromkeys(("testPassCount", "testFailCount", "testErrorCount", "assertPassCount", "assertFailCount"), 0)
            spent = {"cost": column.usage.cost_usd or 0.0, "tokenUsage": _tokens(column.usage)}
            spent |= {"score": column.score, "totalLatencyMs": round(column.usage.seconds * 1000)}
            figures = known | dict(column.ends) | spent | {"namedScores": sums, "namedScoresCount": counts}
            name = prompt or label or ""
            prompts.append({"id": f"prompt {column.at}", "raw": name, "label": name, "provider": label or "", "metrics": figures})
            ends, usage = ends + column.ends, usage + column.usage
        names = {"successes": "testPassCount", "failures": "testFailCount", "errors": "testErrorCount"}
        stats = {theirs: ends[ours] for theirs, ours in names.items()} | {"tokenUsage": _tokens(usage)}
        self._file.write(f'\n],\n"prompts":{_text(prompts)},\n"stats":{_text(stats)}}}}}\n')


def _text(value: Any) -> str:  # noqa: ANN401 - JSON of any shape
    return to_json(encodable_json(value), inf_nan_mode="null").decode()


def _tokens(usage: Usage) -> dict[str, int]:
    given, made = usage.input or 0, usage.output or 0
    return {"prompt": given, "completion": made, "total": given + made, "cached": 0, "numRequests": usage.calls}


RENDERERS = (Renderer("promptfoo", (".promptfoo.json",), lambda file, batch: PromptfooFile(file, batch.summary)),)
