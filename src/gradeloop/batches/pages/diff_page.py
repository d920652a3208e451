"""The page of two batches side by side."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradeloop.batches.compare import wording
from gradeloop.batches.compare.comparison import CaseComparison, CaseSide, Comparison, ComparisonGate, CriterionSide, Outcome
from gradeloop.batches.contract import CaseResult
from gradeloop.batches.exports import is_batch_file
from gradeloop.batches.reader import BatchReader
from gradeloop.contract.evaluation import DraftPiece
from gradeloop.grading.changes import changes
from gradeloop.reports.html import document
from gradeloop.reports.model import Verdict
from gradeloop.reports.run_page import ANSWER_PARTS, AnswerPart
from gradeloop.text import headline, one_line, shortened

MOST_SAME = 5_000
"""The most unchanged cases on a page, so that a browser opens it at once; `--json` has all."""

TILES: dict[Outcome, str] = {"regressed": "failed", "lost": "error", "unsure": "unsure", "improved": "passed"}
"""The colours of the numbers at the head; the others have none."""

FILTERS = {
    "regressed": "regressed",
    "lost": "verdict -> error",
    "unsure": "verdict -> unsure",
    "improved": "improved",
    "gained": "error -> verdict",
    "decided": "unsure -> verdict",
    "one": "only in one",
    "noise": "within noise",
}


MOST_PAIRS = 200
"""The most changed cases whose outputs stand side by side; those that regressed come first."""

OPEN_PAIRS = 5
"""The pairs that are unfolded when the page opens."""


OUTPUT_CHARACTERS = 20_000
"""The most characters of an output that a comparison shows."""


@dataclass(frozen=True)
class ShownCase:
    """The part of a case that a comparison shows beside its verdict."""

    output: str
    asked: str
    """The case's description and variables, in one line; empty where it has neither."""


ASKED_CHARACTERS = 400
"""The most characters of what was asked."""


def read_outputs(named: str, ids: Collection[str], reader: Callable[[], BatchReader]) -> dict[str, ShownCase]:
    """Return the outputs of some cases of what `diff` reads, by the cases' ids; of a repeated case, that of its first run."""
    found: dict[str, ShownCase] = {}

    def keep(result: CaseResult) -> None:
        name = result.id if result.id in ids else result.base_id
        if name in ids and result.output is not None:
            found.setdefault(name, ShownCase(shortened(result.output, OUTPUT_CHARACTERS), _asked(result)))

    from gradeloop.batches.compare.graded_drafts import read_compared  # with the client, which no other comparison needs

    read_compared(named, reader, keep)
    return found


def _asked(result: CaseResult) -> str:
    """Return what a case asks: its description and its variables, where they are texts or numbers, each text once."""
    known = {name: one_line(str(value)) for name, value in result.vars.items() if isinstance(value, str | int | float)}
    about = one_line(result.description or "")
    about = "" if any(about in value for value in known.values()) else about
    values = [f"{name}: {value}" for name, value in known.items() if not value or value not in about]
    return shortened(" · ".join([*([about] if about else []), *values]), ASKED_CHARACTERS)


@dataclass(frozen=True)
class OutputPair:
    """The outputs of a changed case, side by side."""

    row: CaseComparison
    a: tuple[DraftPiece, ...]
    """The output in A, with what only A says as removed; empty where there is none."""
    b: tuple[DraftPiece, ...]
    """The output in B, with what only B says as added; empty where there is none."""
    same: str | None = None
    """The output if both are the same, so that only the judgement changed."""
    asked: str = ""
    """The question: the case's description and variables; empty where neither is known."""


def changed_ids(found: Comparison) -> list[str]:
    """Return the ids of the cases whose outputs the page shows, those that regressed first; of threads all drafts."""
    kept = {"same", "unjudged", "unasked"} if found.b.thread_id is None else set()
    return [row.id for row in found.cases if row.outcome not in kept or row.noise][:MOST_PAIRS]


def output_pairs(found: Comparison, a: Mapping[str, ShownCase], b: Mapping[str, ShownCase]) -> list[OutputPair]:
    """Return the changed cases with their outputs in both batches."""
    rows = {row.id: row for row in found.cases}
    return [_pair(rows[name], a.get(name), b.get(name)) for name in changed_ids(found) if name in a or name in b]


DIFFERENT = 0.75
"""The share of each output that differs from which on no differences are marked: a text that is struck out whole cannot be read."""


def _pair(row: CaseComparison, a: ShownCase | None, b: ShownCase | None) -> OutputPair:
    asked = next((side.asked for side in (b, a) if side is not None and side.asked), "")
    compared = changes(a.output, b.output) if a is not None and b is not None else None
    if a is None or b is None or compared is None or _differ(compared.pieces, a.output, b.output):
        before, now = (() if side is None else (DraftPiece(kind="same", text=side.output),) for side in (a, b))
        return OutputPair(row, before, now, asked=asked)
    sides = [tuple(piece for piece in compared.pieces if piece.kind != other) for other in ("added", "removed")]
    return OutputPair(row, sides[0], sides[1], same=a.output if compared.none else None, asked=asked)


def _differ(pieces: Sequence[DraftPiece], a: str, b: str) -> bool:
    """True where two outputs have next to nothing in common."""
    changed = {kind: sum(len(piece.text) for piece in pieces if piece.kind == kind) for kind in ("removed", "added")}
    return changed["removed"] > DIFFERENT * len(a) and changed["added"] > DIFFERENT * len(b)


