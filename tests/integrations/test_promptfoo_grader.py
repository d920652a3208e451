"""gradeloop as promptfoo's grader: verdicts are those of the judge, and what is not a verdict is an error."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradeloop.promptfoo_grader import call_api
from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import MODEL, ModelCall, ScriptedModels, WorkerProcess
from rig.node_peers import PROMPTFOO, peer

MODELLED = {"config": {"model": MODEL}}


@pytest.fixture(autouse=True)
def judge(served: WorkerProcess, models: ScriptedModels, temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a model judge kindness, and say which worker serves it."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv("GRADELOOP_TASK_QUEUE", served.queue)
    models.script(verdicts=kindness)


def kindness(call: ModelCall) -> str | dict[str, str]:
    draft = call.draft or ""
    if "nonsense" in draft:
        return "no verdict at all"
    if "k2" in call.keys:
        return {} if "please" in draft else {"k2": "say please"}
    verdict = {"reason": f"{'please' in draft}, with {{ a brace", "pass": "please" in draft, "score": 0.9 if "please" in draft else 0.25}
    return f"<{call.tag}>{json.dumps(verdict)}</{call.tag}>" if call.tag else json.dumps(verdict)


def called(output: object, rubric: object = "is kind", options: Any = MODELLED) -> dict[str, Any]:
    return call_api("promptfoo's own prompt", options, {"vars": {"output": output, "rubric": rubric}})


@pytest.mark.slow
def test_an_llm_rubric_is_one_criterion_with_its_score_and_reason(models: ScriptedModels) -> None:
    good, bad = called("Yes, please."), called("No.")

    assert good["output"] == {"pass": True, "score": 0.9, "reason": "True, with { a brace"}
    assert bad["output"] == {"pass": False, "score": 0.25, "reason": "False, with { a brace"}
    assert good["tokenUsage"]["numRequests"] == 1
    assert good["tokenUsage"]["total"] == good["tokenUsage"]["prompt"] + good["tokenUsage"]["completion"]
    assert len(models.calls) == 2


def test_a_rubric_as_object_is_judged_criterion_by_criterion() -> None:
    assert called("No.", {"criteria": ["is short", "is kind"]})["output"] == {"pass": False, "score": 0.5, "reason": "say please"}


def test_what_is_no_verdict_is_an_error(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        (called("nonsense"), "no verdict: "),
        (called(""), "there is nothing to judge"),
        (called("x", options={"config": {"model": "nobody:at-all"}}), "nobody"),
        (call_api("a prompt", MODELLED, {"vars": {"question": "x"}}), "use it for llm-rubric"),
        (call_api("a prompt", {}, {}), "use it for llm-rubric"),
    ]
    for answer, why in rows:
        with subtests.test(why=why):
            assert list(answer) == ["error"]
            assert why in answer["error"]


@pytest.mark.slow
def test_json_that_promptfoo_has_parsed_is_judged_as_text(models: ScriptedModels) -> None:
    called({"word": "please"}, {"style": "kind"})

    assert '{"word": "please"}' in str(models.calls[0].draft)
    assert '{"style": "kind"}' in str(models.calls[0].messages)


CONFIG = """
prompts: ["{{ said }}"]
providers: [echo]
defaultTest:
  options:
    provider: {id: file://grader.py, config: {model: MODEL}}
tests:
  - {vars: {said: "Oh yes, please."}, assert: [{type: llm-rubric, value: is kind}]}
  - {vars: {said: "Oh no."}, assert: [{type: llm-rubric, value: is kind}]}
  - {vars: {said: "Oh yes, please."}, assert: [{type: llm-rubric, value: is kind, threshold: 0.95}]}
  - {vars: {said: "nonsense"}, assert: [{type: llm-rubric, value: is kind}]}
"""


@pytest.mark.slow
async def test_the_real_promptfoo_takes_its_verdicts_and_its_errors(tmp_path: Path, models: ScriptedModels) -> None:
    (tmp_path / "promptfooconfig.yaml").write_text(CONFIG.replace("MODEL", MODEL))
    (tmp_path / "grader.py").write_text("from gradeloop.promptfoo_grader import call_api\n")
    try:
        promptfoo = peer(PROMPTFOO)
    except SystemExit as error:
        pytest.skip(str(error))
    own = {"PROMPTFOO_CONFIG_DIR": str(tmp_path / "kept"), "PROMPTFOO_PYTHON": sys.executable, "PROMPTFOO_DISABLE_TELEMETRY": "1"}
    own |= {"PROMPTFOO_DISABLE_UPDATE": "1", "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1"}
    entry = promptfoo.modules / "promptfoo" / "dist" / "src" / "entrypoint.js"
    command = [str(promptfoo.node), str(entry), "eval", "--no-cache", "--no-share", "--no-progress-bar", "-o", "results.json"]
    environment = promptfoo.environment({**os.environ, **own})
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
    )

    assert done.returncode in {0, 100}, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())["results"]["results"]
    found = [(row["gradingResult"]["componentResults"][0], row) for row in sorted(results, key=lambda row: row["testIdx"])]
    assert [(result["pass"], result["score"]) for result, _ in found[:3]] == [(True, 0.9), (False, 0.25), (False, 0.9)]
    assert found[0][0]["reason"] == "True, with { a brace"
    assert "no verdict" in found[3][0]["reason"]
    assert found[0][0]["tokensUsed"]["total"] > 0
    assert len({json.dumps(call.messages) for call in models.calls if "is kind" in str(call.messages)}) >= 2
