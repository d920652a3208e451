"""Spans of OpenTelemetry: GenAI's conventions in attributes and events, OpenInference's, OpenLLMetry's, Vercel's and Langfuse's.

A trace is a run. The calls of models in it repeat what was said before them, so that the conversation is put together from all of them.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from gradeloop.contract.transcript import AgentRun, RunMessage
from gradeloop.text import objects_in
from gradeloop.transcripts import assemble
from gradeloop.transcripts.formats import Format
from gradeloop.transcripts.json_access import Json, UnreadableMessage, dict_of, first_of, inside, list_at, require_rows, structured
from gradeloop.transcripts.message_forms import build_message, parse_messages
from gradeloop.transcripts.parts import read_call, text_of

_RESOURCES = ("resourceSpans", "resource_spans", "resourceLogs", "resource_logs", "batches")
_METRICS = ("resourceMetrics", "resource_metrics", "resourceProfiles")
"""Keys that collectors write beside spans and log records; they say nothing of a conversation."""

_SCOPES = ("scopeSpans", "scope_spans", "scopeLogs", "scope_logs", "instrumentationLibrarySpans")
_RECORDS = ("spans", "logRecords", "log_records")
CONVENTIONS = ("gen_ai.", "llm.", "openinference.", "ai.", "traceloop.", "input.", "output.", "tool.", "langfuse.")
"""The beginnings of attributes, and of events, by which spans of models and their tools are known."""


@dataclass
class Span:
    """A span, or a log record, of whatever exporter."""

    trace: str
    name: str
    start: str
    attributes: dict[str, Json]
    events: list[tuple[str, dict[str, Json]]] = field(default_factory=list)
    """The name and the attributes, or body, of each event, in order."""
    error: str | None = None
    span_id: str = ""
    parent: str = ""
    """The id of the span that it is below."""
    is_record: bool = False
    """Whether it is a log record, which names the span that it belongs to."""


def _recognise(value: Json) -> str | None:
    """Return why a value holds spans: OTLP JSON, spans as an SDK's console exporter writes them, or as Phoenix exports them."""
    if isinstance(value, dict):
        if key := next((key for key in _RESOURCES if isinstance(value.get(key), list)), None):
            return f"OTLP JSON: an object with {key}"
        rows = [value]
    else:
        rows = objects_in(value)[:20]
        keys = [next((key for key in (*_RESOURCES, *_METRICS) if isinstance(row.get(key), list)), None) for row in rows]
        if (key := next((key for key in keys if key in _RESOURCES), None)) and None not in keys:
            return f"OTLP JSON: objects with {key}"
    places = ({"traceId", "trace_id", "context.trace_id"} & set(row) or "trace_id" in dict_of(row.get("context")) for row in rows)
    if rows and all(places) and all("attributes" in row or any(key.startswith("attributes.") for key in row) for row in rows):
        return "spans: objects with attributes, and an id of their trace"
    return None


CAPTURE = "record the content: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT, or your instrumentation's own switch, turns it on"


def _parse(value: Json, name: str) -> Iterator[AgentRun | UnreadableMessage]:
    """Yield a run for each trace, or why it cannot be read; one with neither messages nor a call of a model or tool is passed over."""
    spans = [span for row in (require_rows(value) if isinstance(value, list) else [value]) for span in _spans_of(row)]
    traces: dict[str, list[Span]] = {}
    for span in _with_records(spans):
        traces.setdefault(span.trace, []).append(span)
    if not spans:
        raise UnreadableMessage("there are no spans; nothing can be judged")
    found = 0
    for trace, members in traces.items():
        ordered = sorted(members, key=lambda span: span.start)
        run = assemble.run_or_error(lambda trace=trace, ordered=ordered: _run_of_trace(trace or name, ordered))  # type: ignore[misc]  # bound
        if run is not None:
            found += 1
            yield run
    if not found:
        names = ", ".join(sorted({span.name for span in spans})[:5])
        raise UnreadableMessage(
            f"no span holds messages ({names}); record them: gen_ai.input.messages and gen_ai.output.messages, or their events"
        )


