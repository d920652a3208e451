"""Functions and the form of a draft are for a model's one call: anything else is refused with its cure."""

from typing import Any

import pytest
from pydantic import ValidationError

from gradeloop.batches.contract import Case
from gradeloop.contract.messages import FUNCTION_BYTES
from gradeloop.contract.thread import Generator, ThreadRequest

SAID = [{"role": "user", "content": "Hello"}]
NOW: dict[str, Any] = {"model": "openai:x", "functions": [{"name": "now"}]}


def test_odd_functions_are_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"functions": [{"name": "now"}, {"name": "now"}]}, "'now' is there twice"),
        ({"function_choice": "later"}, "'later' is not a choice; write one of: auto, none, required, now"),
        ({"functions": [], "function_choice": "auto"}, "none, as there are no functions"),
        ({"functions": [{"name": "a b"}]}, "String should match pattern"),
        ({"functions": [{"name": "a", "parameters": {"type": "array"}}]}, "not a JSON Schema of an object"),
        ({"functions": [{"name": "a", "parameters": {"title": "x" * FUNCTION_BYTES}}]}, f"{FUNCTION_BYTES} at most"),
        ({"output_form": {"json_schema": {"title": "x" * FUNCTION_BYTES}}}, f"{FUNCTION_BYTES} at most"),
        ({"tools": ["grep"]}, "for a draft that is one call, without tools"),
        ({"model": None, "activity": "write", "task_queue": "q"}, "for a draft that is one call, without tools"),
    ]
    for more, why in rows:
        with subtests.test(more=more), pytest.raises(ValidationError, match=why):
            Generator.model_validate(NOW | more)


@pytest.mark.parametrize("shape", [{"functions": [{"name": "now"}]}, {"output_form": {}}, {"model": "http_request:POST"}])
def test_a_conversation_of_several_turns_takes_none(shape: dict[str, Any]) -> None:
    generator = {"model": "openai:x"} | shape
    with pytest.raises(ValidationError, match="for cases of a batch drafted once"):
        ThreadRequest.model_validate({"generator": generator, "messages": SAID})
    with pytest.raises(ValidationError, match="leave them or loop out"):
        Case.model_validate({"id": "a", "rubric": "- good", "generator": generator, "messages": SAID, "loop": True})

    case = Case.model_validate({"id": "a", "rubric": "- good", "generator": generator, "messages": SAID})

    assert case == Case.model_validate_json(case.model_dump_json())


def test_a_generator_without_them_has_the_json_that_it_had() -> None:
    assert set(Generator.model_validate({"model": "openai:x"}).model_dump()) == {"model", "system_prompt", "tools", "show_rubric"}
