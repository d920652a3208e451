"""Text for people and programs: numbers, suggestions for misspelled names, safe characters for a terminal, JSON read strictly."""

import difflib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

ROW_CHARACTERS = 4_000
"""The characters that are kept of a reason, a gap or an explanation: longer than any that helps."""

_SHORTENED = re.compile(r"… \(\d+ characters\)")

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """Return the text without control, direction and invisible characters, which could move the cursor, reorder or hide words."""
    return _UNPRINTABLE.sub("", text)


_BEGINNING = 8
"""The characters of a key's beginning by which a key that was cut is known."""

_ORIGIN = re.compile(r"\w+://[^/]*")
"""The beginning that a secret address has in common with addresses that are none."""

_LIKE_A_KEY = re.compile(r"(?<![A-Za-z0-9])sk-[\w*-]{6,}|AIza[\w-]{20,}|\bBearer\s+\S{8,}", re.IGNORECASE)


# Keys are often cut where they are quoted: a provider's error shows the beginning of one, a limit of characters
# takes the end. So a key is known by its first characters, and as much behind them is replaced as agrees with a
# known key. If only whole keys were replaced, a cut one would stay in a log.
def without_secrets(text: str, secrets: Collection[str]) -> str:
    """Return a text with `[key]` in place of secrets, whole or cut, and of whatever else looks like a key."""
    known = sorted(filter(None, secrets), key=len, reverse=True)
    for beginning in dict.fromkeys(map(_beginning_of, known)):
        text = _without(text, beginning, [secret for secret in known if secret.startswith(beginning)])
    return _LIKE_A_KEY.sub("[key]", text)


def _beginning_of(secret: str) -> str:
    """Return by what a secret that was cut is known; an address, such as a webhook's, by what follows its host."""
    origin = _ORIGIN.match(secret)
    return secret[: (origin.end() if origin else 0) + _BEGINNING]


def _without(text: str, beginning: str, secrets: Collection[str]) -> str:
    """Return a text without whatever begins as some secrets do, each as far as one of them goes."""
    parts, at = [], 0
    while (start := text.find(beginning, at)) >= 0:
        parts += [text[at:start], "[key]"]
        at = start + max(_common(text, start, secret) for secret in secrets)
    return "".join([*parts, text[at:]])


def _common(text: str, start: int, secret: str) -> int:
    """Return how many characters of a secret are in a text from a place on."""
    return next(count for count in range(len(secret), -1, -1) if text.startswith(secret[:count], start))


def whole_characters(text: str) -> str:
    """Return the text with the halves of characters that stand side by side joined, and each lone one as U+FFFD: UTF-8 has no halves."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_SURROGATE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """Return the text with lone surrogates, which no encoding can hold, replaced."""
    return _SURROGATE.sub("\ufffd", text)


REPEATED_TIMES = 6
"""The times that a piece stands in a row from which on it counts as a repetition: nobody writes so with sense."""

_LONGEST_PIECE = 2_000
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Repetition:
    """The end of a text, in which one piece is repeated."""

    start: int
    piece: int
    """Characters of the piece."""


# The end of the text is a sample. Each place where it occurs before gives a candidate for the length of the
# piece. The candidate is right if the text equals itself moved by that length, over all of the wanted part. The
# sample may also occur inside of one piece, so several candidates are tried. The cost grows with the text's
# length, not with its square, so a reply can be tested while it streams.
def repetition(text: str, least: int, *, counted: bool = False) -> Repetition | None:
    """Return where a text begins to repeat a piece until its end; None where it does not.

    Args:
        text: The text, which may end within the piece.
        least: The characters over which it has to do so, and over `REPEATED_TIMES` pieces in any case.
        counted: Whether pieces that differ only by their numbers are the same, as in a list without end.
    """
    folded = _DIGITS.sub("0", text) if counted else text
    end, sample = len(folded), folded[-min(40, least // 4) :]
    at = end - len(sample)
    for _ in range(REPEATED_TIMES * 2):  # a sample may stand in the piece more than once
        at = folded.rfind(sample, max(0, end - len(sample) - _LONGEST_PIECE), at + len(sample) - 1)
        piece = end - len(sample) - at
        start = end - max(least, REPEATED_TIMES * piece)
        if at < 0 or start < 0:
            return None
        if folded[start + piece :] == folded[start : end - piece]:
            while start > 0 and folded[start - 1] == folded[start - 1 + piece]:
                start -= 1
            return Repetition(start, piece)
    return None


def cut_repetition(text: str, least: int = 200) -> str:
    """Return a text whose end repeats a piece with that piece once and a mark; any other text as it is."""
    found = repetition(text, least)
    if found is None:
        return text
    times = (len(text) - found.start) // found.piece
    return f"{text[: found.start + found.piece]} [… {times} times]"


def one_line(text: str) -> str:
    """Return the text as one printable line."""
    return " ".join(printable(text).split())


def closest(name: str, known: list[str]) -> str | None:
    """Return the known name that is closest to `name`; None where none is close."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def did_you_mean(name: str, known: list[str]) -> str:
    """Return a hint with the known name that is closest to `name`, and all known ones."""
    close = closest(name, known)
    hint = f" Did you mean {close!r}?" if close else ""
    return f"{hint} Known: {', '.join(known)}."


