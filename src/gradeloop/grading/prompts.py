"""Prompts and messages for graders and generators; what is judged stands as data behind fences."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import pairwise
from typing import Any

from gradeloop.contract.criterion import Criterion, OwnPrompt, PromptSlot, resolve_slot
from gradeloop.contract.evaluation import CheckOutcome, CriterionRow, Evaluation
from gradeloop.contract.messages import FEEDBACK_SOURCE, TURN_LIMIT_SOURCE, Message
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest
from gradeloop.grading.answer_form import FULL, AnswerForm, asked_first, names_of
from gradeloop.grading.scoring import CallGroup
from gradeloop.text import ROW_CHARACTERS, shortened, whole_characters

PROMPT_VERSION = "5"
"""The version of the prompts, recorded with everything that depends on their wording; every change of a text in `texts/` raises it."""

TRANSCRIPT_BUDGET = 600_000
"""The characters of records in a grader's prompt: about 150,000 tokens, which leaves room for tools and answer in a window of 200,000."""

RECORD_CHARACTERS = 100
"""The characters that a record takes beside its text: its number, role, type and the marks around them."""

FEW_RECORDS = 500
"""The number of records up to which only their texts count."""

STEP = 2 ** (1 / 4)
"""The factor between two lengths to which records are cut."""

_INVISIBLE = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Control, zero-width, direction, variation and tag characters, which a person reading the same text would not see."""

REMARKS = 10
"""The most graders whose explanations are looked at for the feedback."""

SENTENCES = 50
"""The most sentences of an explanation that are compared with the rows; a longer one is not a repetition."""

_WORD = re.compile(r"\w+")

_SENTENCE_END = re.compile(r"[.!?;:,\n。！？；：，、]+")


@cache
def read_prompt_text(name: str) -> str:
    """Return the text of `texts/<name>.md`."""
    return (files("gradeloop.grading") / "texts" / f"{name}.md").read_text(encoding="utf-8").strip()


_TEXTS = {name: read_prompt_text(name) for name in ("repair", "missing", "further", "last_turn", "last_draft", "shown_rubric")}

_GRADER_TEXTS = {
    name: read_prompt_text(name)
    for name in (
        "grading",
        "boundary",
        "output",
        "output_score",
        "output_quotes",
        "output_pass_score",
        "output_category",
        "language",
        "bare",
        "tagged",
        "question",
        "question_short",
        "question_tag",
        "short",
    )
}

_TRUSTED = {
    "alone": "this text, the rubric below it, and the question at the very end",
    "question": "this text, and the question at the very end with its rubric",
    "own": "this text, and what stands outside of such records in the messages below",
}


@dataclass(frozen=True)
class JudgedDraft:
    """The draft to be judged: the thread up to it, and what checks found."""

    messages: Sequence[Message]
    """The thread's messages, up to and including the draft."""
    request: int
    """Index of the user's current message."""
    draft: int
    """Index of the message to be judged."""
    checks: Mapping[str, CheckOutcome]
    """The outcomes of checks, by their criterion; a grader is told of them where its rubric says so."""
    nonce: str
    """The random code of the run, which marks the fence."""

    @cached_property
    def shown(self) -> "Records":
        """The messages as a grader is shown them."""
        return Records.of(self.messages)


@dataclass(frozen=True)
class GraderPrompt:
    """A grader's prompt: a system prompt, equal for all runs of one rubric, and the messages after it."""

    system: str
    messages: tuple[Message, ...]
    shared: int | None
    """Index of the last message that later prompts begin with too; None without any."""


