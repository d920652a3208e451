"""Sessions and trajectories of coding agents: Claude Code, Codex, Gemini CLI, mini-swe-agent and SWE-agent; a file may hold several."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from pydantic import JsonValue

from gradeloop.contract.transcript import EMPTY_MESSAGE, AgentRun, OtherPart, ReasoningPart, RunMessage, RunPart, TextPart
from gradeloop.text import objects_in
from gradeloop.transcripts.assemble import (
    build_run,
    error_message,
    id_of,
    key_of,
    other_message,
    run_of,
    run_of_each,
    transcript_of,
    with_failures,
)
from gradeloop.transcripts.formats import Format, rows_of
from gradeloop.transcripts.json_access import Json, UnreadableMessage, dict_of, first_of, flag_at, inside, require_rows, without
from gradeloop.transcripts.message_forms import build_message, is_item, parse_message, parse_messages, read_rows
from gradeloop.transcripts.parts import on_server, parts_in, read_call, read_result, text_of, without_ciphertext


class SessionLine(NamedTuple):
    """A line of a file, with its place among the others."""

    at: int
    row: dict[str, Json]


_SESSION_LINES = {
    *("user", "assistant", "system", "summary", "result", "attachment", "progress", "file-history-snapshot", "queue-operation"),
    *("custom-title", "ai-title", "last-prompt", "agent-name", "permission-mode", "stream_event", "pr-link", "tag", "mode"),
    *("rate_limit_event", "tool_progress", "keep_alive", "agent-setting", "agent-color", "started", "atis-latch", "cost-state"),
    *("api-request", "api-request-shape", "api-request-blob", "tools-used"),
}
"""The types of lines in a session of Claude Code."""

_SNAPSHOTS = ("prompt_snapshot", "session_context")
"""Attachments that repeat what every request is sent: the program's own prompt, and the definitions of its tools."""

_PROGRESS = ("status", "thinking_tokens", "background_tasks_changed", "task_started", "task_progress", "task_updated")
"""Subtypes of the system's lines that say how far the program is."""

_UNSAID = _SESSION_LINES - {"user", "assistant", "system", "summary", "result", "attachment"}
"""Lines about the program, not the conversation."""


def _recognise_claude_code(value: Json) -> str | None:
    """Return why lines are a session of Claude Code, as it stores them or prints them with `--output-format stream-json` or `json`."""
    if isinstance(value, dict):
        is_result = value.get("type") == "result" and "session_id" in value and "subtype" in value
        return "an object of type result, with session_id" if is_result else None
    rows = objects_in(value)[:50]
    if not rows or not all(isinstance(row.get("type"), str) for row in rows):
        return None
    # The types user and assistant are common words, so one of a session's own keys has to stand beside them. A
    # file may begin with lines that are only about the program. Then each of its types has to be one that a
    # session has.
    spoken = [row for row in rows if row["type"] in {"user", "assistant"}]
    named = any(_SESSION_KEYS & set(row) for row in spoken)
    if spoken and named and all(isinstance(row.get("message"), dict) for row in spoken):
        return "lines of types user and assistant, with message and uuid or sessionId"
    known = all(row["type"] in _SESSION_LINES for row in rows)
    if not spoken and known and any(_SESSION_KEYS & set(row) or "snapshot" in row for row in rows):
        return "lines of types that a session has, with uuid or sessionId"
    return None


_SESSION_KEYS = {"uuid", "sessionId", "session_id", "parentUuid"}


def _parse_claude_code(value: Json, name: str) -> Iterator[AgentRun | UnreadableMessage]:
    """Yield a run for each session; what its subagents said are transcripts of their own. Of several also why one cannot be read."""
    rows = [value] if isinstance(value, dict) else require_rows(value)
    yield from run_of_each(split_claude_code(rows), name, _claude_code_session)