def distinct(names: Iterable[str]) -> list[str]:
    """Return names with `-2`, `-3` after those that others before them have, too."""
    found: list[str] = []
    for name in names:
        numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
        found.append(next(one for one in numbered if one not in found))
    return found


def clip(text: str, limit: int = 80) -> str:
    """Return a value in quotes for a message, cut to `limit` characters."""
    quoted = repr(text)
    return quoted if len(quoted) <= limit else f"{quoted[: limit - 1]}… ({len(text)} characters)"


def parse_share(value: object) -> float:
    """Return a share from 0 to 1, written as `0.9` or as `90%`; raise ValueError, which says what to write, where it is not a share."""
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    share = number / 100 if text.endswith("%") else number
    if 0 <= share <= 1:
        return share
    meant = number if 1 < share == number <= 100 else 90.0  # noqa: PLR2004 - a number of per cent
    raise ValueError(f"{clip(text)} is not a share from 0 to 1; write {meant:g}% or {meant / 100:g}")


def money(dollars: float | None) -> str:
    """Return an amount of US dollars with four decimals; nothing if it is unknown or zero."""
    return f"${dollars:.4f}" if dollars else ""


def token_count(number: int | None) -> str:
    """Return a number of tokens; `unknown` where no server reported it."""
    return "unknown" if number is None else f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 case`, `2,000 cases`, `3 criteria`."""
    many = noun.removesuffix("on") + "a" if noun.endswith("criterion") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units: `45 s`, `12 min`, `2 h 5 min`, `1 d 3 h`."""
    whole = round(seconds)
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    largest = next((at for at, (_, size) in enumerate(units) if whole >= size), len(units) - 1)
    (name, size), smaller = units[largest], units[largest + 1 : largest + 2]
    rest = [(whole % size // below, unit) for unit, below in smaller if unit != "s"]
    return " ".join([f"{whole // size} {name}", *(f"{count} {unit}" for count, unit in rest if count)])


def percent(share: float | None) -> str:
    """Return a share as a whole percentage, but never as 100% or 0% unless it is exactly all or nothing."""
    if share is None:
        return ""
    whole = round(share * 100)
    return f"{share:.1%}" if (whole in {0, 100} and share not in {0.0, 1.0}) else f"{whole}%"


def shortened(text: str, limit: int = ROW_CHARACTERS) -> str:
    """Return the first `limit` characters and how many there were; a text that was shortened before is unchanged."""
    return text if len(text) <= limit or _SHORTENED.fullmatch(text, limit) else f"{text[:limit]}… ({len(text)} characters)"


def headline(text: str, limit: int) -> str:
    """Return the beginning of a text as one line, for a list or a heading: at most `limit` characters, and `…` where it goes on."""
    line = one_line(text[: 4 * limit])
    return line if len(line) <= limit else f"{line[:limit].rstrip()}…"


_BLANK = r"(?:\x1b\[[0-9;]*m|[^\S\r\n]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2060-\u2064\ufeff])"
"""Characters that CI systems skip, or do not see, before a command at the beginning of a line."""

_AT_THE_BEGINNING = re.compile(rf"((?:^|(?<=[\r\n])){_BLANK}*:)(?=:)")
_ANYWHERE = re.compile(r"#(?=#(?:vso|teamcity)?\[)|section(?=_(?:start|end):)")


def without_commands(text: str) -> str:
    """Return the text with a blank inside of whatever a CI system takes for a command in a log.

    GitHub Actions reads `::error` and `##[`, Azure Pipelines `##vso[`, TeamCity `##teamcity[`, GitLab `section_start:`.
    """
    return _ANYWHERE.sub(r"\g<0> ", _AT_THE_BEGINNING.sub(r"\1 ", text))


def json_without_commands(text: str) -> str:
    """Return JSON of the same value in which no string holds a command of a CI system: its first character is escaped."""
    return _ANYWHERE.sub(lambda found: f"\\u{ord(found[0][0]):04x}{found[0][1:]}", text)


NESTING_DEPTH = 100
"""The deepest nesting of lists and objects: parsers give up at 200 and more, and some of them hang."""


def strict_json(text: str) -> Any:  # noqa: ANN401 - JSON of any shape
    """Parse a text that is one JSON value.

    Raises:
        ValueError: The text is not JSON, or nested too deeply.
        RecursionError: It is nested more deeply than the parser goes.
    """
    return acceptable(_DECODER.decode(text))


def leading_json(text: str, start: int) -> tuple[Any, int]:
    """Parse the JSON value that begins at `start`, and return it and the position after it.

    Raises:
        ValueError: There is no JSON, or it is nested too deeply.
        RecursionError: It is nested more deeply than the parser goes.
    """
    value, end = _DECODER.raw_decode(text, start)
    return acceptable(value), end


def acceptable(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return the value if every parser accepts it: one that is deeply nested, or holds half a character, hangs or breaks its receiver.

    Raises:
        ValueError: It is such a value.
    """
    from pydantic_core import PydanticSerializationError, to_json  # `gradeloop --help` shall not wait for it

    if depth(value) > NESTING_DEPTH:
        raise ValueError(f"it is nested more than {NESTING_DEPTH} deep")
    try:
        to_json(value)
    except (PydanticSerializationError, UnicodeEncodeError):
        raise ValueError("a text in it holds half of a surrogate pair") from None
    return value


