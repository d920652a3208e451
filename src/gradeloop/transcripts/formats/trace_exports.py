"""Traces of Langfuse, MLflow, LangSmith and OpenAI's Agents SDK, states of LangGraph: what models were sent and said, put together."""

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from gradeloop.contract.transcript import AgentRun, RunMessage
from gradeloop.text import clip, rows_are
from gradeloop.transcripts import assemble
from gradeloop.transcripts.formats import Format, rows_of
from gradeloop.transcripts.json_access import Json, UnreadableMessage, dict_of, first_of, inside, json_within, require_rows, without
from gradeloop.transcripts.message_forms import messages_at
from gradeloop.transcripts.parts import text_of

_KINDS = {"GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"}
"""Langfuse's types of observations."""

_LANGFUSE = {"observations", "traceId", "trace_id", "projectId", "htmlPath", "latency", "totalCost", "sessionId", "userId", "environment"}


def _recognise_langfuse(value: Json) -> str | None:
    """Return why a value is of Langfuse: a trace, with its observations or without, or a list of observations."""
    if isinstance(value, list):
        return "a list of observations: objects with type and traceId" if rows_are(value, _is_observation) else None
    if not isinstance(value, dict) or "messages" in value or "object" in value:
        return None
    both = value.get("input") is not None and value.get("output") is not None
    exported = {"input", "output"} <= set(value) and len(_LANGFUSE & set(value)) > 1
    known = {
        "a trace: an object with observations": isinstance(value.get("observations"), list),
        "an object with trace, which has observations": isinstance(dict_of(value.get("trace")).get("observations"), list),
        "an observation: an object with type and traceId": _is_observation(value),
        "a trace: an object with input and output": exported
        or (both and bool(_LANGFUSE & set(value) or not isinstance(value["output"], list))),
    }
    return next((why for why, applies in known.items() if applies), None)


def _is_observation(row: dict[str, Json]) -> bool:
    return str(row.get("type")).upper() in _KINDS and ("traceId" in row or "trace_id" in row or "startTime" in row)


def _parse_langfuse(value: Json, name: str) -> Iterator[AgentRun | UnreadableMessage]:
    """Yield a run for each trace; of a list also why one cannot be read."""
    if isinstance(value, list):
        traces: dict[str, list[dict[str, Json]]] = {}
        for row in require_rows(value):
            traces.setdefault(str(first_of(row, "traceId", "trace_id") or name), []).append(row)
        for trace, rows in traces.items():
            whole: dict[str, Json] = {"id": trace, "observations": rows}
            yield assemble.run_or_error(lambda whole=whole: _langfuse_run(whole, name))  # type: ignore[misc]  # bound
        return
    whole = dict_of(value.get("trace")) or value
    if _is_observation(value):
        whole = {"id": first_of(value, "traceId", "trace_id", "id"), "observations": [value]}
    yield _langfuse_run(whole, name)


def _langfuse_run(trace: dict[str, Json], name: str) -> AgentRun:
    listed = trace.get("observations")
    embedded = [] if isinstance(listed, list) and all(isinstance(item, str) for item in listed) else listed  # else only their ids
    rows = [{**row, "type": str(row.get("type")).upper()} for row in require_rows(embedded, "observations")]
    observations = sorted(rows, key=lambda row: str(first_of(row, "startTime", "start_time") or ""))
    histories: list[list[RunMessage]] = []
    steps: list[assemble.TraceStep] = []
    for at, row in enumerate(observations):
        error = text_of(first_of(row, "statusMessage", "status_message")) or "failed" if row.get("level") == "ERROR" else None
        with inside("observations", at):
            tool = _tool(row, row.get("input"), row.get("output"), error) if row["type"] in ("TOOL", "RETRIEVER") else None
            if row["type"] == "GENERATION":
                histories.append(assemble.exchange(row.get("input"), row.get("output")))
        steps.append(_step(row, first_of(row, "parentObservationId", "parent_observation_id"), error, tool))
    # The calls of models hold what was really sent. The trace's own input and output sum them up, and other
    # observations repeat them. So these are read only where no call has messages, the outline first.
    outline = assemble.exchange(trace.get("input"), trace.get("output"))
    if not any(histories) and not outline:
        histories = [
            found for row in observations if row.get("type") != "TOOL" and (found := assemble.exchange(row.get("input"), row.get("output")))
        ]
    conversations = assemble.merge_histories([history for history in histories if history]) or [[]]
    if not any(map(assemble.has_content, conversations)):
        conversations[0] = outline or conversations[0]
    if not conversations[0]:
        called = [str(row.get("name") or "a generation") for row in observations if row.get("type") == "GENERATION"]
        assemble.refuse_unrecorded_calls(assemble.id_of(trace, name), called, _LANGFUSE_CURE)
    asked = conversations[0]
    conversations = assemble.join_steps(steps, conversations, in_order=False)
    about = trace.get("metadata")
    metadata = without(trace, "id", "input", "output", "observations", "metadata") | (dict_of(about) or without({"metadata": about}))
    if outline and asked != outline and any(histories):
        metadata |= {"input": trace.get("input"), "output": trace.get("output")}
    metadata |= {f"{key} beside": beside for key in ("input", "output") if (beside := assemble.beside_messages(trace.get(key)))}
    with inside():
        transcripts = [assemble.transcript_of(messages) for messages in conversations]
    return assemble.build_trace(assemble.id_of(trace, name), transcripts, metadata, _LANGFUSE_CURE)


