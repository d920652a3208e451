"""The scorer in TypeScript that a real `isTaskComplete` of Mastra runs, before a writer and a judge on this machine."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import MODEL, ModelCall, ScriptedModels, WorkerProcess
from rig.node_peers import MASTRA, peer
from tests.conftest import ROOT
from tests.docs.runner import block_of

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-the-tests"

WRITER = """
import { createServer } from "node:http";

const drafts = process.argv.slice(2), asked = [], results = [];
const writer = createServer(async (request, reply) => {
  let body = "";
  for await (const part of request) body += part;
  asked.push(JSON.stringify(JSON.parse(body).messages));
  const piece = (delta, finish_reason = null) => {
    const chunk = { id: "c", object: "chat.completion.chunk", created: 1, model: "w", choices: [{ index: 0, delta, finish_reason }] };
    reply.write(`data: ${JSON.stringify(chunk)}\\n\\n`);
  };
  reply.writeHead(200, { "Content-Type": "text/event-stream" });
  piece({ role: "assistant", content: drafts[Math.min(asked.length, drafts.length) - 1] });
  piece({}, "stop");
  reply.end("data: [DONE]\\n\\n");
});
await new Promise((ready) => writer.listen(0, "127.0.0.1", ready));
const model = { id: "openai/writer", url: `http://127.0.0.1:${writer.address().port}/v1`, apiKey: "sk-mock" };
"""
ENDED = """
console.log(JSON.stringify({ text: await stream.text, asked, results }));
process.exit(0);
"""
CHANGED = {
    '"http://127.0.0.1:8765/mcp"': "process.env.DOOR",
    'model: "openai/gpt-5-mini"': "model",
    "console.log(result.scorers[0].reason)": "results.push(result)",
}
"""What differs from the page: the address, the model, which is a mock, and what is done with the results."""


def agent() -> str:
    """Return the agent of the page."""
    text = block_of("docs/tutorials/from-mastra.md", "ts").text
    for written, changed in CHANGED.items():
        assert text.count(written) == 1
        text = text.replace(written, changed)
    return WRITER + text + ENDED


def month(call: ModelCall) -> str | dict[str, str]:
    draft = call.draft or ""
    return "no verdict at all" if "nonsense" in draft else {} if "May" in draft else {"k1": "name the month"}


@pytest.fixture
def door(served: WorkerProcess, temporal_server: ServerInfo, tmp_path: Path, models: ScriptedModels) -> Any:
    """Serve the judge by HTTP, and yield the address."""
    models.script(verdicts=month)
    environment = {**os.environ, "TEMPORAL_ADDRESS": temporal_server.address, "GRADELOOP_TASK_QUEUE": served.queue}
    command = [str(Path(sys.executable).with_name("gradeloop")), "mcp", "--http", "127.0.0.1:0", "--grader", MODEL]
    environment |= {"GRADELOOP_MCP_TOKEN": TOKEN}
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        yield first.removeprefix("serving ").strip()
        process.terminate()


async def gated(folder: Path, door: str, *drafts: str) -> dict[str, Any]:
    """Run an agent of Mastra whose model writes these drafts, until the scorer is content or three steps are done."""
    try:
        mastra = peer(MASTRA)
    except SystemExit as error:
        pytest.skip(str(error))
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "node_modules").symlink_to(mastra.modules)
    (folder / "agent.ts").write_text(agent())
    shutil.copy(ROOT / "examples" / "mastra_scorer" / "scorer.ts", folder)
    command = [str(mastra.node), "--preserve-symlinks", "agent.ts", *drafts]
    own = mastra.environment({**os.environ, "MASTRA_TELEMETRY_DISABLED": "1", "DOOR": door, "GRADELOOP_MCP_TOKEN": TOKEN})
    done = await asyncio.to_thread(subprocess.run, command, cwd=folder, env=own, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    ended: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return ended


async def test_a_real_agent_goes_on_until_the_judge_is_content(door: str, tmp_path: Path) -> None:
    ended = await gated(tmp_path, door, "Frogs.", "Frogs in May.")

    assert [(result["complete"], result["scorers"][0]["score"]) for result in ended["results"]] == [(False, 0), (True, 1)]
    assert ended["results"][0]["scorers"][0]["reason"] == "❌ names the month: name the month\n✅ is one sentence long: as scripted"
    assert "name the month" in ended["asked"][1]
    assert "Frogs in May." in ended["text"]


async def test_a_judge_without_a_verdict_is_marked_as_an_error_and_no_score(door: str, tmp_path: Path) -> None:
    ended = await gated(tmp_path, door, "nonsense", "Frogs in May.")

    first, second = (result["scorers"][0] for result in ended["results"])
    assert (first["errored"], first["passed"]) == (True, False)
    assert "no verdict: " in first["reason"]
    assert (second.get("errored"), second["score"]) == (None, 1)
