"""Citations in the answers of judges: every bracket that names a block or metadata is read, and looked up in the run."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pydantic import JsonValue

from gradeloop.contract.transcript import AgentRun, Citation
from gradeloop.grading.quotes import FoldedText, written_forms
from gradeloop.judges.prompt import Block, blocks_of

CITATIONS = 500
"""The most citations that are looked up in one output; those after them are left out."""

QUOTE_CHARACTERS = 8_000
"""Characters within which the end of a quote without `<RANGE>` is looked for: beyond, it ends at the first closing bracket."""

OPEN_ENDED = "the quote does not end with </RANGE>]"
NOT_CLOSED = "the bracket is not closed"
UNREADABLE = "it cannot be read; write [T0B3], or [T0B3:<RANGE>the exact words</RANGE>], and nothing else between the brackets"

_LABEL = re.compile(
    r"(?i:(?:T(?P<transcript>[0-9]{1,18})(?:[\s.,:_-]?\s?B(?P<block>[0-9]{1,18}))?|R(?P<run>[0-9]{1,18})))"
    r"(?:[Mm]\.(?P<key>[^\s:\[\]]{1,200}?(?=[\s\]:\[]|[,;]\s*[TRtr][0-9])))?(?![A-Za-z0-9_])"
)
_BLANK = re.compile(r"\s*")
_RANGED = re.compile(r"\s*(?:[-‐‑–—…]|\.\.\.?|to\b|through\b)\s*(?=[Tt][0-9]|[Bb]?(?P<number>[0-9]{1,18})\s*[\]:,;])")
_SEPARATOR = re.compile(r"\s*(?:[,;&]|,?\s*\band\b)\s*(?=[TRtr][0-9])")
_TAGGED = re.compile(r"\s*:?\s*<RANGE>")
_INTRODUCED = re.compile(r"\s*(?:[:：|]|[-‐‑–—](?=\s)|(?=[\"“„'‘«`]))\s*")
_QUOTE_END = re.compile(r"[\[\]]|[,;]\s*(?=[Tt][0-9]{1,18}B[0-9]{1,18}\s*[\]:,;])")
_PREFIX = re.compile(r"\s*(?:[A-Za-z][A-Za-z.]*:?\s+){1,3}")
_BRACKET = re.compile(r"[\[\]]")
_END, _CLOSED = "</RANGE>", re.compile(r"\s*\]")
_MARKS = {'"': '"', "“": "”", "„": "“", "'": "'", "‘": "’", "«": "»", "`": "`"}
"""Quotation marks around a quote, opening and closing."""


@dataclass(frozen=True)
class _Label:
    """The place that a citation names, as numbers."""

    transcript: int | None
    block: int | None = None
    run: int | None = None
    key: str | None = None

    @classmethod
    def of(cls, found: re.Match[str]) -> "_Label":
        transcript, block, run = (None if found[name] is None else int(found[name]) for name in ("transcript", "block", "run"))
        return cls(transcript, block, run, found["key"])

    @property
    def name(self) -> str:
        """The label without blanks and leading zeros."""
        block = "" if self.block is None else f"B{self.block}"
        target = f"R{self.run}" if self.transcript is None else f"T{self.transcript}{block}"
        return target if self.key is None else f"{target}M.{self.key}"


@dataclass(frozen=True)
class _WrittenCitation:
    """A citation as an answer writes it."""

    start: int
    end: int
    label: _Label
    quote: str | None = None
    last: _Label | None = None
    """The last block of a range with a quote."""
    problem: str | None = None
    """Reason that it cannot be looked up."""


def citations_of(texts: Sequence[tuple[str, str]], run: AgentRun) -> list[Citation]:
    """Return the first 500 citations in the texts of an output.

    A citation is `[T0B3]`, `[T0B3: words]`, `[T0B3:<RANGE>words</RANGE>]`, metadata as `[R0M.model]`, several of these in one bracket, or
    a range, `[T0B3-T0B5]`. A bracket that names a block and cannot be read as one of these is a citation that is not verified.

    `texts`: each text with its path in the output, in order.
    """
    cited_blocks = {block.label: CitedBlock(block) for block in blocks_of(run)}
    written = ((path, citation) for path, text in texts for citation in _written_citations(text))
    return [_resolve(path, citation, run, cited_blocks) for path, citation in islice(written, CITATIONS)]


def _written_citations(text: str) -> Iterator[_WrittenCitation]:
    """Yield the citations of a text, which is scanned once; a transcript or a run as a whole, `[T0]`, is none."""
    at = text.find("[")
    while at >= 0:
        found = _read_bracket(text, at)
        yield from found
        at = text.find("[", found[-1].end if found else at + 1)


def _read_bracket(text: str, opening: int) -> list[_WrittenCitation]:
    """Read the citations of the bracket that opens there."""
    blank = _BLANK.match(text, opening + 1)
    start = blank.end() if blank else opening + 1
    label = _LABEL.match(text, start)
    if label is None:
        return _after_words(text, opening)
    # A whole transcript is cited only with words, `[T0: words]`, and a whole run with tags around them: `[R1: words]` is prose.
    quotes = _TAGGED.match(text, label.end()) or (label["run"] is None and text[label.end() : label.end() + 1] == ":")
    return _read_items(text, opening, start) if label["block"] or label["key"] or quotes else []


def _after_words(text: str, opening: int) -> list[_WrittenCitation]:
    """Read a bracket in which words stand before the label: `[see T0B3]`."""
    closing = _BRACKET.search(text, opening + 1)
    if closing is None or closing.group() == "[" or closing.start() - opening > QUOTE_CHARACTERS:
        return []
    found = (label for label in _LABEL.finditer(text, opening + 1, closing.start()) if not text[label.start() - 1].isalnum())
    label = next((label for label in found if label["block"] is not None or label["key"] is not None), None)
    if label is None or text[label.start() - 1] in "-_/.":
        return []
    prefix = _PREFIX.match(text, opening + 1)
    if prefix is not None and prefix.end() == label.start():
        return _read_items(text, opening, label.start())
    return [_WrittenCitation(opening, closing.end(), _Label.of(label), problem=UNREADABLE)]


def _read_items(text: str, opening: int, start: int) -> list[_WrittenCitation]:
    """Read the citations of a bracket whose first label starts there."""
    items: list[_WrittenCitation] = []
    at = start
    while label := _LABEL.match(text, at):
        items += _read_item(text, at, label)
        last = items[-1]
        if last.problem in {OPEN_ENDED, NOT_CLOSED}:
            return items
        if closing := _CLOSED.match(text, last.end):
            return items if len(items) > 1 else [replace(last, start=opening, end=closing.end())]
        separator = _SEPARATOR.match(text, last.end)
        if separator is None:
            closing_at = text.find("]", last.end, last.end + QUOTE_CHARACTERS)
            problem, end = (NOT_CLOSED, last.end) if closing_at < 0 else (UNREADABLE, closing_at + 1)
            return [*items[:-1], _WrittenCitation(last.start, end, last.label, problem=problem)]
        at = separator.end()
    return items


def _read_item(text: str, start: int, first: re.Match[str]) -> list[_WrittenCitation]:
    """Read a label, or a range of labels, with its quote."""
    label, end = _Label.of(first), first.end()
    last: _Label | None = None
    if label.block is not None and label.key is None and (ranged := _RANGED.match(text, end)):
        last, last_start, end = _read_last(text, label, ranged)
        if _quote_starts(text, end) is None:  # both ends are citations: where both blocks are there, so are those between
            backwards = last.transcript != label.transcript or last.block is None or label.block > last.block
            problem = f"{label.name} to {last.name} is not a range of blocks of one transcript" if backwards else None
            return [_WrittenCitation(start, first.end(), label), _WrittenCitation(last_start, end, last, problem=problem)]
    if tagged := _TAGGED.match(text, end):
        stop = text.find(_END, tagged.end())
        if stop < 0 or not (_CLOSED.match(text, stop + len(_END)) or _SEPARATOR.match(text, stop + len(_END))):
            return [_WrittenCitation(start, tagged.end(), label, problem=OPEN_ENDED)]
        end = stop + len(_END)
        return [_WrittenCitation(start, end, label, text[tagged.end() : stop], last)]
    if (quoted := _quote_starts(text, end)) is not None:
        closing = _quote_ends(text, quoted)
        if closing is None:
            return [_WrittenCitation(start, end, label, problem=NOT_CLOSED)]
        return [_WrittenCitation(start, closing, label, text[quoted:closing].strip(), last)]
    return [_WrittenCitation(start, end, label)]


def _read_last(text: str, first: _Label, ranged: re.Match[str]) -> tuple[_Label, int, int]:
    """Return the last label of a range, with its start and end; `T0B3-5` and `T0B3-B5` end with `T0B5`."""
    if ranged["number"] is not None:
        return _Label(first.transcript, int(ranged["number"])), ranged.end(), ranged.end("number")
    label = _LABEL.match(text, ranged.end())
    if label is None:
        return first, ranged.end(), ranged.end()
    return _Label.of(label), label.start(), label.end()


def _quote_starts(text: str, at: int) -> int | None:
    """Return where the quote behind a label starts; None where there is none."""
    introduced = _TAGGED.match(text, at) or _INTRODUCED.match(text, at)
    return None if introduced is None else introduced.end()


def _quote_ends(text: str, start: int) -> int | None:
    """Return where a quote without tags ends: at the bracket that closes its citation, or before the next label of that."""
    limit, depth = start + QUOTE_CHARACTERS, 0
    first: int | None = None
    for end in _QUOTE_END.finditer(text, start, limit):
        mark = end.group()
        if depth == 0 and mark != "[":
            return end.start()
        if mark in "[]":
            depth += 1 if mark == "[" else -1
            first = end.start() if first is None and mark == "]" else first
    return first


def _resolve(path: str, written: _WrittenCitation, run: AgentRun, cited_blocks: Mapping[str, "CitedBlock"]) -> Citation:
    label = written.label
    is_metadata = label.key is not None or label.run is not None
    fields: dict[str, Any] = {"path": path, "start": written.start, "end": written.end, "target": label.name, "quote": written.quote}
    fields["kind"] = "metadata" if is_metadata else "block"
    problem = written.problem or (_metadata_problem(written, run, cited_blocks) if is_metadata else None)
    if problem is not None or is_metadata:
        return Citation.model_validate(fields | {"verified": problem is None, "problem": problem})
    blocks = _blocks_between(label, written.last, cited_blocks)
    if blocks is None:
        missing = label.name if label.name not in cited_blocks or written.last is None else written.last.name
        return Citation.model_validate(fields | {"verified": False, "problem": f"there is no block {missing}"})
    for block in blocks:
        if span := (0, len(block.block.text)) if written.quote is None else block.find(written.quote):
            place = {"block_start": span[0], "block_end": span[1], "target": block.block.label}
            return Citation.model_validate(fields | place | {"verified": True, "transcript_id": block.block.transcript_id})
    where = label.name if written.last is None else f"{label.name} to {written.last.name}"
    fields["transcript_id"] = blocks[0].block.transcript_id
    return Citation.model_validate(fields | {"verified": False, "problem": f"the quote does not stand in {where}"})


def _blocks_between(first: _Label, last: _Label | None, cited: Mapping[str, "CitedBlock"]) -> list["CitedBlock"] | None:
    """Return the blocks that a citation means; None if an end does not exist, or if they do not make a range."""
    if first.name not in cited:
        return None
    if last is None:
        return [cited[first.name]]
    if last.name not in cited or last.transcript != first.transcript or first.block is None or last.block is None:
        return None
    between = (f"T{first.transcript}B{at}" for at in range(first.block, last.block + 1))
    return [cited[name] for name in between if name in cited] or None  # an excerpt need not have all of them


def _metadata_problem(written: _WrittenCitation, run: AgentRun, cited: Mapping[str, "CitedBlock"]) -> str | None:
    """Return why a citation of metadata is not verified; None for one that is."""
    if written.quote is not None:
        return "a citation of metadata has no quote"
    metadata = _cited_metadata(written.label, run, cited)
    if metadata is None:
        return f"there is no {written.label.name.partition('M.')[0]}"
    key = str(written.label.key)
    value: JsonValue = dict(metadata)
    for name in key.split("."):
        if not isinstance(value, dict) or name not in value:
            return f"the metadata has no {key}"
        value = value[name]
    return None


def _cited_metadata(label: _Label, run: AgentRun, cited: Mapping[str, "CitedBlock"]) -> Mapping[str, JsonValue] | None:
    if label.transcript is None:
        return run.metadata if label.run == 0 else None
    if label.block is not None:
        block = cited.get(f"T{label.transcript}B{label.block}")
        return None if block is None else block.block.metadata
    numbers = run.excerpt.transcripts if run.excerpt else range(len(run.transcripts))
    found = (transcript for number, transcript in zip(numbers, run.transcripts, strict=True) if number == label.transcript)
    return next((transcript.metadata for transcript in found), None)


class CitedBlock:
    """A block in which quotes are found, each in one of its records; their texts are folded when the first quote needs that."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._spans = [(record.start, record.end) for record in block.records] or [(0, len(block.text))]
        self._folded: dict[int, FoldedText] = {}

    def find(self, quote: str) -> tuple[int, int] | None:
        """Return where a quote stands in the block, folded as quotes are.

        One that was copied with JSON's escapes is tried without them too, and one in quotation marks without these.
        """
        wanted = tuple(dict.fromkeys(form for text in _without_marks(quote) for form in written_forms(text)))
        found = (self._span(form, start, end) for start, end in self._spans for form in wanted)
        return next(filter(None, found), None)

    def _span(self, wanted: str, start: int, end: int) -> tuple[int, int] | None:
        text = self.block.text[start:end]
        at = text.find(wanted) if wanted.strip() else -1
        if at >= 0 and not _splits(text, at) and not _splits(text, at + len(wanted)):
            return start + at, start + at + len(wanted)
        if start not in self._folded:
            self._folded[start] = FoldedText(text)
        span = self._folded[start].span(wanted)
        return span and (start + span[0], start + span[1])


def _without_marks(quote: str) -> Iterator[str]:
    """Yield a quote, and where quotation marks stand around it also what stands between them."""
    yield quote
    bare = quote.strip()
    if len(bare) > 2 and _MARKS.get(bare[0]) == bare[-1]:  # noqa: PLR2004 - both marks and something between
        yield bare[1:-1]


def _splits(text: str, at: int) -> bool:
    """Tell whether a character is cut from its mark there: `=` from the stroke that makes it `≠`."""
    return 0 < at < len(text) and unicodedata.combining(text[at]) != 0
