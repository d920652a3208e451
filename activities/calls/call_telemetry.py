"""What is counted and traced of the calls of models."""

from collections.abc import Awaitable

from activities.calls.attempts import OUTAGE
from gradeloop.contract.messages import Usage
from gradeloop.contract.provider import ModelFault, ModelReply, ModelRequest
from gradeloop.telemetry.metrics import (
    COST,
    GRADER_ERRORS,
    MODEL_CALLS,
    MODEL_ERRORS,
    MODEL_RETRIES,
    MODEL_SECONDS,
    MODEL_WAIT_SECONDS,
    MODEL_WAITS,
    TOKENS,
)
from gradeloop.telemetry.traces import model_call


async def traced(request: ModelRequest, sending: Awaitable[ModelReply]) -> ModelReply:
    """Await a request to a model in a span of its own.

    Raises:
        ModelFault: The call failed; the span has its kind.
    """
    step, config = request.step, request.spec.config
    more = {
        "gen_ai.conversation.id": request.thread or None,
        "gen_ai.request.temperature": config.temperature,
        "gen_ai.request.max_tokens": config.max_tokens,
        "gradeloop.role": step.role,
        "gradeloop.run": step.run,
        "gradeloop.iteration": step.iteration,
    }

    def asked() -> dict[str, object]:
        messages = [message.model_dump(mode="json", exclude_defaults=True) for message in request.messages]
        return {"gen_ai.system_instructions": request.system, "gen_ai.input.messages": messages}

    with model_call("embeddings" if request.embedded else "chat", request.spec.provider, request.spec.model, more, asked) as span:
        try:
            reply = await sending
        except ModelFault as fault:
            span.failed(fault.kind)
            raise
        usage = reply.usage
        counts = {
            "input_tokens": usage.input,
            "output_tokens": usage.output,
            "cache_read.input_tokens": usage.cached,
            "cache_creation.input_tokens": usage.cache_written,
        }
        span.answered(
            reply.message.model or request.spec.model, counts, lambda: [reply.message.model_dump(mode="json", exclude_defaults=True)]
        )
        return reply


def count_reply(request: ModelRequest, usage: Usage) -> None:
    """Count a request that was answered."""
    _count(request, "ok", usage)


def count_failure(request: ModelRequest, kind: str, usage: Usage | None, *, final: bool, away: bool = False) -> None:
    """Count a request that failed.

    Args:
        request: The request.
        kind: The kind of failure.
        usage: What it cost; None where that is not known.
        final: Whether it is not made again.
        away: Whether that is so since its provider was away for too long.
    """
    model = _labels(request)
    _count(request, "error", usage or Usage())
    MODEL_ERRORS.record(**model, kind=kind)
    if not final:
        MODEL_RETRIES.record(**model)
    elif request.step.role == "grader":
        GRADER_ERRORS.record(kind=OUTAGE if away else kind)


def count_wait(request: ModelRequest, seconds: float) -> None:
    """Count a call that was handed back to wait for its turn."""
    MODEL_WAITS.record(**_labels(request))
    MODEL_WAIT_SECONDS.record(seconds, **_labels(request))


def _labels(request: ModelRequest) -> dict[str, str]:
    return {"provider": request.spec.provider, "model": request.spec.model}


def _count(request: ModelRequest, outcome: str, usage: Usage) -> None:
    model = _labels(request)
    MODEL_CALLS.record(**model, role=request.step.role, outcome=outcome)
    if usage.seconds:
        MODEL_SECONDS.record(usage.seconds, **model)
    if usage.cost_usd:
        COST.record(usage.cost_usd, **model)
    counts = {"input": usage.input, "output": usage.output, "cached": usage.cached, "cache_written": usage.cache_written}
    for name, count in counts.items():
        if count:
            TOKENS.record(count, **model, type=name)
