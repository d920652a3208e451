"""The page of one run: drafts with their changes, verdicts, evidence, and quotes that link to the text they quote."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pydantic import JsonValue

from gradeloop.contract.evaluation import CriterionRow, Evaluation, Quote, rejections_of
from gradeloop.contract.messages import FEEDBACK_SOURCE, Message
from gradeloop.grading.changes import Changes, changes
from gradeloop.grading.prompts import escape_invisible, record_starts
from gradeloop.grading.quotes import FoldedText, fold, nearest_passage, written_forms
from gradeloop.grading.verdicts import contradiction
from gradeloop.reports.html import Live, as_json, document, part
from gradeloop.reports.model import NextStep, Passage, PassageRecord, RunReport, ToolEvidence, resume_step
from gradeloop.text import headline


@dataclass(frozen=True)
class FailureSteps:
    """The way from a case of a batch to the others that failed, in the order of the batch's table."""

    total: int
    """The cases that failed or are errors."""
    place: int | None = None
    """The position of this case among them, from 0; None where it is none of them."""
    previous: str | None = None
    """The path of the one before; None for the first."""
    next: str | None = None
    """The path of the one after, of the first where this case is none of them; None for the last."""


def failure_steps(failing: Sequence[str], case_id: str, path: Callable[[str], str]) -> FailureSteps:
    """Return the way from a case to the failures around it."""
    place = failing.index(case_id) if case_id in failing else None
    after = 0 if place is None else place + 1
    return FailureSteps(
        total=len(failing),
        place=place,
        previous=path(failing[place - 1]) if place else None,
        next=path(failing[after]) if after < len(failing) else None,
    )


def run_page(report: RunReport, *, live: Live | None = None, steps: FailureSteps | None = None) -> str:
    """Return the page of a run: one HTML document that needs nothing else.

    `steps`: the way to the other failures of its batch; None where it has none.
    """
    context = _context(report, "r") | {"failing": failing_rows(report), "steps": steps}
    return document("run.html", title=f"{report.name} · gradeloop", scripts=(), live=live, **context)


def run_part(report: RunReport, *, key: str) -> str:
    """Return the main part of a run's page, for a page that shows several; `key` begins its anchors."""
    return part("run_part.html", **_context(report, key))


def _context(report: RunReport, key: str) -> dict[str, object]:
    return {
        "report": report,
        "view": RunView(report, key),
        "key": key,
        "mark_of": criterion_mark,
        "contradiction": contradiction,
        "worst_first": rows_worst_first,
        "answer": run_answer(report),
        "failing": failing_rows(report) if report.kind == "thread" else (),
        "next_step": run_next_step(report),
        "rejections": rejections_of(report.evaluations, report.waiting_for) if report.waiting_for else (),
    }


def rows_worst_first(rows: Sequence[CriterionRow]) -> list[int]:
    """Return the indexes of some rows: those that failed, those without a verdict, those that passed."""
    order: dict[RowVerdict, int] = {"failed": 0, "unverified": 1, "passed": 2}
    return sorted(range(len(rows)), key=lambda number: order[rows[number].verdict])


@dataclass(frozen=True)
class AnswerPart:
    """A criterion or a tool in the first line of a page."""

    words: str
    """The criterion's own words in short, or what is asked about a tool."""
    id: str = ""
    """The criterion's id; empty for a tool, and for a criterion whose words are not known, which is named by its id."""
    lead: str = ""
    """Words before it, `not met:` or `does this hold?`: shown once for all neighbours with the same words."""


@dataclass(frozen=True)
class RunAnswer:
    """The answer to the first question about a run."""

    word: str
    """`PASSED`, `FAILED`, `WAITING FOR A PERSON`."""
    parts: tuple[AnswerPart, ...] = ()
    """Items that did not pass or are asked about: the first of them."""
    more: int = 0
    """Number of further items."""


ANSWER_PARTS, ANSWER_CHARACTERS = 3, 90
"""The most criteria in the first line of a page, and the most characters of each."""


