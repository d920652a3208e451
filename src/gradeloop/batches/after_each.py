"""promptfoo's hook `afterEach`: called in the sandbox with the result of a case that has ended, to which it adds scores and metadata."""

import asyncio
import math
import time
from typing import Any

from pydantic import JsonValue, ValidationError
from pydantic_core import to_json

from gradeloop.batches.answer import STATUS_LABELS, failure_reason
from gradeloop.batches.column_table import named_scores
from gradeloop.batches.contract import Case, CaseResult
from gradeloop.batches.ratings import AfterEach
from gradeloop.contract.base import CodeText
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.contract.messages import Usage
from gradeloop.errors import explain
from gradeloop.sandbox.code_calls import CodeCall, CodeSandbox
from gradeloop.sandbox.execution import SandboxError
from gradeloop.text import acceptable, clip, shortened

AFTER_EACH = "afterEach"

SECONDS = 60.0
"""The time after which no further hook begins in one activity, whose own limit is two minutes."""

ADDED_BYTES = 64 * 1024
"""The most that the hooks of a case may add, as JSON: it is read with the case wherever that is shown."""

_REASONS = {"passed": 0, "failed": 1}
"""promptfoo's number of why a case did not pass; all other statuses are its errors."""
_ERROR = 2


def promptfoo_row(result: CaseResult) -> dict[str, Any]:
    """Return a result as a row of promptfoo's results, without its place among them; a case without a verdict is an error there."""
    reason, why, added = _REASONS.get(result.status, _ERROR), failure_reason(result) or result.explanation, result.after_each or AfterEach()
    score, costs = {"score": result.score or 0.0, "namedScores": named_scores(result)}, promptfoo_costs(result.usage)
    row: dict[str, Any] = {"id": result.id, "success": not reason, "failureReason": reason, "vars": result.vars, **score, **costs}
    test = {"vars": result.vars, "description": result.description or result.id}
    row |= {"promptId": f"{result.prompt} / {result.label}", "testCase": test}
    row |= {"provider": {"id": result.label or "", "label": result.label or ""}, "latencyMs": round(result.usage.seconds * 1000)}
    row |= {"prompt": {"raw": result.prompt or result.id, "label": result.prompt or ""}}
    row |= {"response": {"output": result.output or "", "cached": result.cached, "metadata": added.response_metadata, **costs}}
    row |= {"metadata": added.metadata | ({"afterEachError": added.error} if added.error else {})}
    if reason == _ERROR:
        return row | {"error": f"{STATUS_LABELS[result.status][0]}: {result.error or why}"}
    metrics = {share.criterion: share.name for share in result.metrics}
    components = [_component(one, metrics.get(one.id)) for one in result.criteria if not one.unverified]
    score |= {"namedScores": named_scores(result.model_copy(update={"after_each": None}))}  # a hook changes no verdict
    return row | {"gradingResult": {"pass": not reason, "reason": why, "componentResults": components, **score}}


def _component(row: CriterionRow, metric: str | None) -> dict[str, Any]:
    """Return the verdict on a criterion as promptfoo's on an assertion."""
    assertion = {"type": "llm-rubric", "value": row.name} | ({"metric": metric} if metric else {})
    found: dict[str, Any] = {"pass": row.verdict == "passed", "score": float(row.passed) if row.score is None else row.score}
    found |= {"reason": row.reason or row.why_failed, "assertion": assertion}
    return found | ({"metadata": row.metadata} if row.metadata else {})


def promptfoo_costs(usage: Usage) -> dict[str, Any]:
    """Return usage under promptfoo's names."""
    tokens = {"prompt": usage.input or 0, "completion": usage.output or 0, "total": usage.tokens or 0, "cached": 0}
    return {"cost": usage.cost_usd or 0.0, "tokenUsage": tokens | {"numRequests": usage.calls}}


def hook_arguments(code: CodeText, name: str, context: JsonValue) -> tuple[JsonValue, JsonValue]:
    """Return what a function is called with for a hook: the context first where it bears the hook's name, else the name first."""
    return (context, {"hookName": name}) if code.function == name else (name, context)


def hook_call(code: CodeText, context: JsonValue) -> CodeCall:
    """Return the call of a function for `afterEach`; what JavaScript changes in place stands for nothing returned."""
    given = hook_arguments(code, AFTER_EACH, context)
    return CodeCall(code.language, code.code, given, file=code.file, function=code.function, keeps=given.index(context))


async def call_after_each(case: Case, result: CaseResult, code: CodeSandbox, began: float) -> CaseResult:
    """Return the result of a case with what its hooks add; where one fails, with that error and nothing that they add.

    `began`: when the first hook of the activity began, by the monotonic clock.
    """
    if not case.after_each or not case.runs:
        return result
    added = AfterEach(metadata=case.metadata)
    row = promptfoo_row(result.model_copy(update={"after_each": added}))
    test: JsonValue = {"vars": case.vars, "description": case.description, "metadata": case.metadata}
    for hook in case.after_each:
        try:
            row = _merged(row, await _returned(hook, {"test": test, "result": row}, code, began))
            added = _added(row, named_scores(result))
        except (SandboxError, ValueError) as error:
            why = explain(error) if isinstance(error, ValidationError) else str(error)
            added = AfterEach(metadata=case.metadata, error=shortened(f"{AFTER_EACH} of {hook.file} has failed: {why}"))
            break
    return result.model_copy(update={"after_each": added if added != AfterEach() else None})


async def _returned(hook: CodeText, context: dict[str, Any], code: CodeSandbox, began: float) -> JsonValue:
    if time.monotonic() - began > SECONDS:
        raise ValueError(f"the hooks before it took {SECONDS:g} seconds")
    (answer,) = await asyncio.to_thread(code.call, [hook_call(hook, context)])
    if answer.error is not None:
        raise ValueError(answer.error)
    return answer.value


def _merged(row: dict[str, Any], returned: JsonValue) -> dict[str, Any]:
    """Return a row with the scores and metadata that a hook returned, which promptfoo merges; anything else stays as it was."""
    changed: Any = acceptable(returned).get("result") if isinstance(returned, dict) else None
    if not changed:
        return row
    response = changed.get("response") if isinstance(changed, dict) else None
    scores, metadata, about = _part(changed, "namedScores"), _part(changed, "metadata"), _part(response or {}, "metadata")
    numbers = {name: float(score) for name, score in scores.items() if type(score) in {int, float} and math.isfinite(score)}
    response = row["response"] | {"metadata": row["response"]["metadata"] | about}
    return row | {"namedScores": row["namedScores"] | numbers, "metadata": row["metadata"] | metadata, "response": response}


def _part(value: Any, name: str) -> dict[str, Any]:  # noqa: ANN401 - JSON of any shape
    part: Any = (value.get(name) or {}) if isinstance(value, dict) else None
    if not isinstance(part, dict):
        raise ValueError(f"it returned {clip(str(value))}; return {{result: {{namedScores, metadata}}}}, or nothing")  # noqa: TRY004 - as all others
    return part


def _added(row: dict[str, Any], own: dict[str, float]) -> AfterEach:
    """Return what a row has beside the case's own scores; raise ValueError where that is too much to keep."""
    scores = {name: score for name, score in row["namedScores"].items() if own.get(name) != score}
    added = AfterEach(named_scores=scores, metadata=row["metadata"], response_metadata=row["response"]["metadata"])
    if (size := len(to_json(added))) > ADDED_BYTES:
        raise ValueError(f"what it adds has {size} bytes, {ADDED_BYTES} at most")
    return added
