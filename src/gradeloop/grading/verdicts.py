"""Graders' answers, read strictly into verdicts, and the conversation that asks for repairs of malformed ones."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

from pydantic import BaseModel, Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_json

from gradeloop.contract.base import Items, Strict
from gradeloop.contract.criterion import Criterion, Scale
from gradeloop.contract.evaluation import CriterionRow, Malformed, Quote, Verdict, VerdictResult, VerdictRow
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import MISTAKES, explain
from gradeloop.grading.answer_form import AnswerForm, keys_of, names_of
from gradeloop.grading.prompts import further_message, missing_message, repair_message
from gradeloop.grading.scoring import CallGroup, GraderAnswer
from gradeloop.text import clip, strict_json

REPAIRS = 2
"""The turns in which a grader may repair a malformed verdict."""

METADATA_BYTES = 16 * 1024
"""The largest metadata of a row, as JSON."""

DROPPED = 5
"""The most keys that the note on rows which nobody asked for names."""

OWN_QUOTE_KEYS = ("quote_verified", "quote_match", "quote_nearest")
"""Keys of a quote that gradeloop sets; a grader may not."""

NOTHING = Verdict(criteria=(), explanation="", result="needs_revision")
"""The verdict before a grader's first answer."""

_KEY = re.compile(r"k[0-9]{1,9}")
_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)
_THOUGHT_ENDS = ("</think>", "</thinking>")


def earlier_answers(scratch: Iterable[Message]) -> list[str]:
    """Return the answers that a grader gave in its conversation so far, tool calls aside."""
    return [message.content for message in scratch if message.role == "assistant" and not message.tool_calls]


# A grader that omitted rows is asked only for those. So its answers are read one after the other, and a newer
# row replaces an older one. An earlier answer gives its rows only if nothing else was wrong with it. Rows
# beside another fault are not used: whoever breaks the form may also have mixed up the rows.
def parse_verdict(
    text: str, group: CallGroup, asked: Sequence[str] | None = None, *, earlier: Iterable[str] = (), tag: str | None = None
) -> Verdict | Malformed:
    """Read a grader's answer, together with the well-formed rows of its earlier ones.

    Nothing in the object is coerced, searched for or repaired: it has a whole row for each key, and with the earlier rows it answers
    every asked id. `docs/verdicts.md` has the rules.

    Args:
        text: The answer.
        group: The criteria that are answered together, and the form of the answer.
        asked: The ids of the group that must have a row; all by default.
        earlier: The answers before it in the same conversation; those that lacked nothing but rows give the others.
        tag: The name of the tags that may enclose the object, each once.
    """
    known = NOTHING
    for answer in earlier:
        reading = _parse_answer(answer, group, group.ids, known, tag)
        known = reading if isinstance(reading, Verdict) else _as_verdict(reading) if reading.missing else known
    return _parse_answer(text, group, group.ids if asked is None else tuple(asked), known, tag)


def _as_verdict(unfinished: Malformed) -> Verdict:
    """Return an answer that lacks nothing but rows as the verdict that it would be."""
    return Verdict(criteria=unfinished.rows, explanation=unfinished.explanation, result="needs_revision", dropped=unfinished.dropped)


def _parse_answer(text: str, group: CallGroup, asked: tuple[str, ...], known: Verdict, tag: str | None) -> Verdict | Malformed:
    try:
        raw = read_object(text, tag)
        return _parse_pass_score(raw, group) if group.pass_score else _parse_keyed(raw, group, asked, known)
    except ValidationError as error:
        return Malformed(problems=(explain(error),))
    except (ValueError, RecursionError) as error:
        return Malformed(problems=(f"the answer is not one JSON object: {error}",))


def read_object(text: str, tag: str | None = None) -> dict[str, Any]:
    """Return the one JSON object that a reply is, whatever frame is around it: tags, a block of thinking before it, a code fence.

    Prose is not a frame: an object in the middle of it may be one that the draft shows.

    Raises:
        ValueError: The reply has no object, more than one, or something else beside it; or it is nested too deeply.
        RecursionError: It is nested more deeply than the parser goes.
    """
    body = (text_between_tags(text, tag) if tag is not None and f"<{tag}>" in text else text).strip()
    if not body.startswith("{"):
        for end in _THOUGHT_ENDS:
            body = body.rpartition(end)[2].strip()
        fenced = _FENCE.fullmatch(body)
        body = fenced[1].strip() if fenced else body
    if not body.startswith("{"):
        raise ValueError(f"it starts with {clip(body[:40])}")
    return strict_json(body)  # type: ignore[no-any-return]  # it starts with a brace


