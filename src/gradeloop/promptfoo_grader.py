"""gradeloop as promptfoo's grader: its Python provider calls `call_api` for each `llm-rubric`."""

import json
from collections.abc import Mapping
from typing import Any

from gradeloop.errors import GradeloopError
from gradeloop.testing import judge_outputs


def call_api(_prompt: str, options: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    """Judge an output by a rubric, as promptfoo's grader, and return `{output: {pass, score, reason}, tokenUsage, cost}`.

    Without a verdict it returns `{error}`.

    Args:
        options: `config.model` is the model that judges, written `provider:model`; by default the first for which a key is set.
            `config.scripted` is a file of replies for the provider `scripted`.
        context: `vars.output` is judged by `vars.rubric`: a text is one criterion, an object a rubric of ours.
    """
    given: Mapping[str, Any] = context.get("vars") or {}
    config: Mapping[str, Any] = options.get("config") or {}
    if given.get("rubric") is None or given.get("output") is None:
        return {"error": "gradeloop judges an output by the value of an llm-rubric, and this call has none; use it for llm-rubric"}
    # promptfoo has parsed what is JSON; the judge is shown it as text.
    output, rubric = (
        text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for text in (given["output"], given["rubric"])
    )
    own = isinstance(given["rubric"], Mapping) and "criteria" in given["rubric"]
    asked = given["rubric"] if own else {"criteria": [{"description": rubric, "form": "pass_score"}]}
    try:
        (result,) = judge_outputs([output], asked, grader=config.get("model"), scripted=config.get("scripted"))
    except GradeloopError as error:
        return {"error": str(error)}
    if result.failed or result.output["result"] == "failed":
        return {"error": f"no verdict: {result.result_metadata.get('reason') or result.output.get('explanation')}"}
    rows: Any = result.output["criteria"]
    failing = [row for row in rows if not row["passed"]]
    reason = "\n".join(str(row.get("gap") or row["reason"]) for row in failing or rows)
    usage = result.usage
    return {
        "output": {"pass": result.output["result"] == "satisfied", "score": result.output["score"], "reason": reason},
        "tokenUsage": {"total": usage.tokens, "prompt": usage.input, "completion": usage.output, "numRequests": usage.calls},
        "cost": usage.cost_usd,
    }