def _step(row: dict[str, Json], parent: Json, error: str | None, tool: assemble.ToolRecord | None) -> assemble.TraceStep:
    return assemble.TraceStep(str(row.get("id") or ""), str(row.get("name") or "error"), str(parent or ""), error, tool)


_LANGFUSE_CURE = "record input and output: capture_input and capture_output are on, and the mask leaves them"


def _tool(row: dict[str, Json], given: Json, output: Json, error: Json) -> assemble.ToolRecord:
    """Return the call of a tool as a trace records it; what it returned may be LangChain's message, which names the call."""
    inner = dict_of(output)
    if inner.get("lc") is not None:
        inner = dict_of(inner.get("kwargs"))
    call = inner.get("tool_call_id")
    content = inner["content"] if "content" in inner and (call or inner.get("type") == "tool") else output
    name = str(row.get("name") or "tool")
    shown = error if error and content in (None, "", {}) else content
    return assemble.ToolRecord(str(row.get("id") or name), name, given, shown, bool(error), None if call is None else str(call))


_LANGSMITH_CURE = "record inputs and outputs: LANGSMITH_HIDE_INPUTS and LANGSMITH_HIDE_OUTPUTS are off, and no anonymizer takes them"


def _parse_langsmith(value: Json, name: str, cure: str = _LANGSMITH_CURE) -> Iterator[AgentRun | UnreadableMessage]:
    """Yield a run for each trace, a root with its children, nested in it or beside it by their parents' ids; or why it cannot be read."""
    rows = [
        row
        | {key: read for key in ("inputs", "outputs", "extra") if isinstance(read := json_within(row.get(key)), dict)}  # a bulk export's
        for row in (require_rows(value) if isinstance(value, list) else [value])
    ]
    ids = {str(row.get("id")) for row in rows}
    roots = [row for row in rows if str(row.get("parent_run_id")) not in ids]
    children: dict[str, list[dict[str, Json]]] = {}
    for row in rows:
        children.setdefault(str(row.get("parent_run_id")), []).append(row)
    placed = [(root, [at] if isinstance(value, list) else []) for at, root in enumerate(roots)]

    def read_one(one: tuple[dict[str, Json], list[int]], own: str) -> AgentRun:
        with inside(*one[1]):
            return _langsmith_run(one[0], [*_descendants(one[0], children, {str(one[0].get("id"))})], own, cure)

    yield from assemble.run_of_each(placed, name, read_one)


# A child may be nested in its parent, stand beside it, or both. `seen` yields each once, and ends a ring of
# parents.
def _descendants(root: dict[str, Json], children: dict[str, list[dict[str, Json]]], seen: set[str]) -> Iterator[dict[str, Json]]:
    """Yield the runs below one, in the order in which they were started."""
    nested = [*require_rows(root.get("child_runs"), "child_runs"), *children.get(str(root.get("id")), ())]
    for child in sorted(nested, key=lambda row: (str(row.get("dotted_order") or ""), str(row.get("start_time") or ""))):
        if child.get("id") is not None and str(child["id"]) in seen:
            continue
        seen.add(str(child.get("id")))
        yield child
        yield from _descendants(child, children, seen)


