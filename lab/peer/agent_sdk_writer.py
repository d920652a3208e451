"""What other SDKs write of conversations with a scripted provider, with what they hold of them themselves: `agent_sdk_writer.py FOLDER`."""

# mypy: ignore-errors
import asyncio
import base64
import gzip
import json
import sys
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(sys.argv[1])
HELD = {}
TURNS = [
    ("I look.", [("c1", "weather", {"city": "Zürich"}), ("c2", "broken", {"deep": {"pages": [1, 2]}})]),
    ("", [("c3", "weather", {"city": "<tool call>ls</tool call>"})]),
    ("Sunny in Zürich.", []),
]
THOUGHT = "I look first."
SPANS = []


class Provider(BaseHTTPRequestHandler):
    """Answers Chat Completions, Responses and Gemini's streams, and takes spans."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if "/otel" in self.path or "/v1/traces" in self.path:
            SPANS.append((self.headers.get("content-encoding"), body))
            return self.reply({})
        if self.path.startswith("/runs"):
            run = json.loads(body)
            POSTED.setdefault(run["id"], {}).update(run)
            return self.reply({})
        sent = json.loads(body)
        if "streamGenerateContent" in self.path:
            return self.stream(gemini_pieces(sent["contents"]))
        asked = sent.get("messages") or sent.get("input") or []
        given = sum(
            1 for one in asked if isinstance(one, dict) and (one.get("role") == "tool" or one.get("type") == "function_call_output")
        )
        text, calls = TURNS[{0: 0, 2: 1, 3: 2}[given]] if sent.get("tools") else TURNS[2]
        if sent.get("model") == "failing":
            return self.reply({"error": {"message": "too strange", "type": "invalid_request_error"}}, 400)
        return self.reply(chat(text, calls) if "messages" in sent else responses(text, calls, given))

    def stream(self, pieces) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write("".join(f"data: {json.dumps(piece)}\r\n\r\n" for piece in pieces).encode())

    def do_PATCH(self) -> None:
        run = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
        POSTED.setdefault(self.path.rsplit("/", 1)[-1], {}).update({key: value for key, value in run.items() if value is not None})
        self.reply({})

    def do_GET(self) -> None:
        self.reply({})

    def reply(self, value, status=200) -> None:
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_arguments) -> None:
        """Log nothing."""


def chat(text, calls):
    made = [{"id": call, "type": "function", "function": {"name": name, "arguments": json.dumps(args)}} for call, name, args in calls]
    message = {"role": "assistant", "content": text or None, **({"tool_calls": made} if made else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if made else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice], "usage": usage}


def responses(text, calls, given):
    output = [{"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": THOUGHT}]}] if not given else []
    said = [{"type": "output_text", "text": text, "annotations": []}]
    output += [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": said}] if text else []
    output += [
        {"type": "function_call", "id": f"f{call}", "call_id": call, "name": name, "arguments": json.dumps(args), "status": "completed"}
        for call, name, args in calls
    ]
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5",
        "status": "completed",
        "output": output,
        "usage": usage,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def gemini_pieces(contents):
    """Return the pieces of an answer of Gemini's: thoughts and texts cut in two, and the calls."""
    given = sum("functionResponse" in part for content in contents for part in content["parts"])
    text, calls = TURNS[{0: 0, 2: 1, 3: 2}[given]]
    halves = [{"text": half, "thought": True} for half in (THOUGHT[:5], THOUGHT[5:])] if not given else []
    halves += [{"text": half} for half in (text[:3], text[3:]) if half]
    halves += [{"functionCall": {"id": call, "name": name, "args": args}, "thoughtSignature": "c2ln"} for call, name, args in calls]
    last = {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP", "index": 0}
    candidates = [{"content": {"role": "model", "parts": [half]}, "index": 0} for half in halves]
    usage = {"promptTokenCount": 1, "totalTokenCount": 2}
    return [
        {"candidates": [one], "responseId": f"r{given}", "modelVersion": "gemini", "usageMetadata": usage} for one in (*candidates, last)
    ]


def gemini(url) -> None:
    """Stream a conversation by Google's SDK, and write the pieces that it yields, and the history that a chat of its keeps."""
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url))
    contents = [types.Content(role="user", parts=[types.Part(text="Where is Zürich?")])]
    pieces, last = [], None
    while last is None or last.function_calls:
        chunks = list(client.models.generate_content_stream(model="gemini", contents=contents))
        pieces += chunks
        parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
        called = [part.function_call for part in parts if part.function_call]
        contents.append(types.Content(role="model", parts=parts))
        answers = [types.FunctionResponse(id=call.id, name=call.name, response={"result": "found"}) for call in called]
        contents.append(types.Content(role="user", parts=[types.Part(function_response=answer) for answer in answers]))
        last = types.GenerateContentResponse(candidates=[types.Candidate(content=types.Content(parts=parts))])
    calls = [call for chunk in pieces for call in chunk.function_calls or ()]
    held = {"runs": 3, "messages": 3, "texts": TEXTS, "reasoning": [THOUGHT], "calls": [[call.id, call.name, call.args] for call in calls]}
    ways = {"dumped": {}, "sparse": {"exclude_none": True}, "named": {"exclude_none": True, "by_alias": True}}
    for way, options in ways.items():
        rows = [chunk.model_dump(mode="json", **options) for chunk in pieces]
        write(f"gemini.{way}.json", rows, **held)
        write(f"gemini.{way}.jsonl", "\n".join(map(json.dumps, rows)), **held)
    write(
        "gemini.one_stream.json",
        [chunk.model_dump(mode="json") for chunk in pieces if chunk.response_id == "r3"],
        texts=TEXTS[-1:],
        messages=1,
    )
    whole = types.Content(role="user", parts=[types.Part(text="done")])
    rows = [content.model_dump(mode="json", exclude_none=True) for content in (*contents[:-1], whole)]
    found = [[call.id, "found", False] for call in calls]
    write("gemini.history.json", {"contents": rows}, texts=None, reasoning=None, calls=held["calls"], results=found, messages=None)


