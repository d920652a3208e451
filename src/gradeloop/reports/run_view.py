"""A run as its page shows it: messages in order, each verdict behind the draft that it judges, everything linked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gradeloop.evaluation import CriterionRow, Evaluation
from gradeloop.reports.drafts import Changes, changes
from gradeloop.reports.marked import Mark, Quoted, Segment, segments
from gradeloop.reports.run_story import RunStory, ToolUse
from gradeloop.reports.standing import Stands, stands
from gradeloop.reports.strip import Strip, strips, tags_of
from gradeloop.transcript import FEEDBACK_SOURCE, Message
from gradeloop.verdict import Quote

Kind = Literal["draft", "said", "feedback", "tool"]


@dataclass(frozen=True)
class QuoteView:
    """A quote, and the anchor of the words that it quotes."""

    text: str
    verified: bool | None
    record: int
    href: str | None


@dataclass(frozen=True)
class RowView:
    """What was decided about a criterion."""

    row: CriterionRow
    stands: Stands
    tags: tuple[str, ...]
    quotes: tuple[QuoteView, ...]
    tools: tuple[ToolUse, ...]
    later: str | None
    """What became of a gap with the next draft."""


@dataclass(frozen=True)
class EvaluationView:
    """A grading pass."""

    index: int
    evaluation: Evaluation
    rows: tuple[RowView, ...]
    tools: tuple[ToolUse, ...]
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

    strips: tuple[Strip, ...]
    messages: tuple[MessageView, ...]
    loose: tuple[EvaluationView, ...]
    """Passes over messages that are not at hand."""
    unplaced: tuple[ToolUse, ...]
    """Evidence of passes that are not told of here."""


def run_view(story: RunStory, key: str = "r") -> RunView:
    """Return the view of a run; `key` begins all its anchors, so that several can stand in one page."""
    telling = _Telling(story, key)
    passes = [telling.evaluation(at) for at in range(len(story.evaluations))]
    placed = {id(use) for each in passes for use in (*each.tools, *(use for row in each.rows for use in row.tools))}
    unplaced = tuple(use for use in story.tools if id(use) not in placed and use.role != "generator")
    loose = tuple(each for each in passes if each.evaluation.draft >= len(story.messages))
    return RunView(strips(story.evaluations, story.rubric), telling.messages(passes), loose, unplaced)


class _Telling:
    """A story that is being told: its quotes are looked up, and their places marked."""

    def __init__(self, story: RunStory, key: str) -> None:
        self._story = story
        self._key = key
        self._quoted = Quoted(story.messages)
        self._marks: dict[int, list[Mark]] = {}
        """By the index of the message."""
        self._criteria = {each.id: each for each in story.rubric.criteria} if story.rubric else {}

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
        for each in passes:
            judged.setdefault(each.evaluation.draft, []).append(each)
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

    def _row(self, name: str, row: CriterionRow, following: Evaluation | None, tools: Sequence[ToolUse]) -> RowView:
        quotes = tuple(self._quote(f"{name}-q{number}", quote) for number, quote in enumerate(row.quotes))
        own = tuple(use for use in tools if use.criterion == row.id)
        return RowView(row, stands(row), tags_of(self._criteria.get(row.id)), quotes, own, _later(row, following))

    def _quote(self, name: str, quote: Quote) -> QuoteView:
        place = self._quoted.place(quote.record, quote.quote)
        href = None if place is None else f"{self._key}-m{place.message}"
        if place is not None and place.span is not None:
            href = name
            self._marks.setdefault(place.message, []).append(Mark(name, *place.span))
        return QuoteView(quote.quote, quote.quote_verified, quote.record, href)

    def _tools(self, evaluation: Evaluation) -> tuple[ToolUse, ...]:
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
    after = next((each for each in following.criteria if each.id == row.id), None) if following else None
    if after is None or after.unverified or row.unverified:
        return None
    if not row.passed:
        return "fixed in the next draft" if after.passed else "still failing in the next draft"
    return None if after.passed else "failing in the next draft"
