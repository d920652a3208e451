"""A model is asked in the form that is known of it: by schema or tags, fully or in short, within its context."""

from typing import Any

import pytest

from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Grader
from gradeloop.grading.answer_form import AnswerForm, most_criteria
from gradeloop.grading.prompts import JudgedDraft, build_grader_prompt
from gradeloop.grading.scoring import call_groups
from gradeloop.settings.answer_forms import form_of, may_reason
from gradeloop.settings.catalog import ServerFacts, declare_facts

LOCAL = ModelSpec.model_validate({"id": "openai_compatible:small", "config": {"base_url": "http://127.0.0.1:1/v1"}})


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the servers of other tests."""
    monkeypatch.setattr("gradeloop.settings.catalog._facts", {})


def form(grader: dict[str, Any] | None = None, **facts: Any) -> AnswerForm:
    """Return the form for a model whose server said so."""
    declare_facts(LOCAL, ServerFacts.model_validate({"answer": "schema", **facts}))
    return form_of(LOCAL, Grader.model_validate(grader or {}))


def test_a_model_of_which_nothing_is_known_writes_tags_in_the_full_form() -> None:
    asked = form_of(LOCAL, Grader())

    assert (asked.by, asked.profile, asked.bounds, asked.budget) == ("tags", "full", "none", None)


@pytest.mark.parametrize(
    ("grader", "facts", "profile"),
    [
        ({}, {}, "full"),
        ({}, {"context": 8_192}, "short"),
        ({}, {"context": 8_193}, "full"),
        ({}, {"context": 131_072, "parameters": 134_515_008}, "short"),
        ({}, {"context": 131_072, "parameters": 8_000_000_000}, "full"),
        ({"prompt": "full"}, {"context": 2_048}, "full"),
        ({"prompt": "short"}, {}, "short"),
    ],
)
def test_the_short_prompt_is_for_small_models_and_for_whoever_asks(grader: dict[str, Any], facts: dict[str, Any], profile: str) -> None:
    assert form(grader, **facts).profile == profile


@pytest.mark.parametrize(("context", "budget"), [(1_024, 1_000), (2_048, 2_394), (16_384, 37_152), (1_000_000, None), (None, None)])
def test_the_budget_of_records_follows_the_context(context: int | None, budget: int | None) -> None:
    assert form(context=context).budget == budget


def test_a_form_is_kept_for_its_model_unless_another_prompt_is_asked_for() -> None:
    known = form(context=2_048, bounds="all")
    declare_facts(LOCAL, ServerFacts(answer="tagged"))
    other = LOCAL.model_copy(update={"id": "openai_compatible:other"})

    assert form_of(LOCAL, Grader(), known) == known
    assert form_of(LOCAL, Grader(prompt="full"), known).profile == "full"
    assert form_of(other, Grader(), known).by == "tags"


@pytest.mark.parametrize(
    ("model", "most"),
    [("azure:deployment", 24), ("openai:gpt-6-luna", None), ("anthropic:claude-haiku-5-5", None), ("google_genai:gemini-3.6-flash", None)],
)
def test_a_schema_keeps_within_the_dialect(model: str, most: int | None) -> None:
    group = call_groups(Rubric.model_validate({"criteria": [f"criterion {at}" for at in range(100)]}))[0]
    spec = ModelSpec.model_validate({"id": model, "config": {"structured_output": True}})

    assert most_criteria(group, form_of(spec, Grader())) == most


@pytest.mark.parametrize(
    ("model", "facts", "may"),
    [("openai:gpt-4.1", None, False), ("openai:gpt-6-luna", None, True), (LOCAL.id, None, True), (LOCAL.id, {"reasons": False}, False)],
)
def test_a_model_that_may_reason_has_no_cap_of_ours(model: str, facts: dict[str, Any] | None, may: bool) -> None:
    spec = LOCAL if model == LOCAL.id else ModelSpec(id=model)
    if facts is not None:
        declare_facts(spec, ServerFacts.model_validate({"answer": "schema", **facts}))

    assert may_reason(spec) is may


def test_the_short_prompt_has_a_third_of_the_full_ones_text() -> None:
    rubric = Rubric.model_validate("- It says when the shop opens")
    judged = JudgedDraft([Message(role="user", content="q"), Message(role="assistant", content="a")], 0, 1, {}, "0" * 32)

    short, full = (
        build_grader_prompt(rubric, call_groups(rubric)[0], judged, form=AnswerForm(profile=profile)) for profile in ("short", "full")
    )

    lengths = [len(prompt.system) + sum(len(message.content) for message in prompt.messages) for prompt in (short, full)]
    assert lengths[0] < 750
    assert lengths[0] * 3 < lengths[1]
    assert "unjudgeable" in full.system
    assert "unjudgeable" not in short.system