def write(name, value, **held) -> None:
    """Write a file: a value as JSON, a text as it is, and what its writer holds of it."""
    (FOLDER / name).write_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), encoding="utf-8")
    HELD[name] = held


CALLS = [[call, name, args] for _, calls in TURNS for call, name, args in calls]
TEXTS = [text for text, _ in TURNS if text]
FOUND = {"city": "Zürich", "sky": "clear"}
LAST = {"city": "<tool call>ls</tool call>", "sky": "clear"}


def agents(url) -> None:
    """Run an agent of OpenAI's Agents SDK, with a session in a database, and write what it keeps."""
    import openai
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
    from agents.items import ItemHelpers, MessageOutputItem, ReasoningItem, ToolCallItem, ToolCallOutputItem

    set_tracing_disabled(True)

    @function_tool
    def weather(city: str) -> dict:
        """Say the weather."""
        return {"city": city, "sky": "clear"}

    @function_tool(strict_mode=False)
    def broken(deep: dict) -> str:
        """Fail."""
        raise ValueError("it broke")

    client = openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1")
    for name, kind in (("responses", OpenAIResponsesModel), ("chat", OpenAIChatCompletionsModel)):
        agent = Agent(name="helper", instructions="Be brief.", tools=[weather, broken], model=kind(model="gpt-5", openai_client=client))
        session = SQLiteSession("s1", str(FOLDER / f"{name}.db"))
        result = asyncio.run(Runner.run(agent, "Where is Zürich?", session=session))
        items = result.new_items
        texts = ["Where is Zürich?", *(ItemHelpers.text_message_output(item) for item in items if isinstance(item, MessageOutputItem))]
        calls = [item.raw_item for item in items if isinstance(item, ToolCallItem)]
        held = {
            "texts": texts,
            "reasoning": ["\n".join(part.text for part in item.raw_item.summary) for item in items if isinstance(item, ReasoningItem)],
            "calls": [[call.call_id, call.name, json.loads(call.arguments)] for call in calls],
            "results": [
                [item.raw_item["call_id"], item.raw_item["output"], False] for item in items if isinstance(item, ToolCallOutputItem)
            ],
            "messages": len(items) + 1,
        }
        write(f"agents.{name}.input_list.json", result.to_input_list(), **held)
        write(f"agents.{name}.session.json", asyncio.run(session.get_items()), **held)
        write(f"agents.{name}.session.jsonl", "\n".join(json.dumps(item) for item in asyncio.run(session.get_items())), **held)
        write(
            f"agents.{name}.responses.json",
            [
                {"id": f"{name}-{at}", "output": [item.model_dump(exclude_unset=True) for item in one.output]}
                for at, one in enumerate(result.raw_responses)
            ],
            runs=3,
            texts=texts[1:],
            reasoning=held["reasoning"],
            calls=held["calls"],
            messages=None,
        )


