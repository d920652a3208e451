"""The same story over two vendors' protocols: a command, a worker, HTTP, and the same result."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli import CommandLine, Done
from tests.model_server import KEY, Reply, serving

TOOLS = """
def count_lines(text: str) -> int:
    \"\"\"Count the lines of a text.\"\"\"
    return len(text.splitlines())
"""

RUBRIC = "- it has two lines\n- the theme is spring"


def _verdict(*gaps: str | None) -> str:
    rows = [{"id": f"c{at}", "reason": "As counted.", "passed": gap is None, "gap": gap} for at, gap in enumerate(gaps, 1)]
    result = "needs_revision" if any(gaps) else "satisfied"
    return json.dumps({"criteria": rows, "explanation": "Counted and read.", "result": result})


STORY = {
    "writer": (Reply("one line of spring"), Reply("spring is\nhere")),
    "judge": (
        Reply("I count.", (("count_lines", {"text": "one line of spring"}), ("count_lines", {"text": ""}))),
        Reply(_verdict("it has one line", None)),
        Reply(calls=(("count_lines", {"text": "spring is\nhere"}),)),
        Reply(_verdict(None, None)),
    ),
}


@pytest.fixture(scope="module")
def gradeloop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Return the command in a folder with a file of tools."""
    command = CommandLine(tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("files"))
    (command.folder / "tools.py").write_text(TOOLS)
    yield command
    command.end()


def task(gradeloop: CommandLine, provider: str, config: dict[str, str]) -> str:
    """Write a task for a provider's models `writer` and `judge`, and return the file's name."""
    told = {
        "prompt": "Write two lines about spring.",
        "rubric": RUBRIC,
        "generator": {"model": {"id": f"{provider}:writer", "config": config}},
        "grader": {"model": {"id": f"{provider}:judge", "config": config}, "tools": ["count_lines"]},
        "tools": "tools.py",
    }
    (gradeloop.folder / f"{provider}.yaml").write_text(json.dumps(told))
    return f"{provider}.yaml"


def told(done: Done) -> dict[str, Any]:
    """Return what a run came to, without what differs between any two runs."""
    result = done.result
    assert done.code == 0, done.err
    rows = [[(row["id"], row["passed"], row.get("gap")) for row in each["criteria"]] for each in result["evaluations"]]
    results = [each["result"] for each in result["evaluations"]]
    contents = [(message["role"], message["content"]) for message in result["messages"]]
    return {"output": result["output"], "usage": result["usage"], "rows": rows, "results": results, "messages": contents}


async def run(gradeloop: CommandLine, provider: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the story over a provider's protocol; return what it came to, and the requests."""
    async with serving(STORY) as server:
        if provider == "anthropic":
            name, variables = task(gradeloop, provider, {}), {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": KEY}
        else:
            name, variables = task(gradeloop, provider, {"base_url": f"{server.url}/v1"}), {"GRADELOOP_BASE_URLS": f"{server.url}/v1"}
        done = await asyncio.to_thread(gradeloop, "run", name, "--json", **variables)
        return told(done), server.requests


async def test_both_protocols_give_the_same_result(gradeloop: CommandLine) -> None:
    messages, asked = await run(gradeloop, "anthropic")
    chat, asked_too = await run(gradeloop, "openai_compatible")

    assert messages == chat
    assert messages["output"] == "spring is\nhere"
    assert messages["results"] == ["needs_revision", "satisfied"]
    assert messages["rows"][0] == [("c1", False, "it has one line"), ("c2", True, None)]
    assert messages["usage"] == {"input": 720, "cached": 120, "output": 60, "reasoning": 0, "calls": 6}
    assert [request["model"] for request in asked] == [request["model"] for request in asked_too]
    assert [request["model"] for request in asked] == ["writer", "judge", "judge", "writer", "judge", "judge"]


async def test_a_base_url_that_the_worker_does_not_allow_is_refused(gradeloop: CommandLine) -> None:
    async with serving(STORY) as server:
        name = task(gradeloop, "openai_compatible", {"base_url": f"{server.url}/v1"})
        done = await asyncio.to_thread(gradeloop, "run", name, "--json", GRADELOOP_BASE_URLS="http://127.0.0.1:1/v1")

    assert done.code == 2
    assert "GRADELOOP_BASE_URLS" in done.err
    assert server.requests == []
