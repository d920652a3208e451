"""Graders' answers, parsed strictly into verdicts, and the conversation that asks for repairs of malformed ones."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Any

from pydantic import BaseModel, Field, JsonValue, ValidationError
from pydantic_core import to_json

from gradeloop.contract.base import Items, Strict
from gradeloop.contract.criterion import Scale
from gradeloop.contract.evaluation import CriterionRow, Malformed, Verdict, VerdictResult, VerdictRow
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import MISTAKES, explain
from gradeloop.grading.prompts import missing_message, repair_message
from gradeloop.grading.scoring import CallGroup, GraderAnswer
from gradeloop.text import clip, strict_json

REPAIRS = 2
"""The turns in which a grader may repair a malformed verdict."""


METADATA_BYTES = 16 * 1024
"""The largest metadata of a row, as JSON."""


ROWS_TO_SPARE = 10
"""The rows that an answer may have beyond two for each criterion; one that has more repeats itself, and is no verdict."""

DROPPED = 5
"""The most ids that the note on rows which nobody asked for names."""


OWN_QUOTE_KEYS = ("quote_verified", "quote_match", "quote_nearest")
"""What gradeloop finds out about a quote; a grader may not say it."""


NOTHING = Verdict(criteria=(), explanation="", result="needs_revision")
"""What is known before a grader's first answer."""


def earlier_answers(scratch: Iterable[Message]) -> list[str]:
    """Return the answers that a grader gave in its conversation so far, tool calls aside."""
    return [message.content for message in scratch if message.role == "assistant" and not message.tool_calls]


def parse_verdict(
    text: str, group: CallGroup, asked: Sequence[str] | None = None, *, earlier: Iterable[str] = (), tag: str | None = None
) -> Verdict | Malformed:
    """Parse a grader's answer, together with the well-formed rows of its earlier ones.

    Nothing is coerced, searched for or repaired: the whole text is one JSON object that keeps the schema, gives a gap with
    every fail and agrees with itself; with the earlier rows it answers every asked id. `docs/contract.md`, "Verdicts", has the rules.

    Args:
        text: The answer.
        group: The criteria that are answered together, and the form of the answer.
        asked: The ids of the group that must have a row; all by default.
        earlier: The answers before it in the same conversation; those that lacked nothing but ids give their rows.
        tag: The name of the tags that enclose the object, each present once; without it, the object is the whole text.
    """
    known = NOTHING
    for answer in earlier:
        reading = _parse_answer(answer, group, group.ids, known, tag)
        known = reading if isinstance(reading, Verdict) else _as_verdict(reading) if reading.missing else known
    return _parse_answer(text, group, group.ids if asked is None else tuple(asked), known, tag)


def _as_verdict(unfinished: Malformed) -> Verdict:
    """Return an answer that lacks nothing but ids as the verdict that it would be."""
    return Verdict(criteria=unfinished.rows, explanation=unfinished.explanation, result="needs_revision", dropped=unfinished.dropped)


def _parse_answer(text: str, group: CallGroup, asked: tuple[str, ...], known: Verdict, tag: str | None) -> Verdict | Malformed:
    try:
        raw = _parse_object(text if tag is None else text_between_tags(text, tag))
        if group.pass_score:
            return _parse_pass_score(raw, group)
        verdict = Verdict.model_validate(_tuples(raw), strict=True)
    except ValidationError as error:
        return Malformed(problems=(explain(error),))
    except (ValueError, RecursionError) as error:
        return Malformed(problems=(f"the answer is not one JSON object: {error}",))
    problems = tuple(islice(_key_problems(raw, group), MISTAKES))
    if problems:
        return Malformed(problems=problems)
    rows = tuple(row.model_copy(update={"gap": None}) if row.passed else row for row in verdict.criteria)
    return check_verdict(verdict.model_copy(update={"criteria": rows}), group, asked, known)


def text_between_tags(text: str, tag: str) -> str:
    """Return the text between the two tags of that name.

    Raises:
        ValueError: The tags are not there exactly once each, the closing one at the end.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    if (text.count(opening), text.count(closing)) != (1, 1):
        raise ValueError(f"{opening} and {closing} must each stand in it once, the object between them")
    _, _, rest = text.partition(opening)
    inside, closed, after = rest.partition(closing)
    if not closed or after.strip():
        raise ValueError(f"{closing} must come after the object, at the end")
    return inside


def _parse_object(text: str) -> Any:  # noqa: ANN401 - validated by the caller
    body = text.strip()
    if not body.startswith("{"):
        raise ValueError(f"it starts with {clip(body[:40])}")
    return strict_json(body)


def _tuples(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return the value with tuples instead of the lists of rows and quotes, as strict validation needs."""
    if isinstance(value, dict) and isinstance(value.get("criteria"), list):
        rows = (
            row | {"quotes": tuple(row["quotes"])} if isinstance(row, dict) and isinstance(row.get("quotes"), list) else row
            for row in value["criteria"]
        )
        return value | {"criteria": tuple(rows)}
    return value


