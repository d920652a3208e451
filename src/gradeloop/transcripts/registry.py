"""Runs in the formats that others write: each format is recognised by its keys, and read by its own module."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain

from pydantic import JsonValue, ValidationError

from gradeloop.contract.transcript import AgentRun, RunTranscript
from gradeloop.errors import explain
from gradeloop.extensions import Registry
from gradeloop.text import clip, objects_in
from gradeloop.transcripts.account import ABOUT, Account, Place, account_of
from gradeloop.transcripts.assemble import IDS, build_run, id_of, require_messages, run_of, transcript_of, with_answer
from gradeloop.transcripts.formats import Format, agent_benchmarks, coding_agents, rows_of, spans, streams, trace_exports, training_sets
from gradeloop.transcripts.json_access import Json, UnreadableMessage, dict_of, inside, object_at, require_rows, structured, without
from gradeloop.transcripts.mapping import Mapping
from gradeloop.transcripts.message_forms import (
    is_autogen,
    is_langchain,
    is_message,
    is_opencode,
    is_pydantic_ai,
    messages_at,
    parse_messages,
)

__all__ = ["FORMATS", "PEEKED", "Detected", "Format", "Notes", "UnreadableMessage", "detect", "line_of", "odd_one", "parse_runs"]


@dataclass(frozen=True)
class Detected:
    """The format that a value was taken for, and why."""

    format: Format
    why: str


def find_format(value: Json, *, lines: bool = False) -> Detected | None:
    """Return the format of a value, or the one whose one value all lines of a file are together; None where it is of none."""
    formats = list(FORMATS)
    for known in (*formats[len(OWN) :], *formats[: len(OWN)]):  # those of extensions before ours, which know plain messages
        if (known.whole or not lines) and (why := known.recognise(value)) is not None:
            return Detected(known, why)
    return None


def detect(value: Json) -> Detected:
    """Return the format of a run, of a list of runs, or of a conversation; raise UnreadableMessage where it is of no known format."""
    if (found := find_format(value)) is not None:
        return found
    if not isinstance(value, dict):
        raise UnreadableMessage(f"{clip(str(value))} is not a run; write an object with messages or transcripts, or a list of messages")
    keys = ", ".join(map(str, value)) or "none"
    raise UnreadableMessage(
        f"the run has neither transcripts nor messages; its keys: {keys}; say by --mapping FILE where its answer stands"
    )


PEEKED = 50
"""The first lines of a file, or items of a list, by which it is seen whether all are one value, or each is one."""


# One damaged line among the lines of a session must not turn a run into a hundred runs of one message. So where the
# first lines are not one value together, each is left out in turn: if the others are one value then, that line is the
# odd one and is told by its number. Lines of which each is a run of its own are not looked at in this way, unless the
# first of them is of a format whose lines are one value.
def odd_one(rows: Sequence[Json]) -> UnreadableMessage | None:
    """Return why the first rows of a file are not one value as they would be without one of them, to which the path leads.

    None where they are one value, or each is one, or they are none without any one of them either.
    """
    rows = [*rows[:PEEKED]]
    if not rows or find_format(rows, lines=True) is not None:
        return None
    alone = find_format(rows[0])
    begins = ((end, rows[:end]) for end in range(len(rows) - 1, 0, -1))
    without_one = ((at, [*rows[:at], *rows[at + 1 :]]) for at in range(len(rows)))
    for at, others in chain(begins, without_one) if alone is None or alone.format.whole else ():
        if (known := find_format(others, lines=True)) is not None and (alone is None or find_format(rows[at]) is None):
            shown = f"its keys: {', '.join(map(str, rows[at])) or 'none'}" if isinstance(rows[at], dict) else clip(str(rows[at]))
            return UnreadableMessage(f"this is not a line of a {known.format.name}, as the others are; {shown}", at)
    return None


@dataclass(frozen=True)
class Notes:
    """Callbacks for notes while values are read."""

    on_format: Callable[[Detected], None] | None = None
    """Called with the format that a value is taken for, for a list of runs with that of each."""
    on_bad: Callable[[UnreadableMessage], None] | None = None
    """Called with why a run cannot be read, to go on with the next; without it, that is raised."""
    on_account: Callable[[Account], None] | None = None
    """Called with the account of each record, before its runs."""
    mapping: Mapping | None = None
    """The mapping file for the values, with the parts to leave out."""

    def keep_account(self, value: Json, runs: Sequence[AgentRun], form: Format | None, apart: Collection[Place] = ()) -> None:
        """Take the account of a record, in a format or as the mapping reads it, as `account_of` does."""
        places = self.mapping.places(value) if self.mapping else ()
        account = account_of(value, runs, f"{ABOUT}|{form.unshown}" if form else "", places, apart)
        if self.on_account is not None:
            self.on_account(account)


def parse_runs(value: Json, name: str, notes: Notes | None = None) -> Iterator[AgentRun]:
    """Yield the runs of a JSON value.

    Args:
        value: A run in any format, a list of runs, or a list of messages.
        name: The id of a run without one of its own.
        notes: What to do with the formats that are found, and with runs that cannot be read.

    Raises:
        UnreadableMessage: The value is not a run; the error's path leads to the mistake.
    """
    notes = notes or Notes()
    if notes.mapping is not None and notes.mapping.selects:
        yield from _parse_mapped(value, name, notes, notes.mapping)
        return
    value = _unpacked(value)
    with _shaped():
        key = envelope_of(value)
    if key is not None:
        with inside(key):
            items = value[key]  # messages of a thread of OpenAI's, which its API gives newest first, in the order of their creation
            if all(item.get("object") == "thread.message" and isinstance(item.get("created_at"), int) for item in items):
                items = sorted(items, key=lambda item: int(item["created_at"]))
            yield from parse_runs(items, name, notes)
        return
    if isinstance(value, list) and value and not is_one(value):
        if (odd := odd_one(value)) is not None:
            raise odd
        for at, item in enumerate(value):
            yield from _noting(lambda item=item, at=at: parse_runs(item, f"{name}-{at + 1}", notes), notes, at)  # type: ignore[misc]  # bound
        return
    yield from _parse_detected(value, name, notes)


def _parse_detected(value: Json, name: str, notes: Notes) -> Iterator[AgentRun]:
    """Yield the runs of a value in a format, each with its account."""
    with _shaped():
        detected = detect(value)
    if notes.on_format is not None:
        notes.on_format(detected)
    key = detected.format.several
    items = value.get(key) if key is not None and isinstance(value, dict) else None
    if key is None or not items:
        with _shaped(detected.format.name):
            found = list(detected.format.parse(value, name))
        runs = [run for run in found if isinstance(run, AgentRun)]
        if len(runs) == len(found):  # the texts of one that cannot be read are lost with it, by name
            notes.keep_account(value, runs, detected.format)
        for run in found:
            yield from _noting(lambda run=run: _read(run), notes)  # type: ignore[misc]  # bound
        return
    notes.keep_account({**value, key: None}, (), detected.format)
    for at, item in enumerate(items):
        yield from _noting(lambda item=item: _parse_one_of(detected.format, value, item, name, notes), notes, key, at)  # type: ignore[misc]  # bound


def _parse_mapped(value: Json, name: str, notes: Notes, mapping: Mapping) -> Iterator[AgentRun]:
    """Yield the runs of the records that a mapping finds in a value."""
    records = mapping.records(value)
    notes.keep_account(value, (), None, {node.location for node in records})
    for number, node in enumerate(records, 1):
        if notes.on_format is not None:
            notes.on_format(Detected(MAPPED, str(mapping.runs or "each record")))

        def read(record: Json = node.value, number: int | None = number if len(records) > 1 else None) -> Iterator[AgentRun]:
            with _shaped():
                run = mapping.run_of(record, f"{name}-{number}" if number else name, number)
            notes.keep_account(record, [run], None)
            yield run

        yield from _noting(read, notes, *node.location)


MAPPED = Format("mapping", lambda _: None, lambda _value, _name: iter(()), rows=True)
"""The format of what a mapping file reads."""


def _unpacked(value: Json) -> Json:
    """Return the value in a text, where a line is JSON written as JSON once more; what a prompt of LangChain, a row of MLflow holds."""
    if isinstance(value, dict) and isinstance(written := value.get("trace"), str) and "spans" in value:
        return structured(written)
    if isinstance(value, dict) and value.get("lc") is not None and isinstance(dict_of(value.get("kwargs")).get("messages"), list):
        return value["kwargs"]
    if isinstance(value, dict) and isinstance(written := value.get("messages"), str) and written.lstrip()[:1] == "[":
        return {**value, "messages": _unpacked(written)}
    return structured(value)


_ENVELOPES = ("data", "runs", "agent_runs", "traces", "spans", "trajectories", "results")
"""The keys under which an API, or an export, has its list of runs, spans or messages."""

_BESIDE_LISTS = {"meta", "object", "has_more", "first_id", "last_id", "next_cursor", "cursors", "next_page_id", "total", "count", "page"}
_BESIDE_LISTS |= {"name", "metadata", "created_at", "version", "project_name"}
"""Keys that an answer of an API has beside its list."""


# An object is opened only where no format knows it as it is. Beside its list may stand only what an API says
# about the list, since anything else would be lost without a word.
def envelope_of(value: Json) -> str | None:
    """Return the key under which an object has the list that its runs are in; None where it is a run itself."""
    if not isinstance(value, dict) or find_format(value) is not None:
        return None
    key = next((key for key in _ENVELOPES if isinstance(value.get(key), list) and value[key]), None)
    listed = key is not None and all(isinstance(item, dict) for item in value[key]) and not set(value) - {key} - _BESIDE_LISTS
    return key if listed else None


def _read(found: AgentRun | UnreadableMessage) -> Iterator[AgentRun]:
    """Yield what is read; raise what is not."""
    if isinstance(found, UnreadableMessage):
        raise found
    yield found


def _parse_one_of(form: Format, value: dict[str, Json], item: Json, name: str, notes: Notes) -> Iterator[AgentRun]:
    """Yield the run of one item of a value; the path of an error begins in the item."""
    try:
        with _shaped(form.name):
            found = [run for read in form.parse({**value, str(form.several): [item]}, name) for run in _read(read)]
    except UnreadableMessage as error:
        raise UnreadableMessage(str(error), *error.path[2:]) from None
    notes.keep_account(item, found, form)
    yield from found


@contextmanager
def _shaped(name: str = "run") -> Iterator[None]:
    """Refuse a value in which something has another type than its format says, where its reader did not look for that."""
    try:
        yield
    except UnreadableMessage:
        raise
    except ValidationError as error:
        raise UnreadableMessage(explain(error)) from None
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        raise UnreadableMessage(f"the value has not the shape of a {name}: {error}") from None


def _noting(parse: Callable[[], Iterator[AgentRun]], notes: Notes, *path: int | str) -> Iterator[AgentRun]:
    """Yield runs; what cannot be read is noted where that is asked for, and raised else, with the path before its own."""
    try:
        with inside(*path):
            found = list(parse())
    except UnreadableMessage as error:
        if notes.on_bad is None:
            raise
        notes.on_bad(error)
        return
    yield from found


def is_one(value: list[Json]) -> bool:
    """Return whether a list is one value, a conversation or the events of one, rather than a list of runs."""
    return find_format(value, lines=True) is not None or all(is_message(item) for item in value) or training_sets.are_turns(value)


def _parse_transcripts(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of Docent's shape, or our own; Docent's transcripts are in the order in which they were created."""
    metadata = object_at(value, "metadata")
    described = {key: value[key] for key in ("name", "description") if value.get(key)}
    items = list(value["transcripts"].values()) if isinstance(value["transcripts"], dict) else value["transcripts"]
    if not isinstance(items, list) or not items:
        raise UnreadableMessage("transcripts is not a list with something in it; give at least one transcript", "transcripts")
    transcripts = []
    for at, item in enumerate(items):
        with inside("transcripts", at):
            transcripts.append(_parse_transcript(item))
    groups = [without(group) for group in require_rows(value.get("transcript_groups"), "transcript_groups")]
    grouped: dict[str, JsonValue] = {"transcript_groups": [*groups]} if groups else {}
    yield build_run(id_of(value, name), [transcripts[at] for at in _in_order(items, groups)], {**described, **grouped, **metadata})


