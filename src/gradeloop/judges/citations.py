"""Citations in a judge's words, `[T0B3]` and `[T0B3:<RANGE>quote</RANGE>]`: read, resolved to characters, and verified."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from pydantic import JsonValue

from gradeloop.folding import Folded
from gradeloop.judges.agent_run import AgentRun
from gradeloop.judges.blocks import Block, blocks
from gradeloop.strict import Sparse, Strict

CITATIONS = 500
"""Of one output; what comes after them is not looked at, and counted as left out."""

_HEAD = re.compile(
    r"\[\s*(?:T(?P<transcript>\d{1,6})(?:B(?P<block>\d{1,6}))?|R(?P<run>\d{1,6}))(?:M\.(?P<key>[^\s:\[\]]{1,200}))?\s*"
    r"(?P<tail>\]|:\s*<RANGE>)"
)
_END, _CLOSED = "</RANGE>", re.compile(r"\s*\]")

OPEN_ENDED = "the quote does not end with </RANGE>]"


class Citation(Strict):
    """One citation: where it stands in the output, and what it points at."""

    path: str
    """Of the string in the output: `explanation`, `findings[2].why`."""
    start: int
    """Of the citation in that string, in characters."""
    end: int
    kind: Literal["block", "metadata"]
    target: str
    """`T0B3`, or with metadata `R0M.model`."""
    quote: Sparse[str | None] = None
    verified: bool
    problem: Sparse[str | None] = None
    """Why it is not verified."""
    transcript_id: Sparse[str | None] = None
    block_start: Sparse[int | None] = None
    """The first character that is meant in the block's text, reasoning and tool calls included."""
    block_end: Sparse[int | None] = None


@dataclass(frozen=True)
class _Found:
    """A citation as it is written."""

    path: str
    head: re.Match[str]
    end: int
    quote: str | None
    closed: bool = True


def citations_of(texts: Sequence[tuple[str, str]], run: AgentRun) -> list[Citation]:
    """Return the citations in the strings of an output, by path and text, in order, the first 500 of them."""
    known = {block.label: Cited(block) for block in blocks(run)}
    written = (found for path, text in texts for found in _written(path, text))
    return [_resolved(found, run, known) for found in islice(written, CITATIONS)]


def _written(path: str, text: str) -> Iterator[_Found]:
    """Yield what is written as a citation, each character looked at once; a transcript or a run as a whole, `[T0]`, is none."""
    at, ends = 0, True
    while head := _HEAD.search(text, at):
        at, quote, closed = head.end(), None, True
        if head["tail"] != "]":
            end = text.find(_END, at) if ends else -1
            ends = end >= 0
            close = _CLOSED.match(text, end + len(_END)) if ends else None
            quote, closed = text[at:end] if ends else "", close is not None
            at = close.end() if close else at
        elif head["block"] is None and head["key"] is None:
            continue
        yield _Found(path, head, at, quote, closed)


def _resolved(found: _Found, run: AgentRun, known: Mapping[str, "Cited"]) -> Citation:
    head = found.head
    place = _place(head)
    told: dict[str, Any] = {"path": found.path, "start": head.start(), "end": found.end, "target": place, "quote": found.quote}
    if head["key"] is not None or head["run"] is not None:
        problem = _metadata_problem(head, run, found.quote)
        return Citation.model_validate(told | {"kind": "metadata", "verified": problem is None, "problem": problem})
    told["kind"] = "block"
    if not found.closed:
        return Citation.model_validate(told | {"quote": None, "verified": False, "problem": OPEN_ENDED})
    cited = known.get(place)
    if cited is None:
        return Citation.model_validate(told | {"verified": False, "problem": f"there is no block {place}"})
    told["transcript_id"] = run.transcripts[cited.block.transcript].id
    span = (0, len(cited.block.text)) if found.quote is None else cited.located(found.quote)
    if span is None:
        return Citation.model_validate(told | {"verified": False, "problem": f"the quote does not stand in {place}"})
    return Citation.model_validate(told | {"verified": True, "block_start": span[0], "block_end": span[1]})


def _place(found: re.Match[str]) -> str:
    if found["run"] is not None:
        head = f"R{int(found['run'])}"
    else:
        head = f"T{int(found['transcript'])}" + (f"B{int(found['block'])}" if found["block"] is not None else "")
    return f"{head}M.{found['key']}" if found["key"] is not None else head


def _metadata_problem(found: re.Match[str], run: AgentRun, quote: str | None) -> str | None:
    if quote is not None:
        return "a citation of metadata has no quote"
    held = _metadata(found, run)
    if held is None:
        return f"there is no {_place(found).partition('M.')[0]}"
    value: JsonValue = dict(held)
    for name in str(found["key"]).split("."):
        if not isinstance(value, dict) or name not in value:
            return f"the metadata has no {found['key']}"
        value = value[name]
    return None


def _metadata(found: re.Match[str], run: AgentRun) -> Mapping[str, JsonValue] | None:
    if found["run"] is not None:
        return run.metadata if int(found["run"]) == 0 else None
    at = int(found["transcript"])
    if at >= len(run.transcripts):
        return None
    if found["block"] is None:
        return run.transcripts[at].metadata
    messages = run.transcripts[at].messages
    return messages[int(found["block"])].metadata if int(found["block"]) < len(messages) else None


class Cited:
    """A block, and its text with white space folded, once somebody needs it."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._folded: Folded | None = None

    def located(self, quote: str) -> tuple[int, int] | None:
        """Return where a quote stands in the block, white space folded; one copied with JSON's escapes is read without them too."""
        text = self.block.text
        for wanted in dict.fromkeys((quote, *_unescaped(quote))):
            at = text.find(wanted) if wanted.strip() else -1
            if at >= 0:
                return at, at + len(wanted)
            self._folded = self._folded or Folded(text)
            if span := self._folded.span(wanted):
                return span
        return None


def _unescaped(quote: str) -> Iterator[str]:
    if "\\" in quote:
        try:
            yield str(json.loads(f'"{quote}"', strict=False))
        except ValueError:
            yield quote.replace('\\"', '"').replace("\\n", "\n").replace("\\t", "\t")