def _claude_code_session(lines: Sequence[SessionLine], name: str) -> AgentRun:
    threads: dict[str, list[RunMessage]] = {"main": []}
    spoken: dict[str, list[RunMessage]] = {}
    metadata: dict[str, JsonValue] = {}
    for at, row in lines:
        kind = _kind_of(at, row)
        # Subagents talk in side lines, or within lines of progress, between those of the main agent. Each gets a
        # transcript of its own: read in the order of the file, two conversations would be one.
        is_side = row.get("isSidechain") or row.get("parent_tool_use_id")
        branch = str(first_of(row, "agentId", "parent_tool_use_id") or "subagent") if is_side else "main"
        if kind == "progress" and isinstance(said := dict_of(dict_of(row.get("data")).get("message")).get("message"), dict):
            with inside(at, "data", "message", "message"):
                spoken.setdefault(str(dict_of(row["data"]).get("agentId") or "subagent"), []).extend(parse_messages([said]))
            continue
        if _is_of_the_program(kind, row):
            continue
        if kind == "summary":
            metadata["summary"] = row.get("summary")
            continue
        with inside(at):
            threads.setdefault(branch, []).extend(_session_line(kind, row, alone=len(lines) == 1))
        for key in ("sessionId", "session_id", "cwd", "gitBranch", "version"):
            if row.get(key) and key not in metadata:
                metadata[key] = row[key]
    threads = {**spoken, **threads} if not threads["main"] else {"main": threads.pop("main"), **spoken, **threads}
    transcripts = [transcript_of(messages, id=branch) for branch, messages in threads.items() if messages]
    return build_run(id_of(metadata, name, "sessionId", "session_id") if transcripts else name, transcripts, metadata)


def _kind_of(at: int, row: dict[str, Json]) -> str:
    if isinstance(kind := row.get("type"), str):
        return kind
    raise UnreadableMessage(f"a line of a session has a type, and this one has the keys: {', '.join(row) or 'none'}", at)


def _is_of_the_program(kind: str, row: dict[str, Json]) -> bool:
    """Return whether a line is about the program, not the conversation."""
    about = str(row.get("subtype") if kind == "system" else dict_of(row.get("attachment")).get("type"))
    return kind in _UNSAID or about in (_PROGRESS if kind == "system" else _SNAPSHOTS)


def _session_line(kind: str, row: dict[str, Json], *, alone: bool) -> Iterator[RunMessage]:
    """Yield the messages of a line; a single result, as `--output-format json` prints it, is the answer."""
    if kind in {"user", "assistant"}:
        yield from _spoken_line(row)
    elif kind == "result":
        ended = without(row, "type", "usage", "modelUsage", "uuid", "session_id")
        if flag_at(row, "is_error"):
            yield error_message(text_of(first_of(row, "result", "errors") or row.get("subtype")), str(row.get("subtype") or "error"))
        elif alone:
            yield RunMessage(role="assistant", content=text_of(row.get("result")), metadata=without(ended, "result"))
        else:
            yield other_message("system", "result", ended)
    elif kind == "attachment":
        about = dict_of(row.get("attachment"))
        if about.get("type") == "queued_command" and about.get("prompt"):  # what the user typed while the agent was at work
            with inside("attachment", "prompt"):
                yield from parse_message({"role": "user", "content": about["prompt"], "metadata": without(about, "prompt")})
        else:
            yield other_message("user", "attachment", row.get("attachment"))
    elif kind == "system" and isinstance(row.get("content"), str) and row["content"].strip():
        yield RunMessage(role="system", content=row["content"], metadata={"subtype": row["subtype"]} if row.get("subtype") else {})
    else:
        yield other_message("system", f"system {row.get('subtype') or ''}".strip(), without(row, "type", "uuid", "sessionId", "session_id"))


def _spoken_line(row: dict[str, Json]) -> Iterator[RunMessage]:
    """Yield the messages of a line that the user or the model said, or the program in the user's place, whose `origin` says so."""
    message = {key: inner for key, inner in dict_of(row.get("message")).items() if key not in {"type", "usage", "stop_sequence"}}
    with inside("message"):
        found = [*parse_message(message)]
    if row.get("isApiErrorMessage"):
        text = "\n".join(part.text for message_ in found for part in message_.records() if isinstance(part, TextPart))
        yield error_message(text, "api_error")
        return
    about = {key: row[key] for key in ("isMeta", "isCompactSummary", "timestamp") if row.get(key)}
    about |= {"origin": row["origin"]} if dict_of(row.get("origin")).get("kind") not in (None, "human") else {}
    for message_ in found:
        yield message_.model_copy(update={"metadata": {**message_.metadata, **about}}) if about else message_


