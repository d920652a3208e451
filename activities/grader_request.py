"""What one grader turn is asked as: the prompt, the form of the answer, and the tools, for whichever model judges."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from temporalio.exceptions import ApplicationError

from activities.providers.capabilities import capability
from activities.providers.model import ModelRequest, Step, ToolSpec
from gradeloop.call_groups import CallGroup
from gradeloop.errors import InvalidRequest
from gradeloop.grader_prompt import Judged, grader_prompt
from gradeloop.modelspec import ModelSpec
from gradeloop.prompts import last_turn
from gradeloop.request import Grader
from gradeloop.rubric import Rubric
from gradeloop.transcript import Message
from gradeloop.verdict import pass_score_schema, verdict_schema


@dataclass(frozen=True)
class Asking:
    """A question to a grader."""

    rubric: Rubric
    group: CallGroup
    grader: Grader
    """Whose instructions count."""
    model: ModelSpec
    judged: Judged
    scratch: Sequence[Message]
    """What was said after the prompt: tool calls, their results, what was asked to be mended."""
    step: Step
    tools: tuple[ToolSpec, ...] = ()
    tag: str | None = None
    """The name of the tags between which the answer stands, for a model whose API keeps no schema."""
    last: bool = False
    raised: bool = False


def grader_request(asking: Asking) -> ModelRequest:
    """Return the call.

    Raises:
        ApplicationError: Of type `config`: the author's own prompt reaches into what is not there.
    """
    model, group, tools = asking.model, asking.group, asking.tools
    try:
        given = grader_prompt(asking.rubric, group, asking.judged, instructions=asking.grader.system_prompt, tag=asking.tag)
    except InvalidRequest as error:
        raise ApplicationError(str(error), type="config", non_retryable=True) from None
    said = (*given.messages, *asking.scratch)
    shared = () if given.shared is None else (given.shared,)
    bound = asking.tag is None and (capability(model).schema_with_tools or not tools)
    return ModelRequest(
        spec=model,
        step=asking.step,
        messages=(*said, *((last_turn(),) if asking.last else ())),
        system=given.system,
        tools=tools,
        schema=_schema(group) if bound else None,
        tools_allowed=not asking.last,
        breakpoints=(*shared, *((len(said) - 1,) if tools else ())),
        tag=asking.tag,
        raised=asking.raised,
    )


def _schema(group: CallGroup) -> dict[str, Any]:
    return pass_score_schema() if group.pass_score else verdict_schema(scored=group.scored, quoted=group.quoted)


def seeded(model: ModelSpec, sample: int) -> ModelSpec:
    """Return the model for one of several votes: with a seed of its own where a seed is set, or all votes would be one."""
    seed = model.config.seed
    if seed is None or not sample:
        return model
    return model.model_copy(update={"config": model.config.model_copy(update={"seed": (seed + sample) % 2**31})})


def answer_form(model: ModelSpec) -> Literal["schema", "tagged"]:
    """Return how a model's answer is marked: by a schema that its API keeps, or by tags of the call's own."""
    return capability(model).answer


def answer_tag(nonce: str, conversation: str) -> str:
    """Return the name of the tags: the same in one conversation, known to nobody who wrote what is judged."""
    return f"verdict-{hashlib.sha256(f'{nonce}/{conversation}'.encode()).hexdigest()[:16]}"
