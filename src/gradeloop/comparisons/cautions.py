"""Warnings about a comparison that may mean less than it seems to."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gradeloop.comparisons.batch_source import BatchSource
from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip, counted

_NAMED = 5
"""The most criteria that a note names."""


def refuse_strangers(a: BatchSource, b: BatchSource, ours: Sequence[str], theirs: Sequence[str]) -> None:
    """Raise InvalidRequest where no case is in both batches; the ids are those without the numbers of repetitions."""
    for batch, ids in ((a, ours), (b, theirs)):
        if not ids:
            raise InvalidRequest(f"{batch.source} has no cases; there is nothing to compare")
    if not set(ours) & set(theirs):
        words = f"{a.source} has {clip(ours[0])}, {b.source} has {clip(theirs[0])}"
        raise InvalidRequest(f"the two batches have no case in common: {words}; {_why(a, b, ours, theirs)}")


def _why(a: BatchSource, b: BatchSource, ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Return the probable reason, and the cure."""
    for longer, longs, shorts in ((a, ours, theirs), (b, theirs, ours)):
        known = set(shorts)
        if any(name.rpartition("/")[0] in known for name in longs):
            labels = f"the ids of {longer.source} end in labels, since its suite has several prompts or generators"
            return f"{labels}; compare batches of suites with the same number of them"
    if a.suite and b.suite and a.suite != b.suite:
        return f"they come from different suites, {clip(a.suite)} and {clip(b.suite)}"
    derived = "the id of a test without an `id` is derived from its description, vars and messages, and changes with them"
    return f"{derived}; give the tests an `id`"


def cautions(a: BatchSource, b: BatchSource, reworded: Mapping[str, int]) -> Iterator[str]:
    """Yield what the reader should know about the two batches before the numbers."""
    for batch in (a, b):
        yield from batch.notes
        yield from _unfinished(batch)
    if a.suite and b.suite and a.suite != b.suite:
        yield f"A and B come from different suites: {clip(a.suite)} and {clip(b.suite)}"
    changed = [name for name, cases in reworded.items() if cases]
    if changed:
        more = f" and {len(changed) - _NAMED:,} more" if len(changed) > _NAMED else ""
        yield f"criteria with another text in B: {', '.join(changed[:_NAMED])}{more}; their verdicts may not be comparable"
    for letter, batch in (("A", a), ("B", b)):
        overridden = sum(mark.overridden for case in batch.cases for mark in case.marks)
        if overridden:
            yield f"people overrode {counted(overridden, 'verdict')} on criteria in {letter}; the verdicts on cases stay the grader's"


def _unfinished(batch: BatchSource) -> Iterator[str]:
    statuses = Counter(case.status for case in batch.cases)
    missing = statuses["queued"] + statuses["waiting"]
    if missing:
        status = f"is {batch.status}" if batch.status in {"running", "paused", "stopped"} else "has not ended"
        yield f"{batch.source} {status}: {missing:,} of {len(batch.cases):,} cases have no verdict yet"