def build_grader_prompt(
    rubric: Rubric,
    group: CallGroup,
    judged: JudgedDraft,
    *,
    instructions: str | None = None,
    form: AnswerForm = FULL,
    tag: str | None = None,
) -> GraderPrompt:
    """Return the prompt for the grader of one call group.

    An iteration adds a segment of records and changes none before it, until the records exceed the form's budget of characters.

    Args:
        rubric: The whole rubric.
        group: The criteria to judge, and the form of the answer.
        judged: The draft to judge.
        instructions: The user's own grading instructions, which replace gradeloop's but never the trust boundary.
        form: The form of the answer, and the characters that all records together may have.
        tag: The name of the tags that enclose the answer, for a model whose API enforces no schema.

    Raises:
        InvalidRequest: A slot of the author's own prompt leads to nothing.
    """
    budget = form.budget or TRANSCRIPT_BUDGET
    if group.prompt is not None:
        return _own_prompt(rubric, group, group.prompt, judged, form, tag)
    trusted = _TRUSTED["alone" if group.alone else "question"]
    system = _system(rubric, group, instructions, trusted, form, tagged=tag is not None)
    question = _question(group, judged, form, tag)
    heading = "" if form.profile == "short" else "# Rubric\n\n"
    if group.alone:
        system += f"\n\n{heading}{render_rubric(rubric, checks=group.shows_checks, names=names_of(group.ids))}"
    else:
        question = f"{heading}{render_rubric(rubric, group.criteria, names=names_of(group.ids))}\n\n{question}"
    segments = judged.shown.segments(judged.nonce, budget, _always_shown(judged))
    shown = tuple(Message(role="user", content=stretch) for stretch in segments)
    closed = "\n".join([*_check_records(rubric, group, judged), f"=== end of records {judged.nonce} ==="])
    return GraderPrompt(system, (*shown, Message(role="user", content=f"{closed}\n\n{question}")), len(shown) - 1)


def _always_shown(judged: JudgedDraft) -> tuple[int, int]:
    """Return the numbers of the records with the request and the draft."""
    return judged.shown.starts[judged.request], judged.shown.starts[judged.draft]


def _system(rubric: Rubric, group: CallGroup, policy: str | None, trusted: str, form: AnswerForm, *, tagged: bool) -> str:
    frame, own = _GRADER_TEXTS["tagged" if tagged else "bare"], [rubric.instructions] if rubric.instructions else []
    language = [_GRADER_TEXTS["language"].format(language=rubric.phrases.name)] if rubric.language else []
    if form.profile == "short" and not group.pass_score:
        ours = _GRADER_TEXTS["short"].format(form=f" {frame}" if tagged else "", row=_row_form(group))
        return "\n\n".join(part for part in [policy or "", *own, ours, *language] if part)
    parts = [policy or _GRADER_TEXTS["grading"], *own, _GRADER_TEXTS["boundary"].format(trusted=trusted)]
    if group.pass_score:
        categories = ", ".join(sorted(group.criteria[0].categories))
        text = _GRADER_TEXTS["output_category" if categories else "output_pass_score"]
        return "\n\n".join([*parts, text.format(form=frame, categories=categories), *language])
    scored, quoted = (any(getattr(criterion, name) for criterion in group.criteria) for name in ("score", "quoted"))
    more = [*([_GRADER_TEXTS["output_score"]] if scored else ()), *([_GRADER_TEXTS["output_quotes"]] if quoted else ())]
    shown = _GRADER_TEXTS["output"].format(form=frame, row=_row_form(group), more="".join(f"\n{text}" for text in more))
    return "\n\n".join([*parts, shown, *language])


def _row_form(group: CallGroup) -> str:
    """Return a row as the grader is to write it; the notes beside a criterion say whether its row has quotes and a score."""
    scored, quoted = (any(getattr(criterion, name) for criterion in group.criteria) for name in ("score", "quoted"))
    row = [*(['"quotes": [{"record": 3, "quote": "..."}]'] if quoted else ()), '"reason": "..."']
    return ", ".join([*row, *(['"score": a number'] if scored else ()), '"passed": true or false', '"gap": "..."'])


def _question(group: CallGroup, judged: JudgedDraft, form: AnswerForm, tag: str | None) -> str:
    starts = judged.shown.starts
    is_cut, with_checks = judged.shown.exceed(form.budget or TRANSCRIPT_BUDGET), group.shows_checks and judged.checks
    short = form.profile == "short" and not group.pass_score
    keys = [names_of(group.ids)[name] for name in asked_first(group, form)]
    return _GRADER_TEXTS["question_short" if short else "question"].format(
        request=starts[judged.request],
        draft=starts[judged.draft],
        checks=" The lines after the last record tell what tools have decided; do not judge those criteria again." if with_checks else "",
        read=" Long records are cut in the middle; the tool read_transcript shows any record whole." if is_cut else "",
        keys=", ".join(keys),
        tag=f" {_GRADER_TEXTS['question_tag'].format(tag=tag)}" if tag else "",
    )


