"""A conversation as numbered records, each one line of JSON, cut to what a grader's window holds."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from gradeloop.transcript import Message

TRANSCRIPT_BUDGET = 600_000
"""Characters of records that a grader is shown: about 150,000 tokens, inside a window of 200,000 with room for tools and answer."""

STEP = 2 ** (1 / 4)
"""Between two lengths to which records are cut."""

_INVISIBLE = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Control, zero-width, direction, variation and tag characters: what a person reading the same text would not see."""


def visible(text: str) -> str:
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


def caps(lengths: Sequence[int], budget: int) -> int:
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


def elided(text: str, cap: int) -> str:
    """Return a text of at most about `cap` characters, cut in its middle."""
    if len(text) <= cap:
        return text
    head = cap - cap // 3
    tail = cap // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} of {len(text)} characters left out …]\n{text[len(text) - tail :]}"


def is_elided(messages: Sequence[Message], budget: int = TRANSCRIPT_BUDGET) -> bool:
    """True where the records do not all fit, so that the grader needs `read_transcript`."""
    return sum(len(str(block["text"])) for block in records(messages)) > budget


def line(block: Mapping[str, object], nonce: str) -> str:
    """Return the record as one line of JSON that can close no fence and start no record."""
    line = json.dumps(block, ensure_ascii=False).replace("<|", "\\u003c|").replace(nonce, nonce[:1] + "\\u002d" + nonce[1:])
    return _INVISIBLE.sub(lambda found: _json_escape(found.group()), line)


def _json_escape(character: str) -> str:
    return json.dumps(character)[1:-1]


def stretches(messages: Sequence[Message], nonce: str, budget: int = TRANSCRIPT_BUDGET) -> list[str]:
    """Return the records in stretches that each end with an answer, or the records; a further answer adds one, and changes none before it.

    Once the records exceed `budget` characters, the longest ones are cut, in steps, so that this holds for long.
    """
    blocks = records(messages)
    cap = caps([len(str(block["text"])) for block in blocks], budget)
    lines = [line(block | {"text": elided(str(block["text"]), cap)}, nonce) for block in blocks]
    lines[0] = f"=== records {nonce} ===\n{lines[0]}"
    starts = record_starts(messages)
    ends = [starts[at + 1] for at, message in enumerate(messages) if message.role == "assistant" and not message.tool_calls]
    stops = dict.fromkeys((*ends, len(lines)))  # a finished run need not end with an answer
    return ["\n".join(lines[start:end]) for start, end in pairwise((0, *stops))]