def text_between_tags(text: str, tag: str) -> str:
    """Return the text between the two tags of that name.

    Raises:
        ValueError: The tags are not there exactly once each, the closing one at the end, a code fence behind it aside.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    if (text.count(opening), text.count(closing)) != (1, 1):
        raise ValueError(f"{opening} and {closing} must each stand in it once, the object between them")
    _, _, rest = text.partition(opening)
    inside, closed, after = rest.partition(closing)
    if not closed or after.strip() not in {"", "```"}:
        raise ValueError(f"{closing} must come after the object, at the end")
    return inside


class _KeyedRow(Strict):
    reason: str
    passed: bool
    gap: str
    score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    quotes: tuple[Quote, ...] | None = None


_ROWS = TypeAdapter(dict[str, _KeyedRow])
_SENTENCES = TypeAdapter(dict[str, str])


# Criteria are answered under their positions, never under their ids. An id is the user's text, and a model
# copies a long one inexactly. Positions also give equal rubrics equal schemas, so that a provider compiles one
# grammar. A key of our form that nobody asked for is dropped with a note. Any other unknown key makes the
# answer malformed.
def _parse_keyed(raw: dict[str, Any], group: CallGroup, asked: tuple[str, ...], known: Verdict) -> Verdict | Malformed:
    """Read `{k1: {reason, passed, gap}, ..., unjudgeable?, summary?}`; where `unjudgeable` says something, the rows do not count."""
    keys = keys_of(group.ids)
    beside = {name: raw[name] for name in ("unjudgeable", "summary") if name in raw}
    said = _SENTENCES.validate_python(beside, strict=True)
    if (why := said.get("unjudgeable", "")).strip():
        return Verdict(criteria=(), explanation=why, result="failed")
    strangers = [key for key in raw if key not in keys and _KEY.fullmatch(key)]
    problems = [f"unknown key {clip(key, 40)}" for key in raw if key not in {*keys, *beside, *strangers}]
    given = {key: _as_tuples(raw[key]) for key in raw if key in keys}
    for key, row in given.items():
        problems += _form_problems(key, row, group.criteria[list(keys).index(key)])
    if problems:
        return Malformed(problems=tuple(problems[:MISTAKES]))
    rows = tuple(_row(keys[key], row.model_dump()) for key, row in _ROWS.validate_python(given, strict=True).items())
    return _merge_rows(rows, said.get("summary", ""), group, asked, known, strangers)


def _as_tuples(row: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return a row with a tuple instead of its list of quotes, as strict validation needs."""
    return row | {"quotes": tuple(row["quotes"])} if isinstance(row, dict) and isinstance(row.get("quotes"), list) else row


def _form_problems(key: str, row: Any, criterion: Criterion) -> Iterator[str]:  # noqa: ANN401 - JSON of any shape
    """Yield what a row lacks of its criterion's form, and what it has beyond that."""
    if not isinstance(row, dict):
        return
    for name, due in (("score", criterion.score), ("quotes", criterion.quoted)):
        if due and row.get(name) is None:
            yield f"{key} has no {name}"
        if not due and name in row:
            yield f"{key}: unknown key {name!r}"
    quotes = [quote for quote in row.get("quotes") or () if isinstance(quote, dict)]
    yield from (f"{key}: unknown key {name!r}" for name in OWN_QUOTE_KEYS if any(name in quote for quote in quotes))


def _row(name: str, said: Mapping[str, Any]) -> VerdictRow:
    """Return a row: a gap on a pass is dropped, and a fail without one takes its reason."""
    gap = None if said["passed"] else said["gap"] if (said["gap"] or "").strip() else said["reason"]
    return VerdictRow.model_validate({**said, "id": name, "gap": gap})


class _PassScore(Strict):
    reason: str
    passed: bool
    score: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _parse_pass_score(raw: Any, group: CallGroup) -> Verdict | Malformed:  # noqa: ANN401 - JSON of any shape
    """Parse `{reason, pass, score}` about the one criterion of the group; the reason is its gap where it fails.

    Where the criterion has categories, the answer is `{reason, category}`; white space and brackets around it do not count.
    """
    if scores := group.criteria[0].categories:
        named = str(raw.get("category")).strip("() \n").upper()
        if set(raw) != {"reason", "category"} or named not in scores:
            return Malformed(
                problems=(f"the object has exactly the keys reason and category, which is one of {', '.join(sorted(scores))}",)
            )
        raw = {"reason": raw["reason"], "pass": scores[named] > 0, "score": scores[named]}
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