def _key_problems(raw: dict[str, Any], group: CallGroup) -> Iterator[str]:
    """Yield the keys that an asked row lacks, and those that the answer has though this rubric does not ask for them."""
    if "dropped" in raw:
        yield "unknown key 'dropped'"
    for row in raw["criteria"]:
        if row["id"] not in group.ids:
            continue
        for key, due in (("score", group.scored), ("quotes", group.quoted)):
            if due and key not in row:
                yield f"{clip(row['id'])} has no {key}"
            if not due and key in row:
                yield f"{clip(row['id'])}: unknown key {key!r}"
        if "metadata" in row:
            yield f"{clip(row['id'])}: unknown key 'metadata'"
        quotes = row.get("quotes") or ()
        yield from (f"{clip(row['id'])}: unknown key {key!r}" for key in OWN_QUOTE_KEYS if any(key in quote for quote in quotes))


class _PassScore(Strict):
    reason: str
    passed: bool
    score: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _parse_pass_score(raw: Any, group: CallGroup) -> Verdict | Malformed:  # noqa: ANN401 - JSON of any shape
    """Parse `{reason, pass, score}` about the one criterion of the group; the reason is its gap where it fails."""
    if odd := sorted(set(raw) ^ {"reason", "pass", "score"}):
        return Malformed(problems=(f"the object has exactly the keys reason, pass and score; check {', '.join(map(clip, odd))}",))
    answer = _PassScore.model_validate({"reason": raw["reason"], "passed": raw["pass"], "score": raw["score"]}, strict=True)
    if not answer.passed and not answer.reason.strip():
        return Malformed(problems=("it does not pass and the reason is blank; say what is missing",))
    gap = None if answer.passed else answer.reason
    row = VerdictRow(id=group.ids[0], reason=answer.reason, passed=answer.passed, gap=gap, score=answer.score)
    return Verdict(criteria=(row,), explanation=answer.reason, result="satisfied" if answer.passed else "needs_revision")


class RemoteRow(Strict):
    """A remote grader's verdict on one criterion; only `id`, `passed` and, for a fail, a gap or reason are required."""

    id: str
    passed: Annotated[bool, Field(strict=True)]
    reason: str = ""
    gap: str | None = None
    score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    metadata: dict[str, JsonValue] | None = None


class RemoteAnswer(Strict):
    """A remote grader's whole answer."""

    criteria: Items[RemoteRow]
    explanation: str = ""
    result: VerdictResult | None = None


def parse_remote_verdict(value: Any, group: CallGroup) -> Verdict | Malformed:  # noqa: ANN401 - whatever somebody else's code returns
    """Parse `{criteria: [{id, passed, reason?, gap?, score?, metadata?}], explanation?, result?}`, or a row alone where one was asked."""
    if isinstance(value, dict) and "criteria" not in value and len(group.ids) == 1:
        value = {"criteria": [{"id": group.ids[0]} | value]}
    try:
        answer = RemoteAnswer.model_validate(value)
    except ValidationError as error:
        return Malformed(problems=(explain(error),))
    problems = tuple(
        f"the metadata of {row.id} has {size} bytes as JSON, {METADATA_BYTES} at most"
        for row in answer.criteria
        if row.id in group.ids and row.metadata is not None and (size := len(to_json(row.metadata))) > METADATA_BYTES
    )
    if problems:
        return Malformed(problems=problems)
    rows = tuple(
        VerdictRow(
            id=row.id,
            reason=row.reason,
            passed=row.passed,
            gap=None if row.passed else row.gap or row.reason,
            score=row.score,
            metadata=row.metadata,
        )
        for row in answer.criteria
    )
    result: VerdictResult = "failed" if answer.result == "failed" else _due(row for row in rows if row.id in group.ids)
    return check_verdict(Verdict(criteria=rows, explanation=answer.explanation, result=result), group, group.ids)


