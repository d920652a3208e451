"""Values of a configuration that are misshapen, or are not supported: refused at once, or left out and listed."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location
from gradeloop.text import clip


def as_object(value: JsonValue, where: str | Location) -> dict[str, JsonValue]:
    """Return a value that must be an object; null is an empty one. Raise InvalidRequest where the value is not an object."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be an object")
    return value


def as_list(value: JsonValue, where: str | Location) -> list[JsonValue]:
    """Return a value that must be a list; null is an empty one. Raise InvalidRequest where the value is not a list."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} is {clip(str(value))}; it must be a list")
    return value


def refuse_others(fields: Mapping[str, JsonValue], known: AbstractSet[str], where: Location) -> None:
    """Raise InvalidRequest where an object has a key that is not supported."""
    if odd := sorted(set(fields) - known):
        names = ", ".join(sorted(known))
        raise InvalidRequest(f"{where.describe(odd[0])}: {clip(odd[0])} is not supported; leave it out. Known: {names}.")


Effect = Literal["not judged", "not run", "no effect", "refused"]
"""`not judged`: its cases run and never pass; `not run`: its cases do not run; `no effect`: it is ignored; `refused`: nothing runs."""

_PLACE = re.compile(r"^the (?:suite|dataset|file) '[^']*'(?:, line (?P<line>\d+))?(?:, column \d+)?(?:, line \d+)?:? ?")
_FOR = re.compile(r" \(for the (?:suite|dataset) '.*\)$")
_PATH = re.compile(r"^(?:[A-Za-z_$][\w$]*(?:\[\d+\])*(?:\.[\w$-]+(?:\[\d+\])*)*: )+")


@dataclass(frozen=True)
class Unsupported:
    """A thing that is not supported, and what becomes of it."""

    message: str
    """The whole message: the place, the problem and its cure."""
    effect: Effect

    @property
    def line(self) -> int | None:
        """The line in its file, from 1; None where it is not known."""
        found = _PLACE.match(self.message)
        return int(found["line"]) if found and found["line"] else None

    @property
    def problem(self) -> str:
        """The message without its place, which is the same for all things of one kind."""
        return _PATH.sub("", _FOR.sub("", _PLACE.sub("", self.message)))


@dataclass(frozen=True)
class FindingGroup:
    """All findings of one problem."""

    problem: str
    instead: str
    """The cure; empty where the message names none."""
    effect: Effect
    lines: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class Keys:
    """The keys of one of promptfoo's objects; those that are neither read nor refused have no effect, as in promptfoo, and get a note."""

    read: frozenset[str]
    refused: Mapping[str, str] = field(default_factory=dict)
    """The cures of keys that change verdicts in promptfoo."""
    effect: Effect = "not judged"
    """The effect on a case of a refused key that is left out."""


@cache
def promptfoo_table(name: str) -> Mapping[str, dict[str, Any]]:
    """Return a table of what promptfoo has: its `types` of assertions, the `keys` of its objects, or its `embedders`."""
    text = files("gradeloop.suites").joinpath("promptfoo_tables.toml").read_text(encoding="utf-8")
    found: Mapping[str, dict[str, Any]] = tomllib.loads(text)[name]
    return found


def keys_of(name: str) -> Keys:
    """Return the keys of one of promptfoo's objects."""
    fields = promptfoo_table("keys")[name]
    return Keys(frozenset(fields["read"]), fields.get("refused", {}), fields.get("effect", "not judged"))


@dataclass
class UnsupportedFeatures:
    """Takes what is not supported: it is refused, or where `skips` is set left out and kept here."""

    skips: bool = False
    items: list[Unsupported] = field(default_factory=list)
    _known: set[Unsupported] = field(default_factory=set, repr=False)

    def leave_out(self, error: InvalidRequest, effect: Effect) -> str:
        """Leave a thing out, and return why in words without its place; raise InvalidRequest where nothing may be left out."""
        if not self.skips:
            raise error
        found = Unsupported(str(error), effect)
        self._keep(found)
        return found.problem

    def _keep(self, found: Unsupported) -> None:
        """Keep what is not known yet."""
        if found not in self._known:
            self._known.add(found)
            self.items.append(found)

    @contextmanager
    def leaving_out(self, effect: Effect, reasons: list[str] | None = None) -> Iterator[None]:
        """Leave out what is refused inside; `reasons` gets why."""
        try:
            yield
        except InvalidRequest as error:
            reason = self.leave_out(error, effect)
            if reasons is not None:
                reasons.append(reason)

    def heeded(
        self, fields: Mapping[str, JsonValue], keys: Keys, where: Location, reasons: list[str] | None = None
    ) -> dict[str, JsonValue]:
        """Return the fields that are read; each that is refused is left out, and `reasons` gets why, and each other one gets a note."""
        for key in sorted(set(fields) - keys.read):
            if key not in keys.refused:
                self.note(f"{where.describe(key)}: {clip(key)} has no effect here")
                continue
            with self.leaving_out(keys.effect, reasons):
                raise InvalidRequest(f"{where.describe(key)}: {clip(key)} is not supported; {keys.refused[key]}")
        return {key: item for key, item in fields.items() if key in keys.read}

    def note(self, message: str) -> None:
        """Keep a note on something that has no effect."""
        self._keep(Unsupported(message, "no effect"))

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on what has no effect, and on what was left out."""
        notes = [item.message for item in self.items if item.effect == "no effect"]
        return (*notes, *(f"{describe_group(group)}" for group in self.groups() if group.effect != "no effect"))

    def groups(self) -> tuple[FindingGroup, ...]:
        """Return the findings by problem, in the order in which each was first found."""
        found: dict[tuple[str, Effect], list[Unsupported]] = {}
        for item in self.items:
            found.setdefault((item.problem, item.effect), []).append(item)
        groups = []
        for (problem, effect), items in found.items():
            what, _, instead = problem.partition("; ")
            lines = tuple(dict.fromkeys(item.line for item in items if item.line is not None))
            groups.append(FindingGroup(what, instead, effect, lines, len(items)))
        return tuple(groups)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was left out."""
        return all(item.effect == "no effect" for item in self.items)


_EFFECTS: dict[Effect, str] = {
    "not judged": "left out; what it would have judged is not judged, and no such case passes",
    "not run": "left out; its cases are not run, and not judged",
    "no effect": "ignored",
    "refused": "refused",
}


def describe_group(group: FindingGroup) -> str:
    """Return a group of findings as one line: the lines, the count, the problem, its replacement, and the parts left out."""
    lines = ", ".join(map(str, group.lines[:5])) + (", …" if len(group.lines) > 5 else "")  # noqa: PLR2004 - enough to begin with
    place = f"line{'s' if len(group.lines) > 1 else ''} {lines}: " if group.lines else ""
    often = f" ({group.count} times)" if group.count > 1 else ""
    instead = f"; {group.instead}" if group.instead else ""
    return f"{place}{group.problem}{often}{instead} [{_EFFECTS[group.effect]}]"
