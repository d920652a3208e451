"""Prompts for graders and generators, built from data behind fences."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from importlib.resources import files
from itertools import accumulate, pairwise
from typing import Any

from gradeloop.contract.criterion import Criterion, OwnPrompt, PromptSlot, resolve_slot
from gradeloop.contract.evaluation import CheckOutcome, CriterionRow, Evaluation
from gradeloop.contract.messages import FEEDBACK_SOURCE, Message
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest
from gradeloop.grading.scoring import CallGroup

TRANSCRIPT_BUDGET = 600_000
"""Characters of records that a grader is shown: about 150,000 tokens, inside a window of 200,000 with room for tools and answer."""

STEP = 2 ** (1 / 4)
"""Between two lengths to which records are cut."""

_INVISIBLE = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Control, zero-width, direction, variation and tag characters: what a person reading the same text would not see."""


def escape_invisible(text: str) -> str:
    """Return `text` with control, zero-width and direction characters as visible escapes."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def records(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return a record for each content block: a text, a tool call, or a tool's result."""
    blocks = (block for message in messages for block in _blocks(message))
    return [{"record": number} | block for number, block in enumerate(blocks)]


def _blocks(message: Message) -> Iterator[dict[str, object]]:
    told: dict[str, object] = {"role": message.role} | ({"source": message.source} if message.source else {})
    told |= {"name": message.name} if message.name else {}
    if message.role == "tool":
        yield told | {"type": "tool_result", "call": message.tool_call_id, "text": message.content}
    elif message.content.strip() or not message.tool_calls:
        yield told | {"type": "text", "text": message.content}
    for call in message.tool_calls:
        arguments = call.invalid if call.invalid is not None else json.dumps(call.arguments, ensure_ascii=False)
        yield told | {"type": "tool_call", "call": call.id, "tool": call.name, "text": arguments}


def record_starts(messages: Sequence[Message]) -> list[int]:
    """Return the number of each message's first record, and at the end how many records there are."""
    return list(accumulate((sum(1 for _ in _blocks(message)) for message in messages), initial=0))


def longest_shown(lengths: Sequence[int], budget: int) -> int:
    """Return the longest text that each record may show so that all fit, by cutting the longest ones first."""
    left = budget
    for position, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - position)
        if length > share:
            return _stepped(max(share, 200))
        left -= length
    return max(lengths, default=0)


def _stepped(cap: int) -> int:
    """Round down to a step of a sixth, so that a growing transcript keeps its beginning, and what a provider cached of it, for long."""
    return int(STEP ** int(math.log(cap, STEP)))


def elide(text: str, cap: int) -> str:
    """Return a text of at most about `cap` characters, cut in its middle."""
    if len(text) <= cap:
        return text
    head = cap - cap // 3
    tail = cap // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} of {len(text)} characters left out …]\n{text[len(text) - tail :]}"


def is_elided(messages: Sequence[Message], budget: int = TRANSCRIPT_BUDGET) -> bool:
    """True where the records do not all fit, so that the grader needs `read_transcript`."""
    return sum(len(str(block["text"])) for block in records(messages)) > budget


def record_line(block: Mapping[str, object], nonce: str) -> str:
    """Return the record as one line of JSON that can close no fence and start no record."""
    line = json.dumps(block, ensure_ascii=False).replace("<|", "\\u003c|").replace(nonce, nonce[:1] + "\\u002d" + nonce[1:])
    return _INVISIBLE.sub(lambda found: _json_escape(found.group()), line)


def _json_escape(character: str) -> str:
    return json.dumps(character)[1:-1]


def record_segments(messages: Sequence[Message], nonce: str, budget: int = TRANSCRIPT_BUDGET) -> list[str]:
    """Return the records in stretches that each end with an answer, or the records; a further answer adds one, and changes none before it.

    Once the records exceed `budget` characters, the longest ones are cut, in steps, so that this holds for long.
    """
    blocks = records(messages)
    cap = longest_shown([len(str(block["text"])) for block in blocks], budget)
    lines = [record_line(block | {"text": elide(str(block["text"]), cap)}, nonce) for block in blocks]
    lines[0] = f"=== records {nonce} ===\n{lines[0]}"
    starts = record_starts(messages)
    ends = [starts[at + 1] for at, message in enumerate(messages) if message.role == "assistant" and not message.tool_calls]
    stops = dict.fromkeys((*ends, len(lines)))  # a finished run need not end with an answer
    return ["\n".join(lines[start:end]) for start, end in pairwise((0, *stops))]