def parse_remote_verdict(value: Any, group: CallGroup) -> Verdict | Malformed:  # noqa: ANN401 - code that is not ours returns anything
    """Parse `{criteria: [{id, passed, reason?, gap?, score?, metadata?}], explanation?, result?}`, or a bare row if one was asked.

    Rows decide, unless the result is `failed`: then rows may be missing, and the explanation says why.
    """
    if isinstance(value, dict) and "criteria" not in value and len(group.ids) == 1:
        value = {"criteria": [{"id": group.ids[0]} | value]}
    try:
        answer = RemoteAnswer.model_validate(value)
    except ValidationError as error:
        return Malformed(problems=(explain(error),))
    own = [row for row in answer.criteria if row.id in group.ids]
    problems = [
        f"the metadata of {row.id} has {size} bytes as JSON, {METADATA_BYTES} at most"
        for row in own
        if row.metadata is not None and (size := len(to_json(row.metadata))) > METADATA_BYTES
    ]
    seen: dict[str, RemoteRow] = {}
    problems += [f"{row.id} is answered twice, and not alike" for row in own if seen.setdefault(row.id, row) != row]
    failed = answer.result == "failed"
    if failed and not answer.explanation.strip():
        problems.append("the result is 'failed' and the explanation is blank; say why the rubric cannot be judged")
    if problems:
        return Malformed(problems=tuple(problems[:MISTAKES]))
    rows = tuple(_row(name, row.model_dump()) for name, row in seen.items())
    if failed:
        return Verdict(criteria=rows, explanation=answer.explanation, result="failed")
    strangers = [row.id for row in answer.criteria if row.id not in group.ids]
    return _merge_rows(rows, answer.explanation, group, group.ids, NOTHING, strangers, {name: name for name in group.ids})


def _merge_rows(
    own: Sequence[VerdictRow],
    explanation: str,
    group: CallGroup,
    asked: Sequence[str],
    known: Verdict,
    strangers: Iterable[str],
    names: Mapping[str, str] | None = None,
) -> Verdict | Malformed:
    """Return a verdict of new rows and known ones if every asked id has one, else what is wrong.

    A row counts instead of an earlier one for its criterion; rows that nobody asked for are dropped, whatever they say. An explanation
    comes after that of known rows that stay.

    `asked`: the ids of the group that must have a row.
    `names`: what the answer calls the criteria, by id: their keys by default.
    """
    names = names or names_of(group.ids)
    # A new row takes the place of an earlier one, so that a repair may correct what stood. Ids are named as
    # missing only where some rows are there. After the repairs one more turn asks only for those; without any row
    # the grader has failed.
    problems = tuple(islice(_row_problems(own, group, names), MISTAKES))
    rows = {row.id: row for row in (*known.criteria, *own)}
    missing = tuple(name for name in asked if name not in rows)
    odd = [clip(name, 40) for name in islice(dict.fromkeys(strangers), DROPPED)]
    absent = [f"no row for {', '.join(names[name] for name in missing)}"] if missing else []
    if odd and (missing or problems):
        absent.append(f"nobody asked for {', '.join(odd)}, but for {', '.join(names[name] for name in asked)}")
    if problems:
        return Malformed(problems=(*problems, *absent))
    if known.explanation.strip() and not {row.id for row in known.criteria} <= {row.id for row in own}:
        explanation = known.explanation if explanation.strip() in known.explanation else f"{known.explanation} {explanation}"
    facts: dict[str, Any] = {"explanation": explanation, "dropped": tuple(dict.fromkeys((*known.dropped, *odd)))[:DROPPED]}
    if missing:
        return Malformed(problems=tuple(absent), missing=missing if rows else (), rows=tuple(rows.values()), **facts)
    return Verdict(
        criteria=tuple(rows.values()), result="satisfied" if all(row.passed for row in rows.values()) else "needs_revision", **facts
    )


def _row_problems(rows: Iterable[VerdictRow], group: CallGroup, names: Mapping[str, str]) -> Iterator[str]:
    criteria = {criterion.id: criterion for criterion in group.criteria}
    for row in rows:
        criterion, name = criteria[row.id], names[row.id]
        if not row.passed and not (row.gap or "").strip() and not criterion.negate:
            yield f"{name} fails without a gap or a reason; say what is missing"
        if criterion.score:
            yield from score_problems(row, criterion.score, name)