_CODEX = {"session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state"}
"""The types of lines in a session of Codex."""

_CODEX_ERRORS = {"error", "stream_error", "turn_aborted", "task_failed", "turn_failed"}
"""Events of Codex that no item of the conversation repeats."""


def _recognise_codex(value: Json) -> str | None:
    """Return why lines are a session of Codex: a rollout file, one of its first versions, or what `codex exec --json` prints."""
    rows = objects_in(value)[:50]
    if not rows:
        return None
    kinds = {str(row.get("type")) for row in rows}
    if all("type" in row and "payload" in row for row in rows) and (kinds & {"session_meta", "response_item"} or kinds <= _CODEX):
        return "lines with type and payload, of which response_item is one"
    if all(kind.startswith(("thread.", "turn.", "item.", "error")) for kind in kinds) and "thread_id" in rows[0]:
        return "lines of types thread.started, item.completed, turn.completed"
    is_line = (
        row.get("record_type") == "state" or row.get("type") == "message" or is_item(row) or is_first_of_codex(row) for row in rows[1:]
    )
    if is_first_of_codex(rows[0]) and len(rows) > 1 and all(is_line):
        return "a line with id, timestamp and instructions, and items of Responses behind it"
    return None


def _parse_codex(value: Json, name: str) -> Iterator[AgentRun | UnreadableMessage]:
    """Yield a run for each session; of several also why one cannot be read."""
    rows = require_rows(value)
    printed = "payload" not in rows[0] and str(rows[0].get("type")).startswith("thread.")
    yield from run_of_each(split_exec(rows), name, _exec_run) if printed else run_of_each(split_codex(rows), name, _codex_session)


def _codex_session(lines: Sequence[SessionLine], name: str) -> AgentRun:
    messages: list[RunMessage] = []
    metadata: dict[str, JsonValue] = {}
    failed: set[str] = set()
    # The items are the conversation, and events repeat them. So only two facts are taken from events: errors, and
    # that a call failed, which its result does not say.
    for at, row in lines:
        kind, payload = str(row.get("type")), dict_of(row.get("payload"))
        with inside(at):
            if kind == "session_meta" or is_first_of_codex(row):
                about = payload or row
                said = text_of(dict_of(about.get("base_instructions")).get("text") or about.get("instructions"))
                if said and not any(message.role == "system" and message.content == said for message in messages):
                    messages.append(RunMessage(role="system", content=said))
                kept = {
                    key: about[key] for key in ("id", "cwd", "model_provider", "cli_version", "git", "forked_from_id") if about.get(key)
                }
                metadata = {**kept, **metadata}  # the first is the session's own; behind it stand those that it was forked from
            elif kind == "response_item":
                messages += parse_messages([payload])
            elif kind == "compacted":
                messages.append(other_message("system", "compacted", without_ciphertext(payload)))
            elif kind == "turn_context":
                metadata |= {"model": payload["model"]} if payload.get("model") else {}
            elif kind == "event_msg" and str(payload.get("type")) in _CODEX_ERRORS:
                messages.append(error_message(text_of(first_of(payload, "message", "reason")), str(payload["type"])))
            elif kind in _CODEX or row.get("record_type") == "state" or "payload" in row:
                failed |= _failed_call(payload)
            else:
                messages += parse_messages([row])
    return run_of(id_of(metadata, name), with_failures(messages, failed), metadata)


def _failed_call(event: dict[str, Json]) -> set[str]:
    """Return the id of the call that an event says failed: its end, or the item that it is; the result itself does not say so."""
    ended = dict_of(event.get("item")) if event.get("type") == "item_completed" else event
    call = first_of(ended, "call_id", "id")
    tells = event.get("type") in ("item_completed", "exec_command_end", "mcp_tool_call_end", "patch_apply_end")
    failed = ended.get("status") == "failed" or ended.get("exit_code") not in (0, None) or ended.get("success") is False
    return {str(call)} if tells and call is not None and (failed or "Err" in dict_of(ended.get("result"))) else set()


