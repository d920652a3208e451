"""Citations in a judge's words, `[T0B3]` and `[T0B3:<RANGE>quote</RANGE>]`: read, resolved to characters, and verified."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, JsonValue

from gradeloop.judges.agent_run import AgentRun
from gradeloop.judges.blocks import Block, blocks
from gradeloop.strict import Strict

CITATIONS = 500
"""Of one output; what comes after them is not looked at, and counted as left out."""

_CITATION = re.compile(
    r"\[\s*(?:T(?P<transcript>\d{1,6})(?:B(?P<block>\d{1,6}))?|R(?P<run>\d{1,6}))(?:M\.(?P<key>[^\s:\[\]]{1,200}))?\s*"
    r"(?::\s*<RANGE>(?P<quote>.*?)</RANGE>\s*)?\]",
    re.DOTALL,
)
_BARE = re.compile(r"\[\s*T\d{1,6}\s*\]|\[\s*R\d{1,6}\s*\]")
"""A transcript or a run as a whole, which nothing verifies: `[T0]` is a word in brackets."""


def _absent(value: object) -> bool:
    return value is None


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
    quote: str | None = Field(default=None, exclude_if=_absent)
    verified: bool
    problem: str | None = Field(default=None, exclude_if=_absent)
    """Why it is not verified."""
    transcript_id: str | None = Field(default=None, exclude_if=_absent)
    block_start: int | None = Field(default=None, exclude_if=_absent)
    """The first character that is meant in the block's text, reasoning and tool calls included."""
    block_end: int | None = Field(default=None, exclude_if=_absent)


def citations_of(texts: Sequence[tuple[str, str]], run: AgentRun) -> list[Citation]:
    """Return the citations in the strings of an output, by path and text, in order."""
    known = {block.label: block for block in blocks(run)}
    return [
        _resolved(path, found, run, known)
        for path, text in texts
        for found in _CITATION.finditer(text)
        if not _BARE.fullmatch(found.group())
    ]


def _resolved(path: str, found: re.Match[str], run: AgentRun, known: Mapping[str, Block]) -> Citation:
    place = _place(found)
    told: dict[str, Any] = {"path": path, "start": found.start(), "end": found.end(), "target": place, "quote": found["quote"]}
    if found["key"] is not None or found["run"] is not None:
        problem = _metadata_problem(found, run)
        return Citation.model_validate(told | {"kind": "metadata", "verified": problem is None, "problem": problem})
    block = known.get(place)
    if block is None:
        return Citation.model_validate(told | {"kind": "block", "verified": False, "problem": f"there is no block {place}"})
    told |= {"kind": "block", "transcript_id": run.transcripts[block.transcript].id}
    span = (0, len(block.text)) if found["quote"] is None else located(found["quote"], block.text)
    if span is None:
        return Citation.model_validate(told | {"verified": False, "problem": f"the quote does not stand in {place}"})
    return Citation.model_validate(told | {"verified": True, "block_start": span[0], "block_end": span[1]})


def _place(found: re.Match[str]) -> str:
    if found["run"] is not None:
        head = f"R{int(found['run'])}"
    else:
        head = f"T{int(found['transcript'])}" + (f"B{int(found['block'])}" if found["block"] is not None else "")
    return f"{head}M.{found['key']}" if found["key"] is not None else head


def _metadata_problem(found: re.Match[str], run: AgentRun) -> str | None:
    if found["quote"] is not None:
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


def located(quote: str, text: str) -> tuple[int, int] | None:
    """Return where a quote stands in a text, white space folded; one that was copied with JSON's escapes is read without them too."""
    for wanted in dict.fromkeys((quote, *_unescaped(quote))):
        at = text.find(wanted) if wanted.strip() else -1
        if at >= 0:
            return at, at + len(wanted)
        if span := _folded_span(wanted, text):
            return span
    return None


def _folded_span(wanted: str, text: str) -> tuple[int, int] | None:
    """Find a quote with every run of white space as one blank, and return its place in the text as it stands."""
    words = list(re.finditer(r"\S+", text))
    folded = " ".join(word.group() for word in words)
    needle = " ".join(wanted.split())
    at = folded.find(needle) if needle else -1
    if at < 0:
        return None
    return _unfolded(words, at), _unfolded(words, at + len(needle) - 1) + 1


def _unfolded(words: Sequence[re.Match[str]], offset: int) -> int:
    """Return the place in the text of a character of its folded form."""
    begun = 0
    for word in words:
        if offset < begun + len(word.group()):
            return word.start() + max(offset - begun, 0)
        begun += len(word.group()) + 1
    return words[-1].end() if words else 0


def _unescaped(quote: str) -> Iterator[str]:
    if "\\" in quote:
        try:
            yield str(json.loads(f'"{quote}"', strict=False))
        except ValueError:
            yield quote.replace('\\"', '"').replace("\\n", "\n").replace("\\t", "\t")
