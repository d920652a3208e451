"""Results as promptfoo imports them: its own package reads them, and finds the same counts, scores, metrics, tokens and cost."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.batches.outputs import Outputs
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.contract.messages import Usage
from gradeloop.contract.named_metrics import DerivedMetric, MetricShare
from tests.rig.promptfoo_package import installed_promptfoo

SPENT = Usage(input=100, output=20, calls=2, attempts=2, seconds=1.5, cost_usd=0.25)


def result(at: int, status: str, label: str, score: float | None = None, **more: Any) -> CaseResult:
    passed = status == "passed"
    row = CriterionRow(id="c1", name="it is kind", passed=passed, reason="it is" if passed else "it is \ud800not", score=score)
    whole = {"index": at, "id": f"case-{at // 2}/{label}", "status": status, "score": score, "label": label, "output": f"output {at}"}
    whole |= {
        "criteria": (row,),
        "usage": SPENT,
        "vars": {"q": f"question {at // 2}"},
        "metrics": (MetricShare(name="Tone", criterion="c1"),),
    }
    return CaseResult.model_validate(whole | more)


RESULTS = [
    result(0, "passed", "one", 1.0, after_each={"named_scores": {"Added": 3.0}, "metadata": {"by": "a hook"}}),
    result(1, "failed", "two", 0.25),
    result(2, "passed", "one", 0.5),
    result(3, "error", "two", criteria=(), error="auth: no key", output=None),
    result(4, "unsure", "one", error="votes disagree"),
    result(5, "passed", "two", 0.75, cached=True, usage=Usage()),
]
SUMMARY = BatchSummary(
    batch_id="eval-1",
    name="kindness",
    created="2026-11-27T10:00:00+00:00",
    status="finished",
    total=6,
    passed=3,
    failed=1,
    errors=1,
    unsure=1,
    derived_metrics=(DerivedMetric(name="Twice", value="2 * Tone"),),
)


def written(folder: Path) -> Path:
    path = folder / "made" / "results.promptfoo.json"
    for _ in range(2):  # a file of ours is replaced without a flag
        outputs = Outputs([path])
        outputs.close(SUMMARY, lambda: RESULTS)
    return path


def test_an_error_has_no_verdict_there_and_a_case_has_its_place(tmp_path: Path) -> None:
    found = json.loads(written(tmp_path).read_text())["results"]

    assert found["version"] == 3
    assert [(row["testIdx"], row["promptIdx"]) for row in found["results"]] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [row["failureReason"] for row in found["results"]] == [0, 1, 0, 2, 2, 0]
    assert ["gradingResult" not in row for row in found["results"]] == [False, False, False, True, True, False]
    assert [row["error"] for row in found["results"][3:5]] == ["error: auth: no key", "unsure: votes disagree"]
    assert found["results"][5]["response"]["cached"] is True


@pytest.mark.slow
def test_promptfoo_imports_and_exports_the_same_counts_scores_metrics_tokens_and_cost(tmp_path: Path) -> None:
    promptfoo = installed_promptfoo(tmp_path / "home")
    ours, back = written(tmp_path), tmp_path / "back.json"
    promptfoo("import", ours)
    shown = promptfoo("show", "eval", "eval-1")
    promptfoo("export", "eval", "eval-1", "-o", back)
    found = json.loads(back.read_text())["results"]

    stats = {name: found["stats"][name] for name in ("successes", "failures", "errors")}
    assert stats == {"successes": 3, "failures": 1, "errors": 2}
    assert {name: found["stats"]["tokenUsage"][name] for name in ("prompt", "completion", "total", "numRequests")} == {
        "prompt": 500,
        "completion": 100,
        "total": 600,
        "numRequests": 10,
    }
    metrics = [prompt["metrics"] for prompt in found["prompts"]]
    assert [(one["testPassCount"], one["testFailCount"], one["testErrorCount"]) for one in metrics] == [(2, 0, 1), (1, 1, 1)]
    assert [one["score"] for one in metrics] == [1.5, 1.0]
    assert [one["namedScores"]["Twice"] for one in metrics] == [2 * 1.5, 2 * 1.0]
    assert [one["cost"] for one in metrics] == [0.75, 0.5]
    rows = sorted(found["results"], key=lambda row: (row["testIdx"], row["promptIdx"]))
    assert [(row["success"], row["score"], row["namedScores"].get("Tone")) for row in rows[:3]] == [
        (True, 1, 1),
        (False, 0.25, 0.25),
        (True, 0.5, 0.5),
    ]
    assert (rows[0]["namedScores"]["Added"], rows[0]["metadata"]["by"]) == (3, "a hook")
    assert sum(row["cost"] for row in rows) == 1.25
    assert "question 0" in shown
