"""`assert_rubric` in somebody's tests: it fails with the gaps, errors are no failures, and what was judged is not paid for again."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.embedded import ServerInfo
from gradeloop.errors import InvalidRequest, JudgeFailed
from gradeloop.testing import assert_rubric
from tests.judging import fails
from tests.threads import row, serving, verdict

RUBRIC = "- names the capital\n- is brief"


@pytest.fixture
def queue(temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Name a queue that the test serves."""
    name = f"assert-{request.node.name}"
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv("GRADELOOP_TASK_QUEUE", name)
    return name


def says(*rows: dict[str, Any], step: int = 0, **more: Any) -> dict[str, Any]:
    """Return a grader's verdict."""
    return {"role": "grader", "step": step, "verdict": verdict(*rows, **more)}


async def asserted(output: str, rubric: Any = RUBRIC, **options: Any) -> Any:
    """Assert in a thread, since the worker is served by this one's loop."""
    return await asyncio.to_thread(assert_rubric, output, rubric, grader="scripted:judge", **options)


async def test_an_output_that_meets_its_rubric_is_judged_once(client: Client, queue: str) -> None:
    async with serving(client, says(row("c1"), row("c2")), queue=queue) as desk:
        first = await asserted("Paris.", request="Capital of France?")
        again = await asserted("Paris.", request="Capital of France?")

    assert first.output["result"] == "satisfied"
    assert again == first
    assert len(desk.models.asked) == 1
    assert "Capital of France?" in "".join(message.content for message in desk.models.asked[0].messages)


async def test_an_output_that_does_not_fails_with_every_gap(client: Client, queue: str) -> None:
    async with serving(client, says(row("c1"), row("c2", "it has\n40 words")), queue=queue):
        with pytest.raises(AssertionError) as caught:
            await asserted("Paris, and much more.")

    assert str(caught.value) == "the output does not meet its rubric (score 0.50):\n  ✗ c2: is brief\n    it has 40 words\n  ✓ c1"


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ([fails("auth")], "there is no verdict: auth: scripted:judge: as it was told to"),
        ([{"role": "grader", "step": step, "text": "fine"} for step in range(3)], "there is no verdict: malformed_verdict"),
        ([says(row("c1"), result="failed", explanation="it contradicts itself")], "the rubric cannot be judged: it contradicts itself"),
    ],
)
async def test_what_is_no_verdict_is_no_failing_assertion(client: Client, queue: str, replies: list[dict[str, Any]], words: str) -> None:
    async with serving(client, *replies, queue=queue):
        with pytest.raises(JudgeFailed, match=words):
            await asserted(f"About {words}.")


def test_what_makes_no_sense_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="no provider key is set"):
        assert_rubric("Paris.", RUBRIC)
    with pytest.raises(InvalidRequest, match="a person decides c1; a judge asks nobody"):
        assert_rubric("Paris.", {"criteria": [{"description": "kind", "human": True}]}, grader="openai:gpt-5")
    with pytest.raises(InvalidRequest, match=r"tools: 'no\.py' does not exist; name a file"):
        assert_rubric("Paris.", RUBRIC, tools=["no.py"])


SUITE = '''
import pytest

from gradeloop.testing import assert_rubric


@pytest.mark.parametrize("text", ["Paris.", "Lyon."])
def test_capital(text):
    """The script says that every text fails its second criterion."""
    assert_rubric(text, "- names it\\n- is brief", grader="scripted:judge", scripted="replies.yaml")
'''


async def test_a_suite_of_ones_own_starts_server_and_worker_and_shows_the_gaps(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    told = verdict(row("c1"), row("c2", "too long"))
    (tmp_path / "replies.yaml").write_text(json.dumps({"replies": [{"role": "grader", "verdict": told}]}))

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_suite.py"]
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 100)
    stopped = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "gradeloop"), "dev", "stop", stdout=asyncio.subprocess.PIPE
    )
    await stopped.communicate()

    assert process.returncode == 1, out.decode()
    assert "2 failed" in out.decode()
    assert "✗ c2: is brief" in out.decode()
    assert "too long" in out.decode()
