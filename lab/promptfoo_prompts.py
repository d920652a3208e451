"""Configurations of others on promptfoo and on `gradeloop eval`, before one scripted mock: case counts, the prompts sent, the verdicts.

    python -m lab.promptfoo_prompts FOLDER [--count 20] [--only NAME ...]

Those of a folder are taken whose providers are all OpenAI's or `echo`, which are taken whole and name no code that is not there. What each
side sends to draft is compared text by text, byte for byte; the mock answers both sides alike, and passes whatever it is asked to judge.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gradeloop.files.yaml import read_yaml
from gradeloop.temporal.server import stop_server
from lab.peer.promptfoo_suite import Promptfoo, promptfoo
from lab.promptfoo_corpus import check_corpus
from lab.promptfoo_differences import PROMPT_DIFFERENCES

GRADELOOP = Path(sys.executable).parent / "gradeloop"
MOST_CASES = 30
SECONDS = 300.0

JsonObject = dict[str, Any]
Prompt = tuple[tuple[str, str], ...]
"""What a call sends: roles and texts."""


@dataclass
class Side:
    """What one side sent, and what it came to."""

    prompts: Counter[Prompt] = field(default_factory=Counter)
    statuses: list[str] = field(default_factory=list)
    """Of every case, in the order of tests, prompts and providers, as far as a side keeps it."""


@dataclass(frozen=True)
class Compared:
    """A configuration on both sides."""

    name: str
    theirs: Side
    ours: Side

    def differences(self) -> list[str]:
        """Return what differs, in a few words each."""
        found = []
        if len(self.theirs.statuses) != len(self.ours.statuses):
            found.append(f"cases: {len(self.theirs.statuses)} there, {len(self.ours.statuses)} here")
        missing, more = self.theirs.prompts - self.ours.prompts, self.ours.prompts - self.theirs.prompts
        found += [f"sent there alone: {_shown(prompt)}" for prompt in missing]
        found += [f"sent here alone: {_shown(prompt)}" for prompt in more]
        verdicts = Counter(self.theirs.statuses), Counter(self.ours.statuses)
        if verdicts[0] != verdicts[1]:
            found.append(f"verdicts: {dict(verdicts[0])} there, {dict(verdicts[1])} here")
        return found


def _shown(prompt: Prompt) -> str:
    return json.dumps(prompt, ensure_ascii=False)[:300]


@dataclass
class Mock:
    """OpenAI's API: a draft names the prompt that it answers, a judge passes, an embedding is always the same."""

    sent: Counter[Prompt] = field(default_factory=Counter)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request."""
        if path.endswith("/embeddings"):
            given = body["input"] if isinstance(body["input"], list) else [body["input"]]
            rows = [{"object": "embedding", "index": at, "embedding": [0.6, 0.8]} for at in range(len(given))]
            return {"object": "list", "model": body["model"], "data": rows, "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        prompt = _prompt(body)
        form = body.get("response_format") or (body.get("text") or {}).get("format") or {}
        schema = form.get("schema") or (form.get("json_schema") or {}).get("schema") or {}
        text = _verdict(schema, prompt)
        if text is None:
            self.sent[prompt] += 1
            text = f"Mock answer {sha256(json.dumps(prompt).encode()).hexdigest()[:8]}."
        return _chat(body, text) if path.endswith("/chat/completions") else _responses(body, text)


def _prompt(body: dict[str, Any]) -> Prompt:
    said = [("system", body["instructions"])] if body.get("instructions") else []
    given: Any = body.get("messages", body.get("input"))
    for message in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        content = message.get("content")
        texts = [part.get("text", part.get("image_url", "")) for part in content] if isinstance(content, list) else [content or ""]
        role = str(message.get("role"))
        said += [("system" if role == "developer" else role, text if isinstance(text, str) else str(text.get("url"))) for text in texts]
    return tuple(said)


def _verdict(schema: dict[str, Any], prompt: Prompt) -> str | None:
    """Return a judge's pass in the form that is asked for; None for a call that drafts."""
    fields = schema.get("properties", {})
    if "k1" in fields:
        rows = {key: {"reason": "So.", "passed": True, "gap": ""} for key in fields if key not in {"unjudgeable", "summary"}}
        return json.dumps({**rows, "unjudgeable": "", "summary": "So."})
    judged = {"reason": "So.", "pass": True, "score": 1}
    if {"pass", "score"} <= set(fields):
        return json.dumps(judged)
    said = "\n".join(text for _, text in prompt)
    if tag := re.search(r"<(verdict-[0-9a-f]{16})>", said):
        return f"<{tag[1]}>{json.dumps(judged)}</{tag[1]}>"
    answers = (answer for pattern, answer in _ASKED.items() if re.search(pattern, said, re.DOTALL))
    return next((json.dumps(answer) for answer in answers), None)