def run_answer(report: RunReport) -> RunAnswer:
    """Return the answer to the first question about a run, with the words of what it hangs on."""
    parts: list[AnswerPart] = []
    if report.waiting_for:
        word = "WAITING FOR A PERSON"
        parts = [_answer_part(criterion.id, criterion.name, "does this hold?") for criterion in report.waiting_for.criteria]
        parts += [AnswerPart(f"may the {call.role} call {call.tool}?") for call in report.waiting_for.calls]
    elif report.verdict != "failed":
        word = (report.word.replace("_", " ") if report.verdict == "none" else report.verdict).upper()
    else:
        word = "FAILED"
        names = {criterion.id: criterion.text for criterion in report.rubric.criteria} if report.rubric else {}
        names |= {row.id: row.name for evaluation in report.evaluations for row in evaluation.criteria}
        failing = report.decided_by or tuple(row.id for row in failing_rows(report))
        inverted = {criterion.id for criterion in report.rubric.criteria if criterion.negate} if report.rubric else set()
        parts = [_answer_part(name, names.get(name, ""), "must not hold:" if name in inverted else "not met:") for name in failing]
        parts += [AnswerPart(headline(text, ANSWER_CHARACTERS)) for text in (report.judged.unmet if report.judged else ())]
    return RunAnswer(word, tuple(parts[:ANSWER_PARTS]), max(len(parts) - ANSWER_PARTS, 0))


def _answer_part(criterion: str, name: str, lead: str) -> AnswerPart:
    words = headline(name, ANSWER_CHARACTERS)
    return AnswerPart(words, criterion, lead) if words and words != criterion else AnswerPart(criterion, lead=lead)


def failing_rows(report: RunReport) -> tuple[CriterionRow, ...]:
    """Return the criteria for which a run failed: those of its best draft where that is known, else of its last; no optional ones."""
    if report.verdict != "failed" or not report.evaluations:
        return ()
    best = [evaluation for evaluation in report.evaluations if evaluation.draft == report.best]
    optional = report.optional
    return tuple(row for row in (best or report.evaluations)[-1].criteria if row.verdict == "failed" and row.id not in optional)


def run_next_step(report: RunReport) -> NextStep | None:
    """Return what comes next for a thread that stopped before its end, or ended without a pass; None for any other run."""
    if report.thread_id and report.word == "interrupted":
        return resume_step(report.thread_id, report.error)
    if report.kind != "thread" or report.waiting_for or report.verdict not in {"failed", "error"}:
        return None
    what = "what the error names" if report.verdict == "error" else "the task or the rubric"
    return NextStep(command="gradeloop run TASK.yaml", words=f"mend {what}, and run it as a new thread with")


