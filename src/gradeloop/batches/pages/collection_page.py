"""The page of a batch or of judgements: a table of runs, each of which opens."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from gradeloop.batches.answer import CriterionCounts, ModelVerdicts, hint_of_verdicts, model_verdicts
from gradeloop.batches.column_table import ColumnFigures, ColumnKey, column_rows
from gradeloop.batches.contract import BatchStatus
from gradeloop.contract.evaluation import CriterionRow, lowest_row
from gradeloop.contract.messages import Usage
from gradeloop.grading.scoring import shortfall_of, worst_of
from gradeloop.reports.failure_summary import FailureList
from gradeloop.reports.html import Live, as_json, document, packed
from gradeloop.reports.model import NextStep, RunReport, Verdict
from gradeloop.reports.run_page import OutputPart, RunView, run_part
from gradeloop.stats.correction import JudgeError
from gradeloop.text import counted, headline

WORST = 10
"""Criteria that are shown as the worst."""

ERRORS = 3
"""The errors that are shown as the most frequent."""

METRICS = 24
"""The most figures of named metrics that a page begins with, or the most metrics of its columns; files of results have all."""


@dataclass(frozen=True)
class PageRow:
    """A run of a collection."""

    report: RunReport
    test: str
    """The test, which it has in common with the runs of other columns."""
    column: ColumnKey = (None, None)
    """The labels of its prompt and generator."""


@dataclass(frozen=True)
class Stat:
    """A number at the head of the page."""

    label: str
    value: str
    kind: Verdict | None = None


@dataclass(frozen=True)
class PastBatch:
    """A batch of the suite, as the line of its history shows it."""

    batch_id: str
    created: str
    answer: str
    colour: Verdict
    rate: float | None
    """The share of judged cases that passed, 0 to 1."""


@dataclass(frozen=True)
class PageHeader:
    """The name of a collection, its numbers and facts."""

    name: str
    word: str
    """Its status; empty where it has none."""
    verdict: Verdict
    noun: str
    """The name of one of its runs: `case`, `judgement`."""
    tiles: tuple[Stat, ...]
    about: dict[str, str]
    notes: tuple[str, ...] = ()
    error: JudgeError | None = None
    """The judge's error rates, measured where people labelled; None where nobody did."""
    batch_id: str | None = None
    """The batch on a live page."""
    status: BatchStatus | None = None
    """The status of a batch on a live page, which says whether it can be paused or resumed."""
    answer: str = ""
    """The answer, as `answer_of` says it; empty for what has no such answer."""
    words: str = ""
    """The meaning of the answer's figure, as a sentence; empty where the answer says it."""
    compared: tuple[str, ...] = ()
    """Sentences about its columns."""
    steps: Mapping[Verdict, NextStep] = field(default_factory=dict)
    """The next step for one of its runs, by the run's verdict."""
    next_step: str = ""
    """The command that comes next for a batch; empty where none does."""
    next: NextStep | None = None
    """The next step for judgements; None where there is none, and for a batch."""
    question: str = ""
    """The judge's question, shown under the name; empty where the name says it all."""
    compare: str = ""
    """The command that compares a batch that passed or failed with the one that runs after a change; empty for any other."""
    progress: tuple[int, int] | None = None
    """Ended cases, and all of them, where the batch runs."""
    history: tuple[PastBatch, ...] = ()
    """The batches of this suite, the oldest first and this one last."""
    columns: tuple[ColumnFigures, ...] = ()
    """The prompts and generators that are compared; empty where there is only one."""
    metrics: Mapping[ColumnKey, Mapping[str, str]] = field(default_factory=dict)
    """The named metrics of each of them."""