def read_trace(trace: str, rows: Sequence[Json]) -> AgentRun | UnreadableMessage | None:
    """Return the run of one trace, from its spans and log records in any order, or why it cannot be read; None where it has no messages."""

    def made() -> AgentRun | None:
        spans = sorted(_with_records([span for row in rows for span in _spans_of(row)]), key=lambda span: span.start)
        return _run_of_trace(trace, spans)

    return assemble.run_or_error(made)


# Log records and spans come by ways of their own, in any order, and a record may come without its span. So
# records are joined after all is read, by trace and span, and in the order of time: the events of a span
# are read as its conversation.
def _with_records(spans: Sequence[Span]) -> list[Span]:
    """Return the spans with the events of their log records; records of a span that is not there are one."""
    joined: dict[tuple[str, str], Span] = {(span.trace, span.span_id): span for span in spans if span.span_id and not span.is_record}
    found = [span for span in spans if not span.is_record]
    for record in sorted((span for span in spans if span.is_record), key=lambda span: span.start):
        place = (record.trace, record.span_id)
        if record.span_id and place in joined:
            joined[place].events += record.events
        else:
            joined[place] = record
            found.append(record)
    return found


def _run_of_trace(trace: str, spans: list[Span]) -> AgentRun | None:
    """Return the run of a trace; None where no span of it holds messages."""
    recorded, tools, rest = list[tuple[Span, list[RunMessage]]](), list[Span](), list[Span]()
    for span in spans:
        with inside(span.name):
            history = _history_of(span)
        if _is_tool(span.attributes):
            tools.append(span)
        elif history:
            recorded.append((span, history))
        else:
            rest.append(span)
    parents = {span.span_id: span.parent for span in spans if span.span_id}
    below: dict[str, list[list[RunMessage]]] = {span.span_id: [] for span, _ in recorded}
    for span, history in recorded:
        for over in assemble.ancestors(span.span_id, parents):
            if over in below:
                below[over].append(history)
    # Spans nest: an agent's span repeats the calls of models below it. One that says nothing of its own is
    # left out, else its summary would stand as a second conversation and judges would read everything twice.
    # Where all are such, as of spans that are within each other, all are kept: a run is never lost by this
    # rule.
    own_words = [history for span, history in recorded if not assemble.sums_up(history, below[span.span_id])]
    histories = own_words or [history for _, history in recorded]  # of spans that are within each other
    if not any(map(assemble.has_content, histories)):
        histories = [found for span in rest if (found := _outline_of(span.attributes))][:1] or histories
    if not histories:
        assemble.refuse_unrecorded_calls(trace, [span.name for span in rest if _is_model_call(span.attributes)], CAPTURE)
        if not tools:
            return None
    conversations = assemble.join_steps([_step(span) for span in spans], assemble.merge_histories(histories) or [[]], in_order=True)
    metadata: dict[str, JsonValue] = {"spans": dict(Counter(span.name for span in spans))}
    names = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "ai.model.id")
    models = sorted({str(model) for span in spans if (model := first_of(span.attributes, *names)) is not None})
    metadata |= {"models": list(models)} if models else {}
    return assemble.build_trace(trace, [assemble.transcript_of(messages) for messages in conversations], metadata, CAPTURE)


def _history_of(span: Span) -> list[RunMessage]:
    """Return the messages of a call of a model: what it was sent, and what it answered."""
    attributes = span.attributes
    for name, more in span.events:
        if name == "gen_ai.client.inference.operation.details":
            attributes = {**more, **attributes}
    # A span may have its messages several times, by older conventions beside the current one. Only the first
    # convention that has any is read, the current one before the others.
    keys = ("gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.output.messages")
    system, given, answered = (structured(attributes.get(key)) for key in keys)
    if given is not None or answered is not None:
        before = parse_messages([{"role": "system", "content": system if isinstance(system, (str, list)) else [system]}]) if system else []
        return [*before, *assemble.read_side(given, "user", "input"), *assemble.read_side(answered, "assistant", "output")]
    if found := _from_events(span.events):
        return found
    for read in (_from_openinference, _from_indexed, _from_vercel, _from_langfuse, _from_pydantic):
        if found := read(attributes):
            return found
    prompt, completion = (structured(attributes.get(key)) for key in ("gen_ai.prompt", "gen_ai.completion"))
    return assemble.exchange(prompt, completion) if prompt is not None or completion is not None else []


