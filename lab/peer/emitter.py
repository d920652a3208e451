"""A service whose calls of a model are exported over OTLP, with a mock provider beside it; it runs in the emitters' own environment."""

# mypy: ignore-errors
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": json.dumps({"city": "Zürich"}, ensure_ascii=False)},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
]
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class Provider(BaseHTTPRequestHandler):
    """Asks for the tool first, and then answers."""

    def do_POST(self) -> None:
        """Answer a call of Chat Completions."""
        last = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][-1]
        answered = {"role": "assistant", "content": f"The answer to: {last['content']}"}
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]} if last["role"] == "user" else answered
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        reply = {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-5-mini", "choices": [choice], "usage": USAGE}
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""


def instrument(kind: str, tracers: TracerProvider, loggers: LoggerProvider) -> None:
    """Have the calls of the openai package traced."""
    if kind == "opentelemetry":
        from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor

        OpenAIInstrumentor().instrument(tracer_provider=tracers, logger_provider=loggers)
    else:
        from openinference.instrumentation.openai import OpenAIInstrumentor

        OpenAIInstrumentor().instrument(tracer_provider=tracers)


def main() -> None:
    """Hold so many conversations, and export them."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint, resource = os.environ["ENDPOINT"], Resource.create({"service.name": os.environ["EMITTER"]})
    tracers, loggers = TracerProvider(resource=resource), LoggerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", compression=Compression.Gzip)))
    loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(endpoint=f"{endpoint}/v1/logs")))
    trace.set_tracer_provider(tracers)
    instrument(os.environ["EMITTER"], tracers, loggers)
    client = openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{server.server_port}/v1")
    for at in range(int(sys.argv[1])):
        with trace.get_tracer("service").start_as_current_span("handle"):
            said = [{"role": "system", "content": "Be brief."}]
            said.append({"role": "user", "content": f"Question {at}: what is the weather in Zürich?"})
            first = client.chat.completions.create(model="gpt-5-mini", messages=said, tools=TOOLS).choices[0].message
            said.append({"role": "assistant", "content": None, "tool_calls": [call.model_dump() for call in first.tool_calls]})
            said.append({"role": "tool", "tool_call_id": "call_1", "content": f"sunny {at}"})
            client.chat.completions.create(model="gpt-5-mini", messages=said, tools=TOOLS)
    tracers.shutdown()
    loggers.shutdown()


if __name__ == "__main__":
    main()