def collection_page(head: PageHeader, entries: Iterable[PageRow], *, live: Live | None = None) -> str:
    """Return the page of many runs; on a live one, each run has a page of its own instead of being inside."""
    table, criteria, failed = Table(is_open=live is None, batch_id=head.batch_id), CriterionCounts(), FailureList()
    judged = list[ModelVerdicts]()
    for number, given in enumerate(entries):
        step = head.steps.get(given.report.verdict) if given.report.next is None else None
        entry = given if step is None else replace(given, report=given.report.model_copy(update={"next": step}))
        table.take(row_of(number, entry, beside_others=bool(head.columns)), entry.report)
        failed.take(number, entry.report)
        last = entry.report.evaluations[-1] if entry.report.evaluations else None
        criteria.take(last.criteria if last else (), entry.report.optional)
        if last is not None:
            judged.append(model_verdicts(last.criteria, last.grader))
        elif entry.report.judged is not None and entry.report.verdict in {"passed", "failed"}:
            judged.append(([(entry.report.judged.rubric_id, entry.report.verdict == "passed")], entry.report.about.get("grader")))
    everyone = with_differences(table.everyone)
    rows = rows_in_order([row for row in everyone if row.number in table.listed])
    worst = criteria.worst(WORST)
    place = {criterion.id: at for at, criterion in enumerate(worst)}
    context = {
        "head": replace(head, notes=(*head.notes, *filter(None, [hint_of_verdicts(judged, head.error)]), *table.notes)),
        "rows": rows,
        "failures": failed.named(head.verdict),
        "more_failures": failed.more(head.verdict),
        "by_number": {row.number: row for row in everyone},
        "filters": filters(rows),
        "figures": [(row, head.metrics.get(column.key, {})) for row, column in zip(column_rows(head.columns), head.columns, strict=True)],
        "metric_names": [*dict.fromkeys(name for metrics in head.metrics.values() for name in metrics)][:METRICS],
        "tests": by_test(rows, everyone),
        "plain": PLAIN_ROWS,
        "plain_tests": PLAIN_TESTS,
        "first": first_to_read(rows, head.verdict),
        "bars": histogram([row.score for row in everyone if row.score is not None]),
        "worst": worst,
        "errors": Counter(row.why for row in rows if row.verdict == "error" and row.why).most_common(ERRORS),
        "packs": table.packed(),
        "failing": lambda row: sorted(place[name] for name in row.failing if name in place),
        "labels": label_counts(row.labels for row in rows),
        "scored": any(row.score is not None for row in rows),
        "priced": any(row.usage.cost_usd for row in rows),
        "unjudged": bool(rows) and all(row.flags == {"none"} for row in rows) and head.noun == "judgement",
        "found": table.search.packed(),
    }
    return document("collection.html", title=f"{head.name} · gradeloop", scripts=("cases.js",), live=live, **context)


def first_to_read(rows: Sequence["CaseRow"], verdict: Verdict) -> "CaseRow | None":
    """Return the row to read first, of rows in the order of the table: the first that the answer of this colour is about.

    Where there is none, the first that asks for a person; None where none does.
    """
    urgent = [row for row in rows if row.verdict in {"failed", "error", "unsure", "waiting"}]
    return next((row for row in urgent if row.verdict == verdict), next(iter(urgent), None))


ORDER: dict[Verdict, int] = {"failed": 0, "error": 1, "unsure": 2, "waiting": 3, "running": 4, "none": 5, "passed": 6}
"""The order of the rows by their verdicts: what asks for a person comes first."""


def rows_in_order(rows: Sequence["CaseRow"]) -> list["CaseRow"]:
    """Return the rows in the order of the table: what asks for a person first."""
    return sorted(rows, key=lambda row: ORDER.get(row.verdict, len(ORDER)))


FINDING_CHARACTERS = 400
"""The most characters of a finding, or of a description, in a row of the table."""

FILTERS = {
    "failed": "failures",
    "error": "errors",
    "unsure": "unsure",
    "waiting": "waiting",
    "none": "not run",
    "contested": "contested",
    "unverified": "unverified criterion",
    "person": "overridden",
    "differs": "columns differ",
}


@dataclass(frozen=True)
class CaseRow:
    """A case in the table."""

    number: int
    """Its position in the batch, from 0."""
    id: str
    verdict: Verdict
    word: str
    score: float | None
    worst: str
    """The ids of the criteria that decided, else of the one that went worst; empty where none did."""
    why: str
    """The error, or the gap of the first of these criteria."""
    about: str
    """The case's description."""
    output: str
    """The beginning of the output that was judged, in one line."""
    test: str
    """The id of the case's test: what the rows of a comparison are."""
    column: ColumnKey
    """The labels of its prompt and generator."""
    usage: Usage
    flags: frozenset[str]
    """The filters that show it."""
    failing: tuple[str, ...] = ()
    """The ids of the criteria that did not pass."""
    gaps: tuple[tuple[str, str], ...] = ()
    """The first of these criteria, those that decided before others, each with its gap; empty where columns are not compared."""
    labels: tuple[tuple[str, str], ...] = ()
    """The short values of a judge's output by their names."""
    said: tuple[OutputPart, ...] = ()
    """The texts that a judge wrote, with its citations as links; `why` is their text."""
    place: tuple[int, int] | None = None
    """The pack of the run that it opens, and the run's position there; None where it opens nothing here."""


GAPS, GAP_CHARACTERS = 3, 200
"""The criteria that a cell of a comparison names, and the most characters of why each did not pass."""