def _exec_run(lines: Sequence[SessionLine], name: str) -> AgentRun:
    """Return the run of the lines that `codex exec --json` prints: of an item its end, or its last state where it has none."""
    messages: list[RunMessage] = []
    begun: dict[str, dict[str, Json]] = {}
    for at, row in lines:
        kind, item = _kind_of(at, row), dict_of(row.get("item"))
        if kind in {"item.started", "item.updated"}:
            begun[str(item.get("id"))] = item
            continue
        with inside(at):
            if kind == "item.completed":
                begun.pop(str(item.get("id")), None)
                messages += _exec_item(item)
            elif kind in {"error", "turn.failed"}:
                messages.append(error_message(text_of(dict_of(row.get("error")).get("message") or row.get("message")), kind))
    for item in begun.values():
        messages += _exec_item(item)
    thread = next((row["thread_id"] for _, row in lines if row.get("thread_id")), None)
    return run_of(id_of({"id": thread}, name), messages, without({"id": thread}))


def _exec_item(item: dict[str, Json]) -> Iterator[RunMessage]:
    """Yield the messages of an item: what the agent said or thought, or a call and its result."""
    call, about = str(item.get("id") or "item"), str(first_of(item, "type", "item_type"))
    if about in {"agent_message", "assistant_message"}:
        yield RunMessage(role="assistant", content=text_of(item.get("text")))
    elif about == "reasoning":
        yield RunMessage(role="assistant", reasoning=text_of(item.get("text")))
    elif about == "error":
        yield error_message(text_of(item.get("message")), "item")
    elif about == "command_execution":
        failed = item.get("status") == "failed" or item.get("exit_code") not in (0, None)
        yield build_message("assistant", [read_call(call, "shell", {"command": item.get("command")})])
        if item.get("status") != "in_progress" or item.get("aggregated_output"):
            yield build_message("tool", [*read_result(call, item.get("aggregated_output"), name="shell", failed=failed)])
    else:
        given = without(item, "id", "type", "item_type", "status", "result", "error", "output")
        if about == "mcp_tool_call" and item.get("tool"):
            about, given = str(on_server(item, str(item["tool"]))), item.get("arguments") or {}
        yield build_message("assistant", [read_call(call, about, given)])
        if (result := first_of(item, "error", "result", "output")) is not None:
            result = first_of(dict_of(result), "content", "message") or result
            yield build_message("tool", [*read_result(call, result, name=about, failed=bool(item.get("error")))])


def _recognise_mini_swe(value: Json) -> str | None:
    """Return why a value is a trajectory of mini-swe-agent."""
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        return None
    if str(value.get("trajectory_format")).startswith("mini-swe-agent"):
        return f"trajectory_format is {value['trajectory_format']}"
    has_ended = {"exit_status", "submission"} <= set(dict_of(value.get("info")))
    return "messages, and info with exit_status and submission" if has_ended else None


