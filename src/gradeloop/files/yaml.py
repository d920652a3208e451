"""YAML read strictly, and the place of each value in its file."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue, ValidationError
from pydantic_core import ErrorDetails

from gradeloop.errors import InvalidRequest, explain, field_path
from gradeloop.text import clip

if TYPE_CHECKING:
    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import MappingNode, Node, ScalarNode


YAML_BYTES = 4 * 1024 * 1024
"""The largest file: above what a thread may hold; the parser, pure Python, needs 20 s for one that is all short rows."""

DEPTH = 64
"""The deepest nesting of lists and mappings: more than any task has, and well within Python's own stack."""

ALIASES = 1_000
"""The most aliases of a file that may have some: each is a copy of what its anchor has."""

EXPANDED_BYTES = 1024 * 1024
"""The most characters that all copies may have together."""

_EXAMPLES = {"the task": "task", "the suite": "suite"}
"""The kinds of files of which `gradeloop init` writes an example."""

_KEY = "\0"
"""The last step of a key's path, behind the key itself, which tells it from its value's."""

Places = dict[tuple[int | str, ...], tuple[int, int]]
"""The line and column, from 1, of each value by its path of keys and indexes."""

_CORE = "tag:yaml.org,2002:"


def read_yaml(source: Path | str, what: str, *, aliases: bool = False) -> JsonValue:
    """Read a YAML file (a `Path`) or text (a `str`) into JSON values; dates stay text.

    Args:
        source: The file or the text.
        what: What it is, as a message names it: `"the task file"`.
        aliases: Whether it may have anchors, aliases and merge keys, up to `ALIASES` and `EXPANDED_BYTES`.

    Raises:
        InvalidRequest: It cannot be read, or holds what JSON cannot; the message names file, line, column and cure.
    """
    return read_placed(source, what, aliases=aliases)[0]


def read_placed(source: Path | str, what: str, *, aliases: bool = False) -> tuple[JsonValue, Places]:
    """Read YAML as `read_yaml` does, and return the places of its values too."""
    where = f"{what} {str(source)!r}" if isinstance(source, Path) else what
    text = _read_text(source, where, what) if isinstance(source, Path) else source
    if len(text.encode(errors="replace")) > YAML_BYTES:
        raise InvalidRequest(f"{where} is larger than {YAML_BYTES // 1024**2} MiB; move long texts out of it")
    value, placed = _parse(text, where, aliases=aliases)
    if value is None:
        raise InvalidRequest(f"{where} is empty; write the YAML first")
    return value, placed


def _read_text(path: Path, where: str, what: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(YAML_BYTES + 1)
    except FileNotFoundError:
        example = f", or write an example with: gradeloop init --kind {_EXAMPLES[what]}" if what in _EXAMPLES else ""
        raise InvalidRequest(f"{where} does not exist; check the path{example}") from None
    except IsADirectoryError:
        raise InvalidRequest(f"{where} is a directory; name a YAML file in it") from None
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{where} cannot be read: {error}") from None
    try:
        return raw[: YAML_BYTES + 1].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(raw) > YAML_BYTES:  # the cut went through a character
            return raw.decode("utf-8-sig", errors="replace")
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidRequest(f"{where}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8") from None


def _parse(text: str, where: str, *, aliases: bool) -> tuple[JsonValue, Places]:
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import MaxDepthExceededError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = DEPTH
    try:
        node = yaml.compose(text)
        converter = _Converter(yaml, where, aliases=aliases)
        return None if node is None else converter.value(node, ()), converter.places
    except MaxDepthExceededError as error:
        raise InvalidRequest(f"{where}, line {error.problem_mark.line + 1}: nested deeper than {DEPTH} levels; flatten it") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        why = _bare_template(text, mark.line) if mark else None
        raise InvalidRequest(f"{where}{place}: {why or f'{error.problem or error.context}; correct the YAML there'}") from None
    except YAMLError as error:
        raise InvalidRequest(f"{where}: {str(error).splitlines()[0]}; remove it, or check that this is a text file") from None


_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|(?:^|\s)#.*")
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}|\{%[^{}]*%\}")
_IN_FRONT = re.compile(rf"(?:^|[:?,\[{{-])\s*(?:{_TEMPLATE.pattern})")
"""A template that begins a value, which YAML reads as a mapping; elsewhere in a plain text of a block it is text."""