def _in_order(transcripts: list[dict[str, Json]], groups: list[dict[str, Json]]) -> list[int]:
    """Return the places of transcripts in the order in which Docent numbers them.

    It walks their groups as a tree, in each of which groups and transcripts stand by `created_at`: those without one at the end, groups
    before transcripts, and else as they are written.
    """
    known = {str(group.get("id")) for group in groups}
    children: dict[str, list[tuple[datetime, int | str]]] = {}
    nodes: list[tuple[Json, dict[str, Json], int | str]] = [
        *((group.get("parent_transcript_group_id"), group, str(group.get("id"))) for group in groups),
        *((item.get("transcript_group_id"), item, at) for at, item in enumerate(transcripts)),
    ]
    for parent, value, name in nodes:
        children.setdefault(str(parent) if str(parent) in known else _ROOT, []).append((_created(value), name))
    order: list[int] = []
    left: list[int | str] = [_ROOT]
    while left:
        if isinstance(node := left.pop(), int):
            order.append(node)
        else:
            left += [child for _, child in sorted(children.pop(node, []), key=lambda one: one[0])][::-1]
    return order + [at for at in range(len(transcripts)) if at not in set(order)]  # of groups that are within each other


_ROOT = ""
"""The id that no group has."""


def _created(value: dict[str, Json]) -> datetime:
    """Return when something was created, in UTC; where it does not say so, the end of time."""
    try:
        found = datetime.fromisoformat(str(value.get("created_at")))
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _parse_transcript(item: Json) -> RunTranscript:
    if not isinstance(item, dict) or "messages" not in item:
        raise UnreadableMessage(f"{clip(str(item))} is not a transcript; write an object with messages")
    messages = require_messages(messages_at(item, "messages"), "messages")
    metadata = object_at(item, "metadata")
    more = {key: item[key] for key in ("description", "created_at", "transcript_group_id") if item.get(key)}
    return transcript_of(messages, id=str(item.get("id") or ""), name=item.get("name"), metadata={**more, **metadata})