_ASKED: dict[str, JsonObject] = {
    r"pass\W{1,3}(boolean|true)": {"reason": "So.", "pass": True, "score": 1},
    r"'verdict' and 'reason'": {"verdict": "yes", "reason": "So."},
    r"concise evaluation steps": {"steps": ["Read it."]},
    r"evaluation steps.*score": {"score": 10, "reason": "So."},
}
"""What promptfoo's judges ask for, by words of their prompts, and what they are answered."""


def _chat(body: dict[str, Any], text: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice], "usage": usage}


def _responses(body: dict[str, Any], text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    output = [{"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": content}]
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": body["model"],
        "output": output,
        "usage": usage,
    }


@contextmanager
def serving(mock: Mock) -> Iterator[str]:
    """Serve the mock on a free port, and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = mock.answer(self.path, body)
            streamed = body.get("stream") and self.path.endswith("/responses")
            text = f"data: {json.dumps({'type': 'response.completed', 'response': reply})}\n\n" if streamed else json.dumps(reply)
            raw = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream" if streamed else "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


def choose(folder: Path, count: int) -> list[Path]:
    """Return configurations of a folder that run before the mock as they are."""
    corpus = check_corpus(folder)
    chosen = []
    for name, report in corpus.checked.items():
        if report.verdict != "whole" or name in corpus.stubbed:
            continue
        value = read_yaml(folder / name, "the configuration", aliases=True)
        providers = value.get("providers", value.get("targets")) if isinstance(value, dict) else None
        listed = providers if isinstance(providers, list) else [providers]
        ids = [str(one.get("id") if isinstance(one, dict) else one) for one in listed]
        cases = int(report.lines()[0].rpartition(": ")[2].split()[0])
        if cases <= MOST_CASES and all(identifier.startswith(("openai:", "echo")) for identifier in ids):
            chosen.append(folder / name)
    return chosen[:count]


def theirs(peer: Promptfoo, config: Path) -> list[str]:
    """Return what promptfoo makes of every case."""
    states = {True: "passed", False: "failed"}
    return ["error" if one["failureReason"] == 2 else states[bool(one["success"])] for one in peer.evaluate(config).results]


def ours(url: str, config: Path, folder: Path) -> list[str]:
    """Return what gradeloop makes of every case; `refused` where it runs none."""
    output = folder / "ours.json"
    output.unlink(missing_ok=True)
    environment = os.environ | {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-mock"}
    command = [str(GRADELOOP), "eval", str(config), "--allow-code", "--output", str(output), "--overwrite"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    if not output.exists():
        return [f"refused: {(done.stderr or done.stdout).strip()[-300:]}"]
    return [str(case["status"]) for case in json.loads(output.read_text())["cases"]]


async def compare(configs: Sequence[Path], root: Path, folder: Path) -> list[Compared]:
    """Run the configurations on both sides, each before a mock of its own."""
    os.environ["GRADELOOP_STATE_DIR"] = str(folder / "state")
    first, second, found = Mock(), Mock(), list[Compared]()
    with serving(first) as there, serving(second) as here:
        peer = promptfoo(there, folder)
        try:
            for config in configs:
                first.sent, second.sent = Counter(), Counter()
                one = await asyncio.to_thread(theirs, peer, config)
                other = await asyncio.to_thread(ours, here, config, folder)
                found.append(Compared(str(config.relative_to(root)), Side(first.sent, one), Side(second.sent, other)))
                print(f"{found[-1].name}: {len(one)} cases, {sum(first.sent.values())} prompts", flush=True)
                print("".join(f"    {line}\n" for line in found[-1].differences()), end="", flush=True)
        finally:
            await stop_server()
    return found


def main() -> int:
    """Print what differs; 1 where something does that has no name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--only", nargs="+", default=(), help="the names of configurations in the folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradeloop-prompts-") as name:
        copy = Path(name) / "corpus"
        shutil.copytree(given.folder, copy)
        configs = [copy / one for one in given.only] or choose(copy, given.count)
        found = asyncio.run(compare(configs, copy, Path(name)))
    same = [one for one in found if not one.differences()]
    unnamed = [one.name for one in found if one.differences() and one.name not in PROMPT_DIFFERENCES]
    print(f"{len(found)} configurations, {sum(len(one.theirs.statuses) for one in found)} cases, {len(same)} the same")
    for one in found:
        if one.name in PROMPT_DIFFERENCES and one.differences():
            print(f"{one.name}: {PROMPT_DIFFERENCES[one.name]}")
    print(f"without a name: {', '.join(unnamed) or 'none'}")
    return int(bool(unnamed))


if __name__ == "__main__":
    raise SystemExit(main())