def _check_records(rubric: Rubric, group: CallGroup, judged: JudgedDraft) -> list[str]:
    """Return what checks found as records; none where the group's grader is to judge without it."""
    texts = {criterion.id: elide(criterion.text, 300) for criterion in rubric.criteria}
    return [
        record_line({"check": texts.get(name, name), "passed": outcome.passed, "text": elide(outcome.gap or "", 4000)}, judged.nonce)
        for name, outcome in (judged.checks.items() if group.shows_checks else ())
    ]


def _own_prompt(rubric: Rubric, group: CallGroup, own: OwnPrompt, judged: JudgedDraft, form: AnswerForm, tag: str | None) -> GraderPrompt:
    """Return the author's own prompt, with fenced data in its slots."""
    policy = "\n\n".join(str(part) for message in own.messages if message.role == "system" for part in message.parts)
    system = _system(rubric, group, policy, _TRUSTED["own"], form, tagged=tag is not None)
    budget = form.budget or TRANSCRIPT_BUDGET
    messages = [
        Message(
            role="assistant" if message.role == "assistant" else "user",
            content="".join(_render_part(part, rubric, group, judged, budget) for part in message.parts),
        )
        for message in own.messages
        if message.role != "system"
    ]
    return GraderPrompt(system, (*messages, Message(role="user", content=_question(group, judged, form, tag))), None)


def _render_part(part: str | PromptSlot, rubric: Rubric, group: CallGroup, judged: JudgedDraft, budget: int) -> str:
    """Return a part of a prompt as it is sent: its text, or the data of its slot, which is never rendered."""
    if isinstance(part, str):
        return part
    if part.of == "rubric":
        if part.path:
            return _as_text(resolve_slot(group.criteria[0].description, part))
        return _fenced("rubric", render_rubric(rubric, group.criteria, names=names_of(group.ids)).splitlines(), judged.nonce)
    if part.of == "transcript":
        lines = "\n".join(judged.shown.segments(judged.nonce, budget, _always_shown(judged))).splitlines()
        return _fenced("records", [*lines[1:], *_check_records(rubric, group, judged)], judged.nonce)
    return _fenced("records", _draft(part, rubric, group, judged, budget), judged.nonce)


def _draft(slot: PromptSlot, rubric: Rubric, group: CallGroup, judged: JudgedDraft, budget: int) -> Iterator[str]:
    block = judged.shown.blocks[judged.shown.starts[judged.draft]]
    if slot.path:
        try:
            parsed = json.loads(judged.messages[judged.draft].content)
        except ValueError:
            raise InvalidRequest(f"prompt: {slot.written} reaches into the draft, which is not JSON; ask the generator for JSON") from None
        block |= {"part": ".".join(slot.path), "text": _as_text(resolve_slot(parsed, slot))}
    yield record_line(block | {"text": elide(str(block["text"]), budget)}, judged.nonce)
    yield from _check_records(rubric, group, judged)