def row_of(number: int, entry: PageRow, *, beside_others: bool = False) -> CaseRow:
    """Return a run's row; where columns are compared, with more of its output, and with why each criterion did not pass."""
    report = entry.report
    rows = report.evaluations[-1].criteria if report.evaluations else ()
    decided, shown = _decided(report, rows)
    worst = next((row for row in rows if row.id == shown), None)
    said = () if worst or report.error or report.judged is None else _written(report, f"c{number}")
    flags = {
        report.verdict: True,
        "contested": any(row.contested for row in rows),
        "unverified": any(row.unverified for row in rows),
        "person": report.overridden is not None,
    }
    failing = sorted((row for row in rows if row.verdict == "failed"), key=lambda row: row.id not in decided)
    return CaseRow(
        number=number,
        id=report.name,
        verdict=report.verdict,
        word=report.word,
        score=report.score,
        worst=", ".join(decided) or (worst.id if worst else ""),
        why=("".join(part.text for part in said) or _finding(report, worst))[:FINDING_CHARACTERS],
        about=report.about.get("description", "")[:FINDING_CHARACTERS],
        output=_output_of(report, beside_others=beside_others),
        test=entry.test,
        column=entry.column,
        usage=report.usage,
        flags=frozenset(flag for flag, applies in flags.items() if applies),
        failing=tuple(row.id for row in failing),
        gaps=tuple((row.id, headline(row.why_failed, GAP_CHARACTERS)) for row in failing[:GAPS]) if beside_others else (),
        labels=labels_of(report),
        said=said,
    )


OUTPUT_CHARACTERS, BESIDE_CHARACTERS = 120, 400
"""The most characters of an output in a row of the table, as many as fit on its line, and of one beside those of other columns."""


def _output_of(report: RunReport, *, beside_others: bool) -> str:
    """Return the beginning of the output that a case's last verdict is on; empty where there is none."""
    at = report.evaluations[-1].draft if report.evaluations else report.best
    if report.kind != "case" or at is None or at >= len(report.messages):
        return ""
    text = report.messages[at].content
    if beside_others:
        return text.strip()[:BESIDE_CHARACTERS] + "…" * (len(text.strip()) > BESIDE_CHARACTERS)
    return headline(text, OUTPUT_CHARACTERS)


LABEL_CHARACTERS, LABELS, LABEL_VALUES = 40, 6, 12
"""The longest value that is a label, the most fields that have a column, and the most values that a field may have for it."""


LABEL_WORDS = 3
"""The most words of a label where the judge's schema is not known: more are a sentence."""


def labels_of(report: RunReport) -> tuple[tuple[str, str], ...]:
    """Return the labels of a judge's output by their keys: what its schema lets it choose from, else its short values."""
    if (judged := report.judged) is None:
        return ()
    cited = {citation.path for citation in judged.citations}
    chosen = judged.labels if judged.labels is not None else [name for name, value in judged.output.items() if _is_short(value)]
    values = {
        name: as_json(judged.output[name])
        for name in chosen
        if name not in cited and len(name) <= LABEL_CHARACTERS and isinstance(judged.output.get(name), str | bool | int)
    }
    return tuple((name, value) for name, value in values.items() if len(value) <= LABEL_CHARACTERS and "\n" not in value)[:LABELS]


def _is_short(value: JsonValue) -> bool:
    """True for what may be a label: a number, true or false, or one or two words that do not make a sentence."""
    if not isinstance(value, str):
        return isinstance(value, bool | int)
    return len(value.split()) <= LABEL_WORDS and not value.endswith((".", "!", "?"))


def label_counts(labelled: Iterable[tuple[tuple[str, str], ...]]) -> dict[str, dict[str, int]]:
    """Return how many runs have each value of each label, the most frequent first; fields with many values are none."""
    counts: dict[str, Counter[str]] = {}
    for labels in labelled:
        for name, value in labels:
            counts.setdefault(name, Counter())[value] += 1
    return {name: dict(found.most_common()) for name, found in counts.items() if len(found) <= LABEL_VALUES}


def _decided(report: RunReport, rows: Sequence[CriterionRow]) -> tuple[tuple[str, ...], str | None]:
    """Return the ids of the criteria that decided, and of the one to show: the first of them, else the worst."""
    if report.decided_by is not None and report.overridden is None:
        decided, worst = report.decided_by, report.worst
    elif report.rubric is None:
        lowest = lowest_row(row for row in rows if row.verdict != "passed")
        decided, worst = (), lowest.id if lowest else None
    else:
        impossible = report.evaluations and report.evaluations[-1].result == "failed"
        decided = () if impossible or report.verdict != "failed" else shortfall_of(report.rubric, rows).criteria
        worst = worst_of(report.rubric, rows)
    return decided, decided[0] if decided else worst


