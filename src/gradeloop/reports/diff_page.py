"""The page of two batches side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradeloop.compare.compare import CaseComparison, CaseSide, Comparison, CriterionChange, CriterionSide, Outcome
from gradeloop.compare.wording import (
    batch_facts,
    change_reason,
    counts_line,
    outcome_label,
    overall_lines,
    passed_of,
    score_change,
    side_result,
)
from gradeloop.reports.html import document

MOST_SAME = 5_000
"""The most unchanged cases on a page, so that a browser opens it at once; `--json` has all."""

_TILES: dict[Outcome, str] = {"regressed": "failed", "lost": "error", "improved": "passed"}
_FILTERS = {
    "regressed": "regressed",
    "lost": "verdict -> error",
    "improved": "improved",
    "gained": "error -> verdict",
    "one": "only in one",
    "noise": "within noise",
}


@dataclass(frozen=True)
class Badge:
    """A verdict as it is shown."""

    kind: str
    word: str


@dataclass(frozen=True)
class ChangeView:
    """A criterion whose verdict changed."""

    change: CriterionChange
    word: str
    a: str
    b: str
    """The verdict and the gap."""


@dataclass(frozen=True)
class DiffRow:
    """A case as a row."""

    number: int
    row: CaseComparison
    word: str
    flags: tuple[str, ...]
    a: Badge | None
    b: Badge | None
    scores: str
    moved: float | None
    """B's score minus A's."""
    why: str
    changes: tuple[ChangeView, ...]


def comparison_page(found: Comparison) -> str:
    """Return the page: one HTML document that needs nothing else."""
    same = [row for row in found.cases if row.outcome == "same"]
    left_out = {row.id for row in same[MOST_SAME:]}
    rows = [_row(number, row) for number, row in enumerate(found.cases) if row.id not in left_out]
    return document(
        "diff.html",
        title=f"{found.a.source} and {found.b.source} · gradeloop",
        scripts=("cases.js",),
        found=found,
        sum_line=counts_line(found.counts, len(found.cases)),
        overall=list(overall_lines(found)),
        tiles=[(number, outcome_label(outcome), _TILES.get(outcome, "")) for outcome, number in found.counts.items()],
        batches=_batches(found),
        filters=_filters(rows),
        rows=rows,
        left_out=len(left_out),
        criteria=[
            (criterion, passed_of(criterion.a), passed_of(criterion.b))
            for criterion in found.criteria
            if criterion.counts.keys() - {"same", "unjudged"}
        ],
    )


def _batches(found: Comparison) -> list[tuple[str, dict[str, str]]]:
    """Return the facts about each batch, without those that neither has."""
    a, b = batch_facts(found.a), batch_facts(found.b)
    shown = [name for name in a if a[name] or b[name]]
    return [(letter, {name: facts[name] for name in shown}) for letter, facts in (("A", a), ("B", b))]


def _filters(rows: Sequence[DiffRow]) -> list[tuple[str, str, int]]:
    counts = {flag: sum(flag in row.flags for row in rows) for flag in _FILTERS}
    return [(flag, words, counts[flag]) for flag, words in _FILTERS.items() if counts[flag]]


def _row(number: int, row: CaseComparison) -> DiffRow:
    flags = [row.outcome, *(["one"] if row.outcome in {"added", "removed"} else []), *(["noise"] if row.noise else [])]
    moved = None if row.a is None or row.b is None or row.a.score is None or row.b.score is None else row.b.score - row.a.score
    return DiffRow(
        number=number,
        row=row,
        word=outcome_label(row.outcome),
        flags=tuple(flags),
        a=_badge(row.a),
        b=_badge(row.b),
        scores=score_change(row),
        moved=moved,
        why=change_reason(row),
        changes=tuple(
            ChangeView(change, outcome_label(change.outcome), _side_text(change.a), _side_text(change.b)) for change in row.changes
        ),
    )


def _badge(side: CaseSide | None) -> Badge | None:
    if side is None:
        return None
    kinds = {"passed": "passed", "failed": "failed", "error": "error", "waiting": "waiting", None: _kind(side)}
    return Badge(kinds.get(side.status, "none"), side_result(side))


def _kind(side: CaseSide) -> str:
    """Return the colour of several runs: that of their common verdict."""
    if not side.judged:
        return "error"
    return "passed" if side.passed == side.judged else "none" if side.passed else "failed"


def _side_text(side: CriterionSide | None) -> str:
    if side is None:
        return "not in this rubric"
    if not side.judged:
        return "no verdict"
    passed = "passed" if side.judged == 1 else f"{passed_of(side)} passed"
    verdict = passed if side.passed or side.judged > 1 else "not passed"
    return f"{verdict}{', overridden by a person' if side.overridden else ''}{f': {side.gap}' if side.gap else ''}"
