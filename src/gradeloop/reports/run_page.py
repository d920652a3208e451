"""The page of one run: drafts with their changes, verdicts, evidence, and quotes that lead to their words."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pydantic import JsonValue

from gradeloop.contract.criterion import Criterion
from gradeloop.contract.evaluation import CriterionRow, Evaluation, Quote
from gradeloop.contract.messages import FEEDBACK_SOURCE, Message
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.prompts import escape_invisible, record_starts
from gradeloop.grading.quotes import FoldedText
from gradeloop.judges.answers import Citation
from gradeloop.reports.html import Live, as_json, document, part
from gradeloop.reports.model import RunReport, SchemaVerdict, ToolEvidence

Standing = Literal["passed", "failed", "unverified"]

MARKS: dict[Standing, str] = {"passed": "✓", "failed": "✗", "unverified": "?"}
WORDS: dict[Standing, str] = {"passed": "passed", "failed": "not passed", "unverified": "no verdict"}


@dataclass(frozen=True)
class CriterionMark:
    """A criterion's verdict in a mark and in words."""

    standing: Standing
    """What counts: a person's word before the grader's."""
    by_person: bool
    contested: bool
    words: str

    @property
    def mark(self) -> str:
        """One character for it."""
        return MARKS[self.standing]

    @property
    def classes(self) -> str:
        """What a style sheet knows it by."""
        marks = {"by-person": self.by_person, "contested": self.contested}
        return " ".join([self.standing, *(name for name, holds in marks.items() if holds)])


def criterion_mark(row: CriterionRow) -> CriterionMark:
    """Return how a row stands."""
    graded: Standing = "unverified" if row.unverified else "passed" if row.passed else "failed"
    if row.override is None:
        by_person = row.by == "human"
        words = f"{WORDS[graded]}{', by a person' if by_person else ''}{_votes(row)}"
        return CriterionMark(graded, by_person, row.contested, words)
    said: Standing = "passed" if row.override.passed else "failed"
    return CriterionMark(said, True, row.contested, f"{WORDS[said]} by a person, {WORDS[graded]} by the grader{_votes(row)}")


def _votes(row: CriterionRow) -> str:
    if not row.votes:
        return ""
    return f", {sum(vote.passed is True for vote in row.votes)} of {len(row.votes)} votes{' (contested)' if row.contested else ''}"


@dataclass(frozen=True)
class CriterionHistoryRow:
    """A criterion, and how it stood after each pass; None where a pass says nothing of it."""

    id: str
    name: str
    tags: tuple[str, ...]
    cells: tuple[CriterionMark | None, ...]


@dataclass(frozen=True)
class CriterionHistory:
    """One grading run."""

    grading_run_id: str
    evaluations: tuple[tuple[int, Evaluation], ...]
    """Each with its index in the story."""
    rows: tuple[CriterionHistoryRow, ...]

    @property
    def scores(self) -> tuple[float | None, ...]:
        """What the passes scored."""
        return tuple(evaluation.score for _, evaluation in self.evaluations)


def strips(evaluations: Sequence[Evaluation], rubric: Rubric | None) -> tuple[CriterionHistory, ...]:
    """Return a strip for each grading run, in order."""
    runs: dict[str, list[tuple[int, Evaluation]]] = {}
    for at, evaluation in enumerate(evaluations):
        runs.setdefault(evaluation.grading_run_id, []).append((at, evaluation))
    return tuple(CriterionHistory(name, tuple(passes), _rows(passes, rubric)) for name, passes in runs.items())


def tags_of(criterion: Criterion | None) -> tuple[str, ...]:
    """Return what is special about a criterion, in words."""
    if criterion is None:
        return ()
    told = {
        "optional": not criterion.required,
        f"check {criterion.check.tool}" if criterion.check else "": criterion.check is not None,
        "a person decides": criterion.human,
        "must not hold": criterion.negate,
        f"weight {criterion.weight:g}": criterion.weight != 1,
        f"{len(criterion.judges)} votes": len(criterion.judges) > 1,
    }
    return tuple(words for words, holds in told.items() if holds)