PROMPT_VERSION = "3"
"""Named in what depends on the wording; raised with every change of a text in `prompts/`."""


def read_prompt_text(name: str) -> str:
    """Return the text of `prompts/<name>.md`."""
    return (files("gradeloop.grading") / "texts" / f"{name}.md").read_text(encoding="utf-8").strip()


_TEXTS = {name: read_prompt_text(name) for name in ("repair", "missing", "last_turn", "last_draft", "shown_rubric")}


def sent_sha256(system: str, messages: Sequence[Message], *secret: str | None) -> str:
    """Return the sha256 of what a model is sent, with the random codes in it masked, so that it is the same each time."""
    said = json.dumps([system, *((message.role, message.content) for message in messages)])
    for code in filter(None, secret):
        said = said.replace(code, "·")
    return hashlib.sha256(said.encode()).hexdigest()


def render_rubric(rubric: Rubric, shown: Sequence[Criterion] | None = None) -> str:
    """Return criteria as lines that cannot be mistaken for one another, with the headings that they stand under.

    Args:
        rubric: What they are part of.
        shown: Which of them; all by default.
    """
    pressing = rubric.pressing
    wanted = None if shown is None else {criterion.id for criterion in shown}
    lines: list[str] = []
    told = 0
    for position, criterion in enumerate(rubric.criteria):
        headings = [escape_invisible(line.text) for line in rubric.context if line.before <= position][told:]
        if wanted is None or criterion.id in wanted:
            lines += [*(headings if shown is None else headings[-1:]), _criterion_line(criterion, pressing)]
            told += len(headings)
    rest = [escape_invisible(line.text) for line in rubric.context][told:] if shown is None else []
    return "\n".join([*lines, *rest])


def _criterion_line(criterion: Criterion, pressing: AbstractSet[str]) -> str:
    text = escape_invisible(criterion.text)
    marks = [] if criterion.id in pressing else ["optional"]
    marks += ["decided by a tool"] if criterion.check else ["decided by a person"] if criterion.human else []
    marks += [f"score {criterion.score.min:g} to {criterion.score.max:g}"] if criterion.score else []
    marks += ["with quotes"] if criterion.quoted else []
    told = "".join(f" ({mark})" for mark in marks)
    return f"- [{criterion.id}]{told} {json.dumps(text, ensure_ascii=False) if len(text.splitlines()) > 1 else text}"


def build_generator_system(system_prompt: str | None, shown: Rubric | None) -> str:
    """Return the generator's system prompt, with the rubric where it may see it."""
    parts = [system_prompt or ""]
    if shown is not None and shown.criteria:
        parts.append(f"{_TEXTS['shown_rubric']}\n\n{render_rubric(shown)}")
    return "\n\n".join(part for part in parts if part)


def repair_message(problems: Sequence[str], asked: Sequence[str]) -> Message:
    """Return the request for a well-formed verdict."""
    return Message(role="user", content=_TEXTS["repair"].format(problems="; ".join(problems), ids=", ".join(asked)))


def missing_message(asked: Sequence[str]) -> Message:
    """Return the request for the rows that were left out."""
    return Message(role="user", content=_TEXTS["missing"].format(ids=", ".join(asked)))


def last_turn_message() -> Message:
    """Return what a grader is told when its tool calls or turns are used up."""
    return Message(role="user", content=_TEXTS["last_turn"])


def last_draft_message() -> Message:
    """Return what a generator is told when its tool calls or turns are used up."""
    return Message(role="user", content=_TEXTS["last_draft"])


_GRADER_TEXTS = {
    name: read_prompt_text(name)
    for name in (
        "grading",
        "boundary",
        "output",
        "output_score",
        "output_quotes",
        "output_pass_score",
        "language",
        "bare",
        "tagged",
        "question",
        "question_tag",
    )
}

_TRUSTED = {
    "alone": "this text, the rubric below it, and the question at the very end",
    "question": "this text, and the question at the very end with its rubric",
    "own": "this text, and what stands outside of such records in the messages below",
}


