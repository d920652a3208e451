"""Cases as rows of a table, and what can be seen across all of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradeloop.batches.wording import gap_of
from gradeloop.evaluation import CriterionRow
from gradeloop.reports.run_story import RunStory, Verdict
from gradeloop.reports.standing import stands
from gradeloop.usage import Usage

GAP_CHARACTERS = 400
"""Of what a row of the table says."""

FILTERS = {
    "failed": "failures",
    "error": "errors",
    "waiting": "waiting",
    "none": "not run",
    "contested": "contested",
    "unverified": "unverified criterion",
    "person": "overridden",
    "differs": "generators disagree",
}


@dataclass(frozen=True)
class CaseRow:
    """A case in the table."""

    number: int
    """From 0, in the order of the batch."""
    id: str
    verdict: Verdict
    word: str
    score: float | None
    worst: str
    """The id of the criterion that went worst; empty where none did."""
    why: str
    """The error, or what is said against that criterion."""
    about: str
    """The case's description."""
    test: str
    """The case's id without the generator's label and the repetition: what the rows of a matrix are."""
    column: str
    """The generator's label."""
    usage: Usage
    flags: frozenset[str]
    """Which filters show it."""
    place: tuple[int, int] | None = None
    """Of what it opens: the pack, and where in it; None where it opens nothing here."""


def row_of(number: int, story: RunStory, *, test: str, column: str) -> CaseRow:
    """Return a story's row."""
    rows = story.evaluations[-1].criteria if story.evaluations else ()
    worst = _worst(rows)
    why = story.error or (
        gap_of(worst) if worst else _judged(story) if story.judged else "" if story.verdict == "passed" else _explanation(story)
    )
    return CaseRow(
        number=number,
        id=story.name,
        verdict=story.verdict,
        word=story.word,
        score=story.score,
        worst=worst.id if worst else "",
        why=why[:GAP_CHARACTERS],
        about=(story.about.get("description") or "")[:GAP_CHARACTERS],
        test=test,
        column=column,
        usage=story.usage,
        flags=frozenset(_flags(story, rows)),
    )


def with_differences(rows: Sequence[CaseRow]) -> list[CaseRow]:
    """Return the rows, those of a test marked on which the generators came to different verdicts; errors say nothing."""
    verdicts: dict[str, dict[str, set[Verdict]]] = {}
    for row in rows:
        if row.verdict in {"passed", "failed"}:
            verdicts.setdefault(row.test, {}).setdefault(row.column, set()).add(row.verdict)
    differing = {test for test, columns in verdicts.items() if len(columns) > 1 and len({frozenset(each) for each in columns.values()}) > 1}
    return [replace(row, flags=row.flags | {"differs"}) if row.test in differing else row for row in rows]


def filters(rows: Sequence[CaseRow]) -> list[tuple[str, str, int]]:
    """Return the filters that show something: their flag, their words, how many rows."""
    counts = Counter(flag for row in rows for flag in row.flags)
    return [(flag, words, counts[flag]) for flag, words in FILTERS.items() if counts[flag]]


@dataclass(frozen=True)
class Column:
    """What a generator came to."""

    label: str
    passed: int
    failed: int
    errors: int
    score: float | None
    """The mean of those that have one."""
    usage: Usage

    @property
    def rate(self) -> float | None:
        """The share that passed of what was judged."""
        judged = self.passed + self.failed
        return self.passed / judged if judged else None


def columns(rows: Sequence[CaseRow]) -> list[Column]:
    """Return the generators, in the order in which they come."""
    return [_column(label, [row for row in rows if row.column == label]) for label in dict.fromkeys(row.column for row in rows)]


@dataclass(frozen=True)
class MatrixRow:
    """A test, and what each generator came to: one row a repetition."""

    test: str
    cells: tuple[tuple[CaseRow, ...], ...]
    differs: bool


def matrix(rows: Sequence[CaseRow]) -> list[MatrixRow]:
    """Return tests by generators; nothing where no test was put to two generators."""
    labels = list(dict.fromkeys(row.column for row in rows))
    if len(labels) < 2:  # noqa: PLR2004 - a matrix has columns
        return []
    tests: dict[str, dict[str, list[CaseRow]]] = {}
    for row in rows:
        tests.setdefault(row.test, {}).setdefault(row.column, []).append(row)
    if all(len(held) == 1 for held in tests.values()):
        return []
    return [
        MatrixRow(
            test,
            tuple(tuple(held.get(label, ())) for label in labels),
            any("differs" in row.flags for each in held.values() for row in each),
        )
        for test, held in tests.items()
    ]


def _column(label: str, rows: Sequence[CaseRow]) -> Column:
    counts = Counter(row.verdict for row in rows)
    scores = [row.score for row in rows if row.score is not None]
    usage = sum((row.usage for row in rows), Usage())
    return Column(label, counts["passed"], counts["failed"], counts["error"], sum(scores) / len(scores) if scores else None, usage)


def _worst(rows: Sequence[CriterionRow]) -> CriterionRow | None:
    failing = [row for row in rows if stands(row).standing != "passed"]
    return min(failing, key=lambda row: 0.0 if row.score is None else row.score, default=None)


def _judged(story: RunStory) -> str:
    """Return what a judge with a schema of its own says, in short."""
    output = story.judged.output if story.judged else {}
    return "; ".join(f"{name}: {value}" for name, value in output.items() if isinstance(value, str | int | float | bool))


def _explanation(story: RunStory) -> str:
    return story.evaluations[-1].explanation if story.evaluations else ""


def _flags(story: RunStory, rows: Sequence[CriterionRow]) -> list[str]:
    held = {
        story.verdict: True,
        "contested": any(row.contested for row in rows),
        "unverified": any(row.unverified for row in rows),
        "person": story.overridden is not None,
    }
    return [flag for flag, holds in held.items() if holds]
