"""Who judges: a model, an activity of somebody else's, or a function of the worker's tools."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from gradeloop.modelspec import ModelSpec
from gradeloop.strict import Sparse, Strict

Name = Annotated[str, Field(min_length=1, max_length=200)]


class Elsewhere(Strict):
    """A grader that is not ours: an activity on somebody else's worker, in any language, or a function in our worker's tools."""

    activity: Sparse[Name | None] = None
    task_queue: Sparse[Name | None] = None
    function: Sparse[Name | None] = None

    @model_validator(mode="after")
    def _is_one(self) -> "Elsewhere":
        if (self.activity is None) == (self.function is None) or (self.activity is None) != (self.task_queue is None):
            raise ValueError("write {activity, task_queue}, or {function} for a function of the worker's tools")
        return self

    @property
    def id(self) -> str:
        """The name by which rows and evaluations tell who judged."""
        return f"function:{self.function}" if self.function else f"activity:{self.activity}"


Judge = ModelSpec | Elsewhere


def judge_of(value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
    """Read who judges: a model as text or object, or somebody else, told by its keys, so that a mistake is told of one of them."""
    if isinstance(value, ModelSpec | Elsewhere):
        return value
    elsewhere = isinstance(value, dict) and not {"activity", "task_queue", "function"}.isdisjoint(value)
    return Elsewhere.model_validate(value) if elsewhere else ModelSpec.model_validate(value)