def _langsmith_run(root: dict[str, Json], below: Sequence[dict[str, Json]], name: str, cure: str) -> AgentRun:
    outline = assemble.exchange(root.get("inputs"), root.get("outputs"))
    calls = [row for row in (root, *below) if row.get("run_type") == "llm"]
    histories = [found for row in calls if (found := assemble.exchange(row.get("inputs"), row.get("outputs")))]
    is_conversation = len(outline) > 1 and not any(part.type == "other" for message in outline for part in message.records())
    if outline and (not histories or is_conversation):
        wanted = {assemble.key_of(message) for message in outline}
        # The root of a graph repeats what its calls of models said. Its own conversation is added only where no
        # call has all of it, as with a graph whose models ran outside of the trace.
        histories += [] if any(wanted <= {assemble.key_of(message) for message in history} for history in histories) else [outline]
        left = {key: beside for key in ("inputs", "outputs") if (beside := assemble.beside_messages(root.get(key)))}
    else:
        left = {key: root[key] for key in ("inputs", "outputs") if root.get(key)}
    conversations = assemble.merge_histories(histories) or [[]]
    if not conversations[0]:
        assemble.refuse_unrecorded_calls(assemble.id_of(root, name), [str(row.get("name") or "an llm run") for row in calls], cure)
    steps: list[assemble.TraceStep] = []
    for row in (root, *below):
        error, outputs = text_of(row["error"]) if row.get("error") else None, dict_of(row.get("outputs"))
        output = outputs["output"] if set(outputs) == {"output"} else row.get("outputs")
        tool = _tool(row, row.get("inputs"), output, error) if row.get("run_type") in ("tool", "retriever") else None
        steps.append(_step(row, row.get("parent_run_id"), error, tool))
    conversations = assemble.join_steps(steps, conversations, in_order=False)
    about = dict_of(dict_of(root.get("extra")).get("metadata"))
    kept = without(root, "id", "inputs", "outputs", "child_runs", "extra", "events", "serialized", "error", "manifest_id")
    metadata: dict[str, JsonValue] = {**kept, **left, **({"metadata": about} if about else {})}
    transcripts = [assemble.transcript_of(messages) for messages in conversations if messages or len(conversations) == 1]
    return assemble.build_trace(assemble.id_of(root, name), transcripts, metadata, cure)


_RUN_TYPES = dict.fromkeys(("CHAT_MODEL", "LLM", "generation", "response"), "llm") | {"TOOL": "tool", "function": "tool"}
_RUN_TYPES |= {"RETRIEVER": "retriever"} | dict.fromkeys(("agent", "handoff", "guardrail", "custom", "mcp_tools"), "chain")
"""The types of spans of MLflow, whose others are chains, and of OpenAI's Agents SDK, as LangSmith's types of runs."""


def _recognise_mlflow(value: Json) -> str | None:
    spans = dict_of(dict_of(value).get("data")).get("spans")
    return "info, and data with spans" if isinstance(spans, list) and isinstance(value.get("info"), dict) else None


def _parse_mlflow(value: Json, name: str) -> Iterator[AgentRun | UnreadableMessage]:
    """Yield the run of a trace, whose spans are read as LangSmith's runs."""
    rows, info = [row | dict_of(row.get("context")) for row in require_rows(value["data"]["spans"], "data", "spans")], value["info"]
    runs: list[dict[str, Json]] = []
    for row in rows:
        said, ended, over = dict_of(row.get("attributes")), row | dict_of(row.get("status")), first_of(row, "parent_span_id", "parent_id")
        failed = str(first_of(ended, "code", "status_code")).endswith("ERROR")
        kind, given, answered = (json_within(said.get(f"mlflow.span{key}")) for key in ("Type", "Inputs", "Outputs"))
        run = {"name": row.get("name"), "run_type": _RUN_TYPES.get(str(kind), "chain"), "inputs": given, "outputs": answered}
        run |= {"id": row.get("span_id"), "parent_run_id": over, "metadata": None if over else info}
        run |= {"error": first_of(ended, "message", "status_message") or "failed" if failed else None}
        runs.append(run | {"start_time": first_of(row, "start_time_unix_nano", "start_time")})
    for found in _parse_langsmith(runs, name, "trace inputs and outputs: by autolog, or a span's set_inputs and set_outputs"):
        yield (
            found
            if isinstance(found, UnreadableMessage)
            else found.model_copy(update={"id": assemble.id_of(info, name, "trace_id", "request_id")})
        )


_AGENTS_CURE = "the SDK exports only the ids of Responses; keep span_data.response and span_data.input of each span, or use its Chat model"


def _is_agent(row: dict[str, Json]) -> bool:
    return row.get("object") in ("trace", "trace.span") and ("span_data" in row or "workflow_name" in row)