def _rows(passes: Sequence[tuple[int, Evaluation]], rubric: Rubric | None) -> tuple[CriterionHistoryRow, ...]:
    held: list[dict[str, CriterionRow]] = [{row.id: row for row in evaluation.criteria} for _, evaluation in passes]
    names = {row.id: row.name for each in held for row in each.values()}
    known = {criterion.id: criterion for criterion in rubric.criteria} if rubric else {}
    return tuple(
        CriterionHistoryRow(
            name, told, tags_of(known.get(name)), tuple(criterion_mark(each[name]) if name in each else None for each in held)
        )
        for name, told in names.items()
    )


COMPARED = 200_000_000
"""Of a comparison, as the product of both lengths: 0.1 s and some 25 MB; what is longer is compared by lines, and then not at all."""

CHARACTERS = 1_000_000
"""Of both drafts together that are looked at at all."""

CONTEXT = 160
"""Characters that are shown before and behind a change; what lies between two is left out."""

LANDMARK = 3
"""Characters that stay between two changes and are shown as changed with them: a comma, an `is`."""

_WORDS = re.compile(r"\w+|[^\S\n]+|\n|[^\w\s]")


@dataclass(frozen=True)
class Piece:
    """A stretch of a comparison."""

    kind: Literal["same", "added", "removed", "left out"]
    text: str


@dataclass(frozen=True)
class Changes:
    """How a draft differs from the one before."""

    pieces: tuple[Piece, ...]
    added: int
    """Words that were not there before."""
    removed: int

    @property
    def none(self) -> bool:
        """True where both say the same."""
        return not self.added and not self.removed and all(piece.kind in {"same", "left out"} for piece in self.pieces)


def changes(before: str, after: str) -> Changes | None:
    """Return what changed; None where the drafts are too long to be compared."""
    if len(before) + len(after) > CHARACTERS:
        return None
    for parts in (_WORDS.findall, lambda text: text.splitlines(keepends=True)):
        old, new = parts(before), parts(after)
        if len(old) * len(new) <= COMPARED:
            return _told(_merged(_pieces(old, new)))
    return None


def _pieces(old: list[str], new: list[str]) -> list[Piece]:
    from rapidfuzz.distance import Indel

    found: list[Piece] = []
    for step in Indel.opcodes(old, new):
        if step.tag == "equal":
            found.append(Piece("same", "".join(old[step.src_start : step.src_end])))
        elif step.tag == "delete":
            found.append(Piece("removed", "".join(old[step.src_start : step.src_end])))
        else:
            found.append(Piece("added", "".join(new[step.dest_start : step.dest_end])))
    return found