def pydantic_ai(url) -> None:
    """Run an agent of Pydantic AI, and write its messages."""
    from pydantic_ai import Agent, ModelRetry
    from pydantic_ai.messages import (
        ERROR_OUTCOMES,
        BinaryContent,
        SystemPromptPart,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    for name, kind in (("responses", OpenAIResponsesModel), ("chat", OpenAIChatModel)):
        agent = Agent(kind("gpt-5", provider=provider), system_prompt="Be brief.")

        @agent.tool_plain
        def weather(city: str) -> dict:
            return {"city": city, "sky": "clear"}

        @agent.tool_plain
        def broken(deep: dict) -> str:
            raise ModelRetry("it broke")

        asked = ["Where is Zürich?", BinaryContent(data=b"abc", media_type="image/png")]
        result = agent.run_sync(asked)
        parts = [part for message in result.all_messages() for part in message.parts]
        returned = [part for part in parts if isinstance(part, ToolReturnPart)]
        held = {
            "texts": [
                asked[0] if isinstance(part, UserPromptPart) else part.content
                for part in parts
                if isinstance(part, (SystemPromptPart, UserPromptPart, TextPart)) and part.content
            ],
            "reasoning": [part.content for part in parts if isinstance(part, ThinkingPart)],
            "calls": [[part.tool_call_id, part.tool_name, part.args_as_dict()] for part in parts if isinstance(part, ToolCallPart)],
            "results": [[part.tool_call_id, part.content, part.outcome in ERROR_OUTCOMES] for part in returned],
            "files": 1,
            "messages": None,
        }
        write(f"pydantic_ai.{name}.json", result.all_messages_json().decode(), **held)
        write(f"pydantic_ai.{name}.new.json", result.new_messages_json().decode(), **held)


def weather(city: str) -> dict:
    """Say the weather."""
    return {"city": city, "sky": "clear"}


def broken(deep: dict) -> str:
    """Fail."""
    raise ValueError("it broke")


TOOLS = {"weather": weather, "broken": broken}
SCHEMAS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in TOOLS]


def loop(client, tools):
    """Ask until there is an answer, as a program without a framework does, and return the messages."""
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is Zürich?"}]
    while True:
        message = client.chat.completions.create(model="gpt-5", messages=list(said), tools=SCHEMAS).choices[0].message
        said.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            try:
                content = json.dumps(tools[call.function.name](**json.loads(call.function.arguments)), ensure_ascii=False)
            except ValueError as error:
                content = f"failed: {error}"
            said.append({"role": "tool", "tool_call_id": call.id, "content": content})
        if not message.tool_calls:
            return said


def of_loop(said):
    """Keep what the messages of a loop hold; a tool's own trace says that it failed."""
    return {
        "texts": [one["content"] for one in said if one["role"] != "tool" and one.get("content")],
        "calls": [
            [call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])]
            for one in said
            for call in one.get("tool_calls", ())
        ],
        "results": [
            [one["tool_call_id"], parsed(one["content"]), one["content"].startswith("failed")] for one in said if one["role"] == "tool"
        ],
        "messages": len(said),
    }


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def langsmith(url) -> None:
    """Trace a loop with LangSmith's SDK: its tree, and the runs that it posts."""
    import openai
    from langsmith import Client, traceable
    from langsmith.run_helpers import tracing_context
    from langsmith.wrappers import wrap_openai

    client = Client(api_url=url, api_key="none", auto_batch_tracing=False, info={})
    trees = []
    tools = {name: traceable(run_type="tool", name=name)(tool) for name, tool in TOOLS.items()}

    @traceable(run_type="chain", name="agent")
    def agent(question):
        said = loop(wrap_openai(openai.OpenAI(api_key="none", base_url=f"{url}/v1")), tools)
        said_.extend(said)
        return said[-1]["content"]

    said_ = []
    with tracing_context(enabled=True, client=client):
        agent("Where is Zürich?", langsmith_extra={"on_end": trees.append, "client": client})
    client.flush()
    held = of_loop(said_)
    write("langsmith.tree.json", json.loads(json.dumps(dumped(trees[0]), default=str)), **held)
    write("langsmith.posted.json", list(POSTED.values()), **held)
    write("langsmith.posted.jsonl", "\n".join(map(json.dumps, POSTED.values())), **held)