def _parse_agents(value: Json, name: str) -> Iterator[AgentRun | UnreadableMessage]:
    """Yield a run for each trace, whose spans are read as LangSmith's runs; those that say nothing are its metadata."""
    traces: dict[str, dict[str, Json]] = {}
    runs: list[dict[str, Json]] = []
    rows = require_rows(value if isinstance(value, list) else [value])
    ids = {str(row.get("id")) for row in rows}
    for at, row in enumerate(rows):
        is_trace, data, error = row.get("object") == "trace", dict_of(row.get("span_data")), dict_of(row.get("error"))
        own = str(row.get("id" if is_trace else "trace_id"))
        trace = traces.setdefault(own, {"id": own, "steps": []})
        if is_trace:
            trace |= without(row, "object")
            runs.append(trace)
            continue
        if (kind := str(data.get("type"))) not in _RUN_TYPES:
            raise UnreadableMessage(f"the type of a span is {clip(kind)}, which is not known here; leave it out", at, "span_data", "type")
        trace["steps"] += [data] if _RUN_TYPES[kind] == "chain" else []
        reply = dict_of(data.get("response"))
        given, answered = {**without(reply, "output"), "input": data.get("input")}, data.get("output") or reply.get("output")
        # The reader of LangSmith wants one root for each trace. The SDK exports the trace beside its spans, or not at
        # all. So the trace itself becomes a run, and a span whose parent is not there stands below it.
        run = {"id": row.get("id"), "parent_run_id": row.get("parent_id") if str(row.get("parent_id")) in ids else own}
        run |= {"start_time": row.get("started_at"), "run_type": _RUN_TYPES[kind], "name": data.get("name") or kind}
        run |= {"error": error if error.get("data") else error.get("message")}
        runs.append(run | {"inputs": given if reply else data.get("input"), "outputs": answered})
    yield from _parse_langsmith([*runs, *(trace for trace in traces.values() if trace not in runs)], name, _AGENTS_CURE)


_SNAPSHOT = ("values", "next", "config", "metadata", "created_at", "parent_config", "tasks", "interrupts")
"""The fields of a `StateSnapshot`, which LangChain's `dumps` writes as a list in this order."""


def _recognise_langgraph(value: Json) -> str | None:
    """Return why a value is a state of LangGraph, or the states of a history."""
    if isinstance(value, list) and not _is_snapshot(value):
        return "a list of states, which have messages" if value and all(_place_of(item) is not None for item in value[:20]) else None
    place = _place_of(value)
    return f"a state, whose {'.'.join(place)} has messages" if place is not None else None


def _parse_langgraph(value: Json, name: str) -> Iterator[AgentRun]:
    """Yield a run for each thread; of a history, whose states repeat what was said before them, the conversation that they make."""
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
        conversations = assemble.merge_histories([history for history in histories if history])
        assemble.require_messages(conversations[0] if conversations else [], "messages")
        place = _place_of(last)
        beside = without(_at(last, place), "messages") if place is not None else {}
        metadata = {**beside, **{key: last[key] for key in ("next", "metadata", "interrupts", "created_at", "ts") if last.get(key)}}
        yield assemble.build_run(
            assemble.id_of({"id": thread}, name), [assemble.transcript_of(messages) for messages in conversations], metadata
        )


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


def _thread_of(row: dict[str, Json]) -> str:
    """Return the id of the thread that a state is of, else its own."""
    configured = dict_of(dict_of(row.get("config")).get("configurable"))
    checkpoint = dict_of(row.get("checkpoint"))
    found = (configured.get("thread_id"), checkpoint.get("thread_id"), dict_of(row.get("metadata")).get("thread_id"))
    ids = (row.get("thread_id"), checkpoint.get("id"), row.get("id"))
    return next((str(value)[:200] for value in (*found, *ids) if value), "")


_NO_CALLS = "SPAN|EVENT|AGENT|CHAIN|EVALUATOR|EMBEDDING|GUARDRAIL|status_?[mM]essage|model_?[pP]arameters"
LANGFUSE = Format("Langfuse trace", _recognise_langfuse, _parse_langfuse, whole=True, unshown=_NO_CALLS)
LANGGRAPH = Format("LangGraph state", _recognise_langgraph, _parse_langgraph, whole=True)
MLFLOW = Format("MLflow trace", _recognise_mlflow, _parse_mlflow, unshown="trace|info")
OPENAI_AGENTS = Format(
    "OpenAI Agents trace",
    rows_of(_is_agent, "spans of the Agents SDK: objects whose object is trace or trace.span"),
    _parse_agents,
    whole=True,
)
LANGSMITH = Format(
    "LangSmith run",
    rows_of(lambda row: {"run_type", "inputs"} <= set(row), "objects with run_type and inputs"),
    _parse_langsmith,
    whole=True,
    unshown="error|events|extra|serialized|manifest.*",
)
