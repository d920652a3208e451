"""What a judge with a schema of its own came to, as its page shows it: each citation leads to the words that it cites."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from gradeloop.judges.citations import Citation
from gradeloop.reports.filters import as_json
from gradeloop.reports.marked import Mark, Segment, segments
from gradeloop.reports.run_story import Judged, RunStory


@dataclass(frozen=True)
class Cut:
    """A stretch of an output: words, or a citation."""

    text: str
    cited: bool = False
    verified: bool = False
    href: str | None = None
    title: str = ""


@dataclass(frozen=True)
class Field:
    """A value of the output, with the path to it."""

    name: str
    parts: tuple[Cut, ...]


@dataclass(frozen=True)
class PassageView:
    """A block of the transcript, with what is cited of it marked."""

    label: str
    role: str
    name: str | None
    parts: tuple[Segment, ...]


@dataclass(frozen=True)
class JudgedView:
    """The output and the transcript."""

    fields: tuple[Field, ...]
    passages: tuple[PassageView, ...]
    doubt: str | None
    """The judge's own: votes that were tied or split."""


def judged_view(story: RunStory, key: str = "r") -> JudgedView | None:
    """Return the view of a judgement; None where the story is none of a judge with a schema."""
    judged = story.judged
    if judged is None:
        return None
    anchors = {at: f"{key}-cite{at}" for at, each in enumerate(judged.citations) if each.block_start is not None}
    there = {each.label for each in story.passages}
    fields = tuple(Field(path, _parts(path, text, judged.citations, anchors, there, key)) for path, text in _leaves(judged.output))
    passages = tuple(
        PassageView(each.label, each.role, each.name, segments(each.text, _marks(each.label, judged.citations, anchors)))
        for each in story.passages
    )
    return JudgedView(fields, passages, _doubt(judged))


def _leaves(value: JsonValue, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of an output as texts, by their paths, as citations name them."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _leaves(item, f"{path}[{at}]")
    else:
        yield path, as_json(value)


def _parts(path: str, text: str, citations: Sequence[Citation], anchors: dict[int, str], there: set[str], key: str) -> tuple[Cut, ...]:
    """Return a text with its citations as links."""
    found, at = [], 0
    for number, each in sorted(enumerate(citations), key=lambda pair: pair[1].start):
        if each.path != path or each.start < at or each.end > len(text):
            continue
        found.append(Cut(text[at : each.start]))
        words = f"{each.target}: “{each.quote}”" if each.quote else each.target
        href = anchors.get(number) if each.target in there else None
        href = href or (f"{key}-{each.target}" if each.target in there else None)
        found.append(Cut(words, True, each.verified, href, each.problem or "found in the transcript"))
        at = each.end
    return tuple(part for part in (*found, Cut(text[at:])) if part.text)


def _marks(label: str, citations: Sequence[Citation], anchors: dict[int, str]) -> list[Mark]:
    return [
        Mark(anchors[at], each.block_start, each.block_end)
        for at, each in enumerate(citations)
        if each.target == label and each.block_start is not None and each.block_end is not None
    ]


def _doubt(judged: Judged) -> str | None:
    told = []
    for name, words in (("ties", "tied"), ("contested", "contested")):
        keys = judged.metadata.get(name)
        if isinstance(keys, list) and keys:
            told.append(f"{words}: {', '.join(map(str, keys))}")
    return "; ".join(told) or None
