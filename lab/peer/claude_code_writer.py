"""Sessions that Claude Code writes, driven by its Agent SDK with a scripted provider: `claude_code_writer.py FOLDER`."""

# mypy: ignore-errors
import asyncio
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(sys.argv[1]).resolve()
os.environ |= {"CLAUDE_CONFIG_DIR": str(FOLDER / "config"), "HOME": str(FOLDER / "home")}

from claude_agent_sdk import AgentDefinition, ClaudeAgentOptions, get_session_messages, get_subagent_messages, list_subagents, query  # noqa: E402 - its folders are set


def script(messages, tools):
    """Return the blocks that the model answers with."""
    texts = [
        one
        for message in messages
        if message["role"] == "user"
        for one in ([{"type": "text", "text": message["content"]}] if isinstance(message["content"], str) else message["content"])
    ]
    asked = "\n".join(one.get("text", "") for one in texts)
    results = sum(one["type"] == "tool_result" for one in texts)
    names = {tool["name"] for tool in tools}
    if not names:
        return [text("A title")]
    if "MAPS" in asked and "WEATHER" not in asked:
        return [text("A map of Zürich.")] if results else [call("sub1", "Bash", command="echo map", description="Print")]
    delegate = "Agent" if "Agent" in names else "Task"
    if "AGAIN" in asked:
        return [text("Still sunny.")]
    if results == 0:
        return [
            thinking("I look first."),
            text("I look."),
            call("t1", "Bash", command="echo sunny", description="Print"),
            call("t2", "Bash", command="exit 3", description="Fail"),
        ]
    if results == 2:
        return [call("t3", delegate, description="maps", prompt="MAPS", subagent_type="helper")]
    return [text("Sunny in Zürich.")]


def text(words):
    return {"type": "text", "text": words}


def thinking(words):
    return {"type": "thinking", "thinking": words, "signature": "c2ln"}


def call(identifier, name, **given):
    return {"type": "tool_use", "id": f"toolu_{identifier}", "name": name, "input": given}


class Provider(BaseHTTPRequestHandler):
    """Answers Anthropic's Messages, as a stream or whole."""

    number = 0

    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.startswith("/v1/messages") or "count_tokens" in self.path:
            self.whole({"input_tokens": 1})
            return
        Provider.number += 1
        blocks = script(sent["messages"], sent.get("tools") or [])
        stop = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
        about = {"id": f"msg_{Provider.number}", "type": "message", "role": "assistant", "model": sent["model"], "stop_sequence": None}
        usage = {"input_tokens": 1, "output_tokens": 1}
        if not sent.get("stream"):
            self.whole({**about, "content": blocks, "stop_reason": stop, "usage": usage})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.event(type="message_start", message={**about, "content": [], "stop_reason": None, "usage": usage})
        for at, block in enumerate(blocks):
            self.block(at, block)
        self.event(type="message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": 1})
        self.event(type="message_stop")

    def block(self, at, block) -> None:
        kind = block["type"]
        key, empty = {"text": ("text", ""), "thinking": ("thinking", ""), "tool_use": ("input", {})}[kind]
        self.event(
            type="content_block_start", index=at, content_block={**block, key: empty, **({"signature": ""} if kind == "thinking" else {})}
        )
        deltas = {
            "text": [{"type": "text_delta", "text": block.get("text")}],
            "thinking": [{"type": "thinking_delta", "thinking": block.get("thinking")}, {"type": "signature_delta", "signature": "c2ln"}],
            "tool_use": [{"type": "input_json_delta", "partial_json": json.dumps(block.get("input"))}],
        }[kind]
        for delta in deltas:
            self.event(type="content_block_delta", index=at, delta=delta)
        self.event(type="content_block_stop", index=at)

    def event(self, **value) -> None:
        self.wfile.write(f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode())

    def do_GET(self) -> None:
        self.whole({})

    def do_HEAD(self):
        """Answer that there is something."""
        self.whole({})

    def whole(self, value) -> None:
        raw = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_arguments) -> None:
        """Log nothing."""


async def ask(prompt, url, **options):
    """Ask, and return the id of the session, and the lines that the program printed."""
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "DISABLE_TELEMETRY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CONFIG_DIR": os.environ["CLAUDE_CONFIG_DIR"],
        "HOME": os.environ["HOME"],
    }
    helper = AgentDefinition(description="Finds maps", prompt="Find maps.", tools=["Bash"])
    chosen = ClaudeAgentOptions(
        cwd=str(FOLDER / "work"),
        env=environment,
        allowed_tools=["Bash", "Task", "Agent"],
        agents={"helper": helper},
        model="claude-sonnet-4-5",
        max_turns=9,
        **options,
    )
    session = None
    async for message in query(prompt=prompt, options=chosen):
        session = getattr(message, "session_id", None) or session
    return session


def file_of(session):
    return next(Path(os.environ["CLAUDE_CONFIG_DIR"], "projects").rglob(f"{session}.jsonl"))


def main() -> None:
    for name in ("work", "home", "config"):
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    one = asyncio.run(ask("WEATHER: where is Zürich?", url))
    asyncio.run(ask("AGAIN?", url, resume=one))
    other = asyncio.run(ask("WEATHER: and Bern?", url))
    forked = asyncio.run(ask("AGAIN?", url, resume=other, fork_session=True))
    work, counts, files = str(FOLDER / "work"), {}, []
    for name, session in (("one", one), ("other", other), ("forked", forked)):
        counts[f"{name}.jsonl"] = held(get_session_messages(session, directory=work))
        files.append(file_of(session))
        (FOLDER / f"{name}.jsonl").write_bytes(files[-1].read_bytes())
    below = files[0].with_suffix("") / "subagents"
    agents = [path.read_bytes() for path in sorted(below.glob("*.jsonl"))]
    spoken = [said for agent in list_subagents(one, directory=work) for said in get_subagent_messages(one, agent, directory=work)]
    (FOLDER / "with_subagents.jsonl").write_bytes(b"".join([files[0].read_bytes(), *agents]))
    counts["with_subagents.jsonl"] = together(counts["one.jsonl"], held(spoken)) | {"runs": 1}
    (FOLDER / "all.jsonl").write_bytes(b"".join(path.read_bytes() for path in files))
    counts["all.jsonl"] = together(*(counts[f"{name}.jsonl"] for name in ("one", "other", "forked")))
    (FOLDER / "counts.json").write_text(json.dumps(counts, ensure_ascii=False, indent=1), encoding="utf-8")


def held(said):
    """Return what the SDK holds of a session's messages."""
    blocks = [
        block
        for one in said
        for block in ([text(one.message["content"])] if isinstance(one.message["content"], str) else one.message["content"])
    ]
    results = [block for block in blocks if block["type"] == "tool_result"]
    return {
        "texts": [block["text"] for block in blocks if block["type"] == "text"],
        "reasoning": [block["thinking"] for block in blocks if block["type"] == "thinking"],
        "calls": [[block["id"], block["name"], block["input"]] for block in blocks if block["type"] == "tool_use"],
        "results": [[block["tool_use_id"], flat(block["content"]), bool(block.get("is_error"))] for block in results],
        "messages": None,
        "others": None,
    }


def flat(content):
    return content if isinstance(content, str) else "\n".join(block["text"] for block in content)


def together(*several):
    """Return what several sessions hold in one file."""
    joined = {key: [row for one in several for row in one[key]] for key in ("texts", "reasoning", "calls", "results")}
    return {**joined, "runs": len(several), "messages": None, "others": None}


if __name__ == "__main__":
    main()