def dumped(tree):
    """Return a run tree as its SDK dumps it, with those below it."""
    own = tree.model_dump(mode="json", exclude={"client", "ls_client", "child_runs", "parent_run"})
    return {**own, "child_runs": [dumped(child) for child in tree.child_runs]}


POSTED = {}


def langfuse(url) -> None:
    """Trace a loop with Langfuse's SDK, which exports over OTLP."""
    from google.protobuf.json_format import MessageToDict
    from langfuse import Langfuse, observe
    from langfuse.openai import OpenAI
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    client = Langfuse(public_key="pk", secret_key="sk", host=url)
    tools = {name: observe(as_type="tool", name=name)(tool) for name, tool in TOOLS.items()}

    @observe(as_type="agent", name="agent")
    def agent(question):
        said_.extend(loop(OpenAI(api_key="none", base_url=f"{url}/v1"), tools))
        return said_[-1]["content"]

    said_ = []
    agent("Where is Zürich?")
    client.flush()
    lines = []
    for encoding, body in SPANS:
        raw = gzip.decompress(body) if encoding == "gzip" else body
        lines.append(MessageToDict(ExportTraceServiceRequest.FromString(raw)))
    write("langfuse.otlp.jsonl", "\n".join(json.dumps(hexed(line)) for line in lines), **of_loop(said_))
    rows = [json.loads(observation(span).json()) for line in lines for span in spans_of(line)]
    failed = of_loop(said_) | {"errors": 0}
    write("langfuse.observations.json", rows, **failed)
    write("langfuse.observations.page.json", {"data": rows, "meta": {"cursor": None}}, **failed)
    embedded = [{**row, **{key: embedded_json(row[key]) for key in ("input", "output") if row.get(key)}} for row in rows]
    write("langfuse.observations.jsonl", "\n".join(map(json.dumps, embedded)), **failed)


def spans_of(line):
    return [span for resource in line["resourceSpans"] for scope in resource["scopeSpans"] for span in scope["spans"]]


def embedded_json(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def observation(span):
    """Return a span as Langfuse's interface gives it, by the SDK's own model of that."""
    from langfuse.api import ObservationV2

    own = {item["key"]: next(iter(item["value"].values())) for item in span["attributes"]}
    start = datetime.fromtimestamp(int(span["startTimeUnixNano"]) / 1e9, UTC)
    about = "langfuse.observation"
    return ObservationV2(
        id=base64.b64decode(span["spanId"]).hex(),
        trace_id=base64.b64decode(span["traceId"]).hex(),
        parent_observation_id=base64.b64decode(span["parentSpanId"]).hex() if span.get("parentSpanId") else None,
        project_id="p",
        start_time=start,
        type=str(own.get(f"{about}.type", "span")).upper(),
        name=span["name"],
        level=own.get(f"{about}.level", "DEFAULT"),
        status_message=own.get(f"{about}.status_message"),
        input=own.get(f"{about}.input"),
        output=own.get(f"{about}.output"),
        model=own.get(f"{about}.model.name"),
    )


def hexed(value):
    """Return OTLP as its JSON has ids: in hexadecimal."""
    if isinstance(value, list):
        return [hexed(item) for item in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {key: base64.b64decode(inner).hex() if key in ids else hexed(inner) for key, inner in value.items()}


def main() -> None:
    """Write all files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    for one in (agents, pydantic_ai, langsmith, langfuse, gemini):
        one(url)
    (FOLDER / "counts.json").write_text(json.dumps(HELD, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