def check_verdict(verdict: Verdict, group: CallGroup, asked: tuple[str, ...], known: Verdict = NOTHING) -> Verdict | Malformed:
    """Return the verdict with the earlier rows if every asked id has one and it agrees with itself, else what is wrong with it.

    A row counts instead of an earlier one for its criterion; rows that nobody asked for are dropped, whatever they say.

    Args:
        verdict: What the answer says.
        group: The criteria that are answered together.
        asked: The ids of the group that must have a row.
        known: The rows of earlier answers.
    """
    most = 2 * len(group.ids) + ROWS_TO_SPARE
    if (count := len(verdict.criteria)) > most:
        return Malformed(problems=(f"there are {count} rows, {most} at most; give one row for each of {', '.join(asked)}",))
    strangers = dict.fromkeys(row.id for row in verdict.criteria if row.id not in group.ids)
    own = tuple(row for row in verdict.criteria if row.id in group.ids)
    merged = _merged(known, own, verdict)
    problems = list(islice(chain(_row_problems(own, group), _summary_problems(verdict, own, merged, group)), MISTAKES))
    answered = {row.id for row in merged.criteria}
    missing = tuple(name for name in asked if name not in answered) if verdict.result != "failed" else ()
    absent = [f"no row for {', '.join(missing)}"] if missing else []
    if strangers and (missing or problems):
        absent.append(f"nobody asked for {', '.join(_clipped(strangers))}; the ids are {', '.join(asked)}")
    if problems:
        return Malformed(problems=(*problems, *absent))
    dropped = tuple(dict.fromkeys((*known.dropped, *_clipped(strangers))))[:DROPPED]
    if missing:
        rows, explanation = merged.criteria, merged.explanation
        return Malformed(problems=tuple(absent), missing=missing, rows=rows, explanation=explanation, dropped=dropped)
    result = _due(merged.criteria) if group.plain and verdict.result != "failed" else verdict.result
    return merged.model_copy(update={"result": result, "dropped": dropped})


def _clipped(strangers: Iterable[str]) -> list[str]:
    return [clip(name, 40) for name in islice(strangers, DROPPED)]


def _merged(known: Verdict, own: Sequence[VerdictRow], verdict: Verdict) -> Verdict:
    """Return the verdict with the known rows that it does not give anew; its explanation comes after theirs, where some of them stay."""
    rows = {row.id: row for row in (*known.criteria, *own)}
    explanation = verdict.explanation
    if verdict.result != "failed" and known.explanation.strip() and not {row.id for row in known.criteria} <= {row.id for row in own}:
        repeated = explanation.strip() in known.explanation
        explanation = known.explanation if repeated else f"{known.explanation} {explanation}"
    return verdict.model_copy(update={"criteria": tuple(rows.values()), "explanation": explanation})


def _due(rows: Iterable[VerdictRow]) -> VerdictResult:
    """Return the result that rows have where all must pass and nothing else counts."""
    return "satisfied" if all(row.passed for row in rows) else "needs_revision"


def _row_problems(rows: Iterable[VerdictRow], group: CallGroup) -> Iterator[str]:
    criteria = {criterion.id: criterion for criterion in group.criteria}
    seen: dict[str, VerdictRow] = {}
    for row in rows:
        if seen.setdefault(row.id, row) != row:
            yield f"{row.id} is answered twice, and not alike"
        criterion = criteria[row.id]
        if not row.passed and not (row.gap or "").strip() and not criterion.negate:
            yield f"{clip(row.id)} fails without a gap; say what is missing"
        if criterion.score:
            yield from score_problems(row, criterion.score)


def score_problems(row: VerdictRow, scale: Scale) -> Iterator[str]:
    """Yield the problems of a row's number."""
    if row.score is None:
        yield f"{row.id} has no score; give a number from {scale.min:g} to {scale.max:g}"
    elif not scale.min <= row.score <= scale.max:
        yield f"the score {row.score:g} of {row.id} is outside of {scale.min:g} to {scale.max:g}"


def _summary_problems(verdict: Verdict, own: Sequence[VerdictRow], merged: Verdict, group: CallGroup) -> Iterator[str]:
    """Yield what is wrong with the result.

    In a plain rubric it must agree with the rows. An answer that gives some of the rows alone may sum up these, or all that are known.
    """
    if verdict.result == "failed":
        if not verdict.explanation.strip():
            yield "the result is 'failed' and the explanation is blank; say why the rubric cannot be judged"
        return
    if not group.plain:
        return
    whole = {row.id for row in merged.criteria} == set(group.ids)
    due = _due(merged.criteria)
    if verdict.result not in {_due(own), due if whole else "needs_revision"}:
        yield f"the result is {verdict.result!r}, but the rows say {due!r}"


@dataclass(frozen=True)
class GraderFailure:
    """The end of a conversation without a verdict."""

    error: str