@dataclass(frozen=True)
class JudgedDraft:
    """What is to be judged, as data: the thread up to the draft, and what was found out about it."""

    messages: Sequence[Message]
    """The thread, up to and including the draft."""
    request: int
    """Index of the user's current message."""
    draft: int
    """Index of the message to be judged."""
    checks: Mapping[str, CheckOutcome]
    """What tools have decided already."""
    nonce: str
    """The run's random code, which marks the fence."""


@dataclass(frozen=True)
class GraderPrompt:
    """A system prompt, equal for all runs of one rubric, and the messages after it."""

    system: str
    messages: tuple[Message, ...]
    shared: int | None
    """Index of the last message up to which the prompt is the beginning of later ones."""


def build_grader_prompt(
    rubric: Rubric,
    group: CallGroup,
    judged: JudgedDraft,
    *,
    instructions: str | None = None,
    tag: str | None = None,
    budget: int = TRANSCRIPT_BUDGET,
) -> GraderPrompt:
    """Return what one call group's grader is given.

    From one iteration to the next a stretch of records is added and none is changed, until they exceed `budget` characters.

    Args:
        rubric: What to judge by.
        group: Which of its criteria, and in what form to answer.
        judged: What to judge.
        instructions: The user's own grading instructions, which stand instead of ours; never of the trust boundary.
        tag: The name of the tags between which the answer is to stand, for a model whose API keeps no schema.
        budget: Characters of text shown in all.

    Raises:
        InvalidRequest: A prompt of the author's own reaches into what is not there.
    """
    if group.prompt is not None:
        return _own(rubric, group, group.prompt, judged, tag, budget)
    trusted = _TRUSTED["alone" if group.alone else "question"]
    system = _system(rubric, group, instructions or _GRADER_TEXTS["grading"], trusted, tagged=tag is not None)
    asked = _question(group, judged, tag, budget)
    if group.alone:
        system += f"\n\n# Rubric\n\n{render_rubric(rubric)}"
    else:
        asked = f"# Rubric\n\n{render_rubric(rubric, group.criteria)}\n\n{asked}"
    shown = tuple(Message(role="user", content=stretch) for stretch in record_segments(judged.messages, judged.nonce, budget))
    closed = "\n".join([*_decided(judged), f"=== end of records {judged.nonce} ==="])
    return GraderPrompt(system, (*shown, Message(role="user", content=f"{closed}\n\n{asked}")), len(shown) - 1)


def _system(rubric: Rubric, group: CallGroup, policy: str, trusted: str, *, tagged: bool) -> str:
    form = _GRADER_TEXTS["tagged" if tagged else "bare"]
    parts = [policy, *([rubric.instructions] if rubric.instructions else ()), _GRADER_TEXTS["boundary"].format(trusted=trusted)]
    parts.append(_GRADER_TEXTS["output_pass_score"].format(form=form) if group.pass_score else _row_form(group, form))
    parts += [_GRADER_TEXTS["language"].format(language=rubric.phrases.name)] if rubric.language else []
    return "\n\n".join(part for part in parts if part)


def _row_form(group: CallGroup, form: str) -> str:
    row = ['"id": "..."', *(['"quotes": [{"record": 3, "quote": "..."}]'] if group.quoted else ()), '"reason": "..."']
    row += [*(['"score": a number or null'] if group.scored else ()), '"passed": true or false', '"gap": "..." or null']
    more = [*([_GRADER_TEXTS["output_score"]] if group.scored else ()), *([_GRADER_TEXTS["output_quotes"]] if group.quoted else ())]
    return _GRADER_TEXTS["output"].format(form=form, row=", ".join(row), more="".join(f"\n{each}" for each in more))


def _question(group: CallGroup, judged: JudgedDraft, tag: str | None, budget: int) -> str:
    starts = record_starts(judged.messages)
    elsewhere = is_elided(judged.messages, budget)
    return _GRADER_TEXTS["question"].format(
        request=starts[judged.request],
        draft=starts[judged.draft],
        checks=" The lines after the last record tell what tools have decided; do not judge those criteria again." if judged.checks else "",
        read=" Long records are cut in the middle; the tool read_transcript shows any record whole." if elsewhere else "",
        ids=", ".join(group.ids),
        tag=f" {_GRADER_TEXTS['question_tag'].format(tag=tag)}" if tag else "",
    )