def _from_events(events: Sequence[tuple[str, dict[str, Json]]]) -> list[RunMessage]:
    """Return the messages of the events of a call: one a message, or one with all of them."""
    messages: list[RunMessage] = []
    for name, fields in events:
        known = re.fullmatch(r"gen_ai\.(system|user|assistant|tool)\.message", name)
        if known:
            messages += _event_message(known[1], fields)
        elif name == "gen_ai.choice":
            inner = structured(fields.get("message"))
            said = inner if isinstance(inner, dict) else {**fields, "content": inner or fields.get("content")}
            messages += _event_message("assistant", said)
        elif name == "gen_ai.content.prompt":
            messages += assemble.read_side(structured(fields.get("gen_ai.prompt")), "user", "input")
        elif name == "gen_ai.content.completion":
            messages += assemble.read_side(structured(fields.get("gen_ai.completion")), "assistant", "output")
    return messages


def _event_message(role: str, fields: dict[str, Json]) -> list[RunMessage]:
    content = _content_of(fields.get("content"), role)
    if isinstance(content, dict):
        content = json.dumps(content, ensure_ascii=False)
    calls = structured(fields.get("tool_calls"))
    message = {"role": fields.get("role") or role, "content": content, "name": fields.get("name")}
    if role == "tool":
        message["tool_call_id"] = fields.get("id")
    elif isinstance(calls, list):
        message["tool_calls"] = calls
    return parse_messages([message])


def _content_of(value: Json, role: str) -> Json:
    """Return a message's content; a text is a list of parts where those are what its role can say, so that no answer imitates a call."""
    parts = structured(value) if isinstance(value, str) else value
    can = {*_SAID, "tool_result"} if role in {"user", "tool"} else _SAID
    said = isinstance(value, dict) or (isinstance(parts, list) and {str(dict_of(part).get("type")) for part in parts} <= can)
    return parts if said else value


_SAID = {"text", "input_text", "output_text", "image_url", "input_image", "image", "input_audio", "audio", "file", "input_file", "document"}
"""The types of parts that are not a tool's."""


def _from_openinference(attributes: dict[str, Json]) -> list[RunMessage]:
    """Return the messages of OpenInference's attributes, `llm.input_messages.0.message.content`."""
    tree = dict_of(nested(attributes).get("llm"))
    rows = [nested(row) for key in ("input_messages", "output_messages") for row in _items(tree.get(key))]
    return parse_messages([_openinference_message(dict_of(row.get("message")) or row) for row in rows]) if rows else []


def _openinference_message(message: dict[str, Json]) -> dict[str, Json]:
    content: Json = message.get("content")
    if contents := _items(message.get("contents")):
        items = [dict_of(item.get("message_content")) or item for item in map(nested, contents)]
        content = [
            {"type": "image", "image": dict_of(dict_of(item.get("image")).get("image")).get("url")} if item.get("type") == "image" else item
            for item in items
        ]
    calls = []
    for item in map(nested, _items(message.get("tool_calls"))):
        call = dict_of(item.get("tool_call")) or item
        calls.append({"id": call.get("id"), "function": dict_of(call.get("function"))})
    named = {key: message.get(key) for key in ("name", "tool_call_id")}
    fields: dict[str, Json] = {"role": message.get("role") or "user", "content": content, **named}
    if name := message.get("function_call_name"):
        fields["function_call"] = {"name": name, "arguments": message.get("function_call_arguments_json")}
    return fields | ({"tool_calls": calls} if calls else {})


def _items(value: Json) -> list[Json]:
    """Return the items of a list that is written as one, or as an object with the numbers of its items."""
    if isinstance(value, dict):
        return [value[key] for key in sorted(value, key=lambda key: int(key) if str(key).isdigit() else 0)]
    return value if isinstance(value, list) else []


