"""What a judge is made of: a rubric of criteria as in the loop, or a rubric in words with a schema of its own."""

import hashlib
import json
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from gradeloop.errors import InvalidRequest, explain
from gradeloop.judges.schema_judge import SchemaJudge
from gradeloop.printable import clip
from gradeloop.request import Grader
from gradeloop.rubric import Rubric
from gradeloop.strict import Strict

OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "result": {"type": "string", "enum": ["satisfied", "needs_revision", "failed"]},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "criteria": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "name": {"type": "string"},
                    "passed": {"type": "boolean"},
                    "reason": {"type": "string"},
                    "gap": {"type": "string"},
                },
                "required": ["id", "name", "passed", "reason"],
            },
        },
        "explanation": {"type": "string"},
    },
    "required": ["result", "criteria", "explanation"],
}
"""Of a judge with criteria; `score` is absent where the result is `failed`, and a row has what the rubric asks for beside it."""


class CriteriaJudge(Strict):
    """A rubric of criteria and who judges by it."""

    id: Annotated[str, Field(max_length=200)] = ""
    version: Annotated[int, Field(ge=1)] = 1
    rubric: Rubric
    grader: Grader | None = None
    """As of a thread: model, system_prompt, tools, or a grader elsewhere."""

    @field_validator("rubric")
    @classmethod
    def _can_be_judged_alone(cls, value: Rubric) -> Rubric:
        if value.cleared:
            raise ValueError("the rubric has no criteria; say what must hold")
        if value.asked_of_people:
            names = ", ".join(each.id for each in value.asked_of_people)
            raise ValueError(f"a person decides {names}; a judge asks nobody, leave them out or have a grader judge them")
        return value

    @property
    def output_schema(self) -> dict[str, Any]:
        """The schema of its output."""
        return OUTPUT_SCHEMA

    def sha256(self) -> str:
        """Return the sha256 of all that decides how it judges: everything but its id and version."""
        grader = self.grader.model_dump(mode="json", exclude_none=True, exclude_defaults=True) if self.grader else None
        return hashlib.sha256(json.dumps([self.rubric.canonical(), grader], sort_keys=True).encode()).hexdigest()

    @property
    def rubric_id(self) -> str:
        """Its id, or one made of its content."""
        return self.id or f"rubric-{self.sha256()[:12]}"

    @model_validator(mode="before")
    @classmethod
    def _from_rubric(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        """Take a bare rubric, as text, list or object."""
        if isinstance(value, dict) and ("rubric" in value or not {"criteria", "instructions"} & set(value)):
            return value
        return {"rubric": value} if isinstance(value, str | list | dict | Rubric) else value


JudgeConfig = SchemaJudge | CriteriaJudge


def config_of(value: Any) -> JudgeConfig:  # noqa: ANN401 - raw input of any shape
    """Read a judge of either kind, told apart by `rubric_text`.

    Raises:
        InvalidRequest: It is none; the message names field, value and cure.
    """
    if isinstance(value, SchemaJudge | CriteriaJudge):
        return value
    if not isinstance(value, dict | list | str | Rubric):
        raise InvalidRequest(f"the judge is {clip(str(value))}; write a mapping with 'rubric:' or 'rubric_text:'")
    try:
        if isinstance(value, dict) and ("rubric_text" in value or "output_schema" in value):
            return SchemaJudge.model_validate(value)
        return CriteriaJudge.model_validate(value)
    except ValidationError as error:
        raise InvalidRequest(f"the judge: {explain(error)}") from None
