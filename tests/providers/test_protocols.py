"""The same story over three protocols: a command, a worker, HTTP, and the same result."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import chain
from typing import Any

import pytest

from tests.rig.cli import CommandLine, Done
from tests.rig.model_server import KEY, ModelServer, Reply, serving

TOOLS = """
def count_lines(text: str) -> int:
    \"\"\"Count the lines of a text.\"\"\"
    return len(text.splitlines())
"""

RUBRIC = "- it has two lines\n- the theme is spring"


def _verdict(*gaps: str) -> str:
    rows = {f"k{at}": {"reason": "As counted.", "passed": not gap, "gap": gap} for at, gap in enumerate(gaps, 1)}
    return json.dumps({**rows, "unjudgeable": "", "summary": "Counted and read."})


STORY = {
    "writer": (Reply("one line of spring"), Reply("spring is\nhere")),
    "judge": (
        Reply("I count.", (("count_lines", {"text": "one line of spring"}), ("count_lines", {"text": ""}))),
        Reply(_verdict("it has one line", "")),
        Reply(calls=(("count_lines", {"text": "spring is\nhere"}),)),
        Reply(_verdict("", "")),
    ),
}


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command in a folder with a file of tools."""
    (commands.folder / "tools.py").write_text(TOOLS)
    return commands


PROTOCOLS = ("anthropic", "openai", "openai_compatible")


def task(gradeloop: CommandLine, provider: str, config: dict[str, Any]) -> str:
    """Write a task for a provider's models `writer` and `judge`, and return the file's name."""
    fields = {
        "prompt": "Write two lines about spring.",
        "rubric": RUBRIC,
        "generator": {"model": {"id": f"{provider}:writer", "config": config}},
        "grader": {"model": {"id": f"{provider}:judge", "config": config}, "tools": ["count_lines"]},
        "tools": "tools.py",
    }
    (gradeloop.folder / f"{provider}.yaml").write_text(json.dumps(fields))
    return f"{provider}.yaml"


def outcome_of(done: Done) -> dict[str, Any]:
    """Return what a run came to, without what differs between any two runs."""
    result = done.result
    assert done.code == 0, done.err
    rows = [[(row["id"], row["passed"], row.get("gap")) for row in evaluation["criteria"]] for evaluation in result["evaluations"]]
    results = [evaluation["result"] for evaluation in result["evaluations"]]
    contents = [(message["role"], message["content"]) for message in result["messages"]]
    usage = {name: count for name, count in result["usage"].items() if name != "seconds"}
    return {"output": result["output"], "usage": usage, "rows": rows, "results": results, "messages": contents}


def reached(provider: str, url: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the models' settings and the variables by which a provider's calls go to a server."""
    if provider == "anthropic":
        return {}, {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY}
    if provider == "openai":
        return {}, {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": KEY}
    return {"base_url": f"{url}/v1", "structured_output": True}, {"GRADELOOP_BASE_URLS": f"{url}/v1"}


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[ModelServer]:
    """Serve the story in all protocols."""
    async with serving(STORY) as served:
        yield served


async def run(gradeloop: CommandLine, server: ModelServer, provider: str) -> tuple[Done, list[dict[str, Any]]]:
    """Run the story over a provider's protocol, by one worker for all of them; return what it came to, and the requests."""
    server.start_again()
    variables = dict(chain.from_iterable(reached(each, server.url)[1].items() for each in PROTOCOLS))
    name = task(gradeloop, provider, reached(provider, server.url)[0])
    return await asyncio.to_thread(gradeloop, "run", name, "--json", **variables), list(server.requests)


@pytest.mark.slow
async def test_all_protocols_give_the_same_result(gradeloop: CommandLine, server: ModelServer) -> None:
    ended, requests = zip(*[await run(gradeloop, server, provider) for provider in PROTOCOLS], strict=True)
    results = [outcome_of(done) for done in ended]

    assert results[0] == results[1] == results[2]
    assert results[0]["output"] == "spring is\nhere"
    assert results[0]["results"] == ["needs_revision", "satisfied"]
    assert results[0]["rows"][0] == [("c1", False, "it has one line"), ("c2", True, None)]
    tokens = {"input": 720, "cached": 120, "cache_written": 0, "output": 60, "reasoning": 0}
    assert results[0]["usage"] == tokens | {"calls": 6, "attempts": 6, "cost_usd": None}
    for asked in requests:
        assert [request["model"] for request in asked] == ["writer", "judge", "judge", "writer", "judge", "judge"]


@pytest.mark.slow
async def test_a_server_that_does_not_report_usage_leaves_it_unknown_and_not_zero(
    gradeloop: CommandLine, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "reports_usage", False)
    done, _ = await run(gradeloop, server, "openai_compatible")

    usage, passes = outcome_of(done)["usage"], [evaluation["usage"] for evaluation in done.result["evaluations"]]
    unknown = {"input": None, "output": None, "cost_usd": None}
    assert {name: usage[name] for name in unknown} == unknown
    assert (usage["calls"], usage["attempts"]) == (6, 6)
    assert [{name: one[name] for name in unknown} | {"calls": one["calls"]} for one in passes] == [unknown | {"calls": 2}] * 2


async def test_a_base_url_that_the_worker_does_not_allow_is_refused(gradeloop: CommandLine, server: ModelServer) -> None:
    server.start_again()
    elsewhere = server.url.replace("127.0.0.1", "127.0.0.2").replace("localhost", "127.0.0.2")
    name = task(gradeloop, "openai_compatible", reached("openai_compatible", elsewhere)[0])
    done = await asyncio.to_thread(gradeloop, "run", name, "--json", GRADELOOP_BASE_URLS="http://127.0.0.1:1/v1")

    assert done.code == 2
    assert "GRADELOOP_BASE_URLS" in done.err
    assert server.requests == []
