"""Prompts, assembled from texts in `prompts/` and from data; fences and nonces are arguments, so equal input gives equal bytes."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

from gradeloop.evaluation import CheckOutcome
from gradeloop.rubric import Rubric
from gradeloop.transcript import Message

VERSION = "1"
"""Named in what depends on the wording; raised with every change of a text in `prompts/`."""

TRANSCRIPT_BUDGET = 600_000
"""Characters of records that a grader is shown: about 150,000 tokens, inside a window of 200,000 with room for tools and answer."""

_INVISIBLE = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Control, zero-width, direction, variation and tag characters: what a person reading the same text would not see."""


def prompt(name: str) -> str:
    """Return the text of `prompts/<name>.md`."""
    return (files("gradeloop") / "prompts" / f"{name}.md").read_text(encoding="utf-8").strip()


_TEXTS = {
    name: prompt(name)
    for name in ("grading", "boundary", "output", "question", "repair", "missing", "last_turn", "last_draft", "shown_rubric")
}


def visible(text: str) -> str:
    """Return `text` with control, zero-width and direction characters as visible escapes."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def grader_system(rubric: Rubric, instructions: str | None) -> str:
    """Return the grader's system prompt: equal for all runs of one rubric, the trust boundary always in it.

    Args:
        rubric: What to judge by.
        instructions: The user's own grading instructions, which stand instead of ours.
    """
    policy = instructions or _TEXTS["grading"]
    return "\n\n".join([policy, _TEXTS["boundary"], _TEXTS["output"], "# Rubric", _rubric_text(rubric)])


def generator_system(system_prompt: str | None, shown: Rubric | None) -> str:
    """Return the generator's system prompt, with the rubric where it may see it."""
    parts = [system_prompt or ""]
    if shown is not None and shown.criteria:
        parts.append(f"{_TEXTS['shown_rubric']}\n\n{_rubric_text(shown)}")
    return "\n\n".join(part for part in parts if part)


def _rubric_text(rubric: Rubric) -> str:
    lines: list[str] = []
    for position, criterion in enumerate(rubric.criteria):
        lines += [line.text for line in rubric.context if line.before == position]
        optional = "" if criterion.id in rubric.gating else " (optional)"
        decided = " (decided by a tool)" if criterion.check else ""
        lines.append(f"- [{criterion.id}]{optional}{decided} {criterion.description}")
    return "\n".join([*lines, *(line.text for line in rubric.context if line.before >= len(rubric.criteria))])


def records(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return a record for each content block: a text, a tool call, or a tool's result."""
    blocks: list[dict[str, object]] = []
    for message in messages:
        told: dict[str, object] = {"role": message.role} | ({"source": message.source} if message.source else {})
        told |= {"name": message.name} if message.name else {}
        if message.role == "tool":
            blocks.append(told | {"type": "tool_result", "call": message.tool_call_id, "text": message.content})
        elif message.content.strip() or not message.tool_calls:
            blocks.append(told | {"type": "text", "text": message.content})
        for call in message.tool_calls:
            arguments = call.invalid if call.invalid is not None else json.dumps(call.arguments, ensure_ascii=False)
            blocks.append(told | {"type": "tool_call", "call": call.id, "tool": call.name, "text": arguments})
    return [{"record": number} | block for number, block in enumerate(blocks)]


def record_of(messages: Sequence[Message], index: int) -> int:
    """Return the number of the record that holds the text of message `index`."""
    return len(records(messages[:index]))


def _caps(blocks: Sequence[dict[str, object]], budget: int) -> int:
    """Return the longest text that each record may show so that all fit, by cutting the longest ones first."""
    lengths = sorted(len(str(block["text"])) for block in blocks)
    left = budget
    for position, length in enumerate(lengths):
        share = left // (len(lengths) - position)
        if length > share:
            return max(share, 200)
        left -= length
    return max(lengths, default=0)


def _elided(text: str, cap: int) -> str:
    if len(text) <= cap:
        return text
    head = cap - cap // 3
    tail = cap // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} of {len(text)} characters left out …]\n{text[len(text) - tail :]}"


def is_elided(messages: Sequence[Message], budget: int = TRANSCRIPT_BUDGET) -> bool:
    """True where the records do not all fit, so that the grader needs `read_transcript`."""
    return sum(len(str(block["text"])) for block in records(messages)) > budget


def _line(block: Mapping[str, object], nonce: str) -> str:
    """Return the record as one line of JSON that can close no fence and start no record."""
    line = json.dumps(block, ensure_ascii=False).replace("<|", "\\u003c|").replace(nonce, nonce[:1] + "\\u002d" + nonce[1:])
    return _INVISIBLE.sub(lambda found: _json_escape(found.group()), line)


def _json_escape(character: str) -> str:
    return json.dumps(character)[1:-1]


def grader_question(
    messages: Sequence[Message],
    *,
    request: int,
    draft: int,
    asked: Sequence[str],
    checks: Mapping[str, CheckOutcome],
    nonce: str,
    budget: int = TRANSCRIPT_BUDGET,
) -> tuple[Message, Message]:
    """Return what is judged, fenced, and the question after it.

    The first message only grows from one iteration to the next until the records exceed `budget` characters.

    Args:
        messages: The thread, up to and including the draft.
        request: Index of the user's current message.
        draft: Index of the message to be judged.
        asked: Ids of the criteria to judge.
        checks: What tools have decided already.
        nonce: The run's random code, which marks the fence.
        budget: Characters of text shown in all.
    """
    blocks = records(messages)
    cap = _caps(blocks, budget)
    lines = [_line(block | {"text": _elided(str(block["text"]), cap)}, nonce) for block in blocks]
    opened = "\n".join([f"=== records {nonce} ===", *lines])
    decided = [
        _line({"check": about, "passed": outcome.passed, "text": _elided(outcome.gap or "", 4000)}, nonce)
        for about, outcome in checks.items()
    ]
    closed = "\n".join([*decided, f"=== end of records {nonce} ==="])
    asking = _TEXTS["question"].format(
        request=record_of(messages, request),
        draft=record_of(messages, draft),
        checks=" The lines after the last record tell what tools have decided; do not judge those criteria again." if checks else "",
        read=" Long records are cut in the middle; the tool read_transcript shows any record whole." if is_elided(messages, budget) else "",
        ids=", ".join(asked),
    )
    return Message(role="user", content=opened), Message(role="user", content=f"{closed}\n\n{asking}")


def repair(problems: Sequence[str], asked: Sequence[str]) -> Message:
    """Return the request for a well-formed verdict."""
    return Message(role="user", content=_TEXTS["repair"].format(problems="; ".join(problems), ids=", ".join(asked)))


def missing(asked: Sequence[str]) -> Message:
    """Return the request for the rows that were left out."""
    return Message(role="user", content=_TEXTS["missing"].format(ids=", ".join(asked)))


def last_turn() -> Message:
    """Return what a grader is told when its tool calls or turns are used up."""
    return Message(role="user", content=_TEXTS["last_turn"])


def last_draft() -> Message:
    """Return what a generator is told when its tool calls or turns are used up."""
    return Message(role="user", content=_TEXTS["last_draft"])
