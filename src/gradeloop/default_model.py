"""Which model is used when none is named, and which ones a worker with this environment cannot serve."""

from collections.abc import Mapping

from gradeloop.errors import InvalidRequest
from gradeloop.request import ThreadRequest

AS_OF = "2026-11-20"

MODELS: tuple[tuple[str, str], ...] = (
    ("ANTHROPIC_API_KEY", "anthropic:claude-haiku-4-5"),
    ("OPENAI_API_KEY", "openai:gpt-5-mini"),
    ("OPENROUTER_API_KEY", "openrouter:anthropic/claude-haiku-4.5"),
)


KEYS = {model.partition(":")[0]: variable for variable, model in MODELS}
"""The variable of each provider that needs a key."""


def default_model(environ: Mapping[str, str], role: str = "generator") -> tuple[str, str]:
    """Return the model, and the variable that decided.

    Raises:
        InvalidRequest: No provider's key is set.
    """
    for variable, model in MODELS:
        if environ.get(variable, "").strip():
            return model, variable
    names = ", ".join(variable for variable, _ in MODELS)
    flag = "--grader" if role == "grader" else "--model"
    raise InvalidRequest(f"{role}.model is missing and no provider key is set; name a model with {flag}, or set one of {names}")


def refuse_unservable(request: ThreadRequest, environ: Mapping[str, str], *, scripted: bool) -> None:
    """Refuse at once what a worker with this environment would refuse, before one is started.

    Raises:
        InvalidRequest: A key, or the file of scripted replies, is missing.
    """
    for role, model in {"generator": request.generator.model, "grader": request.grader and request.grader.model}.items():
        variable = KEYS.get(model.provider) if model else None
        if model and variable and not environ.get(variable, "").strip():
            raise InvalidRequest(f"{role}.model: {model.id!r} needs a key and {variable} is not set; set it, or name another model")
        if model and model.provider == "scripted" and not scripted:
            raise InvalidRequest(f"{role}.model: {model.id!r} needs a file of replies; name it as 'scripted:' in the task file")
