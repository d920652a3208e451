"""The cases of an earlier run that a flag selects: from the store, from our files of results, or from promptfoo's."""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from gradeloop.batches.contract import CaseStatus
from gradeloop.batches.reader import BatchReader
from gradeloop.compare.sources import load_batch
from gradeloop.errors import InvalidRequest
from gradeloop.store.engine import own_store
from gradeloop.suites.filters import EarlierCases
from gradeloop.text import clip

FAILED: frozenset[CaseStatus] = frozenset({"failed"})
ERRORS: frozenset[CaseStatus] = frozenset({"error", "queued", "waiting"})
"""The statuses of cases without a verdict."""

THEIR_BYTES = 256 * 1024 * 1024
"""The largest file of promptfoo's results, which is read whole."""

_THEIR_ERROR = 2
"""The `failureReason` of promptfoo's results that are errors."""

_RUNTIME = "_"
"""The beginning of variables that promptfoo adds when it runs a test."""


def find_earlier(not_passed: str | None, failed: str | None, errors: str | None) -> tuple[EarlierCases, ...]:
    """Return the cases that earlier runs, each a batch or a file of results, have with these outcomes.

    Two flags select the cases that either of them names.

    Raises:
        InvalidRequest: There is no such batch or file, or it has no such case.
    """
    asked = [("--filter-failing", not_passed, FAILED | ERRORS), ("--filter-failing-only", failed, FAILED)]
    asked.append(("--filter-errors-only", errors, ERRORS))
    return tuple(_earlier_cases(flag, name, statuses) for flag, name, statuses in asked if name is not None)


def _earlier_cases(flag: str, name: str, statuses: frozenset[CaseStatus]) -> EarlierCases:
    theirs = _their_results(Path(name))
    if theirs is not None:
        found = EarlierCases(name, variables=tuple(_their_variables(theirs, statuses)))
    else:
        batch = load_batch(name, lambda: BatchReader(own_store()))
        found = EarlierCases(name, frozenset(case.id for case in batch.cases if case.status in statuses))
    if not found.ids and not found.variables:
        what = "errors" if statuses == ERRORS else "failures" if statuses == FAILED else "failures or errors"
        raise InvalidRequest(f"{flag}: {clip(name)} has no {what}, so there is nothing to run")
    return found


def _their_results(path: Path) -> list[JsonValue] | None:
    """Return the results in a JSON file that promptfoo wrote; None for anything else."""
    if path.suffix.lower() != ".json" or not path.is_file() or path.stat().st_size > THEIR_BYTES:
        return None
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    results = value.get("results") if isinstance(value, dict) else None
    rows = results.get("results") if isinstance(results, dict) else None
    return rows if isinstance(rows, list) else None


def _their_variables(rows: list[JsonValue], statuses: frozenset[CaseStatus]) -> Iterator[dict[str, JsonValue]]:
    for row in rows:
        if not isinstance(row, dict) or row.get("success"):
            continue
        status: CaseStatus = "error" if row.get("failureReason") == _THEIR_ERROR else "failed"
        variables = row.get("vars")
        if status in statuses and isinstance(variables, dict):
            yield {name: value for name, value in variables.items() if not name.startswith(_RUNTIME)}
