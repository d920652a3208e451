"""States of LangGraph: what a graph holds at a step, as its checkpoints, its server and its own `get_state` write them."""

from collections.abc import Iterator

from pydantic import JsonValue

from gradeloop.contract.transcript import AgentRun, RunMessage
from gradeloop.transcripts.message_forms import messages_at
from gradeloop.transcripts.runs import build_run, id_of, merge_histories, require_messages, transcript_of
from gradeloop.transcripts.unreadable import Json, dict_of, inside, require_rows, without

_SNAPSHOT = ("values", "next", "config", "metadata", "created_at", "parent_config", "tasks", "interrupts")
"""The fields of a `StateSnapshot`, which LangChain's `dumps` writes as a list in this order."""


def recognise(value: Json) -> str | None:
    """Return why a value is a state of LangGraph, or the states of a history."""
    if isinstance(value, list) and not _is_snapshot(value):
        return "a list of states, which have messages" if value and all(_place_of(item) is not None for item in value[:20]) else None
    place = _place_of(value)
    return f"a state, whose {'.'.join(place)} has messages" if place is not None else None


def parse(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield a run for each thread; of a history, whose states repeat what was said before them, the conversation that they make.

    Raises:
        UnreadableMessage: A message cannot be read, or there is none.
    """
    several = isinstance(value, list) and not _is_snapshot(value)
    rows = [_named(row) for row in value] if several else [_named(value)]
    threads: dict[str, list[dict[str, Json]]] = {}
    for at, row in enumerate(require_rows(rows)):
        threads.setdefault(_thread_of(row) or (f"{name}-{at + 1}" if several else name), []).append({**row, "_at": at})
    for thread, states in threads.items():
        ordered = sorted(states, key=lambda row: str(row.get("created_at") or row.get("ts") or ""))
        histories = []
        for row in ordered:
            with inside(*([row["_at"]] if several else [])):
                histories.append(_messages_of(row))
        last = ordered[-1]
        conversations = merge_histories([history for history in histories if history])
        require_messages(conversations[0] if conversations else [], "messages")
        metadata = {**_beside(last), **{key: last[key] for key in ("next", "metadata", "interrupts", "created_at", "ts") if last.get(key)}}
        yield build_run(id_of({"id": thread}, name), [transcript_of(messages) for messages in conversations], metadata)


def _is_snapshot(value: Json) -> bool:
    """Return whether a list is a `StateSnapshot` as `dumps` writes it."""
    return (
        isinstance(value, list)
        and len(_SNAPSHOT) - 2 <= len(value) <= len(_SNAPSHOT)
        and isinstance(value[0], dict)
        and isinstance(value[1], list)
        and "configurable" in dict_of(value[2])
    )


def _named(value: Json) -> Json:
    return dict(zip(_SNAPSHOT, value, strict=False)) if _is_snapshot(value) else value


def _place_of(value: Json) -> tuple[str, ...] | None:
    """Return the keys that lead to what a state holds; None for anything else, and for a state without messages."""
    state = _named(value)
    if not isinstance(state, dict) or "messages" in state:
        return None
    places = (("values",), ("channel_values",), ("checkpoint", "channel_values"))
    return next((place for place in places if isinstance(_at(state, place).get("messages"), list)), None)


def _at(value: dict[str, Json], place: tuple[str, ...]) -> dict[str, Json]:
    for key in place:
        value = dict_of(value.get(key))
    return value


def _messages_of(row: dict[str, Json]) -> list[RunMessage]:
    place = _place_of(row)
    if place is None:  # before its first step a graph holds nothing
        return []
    with inside(*place):
        return messages_at(_at(row, place), "messages")


def _beside(row: dict[str, Json]) -> dict[str, JsonValue]:
    place = _place_of(row)
    return without(_at(row, place), "messages") if place is not None else {}


def _thread_of(row: dict[str, Json]) -> str:
    """Return the id of the thread that a state is of, else its own."""
    configured = dict_of(dict_of(row.get("config")).get("configurable"))
    checkpoint = dict_of(row.get("checkpoint"))
    found = (configured.get("thread_id"), checkpoint.get("thread_id"), dict_of(row.get("metadata")).get("thread_id"))
    ids = (row.get("thread_id"), checkpoint.get("id"), row.get("id"))
    return next((str(value)[:200] for value in (*found, *ids) if value), "")
