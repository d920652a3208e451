"""The account of a record: which of its values a judge is shown, which are kept as metadata, and which are left out on purpose."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from gradeloop.contract.transcript import AgentRun
from gradeloop.text import clip
from gradeloop.transcripts.json_access import Json, UnreadableMessage, structured

LONG = 80
"""Characters up to which a text may stay unshown without being named: ids, dates and names are shorter, or of one word."""

ABOUT = (
    r"\w*metadata|usage|tools|functions|tool_definitions|serialized|invocation_params|response_format|\w*_schema|traceback\w*|stacktrace|"
    r"signature|encrypted_content|thought_?[sS]ignature|encryptedContent|google_thought_signature|annotations|logprobs|"
    r"(?:target|reference|expected|ideal|ground_truth|gold|label|rubric|criteri|scor|grad|judg|critique|feedback)\w*|"
    r"explanation|rationale"
)
"""The keys, as a pattern, whose long texts no format shows: what providers and people say about a run, and what it was to answer."""

MOST_PATHS = 5
"""The paths of lost texts that a refusal names."""

Kind = Literal["shown", "metadata", "left_out"]
KINDS: tuple[Kind, ...] = ("shown", "metadata", "left_out")
Place = tuple[int | str, ...]


@dataclass
class Account:
    """The number of a record's values, and of their characters, by what became of them."""

    values: Counter[Kind] = field(default_factory=Counter)
    characters: Counter[Kind] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    """The characters that are left out, by their JSONPath, in which `[*]` is any item of a list."""

    def add(self, other: "Account") -> None:
        """Add the numbers of another record."""
        self.values.update(other.values)
        self.characters.update(other.characters)
        self.left_out.update(other.left_out)


class _Shown:
    """The texts that judges are shown, in their order."""

    def __init__(self, runs: Sequence[AgentRun]) -> None:
        messages = (message.model_dump(exclude={"metadata"}) for run in runs for _, _, message in run.placed())
        texts = (text for message in messages for text in _values(message))
        self.whole = dict.fromkeys(inner for text in texts for inner in (text, *_values(structured(text))))
        self._after = 0

    @cached_property
    def _squeezed(self) -> str:
        return "\n".join("".join(text.split()) for text in self.whole)

    # A record holds its texts in the order in which they are shown, so that each is looked for behind the one before: a
    # session of many megabytes is searched once, not once for each of its texts.
    def __contains__(self, text: str) -> bool:
        """Return whether a text is shown: whole, or a long one within another, its white space aside."""
        if text in self.whole or len(text) <= LONG:
            return text in self.whole
        words = "".join(text.split())
        found = self._squeezed.find(words, self._after)
        found = found if found >= 0 else self._squeezed.find(words, 0, self._after + len(words))
        self._after = max(found, 0)
        return found >= 0


def _values(value: Json) -> Iterator[str]:
    """Yield the values within a value, as texts."""
    if isinstance(value, (dict, list, tuple)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _values(inner)
    elif value not in (None, ""):
        yield str(value)


def account_of(
    value: Json, runs: Sequence[AgentRun], unshown: str, left_out: Collection[Place] = (), apart: Collection[Place] = ()
) -> Account:
    """Return the account of a record from all runs that were read of it.

    `unshown`: a pattern of the keys, and the types of objects, that are not shown on purpose.

    Raises:
        UnreadableMessage: A longer text of several words is neither shown nor named as one that is not.
    """
    shown, kept, named = _Shown(runs), set(_values([run.model_dump() for run in runs])), re.compile(unshown).fullmatch

    def leaves(
        inner: Json, path: str = "$", place: Place = (), *, is_named: bool = False, is_text: bool = False
    ) -> Iterator[tuple[str, str, Place | None]]:
        """Yield the values within a value, and where each is unless it is named; those in a text that is JSON at the text's place."""
        if place in apart:
            return
        # A text that is itself JSON counts by its values, since formats are read out of such texts, too. Its values
        # have the place of the text: no path of the file leads further.
        if isinstance(inner, str) and inner.lstrip()[:1] in ("[", "{") and inner not in shown.whole:
            inner, is_text = structured(inner), True
        is_named = is_named or place in left_out or (isinstance(inner, dict) and bool(named(str(inner.get("type") or inner.get("key")))))
        for key, below in inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ():
            names, step = is_named or (isinstance(key, str) and bool(named(key))), path if is_text else path + _step(key, below)
            yield from leaves(below, step, place if is_text else (*place, key), is_named=names, is_text=is_text)
        if not isinstance(inner, (dict, list)) and inner not in (None, ""):
            yield str(inner), path, None if is_named else place

    found, lost = Account(), dict[str, tuple[Place, str]]()
    for text, path, place in leaves(value):
        # To look for a text within others is the costly part. It is spared for a path that has lost a text already,
        # and once the refusal has as many paths as it names.
        sought = place is not None and path not in lost and len(lost) < MOST_PATHS  # else it is refused in any case
        is_shown = text in (shown if sought else shown.whole)
        kind: Kind = "shown" if is_shown else "metadata" if text in kept else "left_out"
        found.values[kind] += 1
        found.characters[kind] += len(text)
        if kind == "left_out":
            found.left_out[path] += len(text)
        if kind != "shown" and place is not None and len(text) > LONG and len(text.split()) > 1:
            lost.setdefault(path, (place, text))
    if lost:
        raise _refusal(lost)
    return found


def _refusal(lost: dict[str, tuple[Place, str]]) -> UnreadableMessage:
    """Return why a record with lost texts, by their JSONPath, is refused."""
    place, text = next(iter(lost.values()))
    why = f"this text of {len(text):,} characters would be shown to no judge: {clip(text, 40)}"
    cure = "name it in a mapping file (--mapping FILE), or list it under its leave_out"
    return UnreadableMessage(f"{why}; {cure}: {', '.join([*lost][:MOST_PATHS])}", *place)


def _step(key: int | str, value: Json) -> str:
    """Return a step of a JSONPath: to an attribute of a span in OTLP JSON by its key, to any other item of a list by `[*]`."""
    if isinstance(key, int):
        is_attribute = isinstance(value, dict) and value.keys() == {"key", "value"} and isinstance(value["key"], str)
        return f"[?@.key == {value['key']!r}]" if is_attribute else "[*]"
    return f".{key}" if key.isidentifier() else f"[{key!r}]"
