"""`assert_rubric` in somebody's tests: it fails with the gaps, errors are no failures, and what was judged is not paid for again."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gradeloop.errors import InvalidRequest, JudgeFailed
from gradeloop.judges.contract import JudgeResult
from gradeloop.testing import MODEL, Reply, ScriptedModels, assert_rubric
from tests.rig.kit import Kit

RUBRIC = "- names the capital\n- is brief"


@pytest.fixture
def models(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> ScriptedModels:
    """Have `assert_rubric` find the run's worker, and return its models."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", kit.server.address)
    monkeypatch.setenv("GRADELOOP_TASK_QUEUE", kit.process.queue)
    kit.models.script()
    return kit.models


def asserted(output: str, **options: Any) -> JudgeResult:
    """Assert that an output meets the rubric, by the scripted judge."""
    return assert_rubric(output, RUBRIC, grader=MODEL, **options)


@pytest.mark.slow
def test_an_output_that_meets_its_rubric_is_judged_once(models: ScriptedModels) -> None:
    first = asserted("Paris.", request="Capital of France?")
    again = asserted("Paris.", request="Capital of France?")

    assert first.output["result"] == "satisfied"
    assert again == first
    assert len(models.calls) == 1
    assert "Capital of France?" in "".join(message["content"] for message in models.calls[0].messages)


def test_an_output_that_does_not_fails_with_every_gap(models: ScriptedModels) -> None:
    models.script(verdicts=[{"k2": "it has\n40 words"}])

    with pytest.raises(AssertionError) as caught:
        asserted("Paris, and much more.")

    assert str(caught.value) == "the output does not meet its rubric (score 0.50):\n  ✗ c2: is brief\n    it has 40 words\n  ✓ c1"


def test_a_refused_key_is_no_failing_assertion(models: ScriptedModels) -> None:
    models.fail(status=401)

    with pytest.raises(JudgeFailed, match=f"there is no verdict: auth: .*HTTP 401, {MODEL}: status 401"):
        asserted("About a key.")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("fine", "there is no verdict: malformed_verdict"),
        ({"unjudgeable": "it contradicts itself"}, "the rubric cannot be judged: it contradicts itself"),
    ],
)
def test_what_is_no_verdict_is_no_failing_assertion(models: ScriptedModels, answer: Reply, words: str) -> None:
    models.script(verdicts=[answer])

    with pytest.raises(JudgeFailed, match=words):
        asserted(f"About {words}.")


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


@pytest.mark.slow
async def test_a_suite_of_ones_own_starts_server_and_worker_and_shows_the_gaps(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    rows = {f"k{at}": {"reason": "read", "passed": not gap, "gap": gap} for at, gap in enumerate(("", "too long"), 1)}
    fields = {**rows, "unjudgeable": ""}
    (tmp_path / "replies.yaml").write_text(json.dumps({"replies": [{"role": "grader", "verdict": fields}]}))

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_suite.py"]
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 240)
    stopped = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "gradeloop"), "dev", "stop", stdout=asyncio.subprocess.PIPE
    )
    await stopped.communicate()

    assert process.returncode == 1, out.decode()
    assert "2 failed" in out.decode()
    assert "✗ c2: is brief" in out.decode()
    assert "too long" in out.decode()