def depth(value: object) -> int:
    """Return how deeply a value is nested, without recursion on Python's own stack."""
    deepest, pending = 0, [(value, 1)]
    while pending:
        part, level = pending.pop()
        deepest = max(deepest, level)
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        pending += [(item, level + 1) for item in inner]
    return deepest


def objects_in(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list of JSON; none where the value is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def rows_are(value: object, is_known: Callable[[dict[str, Any]], object]) -> bool:
    """Return whether a value is a list of objects, one at least, of which the first 20 are all of a kind."""
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) and is_known(row) for row in value[:20])


def canonical_json(value: Any) -> str:  # noqa: ANN401 - JSON of any shape
    """Return the same text for equal JSON, and another for any other: 1 and 1.0 are one value, 1 and true are two."""
    return json.dumps(_whole_numbers(value), sort_keys=True)


def _whole_numbers(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return the value with floats that are whole numbers as integers."""
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as an object, as a hook of `json`; raise ValueError where a key appears twice."""
    read: dict[str, Any] = {}
    for key, value in pairs:
        if key in read:
            raise ValueError(f"the key {clip(key)} appears twice")
        read[key] = value
    return read


def refuse_constant(name: str) -> Any:  # noqa: ANN401 - json's hook
    """Refuse NaN and Infinity, as a hook of `json`."""
    raise ValueError(f"{name} is not JSON")


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {clip(text)} is too large")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=refuse_duplicate_keys, parse_constant=refuse_constant, parse_float=_finite_number)

JSON_DEPTH = 200
"""The deepest nesting of checked JSON and of a schema."""

JSON_BYTES = 1024 * 1024
"""The largest JSON that is checked."""


def read_json(text: str) -> Any:  # noqa: ANN401 - JSON of any shape
    """Parse a text as JSON, within bounds; raise ValueError where it is not JSON, or too large or too deeply nested to be checked."""
    if len(text.encode(errors="replace")) > JSON_BYTES:
        raise ValueError(f"the JSON has more than {JSON_BYTES} bytes")
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {str(error)[:200]}") from None
    if (deep := depth(value)) > JSON_DEPTH:
        raise ValueError(f"the JSON is nested {deep} deep, {JSON_DEPTH} at most")
    return value
