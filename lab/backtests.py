"""A backtest of many stored threads, as a terminal shows it, and a fork that runs one of them for real: `python -m lab.backtests`.

The models are one server whose drafts follow from the feedback, and whose verdicts follow from the draft and the criterion's text.
"""

import argparse
import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from aiohttp import web

from gradeloop.client.client import GradingClient
from gradeloop.client.listing import threads
from gradeloop.temporal.connect import WorkerSpec, connect, ensure_worker, find
from gradeloop.temporal.server import stop_server
from lab.served_app import served

CRITERIA = ("each line names what is seen", "no line explains the picture", "the last line turns away from the first")
CHANGED = "the last line turns to another place or time"
CONCURRENCY = 20


def chance(*parts: object) -> float:
    """Return a number from 0 to 1 that these parts decide."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16) / 2**32


async def chat(request: web.Request) -> web.Response:
    """Answer as Chat Completions does: with a draft, or with a verdict on the last one."""
    body = await request.json()
    texts = [str(message["content"]) for message in body["messages"]]
    asked = re.findall(r"^- \[k\d+\] (.+)$", "\n".join(texts), re.MULTILINE)
    text = f"haiku {chance(texts[0], texts[-1], len(texts)):.9f}"
    if asked:
        draft = re.findall(r"haiku 0\.\d{9}", "\n".join(texts))[-1]
        rows = {f"k{at}": _row(criterion, draft) for at, criterion in enumerate(asked, 1)}
        text = json.dumps(rows | {"unjudgeable": "", "summary": "as it is"})
    usage = {"prompt_tokens": sum(map(len, texts)) // 4, "completion_tokens": 120, "total_tokens": sum(map(len, texts)) // 4 + 120}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return web.json_response(
        {"id": "c", "created": 1, "object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage}
    )


def _row(criterion: str, draft: str) -> dict[str, Any]:
    passed = chance(criterion, draft) < 0.85
    return {"reason": "as it is", "passed": passed, "gap": "" if passed else f"it is not so that {criterion}"}


def application() -> web.Application:
    """Return the server of the models."""
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", chat)
    return app


async def write_threads(count: int, model: dict[str, Any]) -> None:
    """Have threads drafted and graded by the first rubric."""
    connection, spec = await find(), WorkerSpec()
    client = GradingClient(await connect(connection), task_queue=await ensure_worker(spec, connection))
    places = asyncio.Semaphore(CONCURRENCY)
    rubric = {"criteria": [{"description": text} for text in CRITERIA]}

    async def write(number: int) -> None:
        async with places:
            task = [{"role": "user", "content": f"Write haiku {number}."}]
            request = {"messages": task, "generator": {"model": model}, "grader": {"model": model}, "rubric": rubric, "max_iterations": 4}
            await client.result(await client.start(request, thread_id=f"haiku-{number}"))

    await asyncio.gather(*map(write, range(1, count + 1)))
    for _ in range(120):  # until the server lists them all as closed
        if len([one async for one in threads(client.temporal, limit=count) if not one.open]) == count:
            return
        await asyncio.sleep(0.5)


def show(folder: Path, *arguments: str) -> None:
    """Run a command, and print it with what it prints."""
    print(f"$ gradeloop {' '.join(arguments)}", flush=True)
    subprocess.run([Path(sys.executable).with_name("gradeloop"), *arguments], cwd=folder, check=False)


def main() -> None:
    """Write the threads, and show what the commands print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=400)
    count = parser.parse_args().threads
    with tempfile.TemporaryDirectory() as name, served(application) as url:
        folder = Path(name)
        (folder / "prices.toml").write_text('prices = [{provider = "openai_compatible", models = "poet", input = 1.0, output = 4.0}]')
        (folder / "rubric-v2.md").write_text("\n".join(f"- {text}" for text in (*CRITERIA[:2], CHANGED)))
        os.environ |= {"GRADELOOP_STATE_DIR": str(folder / "state"), "GRADELOOP_PRICES": str(folder / "prices.toml"), "COLUMNS": "140"}
        os.environ["GRADELOOP_BASE_URLS"] = f"{url}/v1"
        model = {"id": "openai_compatible:poet", "config": {"base_url": f"{url}/v1", "structured_output": True}}
        try:
            asyncio.run(write_threads(count, model))
            show(folder, "backtest", "rubric-v2.md", "--since", "30d", "--preview")
            show(folder, "backtest", "rubric-v2.md", "--since", "30d", "-o", "backtest.html")
            show(folder, "fork", "haiku-1@1", "--rubric", "rubric-v2.md", "--thread", "haiku-1-v2")
            show(folder, "show", "haiku-1")
        finally:
            subprocess.run([Path(sys.executable).with_name("gradeloop"), "dev", "stop"], check=False, capture_output=True)
            asyncio.run(stop_server())


if __name__ == "__main__":
    main()
