"""The batch that a name stands for: one of the store, or a file that its results were written to."""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from gradeloop.batches.case_result import BatchSummary
from gradeloop.batches.reader import BatchReader
from gradeloop.comparisons.batch_source import BatchSource, Cost, total_cost
from gradeloop.comparisons.compared_case import ComparedCase, compared_case
from gradeloop.comparisons.export_file import read_export
from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip, did_you_mean
from gradeloop.usage import Usage

SUFFIXES = (".json", ".jsonl")
"""Of the files that have all of a case; CSV and JUnit leave out what its criteria came to."""

_OTHERS = (".csv", ".xml", ".html")
_NEWEST = re.compile(r"latest(?:~(\d{1,4}))?")


def named_batch(named: str, reader: Callable[[], BatchReader]) -> BatchSource:
    """Return a batch by its id, as `latest` or `latest~N`, the Nth before the newest, or from a file.

    A name with a slash or with a file's suffix is a file's: ids have no slash.

    Args:
        named: As the user wrote it.
        reader: The store's batches, asked for only where it takes a store.

    Raises:
        InvalidRequest: It is neither, or the file holds no results; the message names file, line and cure.
        StoreUnavailable: The store cannot be used.
    """
    suffix = Path(named).suffix.lower()
    if suffix in SUFFIXES or "/" in named:
        return batch_of_file(Path(named))
    if suffix in _OTHERS:
        hint = "write its results to a .json or .jsonl file: gradeloop batches export BATCH -o results.json"
        raise InvalidRequest(f"{clip(named)}: a {suffix} file has no results by criterion; {hint}")
    return _stored(named, reader())


def batch_of_file(path: Path) -> BatchSource:
    """Return the batch of a file that `gradeloop eval -o` wrote.

    Raises:
        InvalidRequest: It cannot be read, or holds no results; the message names file, line and cure.
    """
    found = read_export(path, lambda result: (compared_case(result), _cost(result.usage)))
    cases, costs = [case for case, _ in found.cases], [cost for _, cost in found.cases]
    if found.summary is None:
        return BatchSource(source=str(path), cases=cases, cost=total_cost(costs), notes=found.notes)
    return _summarized(str(path), cases, found.summary, found.notes)


def _stored(named: str, reader: BatchReader) -> BatchSource:
    summary = asyncio.run(_summary(named, reader))
    return _summarized(summary.batch_id, [compared_case(result) for result in reader.results(summary.batch_id)], summary)


def _summarized(source: str, cases: Sequence[ComparedCase], summary: BatchSummary, notes: tuple[str, ...] = ()) -> BatchSource:
    return BatchSource(source, cases, summary.batch_id, summary.name, summary.created, summary.status, _cost(summary.usage), notes)


def _cost(usage: Usage) -> Cost:
    return Cost(tokens=usage.tokens, cost_usd=usage.cost_usd)


async def _summary(named: str, reader: BatchReader) -> BatchSummary:
    asked = _NEWEST.fullmatch(named)
    if asked is None:
        return await reader.summary(named)
    before = int(asked[1] or 0)
    found = await reader.summaries(before + 1)
    if len(found) <= before:
        known = did_you_mean(named, [each.batch_id for each in found[:20]]) if found else ""
        raise InvalidRequest(f"there is no batch {clip(named)}: the store has {len(found) or 'none'}.{known}")
    return found[before]