class GraderConversation(BaseModel):
    """The state of a conversation with a grader beside its messages; `take` applies the rules for malformed answers to it."""

    steps: int = 0
    """The number of the grader's answers, those that call tools included."""
    repairs: int = 0
    """The number of times that the grader was asked to repair its answer."""
    pending: tuple[str, ...] = ()
    """Ids of the criteria that the grader omitted, once it is asked for them alone."""
    rows: tuple[VerdictRow, ...] = ()
    """The rows that the grader gave before that."""
    explanation: str = ""
    """The explanation that came with those rows."""
    forced: bool = Field(default=False, exclude_if=lambda value: not value)
    """True when the model's first answer, which no schema could bind, was malformed: it is asked again by the schema alone."""
    missing: tuple[str, ...] = ()
    """Ids without a row, after all repairs."""
    error: str | None = None
    """Why there is no verdict, or rows are missing."""
    verdict: Verdict | None = None
    judge: str | None = None
    """The id of the grader that was asked, or of the fallback that answered."""
    fallback: ModelSpec | None = Field(default=None, exclude_if=lambda value: value is None)
    """The model that gave the last answer, where it is a fallback."""
    instead_of: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The id of the grader that was to answer, where a fallback did."""
    cached: bool = False
    """Whether the verdict was reused from the same question."""

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to ask."""
        return self.verdict is not None or self.error is not None

    def take(
        self,
        reading: Verdict | Malformed,
        asked: tuple[str, ...],
        *,
        loose: bool = False,
        spent: str | None = None,
        ask_again: Callable[[Sequence[str], Sequence[str]], Message] = repair_message,
    ) -> Verdict | Message | GraderFailure:
        """Apply an answer: a verdict or a failure ends the conversation, a message is sent to the grader next.

        Two repairs come first, then one turn for the missing criteria alone; criteria that are missing even then stay
        unverified, and `scoring.aggregate` decides whether the pass still has a verdict.

        Args:
            reading: The parsed answer.
            asked: Ids of the criteria that the grader judges.
            loose: Whether no schema bound the answer; the first malformed one of those costs no repair.
            spent: Which limit is used up, tool calls or turns, where this was the last turn.
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
        return missing_message(reading.missing)

    def _completed(self, verdict: Verdict) -> Verdict:
        """Return the verdict with the rows that were there before, where it answers for the missing criteria alone."""
        rows, explanation = self._with_rows(verdict.criteria, verdict.explanation)
        explanation = verdict.explanation if verdict.result == "failed" else explanation
        return verdict.model_copy(update={"criteria": rows, "explanation": explanation})

    def _with_rows(self, rows: tuple[VerdictRow, ...], explanation: str) -> tuple[tuple[VerdictRow, ...], str]:
        """Return an answer's rows and explanation, with those of before where the answer does not include them."""
        merged = {row.id: row for row in (*self.rows, *rows)}
        return tuple(merged.values()), explanation if len(merged) == len(rows) else self.explanation or explanation

    def _left_open(self, malformed: Malformed, problems: str) -> Verdict | GraderFailure:
        """End with the rows that are there, where nothing but missing ids is wrong with the last answer."""
        failure = self._failed(f"asked for the missing criteria alone: {problems}")
        if not malformed.missing:
            return failure
        self.missing = malformed.missing
        rows, explanation = self._with_rows(malformed.rows, malformed.explanation)
        self.verdict = Verdict(criteria=rows, explanation=explanation, result="needs_revision", dropped=malformed.dropped)
        return self.verdict

    def _failed(self, why: str) -> GraderFailure:
        self.error = f"malformed_verdict: {why}"
        return GraderFailure(self.error)

    def name_judge(self, asked: str | None) -> None:
        """Note who answered: the grader that was asked, or a fallback in its place."""
        self.judge = self.fallback.id if self.fallback else asked
        self.instead_of = asked if self.fallback else None

    def answer(self) -> GraderAnswer:
        """Return the answer as votes are counted from it."""
        return GraderAnswer(
            judge=self.judge or "",
            verdict=self.verdict,
            missing=self.missing,
            error=self.error,
            cached=self.cached,
            instead_of=self.instead_of,
        )


def first_judge(conversations: Iterable[GraderConversation]) -> str | None:
    """Return the id of the grader that judged, the first of several, a fallback where no other did; None where nobody was asked."""
    judged = sorted((conversation for conversation in conversations if conversation.judge), key=lambda one: one.instead_of is not None)
    return judged[0].judge if judged else None


