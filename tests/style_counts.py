"""Counts of shapes of English that the house does not want, and where each stands: `python -m tests.style_counts [--list SHAPE] [--write]`.

The counts of today stand in `tests/style.toml`; `tests/test_style_counts.py` fails when one rises, but that of commit subjects.
"""

import argparse
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.house_counts import ROOT, docstrings, modules, trees

STYLE = ROOT / "tests/style.toml"
WORDS = 25
"""The longest sentence of a page."""
SUBJECT = 72
"""The longest subject of a commit."""

GENERATED = {"docs/cli.md", "docs/reference.md"}
OPENINGS = re.compile(r"\s*(What|Whether|How|Who|Whose|Why|When|Where|Which|Of|By|For|In|From|With|Until|Since|As|That|Between|At|On)\b")
"""First words that make a docstring a fragment; `Whether` is kept for booleans."""

SHAPES = {
    "is_no": re.compile(r"(?<!there )\b(?:is|are|was|were) no (?!longer\b|more\b|one\b)(?=[a-z`{])", re.IGNORECASE),
    "alone": re.compile(r"\b\w+ alone(?=[.,;:) ]|$)", re.MULTILINE),
    "idiom": re.compile(
        r"\b(?:what is left(?! out\b)|what it comes to|come[s]? to(?= (?:nothing|this|that|it)\b)|said of|the same again|nobody can say|"
        r"somebody)\b",
        re.IGNORECASE,
    ),
}
"""Shapes that are looked for in the product's texts and in the pages."""

NOT_IMPERATIVE = re.compile(
    r"(?:The|An?|Each|Every|All|No|What|Whether|How|Who|Where|When|Why|Which|Of|By|For|In|From|On|It|This|That|There|Nothing|Nobody)\b|"
    r"[A-Z]\w*(?:[^s\W]s|(?<!e)ed|(?<!r)ing)\b|[^A-Z]"
)
"""The beginnings of a subject that says no deed; words in -s, -ed and -ing among them."""

_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@cache
def pages() -> dict[str, str]:
    """Return the hand-written pages by path, without their fenced blocks."""
    paths = [*ROOT.glob("*.md"), *(path for name in ("docs", "deploy", "examples") for path in (ROOT / name).rglob("*.md"))]
    found = {str(path.relative_to(ROOT)): path for path in sorted(paths)}
    return {name: _FENCE.sub("", path.read_text()) for name, path in found.items() if name not in GENERATED}


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page; a cell of a table and an item of a list end one, code counts as one word."""
    plain = re.sub(r"`[^`\n]+`", "code", _LINK.sub(r"\1", text))
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.)\s?)|(?<!\\)\|", plain):
        yield from filter(None, (one.strip(" \n-*#") for one in re.split(r"(?<=[.!?:])[*)]*\s+", part)))


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings and comments of a module with their lines."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in {tokenize.STRING, tokenize.COMMENT} or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
                yield token.start[0], token.string


def subjects() -> list[str]:
    """Return the subjects of all commits; none outside of a repository."""
    told = subprocess.run(("git", "log", "--no-merges", "--format=%s"), cwd=ROOT, capture_output=True, text=True, check=False)
    return told.stdout.splitlines() if (ROOT / ".git").exists() else []


def found() -> Iterator[tuple[str, str]]:
    """Yield each place of each shape."""
    for name, tree in trees().items():
        for text, boolean in docstrings(tree):
            if OPENINGS.match(text) and not (boolean and text.lstrip().startswith("Whether")):
                yield "docstring_openings", f"{name}: {text.splitlines()[0]}"
    for name, path in modules().items():
        for line, text in strings(path):
            yield from ((f"code_{shape}", f"{name}:{line}: {hit[0]}") for shape, form in SHAPES.items() for hit in form.finditer(text))
    for name, text in pages().items():
        yield from ((f"docs_{shape}", f"{name}: {hit[0]}") for shape, form in SHAPES.items() for hit in form.finditer(text))
        yield from (("docs_long_sentences", f"{name}: {one}") for one in sentences(text) if len(one.split()) > WORDS)
    yield from (("commit_subjects", one) for one in subjects() if len(one) > SUBJECT or NOT_IMPERATIVE.match(one))


def counts() -> dict[str, int]:
    """Return how often each shape stands somewhere."""
    shapes = [shape for shape, _ in found()]
    return {shape: shapes.count(shape) for shape in sorted({*shapes, *records()})}


def records() -> dict[str, int]:
    """Return the counts that `tests/style.toml` allows."""
    return tomllib.loads(STYLE.read_text()) if STYLE.exists() else {}


def main() -> None:
    """Print each count beside its record, or the places of one shape; with `--write`, record the counts of today."""
    parser = argparse.ArgumentParser(description="Shapes of English beside tests/style.toml.")
    parser.add_argument("--list", metavar="SHAPE", help="print the places of a shape")
    parser.add_argument("--write", action="store_true", help="record the counts of today")
    options = parser.parse_args()
    if options.list:
        sys.stdout.write("".join(f"{place}\n" for shape, place in found() if shape == options.list))
        return
    now, known = counts(), records()
    sys.stdout.write("".join(f"{shape:24}{count:7}{count - known.get(shape, count):+7}\n" for shape, count in now.items()))
    if options.write:
        STYLE.write_text("".join(f"{shape} = {count}\n" for shape, count in now.items()))


if __name__ == "__main__":
    main()