_QUOTE_IT = "is not in quotes, so YAML reads its braces; quote the whole text, as in 'Dear {{ name }}'"


def _bare_template(text: str, line: int) -> str | None:
    """Return what is wrong where YAML stumbles over a template without quotes, on this line or at the beginning of the one before."""
    before, own = (_QUOTED.sub("", found) for found in ("", *text.split("\n"))[line : line + 2])
    found = _TEMPLATE.search(own) or (_TEMPLATE.search(before) if _IN_FRONT.search(before) else None)
    return found and f"{clip(found[0])} {_QUOTE_IT}"


class _Converter:
    """Converts YAML's nodes into JSON values, and notes their places."""

    def __init__(self, yaml: "YAML", where: str, *, aliases: bool) -> None:
        self._yaml = yaml
        self._where = where
        self._aliases = aliases
        self._anchored: set[int] = set()
        """The nodes with an anchor that have been converted, by identity: the next time it is an alias."""
        self._inside: list[int] = []
        """The nodes with an anchor that are being converted."""
        self._copies = self._copied = self._copying = 0
        self.places: Places = {}

    def value(self, node: "Node", path: tuple[int | str, ...]) -> JsonValue:
        if node.anchor is not None and not self._aliases:
            raise self._refusal(node, f"the anchor &{node.anchor} is refused, as every alias is; write the value out")
        return self._converted(node, path) if node.anchor is None else self._anchored_value(node, path)

    def _converted(self, node: "Node", path: tuple[int | str, ...]) -> JsonValue:
        from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

        if self._copying:
            text = node.value
            self._copied += len(text) + 1 if isinstance(text, str) else 1
        if self._copied > EXPANDED_BYTES:
            raise self._refusal(node, f"the copies that aliases make have more than {EXPANDED_BYTES // 1024**2} MiB; write less of them")
        self.places[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        if isinstance(node, MappingNode) and node.tag == f"{_CORE}map":
            return self._mapping(node, path)
        if isinstance(node, SequenceNode) and node.tag == f"{_CORE}seq":
            return [self.value(item, (*path, at)) for at, item in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        raise self._tag_refusal(node)

    def _anchored_value(self, node: "Node", path: tuple[int | str, ...]) -> JsonValue:
        """Convert a node that has an anchor, once for it and once for each of its aliases."""
        if id(node) in self._inside:
            raise self._refusal(node, f"the anchor &{node.anchor} has an alias of itself inside; write the value out")
        is_copy = id(node) in self._anchored
        self._copies += is_copy
        if self._copies > ALIASES or len(path) > 2 * DEPTH:
            raise self._refusal(node, f"there are more than {ALIASES} aliases, or they nest too deeply; write the values out")
        self._anchored.add(id(node))
        self._inside.append(id(node))
        self._copying += is_copy
        value = self._converted(node, path)
        self._copying -= is_copy
        self._inside.pop()
        return value

    def _merged(self, node: "Node", path: tuple[int | str, ...]) -> dict[str, JsonValue]:
        """Return the keys that a merge key brings: those of a mapping, or of a list of them, of which the first counts."""
        value = self.value(node, path)
        found: dict[str, JsonValue] = {}
        for mapping in value if isinstance(value, list) else [value]:
            if not isinstance(mapping, dict):
                raise self._refusal(node, "the merge key << takes a mapping, or a list of them; name one by its alias")
            found = mapping | found
        return found

    def _mapping(self, node: "MappingNode", path: tuple[int | str, ...]) -> dict[str, JsonValue]:
        mapping: dict[str, JsonValue] = {}
        merged: dict[str, JsonValue] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_CORE}merge":
                if not self._aliases:
                    raise self._refusal(key_node, "the merge key << is refused; write the keys out")
                merged |= self._merged(value_node, (*path, _KEY))
                continue
            key = self.value(key_node, (*path, _KEY))
            if isinstance(key, dict):
                raise self._refusal(key_node, f"'{{{{ {next(iter(key), '')} }}}}' {_QUOTE_IT}")
            if not isinstance(key, str):
                raise self._refusal(key_node, f"the key {clip(str(key))} is not a string; quote it")
            if key in mapping:
                raise self._refusal(key_node, f"the key {clip(key)} is there twice; keep one")
            self.places[*path, key, _KEY] = self.places.pop((*path, _KEY))
            mapping[key] = self.value(value_node, (*path, key))
        return merged | mapping

    def _scalar(self, node: "ScalarNode") -> JsonValue:
        kind = str(node.tag).removeprefix(_CORE)
        if kind == "timestamp":
            return str(node.value)
        if kind not in {"str", "int", "float", "bool", "null"}:
            raise self._tag_refusal(node)
        try:
            value = self._yaml.constructor.construct_object(node)
        except (ValueError, LookupError):
            raise self._refusal(node, f"{clip(str(node.value))} is not of type {kind}; quote it if text is meant") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise self._refusal(node, f"{clip(str(node.value))} is not a number in JSON; quote it if text is meant")
        return self._without_surrogates(node, value) if isinstance(value, str) else value

    def _without_surrogates(self, node: "ScalarNode", text: str) -> str:
        """Return a text whose surrogate pairs, as JSON escapes write them, are joined."""
        try:
            return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self._refusal(node, "the text holds half of a surrogate pair; write the whole character") from None

    def _tag_refusal(self, node: "Node") -> InvalidRequest:
        return self._refusal(node, f"the tag {clip(str(node.tag))} is refused; write plain values, and quote what is meant as text")

    def _refusal(self, node: "Node", why: str) -> InvalidRequest:
        mark = node.start_mark
        return InvalidRequest(f"{self._where}, line {mark.line + 1}, column {mark.column + 1}: {why}")


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a value in a file, with which a message begins."""

    file: str = ""
    """The file as a message names it: `the suite 'a.yaml'`; empty where there is none."""
    path: tuple[int | str, ...] = ()
    placed: Places = field(default_factory=dict, repr=False)
    """The places of the file's values, by their paths."""

    def at(self, *steps: int | str) -> "Location":
        """Return the location of a value inside this one."""
        return replace(self, path=(*self.path, *steps))

    @property
    def place(self) -> str:
        """The file, with the line and column of the value, or of what it is missing from."""
        starts = (self.path[:end] for end in range(len(self.path), -1, -1))
        found = next((self.placed[start] for start in starts if start in self.placed), None)
        return f"{self.file}, line {found[0]}, column {found[1]}" if found else self.file

    def describe(self, *steps: int | str) -> str:
        """Return this location's path, after the line and column of a value inside it."""
        return ": ".join(part for part in (self.at(*steps).place, field_path(self.path)) if part)

    def __str__(self) -> str:
        return self.describe()


@contextmanager
def explained_at(location: Location) -> Iterator[None]:
    """Raise pydantic's report on what is validated inside as `located_error`."""
    try:
        yield
    except ValidationError as error:
        raise located_error(error, location) from None


@contextmanager
def placed_at(location: Location, *elsewhere: str) -> Iterator[None]:
    """Begin the message of an InvalidRequest with the place of the field that it names, unless that field's value stands `elsewhere`."""
    try:
        yield
    except InvalidRequest as error:
        field = re.match(r"[a-z_]+(\.\w+|\[\d+\])*(?=: | is (missing|empty))", str(error))
        steps = [int(step) if step.isdecimal() else step for step in re.findall(r"\w+", field[0])] if field else []
        if not location.file or not steps or steps[0] in elsewhere:
            raise
        known = (*location.path, steps[0]) in location.placed or location.path
        raise type(error)(f"{location.at(*steps).place if known else location.file}: {error}") from None


def located_error(error: ValidationError, location: Location) -> InvalidRequest:
    """Return pydantic's report as an error that begins with the place of the first mistake."""
    first = error.errors(include_url=False)[0]
    steps = tuple(part for part in first["loc"] if not (isinstance(part, str) and part.startswith("<")))
    whole, inside, problems = field_path((*location.path, *steps)), field_path(steps), explain(error)
    message = f"{whole}{problems.removeprefix(inside)}" if inside else ": ".join(part for part in (whole, problems) if part)
    return InvalidRequest(": ".join(part for part in (location.at(*steps, *_unknown_key(first)).place, message) if part))


def _unknown_key(detail: ErrorDetails) -> tuple[str, ...]:
    """Return the key that a model does not know, which has a place of its own; empty for any other mistake."""
    given = detail["input"] if detail["type"] == "unknown_key" else None
    named = detail.get("ctx", {}).get("key")
    return next(((key, _KEY) for key in given if clip(str(key)) == named), ()) if isinstance(given, dict) else ()
