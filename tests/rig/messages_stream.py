"""A server of Anthropic's Messages API that streams: what the Claude Agent SDK calls, which asks for nothing else."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


def _events(model: str, text: str) -> Iterator[tuple[str, dict[str, object]]]:
    usage = {"input_tokens": 10, "output_tokens": 5}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "stop_reason": None, "usage": usage}
    yield "message_start", {"message": message | {"content": []}}
    yield "content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}
    yield "content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}}
    yield "content_block_stop", {"index": 0}
    yield "message_delta", {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 5}}
    yield "message_stop", {}


@contextmanager
def messages_stream(reply: Callable[[str], str]) -> Iterator[str]:
    """Serve on a free port, and yield the address; `reply` makes the answer of a request from its whole text."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parameter's name there
            pass

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            lines = (
                f"event: {kind}\ndata: {json.dumps({'type': kind} | event)}\n\n"
                for kind, event in _events(json.loads(text).get("model", ""), reply(text))
            )
            self._send("".join(lines).encode())

        def do_HEAD(self) -> None:
            self._send(b"")

        def _send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
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
