"""The keys of a question to a grader and of a request for a draft, under which the answer is reused."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelRequest
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.answer_form import AnswerForm
from gradeloop.grading.prompts import PROMPT_VERSION, render_rubric
from gradeloop.grading.scoring import CallGroup

KEPT = 500
"""The most verdicts that a draft's cache keeps: as many as a pass has conversations."""

TENANT_DIGITS = 24
"""The hexadecimal digits of a key that name its tenant: 96 bits, and 160 more for the question."""


# The rest of the key depends on the tenant too, so one tenant never meets a verdict that another one paid for.
# The first digits name the tenant, so that `gradeloop forget` finds all of a tenant's verdicts by the beginning
# of the key.
def key_of_tenant(key: str, tenant: str | None) -> str:
    """Return the key of a question for one tenant, whom its first digits name; without a tenant it is the key itself."""
    if tenant is None:
        return key
    own = hashlib.sha256(json.dumps(["tenant", tenant, key]).encode()).hexdigest()
    return f"{tenant_digits(tenant)}{own[TENANT_DIGITS:]}"


def tenant_digits(tenant: str) -> str:
    """Return the digits with which the keys of a tenant's verdicts begin."""
    return hashlib.sha256(json.dumps(["tenant", tenant]).encode()).hexdigest()[:TENANT_DIGITS]


# The key has all that can change the answer, and nothing else. A part that is missing here would reuse a
# verdict for another question. A part too many would pay for the same question again in each run, as the
# fence's code would. Whatever a prompt gets to say has to come in here, or raise PROMPT_VERSION.
def reuse_key(  # noqa: PLR0913 - one argument a part of the question
    rubric: Rubric,
    group: CallGroup,
    *,
    sample: int,
    judge: ModelSpec,
    instructions: str | None,
    tools: str,
    records: str,
    request: int,
    checks: Mapping[str, CheckOutcome],
    form: AnswerForm,
) -> str:
    """Return the sha256 of everything that a grader is asked, without the fence's random code and the tag, which every run changes.

    `judge`: the model that gives the verdict, with its settings; its fallbacks play no part.
    `tools`: the sha256 of the tools that the grader is offered, with their versions.
    `records`: the running sha256 of all messages up to the draft, which is the last of them.
    `checks`: the outcomes of checks, by criterion; they count where the grader is told of them.
    """
    question = {
        "criteria": [criterion.model_dump(mode="json") for criterion in group.criteria],
        "text": render_rubric(rubric, None if group.alone else group.criteria, checks=group.shows_checks),
        "form": [group.pass_score, group.alone, form.model_dump(mode="json", exclude={"model"})],
        "instructions": [rubric.instructions, instructions],
        "prompt": group.prompt.model_dump(mode="json") if group.prompt else None,
        "language": rubric.language,
        "judge": _answering(judge),
        "version": PROMPT_VERSION,
        "tools": tools,
        "records": records,
        "request": request,
        "checks": {name: outcome.model_dump(mode="json") for name, outcome in checks.items() if group.shows_checks},
        "sample": sample,
    }
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()


def draft_key(request: ModelRequest, shown_as: str | None) -> str:
    """Return the sha256 of everything that a model is asked for a draft, and of the form in which that shows calls of functions."""
    asked = {
        "draft": [_answering(request.spec), request.system, shown_as, request.function_choice, request.logprobs],
        "parts": [request.messages, request.images, request.functions, request.output_form],
    }
    return hashlib.sha256(json.dumps(to_jsonable_python(asked), sort_keys=True).encode()).hexdigest()


def _answering(model: ModelSpec) -> dict[str, Any]:
    """Return the model that answers, with the settings that an answer may depend on; its fallbacks play no part."""
    return model.chain[0].model_dump(mode="json", exclude={"config": {"timeout"}})