def _decided(judged: JudgedDraft) -> list[str]:
    return [
        record_line({"check": about, "passed": outcome.passed, "text": elide(outcome.gap or "", 4000)}, judged.nonce)
        for about, outcome in judged.checks.items()
    ]


def _own(rubric: Rubric, group: CallGroup, own: OwnPrompt, judged: JudgedDraft, tag: str | None, budget: int) -> GraderPrompt:
    """Return a prompt of the author's own, with what is judged in its places, fenced."""
    policy = "\n\n".join(str(part) for message in own.messages if message.role == "system" for part in message.parts)
    system = _system(rubric, group, policy, _TRUSTED["own"], tagged=tag is not None)
    said = [message for message in own.messages if message.role != "system"]
    texts = ["".join(_put(part, rubric, group, judged, budget) for part in message.parts) for message in said]
    told = [Message(role="user" if each.role == "user" else "assistant", content=text) for each, text in zip(said, texts, strict=True)]
    return GraderPrompt(system, (*told, Message(role="user", content=_question(group, judged, tag, budget))), None)


def _put(part: str | PromptSlot, rubric: Rubric, group: CallGroup, judged: JudgedDraft, budget: int) -> str:
    """Return a part of a prompt as it is sent: its text, or what belongs in its place, which is never rendered."""
    if isinstance(part, str):
        return part
    if part.of == "rubric":
        if part.path:
            return _told(resolve_slot(group.criteria[0].description, part))
        return _fenced("rubric", render_rubric(rubric, group.criteria).splitlines(), judged.nonce)
    if part.of == "transcript":
        return _fenced("records", _transcript(judged, budget), judged.nonce)
    return _fenced("records", _draft(part, judged, budget), judged.nonce)


def _transcript(judged: JudgedDraft, budget: int) -> Iterator[str]:
    shown = "\n".join(record_segments(judged.messages, judged.nonce, budget)).splitlines()
    yield from shown[1:]
    yield from _decided(judged)


def _draft(place: PromptSlot, judged: JudgedDraft, budget: int) -> Iterator[str]:
    number = record_starts(judged.messages)[judged.draft]
    block = records(judged.messages)[number]
    if place.path:
        try:
            parsed = json.loads(judged.messages[judged.draft].content)
        except ValueError:
            raise InvalidRequest(f"prompt: {place.written} reaches into the draft, which is no JSON; ask the generator for JSON") from None
        block |= {"part": ".".join(place.path), "text": _told(resolve_slot(parsed, place))}
    yield record_line(block | {"text": elide(str(block["text"]), budget)}, judged.nonce)
    yield from _decided(judged)


def _told(value: Any) -> str:  # noqa: ANN401 - JSON of any shape
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _fenced(what: str, lines: Sequence[str] | Iterator[str], nonce: str) -> str:
    """Return lines between a fence's lines, which stand alone whatever the author wrote beside the place."""
    return "\n".join(["", f"=== {what} {nonce} ===", *lines, f"=== end of {what} {nonce} ===", ""])


def _one_line(text: str) -> str:
    return " ".join(escape_invisible(text).split())


def _section(heading: str, rows: Iterable[CriterionRow], *, gaps: bool = False) -> list[str]:
    told = [f"- [{row.id}] {_one_line(row.name)}" + (f": {_one_line(row.gap)}" if gaps and row.gap else "") for row in rows]
    return ["", heading, *told] if told else []


def feedback_message(rubric: Rubric, evaluation: Evaluation) -> Message:
    """Return the message that asks for a revision: what fails and why, what was not verified, what must stay."""
    rows, said = [row for row in evaluation.criteria if not (row.unverified and row.by == "human")], rubric.phrases
    failing = [row for row in rows if not row.passed and not row.unverified]
    lines = [
        said.opening,
        *_section(said.failing, (row for row in failing if row.id in rubric.pressing), gaps=True),
        *_section(said.unverified, (row for row in rows if row.unverified)),
        *_section(said.suggested, (row for row in failing if row.id not in rubric.pressing), gaps=True),
        *_section(said.passing, (row for row in rows if row.passed)),
        "",
        said.closing,
    ]
    return Message(role="user", content="\n".join(lines), name=FEEDBACK_SOURCE, source=FEEDBACK_SOURCE)
