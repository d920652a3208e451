"""What may make a comparison mean less than it seems to, in words."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gradeloop.comparisons.batch_source import BatchSource
from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip, counted

_NAMED = 5
"""Criteria that a note lists."""


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
            told = f"the ids of {longer.source} have labels behind a slash, as a suite with several prompts or generators gives them"
            return f"{told}; compare batches that were run with as many"
    if a.suite and b.suite and a.suite != b.suite:
        return f"they are of two suites, {clip(a.suite)} and {clip(b.suite)}"
    made = "a test without an `id` is given one made of its description, vars and messages, which changes with them"
    return f"{made}; give the tests an `id`"


def cautions(a: BatchSource, b: BatchSource, reworded: Mapping[str, int]) -> Iterator[str]:
    """Yield what the reader should know of the two batches before the numbers."""
    for batch in (a, b):
        yield from batch.notes
        yield from _unfinished(batch)
    if a.suite and b.suite and a.suite != b.suite:
        yield f"A is of the suite {clip(a.suite)}, B of {clip(b.suite)}"
    changed = [name for name, cases in reworded.items() if cases]
    if changed:
        more = f" and {len(changed) - _NAMED:,} more" if len(changed) > _NAMED else ""
        yield f"the rubric is not the same: {', '.join(changed[:_NAMED])}{more} read otherwise in B, and may ask for something else"
    for letter, batch in (("A", a), ("B", b)):
        overridden = sum(mark.overridden for case in batch.cases for mark in case.marks)
        if overridden:
            yield f"in {letter} {counted(overridden, 'verdict')} on criteria are people's, who overrode the judge; cases keep the machine's"


def _unfinished(batch: BatchSource) -> Iterator[str]:
    statuses = Counter(case.status for case in batch.cases)
    missing = statuses["queued"] + statuses["waiting"]
    if missing:
        stands = f" is {batch.status}" if batch.status in {"running", "paused", "stopped"} else ""
        yield f"{batch.source}{stands or ' has not ended'}: {missing:,} of {len(batch.cases):,} cases have no verdict yet"