def _parse_mini_swe(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a trajectory; how it ended, and what it submitted, is its last record."""
    messages: list[RunMessage] = []
    waiting: list[str] = []
    with inside("messages"):
        for at, row in enumerate(value["messages"]):
            with inside(at):
                messages += _mini_swe_message(row, at, waiting)
    info = dict_of(value.get("info"))
    ended = first_of(dict_of(dict_of(value["messages"][-1]).get("extra")), "exit_status") if value["messages"] else None
    if ended is None and info.get("exit_status"):
        messages.append(other_message("system", "exit", {key: info.get(key) for key in ("exit_status", "submission")}))
    metadata = {**without(value, "messages", "info"), "info": info}
    yield run_of(id_of(value, name, "instance_id", "id"), messages, metadata)


def _mini_swe_message(row: Json, at: int, waiting: list[str]) -> Iterator[RunMessage]:
    """Yield the messages of a row.

    `waiting`: the ids of commands that are not calls of a tool, and whose outputs are still to come.
    """
    if not isinstance(row, dict):
        yield from parse_messages([row])
        return
    extra = dict_of(row.get("extra"))
    if row.get("role") == "exit":
        yield from _mini_swe_end(row, extra)
        return
    if extra.get("interrupt_type") == "FormatError":  # the answer that could not be used stands beside what the model was told of it
        with inside("extra", "response"):
            yield from _mini_swe_answer(extra)
    # Without tool calls, the agent takes commands out of the answer's text, and the user's next messages bring
    # their outputs. To show them as calls with results, each command gets an id, and the outputs are theirs in
    # order.
    bare = [dict_of(action).get("command") for action in objects_in(extra.get("actions")) if "tool_call_id" not in action]
    kept = _mini_swe_extra(extra)
    beside: dict[str, JsonValue] = {"extra": kept} if kept else {}
    seen = {**{key: inner for key, inner in row.items() if key != "extra"}, **beside}
    failed = extra.get("returncode") not in (None, 0) or bool(extra.get("exception_info"))
    if row.get("object") == "response" and isinstance(row.get("output"), list):  # of a model that is called by Responses
        with inside("output"):
            found = _as_one_answer(parse_messages(row["output"]), beside)
    elif "returncode" in extra and row.get("role") == "user" and waiting:
        found = parse_messages([{**seen, "role": "tool", "tool_call_id": waiting.pop(0), "name": "bash", "is_error": failed}])
    elif row.get("type") == "function_call_output":
        parts = read_result(row.get("call_id"), row.get("output"), failed=failed)
        found = [build_message("tool", parts, metadata=beside)]
    else:
        found = parse_messages([{**seen, "is_error": failed} if row.get("role") == "tool" else seen])
    if not bare or row.get("tool_calls"):
        yield from found
        return
    waiting[:] = [f"command_{at}_{number}" for number in range(len(bare))]
    calls = [read_call(call, "bash", {"command": command}) for call, command in zip(waiting, bare, strict=True)]
    yield from found[:-1]
    yield build_message(found[-1].role, [*found[-1].records(), *calls], metadata=found[-1].metadata)


def _mini_swe_answer(extra: dict[str, Json]) -> Iterator[RunMessage]:
    """Yield the answer that mini-swe-agent could make no action of: it keeps the whole reply, or its text."""
    reply = extra.get("response")
    if isinstance(reply, dict) and isinstance(reply.get("output"), list):
        found = parse_messages(reply["output"])
    elif isinstance(reply, dict) and (choices := objects_in(reply.get("choices"))):
        found = parse_messages([choice.get("message") for choice in choices])
    else:
        found = parse_messages([{"role": "assistant", "content": text_of(first_of(extra, "model_response", "response"))}])
    yield from _as_one_answer(found or [RunMessage(role="assistant")], {"refused_by": "FormatError"})


def _as_one_answer(messages: list[RunMessage], metadata: dict[str, JsonValue]) -> list[RunMessage]:
    """Return the items of one reply as one message, as the agent has it; with results of tools among them, as they are."""
    if any(message.role != "assistant" for message in messages):
        return messages
    spoken = [
        part for message in messages for part in message.records() if not (isinstance(part, OtherPart) and part.kind == EMPTY_MESSAGE)
    ]
    own = {key: inner for message in messages for key, inner in message.metadata.items()}
    return [build_message("assistant", spoken, metadata={**own, **metadata})]


def _mini_swe_extra(extra: dict[str, Json]) -> dict[str, JsonValue]:
    """Return what a message has beside itself: of a reply not what the message repeats, nor an output that the model saw cut."""
    kept = without(extra, "response", "model_response", "raw_output", "actions")
    reply = extra.get("response")
    if isinstance(reply, dict) and (rest := without(reply, "choices", "output")):
        kept["response"] = rest
    return kept


def _mini_swe_end(row: dict[str, Json], extra: dict[str, Json]) -> Iterator[RunMessage]:
    """Yield how a run ended: an exception is an error, anything else is kept with the submission."""
    if raised := extra.get("exception_str"):
        traceback = {"traceback": extra["traceback"]} if extra.get("traceback") else {}
        message = error_message(text_of(raised), str(extra.get("exit_status") or "error"))
        yield message.model_copy(update={"metadata": traceback})
        return
    said = {"content": row.get("content"), **extra}
    repeated = ("content",) if said["content"] in (extra.get("submission"), extra.get("exit_status")) else ()
    yield other_message("system", "exit", without(said, *repeated))


def _recognise_swe_agent(value: Json) -> str | None:
    """Return why a value is a trajectory of SWE-agent."""
    steps = objects_in(value.get("trajectory")) if isinstance(value, dict) else []
    acts = any({"action", "observation"} <= set(step) for step in steps[:3])
    return "trajectory, whose steps have action and observation" if acts else None


def _parse_swe_agent(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a trajectory: what its history begins with, then its steps, each an answer, an action and what that gave."""
    history = require_rows(value.get("history"), "history")
    begins = takewhile(
        lambda row: row.get("role") != "assistant" or row.get("is_demo") or row.get("message_type") == "demonstration", history
    )
    messages = read_rows([*begins], lambda row: parse_message({key: row[key] for key in row if key not in {"agent", "tags"}}), "history")
    if not value.get("history") and (query := value["trajectory"][0].get("query")):
        with inside("trajectory", 0, "query"):
            messages += parse_messages(query)
    thoughts = {
        (text_of(row.get("thought")), text_of(row.get("action"))): row["thinking_blocks"]
        for row in objects_in(value.get("history"))
        if row.get("thinking_blocks")
    }
    for at, step in enumerate(require_rows(value.get("trajectory"), "trajectory")):
        thinking = step.get("thinking_blocks") or thoughts.get((text_of(step.get("thought")), text_of(step.get("action"))))
        messages += _swe_agent_step(step, f"step_{at + 1}", parts_in(thinking))
    info = dict_of(value.get("info"))
    if info.get("exit_status") or info.get("submission"):
        messages.append(other_message("system", "exit", {key: info.get(key) for key in ("exit_status", "submission") if info.get(key)}))
    metadata = without(value, "trajectory", "history", "replay_config")
    yield run_of(id_of(value, name, "instance_id", "id"), messages, metadata)


def _swe_agent_step(step: dict[str, Json], call: str, thinking: list[RunPart]) -> Iterator[RunMessage]:
    """Yield the messages of a step; what the model thought before it is only in the history."""
    response, thought, action = (text_of(step.get(key)) for key in ("response", "thought", "action"))
    parts: list[RunPart] = [*thinking]
    parts += [ReasoningPart(text=thought)] if thought.strip() and thought.strip() not in response else []
    parts += [TextPart(text=response)] if response else []
    if action:
        parts.append(read_call(call, "shell", {"command": action}))
    state = {"state": step["state"]} if step.get("state") else {}
    read = ("response", "thought", "action", "observation", "query", "messages", "state", "thinking_blocks")
    yield build_message("assistant", parts, metadata={**state, **without(step, *read)})
    if action or step.get("observation"):
        yield build_message("tool", [*read_result(call, step.get("observation"), name="shell")])


def split_claude_code(rows: Sequence[dict[str, Json]]) -> list[list[SessionLine]]:
    """Return the lines of each session of Claude Code, by their `sessionId`; of a line that stands there twice, one.

    A session that goes on with the messages of another one in the same file, as one that was resumed under a new id, is one with it.
    Lines without an id, and those of a session in which nothing is said, belong to the session that they stand in.
    """
    owners = _owners(rows)
    roots = _continued(rows, owners)
    spoken = [owner for row, owner in zip(rows, owners, strict=True) if owner and row.get("type") in ("user", "assistant", "result")]
    known = {roots[owner] for owner in spoken}
    if len(known) <= 1:
        return [_once(list(map(SessionLine, range(len(rows)), rows)))]
    sessions: dict[str, list[SessionLine]] = {}
    for at, (row, owner) in enumerate(zip(rows, owners, strict=True)):
        own = roots.get(owner or "")
        place = own if own in known else next(iter(reversed(sessions)), roots[spoken[0]])
        sessions.setdefault(str(place), []).append(SessionLine(at, row))
    return [_once(lines) for lines in sessions.values()]


# Summaries and snapshots stand before the lines that they belong to. So the lines are walked from the last to
# the first, and such a line takes the session that was seen just before.
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
    # A session that was resumed under a new id begins with the answer to a message of the one before it. Of two
    # that answer each other, only the first is taken for a part of the other, or neither would have a beginning.
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


# A meta line begins a session only where items have come, and its id is neither the session's own, as of
# one that was resumed, nor one that it was forked from. To split at each would tear a session apart, and
# give its items to its ancestor.
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


_GEMINI = {"user": "user", "gemini": "assistant", "info": "system", "warning": "system", "error": "system"}
"""The types of messages in a session of Gemini CLI, and the roles that they are read as."""


def _is_gemini_cli(row: dict[str, Json]) -> bool:
    """Return whether a row is a message of Gemini CLI, the head of its session, or a change."""
    is_message = {"id", "content"} <= set(row) and "role" not in row and str(row.get("type")) in _GEMINI
    return is_message or bool({"projectHash", "$set", "$rewindTo"} & set(row))


# Gemini CLI appends: a message that changed is written again under its id, `$set` may give all messages anew, and
# `$rewindTo` takes a message back with all behind it. A result of a tool stands in its call, and in the message after it.
def _parse_gemini_cli(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield the run of a session, as its last line leaves it."""
    about: dict[str, Json] = {}
    said: dict[str, tuple[tuple[str | int, ...], dict[str, Json]]] = {}
    for at, row in enumerate([value] if isinstance(value, dict) else require_rows(value)):
        path: tuple[str | int, ...] = () if row is value else (at,)
        if "type" in row:
            said[str(row.get("id"))] = path, row
        elif "$rewindTo" in row:
            ids, back = [*said], str(row["$rewindTo"])
            said = {kept: said[kept] for kept in ids[: ids.index(back)]} if back in said else {}
        else:
            change = dict_of(row.get("$set")) or row
            rows = require_rows(change.get("messages"), *path, "messages")
            given = {str(one.get("id")): ((*path, "messages", place), one) for place, one in enumerate(rows)}
            said = given if "messages" in change else said
            about |= without(change, "messages")
    messages: dict[str, RunMessage] = {}
    for path, row in said.values():
        with inside(*path):
            for message in _gemini_message(row):
                messages.setdefault(key_of(message) if message.role == "tool" else str(len(messages)), message)
    yield run_of(id_of(about, name, "sessionId"), [*messages.values()], about)


def _gemini_message(row: dict[str, Json]) -> Iterator[RunMessage]:
    kind, content, calls = str(row.get("type")), row.get("content"), require_rows(row.get("toolCalls"), "toolCalls")
    thoughts = [": ".join(map(text_of, without(one, "timestamp").values())) for one in require_rows(row.get("thoughts"), "thoughts")]
    said: dict[str, Json] = {"error": content} if kind == "error" else {"content": content, "reasoning": "\n".join(thoughts)}
    said |= {"role": _GEMINI.get(kind, kind), "tool_calls": [without(call, "result") for call in calls]}
    yield from parse_message(without(row, "type", "toolCalls", "thoughts", "content") | said)
    for call in calls:
        if call.get("result"):
            yield from parse_message({"role": "tool", "tool_call_id": call.get("id"), "content": call["result"]})


_OF_THE_PROGRAM = "|".join([*_UNSAID, *_PROGRESS, *_SNAPSHOTS, "toolUseResult", "tool_use_result", "rendered"])
CLAUDE_CODE = Format("Claude Code session", _recognise_claude_code, _parse_claude_code, whole=True, unshown=_OF_THE_PROGRAM)
CODEX = Format("Codex session", _recognise_codex, _parse_codex, whole=True, unshown="event_msg|turn_context|world_state|.*_instructions")
_REPEATED = "config|raw_output|exception_info|(model_)?response"
MINI_SWE = Format("mini-swe-agent trajectory", _recognise_mini_swe, _parse_mini_swe, unshown=_REPEATED)
_HISTORY = "history|query|messages|replay_config|info|state"
SWE_AGENT = Format("SWE-agent trajectory", _recognise_swe_agent, _parse_swe_agent, unshown=_HISTORY)
GEMINI_CLI = Format("Gemini CLI session", rows_of(_is_gemini_cli, "messages of types user and gemini"), _parse_gemini_cli, whole=True)
