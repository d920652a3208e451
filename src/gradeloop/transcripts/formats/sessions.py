"""The sessions of coding agents that stand in one file: which lines belong to which of them."""

from collections.abc import Sequence
from typing import NamedTuple

from gradeloop.transcripts.unreadable import Json, dict_of, first_of


class SessionLine(NamedTuple):
    """A line of a file, with its place among the others."""

    at: int
    row: dict[str, Json]


def split_claude_code(rows: Sequence[dict[str, Json]]) -> list[list[SessionLine]]:
    """Return the lines of each session of Claude Code, by their `sessionId`; of a line that stands there twice, one.

    A session that goes on with the messages of another one in the same file, as one that was resumed under a new id, is one with it.
    Lines without an id, and those of a session in which nothing is said, belong to the session that they stand in.
    """
    owners = _owners(rows)
    roots = _continued(rows, owners)
    spoken = [owner for row, owner in zip(rows, owners, strict=True) if owner and row.get("type") in _SPOKEN]
    known = {roots[owner] for owner in spoken}
    if len(known) <= 1:
        return [_once(list(map(SessionLine, range(len(rows)), rows)))]
    sessions: dict[str, list[SessionLine]] = {}
    for at, (row, owner) in enumerate(zip(rows, owners, strict=True)):
        own = roots.get(owner or "")
        place = own if own in known else next(iter(reversed(sessions)), roots[spoken[0]])
        sessions.setdefault(str(place), []).append(SessionLine(at, row))
    return [_once(lines) for lines in sessions.values()]


_SPOKEN = ("user", "assistant", "result")


def _owners(rows: Sequence[dict[str, Json]]) -> list[str | None]:
    """Return the session of each line: its own, for a summary that of the message it names, else that of the next line or the last one."""
    by_message = {str(row["uuid"]): str(session) for row in rows if row.get("uuid") and (session := _session_of(row)) is not None}
    named = [_session_of(row) or by_message.get(str(row.get("leafUuid"))) for row in rows]
    owners: list[str | None] = []
    following: str | None = None
    for row, own in zip(reversed(rows), reversed(named), strict=True):
        opens = row.get("type") in ("summary", "file-history-snapshot")
        owners.append(own or (following if opens else None))
        following = own or following
    return owners[::-1]


def _session_of(row: dict[str, Json]) -> str | None:
    found = first_of(row, "sessionId", "session_id")
    return None if found is None else str(found)


def _continued(rows: Sequence[dict[str, Json]], owners: Sequence[str | None]) -> dict[str, str]:
    """Return of each session the one that it is a part of: itself, or the one whose message its first message answers."""
    messages: dict[str, set[str]] = {}
    first: dict[str, str | None] = {}
    for row, owner in zip(rows, owners, strict=True):
        if owner is None or not row.get("uuid"):
            continue
        messages.setdefault(owner, set()).add(str(row["uuid"]))
        if owner not in first and not row.get("isSidechain"):
            parent = first_of(row, "parentUuid", "logicalParentUuid")
            first[owner] = None if parent is None else str(parent)
    roots = {owner: owner for owner in dict.fromkeys(owner for owner in owners if owner)}
    for owner, parent in first.items():
        if parent is not None and parent not in messages[owner]:
            above = next((other for other, own in messages.items() if other != owner and parent in own and roots[other] != owner), None)
            roots[owner] = roots[above] if above is not None else owner
    return roots


def _once(lines: list[SessionLine]) -> list[SessionLine]:
    """Return the lines without those that repeat an earlier one, with its `uuid` and its message."""
    seen: dict[str, Json] = {}
    found = []
    for line in lines:
        name, said = line.row.get("uuid"), line.row.get("message")
        if name and said is not None and seen.get(str(name)) == said:
            continue
        seen[str(name)] = said
        found.append(line)
    return found


def is_first_of_codex(row: dict[str, Json]) -> bool:
    """Return whether a line is the first of a session of Codex's first versions."""
    return {"instructions", "timestamp", "id"} <= set(row) and "type" not in row


def split_codex(rows: Sequence[dict[str, Json]]) -> list[list[SessionLine]]:
    """Return the lines of each session of Codex, which begins with a `session_meta`.

    A session that was resumed has its own again; one that was forked has, behind its own, those of the sessions it was forked from.
    """
    sessions: list[list[SessionLine]] = [[]]
    ids: set[str] = set()
    has_items = False
    for at, row in enumerate(rows):
        payload = dict_of(row.get("payload"))
        about = payload if row.get("type") == "session_meta" else row if is_first_of_codex(row) else None
        if about is not None:
            if has_items and str(about.get("id")) not in ids:
                sessions.append([])
                ids, has_items = set(), False
            ids |= {str(about[key]) for key in ("id", "forked_from_id") if about.get(key)}
        else:
            has_items = has_items or "payload" not in row or row.get("type") == "response_item"
        sessions[-1].append(SessionLine(at, row))
    return sessions


def split_exec(rows: Sequence[dict[str, Json]]) -> list[list[SessionLine]]:
    """Return the lines of each thread that `codex exec --json` printed; a thread that was resumed begins again under its id."""
    sessions: dict[str, list[SessionLine]] = {}
    thread = ""
    for at, row in enumerate(rows):
        if row.get("type") == "thread.started":
            thread = str(row.get("thread_id") or at)
        sessions.setdefault(thread, []).append(SessionLine(at, row))
    return list(sessions.values())
