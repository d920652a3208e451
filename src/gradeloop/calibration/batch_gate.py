"""The pass rate of a batch, corrected by what people say of outputs that its judge has judged, here or in earlier batches of the suite."""

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from gradeloop.batches.contract import BatchSummary, Case, CaseResult
from gradeloop.batches.reader import BatchReader
from gradeloop.calibration.gate import gate_verdicts
from gradeloop.calibration.labels import Label
from gradeloop.stats.gated_rate import GatedRate

EARLIER_BATCHES = 50
"""The newest batches of the suite in which labelled outputs are looked for."""

READ_BATCHES = 200
"""The newest batches that are looked through for those of the suite."""

Output = tuple[str, str | None]
"""A case's id, and what it said."""


async def gate_batch(reader: BatchReader, summary: BatchSummary, labels: Sequence[Label], threshold: float | None) -> GatedRate:
    """Return the pass rate of a batch, corrected by labels.

    A label counts for the output that it names, wherever this batch or an earlier one of the same suite asked the same of it: the same
    rubric and conversation, judged by the same model.

    Args:
        reader: Reads the store.
        summary: The batch.
        labels: What people say of outputs.
        threshold: The least rate, 0 to 1; None to decide nothing.
    """
    people: dict[Output, list[bool]] = {}
    for label in labels:
        if (status := label.label_value.get("status")) is not None:
            people.setdefault((label.agent_run_id, label.output), []).append(status == "passed")
    verdicts = await asyncio.to_thread(_verdicts, reader, summary.batch_id)
    known = await _earlier_verdicts(reader, summary, people.keys() - verdicts.keys())
    return gate_verdicts(people, verdicts, known | verdicts, threshold)


def _verdicts(reader: BatchReader, batch_id: str) -> dict[Output, bool]:
    return {(result.id, result.output): result.status == "passed" for result in reader.results(batch_id) if _is_judged(result)}


async def _earlier_verdicts(reader: BatchReader, summary: BatchSummary, wanted: AbstractSet[Output]) -> dict[Output, bool]:
    """Return what the judge said of outputs in earlier batches of the suite, the newest first."""
    names = sorted({name for name, _ in wanted})
    asked = {case.id: (_question(case), result.grader) for case, result in await reader.cases_named(summary.batch_id, names)}
    known: dict[Output, bool] = {}
    found = await reader.summaries(READ_BATCHES) if asked else ()
    earlier = [batch for batch in found if batch.name == summary.name and batch.batch_id != summary.batch_id]
    for batch in earlier[:EARLIER_BATCHES]:
        for case, result in await reader.cases_named(batch.batch_id, [name for name in names if name in asked]):
            question, grader = asked[case.id]
            same = _question(case) == question and grader in {None, result.grader}
            if same and _is_judged(result) and (case.id, result.output) in wanted:
                known.setdefault((case.id, result.output), result.status == "passed")
    return known


def _question(case: Case) -> str:
    """Return what is asked of a case's output, as JSON."""
    return case.model_dump_json(include={"rubric", "grader", "messages", "images", "transforms", "abstain", "escalate"})


def _is_judged(result: CaseResult) -> bool:
    return result.status in {"passed", "failed"}