class RunView:
    """Content of a run's page beside the fields of its report, by the index of a message or of an evaluation.

    `key`: begins all anchors, so that several runs can stand in one page.
    """

    def __init__(self, report: RunReport, key: str = "r") -> None:
        self._report = report
        self._key = key
        self._criteria = {criterion.id: criterion for criterion in report.rubric.criteria} if report.rubric else {}
        self._highlights: dict[int, list[Highlight]] = {}
        self._hrefs: dict[tuple[int, int, int], str] = {}
        self._evaluations: dict[int, list[int]] = {}
        runs: dict[str, list[int]] = {}
        for at, evaluation in enumerate(report.evaluations):
            self._evaluations.setdefault(evaluation.draft, []).append(at)
            runs.setdefault(evaluation.grading_run_id, []).append(at)
        self.grading_runs = list(runs.values())
        """The indexes of the evaluations of each grading run."""
        self._previous_drafts = self._find_previous_drafts()
        self._link_quotes()

    @property
    def unseen(self) -> list[int]:
        """The indexes of the evaluations whose messages are missing."""
        return [at for at, evaluation in enumerate(self._report.evaluations) if evaluation.draft >= len(self._report.messages)]

    @property
    def unplaced(self) -> list[ToolEvidence]:
        """The tool calls of checks and graders in passes that have no evaluation here."""
        passes = {_pass_of(evaluation) for evaluation in self._report.evaluations}
        return [use for use in self._report.tools if use.role != "generator" and (use.grading_run_id, use.iteration) not in passes]

    def evaluations(self, message: int) -> list[int]:
        """Return the indexes of the evaluations of a message."""
        return self._evaluations.get(message, [])

    @property
    def in_question(self) -> int | None:
        """The index of the message with the draft about which a person is asked; None where they are asked about none."""
        draft = self._report.waiting_for.draft if self._report.waiting_for else None
        return draft.index if draft and draft.index < len(self._report.messages) else None

    @property
    def asked(self) -> int | None:
        """The index of the message that a thread answers, its newest of a person's; None where there is none, or no thread."""
        said = [at for at, message in enumerate(self._report.messages) if message.role == "user" and message.source != FEEDBACK_SOURCE]
        return said[-1] if said and self._report.kind == "thread" else None

    def kind(self, message: int) -> Literal["draft", "said", "feedback", "tool"]:
        """Return how a message is shown."""
        if self.evaluations(message) or message == self.in_question:
            return "draft"
        if self._report.messages[message].source == FEEDBACK_SOURCE:
            return "feedback"
        return "tool" if self._report.messages[message].role == "tool" else "said"

    def text(self, message: int) -> tuple["Segment", ...]:
        """Return a message's text with what is quoted of it marked."""
        return segments(self._report.messages[message].content, self._highlights.get(message, ()))

    def has_previous_draft(self, message: int) -> bool:
        """True for a draft that is not the first of its grading run."""
        return message in self._previous_drafts

    def changes(self, message: int) -> Changes | None:
        """Return what changed since the draft before; None where there is none, or both are too long to be compared."""
        if message not in self._previous_drafts:
            return None
        return changes(self._report.messages[self._previous_drafts[message]].content, self._report.messages[message].content)

    def changed_lines(self, message: int) -> Changes | None:
        """Return what changed since the draft before, line by line; None where a draft is of one line, or they are too long."""
        before, after = self._report.messages[self._previous_drafts[message]].content, self._report.messages[message].content
        return changes(before, after, by_line=True) if "\n" in before.strip() and "\n" in after.strip() else None

    def criteria(self, evaluations: Sequence[int]) -> dict[str, str]:
        """Return the names of all criteria of some evaluations by their ids."""
        return {row.id: row.name for at in evaluations for row in self._report.evaluations[at].criteria}

    def waits(self, evaluations: Sequence[int]) -> bool:
        """True for the evaluations of the grading run whose newest draft waits for a person."""
        waiting = self._report.waiting_for
        known = bool(evaluations) and waiting is not None and waiting.draft is not None
        return known and self._report.evaluations[evaluations[0]].grading_run_id == waiting.grading_run_id  # type: ignore[union-attr]  # known

    def row_in_question(self, criterion: str) -> CriterionRow | None:
        """Return the verdict on a criterion of the draft that waits for a person; None where it has none yet."""
        draft = self._report.waiting_for.draft if self._report.waiting_for else None
        return next((row for row in draft.rows if row.id == criterion), None) if draft else None

    def row(self, evaluation: int, criterion: str) -> CriterionRow | None:
        """Return an evaluation's verdict on a criterion; None where it has none."""
        return next((row for row in self._report.evaluations[evaluation].criteria if row.id == criterion), None)

    def tags(self, criterion: str) -> list[str]:
        """Return what is special about a criterion."""
        optional = ["optional"] if criterion in self._report.optional else []
        if (found := self._criteria.get(criterion)) is None:
            return optional
        tags = {
            f"check {found.check.tool}" if found.check else "": found.check is not None,
            "a person decides": found.human,
            "must not hold": found.negate,
            f"weight {found.weight:g}": found.weight != 1,
            f"{len(found.judges)} votes": len(found.judges) > 1,
        }
        return [*optional, *(tag for tag, applies in tags.items() if applies)]

    def later(self, evaluation: int, row: CriterionRow) -> str | None:
        """Return how the next draft fared on a criterion, where that is news."""
        run = next(run for run in self.grading_runs if evaluation in run)
        following = next((at for at in run if at > evaluation), None)
        after = None if following is None else self.row(following, row.id)
        if after is None or after.unverified or row.unverified:
            return None
        if not row.passed:
            return "fixed in the next draft" if after.passed else "still failing in the next draft"
        return None if after.passed else "failing in the next draft"

    def tools(self, evaluation: int) -> list[ToolEvidence]:
        """Return the tool calls of the pass that an evaluation is of; of several evaluations of one pass, the first has them all."""
        found, earlier = self._report.evaluations[evaluation], self._report.evaluations[:evaluation]
        if any(_pass_of(other) == _pass_of(found) for other in earlier):
            return []
        return [use for use in self._report.tools if use.role != "generator" and (use.grading_run_id, use.iteration) == _pass_of(found)]

    def href(self, evaluation: int, row: int, quote: int) -> str | None:
        """Return the anchor that a quote links to, by its index in a row of an evaluation; None where no message has it."""
        return self._hrefs.get((evaluation, row, quote))

    @staticmethod
    def differences(quote: Quote) -> "Changes | None":
        """Return how a quote differs from the passage that it is near to; None for any other quote."""
        return None if quote.quote_nearest is None else changes(quote.quote_nearest, fold(quote.quote))

    def _find_previous_drafts(self) -> dict[int, int]:
        """Return for each draft that is not the first of its grading run the index of the one before."""
        found, newest = {}, dict[str, int]()
        for message in range(len(self._report.messages)):
            if (run := self._run_of(message)) is not None:
                if run in newest:
                    found[message] = newest[run]
                newest[run] = message
        return found

    def _run_of(self, draft: int) -> str | None:
        """Return the grading run that first judged a draft, or is judging it; None where that is not known, or it is none."""
        if passes := self.evaluations(draft):
            return self._report.evaluations[passes[0]].grading_run_id
        waiting = self._report.waiting_for
        return waiting.grading_run_id if waiting and draft == self.in_question else None

    def _link_quotes(self) -> None:
        """Look up every quote in the messages, and highlight its place."""
        quoted = Quoted(self._report.messages)
        for at, evaluation in enumerate(self._report.evaluations):
            for number, row in enumerate(evaluation.criteria):
                for position, quote in enumerate(row.quotes):
                    place = quoted.place(quote.record, quote.quote)
                    if place is None:
                        continue
                    href = f"{self._key}-m{place.message}"
                    if place.span is not None:
                        href = f"{self._key}-e{at}-c{number}-q{position}"
                        self._highlights.setdefault(place.message, []).append(Highlight(href, *place.span))
                    self._hrefs[at, number, position] = href

    @property
    def output(self) -> list[tuple[str, tuple["OutputPart", ...]]]:
        """The values of the output of a judge with a schema, by their paths, with the citations in them as links."""
        judged = self._report.judged
        return [(path, self._output_parts(path, text)) for path, text in _leaves(judged.output)] if judged else []

    def _output_parts(self, path: str, text: str) -> tuple["OutputPart", ...]:
        citations = self._report.judged.citations if self._report.judged else ()
        labels = {passage.label for passage in self._report.passages}
        found, at = [], 0
        for number, citation in sorted(enumerate(citations), key=lambda pair: pair[1].start):
            if citation.path != path or citation.start < at or citation.end > len(text):
                continue
            found.append(OutputPart(text[at : citation.start]))
            shown = f"{citation.target}: “{citation.quote}”" if citation.quote else citation.target
            anchor = citation.target if citation.block_start is None else f"cite{number}"
            href = f"{self._key}-{anchor}" if citation.target in labels else None
            title = citation.problem or "found in the transcript"
            found.append(OutputPart(shown, is_citation=True, verified=citation.verified, href=href, title=title))
            at = citation.end
        return tuple(part for part in (*found, OutputPart(text[at:])) if part.text)

    def passage(self, passage: Passage) -> list[tuple[str, tuple["Segment", ...]]]:
        """Return the records of a block of the transcript, each with its heading, and what is cited of it marked."""
        citations = self._report.judged.citations if self._report.judged else ()
        cited = [
            Highlight(f"{self._key}-cite{at}", citation.block_start, citation.block_end)
            for at, citation in enumerate(citations)
            if citation.target == passage.label and citation.block_start is not None and citation.block_end is not None
        ]
        whole = [PassageRecord(title="", start=0, end=len(passage.text))]
        return [(record.title, _record_segments(passage.text, record, cited)) for record in passage.records or whole]

    @property
    def doubt(self) -> str | None:
        """The values of a judgement on which its votes were tied or split; None where there are none."""
        metadata = self._report.judged.metadata if self._report.judged else {}
        found = [
            f"{label}: {', '.join(map(str, keys))}"
            for label, keys in (("tied", metadata.get("ties")), ("contested", metadata.get("contested")))
            if isinstance(keys, list) and keys
        ]
        return "; ".join(found) or None