def _merged(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces with what is small between two changes as a part of both, and what was removed before what was added."""
    merged: list[Piece] = []
    removed = added = ""
    for at, piece in enumerate(pieces):
        between = piece.kind == "same" and (removed or added) and at + 1 < len(pieces) and _is_small(piece.text)
        if piece.kind == "same" and not between:
            merged += [*_changed(removed, added), piece]
            removed = added = ""
        else:
            removed += piece.text if piece.kind != "added" else ""
            added += piece.text if piece.kind != "removed" else ""
    return merged + _changed(removed, added)


def _is_small(text: str) -> bool:
    """True for what is no landmark between two changes."""
    return "\n" not in text and len(text.strip()) <= LANDMARK


def _changed(removed: str, added: str) -> list[Piece]:
    told: list[tuple[Literal["removed", "added"], str]] = [("removed", removed), ("added", added)]
    return [Piece(kind, text) for kind, text in told if text]


def _told(pieces: list[Piece]) -> Changes:
    counts = {kind: sum(len(re.findall(r"\w+", piece.text)) for piece in pieces if piece.kind == kind) for kind in ("added", "removed")}
    shown = [part for at, piece in enumerate(pieces) for part in _shortened(piece, first=at == 0, last=at == len(pieces) - 1)]
    return Changes(tuple(shown), counts["added"], counts["removed"])


def _shortened(piece: Piece, *, first: bool, last: bool) -> list[Piece]:
    """Return an unchanged stretch without its middle, or without its far end at the ends of the draft."""
    head, tail = 0 if first else CONTEXT, 0 if last else CONTEXT
    if piece.kind != "same" or len(piece.text) <= head + tail + CONTEXT:
        return [piece]
    start, end = piece.text[:head], piece.text[len(piece.text) - tail :]
    left = len(piece.text) - head - tail
    parts = [Piece("same", start), Piece("left out", f"… {left:,} unchanged characters …"), Piece("same", end)]
    return [part for part in parts if part.text]


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


def segments(text: str, marks: Iterable[Highlight]) -> tuple[Segment, ...]:
    """Return a text cut at the ends of its marks, which may overlap."""
    inside = [mark for mark in marks if 0 <= mark.start < mark.end <= len(text)]
    if not inside:
        return (Segment(text, marked=False),)
    cuts = sorted({0, len(text), *(each.start for each in inside), *(each.end for each in inside)})
    found = []
    for start, end in pairwise(cuts):
        covered = any(each.start <= start and end <= each.end for each in inside)
        found.append(Segment(text[start:end], covered, tuple(each.name for each in inside if each.start == start)))
    return tuple(found)


@dataclass(frozen=True)
class QuotePlace:
    """Where a quote stands."""

    message: int
    """Index of the message."""
    span: tuple[int, int] | None
    """Characters of its content; None where the words are not found there, or stand in a tool call."""


class Quoted:
    """The messages of a conversation, in which quotes are looked up as the records that graders see."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._starts = record_starts(messages)
        self._folded: dict[int, FoldedText] = {}

    def place(self, record: int, quote: str) -> QuotePlace | None:
        """Return where a quote stands; None where there is no such record."""
        message = next((at for at in range(len(self._messages)) if self._starts[at] <= record < self._starts[at + 1]), None)
        if message is None:
            return None
        is_text = record == self._starts[message] and bool(self._messages[message].content)
        return QuotePlace(message, self._span(message, quote) if is_text else None)

    def _span(self, message: int, quote: str) -> tuple[int, int] | None:
        text = self._messages[message].content
        folded = self._folded.setdefault(message, FoldedText(text))
        return folded.span(quote) or _seen(text, quote) or _nearest(folded, quote)


def _seen(text: str, quote: str) -> tuple[int, int] | None:
    """Return where a quote stands that shows hidden characters as escapes, as the grader saw them."""
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


def _nearest(folded: FoldedText, quote: str) -> tuple[int, int] | None:
    """Return where the words stand that come closest to a long quote, as it was verified."""
    from gradeloop.grading.quotes import nearest_passage

    span = nearest_passage(" ".join(quote.split()), folded.text)
    if span is None:
        return None
    cut = folded.text[span[0] : span[1]]
    start, end = span[0] + len(cut) - len(cut.lstrip()), span[1] - len(cut) + len(cut.rstrip())
    return folded.unfolded(start, end) if start < end else None


Kind = Literal["draft", "said", "feedback", "tool"]


@dataclass(frozen=True)
class QuoteView:
    """A quote, and the anchor of the words that it quotes."""

    text: str
    verified: bool | None
    record: int
    href: str | None


@dataclass(frozen=True)
class CriterionView:
    """What was decided about a criterion."""

    row: CriterionRow
    stands: CriterionMark
    tags: tuple[str, ...]
    quotes: tuple[QuoteView, ...]
    tools: tuple[ToolEvidence, ...]
    later: str | None
    """What became of a gap with the next draft."""


@dataclass(frozen=True)
class EvaluationView:
    """A grading pass."""

    index: int
    evaluation: Evaluation
    rows: tuple[CriterionView, ...]
    tools: tuple[ToolEvidence, ...]
    """The grader's own calls, in order."""
    last: bool
    """True for the story's newest one, which a person may still override."""


@dataclass(frozen=True)
class MessageView:
    """A message, and the verdicts on it."""

    index: int
    message: Message
    kind: Kind
    draft: int | None
    """Which draft of its grading run it is, from 1."""
    best: bool
    text: tuple[Segment, ...]
    changes: Changes | None
    """What changed since the draft before."""
    compared: bool
    """True where there is a draft before it."""
    evaluations: tuple[EvaluationView, ...]


@dataclass(frozen=True)
class RunView:
    """All that the page shows beside the story's own facts."""

    strips: tuple[CriterionHistory, ...]
    messages: tuple[MessageView, ...]
    loose: tuple[EvaluationView, ...]
    """Passes over messages that are not at hand."""
    unplaced: tuple[ToolEvidence, ...]
    """Evidence of passes that are not told of here."""


def run_view(story: RunReport, key: str = "r") -> RunView:
    """Return the view of a run; `key` begins all its anchors, so that several can stand in one page."""
    telling = _Telling(story, key)
    passes = [telling.evaluation(at) for at in range(len(story.evaluations))]
    placed = {id(use) for grading_pass in passes for use in (*grading_pass.tools, *(use for row in grading_pass.rows for use in row.tools))}
    unplaced = tuple(use for use in story.tools if id(use) not in placed and use.role != "generator")
    loose = tuple(grading_pass for grading_pass in passes if grading_pass.evaluation.draft >= len(story.messages))
    return RunView(strips(story.evaluations, story.rubric), telling.messages(passes), loose, unplaced)


class _Telling:
    """A story that is being told: its quotes are looked up, and their places marked."""

    def __init__(self, story: RunReport, key: str) -> None:
        self._story = story
        self._key = key
        self._quoted = Quoted(story.messages)
        self._marks: dict[int, list[Highlight]] = {}
        """By the index of the message."""
        self._criteria = {criterion.id: criterion for criterion in story.rubric.criteria} if story.rubric else {}

    def evaluation(self, at: int) -> EvaluationView:
        """Return a grading pass."""
        evaluation, earlier = self._story.evaluations[at], self._story.evaluations[:at]
        following = next((each for each in self._story.evaluations[at + 1 :] if each.grading_run_id == evaluation.grading_run_id), None)
        tools = () if any(_place(each) == _place(evaluation) for each in earlier) else self._tools(evaluation)
        rows = tuple(self._row(f"{self._key}-e{at}-c{number}", row, following, tools) for number, row in enumerate(evaluation.criteria))
        shown = {id(use) for row in rows for use in row.tools}
        last = at == len(self._story.evaluations) - 1
        return EvaluationView(at, evaluation, rows, tuple(use for use in tools if id(use) not in shown), last)

    def messages(self, passes: Sequence[EvaluationView]) -> tuple[MessageView, ...]:
        """Return the messages, each with the verdicts on it."""
        judged: dict[int, list[EvaluationView]] = {}
        for grading_pass in passes:
            judged.setdefault(grading_pass.evaluation.draft, []).append(grading_pass)
        before: dict[str, int] = {}
        found = []
        for at in range(len(self._story.messages)):
            own = tuple(judged.get(at, ()))
            run = own[0].evaluation.grading_run_id if own else None
            found.append(self._message(at, own, before.get(run) if run is not None else None))
            if run is not None:
                before[run] = at
        return tuple(found)

    def _message(self, at: int, own: tuple[EvaluationView, ...], earlier: int | None) -> MessageView:
        message = self._story.messages[at]
        return MessageView(
            index=at,
            message=message,
            kind=_kind(message, is_draft=bool(own)),
            draft=own[0].evaluation.iteration + 1 if own else None,
            best=at == self._story.best,
            text=segments(message.content, self._marks.get(at, ())),
            changes=None if earlier is None else changes(self._story.messages[earlier].content, message.content),
            compared=earlier is not None,
            evaluations=own,
        )

    def _row(self, name: str, row: CriterionRow, following: Evaluation | None, tools: Sequence[ToolEvidence]) -> CriterionView:
        quotes = tuple(self._quote(f"{name}-q{number}", quote) for number, quote in enumerate(row.quotes))
        own = tuple(use for use in tools if use.criterion == row.id)
        return CriterionView(row, criterion_mark(row), tags_of(self._criteria.get(row.id)), quotes, own, _later(row, following))

    def _quote(self, name: str, quote: Quote) -> QuoteView:
        place = self._quoted.place(quote.record, quote.quote)
        href = None if place is None else f"{self._key}-m{place.message}"
        if place is not None and place.span is not None:
            href = name
            self._marks.setdefault(place.message, []).append(Highlight(name, *place.span))
        return QuoteView(quote.quote, quote.quote_verified, quote.record, href)

    def _tools(self, evaluation: Evaluation) -> tuple[ToolEvidence, ...]:
        return tuple(
            use for use in self._story.tools if use.role != "generator" and (use.grading_run_id, use.iteration) == _place(evaluation)
        )


def _place(evaluation: Evaluation) -> tuple[str, int]:
    return evaluation.grading_run_id, evaluation.iteration


def _kind(message: Message, *, is_draft: bool) -> Kind:
    if is_draft:
        return "draft"
    if message.source == FEEDBACK_SOURCE:
        return "feedback"
    return "tool" if message.role == "tool" else "said"


def _later(row: CriterionRow, following: Evaluation | None) -> str | None:
    """Return what became of a criterion with the next draft, where that is news."""
    after = next((criterion for criterion in following.criteria if criterion.id == row.id), None) if following else None
    if after is None or after.unverified or row.unverified:
        return None
    if not row.passed:
        return "fixed in the next draft" if after.passed else "still failing in the next draft"
    return None if after.passed else "failing in the next draft"


@dataclass(frozen=True)
class Cut:
    """A stretch of an output: words, or a citation."""

    text: str
    cited: bool = False
    verified: bool = False
    href: str | None = None
    title: str = ""


@dataclass(frozen=True)
class Field:
    """A value of the output, with the path to it."""

    name: str
    parts: tuple[Cut, ...]


@dataclass(frozen=True)
class PassageView:
    """A block of the transcript, with what is cited of it marked."""

    label: str
    role: str
    name: str | None
    parts: tuple[Segment, ...]


@dataclass(frozen=True)
class JudgedView:
    """The output and the transcript."""

    fields: tuple[Field, ...]
    passages: tuple[PassageView, ...]
    doubt: str | None
    """The judge's own: votes that were tied or split."""


def judged_view(story: RunReport, key: str = "r") -> JudgedView | None:
    """Return the view of a judgement; None where the story is none of a judge with a schema."""
    judged = story.judged
    if judged is None:
        return None
    anchors = {at: f"{key}-cite{at}" for at, each in enumerate(judged.citations) if each.block_start is not None}
    there = {passage.label for passage in story.passages}
    fields = tuple(Field(path, _parts(path, text, judged.citations, anchors, there, key)) for path, text in _leaves(judged.output))
    passages = tuple(
        PassageView(passage.label, passage.role, passage.name, segments(passage.text, _marks(passage.label, judged.citations, anchors)))
        for passage in story.passages
    )
    return JudgedView(fields, passages, _doubt(judged))


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


def _parts(path: str, text: str, citations: Sequence[Citation], anchors: dict[int, str], there: set[str], key: str) -> tuple[Cut, ...]:
    """Return a text with its citations as links."""
    found, at = [], 0
    for number, each in sorted(enumerate(citations), key=lambda pair: pair[1].start):
        if each.path != path or each.start < at or each.end > len(text):
            continue
        found.append(Cut(text[at : each.start]))
        words = f"{each.target}: “{each.quote}”" if each.quote else each.target
        href = anchors.get(number) if each.target in there else None
        href = href or (f"{key}-{each.target}" if each.target in there else None)
        found.append(Cut(words, True, each.verified, href, each.problem or "found in the transcript"))
        at = each.end
    return tuple(part for part in (*found, Cut(text[at:])) if part.text)


def _marks(label: str, citations: Sequence[Citation], anchors: dict[int, str]) -> list[Highlight]:
    return [
        Highlight(anchors[at], each.block_start, each.block_end)
        for at, each in enumerate(citations)
        if each.target == label and each.block_start is not None and each.block_end is not None
    ]


def _doubt(judged: SchemaVerdict) -> str | None:
    told = []
    for name, words in (("ties", "tied"), ("contested", "contested")):
        keys = judged.metadata.get(name)
        if isinstance(keys, list) and keys:
            told.append(f"{words}: {', '.join(map(str, keys))}")
    return "; ".join(told) or None


LIVE_SCRIPTS, LIVE_STYLES = ("live.js",), ("live.css",)
"""Of pages that are served."""


def run_page(story: RunReport, *, live: Live | None = None) -> str:
    """Return the page of a run: one HTML document that needs nothing else."""
    scripts, styles = (LIVE_SCRIPTS, LIVE_STYLES) if live else ((), ())
    return document("run.html", title=f"{story.name} · gradeloop", scripts=scripts, styles=styles, live=live, **_context(story, "r"))


def run_part(story: RunReport, *, key: str = "r", live: Live | None = None) -> str:
    """Return what stands on a run's page; `key` begins its anchors."""
    return part("run_part.html", live=live, **_context(story, key))


def _context(story: RunReport, key: str) -> dict[str, object]:
    return {"story": story, "view": run_view(story, key), "judged_view": judged_view(story, key), "key": key}