def _finding(report: RunReport, worst: CriterionRow | None) -> str:
    """Return the error, the gap of the criterion that is shown, a judge's output in short, or why a run did not pass."""
    if report.kind == "case" and report.verdict == "unsure":
        return next(iter(report.notes), "")
    if report.error:
        return report.error
    if worst is not None:
        return worst.why_failed
    return report.evaluations[-1].explanation if report.evaluations and report.verdict != "passed" else ""


def _written(report: RunReport, key: str) -> tuple[OutputPart, ...]:
    """Return what a judge wrote beside its labels, with its citations; the values of lists and objects are on its own page."""
    known = dict(labels_of(report))
    texts = [(path, parts) for path, parts in RunView(report, key).output if path not in known and "." not in path and "[" not in path]
    found = list[OutputPart]()
    left = FINDING_CHARACTERS
    for path, parts in texts:
        name = [OutputPart(f"{'; ' if found else ''}{path}: ")] if len(texts) > 1 else []
        for part in (*name, *parts):
            found += [replace(part, text=part.text[:left])] if left > 0 else []
            left -= len(part.text)
    return tuple(found)


def with_differences(rows: Sequence[CaseRow]) -> list[CaseRow]:
    """Return the rows, flagged where the columns came to different verdicts on one test; errors do not count."""
    verdicts: dict[str, dict[ColumnKey, set[Verdict]]] = {}
    for row in rows:
        if row.verdict in {"passed", "failed"}:
            verdicts.setdefault(row.test, {}).setdefault(row.column, set()).add(row.verdict)
    differing = {test for test, columns in verdicts.items() if len({frozenset(column) for column in columns.values()}) > 1}
    return [replace(row, flags=row.flags | {"differs"}) if row.test in differing else row for row in rows]


def filters(rows: Sequence[CaseRow]) -> list[tuple[str, str, int]]:
    """Return the filters that show something: their flag, their label, how many rows; of tests whose columns differ, how many tests."""
    counts = Counter(flag for row in rows for flag in row.flags)
    counts["differs"] = len({row.test for row in rows if "differs" in row.flags})
    unjudged = {row.word for row in rows if "none" in row.flags}
    names = FILTERS | ({"none": unjudged.pop().replace("_", " ")} if len(unjudged) == 1 else {})
    return [(flag, label, counts[flag]) for flag, label in names.items() if counts[flag]]


def by_test(rows: Iterable[CaseRow], everyone: Iterable[CaseRow]) -> dict[str, dict[ColumnKey, list[CaseRow]]]:
    """Return the cases by test and column, several where one is repeated; nothing where no test was put to two columns.

    Args:
        rows: The rows that are listed, in the order of the table; a test stands where the first of its rows does.
        everyone: All rows: a case of a listed test has its verdict there, even where there is no room for its texts.
    """
    found: dict[str, dict[ColumnKey, list[CaseRow]]] = {row.test: {} for row in rows}
    for row in everyone:
        if row.test in found:
            found[row.test].setdefault(row.column, []).append(row)
    return found if any(len(by_column) > 1 for by_column in found.values()) else {}


BINS = 10


def histogram(scores: Sequence[float]) -> dict[str, int]:
    """Return how many scores lie in each tenth, by its lower end; 1 has a bar of its own, since that is what most want.

    Scores of assertions in code that lie outside of 0 to 1 are in the outer bars, which say so.
    """
    counts = [0] * (BINS + 1)
    for score in scores:
        counts[min(max(int(score * BINS + 1e-9), 0), BINS)] += 1
    labels = [f"{at / BINS:.1f}" for at in range(BINS)] + ["1"]
    if min(scores, default=0) < 0:
        labels[0] = "<0.1"
    if max(scores, default=0) > 1:
        labels[-1] = "≥1"
    return dict(zip(labels, counts, strict=True))


PACKED_BYTES = 11_500_000
"""The most bytes of all packed runs: with the table of 5,000 cases, below the 20 MB that mail takes."""

TABLE_BYTES = 5_500_000
"""The most bytes of all rows of the table, or cells of a comparison: some 12,000 cases that passed and as many that did not."""

ROW_BYTES = 100
"""Bytes of a packed row without its texts."""

PACKED_TEXT = 0.6
"""The share of a row's texts that packing leaves, as base64."""

