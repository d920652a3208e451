"""One conversation with a grader: an answer becomes a verdict, a message that asks again, or a failure; nothing here does I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field

from gradeloop.prompts import missing, repair
from gradeloop.tally import Answer
from gradeloop.transcript import Message
from gradeloop.verdict import Malformed, Verdict, VerdictRow

REPAIRS = 2
"""Turns in which a grader may repair a malformed verdict."""


@dataclass(frozen=True)
class GraderFailure:
    """The grader gave no verdict and is not asked again."""

    error: str


class GraderConversation(BaseModel):
    """What a conversation with a grader keeps beside its messages; `take` applies the rules of malformed answers to it."""

    steps: int = 0
    """How many answers the grader gave, those that call tools included."""
    repairs: int = 0
    """How many times the grader was asked to repair its answer."""
    pending: tuple[str, ...] = ()
    """The criteria that the grader left out, once it is asked for them alone."""
    rows: tuple[VerdictRow, ...] = ()
    """The rows that came before those."""
    explanation: str = ""
    """The explanation that came with those rows."""
    forced: bool = Field(default=False, exclude_if=lambda value: not value)
    """True when the model's first answer, which no schema could bind, was malformed: it is asked again by the schema alone."""
    missing: tuple[str, ...] = ()
    """Ids without a row, however often the grader was asked."""
    error: str | None = None
    """Why there is no verdict, or rows are missing."""
    verdict: Verdict | None = None
    judge: str | None = None
    """The id of the grader that was asked."""
    cached: bool = False
    """True where the verdict was given before, to the same question."""

    @property
    def ended(self) -> bool:
        """True where there is nothing more to ask."""
        return self.verdict is not None or self.error is not None

    def take(
        self,
        reading: Verdict | Malformed,
        asked: tuple[str, ...],
        *,
        loose: bool = False,
        spent: str | None = None,
        ask_again: Callable[[Sequence[str], Sequence[str]], Message] = repair,
    ) -> Verdict | Message | GraderFailure:
        """Take an answer in; a verdict or a failure ends the conversation, a message is what the grader is sent next.

        Two repairs come first, then one turn for the missing criteria alone; criteria that are missing even then stay open, and the
        tally decides whether the rubric bears it.

        Args:
            reading: The grader's answer as it was read.
            asked: Ids of the criteria that the grader judges.
            loose: Whether no schema bound the answer; the first malformed one of those costs no repair.
            spent: The tool calls or turns that are used up, where this was the last turn.
            ask_again: Writes the message that asks for a repair, from the problems and the ids.
        """
        if isinstance(reading, Verdict):
            self.verdict = self._completed(reading)
            return self.verdict
        problems, to_force = "; ".join(reading.problems), loose and not self.forced
        if spent is not None and not to_force:
            return self._failed(f"no verdict after {spent} and one last turn: {problems}")
        if self.pending and not to_force:
            return self._left_open(reading, problems)
        if to_force or self.repairs < REPAIRS:
            self.forced, self.repairs = self.forced or to_force, self.repairs + (not to_force)
            return ask_again(reading.problems, asked)
        if not reading.missing:
            return self._failed(f"after {REPAIRS} repairs: {problems}")
        self.pending, self.rows, self.explanation = reading.missing, reading.rows, reading.explanation
        return missing(reading.missing)

    def _completed(self, verdict: Verdict) -> Verdict:
        """Return the verdict with the rows that came before it, where it answers for the missing criteria alone."""
        if not self.pending:
            return verdict
        explanation = verdict.explanation if verdict.result == "failed" else self.explanation or verdict.explanation
        return verdict.model_copy(update={"criteria": (*self.rows, *verdict.criteria), "explanation": explanation})

    def _left_open(self, malformed: Malformed, problems: str) -> Verdict | GraderFailure:
        """End with the rows that are there, where missing ids are all that is wrong with the last answer."""
        failure = self._failed(f"asked for the missing criteria alone: {problems}")
        if not malformed.missing:
            return failure
        self.missing = malformed.missing
        self.verdict = Verdict(criteria=(*self.rows, *malformed.rows), explanation=self.explanation, result="needs_revision")
        return self.verdict

    def _failed(self, why: str) -> GraderFailure:
        self.error = f"malformed_verdict: {why}"
        return GraderFailure(self.error)

    def answer(self) -> Answer:
        """Return what the tally counts."""
        return Answer(judge=self.judge or "", verdict=self.verdict, missing=self.missing, error=self.error, cached=self.cached)