def comparison_page(found: Comparison, pairs: Sequence[OutputPair] = (), gates: Sequence[ComparisonGate] = ()) -> str:
    """Return the page: one HTML document that needs nothing else.

    `pairs`: the outputs of changed cases, which it shows side by side.
    """
    answer, passes = wording.gated_answer(found, gates)
    best = "error" if found.overall is None else "passed"
    worst = next((colour for outcome, colour in ANSWERS.items() if found.counts.get(outcome)), best)
    if worst == "failed" and found.overall is not None and found.overall.by_chance >= wording.SIGNIFICANT:
        worst = "unsure"  # it may be chance
    left_out = {row.id for row in [row for row in found.cases if row.outcome == "same"][MOST_SAME:]}
    rows = [row for row in found.cases if row.id not in left_out]
    counts = {flag: sum(flag in _flags(row) for row in rows) for flag in FILTERS}
    places = {pair.row.id: at for at, pair in enumerate(pairs)}
    worse = worse_cases(rows, places)
    a, b = wording.batch_facts(found.a), wording.batch_facts(found.b)
    known = [name for name in a if a[name] or b[name]]
    return document(
        "diff.html",
        title=f"{found.a.source} and {found.b.source} · gradeloop",
        scripts=("cases.js",),
        found=found,
        sentence=wording.one_sentence(found),
        heading=" → ".join(short_names(found.a.source, found.b.source)),
        sources=f"{found.a.source} → {found.b.source}",
        answer=answer,
        step=wording.comparison_step(found),
        answer_colour=worst if passes is None else "passed" if passes else "failed",
        pairs=pairs,
        places=places,
        worse=worse[:WORSE_CASES],
        more_worse=len(worse) - len(worse[:WORSE_CASES]),
        opened=OPEN_PAIRS,
        tile_colours=TILES,
        both="batches" if found.b.thread_id is None else "threads",
        facts=known,
        batches={"A": a, "B": b},
        filters=[(flag, label, counts[flag]) for flag, label in FILTERS.items() if counts[flag]],
        rows=rows,
        left_out=len(left_out),
        criteria=[tally for tally in found.criteria if tally.counts.keys() - {"same", "unjudged"}],
        outcome_label=wording.outcome_label,
        change_reason=wording.change_reason,
        score_change=wording.score_change,
        passed_of=wording.passed_of,
        side_result=wording.side_result,
        flags=_flags,
        colour=_colour,
        side_text=_side_text,
    )


WORSE_CASES = 3
"""The cases that are named below the first line as worse."""


@dataclass(frozen=True)
class WorseCase:
    """A case that is worse in B, as the lines below the answer name it."""

    id: str
    href: str
    """Its outputs side by side, else its row."""
    outcome: Outcome
    parts: tuple[AnswerPart, ...]
    """The criteria that regressed, by their words; else why there is no verdict."""
    more: int
    """The number of further criteria that regressed."""
    why: str
    """The judge's reason for the first of them; empty if it gave none."""


def worse_cases(rows: Sequence[CaseComparison], places: Mapping[str, int]) -> list[WorseCase]:
    """Return the cases that are worse in B, in their order, which has those that regressed first.

    `places`: the positions of their outputs on the page, where they stand side by side.
    """
    found = []
    for at, row in enumerate(rows):
        if row.outcome in ANSWERS:
            href = f"#pair-{places[row.id]}" if row.id in places else f"#case-{at}"
            regressed = [change for change in row.changes if change.outcome == row.outcome == "regressed"]
            parts = tuple(AnswerPart(headline(change.name, CHARACTERS), change.id) for change in regressed[:ANSWER_PARTS])
            gap = regressed[0].b.gap if regressed and regressed[0].b is not None else ""
            parts = parts or (AnswerPart(headline(wording.change_reason(row), CHARACTERS)),)
            more = len(regressed[ANSWER_PARTS:])
            found.append(WorseCase(row.id, href, row.outcome, parts, more, headline(gap or "", CHARACTERS)))
    return found


CHARACTERS = 160
"""The most characters of a text in the lines below the answer."""

ANSWERS: dict[Outcome, str] = {"regressed": "failed", "lost": "error", "unsure": "unsure"}
"""The colours of the answer, by what there is of B that is worse; the worst first."""


def short_names(a: str, b: str) -> tuple[str, str]:
    """Return how a heading names two batches: files without their folders and suffix, as far as they differ then."""
    for shorten in (lambda path: path.stem, lambda path: path.name, lambda path: f"{path.absolute().parent.name}/{path.stem}"):
        names = [shorten(Path(source)) if is_batch_file(source) else source for source in (a, b)]
        if names[0] != names[1] or a == b:
            return names[0], names[1]
    return a, b


def _flags(row: CaseComparison) -> list[str]:
    """Return the filters that show a case."""
    return [row.outcome, *(["one"] if row.outcome in {"added", "removed"} else []), *(["noise"] if row.noise else [])]


def _colour(side: CaseSide) -> Verdict:
    """Return the colour of a case in one batch; that of their common verdict where it was run several times."""
    if side.status is not None:
        return "none" if side.status == "queued" or side.status == "ungraded" else side.status  # noqa: PLR1714 - mypy narrows these
    if not side.judged:
        return "unsure" if side.unsure == side.runs else "error"
    return "passed" if side.passed == side.judged else "none" if side.passed else "failed"


def _side_text(side: CriterionSide | None) -> str:
    """Return a criterion's verdict in one batch, with its gap."""
    if side is None:
        return "not in this rubric"
    if not side.judged:
        return "no verdict"
    passed = "passed" if side.judged == 1 else f"{wording.passed_of(side)} passed"
    verdict = passed if side.passed or side.judged > 1 else "not passed"
    return f"{verdict}{', overridden by a person' if side.overridden else ''}{f': {side.gap}' if side.gap else ''}"