_QUOTED = re.compile(r"```.*?```|`[^`]*`|\"[^\"]*\"|“[^”]*”|«[^»]*»|(?<!\w)['‘][^'’\n]*['’](?!\w)", re.DOTALL)
_TAKES_BACK = re.compile(r"\W*(?:but|however|yet|still|nevertheless|that said|on the other hand)\b", re.IGNORECASE)
_SUPPOSES_OR_DENIES = re.compile(
    r"\b(?:if|unless|would|could|might|may|should|whether|although|though|while|whereas|except|because|since|says?|said|states?|stated"
    r"|claims?|first|initially|earlier|previous(?:ly)?|otherwise)\b|(?:\b(?:no|not|none|nothing|never|n?either|nor|without)\b|n't\b)[^,:]*$",
    re.IGNORECASE,
)
_START, _END = r"(?:^|[,:(]\s*|\b(?:so|thus|therefore|hence|and),?\s+)", r"(?=\s*(?:$|[.,:;!)]|\b(?:because|since|as|and|so)\b))"
_SO, _SURELY = r"(?:so|thus|therefore|hence),?", r"(?:fully |clearly |therefore |thus )?"
_IT = r"(?:it|this|(?:the|this) (?:[\w'’]+ )?(?:answer|response|output|draft|reply|text|message|agent|assistant|model|solution|code))"
_RULE = r"(?:criteri(?:on|a)|requirements?|rubric|conditions?)"
_THE_RULE = rf"(?:all |both )?(?:the |this |these )?{_RULE}"
_SOME_RULE = rf"(?:[\w'’-]+ ){{0,4}}(?:{_RULE}|standards?|minimum|maximum|limit|threshold|expectations?)(?: (?:of|to|that)\b[^.,;]*)?"
_FAILS_TO = r"(?:does not|doesn't|do not|don't|did not|didn't|fails to) (?:fully |clearly )?(?:meet|satisfy|fulfill?|pass)"
_CONCLUSIONS = {
    True: rf"{_IT} {_SURELY}(?:meets|satisfies|fulfil?ls|passes) {_THE_RULE}|{_SO} {_IT} passes"
    rf"|{_THE_RULE} (?:is|are) {_SURELY}(?:met|satisfied|fulfilled)|verdict(?: is|:) (?:a )?pass(?:es|ed)?",
    False: rf"{_IT} {_SURELY}{_FAILS_TO}(?: {_SOME_RULE}| it)?|{_IT} {_SURELY}(?:fails|violates) {_THE_RULE}|{_SO} {_IT} fails"
    rf"|{_THE_RULE} (?:is|are) {_SURELY}(?:not (?:met|satisfied|fulfilled)|unmet|violated)|verdict(?: is|:) (?:a )?fail(?:s|ed|ure)?",
}
"""The phrases with which a reason concludes that a criterion passes, and that it fails, as alternatives of a regular expression."""
_CONCLUDES = {passed: re.compile(f"{_START}(?P<said>{phrases}){_END}", re.IGNORECASE) for passed, phrases in _CONCLUSIONS.items()}


def contradicted(reason: str, *, passed: bool) -> str:
    """Return in words how a reason concludes the opposite of its verdict; empty where it does not, or concludes both.

    What it quotes, supposes, denies or takes back is no conclusion: a false alarm costs more trust than a contradiction that is missed.
    """
    sentences = [sentence.strip() for sentence in re.split(r"(?<=[.!?;])\s+|\n+", _QUOTED.sub("…", reason))]
    found = {True: "", False: ""}
    for sentence, following in zip(sentences, [*sentences[1:], ""], strict=True):
        for verdict, phrases in _CONCLUDES.items():
            said = phrases.search(sentence)
            if said is None or _SUPPOSES_OR_DENIES.search(sentence[: said.start("said")]):
                continue
            if not any(map(_TAKES_BACK.match, (sentence[said.end() :], following))):
                found[verdict] = said["said"]
    return f"its reason concludes “{found[not passed]}”, which contradicts its verdict" if found[not passed] and not found[passed] else ""


def contradiction(row: CriterionRow, rubric: Rubric | None) -> str:
    """Return in words how a row's reason contradicts what its grader said; empty where it does not, or without the row's criterion.

    A pass that a threshold or a missing quote has turned into a fail contradicts nothing, and a negated criterion's verdict is inverted.
    """
    criterion = next((one for one in rubric.criteria if one.id == row.id), None) if rubric else None
    if criterion is None or row.unverified or row.by not in {"model", "cached"}:
        return ""
    passed = row.passed != criterion.negate
    was_passed = not passed and (criterion.require_quotes or (criterion.scale is not None and criterion.scale.threshold is not None))
    return "" if was_passed else contradicted(row.reason, passed=passed)