def _pass_of(evaluation: Evaluation) -> tuple[str, int]:
    return evaluation.grading_run_id, evaluation.iteration


def _leaves(value: JsonValue, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of an output as texts, by their paths, as citations name them."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _leaves(item, f"{path}[{at}]")
    else:
        yield path, as_json(value)


@dataclass(frozen=True)
class OutputPart:
    """A stretch of an output: text, or a citation."""

    text: str
    is_citation: bool = False
    verified: bool = False
    href: str | None = None
    title: str = ""


RowVerdict = Literal["passed", "failed", "unverified"]

MARKS: dict[RowVerdict, str] = {"passed": "✓", "failed": "✗", "unverified": "?"}
TEXTS: dict[RowVerdict, str] = {"passed": "passed", "failed": "not passed", "unverified": "no verdict"}


@dataclass(frozen=True)
class CriterionMark:
    """A criterion's verdict as a mark and as text."""

    verdict: RowVerdict
    """The verdict that counts: a person's before the grader's."""
    by_person: bool
    contested: bool
    text: str

    @property
    def mark(self) -> str:
        """One character for it."""
        return MARKS[self.verdict]

    @property
    def classes(self) -> str:
        """The classes that the style sheet knows it by."""
        marks = {"by-person": self.by_person, "contested": self.contested}
        return " ".join([self.verdict, *(name for name, applies in marks.items() if applies)])


def criterion_mark(row: CriterionRow) -> CriterionMark:
    """Return the mark of a criterion's verdict."""
    graded: RowVerdict = "unverified" if row.unverified else "passed" if row.passed else "failed"
    votes = f", {row.votes_text}{' (contested)' if row.contested else ''}" if row.votes else ""
    if row.override is None:
        by_person = row.by == "human"
        return CriterionMark(graded, by_person, row.contested, f"{TEXTS[graded]}{', by a person' if by_person else ''}{votes}")
    return CriterionMark(row.verdict, True, row.contested, f"{TEXTS[row.verdict]} by a person, {TEXTS[graded]} by the grader{votes}")


@dataclass(frozen=True)
class Highlight:
    """A passage of a text that is referred to."""

    name: str
    """The anchor that links lead to."""
    start: int
    end: int


@dataclass(frozen=True)
class Segment:
    """A stretch of a text, marked or not."""

    text: str
    marked: bool
    names: tuple[str, ...] = ()
    """Anchors of the passages that begin here."""


def segments(text: str, highlights: Iterable[Highlight]) -> tuple[Segment, ...]:
    """Return a text cut at the ends of its highlights, which may overlap."""
    inside = [highlight for highlight in highlights if 0 <= highlight.start < highlight.end <= len(text)]
    if not inside:
        return (Segment(text, marked=False),)
    cuts = sorted({0, len(text), *(highlight.start for highlight in inside), *(highlight.end for highlight in inside)})
    found = []
    for start, end in pairwise(cuts):
        covered = any(highlight.start <= start and end <= highlight.end for highlight in inside)
        found.append(
            Segment(text[start:end], covered, tuple(highlight.name for highlight in inside if highlight.start == start and highlight.name))
        )
    return tuple(found)


def _record_segments(text: str, record: PassageRecord, cited: Iterable[Highlight]) -> tuple[Segment, ...]:
    """Return the segments of one record of a block; an anchor stands in the record in which its passage begins."""
    start, end = record.start, record.end
    inside = [
        Highlight(
            highlight.name if start <= highlight.start < end else "", max(highlight.start - start, 0), min(highlight.end, end) - start
        )
        for highlight in cited
        if highlight.start < end and highlight.end > start
    ]
    return segments(text[start:end], inside)


@dataclass(frozen=True)
class QuotePlace:
    """The place of a quote."""

    message: int
    """Index of the message."""
    span: tuple[int, int] | None
    """Characters of its content; None where the quote is not found there, or is part of a tool call."""


class Quoted:
    """The messages of a conversation, in which quotes are looked up as the records that graders see."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._starts = record_starts(messages)
        self._folded: dict[int, FoldedText] = {}

    def place(self, record: int, quote: str) -> QuotePlace | None:
        """Return the place of a quote; None where there is no such record."""
        message = next((at for at in range(len(self._messages)) if self._starts[at] <= record < self._starts[at + 1]), None)
        if message is None:
            return None
        text = self._messages[message].content
        if record != self._starts[message] or not text:
            return QuotePlace(message, None)
        folded = self._folded.setdefault(message, FoldedText(text))
        spans = (folded.span(form) or _span_of_escaped(text, form) for form in written_forms(quote))
        return QuotePlace(message, next(filter(None, spans), None) or _span_of_nearest(folded, quote))


def _span_of_escaped(text: str, quote: str) -> tuple[int, int] | None:
    """Return the span of a quote that shows hidden characters as escapes, as the grader saw them."""
    if escape_invisible(text) == text:
        return None
    shown, starts = [], [0]
    for character in text:
        shown.append(escape_invisible(character))
        starts.append(starts[-1] + len(shown[-1]))
    span = FoldedText("".join(shown)).span(quote)
    if span is None:
        return None
    inside = [at for at in range(len(text)) if starts[at] < span[1] and starts[at + 1] > span[0]]
    return (inside[0], inside[-1] + 1) if inside else None


def _span_of_nearest(folded: FoldedText, quote: str) -> tuple[int, int] | None:
    """Return the span that comes closest to a long quote which is not there word for word."""
    span = nearest_passage(fold(quote), folded.text)
    if span is None:
        return None
    cut = folded.text[span[0] : span[1]]
    start, end = span[0] + len(cut) - len(cut.lstrip()), span[1] - len(cut) + len(cut.rstrip())
    return folded.unfolded(start, end) if start < end else None