def _as_text(value: Any) -> str:  # noqa: ANN401 - JSON of any shape
    return whole_characters(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _fenced(what: str, lines: Sequence[str] | Iterator[str], nonce: str) -> str:
    """Return lines between a fence's two lines, which stay lines of their own whatever the author wrote beside the slot."""
    return "\n".join(["", f"=== {what} {nonce} ===", *lines, f"=== end of {what} {nonce} ===", ""])


def build_generator_system(system_prompt: str | None, shown: Rubric | None) -> str:
    """Return the generator's system prompt, with the rubric if it is shown."""
    parts = [system_prompt or ""]
    if shown is not None and shown.criteria:
        parts.append(f"{_TEXTS['shown_rubric']}\n\n{render_rubric(shown)}")
    return "\n\n".join(part for part in parts if part)


def render_rubric(
    rubric: Rubric, shown: Sequence[Criterion] | None = None, *, checks: bool = True, names: Mapping[str, str] | None = None
) -> str:
    """Return criteria as unambiguous lines, with the headings above them.

    Args:
        rubric: The whole rubric.
        shown: The criteria to render; all by default.
        checks: Whether the criteria that tools decide are rendered with all others.
        names: The names under which criteria are shown, by id, others without one; by default all with their ids.
    """
    decisive = rubric.decisive
    rendered = shown if shown is not None else [criterion for criterion in rubric.criteria if checks or not criterion.check]
    wanted = {criterion.id for criterion in rendered}
    lines: list[str] = []
    headings_seen = 0
    for position, criterion in enumerate(rubric.criteria):
        headings = [escape_invisible(line.text) for line in rubric.context if line.before <= position][headings_seen:]
        if criterion.id in wanted:
            lines += [*(headings if shown is None else headings[-1:]), _criterion_line(criterion, decisive, names)]
            headings_seen += len(headings)
    rest = [escape_invisible(line.text) for line in rubric.context][headings_seen:] if shown is None else []
    return "\n".join([*lines, *rest])


def _criterion_line(criterion: Criterion, decisive: AbstractSet[str], names: Mapping[str, str] | None) -> str:
    text = escape_invisible(criterion.text)
    notes = [] if criterion.id in decisive else ["optional"]
    notes += ["decided by a tool"] if criterion.check else ["decided by a person"] if criterion.human else []
    notes += [f"score {criterion.score.min:g} to {criterion.score.max:g}"] if criterion.score else []
    notes += ["with quotes"] if criterion.quoted else []
    suffix = "".join(f" ({note})" for note in notes)
    name = criterion.id if names is None else names.get(criterion.id)
    return f"-{f' [{name}]' if name else ''}{suffix} {json.dumps(text, ensure_ascii=False) if len(text.splitlines()) > 1 else text}"


def feedback_message(rubric: Rubric, evaluation: Evaluation, remarks: Sequence[str] = ()) -> Message:
    """Return the message that asks for a revision: what fails and why, what is unverified, what graders say beside, and what must stay.

    `remarks`: explanations of its graders; those that only repeat its rows are left out.
    """
    rows, phrases = [row for row in evaluation.criteria if row.by != "nobody"], rubric.phrases
    failing = [row for row in rows if not row.passed and not row.unverified]
    lines = [
        phrases.opening,
        *_section(phrases.failing, (_row_line(row, gap=True) for row in failing if row.id in rubric.decisive)),
        *_section(phrases.unverified, (_row_line(row) for row in rows if row.unverified)),
        *_section(phrases.suggested, (_row_line(row, gap=True) for row in failing if row.id not in rubric.decisive)),
        *_section(phrases.remarks, _new_remarks(remarks[:REMARKS], evaluation.criteria)),
        *_section(phrases.passing, (_row_line(row) for row in rows if row.passed)),
        "",
        phrases.closing,
    ]
    return Message(role="user", content="\n".join(lines), name=FEEDBACK_SOURCE, source=FEEDBACK_SOURCE)


def _section(heading: str, texts: Iterable[str]) -> list[str]:
    lines = [f"- {text}" for text in texts]
    return ["", heading, *lines] if lines else []


def _row_line(row: CriterionRow, *, gap: bool = False) -> str:
    return f"[{row.id}] {_one_line(row.name)}" + (f": {_one_line(row.gap)}" if gap and row.gap else "")


def _new_remarks(remarks: Iterable[str], rows: Sequence[CriterionRow]) -> Iterator[str]:
    """Yield the remarks that say what no row and no remark before them says, as lines of about `ROW_CHARACTERS` characters in all."""
    said = "\n".join(f" {_words(text)} " for row in rows for text in (row.id, row.name, row.reason, row.gap or ""))
    left = ROW_CHARACTERS
    for remark in remarks:
        parts = [f" {words} " for part in _SENTENCE_END.split(remark) if (words := _words(part))]
        if left > 0 and parts and (len(parts) > SENTENCES or any(part not in said for part in parts)):
            line = shortened(_one_line(remark), left)
            left -= len(line)
            said += f"\n {_words(remark)} "
            yield line


def _words(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def _one_line(text: str) -> str:
    return " ".join(escape_invisible(text).split())


def repair_message(problems: Sequence[str], keys: Sequence[str]) -> Message:
    """Return the message that asks for a well-formed verdict."""
    return Message(role="user", content=_TEXTS["repair"].format(problems="; ".join(problems), keys=", ".join(keys)))


def missing_message(keys: Sequence[str]) -> Message:
    """Return the message that asks for the missing rows."""
    return Message(role="user", content=_TEXTS["missing"].format(keys=", ".join(keys)))


def further_message(keys: Sequence[str]) -> Message:
    """Return the message that asks about the next criteria of a group that is too large for one answer."""
    return Message(role="user", content=_TEXTS["further"].format(keys=", ".join(keys)))


def last_turn_message() -> Message:
    """Return the message that asks a grader for its verdict once its tool calls or turns are used up."""
    return Message(role="user", content=_TEXTS["last_turn"], source=TURN_LIMIT_SOURCE)


def last_draft_message() -> Message:
    """Return the message that asks a generator for its draft once its tool calls or turns are used up."""
    return Message(role="user", content=_TEXTS["last_draft"], source=TURN_LIMIT_SOURCE)


def is_turn_limit(messages: Sequence[Message]) -> bool:
    """Return whether the last message tells the model that its tool calls or turns are used up."""
    return bool(messages) and messages[-1].source == TURN_LIMIT_SOURCE


def sent_sha256(system: str, messages: Sequence[Message], *secret: str | None) -> str:
    """Return the sha256 of a prompt with its random codes masked, so that equal prompts have equal sums."""
    prompt = json.dumps([system, *((message.role, message.content) for message in messages)])
    for code in filter(None, secret):
        prompt = prompt.replace(code, "·")
    return hashlib.sha256(prompt.encode()).hexdigest()


@dataclass(frozen=True)
class Records:
    """Messages as records, one for every content block: a text, a tool call, or a tool's result."""

    messages: Sequence[Message]
    blocks: list[dict[str, object]]
    """The records, with their numbers."""
    starts: list[int]
    """The number of every message's first record, and last the number of all records."""

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Records":
        """Return the records of messages."""
        blocks, starts = list[dict[str, object]](), [0]
        for message in messages:
            blocks += ({"record": number} | block for number, block in enumerate(_blocks(message), len(blocks)))
            starts.append(len(blocks))
        return cls(messages, blocks, starts)

    def exceed(self, budget: int) -> bool:
        """Tell whether records are cut to fit a budget of characters."""
        return exceeds(budget, (len(str(block["text"])) for block in self.blocks))

    def segments(self, nonce: str, budget: int, shown: Sequence[int] = ()) -> list[str]:
        """Return the records in segments that end with an answer; a further answer adds a segment and changes none before it.

        Once the records exceed `budget` characters, the longest ones are cut, in steps, so that this holds for long; of very many short
        ones those in the middle are left out, except those `shown`.
        """
        cut = cut_to(budget, [len(str(block["text"])) for block in self.blocks], shown)
        lines = [record_line(block | {"text": elide(str(block["text"]), cut.cap)}, nonce) for block in self.blocks]
        for first, last in cut.left_out:
            lines[first : last + 1] = [record_line({"left_out": f"records {first} to {last}"}, nonce), *([""] * (last - first))]
        lines[0] = f"=== records {nonce} ===\n{lines[0]}"
        ends = [self.starts[at + 1] for at, message in enumerate(self.messages) if _is_answer(message)]
        stops = dict.fromkeys((*ends, len(lines)))  # a finished run need not end with an answer
        segments = ("\n".join(filter(None, lines[start:end])) for start, end in pairwise((0, *stops)))
        return [segment for segment in segments if segment]


def records(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return a record for every content block: a text, a tool call, or a tool's result."""
    return Records.of(messages).blocks


def _blocks(message: Message) -> Iterator[dict[str, object]]:
    if message.hidden:
        yield {"role": message.role, "type": "hidden", "text": ""}
        return
    speaker: dict[str, object] = {"role": message.role, **({"source": message.source} if message.source else {})}
    speaker |= {"name": message.name} if message.name else {}
    about = message.about or {}
    if message.kind is not None:  # a record of a finished run
        yield speaker | {"type": message.kind, **about, "text": message.content}
        return
    if message.role == "tool":
        yield speaker | {"type": "tool_result", "call": message.tool_call_id, **about, "text": message.content}
    elif message.content.strip() or not message.tool_calls:
        yield speaker | {"type": "text", **about, "text": message.content}
    for call in message.tool_calls:
        arguments = call.invalid if call.invalid is not None else json.dumps(call.arguments, ensure_ascii=False)
        yield speaker | {"type": "tool_call", "call": call.id, "tool": call.name, **about, "text": arguments}


def record_starts(messages: Sequence[Message]) -> list[int]:
    """Return the number of every message's first record, and last the number of all records."""
    return Records.of(messages).starts


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls and message.kind in {None, "text"}


def record_line(block: Mapping[str, object], nonce: str) -> str:
    """Return the record as one line of JSON that can neither close a fence nor start a record."""
    # What is judged is data, whatever it says. As JSON on one line it cannot begin a record, as it has no
    # line feed. The run's code in it is broken up, so it cannot close the fence even where it has been
    # guessed, and special tokens of models lose their beginning. Characters that nobody sees become escapes:
    # instructions could hide in them.
    line = json.dumps(block, ensure_ascii=False).replace("<|", "\\u003c|").replace(nonce, nonce[:1] + "\\u002d" + nonce[1:])
    return _INVISIBLE.sub(lambda found: json.dumps(found.group())[1:-1], line)


def is_elided(messages: Sequence[Message], budget: int = TRANSCRIPT_BUDGET) -> bool:
    """Tell whether records are cut to fit the budget, so that the grader needs `read_transcript`."""
    return Records.of(messages).exceed(budget)


@dataclass(frozen=True)
class RecordCut:
    """The part of records that is shown where they exceed a budget."""

    cap: int
    """The characters to which the text of a record is cut."""
    left_out: tuple[tuple[int, int], ...] = ()
    """The first and the last index of every stretch that is left out."""


def exceeds(budget: int, lengths: Iterable[int]) -> bool:
    """Return whether records are cut, or some are left out, to fit a budget: by the lengths of their texts, in characters."""
    total = around = 0
    for length in lengths:
        total += length
        around += RECORD_CHARACTERS
        if total > budget or total + around > max(budget, FEW_RECORDS * RECORD_CHARACTERS):
            return True
    return False


# Cutting is by steps and from the middle, for the sake of a provider's cache of the prompt's beginning. The longest texts are cut first,
# all to one cap, and the cap is rounded down to a power of STEP: an iteration that adds a record mostly leaves the cap, and so every
# earlier segment, byte for byte as it was. Without the steps each further draft would change all records, and nothing would be cached.
# Only where even texts of the cap are too many are whole records left out: a third of the budget stays for the first ones, the rest for
# the last, and the request and the draft (`shown`) are never among them, since a verdict without the draft would be about nothing.
def cut_to(budget: int, lengths: Sequence[int], shown: Sequence[int] = ()) -> RecordCut:
    """Return the part of records that fits a budget: the longest are cut first, then those in the middle are left out.

    `budget`: characters in all; beyond `FEW_RECORDS`, what each record takes beside its text counts too.
    """
    around = RECORD_CHARACTERS * max(len(lengths) - FEW_RECORDS, 0)
    cap = longest_shown(lengths, max(budget - around, budget // 2) if exceeds(budget, lengths) else budget)
    costs = [min(length, cap) + RECORD_CHARACTERS for length in lengths]
    if len(lengths) <= FEW_RECORDS or sum(costs) <= budget:
        return RecordCut(cap)
    head, tail, first, last = 0, 0, 0, len(costs) - 1
    while head + costs[first] <= budget // 3:
        head, first = head + costs[first], first + 1
    while tail + costs[last] <= budget - budget // 3:
        tail, last = tail + costs[last], last - 1
    bounds = [first - 1, *sorted(at for at in shown if first <= at <= last), last + 1]
    return RecordCut(cap, tuple((before + 1, after - 1) for before, after in pairwise(bounds) if after - before > 1))


def longest_shown(lengths: Sequence[int], budget: int) -> int:
    """Return the length to which records are cut so that all fit the budget, by cutting the longest ones first."""
    left = budget
    for position, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - position)
        if length > share:
            # A power of `STEP`, so that a growing transcript keeps its beginning, and a provider's cache of it, for long.
            return int(STEP ** int(math.log(max(share, 200), STEP)))
        left -= length
    return max(lengths, default=0)


def elide(text: str, cap: int) -> str:
    """Return the text, cut in its middle to about `cap` characters."""
    if len(text) <= cap:
        return text
    head = cap - cap // 3
    tail = cap // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} of {len(text)} characters left out …]\n{text[len(text) - tail :]}"


def escape_invisible(text: str) -> str:
    """Return the text with control, zero-width and direction characters as visible escapes."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
