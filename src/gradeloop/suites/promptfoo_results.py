"""Results in the shape that promptfoo imports: `gradeloop eval -o results.promptfoo.json`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, TextIO

from pydantic_core import to_json

from gradeloop.batches.after_each import promptfoo_costs, promptfoo_row
from gradeloop.batches.answer import NOT_ASKED
from gradeloop.batches.column_table import MetricFigure
from gradeloop.batches.contract import SCHEMA, BatchSummary, CaseResult
from gradeloop.batches.outputs import Renderer, encodable_json
from gradeloop.contract.messages import Usage

_COUNTS = ("testPassCount", "testFailCount", "testErrorCount", "assertPassCount", "assertFailCount")


class PromptfooFile:
    """Writes a batch as version 3 of promptfoo's results, which its `import` reads.

    A case without a verdict, or with one on a part of what is asked, is an error there, whose text says what it is. One that was not asked,
    since the answer was known early, has no row.
    """

    def __init__(self, file: TextIO, summary: BatchSummary) -> None:
        self._file, self._separator = file, "\n"
        self._columns: dict[tuple[str | None, str | None], tuple[Counter[str], Counter[str], list[Usage]]] = {}
        """The counts, the scores by metric, and the usage for each prompt and generator."""
        self._tests: dict[tuple[str, int], int] = {}
        head = {"schema": SCHEMA, "evalId": summary.batch_id, "config": {"description": summary.name or summary.batch_id}}
        file.write(f'{_text(head)[:-1]},\n"results":{{"version":3,"timestamp":{_text(summary.created)},"results":[')

    def write(self, result: CaseResult) -> None:
        """Write the next case."""
        if (result.error or "").startswith(NOT_ASKED):
            return
        row, column = promptfoo_row(result), (result.prompt, result.label)
        counts, sums, usages = self._columns.setdefault(column, (Counter(dict.fromkeys(_COUNTS, 0)), Counter(), []))
        passes = [part["pass"] for part in row.get("gradingResult", {}).get("componentResults", ())]
        counts.update([_COUNTS[row["failureReason"]], *(f"assert{'Pass' if passed else 'Fail'}Count" for passed in passes)])
        sums.update(row["namedScores"] | {"": row["score"]})
        usages[:] = [sum(usages, result.usage)]
        name = result.id
        for label in (str(result.repeat + 1), result.label, result.prompt):
            name = name.removesuffix(f"/{label}")
        test = self._tests.setdefault((name, result.repeat), len(self._tests))
        row |= {"promptIdx": list(self._columns).index(column), "testIdx": test}
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
            prompts.append({**shown, "metrics": {**counts, **figures, **promptfoo_costs(usages[0])}})
            total += counts
        usage = sum((usages[0] for *_, usages in self._columns.values()), Usage())
        stats = {"successes": total[_COUNTS[0]], "failures": total[_COUNTS[1]], "errors": total[_COUNTS[2]], **promptfoo_costs(usage)}
        self._file.write(f'\n],\n"prompts":{_text(prompts)},\n"stats":{_text(stats)}}}}}\n')


def _text(value: Any) -> str:  # noqa: ANN401 - JSON of any shape
    return to_json(encodable_json(value), inf_nan_mode="null").decode()


RENDERERS = (Renderer("promptfoo", (".promptfoo.json",), lambda file, batch: PromptfooFile(file, batch.summary)),)