def _from_indexed(attributes: dict[str, Json]) -> list[RunMessage]:
    """Return the messages of OpenLLMetry's attributes, `gen_ai.prompt.0.content`."""
    tree = dict_of(nested({key: inner for key, inner in attributes.items() if key.startswith("gen_ai.")}).get("gen_ai"))
    messages = []
    for key, role in (("prompt", "user"), ("completion", "assistant")):
        for row in map(dict_of, _items(tree.get(key)) if isinstance(tree.get(key), dict) else []):
            content = _content_of(row.get("content"), str(row.get("role") or role))
            calls = [{"id": call.get("id"), "function": call} for call in map(dict_of, _items(row.get("tool_calls")))]
            message = {"role": row.get("role") or role, "content": text_of(content) if isinstance(content, dict) else content}
            more = {key: row[key] for key in ("reasoning", "refusal", "name") if row.get(key)} | ({"tool_calls": calls} if calls else {})
            messages.append(message | more | ({"tool_call_id": row.get("tool_call_id")} if row.get("tool_call_id") else {}))
    return parse_messages(messages)


def _from_vercel(attributes: dict[str, Json]) -> list[RunMessage]:
    """Return the messages of the spans that Vercel's AI SDK writes."""
    given = structured(first_of(attributes, "ai.prompt.messages", "ai.prompt"))
    if isinstance(asked := dict_of(given).get("prompt"), (str, list)):
        given = {"system": given.get("system"), "messages": [{"role": "user", "content": asked}] if isinstance(asked, str) else asked}
    text, calls = first_of(attributes, "ai.response.text", "ai.response.object"), structured(attributes.get("ai.response.toolCalls"))
    parts = [read_call(call.get("toolCallId"), call.get("toolName"), call.get("args") or call.get("input")) for call in objects_in(calls)]
    thought = attributes.get("ai.response.reasoning")
    said = {"role": "assistant", "content": text_of(text), "reasoning": thought}
    answer = parse_messages([said]) if text or thought else []
    if parts:
        answer = [build_message("assistant", [*(part for message in answer for part in message.records()), *parts])]
    return [*assemble.read_side(given, "user", "input"), *answer] if given is not None or answer else []


def _from_langfuse(attributes: dict[str, Json]) -> list[RunMessage]:
    """Return the messages of a generation as Langfuse's SDK writes it: its input and its output are JSON."""
    if str(attributes.get("langfuse.observation.type")).lower() != "generation":
        return []
    given, answered = (structured(attributes.get(f"langfuse.observation.{side}")) for side in ("input", "output"))
    return assemble.exchange(given, answered) if given is not None or answered is not None else []


def _from_pydantic(attributes: dict[str, Json]) -> list[RunMessage]:
    """Return the messages of Pydantic AI's and Logfire's attributes: events, an agent's messages, or a request with its response."""
    for key in ("events", "all_messages_events"):
        events = objects_in(structured(attributes.get(key)))
        if found := _from_events([(str(event["event.name"]), event) for event in events if "event.name" in event]):
            return found
    if (said := structured(attributes.get("pydantic_ai.all_messages"))) is not None:
        return assemble.read_side(said, "user", "input")
    given, answered = (structured(attributes.get(key)) for key in ("request_data", "response_data"))
    return assemble.exchange(given, answered) if isinstance(given, dict) and isinstance(answered, dict) else []


_ENTITY_INPUTS = ("traceloop.entity.input", "langfuse.observation.input")
_ENTITY_OUTPUTS = ("traceloop.entity.output", "langfuse.observation.output")


def _outline_of(attributes: dict[str, Json]) -> list[RunMessage]:
    """Return the input and the output of a span that is not a model's: of an agent or a chain."""
    given = structured(first_of(attributes, "input.value", *_ENTITY_INPUTS, "langfuse.trace.input"))
    output = first_of(attributes, "output.value", *_ENTITY_OUTPUTS, "langfuse.trace.output")
    if attributes.get("output.mime_type") == "text/plain" and isinstance(output, str):
        return [*assemble.exchange(given, None), *assemble.read_side(output, "assistant", "output")]
    return assemble.exchange(given, structured(output))


def _is_tool(attributes: dict[str, Json]) -> bool:
    kinds = ("openinference.span.kind", "span_kind", "traceloop.span.kind", "langfuse.observation.type")
    kind = str(first_of(attributes, *kinds) or "").upper()
    return kind in {"TOOL", "RETRIEVER"} or "gen_ai.tool.name" in attributes or "ai.toolCall.name" in attributes


def _is_model_call(attributes: dict[str, Json]) -> bool:
    return (
        attributes.get("gen_ai.operation.name") in ("chat", "text_completion", "generate_content")
        or attributes.get("llm.request.type") in ("chat", "completion")
        or str(attributes.get("openinference.span.kind")).upper() == "LLM"
        or str(attributes.get("langfuse.observation.type")).lower() == "generation"
        or str(attributes.get("ai.operationId")).endswith((".doGenerate", ".doStream"))
    )