def score_problems(row: VerdictRow, scale: Scale, name: str) -> Iterator[str]:
    """Yield the problems of a row's number; the row is called by `name`."""
    if row.score is None:
        yield f"{name} has no score; give a number from {scale.min:g} to {scale.max:g}"
    elif not scale.min <= row.score <= scale.max:
        yield f"the score {row.score:g} of {name} is outside of {scale.min:g} to {scale.max:g}"


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
    """Ids of the only criteria that the grader is asked for: the next of a large group, or those that it omitted."""
    omitted: bool = Field(default=False, exclude_if=lambda value: not value)
    """True when the pending criteria are those that the grader omitted: it is not asked for them again."""
    form: AnswerForm | None = Field(default=None, exclude_if=lambda value: value is None)
    """The form in which the grader answers; None before its first answer."""
    forced: bool = Field(default=False, exclude_if=lambda value: not value)
    """True when the model's first answer, which no schema could bind, was malformed: it is asked again only by the schema."""
    missing: tuple[str, ...] = ()
    """Ids without a row, after all repairs."""
    error: str | None = None
    """The reason why there is no verdict, or why rows are missing."""
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
        most: int | None = None,
        ask_again: Callable[[Sequence[str], Sequence[str]], Message] = repair_message,
    ) -> Verdict | Message | GraderFailure:
        """Apply an answer: a verdict or a failure ends the conversation, a message is sent to the grader next.

        Two repairs come first, then one turn only for the missing criteria; criteria that are missing even then stay
        unverified, and `scoring.aggregate` decides whether the pass still has a verdict.

        Args:
            reading: The parsed answer.
            asked: Ids of the criteria that the grader judges.
            loose: Whether no schema bound the answer; the first malformed one of those costs no repair.
            spent: Which limit is used up, tool calls or turns, where this was the last turn.
            most: The most criteria that one call asks for; None for all.
            ask_again: Writes the message that asks for a repair, from the problems and the ids.
        """
        if isinstance(reading, Verdict):
            return self._next_part(reading, asked, most)
        # The order of the ways out: one free try where no schema had bound the answer, then the repairs, then
        # one turn only for the rows that are missing. Each way is taken once and noted in the state, so the
        # conversation ends, also across a checkpoint. A model that never answers in form is a failure of the
        # grader and never a verdict.
        problems, to_force, names = "; ".join(reading.problems), loose and not self.forced, names_of(asked)
        if spent is not None and not to_force:
            return self._failed(f"no verdict after {spent} and one last turn: {problems}")
        if self.omitted and not to_force:
            return self._left_open(reading, problems, asked)
        if to_force or self.repairs < REPAIRS:
            self.forced, self.repairs = self.forced or to_force, self.repairs + (not to_force)
            return ask_again(reading.problems, [names[name] for name in self.pending or asked[:most]])
        if not reading.missing:
            return self._failed(f"after {REPAIRS} repairs: {problems}")
        self.pending, self.omitted = reading.missing, True
        return missing_message([names[name] for name in reading.missing])

    def _next_part(self, verdict: Verdict, asked: tuple[str, ...], most: int | None) -> Verdict | Message:
        """Take a verdict on all that was asked; where a schema holds only a part of the group, ask for the next one."""
        answered = {row.id for row in verdict.criteria}
        left = [name for name in asked if name not in answered]
        if not left or verdict.result == "failed":
            self.verdict = verdict
            return verdict
        self.pending, self.omitted = tuple(left[:most]), False
        return further_message([names_of(asked)[name] for name in self.pending])

    def _left_open(self, malformed: Malformed, problems: str, asked: tuple[str, ...]) -> Verdict | GraderFailure:
        """End with the rows that are there, where nothing but missing ids is wrong with the last answer."""
        failure = self._failed(f"asked only for the missing criteria: {problems}")
        if not malformed.missing:
            return failure
        answered = {row.id for row in malformed.rows}
        self.missing = tuple(name for name in asked if name not in answered)
        facts = {"explanation": malformed.explanation, "dropped": malformed.dropped}
        self.verdict = Verdict.model_validate({"criteria": malformed.rows, "result": "needs_revision"} | facts)
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

    What it quotes, supposes, denies or takes back is not a conclusion: a false alarm costs more trust than a contradiction that is missed.
    """
    # A reason and a verdict come from one model, and a reason that concludes the opposite shows that one of
    # the two is a slip. Only a whole phrase that states the conclusion counts, and only if nothing before it
    # in its sentence supposes, denies or reports, and nothing behind it takes it back. What is quoted is cut
    # out first: a draft may quote any verdict.
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
