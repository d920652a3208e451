"""A server of the two streams that coding agents call, Anthropic's Messages and OpenAI's Responses; they ask for nothing else."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from tests.rig.model_server import JsonObject, Reply

Event = tuple[str, JsonObject]

Choose = Callable[[JsonObject, str], Reply]
"""Makes the reply to a request, which comes as JSON and as its text."""


def _messages(request: JsonObject, reply: Reply, number: int) -> Iterator[Event]:
    """Yield the events of the Messages API."""
    usage = {"input_tokens": 10, "output_tokens": 5}
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": request.get("model", ""), "stop_reason": None}
    yield "message_start", {"message": message | {"usage": usage, "content": []}}
    blocks: list[tuple[JsonObject, JsonObject]] = [
        ({"type": "tool_use", "id": f"toolu_{number}_{at}", "name": name, "input": {}}, _part("input_json_delta", json.dumps(arguments)))
        for at, (name, arguments) in enumerate(reply.calls)
    ]
    if reply.text:
        blocks.insert(0, ({"type": "text", "text": ""}, _part("text_delta", reply.text)))
    for at, (block, delta) in enumerate(blocks):
        yield "content_block_start", {"index": at, "content_block": block}
        yield "content_block_delta", {"index": at, "delta": delta}
        yield "content_block_stop", {"index": at}
    end = {"stop_reason": "tool_use" if reply.calls else "end_turn", "stop_sequence": None}
    yield "message_delta", {"delta": end, "usage": {"output_tokens": 5}}
    yield "message_stop", {}


def _part(kind: str, text: str) -> JsonObject:
    return {"type": kind, "partial_json" if kind == "input_json_delta" else "text": text}


def _responses(request: JsonObject, reply: Reply, number: int) -> Iterator[Event]:
    """Yield the events of the Responses API; `SPACE__TOOL` of a reply is the tool of a namespace where the request offers that."""
    spaces = {tool["name"] for tool in request.get("tools", ()) if tool.get("type") == "namespace"}
    output = list[JsonObject]()
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        output.append({"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content})
    for at, (name, arguments) in enumerate(reply.calls):
        space, _, tool = name.rpartition("__")
        named = {"namespace": space, "name": tool} if space in spaces else {"name": name}
        call = {"type": "function_call", "id": f"fc_{number}_{at}", "call_id": f"call_{number}_{at}", "arguments": json.dumps(arguments)}
        output.append(call | named)
    yield "response.created", {"response": {"id": f"resp_{number}"}}
    for at, item in enumerate(output):
        yield "response.output_item.done", {"output_index": at, "item": item}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15, "input_tokens_details": {"cached_tokens": 0}}
    answer = {"id": f"resp_{number}", "object": "response", "status": "completed", "model": request.get("model", ""), "output": output}
    yield "response.completed", {"response": answer | {"usage": usage}}


@contextmanager
def model_streams(choose: Choose) -> Iterator[str]:
    """Serve on a free port, and yield the address, to which clients of the Responses API add `/v1`."""
    counted = iter(range(1, 1_000_000))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parameter's name there
            pass

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            request: dict[str, Any] = json.loads(text)
            stream = _responses if self.path.startswith("/v1/responses") else _messages
            events = stream(request, choose(request, text), next(counted))
            self._send("".join(f"event: {kind}\ndata: {json.dumps({'type': kind} | event)}\n\n" for kind, event in events).encode())

        def do_HEAD(self) -> None:
            self._send(b"")

        def do_GET(self) -> None:
            self._send(b'{"data": [], "models": []}', "application/json")

        def _send(self, body: bytes, kind: str = "text/event-stream") -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