def _recognise_messages(value: Json) -> str | None:
    if isinstance(value, list):
        return f"a list of {_messages_of_whom(value)}" if value and all(is_message(item) for item in value) else None
    if not isinstance(value, dict):
        return None
    key = next((key for key in ("messages", "input") if isinstance(value.get(key), list)), None)
    if key is not None:
        return f"an object with {key}: {_messages_of_whom(value[key])}"
    if isinstance(value.get("input"), str) and "messages" not in value:
        return "an object with input, a text"
    return "one message: an object with role" if is_message(value) else None


def _messages_of_whom(messages: Sequence[Json]) -> str:
    """Return what messages are recognised by."""
    rows = objects_in(list(messages))[:20]
    if any(is_pydantic_ai(row) for row in rows):
        return "objects with kind and parts, which have a part_kind (Pydantic AI)"
    if any("parts" in row for row in rows):
        return "objects with role and parts (Vercel, Gemini, OpenTelemetry)"
    if any(is_langchain(row) for row in rows):
        return "messages as LangChain dumps them"
    if any("role" not in row for row in rows):
        return "items of Responses"
    return "objects with role and content"


def _parse_conversation(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of messages, with a system prompt beside them, or a reply beside its request."""
    if isinstance(value, list):
        yield run_of(name, parse_messages(value))
        return
    if is_message(value):
        yield run_of(id_of(value, name), parse_messages([value]))
        return
    beside = object_at(value, "metadata")
    if isinstance(value.get("input"), str) and "messages" not in value:
        value = value | {"input": [{"role": "user", "content": value["input"]}]}
    key = next(key for key in ("messages", "input") if isinstance(value.get(key), list))
    system = value.get("system") or value.get("instructions")  # beside the messages, as Anthropic and OpenAI's Responses have it
    output = value.get("output") if isinstance(value.get("input"), list) else None  # the reply, beside its request
    messages = [
        *(parse_messages([{"role": "system", "content": system}]) if system else ()),
        *messages_at(value, key),
        *(messages_at(value, "output") if isinstance(output, list) else ()),
        *(messages_at({"choices": [value["choice"]]}, "choices") if isinstance(value.get("choice"), dict) else ()),
    ]
    require_messages(messages, key)
    read = {key, "system", "instructions", "choice", "metadata", *IDS} | ({"output"} if output is not None else set())
    rest = without(value, *read)
    messages, answer = with_answer(messages, rest)
    yield run_of(id_of({**dict_of(value.get("info")), **value}, name), messages, without(rest, answer or "") | beside)


OWN = (
    trace_exports.MLFLOW,
    trace_exports.OPENAI_AGENTS,
    spans.SPANS,
    agent_benchmarks.INSPECT,
    Format(
        "transcripts",
        lambda value: "an object with transcripts" if "transcripts" in dict_of(value) else None,
        _parse_transcripts,
        unshown="description|view",
    ),
    agent_benchmarks.ATIF,
    coding_agents.SWE_AGENT,
    coding_agents.MINI_SWE,
    coding_agents.GEMINI_CLI,
    coding_agents.CLAUDE_CODE,
    coding_agents.CODEX,
    agent_benchmarks.SMOLAGENTS,
    agent_benchmarks.OPENHANDS,
    agent_benchmarks.TAU,
    streams.STREAM,
    trace_exports.LANGGRAPH,
    trace_exports.LANGSMITH,
    training_sets.BATCH,
    training_sets.LM_EVAL,
    training_sets.DEEPEVAL,
    training_sets.PREFERENCE,
    training_sets.REPLY,
    training_sets.SHAREGPT,
    training_sets.PAIR,
    trace_exports.LANGFUSE,
    Format("OpenCode export", rows_of(is_opencode, "messages with info and parts"), _parse_conversation),
    Format("AutoGen messages", rows_of(is_autogen, "messages with type, source and content"), _parse_conversation, whole=True),
    Format("messages", _recognise_messages, _parse_conversation),
)
"""The formats of gradeloop, in the order in which a value is tried on them: those with keys of their own first, plain messages last."""

FORMATS = Registry[Format]("formats", "format", "gradeloop.transcripts.registry:OWN")
"""All formats by name."""

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def line_of(text: str, path: Sequence[int | str]) -> int:
    """Return the line, from 1, of the value at a path of keys and indexes; where the path leads nowhere, of the last value on it."""
    at = _skip_blank(text, 0)
    for part in path:
        if (inner := _start_of(text, at, part)) is None:
            break
        at = inner
    return text.count("\n", 0, at) + 1


def _start_of(text: str, at: int, wanted: int | str) -> int | None:
    """Return where the item of a list, or the member of an object, begins that is at a place; None where there is none."""
    if text[at : at + 1] != ("[" if isinstance(wanted, int) else "{"):
        return None
    at, name = _skip_blank(text, at + 1), 0
    while text[at : at + 1] not in ("", "]", "}"):
        key: int | str = name
        if isinstance(wanted, str):
            key, end = _DECODER.raw_decode(text, at)
            at = _skip_blank(text, _skip_blank(text, end) + 1)
        if key == wanted:
            return at
        at = _skip_blank(text, _DECODER.raw_decode(text, at)[1])
        if text[at : at + 1] != ",":
            return None
        at, name = _skip_blank(text, at + 1), name + 1
    return None


def _skip_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at