_TOOL_INPUTS = ("gen_ai.tool.call.arguments", "tool.parameters", "input.value", "ai.toolCall.args", *_ENTITY_INPUTS)
_TOOL_OUTPUTS = ("gen_ai.tool.call.result", "output.value", "ai.toolCall.result", *_ENTITY_OUTPUTS)


def _step(span: Span) -> assemble.TraceStep:
    if not _is_tool(attributes := span.attributes):
        return assemble.TraceStep(span.span_id, span.name, span.parent, span.error)
    output = first_of(attributes, *_TOOL_OUTPUTS)
    if output is None:  # the documents that a retriever of OpenInference's found
        found = _items(dict_of(nested(attributes).get("retrieval")).get("documents"))
        output = [dict_of(item.get("document")) or item for item in map(nested, found)] or None
    known = first_of(attributes, "gen_ai.tool.call.id", "tool_call.id", "tool.id", "ai.toolCall.id")
    tool = assemble.ToolRecord(
        id=span.span_id or span.name,
        name=str(first_of(attributes, "gen_ai.tool.name", "tool.name", "ai.toolCall.name", "traceloop.entity.name") or span.name),
        arguments=structured(first_of(attributes, *_TOOL_INPUTS)),
        output=span.error if output is None else output,
        failed=bool(span.error),
        call=None if known is None else str(known),
    )
    return assemble.TraceStep(span.span_id, span.name, span.parent, tool=tool)


def nested(attributes: Json) -> dict[str, Json]:
    """Return attributes with dotted names, as Phoenix's data frames have them in the items of lists, too, as a tree."""
    tree: dict[str, Json] = {}
    for key, value in dict_of(attributes).items():
        branch = tree
        *names, last = key.split(".")
        for name in names:
            inner = branch.get(name)
            if not isinstance(inner, dict):
                inner = branch[name] = {}
            branch = inner
        if isinstance(value, dict) or not isinstance(branch.get(last), dict):
            branch[last] = value
    return tree


def _spans_of(row: Json) -> Iterator[Span]:
    """Yield the spans and log records of an OTLP object, or the one span that the row is."""
    if not isinstance(row, dict):
        raise UnreadableMessage("a span is not an object")
    resources = [resource for key in _RESOURCES for resource in require_rows(row.get(key), key)]
    if not resources and not any(key in row for key in (*_RESOURCES, *_METRICS)):
        yield _span_of(row)
    for resource in resources:
        for scope in (scope for key in _SCOPES for scope in require_rows(resource.get(key), key)):
            for record in (record for key in _RECORDS for record in require_rows(scope.get(key), key)):
                yield _span_of(record)


def _span_of(row: dict[str, Json]) -> Span:
    context = dict_of(row.get("context"))
    attributes = attributes_of(row.get("attributes"))
    attributes |= {key.removeprefix("attributes."): value for key, value in row.items() if key.startswith("attributes.")}
    attributes = {**_flattened(attributes), **attributes}
    if isinstance(row.get("span_kind"), str):
        attributes.setdefault("openinference.span.kind", row["span_kind"])
    start = str(first_of(row, "startTimeUnixNano", "start_time_unix_nano", "start_time", "timeUnixNano", "observedTimeUnixNano") or "")
    events = [(str(event.get("name")), _event_fields(event)) for event in require_rows(row.get("events"), "events")]
    if name := first_of(row, "eventName", "event_name") or attributes.get("event.name"):
        events.append((str(name), {**attributes, **_event_fields(row)}))
    return Span(
        trace=str(first_of(row, "traceId", "trace_id", "context.trace_id") or context.get("trace_id") or ""),
        name=str(row.get("name") or first_of(row, "eventName", "event_name") or "span"),
        start=start.zfill(30) if start.isdigit() else start,  # a text that sorts: nanoseconds by their number, dates as they are written
        attributes=attributes,
        events=events,
        error=_error_of(row, events, attributes),
        span_id=str(first_of(row, "spanId", "span_id", "context.span_id") or context.get("span_id") or ""),
        parent=str(first_of(row, "parentSpanId", "parent_span_id", "parent_id", "context.parent_id") or context.get("parent_id") or ""),
        is_record=bool(name),
    )