PLAIN_ROWS = 2_000
"""The rows that are not packed: what a reader without JavaScript sees, and everyone at once."""

PLAIN_TESTS = 120
"""The tests of a comparison that are not packed: a multiple of the 20 that are laid out together, so that parts stay whole."""

PASSING = 0.55
"""The part of the table that cases may take that passed; the rest is for the others."""


class Table:
    """Takes rows as they come; what did not pass goes before what did.

    Args:
        is_open: Whether a row opens its run inside of the page.
        batch_id: The batch of the store that they are of; None for a file, and for judgements.
    """

    def __init__(self, *, is_open: bool, batch_id: str | None = None) -> None:
        self._is_open = is_open
        self._batch = None if batch_id is None else shlex.quote(batch_id)
        self._packer = Packer(PACKED_BYTES)
        self.search = SearchTexts()
        self._spent = 0.0
        self._left_out = Counter[str]()
        self._closed = 0
        self.everyone: list[CaseRow] = []
        """Every row; those that are not listed without their texts."""
        self.listed: set[int] = set()
        """Numbers of the rows that the table shows."""

    def take(self, row: CaseRow, report: RunReport) -> None:
        """List a row, and pack its run, where there is room."""
        urgent = row.flags != {"passed"}
        texts = sum(map(len, (row.id, row.why, row.about, row.output, *(gap for _, gap in row.gaps))))
        size = ROW_BYTES + PACKED_TEXT * texts
        if self._spent + size > TABLE_BYTES * (1.0 if urgent else PASSING):
            self._left_out[row.word] += 1
            self.everyone.append(replace(row, why="", about="", output="", gaps=()))
            return
        self._spent += size
        self.listed.add(row.number)
        self.search.add(row.number, report)
        if self._is_open and self._packer.has_room(urgent=urgent):
            row = replace(row, place=self._packer.add(run_part(report, key=f"c{row.number}")))
        self._closed += self._is_open and row.place is None
        self.everyone.append(row)

    def packed(self) -> list[str]:
        """Return the packs."""
        self._packer.close()
        return self._packer.packs

    @property
    def notes(self) -> list[str]:
        """Sentences about what is not listed, or does not open."""
        notes = []
        if self._left_out:
            cure = "the results have all" if self._batch is None else f"gradeloop batches export {self._batch} -o results.csv has all"
            notes.append(
                f"Counted but not listed here: {', '.join(f'{number:,} {word}' for word, number in self._left_out.items())}; {cure}."
            )
        if self._closed:
            cure = "" if self._batch is None else f"; see: gradeloop batches show {self._batch} CASE"
            notes.append(f"{counted(self._closed, 'row')} cannot be opened here, so that the file stays below 20 MB{cure}")
        return notes


SEARCH_CHARACTERS, SEARCH_BYTES = 4_000, 12_000_000
"""The most characters of a case's texts that the search sees, and of all cases together before they are packed."""


class SearchTexts:
    """The outputs and variables that the search of a page sees, beside what its table shows."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._size = 0

    def add(self, number: int, report: RunReport) -> None:
        """Take a run's texts, where there is room."""
        texts = [*report.about.values(), *(message.content for message in reversed(report.messages))]
        text = " ".join(" ".join(texts).split())[:SEARCH_CHARACTERS].lower()
        if text and self._size + len(text) <= SEARCH_BYTES:
            self._size += len(text)
            self._texts[number] = text

    def packed(self) -> str:
        """Return the texts by the numbers of their rows, packed as runs are; empty where there are none."""
        return packed(self._texts) if self._texts else ""


PARTS, NOT_URGENT = 20, 0.6
"""The runs of one pack, which is unpacked to show one of them, and the share of the bytes that runs may use which are not urgent."""


class Packer:
    """Packs parts as they come: each pack is a JSON list of texts, in zlib's format, as base64.

    Args:
        most: Bytes that the packs may have together, as base64.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[str] = []
        self._size = 0
        self.packs: list[str] = []

    def has_room(self, *, urgent: bool) -> bool:
        """True where there is room for another part."""
        return self._size < self._most * (1.0 if urgent else NOT_URGENT)

    def add(self, part: str) -> tuple[int, int]:
        """Add a part, and return its place: the pack, and its position there."""
        place = (len(self.packs), len(self._parts))
        self._parts.append(part)
        if len(self._parts) == PARTS:
            self.close()
        return place

    def close(self) -> None:
        """Pack the parts that are not packed yet."""
        if self._parts:
            self.packs.append(packed(self._parts))
            self._size += len(self.packs[-1])
            self._parts = []
