"""Mapping files: JSONPath to the answers, messages and tools of runs of any shape, and to parts that are left out."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from jsonpath_rfc9535 import JSONPathError, JSONPathNodeList, JSONPathQuery
from jsonpath_rfc9535 import compile as parse_path
from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from gradeloop.contract.base import Strict
from gradeloop.contract.transcript import AgentRun, RunMessage
from gradeloop.files.yaml import Location, explained_at, read_placed
from gradeloop.text import clip
from gradeloop.transcripts.account import Place
from gradeloop.transcripts.assemble import read_side, run_of
from gradeloop.transcripts.json_access import Json, UnreadableMessage, inside, structured
from gradeloop.transcripts.message_forms import build_message, parse_message
from gradeloop.transcripts.parts import read_call, read_result


def _parsed(text: object) -> object:
    try:
        return parse_path(text) if isinstance(text, str) else text
    except JSONPathError as error:
        raise ValueError(f"{clip(str(text))} is not a JSONPath: {error}; write it after RFC 9535: $.key, $.list[*]") from None


JsonPath = Annotated[JSONPathQuery, BeforeValidator(_parsed)]
Paths = Annotated[tuple[JsonPath, ...], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]
"""One path, or a list of paths whose values follow each other."""


class Mapping(Strict):
    """A mapping file, whose paths lead from a record; where there are messages, `role`, `content` and `tools.calls` lead from a message."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    runs: JsonPath | None = None
    """The records in a file; by default the file, or the items of a list. A file of lines is the list of its lines."""
    id: Paths = ()
    """The values that are the run's id, joined by `-`."""
    system: Paths = ()
    input: Paths = ()
    messages: Paths = ()
    role: JsonPath | None = None
    content: Paths = ()
    order: JsonPath | None = None
    """The number by which messages are sorted; those without it stand first."""
    roles: dict[str, str] = Field(default_factory=dict)
    """The roles that other names stand for: `{human: user}`."""
    tools: dict[Literal["calls", "id", "name", "arguments", "result"], JsonPath] = Field(default_factory=dict)
    """The calls of tools, which stand before the answer, or behind their message; the other paths lead from a call."""
    answer: Paths = ()
    metadata: dict[str, JsonPath] = Field(default_factory=dict)
    leave_out: Paths = ()
    """Values that judges are not shown on purpose, in a record, or in the file beside its records."""

    @model_validator(mode="after")
    def _reads_something(self) -> "Mapping":
        if not (self.selects or self.leave_out):
            raise ValueError("the mapping says neither answer nor messages nor leave_out; write where the answer stands: answer: $.output")
        if self.tools and not {"calls", "name"} <= self.tools.keys():
            raise ValueError("tools: calls or name is missing; write tools: {calls: '$.calls[*]', name: $.name}")
        return self

    @property
    def selects(self) -> bool:
        """Whether it says what a run is; else it only leaves out of what a format reads."""
        return bool(self.answer or self.messages)

    def records(self, value: Json) -> JSONPathNodeList:
        """Return the records of a file's value, with their places."""
        return (self.runs or parse_path("$[*]" if isinstance(value, list) else "$")).find(value)

    def places(self, value: Json) -> set[Place]:
        """Return the places of what is metadata, or left out, of a value, or of the items of a list."""
        items: Iterable[tuple[int, Json]] = enumerate(value) if isinstance(value, list) else ()
        values = [((), value), *(((at,), item) for at, item in items)]
        paths = (*self.leave_out, *self.metadata.values())
        return {(*before, *node.location) for before, inner in values for path in paths for node in path.find(inner)}

    def run_of(self, record: Json, name: str, number: int | None) -> AgentRun:
        """Return the run of a record, given its number among those of the file; None where it is the only one.

        Raises:
            UnreadableMessage: A path that has to lead somewhere does not, or to what is not a message.
        """
        where = f"record {number}" if number else "the record"

        def found(field: str) -> list[Json]:
            return _values(getattr(self, field), record, "" if field in ("system", "id") else f"{field}: {{}} matches nothing in {where}")

        sides = {name: [said for value in found(name) for said in read_side(value, role, name)] for name, role in _SIDES.items()}
        items = [item for value in map(structured, found("messages")) for item in (value if isinstance(value, list) else [value])]
        spoken = [] if self.messages else [*self._tools(record, 0)]
        for at, item in enumerate(sorted(items, key=lambda item: _values([self.order] if self.order else (), item))):
            with inside("messages", at):
                spoken += self._message(item, at) if item is not None else ()
        aside = {key: _values([path], record) for key, path in self.metadata.items()}
        about = {key: values[0] if len(values) == 1 else values for key, values in aside.items() if values}
        messages = [*sides["system"], *sides["input"], *spoken, *sides["answer"]]
        return run_of("-".join(map(str, found("id")))[:200] or name, messages, about)

    def _message(self, item: Json, at: int) -> Iterator[RunMessage]:
        """Yield a message, and what its tools returned; with a path of its content, all else that it has is not read."""
        tools = list(self._tools(item, at))
        if isinstance(item, dict):
            role = next(iter(_values([self.role], item)), None) if self.role else item.get("role")
            item = {**item, "role": self.roles.get(str(role), role)}
            if self.content:
                content = _values(self.content, item, "" if tools else "content: {} matches nothing in it")
                item = {"role": item["role"], "content": content}
        if not (tools and self.content and not item["content"]):
            yield from parse_message(item)
        yield from tools

    def _tools(self, value: Json, at: int) -> Iterator[RunMessage]:
        """Yield the calls of tools, each before what it returned."""
        for number, call in enumerate(_values([self.tools["calls"]], value) if self.tools else ()):
            fields = {key: next(iter(_values([path], call)), None) for key, path in self.tools.items() if key != "calls"}
            made = read_call(fields.get("id") or f"call_{at}_{number}", fields["name"], fields.get("arguments"))
            yield build_message("assistant", [made])
            if (result := fields.get("result")) is not None:
                yield build_message("tool", [*read_result(made.call, result, name=made.name)])


_SIDES = {"system": "system", "input": "user", "answer": "assistant"}
"""The role of what each of these fields leads to."""


def _values(paths: Sequence[JSONPathQuery], value: Json, missing: str = "") -> list[Any]:
    """Return what paths lead to, nulls aside; where that is nothing, it is refused in the words of `missing`."""
    found = [inner for path in paths for inner in path.find(value).values() if inner is not None]
    if paths and missing and not found:
        keys = f"; its keys: {', '.join(value) or 'none'}" if isinstance(value, dict) else ""
        raise UnreadableMessage(f"{missing.format(' and '.join(map(str, paths)))}{keys}")
    return found


def read_mapping(path: Path | None) -> Mapping | None:
    """Read a mapping file; None without one. Raise InvalidRequest, with file, line and field, where it cannot be read, or is none."""
    if path is None:
        return None
    value, placed = read_placed(path, "the mapping")
    with explained_at(Location(f"the mapping {str(path)!r}", (), placed)):
        return Mapping.model_validate(value)