def _flattened(attributes: dict[str, Json], prefix: str = "") -> dict[str, Json]:
    """Return the objects among attributes with dotted names too, as Phoenix exports them as trees."""
    found: dict[str, Json] = {}
    for key, value in attributes.items():
        if isinstance(value, dict):
            found |= {f"{prefix}{key}": value, **_flattened(value, f"{prefix}{key}.")}
        elif prefix:
            found[f"{prefix}{key}"] = value
    return found


def _event_fields(event: dict[str, Json]) -> dict[str, Json]:
    body = any_value(event["body"]) if isinstance(event.get("body"), dict) else structured(event.get("body"))
    inner = body if isinstance(body, dict) else {"content": body} if body is not None else {}
    inner = any_value(inner) if set(inner) & _VALUES else inner
    return {**attributes_of(event.get("attributes")), **dict_of(inner)}


def _error_of(row: dict[str, Json], events: Sequence[tuple[str, dict[str, Json]]], attributes: dict[str, Json]) -> str | None:
    """Return why a span failed, or an observation, as Langfuse's SDK marks it; None for one that did not."""
    status = dict_of(row.get("status"))
    code = str(first_of(status, "code", "status_code") or row.get("status_code") or "")
    if code not in {"2", "ERROR", "STATUS_CODE_ERROR"}:
        failed = attributes.get("langfuse.observation.level") == "ERROR"
        return str(attributes.get("langfuse.observation.status_message") or "the observation ended with an error") if failed else None
    raised = next((fields for name, fields in events if name == "exception"), {})
    words = first_of(status, "message", "description") or row.get("status_message") or raised.get("exception.message")
    return str(words or raised.get("exception.type") or "the span ended with an error")


_VALUES = {"stringValue", "intValue", "boolValue", "doubleValue", "arrayValue", "kvlistValue", "bytesValue", "string_value"}


def attributes_of(value: Json) -> dict[str, Json]:
    """Return attributes as an object, from OTLP's list of typed values too; raise UnreadableMessage where they are neither."""
    if isinstance(value, str):
        value = structured(value) or None
    if isinstance(value, dict):
        return dict(value)
    return {str(item.get("key")): any_value(item.get("value")) for item in require_rows(value, "attributes")}


def any_value(value: Json) -> Json:
    """Return the value of OTLP's `AnyValue`."""
    if not isinstance(value, dict):
        return value
    for key, inner in value.items():
        if inner is None:  # Phoenix writes every kind of value, those that are not there as null
            continue
        kind = re.sub(r"_v", "V", key)
        if kind == "intValue":
            return int(inner) if re.fullmatch(r"-?\d{1,20}", str(inner)) else inner
        if kind == "arrayValue":
            return [any_value(item) for item in list_at(dict_of(inner), "values")]
        if kind == "kvlistValue":
            return {str(item.get("key")): any_value(item.get("value")) for item in require_rows(dict_of(inner).get("values"), "values")}
        if kind in {"stringValue", "boolValue", "doubleValue", "bytesValue"}:
            return inner
    return None if all(key in _VALUES or re.sub(r"_v", "V", key) in _VALUES for key in value) else value


_UNSHOWN = (
    r"(?:http|url|db|rpc|messaging|exception|code|process|host|os|service|telemetry|server|client|network|net|thread|faas|cloud|k8s|container|"
    r"browser|user_agent|peer|aws|gcp|azure|otel|deployment|graphql|event|log)\..+|"  # the other conventions of OpenTelemetry
    r"gen_ai\.(?:tool\.(?:definitions|description)|request\..+)|llm\.(?:invocation_parameters|tools\..+|prompt_template\..+)|"
    r"ai\.(?:prompt\.tools|settings\..+|request\..+)|.*metadata.*|status|resource|scope|"
    r"(?:input|output)\.value|traceloop\.entity\.(?:input|output)|langfuse\.(?:observation|trace)\.(?:input|output)"
)
"""The attributes that say how a call was made, what other programs did, and what went in and out of spans that are not calls."""

SPANS = Format("OpenTelemetry spans", _recognise, _parse, whole=True, unshown=_UNSHOWN)
